"""Deprecated names: each use warns and returns the object with the new name. Old module names are in `_moved.py`.

Remove an old name two minor versions after it was renamed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any


def make_getattr(module: str, **names: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: `make_getattr(__name__, Desk="Dispatcher")`."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {names[name]}: use that", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return get


class Renamed:
    """A deprecated alias in a class body: `said = Renamed("pass_on")`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._old = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = f"{owner.__name__}.{name}"

    def __get__(self, value: object, owner: type | None = None) -> Any:
        warnings.warn(f"{self._old} is now {self._name}: use that", DeprecationWarning, stacklevel=2)
        return getattr(owner if value is None else value, self._name)
