"""The limits of a program's step, and the values that a step returns, for every medium and its workers.

The contract of the mediums is in `medium.py`. This file imports little, because worker processes import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

from cantrip_actors.terms.value import Value
from cantrip_actors.terms.ward import Wards

CLOSED: Final = "done was called before: no gate can be called any more"
"""The error that a program catches if it calls a gate after `done` (D-003)."""

PATIENCE: Final = 10
"""The factor on a program's time when it is replayed."""

Limit = Literal["seconds", "memory", "gate_calls", "recursion", "disk", "interrupted", "crash"]
"""A limit that a program can exceed: a field of `ProgramLimits`, or one that the engine or the runtime sets."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """The limits of one turn of a program. `seconds` counts computing only, not the time that gates take."""

    seconds: float = 5.0
    memory: int = 64 * 1024 * 1024
    """Bytes."""
    output: int = 64 * 1024
    """Characters of printed output that are kept; longer output is cut, with a note."""
    gate_calls: int = 100

    patience: int = 1
    """The factor on the seconds that a program may take."""

    @property
    def time(self) -> float:
        """Seconds that a program may take."""
        return self.patience * self.seconds

    def again(self) -> ProgramLimits:
        """Return the limits for the replay of a program that ended before: the machine may be busier now."""
        return replace(self, patience=PATIENCE)

    @classmethod
    @lru_cache(maxsize=64)
    def under(cls, wards: Wards) -> ProgramLimits:
        """Return the default limits under `wards`: the smaller value of each (D-009)."""
        usual = cls()
        return cls(
            seconds=min(usual.seconds, wards.max_compute or usual.seconds),
            memory=min(usual.memory, wards.max_memory or usual.memory),
            output=min(usual.output, wards.max_output or usual.output),
            gate_calls=min(usual.gate_calls, wards.max_gate_calls or usual.gate_calls),
        )

    def describe(self, limit: Limit) -> str:
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


class _ProgramStep(Value, frozen=True, tag_field="step", tag=str.lower):
    """Base of the results of a step: a worker writes it as JSON, without the state."""


class Suspended(_ProgramStep, frozen=True):
    """The program calls a gate and waits. `state` is for `answer`, and opaque otherwise.

    `args` are given by name; positional arguments have received their names from the gate's definition. `output` is the
    text printed since the step began. `image`, if the medium can make one, is a snapshot of the whole suspended
    program.
    """

    gate: str
    args: Mapping[str, Any]
    state: Any = None
    output: str = ""
    image: bytes | None = None


class Finished(_ProgramStep, frozen=True):
    """The program ended normally. `value` is the value of its last expression, as JSON, or None."""

    value: Any
    output: str = ""


class Raised(_ProgramStep, frozen=True):
    """An exception left the program: its type, message, and place in the program. Variables set before are kept."""

    error: str
    output: str = ""


class Exceeded(_ProgramStep, frozen=True):
    """The program exceeded a limit and was ended; the sandbox is as it was before the turn.

    `limit` is the text of `ProgramLimits.describe`: the entity reads it.
    """

    limit: str
    output: str = ""


Stepped = Suspended | Finished | Raised | Exceeded


class LimitExceeded(Exception):
    """Raised inside a step when the program exceeds a limit; the step undoes the turn and returns Exceeded."""

    def __init__(self, limit: Limit, text: str | None = None) -> None:
        super().__init__(limit)
        self.limit = limit
        self.text = text
        """The text for the entity, if it differs from `ProgramLimits.describe`."""

    def end_step(self, limits: ProgramLimits, output: str) -> Exceeded:
        """Return how the step ended."""
        return Exceeded(self.text or limits.describe(self.limit), output)
