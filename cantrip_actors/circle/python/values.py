"""Values that come out of a Python sandbox, as JSON.

The interpreter returns its own values as Python's, and stand-ins for values that exist only inside: an object of a
class that the program defined, a builtin function, a type. This file never calls a stand-in and reads only its data.

An argument of a gate must be JSON; an object counts as its attributes. A program's final value is only displayed, so
parts that are not JSON become their `repr`. Both walks are bounded, and so is the sandbox's memory.

Some values come out only as their text: `range(3)`, the keys of a dict, an iterator, a function. As an argument such a
text is refused, with advice, because it is far more likely a mistake than a string of exactly that form.

Some values cannot exist in this process, such as a dict whose keys have no hash here. `read_out` is the boundary for
their errors.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from typing import Any, Final

from pydantic_monty import MontyClassProxy, MontyClassTypeProxy, MontyFileHandle, MontyStdTypeProxy

from cantrip_actors.circle.plain import Conversion
from cantrip_actors.terms.bounds import DEEPEST, NotPlain, TooLarge
from cantrip_actors.terms.messages import make_encodable

_TEXT_OF_INSIDE: Final = re.compile(
    r"(?:range\(-?\d+, -?\d+(?:, -?\d+)?\)|dict_(?:keys|values|items)\(\[.*\]\)"
    r"|<(?P<one>[\w.]*iterator|itertools\.\w+|_csv\.reader) object(?: at 0x[0-9a-f]+)?>"
    r"|(?P<other><(?:function|class|module) '[^'\n]*'(?: at 0x[0-9a-f]+)?>|<function \w+>|<bound method>"
    r"|<(?:coroutine|random\.Random|re\.Match|\w+ _hashlib\.HASH) object[^\n]*>|functools\.partial\([^\n]*\)))\Z",
    re.DOTALL,
)
"""The text of values that exist only inside. Those that do not match `other` can be passed as `list(…)`."""

_CIRCLES: Final = {
    "[...]": (list, "a list"),
    "(...)": (tuple, "a tuple"),
    "{...}": (dict, "a dict"),
    "...": (MontyClassProxy, "an object"),
}
"""The texts for a value inside itself, with the kind of the value and its name."""

_LONGEST_CIRCLE: Final = max(map(len, _CIRCLES))

LONG: Final = 10_000
"""Bits of the longest integer that is written in decimal digits."""

_BEGIN: Final = frozenset("rdf<")

_INSIDE: Final = (MontyStdTypeProxy, MontyClassTypeProxy, MontyFileHandle, type, complex, type(...))


class _Repr(reprlib.Repr):
    """Write any value in a line or two, whatever its size; a stand-in is written as the value inside the interpreter
    that it represents.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 20
        self.maxstring = self.maxlong = self.maxother = 200

    def repr_MontyClassProxy(self, value: MontyClassProxy, level: int) -> str:  # noqa: N802  # reprlib's names
        if level <= 0:
            return f"{value.name}(...)"
        fields = [
            f"{name}={self.repr1(attribute, level - 1)}" for name, attribute in list(value.attributes.items())[:20]
        ]
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


_repr = _Repr()


def read_out(read: Callable[[], Any]) -> Any:
    """Return the value that `read` takes out of a worker. Raises NotPlain if the value cannot be made in this
    process.
    """
    try:
        return read()
    except Exception as failure:
        raise NotPlain(f"a value that does not exist outside ({type(failure).__name__})") from failure


class ArgumentsConversion(Conversion):
    """Convert the arguments of one gate call to JSON; all of them together share the bounds.

    An object of the program counts as its attributes.
    """

    __slots__ = ("_inside",)

    def __init__(self) -> None:
        super().__init__()
        self._inside: list[type] = []
        """The kinds of the enclosing values."""

    def convert_name(self, name: str) -> str:
        """Return the name of an argument. Raises TooLarge."""
        encodable = make_encodable(name)
        self.count_text(encodable)
        return encodable

    def visit(self, value: Any, depth: int = 0) -> Any:
        """Return an argument as JSON. Raises NotPlain if it has no JSON form, and TooLarge if it exceeds a bound."""
        if isinstance(value, str) and value[:1] in _BEGIN and (meant := _TEXT_OF_INSIDE.match(value)):
            raise NotPlain(f"{_repr.repr_text(value)}{'' if meant['other'] else ': pass list(…) of it'}")
        if isinstance(value, str) and len(value) <= _LONGEST_CIRCLE and value in _CIRCLES:
            kind, name = _CIRCLES[value]
            if kind in self._inside:
                raise NotPlain(
                    f"{name} that contains itself: expected a value without circles (a text {value!r} inside {name} "
                    "cannot be told from one)"
                )
        return super().visit(value, depth)

    def _convert_compound(self, value: Any, depth: int) -> Any:
        if isinstance(value, _INSIDE):
            raise NotPlain(_repr.repr(value))
        self._inside.append(type(value))
        converted = (
            self._convert_mapping(value.attributes, depth)
            if isinstance(value, MontyClassProxy)
            else super()._convert_compound(value, depth)
        )
        self._inside.pop()
        return converted


class _Rendering(Conversion):
    """Convert a value to JSON for display: parts without a JSON form become their `repr`."""

    __slots__ = ()

    def visit(self, value: Any, depth: int = 0) -> Any:
        if depth >= DEEPEST:
            return self._count_simple("…")
        try:
            return super().visit(value, depth)
        except TooLarge:
            raise
        except NotPlain:
            return self._count_simple(_render_text(value))

    def _convert_compound(self, value: Any, depth: int) -> Any:
        if isinstance(value, (MontyClassProxy, *_INSIDE)):
            return self._count_simple(_render_text(value))
        return super()._convert_compound(value, depth)

    def _convert_key(self, key: object) -> str:
        return _render_text(key)


def render(read: Callable[[], Any]) -> Any:
    """Return a program's final value as JSON; parts without a JSON form become their `repr`. Raises TooLarge."""
    try:
        return _Rendering().visit(read_out(read))
    except TooLarge:
        raise
    except NotPlain as problem:  # the value cannot exist in this process
        return f"[{problem}]"


def _render_text(value: object) -> str:
    return make_encodable(_repr.repr(value))
