"""Turn an event into records. This module builds no state, and `due.py` decides what comes next.

A handler may also store unrecorded facts in the `Transient`: a program's output, its call, a snapshot to be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cantrip_actors.machine.context import find_smaller_bound, summarise
from cantrip_actors.machine.delegate import make_delegation_answer
from cantrip_actors.machine.events import (
    Begin,
    Called,
    Compact,
    Computed,
    Decide,
    Elapsed,
    Event,
    Failed,
    Inquired,
    Interrupt,
    Moment,
    Observed,
    Posted,
    Questioned,
    Remembered,
    Replied,
    Returned,
    Steer,
    Stopped,
    Undo,
)
from cantrip_actors.machine.program import extract_code, render_result_text
from cantrip_actors.machine.state import Phase, Plan, State, Transient
from cantrip_actors.records.records import (
    Asked,
    Committed,
    Decided,
    Ended,
    Folded,
    GateFinished,
    GateStarted,
    IntentGiven,
    Observation,
    QueryPosted,
    Record,
    Requested,
    Steered,
    Undone,
    Utterance,
    replace_snapshot,
)
from cantrip_actors.terms.errors import InvalidIntent
from cantrip_actors.terms.image import add_handles, select_named
from cantrip_actors.terms.messages import ALIASES, ToolCall
from cantrip_actors.terms.outcome import EndReason
from cantrip_actors.terms.own_gate_names import DONE

UNKNOWN = "outcome unknown: the entity was restarted while this gate ran; find out whether it had its effect"

NO_REPLY = "no reply"
"""The beginning of the observation if a person has not replied to an utterance."""

MID_TURN = (Phase.ACTING, Phase.WAITING, Phase.COMPUTING)
"""The phases in which a turn has an utterance and is not committed, or waits for children."""

WARD_OF: Mapping[EndReason, str] = {"timeout": "timeout", "budget": "budget"}
"""The ward behind a reason to end from outside."""


def accept(plan: Plan, state: State, live: Transient, moment: Moment, event: Event) -> list[Record]:
    """Return the records of an event, in order.

    Raises InvalidIntent for a Begin without an intent, and AssertionError for an event that cannot happen in this
    phase: that is a bug of the driver.
    """
    handler = HANDLERS.get((state.phase, type(event)))
    if handler is None:
        raise AssertionError(f"{type(event).__name__} cannot happen to an entity that is {state.phase.value}")
    return handler(plan, state, live, moment, event)


# Records that several handlers, and `due`, make


def make_turn_id(state: State, live: Transient) -> str:
    """Return the id of the turn that is not committed yet."""
    return state.turn.id or live.fresh


def get_current_call(state: State, live: Transient) -> ToolCall:
    """Return the call that runs, or the next one."""
    return live.call or state.turn.calls[state.turn.next_call]


def start(plan: Plan, state: State, live: Transient, call: ToolCall) -> GateStarted:
    """Return the record of a gate that is about to run. It has a program's arguments, unless a request has them."""
    args = None if state.turn.program is None or state.turn.requested is not None else call.args
    return GateStarted(plan.entity_id, make_turn_id(state, live), call.id, call.gate, args, live.snapshot)


def finish(plan: Plan, state: State, live: Transient, moment: Moment, seen: Observation) -> GateFinished:
    """Return the record of an observation. It repeats the arguments of a program's call only."""
    in_program = state.turn.program is not None and seen.tool_call_id is not None
    args = get_current_call(state, live).args if in_program else None
    if args is not seen.args:
        seen = Observation(
            seen.gate,
            args,
            seen.result,
            seen.is_error,
            seen.tool_call_id,
            seen.ephemeral,
            seen.images,
            seen.attempts,
            seen.children,
        )
    return GateFinished.of(plan.entity_id, make_turn_id(state, live), seen, moment.measure_since(live.mark))


def refuse(plan: Plan, state: State, live: Transient, moment: Moment, call: ToolCall, why: str) -> GateFinished:
    """Return the record of a call that is not carried out, an error observation (CIRCLE-5, CIRCLE-6)."""
    return finish(plan, state, live, moment, Observation(call.gate, None, why, True, call.id))


