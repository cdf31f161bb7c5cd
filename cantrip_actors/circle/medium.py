"""The contract of the mediums: how an entity's program runs in a sandbox, one pure step at a time.

A turn of a code circle is a sequence of steps. `begin(code)` runs the program until it calls a gate, or ends; `answer`
continues with what the gate returned. Between two steps nothing is held: no thread, no worker, no lock. The gate runs
in the event loop like any other, without a limit by the sandbox, while the program is a value (`Suspended.state`).

A step blocks while the program computes: call it in a thread. It is bounded: a program that exceeds a limit ends as
`Exceeded`, within that limit and a second, and the sandbox is then as it was before the turn. An exception of the
program ends it as `Raised`; its earlier effects stay.

Sandboxes expose nothing of the host: no environment, no files, no network, no clock that was not passed in. A program
reaches only its gates, and its arguments are untrusted data, checked against the gate's schema like a tool call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

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
from cantrip_actors.terms.errors import InvalidCantrip
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
        ...

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        """Run `code`, with `variables` (JSON) set first. Blocks while it computes."""
        ...

    def answer(self, suspended: Suspended, answer: Answer) -> Stepped:
        """Continue after a gate, with its result as JSON or the text of the exception that the program gets.

        With `answer.closed` the gates are closed from here on, as after `done` (D-003): the program runs to its end, a
        gate call raises CLOSED inside it, and the returned step is never Suspended.
        """
        ...

    def interrupt(self) -> None:
        """End the step that runs in another thread as soon as possible: it returns Exceeded."""
        ...

    def dump(self) -> bytes | None:
        """Return a snapshot between two turns; None if the medium cannot make one, and programs must be replayed."""
        ...

    def load(self, image: bytes) -> None:
        """Restore a `dump`. Raises ValueError for another engine's snapshot, or a suspended program's."""
        ...

    def resume(self, image: bytes) -> Suspended:
        """Return the suspended program of a `Suspended.image`, ready for `answer`, if the medium supports that.

        `load` the sandbox of the turn before first: a limit rolls back to it, and the image does not contain it (each
        gate call would store it again). Raises ValueError for another engine's image, and for one of `dump`.
        """
        ...

    def close(self) -> None:
        """Release all resources. Never raises."""
        ...


class Medium(NamedTuple):
    """A language that circles can use."""

    name: str
    engine: str
    """The engine and its version; snapshots are valid for that version only."""
    capability: Callable[[Sequence[ToolDefinition], ProgramLimits], str]
    """Returns the text for the entity: the language, its limits, and the gates as functions with signatures."""
    open: Callable[[Sequence[ToolDefinition], ProgramLimits], Sandbox]
    """Returns a new, empty sandbox in which the gates are plain functions. May block."""


_NEEDS: Final = {
    "python": ("the interpreter Monty", "python"),
    "javascript": ("the engine QuickJS", "js"),
    "shell": ("a filter of system calls and a parser", "shell"),
}
"""What each medium needs, and the extra that installs it. A medium is imported on first use."""


def medium(name: str, jail: str | None = None) -> Medium:
    """Return the medium of that name. Raises InvalidCantrip, with what is missing, if it is not available here.

    `jail` names the mechanism that must confine a shell; without it, the strongest one that works here is used.
    """
    if name not in _NEEDS:
        raise InvalidCantrip(f'medium "{name}" is not available: this installation has {", ".join(sorted(_NEEDS))}')
    if name == "shell" and sys.platform != "linux":
        raise InvalidCantrip(f'medium "shell" needs Linux: {sys.platform} has no mechanism that confines a shell')
    try:
        chosen: Medium = import_module(f"cantrip_actors.circle.{name}.medium").make_medium(*filter(None, (jail,)))
        return chosen
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("cantrip_actors."):
            raise
        needs, extra = _NEEDS[name]
        raise InvalidCantrip(f'medium "{name}" needs {needs}: pip install "cantrip-actors[{extra}]"') from missing
