"""What is remembered: the records of the loom's log, and the turns that users see of them (SPEC 6).

The log of an entity is a sequence of small records. A record never repeats what an earlier one of the same turn holds,
so a turn is assembled from its utterance, its gates and its `Committed` record (`turns_of`); an utterance without a
`Committed` is a turn that a crash cut short. Nothing is ever changed: a reward is a record of its own (LOOM-3), how an
entity ended between turns is an `Ended` record.

One utterance may be several turns. Where a child ran, the part before it is one turn and the rest a continuation of the
same utterance (LOOM-8); only the first of them has the utterance's usage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cantrip_actors.model.image import NO_IMAGES, Image
from cantrip_actors.model.messages import NO_USAGE, Message, ToolCall, Usage, as_text
from cantrip_actors.model.snapshot import Snapshot
from cantrip_actors.model.swift import swift

__all__ = [
    "ChildStarted",
    "Committed",
    "Ended",
    "Folded",
    "GateFinished",
    "GateStarted",
    "Header",
    "IntentGiven",
    "Observation",
    "Record",
    "Rewarded",
    "Steered",
    "Turn",
    "TurnMetadata",
    "Utterance",
    "ends_entity",
    "is_over",
    "turns_of",
]

EndReason = Literal[
    "terminated",
    "truncated",
    "failed",
    "crashed",
    "cancelled",
    "parent_ended",
    "timeout",
    "budget",
    "interrupted",
    "abandoned",
]


@swift
@dataclass(frozen=True, slots=True)
class Observation:
    """What the circle answered to one gate call, in the canonical shape (D-005).

    `result` is a JSON value, with an image's handle where the gate gave one of `images`. `ephemeral` results are shown
    to the crystal for `visible_for` queries, then as a placeholder.
    """

    gate: str
    args: Mapping[str, Any] | None
    result: Any
    is_error: bool = False
    tool_call_id: str | None = None
    ephemeral: bool = False
    images: tuple[Image, ...] = NO_IMAGES

    @property
    def content(self) -> str:
        """The result as text, as the crystal reads it."""
        return as_text(self.result)


@dataclass(frozen=True, slots=True)
class Header:
    """An entity begins: which cantrip, under which call (CALL-4), below whom. The root context of its thread.

    A `lasting` entity takes further intents and is over only when it is stopped, or a budget of its life is used up.

    `parent_turn` is the turn that the entity's first turn hangs from: the spawning turn of a child (`parent_entity` is
    then its parent), or the turn that a fork goes on from (`forked`).
    """

    entity_id: str
    cantrip_id: str
    at: str
    call: Mapping[str, Any]
    circle: Mapping[str, Any]
    crystal: str
    parent_entity: str | None = None
    parent_turn: str | None = None
    forked: bool = False
    depth: int = 0
    name: str | None = None
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class IntentGiven:
    """An intent: the first is the entity's for life (INTENT-3), later ones come with `send` or a fork."""

    entity_id: str
    intent: str
    at: str
    context: Any = None
    images: tuple[Image, ...] = NO_IMAGES
    """Those of the intent, then those that stand in `context` by their handles."""


@dataclass(frozen=True, slots=True)
class Steered:
    """A message that somebody outside put in between two turns."""

    entity_id: str
    text: str
    at: str
    images: tuple[Image, ...] = NO_IMAGES


@swift
@dataclass(frozen=True, slots=True)
class Utterance:
    """What the crystal said, written before anything is done about it: a crash does not pay for it twice."""

    entity_id: str
    turn_id: str
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    usage: Usage
    duration_ms: float
    thinking: str | None = None
    code: str | None = None
    blocks: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


@swift
@dataclass(frozen=True, slots=True)
class GateStarted:
    """A gate is about to run; `args` only where the utterance does not hold them (code circles).

    `snapshot` is the program that waits for it, in the middle of its call.
    """

    entity_id: str
    turn_id: str
    tool_call_id: str
    gate: str
    args: Mapping[str, Any] | None = None
    snapshot: Snapshot | None = None


