"""Where an entity stands: the plan that stays fixed, the state that is the fold of its log, and what no log holds.

`evolve.py` is the only code that changes a `State`. It changes it in place: keep an older one with `copy()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple

import msgspec

from cantrip_actors.machine.actions import Child, Left, Program
from cantrip_actors.records.blob import Snapshot
from cantrip_actors.records.records import Asked, ChildStarted, Committed, Ended, Header, Observation
from cantrip_actors.terms.cantrip import Cantrip, crystal_name
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.context import Fading, Shared
from cantrip_actors.terms.gate import DONE, Gate, Refused
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import NO_USAGE, Message, ToolCall, ToolChoice, ToolDefinition, Usage
from cantrip_actors.terms.ward import Wards

__all__ = ["Conversation", "Episode", "Phase", "Plan", "Sandbox", "Shape", "State", "Transient", "Turn"]


class Phase(Enum):
    """Where an entity stands; the table at the head of `loop.py` says what can happen in each phase."""

    NEW = "new"
    ASKING = "asking"
    COMPUTING = "computing"
    ACTING = "acting"
    WAITING = "waiting"
    IDLE = "idle"
    OVER = "over"


class Shape(NamedTuple):
    """What a fold has to know of an entity's cantrip. A header is enough for it, so every log can be folded."""

    lasting: bool = False
    system_prompt: str | None = None
    capability: str | None = None
    """The capability text of a code circle, shown after the system prompt (reading 5)."""
    medium: str = "tools"
    done: frozenset[str] = frozenset({DONE.name})
    """The gates that end the entity."""
    visible_for: Mapping[str, int] = {}  # nothing writes to it
    """Of ephemeral gates: for how many queries their results show."""
    is_measured: bool = False
    """Whether the size of the context is counted, because the crystal's window is known."""
    parent_turn: str | None = None

    @classmethod
    def of_header(cls, header: Header) -> Shape:
        """Return the shape of an entity whose cantrip is not at hand."""
        return cls(
            lasting=header.lasting,
            system_prompt=header.call.get("system_prompt"),
            medium=header.circle.get("medium", "tools"),
            parent_turn=header.parent_turn,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays fixed while an entity is loaded, worked out once."""

    entity_id: str
    cantrip: Cantrip
    gates: Mapping[str, Gate]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice | None
    wards: Wards
    requires_done: bool
    shape: Shape
    window: int | None = None
    parent_entity: str | None = None
    forked: bool = False
    name: str | None = None
    key: str | None = None

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
        key: str | None = None,
    ) -> Plan:
        """Return the plan of an entity that `cantrip` is cast into.

        `window` is its crystal's context window in tokens. A `lasting` entity takes further intents (`invoke`).
        """
        circle = cantrip.circle
        tools = circle.medium == "tools"  # else the gates are functions, and the capability text shows them
        gates = circle.open_gates
        return cls(
            entity_id=entity_id,
            cantrip=cantrip,
            gates=gates,
            tools=circle.definitions if tools else (),
            tool_choice=cantrip.call.tool_choice if tools else None,
            wards=circle.resolved,
            requires_done=cantrip.requires_done,
            shape=Shape(
                lasting=lasting,
                system_prompt=cantrip.call.system_prompt,
                capability=capability,
                medium=circle.medium,
                done=frozenset(name for name, gate in gates.items() if gate.kind == "done"),
                visible_for={name: gate.visible_for for name, gate in gates.items() if gate.visible_for},
                is_measured=window is not None,
                parent_turn=parent_turn,
            ),
            window=window,
            parent_entity=parent_entity,
            forked=forked,
            name=name,
            key=key,
        )

    @property
    def lasting(self) -> bool:
        """Whether the entity takes further intents (`invoke`) or ends with its first (`cast`)."""
        return self.shape.lasting

    @property
    def parent_turn(self) -> str | None:
        """The turn that the entity's first turn follows."""
        return self.shape.parent_turn

    @property
    def has_memory(self) -> bool:
        """Whether a summary or the companion says what stays in sight of folded turns."""
        return self.cantrip.folding.summary is not False or self.cantrip.circle.companion is not None

    @property
    def circle(self) -> Circle:
        """The circle of the cantrip."""
        return self.cantrip.circle

    def header(self, at: str) -> Header:
        """Return the record that begins the entity's log (CALL-4)."""
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
            key=self.key,
        )


