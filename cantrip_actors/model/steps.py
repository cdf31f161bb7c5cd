"""The building blocks of steps: what several of the loop's transitions have in common.

Each takes the state, and the records of the step so far, and says how both go on. When which of them is due is
`loop.py`'s, and for programs `program.py`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from cantrip_actors.model.cantrip import carve
from cantrip_actors.model.context import Fading, View
from cantrip_actors.model.errors import InvalidIntent
from cantrip_actors.model.gate import CALL_AGENT, CALL_AGENT_BATCH, DONE, AgentRequest, Gate, Refused
from cantrip_actors.model.image import NO_IMAGES, Image, named_in
from cantrip_actors.model.messages import Message, ToolCall, as_text
from cantrip_actors.model.snapshot import reference
from cantrip_actors.model.state import (
    Answer,
    Ask,
    Child,
    ChildOutcome,
    Compute,
    Finish,
    Left,
    Moment,
    Outcome,
    Phase,
    Plan,
    Program,
    Remember,
    Remembered,
    Run,
    Spawn,
    State,
    Step,
)
from cantrip_actors.model.turn import (
    NO_GATE,
    SKIPPED,
    Committed,
    Ended,
    EndReason,
    Folded,
    GateFinished,
    GateStarted,
    IntentGiven,
    Observation,
    Record,
    observed,
    unanswered,
)
from cantrip_actors.model.ward import Ward


def given(
    plan: Plan, state: State, intent: object, data: Any, at: str, images: tuple[Image, ...] = NO_IMAGES
) -> tuple[State, IntentGiven]:
    """The context with an intent in it, and the record of that (INTENT-2: after the system prompt, before all else)."""
    if not isinstance(intent, str) or not intent.strip():
        raise InvalidIntent(f"intent is required: expected a text that says what to achieve, got {intent!r}")
    messages: list[Message] = []
    if not len(state.context):
        messages += [Message("system", text) for text in (plan.cantrip.call.system_prompt, plan.capability) if text]
    intent_at = len(state.context) + len(messages)
    messages.append(Message("user", intent, images=images) if images else Message("user", intent))
    if data is not None and plan.circle.medium == "tools":  # a code circle has it as a variable
        messages.append(Message("user", f"context:\n{as_text(data)}"))
    left = state.data if data is None else data  # of an intent before, where no program has got it yet
    head = state.head or len(messages)
    context = state.context.extend(messages)
    if images:
        state = state._replace(pictures=state.pictures.extend(images))
    return (
        state._replace(context=context, head=head, intent_at=intent_at, data=left),
        IntentGiven(plan.entity_id, intent, at, data, images),
    )


def ask(plan: Plan, state: State, moment: Moment, records: list[Record]) -> tuple[State, Step]:
    """The next query, after folding what is due; or first the question what to keep of that, where somebody says it."""
    if plan.cantrip.folding.due(state.said - state.folded, state.prompt_tokens, plan.window):
        if plan.remembers:
            if state.phase is not Phase.ASKING:
                state = state._replace(phase=Phase.ASKING)
            return state, Step(records, _remember(plan, state))
        state = fold(plan, state, moment, records, Remembered())
    return query(plan, state, records)


def _remember(plan: Plan, state: State) -> Remember:
    """The question what to keep of the messages that the fold takes: what the last fold left is among them."""
    shown = view(state)
    stays, first_turn = state.starts[plan.cantrip.folding.first_kept(state.said, state.folded)]
    return Remember(shown[min(state.head, len(shown)) : len(shown) - (len(state.context) - stays)], first_turn - 1)


def fold(plan: Plan, state: State, moment: Moment, records: list[Record], kept: Remembered) -> State:
    """The state after the fold that is due."""
    state = state._replace(folded=plan.cantrip.folding.first_kept(state.said, state.folded), prompt_tokens=0)
    last = _last_folded(state)
    marker = f"[folded: turns 1-{last}]" if kept.text is None else f"[folded: turns 1-{last}]\n{kept.text}"
    records.append(Folded(plan.entity_id, 1, last, marker, moment.at, kept.usage))
    return state._replace(marker=marker, usage=state.usage + kept.usage, spent=kept.spent or state.spent)


def query(plan: Plan, state: State, records: list[Record]) -> tuple[State, Step]:
    """Ask the crystal, which is shown no more of what has faded."""
    if state.fading:
        fading = tuple(since for since in state.fading if since > state.said)
        state = state._replace(fading=fading, faded=state.faded + len(state.fading) - len(fading))
    if state.phase is not Phase.ASKING:
        state = state._replace(phase=Phase.ASKING)
    return state, Step(records, Ask(view(state), plan.tools, plan.tool_choice))


def view(state: State) -> View:
    """What the crystal is shown now: call and intent, folded turns as their marker, the rest (LOOP-5, LOOM-6)."""
    if not state.folded:
        return View(state.context, query=state.said, faded=state.faded)
    cut = state.starts[state.folded][0]
    inserted = [Message("user", state.marker)]
    if state.head <= state.intent_at < cut:  # the newest intent stays in sight, with the data that came with it
        end = state.starts[state.said - state.utterances][0]
        inserted += [message for message in state.context[state.intent_at : end] if isinstance(message, Message)]
    return View(state.context, state.head, cut, tuple(inserted), state.said, state.faded)


def _last_folded(state: State) -> int:
    """The number of the last folded turn; a fold always leaves an utterance, so there is one after it."""
    return state.starts[state.folded][1] - 1


def delegated(plan: Plan, gate: Gate, call: ToolCall, seen: Iterable[Image] = NO_IMAGES) -> tuple[Child, ...] | Refused:
    """The children that a delegation asks for, all of them or none: one that may not be refuses the call (COMP-1).

    A child is shown those of the images that its parent has `seen` whose handles stand in its intent or its context.
    """
    batch = gate.name == CALL_AGENT_BATCH.name
    checked = (CALL_AGENT_BATCH if batch else CALL_AGENT).check(call)  # a circle may state narrower parameters
    if isinstance(checked, Refused):
        return checked
    requests: Iterable[AgentRequest | str] = (
        checked.args["intents"] if batch else (AgentRequest.model_construct(**checked.args),)
    )
    children = []
    for n, asked in enumerate(requests, 1):
        of = f" (request {n})" if batch else ""
        intent = asked if isinstance(asked, str) else asked.intent
        if not intent.strip():
            return Refused(f"{gate.name}: intent is required{of}")
        request = AgentRequest(intent=asked) if isinstance(asked, str) else asked
        child = carve(plan.cantrip, request)
        if isinstance(child, Refused):
            return Refused(child.reason + of)
        children.append(Child(child, request, _named(request, seen)))
    return tuple(children)


def _named(request: AgentRequest, seen: Iterable[Image]) -> tuple[Image, ...]:
    """The images that a request names."""
    text = request.intent if request.context is None else f"{request.intent}\n{as_text(request.context)}"
    return named_in(text, seen)


def answer_of(gate: Gate, call: ToolCall, outcomes: tuple[ChildOutcome, ...]) -> Observation:
    """The children's outcomes as the observation of the call that asked for them (COMP-3, COMP-8)."""
    if gate.name == CALL_AGENT.name:
        (only,) = outcomes
        result = only.result if only.error is None else only.error
        return Observation(gate.name, None, result, only.error is not None, call.id, gate.ephemeral, only.images)
    results = [o.result if o.error is None else {"is_error": True, "error": o.error} for o in outcomes]
    failed = all(o.error is not None for o in outcomes)
    images = tuple(dict.fromkeys(image for outcome in outcomes for image in outcome.images))
    return Observation(gate.name, None, results, failed, call.id, gate.ephemeral, images)


