"""The plan of an entity, which stays fixed; its state, the fold of its log; and its transient, which no log holds.

`evolve.py` is the only code that changes a `State`. It changes it in place: keep an older one with `copy()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from enum import Enum
from typing import Any, Literal, NamedTuple

import msgspec

from cantrip_actors.machine.actions import Child, Program, SnapshotAfter
from cantrip_actors.machine.budget import BudgetGrant
from cantrip_actors.machine.events import Compact
from cantrip_actors.records.blob import Snapshot
from cantrip_actors.records.records import (
    Adopted,
    Asked,
    ChildStarted,
    Committed,
    Decided,
    Decision,
    Ended,
    Header,
    Observation,
    OnClose,
    Requested,
)
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.context import Fading, Shared, ShownBound
from cantrip_actors.terms.crystal import get_crystal_name
from cantrip_actors.terms.cut_off import CutOff
from cantrip_actors.terms.file import File
from cantrip_actors.terms.gate import Gate, Refused
from cantrip_actors.terms.languages import DEFAULT, read_medium
from cantrip_actors.terms.mcp_approvals import list_callable_gates
from cantrip_actors.terms.messages import NO_USAGE, Message, ToolCall, ToolChoice, ToolDefinition, Usage
from cantrip_actors.terms.own_gate_names import DONE, RECALL
from cantrip_actors.terms.value import Value
from cantrip_actors.terms.ward import Wards


class CantripRef(NamedTuple):
    """The content id of a cantrip, and its name, if it has one."""

    id: str
    name: str | None = None


class Phase(Enum):
    """The phase of an entity; the table at the head of `loop.py` lists the events of each phase."""

    NEW = "new"
    ASKING = "asking"
    COMPUTING = "computing"
    ACTING = "acting"
    WAITING = "waiting"
    IDLE = "idle"
    OVER = "over"

    __hash__ = object.__hash__
    """Hash by identity, which is faster than Enum's hash: each event looks its handler up by the phase."""


class Shape(NamedTuple):
    """The parts of a cantrip that a fold needs. A header contains them, so every log can be folded."""

    lasting: bool = False
    system_prompt: str | None = None
    capability: str | None = None
    """The capability text of a code circle, shown after the system prompt (reading 5)."""
    medium: str = DEFAULT
    done: frozenset[str] = frozenset({DONE})
    """The gates that end the entity."""
    visible_for: Mapping[str, int] = {}  # nothing writes to it
    """For each ephemeral gate: how many queries show its results."""
    is_measured: bool = False
    """Whether the size of the context is counted, because the crystal's window is known."""
    bound: ShownBound = ShownBound()
    """How much of a result the crystal sees."""
    parent_turn: str | None = None

    @classmethod
    def of_header(cls, header: Header) -> Shape:
        """Return the shape of an entity from its header, without its cantrip."""
        return cls(
            lasting=header.lasting,
            system_prompt=header.call.get("system_prompt"),
            medium=read_medium(header.circle),
            parent_turn=header.parent_turn,
        )


class Identity(Value, frozen=True):
    """The facts that an entity has from its beginning on, and that its header records."""

    entity_id: str
    parent_entity: str | None = None
    parent_turn: str | None = None
    """The turn that the entity's first turn follows."""
    forked: bool = False
    lasting: bool = False
    """Whether the entity takes further intents (`invoke`) or ends with its first (`cast`)."""
    name: str | None = None
    key: str | None = None
    tenant: str = ""
    queue: str = ""
    waits: bool = False
    """Whether it was made without an intent (`ensure`)."""
    on_close: OnClose | None = None
    """Whether it ends or is kept if its runtime closes while it works; None for the runtime's own setting."""

    @classmethod
    def of_header(cls, header: Header) -> Identity:
        """Return the identity of the entity whose log begins with `header`."""
        return msgspec.convert(header, cls, from_attributes=True)

    @property
    def scoped_name(self) -> str | None:
        """The entity's name as stores keep it, unique in the loom."""
        return None if self.name is None else scope_name(self.tenant, self.name)


