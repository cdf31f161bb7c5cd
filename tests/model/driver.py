"""Drives the pure loop: scripted replies, gates that are functions, children that are outcomes, a clock of ticks.

Everything that happened stays readable: the records in order, what each query showed, each transition.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from cantrip_actors.model.cantrip import Cantrip
from cantrip_actors.model.circle import Circle
from cantrip_actors.model.gate import gate
from cantrip_actors.model.loop import (
    Action,
    Answer,
    Ask,
    Begin,
    Child,
    ChildOutcome,
    Compute,
    Event,
    Finish,
    Moment,
    Observed,
    Outcome,
    Phase,
    Plan,
    Remember,
    Remembered,
    Replied,
    Returned,
    Run,
    Spawn,
    State,
    advance,
    begin,
)
from cantrip_actors.model.messages import NO_USAGE, Message, Response, ToolCall, Usage, as_text
from cantrip_actors.model.recovery import replay
from cantrip_actors.model.turn import Committed, Observation, Record, Turn, turns_of
from cantrip_actors.model.ward import Ward, max_turns
from cantrip_actors.model.wrapping import GateCall

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


GATES = ("done", echo, fail, page, glance, look, "call_agent", "call_agent_batch")


def cantrip(*wards: Ward, gates: Iterable[Any] = GATES, **parts: Any) -> Cantrip:
    """A valid cantrip with these wards, or else with max_turns(20)."""
    return Cantrip("test:model", circle=Circle(gates=gates, wards=wards or (max_turns(20),)), **parts)


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


class Transition(NamedTuple):
    """One step of the loop, seen from outside."""

    before: State
    event: Event
    after: State
    records: list[Record]
    action: Action


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
        **plan: Any,
    ) -> None:
        self.plan = Plan.of(made, entity_id, **plan)
        self.ticks = ticks or moments()
        first = next(self.ticks)
        self.state = begin(self.plan, first) if lineage is None else replay(self.plan, lineage, first)
        self.replies = list(replies)
        self.children = children
        self.transitions: list[Transition] = []
        self.records: list[Record] = []
        self.queries: list[list[Message]] = []
        self.asks: list[Ask] = []
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.spawned: list[Spawn] = []
        self.going: list[list[Message]] = []
        self.cost, self.spent = NO_USAGE, None

    def feed(self, event: Event) -> Action:
        """One step."""
        before = self.state
        self.state, (records, action) = advance(self.plan, before, next(self.ticks), event)
        self.records += records
        self.transitions.append(Transition(before, event, self.state, records, action))
        if isinstance(action, Ask):
            self.asks.append(action)
            self.queries.append(list(action.messages))
        return action

    def event_for(self, action: Ask | Remember | Run | Compute | Answer | Spawn) -> Event:
        """What comes of an action. A program does what `replies` say it does."""
        if isinstance(action, Compute | Answer):
            return self.replies.pop(0)
        if isinstance(action, Ask):
            reply = self.replies.pop(0)
            return Replied(reply) if isinstance(reply, Response) else reply
        if isinstance(action, Remember):
            self.going.append(list(action.messages))
            return Remembered(f"kept of {len(action.messages)}", self.cost, self.spent)
        if isinstance(action, Spawn):
            self.spawned.append(action)
            return Returned(tuple(self.children(child) for child in action.children))
        return Observed(self.run_gate(action))

    def run_gate(self, action: Run) -> Observation:
        """Run a gate's function as a circle would: what it raises is an observation.

        Of what is wrapped only the first step before is asked, and it refuses by a Refused.
        """
        gate, call = action.gate, action.call
        self.ran.append((gate.name, dict(action.args)))
        if gate.wrappers and gate.kind != "function":
            if action.seen is not None:
                return replace(action.seen, result=f"{action.seen.result}, looked at")
            refused = gate.wrappers[0].pre[0](GateCall(gate.name, action.args, "e1", action.turn_id, call.id))
            return Observation(gate.name, None, refused and refused.reason, refused is not None, call.id)
        try:
            result, failed = action.gate(**action.args), False
        except RuntimeError as error:
            result, failed = str(error), True
        return Observation(action.gate.name, action.call.args, result, failed, action.call.id, action.gate.ephemeral)

    def go(self, event: Event | str = "go", *, upto: type | None = None) -> Outcome:
        """From an event (a text is an intent) to the end of the episode; or, with `upto`, to the first such action."""
        action = self.feed(Begin(event) if isinstance(event, str) else event)
        while not isinstance(action, upto or Finish):
            assert not isinstance(action, Finish), f"over before: {action.outcome}"
            action = self.feed(self.event_for(action))
        return action.outcome if isinstance(action, Finish) else action

    @property
    def turns(self) -> list[Turn]:
        """The committed turns."""
        return list(turns_of(self.records))

    @property
    def context(self) -> list[Message]:
        """The whole context, as if nothing faded."""
        return [getattr(item, "message", item) for item in self.state.context]

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
