"""What the loop is about, as values: the plan, the events, the actions, and where an entity stands.

There is no decision here; those are in `loop.py`, which says how all of this works together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from cantrip_actors.model.cantrip import Cantrip, crystal_name
from cantrip_actors.model.circle import Circle
from cantrip_actors.model.context import Fading, Shared
from cantrip_actors.model.gate import AgentRequest, Gate
from cantrip_actors.model.image import NO_IMAGES, Image
from cantrip_actors.model.messages import NO_USAGE, Message, Response, ToolCall, ToolChoice, ToolDefinition, Usage
from cantrip_actors.model.snapshot import Snapshot
from cantrip_actors.model.turn import EndReason, Header, Observation, Record
from cantrip_actors.model.ward import Ward, Wards


class Phase(Enum):
    """Where an entity stands; see the table at the head of `loop.py`."""

    NEW = "new"
    ASKING = "asking"
    COMPUTING = "computing"
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
        tools = cantrip.circle.medium == "tools"  # else the gates are functions, and the capability text shows them
        return cls(
            entity_id=entity_id,
            cantrip=cantrip,
            gates=cantrip.circle.open_gates,
            tools=cantrip.circle.definitions if tools else (),
            tool_choice=cantrip.call.tool_choice if tools else None,
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
    def remembers(self) -> bool:
        """Whether somebody says what to keep in sight of turns that are folded."""
        return self.cantrip.folding.summary is not False or self.cantrip.circle.companion is not None

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


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    """That second of the epoch, ISO 8601 in UTC: a clock is asked many times in each."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Moment(NamedTuple):
    """When an event happened, and an id that nobody has yet, for the turn that may begin with it.

    `now` is a monotonic clock and `wall` the time since the epoch, both in seconds.
    """

    now: float
    wall: float
    fresh: str

    def since(self, mark: float) -> float:
        """Milliseconds since a `now`, to the microsecond: what is finer is noise that every log would keep."""
        return round((self.now - mark) * 1e3, 3)

    @property
    def at(self) -> str:
        """The time of day, ISO 8601 in UTC, to the millisecond."""
        seconds, rest = divmod(round(self.wall * 1e6), 1_000_000)
        return f"{_second(seconds)}.{rest // 1000:03d}Z"


# What happens to a loop


class Begin(NamedTuple):
    """An intent, and data for it. `spent` names a budget that is used up already."""

    intent: str
    context: Any = None
    spent: Ward | None = None
    images: tuple[Image, ...] = NO_IMAGES


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
    images: tuple[Image, ...] = NO_IMAGES
    """Those whose handles stand in the answer."""


class Returned(NamedTuple):
    """The children of one call have ended: an outcome each, in the order of the request (COMP-3)."""

    outcomes: tuple[ChildOutcome, ...]
    spent: Ward | None = None


class Remembered(NamedTuple):
    """What is to be kept in sight of the turns that are about to be folded; None: nothing but that there were some."""

    text: str | None = None
    usage: Usage = NO_USAGE
    spent: Ward | None = None


class Stopped(NamedTuple):
    """Something outside ends the entity: its deadline, a budget, its parent, a caller.

    `below` is what its children's subtrees have used, those that it waited for included; None: nothing new.
    """

    reason: EndReason
    detail: str
    below: Usage | None = None


class Called(NamedTuple):
    """The program of a code circle calls a gate and waits, having printed `output` since it was last heard of.

    `snapshot` is the program as it waits, where that is worth keeping.
    """

    gate: str
    args: Mapping[str, Any] | None
    output: str = ""
    snapshot: Snapshot | None = None


class Computed(NamedTuple):
    """The program has ended: with a value, with an error of its own, or over a limit, which undid the turn's work.

    `snapshot` is the sandbox as it is now, where that is worth keeping.
    """

    value: Any = None
    output: str = ""
    error: str | None = None
    limit: str | None = None
    snapshot: Snapshot | None = None


class Steer(NamedTuple):
    """Messages that somebody outside puts in before the next query."""

    texts: tuple[str, ...]
    images: tuple[tuple[Image, ...], ...] = ()
    """Of each of them; empty where none has any."""


class Interrupt(NamedTuple):
    """Somebody outside ends the episode between two turns; an entity that lasts waits for its next intent then."""

    detail: str


Event = Begin | Replied | Failed | Remembered | Observed | Returned | Called | Computed | Stopped | Steer | Interrupt


# What a loop wants done


class Ask(NamedTuple):
    """Query the crystal. Answer with Replied or Failed."""

    messages: Sequence[Message]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice | None


