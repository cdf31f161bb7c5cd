"""`wrap`: put steps around a gate, which check a call before it runs and its observation afterwards.

Use it to enforce a rule instead of asking for it in a prompt: `wrap("write", pre=[inside_the_contract])`. The wrapped
gate keeps its name, its schema and its description, so the crystal sees the same tool. A wrapper names its gate instead
of copying it; the circle looks the gate up when it is made, so the same wrapper fits a newer gate.

A step before the gate may refuse the call, and then the gate does not run. A step after it sees the observation, may
add a remark, and may turn a success into an error, never an error into a success. A step that raises refuses, too:
before the gate the call fails closed; after it, the entity reads that the gate did run. A later wrapper goes around the
earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cantrip_actors.terms.arguments import check, is_text
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.wrapper import (
    NO_FENCE,
    AskFirst,
    Fence,
    GateCall,
    PostStep,
    PreStep,
    Refused,
    Unattended,
    When,
    Wrapper,
    check_expires,
    check_unattended,
)

__all__ = ["NO_FENCE", "Fence", "GateCall", "Refused"]


@dataclass(frozen=True, slots=True)
class Wrap:
    """A wrapper and its target gate. `wrap` and `ask_first` make one, and a circle resolves it."""

    target: str | Gate | Wrap | Callable[..., Any]
    wrapper: Wrapper


def wrap(
    target: str | Gate | Wrap, *, pre: Sequence[PreStep] = (), post: Sequence[PostStep] = (), name: str | None = None
) -> Wrap:
    """Put steps around a gate. Give the result to a circle among its gates: `wrap("write", pre=[inside_the_plan])`.

    `target` is the name of another gate of that circle or of a standard gate, a gate itself, or the result of another
    `wrap`. `done` and `call_agent` can be wrapped as well: a refused `done` does not end the entity, and a refused
    `call_agent` starts no child. Children inherit gates as they are wrapped. `name` is what the loom's header calls the
    wrapper; by default, the names of its steps.

    The steps before run in order, then the gate, then the steps after. The steps before run before the gate is recorded
    as started, so after a crash they may run again.

    Raises InvalidCantrip without any step, and for a step that cannot be called.
    """
    for when, step_list in (("pre", pre), ("post", post)):
        fits = isinstance(step_list, (list, tuple)) and all(map(callable, step_list))
        check(fits, f"wrap: {when}", f"a list of functions, as in {when}=[…]", step_list, InvalidCantrip)
    steps = (*pre, *post)
    if not steps:
        raise InvalidCantrip("wrap: expected a step before or after the gate: pre=[…], post=[…]")
    check(name is None or is_text(name), "wrap: name", "a text", name, InvalidCantrip)
    named = name or "+".join(str(getattr(step, "__name__", type(step).__name__)) for step in steps)
    return Wrap(target, Wrapper(named, tuple(pre), tuple(post)))


def ask_first(
    target: str | Gate | Wrap | Callable[..., Any],
    *,
    when: When | None = None,
    expires: float | None = None,
    unattended: Unattended | None = None,
) -> Wrap:
    """Let a person decide about each call of a gate before it runs. Give the result to a circle among its gates.

    `target` is as in `wrap`, or an annotated function. With `when`, a function of the arguments, a person decides only
    where it returns True, or a text that tells the person why. A request that is not decided within `expires` seconds
    is denied. `unattended` replaces the setting of `Runtime.open` for this gate: "wait" for a decision however long it
    takes, or "deny" at once while no program follows requests.

    The request is recorded before it is published, and the gate has not run at that point. The entity is
    unloaded after `passivate_after` seconds: `runtime.requests()` lists the request and `runtime.decide(…)` decides it,
    even days later in another process.

    Raises InvalidCantrip for an invalid option.
    """
    if when is not None and not callable(when):
        raise InvalidCantrip(f"ask_first: when: expected a function of the arguments, got {when!r}")
    check_expires("ask_first", expires)
    check_unattended("ask_first", unattended)
    condition = (
        []
        if when is None
        else [f"when={getattr(when, '__module__', '')}.{getattr(when, '__qualname__', type(when).__qualname__)}"]
    )
    condition += [] if expires is None else [f"expires={expires:g}"]
    condition += [] if unattended is None else [f"unattended={unattended}"]
    name = f"ask_first({', '.join(condition)})" if condition else "ask_first"
    return Wrap(target, Wrapper(name, ask=AskFirst(when, expires, unattended)))
