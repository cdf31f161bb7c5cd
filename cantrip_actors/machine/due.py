"""Decides the next step: a record, or an action to carry out. After a record is folded, `due` is called again.

The result depends only on the state, the clock and the budgets, so it is the same in the running loop and after a
crash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from cantrip_actors.machine.accept import (
    NO_REPLY,
    commit,
    finish,
    fold_results,
    fold_turns,
    get_current_call,
    make_turn_id,
    refuse,
    start,
)
from cantrip_actors.machine.actions import (
    Action,
    Answer,
    Ask,
    Await,
    Child,
    Collect,
    Compute,
    Consult,
    Contact,
    Finish,
    Pause,
    Remember,
    Run,
    Spawn,
    Step,
)
from cantrip_actors.machine.budget import Spent
from cantrip_actors.machine.context import build_view, estimate_tokens, summarise
from cantrip_actors.machine.delegate import plan_children, refuse_too_many
from cantrip_actors.machine.events import Moment, Remembered
from cantrip_actors.machine.evolve import PER_INTENT
from cantrip_actors.machine.project import get_outcome, is_end_recorded, is_of_life
from cantrip_actors.machine.state import Phase, Plan, State, Transient, Turn
from cantrip_actors.records.records import Decided, Ended, Observation, Record, Requested
from cantrip_actors.terms.addressee import find_addressee
from cantrip_actors.terms.gate import Gate, Refused
from cantrip_actors.terms.image import move_files
from cantrip_actors.terms.messages import ToolCall, as_text
from cantrip_actors.terms.ward import Ward
from cantrip_actors.terms.wrapper import Inquiry

DENIED = "calls like this one were denied for good"
"""The error of a call about which a person is not asked again."""

MILLISECOND = 0.001
"""Seconds by which a time may be rounded down: a request for a period expires when that is over, and not before."""

CLOSED = "done was called before: no gate can be called any more"


def due(plan: Plan, state: State, live: Transient, moment: Moment) -> Record | Action | Step:
    """Return the next record or the next action; or both as a Step, if the action follows the record at once."""
    turn, phase = state.turn, state.phase
    request = turn.requested if turn.decided is None else None
    if request is not None and (phase is Phase.ASKING or request.deferred or request.gate in plan.gates):
        return Consult(request)
    if turn.program is not None:
        if not live.is_rebuilt:
            return _compute(state)
        if live.call is not None:
            return Answer(CLOSED, is_error=True, closed=True) if turn.finished else _due_call(plan, state, live, moment)
    if phase is Phase.ACTING:
        return _due_call(plan, state, live, moment)
    if phase is Phase.ASKING:
        return _due_query(plan, state, live, moment)
    if phase is Phase.WAITING:
        return _due_children(plan, state, live, moment)
    if phase is Phase.COMPUTING:
        assert turn.program is not None
        return turn.program.answers[-1] if turn.program.answers else _compute(state)
    folds = phase is Phase.IDLE and live.compaction is not None  # and not an entity that has ended meanwhile
    return _due_fold(plan, state, live, moment) if folds else _due_end(plan, state, moment)


def _compute(state: State) -> Compute:
    program, sandbox = state.turn.program, state.sandbox
    assert program is not None
    code, variables, answers, _ = program
    return Compute(code, variables, sandbox.programs, answers, sandbox.snapshots, state.turn.midway)


def _due_call(plan: Plan, state: State, live: Transient, moment: Moment) -> Record | Action | Step:
    """Return the next step of an utterance: its next call, or its end."""
    turn = state.turn
    if turn.finished is not None and turn.program is None:
        return commit(plan, state, live, moment, terminated=True)
    if live.call is None and turn.next_call == len(turn.calls):
        return _due_commit(plan, state, live, moment)
    call = get_current_call(state, live)
    gate = plan.gates.get(call.gate)
    if gate is None:
        delivered = turn.delivered.get(call.id)
        if delivered is not None:
            return _due_delivered(plan, state, live, moment, None, call, delivered)
        return refuse(plan, state, live, moment, call, _explain_missing(plan, turn, call))
    excess = _explain_excess(plan, turn, moment, call)
    if excess is not None:
        return refuse(plan, state, live, moment, call, excess)
    return _due_gate(plan, state, live, moment, gate, call)


def _due_gate(
    plan: Plan, state: State, live: Transient, moment: Moment, gate: Gate, call: ToolCall
) -> Record | Action | Step:
    """Return the next step of a call that may be made."""
    turn, inquired = state.turn, None
    if turn.requested is not None and turn.decided is not None:
        if turn.requested.deferred:
            return _due_delivered(plan, state, live, moment, gate, call, turn.delivered[call.id])
        if turn.requested.round:
            inquired = Inquiry(turn.requested.round, turn.requested.state, turn.decided.decision, turn.decided.answer)
        call = turn.apply_decision(call)
    bound = gate.check(call)
    if isinstance(bound, Refused):
        return refuse(plan, state, live, moment, call, bound.reason)
    if (gate.wrappers or gate.asks_person) and inquired is None:
        first = _due_before_call(plan, state, live, moment, gate, call, bound.args)
        if first is not None:
            return first
    if gate.kind == "function":
        unknown = turn.running == call.id and not gate.idempotent and gate.has_resource
        this = make_turn_id(state, live)
        run = Run(gate, call, bound.args, this, inquired=inquired, resource=state.resource, is_unknown=unknown)
        is_recorded = turn.running == call.id or not _needs_beginning(plan, gate)
        return run if is_recorded else Step([start(plan, state, live, call)], run)
    return _due_own_gate(plan, state, live, moment, gate, call, bound.args)


def _due_delivered(
    plan: Plan,
    state: State,
    live: Transient,
    moment: Moment,
    gate: Gate | None,
    call: ToolCall,
    decided: Decided,
) -> Record | Run:
    """Return the observation of a deferred call whose result was delivered; the steps after the gate see it first.

    Without `gate` the entity has moved to a cantrip that does not have it: the call was carried out elsewhere.
    """
    result, is_error, images = decided.answer, decided.decision != "answer", decided.images
    if decided.decision == "deny":
        note = f": {decided.note}" if decided.note else ""
        result = f"{call.gate} has no result: {decided.by or 'a person'} refused it{note}"
    elif decided.decision == "expired":
        result = f"{call.gate} has no result: none was delivered in time"
    is_ephemeral = gate is not None and gate.ephemeral
    seen = Observation(call.gate, call.args, result, is_error, call.id, is_ephemeral, images)
    if gate is None or not gate.has_remarks:
        return finish(plan, state, live, moment, seen)
    live.wrapping, live.seen = "after", seen
    return Run(gate, call, call.args or {}, make_turn_id(state, live), seen)


def _explain_excess(plan: Plan, turn: Turn, moment: Moment, call: ToolCall) -> str | None:
    """Return the refusal of a call that is over the limit of a ward; None if the ward allows it."""
    most = plan.wards.max_gate_calls
    if most is not None and turn.next_call >= most:  # the medium refuses such calls of a program itself
        return f"not run: one turn may make {most} gate calls (max_gate_calls), and this is number {turn.next_call + 1}"
    has_begun = turn.running == call.id or (turn.requested is not None and turn.requested.deferred)
    limit = None if has_begun else moment.budget.spent_calls.get(call.gate)
    return None if limit is None else f"{call.gate} was not run: its calls are used up: {limit}"


def _needs_beginning(plan: Plan, gate: Gate) -> bool:
    """Return whether the beginning of a gate's calls is recorded: they have effects, or are counted by it."""
    return not gate.idempotent or any(limit.gate == gate.name for limit in plan.wards.calls)