class Plan(Identity, frozen=True, kw_only=True):
    """The facts that stay fixed while an entity is loaded, computed once."""

    cantrip: Cantrip
    gates: Mapping[str, Gate]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice | None
    wards: Wards
    requires_done: bool
    shape: Shape
    window: int | None = None
    """The context window of its crystal, in tokens."""
    release: str = ""
    """The release of the node that runs the entity."""

    @classmethod
    def of(
        cls,
        cantrip: Cantrip,
        identity: Identity,
        *,
        window: int | None = None,
        capability: str | None = None,
        release: str = "",
    ) -> Plan:
        """Return the plan of an entity that works with this cantrip."""
        circle = cantrip.circle
        tools = not circle.has_programs  # in a code circle the capability text describes the gates
        gates = list_callable_gates(cantrip)
        return cls(
            *msgspec.structs.astuple(identity),
            cantrip=cantrip,
            gates=gates,
            tools=circle.definitions if tools else (),
            tool_choice=cantrip.call.tool_choice if tools else None,
            wards=circle.resolved,
            requires_done=cantrip.requires_done,
            shape=Shape(
                lasting=identity.lasting,
                system_prompt=cantrip.call.system_prompt,
                capability=capability,
                medium=circle.medium_name,
                done=frozenset(name for name, gate in gates.items() if gate.kind == "done"),
                visible_for={name: gate.visible_for for name, gate in gates.items() if gate.visible_for},
                is_measured=window is not None,
                bound=ShownBound.of(
                    window,
                    {name: gate.max_shown for name, gate in gates.items() if gate.max_shown is not None},
                    recall=RECALL in gates and gates[RECALL].kind == "message",
                ),
                parent_turn=identity.parent_turn,
            ),
            window=window,
            release=release,
        )

    @property
    def has_memory(self) -> bool:
        """Whether a summary or the companion supplies text in place of folded turns."""
        return self.cantrip.folding.summary is not False or self.cantrip.circle.companion is not None

    @property
    def circle(self) -> Circle:
        """The circle of the cantrip."""
        return self.cantrip.circle

    def make_header(self, at: str) -> Header:
        """Return the record that begins the entity's log (CALL-4)."""
        return Header(
            entity_id=self.entity_id,
            cantrip_id=self.cantrip.id,
            at=at,
            call=self.cantrip.call.as_json(),
            circle=self.cantrip.circle.as_json(),
            crystal=get_crystal_name(self.cantrip.crystal),
            parent_entity=self.parent_entity,
            parent_turn=self.parent_turn,
            forked=self.forked,
            depth=self.cantrip.level,
            name=self.name,
            lasting=self.lasting,
            key=self.key,
            cantrip_name=self.cantrip.name,
            tenant=self.tenant,
            queue=self.queue,
            waits=self.waits,
            on_close=self.on_close,
        )

    def is_adopted(self, state: State) -> bool:
        """Return whether the log says that the entity works with this cantrip."""
        return self.cantrip.id == state.cantrip_id

    def make_adopted(self, state: State, at: str) -> Adopted:
        """Return the record with which the entity moves to this cantrip."""
        cantrip = self.cantrip
        return Adopted(
            entity_id=self.entity_id,
            cantrip_id=cantrip.id,
            previous=state.cantrip_id,
            at=at,
            crystal=get_crystal_name(cantrip.crystal),
            call=cantrip.call.as_json(),
            circle=cantrip.circle.as_json(),
            cantrip_name=cantrip.name,
            release=self.release or None,
        )