def commit(
    plan: Plan,
    state: State,
    live: Transient,
    moment: Moment,
    *,
    terminated: bool = False,
    truncated: bool = False,
    ward: str | None = None,
) -> Committed:
    """Return the record that commits the current turn; no later record changes the turn (LOOM-3)."""
    turn, this = state.turn, make_turn_id(state, live)
    return Committed(
        entity_id=plan.entity_id,
        turn_id=this,
        parent_id=state.parent_id,
        sequence=state.sequence - state.inherited + 1,
        continues=None if turn.utterance_id == this else turn.utterance_id,
        at=moment.at,
        duration_ms=moment.measure_since(live.began),
        terminated=terminated,
        truncated=truncated,
        ward=ward,
        snapshot=live.snapshot if turn.program is None else None,
    )


def fold_turns(plan: Plan, state: State, live: Transient, moment: Moment, remembered: Remembered) -> Folded:
    """Return the record of the fold that is due, or was asked for."""
    conversation = state.conversation
    first = plan.cantrip.folding.first_kept(conversation.said, conversation.folded)
    last = conversation.starts[first - conversation.folded][1] - 1
    marker = f"[folded: turns 1-{last}]" if remembered.text is None else f"[folded: turns 1-{last}]\n{remembered.text}"
    request = live.compaction or Compact()
    return Folded(plan.entity_id, 1, last, marker, moment.at, remembered.usage, request.key, request.sender)


def fold_results(plan: Plan, state: State, moment: Moment) -> Folded:
    """Return the record of the selective fold that is due."""
    conversation = state.conversation
    begin = conversation.without_results
    end = plan.cantrip.folding.first_kept(conversation.said, begin)
    first, last = (conversation.starts[at - conversation.folded][1] for at in (begin, end))
    marker = f"[folded: results of turns {first}-{last - 1}]"
    return Folded(plan.entity_id, first, last - 1, marker, moment.at, selective=True)


# Events


def _begin(plan: Plan, state: State, live: Transient, moment: Moment, event: Begin) -> list[Record]:
    if not isinstance(event.intent, str) or not event.intent.strip():
        raise InvalidIntent(f"intent is required: expected a text that says what to achieve, got {event.intent!r}")
    live.began = live.mark = moment.now
    intent = IntentGiven(plan.entity_id, event.intent, moment.at, *event[1:])
    return [intent] if state.has_header else [plan.make_header(moment.at), intent]


def _reply(plan: Plan, state: State, live: Transient, moment: Moment, event: Replied) -> list[Record]:
    response = event.response.with_ids(state.conversation.said + 1)
    return [
        Utterance(
            entity_id=plan.entity_id,
            turn_id=make_turn_id(state, live),
            content=add_handles(response.content, response.images),
            tool_calls=plan.circle.resolve_calls(response.tool_calls),
            code=extract_code(response, plan.cantrip.circle.language),
            thinking=response.thinking,
            usage=response.usage,
            duration_ms=moment.measure_since(live.began),
            blocks=response.blocks,
            metadata=response.metadata,
            images=response.images,
        )
    ]


def _post(plan: Plan, state: State, live: Transient, moment: Moment, event: Posted) -> list[Record]:
    return [QueryPosted(plan.entity_id, make_turn_id(state, live), event.handle, moment.at)]


def _fail(plan: Plan, state: State, live: Transient, moment: Moment, event: Failed) -> list[Record]:
    conversation = state.conversation
    can_fold = conversation.said - conversation.folded > 1 and conversation.folded_for != conversation.said
    if event.overflows and can_fold:  # one fold, and the query is asked once more
        live.overflows, live.unbooked = True, live.unbooked + event.usage
        return []
    if event.overflows and state.turn.posted is None and (most := find_smaller_bound(plan.shape, state, live.squeezed)):
        live.squeezed, live.unbooked = most, live.unbooked + event.usage  # and once more, with less of each result
        return []
    return [Ended(plan.entity_id, "failed", moment.at, event.error, usage=event.usage)]


def _continue(plan: Plan, state: State, live: Transient, moment: Moment, event: Elapsed) -> list[Record]:  # noqa: ARG001
    return []


def _remember(plan: Plan, state: State, live: Transient, moment: Moment, event: Remembered) -> list[Record]:
    return [fold_turns(plan, state, live, moment, event)]


def _compact(plan: Plan, state: State, live: Transient, moment: Moment, event: Compact) -> list[Record]:  # noqa: ARG001
    live.compaction = event  # the record of the fold takes its mail
    return []


def _undo(plan: Plan, state: State, live: Transient, moment: Moment, event: Undo) -> list[Record]:  # noqa: ARG001
    first, last = state.episode.first - state.inherited, state.sequence - state.inherited
    has_older = any(child.episode < state.episode.number for child in state.background.values())
    return [Undone(plan.entity_id, first, last, moment.at, event.key, event.sender, has_older)]


