"""Drives the pure loop: scripted replies, gates that are functions, children that are outcomes, a clock of ticks.

Everything that happened stays readable: the records in order, what each query showed, each transition.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple

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
from cantrip_actors.machine.budget import Budget, Ledger, Level
from cantrip_actors.machine.events import (
    Begin,
    ChildOutcome,
    Decide,
    Elapsed,
    Event,
    Inquired,
    Interrupt,
    Moment,
    Observed,
    Questioned,
    Remembered,
    Replied,
    Returned,
    Stopped,
)
from cantrip_actors.machine.evolve import fold
from cantrip_actors.machine.loop import advance, resume
from cantrip_actors.machine.project import make_fork_state, read_turns, sum_usage
from cantrip_actors.machine.state import Conversation, Episode, Identity, Phase, Plan, Sandbox, State, Transient
from cantrip_actors.machine.state import Turn as TurnInMaking
from cantrip_actors.records.records import Committed, Header, IntentGiven, Observation, Record, Requested, Steered
from cantrip_actors.records.turn import Turn
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.context import Shared
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.messages import NO_USAGE, Message, Response, ToolCall, Usage, as_text
from cantrip_actors.terms.ward import Ward, Wards, max_turns
from cantrip_actors.terms.wrapping import GateCall, ask_first

USAGE = Usage(10, 5, 2, 0.25)


@gate
def echo(text: str) -> str:
    """Say it again."""
    return text


@gate
def fail() -> None:
    """Raise."""
    raise RuntimeError("something went wrong")


@gate(ephemeral=True)
def page(path: str) -> str:
    """Read something large."""
    return f"the whole of {path}"


@gate(ephemeral=True, visible_for=1)
def glance(path: str) -> str:
    """Read something that shows for one query."""
    return f"a look at {path}"


@gate(idempotent=True)
def look() -> str:
    """Look, as often as you like."""
    return "seen"


@gate
def pay(amount: int) -> str:
    """Pay; a person decides about large amounts."""
    return f"paid {amount}"


@gate(idempotent=True)
def sign(by: str) -> str:
    """Sign, as often as you like, if a person agrees."""
    return f"signed {by}"


@gate
def book(day: str) -> str:
    """Book; asks a person how many seats, then in which row."""
    return f"booked {day}"


@gate(idempotent=True)
def find(day: str) -> str:
    """Find, as often as you like; asks a person like `book`."""
    return f"found {day}"


INQUIRING = (book, find)
ASKING = (ask_first(pay, when=lambda args: args["amount"] > 10 and "much"), ask_first(sign), "question")
GATES = ("done", echo, fail, page, glance, look, "call_agent", "call_agent_batch")


INQUIRIES = ("How many seats?", "In which row?")


def cantrip(*wards: Ward, gates: Iterable[Any] = GATES, **parts: Any) -> Cantrip:
    """A valid cantrip with these wards, or else with max_turns(20)."""
    return Cantrip("local:model", circle=Circle(gates=gates, wards=wards or (max_turns(20),)), **parts)


def call(name: str, **args: Any) -> ToolCall:
    """A call without an id: the loop gives it one."""
    return ToolCall("", name, args)


def done(answer: Any = "ok") -> ToolCall:
    """A call of `done`."""
    return call("done", answer=answer)


def say(*parts: str | ToolCall, usage: Usage = USAGE) -> Response:
    """An utterance: its texts and its calls."""
    texts = [part for part in parts if isinstance(part, str)]
    calls = tuple(part for part in parts if isinstance(part, ToolCall))
    return Response("\n".join(texts) or None, calls, usage)


def moments() -> Iterator[Moment]:
    """A tick of half a second for each step, and ids t1, t2, …"""
    n = 0
    while True:
        n += 1
        yield Moment(n / 2, 1_700_000_000 + n / 2, f"t{n}")


def answer(child: Child) -> ChildOutcome:
    """What a child comes to where a test does not care: its intent, in capitals."""
    return ChildOutcome(child.request.intent.upper(), None, Usage(3, 1))


SPENT = Budget((Level(Wards(max_tokens=7), Usage(7)),))
"""A budget that is used up."""


DECISIONS = (
    Decide("allow", "anna"),
    Decide("deny", "anna", "not today"),
    Decide("allow", "anna", args={"amount": 11}),
    Decide("expired"),
    Decide("deny", "anna", remember=True),
    Decide("allow", remember=True, key="k1", sender="anna"),
)


class Loop:
    """A loop in the hands of a test: begun, forked from a lineage, or resumed from a log."""

    def __init__(self, plan: Plan, moment: Moment, state: State | None = None) -> None:
        self.plan = plan
        self.state = State(plan.parent_turn) if state is None else state
        self.live = Transient(moment.fresh, moment.now, moment.now)

    @classmethod
    def fork(cls, plan: Plan, lineage: Iterable[Record], moment: Moment) -> "Loop":
        """A fork of a lineage."""
        return cls(plan, moment, make_fork_state(plan.shape, lineage))

    @classmethod
    def again(
        cls, plan: Plan, log: Iterable[Record], first: Moment, moment: Moment, begun: State | None = None
    ) -> "tuple[Loop, Step | None]":
        """A loop after a restart, and what it does first; `begun` is what a fork began with."""
        loop = cls(plan, first, fold(plan.shape, log, None if begun is None else begun.copy()))
        return loop, resume(plan, loop.state, loop.live, moment)

    def advance(self, moment: Moment, event: Event) -> Step:
        """One step."""
        return advance(self.plan, self.state, self.live, moment, event)

    @property
    def turn_id(self) -> str:
        """The id of the turn in the making."""
        return self.state.turn.id or self.live.fresh


def fields_of(value: Any) -> Any:
    """A state as plain data, to be compared."""
    if isinstance(value, State | Conversation | Episode | TurnInMaking | Sandbox):
        return {name: fields_of(getattr(value, name)) for name in value.__struct_fields__}
    return list(value) if isinstance(value, Shared) else value


class Transition(NamedTuple):
    """One step of the loop, seen from outside."""

    before: State
    event: Event
    after: State
    records: list[Record]
    action: Action
    turn_id: str


class Drive:
    """One entity, driven.

    `replies` are responses, or events to feed in their place. With a `lineage` it is a fork of that.
    """

    def __init__(
        self,
        made: Cantrip,
        *replies: Response | Event,
        children: Callable[[Child], ChildOutcome] = answer,
        entity_id: str = "e1",
        ticks: Iterator[Moment] | None = None,
        lineage: Iterable[Record] | None = None,
        window: int | None = None,
        capability: str | None = None,
        **facts: Any,
    ) -> None:
        self.plan = Plan.of(made, Identity(entity_id, **facts), window=window, capability=capability)
        self.ticks = ticks or moments()
        first = next(self.ticks)
        self.loop = Loop(self.plan, first) if lineage is None else Loop.fork(self.plan, lineage, first)
        self.replies = list(replies)
        self.children = children
        self.transitions: list[Transition] = []
        self.records: list[Record] = []
        self.queries: list[list[Message]] = []
        self.asks: list[Ask] = []
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.spawned: list[Spawn] = []
        self.going: list[list[Message]] = []
        self.cost = NO_USAGE
        self.ledger = Ledger(self.plan.wards)
        self.day = 0
        self.spent: Budget | None = None
        self.spends_on_summary = False
        self.decisions = cycle(DECISIONS)
        self.begun = self.state.copy()

    @property
    def state(self) -> State:
        """The current state of the loop."""
        return self.loop.state

    def feed(self, event: Event) -> Action:
        """One step."""
        before, passed = self.state.copy(), self.loop.live.wrapping
        for outcome in event.outcomes if isinstance(event, Returned) else ():
            self.ledger.below += outcome.usage
        moment = replace(next(self.ticks), budget=self.spent or self.ledger.make_budget(lambda: self.day * 86_400.0))
        step = self.loop.advance(moment, event)
        records, action = step.records, step.action
        self.ledger.add(sum_usage(records))
        self.records += records
        if len(self.records) < 60:
            self.check_fold()
            if not passed and not isinstance(event, Stopped | Interrupt):
                self.check_cuts(records, action, moment)
        turn_id = self.loop.turn_id
        self.transitions.append(Transition(before, event, self.state.copy(), records, action, turn_id))
        if isinstance(action, Ask):
            self.asks.append(action)
            self.queries.append(list(action.messages))
        return action

    def check_fold(self) -> None:
        """C-01: the live state is the fold of the records."""
        assert fields_of(fold(self.plan.shape, self.records, self.begun.copy())) == fields_of(self.state)

    def check_cuts(self, records: list[Record], action: Action, moment: Moment) -> None:
        """C-02: the log, cut before any record that was due, leads to the same rest and the same action."""
        before = self.records[: len(self.records) - len(records)]
        given = sum(isinstance(record, Header | IntentGiven | Steered) for record in records)
        for cut in range(max(1, given), len(records) + 1):
            again, step = Loop.again(self.plan, [*before, *records[:cut]], moment, moment, self.begun)
            if step is None:
                assert cut == len(records)
                assert isinstance(action, Finish)
            elif again.state.turn.program is None and not isinstance(action, Run | Compute):
                assert [type(record) for record in step.records] == [type(record) for record in records[cut:]]
                due = step.action
                if isinstance(action, Consult) and isinstance(due, Consult) and again.state.phase is Phase.ASKING:
                    due = Consult(replace(due.request, turn_id=action.request.turn_id))  # of a turn that has no record
                assert due == action

    def event_for(self, action: Action) -> Event:  # noqa: PLR0911  # one for each kind of action
        """Return the event of an action. A program behaves as `replies` say."""
        if isinstance(action, Compute | Answer):
            return self.replies.pop(0)
        if isinstance(action, Ask | Collect):
            reply = self.replies.pop(0)
            return Replied(reply) if isinstance(reply, Response) else reply
        if isinstance(action, Consult):
            return self.decide(action.request)
        if isinstance(action, Pause):
            self.day += 1
            return Elapsed()
        if isinstance(action, Contact) and action.gate.name == "ask":
            return Questioned(action.args["to"], "a key")
        if isinstance(action, Contact | Await):
            return Observed(Observation(action.call.gate, None, "well received", False, action.call.id))
        if isinstance(action, Remember):
            self.going.append(list(action.messages))
            if self.spends_on_summary:
                self.spent = SPENT
            return Remembered(f"kept of {len(action.messages)}", self.cost)
        if isinstance(action, Spawn):
            self.spawned.append(action)
            return Returned(tuple(self.children(child) for child in action.children))
        return self.inquire(action) or Observed(self.run_gate(action))

    def inquire(self, action: Run) -> Inquired | None:
        """Return what a gate of `INQUIRING` asks a person before it answers."""
        asked = 0 if action.inquired is None else action.inquired.state["asked"]
        if action.inquired is not None:
            assert action.inquired[::2] == (asked, "answer")
        if action.gate not in INQUIRING or asked == len(INQUIRIES):
            return None
        self.ran.append((action.gate.name, dict(action.args)))
        return Inquired(INQUIRIES[asked], {"type": "object"}, {"asked": asked + 1})

    def run_gate(self, action: Run) -> Observation:
        """Run a gate's function as a circle would: an exception becomes an observation.

        Of what is wrapped only the first step before is asked, and it refuses by a Refused.
        """
        gate, call = action.gate, action.call
        self.ran.append((gate.name, dict(action.args)))
        if action.seen is not None:
            return replace(action.seen, result=f"{action.seen.result}, looked at")
        if action.checks:
            steps = gate.wrappers[0].pre
            site = GateCall(gate.name, action.args, "e1", action.turn_id, call.id)
            refused = steps[0](site) if steps else None
            ask = gate.ask_first
            why = (ask.when(action.args) or None) if ask is not None and ask.when is not None else None
            return Observation(gate.name, None, refused.reason if refused else why, refused is not None, call.id)
        try:
            result, failed = action.gate(**action.args), False
        except RuntimeError as error:
            result, failed = str(error), True
        return Observation(action.gate.name, action.call.args, result, failed, action.call.id, action.gate.ephemeral)

    def decide(self, request: Requested) -> Decide:
        """Decide as a person would: as `replies` say, or in turn in each way that there is."""
        if self.replies and isinstance(self.replies[0], Decide):
            return self.replies.pop(0)
        if request.gate == "max_tokens":
            return Decide("answer", "anna", answer=1)
        if request.question is not None:
            return Decide("answer", "anna", answer={"city": "Oslo"})
        return next(self.decisions)

    def move(self, made: Cantrip) -> None:
        """Move an idle entity to another cantrip: it is loaded anew with that one, and the move is recorded."""
        identity = Identity(self.plan.entity_id, lasting=True)
        self.plan = Plan.of(made, identity, window=self.plan.window, capability="capability")
        self.loop, step = Loop.again(self.plan, self.records, next(self.ticks), next(self.ticks), self.begun)
        assert step is None, "an idle entity waits"
        self.records.append(self.plan.make_adopted(self.state, "2026-11-23T12:00:00Z"))
        fold(self.plan.shape, self.records[-1:], self.state)
        self.check_fold()

    def restart(self) -> Action | None:
        """Forget everything except the records, as a crash does; return the first step, which is not a transition."""
        self.loop, step = Loop.again(self.plan, self.records, next(self.ticks), next(self.ticks))
        if step is None:
            return None
        self.records += step.records
        return step.action

    def go(self, event: Event | str = "go", *, upto: type | None = None) -> Any:
        """From an event (a text is an intent) to the end of the episode; or, with `upto`, to the first such action."""
        return self.carry_on(self.feed(Begin(event) if isinstance(event, str) else event), upto=upto)

    def carry_on(self, action: Action | None, *, upto: type | None = None) -> Any:
        """From an action to the end of the episode; or, with `upto`, to the first such action."""
        assert action is not None
        while not isinstance(action, upto or Finish):
            assert not isinstance(action, Finish), f"over before: {action.outcome}"
            action = self.feed(self.event_for(action))
        return action.outcome if isinstance(action, Finish) else action

    @property
    def turns(self) -> list[Turn]:
        """The committed turns."""
        return list(read_turns(self.records))

    @property
    def context(self) -> list[Message]:
        """The whole context, as if nothing faded."""
        return [getattr(item, "message", item) for item in self.state.conversation.context]

    @property
    def phases(self) -> list[Phase]:
        """The phases it went through."""
        return [step.after.phase for step in self.transitions]

    def committed(self) -> list[Committed]:
        """The records that end turns."""
        return [record for record in self.records if isinstance(record, Committed)]


def texts(messages: Iterable[Message]) -> list[str]:
    """Messages in short: `user go`, `assistant echo(…)`, `tool hi`."""
    shown = []
    for message in messages:
        calls = " ".join(f"{one.gate}({as_text(one.args)})" for one in message.tool_calls)
        shown.append(" ".join(part for part in (message.role, message.content, calls) if part))
    return shown