def refusal(call: ToolCall, reason: str) -> Observation:
    """The error observation of a call that is not carried out."""
    return Observation(call.gate, None, reason, True, call.id)


def note(plan: Plan, state: State, moment: Moment, records: list[Record], seen: Observation) -> State:
    """The state after an observation of the call at `next_call` (CIRCLE-4: it is in the context of the next query)."""
    if state.program is not None:
        return _noted_for(state.program, plan, state, moment, records, seen)
    if seen.args is not None:  # the utterance's record holds them
        seen = Observation(seen.gate, None, seen.result, seen.is_error, seen.tool_call_id, seen.ephemeral, seen.images)
    if seen.images:
        state = state._replace(pictures=state.pictures.extend(seen.images))
    records.append(GateFinished(plan.entity_id, state.turn_id, seen, moment.since(state.mark)))
    shown: Message | Fading
    if seen.ephemeral and not seen.is_error:  # a failure has to be seen (CIRCLE-5)
        gate = plan.gates.get(seen.gate)
        shown = observed(seen, hidden=True)
        if gate is not None and gate.visible_for:
            since = state.said + gate.visible_for
            shown = Fading(observed(seen, hidden=False), shown, since)
            state = state._replace(fading=(*state.fading, since))
    else:
        shown = observed(seen, hidden=False)
    return state._replace(
        context=state.context.append(shown), next_call=state.next_call + 1, around="", mark=moment.now
    )


