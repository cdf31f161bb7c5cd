"""The supervision tree of one runtime: open and close it, and start and remove cells.

    Runtime         rest_for_one
    ├── loom        the one writer of the store
    ├── crystals    dynamic: an actor for each crystal
    ├── entities    dynamic: a cell for each loaded root entity
    ├── registry    watches every cell, and notifies callers when it ends
    ├── mail        loads the entities for which mail waits
    ├── scheduler   posts mail and casts entities when they are due
    └── retention   forgets what is older than it is kept, if `retention` is set

A crash of the loom actor restarts everything after it, because no entity may continue unrecorded. A crashed crystal
actor is restarted alone. Closing stops the scheduler, the mail actor and then the entities, last started first: a
one-shot entity is cancelled, and a long-lived entity is suspended.

`Runtime` and `Entity` are the public interfaces of this tree; entities reach it through `Services`.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import anyio
import structlog

from cantrip_actors.loom import (
    Duration,
    Forgotten,
    Held,
    Pruned,
    Store,
    Verified,
    Wanted,
    backup_loom,
    keep_for,
    open_store,
)
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.records import Ended, Header, Record
from cantrip_actors.runtime.cell import Cell, Dismissed, Services
from cantrip_actors.runtime.cell_tree import cell_spec
from cantrip_actors.runtime.cells import Cells
from cantrip_actors.runtime.core import NOT_OPEN, Core, Limits
from cantrip_actors.runtime.entity_actor import UNLOAD_WHEN_IDLE
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
from cantrip_actors.runtime.loom_writer import Forget, Keep, LoomActor, Release
from cantrip_actors.runtime.questions import Questions
from cantrip_actors.runtime.registry import RegistryActor
from cantrip_actors.runtime.requests import Requests
from cantrip_actors.runtime.retention import RetentionActor, prune
from cantrip_actors.runtime.scheduler import Scheduler, SchedulerActor
from cantrip_actors.runtime.snapshots import Snapshots
from cantrip_actors.runtime.upgrades import Upgrade
from cantrip_actors.terms.cantrip import Cantrip, interchangeable
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

__all__ = ["Tree"]

_log = structlog.get_logger("cantrip_actors.runtime")


class Tree(Core):
    """The tree of one runtime. See `Runtime` for what the arguments mean."""

    def __init__(
        self,
        url: str,
        cantrips: Sequence[Cantrip],
        limits: Limits,
        guard: Guard,
        snapshot_key: bytes | None = None,
        upgrade: Upgrade = "idle",
        *,
        repair: bool = False,
    ) -> None:
        super().__init__(cantrips, limits, guard, upgrade)
        self.bus = Bus()
        self.watchers = Watchers()
        self._url = url
        self._repair = repair
        self._system: ActorSystem | None = None
        self._registry = ActorRef()
        self._entities = SupervisorRef()
        self.inboxes = Inboxes(self, self._restore)
        self.questions = Questions(self, self.inboxes)
        self.requests = Requests(self, self.inboxes, self.bus)
        self.scheduler = Scheduler(self, self.inboxes)
        self.cells = Cells(self, self.inboxes.attach, lambda: self.services)
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self.services = Services(
            self.append,
            self.moment,
            self.guard,
            self.bus,
            self.watchers,
            self.crystals,
            self.questions.contact,
            self.questions.question,
            lambda: self.loom,
            self.cells.child,
            self._start_child,
            self._unload,
            self._keep,
            lambda: self.drains,
            self.inboxes.attach,
            self._end_below,
            self.living,
            lambda own: (own or limits.unattended) == "deny" and not self.requests.is_attended,
            limits.passivate_after,
            # a sandbox holds its data in plain text, and a snapshot cannot be redacted
            None if guard.at_rest else Snapshots(lambda: snapshot_key or self.store.key(), self._snapshot),
        )

    def _snapshot(self, digest: str) -> Blob | None:
        try:
            return self.store.blob(digest)
        except LoomError as error:  # programs can be run again without it
            _log.warning("a snapshot cannot be read", snapshot=digest, error=str(error))
            return None

    # Opening and closing

    async def open(self) -> None:
        """Open the loom and start the tree."""
        if self.was_opened:
            raise RuntimeClosed("a runtime is opened once: make another one with Runtime.open(…)")
        # opening may read a whole file, so it needs a thread; a loom in memory does not
        in_memory = self._url.startswith("memory:")
        opened = partial(open_store, self._url, repair=self._repair)
        store = opened() if in_memory else await anyio.to_thread.run_sync(opened)
        store.max_waiting = self.limits.max_waiting
        self.attach(store)
        try:
            self._system = await ActorSystem(reports=Reports(GuardedLogger(self.guard))).__aenter__()
            try:
                await self._system.start(ChildSpec("runtime", lambda: self._tree(store), restart="temporary"))
            except BaseException as error:  # most likely a cancellation: close the system
                await self._system.__aexit__(type(error), error, error.__traceback__)
                raise
        except BaseException:
            store.close()
            raise
        self.is_open = True

    async def drain(self, grace: float | None) -> bool:
        """Refuse new work, and wait for work under way; return whether all of it ended within `grace` seconds."""
        self.check_open()
        self.drains = True
        with anyio.move_on_after(grace) as waiting:
            await self.living.until(lambda: all(self._is_at_rest(cell) for cell in self.living if cell.parent is None))
        return not waiting.cancelled_caught

    def _is_at_rest(self, cell: Cell) -> bool:
        """Return whether a root entity is idle without an intent that a caller waits for, or waits for a person."""
        is_idle = cell.plan.lasting and cell.episode is None and not (cell.inbox and cell.inbox.awaited)
        return is_idle or cell.ending.is_set or cell.waits

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
        crystals, inboxes, scheduler, publish = self.crystals, self.inboxes, self.scheduler, self._publish
        return Supervisor(
            [
                ChildSpec(
                    "loom",
                    lambda: LoomActor(store, publish, inboxes.deliver, inboxes.load, scheduler.note),
                    ref=self.writer,
                ),
                ChildSpec("crystals", crystals.supervise, shutdown=math.inf, ref=crystals.supervisor),
                ChildSpec("entities", DynamicSupervisor, shutdown=math.inf, ref=self._entities),
                ChildSpec("registry", lambda: RegistryActor(self, self.leave), ref=self._registry),
                ChildSpec("mail", lambda: MailActor(inboxes, looks=store.shared), ref=inboxes.actor),
                ChildSpec("scheduler", lambda: SchedulerActor(scheduler, looks=store.shared), ref=scheduler.actor),
                *self._retention(store),
            ],
            strategy="rest_for_one",
        )

    def _retention(self, store: Store) -> list[ChildSpec[Any]]:
        rules = self.limits.retention
        if not any(kept_for is not None for kept_for in rules.values()):
            return []
        return [ChildSpec("retention", lambda: RetentionActor(store, rules, self.forget))]

    # The loom

    async def _keep(self, entity_id: str, data: bytes) -> None:
        await self.writer.call(Keep(entity_id, data))

    def recorded_events(self, cell: Cell) -> Sequence[EntityEvent]:
        """Return the events of all records of an entity."""
        records = self.loom.records(cell.entity_id) if self.loom.has(cell.entity_id) else ()
        return self.guard.redact_events(events_of(records, time.time()))

    def _publish(self, records: Sequence[Record]) -> None:
        """Publish the events of written records to subscribers."""
        if not self.bus:
            return
        events: list[EntityEvent] = []
        for event in self.guard.redact_events(events_of(records, time.time())):
            events.append(event)
            if isinstance(event, StepCompleteEvent) and event.terminated:
                cell = self.living.get(event.entity_id)
                if cell is not None and cell.outcome is not None:  # subscribers see no event after the end
                    result = self.guard.redactor.value(cell.outcome.result)
                    events.append(FinalResponseEvent(event.entity_id, event.at, result))
        self.bus.publish(events)

    # Entities

    def check_sendable(self, entity_id: str, cantrip: Cantrip | None, key: str | None, *, waits: bool) -> None:
        """Raise EntityEnded, InvalidIntent or LoomError if an entity that is not loaded here could not take an intent.

        `cantrip` is that of the caller's handle. An intent with a `key` may be a repeated one.
        """
        header = self.loom.header(entity_id)
        if not header.lasting:
            raise InvalidIntent("send: this entity was cast and ends with its first intent; make one with invoke")
        if self.loom.is_over(entity_id):
            if key is None:
                raise EntityEnded(f"entity {entity_id} has ended ({self.loom.state(entity_id)})")
            return
        if cantrip is not None and self.cantrips.own(entity_id) is None:
            self.cantrips.note_unloaded(entity_id, cantrip)
        if waits and not self.is_held(entity_id):
            self.find_cantrip(header)

    def lock(self, what: str) -> anyio.Lock:
        """Return the lock that lets one caller at a time make an entity, or give it another cantrip."""
        return self._locks.setdefault(what, anyio.Lock())

    def interrupted(self) -> Iterable[Header]:
        """Yield the headers of root entities that were at work and that no process runs; not of those that wait."""
        for entity_id in self.loom.unfinished(idle=False):
            if self.living.get(entity_id) is None:
                header = self.loom.header(entity_id)
                if header.parent_entity is None and not (self.is_held(entity_id) or self.is_waiting(entity_id)):
                    yield header

    # Cells

    async def launch(self, cell: Cell, *, lift: bool = False) -> None:
        """Start a root entity's cell.

        Raises RuntimeClosed; Held if another process runs it; without `lift`, Quarantined.
        """
        self.check_taking()
        self.cantrips.add(cell.plan.cantrip)
        self.living.add(cell)  # before the first await: all later callers must find this cell
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
            cell.end()  # other callers may have found the cell, and wait
            raise
        self._registry.cast(cell)
        try:
            await self._entities.start_child(cell_spec(cell))
        except (NotRunning, ShuttingDown) as gone:
            self.leave(cell)
            raise RuntimeClosed(
                "the runtime closes, restarts after a crash of its loom actor, or has given up: the reports of its "
                "supervisors say why"
            ) from gone
        except anyio.get_cancelled_exc_class():  # the start was cancelled, so wait until the cell has ended
            with anyio.CancelScope(shield=True):
                await cell.ending.wait()
            raise
        except StartFailed:
            await cell.ending.wait()
            if cell.outcome is None:  # otherwise the entity ended before its cell had started
                raise self.guard.error(cell.error or cell.crash_error()) from None

    async def _restore(self, entity_id: str) -> None:
        await self.launch(self.cells.restored(entity_id))

    async def _start_child(self, cell: Cell) -> None:
        self.cantrips.add_carved(cell.plan.cantrip)
        self.living.add(cell)
        self._registry.cast(cell)
        assert cell.parent is not None, "a child has a parent"
        assert cell.parent.children is not None, "an entity that may delegate has a place for children"
        await cell.parent.children.start_child(cell_spec(cell))

    def _unload(self, cell: Cell) -> None:
        self.living.remove(cell)
        self.living.leaving[cell.entity_id] = cell

    def leave(self, cell: Cell) -> None:
        """Remove a cell that has stopped permanently, and notify all tasks that wait for its end."""
        self.living.remove(cell)
        if self.living.leaving.get(cell.entity_id) is cell:
            del self.living.leaving[cell.entity_id]
        if cell.parent is None and (cell.plan.lasting or cell.wait.is_suspended):
            if cell.is_over or cell.is_for_episode:
                self.cantrips.forget(cell.entity_id)
            else:
                self.cantrips.note_unloaded(cell.entity_id, cell.plan.cantrip)
        if self.store.shared and cell.parent is None:
            self.writer.cast(Release(cell.entity_id))
            name = cell.plan.scoped_name
            if name is not None:
                self.writer.cast(Release(name_lease(name)))
        self.inboxes.detach(cell)
        cell.end()
        cell.note_wait()
        self.living.note_rest()

    async def adopt(self, entity_id: str, cantrip: Cantrip) -> None:
        """Give a long-lived entity another cantrip: unload it once it is idle, and load it with this one.

        Raises Held, LoomError, EntityEnded.
        """
        async with self.lock(entity_id):
            cell = self.living.get(entity_id)
            if cell is not None and cell.plan.lasting:
                if interchangeable(cell.plan.cantrip, cantrip) and cell.plan.cantrip.name == cantrip.name:
                    return
                self.check_open()
                cell.entity.send(UNLOAD_WHEN_IDLE)
                await cell.ending.wait()
            if self.living.get(entity_id) is None:
                await self.launch(self.cells.restored(entity_id, cantrip))

    async def terminate(self, cell: Cell, reason: str) -> None:
        """End an entity, and wait until its end is recorded."""
        above = self._entities if cell.parent is None else cell.parent.children
        assert above is not None, "a parent has a place for its children"
        try:
            await above.terminate_child(cell.supervisor, Shutdown(Dismissed(reason)))
        except (ChildNotFound, NotRunning):  # it is about to start and will read its mail, or it has just ended
            if self.loom.has(cell.entity_id):
                with contextlib.suppress(EntityEnded):
                    await self.inboxes.post(self.inboxes.mail(cell.entity_id, "stop", {"reason": reason}))
        await cell.ending.wait()

    async def _end_below(self, cell: Cell) -> None:
        """Record the ends of an entity's unfinished children that are not loaded, and of theirs."""
        at, loom = self.moment().at, self.loom
        below = [one for child in loom.below(cell.entity_id) for one in loom.subtree(child)]
        over = [one for one in below if self.living.get(one) is None and not loom.is_over(one)]
        if over:
            await self.append([Ended(one, "parent_ended", at, "its parent ended") for one in over])

    async def forget(self, wanted: Wanted) -> Forgotten:
        """Forget entities. Raises RuntimeClosed, and LoomError if one has not ended or a fork is loaded."""
        self.check_open()
        for entity_id in wanted.entities:
            cell = self.living.get(entity_id) or self.living.leaving.get(entity_id)
            if cell is not None and not self.loom.is_over(entity_id):
                raise LoomError(f"entity {entity_id} is loaded: stop it first, and then forget it")
            if cell is not None:  # it has just ended
                await cell.ending.wait()
        forgotten: Forgotten = await self.writer.call(Forget(wanted, self._runs))
        return forgotten

    def _runs(self, entity_id: str) -> bool:
        return self.living.get(entity_id) is not None and not self.loom.is_over(entity_id)

    async def prune(self, older_than: Duration, *, dry_run: bool, tenant: str | None = None) -> Pruned:
        """Forget the entities that ended longer ago than that, and rewrite the loom."""
        self.check_open()
        pruned = await prune(self.store, keep_for(older_than), self.forget, dry_run=dry_run, tenant=tenant)
        if pruned.entities and not dry_run:
            await self.writer.call(Forget(Wanted([])))
        return pruned

    async def backup(self, file: str | os.PathLike[str]) -> Verified:
        """Copy the loom to a file, in a thread."""
        self.check_open()
        return await anyio.to_thread.run_sync(backup_loom, self._url, file)

    async def abandon(self, entity_id: str, why: str = "nobody will continue it") -> None:
        """End an entity that no process runs, and its children, in the loom. Raises RuntimeClosed, Held."""
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
    """Return the text on which a lease claims a name; it cannot be an entity's id."""
    return f"name:{name}"
