"""Exports of a package that are imported when they are first used.

A package states each of its exports once, as an import for types in its `__init__.py`:

    if TYPE_CHECKING:
        from package.module import name as name
    else:
        __getattr__, __dir__ = export_lazily(__name__)

The modules of its names are read from its code, which has these imports though they are not carried out, and which is
there also without a source file: in a program that was frozen, for example.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any


def export_lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package, whose `__init__.py` calls this."""
    module, code = sys.modules[package], sys._getframe(1).f_code  # noqa: SLF001  # inspect takes time to import
    imported = frozenset(vars(module))

    @cache
    def read_homes() -> dict[str, str]:
        homes, home = {}, ""
        for instruction, after in pairwise(dis.get_instructions(code)):
            if instruction.opname == "IMPORT_NAME":
                home = instruction.argval
            is_from = instruction.opname == "IMPORT_FROM" and after.opname == "STORE_NAME"
            if is_from and instruction.argval == after.argval and instruction.argval not in imported:
                homes[instruction.argval] = home
        return homes

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