def _explain_missing(plan: Plan, turn: Turn, call: ToolCall) -> str:
    """Return why a gate that the circle does not have cannot be called."""
    missing = plan.circle.unavailable(call.gate)
    if turn.requested is None:
        return missing
    decision = "" if turn.decided is None else f" ({turn.decided.by or 'a person'}: {turn.decided.decision})"
    return f"{call.gate} was not run: the entity moved to a cantrip without it before the decision{decision}; {missing}"


def _due_before_call(
    plan: Plan, state: State, live: Transient, moment: Moment, gate: Gate, call: ToolCall, args: Mapping[str, Any]
) -> Record | Action | None:
    """Return the next step before a call: its checks, a request to a person, a refusal; None if the call is next."""
    turn = state.turn
    if turn.decided is not None and (gate.asks_person or turn.decided.decision != "allow"):
        return _observe_decision(plan, state, live, moment, gate, call, turn.decided)
    is_settled = turn.decided is not None and turn.decided.args is None
    if is_settled or live.wrapping == "after" or turn.running == call.id:
        return None
    if gate.has_checks and not live.wrapping:  # also if a person has changed the arguments
        return Run(gate, call, args, make_turn_id(state, live), checks=True)
    return None if turn.decided is not None else _due_request(plan, state, live, moment, gate, call, args)


