"""A cell: the parts of one entity while it is loaded.

`Cell` holds the state that the runtime and the entity's actors share. `cell_tree.py` makes its part of the tree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Struct, field

from cantrip_actors.loom import Loom
from cantrip_actors.machine.actions import Await, Child, Contact
from cantrip_actors.machine.budget import Ledger
from cantrip_actors.machine.events import Begin, Moment, Observed, Questioned
from cantrip_actors.machine.state import Plan, State
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Record
from cantrip_actors.records.timers import Timer
from cantrip_actors.runtime.circles.snapshots import Snapshots
from cantrip_actors.runtime.circles.tool_servers import ServerInUse
from cantrip_actors.runtime.crystals.crystal_pool import Crystals, InUse
from cantrip_actors.runtime.entity.awaited import Awaited
from cantrip_actors.runtime.entity.one_shot_event import OneShotEvent
from cantrip_actors.runtime.events.context_variables import ContextVariables, Working
from cantrip_actors.runtime.events.events import Bus, Watchers
from cantrip_actors.runtime.events.instrument import EpisodeSpans
from cantrip_actors.runtime.loom.guard import Guard
from cantrip_actors.runtime.mail.inbox import Inbox
from cantrip_actors.runtime.time.deadline import Deadline
from cantrip_actors.stream.entity import EntityStream
from cantrip_actors.stream.wire import Parent
from cantrip_actors.terms.crystal import Crystal, get_crystal_name
from cantrip_actors.terms.errors import CantripError, EntityCrashed, RuntimeClosed
from cantrip_actors.terms.outcome import Outcome
from cantrip_actors.terms.wrapper import Unattended
from supervisors import (
    ActorRef,
    Crash,
    GaveUp,
    RestartedWith,
    Shutdown,
    SupervisorRef,
)
from supervisors.reasons import render_exception

T = TypeVar("T")

NEWS: Final = object()
"""The message to an entity's actor that its wait may be over."""


class Loaded(Protocol):
    """The entities that are loaded."""

    is_handing_over: bool
    """Whether this node hands the entities over to other nodes, so that no query begins."""
    ends_here: Callable[[Cell], bool]
    """Whether the episode of a root entity ends here all the same, because no other node can continue it."""
    tokens: dict[str, int]
    """The token of the lease with which this process runs a tree, by its root entity."""

    def list_children(self, cell: Cell) -> Sequence[Cell]:
        """Return the cells of the children of an entity that are loaded."""

    def wake_waiters(self) -> None:
        """Let callers of `wait_until` check again: an episode has ended, or an entity begins to wait for a person."""


class Reading(Protocol):
    """Access to the loom, as `Core` has it."""

    @property
    def loom(self) -> Loom:
        """The loom. On a server it waits for answers: read it `in_store`."""

    async def in_store(self, work: Callable[[], T], /) -> T:
        """Return the result of work on the loom."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services of the runtime that an entity uses."""

    append: Callable[[Sequence[Record], Sequence[tuple[int, int]], Sequence[Mail | Timer]], Awaitable[None]]
    """Write records; with them take mail (pairs of a record's index and a mail number), post mail and set timers."""
    moment: Callable[..., Moment]
    """Return the present moment, with the given Budget."""
    guard: Guard
    bus: Bus
    watchers: Watchers
    crystals: Crystals
    contact: Callable[[Cell, Contact], Awaitable[tuple[Observed | Questioned, Sequence[Mail | Timer]]]]
    """Return the event of a message, and the mail or the timer for the transaction that records it."""
    question: Callable[[Cell, Await], Awaited]
    """Return the awaited answer of another entity."""
    reading: Reading
    child: Callable[[Cell, str, Child, str | None], Awaitable[Cell]]
    """Make, find or load the cell of a child."""
    start_child: Callable[[Cell], Awaitable[None]]
    """Start the cell of a child, below its parent's."""
    unload: Callable[[Cell], None]
    """Unload a cell that is idle and has no mail."""
    checkpoint: Callable[[str, bytes], Awaitable[None]]
    """Store an entity's state, as bytes, as a checkpoint at the current end of its log."""
    is_draining: Callable[[], bool]
    """Whether intents without a waiting caller are left to the next process."""
    attach: Callable[[Cell], Inbox]
    """Attach the inbox of a cell's entity to the cell, and return it."""
    end_below: Callable[[Cell], Awaitable[None]]
    """Record the ends of an entity's unfinished children that are not loaded."""
    living: Loaded
    denies: Callable[[Unattended | None], bool]
    """Whether a request is denied at once, because no program follows requests and the `unattended` setting of its
    gate, or else of the runtime, is "deny"."""
    passivate_after: float
    """Seconds after which an idle entity is unloaded."""
    snapshots: Snapshots | None = None
    """The snapshots of sandboxes; None if no snapshot may be stored."""


Adoption = Literal["at_once", "with_intent", "after_episode"]
"""How an entity moves: its cell has the new cantrip, and the move is recorded as the entity is loaded, or with its next
intent; or its cell has the old cantrip, to end the episode under way, and it is loaded anew for its next intent."""


