"""Going on from a log: what an entity's records say about where it stands.

There is one truth about an entity, its log, and this file is how it is read back into the loop (`loop.py`). Three
questions are answered here, each by a fold over records: with which context does a fork go on (`replay`), what does an
entity do next that a crash cut short (`resume`), and what came of an entity that has ended (`outcome_of`).

What is there is never done again. An utterance that was written is not asked for again, a gate with a result is not
run again. A gate that had started and has no result may or may not have had its effect: the entity is told
`outcome unknown` and decides, unless the gate is `idempotent` and is simply run. Children that were started are waited
for, or come back themselves.

A crash may also fall between records that were appended together, so each of them alone is enough to go on from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cantrip_actors.model.gate import Refused
from cantrip_actors.model.image import NO_IMAGES, Image, named_in
from cantrip_actors.model.loop import WARD_OF, begin
from cantrip_actors.model.messages import NO_USAGE, Message, ToolCall, Usage, as_text
from cantrip_actors.model.program import UNKNOWN, after, program_of
from cantrip_actors.model.state import Compute, Left, Moment, Outcome, Pending, Phase, Plan, Spawn, State, Step
from cantrip_actors.model.steps import (
    answered,
    ask,
    commit_and_go_on,
    delegated,
    finish,
    given,
    note,
    proceed,
    refusal,
    terminate,
)
from cantrip_actors.model.turn import (
    LEFT_OUT,
    NO_GATE,
    SKIPPED,
    ChildStarted,
    Committed,
    Ended,
    Folded,
    GateFinished,
    GateStarted,
    IntentGiven,
    Observation,
    Record,
    Steered,
    Utterance,
    ends_entity,
    spoken,
    unanswered,
)

__all__ = ["outcome_of", "replay", "resume"]


def replay(plan: Plan, records: Iterable[Record], moment: Moment) -> State:
    """The state that `records`, a lineage of turns, leave behind: what a fork goes on from (LOOM-4).

    The call comes from `plan`; the first intent stays first (INTENT-3), later ones stand where they came. What follows
    the last committed turn, an utterance whose turn a crash cut short, is left out. The state is NEW: give it a Begin.
    """
    whole = _read(plan, begin(plan, moment), records, moment).whole
    return whole._replace(
        phase=Phase.NEW,
        inherited=whole.sequence,
        parent_id=plan.parent_turn,
        turn_id=moment.fresh,
        utterance_id="",
        utterances=0,
        program=None,
        finished=None,
        usage=NO_USAGE,
        calls=(),
        next_call=0,
        spent=None,
    )


def resume(
    plan: Plan, begun: State, records: Sequence[Record], moment: Moment, below: Mapping[str, Usage] = {}
) -> tuple[State, Step | None]:
    """Where an entity stands after `records`, its own log, and what it does next; None where it waits for an intent.

    `begun` is the state that it began with: `begin(plan, …)`, or for a fork what `replay` gave; its turn id has to be
    one that nobody has, and another than the moment's. `below` is what the subtree of each of its children has used so
    far; those that it waits for are counted when they return.

    The state is NEW where there is nothing but its header: it has yet to be given its first intent.
    """
    read = _read(plan, begun, records, moment)
    state = read.state
    awaited = _awaited(state, read.children)
    spent = sum((used for child, used in below.items() if child not in awaited), NO_USAGE)
    state = state._replace(below=spent, began=moment.now, mark=moment.now)
    if state.phase is Phase.NEW:
        return state, None
    if read.ended is not None:
        over = ends_entity(read.ended, lasting=plan.lasting)
        return state._replace(phase=Phase.OVER if over else Phase.IDLE), None
    if state.phase is Phase.IDLE:
        if plan.lasting:
            return state, None
        outcome = outcome_of(records, spent)  # the turn that ended it is there, the record that says so is not
        assert outcome is not None
        return finish(plan, state, moment, [], outcome)
    if state.phase is Phase.ASKING:
        return ask(plan, state, moment, [])
    if state.program is not None:
        return _compute_again(state, read)
    if state.phase is Phase.WAITING:
        return _wait_again(plan, state, moment, read.children)
    return _act_again(plan, state, moment, read)


class _Read(NamedTuple):
    """What a log says."""

    state: State
    whole: State
    """The state after the last committed turn, with a result for every call, whatever comes after it."""
    running: str | None
    """The call that has started and has no result."""
    done: Observation | None
    """The observation of `done`, until its turn is committed."""
    children: tuple[ChildStarted, ...]
    """The children that were started since the last turn was committed."""
    ended: Ended | None
    midway: Left | None
    """The program that runs, waiting for one of its calls; the latest image of that."""


def _read(plan: Plan, state: State, records: Iterable[Record], moment: Moment) -> _Read:
    """Follow `records` from `state` on."""
    whole, fresh = state, state.turn_id
    running: str | None = None
    done: Observation | None = None
    children: tuple[ChildStarted, ...] = ()
    ended: Ended | None = None
    midway: Left | None = None
    for record in records:
        match record:
            case IntentGiven():
                state = given(plan, whole, record.intent, record.context, record.at, record.images)[0]
                state = whole = state._replace(phase=Phase.ASKING, utterances=0)
                ended = None
            case Steered():
                state = whole = _steered(state, record)
            case Utterance():
                state = _said(plan, state, record)
                running, done, children, midway = None, None, (), None
            case GateStarted():
                state = _called(state._replace(turn_id=record.turn_id), record.tool_call_id, record.gate, record.args)
                running = record.tool_call_id
                if record.snapshot is not None and state.program is not None:
                    midway = Left(len(state.program.answers), record.snapshot)
            case GateFinished():
                seen = record.observation
                state, done = _observed(plan, state._replace(turn_id=record.turn_id), moment, seen, done)
                running = None
            case Committed():
                state, whole = _committed(state, record, fresh)
                running, done, children = None, None, ()
            case ChildStarted():
                children = (*children, record)
            case Folded():
                state = _folded(state, record)
            case Ended():
                ended = record
            case _:
                pass
    return _Read(state, whole, running, done, children, ended, midway)


def _awaited(state: State, started: Iterable[ChildStarted]) -> frozenset[str]:
    """The children of the call that comes next: it has no result yet."""
    calls = state.calls[state.next_call : state.next_call + 1]
    return frozenset(child.child_id for call in calls for child in started if child.tool_call_id == call.id)


def _steered(state: State, record: Steered) -> State:
    context = state.context.append(Message("user", record.text, images=record.images))
    return state._replace(context=context, pictures=state.pictures.extend(record.images))


def _observed(
    plan: Plan, state: State, moment: Moment, seen: Observation, done: Observation | None
) -> tuple[State, Observation | None]:
    """The state after an observation, and that of `done` if it has been called."""
    if state.program is not None and seen.tool_call_id is None:
        return after(state, seen, undone="limit" in seen.result), done
    state = _called(state, seen.tool_call_id, seen.gate, seen.args)
    state = note(plan, state, moment, [], seen)
    state = state._replace(phase=Phase.ACTING if state.program is None else Phase.COMPUTING)
    gate = plan.gates.get(seen.gate)
    if gate is None or gate.kind != "done" or seen.is_error:
        return state, done
    return state._replace(finished=seen if state.program is not None else None), seen


def _called(state: State, call_id: str | None, gate: str, args: Mapping[str, Any] | None) -> State:
    """The state with a program's call in it: its utterance does not say which calls there will be."""
    if state.program is None or call_id is None or any(call.id == call_id for call in state.calls):
        return state
    return state._replace(calls=(*state.calls, ToolCall(call_id, gate, args)))


