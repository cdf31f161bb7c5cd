"""The nodes of a loom as users see them: `runtime.cluster`, of a node or of any other runtime on the loom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from cantrip_actors.loom import Quarantined, Store, mark_gone, this_process
from cantrip_actors.loom.stores.nodes import NodeRow
from cantrip_actors.runtime.events.log_feed import EventFeed
from cantrip_actors.runtime.loom.core import Core, Limits
from cantrip_actors.runtime.loom.guard import Guard
from cantrip_actors.runtime.loom.outage_log import is_outage
from cantrip_actors.runtime.loom.store_access import StoreAccess
from cantrip_actors.runtime.nodes.placing import find_stranding, make_candidate, read_services
from cantrip_actors.runtime.time.queues import QueueStatus, read_queue_status
from cantrip_actors.terms.errors import (
    CantripError,
    DependenciesUnknown,
    EntityInterrupted,
    LoomError,
    Stranded,
    UnknownEntity,
)

if TYPE_CHECKING:
    from cantrip_actors.runtime.tree import Tree

T = TypeVar("T")

TTL = 10.0
"""Seconds for which this process holds an entity while it lifts the entity's quarantine, should it die meanwhile."""
MANY = 10_000
"""The most entities without an owner that `stranded` checks."""


_REASONS: Final[Mapping[type[CantripError], str]] = {
    Stranded: "no living process serves its cantrip",
    DependenciesUnknown: "no living process has the dependencies that it needs next",
    EntityInterrupted: "its episode was interrupted, and no living node serves its cantrip",
}
"""The short reasons for the errors that callers get."""


class NodeView(NamedTuple):
    """A node as it was at the moment of the call."""

    name: str
    id: str
    """The name under which it holds leases; another one at each start."""
    release: str
    zone: str
    labels: dict[str, str]
    capacity: int
    busy: int
    """Root entities at work."""
    is_living: bool
    """Whether it has renewed its leases in time, and its process is not known to be gone."""
    is_draining: bool
    serves: list[str]
    """The names of its cantrips; the content id of one without a name."""


class StrandedEntity(NamedTuple):
    """An entity that has work and that no living process can run."""

    entity_id: str
    name: str | None
    """The name that it was invoked under; None without one, and if its records cannot be read."""
    cantrip_id: str
    """The content id that it continues with; "" if its records cannot be read."""
    cantrip_name: str | None
    why: str