def _noted_for(
    program: Program, plan: Plan, state: State, moment: Moment, records: list[Record], seen: Observation
) -> State:
    """The same for a call of a program: it is the program that sees the result, and what it makes of it is shown."""
    call = state.calls[state.next_call]
    seen = Observation(seen.gate, call.args, seen.result, seen.is_error, seen.tool_call_id, seen.ephemeral, seen.images)
    if seen.images:
        state = state._replace(pictures=state.pictures.extend(seen.images))
    records.append(GateFinished(plan.entity_id, state.turn_id, seen, moment.since(state.mark)))
    closed = seen.gate == DONE.name and not seen.is_error
    program = program._replace(answers=(*program.answers, Answer(seen.result, seen.is_error, closed)))
    return state._replace(program=program, next_call=state.next_call + 1, around="", mark=moment.now, snapshot=None)


def answered(
    plan: Plan, state: State, moment: Moment, records: list[Record], content: str | None
) -> tuple[State, Step]:
    """What follows an utterance: its calls, its program, or what text alone means (D-004)."""
    if state.calls:
        return proceed(plan, state, moment, records)
    if state.program is not None:
        code, variables, *_ = state.program
        return state, Step(records, Compute(code, variables, state.programs, images=state.images))
    if plan.requires_done:
        state = state._replace(context=state.context.append(Message("user", NO_GATE)))
        return commit_and_go_on(plan, state, moment, records)
    return terminate(plan, state, moment, records, content)


def proceed(plan: Plan, state: State, moment: Moment, records: list[Record]) -> tuple[State, Step]:
    """Go on with the utterance from call `state.next_call`: to the next that has to be run, or to its end."""
    while state.next_call < len(state.calls):
        call = state.calls[state.next_call]
        gate = plan.gates.get(call.gate)
        past = _past(plan, state.next_call + 1)
        if gate is None or past is not None:
            state = note(plan, state, moment, records, refusal(call, past or plan.circle.unavailable(call.gate)))
            continue
        bound = gate.check(call)
        if isinstance(bound, Refused):
            state = note(plan, state, moment, records, refusal(call, bound.reason))
            continue
        if gate.kind == "function":
            if not gate.idempotent:
                records.append(_started(plan, state, call))
            return run(state, records, gate, call, bound.args)
        if gate.wrappers and not state.around:
            return run(state._replace(around="before"), records, gate, call, bound.args)
        if gate.kind == "done":
            answer = gate.answer(bound.args)
            seen = Observation(gate.name, None, answer, False, call.id)
            state = note(plan, state, moment, records, seen)
            if state.program is not None:  # it runs to its end, with all gates closed, so that its variables are kept
                state = state._replace(finished=seen)
                continue
            skipped = unanswered(state.calls[state.next_call :], SKIPPED)
            return terminate(plan, state._replace(context=state.context.extend(skipped)), moment, records, answer)
        children = delegated(plan, gate, call, state.pictures)
        if isinstance(children, Refused):
            state = note(plan, state, moment, records, refusal(call, children.reason))
            continue
        if state.program is not None:
            records.append(_started(plan, state, call))
        spawning = state.turn_id
        state = commit(plan, state, moment, records, Phase.WAITING)
        return state, Step(records, Spawn(spawning, call, children))
    if state.program is not None:
        return state._replace(phase=Phase.COMPUTING), Step(records, state.program.answers[-1])
    return commit_and_go_on(plan, state, moment, records)


def run(
    state: State,
    records: list[Record],
    gate: Gate,
    call: ToolCall,
    args: Mapping[str, Any],
    seen: Observation | None = None,
) -> tuple[State, Step]:
    """Have a gate run, or the steps around one that runs elsewhere."""
    if state.phase is not Phase.ACTING:
        state = state._replace(phase=Phase.ACTING)
    return state, Step(records, Run(gate, call, args, state.turn_id, seen))


def _past(plan: Plan, number: int) -> str | None:
    """Why a turn may not make its call of that number. (A program has been ended by its medium before.)"""
    most = plan.wards.max_gate_calls
    if most is None or number <= most:
        return None
    return f"not run: one turn may make {most} gate calls (max_gate_calls), and this is number {number}"


def _started(plan: Plan, state: State, call: ToolCall) -> GateStarted:
    """The record that a gate is about to run; a program's arguments stand nowhere else."""
    args = None if state.program is None else call.args
    return GateStarted(plan.entity_id, state.turn_id, call.id, call.gate, args, state.snapshot)