class Conversation(msgspec.Struct):
    """The working context, and where things are in it. A fold takes folded turns out of it; the loom keeps them."""

    context: Shared[Message | Fading] = msgspec.field(default_factory=Shared)
    starts: Shared[tuple[int, int]] = msgspec.field(default_factory=Shared)
    """For each utterance in sight: where it begins in the context, and the number of its turn in the thread."""
    head: int = 0
    """How many messages at the front are pinned: system prompt, capability, first intent."""
    intent_at: int = 0
    """Where the newest intent stands, which is pinned too."""
    said: int = 0
    """Utterances in the thread, inherited and folded ones included; also the number of the next query, from 0."""
    folded: int = 0
    """How many of them are folded away."""
    folded_for: int = -1
    """The number of the query before which the last fold was made."""
    fading: tuple[int, ...] = ()
    """For each ephemeral result that still shows: the number of the query from which on it does not."""
    faded: int = 0
    """How many results have faded."""
    images: Shared[Image] = msgspec.field(default_factory=Shared)
    """The images that the entity was given: it may show or pass on each of them by its handle."""
    size: int = 0
    """Characters of the context, counted where the crystal's window is known."""
    tokens: int = 0
    """Prompt tokens that the crystal reported for the last query; 0 if none were reported since the last fold."""
    tokens_for: int = 0
    """The size of the context in that query."""


class Episode(msgspec.Struct):
    """The episode under way, or the last one."""

    number: int = 0
    """How many intents the entity was given, this one included."""
    key: str | None = None
    """The key of the mail that brought the intent."""
    utterances: int = 0
    """What `max_turns` counts."""
    ran: dict[str, int] = msgspec.field(default_factory=dict)
    """Gates that answered, with how often."""
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    """Gates that answered with an error, with how often."""
    words: str | None = None
    """The last words of the entity."""
    end: Committed | Ended | None = None
    """The record that ended the episode."""


class Turn(msgspec.Struct):
    """The turn in the making: an utterance, and how far its calls or its program have come."""

    id: str = ""
    """Empty until a record of the turn is there."""
    utterance_id: str = ""
    calls: tuple[ToolCall, ...] = ()
    next_call: int = 0
    """Which of the calls is next, or running."""
    running: str = ""
    """The id of the call that has started and has no result."""
    children: tuple[ChildStarted, ...] = ()
    """The children that were started since the last commit."""
    asked: Asked | None = None
    """The question to another entity that the running call waits for."""
    posted: Any = None
    """The handle of a query that the crystal will answer later."""
    coded: bool = False
    """Whether the utterance was a program."""
    program: Program | None = None
    """The program that runs, in a code circle, with the answers that it got so far."""
    midway: Left | None = None
    """The snapshot of the program in one of its calls."""
    finished: Observation | None = None
    """The observation of `done`, until the turn is committed."""


class Sandbox(msgspec.Struct):
    """What it takes to make the sandbox of a code circle again."""

    programs: Shared[Program] = msgspec.field(default_factory=Shared)
    """The programs that ended."""
    snapshots: Shared[Left] = msgspec.field(default_factory=Shared)
    """What some of them left behind."""
    data: Any = None
    """The intent's context, until a program that is not undone has got it as a variable."""


class State(msgspec.Struct):
    """Where an entity stands: the fold of its records (C-01)."""

    parent_id: str | None = None
    """The turn that the next one follows."""
    phase: Phase = Phase.NEW
    has_header: bool = False
    cantrip_id: str = ""
    """The content id of the cantrip in force."""
    conversation: Conversation = msgspec.field(default_factory=Conversation)
    episode: Episode = msgspec.field(default_factory=Episode)
    turn: Turn = msgspec.field(default_factory=Turn)
    sandbox: Sandbox = msgspec.field(default_factory=Sandbox)
    usage: Usage = NO_USAGE
    sequence: int = 0
    """Turns committed in the thread, inherited ones included."""
    inherited: int = 0
    """Turns of the thread that a fork began with: they are another entity's."""

    def copy(self) -> State:
        """Return a state that changes on its own."""
        other = copy(self)
        other.conversation, other.turn = copy(self.conversation), copy(self.turn)
        other.sandbox, other.episode = copy(self.sandbox), copy(self.episode)
        other.episode.ran, other.episode.failed = dict(self.episode.ran), dict(self.episode.failed)
        return other


class Transient(msgspec.Struct):
    """What no record holds: clock marks, a fresh id, a snapshot on its way to the next record, output of a program.

    A restart begins with an empty one. It has one owner, which changes it in place.
    """

    fresh: str
    """The id of the turn that may begin."""
    began: float = 0.0
    """When the turn in the making began."""
    mark: float = 0.0
    """When the last event came."""
    snapshot: Snapshot | None = None
    """Of the sandbox, for the next record that is to refer to it."""
    output: str = ""
    """What the program printed so far."""
    wrapping: Literal["", "before", "passed", "after"] = ""
    """Of a wrapped gate that the loop itself carries out: which of the steps around it run, or were passed last."""
    seen: Observation | None = None
    """Its observation, while the steps after it run."""
    call: ToolCall | None = None
    """A program's call that no record holds yet."""
    children: tuple[ToolCall, tuple[Child, ...] | Refused] | None = None
    """The children of the delegation that was looked at last."""
    is_rebuilt: bool = True
    """Whether the program stands in its sandbox where the state says; not so after a restart."""
    overflows: bool = False
    """Whether the provider refused the last query because the context was too long."""
