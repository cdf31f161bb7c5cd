"""Delegation: the children that a call asks for, and their outcomes as its observation (COMP-1, COMP-3, COMP-8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Final

from cantrip_actors.machine.actions import Child
from cantrip_actors.machine.events import ChildOutcome
from cantrip_actors.machine.state import Phase, Plan, State
from cantrip_actors.records.records import Observation
from cantrip_actors.terms.child_cantrip import carve
from cantrip_actors.terms.file import File
from cantrip_actors.terms.gate import Gate, Refused, standard
from cantrip_actors.terms.image import select_named
from cantrip_actors.terms.messages import ToolCall, as_text
from cantrip_actors.terms.own_gate_names import CALL_AGENT, CALL_AGENT_BATCH, WAIT_FOR_CHILDREN

AT_ONCE: Final = 1_000
"""Children that one call may start."""

MOST: Final = 10_000
"""Children that an entity may start over its life where no ward says otherwise."""


def plan_children(plan: Plan, gate: Gate, call: ToolCall, seen: Iterable[File]) -> tuple[Child, ...] | Refused:
    """Return the children that a delegation asks for, or the reason for refusing one of them (COMP-1).

    A child gets the images that its parent has `seen` and whose handles its intent or its context contains.
    """
    from cantrip_actors.terms.own_gates import AgentRequest  # a circle with such a gate has imported it

    batch = gate.name == CALL_AGENT_BATCH
    checked = _get_own_gate(gate, batch=batch).check(call)  # a circle may state narrower parameters
    if isinstance(checked, Refused):
        return checked
    args = dict(checked.args)
    is_background, is_urgent = not args.pop("wait", True), args.pop("urgent", False)
    requests: Sequence[AgentRequest | str] = args["intents"] if batch else (AgentRequest.model_construct(**args),)
    if len(requests) > AT_ONCE:
        return Refused(
            f"{gate.name}: expected at most {AT_ONCE:,} requests, got {len(requests):,}: ask for some of them"
        )
    children = []
    for n, asked in enumerate(requests, 1):
        of = f" (request {n})" if batch else ""
        request = AgentRequest.model_construct(intent=asked) if isinstance(asked, str) else asked
        if not request.intent.strip():
            return Refused(f"{gate.name}: intent is required{of}")
        cantrip = carve(plan.cantrip, request)
        if isinstance(cantrip, Refused):
            return Refused(cantrip.reason + of)
        text = request.intent if request.context is None else f"{request.intent}\n{as_text(request.context)}"
        children.append(Child(cantrip, request, select_named(text, seen), is_background, is_urgent))
    return tuple(children)


def _get_own_gate(gate: Gate, *, batch: bool) -> Gate:
    """Return the runtime's own gate with all parameters; a circle opts in to background children."""
    from cantrip_actors.terms.own_gates import BACKGROUND_AGENT, BACKGROUND_BATCH

    if "wait" in gate.parameters.get("properties", {}):
        return BACKGROUND_BATCH if batch else BACKGROUND_AGENT
    return standard(CALL_AGENT_BATCH if batch else CALL_AGENT)


def refuse_too_many(plan: Plan, children: Sized | Refused, before: int) -> Refused | None:
    """Return the refusal if `before` children and these exceed the ward; None if they may start."""
    if isinstance(children, Refused):
        return None
    most = MOST if plan.wards.max_children is None else plan.wards.max_children
    if before + len(children) > most:
        return Refused(
            f"this entity may have {most:,} children (max_children), it had {before:,}, and {len(children):,} more "
            "were asked for: none was started"
        )
    return None


def make_delegation_answer(gate: Gate, call: ToolCall, outcomes: tuple[ChildOutcome, ...]) -> Observation:
    """Return the children's outcomes as the observation of the call that asked for them."""
    if gate.name == CALL_AGENT:
        (only,) = outcomes
        result = only.result if only.error is None else only.error
        return Observation(gate.name, None, result, only.error is not None, call.id, gate.ephemeral, only.images)
    results = [o.result if o.error is None else {"is_error": True, "error": o.error} for o in outcomes]
    failed = all(o.error is not None for o in outcomes)
    images = tuple(dict.fromkeys(image for outcome in outcomes for image in outcome.images))
    return Observation(gate.name, None, results, failed, call.id, gate.ephemeral, images)


def render_answer(child_id: str, outcome: ChildOutcome) -> str:
    """Return the message with which the outcome of a background child comes in."""
    if outcome.error is not None:
        return f"[child {child_id}] no answer: {outcome.error}"
    return f"[child {child_id}] answer:\n{as_text(outcome.result)}"


def may_wait_for_background(state: State) -> bool:
    """Return whether an entity may be waiting for its background children; the call of a program is not in its log."""
    if state.phase is Phase.COMPUTING:
        return True
    turn = state.turn
    present = turn.calls[turn.next_call] if state.phase is Phase.ACTING and turn.next_call < len(turn.calls) else None
    return present is not None and present.gate == WAIT_FOR_CHILDREN


def make_wait_answer(
    gate: Gate, call: ToolCall, outcomes: Mapping[str, ChildOutcome], under_way: Sequence[str]
) -> Observation:
    """Return the outcomes of background children, by their ids, as the observation of `wait_for_children`."""
    answers = {
        child: outcome.result if outcome.error is None else {"is_error": True, "error": outcome.error}
        for child, outcome in outcomes.items()
    }
    failed = bool(outcomes) and all(outcome.error is not None for outcome in outcomes.values())
    images = tuple(dict.fromkeys(image for outcome in outcomes.values() for image in outcome.images))
    result = {"answers": answers, "under_way": list(under_way)}
    return Observation(gate.name, None, result, failed, call.id, images=images, children=tuple(outcomes))
