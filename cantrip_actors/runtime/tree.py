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
    ├── webhooks    sends events to the webhooks of this runtime, if it has any
    └── retention   forgets entities that ended longer ago than `retention` keeps them, if it is set

A crash of the loom actor restarts everything after it, because no entity may continue unrecorded. A crashed crystal
actor is restarted alone. Closing stops the scheduler, the mail actor and then the entities, last started first: a
one-shot entity is cancelled, and a long-lived entity is suspended.

`Runtime` and `Entity` are the public interfaces of this tree; entities reach it through their `Environment`.
"""

from __future__ import annotations

import hmac
import math
import os
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from cantrip_actors.loom import (
    Duration,
    Fenced,
    Forgotten,
    Pruned,
    SealKey,
    Store,
    Wanted,
    forget_entities,
    keep_for,
    mark_gone,
    open_store,
)
from cantrip_actors.machine.life import Change, Occasion
from cantrip_actors.machine.node import DrainBegan
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.records import Record
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.circles.snapshots import Snapshots
from cantrip_actors.runtime.circles.tool_servers import ServerInUse, ToolServers
from cantrip_actors.runtime.crystals.crystal_pool import Crystals
from cantrip_actors.runtime.entity.cells import Cells
from cantrip_actors.runtime.entity.environment import Environment
from cantrip_actors.runtime.entity.launcher import Launcher
from cantrip_actors.runtime.entity.registry import RegistryActor
from cantrip_actors.runtime.entity.upgrades import Upgrade
from cantrip_actors.runtime.events.events import Bus, Watchers
from cantrip_actors.runtime.events.instrument import Instrument
from cantrip_actors.runtime.loom.allowances import Allowances
from cantrip_actors.runtime.loom.core import NOT_OPEN, Core, Limits
from cantrip_actors.runtime.loom.guard import Guard, GuardedLogger
from cantrip_actors.runtime.loom.loom_writer import LoomWriter, WriterListeners
from cantrip_actors.runtime.loom.retention import RetentionActor, prune
from cantrip_actors.runtime.loom.store_access import StoreAccess
from cantrip_actors.runtime.mail.inboxes import Inboxes, MailActor
from cantrip_actors.runtime.mail.questions import Questions
from cantrip_actors.runtime.nodes.membership import Membership, Node
from cantrip_actors.runtime.nodes.node import NodeActor, join
from cantrip_actors.runtime.people.requests import Requests
from cantrip_actors.runtime.time.clock import find_loop_clock
from cantrip_actors.runtime.time.scheduler import Casts, Scheduler, SchedulerActor
from cantrip_actors.stream.events import DeltaEvent, EntityEvent, ServerChangedEvent
from cantrip_actors.stream.reading import EpisodeEnd, read_events
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.episode_scope import Provide
from cantrip_actors.terms.errors import (
    LoomError,
    RuntimeClosed,
)
from cantrip_actors.terms.queue import Queue
from cantrip_actors.terms.tool_server import Changed
from cantrip_actors.terms.webhook import Webhook
from cantrip_actors.terms.wrapper import GateCall
from cantrip_actors.user_code.attempt import await_user_code, call_user_code
from cantrip_actors.user_code.threads import run_to_end
from supervisors import (
    ActorSystem,
    ChildSpec,
    DynamicSupervisor,
    Supervisor,
    SupervisorRef,
)
from supervisors.events import Reports
from supervisors.interrupts import allow_interrupts, defer_interrupts_in
from supervisors.ref import identify

_log = get_logger("cantrip_actors.runtime")

defer_interrupts_in("cantrip_actors")
allow_interrupts(await_user_code)
allow_interrupts(call_user_code)


if TYPE_CHECKING:
    from cantrip_actors.loom.integrity.verify import Verified


class _ProcessKeys(NamedTuple):
    """The secrets of a process."""

    snapshots: bytes | None
    """Seals the snapshots of sandboxes; None for the key of the store."""
    own: bytes
    """Is the process's alone, for a store without a key."""