def _observe(plan: Plan, state: State, live: Transient, moment: Moment, event: Observed) -> list[Record]:
    seen, call = event.observation, get_current_call(state, live)
    assert seen.tool_call_id == call.id, f"tool result without matching tool call: expected {call.id}"
    if live.wrapping == "before" and not seen.is_error:  # the steps before let the call pass
        live.wrapping, live.why = "passed", seen.result
        return []
    gate = plan.gates.get(call.gate)
    if gate is not None and gate.kind == "message" and live.wrapping not in ("before", "after") and gate.has_remarks:
        live.wrapping, live.seen = "after", seen
        return []
    if gate is not None and gate.kind == "done" and not seen.is_error and live.seen is not None:
        seen = live.seen  # a remark is not part of the answer
    finished = finish(plan, state, live, moment, seen)
    return [finished if event.snapshot is None else replace_snapshot(finished, event.snapshot)]


def _decide(plan: Plan, state: State, live: Transient, moment: Moment, event: Decide) -> list[Record]:
    requested = state.turn.requested
    assert requested is not None, "only an open request is decided"
    gate = plan.gates.get(requested.gate)
    if (
        event.decision == "expired"
        and requested.deferred
        and gate is not None
        and gate.dependencies.get("ends_episode")
    ):
        why = f"{requested.gate} got no result in time"
        return _stop(plan, state, live, moment, Stopped("timeout", why, event.key, event.sender))
    return [
        Decided(
            entity_id=plan.entity_id,
            turn_id=make_turn_id(state, live),
            tool_call_id=requested.tool_call_id,
            at=moment.at,
            round=requested.round,
            **event._asdict(),
        )
    ]


def _inquire(plan: Plan, state: State, live: Transient, moment: Moment, event: Inquired) -> list[Record]:
    call, requested, decided = get_current_call(state, live), state.turn.requested, state.turn.decided
    args = call.args if requested is None else requested.args
    return [
        Requested(
            entity_id=plan.entity_id,
            turn_id=make_turn_id(state, live),
            tool_call_id=call.id,
            gate=call.gate,
            at=moment.at,
            args=args if decided is None or decided.args is None else decided.args,
            question=event.text,
            answer_schema=event.schema,
            snapshot=live.snapshot,
            round=1 if requested is None else requested.round + 1,
            state=event.state,
        )
    ]


def _accept_question(plan: Plan, state: State, live: Transient, moment: Moment, event: Questioned) -> list[Record]:
    call = get_current_call(state, live)
    question = Asked(plan.entity_id, make_turn_id(state, live), call.id, event.to, event.key, moment.at)
    return [start(plan, state, live, call), question] if state.turn.program is not None else [question]


def _return(plan: Plan, state: State, live: Transient, moment: Moment, event: Returned) -> list[Record]:
    call = get_current_call(state, live)
    gate = plan.gates[call.gate]
    answer = make_delegation_answer(gate, call, event.outcomes)
    if gate.has_remarks:
        live.wrapping, live.seen = "after", answer
        return []
    return [finish(plan, state, live, moment, answer)]


def _call(plan: Plan, state: State, live: Transient, moment: Moment, event: Called) -> list[Record]:
    turn = state.turn
    live.output += event.output
    live.snapshot = event.snapshot
    was_rebuilt, live.is_rebuilt = live.is_rebuilt, True
    if not was_rebuilt and turn.next_call < len(
        turn.calls
    ):  # the rebuilt program has reached the call that was under way
        call = turn.calls[turn.next_call]
        return [refuse(plan, state, live, moment, call, UNKNOWN)] if is_unknown(plan, state, call) else []
    name = DONE if event.gate == "submit_answer" else ALIASES.get(event.gate, event.gate)
    live.call = ToolCall(f"call_{state.conversation.said}_{len(turn.calls) + 1}", name, event.args)
    return []


def is_unknown(plan: Plan, state: State, call: ToolCall) -> bool:
    """Return whether the effect of a started call is unknown after a restart."""
    gate = plan.gates.get(call.gate)
    is_safe = gate is not None and (gate.idempotent or gate.kind != "function" or gate.has_resource)
    return state.turn.running == call.id and state.turn.asked is None and not is_safe


