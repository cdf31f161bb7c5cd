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
    ASKING      Replied    ACTING       Run      the next call of the utterance is a gate's
    ASKING      Replied    WAITING      Spawn    it is call_agent: what came before it is committed first (LOOM-8)
    ASKING      Replied    ASKING       Ask      no call is left to run, and `done` was not among them
    ASKING      Replied    IDLE, OVER   Finish   `done`; text only, where that ends it (D-004); a ward (LOOP-4)
    ACTING      Observed   as Replied            the observation is noted; then the utterance goes on
    WAITING     Returned   as Replied            the children's results are the observation
    ASKING      Failed     IDLE, OVER   Finish   the crystal failed for good
    ASKING      Steer      ASKING       Ask      somebody outside puts a message in before the query
    ASKING      Interrupt  IDLE, OVER   Finish   somebody outside ends the episode between two turns
    ASKING      Stopped    OVER         Finish   a deadline, a budget, a cancellation from outside
    ACTING      Stopped    OVER         Finish   the same; the turn is committed as it stands
    WAITING     Stopped    OVER         Finish   likewise
    IDLE        Stopped    OVER         Finish   nothing is lost

IDLE is where an invoked entity waits for its next intent; one that was cast is OVER. Calls are run one by one in the
order of the utterance (CIRCLE-7); `done` ends it and the rest is skipped (LOOP-3, D-003). What is wrong with a call, an
unknown gate, a bad argument, a child that may not be, becomes an error observation right here, without asking anybody
(CIRCLE-5, CIRCLE-6).

Where a call needs children, the turn is cut in two there. The part before is committed, so that the children's turns
have a turn to hang from; the rest, beginning with the delegation's own observation, becomes a continuation: the next
turn of the loom, with the same utterance. In the context there is no seam.

