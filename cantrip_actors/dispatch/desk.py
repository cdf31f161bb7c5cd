"""The desk: where dispatches are handed out, run, waited for, and taken up again.

    async with Runtime.open("sqlite:loom.db") as runtime:
        desk = Desk(runtime, "dispatches")
        record = await desk.dispatch(contract, author="ada")
        record = await desk.run(record.id, cantrip)

The entity of a dispatch lasts, under the dispatch's id as its name: blocked and unblocked again, it goes on where it
was, and remembers. The desk has no state of its own. What is to be done it reads from the logs, and what became of an
entity from the loom, so that any process that has both can take over (F-26, F-27).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio
import structlog

from cantrip_actors import Cantrip, CantripError, CrystalError, EntityCrashed, Gate, Here, LoomError, Runtime
from cantrip_actors.dispatch.companion import EFFECTFUL, DispatchCompanion, ending
from cantrip_actors.dispatch.contract import Contract, InvalidContract, draft
from cantrip_actors.dispatch.errors import DispatchError, TamperedRecord
from cantrip_actors.dispatch.events import Approved, PhaseApproved, Recovered, StatusChanged, Unblocked
from cantrip_actors.dispatch.hand import Hand
from cantrip_actors.dispatch.log import Dispatches
from cantrip_actors.dispatch.orders import orders
from cantrip_actors.dispatch.record import Record, approving, unblocking
from cantrip_actors.dispatch.staffing import staffed
from cantrip_actors.dispatch.status import Capacity
from cantrip_actors.dispatch.together import overlaps, startable

__all__ = ["Desk"]

CantripFor = Cantrip | Callable[[Contract], Cantrip]
"""What a dispatch is run with: one cantrip for all, or a function that picks one by the contract."""

AGAIN = 30.0
"""Seconds until `serve` tries one again that could not be run, and whose log has not changed."""

_log = structlog.get_logger("cantrip_actors.dispatch")


class Desk:
    """Hands out dispatches kept in `folder`, and runs them on `runtime`.

    `effectful` are the names of gates after which progress has to be written before the next (F-18), besides `write`,
    `call_agent`, `call_agent_batch` and the desk's own. `strict` refuses the first call after a fold, so that the
    entity reads its dispatch again by itself. `poll` is how often, in seconds, a log is looked at by those who wait
    for an approval that another process writes.
    """

    def __init__(
        self,
        runtime: Runtime,
        folder: str | os.PathLike[str] | Dispatches,
        *,
        name: str = "desk",
        effectful: Iterable[str] = (),
        strict: bool = False,
        poll: float = 1.0,
    ) -> None:
        self.log = folder if isinstance(folder, Dispatches) else Dispatches(folder)
        self.name = name
        self._runtime = runtime
        self._effectful = EFFECTFUL | frozenset(effectful)
        self._strict = strict
        self._poll = poll

    # Handing out

    async def dispatch(
        self, contract: Contract | Mapping[str, Any], *, author: str | None = None, turn_id: str | None = None
    ) -> Record:
        """Write a contract down: from now on it is frozen, and queued (F-02).

        Raises InvalidContract with everything that is wrong (nothing is written then), DispatchExists.
        """
        if not isinstance(contract, Contract):
            made = draft(contract)
            if not isinstance(made, Contract):
                raise InvalidContract(made)
            contract = made
        return await self.log.create_soon(contract, author=author or self.name, turn_id=turn_id)

    async def approve(self, dispatch_id: str, *, by: str, note: str = "") -> Record:
        """A human approves: what waits for that starts, what is blocked goes on, a waiting phase advances (F-16)."""
        events = approving(await self.log.read_soon(dispatch_id), note)
        return await self.log.append_soon(dispatch_id, *events, by="human", author=by)

    async def unblock(self, dispatch_id: str, note: str, *, by: str) -> Record:
        """What blocked it is out of the way, and how: it is queued again."""
        events = unblocking(await self.log.read_soon(dispatch_id), note)
        return await self.log.append_soon(dispatch_id, *events, by="human", author=by)

    async def reject(self, dispatch_id: str, reason: str, *, by: str) -> Record:
        """End what is queued or blocked, for good (F-16)."""
        rejected = StatusChanged("rejected", reason=reason)
        return await self.log.append_soon(dispatch_id, rejected, by="human", author=by)

    def gates(self, cantrip: CantripFor) -> tuple[Gate, ...]:
        """The gates of an orchestrator: `dispatch`, `dispatch_batch`, `unblock`; its workers are made of `cantrip`."""
        return orders(self, cantrip)

    # Running

    async def run(
        self, dispatch_id: str, cantrip: CantripFor, *, wait: bool = False, take_over: bool = False
    ) -> Record:
        """Run a dispatch until it is over or blocked, and return its record as it is then.

        One that waits for an approval, or is blocked, is returned as it is; with `wait` it is waited for, however long
        that takes. A run that a crash cut short is taken up. One that an entity of another loom runs is refused, unless
        that loom is lost, and you say so by `take_over`: a new entity begins, and the old one can write no more.

        Raises UnknownDispatch, TamperedRecord, DispatchError where another entity or process runs it, LoomError where
        the loom cannot write; and as `Runtime.invoke` for a cantrip that cannot be.
        """
        while True:
            record = await self.log.read_soon(dispatch_id)
            if record.status == "blocked" and record.released:
                record = await self._put(record, StatusChanged("queued"), by="orchestrator")
            if record.terminal or (record.status != "active" and not startable([record])):
                await self._let_finish(record, cantrip)
                if record.terminal or not wait:
                    return record
                await self._changed(record)
                continue
            record = await self._run(record, cantrip, take_over=take_over)
            if record.terminal or not wait:
                return record

    async def _let_finish(self, record: Record, cantrip: CantripFor) -> None:
        """A process may have died after the status was set and before `done`: its entity has that much left to do."""
        entity = self._runtime.entity(record.id)
        if entity is not None and not entity.awake and self._runtime.loom.state(entity.id) == "active":
            entity = await self._runtime.resume(entity.id, cantrip=self._staffed(record, cantrip))
            await entity.episode()

    def _staffed(self, record: Record, cantrip: CantripFor) -> Cantrip:
        hand = Hand(self.log, record.id)
        companion = DispatchCompanion(
            hand,
            self._runtime.loom,
            effectful=self._effectful,
            strict=self._strict,
            children=self._children,
        )
        made_with = cantrip if isinstance(cantrip, Cantrip) else cantrip(record.contract)
        return staffed(made_with, record.contract, hand, companion, self.log.folder)

    async def _run(self, record: Record, cantrip: CantripFor, *, take_over: bool) -> Record:
        if record.status == "active":
            settled = await self._left_over(record, take_over=take_over)
            if settled is not None:
                return settled
        made = self._staffed(record, cantrip)
        try:
            await self._episode(record, made)
        except CrystalError as error:  # its companion has written down what that means
            _log.warning("the crystal of a dispatched entity failed", dispatch=record.id, why=str(error))
        except EntityCrashed as crash:
            if crash.__cause__ is None:  # it went with a part of the tree, and can be taken up
                raise
            if isinstance(crash.__cause__, DispatchError):  # the record itself is the reason: nothing is written to it
                raise crash.__cause__ from crash
            return await self._given_up(record.id, crash)
        return await self.log.read_soon(record.id)

    async def _left_over(self, record: Record, *, take_over: bool) -> Record | None:
        """What becomes of a dispatch that was active when nobody ran it; None where its entity goes on.

        A process may have died between the end of its entity's episode and the line that tells of it.
        """
        runner, loom = record.entries[record.started - 1].author, self._runtime.loom
        try:
            state = loom.state(runner)
        except LoomError as unknown:
            if not take_over:
                raise DispatchError(
                    f"{record.id} is run by entity {runner}, which is not in this loom: open the loom that it is in; "
                    "where that is lost, run it with take_over=True"
                ) from unknown
            await self._put(record, Recovered("its entity is in no loom any more, and another one begins"))
            return None
        if state == "active":
            return None
        return await self._put(record, ending(state, "its process ended before that was written down"))

    async def _episode(self, record: Record, made: Cantrip) -> None:
        """Have its entity work on it: a new one, the one that was cut short, or the one that waits for more."""
        entity = self._runtime.entity(record.id)
        if entity is None:
            entity = await self._runtime.invoke(made, record.contract.intent, name=record.id)
            await entity.episode()
            return
        if not entity.awake:
            entity = await self._runtime.resume(entity.id, cantrip=made)
        if self._runtime.loom.state(entity.id) == "active":
            await entity.episode()
        else:
            await entity.send(_further(record))

    async def _given_up(self, dispatch_id: str, crash: EntityCrashed) -> Record:
        """Its supervisor has given its entity up: so is the dispatch (F-25)."""
        record = await self.log.read_soon(dispatch_id)
        if record.terminal:
            return record
        if record.status == "queued":  # it crashed before it could become active
            hand = Hand(self.log, record.id)
            record = await hand.begin(Here(crash.entity_id or "", record.id))
        return await self._put(record, StatusChanged("failed", reason=str(crash)))

    async def _put(self, record: Record, event: Any, *, by: Capacity = "supervisor") -> Record:
        """Write in the place of its entity, fenced as that is."""
        return await self.log.append_soon(record.id, event, by=by, author=self.name, token=record.token)

    async def _changed(self, record: Record) -> None:
        """Wait until somebody has written to its log: this process or another."""
        while (await self.log.read_soon(record.id)).seq == record.seq:  # noqa: ASYNC110  # no event crosses processes
            await anyio.sleep(self._poll)

    def _children(self, entity_id: str) -> list[Record]:
        """What an orchestrator's entity has dispatched."""
        return [one for one in self._trusted() if one.contract.parent_entity_id == entity_id]

    # Many

    async def serve(self, cantrip: CantripFor, *, limit: int = 8) -> None:
        """Run whatever may run, `limit` at once, as it comes, until cancelled. Those that crashed are taken up first.

        Two that declare overlapping outputs never run at once (F-46). One whose record cannot be trusted is left alone,
        and logged.
        """
        running: dict[str, Record] = {}
        tried: dict[str, tuple[int, float]] = {}
        async with anyio.create_task_group() as tasks:
            while True:
                for record in await self._due(running, limit):
                    seq, when = tried.get(record.id, (0, 0.0))
                    if seq != record.seq or anyio.current_time() - when > AGAIN:
                        running[record.id] = record
                        tried[record.id] = (record.seq, anyio.current_time())
                        tasks.start_soon(self._serve_one, record.id, cantrip, running)
                await anyio.sleep(self._poll)

    async def heartbeat(self, cantrip: CantripFor, *, limit: int = 8) -> list[Record]:
        """One round without a human: take up what crashed, start what needs no approval, wait for all of it (F-48).

        The records of those that were run come back. One that cannot be run is logged, and keeps no other from it.
        """
        running: dict[str, Record] = {}
        due = await self._due(running, len(self.log.ids()), heartbeat=True)
        limiter = anyio.Semaphore(limit)
        done: list[Record] = []

        async def one(record: Record) -> None:
            async with limiter:
                ended = await self._serve_one(record.id, cantrip, running)
            if ended is not None:
                done.append(ended)

        async with anyio.create_task_group() as tasks:
            for record in due:
                running[record.id] = record
                tasks.start_soon(one, record)
        return sorted(done, key=lambda record: record.id)

    async def _due(self, running: Mapping[str, Record], limit: int, *, heartbeat: bool = False) -> list[Record]:
        """The dispatches to start now beside those that run: active ones first, then queued ones, by their ids."""
        records = await anyio.to_thread.run_sync(self._trusted)
        active = [one for one in records if one.status == "active"]
        queued = startable(records, heartbeat=heartbeat)
        taken, due = list(running.values()), list[Record]()
        for record in (*active, *queued):
            beside = [one.contract for one in (*taken, *due)]
            is_new = record.id not in running
            if is_new and len(taken) + len(due) < limit and not any(overlaps([record.contract, one]) for one in beside):
                due.append(record)
        return due

    def _trusted(self) -> list[Record]:
        """All records but those that cannot be trusted, which are left alone."""
        found: list[Record] = []
        for dispatch_id in self.log.ids():
            try:
                found.append(self.log.read(dispatch_id))
            except TamperedRecord as tampered:
                _log.error("a dispatch cannot be trusted", dispatch=dispatch_id, why=str(tampered))
        return found

    async def _serve_one(self, dispatch_id: str, cantrip: CantripFor, running: dict[str, Record]) -> Record | None:
        try:
            return await self.run(dispatch_id, cantrip)
        except CantripError as error:  # also where another process runs it: that one may die
            _log.error("a dispatch cannot be run", dispatch=dispatch_id, why=str(error))
            return None
        finally:
            del running[dispatch_id]


def _further(record: Record) -> str:
    """What the entity of a dispatch that is unblocked is told; its intent stays what it was (F-06)."""
    for entry in reversed(record.entries):
        if isinstance(entry.event, (Approved, PhaseApproved, Unblocked)) and entry.event.note:
            return f"Go on with your dispatch: {entry.event.note}"
    return "Go on with your dispatch."
