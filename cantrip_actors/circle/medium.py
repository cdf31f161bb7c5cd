"""The contract of the mediums: how an entity's program runs in a sandbox, one pure step at a time.

A turn of a code circle is a sequence of steps. `begin(code)` runs the program until it calls a gate, or ends; `answer`
continues with the result of the gate. Between two steps the sandbox holds no thread, no worker and no lock. The gate
runs in the event loop like any other, without a limit by the sandbox, while the program is a value (`Suspended.state`).

A step blocks while the program computes: call it in a thread. It is bounded: a program that exceeds a limit ends as
`Exceeded`, within that limit and a second, and the sandbox is then as it was before the turn. An exception of the
program ends it as `Raised`; its earlier effects stay.

Sandboxes expose nothing of the host: no environment, no files, no network, no clock that was not passed in. A program
reaches only its gates, and its arguments are untrusted data, checked against the gate's schema like a tool call.
"""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from inspect import getattr_static
from types import MappingProxyType
from typing import Any, Final, Protocol, cast, get_args

from cantrip_actors.circle.plain import is_plain
from cantrip_actors.circle.step import (
    CLOSED,
    Exceeded,
    Finished,
    LimitExceeded,
    ProgramLimits,
    Raised,
    Stepped,
    Suspended,
)
from cantrip_actors.machine.actions import Answer
from cantrip_actors.terms.arguments import check, show
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.languages import BuiltIn, Language, MediumName, find_language
from cantrip_actors.terms.messages import ToolDefinition

__all__ = [
    "CLOSED",
    "Answer",
    "Exceeded",
    "Finished",
    "LimitExceeded",
    "ProgramLimits",
    "Raised",
    "Stepped",
    "Suspended",
]


class Sandbox(Protocol):
    """One entity's program and its variables, which are kept from turn to turn (CIRCLE-9). Not thread-safe."""

    limits: ProgramLimits
    """The limits of the next step. The runtime may change `patience` between steps: time that a replay took does not
    count against the program."""

    @property
    def memory(self) -> int | None:
        """The bytes of the program's memory after the last turn; None if the medium does not count them."""

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        """Run `code`, with `variables` (JSON) set first. Blocks while it computes."""

    def answer(self, suspended: Suspended, answer: Answer) -> Stepped:
        """Continue after a gate, with its result as JSON or the text of the exception that the program gets.

        With `answer.closed` the gates are closed from here on, as after `done` (D-003): the program runs to its end, a
        gate call raises CLOSED inside it, and the returned step is never Suspended.
        """

    def interrupt(self) -> None:
        """End the step that runs in another thread as soon as possible: it returns Exceeded."""

    def dump(self) -> bytes | None:
        """Return a snapshot between two turns; None if the medium cannot make one, and programs must be replayed."""

    def load(self, image: bytes) -> None:
        """Restore a `dump`. Raises ValueError for another engine's snapshot, or a suspended program's."""

    def resume(self, image: bytes) -> Suspended:
        """Return the suspended program of a `Suspended.image`, ready for `answer`, if the medium supports that.

        `load` the sandbox of the turn before first: a limit rolls back to it, and the image does not contain it (each
        gate call would store it again). Raises ValueError for another engine's image, and for one of `dump`.
        """

    def close(self) -> None:
        """Release all resources. Never raises."""


