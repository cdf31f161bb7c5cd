"""Exports of a package that are imported when they are first used.

A package states each of its exports once, as an import for types in its `__init__.py`, and reads that file for the
modules of its names:

    if TYPE_CHECKING:
        from package.module import name as name
    else:
        __getattr__, __dir__ = export_lazily(__name__)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from linecache import getlines
from typing import Any, Final

_EXPORT: Final = re.compile(r"^    from (\S+) import \(?\s*(\w+) as \2\b", re.MULTILINE)


def export_lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package."""
    module = sys.modules[package]

    @cache
    def read_homes() -> dict[str, str]:
        source = "".join(getlines(str(module.__file__), vars(module)))
        return {name: home for home, name in _EXPORT.findall(source)}

    def import_export(name: str) -> Any:
        if name == "__all__":
            value: Any = sorted(read_homes())
        elif name not in read_homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        else:
            value = getattr(import_module(read_homes()[name]), name)
        setattr(module, name, value)
        return value

    return import_export, lambda: sorted({*vars(module), *read_homes()})