@swift
@dataclass(frozen=True, slots=True)
class GateFinished:
    """A gate's observation, written before the next gate starts or the turn is committed."""

    entity_id: str
    turn_id: str
    observation: Observation
    duration_ms: float = 0.0


@swift
@dataclass(frozen=True, slots=True)
class Committed:
    """A turn is complete (LOOM-1).

    `utterance_id` is the turn that holds the utterance: the same id but for continuations.

    `duration_ms` is wall clock from the query (or, for a continuation, from the seam) to here.

    `snapshot` is the sandbox of a code circle as this turn left it.
    """

    turn_id: str
    entity_id: str
    parent_id: str | None
    sequence: int
    utterance_id: str
    at: str
    duration_ms: float
    terminated: bool = False
    truncated: bool = False
    ward: str | None = None
    snapshot: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A child is about to run, below turn `turn_id` (COMP-5, LOOM-8)."""

    entity_id: str
    turn_id: str
    tool_call_id: str
    child_id: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class Folded:
    """From here on the working context shows turns `first` … `last` as `marker` (LOOM-5).

    `usage` is what the summary in the marker cost, where a crystal wrote one.
    """

    entity_id: str
    first: int
    last: int
    marker: str
    at: str
    usage: Usage = NO_USAGE


@dataclass(frozen=True, slots=True)
class Rewarded:
    """A reward for a turn; the latest counts (LOOM-3)."""

    entity_id: str
    turn_id: str
    reward: float
    at: str


@dataclass(frozen=True, slots=True)
class Ended:
    """An entity, or one episode of it, is over. `reason` says how; `detail` what a person wants to know about it."""

    entity_id: str
    reason: EndReason
    at: str
    detail: str | None = None
    result: Any = None


Record = (
    Header
    | IntentGiven
    | Steered
    | Utterance
    | GateStarted
    | GateFinished
    | Committed
    | ChildStarted
    | Folded
    | Rewarded
    | Ended
)


@dataclass(frozen=True, slots=True)
class TurnMetadata:
    """Tokens, wall clock and time of a turn (LOOM-9). A continuation has no tokens: its utterance was paid for."""

    tokens_prompt: int
    tokens_completion: int
    tokens_cached: int
    duration_ms: float
    timestamp: str
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as users see it (SPEC 6.1): what the entity said and what the circle answered.

    `gate_calls` are the observations in order; `observation` is their text. `content`, `tool_calls`, `thinking` and
    `code` are the parts of the utterance, `utterance` its text. `sequence` counts an entity's turns from 1.
    """

    id: str
    parent_id: str | None
    cantrip_id: str
    entity_id: str
    sequence: int
    utterance: str
    observation: str
    gate_calls: tuple[Observation, ...]
    metadata: TurnMetadata
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    utterance_id: str = ""
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str | None = None
    code: str | None = None
    blocks: tuple[Mapping[str, Any], ...] = ()
    children: tuple[str, ...] = ()
    ward: str | None = None

    @property
    def observations(self) -> tuple[Observation, ...]:
        """The same as `gate_calls`, by the name of D-005."""
        return self.gate_calls

    @property
    def images(self) -> tuple[Image, ...]:
        """What its gates gave to see."""
        return tuple(image for seen in self.gate_calls for image in seen.images)

    @property
    def usage(self) -> Usage:
        """The tokens of this turn's utterance."""
        m = self.metadata
        return Usage(m.tokens_prompt, m.tokens_completion, m.tokens_cached, m.cost)

    @property
    def continues(self) -> bool:
        """Whether this turn carries on the utterance of an earlier one (LOOM-8)."""
        return self.utterance_id != self.id


def ends_entity(ended: Ended, *, lasting: bool) -> bool:
    """Whether an `Ended` is its entity's end: one that lasts outlives an episode that failed or was interrupted."""
    return not (lasting and ended.reason in ("failed", "interrupted"))


def is_over(records: Iterable[Record]) -> bool:
    """Whether an entity has ended for good, from its log."""
    lasting = over = False
    for record in records:
        if isinstance(record, Header):
            lasting = record.lasting
        elif isinstance(record, Ended):
            over = over or ends_entity(record, lasting=lasting)
    return over


