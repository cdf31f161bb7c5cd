"""The loop of an entity as a pure state machine.

Two rules hold in this room. Everything that decides what an entity does next lives here. And nothing here waits,
measures or makes anything up: no await, no clock, no random number; ids and times come in from outside.

Theory of operation
-------------------

A `Plan` is what stays fixed for an entity's life: its cantrip, its gates, its wards. A `State` is where the entity
stands. `advance(plan, state, moment, event)` answers with the next state and a `Step`: the records to append to the
loom, then the one action to carry out. Whoever drives the loop (the entity's actor, or a test in a `for`) appends the
records *before* it carries out the action (LOOM-1), and feeds what came of the action back as the next event:

    phase       event      next phase   action   when
    NEW, IDLE   Begin      ASKING       Ask      an intent is given: the first, or a further one by `send` (INTENT-1)
    NEW, IDLE   Begin      OVER         Finish   a budget is used up already
    IDLE        Begin      ASKING       Remember a fold is due, and somebody says what to keep of it
    ASKING      Replied    ACTING       Run      the next call of the utterance is a gate's
    ASKING      Replied    WAITING      Spawn    it is call_agent: what came before it is committed first (LOOM-8)
    ASKING      Replied    ASKING       Ask      no call is left to run, and `done` was not among them
    ASKING      Replied    ASKING       Remember the same, and a fold is due of which somebody says what to keep
    ASKING      Remembered ASKING       Ask      the fold is made, and what was kept is shown in its place
    ASKING      Remembered OVER         Finish   the summary used a budget up
    ASKING      Replied    IDLE, OVER   Finish   `done`; text only, where that ends it (D-004); a ward (LOOP-4)
    ACTING      Observed   as Replied            the observation is noted; then the utterance goes on
    WAITING     Returned   as Replied            the children's results are the observation
    ASKING      Replied    COMPUTING    Compute  the utterance is a program, in a code circle
    COMPUTING   Called     ACTING       Run      the program calls a gate
    COMPUTING   Called     WAITING      Spawn    it calls call_agent; what came before is committed first
    COMPUTING   Called     COMPUTING    Answer   it calls `done`, or what it may not: it goes on with the answer
    ACTING      Observed   COMPUTING    Answer   the program goes on with the gate's answer
    WAITING     Returned   COMPUTING    Answer   likewise with the children's results
    COMPUTING   Computed   ASKING       Ask      it came to its end, failed, or exceeded a limit
    COMPUTING   Computed   ASKING       Remember the same, and a fold is due
    COMPUTING   Computed   IDLE, OVER   Finish   the same, and it had called `done`; or a ward
    COMPUTING   Stopped    OVER         Finish   a deadline, a budget, a cancellation while it runs
    ASKING      Failed     IDLE, OVER   Finish   the crystal failed for good
    ASKING      Steer      ASKING       Ask      somebody outside puts a message in before the query
    ASKING      Interrupt  IDLE, OVER   Finish   somebody outside ends the episode between two turns
    ASKING      Stopped    OVER         Finish   a deadline, a budget, a cancellation from outside
    ACTING      Stopped    OVER         Finish   the same; the turn is committed as it stands
    WAITING     Stopped    OVER         Finish   likewise
    IDLE        Stopped    OVER         Finish   nothing is lost

IDLE is where an invoked entity waits for its next intent; one that was cast is OVER. What somebody puts in meanwhile is
noted and no step (`put_in`). Calls are run one by one in the
order of the utterance (CIRCLE-7); `done` ends it and the rest is skipped (LOOP-3, D-003). What is wrong with a call, an
unknown gate, a bad argument, a child that may not be, becomes an error observation right here, without asking anybody
(CIRCLE-5, CIRCLE-6).

What is wrapped around `done` or `call_agent` is run as a gate is, before what it is around happens: Run, and then, as
if that call came next, the end or the Spawn; a refusal is its observation. Steps after a delegation run once the
children have returned.

Where a call needs children, the turn is cut in two there. The part before is committed, so that the children's turns
have a turn to hang from; the rest, beginning with the delegation's own observation, becomes a continuation: the next
turn of the loom, with the same utterance. In the context there is no seam.

Wards count utterances: a continuation after children is a turn of the loom but no new utterance (reading 2). The turn
that holds the last utterance that a ward allows is the truncated one, and it is so when it is committed (reading 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cantrip_actors.model.context import Shared
from cantrip_actors.model.image import NO_IMAGES
from cantrip_actors.model.messages import Message
from cantrip_actors.model.program import called, code_in, computed, ended, program_of
from cantrip_actors.model.state import (
    Action,
    Answer,
    Ask,
    Begin,
    Called,
    Child,
    ChildOutcome,
    Compute,
    Computed,
    Event,
    Failed,
    Finish,
    Interrupt,
    Moment,
    Observed,
    Outcome,
    Pending,
    Phase,
    Plan,
    Program,
    Remember,
    Remembered,
    Replied,
    Returned,
    Run,
    Spawn,
    State,
    Steer,
    Step,
    Stopped,
)
from cantrip_actors.model.steps import (
    answer_of,
    answered,
    ask,
    commit,
    cut_off,
    finish,
    fold,
    given,
    note,
    outcome_at,
    proceed,
    query,
    refusal,
    run,
    summarise,
)
from cantrip_actors.model.turn import (
    EndReason,
    Record,
    Steered,
    Utterance,
    spoken,
)

__all__ = [
    "WARD_OF",
    "Action",
    "Answer",
    "Ask",
    "Begin",
    "Called",
    "Child",
    "ChildOutcome",
    "Compute",
    "Computed",
    "Event",
    "Failed",
    "Finish",
    "Interrupt",
    "Moment",
    "Observed",
    "Outcome",
    "Pending",
    "Phase",
    "Plan",
    "Program",
    "Remember",
    "Remembered",
    "Replied",
    "Returned",
    "Run",
    "Spawn",
    "State",
    "Steer",
    "Step",
    "Stopped",
    "advance",
    "begin",
    "put_in",
]


def begin(plan: Plan, moment: Moment) -> State:
    """The state of an entity that nothing has happened to yet."""
    return State(Phase.NEW, Shared(), Shared(), parent_id=plan.parent_turn, turn_id=moment.fresh)


def advance(plan: Plan, state: State, moment: Moment, event: Event) -> tuple[State, Step]:
    """One step of the loop; see the head of this file.

    Raises InvalidIntent for a Begin without one, and AssertionError for an event that cannot happen in this phase: that
    is a bug of whoever drives the loop, and none that could be mended here.
    """
    handler = _HANDLERS.get((state.phase, type(event)))
    if handler is None:
        raise AssertionError(f"{type(event).__name__} cannot happen to an entity that is {state.phase.value}")
    return handler(plan, state, moment, event)


def _begun(plan: Plan, state: State, moment: Moment, event: Begin) -> tuple[State, Step]:
    at = moment.at
    records: list[Record] = [plan.header(at)] if state.phase is Phase.NEW else []
    state, intent = given(plan, state, event.intent, event.context, at, event.images)
    records.append(intent)
    state = state._replace(utterances=0, began=moment.now, mark=moment.now)
    if event.spent is not None:
        detail = f"{event.spent} was used up before"
        return cut_off(plan, state, moment, records, "budget", event.spent.name, summarise(state, detail))
    return ask(plan, state, moment, records)


def _replied(plan: Plan, state: State, moment: Moment, event: Replied) -> tuple[State, Step]:
    response = event.response.numbered(state.said + 1)
    code = code_in(response, plan.circle.medium)
    said = Utterance(
        plan.entity_id,
        state.turn_id,
        response.content,
        response.tool_calls,
        response.usage,
        moment.since(state.began),
        response.thinking,
        code,
        response.blocks,
        response.metadata,
    )
    message = spoken(said)
    program = program_of(plan, state, said)
    state = state._replace(
        phase=Phase.ACTING if program is None else Phase.COMPUTING,
        program=program,
        coded=program is not None,
        data=state.data if program is None else None,
        context=state.context.append(message),
        starts=state.starts.append((len(state.context), state.sequence + 1)),
        said=state.said + 1,
        utterances=state.utterances + 1,
        utterance_id=state.turn_id,
        usage=state.usage + response.usage,
        prompt_tokens=response.usage.prompt_tokens,
        spent=event.spent,
        calls=response.tool_calls,
        next_call=0,
        mark=moment.now,
    )
    return answered(plan, state, moment, [said], message.content)


def _observed(plan: Plan, state: State, moment: Moment, event: Observed) -> tuple[State, Step]:
    asked = state.calls[state.next_call].id
    assert event.observation.tool_call_id == asked, f"tool result without matching tool call: expected {asked}"
    records: list[Record] = []
    if state.around == "before" and not event.observation.is_error:  # the way is free for what it is around
        return proceed(plan, state, moment, records)
    return proceed(plan, note(plan, state, moment, records, event.observation), moment, records)


def _returned(plan: Plan, state: State, moment: Moment, event: Returned) -> tuple[State, Step]:
    call = state.calls[state.next_call]
    below = state.below
    for outcome in event.outcomes:
        below = below + outcome.usage
    state = state._replace(below=below, spent=event.spent or state.spent)
    records: list[Record] = []
    gate = plan.gates[call.gate]
    answer = answer_of(gate, call, event.outcomes)
    if any(wrapper.post for wrapper in gate.wrappers):
        return run(state._replace(around="after"), records, gate, call, call.args or {}, answer)
    return proceed(plan, note(plan, state, moment, records, answer), moment, records)


def put_in(plan: Plan, state: State, moment: Moment, event: Steer) -> tuple[State, list[Record]]:
    """The state with messages that somebody outside puts in; where it is IDLE, they wait there for the next intent."""
    at = moment.at
    images = event.images or (NO_IMAGES,) * len(event.texts)
    steered = [Steered(plan.entity_id, text, at, of) for text, of in zip(event.texts, images, strict=True)]
    context = state.context.extend(Message("user", one.text, images=one.images) for one in steered)
    pictures = state.pictures.extend(image for images in event.images for image in images)
    return state._replace(context=context, pictures=pictures), [*steered]


def _steered(plan: Plan, state: State, moment: Moment, event: Steer) -> tuple[State, Step]:
    state, records = put_in(plan, state, moment, event)
    return ask(plan, state, moment, records)


def _remembered(plan: Plan, state: State, moment: Moment, event: Remembered) -> tuple[State, Step]:
    records: list[Record] = []
    state = fold(plan, state, moment, records, event)
    if state.spent is not None:  # what the summary cost was the last that a budget had
        detail = f"{state.spent} was used up by a summary"
        return cut_off(plan, state, moment, records, "budget", state.spent.name, summarise(state, detail))
    return query(plan, state, records)


def _interrupted(plan: Plan, state: State, moment: Moment, event: Interrupt) -> tuple[State, Step]:
    summary = summarise(state, f"interrupted ({event.detail})")
    return finish(plan, state, moment, [], outcome_at(state, "interrupted", truncated=True, summary=summary))


def _failed(plan: Plan, state: State, moment: Moment, event: Failed) -> tuple[State, Step]:
    return finish(plan, state, moment, [], outcome_at(state, "failed", error=event.error))


def _stopped(plan: Plan, state: State, moment: Moment, event: Stopped) -> tuple[State, Step]:
    """End from outside. A turn in the making is committed as it stands, with a result for every call it made."""
    records: list[Record] = []
    if event.below is not None:
        state = state._replace(below=event.below)
    ward = WARD_OF.get(event.reason)
    summary = summarise(state, f"stopped ({event.detail})")
    if state.phase in (Phase.ACTING, Phase.WAITING, Phase.COMPUTING):
        became = "outcome unknown"
        for call in state.calls[state.next_call :]:
            seen = refusal(call, f"{became}: the entity was stopped ({event.detail})")
            state = note(plan, state, moment, records, seen)
            became = "not run"
        if state.program is not None:
            error = f"outcome unknown: the entity was stopped ({event.detail})"
            state = computed(plan, state, moment, records, Computed(error=error))
        state = commit(plan, state, moment, records, state.phase, truncated=True, ward=ward)
    return cut_off(plan, state, moment, records, event.reason, ward, summary)


WARD_OF: Mapping[EndReason, str] = {"timeout": "timeout", "budget": "budget"}
"""The ward that a reason to end from outside is."""

Handler = Callable[[Plan, State, Moment, Any], tuple[State, Step]]

_HANDLERS: dict[tuple[Phase, type], Handler] = {
    (Phase.NEW, Begin): _begun,
    (Phase.IDLE, Begin): _begun,
    (Phase.ASKING, Replied): _replied,
    (Phase.ASKING, Failed): _failed,
    (Phase.ASKING, Remembered): _remembered,
    (Phase.ASKING, Steer): _steered,
    (Phase.ASKING, Interrupt): _interrupted,
    (Phase.ACTING, Observed): _observed,
    (Phase.WAITING, Returned): _returned,
    (Phase.COMPUTING, Called): called,
    (Phase.COMPUTING, Computed): ended,
    **{(phase, Stopped): _stopped for phase in Phase if phase not in (Phase.NEW, Phase.OVER)},
}
