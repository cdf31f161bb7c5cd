"""Frozen values that are made many times a turn: an `__init__` that takes a third of the time.

A frozen dataclass fills itself by `object.__setattr__`, a call for each field, because the class refuses plain
assignment: of what a turn of the runtime cost, that was a tenth. `swift` gives such a class an `__init__` that assigns.
While it does, the value is of a subclass without fields of its own that lets itself be assigned to; then it is of its
class, and as frozen as ever. Nobody has seen it in between.

Nothing else changes: not the signature, not equality, not what `fields`, `replace`, `copy` and `pickle` do. It is worth
a line above a class of which every turn makes some, and above no other.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, TypeVar

__all__ = ["swift"]

T = TypeVar("T")


def swift(cls: type[T]) -> type[T]:
    """Make `cls`, a dataclass that is `frozen` and has `slots`, quicker to make; it stands above `@dataclass`.

    A subclass of it fills itself as it would without this. Fields that are no parameters, keyword-only fields and
    `__post_init__` are not for such a class: raises TypeError.
    """
    slow: Any = cls.__init__
    listed = fields(cls)  # type: ignore[arg-type]  # every dataclass has them
    names = [field.name for field in listed]
    takes = slow.__code__
    if takes.co_varnames[1 : takes.co_argcount] != (*names,) or hasattr(cls, "__post_init__"):
        raise TypeError(f"{cls.__name__}: expected a dataclass whose fields are its parameters, and nothing after them")
    unset = dict(zip(reversed(names), reversed(slow.__defaults__ or ()), strict=False))
    made_by = {field.name: field.default_factory for field in listed if field.default_factory is not MISSING}
    given = [f"{name} = {name}" for name in names if name not in made_by]
    given += [f"{name} = made_by[{name!r}]() if {name} is unset[{name!r}] else {name}" for name in made_by]
    source = "\n    ".join(
        [
            f"def __init__(self, {', '.join(names)}):",
            "if self.__class__ is not cls:",
            f"    return slow(self, {', '.join(names)})",
            "thaw(self, '__class__', thawed)",
            *(f"self.{one}" for one in given),
            "self.__class__ = cls",
        ]
    )
    assigned = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    scope: dict[str, Any] = {
        "cls": cls,
        "slow": slow,
        "thaw": object.__setattr__,
        "thawed": type(cls.__name__, (cls,), assigned),
        "made_by": made_by,
        "unset": unset,
    }
    exec(source, scope)  # noqa: S102  # as `dataclass` does: the text is made of the names of fields alone
    made: Any = scope["__init__"]
    made.__defaults__ = slow.__defaults__
    cls.__init__ = wraps(slow)(made)  # type: ignore[method-assign]
    return cls
