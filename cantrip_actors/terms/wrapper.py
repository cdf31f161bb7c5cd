"""A wrapper: the steps that run before and after a gate, what a step is given, and how it refuses a call.

`wrapping.py` puts wrappers around gates; the circle runs them (`circle/wrapped_call.py`), because a step may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["GateCall", "Post", "Pre", "Refused", "Wrapper"]


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that is not carried out, or whose result does not count: the text of the error observation."""

    reason: str


class GateCall(NamedTuple):
    """One call of a gate: which gate, with what arguments, and by which entity.

    Steps around a gate receive it, and so does a gate's function in a parameter annotated with it; the crystal does not
    see that parameter. `args` have passed the gate's schema. `turn_id` is the id of the turn that is not committed yet.
    """

    gate: str
    args: Mapping[str, Any]
    entity_id: str
    turn_id: str
    call_id: str | None = None


Pre = Callable[[GateCall], Any]
"""A step before: returns None to let the call through, or `Refused(…)`; it may be async, and must not block."""

Post = Callable[[GateCall, Any], Any]
"""A step after, given the Observation as well: returns None, a remark for the entity, or `Refused(…)`."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The steps of one `wrap`, under the name that the loom records."""

    name: str
    pre: tuple[Pre, ...] = field(default=(), repr=False)
    post: tuple[Post, ...] = field(default=(), repr=False)