def _said(plan: Plan, state: State, record: Utterance) -> State:
    program = program_of(plan, state, record)
    return state._replace(
        phase=Phase.ACTING if program is None else Phase.COMPUTING,
        program=program,
        coded=program is not None,
        data=state.data if program is None else None,
        context=state.context.append(spoken(record)),
        starts=state.starts.append((len(state.context), state.sequence + 1)),
        said=state.said + 1,
        utterances=state.utterances + 1,
        turn_id=record.turn_id,
        utterance_id=record.turn_id,
        usage=state.usage + record.usage,
        prompt_tokens=record.usage.prompt_tokens,
        calls=record.tool_calls,
        next_call=0,
    )


def _committed(state: State, record: Committed, fresh: str) -> tuple[State, State]:
    """The state after a committed turn, to go on from in this log and, whole, in another."""
    state = state._replace(sequence=state.sequence + 1, parent_id=record.turn_id, turn_id=fresh)
    if record.snapshot is not None:
        state = state._replace(images=state.images.append(Left(len(state.programs), record.snapshot)))
    if state.program is not None:  # a seam: what the program has done so far is in no sandbox that a fork could have
        return state._replace(phase=Phase.WAITING), state._replace(program=None, calls=(), next_call=0, finished=None)
    rest = state.calls[state.next_call :]
    if record.terminated:
        state = state._replace(phase=Phase.IDLE, context=state.context.extend(unanswered(rest, SKIPPED)))
    elif rest:  # a seam: this log may go on with these calls, a fork from here does not
        left_out = state._replace(context=state.context.extend(unanswered(rest, LEFT_OUT)))
        return state._replace(phase=Phase.WAITING), left_out
    else:
        text_only = not state.calls and not state.coded
        context = state.context.append(Message("user", NO_GATE)) if text_only else state.context
        state = state._replace(phase=Phase.IDLE if record.truncated else Phase.ASKING, context=context)
    return state, state