def _due_request(
    plan: Plan, state: State, live: Transient, moment: Moment, gate: Gate, call: ToolCall, args: Mapping[str, Any]
) -> Record | None:
    """Return the request to a person about a call, or the refusal that was remembered; None if no person decides."""
    if gate.asks_person:
        request = _make_request(plan, state, live, moment, call, gate.dependencies.get("expires"), "", args)
        to = find_addressee(request.question or "", gate.dependencies.get("to", ())) if gate.kind == "person" else None
        return request if to is None else msgspec.structs.replace(request, args={**args, "to": to})
    ask = gate.ask_first
    why = "" if ask is None or ask.when is None else live.why
    if ask is None or why is None:
        return None
    why = "\n".join(filter(None, (why, gate.hints)))
    known = state.remembered.get(call.gate, {}).get(why)
    if known is None:
        return _make_request(plan, state, live, moment, call, ask.expires, why, {})
    return None if known == "allow" else refuse(plan, state, live, moment, call, f"{call.gate} was not run: {DENIED}")


def _make_request(
    plan: Plan,
    state: State,
    live: Transient,
    moment: Moment,
    call: ToolCall,
    expires: float | None,
    why: str,
    question: Mapping[str, Any],
) -> Requested:
    return Requested(
        entity_id=plan.entity_id,
        turn_id=make_turn_id(state, live),
        tool_call_id=call.id,
        gate=call.gate,
        at=moment.at,
        args=call.args,
        why=why,
        question=question.get("text"),
        answer_schema=question.get("schema"),
        expires_at=None if expires is None else moment.format_later(expires),
        snapshot=live.snapshot,
    )


def _observe_decision(
    plan: Plan, state: State, live: Transient, moment: Moment, gate: Gate, call: ToolCall, decided: Decided
) -> Record:
    """Return the observation of a call that a person has answered or denied, or that was not decided in time."""
    if decided.decision == "answer":
        answer, images = decided.answer, decided.images
        if len(gate.dependencies.get("to", ())) > 1 and decided.by:  # the entity has to know which of them replied
            author = f"{decided.by}: "
            answer, images = f"{author}{as_text(answer)}", move_files(images, len(author))
        seen = Observation(call.gate, None, answer, False, call.id, images=images)
        return finish(plan, state, live, moment, seen)
    note = f": {decided.note}" if decided.note else ""
    is_expired, by = decided.decision == "expired", decided.by or "a person"
    if gate.kind == "person":
        why = f"{NO_REPLY}: {'nobody replied in time' if is_expired else f'{by} declined{note}'}"
    else:
        why = f"{call.gate} was not run: {'nobody decided in time' if is_expired else f'{by} denied it{note}'}"
    return refuse(plan, state, live, moment, call, why)


