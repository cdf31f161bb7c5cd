"""The house: the tree of one runtime, and how cells get into it.

    Runtime         rest_for_one
    ├── loom        the one writer of the store
    ├── crystals    dynamic: an actor a crystal
    ├── registry    watches every cell
    └── entities    dynamic: a cell a root entity

A loom that crashes takes everything after it along, since nobody may go on unrecorded; a crystal that crashes is its
own affair. Closing stops the entities first, last started first: one that was cast is cancelled, one that lasts is just
driven no further.

`Runtime` and `Entity` are the faces that users see of this; entities reach it through `Services`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextvars import Context, copy_context
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

import anyio
import structlog
import uuid_utils
from anyio.lowlevel import EventLoopToken, current_token

from cantrip_actors.circle.medium import Limits, medium
from cantrip_actors.circle.plain import NotPlain, Pictured, is_plain, pictured
from cantrip_actors.loom import Loom, Store, open_store
from cantrip_actors.model.cantrip import Cantrip, Crystal, interchangeable
from cantrip_actors.model.circle import Circle, MediumName
from cantrip_actors.model.errors import EntityEnded, InvalidIntent, LoomError, RuntimeClosed
from cantrip_actors.model.gate import AgentRequest
from cantrip_actors.model.image import NO_IMAGES, Image, said
from cantrip_actors.model.loop import Child, Moment, Plan
from cantrip_actors.model.messages import ToolDefinition
from cantrip_actors.model.recovery import outcome_of, replay
from cantrip_actors.model.snapshot import SandboxImage
from cantrip_actors.model.turn import Ended, Header, IntentGiven, Record
from cantrip_actors.runtime.cell import Cell, GiveWay, Nudge, Services, Ticket
from cantrip_actors.runtime.crystals import Crystals
from cantrip_actors.runtime.events import (
    Bus,
    EntityEvent,
    FinalResponseEvent,
    StepCompleteEvent,
    Watchers,
    events_of,
)
from cantrip_actors.runtime.known import KnownCantrips
from cantrip_actors.runtime.ledger import Ledger
from cantrip_actors.runtime.living import Living, RegistryActor
from cantrip_actors.runtime.loom import Claim, LoomActor, Release
from cantrip_actors.runtime.secrets import Guard, GuardedLogger
from cantrip_actors.runtime.snapshots import Snapshots
from cantrip_actors.runtime.within import Around, around
from supervisors import (
    ActorRef,
    ActorSystem,
    ChildNotFound,
    ChildSpec,
    DynamicSupervisor,
    NotRunning,
    Shutdown,
    ShuttingDown,
    StartFailed,
    Supervisor,
    SupervisorRef,
)
from supervisors.reports import Reports

__all__ = ["NEVER_BEGAN", "House", "put"]

ALIKE = 16
"""Kinds of circles for which the last texts about their languages are kept, to be shared."""

NOT_OPEN = "the runtime is not open: use it inside `async with Runtime.open(…) as runtime`"

ELSEWHERE = (
    "the runtime was opened in another event loop: open one in each, or have a thread call it there, with "
    "anyio.from_thread, asyncio.run_coroutine_threadsafe or Runtime.blocking"
)

NEVER_BEGAN = "was about to begin when its process was killed, and its intent is not recorded"


_Told = tuple[MediumName, tuple[ToolDefinition, ...], Limits]
"""What an entity's capability text depends on."""

_log = structlog.get_logger("cantrip_actors.runtime")


