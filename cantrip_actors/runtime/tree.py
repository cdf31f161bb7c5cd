"""The supervision tree of one runtime: open and close it, and start and remove cells.

    Runtime         rest_for_one
    ├── loom        the one writer of the store
    ├── crystals    dynamic: an actor for each crystal
    ├── servers     dynamic: a supervised connection to each server of tools
    ├── entities    dynamic: a cell for each loaded root entity
    ├── registry    watches every cell, and notifies callers when it ends
    ├── mail        loads the entities for which mail waits
    ├── scheduler   posts mail and casts entities when they are due
    ├── node        takes over entities that no living node runs, if this runtime has joined
    └── retention   forgets entities that ended longer ago than `retention` keeps them, if it is set

A crash of the loom actor restarts everything after it, because no entity may continue unrecorded. A crashed crystal
actor is restarted alone. Closing stops the scheduler, the mail actor and then the entities, last started first: a
one-shot entity is cancelled, and a long-lived entity is suspended.

`Runtime` and `Entity` are the public interfaces of this tree; entities reach it through `Services`.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import anyio

from cantrip_actors.crystal.images import find_refused_file
from cantrip_actors.loom import (
    Duration,
    EntityFacts,
    Forgotten,
    Held,
    Pruned,
    SealKey,
    Store,
    Verified,
    Wanted,
    backup_loom,
    keep_for,
    mark_gone,
    name_lease,
    open_store,
)
from cantrip_actors.machine.node import DrainBegan, Suspended
from cantrip_actors.machine.project import Life
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.records import Ended, Header, Record
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.circles.snapshots import Snapshots
from cantrip_actors.runtime.circles.tool_servers import ServerInUse, ToolServers, read_recorded_circle
from cantrip_actors.runtime.entity.cell import Cell, Dismissed, Services
from cantrip_actors.runtime.entity.cell_tree import make_cell_spec
from cantrip_actors.runtime.entity.cells import Cells
from cantrip_actors.runtime.entity.entity_actor import UNLOAD_WHEN_IDLE
from cantrip_actors.runtime.entity.registry import RegistryActor
from cantrip_actors.runtime.entity.upgrades import Upgrade
from cantrip_actors.runtime.events.events import (
    Bus,
    EntityEvent,
    FinalResponseEvent,
    ServerChangedEvent,
    StepCompleteEvent,
    Watchers,
    make_events,
)
from cantrip_actors.runtime.events.instrument import Instrument
from cantrip_actors.runtime.loom.core import NOT_OPEN, Core, Limits
from cantrip_actors.runtime.loom.guard import Guard, GuardedLogger
from cantrip_actors.runtime.loom.loom_writer import Forget, Keep, LoomWriter, Release, is_outage
from cantrip_actors.runtime.loom.retention import RetentionActor, prune
from cantrip_actors.runtime.mail.inboxes import Inboxes, MailActor
from cantrip_actors.runtime.mail.questions import Questions
from cantrip_actors.runtime.nodes.membership import Membership, Node
from cantrip_actors.runtime.nodes.node import NodeActor, ends_here, join
from cantrip_actors.runtime.people.requests import Requests
from cantrip_actors.runtime.time.scheduler import Scheduler, SchedulerActor
from cantrip_actors.terms.cantrip import Cantrip, is_interchangeable
from cantrip_actors.terms.errors import (
    CantripUnknown,
    EntityEnded,
    InvalidFile,
    InvalidIntent,
    LoomError,
    RuntimeClosed,
)
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import select_files
from cantrip_actors.terms.queue import Queue
from cantrip_actors.terms.tool_server import Changed
from cantrip_actors.terms.wrapper import GateCall
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

_log = get_logger("cantrip_actors.runtime")


class Tree(Core):
    """The tree of one runtime. `Runtime` documents the arguments."""

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
        seal_key: SealKey | None = None,
        instrument: Instrument | None = None,
        node: Node | None = None,
        queues: Sequence[Queue] = (),
    ) -> None:
        super().__init__(cantrips, limits, guard, upgrade, instrument)
        self._node = node
        self._snapshot_key = snapshot_key
        self._own_key = secrets.token_bytes(32)
        self.bus = Bus()
        self.watchers = Watchers(instrument)
        self._url = url
        self.seal_key = seal_key
        self.opening: Callable[[], Store] = partial(open_store, url, repair=repair, seal_key=seal_key)
        self._system: ActorSystem | None = None
        self._registry = ActorRef()
        self._entities = SupervisorRef()
        self.inboxes = Inboxes(self, self._restore)
        self.questions = Questions(self, self.inboxes)
        self.requests = Requests(self, self.inboxes, self.bus)
        self.tool_servers = ToolServers(
            self._report_progress, self.requests.elicitations.elicit, self._report_change, self._report_fact
        )
        self.scheduler = Scheduler(self, self.inboxes, queues)
        self.living.on_add = self.scheduler.queues.note
        self.cells = Cells(self, self.tool_servers, lambda: self.services)
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self.services = Services(
            self.append,
            self.make_moment,
            self.guard,
            self.bus,
            self.watchers,
            self.crystals,
            self.questions.contact,
            self.questions.make_question,
            self,
            self.cells.get_child_cell,
            self._start_child,
            self._unload,
            self._keep,
            lambda: self.is_draining,
            self.inboxes.attach,
            self._end_below,
            self.living,
            lambda own: (own or limits.unattended) == "deny" and not self.requests.is_attended,
            limits.passivate_after if node is None else node.passivate_after,
            # a sandbox holds its data in plain text, and a snapshot cannot be redacted
            None if guard.at_rest else Snapshots(lambda: snapshot_key or self.store.key(), self._read_snapshot),
        )

    def _report_progress(self, call: GateCall, text: str) -> None:
        """Report a tool's progress to watchers."""
        cell = self.living.get(call.entity_id)
        if cell is not None and cell.stream is not None and call.call_id is not None:
            cell.services.watchers.publish(cell.stream.progress(call.call_id, text))

    def _report_change(self, server: ServerInUse, what: Changed) -> None:
        """Publish, for each loaded entity that has a server, that one of the server's lists has changed."""
        if self.bus:
            name, at = server.server.name, time.time()
            users = [cell.entity_id for cell in self.living if server in cell.crystal.servers]
            self.bus.publish([ServerChangedEvent(one, at, name, what) for one in users])

    def derive_key(self, purpose: str) -> bytes:
        """Return a key derived from the key that seals snapshots; without one, from a key of this process."""
        secret = self._snapshot_key or self.store.key() or self._own_key
        return hmac.digest(secret, purpose.encode(), "sha256")

    def _read_snapshot(self, digest: str) -> Blob | None:
        try:
            return self.store.blob(digest)
        except LoomError as error:  # programs can be run again without it
            _log.warning("a snapshot cannot be read", snapshot=digest, error=str(error))
            return None

    @property
    def system(self) -> ActorSystem:
        """The actor system. Raises RuntimeClosed before it is opened."""
        if self._system is None:
            raise RuntimeClosed(NOT_OPEN)
        return self._system

    @property
    def url(self) -> str:
        """The loom's URL, with its password."""
        return self._url

    @property
    def store_kind(self) -> str:
        """The first part of the loom's URL."""
        return self._url.partition(":")[0]

    # Opening and closing

    async def open(self) -> None:
        """Open the loom and start the tree."""
        if self.was_opened:
            raise RuntimeClosed("a runtime is opened once: make another one with Runtime.open(…)")
        # opening may read a whole file, so it needs a thread; a loom in memory does not
        in_memory = self._url.startswith("memory:")
        store = self.opening() if in_memory else await anyio.to_thread.run_sync(self.opening)
        store.max_waiting = self.limits.max_waiting
        self.attach(store)
        if self.instrument is not None:
            self.instrument.attach(self)
        try:
            if self._node is not None:
                self._check_node(store, self._node)
                labels = self._node.labels.items()
                offered = [one for one in self.cantrips.given if one.needs.items() <= labels]
                self.membership = join(self._node, self, offered)
            await self.scheduler.queues.declare()
            self._system = await ActorSystem(reports=Reports(GuardedLogger(self.guard))).__aenter__()
            self._system.on_end = self._end_cells
            if self.instrument is not None:
                self._system.sinks.append(self.instrument.supervised)
            self.is_open = True  # the first search for mail, as soon as its actor starts, may load entities
            try:
                await self._system.start(ChildSpec("runtime", lambda: self._make_tree(store), restart="temporary"))
            except BaseException as error:  # most likely a cancellation: close the system
                self.is_open = False
                await self._system.__aexit__(type(error), error, error.__traceback__)
                raise
        except BaseException:
            store.close()
            raise

    def _check_node(self, store: Store, node: Node) -> None:
        """Raise LoomError if a runtime cannot join (N-07)."""
        why = store.can_join()
        if why:
            raise LoomError(f'node "{node.name}" cannot join the loom: {why}')
        coded = [one.name or one.id for one in self.cantrips.given if one.circle.medium != "tools"]
        if coded and self._snapshot_key is None and store.expires and not self.guard.at_rest:
            raise LoomError(
                f'node "{node.name}" cannot join the loom: cantrip {coded[0]} has a code circle, and its snapshots '
                "need a key that all nodes have: give the same snapshot_key to each Runtime.open"
            )

    async def drain(self, grace: float | None) -> bool:
        """Refuse new work, and wait for running work; return whether all of it ended within `grace` seconds."""
        self.check_open()
        self.is_draining = True
        if self.membership is not None:
            return await self._hand_over(self.membership, grace)
        with anyio.move_on_after(grace) as waiting:
            await self.living.wait_until(
                lambda: all(self._is_at_rest(cell) for cell in self.living if cell.parent is None)
            )
        return not waiting.cancelled_caught

    async def _hand_over(self, membership: Membership, grace: float | None) -> bool:
        """Suspend all entities, running ones between two turns; return whether all are suspended.

        `grace` is the most seconds to wait; None means the node's setting.
        """
        membership.advance(DrainBegan())
        self.living.ends_here = partial(ends_here, membership)
        self.living.is_handing_over = True
        with anyio.move_on_after(membership.node.grace if grace is None else grace) as waiting:
            async with anyio.create_task_group() as tasks:
                for cell in self.living:
                    if cell.parent is None:
                        tasks.start_soon(self._suspend, cell)
            await self.append(())  # earlier records and releases are in the store
        return not waiting.cancelled_caught

    async def _suspend(self, cell: Cell) -> None:
        """Suspend an entity, once its whole tree is between two turns, and wait until it is unloaded."""
        await self.living.wait_until(lambda: cell.ending.is_set or self._may_be_suspended(cell))
        if not cell.ending.is_set:
            cell.wait.is_suspended = True
            with contextlib.suppress(ChildNotFound, NotRunning):  # it has just ended
                await self._entities.terminate_child(cell.supervisor, Shutdown("handed over"))
            await cell.ending.wait()

    def _may_be_suspended(self, cell: Cell) -> bool:
        """Return whether suspending an entity and its children would lose no work."""
        if cell.ending.is_set or cell.wait.kind in ("person", "node") or self.questions.find_asked(cell.entity_id):
            return True
        if cell.wait.kind == "children":
            return all(self._may_be_suspended(one) for one in self.living.list_children(cell))
        return cell.plan.lasting and cell.episode is None

    def _is_at_rest(self, cell: Cell) -> bool:
        """Return whether a root entity is idle without an intent that a caller waits for, or can be suspended."""
        is_idle = cell.plan.lasting and cell.episode is None and not (cell.inbox and cell.inbox.awaited)
        return is_idle or cell.ending.is_set or self._waits_in_vain(cell)

    def _waits_in_vain(self, cell: Cell) -> bool:
        """Return whether an entity waits for something that no work here leads to: it continues from its log.

        It waits for a person, for a posted query, for children that all wait in vain, or for the answer of an entity
        that waits in vain or is not loaded here.
        """
        asked = self.questions.find_asked(cell.entity_id)
        if asked is not None:
            other = self.living.get(asked)
            return other is None or self._waits_in_vain(other)
        below = self.living.list_children(cell) if cell.wait.kind == "children" else ()
        return cell.can_suspend or (bool(below) and all(map(self._waits_in_vain, below)))

    async def close(self, kind: Any, error: BaseException | None, where: Any) -> None:
        """Stop everything, last started first, and close the loom."""
        assert self._system is not None
        self.is_open = False
        self.living.is_handing_over = self.membership is not None
        for cell in self.living:
            cell.wait.is_suspended |= cell.parent is None and self._waits_in_vain(cell)
        try:
            await self._system.__aexit__(kind, error, where)
        finally:
            self.scheduler.queues.close()
            self.inboxes.close()
            self.bus.close()
            self.store.close()

    def _end_cells(self) -> None:
        """Notify all tasks that wait for an entity: no actor runs any more, so nothing else would."""
        self.is_open = False
        for cell in self.living:
            self.living.remove(cell)
            cell.end()

    def _make_tree(self, store: Store) -> Supervisor:
        crystals, inboxes, scheduler, servers = self.crystals, self.inboxes, self.scheduler, self.tool_servers
        return Supervisor(
            [
                ChildSpec("loom", lambda: self._make_writer(store), ref=self.writer),
                ChildSpec("crystals", crystals.supervise, shutdown=math.inf, ref=crystals.supervisor),
                ChildSpec("servers", servers.supervise, shutdown=math.inf, ref=servers.supervisor),
                ChildSpec("entities", DynamicSupervisor, shutdown=math.inf, ref=self._entities),
                ChildSpec("registry", lambda: RegistryActor(self, self.remove_cell), ref=self._registry),
                ChildSpec("mail", lambda: MailActor(inboxes, store), ref=inboxes.actor),
                ChildSpec("scheduler", lambda: SchedulerActor(scheduler, polls=store.shared), ref=scheduler.actor),
                *self._make_membership_specs(),
                *self._make_retention_specs(store),
            ],
            strategy="rest_for_one",
        )

    def _make_writer(self, store: Store) -> LoomWriter:
        if self.loom_actor is not None:
            mark_gone(self.loom_actor.owner)  # one that was killed has released no lease
        deliver, load, note = self.inboxes.deliver, self.inboxes.load, self.scheduler.note
        self.loom_actor = LoomWriter(store, self._publish, deliver, load, note, self.instrument, self.membership)
        return self.loom_actor

    def _make_membership_specs(self) -> list[ChildSpec[Any]]:
        membership = self.membership
        if membership is None:
            return []
        return [ChildSpec("node", lambda: NodeActor(self, membership, self.inboxes, self._is_at_rest))]

    def _make_retention_specs(self, store: Store) -> list[ChildSpec[Any]]:
        rules = self.limits.retention
        if not any(kept_for is not None for kept_for in rules.values()):
            return []
        return [ChildSpec("retention", lambda: RetentionActor(store, rules, self.forget))]

    # The loom

    async def _keep(self, entity_id: str, data: bytes) -> None:
        await self.writer.call(Keep(entity_id, data))

    def make_events(self, records: Sequence[Record]) -> Sequence[EntityEvent]:
        """Return the events of records, without secrets."""
        return self.guard.redact_events(make_events(records, time.time()))

    def _publish(self, records: Sequence[Record]) -> None:
        """Publish the events of written records to subscribers."""
        if self.instrument is not None:
            self.instrument.written(records)
        if not self.bus:
            return
        events: list[EntityEvent] = []
        for event in self.make_events(records):
            events.append(event)
            if isinstance(event, StepCompleteEvent) and event.terminated:
                cell = self.living.get(event.entity_id)
                if cell is not None and cell.outcome is not None:  # subscribers see no event after the end
                    result = self.guard.redactor.value(cell.outcome.result)
                    events.append(FinalResponseEvent(event.entity_id, event.at, result))
        self.bus.publish(events)

    # Entities

    async def check_sendable(self, entity_id: str, cantrip: Cantrip | None, key: str | None, *, waits: bool) -> None:
        """Raise EntityEnded, InvalidIntent or LoomError if an entity that is not loaded here could not take an intent.

        `cantrip` is that of the caller's handle. An intent with a `key` may be a repeated one.
        """
        facts = await self.in_store(partial(self.loom.facts, entity_id, "unless_held" if waits else "never"))
        if not facts.header.lasting:
            raise InvalidIntent(
                "send: this entity was cast and ends with its first intent: only a long-lived one takes more"
            )
        if facts.life >= Life.OVER:
            if key is None:
                how = await self.in_store(partial(self.loom.state, entity_id))
                raise EntityEnded(f"entity {entity_id} has ended ({how})")
            return
        if cantrip is not None and self.cantrips.get_unloaded(entity_id) is None:
            self.cantrips.note_unloaded(entity_id, cantrip)
        if waits and not facts.is_held:
            try:
                self.find_cantrip(facts)
            except CantripUnknown:
                if not await self.in_store(self.has_living_node):  # else a node takes the mail
                    raise

    def check_files(self, cantrip: Cantrip, files: Iterable[File]) -> None:
        """Raise InvalidFile if the crystal of a cantrip does not accept one of its entity's files."""
        if files := select_files(files):
            why = find_refused_file(self.services.crystals.find(cantrip.crystal).crystal, files)
            if why is not None:
                raise InvalidFile(why)

    def lock(self, what: str) -> anyio.Lock:
        """Return the lock that lets one caller at a time make an entity, load it, or give it another cantrip."""
        return self._locks.setdefault(what, anyio.Lock(fast_acquire=True))

    def find_interrupted(self) -> Iterable[Header]:
        """Yield the headers of root entities that were running and that no process runs now; not of waiting ones."""
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
        self.check_accepting()
        self.cantrips.add(cell.plan.cantrip.bare)
        self.living.add(cell)  # before the first await: all later callers must find this cell
        if cell.plan.lasting or cell.start is None:  # a one-shot entity that is loaded may have mail
            self.inboxes.attach(cell)
        try:
            leaving = self.living.leaving.get(cell.entity_id)
            if leaving is not None:
                await leaving.ending.wait()
            try:
                self.living.tokens[cell.entity_id] = await self.claim(cell.entity_id, lift=lift)
            except anyio.get_cancelled_exc_class():  # the claim may still be granted, and would not be released
                self.writer.cast(Release(cell.entity_id))
                raise
        except BaseException as error:
            cell.error = error if isinstance(error, LoomError) else None
            self.living.remove(cell)
            self.inboxes.detach(cell)
            cell.end()  # other callers may have found the cell, and wait
            raise
        self._registry.cast(cell)
        try:
            await self._entities.start_child(make_cell_spec(cell))
        except (NotRunning, ShuttingDown) as gone:
            self.remove_cell(cell)
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
                raise self.guard.redact_error(cell.error or cell.make_crash_error()) from None

    async def restore(
        self,
        entity_id: str,
        cantrip: Cantrip | None = None,
        *,
        lift: bool = False,
        facts: EntityFacts | None = None,
        by: str = "",
    ) -> Cell:
        """Load a root entity that is not loaded, with the tools that it had, and return its cell.

        `facts` are the facts of the entity, if they were just read. Without `cantrip`, the entity continues with the
        known cantrip of the same content. `by` is the person who resumes it, for the record. One caller at a time loads
        an entity, so that no caller gets a cell whose claim still fails.

        Raises as `launch`; LoomError, EntityEnded; ToolServerError if it moves to a cantrip with a server of tools that
        cannot be used.
        """
        lock = self.lock(f"load {entity_id}")
        if lock.locked():
            facts = None  # the caller before this one may change them
        async with lock:
            cell = self.living.get(entity_id)
            if cell is not None:
                return cell
            if facts is None:
                facts = await self.in_store(partial(self.loom.facts, entity_id))
            cantrip, adoption = self.cells.choose_cantrip(facts, cantrip)
            recorded = None
            if not cantrip.circle.is_complete:
                recorded = await self.in_store(partial(read_recorded_circle, cantrip, self.loom, entity_id))
            async with self.tool_servers.complete(cantrip, recorded) as cantrip:
                cell = await self.cells.load_cell(facts, cantrip, adoption)
                cell.caller.resumed_by = by
                await self.launch(cell, lift=lift)
        return cell

    async def _restore(self, facts: EntityFacts) -> None:
        await self.restore(facts.entity_id, facts=facts)

    async def _start_child(self, cell: Cell) -> None:
        self.cantrips.add_carved(cell.plan.cantrip)
        self.living.add(cell)
        self._registry.cast(cell)
        assert cell.parent is not None, "a child has a parent"
        assert cell.parent.children is not None, "an entity that may delegate has a place for children"
        await cell.parent.children.start_child(make_cell_spec(cell))

    def _unload(self, cell: Cell) -> None:
        self.living.remove(cell)
        self.living.leaving[cell.entity_id] = cell

    def remove_cell(self, cell: Cell) -> None:
        """Remove a cell that has stopped permanently, and notify all tasks that wait for its end."""
        self.living.remove(cell)
        if self.living.leaving.get(cell.entity_id) is cell:
            del self.living.leaving[cell.entity_id]
        if cell.parent is None and (cell.plan.lasting or cell.wait.is_suspended):
            if cell.is_over or cell.is_for_episode:
                self.cantrips.forget(cell.entity_id)
            else:
                self.cantrips.note_unloaded(cell.entity_id, cell.plan.cantrip)
        if self.membership is not None and cell.parent is None and not cell.is_over and is_outage(cell.error):
            self.membership.advance(Suspended(cell.entity_id))
        if self.store.shared and cell.parent is None:
            self.writer.cast(Release(cell.entity_id))
            name = cell.plan.scoped_name
            if name is not None:
                self.writer.cast(Release(name_lease(name)))
        self.inboxes.detach(cell)
        cell.end()
        cell.notify_root()
        self.living.wake_waiters()

    async def adopt(self, entity_id: str, cantrip: Cantrip) -> None:
        """Give a long-lived entity another cantrip: unload it once it is idle, and load it with this one.

        Raises Held, LoomError, EntityEnded.
        """
        async with self.lock(entity_id):
            cell = self.living.get(entity_id)
            if cell is not None and cell.plan.lasting:
                if is_interchangeable(cell.plan.cantrip, cantrip) and cell.plan.cantrip.name == cantrip.name:
                    return
                self.check_open()
                self.unload_when_idle(cell)
                await cell.ending.wait()
            if self.living.get(entity_id) is None:
                await self.restore(entity_id, cantrip)

    def unload_when_idle(self, cell: Cell) -> None:
        """Unload a long-lived entity once it is idle."""
        cell.entity.send(UNLOAD_WHEN_IDLE)

    async def terminate(self, cell: Cell, reason: str, sender: str = "") -> None:
        """End an entity, and wait until its end is recorded. `sender` says who ends it, for the record."""
        above = self._entities if cell.parent is None else cell.parent.children
        assert above is not None, "a parent has a place for its children"
        try:
            await above.terminate_child(cell.supervisor, Shutdown(Dismissed(reason, sender)))
        except (ChildNotFound, NotRunning):  # it is about to start and will read its mail, or it has just ended
            if await self.in_store(partial(self.loom.has, cell.entity_id)):
                with contextlib.suppress(EntityEnded):
                    root = cell.root.entity_id
                    mail = self.inboxes.make_mail(cell.entity_id, "stop", {"reason": reason}, sender=sender, root=root)
                    await self.inboxes.post(mail)
        await cell.ending.wait()

    async def _end_below(self, cell: Cell) -> None:
        """Record the ends of an entity's unfinished children that are not loaded, and of theirs."""
        at, loom = self.make_moment().at, self.loom

        def find_unfinished() -> list[str]:
            below = [one for child in loom.below(cell.entity_id) for one in loom.subtree(child)]
            return [one for one in below if self.living.get(one) is None and not loom.is_over(one)]

        unfinished = await self.in_store(find_unfinished)
        if unfinished:
            await self.append([Ended(one, "parent_ended", at, "its parent ended") for one in unfinished])

    async def forget(self, wanted: Wanted) -> Forgotten:
        """Forget entities. Raises RuntimeClosed, and LoomError if one has not ended or a fork is loaded."""
        self.check_open()
        for entity_id in wanted.entities:
            cell = self.living.get(entity_id) or self.living.leaving.get(entity_id)
            if cell is not None and not await self.in_store(partial(self.loom.is_over, entity_id)):
                raise LoomError(f"entity {entity_id} is loaded: stop it first, and then forget it")
            if cell is not None:  # it has just ended
                await cell.ending.wait()
        forgotten: Forgotten = await self.writer.call(Forget(wanted, self._is_running))
        return forgotten

    def _is_running(self, entity_id: str) -> bool:
        return self.living.get(entity_id) is not None and not self.loom.is_over(entity_id)

    async def prune(self, older_than: Duration, *, dry_run: bool, tenant: str | None = None) -> Pruned:
        """Forget the entities that ended longer ago than `older_than`, and rewrite the loom."""
        self.check_open()
        pruned = await prune(self.store, keep_for(older_than), self.forget, dry_run=dry_run, tenant=tenant)
        if pruned.entities and not dry_run:
            await self.writer.call(Forget(Wanted([])))
        return pruned

    async def make_backup(self, file: str | os.PathLike[str]) -> Verified:
        """Copy the loom to a file, in a thread."""
        self.check_open()
        return await anyio.to_thread.run_sync(partial(backup_loom, self._url, file, seal_key=self.seal_key))

    async def abandon(self, entity_id: str, why: str = "nobody will continue it", sender: str = "") -> None:
        """End an entity that no process runs, and its children, in the loom. Raises RuntimeClosed, Held."""
        if not self.is_open:
            raise RuntimeClosed(NOT_OPEN)
        at = self.make_moment().at
        loom = self.loom
        unfinished = await self.in_store(lambda: [one for one in loom.subtree(entity_id) if not loom.is_over(one)])
        await self.claim(entity_id, lift=True)
        if self.living.get(entity_id) is not None:
            raise Held(f"entity {entity_id} is being loaded: stop it instead")
        await self.append([Ended(one, "abandoned", at, why, sender=sender or None) for one in unfinished])
        for one in unfinished:
            await self.inboxes.settle_from_log(one)
        self.writer.cast(Release(entity_id))