def _folded(state: State, record: Folded) -> State:
    folded = state.folded
    while folded < len(state.starts) and state.starts[folded][1] <= record.last:
        folded += 1
    usage = state.usage + record.usage
    return state._replace(folded=folded, marker=record.marker, prompt_tokens=0, usage=usage)


def _act_again(plan: Plan, state: State, moment: Moment, read: _Read) -> tuple[State, Step]:
    """In the middle of an utterance."""
    records: list[Record] = []
    if read.done is not None:
        rest = state.calls[state.next_call :]
        state = state._replace(context=state.context.extend(unanswered(rest, SKIPPED)))
        return terminate(plan, state, moment, records, read.done.result)
    if read.running is not None:
        call = state.calls[state.next_call]
        gate = plan.gates.get(call.gate)
        if gate is None or not gate.idempotent:
            state = note(plan, state, moment, records, refusal(call, UNKNOWN))
    if state.calls:
        return proceed(plan, state, moment, records)
    if state.coded:  # its program has ended, and its turn was not committed
        return commit_and_go_on(plan, state, moment, records)
    said = state.context[-1]
    assert isinstance(said, Message)  # only tool messages fade
    return answered(plan, state, moment, records, said.content)


def _compute_again(state: State, read: _Read) -> tuple[State, Step]:
    """In the middle of a program: bring it back to where it stood, with the answers that it got."""
    program = state.program
    assert program is not None
    pending = None
    if state.phase is Phase.WAITING:
        call = state.calls[state.next_call]
        pending = Pending(call.id, {c.index: c.child_id for c in read.children if c.tool_call_id == call.id})
    elif read.running is not None:
        pending = Pending(read.running)
    state = state._replace(phase=Phase.COMPUTING, pending=pending)
    code, variables, answers, _ = program
    return state, Step([], Compute(code, variables, state.programs, answers, state.images, read.midway))


def _wait_again(plan: Plan, state: State, moment: Moment, started: Iterable[ChildStarted]) -> tuple[State, Step]:
    """At a seam: the children of the call that it was cut for, those that were started and those that were not."""
    call = state.calls[state.next_call]
    gate = plan.gates.get(call.gate)
    unavailable = Refused(plan.circle.unavailable(call.gate))
    children = unavailable if gate is None else delegated(plan, gate, call, state.pictures)
    if isinstance(children, Refused):  # the cantrip is another one than before the crash
        records: list[Record] = []
        return proceed(plan, note(plan, state, moment, records, refusal(call, children.reason)), moment, records)
    known: Mapping[int, str] = {child.index: child.child_id for child in started if child.tool_call_id == call.id}
    assert state.parent_id is not None
    return state, Step([], Spawn(state.parent_id, call, children, known))


def outcome_of(records: Iterable[Record], below: Usage = NO_USAGE) -> Outcome | None:
    """What came of the last episode of an entity, from its log; None while it is still under way.

    `below` is what its children's subtrees have used.
    """
    usage, said, answer = NO_USAGE, None, None
    pictures: list[Image] = []
    last: Committed | None = None
    ended: Ended | None = None
    for record in records:
        match record:
            case Utterance():
                usage, said, answer = usage + record.usage, record, None
            case Folded():
                usage = usage + record.usage
            case GateFinished():
                seen = record.observation
                pictures += seen.images
                answer = seen if seen.gate == "done" and not seen.is_error else answer
            case Committed():
                last = record
            case Ended():
                ended = record
            case IntentGiven():
                last = ended = None
                pictures += record.images
            case Steered():
                pictures += record.images
            case _:
                pass
    turn_id = None if last is None else last.turn_id
    if last is not None and last.terminated:
        text = None if said is None else (said.content if said.code is None else said.code)
        result = text if answer is None else answer.result
        images = named_in(as_text(result), pictures) if pictures and result is not None else NO_IMAGES
        return Outcome(
            result,
            "terminated",
            terminated=True,
            usage=usage,
            subtree_usage=usage + below,
            last_turn=turn_id,
            images=images,
        )
    if ended is None and (last is None or not last.truncated):
        return None
    reason = "truncated" if ended is None else ended.reason
    detail = None if ended is None else ended.detail
    failed = reason in ("failed", "crashed")
    ward = WARD_OF.get(reason) if last is None or last.ward is None else last.ward
    return Outcome(
        None,
        reason,
        truncated=not failed,
        error=detail if failed else None,
        ward=None if ward is None else ward.partition("(")[0],
        summary=None if failed else detail or f"truncated by {ward}",  # of the end that leaves one idle no record tells
        usage=usage,
        subtree_usage=usage + below,
        last_turn=turn_id,
    )
