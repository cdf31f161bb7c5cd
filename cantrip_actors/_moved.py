"""Old module names that documentation or users' code may still import; each import warns and gets the new module.

`cantrip_actors/__init__.py` installs the finder. An alias module has the same objects as the new module.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

__all__ = ["MOVED", "install"]

_TERMS = "call cantrip circle companion errors gate image messages problems ward wrapping"

MOVED: Final = {
    "cantrip_actors.model": "cantrip_actors.terms",
    **{f"cantrip_actors.model.{name}": f"cantrip_actors.terms.{name}" for name in _TERMS.split()},
    "cantrip_actors.model.turn": "cantrip_actors.records.records",
    "cantrip_actors.model.redact": "cantrip_actors.redact.redactor",
    "cantrip_actors.model.redact_log": "cantrip_actors.redact.logs",
    "cantrip_actors.model.redact_stream": "cantrip_actors.redact.stream",
    "cantrip_actors.model.stream": "cantrip_actors.stream.wire",
    "cantrip_actors.model.turn_stream": "cantrip_actors.stream.turn",
    "cantrip_actors.model.entity_stream": "cantrip_actors.stream.entity",
    "cantrip_actors.loom.record": "cantrip_actors.records.codec",
    "cantrip_actors.loom.tree": "cantrip_actors.loom.view",
    "cantrip_actors.loom.html": "cantrip_actors.loom.export.html",
    "cantrip_actors.loom.conversation": "cantrip_actors.loom.export.conversation",
    "cantrip_actors.loom.export_atif": "cantrip_actors.loom.export.atif",
    "cantrip_actors.loom.export_chat": "cantrip_actors.loom.export.chat",
    "cantrip_actors.loom.export_pairs": "cantrip_actors.loom.export.pairs",
    "cantrip_actors.crystal.contract": "cantrip_actors.crystal.query",
    "cantrip_actors.agentic.arithmetic": "cantrip_demos.arithmetic",
    "cantrip_actors.protocols": "cantrip_actors.cli",
    "cantrip_actors.protocols.cli": "cantrip_actors.cli.main",
    "cantrip_actors.protocols.recipe": "cantrip_actors.recipes",
}
"""Old name to new name. Remove a row two minor versions after the move."""


class _Finder:  # importing the base class of importlib.abc would double the import time of this package
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  # the signature of MetaPathFinder
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in MOVED:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in MOVED)
        return ModuleSpec(fullname, self, is_package=is_package)  # type: ignore[arg-type]  # no base class: see above

    def create_module(self, spec: ModuleSpec) -> None:  # noqa: ARG002  # None: the import system makes the module
        return None

    def exec_module(self, module: ModuleType) -> None:
        moved_to = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {moved_to}: import that", DeprecationWarning, stacklevel=2)
        found = import_module(moved_to)
        module.__dict__.update({name: value for name, value in vars(found).items() if not name.startswith("__")})
        if hasattr(found, "__all__"):
            module.__dict__["__all__"] = found.__all__


def install() -> None:
    """Make the old names importable. A second call changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
