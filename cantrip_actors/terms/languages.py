"""The mediums as circles and records describe them: by name, and by the language of each (SPEC 4).

The contract of a medium that runs programs is in `circle/medium.py`, which also finds the mediums that others add.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol

MediumName = Literal["tools", "person", "python", "javascript", "shell"]
"""The mediums of this package. An installed package can add others."""

_WITHOUT_PROGRAMS: Final = frozenset({"tools", "person"})
"""The mediums in which an entity writes texts and calls gates: their circles have no language and no sandbox."""

DEFAULT: Final = "tools"


class Language(Protocol):
    """The description of a medium that runs programs: enough for a circle, its records and its cantrip's id."""

    @property
    def name(self) -> str:
        """The name that records, recipes and metrics have for it."""
        ...

    @property
    def fences(self) -> Collection[str]:
        """The names of its language in a fenced block of Markdown ("" for a block without one).

        A response without a program of its own is searched for such blocks. If empty, its name and "" count.
        """
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that its user chose, as JSON: part of the recorded circle and of the cantrip's id."""
        ...


class BuiltIn(NamedTuple):
    """A medium of this package by its name: its code is imported when an entity needs it."""

    name: str
    fences: tuple[str, ...]
    settings: Mapping[str, Any] = MappingProxyType({})


BUILT_IN: Final = {
    language.name: language
    for language in (
        BuiltIn("python", ("python", "py", "python3", "tool_code", "")),
        BuiltIn("javascript", ("javascript", "js", "ecmascript", "node", "mjs", "typescript", "ts", "")),
        BuiltIn("shell", ("shell", "sh", "bash", "zsh", "shellscript", "")),
    )
}


def find_language(medium: Any, settings: Mapping[str, Any]) -> Language | None:
    """Return the language of a medium, or of its name; None for a medium without programs. Raises InvalidCantrip.

    `settings` are for a medium of this package.
    """
    if isinstance(medium, BuiltIn):
        return medium
    if isinstance(medium, str) and medium in _WITHOUT_PROGRAMS:
        return None
    if isinstance(medium, str) and medium in BUILT_IN:
        return BUILT_IN[medium]._replace(settings=settings)
    language: Language = import_module("cantrip_actors.circle.medium").read_medium_argument(medium)
    return language


def read_medium(circle: Mapping[str, Any]) -> str:
    """Return the name of the medium of a recorded circle."""
    name: str = circle.get("medium", DEFAULT)
    return name


def has_programs(medium: str) -> bool:
    """Return whether the entities of a circle with the medium of this name write programs.

    >>> has_programs("python"), has_programs("tools"), has_programs("person")
    (True, False, False)
    """
    return medium not in _WITHOUT_PROGRAMS