def commit(
    plan: Plan,
    state: State,
    moment: Moment,
    records: list[Record],
    phase: Phase,
    *,
    terminated: bool = False,
    truncated: bool = False,
    ward: str | None = None,
) -> State:
    """Commit the turn in the making, of which nothing is ever edited afterwards (LOOM-3), and go on in `phase`."""
    snapshot = state.snapshot if state.program is None else None  # in the middle of one there is nothing to go on from
    images = state.images
    if snapshot is not None:
        images = images.append(Left(len(state.programs), reference(snapshot)))
    records.append(
        Committed(
            state.turn_id,
            plan.entity_id,
            state.parent_id,
            state.sequence - state.inherited + 1,
            state.utterance_id,
            moment.at,
            moment.since(state.began),
            terminated,
            truncated,
            ward,
            snapshot,
        )
    )
    return state._replace(
        phase=phase,
        images=images,
        snapshot=None,
        parent_id=state.turn_id,
        turn_id=moment.fresh,
        sequence=state.sequence + 1,
        began=moment.now,
    )


def commit_and_go_on(plan: Plan, state: State, moment: Moment, records: list[Record]) -> tuple[State, Step]:
    """The utterance is done with: commit its turn, and ask again unless a ward says that this was the last (LOOP-4)."""
    ward = state.spent
    if ward is None and plan.wards.max_turns is not None and state.utterances >= plan.wards.max_turns:
        ward = Ward("max_turns", plan.wards.max_turns)
    if ward is None:
        return ask(plan, commit(plan, state, moment, records, Phase.ASKING), moment, records)
    state = commit(plan, state, moment, records, state.phase, truncated=True, ward=str(ward))
    summary = summarise(state, f"truncated by {ward}")
    outcome = outcome_at(state, "truncated", truncated=True, ward=ward.name, summary=summary)
    # a budget is for life; turns count anew for each intent (reading 27)
    return finish(plan, state, moment, records, outcome, over=ward.name != "max_turns")


def terminate(plan: Plan, state: State, moment: Moment, records: list[Record], answer: Any) -> tuple[State, Step]:
    """The entity says that it is done: commit its turn, the last one of the episode."""
    state = commit(plan, state, moment, records, state.phase, terminated=True)
    outcome = outcome_at(state, "terminated", result=answer, terminated=True)
    return finish(plan, state, moment, records, outcome)


def cut_off(
    plan: Plan,
    state: State,
    moment: Moment,
    records: list[Record],
    reason: EndReason,
    ward: str | None,
    summary: str,
) -> tuple[State, Step]:
    """The end of an entity that its surroundings end between turns: the `Ended` record says so (reading 3)."""
    outcome = outcome_at(state, reason, truncated=True, ward=ward, summary=summary)
    return finish(plan, state, moment, records, outcome, over=True)


def finish(
    plan: Plan, state: State, moment: Moment, records: list[Record], outcome: Outcome, *, over: bool = False
) -> tuple[State, Step]:
    """The end of an episode, and of the entity unless it lasts."""
    over = over or not plan.lasting
    if over or outcome.reason in ("failed", "interrupted"):  # of the end of such an episode no turn tells
        records.append(Ended(plan.entity_id, outcome.reason, moment.at, outcome.error or outcome.summary))
    return state._replace(phase=Phase.OVER if over else Phase.IDLE), Step(records, Finish(outcome))


def outcome_at(
    state: State,
    reason: EndReason,
    *,
    result: Any = None,
    terminated: bool = False,
    truncated: bool = False,
    error: str | None = None,
    ward: str | None = None,
    summary: str | None = None,
) -> Outcome:
    """The outcome of an episode that ends in this state."""
    last = state.parent_id if state.sequence > state.inherited else None
    images = named_in(as_text(result), state.pictures) if state.pictures and result is not None else NO_IMAGES
    usage = state.usage
    return Outcome(
        result, reason, terminated, truncated, error, ward, summary, usage, usage + state.below, last, images
    )


def summarise(state: State, how: str) -> str:
    """What an episode accomplished before it was cut off (LOOP-4): turns, gates that answered, the last words."""
    ran: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    words = None
    for item in state.context[state.intent_at :]:
        message = item.message if isinstance(item, Fading) else item
        if message.role == "tool" and message.gate is not None:
            if message.content != SKIPPED:
                (failed if message.is_error else ran)[message.gate] += 1
        elif message.role == "assistant" and message.content:
            words = message.content
    parts = [f"{how} after {state.utterances} {'turn' if state.utterances == 1 else 'turns'}"]
    for title, counted in (("gates run", ran), ("gates failed", failed)):
        if counted:
            parts.append(f"{title}: " + ", ".join(f"{name} x{n}" if n > 1 else name for name, n in counted.items()))
    if words is not None:
        parts.append(f"last words: {words if len(words) <= 200 else words[:199] + '…'}")
    return "; ".join(parts)
