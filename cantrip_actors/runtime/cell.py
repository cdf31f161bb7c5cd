"""A cell: everything that one entity is made of while it lives, and how it stands in the tree.

    cell            rest_for_one, ends when its entity ends
    ├── children    the cells of its children; only there if it may delegate
    ├── circle      where the gates run; its crash is followed by the entity's restart
    └── entity      drives the loop; its crash restarts it from its log

The value `Cell` is what the runtime and the entity's actors share of it: where messages go, and what came of it all. A
root entity's cell stands under the runtime's `entities`, a child's under the `children` of its parent. The children
come first, so that they survive a crash of what comes after them; a parent that is stopped stops them itself.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from cantrip_actors.loom import Loom
from cantrip_actors.model.cantrip import Crystal, crystal_name
from cantrip_actors.model.entity_stream import EntityStream
from cantrip_actors.model.errors import CantripError, EntityCrashed, LoomError, RuntimeClosed
from cantrip_actors.model.gate import DELEGATION
from cantrip_actors.model.image import NO_IMAGES, Image
from cantrip_actors.model.loop import Moment, Outcome, Plan, State
from cantrip_actors.model.turn import Record
from cantrip_actors.runtime.circle import CircleActor
from cantrip_actors.runtime.crystals import Crystals, InUse
from cantrip_actors.runtime.events import Bus, Watchers
from cantrip_actors.runtime.gates import GatesActor
from cantrip_actors.runtime.ledger import Ledger
from cantrip_actors.runtime.secrets import Guard
from cantrip_actors.runtime.snapshots import Snapshots
from cantrip_actors.runtime.within import Around
from supervisors import (
    Actor,
    ActorRef,
    ChildSpec,
    Crash,
    DynamicSupervisor,
    RestartedWith,
    Shutdown,
    Supervisor,
    SupervisorRef,
)

__all__ = ["NUDGED", "Cell", "GiveWay", "Nudge", "Services", "Ticket", "kept"]

RESTARTS = 3
"""Restarts within `PERIOD` seconds after which an entity is given up: one that crashes at the same record each time."""
PERIOD = 60.0


@dataclass(frozen=True, slots=True)
class Services:
    """What an entity needs of the runtime around it."""

    append: Callable[[Sequence[Record]], Awaitable[None]]
    moment: Callable[[], Moment]
    guard: Guard
    bus: Bus
    watchers: Watchers
    crystals: Crystals
    leave: Callable[[Cell], None]
    """Tells that a cell has ended for good."""
    loom: Callable[[], Loom]
    child: Callable[..., Cell]
    """Makes, finds or brings back the cell of a child; see `Runtime._child`."""
    enter: Callable[[Cell], None]
    """Tells the registry of a cell that is about to be started."""
    passivate_after: float
    """Seconds after which an idle entity goes to sleep."""
    snapshots: Snapshots | None = None
    """What keeps images of sandboxes; None where none may be kept."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A further intent on its way to an entity, and what came of it: an outcome, an error, or neither.

    Neither means that the entity was gone before it had begun with it.
    """

    intent: str
    context: Any
    images: tuple[Image, ...] = NO_IMAGES
    settled: anyio.Event = field(default_factory=anyio.Event)
    begun: bool = False
    """Whether its intent is recorded."""
    outcome: Outcome | None = None
    error: CantripError | None = None
    around: Around = field(default=(), repr=False)
    """The context variables of who sends it."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """Something for the border between two turns: a message to put in, or the end of the episode."""

    text: str
    interrupts: bool = False
    images: tuple[Image, ...] = NO_IMAGES


@dataclass(frozen=True, slots=True)
class GiveWay:
    """For one that lasts: to go to sleep once it is idle, since somebody is to wake it with a cantrip of his own."""


NUDGED: Final = object()
"""Mail that says: there is a nudge."""


def kept(nudges: Iterable[Nudge]) -> tuple[Nudge, ...]:
    """Those that are left where an episode is over: what is to be said is said with the next intent."""
    return tuple(nudge for nudge in nudges if not nudge.interrupts)


@dataclass(slots=True, eq=False)
class Cell:
    """One entity: its plan, its surroundings, and what came of it."""

    plan: Plan
    start: State | None
    """Where a fork goes on from; None for who begins at the beginning."""
    intent: str
    context: Any
    crystal: Crystal
    """The crystal as bound for this entity."""
    uses: InUse
    """Its crystal's entry among the runtime's, with the actor that it is asked through."""
    ledger: Ledger
    services: Services
    parent: Cell | None = None
    """The cell of its parent, if it is a child."""
    images: tuple[Image, ...] = NO_IMAGES
    """Those that came with its intent and its context."""
    around: Around = ()
    """The context variables of whoever its episode is for."""
    summariser: tuple[Crystal, InUse] | None = None
    """The crystal that sums up what is folded away, and its entry; None where none does."""
    stream: EntityStream | None = None
    """Its canonical stream, once somebody watches."""
    begun: bool = False
    """Whether it has a log: then whoever drives it goes on from there."""
    until: float | None = None
    """When its `timeout` ward ends it, on the event loop's clock."""
    circle: ActorRef = field(default_factory=ActorRef)
    children: SupervisorRef | None = None
    entity: ActorRef = field(default_factory=ActorRef)
    supervisor: SupervisorRef = field(default_factory=SupervisorRef)
    outcome: Outcome | None = None
    """Of the last episode."""
    error: CantripError | None = None
    """What the crystal, or the loom, failed with, where that ended the last episode."""
    is_over: bool = False
    """Whether its log says that it has ended."""
    ending: Outcome | None = None
    """What comes of its episode, from when that is decided, whether it has been written down yet or not."""
    falls_asleep: bool = False
    """Whether it takes no more mail: it was idle for long, had none, and ends. Who has some waits, and wakes it."""
    is_dismissed: bool = False
    """Whether it is stopped for good, by whoever has its handle: one that lasts is else just driven no further."""
    ticket: Ticket | None = None
    """The send that its episode is for."""
    nudges: tuple[Nudge, ...] = ()
    """What waits for the border between two turns, in the order in which it came."""
    tickets: dict[Ticket, None] | None = None
    """All sends that nobody has settled, where there are any, in their order."""
    awaited_by: ActorRef | None = None
    """Who hibernates until everything about its end is written down, and wants to be sent a word then."""
    is_buried: bool = False
    """Whether everything about its end is written down."""
    _burial: anyio.Event | None = None
    """Made when somebody waits for that, since hardly anybody does."""

    @property
    def entity_id(self) -> str:
        """The entity's id."""
        return self.plan.entity_id

    @property
    def lasts(self) -> bool:
        """Whether its log is left as it is where nothing but the runtime ends: it, or whoever spawned it, lasts."""
        return self.parent.lasts if self.parent is not None else self.plan.lasting and not self.is_dismissed

    def streamed(self) -> EntityStream:
        """Its canonical stream, begun now if it was not."""
        if self.stream is None:
            parent = None if self.parent is None or self.parent.stream is None else self.parent.stream.as_parent
            name = crystal_name(self.plan.cantrip.crystal)
            moment = self.services.moment
            self.stream = EntityStream(
                self.entity_id, name, lambda: moment().fresh, lambda: moment().wall, parent=parent
            )
        return self.stream

    def settle(self) -> None:
        """It has ended for good: answer all who still wait."""
        for ticket in list(self.tickets or ()):
            error = self.error
            if ticket.begun:
                error = error or self.cut_short()
            elif not isinstance(error, LoomError):  # that was the end of another's episode
                error = None
            self.answer(ticket, None, error)
        self.is_buried = True
        if self._burial is not None:
            self._burial.set()
        if self.awaited_by is not None:
            self.awaited_by.send(self.entity_id)

    def tell_at_end(self, who: ActorRef) -> None:
        """Have `who` sent a word when everything about its end is written down."""
        self.awaited_by = who
        if self.is_buried:
            who.send(self.entity_id)

    async def buried(self) -> None:
        """Wait until everything about its end is written down."""
        if not self.is_buried:
            self._burial = self._burial or anyio.Event()
            await self._burial.wait()

    def promise(self, ticket: Ticket) -> None:
        """Somebody waits for this send from now on."""
        if self.tickets is None:
            self.tickets = {}
        self.tickets[ticket] = None

    def nudge(self, nudge: Nudge) -> None:
        """Have its entity find this at the next border between two turns."""
        self.nudges += (nudge,)
        self.entity.cast(NUDGED)

    def answer(self, ticket: Ticket, outcome: Outcome | None, error: CantripError | None) -> None:
        """Settle one send."""
        if self.tickets is not None:
            self.tickets.pop(ticket, None)
            self.tickets = self.tickets or None
        ticket.outcome, ticket.error = outcome, error
        ticket.settled.set()

    def cut_short(self) -> CantripError:
        """The error for whoever waits for an episode that has no end: it crashed, or is driven no further here."""
        reason = self.entity.last_exit
        if not isinstance(reason, Shutdown) or isinstance(reason.detail, RestartedWith) or not self.lasts:
            return self.crashed()
        error = RuntimeClosed(
            f"the runtime closed while entity {self.entity_id} was at work: its intent is in the loom, so do not send "
            "it again; resume the entity, or send it something else, and it goes on from there"
        )
        error.entity_id = self.entity_id
        return error

    def crashed(self) -> EntityCrashed:
        """The error for an entity that ended without an outcome."""
        reason = self.entity.last_exit
        cause = reason.exception if isinstance(reason, Crash) else None
        said = f"{type(cause).__name__}: {cause}" if cause is not None else str(reason)
        error = EntityCrashed(f"entity {self.entity_id} crashed ({said}); its turns up to there are in the loom")
        error.entity_id = self.entity_id
        error.__cause__ = cause
        return error

    # Its place in the tree

    def spec(self) -> ChildSpec[Supervisor]:
        """Of its supervisor: temporary, since what restarts an entity is that, inside."""
        return ChildSpec(self.entity_id, self._tree, restart="temporary", shutdown=math.inf, ref=self.supervisor)

    def _tree(self) -> Supervisor:
        children: list[ChildSpec[Any]] = []
        if not DELEGATION.isdisjoint(self.plan.gates):
            self.children = SupervisorRef()
            children.append(ChildSpec("children", DynamicSupervisor, shutdown=math.inf, ref=self.children))
        children.append(ChildSpec("circle", self._circle, ref=self.circle))
        children.append(ChildSpec("entity", self._entity, restart="transient", significant=True, ref=self.entity))
        return Supervisor(
            children,
            strategy="rest_for_one",
            max_restarts=RESTARTS,
            period=PERIOD,
            auto_shutdown="any_significant",
            hibernate_after=GatesActor.hibernate_after,
        )

    def _circle(self) -> GatesActor:
        if self.plan.circle.medium == "tools":
            return GatesActor(self.entity_id, self)
        return CircleActor(self.plan.circle, self.services.snapshots, self.entity_id, self)

    def _entity(self) -> Actor:
        from cantrip_actors.runtime.entity import EntityActor  # the entity knows its cell, so not the other way round

        return EntityActor(self)