def _due_own_gate(
    plan: Plan, state: State, live: Transient, moment: Moment, gate: Gate, call: ToolCall, args: Mapping[str, Any]
) -> Record | Action:
    """Return the next step for a gate without a function: `done`, a message to another entity, a delegation."""
    if gate.kind == "done" and live.wrapping != "after":
        answer = Observation(gate.name, None, gate.answer(args), False, call.id)
        if not gate.has_remarks:
            return finish(plan, state, live, moment, answer)
        live.wrapping, live.seen = "after", answer
    if live.wrapping == "after":
        return Run(gate, call, args, make_turn_id(state, live), live.seen)
    if gate.kind == "deferred":
        if (delivered := state.turn.delivered.get(call.id)) is not None:  # with the result of an earlier call
            return _due_delivered(plan, state, live, moment, gate, call, delivered)
        expires = gate.dependencies.get("expires")
        request = _make_request(plan, state, live, moment, call, expires, "", {})
        approval = state.turn.requested
        return msgspec.structs.replace(request, deferred=True, round=0 if approval is None else approval.round + 1)
    if gate.kind == "message":
        asked = state.turn.asked
        return (
            Contact(gate, call, args, make_turn_id(state, live)) if asked is None else Await(call, asked.to, asked.key)
        )
    children = _plan_children(plan, state, live, gate, call)
    if isinstance(children, Refused):
        return refuse(plan, state, live, moment, call, children.reason)
    if state.turn.program is not None and state.turn.running != call.id:
        return start(plan, state, live, call)
    return commit(plan, state, live, moment)  # the children's turns follow the part before the delegation (LOOM-8)


def _plan_children(
    plan: Plan, state: State, live: Transient, gate: Gate, call: ToolCall
) -> tuple[Child, ...] | Refused:
    """Return the children of a delegation, or its refusal; cached, because `due` needs them twice."""
    if live.children is None or live.children[0] is not call:
        started = sum(child.tool_call_id == call.id for child in state.turn.children)
        children = plan_children(plan, gate, call, state.conversation.images)
        refused = refuse_too_many(plan, children, state.spawned - started)
        live.children = (call, children if refused is None else refused)
    return live.children[1]


def _due_commit(plan: Plan, state: State, live: Transient, moment: Moment) -> Record:
    """Return the record that commits a turn after its last call; truncated if a ward ends the episode (LOOP-4)."""
    turn = state.turn
    if not turn.calls and not turn.coded and not plan.requires_done:  # text alone ends the entity (D-004)
        return commit(plan, state, live, moment, terminated=True)
    spent = find_spent(state, moment)
    ward = spent.ward if spent is not None and spent.ends else None
    if ward is None and plan.wards.max_turns is not None and state.episode.utterances >= plan.wards.max_turns:
        ward = Ward("max_turns", plan.wards.max_turns)
    reason = None if ward is None else str(ward)
    if ward is None:
        idle = plan.wards.find_idle_budget(state.usage + moment.budget.below, state.episode.utterances)
        reason = None if idle is None else f"{idle}, for which the crystal reports too little usage to count"
    return commit(plan, state, live, moment, truncated=reason is not None, ward=reason)


def _due_query(plan: Plan, state: State, live: Transient, moment: Moment) -> Record | Action:
    """Return the next query, after the fold that is due."""
    if state.turn.posted is not None and not live.overflows:
        return Collect(state.turn.posted, build_view(plan.shape, state), plan.tools, plan.tool_choice)
    spent = find_spent(state, moment)
    if spent is not None:
        return _due_without_budget(plan, state, live, moment, spent)
    fold = _find_fold(plan, state, live)
    if fold is None:
        return Ask(build_view(plan.shape, state, live.squeezed), plan.tools, plan.tool_choice)
    return fold_results(plan, state, moment) if fold == "results" else _due_fold(plan, state, live, moment)


def find_spent(state: State, moment: Moment) -> Spent | None:
    """Return the budget that is used up at this moment, if any; people may have granted more than its ward says."""
    return moment.budget.find_exhausted(state.usage, state.granted, state.episode.number)