class EpisodeUnderWay(NamedTuple):
    """The episode under way: its number, the key of its intent, and the function that cancels its query or gate."""

    number: int
    key: str | None
    interrupt: Callable[[], None]


class Dismissed(NamedTuple):
    """The detail of a shutdown that ends an entity for good; with any other, a long-lived one is left as it is."""

    reason: str
    sender: str = ""
    """The name of the caller that ends it."""

    def __str__(self) -> str:
        return self.reason


class Bound(Struct, eq=False):
    """A crystal bound for one entity, with the shared crystals and servers that the entity uses."""

    crystal: Crystal
    uses: InUse
    """The crystal's entry in the runtime's pool."""
    summariser: Bound | None = None
    """The crystal that sums up folded turns."""
    servers: Sequence[ServerInUse] = ()
    """The servers of tools that the entity's gates call."""
    samplers: Mapping[str, Bound] = MappingProxyType({})
    """The crystals that answer the entity's servers of tools, by the servers' names."""
    held: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """A function that releases it, for each crystal and server whose actor runs for the entity."""

    async def hold(self, crystals: Crystals) -> None:
        """Start the actors of the entity's crystals and servers of tools, if they do not run."""
        await self.release()  # what an incarnation that was killed while it hibernated has left
        try:
            for bound in (self, self.summariser, *self.samplers.values()):
                if bound is not None:
                    self.held.append(partial(crystals.release, bound.uses))
                    await crystals.hold(bound.uses)
            for server in self.servers:
                self.held.append(server.release)
                await server.hold()
        except BaseException:  # an actor that has not started gets no `terminate`
            await self.release()
            raise

    async def release(self) -> None:
        """Release the crystals and the servers of tools that are still held; a cancelled caller, too."""
        while self.held:
            await self.held.pop()()


class Wait(Struct):
    """The waits of an entity, and the callers that wait for it."""

    deadline: Deadline
    kind: Literal["", "person", "children", "crystal", "node"] = ""
    """What the action under way waits for: a person, children, a query that was posted, or, between two turns, another
    node; "" if it does not wait."""
    callers: int = 0
    """How many callers wait for the end of a one-shot entity."""
    is_suspended: bool = False
    """Whether the whole tree waits for people or for posted queries, and is about to be unloaded."""


class Start(Struct):
    """How an entity begins, until its first intent is recorded. `state` is that of a fork; None for a new entity."""

    begin: Begin
    state: State | None = None
    recorded: OneShotEvent = field(default_factory=OneShotEvent)
    records: Sequence[Record] = ()
    """The records of its beginning, once they are recorded."""
    released: OneShotEvent | None = None
    """The entity waits for this event once its beginning is recorded: its caller may subscribe to its events first."""


class Caller(Struct):
    """The caller whose episode is under way: its context variables, and the spans of the episode if it is traced."""

    variables: ContextVariables = ()
    spans: EpisodeSpans | None = None
    sent: str = ""
    """When it sent the intent, if that came as mail."""
    resumed_by: str = ""
    """The person who resumed the entity, until that is recorded."""

    @property
    def own_variables(self) -> ContextVariables:
        """The context variables for the companion, whatever the entity does now."""
        return self.variables if self.spans is None else self.spans.outer