class Remember(NamedTuple):
    """Turns up to `last` are to be folded: say what to keep of their `messages`. Answer with Remembered."""

    messages: Sequence[Message]
    last: int


class Run(NamedTuple):
    """Run a gate's function with arguments that fit, in turn `turn_id`. Answer with Observed.

    Of a wrapped gate that the loop or the runtime carries out itself, `done` and the delegations, only the steps around
    it: those before, whose refusal is an error; or, where `seen` is what the children came to, those after.
    """

    gate: Gate
    call: ToolCall
    args: Mapping[str, Any]
    turn_id: str
    seen: Observation | None = None


class Answer(NamedTuple):
    """What a gate call of a program came to; `closed` when `done` was called: it runs to its end without gates."""

    value: Any
    is_error: bool = False
    closed: bool = False


class Program(NamedTuple):
    """A program that was run, with the answers that its gate calls got: enough to run it again to the same state.

    `undone` where it exceeded a limit, so that nothing of it is in the sandbox.
    """

    code: str
    variables: Mapping[str, Any] | None
    answers: tuple[Answer, ...] = ()
    undone: bool = False


class Left(NamedTuple):
    """What so many programs of a sandbox, or answers of a program, left behind."""

    after: int
    snapshot: Snapshot


class Compute(NamedTuple):
    """Run a program in the circle's sandbox. Answer with Called or Computed.

    `before` are the programs that made the sandbox what it is, for one that has to be made again, and `images` the
    sandbox after some of them. Where `answers` are given the program is run again up to the first call that they do not
    answer; or it goes on from `midway`, which is itself, waiting, after so many of them.
    """

    code: str
    variables: Mapping[str, Any] | None
    before: Sequence[Program]
    answers: tuple[Answer, ...] = ()
    images: Sequence[Left] = ()
    midway: Left | None = None


class Child(NamedTuple):
    """A child to cast: its cantrip, already carved (COMP-1), and what it is asked."""

    cantrip: Cantrip
    request: AgentRequest
    images: tuple[Image, ...] = NO_IMAGES
    """Those of its parent's that the request names."""


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
    images: tuple[Image, ...] = NO_IMAGES
    """Those whose handles stand in the result."""


class Finish(NamedTuple):
    """The episode is over; what is left is to tell whoever waits for it."""

    outcome: Outcome


Action = Ask | Remember | Run | Compute | Answer | Spawn | Finish


class Step(NamedTuple):
    """What to append to the loom, in order, and then to do."""

    records: list[Record]
    action: Action


class Pending(NamedTuple):
    """A program's gate call that a crash cut short: whether it had started, and which children it had."""

    call_id: str
    children: Mapping[int, str] | None = None


NOTHING_RUN: Shared[Program] = Shared()
NOTHING_LEFT: Shared[Left] = Shared()
NOTHING_SEEN: Shared[Image] = Shared()


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
    marker: str = ""
    """What is shown in their place."""
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
    around: Literal["", "before", "after"] = ""
    """Of a wrapped `done` or delegation at `next_call`: which of the steps around it run, or were passed last."""
    coded: bool = False
    """Whether the last utterance was a program."""
    program: Program | None = None
    """The program that runs, in a code circle, with the answers that it got so far."""
    programs: Shared[Program] = NOTHING_RUN
    """Those that ran before it."""
    images: Shared[Left] = NOTHING_LEFT
    """What some of them left behind."""
    pictures: Shared[Image] = NOTHING_SEEN
    """What the entity was given to see: it may show or pass on each of them by its handle."""
    snapshot: Snapshot | None = None
    """Of the sandbox, for the next record that is to refer to it."""
    output: str = ""
    """What the program has printed so far."""
    data: Any = None
    """The intent's context, until a program that is not undone has got it as a variable."""
    finished: Observation | None = None
    """The observation of `done`, while the program runs to its end."""
    pending: Pending | None = None
    """After a crash: the call that was under way."""
    began: float = 0.0
    """When the turn in the making began."""
    mark: float = 0.0
    """When the last event came."""


_AT = {name: at for at, name in enumerate(State._fields)}


def _replaced(self: State, /, **changed: Any) -> State:
    """`_replace`, which a turn calls a handful of times, at a third of what it takes for so many fields."""
    parts = list(self)
    for name, value in changed.items():
        parts[_AT[name]] = value
    return tuple.__new__(State, parts)


State._replace = _replaced  # type: ignore[assignment, method-assign]  # the checker goes by the first