class ClusterReader:
    """Reads about the nodes of a loom and their entities, and writes nothing. Its methods block and raise LoomError."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @classmethod
    def of_store(cls, store: Store) -> ClusterReader:
        """Return the reader of a store that no runtime has opened. It needs a running event loop."""
        core = Core((), Limits(), Guard(), "idle")
        core.attach(store, StoreAccess(store), None)
        return cls(core)

    @property
    def _store(self) -> Store:
        return self._core.store

    def nodes(self) -> list[NodeView]:
        """Return the nodes that have joined, by name."""
        return [_make_view(row) for row in self._store.nodes()]

    def where(self, entity: str) -> NodeView | None:
        """Return the node that runs an entity, given by name or id; None if no node runs it."""
        owner = self._store.place(self.find_root(entity))
        return next((node for node in self.nodes() if node.id == owner), None)

    def find_root(self, entity: str) -> str:
        """Return the root of the tree of an entity, given by name or id."""
        return self._core.find_root(self._store.named(entity) or entity)

    def queues(self) -> list[QueueStatus]:
        """Return the queues of submissions by name: their bounds, and how much waits and runs."""
        return read_queue_status(self._store)

    def risks(self) -> list[str]:
        """Return warnings about settings of the server that may lose acknowledged records."""
        return self._store.risks()

    def stranded(self) -> list[StrandedEntity]:
        """Return the entities that have work and that no living process can run, and those in quarantine."""
        store: Any = self._store
        services = read_services(store)
        quarantines = {row.entity_id: row for row in store.quarantines() if store.life(row.entity_id) is not None}
        described = [self._describe(entity, lambda entity: Quarantined(*quarantines[entity])) for entity in quarantines]
        has_tables = not store.can_join()
        unowned = [row.entity_id for row in store.unowned(MANY)] if has_tables else store.waiting()
        find = partial(find_stranding, self._core, services=services)
        described += [self._describe(entity, find) for entity in unowned if entity not in quarantines]
        return [stranded for stranded in described if stranded is not None]

    def _describe(self, entity_id: str, find: Callable[[str], CantripError | None]) -> StrandedEntity | None:
        """Describe an entity that is stranded for the reason that `find` returns; return None if it returns None."""
        core = self._core
        try:
            facts = core.loom.facts(entity_id)
            error = None if facts.is_held else find(entity_id)
            if error is None:
                return None
            now = make_candidate(core, facts)
        except LoomError as error:
            if is_outage(error):
                raise
            return StrandedEntity(entity_id, None, "", None, f"its records cannot be read: {error}")
        return StrandedEntity(entity_id, facts.header.name, now.cantrip_id, now.name, _explain(error))


class Cluster:
    """The nodes of the loom, and their entities."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._reader = ClusterReader(tree)

    async def nodes(self) -> list[NodeView]:
        """Return the nodes that have joined, by name; dead ones stay listed for a day. Raises LoomError."""
        return await self._run_in_store(self._reader.nodes)

    async def where(self, entity: str) -> NodeView | None:
        """Return the node that runs an entity, given by name or id; None if no node runs it.

        Raises LoomError for an unknown entity.
        """
        return await self._run_in_store(partial(self._reader.where, entity))

    def events(self, entity: str) -> EventFeed:
        """Return the events recorded of an entity from now on, whichever process runs it, up to its end.

        `entity` is a name or id. `Runtime.events` publishes the steps of this process's entities at once; this feed
        publishes a step at most half a second after it is recorded. Raises LoomError for an unknown entity.
        """
        tree = self._tree
        tree.check_open()
        entity_id = tree.store.named(entity) or entity
        if not tree.loom.has(entity_id):
            raise UnknownEntity(entity_id)
        return EventFeed(tree, entity_id, None)

    async def stranded(self) -> list[StrandedEntity]:
        """Return the entities that have work and that no living process can run, and those in quarantine.

        A runtime that is not a node leaves out those that it can run itself.
        """
        return await self._run_in_store(self._reader.stranded)

    async def risks(self) -> list[str]:
        """Return warnings about settings of the server that may lose acknowledged records."""
        return await self._run_in_store(self._reader.risks)

    async def backlog(self) -> int:
        """Return how many root entities are at work or wait to be loaded, on any node, plus the casts to begin.

        Divided by the capacity of a worker, it is the number of workers needed. For a queue, only as many casts count
        as its bounds allow now.
        """
        queued = sum(_count_beginnable(queue) for queue in await self.queues())
        return queued + await self._run_in_store(self._count_backlog)

    def _count_backlog(self) -> int:
        due = self._store.timers_due(self._tree.make_moment().wall, limit=MANY)
        waiting = self._store.submissions("", limit=MANY)
        return int(self._tables.work()) + len(due) + len(waiting)

    async def queues(self) -> list[QueueStatus]:
        """Return the queues of submissions by name: their bounds, and how much waits and runs. Raises LoomError."""
        return await self._run_in_store(self._reader.queues)

    async def drain(self, node: str) -> int:
        """Ask the living nodes with that name or id to drain and leave; return how many.

        A node that `serve`s does it within a beat.
        """
        matching = [status for status in await self.nodes() if status.is_living and node in (status.name, status.id)]

        def ask() -> None:
            for status in matching:
                self._tables.ask_to_drain(status.id)

        await self._run_in_store(ask)
        return len(matching)

    async def free(self, entity: str) -> bool:
        """Lift the quarantine of an entity, given by name or id, so that a node runs it again.

        Without nodes, this runtime loads it at once if mail waits for it. Returns False, and changes nothing, if it is
        not in quarantine. Raises LoomError for an unknown entity.
        """
        tree = self._tree
        root = await self._run_in_store(partial(self._reader.find_root, entity))
        is_lifted = await self._run_in_store(partial(self._lift, root))
        if is_lifted and await self._run_in_store(lambda: tree.store.count_mail(root).loads > 0):
            tree.inboxes.notify_processes()
            if tree.membership is not None or not await self._run_in_store(tree.has_living_node):
                tree.inboxes.load(root)
        return is_lifted

    @property
    def is_ready(self) -> bool:
        """Whether this runtime is a node that has renewed its leases within the ttl, and does not drain."""
        membership = self._tree.membership
        return membership is not None and membership.is_ready

    async def use_release(self, release: str) -> None:
        """Make a release the newest one: idle entities move to it with their next intents.

        Raises LoomError for a release that no node has had.
        """
        await self._run_in_store(lambda: self._tables.use_release(release))

    def _lift(self, root: str) -> bool:
        """Claim an entity and release it at once, also if mail waits: a node runs it, and not this process."""
        if root not in self._store.quarantined():
            return False
        owner = this_process()
        self._store.release(self._store.claim(root, owner, TTL, lift=True))
        mark_gone(owner)
        return True

    @property
    def _store(self) -> Store:
        return self._tree.store

    @property
    def _tables(self) -> Any:
        why = "" if self._store.nodes() else self._store.can_join()
        if why:
            raise LoomError(f"this loom has no nodes: {why}")
        return self._store

    async def _run_in_store(self, work: Callable[[], T]) -> T:
        self._tree.check_open()
        return await self._tree.access.run_in_thread(work)


def _explain(error: CantripError) -> str:
    return f"it is quarantined: {error.why}" if isinstance(error, Quarantined) else _REASONS[type(error)]


def _count_beginnable(queue: QueueStatus) -> int:
    return min(queue.waiting, MANY if queue.max_running is None else max(0, queue.max_running - queue.running))


def _make_view(row: NodeRow) -> NodeView:
    info = row.info
    return NodeView(
        info.name,
        row.owner,
        info.release,
        info.zone,
        dict(info.labels),
        info.capacity,
        row.busy,
        row.is_living,
        row.is_draining,
        sorted({*info.names, *(id for id, name in info.serves.items() if name is None)}),
    )
