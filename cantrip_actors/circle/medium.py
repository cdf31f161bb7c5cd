"""The contract of the mediums: how an entity's program runs in a sandbox, one pure step at a time.

A turn of a code circle is a sequence of steps. `begin(code)` runs the program until it calls a gate, or ends; `answer`
continues from there with what the gate returned. Between two steps nothing is held: no thread, no worker, no lock. The
gate runs in the event loop like any other, without a limit by the sandbox, while the program is a value
(`Suspended.state`).

A step blocks, for as long as the program computes: call it in a thread. It is bounded: a program that exceeds a limit
ends as `Exceeded`, within that limit and a second, and the sandbox is then as it was before the turn. An exception of
the program is `Raised`, and what it had done before stays done.

Sandboxes expose nothing of the host: no environment, no files, no network, no clock that was not passed in. A program
reaches only its gates, and its arguments are untrusted data, checked against the gate's schema like a tool call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from cantrip_actors.machine.actions import Answer
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.messages import ToolDefinition
from cantrip_actors.terms.ward import Wards

__all__ = [
    "CLOSED",
    "Answer",
    "Exceeded",
    "Finished",
    "Limit",
    "LimitExceeded",
    "Limits",
    "Medium",
    "Raised",
    "Sandbox",
    "Stepped",
    "Suspended",
    "medium",
]


CLOSED: Final = "done was called before: no gate can be called any more"
"""The error that a program catches if it calls a gate after `done` (D-003)."""

PATIENCE: Final = 10
"""How many times as long as at first a program may take when it is run again."""

Limit = Literal["seconds", "memory", "gate_calls", "recursion", "disk", "interrupted", "crash"]
"""A limit that a program can exceed: a field of `Limits`, or one that the engine or the runtime sets."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one turn of a program. `seconds` counts computing only, not the time that gates take."""

    seconds: float = 5.0
    memory: int = 64 * 1024 * 1024
    """Bytes."""
    output: int = 64 * 1024
    """Characters of printed output that are kept; longer output is cut, with a note."""
    gate_calls: int = 100

    patience: int = 1
    """Times the seconds that a program may take."""

    @property
    def time(self) -> float:
        """Seconds that a program may take."""
        return self.patience * self.seconds

    def again(self) -> Limits:
        """Return the limits for a program that ended before and is run again: the machine may be busier now."""
        return replace(self, patience=PATIENCE)

    @classmethod
    @lru_cache(maxsize=64)
    def under(cls, wards: Wards) -> Limits:
        """Return the usual limits under `wards`: the smaller one of each (D-009)."""
        usual = cls()
        return cls(
            seconds=min(usual.seconds, wards.max_compute or usual.seconds),
            memory=min(usual.memory, wards.max_memory or usual.memory),
            output=min(usual.output, wards.max_output or usual.output),
            gate_calls=min(usual.gate_calls, wards.max_gate_calls or usual.gate_calls),
        )

    def exceeded(self, limit: Limit) -> str:
        """Return the text of a limit, as in `Exceeded.limit`."""
        return _WORDS[limit].format(self, mebibytes=self.memory / 2**20)


_WORDS: Final[dict[Limit, str]] = {
    "seconds": "{0.seconds:g} s of computing",
    "memory": "{mebibytes:.4g} MiB of memory",
    "gate_calls": "{0.gate_calls} gate calls in one program",
    "recursion": "calls nested too deep (recursion)",
    "disk": "what its files may take",
    "interrupted": "interrupted from outside",
    "crash": "the interpreter broke down",
}


