"""The state after a record: bookkeeping, total over all kinds of records, and the only code that changes a state.

The live loop folds the records of each step, recovery folds the log, and a fork folds a lineage. A state is obtained in
no other way, so these three cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from cantrip_actors.machine.actions import Answer, Program, SnapshotAfter
from cantrip_actors.machine.budget import BudgetGrant
from cantrip_actors.machine.context import (
    LEFT_OUT,
    NO_GATE,
    SKIPPED,
    call_person,
    render_reply,
    render_result,
    render_unanswered,
    render_utterance,
)
from cantrip_actors.machine.events import Moment
from cantrip_actors.machine.program import render_result_text
from cantrip_actors.machine.state import (
    BackgroundChild,
    Conversation,
    Episode,
    Phase,
    Plan,
    Sandbox,
    Shape,
    State,
    Transient,
    Turn,
)
from cantrip_actors.records.blob import make_reference
from cantrip_actors.records.records import (
    Adopted,
    Asked,
    ChildStarted,
    Committed,
    Decided,
    Ended,
    Folded,
    ForgottenRecord,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    MailRefused,
    QueryPosted,
    Record,
    Requested,
    Resumed,
    Rewarded,
    Sampled,
    Steered,
    Undone,
    Utterance,
    replace_snapshot,
)
from cantrip_actors.terms.context import Fading, Shared
from cantrip_actors.terms.cut_off import find_cut_off
from cantrip_actors.terms.history import build_history_messages
from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.languages import has_programs, read_medium
from cantrip_actors.terms.messages import NO_USAGE, Message, ToolCall, as_text
from cantrip_actors.terms.own_gate_names import CALL_AGENT, MCP_APPROVAL
from cantrip_actors.terms.period import is_granted

IMAGE_SIZE = 4_000
"""Characters that an image counts as, where the size of the context is measured."""

EPISODE_ENDS = frozenset({"failed", "interrupted", "timeout"})
"""The reasons with which an episode of a long-lived entity may end without ending the entity."""


PER_INTENT = " per intent"
"""The suffix, in records, of the name of a ward that bounds one episode."""


def evolve(shape: Shape, state: State, record: Record) -> State:
    """Return `state` after `record`. The state is changed in place; copy one that you want to keep."""
    _EVOLVE[type(record)](shape, state, record)
    return state


def fold(shape: Shape, records: Iterable[Record], state: State | None = None) -> State:
    """Return the state after `records`, from the beginning or from `state` on."""
    state = State(shape.parent_turn) if state is None else state
    for record in records:
        _EVOLVE[type(record)](shape, state, record)
    return state


def evolve_transient(live: Transient, record: Record, moment: Moment) -> None:
    """Update the transient after a record: the clock marks, and the id of the next turn."""
    kind = type(record)
    if kind is GateFinished:
        live.mark, live.wrapping, live.why, live.call, live.seen = moment.now, "", None, None, None
        if record.tool_call_id is None:  # type: ignore[union-attr]  # the program has ended
            live.output = ""
        else:
            live.snapshot = None  # it was of the program in this call
    elif kind is GateStarted or kind is Requested:
        live.call = live.snapshot = None  # the state has them now
    elif kind is Utterance:
        live.mark = moment.now
    elif kind is Committed:
        live.fresh, live.began = moment.fresh, moment.now
        live.snapshot = None
    elif kind is Decided:
        live.mark = moment.now
        if record.args is not None:  # type: ignore[union-attr]  # the steps before the call see the new arguments
            live.wrapping = ""
    elif kind is Folded:
        live.overflows, live.squeezed, live.compaction = False, None, None


def complete(plan: Plan, state: State, live: Transient, record: Record) -> Record:
    """Return a record of a step with facts from the state: unbooked usage, and whether children still work."""
    record = _book_usage(live, record)
    if not (state.background and plan.lasting):
        return record
    is_end = isinstance(record, Committed) and (record.terminated or record.truncated)
    is_end = is_end or (isinstance(record, Ended) and not is_entity_end(record, lasting=True))
    return replace(record, children=True) if is_end else record


def _book_usage(live: Transient, record: Record) -> Record:
    """Return a record; the next one with a usage also has that of queries that no record has booked (LOOM-9)."""
    if live.unbooked is NO_USAGE or not isinstance(record, (Utterance, Folded, Ended)):
        return record
    usage, live.unbooked = live.unbooked + record.usage, NO_USAGE
    return replace(record, usage=usage)


def is_entity_end(record: Ended, *, lasting: bool) -> bool:
    """Return whether an `Ended` ends its entity: a long-lived one survives an episode that failed, was interrupted,
    took too long or used up the budget of its intent.
    """
    return not (lasting and (record.reason in EPISODE_ENDS or (record.ward or "").endswith(PER_INTENT)))


def close_turn(state: State) -> None:
    """Close a turn that waits for children, because an intent or a fork replaces their results."""
    turn = state.turn
    if state.phase is Phase.WAITING:
        if turn.program is None:
            conversation = state.conversation
            rest = render_unanswered(turn.calls[turn.next_call :], LEFT_OUT)
            conversation.context = conversation.context.extend(rest)
        state.phase = Phase.IDLE
    state.turn = Turn()


def _give_intent(shape: Shape, state: State, record: IntentGiven) -> None:
    """Add an intent with its history to the context: the first one comes right after the system prompt (INTENT-2)."""
    close_turn(state)
    conversation = state.conversation
    is_first = not conversation.head
    _begin_context(shape, state)
    conversation.intents = conversation.intents.append(len(conversation.context))
    for message in build_history_messages(record.history, record.past_images):
        _append(shape, state, message)
    _append(shape, state, Message("user", record.intent, images=record.own_images))
    if record.context is not None:
        state.sandbox.data = record.context
        if not has_programs(_find_medium(shape, state)):  # a code circle has it as a variable
            _append(shape, state, Message("user", f"context:\n{as_text(record.context)}"))
    if is_first:
        conversation.head = len(conversation.context)
    if record.images:
        conversation.images = conversation.images.extend(record.images)
    state.episode = Episode(
        state.episode.number + 1,
        state.sequence + 1,
        record.key,
        trace=record.trace,
        sender=record.sender,
        context=record.context,
        dependencies=record.dependencies,
    )
    state.phase = Phase.ASKING


def _begin_context(shape: Shape, state: State) -> None:
    """Put the system prompt into an empty context: an entity may be steered before its first intent."""
    if not len(state.conversation.context):
        for text in (shape.system_prompt, shape.capability):
            if text:
                _append(shape, state, Message("system", text))


def _steer(shape: Shape, state: State, record: Steered) -> None:
    _begin_context(shape, state)
    gate = None
    if record.child is not None:
        state.background.pop(record.child, None)
        gate = CALL_AGENT  # an answer is shown like a result
    message = Message(
        "user",
        record.text,
        tool_call_id=record.child,  # by which `recall` finds it
        gate=gate,
        images=record.images,
        is_steering=True,
        is_pinned=record.pinned,
    )
    _append(shape, state, message)
    if record.images:
        state.conversation.images = state.conversation.images.extend(record.images)


def _utter(shape: Shape, state: State, record: Utterance) -> None:
    conversation, episode, usage = state.conversation, state.episode, record.usage
    if conversation.fading:
        fading = tuple(since for since in conversation.fading if since > conversation.said)
        conversation.faded += len(conversation.fading) - len(fading)
        conversation.fading = fading
    if usage.prompt_tokens:
        conversation.tokens, conversation.tokens_for = usage.prompt_tokens, conversation.size
    message = render_utterance(record)
    conversation.starts = conversation.starts.append((len(conversation.context), state.sequence + 1))
    conversation.said += 1
    _append(shape, state, message)
    if message.content:
        episode.words = message.content
    episode.cut_off = find_cut_off(record.metadata)
    if record.images:
        conversation.images = conversation.images.extend(record.images)
    episode.utterances += 1
    state.usage = state.usage + usage
    turn = state.turn = Turn()
    turn.id = turn.utterance_id = record.turn_id
    medium = _find_medium(shape, state)
    if record.code is None or record.tool_calls or not has_programs(medium):
        turn.calls = record.tool_calls
        if medium == "person" and not turn.calls:
            turn.calls = call_person(message, conversation.said)
            turn.is_spoken = bool(turn.calls)
        state.phase = Phase.ACTING
        return
    sandbox = state.sandbox
    turn.coded = True
    turn.program = Program(record.code, None if sandbox.data is None else {"context": sandbox.data})
    sandbox.data = None
    state.phase = Phase.COMPUTING


def _start_gate(shape: Shape, state: State, record: GateStarted) -> None:  # noqa: ARG001  # as all of them
    state.turn.running = record.tool_call_id
    _note_call(state, record)


def _request(shape: Shape, state: State, record: Requested) -> None:  # noqa: ARG001
    snapshot, turn = record.snapshot, state.turn
    if state.phase is Phase.ASKING:  # it is about a budget, and no call is under way
        turn.id, turn.requested = record.turn_id, record
        return
    turn.requested = record if snapshot is None else replace_snapshot(record, make_reference(snapshot))
    turn.running, turn.decided = "", None
    _note_call(state, record)


def _decide(shape: Shape, state: State, record: Decided) -> None:  # noqa: ARG001
    requested = state.turn.requested
    state.turn.decided = record
    if state.phase is Phase.ASKING and requested is not None:
        add_grant(state, requested, record)
        return
    if requested is not None and requested.deferred:
        state.turn.delivered = {**state.turn.delivered, **record.split()}
    if record.remember and requested is not None and not requested.round:
        state.remembered.setdefault(requested.gate, {})[requested.why] = record.decision


def add_grant(state: State, requested: Requested, record: Decided) -> None:
    """Raise a budget for the period that a person was asked about. A request expires with its period; a denial stays,
    and ends the entity.
    """
    if is_granted(record.answer):
        about = requested.args or {}
        label, period = about["budget"], about["period"]
        before = state.granted.get(label)
        amount = record.answer + (before.amount if before is not None and before.period == period else 0)
        state.granted[label] = BudgetGrant(period, amount)
    elif record.decision != "expired":
        return
    state.turn.requested = state.turn.decided = None


def _note_call(state: State, record: GateStarted | Requested) -> None:
    """Add the current call to the turn: the utterance of a program does not list its calls."""
    turn = state.turn
    turn.id = record.turn_id
    if turn.program is not None:
        _add_call(turn, ToolCall(record.tool_call_id, record.gate, record.args))
        if record.snapshot is not None:
            turn.midway = SnapshotAfter(len(turn.program.answers), make_reference(record.snapshot))
    state.phase = Phase.ACTING


def _add_call(turn: Turn, call: ToolCall) -> None:
    if all(earlier.id != call.id for earlier in turn.calls):
        turn.calls = (*turn.calls, call)


def _finish_gate(shape: Shape, state: State, record: GateFinished) -> None:
    turn, conversation = state.turn, state.conversation
    turn.id, turn.running, turn.asked = record.turn_id, "", None
    turn.requested = turn.decided = None
    for child in record.children:
        state.background.pop(child, None)
    if record.images:
        conversation.images = conversation.images.extend(record.images)
    if record.snapshot is not None:
        state.resource = make_reference(record.snapshot)
    if record.tool_call_id is None and turn.program is not None:
        _finish_program(shape, state, record, turn.program)
        return
    if record.tool_call_id is not None:
        state.gates[record.gate] = state.gates.get(record.gate, 0) + record.is_error
    if record.gate in shape.done and not record.is_error:
        turn.finished = record.observation
    if turn.program is not None:
        _add_call(turn, ToolCall(record.tool_call_id or "", record.gate, record.args))
        closed = record.gate in shape.done and not record.is_error
        answers = (*turn.program.answers, Answer(record.result, record.is_error, closed))
        turn.program = turn.program._replace(answers=answers)
        state.phase = Phase.COMPUTING
    else:
        _show_result(shape, state, record)
        state.phase = Phase.ACTING
    turn.next_call += 1


def _show_result(shape: Shape, state: State, record: GateFinished) -> None:
    """Put a result into the context (CIRCLE-4); an ephemeral one fades (D-010), but a failure is seen (CIRCLE-5)."""
    conversation, episode, seen = state.conversation, state.episode, record.observation
    counted = episode.failed if seen.is_error else episode.ran
    counted[seen.gate] = counted.get(seen.gate, 0) + 1
    if state.turn.is_spoken:
        _append(shape, state, render_reply(seen))
        return
    if not seen.ephemeral or seen.is_error:
        _append(shape, state, render_result(seen, hidden=False))
        return
    hidden = render_result(seen, hidden=True)
    visible_for = shape.visible_for.get(seen.gate)
    if not visible_for:
        _append(shape, state, hidden)
        return
    since = conversation.said + visible_for
    shown = render_result(seen, hidden=False)
    conversation.context = conversation.context.append(Fading(shown, hidden, since))
    conversation.fading = (*conversation.fading, since)
    if shape.is_measured:
        conversation.size += _measure_size(shape, shown)


def _finish_program(shape: Shape, state: State, record: GateFinished, program: Program) -> None:
    """Add a program that ended to the sandbox. One that exceeded a limit is undone; the next gets its variables."""
    undone = "limit" in record.result
    if undone and program.variables is not None:
        state.sandbox.data = program.variables["context"]
    state.sandbox.programs = state.sandbox.programs.append(program._replace(undone=undone))
    turn = state.turn
    turn.program, turn.midway, turn.calls, turn.next_call = None, None, (), 0
    _append(shape, state, Message("user", render_result_text(record.result), gate=record.gate, images=record.images))
    state.phase = Phase.ACTING


def _commit(shape: Shape, state: State, record: Committed) -> None:
    conversation, turn = state.conversation, state.turn
    rest = turn.calls[turn.next_call :]
    if record.terminated:
        if rest:
            conversation.context = conversation.context.extend(render_unanswered(rest, SKIPPED))
        state.phase = Phase.IDLE
    elif rest or turn.program is not None:  # the turn is cut here, for the children of the next call
        state.phase = Phase.WAITING
    else:
        if not turn.calls and not turn.coded:
            _append(shape, state, Message("user", NO_GATE, is_steering=True))
        state.phase = Phase.IDLE if record.truncated else Phase.ASKING
    if record.terminated or record.truncated:
        state.episode.end = record
    if record.snapshot is not None:
        sandbox = state.sandbox
        sandbox.snapshots = sandbox.snapshots.append(
            SnapshotAfter(len(sandbox.programs), make_reference(record.snapshot))
        )
    state.sequence += 1
    state.parent_id = record.turn_id
    turn.id, turn.children = "", ()


def _start_child(shape: Shape, state: State, record: ChildStarted) -> None:  # noqa: ARG001
    state.turn.children = (*state.turn.children, record)
    state.spawned += 1
    call = next((call for call in state.turn.calls if call.id == record.tool_call_id), None)
    if record.background and call is not None:
        call = state.turn.apply_decision(call)
        child = BackgroundChild(record.turn_id, call, record.index, state.episode.number)
        state.background[record.child_id] = child


def _fold(shape: Shape, state: State, record: Folded) -> None:
    """Shorten the context. The call stays, and so do the intents of the turns that are left (LOOM-6, CALL-5)."""
    conversation = state.conversation
    if record.selective:
        _fold_results(conversation, record)
    else:
        _fold_turns(conversation, record)
    conversation.folded_for = conversation.said
    conversation.tokens = 0
    if shape.is_measured:
        shown = (item if isinstance(item, Message) else item.message for item in conversation.context)
        conversation.size = sum(_measure_size(shape, message) for message in shown)
    state.usage = state.usage + record.usage
    state.turn.posted = None


def _fold_turns(conversation: Conversation, record: Folded) -> None:
    """Take the turns up to `last` out of the context. No intent is left without its answer, and no answer without its
    intent: the intent of the first turn that stays stays too, and so does the end of the first intent's episode.
    """
    context, head = conversation.context, conversation.head
    starts, intents = list(conversation.starts), list(conversation.intents)
    gone = sum(number <= record.last for _, number in starts)
    cut = starts[gone][0] if gone < len(starts) else len(context)
    opening: list[Message] = []
    current = max((at for at in intents if at < cut), default=0)
    if current >= head:
        spoken = next((at for at, _ in starts if at > current), len(context))
        if spoken >= cut:
            cut = current  # none of its turns is folded
        else:
            opening = [item for item in context[current:spoken] if isinstance(item, Message)]
    second = next((at for at in intents if at >= head), len(context) + 1)
    ends = [at for at, _ in starts if at < second <= cut]
    last_turn = context[ends[-1] : second] if ends else ()
    answer = [item if isinstance(item, Message) else item.placeholder for item in last_turn]
    answer = [message for message in answer if not message.is_steering]
    kept_before = [*context[:head], *answer]
    pins: list[Message] = []
    for item in context[head:cut]:
        if isinstance(item, Message) and item.is_pinned and item not in [*answer, *pins, *opening]:
            pins.append(item)  # once: a companion may pin the same text in each episode
    before: list[Message | Fading] = [*kept_before, Message("user", record.marker), *pins, *opening]
    moved = len(before) - cut
    opened = [len(before) - len(opening)] if opening else []
    conversation.head = len(kept_before)
    conversation.context = Shared([*before, *context[cut:]])
    conversation.starts = Shared((at + moved, number) for at, number in starts[gone:])
    conversation.intents = Shared(
        [*(at for at in intents if at < head), *opened, *(at + moved for at in intents if at >= max(cut, head))]
    )
    conversation.folded += gone
    conversation.without_results = max(conversation.folded, conversation.without_results)


def _fold_results(conversation: Conversation, record: Folded) -> None:
    """Replace the results of the turns up to `last` by placeholders; what the entity said and called stays."""
    context, starts = list(conversation.context), list(conversation.starts)
    count = sum(number <= record.last for _, number in starts)
    end = starts[count][0] if count < len(starts) else len(context)
    for at in range(starts[0][0] if starts else end, end):
        item = context[at]
        message = item if isinstance(item, Message) else item.placeholder
        if message.gate is not None and message.gate != MCP_APPROVAL:  # the provider needs the decision
            context[at] = replace(message, content=f"[folded:{message.gate}]", images=NO_IMAGES)
    conversation.context = Shared(context)
    conversation.without_results = conversation.folded + count


def _add_sampled_usage(shape: Shape, state: State, record: Sampled) -> None:  # noqa: ARG001
    state.usage = state.usage + record.usage


def _end(shape: Shape, state: State, record: Ended) -> None:
    state.usage = state.usage + record.usage
    turn = state.turn
    turn.posted = turn.requested = turn.decided = None
    if state.episode.end is None or record.reason not in ("terminated", "truncated"):
        state.episode.end = record
    state.phase = Phase.OVER if is_entity_end(record, lasting=shape.lasting) else Phase.IDLE


def _post_query(shape: Shape, state: State, record: QueryPosted) -> None:  # noqa: ARG001
    state.turn = Turn()
    state.turn.id, state.turn.posted = record.turn_id, record.handle


def _ask(shape: Shape, state: State, record: Asked) -> None:  # noqa: ARG001
    state.turn.id, state.turn.asked = record.turn_id, record
    state.phase = Phase.ACTING


def _begin(shape: Shape, state: State, record: Header) -> None:  # noqa: ARG001
    state.has_header = True
    if record.waits:
        state.phase = Phase.IDLE
    _use(state, record)


def _adopt(shape: Shape, state: State, record: Adopted) -> None:
    before = _find_medium(shape, state)
    _use(state, record)
    if state.medium != before:  # no sandbox can run the programs of another language
        state.sandbox = Sandbox(data=state.sandbox.data)
    renew_call(shape, state)


def _forget(shape: Shape, state: State, record: ForgottenRecord) -> None:  # noqa: ARG001
    """Clear a conversation whose content is deleted: a fork continues with its own intent."""
    state.conversation, state.sandbox, state.turn = Conversation(), Sandbox(), Turn()
    state.phase = Phase.OVER


def _use(state: State, record: Header | Adopted) -> None:
    state.cantrip_id, state.cantrip_name = record.cantrip_id, record.cantrip_name
    state.medium = read_medium(record.circle)


def _find_medium(shape: Shape, state: State) -> str:
    """Return the medium in force at this record: an entity may have moved to a cantrip with another one."""
    return state.medium or shape.medium


def renew_call(shape: Shape, state: State) -> None:
    """Put the call of `shape` at the front of the context: a call is never part of what an entity remembers."""
    conversation = state.conversation
    context = conversation.context
    if not len(context):
        return
    # a history may begin with system messages, and the first intent begins with its history
    first = conversation.intents[0] if len(conversation.intents) else len(context)
    old = next(
        (at for at, item in enumerate(context[:first]) if not isinstance(item, Message) or item.role != "system"), first
    )
    call = [Message("system", text) for text in (shape.system_prompt, shape.capability) if text]
    if call == context[:old]:
        return
    moved = len(call) - old
    conversation.context = Shared([*call, *context[old:]])
    conversation.starts = Shared((at + moved, number) for at, number in conversation.starts)
    conversation.head += moved if conversation.head else 0  # it is 0 until the first intent
    conversation.intents = Shared(at + moved for at in conversation.intents)
    if shape.is_measured:
        conversation.size += sum(_measure_size(shape, message) for message in call) - sum(
            _measure_size(shape, item) for item in context[:old] if isinstance(item, Message)
        )


def _pass(shape: Shape, state: State, record: Record) -> None:
    """Leave the state unchanged: the record does not concern it."""


def _append(shape: Shape, state: State, message: Message) -> None:
    conversation = state.conversation
    conversation.context = conversation.context.append(message)
    if shape.is_measured:
        conversation.size += _measure_size(shape, message)


def _measure_size(shape: Shape, message: Message) -> int:
    calls = sum(len(call.gate) + len(call.arguments) for call in message.tool_calls) if message.tool_calls else 0
    return shape.bound.measure_shown(message) + calls + IMAGE_SIZE * len(message.images)


_EVOLVE: Mapping[type, Callable[[Shape, State, Any], None]] = {
    Header: _begin,
    IntentGiven: _give_intent,
    Steered: _steer,
    Utterance: _utter,
    GateStarted: _start_gate,
    GateFinished: _finish_gate,
    Committed: _commit,
    ChildStarted: _start_child,
    Folded: _fold,
    Undone: _pass,  # `fold_log` leaves out what it undoes
    Sampled: _add_sampled_usage,
    Rewarded: _pass,
    Resumed: _pass,
    Ended: _end,
    MailRefused: _pass,
    Adopted: _adopt,
    QueryPosted: _post_query,
    Asked: _ask,
    Requested: _request,
    Decided: _decide,
    ForgottenRecord: _forget,
}
