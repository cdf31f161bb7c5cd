"""A runtime as a node: it joins a loom, and runs entities that no living node runs.

The loom says which nodes live and which entities have no owner. `machine/node.py` decides which of them this node
takes. The node's actor polls every `beat` seconds, and carries the decisions out. The lease of an entity always says
which node runs it.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import anyio.abc

from cantrip_actors.loom.stores.nodes import NodeInfo, NodeRow, Unowned
from cantrip_actors.machine.life import Occasion
from cantrip_actors.machine.node import Checked, Found, LoadEnded, NodeAction
from cantrip_actors.machine.placement import Candidate, Take, can_any_run
from cantrip_actors.machine.project import Life
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.entity.ends import leave_tree
from cantrip_actors.runtime.events.instrument import RenewedLate, TakenOver
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.runtime.loom.outage_log import OutageLog
from cantrip_actors.runtime.mail.inboxes import HINTED, POLL_INTERVAL
from cantrip_actors.runtime.nodes.membership import Membership, Node, UnownedCount
from cantrip_actors.runtime.nodes.placing import make_candidate, make_member
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import CantripError, LoomError
from supervisors import Actor

MANY: Final = 1000
"""Entities without an owner that a node considers in one beat."""

AT_ONCE: Final = 16
"""Entities that a node loads at the same time."""

_BEAT: Final = object()
_HINT: Final = object()

_log = get_logger("cantrip_actors.runtime")


class _Survey(NamedTuple):
    nodes: list[NodeRow]
    unowned: list[Candidate]
    hopeless: list[str]
    """Entities that wait for people, or cannot be read."""
    quarantined: int = 0


class NodeActor(Actor):
    """Polls the loom every beat for entities without an owner, and takes those assigned to this node.

    It also polls after a hint, at most every `POLL_INTERVAL` seconds: another node may have handed its entities over.
    """

    has_tasks = True

    def __init__(self, core: Core, membership: Membership, load: Callable[..., Awaitable[bool]]) -> None:
        self._core = core
        self._membership = membership
        self._load = load
        self._limiter = anyio.CapacityLimiter(AT_ONCE)
        self._is_hinted = False
        self._log = OutageLog(
            "the loom could not be searched for entities without an owner",
            "the loom is searched for entities without an owner again",
        )
        self._taken = 0
        """The number of entities that this node has taken over since the last poll."""

    async def init(self) -> None:
        """Look every beat; log once how the loom may lose acknowledged records."""
        with contextlib.suppress(LoomError):  # logged at the next start
            for risk in await self._core.in_store(self._core.store.risks):
                _log.warning(risk, node=self._membership.node.name)
        self._core.report(TakenOver(0))  # the counters of a node exist from its start
        self._core.report(RenewedLate(0))
        self.send_every(self._membership.node.beat, _BEAT)
        self.ref.send(_BEAT)

    async def handle_info(self, message: Any) -> None:
        """Poll the loom, at a beat or soon after a hint."""
        if message is HINTED:
            if not self._is_hinted:
                self._is_hinted = True
                self.send_after(min(POLL_INTERVAL, self._membership.node.beat), _HINT)
            return
        if message is _HINT:
            self._is_hinted = False
        elif message is not _BEAT:
            return
        with self._log.watch():
            await self._poll()

    async def _poll(self) -> None:
        core, membership = self._core, self._membership
        membership.poll()
        roots = [cell for cell in core.living if cell.parent is None]
        resting = [cell for cell in roots if core.living.may(Occasion.DRAIN, cell)]
        membership.busy = len(roots) - len(resting) + len(membership.state.loading)
        if not core.is_open:
            return
        self._publish_unclear()
        membership.advance(Checked())
        found = await self._core.access.run_in_thread(partial(self._find, self._core.read_time_of_day()))
        membership.members = [make_member(row) for row in found.nodes if row.is_living]
        membership.members = [
            member._replace(busy=membership.busy, is_draining=membership.is_draining, unclear=membership.info.unclear)
            if member.owner == membership.owner
            else member
            for member in membership.members
        ]
        idle = sum(cell.plan.lasting and cell.episode is None for cell in resting)
        actions = membership.advance(Found(membership.members, found.unowned, found.hopeless, idle))
        self._carry_out(actions)
        if self._taken:
            fields = {"node": membership.node.name, "id": membership.owner, "entities": self._taken}
            _log.info("entities without an owner were taken over", **fields)
            self._taken = 0
        if core.instrument is not None:
            self._report(found)

    def _publish_unclear(self) -> None:
        """Publish to all nodes the cantrip contents that are ambiguous on this node; log a change."""
        membership = self._membership
        unclear = self._core.cantrips.find_unclear(membership.info.serves)
        if unclear == membership.info.unclear:
            return
        membership.info = membership.info._replace(unclear=unclear)
        names = [
            *((name, content) for content, name in membership.info.serves.items()),
            *membership.info.aliases.items(),
        ]
        contents = sorted({content for name, content in names if name not in unclear.get(content, (name,))})
        if contents:
            _log.warning(
                "cantrips are known here with several crystals or dependencies: other nodes continue their entities",
                node=membership.node.name,
                cantrips=contents,
            )

    def _carry_out(self, actions: Sequence[NodeAction]) -> None:
        for action in actions:
            if isinstance(action, Take):
                self.tasks.start_soon(self._take, action.entity_id)
            else:
                self._unload_idle(action.many)

    def _unload_idle(self, many: int) -> None:
        """Unload some idle entities, those first that were loaded first."""
        idle = (
            cell for cell in self._core.living if cell.parent is None and self._core.living.may(Occasion.UNLOAD, cell)
        )
        for cell in itertools.islice(idle, many):
            leave_tree(self._core, cell)

    def _report(self, found: _Survey) -> None:
        membership = self._membership
        seen = membership.state.seen
        members = membership.members
        stranded = sum(not can_any_run(what, members) for what in found.unowned)
        polls = max((seen.get(one.entity_id, 0) for one in found.unowned), default=0)
        membership.unowned = UnownedCount(len(found.unowned), stranded, found.quarantined, polls * membership.node.beat)
        late = membership.take_late()
        if late:
            self._core.report(RenewedLate(late))

    async def _take(self, entity_id: str) -> None:
        is_living = False
        try:
            async with self._limiter:
                is_loaded = False
                with contextlib.suppress(LoomError):  # the next polls find it again
                    is_loaded = await self._load(entity_id, is_placed=True)
            if is_loaded:
                self._taken += 1
                self._core.report(TakenOver(1))
            is_living = self._core.living.get(entity_id) is not None
        finally:
            self._membership.advance(LoadEnded(entity_id, is_living))

    def _find(self, now: float) -> _Survey:
        """Read the entities that no living node runs. May run in a thread, so it changes nothing of this actor."""
        store: Any = self._core.store
        membership = self._membership
        if membership.is_draining:
            return _Survey(store.nodes(), [], [])
        seen = store.survey(MANY)
        while membership.may_sweep() and store.sweep(seen.dead):
            pass
        candidates, hopeless = [], []
        quarantines = store.quarantines()
        over = [row.entity_id for row in quarantines if row.until is not None and row.until <= now]
        free = [Unowned(entity_id, store.life(entity_id) is Life.BUSY, "free") for entity_id in over]
        for one in (*store.unowned(MANY, seen), *free):
            if not membership.may_look_for(one):
                continue
            candidate = self._make_candidate(one)
            if candidate is None:
                hopeless.append(one.entity_id)
            else:
                candidates.append(candidate)
        return _Survey(seen.nodes, candidates, hopeless, len(quarantines))

    def _make_candidate(self, one: Unowned) -> Candidate | None:
        """Return the facts that placement needs; None for an entity that waits for people, or has not begun."""
        core, entity_id = self._core, one.entity_id
        try:
            facts = core.loom.facts(entity_id)
            if one.is_busy and (not facts.has_begun or core.is_waiting(entity_id, facts.life)):
                return None
            return make_candidate(core, facts)
        except CantripError as error:
            _log.warning("an entity without an owner cannot be read", entity=entity_id, error=str(error))
            return None


def join(node: Node, core: Core, offered: Sequence[Cantrip]) -> Membership:
    """Return the membership of a runtime that is about to join, and offers these cantrips."""
    serves = {one.id: one.name for one in offered}
    aliases = {one.name: one.id for one in offered if one.name is not None and one.name != serves[one.id]}
    unclear = core.cantrips.find_unclear(serves)
    dependencies = core.cantrips.list_dependencies(serves)
    place = (node.name, node.capacity, node.release, node.zone, dict(node.labels))
    info = NodeInfo(*place, serves, unclear, aliases, dependencies)
    return Membership(node, info)


def list_ending_signals() -> list[signal.Signals]:
    """Return the signals at which a program ends in good order; SIGHUP comes when its terminal is closed.

    `nohup` starts a program that outlives its terminal: it ignores SIGHUP.
    """
    ignored = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else []
    return [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if number not in ignored]


async def cancel_at_signal(scope: anyio.CancelScope) -> None:
    """Cancel a scope at the first signal at which a program ends in good order."""
    with anyio.open_signal_receiver(*list_ending_signals()) as signals:
        async for _ in signals:
            scope.cancel()
            return


async def serve(membership: Membership, drain: Callable[[], Awaitable[object]], early: Sequence[int]) -> None:
    """Wait for a signal or a request to drain; then drain, until that is done or another signal arrives.

    `early` has the signals that arrived before this listens.
    """
    signalled, signalled_again = anyio.Event(), anyio.Event()

    async def listen(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*list_ending_signals()) as signals:
            if early:  # a signal that it does not have by now comes to this receiver
                signalled.set()
            task_status.started()
            async for _ in signals:
                (signalled_again if signalled.is_set() else signalled).set()

    async def wait_for(event: anyio.Event, scope: anyio.CancelScope) -> None:
        await event.wait()
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        await tasks.start(listen)
        with anyio.CancelScope() as waiting:
            tasks.start_soon(wait_for, signalled, waiting)
            tasks.start_soon(wait_for, membership.asked, waiting)
            await anyio.sleep_forever()
        with anyio.CancelScope() as draining:
            tasks.start_soon(wait_for, signalled_again, draining)
            await drain()
        tasks.cancel_scope.cancel()