@dataclass(frozen=True, slots=True)
class Suspended:
    """The program calls a gate and waits. `state` is for `answer`, and opaque otherwise.

    `args` are those given by name; positional ones have been given their names by the gate's definition. `output` is
    the text printed since the step began. `image`, if the medium can make one, is the whole suspended program as bytes.
    """

    gate: str
    args: Mapping[str, Any]
    state: Any = field(repr=False)
    output: str = ""
    image: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """The program ended normally. `value` is the value of its last expression, as JSON, or None."""

    value: Any
    output: str = ""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception left the program: its type, its message, where in the program. Variables set before are kept."""

    error: str
    output: str = ""


@dataclass(frozen=True, slots=True)
class Exceeded:
    """The program exceeded a limit and was ended; the sandbox is as it was before the turn.

    `limit` is the text of `Limits.exceeded`: the entity reads it.
    """

    limit: str
    output: str = ""


Stepped = Suspended | Finished | Raised | Exceeded


class LimitExceeded(Exception):
    """Raised inside a step if the program exceeds a limit; the step undoes the turn and returns Exceeded."""

    def __init__(self, limit: Limit, text: str | None = None) -> None:
        super().__init__(limit)
        self.limit = limit
        self.text = text
        """The text for the entity, if it is not that of `Limits.exceeded`."""

    def ended(self, limits: Limits, output: str) -> Exceeded:
        """Return how the step ended."""
        return Exceeded(self.text or limits.exceeded(self.limit), output)


class Sandbox(Protocol):
    """One entity's program and its variables, which live on from turn to turn (CIRCLE-9). Not thread-safe."""

    limits: Limits
    """Those of the next step. `patience` may be set to another between steps: a program that was run again so far is
    not held to account for how long that took."""

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Stepped:
        """Run `code`, with `variables` (JSON) set first. Blocks while it computes."""
        ...

    def answer(self, suspended: Suspended, answer: Answer) -> Stepped:
        """Continue after a gate, with its result as JSON or the text that the program catches as an exception.

        With `answer.closed` the gates are closed from here on, as they are after `done` (D-003): the program runs to
        its end, a call of a gate raises CLOSED inside it, and the step that comes back is no Suspended.
        """
        ...

    def interrupt(self) -> None:
        """End the step that runs in another thread as soon as possible: it returns Exceeded."""
        ...

    def dump(self) -> bytes | None:
        """Return the sandbox between two turns as bytes; None if the medium cannot, so that its code is replayed."""
        ...

    def load(self, image: bytes) -> None:
        """Restore the sandbox from a `dump`. Raises ValueError for another engine's bytes, or a suspended program's."""
        ...

    def resume(self, image: bytes) -> Suspended:
        """Return the suspended program of a `Suspended.image`, ready for `answer`, if the medium can.

        `load` the sandbox of the turn before first: it is what a limit rolls back to, and the image does not hold it
        (each gate call would store it again). Raises ValueError for another engine's image, and for one of `dump`.
        """
        ...

    def close(self) -> None:
        """Release all resources. Never raises."""
        ...


class Medium(Protocol):
    """A language that circles can have."""

    name: str
    engine: str
    """The engine and its version, to which snapshots are bound."""

    def capability(self, gates: Sequence[ToolDefinition], limits: Limits) -> str:
        """Return the text for the entity: the language, its limits, and the gates as functions with signatures."""
        ...

    def open(self, gates: Sequence[ToolDefinition], limits: Limits) -> Sandbox:
        """Return a new, empty sandbox in which `gates` are plain functions. May block."""
        ...


class _Offer(NamedTuple):
    """A medium that is imported on first use, because its dependencies may not be installed."""

    path: str
    """Its module in this package, and its class."""
    needs: str
    extra: str


_OFFERS: Final = {
    "python": _Offer("python.medium.PythonMedium", "the interpreter Monty", "python"),
    "javascript": _Offer("javascript.medium.JavaScript", "the engine QuickJS", "js"),
    "shell": _Offer("shell.medium.Shell", "a filter of system calls and a parser", "shell"),
}


def medium(name: str, jail: str | None = None) -> Medium:
    """Return the medium of that name. Raises InvalidCantrip, saying what is missing, if it cannot be had here.

    `jail` names what has to confine a shell; without it, the best that this machine has.
    """
    if name not in _OFFERS:
        raise InvalidCantrip(f'medium "{name}" is not available: this installation has {", ".join(sorted(_OFFERS))}')
    if name == "shell" and sys.platform != "linux":
        raise InvalidCantrip(f'medium "shell" needs Linux: {sys.platform} has nothing to confine a shell with')
    offer = _OFFERS[name]
    module, _, made = offer.path.rpartition(".")
    try:
        return cast("Medium", getattr(import_module(f"cantrip_actors.circle.{module}"), made)(*filter(None, (jail,))))
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("cantrip_actors."):
            raise
        raise InvalidCantrip(
            f'medium "{name}" needs {offer.needs}: pip install "cantrip-actors[{offer.extra}]"'
        ) from missing