class Medium(Protocol):
    """A language in which entities write programs, and its sandboxes.

    `Circle(medium=…)` takes one, or its name: an entry point of the group `cantrip_actors.mediums` gives a medium a
    name. Subclass it: `fences` and `settings` have defaults.
    """

    name: str
    """The name that records, recipes and metrics have for it."""
    engine: str
    """The engine and its version; snapshots are valid for that version only."""
    fences: Collection[str] = ()
    """The names of its language in a fenced block of Markdown ("" for a block without one).

    A response without a program of its own is searched for such blocks. If empty, its name and "" count.
    """
    settings: Mapping[str, Any] = MappingProxyType({})
    """The settings that its user chose, as JSON: part of the recorded circle and of the cantrip's id."""

    @abstractmethod
    def capability(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> str:
        """Return the text for the entity: the language, its limits, and how a program calls the gates."""

    @abstractmethod
    def open(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> Sandbox:
        """Return a new, empty sandbox whose programs can call the gates. May block: call it in a thread."""


GROUP: Final = "cantrip_actors.mediums"
"""The group of entry points by which an installed package gives its mediums names."""


_MEMBERS: Final = ("name", "engine", "fences", "settings", "capability", "open")
_RECORDED: Final = frozenset({"medium", "gates", "wards", "servers"})
"""The other parts of a recorded circle, next to which the settings are."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,49}")

_NEEDS: Final = {
    "python": ("PythonMedium", "the interpreter Monty", "python"),
    "javascript": ("JavaScriptMedium", "the engine QuickJS", "js"),
    "shell": ("ShellMedium", "a filter of system calls and a parser", "shell"),
}
"""Each medium of this package: its class, which is imported on first use, the modules that it needs, and the extra that
installs them."""


def medium(chosen: str | Language, jail: str | None = None) -> Medium:
    """Return the medium of that name, or the one whose language a circle has.

    `jail` names the mechanism that must confine a shell; without it, the strongest one that works here is used.

    Raises:
        InvalidCantrip: it is not available here; the text says what is missing.
    """
    language = find_language(chosen, {} if jail is None else {"jail": jail})
    if language is None:
        raise InvalidCantrip(f'medium "{chosen}" runs no programs')
    if not isinstance(language, BuiltIn):
        return cast("Medium", language)
    name = language.name
    if name not in _NEEDS:
        raise InvalidCantrip(f'medium "{name}" is not available: this installation has {", ".join(sorted(_NEEDS))}')
    if name == "shell" and sys.platform != "linux":
        raise InvalidCantrip(f'medium "shell" needs Linux: {sys.platform} has no mechanism that confines a shell')
    kind, needs, extra = _NEEDS[name]
    try:
        built_in: Medium = getattr(import_module(f"cantrip_actors.circle.{name}.medium"), kind)(**language.settings)
        return built_in
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("cantrip_actors."):
            raise
        raise InvalidCantrip(f'medium "{name}" needs {needs}: pip install "cantrip-actors[{extra}]"') from missing


def read_medium_argument(medium: Any) -> Language:
    """Return the medium of a circle that is not one of this package: an object, or an installed medium by name."""
    return make_installed(medium) if isinstance(medium, str) else validate_medium(medium)


def validate_medium(medium: Any) -> Medium:
    """Return a medium of a user. Raises InvalidCantrip if the value is not a medium, or cannot be recorded."""
    missing = [name for name in _MEMBERS if getattr_static(medium, name, None) is None]
    if missing or isinstance(medium, type):
        text = "a class" if isinstance(medium, type) else f"this lacks {', '.join(missing)}"
        raise InvalidCantrip(f"unknown medium {show(medium)}: expected a name, or a Medium; {text}")
    fits = isinstance(medium.name, str) and _NAME.fullmatch(medium.name) is not None
    check(fits, "medium: name", "lower-case letters, digits, - and _", medium.name, InvalidCantrip)
    is_own = type(medium).__module__.startswith("cantrip_actors.circle.")
    if medium.name in get_args(MediumName) and not is_own:
        raise InvalidCantrip(f'medium "{medium.name}": a medium of this package has that name: choose another one')
    settings = medium.settings
    fits = isinstance(settings, Mapping) and is_plain(dict(settings)) and not _RECORDED & settings.keys()
    expected = f"a mapping of names to JSON values, and none of the names {', '.join(sorted(_RECORDED))}"
    check(fits, f'medium "{medium.name}": settings', expected, settings, InvalidCantrip)
    checked: Medium = medium
    return checked


def make_installed(name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Medium:
    """Return the medium to which an installed package gives this name. Raises InvalidCantrip.

    The entry point is a medium, or a class or a function that makes one of `settings`.
    """
    from importlib.metadata import entry_points  # slow to import, and few circles need it

    if name in get_args(MediumName):
        raise InvalidCantrip(f'medium "{name}" takes no settings')
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        known = {*points, *get_args(MediumName)}
        raise InvalidCantrip(f'unknown medium "{name}": {suggest_nearest(name, known)}')
    return make_medium(name, points[name].load(), settings)


def make_medium(name: str, maker: Any, settings: Mapping[str, Any]) -> Medium:
    """Return the medium that a class or a function makes of settings, or that `maker` is. Raises InvalidCantrip."""
    if not callable(maker):
        check(not settings, f'medium "{name}"', "no settings: it is made already", dict(settings), InvalidCantrip)
        return validate_medium(maker)
    try:
        return validate_medium(maker(**settings))
    except TypeError as problem:
        raise InvalidCantrip(f'medium "{name}": it cannot be made of these settings: {problem}') from problem