class Conversation(msgspec.Struct):
    """The working context, and positions in it. A fold removes turns from the context; they stay in the loom."""

    context: Shared[Message | Fading] = msgspec.field(default_factory=Shared)
    starts: Shared[tuple[int, int]] = msgspec.field(default_factory=Shared)
    """For each utterance in sight: where it begins in the context, and the number of its turn in the thread."""
    head: int = 0
    """How many messages at the front stay: system prompt, capability, first intent and, after its fold, its answer."""
    intents: Shared[int] = msgspec.field(default_factory=Shared)
    """The indexes of the intents in sight, each that of the first message of its history if it has one."""
    said: int = 0
    """Utterances in the thread, inherited and folded ones included; also the number of the next query, from 0."""
    folded: int = 0
    """How many of these utterances are folded."""
    without_results: int = 0
    """How many of them are folded, or are in sight without their results."""
    folded_for: int = -1
    """The number of the query that the last fold came before."""
    fading: tuple[int, ...] = ()
    """For each ephemeral result in sight: the number of the first query that hides it."""
    faded: int = 0
    """How many results have faded."""
    images: Shared[File] = msgspec.field(default_factory=Shared)
    """The images given to the entity: it may show or pass on each of them by its handle."""
    size: int = 0
    """Characters of the context, counted if the crystal's window is known."""
    tokens: int = 0
    """Prompt tokens that the crystal reported for the last query; 0 if none were reported since the last fold."""
    tokens_for: int = 0
    """The size of the context in that query."""

    @property
    def intent_at(self) -> int:
        """The index of the newest intent, which every fold keeps."""
        return self.intents[-1] if len(self.intents) else 0


class Episode(msgspec.Struct):
    """The episode under way, or the last one."""

    number: int = 0
    """How many intents the entity was given, this one included."""
    first: int = 1
    """The number of its first turn, those that a fork has inherited included."""
    key: str | None = None
    """The key of the mail that brought the intent."""
    utterances: int = 0
    """How many utterances the episode has; `max_turns` limits them."""
    ran: dict[str, int] = msgspec.field(default_factory=dict)
    """For each gate: how often it answered."""
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    """For each gate: how often it answered with an error."""
    words: str | None = None
    """The text of the entity's last utterance."""
    cut_off: CutOff | None = None
    """Why the provider ended the last utterance before the model did."""
    end: Committed | Ended | None = None
    """The record that ended the episode."""
    trace: str | None = None
    """The `traceparent` of its span. A fork begins with that of the episode that it continues."""
    sender: str | None = None
    """The sender of the intent."""
    context: Any = None
    """The data that came with the intent."""
    dependencies: str | None = None
    """The mark of the dependencies that its gates have."""


class Turn(msgspec.Struct):
    """The turn that is not committed yet: an utterance, and the progress of its calls or its program."""

    id: str = ""
    """Empty until the turn has a record."""
    utterance_id: str = ""
    calls: tuple[ToolCall, ...] = ()
    next_call: int = 0
    """The index of the call that runs, or of the next call."""
    running: str = ""
    """The id of the call that has started and has no result."""
    children: tuple[ChildStarted, ...] = ()
    """The children that were started since the last commit."""
    asked: Asked | None = None
    """The question to another entity that the running call waits for."""
    requested: Requested | None = None
    """The request to a person about the call under way, decided or not."""
    decided: Decided | None = None
    """The decision about this request."""
    delivered: Mapping[str, Decided] = {}
    """The results of deferred calls that have none in the log yet, by the ids of the calls."""
    posted: Any = None
    """The handle of a query that the crystal will answer later."""
    coded: bool = False
    """Whether the utterance was a program."""
    is_spoken: bool = False
    """Whether the call is the text of the utterance, for a person."""
    program: Program | None = None
    """The program that runs, in a code circle, with the answers so far."""
    midway: SnapshotAfter | None = None
    """The snapshot of the program in one of its calls."""
    finished: Observation | None = None
    """The observation of `done`, until the turn is committed."""

    def apply_decision(self, call: ToolCall) -> ToolCall:
        """Return the call under way with the arguments that it has since a person decided about it."""
        requested, decided = self.requested, self.decided
        if requested is None or decided is None:
            return call
        args = requested.args if requested.round else decided.args
        return call if args is None else msgspec.structs.replace(call, args=args)


class BackgroundChild(NamedTuple):
    """A child that works in the background, until its answer comes in."""

    turn_id: str
    """The turn that its first turn follows."""
    call: ToolCall
    """The call that started it."""
    place: int
    """Its place in the request, from 0."""
    episode: int
    """The number of the episode in which it was started."""


class Sandbox(msgspec.Struct):
    """The data to rebuild the sandbox of a code circle."""

    programs: Shared[Program] = msgspec.field(default_factory=Shared)
    """The programs that ended."""
    snapshots: Shared[SnapshotAfter] = msgspec.field(default_factory=Shared)
    """Snapshots of the sandbox after some of these programs."""
    data: Any = None
    """The intent's context, until a program that was not undone has received it as a variable."""