class House:
    """The tree of one runtime. See `Runtime` for what the arguments mean."""

    def __init__(
        self,
        url: str,
        cantrips: Iterable[Cantrip],
        passivate_after: float,
        guard: Guard,
        snapshot_key: bytes | None = None,
    ) -> None:
        self.living = Living()
        self.guard = guard
        self.bus = Bus()
        self.watchers = Watchers()
        self.is_open = False
        self._home: EventLoopToken | None = None
        self._outside = Context()
        self._drains = False
        self._url = url
        self._store: Store | None = None
        self._loom: Loom | None = None
        self._system: ActorSystem | None = None
        self._writer = ActorRef()
        self._registry = ActorRef()
        self._entities = SupervisorRef()
        self._crystals = Crystals(SupervisorRef())
        self.cantrips = KnownCantrips(cantrips)
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._capabilities: deque[tuple[_Told, str]] = deque(maxlen=ALIKE)
        self.services = Services(
            self.append,
            moment,
            self.guard,
            self.bus,
            self.watchers,
            self._crystals,
            self._leave,
            lambda: self.loom,
            self._child,
            self._enter,
            passivate_after,
            # what a program has seen is in its sandbox as it was, and no image of it could be redacted
            None if guard.at_rest else Snapshots(lambda: snapshot_key or self.store.key(), self._image),
        )

    def _image(self, digest: str) -> SandboxImage | None:
        try:
            return self.store.image(digest)
        except LoomError as error:  # an image is never needed
            _log.warning("a snapshot cannot be read", snapshot=digest, error=str(error))
            return None

    # Opening and closing

    async def open(self) -> None:
        """Open the loom and put up the tree."""
        if self._store is not None:
            raise RuntimeClosed("a runtime is opened once: make another one with Runtime.open(…)")
        # a file may have to be read to its end; what is only memory is not worth a thread
        in_memory = self._url.startswith("memory:")
        self._store = store = (
            open_store(self._url) if in_memory else await anyio.to_thread.run_sync(open_store, self._url)
        )
        self._loom = Loom(store, self.append)
        try:
            self._system = await ActorSystem(reports=Reports(GuardedLogger(self.guard))).__aenter__()
            try:
                await self._system.start(ChildSpec("runtime", lambda: self._tree(store), restart="temporary"))
            except BaseException as error:  # cancelled, most likely: what is entered is left
                await self._system.__aexit__(type(error), error, error.__traceback__)
                raise
        except BaseException:
            store.close()
            raise
        self.is_open = True
        self._home, self._outside = current_token(), copy_context()

    def around(self) -> Around:
        """What the context variables are of whoever asks."""
        return around(self._outside)

    def check_open(self) -> None:
        """Raises RuntimeClosed where it is not open, or not in this event loop."""
        if not self.is_open:
            raise RuntimeClosed(NOT_OPEN)
        if current_token() != self._home:
            raise RuntimeClosed(ELSEWHERE)

    def check_taking(self) -> None:
        """Raises RuntimeClosed where it is not open here, or takes nothing new any more."""
        self.check_open()
        if self._drains:
            raise RuntimeClosed("the runtime is about to close: it takes nothing new")

    async def drain(self, grace: float | None) -> bool:
        """Take nothing new, and wait for what is under way; whether all of it ended within `grace` seconds."""
        self.check_open()
        self._drains = True
        with anyio.move_on_after(grace) as waiting:
            for cell in self.living:
                for ticket in list(cell.tickets or ()):
                    await ticket.settled.wait()
                if not cell.plan.lasting:
                    await cell.buried()
        return not waiting.cancelled_caught

    async def close(self, kind: Any, error: BaseException | None, where: Any) -> None:
        """Stop everything, last started first, and close the loom."""
        assert self._system is not None
        assert self._store is not None
        self.is_open = False
        try:
            await self._system.__aexit__(kind, error, where)
        finally:
            for cell in self.living:
                cell.settle()
            self.bus.close()
            self._store.close()

    def _tree(self, store: Store) -> Supervisor:
        crystals = self._crystals
        return Supervisor(
            [
                ChildSpec("loom", lambda: LoomActor(store, self._tell), ref=self._writer),
                ChildSpec("crystals", crystals.supervise, shutdown=math.inf, ref=crystals.supervisor),
                ChildSpec("registry", lambda: RegistryActor(self.living, self.services), ref=self._registry),
                ChildSpec("entities", DynamicSupervisor, shutdown=math.inf, ref=self._entities),
            ],
            strategy="rest_for_one",
        )

    @property
    def store(self) -> Store:
        """The store, once the house is open."""
        assert self._store is not None
        return self._store

    @property
    def loom(self) -> Loom:
        """The loom, for reading also after the house has closed. Raises RuntimeClosed before it was opened."""
        if self._loom is None:
            raise RuntimeClosed(NOT_OPEN)
        return self._loom

    async def append(self, records: Sequence[Record]) -> None:
        """Have the loom's actor write `records`; returns when they are as durable as the store promises."""
        try:
            await self._writer.call(self.guard.kept(records))
        except NotRunning as gone:
            raise RuntimeClosed(NOT_OPEN) from gone

    def _tell(self, records: Sequence[Record]) -> None:
        """Show what has been written to those who watch."""
        if not self.bus:
            return
        events: list[EntityEvent] = []
        for event in self.guard.shown(events_of(records, moment().wall)):
            events.append(event)
            if isinstance(event, StepCompleteEvent) and event.terminated:
                cell = self.living.get(event.entity_id)
                if cell is not None and cell.ending is not None:  # after its end nothing would be seen of it
                    result = self.guard.redactor.value(cell.ending.result)
                    events.append(FinalResponseEvent(event.entity_id, event.at, result))
        self.bus.publish(events)

    # Cells

    def prepare(
        self,
        cantrip: Cantrip,
        intent: object,
        context: Any,
        *,
        parent: Cell | None = None,
        parent_turn: str | None = None,
        forked: bool = False,
        lasting: bool = False,
        name: str | None = None,
        entity_id: str | None = None,
        images: tuple[Image, ...] = NO_IMAGES,
    ) -> Cell:
        """The cell of an entity that is about to begin; its crystal is bound here, in the order of the requests.

        `images` are those that are known to come with it; others may stand in its intent and its context.
        """
        intent, context, images = put(intent, context, images)
        capability = None
        if cantrip.circle.medium != "tools":  # refused here, before anything starts, where it is not to be had
            capability = self._capability(cantrip.circle)
        used = self._crystals.find(cantrip.crystal)
        self.guard.learn(used.crystal, cantrip.circle)
        window = getattr(used.crystal, "context_window", None)
        plan = Plan.of(
            cantrip,
            entity_id or new_id(),
            window=window if isinstance(window, int) else None,
            lasting=lasting,
            capability=capability,
            parent_entity=None if parent is None else parent.entity_id,
            parent_turn=parent_turn,
            forked=forked,
            name=name,
        )
        bind = getattr(used.crystal, "bind", None)
        ledger = Ledger(plan.wards, None if parent is None else parent.ledger)
        crystal = used.crystal if bind is None else bind()
        cell = Cell(plan, None, intent, context, crystal, used, ledger, self.services, parent, images)
        cell.around = self.around() if parent is None else parent.around
        summary = cantrip.folding.summary
        if summary is True:
            cell.summariser = (crystal, used)
        elif summary is not False:
            uses = self._crystals.find(summary)
            self.guard.learn(uses.crystal, cantrip.circle)
            cell.summariser = (uses.crystal, uses)
        return cell

    def _capability(self, circle: Circle) -> str:
        """What its entity is told of its language: for circles that are alike one text, and not some KB for each."""
        told = circle.medium, circle.definitions, Limits.under(circle.resolved)
        for alike, text in self._capabilities:
            if alike == told:
                return text
        chosen, definitions, limits = told
        text = medium(chosen).capability(definitions, limits)
        self._capabilities.append((told, text))
        return text

    def restored(self, entity_id: str, cantrip: Cantrip | None = None) -> Cell:
        """The cell of a root entity that has a log and no cell. Raises LoomError, EntityEnded."""
        header = self.loom.header(entity_id)
        if self.loom.is_over(entity_id):
            raise EntityEnded(f"entity {entity_id} has ended ({self.loom.state(entity_id)})")
        return self._bring_back(header, self.known(header, cantrip))

    async def deliver(self, entity_id: str, mail: Ticket | Nudge, cantrip: Cantrip | None = None) -> Cell:
        """Put mail into an entity's box, and bring it back from its log if it sleeps, with `cantrip`; its cell.

        It wakes with its mail, so that it has something to do and does not fall asleep again. Raises InvalidIntent for
        an intent that it does not take; as `restored` and `launch`.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self.is_open:  # else an entity that is not awake says so
            self.check_open()
        with anyio.CancelScope(shield=True):  # whoever has begun to send sends
            living = await self.settled(entity_id)
            cell = self.restored(entity_id, cantrip) if living is None else living
            self._put(mail, cell)
            if living is None:
                await self.launch(cell)
        return cell

    def _put(self, mail: Ticket | Nudge, cell: Cell) -> None:
        if isinstance(mail, Nudge):
            cell.nudge(mail)
            return
        if not cell.plan.lasting:
            raise InvalidIntent("send: this entity was cast and ends with its first intent; make one with invoke")
        self.check_taking()
        cell.promise(mail)
        cell.entity.cast(mail)

    async def settled(self, entity_id: str) -> Cell | None:
        """The cell of an entity that lives; None where it does not, or has just decided to sleep and now does."""
        while (cell := self.living.get(entity_id)) is not None and cell.falls_asleep:
            await cell.buried()
        return cell

    async def give_way(self, entity_id: str, cantrip: Cantrip) -> None:
        """Have an entity that lasts, and goes on with another cantrip than this one, come to rest and fall asleep."""
        while (cell := await self.settled(entity_id)) is not None and cell.plan.lasting:
            if interchangeable(cell.plan.cantrip, cantrip):
                return
            self.check_open()
            cell.entity.cast(GiveWay())
            await cell.buried()

    def turns(self, entity_id: str) -> anyio.Lock:
        """Whose turn it is to have an entity go on with a cantrip of his own."""
        return self._turns.setdefault(entity_id, anyio.Lock())

    async def launch(self, cell: Cell) -> None:
        """Start a root entity's cell. Raises RuntimeClosed, Held where another process runs it."""
        self.check_taking()
        self.cantrips.add(cell.plan.cantrip)
        self.living.add(cell)  # at once: whoever asks for the entity from now on has to find this cell
        if self.store.shared:
            await self._claim(cell)
        self._registry.cast(cell)
        try:
            await self._entities.start_child(cell.spec())
        except (NotRunning, ShuttingDown) as gone:
            self._leave(cell)
            raise RuntimeClosed(
                "the runtime closes, or its tree has given up: the reports of its supervisors say why"
            ) from gone
        except anyio.get_cancelled_exc_class():  # nobody would have it, so it ends; nobody is to think that it runs
            with anyio.CancelScope(shield=True):
                await cell.buried()
            raise
        except StartFailed:
            await cell.buried()
            if cell.outcome is None:  # else it was over before it was up
                raise self.guard.error(cell.error or cell.crashed()) from None

    async def claim_name(self, name: str) -> None:
        """Let no other process make an entity of that name until the one that is about to begin has ended or sleeps.

        Raises Held where another one does just that.
        """
        if self.store.shared:
            await self._writer.call(Claim(_lease_of(name)))

    async def _claim(self, cell: Cell) -> None:
        try:
            await self._writer.call(Claim(cell.entity_id))
        except BaseException as error:
            if isinstance(error, LoomError):
                cell.error = error
            self._leave(cell)
            cell.settle()  # some may have found it meanwhile, and wait
            raise

    async def terminate(self, cell: Cell, reason: str) -> None:
        """Stop an entity for good and wait until everything about that is written down."""
        cell.is_dismissed = True
        above = self._entities if cell.parent is None else cell.parent.children
        assert above is not None, "whoever has a child has a place for it"
        with contextlib.suppress(ChildNotFound, NotRunning):  # it may just have ended by itself
            await above.terminate_child(cell.supervisor, Shutdown(reason))
        await cell.buried()

    def known(self, header: Header, cantrip: Cantrip | None = None, crystal: Crystal | str | None = None) -> Cantrip:
        """The cantrip to go on with, and with that crystal if one is given: the given one, its own, or the only one of
        the same content. Raises LoomError.
        """
        living = self.living.get(header.entity_id)
        if cantrip is None and living is not None:
            cantrip = living.plan.cantrip
        found = cantrip or self.cantrips.of(header, any_crystal=crystal is not None)
        return found if crystal is None else found.with_crystal(crystal)

    def cut_short(self) -> Iterable[Header]:
        """The roots in the middle of an episode that nobody drives here."""
        for entity_id in self.loom.unfinished(idle=False):
            if self.living.get(entity_id) is None:
                header = self.loom.header(entity_id)
                if header.parent_entity is None:
                    yield header

    def begun_with(self, entity_id: str) -> IntentGiven | None:
        """Its first intent; None where its process was killed between its header and that."""
        records = self.loom.records(entity_id)
        return next((record for record in records if isinstance(record, IntentGiven)), None)

    async def abandon(self, entity_id: str, why: str = "nobody will go on with it") -> None:
        """End an entity that nobody drives, and what it spawned, in the loom. Raises RuntimeClosed."""
        if not self.is_open:
            raise RuntimeClosed(NOT_OPEN)
        at = moment().at
        over = [one for one in self.loom.subtree(entity_id) if not self.loom.is_over(one)]
        if self.store.shared:
            await self._writer.call(Claim(entity_id))
        await self.append([Ended(one, "abandoned", at, why) for one in over])
        self._writer.cast(Release(entity_id))

    def _leave(self, cell: Cell) -> None:
        """A cell has ended for good."""
        self.living.remove(cell)
        if cell.plan.lasting and cell.parent is None:
            if cell.is_over:
                self.cantrips.is_over(cell.entity_id)
            else:
                self.cantrips.falls_asleep(cell.entity_id, cell.plan.cantrip)
        if self.store.shared and cell.parent is None:
            self._writer.cast(Release(cell.entity_id))
            if cell.plan.name is not None:
                self._writer.cast(Release(_lease_of(cell.plan.name)))

    def _enter(self, cell: Cell) -> None:
        self.cantrips.add_carved(cell.plan.cantrip)
        self.living.add(cell)
        self._registry.cast(cell)

    def _child(self, parent: Cell, turn_id: str, child: Child, known: str | None) -> Cell:
        """The cell of a child: a new one or, after a crash, the one that runs, or one that goes on from its log."""
        if known is not None and (running := self.living.get(known)) is not None:
            return running
        if known is None or known not in self.loom.below(parent.entity_id):
            request = child.request
            return self.prepare(
                child.cantrip,
                request.intent,
                request.context,
                parent=parent,
                parent_turn=turn_id,
                entity_id=known,
                images=child.images,
            )
        cell = self._bring_back(self.loom.header(known), child.cantrip, parent, child)
        if self.loom.is_over(known):
            cell.is_over = True
            cell.outcome = outcome_of(self.loom.records(known), self.loom.usage_below(known))
        return cell

    def _bring_back(
        self, header: Header, cantrip: Cantrip, parent: Cell | None = None, child: Child | None = None
    ) -> Cell:
        begun = self.begun_with(header.entity_id)
        first: IntentGiven | AgentRequest | None = begun or (None if child is None else child.request)
        if first is None:
            raise LoomError(f"entity {header.entity_id} {NEVER_BEGAN}: abandon it, and cast again")
        cell = self.prepare(
            cantrip,
            first.intent,
            first.context,
            parent=parent,
            parent_turn=header.parent_turn,
            forked=header.forked,
            lasting=header.lasting,
            name=header.name,
            entity_id=header.entity_id,
            images=begun.images if begun is not None else NO_IMAGES if child is None else child.images,
        )
        cell.begun = True
        if (
            header.lasting and self.loom.state(header.entity_id) == "active"
        ):  # an episode is under way: let it be waited for
            cell.ticket = Ticket(first.intent, first.context, begun=True)
            cell.promise(cell.ticket)
        if header.forked and header.parent_turn is not None:
            cell.start = replay(cell.plan, self.loom.lineage(header.parent_turn), moment())
        cell.ledger.usage = self.loom.subtree_usage(header.entity_id)
        timeout = cell.plan.wards.timeout
        if timeout is not None:
            lived = time.time() - datetime.fromisoformat(header.at).timestamp()
            cell.until = anyio.current_time() + max(0.0, timeout - lived)
        return cell


def _lease_of(name: str) -> str:
    """What is claimed for a name: no entity's id, but a lease is on any text."""
    return f"name:{name}"


def put(intent: object, context: Any, images: tuple[Image, ...] = NO_IMAGES) -> tuple[str, Any, tuple[Image, ...]]:
    """Intent, context and images as an entity is given them: text, JSON, and what stood in either.

    Those of the intent come first; `images` are those that are known already. Raises InvalidIntent.
    """
    text, of_intent = said(intent, "intent is required: expected a text that says what to achieve")
    of_context = NO_IMAGES
    if not is_plain(context):
        try:
            context = pictured(context)
        except NotPlain as problem:
            raise InvalidIntent(
                f"context: expected data that JSON can say, pydantic models, dataclasses or images, got {problem}"
            ) from problem
        if isinstance(context, Pictured):
            context, of_context = context
    return text, context, (*images, *of_intent, *of_context)


def new_id() -> str:
    """An id that nobody has and that sorts by time (reading 20)."""
    return str(uuid_utils.uuid7())


def moment() -> Moment:
    """Now, and a fresh id."""
    return Moment(time.monotonic(), time.time(), new_id())
