"""Steps around a gate: what is checked before it runs, and what is looked at afterwards.

A rule that has to hold is enforced here and not asked for in a prompt: `wrap("write", pre=[inside_the_contract])`. The
wrapped gate keeps its name, its schema and its description, so the crystal is shown the same tool; what it wraps is
named, not copied, and is looked up when the circle is made, so that a newer gate is wrapped by the same wrapper.

A step before may refuse the call, and then the gate does not run at all. A step after sees the observation, may add a
remark, and may turn a success into an error, never an error into a success. A step that raises refuses, too: before the
gate it fails closed, after it the entity is told that the gate did run. Who wraps later stands further outside.

This file says what wraps what. Running the steps is the circle's work (`circle/wrapping.py`), because they may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cantrip_actors.model.errors import InvalidCantrip

if TYPE_CHECKING:
    from cantrip_actors.model.gate import Gate

__all__ = ["GateCall", "Post", "Pre", "Refused", "Wrap", "Wrapper", "wrap"]


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that is not carried out, or whose result does not count: the text of the error observation."""

    reason: str


class GateCall(NamedTuple):
    """One call of a gate: what is called, with what, and by whom.

    Steps around a gate are given it, and so is a gate's function for a parameter annotated with it; the crystal sees
    nothing of that parameter. `args` have passed the gate's schema. `turn_id` is the turn in the making.
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
    """The steps that somebody put around a gate, under the name that the loom knows them by."""

    name: str
    pre: tuple[Pre, ...] = field(default=(), repr=False)
    post: tuple[Post, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Wrap:
    """A wrapper and what it is for; made by `wrap`, and resolved by the circle that it is given to."""

    target: str | Gate | Wrap
    wrapper: Wrapper


def wrap(
    target: str | Gate | Wrap, *, pre: Sequence[Pre] = (), post: Sequence[Post] = (), name: str | None = None
) -> Wrap:
    """Put steps around a gate. Give the result to a circle among its gates: `wrap("write", pre=[inside_the_plan])`.

    `target` is the name of another gate of that circle, or of a standard gate, or a gate itself, or what `wrap` gave.
    `done` and `call_agent` can be wrapped as well: a refused `done` does not end the entity, and a refused `call_agent`
    starts no child. Children inherit gates as they are wrapped. `name` is what the loom calls the wrapper, in the
    circle of an entity's header; left out, the names of its steps.

    Steps before are taken in order, then the gate, then the steps after. A wrapped `done` or `call_agent` may have its
    steps taken again after a crash.

    Raises InvalidCantrip where there is no step, or one that cannot be called.
    """
    steps = (*pre, *post)
    if not steps:
        raise InvalidCantrip("wrap: expected a step before or after the gate: pre=[…], post=[…]")
    for step in steps:
        if not callable(step):
            raise InvalidCantrip(f"wrap: expected functions as steps, got {step!r}")
    named = name or "+".join(str(getattr(step, "__name__", type(step).__name__)) for step in steps)
    return Wrap(target, Wrapper(named, tuple(pre), tuple(post)))