def turns_of(records: Iterable[Record]) -> Iterator[Turn]:
    """The committed turns of one entity, in order, from its records in order.

    Rewards are records that come later, maybe much later: give the whole log, or look them up and replace them.
    """
    cantrip_id = ""
    said: Utterance | None = None
    gates: list[Observation] = []
    children: list[str] = []
    rewards: dict[str, float] = {}
    turns: list[Turn] = []
    for record in records:
        match record:
            case GateFinished():
                gates.append(record.observation)
            case Utterance():
                said, gates, children = record, [], []
            case Committed():
                turns.append(_turn(record, said, gates, children, cantrip_id))
                gates, children = [], []
            case ChildStarted():
                # a child starts after its turn was committed: it belongs to the turn just made
                if turns and turns[-1].id == record.turn_id:
                    turns[-1] = replace(turns[-1], children=(*turns[-1].children, record.child_id))
            case Rewarded():
                rewards[record.turn_id] = record.reward
            case Header():
                cantrip_id = record.cantrip_id
            case _:
                pass
    for turn in turns:
        yield replace(turn, reward=rewards[turn.id]) if turn.id in rewards else turn


def _turn(done: Committed, said: Utterance | None, gates: list[Observation], children: list[str], cantrip: str) -> Turn:
    continues = done.utterance_id != done.turn_id
    usage = NO_USAGE if said is None or continues else said.usage
    calls = said.tool_calls if said is not None else ()
    if calls:
        args = {call.id: call.args for call in calls}
        gates = [
            Observation(
                o.gate, args.get(o.tool_call_id or ""), o.result, o.is_error, o.tool_call_id, o.ephemeral, o.images
            )
            if o.args is None
            else o
            for o in gates
        ]
    return Turn(
        id=done.turn_id,
        parent_id=done.parent_id,
        cantrip_id=cantrip,
        entity_id=done.entity_id,
        sequence=done.sequence,
        utterance=_utterance_text(said),
        observation="\n".join(o.content for o in gates),
        gate_calls=tuple(gates),
        metadata=TurnMetadata(
            usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, done.duration_ms, done.at, usage.cost
        ),
        terminated=done.terminated,
        truncated=done.truncated,
        utterance_id=done.utterance_id,
        content=said.content if said is not None else None,
        tool_calls=calls,
        thinking=said.thinking if said is not None else None,
        code=said.code if said is not None else None,
        blocks=said.blocks if said is not None else (),
        children=tuple(children),
        ward=done.ward,
    )


def _utterance_text(said: Utterance | None) -> str:
    if said is None:
        return ""
    parts = [said.content] if said.content else []
    if said.code:
        parts.append(said.code)
    parts += [f"{call.gate}({call.arguments})" for call in said.tool_calls]
    return "\n".join(parts)


def observed(observation: Observation, *, hidden: bool) -> Message:
    """The tool message for an observation; `hidden` where an ephemeral result has been seen often enough (D-010)."""
    text = f"[ephemeral:{observation.gate}]" if hidden else observation.content
    images = NO_IMAGES if hidden else observation.images
    gate, failed = observation.gate, observation.is_error
    return Message("tool", text, (), observation.tool_call_id, gate, failed, None, (), images)


SKIPPED = "[not run: done was called before]"
LEFT_OUT = "[not run: the thread was forked before]"
NO_GATE = "[no gate was called; go on, and call done(answer) when the task is complete]"


def spoken(said: Utterance) -> Message:
    """The assistant message of an utterance: its text and its code, as one text."""
    text = said.content if not said.code else f"{said.content}\n{said.code}" if said.content else said.code
    return Message("assistant", text, said.tool_calls, None, None, False, said.thinking, said.blocks)


def unanswered(calls: Iterable[ToolCall], why: str) -> Iterator[Message]:
    """Tool messages for calls that were not run: every call of an utterance has its result, as providers demand."""
    for call in calls:
        yield Message("tool", why, (), call.id, call.gate, False)