class Cell(Struct, eq=False):
    """One loaded entity: its plan, its actors and its outcome."""

    plan: Plan
    crystal: Bound
    ledger: Ledger
    services: Services
    wait: Wait
    parent: Cell | None = None
    """The cell of its parent, if it is a child."""
    start: Start | None = None
    """How it begins; None if its log has its first intent."""
    caller: Caller = field(default_factory=Caller)
    """The caller whose episode is under way."""
    adoption: Adoption | None = None
    """None if the log says that the entity works with the cantrip of this cell."""
    inbox: Inbox | None = None
    """Its mail. A one-shot entity gets an inbox with its first mail."""
    stream: EntityStream | None = None
    """Its canonical stream; None until a watcher needs it."""
    circle: ActorRef = field(default_factory=ActorRef)
    children: SupervisorRef | None = None
    entity: ActorRef = field(default_factory=ActorRef)
    supervisor: SupervisorRef = field(default_factory=SupervisorRef)
    episode: EpisodeUnderWay | None = None
    """The episode under way."""
    outcome: Outcome | None = None
    """The outcome of the last episode."""
    error: CantripError | None = None
    """The error of the crystal or the loom, if that ended the last episode."""
    is_over: bool = False
    """Whether its log says that it has ended."""
    ending: OneShotEvent = field(default_factory=OneShotEvent)
    """Set when the entity has ended and its records are written."""

    @property
    def entity_id(self) -> str:
        """The entity's id."""
        return self.plan.entity_id

    @property
    def context_variables(self) -> ContextVariables:
        """The context variables for the present step of the entity."""
        caller = self.caller
        return caller.variables if caller.spans is None else caller.spans.variables

    @property
    def spans(self) -> EpisodeSpans | None:
        """The spans of the episode under way; None if it is not traced."""
        return self.caller.spans

    @property
    def working(self) -> Working:
        """The fields of the entity in log lines."""
        return Working(self.entity_id, self.plan.cantrip.name or "", self.plan.tenant)

    @property
    def is_for_episode(self) -> bool:
        """Whether it has the old cantrip of an entity that moves after the episode under way."""
        return self.adoption == "after_episode"

    @property
    def root(self) -> Cell:
        """The cell of the root entity of its tree, in whose inbox its mail is kept."""
        return self if self.parent is None else self.parent.root

    @property
    def is_waiting_for_people(self) -> bool:
        """Whether the entity and everything below it wait for people, and have no decision or other mail to act on."""
        return self._is_waiting_for("person")

    @property
    def can_suspend(self) -> bool:
        """Whether the entity and everything below it wait for people or for queries that were posted."""
        return self._is_waiting_for("person", "crystal")

    def _is_waiting_for(self, *kinds: str) -> bool:
        if self.inbox is not None and self.inbox.has_unrecorded_control:
            return False
        if self.wait.kind == "children":
            below = self.services.living.list_children(self)
            return bool(below) and all(one._is_waiting_for(*kinds) for one in below)  # noqa: SLF001  # of the same class
        return self.wait.kind in kinds

    def wait_for_person(self) -> None:
        """Mark the entity as waiting for a person. Its `timeout` ward and its parents' do not count meanwhile."""
        self.wait.kind = "person"
        one: Cell | None = self
        while one is not None and one.is_waiting_for_people:
            one.wait.deadline.pause()
            one = one.parent
        self.notify_root()

    def notify_root(self) -> None:
        """Have the root check whether its whole tree waits for people: a child waits, or has ended."""
        if self.parent is not None and self.root.is_waiting_for_people:
            self.root.entity.send(NEWS)

    def end_wait(self) -> None:
        """Mark the entity as no longer waiting."""
        self.wait.kind = ""
        one: Cell | None = self
        while one is not None:
            one.wait.deadline.resume()
            one = one.parent

    async def wait_until_begun(self) -> None:
        """Wait until the first intent is recorded, or the entity has ended before."""
        if self.start is not None:
            await self.start.recorded.wait()

    def end(self) -> None:
        """Notify all tasks that wait for the entity's beginning or its end."""
        if self.start is not None:
            self.start.recorded.set()
        self.end_spans()
        self.ending.set()

    def end_spans(self) -> None:
        """End the spans of the episode that are still open."""
        if self.caller.spans is not None:
            self.caller.spans.close(self.entity.last_exit)
            self.caller.spans = None

    def open_stream(self) -> EntityStream:
        """Return the entity's canonical stream; the first call begins it."""
        if self.stream is None:
            name = get_crystal_name(self.plan.cantrip.crystal)
            moment, guard = self.services.moment, self.services.guard
            self.stream = EntityStream(
                self.entity_id,
                name,
                lambda: moment().fresh,
                lambda: moment().wall,
                parent=self._find_stream_parent(),
                redactor=lambda: guard.redactor,
            )
        return self.stream

    def _find_stream_parent(self) -> Parent | None:
        """Return the turn that spawned this child: as its parent's stream calls it, else as the loom does (LOOM-8)."""
        if self.plan.parent_entity is None:
            return None
        turn = None if self.parent is None or self.parent.stream is None else self.parent.stream.as_parent.turn_id
        return Parent(self.plan.parent_entity, turn or self.plan.parent_turn)

    def make_interruption_error(self) -> CantripError:
        """Return the error for a caller whose episode has no outcome: the entity crashed, or its runtime closed."""
        if self.error is not None:
            return self.error
        reason = self.entity.last_exit
        is_left = isinstance(reason, Shutdown) and not isinstance(reason.detail, (GaveUp, RestartedWith, Dismissed))
        if not (is_left and (self.root.plan.lasting or self.root.wait.is_suspended)):
            return self.make_crash_error()
        error = RuntimeClosed(
            self._describe_suspension()
            if self.root.wait.is_suspended
            else f"the runtime closed while entity {self.entity_id} was at work: its intent is in the loom, so do not "
            "send it again; resume the entity, or send it something else, and it continues from there"
        )
        error.entity_id = self.entity_id
        return error

    def _describe_suspension(self) -> str:
        if self.root.is_waiting_for_people:
            return (
                f"the runtime closed while entity {self.entity_id} waited for a person: decide its request in any "
                "process, and it continues there"
            )
        return (
            f"the runtime closed while entity {self.entity_id} waited for an answer that comes later, as of a batch: "
            'resume it, or open a runtime with recover="resume", and it continues from there'
        )

    def make_crash_error(self) -> EntityCrashed:
        """Return the error for an entity that ended without an outcome."""
        reason = self.entity.last_exit
        cause = reason.exception if isinstance(reason, Crash) else None
        text = f"{type(cause).__name__}: {render_exception(cause)}" if cause is not None else str(reason)
        error = EntityCrashed(f"entity {self.entity_id} crashed ({text}); its turns up to there are in the loom")
        error.entity_id = self.entity_id
        error.__cause__ = cause
        return error
