"""Values that come out of a Python sandbox, as JSON.

The interpreter hands over its own values as Python's, and stand-ins for what only exists inside: an object of a class
that the program defined, a builtin function, a type. None of them is ever called or looked into beyond its data.

An argument of a gate has to be JSON; of an object its attributes count. What a program ends with is only shown, so
whatever is no JSON is shown as it reads. Either way the walk is bounded, and so is the sandbox's memory.

Some of them come out as their text and as nothing else: `range(3)`, the keys of a dict, an iterator, a function. As an
argument such a text is refused, with what to write: that it was meant as one is far less likely than that it was not.

A value may even be none on this side: a dict whose keys have no hash here. `taken` is the boundary for that.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from typing import Any, Final

from pydantic_monty import MontyClassProxy, MontyClassTypeProxy, MontyFileHandle, MontyStdTypeProxy

from cantrip_actors.circle.plain import Conversion
from cantrip_actors.terms.bounds import DEEPEST, NotPlain, TooLarge
from cantrip_actors.terms.messages import encodable

__all__ = ["Arguments", "shown", "taken"]

_TEXT_OF: Final = re.compile(
    r"(?:range\(-?\d+, -?\d+(?:, -?\d+)?\)|dict_(?:keys|values|items)\(\[.*\]\)"
    r"|<(?P<one>[\w.]*iterator|itertools\.\w+|_csv\.reader) object(?: at 0x[0-9a-f]+)?>"
    r"|(?P<other><(?:function|class|module) '[^'\n]*'(?: at 0x[0-9a-f]+)?>|<function \w+>|<bound method>"
    r"|<(?:coroutine|random\.Random|re\.Match|\w+ _hashlib\.HASH) object[^\n]*>|functools\.partial\([^\n]*\)))\Z",
    re.DOTALL,
)
"""How what only exists inside reads. What is not `other` is a list as soon as it is made one."""

LONG: Final = 10_000
"""Bits of an integer that is read in decimal digits."""

_BEGIN: Final = frozenset("rdf<")

_INSIDE: Final = (MontyStdTypeProxy, MontyClassTypeProxy, MontyFileHandle, type, complex, type(...))


class _Reading(reprlib.Repr):
    """How a value reads, in a line or two whatever its size; stand-ins read as what they stand for."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 20
        self.maxstring = self.maxlong = self.maxother = 200

    def repr_MontyClassProxy(self, value: MontyClassProxy, level: int) -> str:  # noqa: N802  # reprlib's way of names
        if level <= 0:
            return f"{value.name}(...)"
        fields = [f"{name}={self.repr1(one, level - 1)}" for name, one in list(value.attributes.items())[:20]]
        return f"{value.name}({', '.join(fields)})"

    def repr_MontyStdTypeProxy(self, value: MontyStdTypeProxy, _level: int) -> str:  # noqa: N802
        return f"<{value.kind} {value.name}>"

    def repr_int(self, value: int, level: int) -> str:  # Python refuses the decimal digits of huge ones
        excess = value.bit_length() - LONG
        return super().repr_int(value, level) if excess <= 0 else f"{hex(value >> excess)[: self.maxlong]}…"

    def repr_text(self, value: str) -> str:
        return value if len(value) <= self.maxother else f"{value[: self.maxother]}…"

    def repr_MontyClassTypeProxy(self, value: MontyClassTypeProxy, _level: int) -> str:  # noqa: N802
        return f"<class {value.name}>"


_reading = _Reading()


def taken(read: Callable[[], Any]) -> Any:
    """What `read` takes out of a worker. Raises NotPlain where it cannot be made on this side, for whatever reason."""
    try:
        return read()
    except Exception as failure:
        raise NotPlain(f"a value that does not exist outside ({type(failure).__name__})") from failure


class Arguments(Conversion):
    """The arguments of one gate call on their way out: the bounds hold for all of them together.

    Of an object of the program's its attributes count.
    """

    __slots__ = ()

    def name(self, name: str) -> str:
        """Return the name of an argument. Raises TooLarge."""
        made = encodable(name)
        self.count_text(made)
        return made

    def visit(self, value: Any, depth: int = 0) -> Any:
        """Return an argument as JSON. Raises NotPlain for what is none, and TooLarge for what is over a bound."""
        if isinstance(value, str) and value[:1] in _BEGIN and (meant := _TEXT_OF.match(value)):
            raise NotPlain(f"{_reading.repr_text(value)}{'' if meant['other'] else ': pass list(…) of it'}")
        return super().visit(value, depth)

    def _compound(self, value: Any, depth: int) -> Any:
        if isinstance(value, MontyClassProxy):
            return self._mapping(value.attributes, depth)
        if isinstance(value, _INSIDE):
            raise NotPlain(_reading.repr(value))
        return super()._compound(value, depth)


class _Shown(Conversion):
    """A value as JSON that shows what is no JSON as it reads."""

    __slots__ = ()

    def visit(self, value: Any, depth: int = 0) -> Any:
        if depth >= DEEPEST:
            return self._simple("…")
        try:
            return super().visit(value, depth)
        except TooLarge:
            raise
        except NotPlain:
            return self._simple(_read(value))

    def _compound(self, value: Any, depth: int) -> Any:
        if isinstance(value, (MontyClassProxy, *_INSIDE)):
            return self._simple(_read(value))
        return super()._compound(value, depth)

    def _key(self, key: object) -> str:
        return _read(key)


def shown(read: Callable[[], Any]) -> Any:
    """Return what a program ended with as JSON, in it the text of what is no JSON. Raises TooLarge."""
    try:
        return _Shown().visit(taken(read))
    except TooLarge:
        raise
    except NotPlain as problem:  # it does not exist on this side
        return f"[{problem}]"


def _read(value: object) -> str:
    return encodable(_reading.repr(value))
