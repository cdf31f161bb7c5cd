"""The tree of one runtime: opening and closing it, and how cells get into it and out of it.

    Runtime         rest_for_one
    ├── loom        the one writer of the store
    ├── crystals    dynamic: an actor for each crystal
    ├── entities    dynamic: a cell for each loaded root entity
    ├── registry    watches every cell, and tells callers of their ends
    └── mail        loads the entities for which mail waits

A loom that crashes takes everything after it along, since nothing may continue unrecorded; a crystal that crashes is
restarted alone. Closing stops the mail actor and then the entities, last started first: a one-shot entity is cancelled,
a long-lived one is just driven no further.

`Runtime` and `Entity` are the faces that users see of this; entities reach it through `Services`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from contextvars import Context, copy_context
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import anyio
import structlog
import uuid_utils
from anyio.lowlevel import EventLoopToken, current_token

from cantrip_actors.loom import Held, Loom, Store, open_store
from cantrip_actors.machine.budget import NO_BUDGET, Budget
from cantrip_actors.machine.events import Moment
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Ended, Header, Record
from cantrip_actors.runtime.cell import Cell, Dismissed, Services
from cantrip_actors.runtime.cells import Cells
from cantrip_actors.runtime.context_variables import Around, around
from cantrip_actors.runtime.crystal_pool import Crystals
from cantrip_actors.runtime.entity_actor import GIVE_WAY
from cantrip_actors.runtime.events import (
    Bus,
    EntityEvent,
    FinalResponseEvent,
    StepCompleteEvent,
    Watchers,
    events_of,
)
from cantrip_actors.runtime.guard import Guard, GuardedLogger
from cantrip_actors.runtime.inboxes import Inboxes, MailActor
from cantrip_actors.runtime.known_cantrips import KnownCantrips
from cantrip_actors.runtime.loading import cantrip_in_force
from cantrip_actors.runtime.loom_writer import Append, Claim, Keep, LoomActor, Release
from cantrip_actors.runtime.questions import Questions
from cantrip_actors.runtime.registry import Living, RegistryActor
from cantrip_actors.runtime.snapshots import Snapshots
from cantrip_actors.terms.cantrip import Cantrip, Crystal, interchangeable
from cantrip_actors.terms.errors import EntityEnded, InvalidIntent, LoomError, RuntimeClosed
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

__all__ = ["Limits", "Tree"]

NOT_OPEN = "the runtime is not open: use it inside `async with Runtime.open(…) as runtime`"

ELSEWHERE = (
    "the runtime was opened in another event loop: open one in each, or have a thread call it there, with "
    "anyio.from_thread, asyncio.run_coroutine_threadsafe or Runtime.blocking"
)

_log = structlog.get_logger("cantrip_actors.runtime")


class Limits(NamedTuple):
    """What `Runtime.open` was told about how long and how much: seconds, and numbers of mails."""

    passivate_after: float = 300.0
    max_waiting: int = 1000
    keep_keys: float = 604_800.0


class _Opened(NamedTuple):
    """What an opened runtime has: its loom, its event loop, and the context variables of the task that opened it."""

    store: Store
    loom: Loom
    home: EventLoopToken
    outside: Context


class Tree:
    """The tree of one runtime. See `Runtime` for what the arguments mean."""

    def __init__(
        self,
        url: str,
        cantrips: Iterable[Cantrip],
        limits: Limits,
        guard: Guard,
        snapshot_key: bytes | None = None,
    ) -> None:
        self.living = Living()
        self.limits = limits
        self.guard = guard
        self.bus = Bus()
        self.watchers = Watchers()
        self.is_open = False
        self._drains = False
        self._url = url
        self._opened: _Opened | None = None
        self._system: ActorSystem | None = None
        self.writer = ActorRef()
        self._registry = ActorRef()
        self._entities = SupervisorRef()
        self.crystals = Crystals(SupervisorRef())
        self.cantrips = KnownCantrips(cantrips)
        self.inboxes = Inboxes(self)
        self.cells = Cells(self)
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self.services = Services(
            self.append,
            self.moment,
            self.guard,
            self.bus,
            self.watchers,
            self.crystals,
            Questions(self),
            lambda: self.loom,
            self.cells.child,
            self._enter,
            self._unload,
            self._keep,
            lambda: self._drains,
            limits.passivate_after,
            # what a program has seen is in its sandbox as it was, and no snapshot of it could be redacted
            None if guard.at_rest else Snapshots(lambda: snapshot_key or self.store.key(), self._snapshot),
        )

    def _snapshot(self, digest: str) -> Blob | None:
        try:
            return self.store.blob(digest)
        except LoomError as error:  # a snapshot is never needed
            _log.warning("a snapshot cannot be read", snapshot=digest, error=str(error))
            return None

    # Opening and closing

    async def open(self) -> None:
        """Open the loom and put up the tree."""
        if self._opened is not None:
            raise RuntimeClosed("a runtime is opened once: make another one with Runtime.open(…)")
        # a file may have to be read to its end; what is only memory is not worth a thread
        in_memory = self._url.startswith("memory:")
        store = open_store(self._url) if in_memory else await anyio.to_thread.run_sync(open_store, self._url)
        store.max_waiting = self.limits.max_waiting
        self._opened = _Opened(store, Loom(store, self.append), current_token(), copy_context())
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

    def around(self) -> Around:
        """Return the context variables of the caller that are others than the runtime's."""
        return around(Context() if self._opened is None else self._opened.outside)

    def check_open(self) -> None:
        """Raise RuntimeClosed if it is not open, or not in this event loop."""
        if not self.is_open:
            raise RuntimeClosed(NOT_OPEN)
        if self._opened is None or current_token() != self._opened.home:
            raise RuntimeClosed(ELSEWHERE)

    def check_taking(self) -> None:
        """Raise RuntimeClosed if it is not open here, or takes nothing new any more."""
        self.check_open()
        if self._drains:
            raise RuntimeClosed("the runtime is about to close: it takes nothing new")

    async def drain(self, grace: float | None) -> bool:
        """Take nothing new, and wait for what is under way; return whether all of it ended within `grace` seconds."""
        self.check_open()
        self._drains = True
        with anyio.move_on_after(grace) as waiting:
            await self.inboxes.drain()
            for cell in self.living:
                if not cell.plan.lasting:
                    await cell.ending.wait()
        return not waiting.cancelled_caught

    async def close(self, kind: Any, error: BaseException | None, where: Any) -> None:
        """Stop everything, last started first, and close the loom."""
        assert self._system is not None
        self.is_open = False
        try:
            await self._system.__aexit__(kind, error, where)
        finally:
            for cell in self.living:
                self.living.remove(cell)
                cell.end()
            self.inboxes.close()
            self.bus.close()
            self.store.close()

    def _tree(self, store: Store) -> Supervisor:
        crystals, inboxes = self.crystals, self.inboxes
        return Supervisor(
            [
                ChildSpec("loom", lambda: LoomActor(store, self._tell, inboxes.deliver, inboxes.load), ref=self.writer),
                ChildSpec("crystals", crystals.supervise, shutdown=math.inf, ref=crystals.supervisor),
                ChildSpec("entities", DynamicSupervisor, shutdown=math.inf, ref=self._entities),
                ChildSpec("registry", lambda: RegistryActor(self), ref=self._registry),
                ChildSpec("mail", lambda: MailActor(inboxes, looks=store.shared), ref=inboxes.actor),
            ],
            strategy="rest_for_one",
        )

    # The loom

    @property
    def store(self) -> Store:
        """The store of the loom. Raises RuntimeClosed before it is opened."""
        if self._opened is None:
            raise RuntimeClosed(NOT_OPEN)
        return self._opened.store

    @property
    def loom(self) -> Loom:
        """The loom. Raises RuntimeClosed before it is opened."""
        if self._opened is None:
            raise RuntimeClosed(NOT_OPEN)
        return self._opened.loom

    def moment(self, budget: Budget = NO_BUDGET) -> Moment:
        """Return the present moment, with an id that nobody has and that sorts by time (reading 20)."""
        return Moment(time.monotonic(), time.time(), str(uuid_utils.uuid7()), budget)

    async def append(
        self, records: Sequence[Record], taken: Sequence[tuple[int, int]] = (), post: Sequence[Mail] = ()
    ) -> None:
        """Have the loom's actor write records, take mail and post mail; it is durable when this returns."""
        kept = self.guard.kept(records)
        kept_mail = [self.guard.kept_mail(mail) for mail in post] if post else ()
        try:
            await self.writer.call(Append(kept, taken, kept_mail))
        except NotRunning as gone:
            raise RuntimeClosed(NOT_OPEN) from gone

    async def _keep(self, entity_id: str, data: bytes) -> None:
        await self.writer.call(Keep(entity_id, data))

    async def claim(self, what: str, *, lift: bool = False) -> None:
        """Let no other process run an entity, or make one with that name (`name:…`). Raises Held, Quarantined."""
        if self.store.shared:
            await self.writer.call(Claim(what, lift))

    def is_held(self, entity_id: str) -> bool:
        """Return whether another process runs an entity."""
        return self.store.shared and self.living.get(entity_id) is None and self.store.is_held(entity_id)

    def told(self, cell: Cell) -> Sequence[EntityEvent]:
        """Return the events of what is recorded of an entity."""
        records = self.loom.records(cell.entity_id) if self.loom.has(cell.entity_id) else ()
        return self.guard.shown(events_of(records, time.time()))

    def _tell(self, records: Sequence[Record]) -> None:
        """Show subscribers what has been written."""
        if not self.bus:
            return
        events: list[EntityEvent] = []
        for event in self.guard.shown(events_of(records, time.time())):
            events.append(event)
            if isinstance(event, StepCompleteEvent) and event.terminated:
                cell = self.living.get(event.entity_id)
                if cell is not None and cell.outcome is not None:  # after its end nothing would be seen of it
                    result = self.guard.redactor.value(cell.outcome.result)
                    events.append(FinalResponseEvent(event.entity_id, event.at, result))
        self.bus.publish(events)

    # Entities

    def known(self, header: Header, cantrip: Cantrip | None = None, crystal: Crystal | str | None = None) -> Cantrip:
        """Return the cantrip to continue with: the given one, the entity's own, or the only one of the same content.

        With `crystal`, that one is its crystal. Raises LoomError.
        """
        entity_id = header.entity_id
        living = self.living.get(entity_id)
        if cantrip is None:
            own = None if living is None else living.plan.cantrip
            in_force = cantrip_in_force(self.loom, header)
            cantrip = own or self.cantrips.of(entity_id, in_force, any_crystal=crystal is not None)
        return cantrip if crystal is None else cantrip.with_crystal(crystal)

    def is_clear(self, header: Header) -> bool:
        """Return whether the cantrip that an entity works with is known here, and which of several it is."""
        return self.cantrips.is_clear(header.entity_id, cantrip_in_force(self.loom, header))

    def check_sendable(self, entity_id: str, cantrip: Cantrip | None, key: str | None, *, waits: bool) -> None:
        """Raise EntityEnded, InvalidIntent or LoomError if nobody could take an intent for an entity not loaded here.

        `cantrip` is the one that the caller's handle knows. With a `key` the intent may be one that was sent before.
        """
        header = self.loom.header(entity_id)
        if not header.lasting:
            raise InvalidIntent("send: this entity was cast and ends with its first intent; make one with invoke")
        if self.loom.is_over(entity_id):
            if key is None:
                raise EntityEnded(f"entity {entity_id} has ended ({self.loom.state(entity_id)})")
        elif cantrip is not None and self.cantrips.own(entity_id) is None:
            self.cantrips.unloads(entity_id, cantrip)
        elif waits and not self.is_held(entity_id):
            self.known(header)

    def root_of(self, entity_id: str) -> str:
        """Return the root entity of the tree that an entity belongs to. Raises LoomError."""
        cell = self.living.get(entity_id)
        if cell is not None:
            return cell.root.entity_id
        header = self.loom.header(entity_id)
        return entity_id if header.parent_entity is None else self.root_of(header.parent_entity)

    def name_of(self, entity_id: str) -> str | None:
        """Return the name under which an entity was invoked, if there is one."""
        cell = self.living.get(entity_id)
        if cell is not None:
            return cell.plan.name
        return self.loom.header(entity_id).name if self.loom.has(entity_id) else None

    def lock(self, what: str) -> anyio.Lock:
        """Return the lock under which one caller at a time makes an entity, or gives it another cantrip."""
        return self._locks.setdefault(what, anyio.Lock())

    def interrupted(self) -> Iterable[Header]:
        """Yield the headers of the roots in the middle of an episode that no process runs."""
        for entity_id in self.loom.unfinished(idle=False):
            if self.living.get(entity_id) is None:
                header = self.loom.header(entity_id)
                if header.parent_entity is None and not self.is_held(entity_id):
                    yield header

    # Cells

    async def launch(self, cell: Cell, *, lift: bool = False) -> None:
        """Start a root entity's cell.

        Raises RuntimeClosed; Held if another process runs it; without `lift`, Quarantined.
        """
        self.check_taking()
        self.cantrips.add(cell.plan.cantrip)
        self.living.add(cell)  # at once: everybody who asks for the entity from now on has to find this cell
        if cell.plan.lasting:
            self.inboxes.attach(cell)
        try:
            leaving = self.living.leaving.get(cell.entity_id)
            if leaving is not None:
                await leaving.ending.wait()
            await self.claim(cell.entity_id, lift=lift)
        except BaseException as error:
            cell.error = error if isinstance(error, LoomError) else None
            self.living.remove(cell)
            self.inboxes.detach(cell)
            cell.end()  # some may have found it meanwhile, and wait
            raise
        self._registry.cast(cell)
        try:
            await self._entities.start_child(cell.spec())
        except (NotRunning, ShuttingDown) as gone:
            self.leave(cell)
            raise RuntimeClosed(
                "the runtime closes, restarts after a crash of its loom actor, or has given up: the reports of its "
                "supervisors say why"
            ) from gone
        except anyio.get_cancelled_exc_class():  # nobody would have it, so it ends; nobody is to think that it runs
            with anyio.CancelScope(shield=True):
                await cell.ending.wait()
            raise
        except StartFailed:
            await cell.ending.wait()
            if cell.outcome is None:  # else it was over before it was up
                raise self.guard.error(cell.error or cell.crashed()) from None

    def _enter(self, cell: Cell) -> None:
        self.cantrips.add_carved(cell.plan.cantrip)
        self.living.add(cell)
        self._registry.cast(cell)

    def _unload(self, cell: Cell) -> None:
        self.living.remove(cell)
        self.living.leaving[cell.entity_id] = cell

    def leave(self, cell: Cell) -> None:
        """Forget a cell that has ended for good, and tell everybody who waits for that."""
        self.living.remove(cell)
        if self.living.leaving.get(cell.entity_id) is cell:
            del self.living.leaving[cell.entity_id]
        if cell.plan.lasting and cell.parent is None:
            if cell.is_over:
                self.cantrips.is_over(cell.entity_id)
            else:
                self.cantrips.unloads(cell.entity_id, cell.plan.cantrip)
        if self.store.shared and cell.parent is None:
            self.writer.cast(Release(cell.entity_id))
            if cell.plan.name is not None:
                self.writer.cast(Release(name_lease(cell.plan.name)))
        self.inboxes.detach(cell)
        cell.end()

    async def adopt(self, entity_id: str, cantrip: Cantrip) -> None:
        """Have a long-lived entity work with this cantrip from now on: it is unloaded once it is idle, and loaded anew.

        Raises Held, LoomError, EntityEnded.
        """
        async with self.lock(entity_id):
            cell = self.living.get(entity_id)
            if cell is not None and cell.plan.lasting:
                if interchangeable(cell.plan.cantrip, cantrip):
                    return
                self.check_open()
                cell.entity.send(GIVE_WAY)
                await cell.ending.wait()
            if self.living.get(entity_id) is None:
                await self.launch(self.cells.restored(entity_id, cantrip))

    async def terminate(self, cell: Cell, reason: str) -> None:
        """Stop an entity for good, and wait until everything about that is recorded."""
        above = self._entities if cell.parent is None else cell.parent.children
        assert above is not None, "a parent has a place for its children"
        try:
            await above.terminate_child(cell.supervisor, Shutdown(Dismissed(reason)))
        except (ChildNotFound, NotRunning):  # it is about to start, and reads its mail; or it has just ended by itself
            if self.loom.has(cell.entity_id):
                with contextlib.suppress(EntityEnded):
                    await self.inboxes.post(self.inboxes.mail(cell.entity_id, "stop", {"reason": reason}))
        await cell.ending.wait()

    async def abandon(self, entity_id: str, why: str = "nobody will continue it") -> None:
        """End an entity that no process runs, and what it spawned, in the loom. Raises RuntimeClosed, Held."""
        if not self.is_open:
            raise RuntimeClosed(NOT_OPEN)
        at = self.moment().at
        over = [one for one in self.loom.subtree(entity_id) if not self.loom.is_over(one)]
        await self.claim(entity_id, lift=True)
        if self.living.get(entity_id) is not None:
            raise Held(f"entity {entity_id} is being loaded: stop it instead")
        await self.append([Ended(one, "abandoned", at, why) for one in over])
        self.writer.cast(Release(entity_id))


def name_lease(name: str) -> str:
    """Return what is claimed for a name: no entity's id, but a lease is on any text."""
    return f"name:{name}"