class Tree(Core):
    """The tree of one runtime. `Runtime` documents the arguments; `make_casts` returns the object that begins due
    entities.
    """

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
        create: bool = False,
        seal_key: SealKey | None = None,
        instrument: Instrument | None = None,
        node: Node | None = None,
        queues: Sequence[Queue] = (),
        webhooks: Sequence[Webhook] = (),
        dependencies: Provide | None = None,
        make_casts: Callable[[Tree], Casts],
    ) -> None:
        if node is not None:
            limits = limits._replace(passivate_after=node.passivate_after)
        super().__init__(cantrips, limits, guard, upgrade, instrument, dependencies=dependencies)
        self._node = node
        self._webhooks = webhooks
        self._keys = _ProcessKeys(snapshot_key, secrets.token_bytes(32))
        self.watchers = Watchers()
        self.bus = Bus(self.watchers)
        self.url = url
        """The loom's URL, with its password."""
        self.seal_key = seal_key
        self.opening: Callable[[], Store] = partial(open_store, url, repair=repair, seal_key=seal_key, create=create)
        self._system: ActorSystem | None = None
        self._entities = SupervisorRef()
        self.crystals = Crystals(SupervisorRef(), self.draw)
        self.inboxes = Inboxes(self)
        self.questions = Questions(self, self.inboxes)
        self.requests = Requests(self, self.inboxes, self.bus)
        self.tool_servers = ToolServers(
            self._report_progress, self.requests.elicitations.elicit, self._report_change, self.report
        )
        self.allowances = Allowances(self)
        self.scheduler = Scheduler(self, self.inboxes, make_casts(self), queues)
        self.environment = Environment(
            core=self,
            bus=self.bus,
            crystals=self.crystals,
            inboxes=self.inboxes,
            questions=self.questions,
            requests=self.requests,
            queues=self.scheduler.queues,
            snapshots=self._make_snapshots(),
        )
        self.cells = Cells(self, self.crystals, self.tool_servers)
        self.launcher = Launcher(self.environment, self.cells, self.tool_servers, self._entities)

    def _make_snapshots(self) -> Snapshots | None:
        """Return the snapshots of sandboxes; None if they are not stored, because they cannot be redacted."""
        if self.guard.at_rest:
            return None
        return Snapshots(lambda: self._keys.snapshots or self.store.key(), self._read_snapshot)

    def _report_progress(self, call: GateCall, text: str) -> None:
        if self.bus.delivers_deltas and call.call_id is not None:
            shown, item_id = self.guard.redactor.text(text), f"{call.turn_id}:{call.call_id}:output"
            event = DeltaEvent(
                call.entity_id,
                time.time(),
                call.turn_id,
                item_id,
                "function_call_output",
                shown,
                tool_call_id=call.call_id,
            )
            self.bus.publish([event])

    def _report_change(self, server: ServerInUse, what: Changed) -> None:
        """Publish, for each loaded entity that has a server, that one of the server's lists has changed."""
        if self.bus:
            name, at = server.server.name, time.time()
            users = [cell.entity_id for cell in self.living if server in cell.crystal.servers]
            self.bus.publish([ServerChangedEvent(user, at, name, what) for user in users])

    def derive_key(self, purpose: str) -> bytes:
        """Return a key derived from the key that seals snapshots; without one, from a key of this process."""
        secret = self._keys.snapshots or self.store.key() or self._keys.own
        return hmac.digest(secret, purpose.encode(), "sha256")

    async def _read_snapshot(self, digest: str) -> Blob | None:
        try:
            return await self.in_store(partial(self.store.blob, digest))
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
    def store_kind(self) -> str:
        """The first part of the loom's URL."""
        return self.url.partition(":")[0]

    # Opening and closing

    async def open(self) -> None:
        """Open the loom and start the tree."""
        if self.was_opened:
            raise RuntimeClosed("a runtime is opened once: make another one with Runtime.open(…)")
        store = await self._open_store()
        store.max_waiting = self.limits.max_waiting
        store.quarantine_for = self.limits.quarantine_for
        store.loop_clock = find_loop_clock()
        access = StoreAccess(store)
        try:
            self.attach(store, access, self._join(store))
            if self.instrument is not None:
                self.instrument.attach(self)
            await self.scheduler.queues.declare()
            system = ActorSystem(reports=Reports(GuardedLogger(self.guard)), on_end=self._end_cells)
            self._system = await system.__aenter__()
            if self.instrument is not None:
                self._system.sinks.append(self.instrument.supervised)
            self.is_open = True  # the first search for mail, as soon as its actor starts, may load entities
            try:
                spec = ChildSpec("runtime", lambda: self._make_tree(store), restart="temporary")
                top = await self._system.start(spec)
                identify(top).watch(self, self._give_up, final=True)
            except BaseException as error:  # most likely a cancellation: close the system
                self.is_open = False
                await self._system.__aexit__(type(error), error, error.__traceback__)
                raise
        except BaseException:
            await access.close()
            raise

    async def _open_store(self) -> Store:
        """Return the opened store: opening may read a whole file, so it needs a thread. A loom in memory does not."""
        if self.url.startswith("memory:"):
            return self.opening()
        stores: list[Store] = []
        try:
            await run_to_end(lambda: stores.append(self.opening()))
        except BaseException:
            for store in stores:
                store.close()
            raise
        return stores[0]

    def _join(self, store: Store) -> Membership | None:
        """Return the membership of a runtime that is about to join; None for any other runtime. Raises LoomError."""
        node = self._node
        if node is None:
            return None
        why = store.can_join()
        if why:
            raise LoomError(f'node "{node.name}" cannot join the loom: {why}')
        coded = [one.name or one.id for one in self.cantrips.given if one.circle.has_programs]
        if coded and self._keys.snapshots is None and store.expires and not self.guard.at_rest:
            raise LoomError(
                f'node "{node.name}" cannot join the loom: cantrip {coded[0]} has a code circle, and its snapshots '
                "need a key that all nodes have: give the same snapshot_key to each Runtime.open"
            )
        labels = node.labels.items()
        return join(node, self, [cantrip for cantrip in self.cantrips.given if cantrip.needs.items() <= labels])

    async def drain(self, grace: float | None) -> bool:
        """Refuse new work, and wait for running work; return whether all of it ended within `grace` seconds."""
        self.check_open()
        self.is_draining = True
        if self.membership is not None:
            return await self._hand_over(self.membership, grace)
        with anyio.move_on_after(grace) as waiting:
            await self.living.wait_until(
                lambda: all(self.living.may(Occasion.DRAIN, cell) for cell in self.living.list_roots())
            )
        return not waiting.cancelled_caught

    async def _hand_over(self, membership: Membership, grace: float | None) -> bool:
        """Suspend all entities, running ones between two turns; return whether all are suspended.

        `grace` is the most seconds to wait; None means the node's setting.
        """
        membership.advance(DrainBegan())
        self.is_handing_over = True
        with anyio.move_on_after(membership.node.grace if grace is None else grace) as waiting:
            async with anyio.create_task_group() as tasks:
                for cell in self.living.list_roots():
                    tasks.start_soon(self.launcher.suspend, cell)
            await self.append(())  # earlier records and releases are in the store
        return not waiting.cancelled_caught

    async def close(self, kind: Any, error: BaseException | None, where: Any) -> None:
        """Stop everything, last started first, and close the loom."""
        assert self._system is not None
        self.is_open = False
        self.is_handing_over = self.membership is not None
        for cell in self.living.list_roots():
            if not cell.life.is_final and self.living.may(Occasion.CLOSE, cell):
                self.living.change(cell, Change.LEAVES)
        try:
            await self._system.__aexit__(kind, error, where)
        finally:
            self.scheduler.queues.close()
            self.inboxes.close()
            self.bus.close()
            await self.access.close()

    def _end_cells(self) -> None:
        """Notify all tasks that wait for an entity: no actor runs any more, so nothing else would."""
        self.is_open = False
        for cell in [*self.living.leaving.values(), *self.living]:
            self.living.remove(cell)
            cell.end()

    def _give_up(self, *_: object) -> None:
        """Raise in all calls that wait, if the tree has given up because its parts crashed too often."""
        if self.is_open:
            self._end_cells()
            self.scheduler.queues.close()
            self.inboxes.close()
            self.bus.close()

    def _make_tree(self, store: Store) -> Supervisor:
        crystals, inboxes, scheduler, servers = self.crystals, self.inboxes, self.scheduler, self.tool_servers
        load, membership, rules = self.launcher.load_for_mail, self.membership, self.limits.retention
        node = None if membership is None else membership.actor
        supervise_entities = partial(DynamicSupervisor, max_restarts=math.inf)  # each entity bounds its own restarts
        specs: list[ChildSpec[Any]] = [
            ChildSpec("loom", lambda: self._make_writer(store), ref=self.writer),
            ChildSpec("crystals", crystals.supervise, shutdown=math.inf, ref=crystals.supervisor),
            ChildSpec("servers", servers.supervise, shutdown=math.inf, ref=servers.supervisor),
            ChildSpec("entities", supervise_entities, shutdown=math.inf, ref=self._entities),
            ChildSpec("registry", lambda: RegistryActor(self, self.launcher.remove, inboxes), ref=self.registry),
            ChildSpec("mail", lambda: MailActor(inboxes, store, load, scheduler.wake, node), ref=inboxes.actor),
            ChildSpec("scheduler", lambda: SchedulerActor(scheduler, polls=store.shared), ref=scheduler.actor),
        ]
        if membership is not None:
            specs.append(ChildSpec("node", lambda: NodeActor(self, membership, load), ref=membership.actor))
        if self._webhooks:
            from cantrip_actors.runtime.events.webhook_sender import WebhooksActor  # it imports an HTTP client

            start = partial(WebhooksActor, self, self.bus, self.derive_key, self._webhooks)
            specs.append(ChildSpec("webhooks", start))
        if any(kept_for is not None for kept_for in rules.values()):
            specs.append(ChildSpec("retention", lambda: RetentionActor(store, self.access, rules, self.forget)))
        return Supervisor(specs, strategy="rest_for_one")

    def _make_writer(self, store: Store) -> LoomWriter:
        if self.loom_actor is not None:
            mark_gone(self.loom_actor.owner)  # one that was killed has released no lease
        inboxes = self.inboxes
        self.loom_actor = LoomWriter(
            store,
            self.access,
            WriterListeners(
                partial(self.bus.publish_made, self.make_events),
                inboxes.deliver,
                inboxes.load_unless_suspended,
                self.scheduler.note,
                lambda: inboxes.outages.note(anyio.current_time()),
                inboxes.notify_processes,
            ),
            self.instrument,
            self.membership,
            self.cantrips.list_served(moves=self.upgrades.may_move),
        )
        return self.loom_actor

    # The loom

    def make_events(self, records: Sequence[Record]) -> Sequence[EntityEvent]:
        """Return the events of written records, without secrets."""
        return self.guard.redact_events(read_events(records, self.store.clock(), self._find_end))

    def _find_end(self, entity_id: str) -> EpisodeEnd | None:
        """Return how the episode of a loaded entity ended, if it has."""
        cell = self.living.get(entity_id)
        if cell is None or cell.outcome is None:
            return None
        return EpisodeEnd(cell.outcome, cell.plan.lasting, cell.episode is not None)

    # The loom's content

    async def forget(self, wanted: Wanted) -> Forgotten:
        """Forget entities. Raises RuntimeClosed, and LoomError if one has not ended or a fork is loaded."""
        self.check_open()
        for entity_id in wanted.entities:
            cell = self.living.get(entity_id) or self.living.leaving.get(entity_id)
            if cell is not None and not await self.in_store(partial(self.loom.is_over, entity_id)):
                raise LoomError(f"entity {entity_id} is loaded: stop it first, and then forget it")
            if cell is not None:  # it has just ended
                await cell.ending.wait()
        if not self.store.shared:
            return await self.in_writer(lambda writer: writer.forget(wanted, self._is_loaded))
        replaced = wanted._replace(scrubs=False)
        async with self.launcher.lock("forget"):  # one at a time: each holds the leases of the entities
            try:  # as another process would: entities continue meanwhile
                forgotten = await self._forget_in_thread(replaced)
            except Fenced:  # a tree was unloaded meanwhile
                forgotten = await self._forget_in_thread(replaced)
        if wanted.scrubs:
            await self.access.scrub(lambda: self.launcher.lock("forget"))
        return forgotten

    async def _forget_in_thread(self, wanted: Wanted) -> Forgotten:
        await self.append(())  # earlier releases of leases are in the store
        tokens = {} if self.loom_actor is None else self.loom_actor.tokens
        return await self.access.run_in_thread(partial(forget_entities, self.store, wanted, tokens, self._is_loaded))

    def _is_loaded(self, entity_id: str) -> bool:
        return self.living.get(entity_id) is not None

    async def prune(self, older_than: Duration, *, dry_run: bool, tenant: str | None = None) -> Pruned:
        """Forget the entities that ended longer ago than `older_than`, and rewrite the loom."""
        self.check_open()
        rules = keep_for(older_than)
        pruned = await prune(self.store, self.access, rules, self.forget, dry_run=dry_run, tenant=tenant)
        if pruned.entities and not dry_run:
            await self.forget(Wanted([]))
        return pruned

    async def make_backup(self, file: str | os.PathLike[str]) -> Verified:
        """Copy the loom to a file, in a thread."""
        self.check_open()
        return await self.access.run_in_thread(partial(_backup, self.url, file, seal_key=self.seal_key))


def _backup(url: str, file: str | os.PathLike[str], *, seal_key: SealKey | None) -> Verified:
    from cantrip_actors.loom.maintenance.backup import backup_loom  # it needs every kind of store

    return backup_loom(url, file, seal_key=seal_key)