def _compute(plan: Plan, state: State, live: Transient, moment: Moment, event: Computed) -> list[Record]:
    live.is_rebuilt = True
    live.snapshot = event.snapshot
    output = live.output + event.output
    result = {
        name: value
        for name, value in (
            ("output", output or None),
            ("value", event.value),
            ("error", event.error),
            ("limit", event.limit),
        )
        if value is not None
    }
    images = select_named(render_result_text(result), state.conversation.images)  # it printed or returned their handles
    failed = event.error is not None or event.limit is not None
    seen = Observation(plan.shape.medium, None, result, failed, images=images)
    return [GateFinished.of(plan.entity_id, make_turn_id(state, live), seen, moment.measure_since(live.mark))]


def _steer(plan: Plan, state: State, live: Transient, moment: Moment, event: Steer) -> list[Record]:  # noqa: ARG001
    at = moment.at
    return [
        Steered(plan.entity_id, text, at, images, key, sender, is_pinned, child)
        for text, images, key, sender, is_pinned, child in event.messages
    ]


def _interrupt(plan: Plan, state: State, live: Transient, moment: Moment, event: Interrupt) -> list[Record]:
    how = f"interrupted ({event.detail})"
    ended = Ended(plan.entity_id, "interrupted", moment.at, summarise(state, how), key=event.key, sender=event.sender)
    return [*_cut_turn(plan, state, live, moment, how, None), ended]


def _stop(plan: Plan, state: State, live: Transient, moment: Moment, event: Stopped) -> list[Record]:
    how, ward = f"stopped ({event.detail})", WARD_OF.get(event.reason)
    ended = Ended(
        plan.entity_id,
        event.reason,
        moment.at,
        summarise(state, how),
        ward=ward,
        key=event.key,
        sender=event.sender,
    )
    return [*_cut_turn(plan, state, live, moment, f"the entity was {how}", ward), ended]


def _cut_turn(plan: Plan, state: State, live: Transient, moment: Moment, how: str, ward: str | None) -> list[Record]:
    """Commit the turn in the making as it stands, with a result for each of its calls."""
    if state.phase not in MID_TURN:
        return []
    records: list[Record] = []
    turn = state.turn
    is_before = (
        turn.requested is not None and turn.decided is None and not (turn.requested.round or turn.requested.deferred)
    )
    became = NO_REPLY if turn.is_spoken else "not run" if is_before else "outcome unknown"
    calls = [*turn.calls[turn.next_call :], *([live.call] if live.call is not None else ())]
    for call in calls:
        args = call.args if turn.program is not None else None
        seen = Observation(call.gate, args, f"{became}: {how}", True, call.id)
        took = 0.0 if records else moment.measure_since(live.mark)
        records.append(GateFinished.of(plan.entity_id, make_turn_id(state, live), seen, took))
        became = "not run"
    if turn.program is not None:
        # its sandbox is replaced, and the programs before it are run again there without this one
        ended = Computed(error=f"outcome unknown: {how}", limit="the time until it was cut off")
        records += _compute(plan, state, live, moment, ended)
        live.snapshot = None
    return [*records, commit(plan, state, live, moment, truncated=True, ward=ward)]


Handler = Callable[[Plan, State, Transient, Moment, Any], list[Record]]

HANDLERS: Mapping[tuple[Phase, type], Handler] = {
    (Phase.NEW, Begin): _begin,
    (Phase.IDLE, Begin): _begin,
    (Phase.IDLE, Steer): _steer,
    (Phase.IDLE, Undo): _undo,
    (Phase.IDLE, Compact): _compact,
    (Phase.IDLE, Remembered): _remember,
    (Phase.ASKING, Compact): _compact,
    (Phase.ASKING, Replied): _reply,
    (Phase.ASKING, Posted): _post,
    (Phase.ASKING, Failed): _fail,
    (Phase.ASKING, Remembered): _remember,
    (Phase.ASKING, Decide): _decide,
    (Phase.ASKING, Elapsed): _continue,
    (Phase.ASKING, Steer): _steer,
    (Phase.WAITING, Returned): _return,
    (Phase.COMPUTING, Computed): _compute,
    **{(phase, Observed): _observe for phase in MID_TURN},
    (Phase.ACTING, Inquired): _inquire,
    (Phase.COMPUTING, Inquired): _inquire,
    **{(phase, Called): _call for phase in MID_TURN},
    (Phase.ACTING, Decide): _decide,
    (Phase.ACTING, Questioned): _accept_question,
    (Phase.COMPUTING, Questioned): _accept_question,
    **{(phase, Interrupt): _interrupt for phase in (Phase.ASKING, *MID_TURN)},
    **{(phase, Stopped): _stop for phase in Phase if phase not in (Phase.NEW, Phase.OVER)},
}
