"""`wrap`: put steps around a gate, which check a call before it runs and its observation afterwards.

A rule that has to hold is enforced here and not asked for in a prompt: `wrap("write", pre=[inside_the_contract])`. The
wrapped gate keeps its name, its schema and its description, so the crystal is shown the same tool. A wrapper names its
gate instead of copying it; the circle looks the gate up when it is made, so the same wrapper fits a newer gate.

A step before the gate may refuse the call, and then the gate does not run. A step after it sees the observation, may
add a remark, and may turn a success into an error, never an error into a success. A step that raises refuses, too:
before the gate it fails closed; after it, the entity reads that the gate did run. A later wrapper stands outside of the
earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.wrapper import GateCall, Post, Pre, Refused, Wrapper

__all__ = ["GateCall", "Post", "Pre", "Refused", "Wrap", "Wrapper", "wrap"]


@dataclass(frozen=True, slots=True)
class Wrap:
    """A wrapper and the gate that it is meant for. `wrap` makes one, and a circle resolves it."""

    target: str | Gate | Wrap
    wrapper: Wrapper


def wrap(
    target: str | Gate | Wrap, *, pre: Sequence[Pre] = (), post: Sequence[Post] = (), name: str | None = None
) -> Wrap:
    """Put steps around a gate. Give the result to a circle among its gates: `wrap("write", pre=[inside_the_plan])`.

    `target` is the name of another gate of that circle or of a standard gate, a gate itself, or the result of another
    `wrap`. `done` and `call_agent` can be wrapped as well: a refused `done` does not end the entity, and a refused
    `call_agent` starts no child. Children inherit gates as they are wrapped. `name` is what the loom's header calls the
    wrapper; the default is the names of its steps.

    The steps before run in order, then the gate, then the steps after. The steps of a wrapped `done` or `call_agent`
    may run again after a crash.

    Raises InvalidCantrip without any step, and for a step that cannot be called.
    """
    steps = (*pre, *post)
    if not steps:
        raise InvalidCantrip("wrap: expected a step before or after the gate: pre=[…], post=[…]")
    for step in steps:
        if not callable(step):
            raise InvalidCantrip(f"wrap: expected functions as steps, got {step!r}")
    named = name or "+".join(str(getattr(step, "__name__", type(step).__name__)) for step in steps)
    return Wrap(target, Wrapper(named, tuple(pre), tuple(post)))
