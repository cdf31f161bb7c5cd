"""The contract of the mediums: how an entity's program runs in a sandbox, one pure step at a time.

A turn of a code circle is a sequence of steps. `begin(code)` runs the program until it calls a gate, or ends; `answer`
continues from there with what the gate returned. Between two steps nothing is held: no thread, no worker, no lock. The
gate runs in the event loop like any other, for as long as it likes, while the program is a value (`Suspended.state`).

A step blocks, for as long as the program computes: call it in a thread. It is bounded: a program that exceeds a limit
ends as `Exceeded`, within that limit and a second, and the sandbox is then as it was before the turn. An exception of
the program is `Raised`, and what it had done before stays done.

Sandboxes give nothing of the host: no environment, no files, no network, no clock that was not handed in. The gates are
all there is, and what a program hands to a gate is untrusted data, checked against the gate's schema like a tool call.
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
"""What a program catches that calls a gate after `done` (D-003)."""

PATIENCE: Final = 10
"""Times as long as the first time a program may take that is run again."""

Limit = Literal["seconds", "memory", "gate_calls", "recursion", "disk", "interrupted", "crash"]
"""What a program can exceed: a field of `Limits`, or what the engine and the runtime set."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one turn of a program may use. `seconds` counts computing only, not the time that gates take."""

    seconds: float = 5.0
    memory: int = 64 * 1024 * 1024
    """Bytes."""
    output: int = 64 * 1024
    """Characters of printed output that are kept; what is more is cut, and says so."""
    gate_calls: int = 100

    patience: int = 1
    """Times the seconds that a program may take."""

    @property
    def time(self) -> float:
        """Seconds that a program may take."""
        return self.patience * self.seconds

    def again(self) -> Limits:
        """For a program that is run again and has come to its end before: the machine may be busier than it was."""
        return replace(self, patience=PATIENCE)

    @classmethod
    @lru_cache(maxsize=64)
    def under(cls, wards: Wards) -> Limits:
        """What `wards` leave of the usual limits: the smaller one of each (D-009)."""
        usual = cls()
        return cls(
            seconds=min(usual.seconds, wards.max_compute or usual.seconds),
            memory=min(usual.memory, wards.max_memory or usual.memory),
            output=min(usual.output, wards.max_output or usual.output),
            gate_calls=min(usual.gate_calls, wards.max_gate_calls or usual.gate_calls),
        )

    def exceeded(self, limit: Limit) -> str:
        """The limit in words, as `Exceeded.limit` has it."""
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
    """The program calls a gate and waits. `state` is what `answer` needs, opaque to everybody else.

    `args` are those given by name; positional ones have been given their names by the gate's definition. `output` is
    what was printed since the step began. `image`, where the medium can, is the whole suspended program as bytes.
    """

    gate: str
    args: Mapping[str, Any]
    state: Any = field(repr=False)
    output: str = ""
    image: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """The program came to its end. `value` is that of its last expression, as JSON; None where there is none."""

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
    """Raised inside a step where the program exceeds a limit; the step undoes the turn and returns Exceeded."""

    def __init__(self, limit: Limit, text: str | None = None) -> None:
        super().__init__(limit)
        self.limit = limit
        self.text = text
        """What the entity reads, if it is not the text of `Limits.exceeded`."""

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
        """End the step that runs in another thread, as soon as can be: it comes back as Exceeded."""
        ...

    def dump(self) -> bytes | None:
        """The sandbox between two turns, as bytes; None where the medium cannot and has to replay its code."""
        ...

    def load(self, image: bytes) -> None:
        """Become what `dump` was made of. Raises ValueError for another engine's image, and for a suspended one."""
        ...

    def resume(self, image: bytes) -> Suspended:
        """The suspended program that `Suspended.image` was made of, ready for `answer`; for media that can.

        `load` the sandbox of the turn before first: it is what a limit rolls back to, and the image does not hold it
        (each gate call would store it again). Raises ValueError for another engine's image, and for one of `dump`.
        """
        ...

    def close(self) -> None:
        """Give everything back. Never raises."""
        ...


class Medium(Protocol):
    """A language that circles can have."""

    name: str
    engine: str
    """The engine and its version, which an image belongs to."""

    def capability(self, gates: Sequence[ToolDefinition], limits: Limits) -> str:
        """What the entity is told: the language and its limits, and the gates as functions with their signatures."""
        ...

    def open(self, gates: Sequence[ToolDefinition], limits: Limits) -> Sandbox:
        """A new, empty sandbox in which `gates` are plain functions. May block."""
        ...


class _Offer(NamedTuple):
    """A medium that is imported when a circle asks for it, and no sooner: what it needs may not be installed."""

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