def _due_without_budget(plan: Plan, state: State, live: Transient, moment: Moment, spent: Spent) -> Record | Action:
    """Return the next step of an entity whose budget is used up: it ends, waits, or asks a person for more."""
    decided, level = state.turn.decided, spent.level
    if spent.ends or level is None or decided is not None:
        how = " by a summary" if state.conversation.folded_for == state.conversation.said else ""
        refused = "" if decided is None else f", and {decided.by or 'a person'} granted no more"
        summary = summarise(state, f"{spent.ward} was used up{how}{refused}")
        ward = spent.ward.name if spent.ends_entity else f"{spent.ward.name}{PER_INTENT}"
        return Ended(plan.entity_id, "budget", moment.at, summary, ward=ward)
    budget = level.budget
    if budget.when_spent == "wait":
        return Pause(level.left, str(spent.ward))
    used = round(budget.measure(level.rest + state.usage), 6)
    unit = "tokens" if budget.ward == "max_tokens" else "US dollars"
    when = "for this intent" if budget.per == "intent" else f"in {level.period} ({budget.zone})"
    return Requested(
        entity_id=plan.entity_id,
        turn_id=make_turn_id(state, live),
        tool_call_id=f"{budget.ward}:{moment.fresh}",  # a person may be asked again in the same turn
        gate=budget.ward,
        at=moment.at,
        args={
            "budget": budget.label,
            "period": level.period or str(state.episode.number),
            "most": budget.most,
            "used": used,
        },
        question=f"{used:,g} {unit} are used {when}, of {budget.most:,g}. How many more may be used? 0 ends the work.",
        answer_schema={"type": "number", "minimum": 0},
        expires_at=None if math.isinf(level.left) else moment.format_later(level.left + MILLISECOND),
    )


def _find_fold(plan: Plan, state: State, live: Transient) -> Literal["results", "turns"] | None:
    """Return the fold that is due before the next query, of older turns or only of their results; None if no fold is
    due.
    """
    conversation, folding = state.conversation, plan.cantrip.folding
    if live.compaction is not None:
        return "turns"
    if conversation.folded_for == conversation.said and not live.overflows:
        return None
    tokens = 0 if plan.window is None else estimate_tokens(state)
    whole = conversation.said - conversation.folded
    if not folding.selective:
        return "turns" if live.overflows or folding.due(whole, tokens, plan.window) else None
    with_results = conversation.said - conversation.without_results
    if folding.due(with_results, tokens, plan.window) or (live.overflows and with_results > 1):
        return "results"
    return "turns" if live.overflows or (whole > 1 and folding.is_full(tokens, plan.window)) else None


def _due_fold(plan: Plan, state: State, live: Transient, moment: Moment) -> Record | Action:
    """Return the fold, or first the action that finds the text which replaces the folded turns."""
    instructions = None if live.compaction is None else live.compaction.instructions
    if not plan.has_memory and instructions is None:
        return fold_turns(plan, state, live, moment, Remembered())
    conversation = state.conversation
    first = plan.cantrip.folding.first_kept(conversation.said, conversation.folded) - conversation.folded
    stays, number = conversation.starts[first]
    return Remember(build_view(plan.shape, state)[conversation.head : stays], number - 1, instructions)


def _due_children(plan: Plan, state: State, live: Transient, moment: Moment) -> Record | Action:
    """Return the next step after a turn was split for children: cast them, or wait for them after a crash."""
    turn = state.turn
    call = turn.apply_decision(turn.calls[turn.next_call])
    gate = plan.gates.get(call.gate)
    if gate is None:  # the entity was resumed with another cantrip
        return refuse(plan, state, live, moment, call, plan.circle.unavailable(call.gate))
    if live.wrapping == "after":
        return Run(gate, call, call.args or {}, make_turn_id(state, live), live.seen)
    children = _plan_children(plan, state, live, gate, call)
    if isinstance(children, Refused):
        return refuse(plan, state, live, moment, call, children.reason)
    started = {child.index: child.child_id for child in turn.children if child.tool_call_id == call.id}
    assert state.parent_id is not None
    return Spawn(state.parent_id, call, children, started)


def _due_end(plan: Plan, state: State, moment: Moment) -> Action | Step:
    """Return Finish, with the outcome; before it comes the record of the entity's end, unless it is in the log."""
    outcome = get_outcome(state, moment.budget.below)
    assert outcome is not None, "an episode that is over has an end"
    if is_end_recorded(state) or (plan.lasting and not is_of_life(state)):
        return Finish(outcome)
    return Step([Ended(plan.entity_id, outcome.reason, moment.at, outcome.summary)], Finish(outcome))