class State(msgspec.Struct):
    """The state of an entity: the fold of its records."""

    parent_id: str | None = None
    """The turn that the next one follows."""
    phase: Phase = Phase.NEW
    has_header: bool = False
    cantrip_id: str = ""
    """The content id of the cantrip in force."""
    cantrip_name: str | None = None
    """Its name, if it has one."""
    medium: str | None = None
    """The medium of its circle; None before the header, where the shape says it."""
    conversation: Conversation = msgspec.field(default_factory=Conversation)
    episode: Episode = msgspec.field(default_factory=Episode)
    turn: Turn = msgspec.field(default_factory=Turn)
    sandbox: Sandbox = msgspec.field(default_factory=Sandbox)
    gates: dict[str, int] = msgspec.field(default_factory=dict)
    """For each gate that has answered the entity: how many of its answers were errors."""
    remembered: dict[str, dict[str, Decision]] = msgspec.field(default_factory=dict)
    """For each gate: the remembered decisions, by the text that the condition of `ask_first` returned."""
    granted: dict[str, BudgetGrant] = msgspec.field(default_factory=dict)
    """For each budget, by its label: what people have granted beyond it, in the last period for which they did."""
    usage: Usage = NO_USAGE
    sequence: int = 0
    """Turns committed in the thread, inherited ones included."""
    inherited: int = 0
    """Turns of the thread that a fork inherited from another entity."""
    spawned: int = 0
    """Children that the entity has started."""
    background: dict[str, BackgroundChild] = msgspec.field(default_factory=dict)
    """The children that work in the background, by their ids, the first one first."""
    undone: int = 0
    """How many of its intents were undone."""
    resource: Snapshot | None = None
    """The last snapshot of the resources that its gates hold open, such as a browser."""

    @property
    def can_fold(self) -> bool:
        """Whether the context has turns that a fold would take out."""
        conversation = self.conversation
        return conversation.said - conversation.folded > 1 and (
            self.phase is not Phase.IDLE or self.episode.end is not None
        )

    def copy(self) -> State:
        """Return an independent copy."""
        other = copy(self)
        other.conversation, other.turn = copy(self.conversation), copy(self.turn)
        other.sandbox, other.episode = copy(self.sandbox), copy(self.episode)
        other.episode.ran, other.episode.failed = dict(self.episode.ran), dict(self.episode.failed)
        other.gates, other.granted = dict(self.gates), dict(self.granted)
        other.background = dict(self.background)
        other.remembered = {gate: dict(known) for gate, known in self.remembered.items()}
        return other


class Transient(msgspec.Struct):
    """Unrecorded facts: clock marks, a fresh id, a snapshot for the next record, the output of a program.

    A restart begins with an empty one. Its one owner changes it in place.
    """

    fresh: str
    """The id of the turn that may begin."""
    began: float = 0.0
    """When the current turn began."""
    mark: float = 0.0
    """When the last event happened."""
    snapshot: Snapshot | None = None
    """A snapshot of the sandbox, for the next record that refers to it."""
    output: str = ""
    """The output of the program so far."""
    wrapping: Literal["", "before", "passed", "after"] = ""
    """For a wrapped gate: which of its wrapping steps run, or were passed last."""
    why: str | None = None
    """Why a person has to decide about the call, as the steps before it found out; None if no person has to."""
    seen: Observation | None = None
    """The observation of a gate without a function, while the steps after it run."""
    call: ToolCall | None = None
    """A program's call that no record holds yet."""
    children: tuple[ToolCall, tuple[Child, ...] | Refused] | None = None
    """The children of the last delegation that `due` saw."""
    is_rebuilt: bool = True
    """Whether the program in the sandbox is where the state says; False after a restart."""
    overflows: bool = False
    """Whether the provider refused the last query because the context was too long."""
    compaction: Compact | None = None
    """The fold that was asked for."""
    squeezed: int | None = None
    """The most characters of one result that queries show until the next fold; None without a bound."""
    unbooked: Usage = NO_USAGE
    """The usage of queries that were refused or cancelled, until a record books it."""