Wards count utterances: a continuation after children is a turn of the loom but no new utterance (reading 2). The turn
that holds the last utterance that a ward allows is the truncated one, and it is so when it is committed (reading 3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

from cantrip_actors.model.cantrip import Cantrip, carve, crystal_name
from cantrip_actors.model.circle import Circle
from cantrip_actors.model.context import Fading, Shared, View
from cantrip_actors.model.errors import InvalidIntent
from cantrip_actors.model.gate import CALL_AGENT, CALL_AGENT_BATCH, AgentRequest, Gate, Refused
from cantrip_actors.model.messages import (
    NO_USAGE,
    Message,
    Response,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    Usage,
    as_text,
)
from cantrip_actors.model.turn import (
    LEFT_OUT,
    NO_GATE,
    SKIPPED,
    Committed,
    Ended,
    EndReason,
    Folded,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Observation,
    Record,
    Steered,
    Utterance,
    observed,
    spoken,
    unanswered,
)
from cantrip_actors.model.ward import Ward, Wards

__all__ = [
    "Action",
    "Ask",
    "Begin",
    "Child",
    "ChildOutcome",
    "Event",
    "Failed",
    "Finish",
    "Interrupt",
    "Moment",
    "Observed",
    "Outcome",
    "Phase",
    "Plan",
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
]


class Phase(Enum):
    """Where an entity stands; see the table at the head of this file."""

    NEW = "new"
    ASKING = "asking"
    ACTING = "acting"
    WAITING = "waiting"
    IDLE = "idle"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays fixed for an entity's life, worked out once when it is made."""

    entity_id: str
    cantrip: Cantrip
    gates: Mapping[str, Gate]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice | None
    wards: Wards
    requires_done: bool
    window: int | None = None
    lasting: bool = False
    """Whether the entity takes further intents (`invoke`) or ends with its first (`cast`)."""
    capability: str | None = None
    """The capability text of a code circle, shown after the system prompt (reading 5)."""
    parent_entity: str | None = None
    parent_turn: str | None = None
    forked: bool = False
    name: str | None = None

    @classmethod
    def of(
        cls,
        cantrip: Cantrip,
        entity_id: str,
        *,
        window: int | None = None,
        lasting: bool = False,
        capability: str | None = None,
        parent_entity: str | None = None,
        parent_turn: str | None = None,
        forked: bool = False,
        name: str | None = None,
    ) -> Plan:
        """The plan of an entity that `cantrip` is cast into. `window` is its crystal's context window in tokens."""
        return cls(
            entity_id=entity_id,
            cantrip=cantrip,
            gates=cantrip.circle.open_gates,
            tools=cantrip.circle.definitions,
            tool_choice=cantrip.call.tool_choice,
            wards=cantrip.circle.resolved,
            requires_done=cantrip.requires_done,
            window=window,
            lasting=lasting,
            capability=capability,
            parent_entity=parent_entity,
            parent_turn=parent_turn,
            forked=forked,
            name=name,
        )

    @property
    def circle(self) -> Circle:
        """The circle of the cantrip."""
        return self.cantrip.circle

    def header(self, at: str) -> Header:
        """The record that begins the entity's log (CALL-4)."""
        return Header(
            entity_id=self.entity_id,
            cantrip_id=self.cantrip.id,
            at=at,
            call=self.cantrip.call.as_json(),
            circle=self.cantrip.circle.as_json(),
            crystal=crystal_name(self.cantrip.crystal),
            parent_entity=self.parent_entity,
            parent_turn=self.parent_turn,
            forked=self.forked,
            depth=self.cantrip.level,
            name=self.name,
            lasting=self.lasting,
        )


class Moment(NamedTuple):
    """When an event happened, and an id that nobody has yet, for the turn that may begin with it.

    `now` is a monotonic clock and `wall` the time since the epoch, both in seconds.
    """

    now: float
    wall: float
    fresh: str

    @property
    def at(self) -> str:
        """The time of day, ISO 8601 in UTC, to the millisecond."""
        return datetime.fromtimestamp(self.wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# What happens to a loop


class Begin(NamedTuple):
    """An intent, and data for it. `spent` names a budget that is used up already."""

    intent: str
    context: Any = None
    spent: Ward | None = None


class Replied(NamedTuple):
    """The crystal's response. `spent` names the budget, of this entity or one above it, that it used up."""

    response: Response
    spent: Ward | None = None


class Failed(NamedTuple):
    """The crystal broke its contract or failed after its retries: the text of the error."""

    error: str


class Observed(NamedTuple):
    """What a gate that was run came to."""

    observation: Observation


class ChildOutcome(NamedTuple):
    """What became of a child: its answer, or why there is none; and what its whole subtree used."""

    result: Any
    error: str | None = None
    usage: Usage = NO_USAGE


class Returned(NamedTuple):
    """The children of one call have ended: an outcome each, in the order of the request (COMP-3)."""

    outcomes: tuple[ChildOutcome, ...]
    spent: Ward | None = None


class Stopped(NamedTuple):
    """Something outside ends the entity: its deadline, a budget, its parent, a caller."""

    reason: EndReason
    detail: str


class Steer(NamedTuple):
    """Messages that somebody outside puts in before the next query."""

    texts: tuple[str, ...]


class Interrupt(NamedTuple):
    """Somebody outside ends the episode between two turns; an entity that lasts waits for its next intent then."""

    detail: str


Event = Begin | Replied | Failed | Observed | Returned | Stopped | Steer | Interrupt


# What a loop wants done


class Ask(NamedTuple):
    """Query the crystal. Answer with Replied or Failed."""

    messages: Sequence[Message]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice | None


class Run(NamedTuple):
    """Run a gate's function with arguments that fit. Answer with Observed."""

    gate: Gate
    call: ToolCall
    args: Mapping[str, Any]


class Child(NamedTuple):
    """A child to cast: its cantrip, already carved (COMP-1), and what it is asked."""

    cantrip: Cantrip
    request: AgentRequest


class Spawn(NamedTuple):
    """Cast these children at once, below turn `turn_id`, and wait for all of them. Answer with Returned."""

    turn_id: str
    call: ToolCall
    children: tuple[Child, ...]
    started: Mapping[int, str] = {}  # nobody writes to it
    """After a crash: which of them, by their place in the request, were started before, and under which entity's id."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended. Exactly one of terminated, truncated and `error` holds (SPEC 1.2).

    `ward` names the ward that truncated it; `summary` says what was accomplished before (LOOP-4). `usage` is the
    entity's own over its life, `subtree_usage` with its children's.
    """

    result: Any
    reason: EndReason
    terminated: bool = False
    truncated: bool = False
    error: str | None = None
    ward: str | None = None
    summary: str | None = None
    usage: Usage = NO_USAGE
    subtree_usage: Usage = NO_USAGE
    last_turn: str | None = None


class Finish(NamedTuple):
    """The episode is over; what is left is to tell whoever waits for it."""

    outcome: Outcome


Action = Ask | Run | Spawn | Finish


class Step(NamedTuple):
    """What to append to the loom, in order, and then to do."""

    records: list[Record]
    action: Action


class State(NamedTuple):
    """Where an entity stands. A value: keep an old one and go on from it, and you have a fork."""

    phase: Phase
    context: Shared[Message | Fading]
    starts: Shared[tuple[int, int]]
    """Where each utterance begins in the context, and the number of its turn in the thread."""
    head: int = 0
    """How many messages at the front are pinned: system prompt, capability, intent."""
    intent_at: int = 0
    """Where the newest intent stands: pinned too, wherever it is."""
    folded: int = 0
    """How many utterances are folded away."""
    fading: tuple[int, ...] = ()
    """For each ephemeral result that still shows, the number of the query from which on it does no more."""
    faded: int = 0
    """How many have gone that way."""
    said: int = 0
    """Utterances in the thread, inherited ones included; also the number of the next query, from 0."""
    utterances: int = 0
    """Utterances since the last intent: what `max_turns` counts."""
    sequence: int = 0
    """Turns committed in the thread, inherited ones included."""
    inherited: int = 0
    """Turns of the thread that a fork began with: they are another entity's."""
    parent_id: str | None = None
    turn_id: str = ""
    """The id of the turn in the making, given before the crystal is asked."""
    utterance_id: str = ""
    usage: Usage = NO_USAGE
    below: Usage = NO_USAGE
    """What the children's subtrees used."""
    prompt_tokens: int = 0
    """Of the last query, which is what the window trigger of folding looks at."""
    spent: Ward | None = None
    calls: tuple[ToolCall, ...] = ()
    next_call: int = 0
    """Which call of the utterance is next, or running."""
    began: float = 0.0
    """When the turn in the making began."""
    mark: float = 0.0
    """When the last event came."""


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


# Intents


def _begun(plan: Plan, state: State, moment: Moment, event: Begin) -> tuple[State, Step]:
    at = moment.at
    records: list[Record] = [plan.header(at)] if state.phase is Phase.NEW else []
    state, intent = given(plan, state, event.intent, event.context, at)
    records.append(intent)
    state = state._replace(utterances=0, began=moment.now, mark=moment.now)
    if event.spent is not None:
        detail = f"{event.spent} was used up before"
        return _cut_off(plan, state, moment, records, "budget", event.spent.name, summarise(state, detail))
    return ask(plan, state, moment, records)


def given(plan: Plan, state: State, intent: object, data: Any, at: str) -> tuple[State, IntentGiven]:
    """The context with an intent in it, and the record of that (INTENT-2: after the system prompt, before all else)."""
    if not isinstance(intent, str) or not intent.strip():
        raise InvalidIntent(f"intent is required: expected a text that says what to achieve, got {intent!r}")
    messages: list[Message] = []
    if not len(state.context):
        messages += [Message("system", text) for text in (plan.cantrip.call.system_prompt, plan.capability) if text]
    intent_at = len(state.context) + len(messages)
    messages.append(Message("user", intent))
    if data is not None and plan.circle.medium == "tools":  # a code circle has it as a variable
        messages.append(Message("user", f"context:\n{as_text(data)}"))
    head = state.head or len(messages)
    context = state.context.extend(messages)
    return (
        state._replace(context=context, head=head, intent_at=intent_at),
        IntentGiven(plan.entity_id, intent, at, data),
    )


# Queries


def ask(plan: Plan, state: State, moment: Moment, records: list[Record]) -> tuple[State, Step]:
    """The next query, after folding what is due."""
    folding = plan.cantrip.folding
    unfolded = state.said - state.folded
    if folding.due(unfolded, state.prompt_tokens, plan.window):
        state = state._replace(folded=state.said - folding.remaining(unfolded), prompt_tokens=0)
        last = _last_folded(state)
        records.append(Folded(plan.entity_id, 1, last, _marker(last), moment.at))
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
    inserted = [Message("user", _marker(_last_folded(state)))]
    if state.head <= state.intent_at < cut:  # the newest intent stays in sight, with the data that came with it
        end = state.starts[state.said - state.utterances][0]
        inserted += [message for message in state.context[state.intent_at : end] if isinstance(message, Message)]
    return View(state.context, state.head, cut, tuple(inserted), state.said, state.faded)


def _last_folded(state: State) -> int:
    """The number of the last folded turn; a fold always leaves an utterance, so there is one after it."""
    return state.starts[state.folded][1] - 1


def _marker(last: int) -> str:
    return f"[folded: turns 1-{last}]"


# Utterances and their calls


def _replied(plan: Plan, state: State, moment: Moment, event: Replied) -> tuple[State, Step]:
    response = event.response.numbered(state.said + 1)
    said = Utterance(
        plan.entity_id,
        state.turn_id,
        response.content,
        response.tool_calls,
        response.usage,
        (moment.now - state.began) * 1e3,
        response.thinking,
        response.code,
        response.blocks,
        response.metadata,
    )
    message = spoken(said)
    state = state._replace(
        phase=Phase.ACTING,
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


def answered(
    plan: Plan, state: State, moment: Moment, records: list[Record], content: str | None
) -> tuple[State, Step]:
    """What follows an utterance: its calls, or what text alone means (D-004)."""
    if state.calls:
        return proceed(plan, state, moment, records)
    if plan.requires_done:
        state = state._replace(context=state.context.append(Message("user", NO_GATE)))
        return _commit_and_go_on(plan, state, moment, records)
    return terminate(plan, state, moment, records, content)


def _observed(plan: Plan, state: State, moment: Moment, event: Observed) -> tuple[State, Step]:
    asked = state.calls[state.next_call].id
    assert event.observation.tool_call_id == asked, f"tool result without matching tool call: expected {asked}"
    records: list[Record] = []
    return proceed(plan, note(plan, state, moment, records, event.observation), moment, records)


def _returned(plan: Plan, state: State, moment: Moment, event: Returned) -> tuple[State, Step]:
    call = state.calls[state.next_call]
    below = state.below
    for outcome in event.outcomes:
        below = below + outcome.usage
    state = state._replace(below=below, spent=event.spent or state.spent)
    records: list[Record] = []
    answer = _answer(plan.gates[call.gate], call, event.outcomes)
    return proceed(plan, note(plan, state, moment, records, answer), moment, records)


def _answer(gate: Gate, call: ToolCall, outcomes: tuple[ChildOutcome, ...]) -> Observation:
    """The children's outcomes as the observation of the call that asked for them (COMP-3, COMP-8)."""
    if gate.name == CALL_AGENT.name:
        (only,) = outcomes
        result = only.result if only.error is None else only.error
        return Observation(gate.name, None, result, only.error is not None, call.id, gate.ephemeral)
    results = [o.result if o.error is None else {"is_error": True, "error": o.error} for o in outcomes]
    failed = all(o.error is not None for o in outcomes)
    return Observation(gate.name, None, results, failed, call.id, gate.ephemeral)


def proceed(plan: Plan, state: State, moment: Moment, records: list[Record]) -> tuple[State, Step]:
    """Go on with the utterance from call `state.next_call`: to the next that has to be run, or to its end."""
    while state.next_call < len(state.calls):
        call = state.calls[state.next_call]
        gate = plan.gates.get(call.gate)
        if gate is None:
            state = note(plan, state, moment, records, refusal(call, plan.circle.unavailable(call.gate)))
            continue
        bound = gate.check(call)
        if isinstance(bound, Refused):
            state = note(plan, state, moment, records, refusal(call, bound.reason))
            continue
        if gate.kind == "function":
            if not gate.idempotent:
                records.append(GateStarted(plan.entity_id, state.turn_id, call.id, gate.name))
            if state.phase is not Phase.ACTING:
                state = state._replace(phase=Phase.ACTING)
            return state, Step(records, Run(gate, call, bound.args))
        if gate.kind == "done":
            answer = gate.answer(bound.args)
            state = note(plan, state, moment, records, Observation(gate.name, None, answer, False, call.id))
            skipped = unanswered(state.calls[state.next_call :], SKIPPED)
            return terminate(plan, state._replace(context=state.context.extend(skipped)), moment, records, answer)
        children = delegated(plan, gate, call)
        if isinstance(children, Refused):
            state = note(plan, state, moment, records, refusal(call, children.reason))
            continue
        spawning = state.turn_id
        state = _commit(plan, state, moment, records, Phase.WAITING)
        return state, Step(records, Spawn(spawning, call, children))
    return _commit_and_go_on(plan, state, moment, records)


def delegated(plan: Plan, gate: Gate, call: ToolCall) -> tuple[Child, ...] | Refused:
    """The children that a delegation asks for, all of them or none: one that may not be refuses the call (COMP-1)."""
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
        children.append(Child(child, request))
    return tuple(children)


def refusal(call: ToolCall, reason: str) -> Observation:
    return Observation(call.gate, None, reason, True, call.id)


def note(plan: Plan, state: State, moment: Moment, records: list[Record], seen: Observation) -> State:
    """The state after an observation of the call at `next_call` (CIRCLE-4: it is in the context of the next query)."""
    if seen.args is not None:  # the utterance's record holds them
        seen = Observation(seen.gate, None, seen.result, seen.is_error, seen.tool_call_id, seen.ephemeral)
    records.append(GateFinished(plan.entity_id, state.turn_id, seen, (moment.now - state.mark) * 1e3))
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
    return state._replace(context=state.context.append(shown), next_call=state.next_call + 1, mark=moment.now)


# Turns and their ends


def _commit(
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
    records.append(
        Committed(
            state.turn_id,
            plan.entity_id,
            state.parent_id,
            state.sequence - state.inherited + 1,
            state.utterance_id,
            moment.at,
            (moment.now - state.began) * 1e3,
            terminated,
            truncated,
            ward,
        )
    )
    return state._replace(
        phase=phase,
        parent_id=state.turn_id,
        turn_id=moment.fresh,
        sequence=state.sequence + 1,
        began=moment.now,
    )


def _commit_and_go_on(plan: Plan, state: State, moment: Moment, records: list[Record]) -> tuple[State, Step]:
    """The utterance is done with: commit its turn, and ask again unless a ward says that this was the last (LOOP-4)."""
    ward = state.spent
    if ward is None and plan.wards.max_turns is not None and state.utterances >= plan.wards.max_turns:
        ward = Ward("max_turns", plan.wards.max_turns)
    if ward is None:
        return ask(plan, _commit(plan, state, moment, records, Phase.ASKING), moment, records)
    state = _commit(plan, state, moment, records, state.phase, truncated=True, ward=str(ward))
    summary = summarise(state, f"truncated by {ward}")
    outcome = outcome_at(state, "truncated", truncated=True, ward=ward.name, summary=summary)
    # a budget is for life; turns count anew for each intent (reading 27)
    return finish(plan, state, moment, records, outcome, over=ward.name != "max_turns")


def terminate(plan: Plan, state: State, moment: Moment, records: list[Record], answer: Any) -> tuple[State, Step]:
    state = _commit(plan, state, moment, records, state.phase, terminated=True)
    outcome = outcome_at(state, "terminated", result=answer, terminated=True)
    return finish(plan, state, moment, records, outcome)


def _steered(plan: Plan, state: State, moment: Moment, event: Steer) -> tuple[State, Step]:
    at = moment.at
    records: list[Record] = [Steered(plan.entity_id, text, at) for text in event.texts]
    context = state.context.extend(Message("user", text) for text in event.texts)
    return ask(plan, state._replace(context=context), moment, records)


def _interrupted(plan: Plan, state: State, moment: Moment, event: Interrupt) -> tuple[State, Step]:
    summary = summarise(state, f"interrupted ({event.detail})")
    return finish(plan, state, moment, [], outcome_at(state, "interrupted", truncated=True, summary=summary))


def _failed(plan: Plan, state: State, moment: Moment, event: Failed) -> tuple[State, Step]:
    return finish(plan, state, moment, [], outcome_at(state, "failed", error=event.error))


def _stopped(plan: Plan, state: State, moment: Moment, event: Stopped) -> tuple[State, Step]:
    """End from outside. A turn in the making is committed as it stands, with a result for every call it made."""
    records: list[Record] = []
    ward = _WARD_OF.get(event.reason)
    summary = summarise(state, f"stopped ({event.detail})")
    if state.phase in (Phase.ACTING, Phase.WAITING):
        became = "outcome unknown"
        for call in state.calls[state.next_call :]:
            seen = refusal(call, f"{became}: the entity was stopped ({event.detail})")
            state = note(plan, state, moment, records, seen)
            became = "not run"
        state = _commit(plan, state, moment, records, state.phase, truncated=True, ward=ward)
    return _cut_off(plan, state, moment, records, event.reason, ward, summary)


_WARD_OF: Mapping[EndReason, str] = {"timeout": "timeout", "budget": "budget"}


def _cut_off(
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
    last = state.parent_id if state.sequence > state.inherited else None
    return Outcome(
        result, reason, terminated, truncated, error, ward, summary, state.usage, state.usage + state.below, last
    )


def summarise(state: State, how: str) -> str:
    """What was accomplished before the entity was cut off (LOOP-4): turns, gates that answered, the last words."""
    ran: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    words = None
    for item in state.context:
        message = item.message if isinstance(item, Fading) else item
        if message.role == "tool" and message.gate is not None:
            if message.content not in _NOT_RUN:
                (failed if message.is_error else ran)[message.gate] += 1
        elif message.role == "assistant" and message.content:
            words = message.content
    parts = [f"{how} after {state.said} {'turn' if state.said == 1 else 'turns'}"]
    for title, counted in (("gates run", ran), ("gates failed", failed)):
        if counted:
            parts.append(f"{title}: " + ", ".join(f"{name} x{n}" if n > 1 else name for name, n in counted.items()))
    if words is not None:
        parts.append(f"last words: {words if len(words) <= 200 else words[:199] + '…'}")
    return "; ".join(parts)


_NOT_RUN = (SKIPPED, LEFT_OUT)

Handler = Callable[[Plan, State, Moment, Any], tuple[State, Step]]

_HANDLERS: dict[tuple[Phase, type], Handler] = {
    (Phase.NEW, Begin): _begun,
    (Phase.IDLE, Begin): _begun,
    (Phase.ASKING, Replied): _replied,
    (Phase.ASKING, Failed): _failed,
    (Phase.ASKING, Steer): _steered,
    (Phase.ASKING, Interrupt): _interrupted,
    (Phase.ACTING, Observed): _observed,
    (Phase.WAITING, Returned): _returned,
    **{(phase, Stopped): _stopped for phase in (Phase.ASKING, Phase.ACTING, Phase.WAITING, Phase.IDLE)},
}
