"""The dispatcher: creates dispatches, runs them, waits for them, and resumes them.

    async with Runtime.open("sqlite:loom.db") as runtime:
        dispatcher = Dispatcher(runtime, "dispatches")
        record = await dispatcher.dispatch(contract, author="ada")
        record = await dispatcher.run(record.id, cantrip)

The entity of a dispatch is long-lived and has the dispatch's id as its name, so that a dispatch that was blocked and
unblocked continues where it was. Each time that a dispatch is queued, its entity gets one intent, whose key names the
entry of the log that queued it. So the first run, a run after a crash and a run in another process are the same: they
send that intent again, and get the one episode that it has in the loom. The dispatcher has no state of its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from cantrip_actors import (
    Cantrip,
    CantripError,
    CrystalError,
    DependenciesUnknown,
    Entity,
    EntityCrashed,
    EntityEnded,
    Episode,
    Forgotten,
    Gate,
    Here,
    Runtime,
)
from cantrip_actors.dispatch.companion import EFFECTFUL, DispatchCompanion, make_ending
from cantrip_actors.dispatch.contract import Contract, draft, require_contract
from cantrip_actors.dispatch.errors import DispatchError
from cantrip_actors.dispatch.events import Recovered, StatusChanged
from cantrip_actors.dispatch.log import Dispatches, delete_dispatch, read_trusted_records
from cantrip_actors.dispatch.orchestrator_gates import make_orchestrator_gates
from cantrip_actors.dispatch.overlap import overlaps, startable
from cantrip_actors.dispatch.record import Decision, Record, make_decision
from cantrip_actors.dispatch.requests import DispatchRequests
from cantrip_actors.dispatch.status import Capacity
from cantrip_actors.dispatch.terms import Violation
from cantrip_actors.dispatch.worker_cantrip import make_worker_cantrip
from cantrip_actors.loom import Held
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.loom.outage_log import OutageLog
from cantrip_actors.terms.arguments import check_kind, check_whole
from cantrip_actors.user_code.threads import run_for_client

CantripFor = Cantrip | Callable[[Contract], Cantrip]
"""The cantrip of a dispatch: one for all, or a function that picks one by the contract."""

AT_WORK = ("active", "waiting")
"""The states of an entity whose episode has not ended; "waiting" is for a person."""

AGAIN = 30.0
"""Seconds until `serve` retries a dispatch that could not be run and whose log has not changed."""

_log = get_logger("cantrip_actors.dispatch")


class Dispatcher:
    """Creates dispatches in `folder`, and runs them on `runtime`.

    From then on `runtime.requests()` also lists the dispatches in `folder` that wait for a human, with ids such as
    `dispatch:<id>`; `runtime.decide(id, "allow")` approves one, and "deny" rejects it.

    `effectful` are the names of gates after which progress has to be written before the next, besides `write`,
    `call_agent`, `call_agent_batch` and the dispatcher's own. `strict` refuses the first call after a fold, so that the
    entity reads its dispatch again by itself. `poll` is the number of seconds between two looks at a log that another
    process may write to.

    The logs are sealed with the runtime's `seal_key`, unless `folder` is `Dispatches` with a key of its own.
    """

    def __init__(
        self,
        runtime: Runtime,
        folder: str | os.PathLike[str] | Dispatches,
        *,
        name: str = "dispatcher",
        effectful: Iterable[str] = (),
        strict: bool = False,
        poll: float = 1.0,
    ) -> None:
        check_kind("runtime", runtime, Runtime, "a Runtime, as of Runtime.open(…)")
        key = runtime._tree.seal_key  # noqa: SLF001  # a secret: no part of the public face
        self.log = folder if isinstance(folder, Dispatches) else Dispatches(folder, seal_key=key)
        self.name = name
        self._runtime = runtime
        self._effectful = EFFECTFUL | frozenset(effectful)
        self._strict = strict
        self._poll = poll
        self._running: list[Contract] = []
        runtime.add_request_source(DispatchRequests.of(self.log))

    # Creating and deciding

    async def dispatch(
        self,
        contract: Contract | Mapping[str, Any] | tuple[Violation, ...],
        *,
        author: str | None = None,
        turn_id: str | None = None,
    ) -> Record:
        """Record a contract: from now on it is frozen, and queued. `contract` may be what `draft` returned, or takes.

        Raises InvalidContract with everything that is wrong (nothing is written then), DispatchExists.
        """
        drafted = require_contract(contract if isinstance(contract, Contract | tuple) else draft(contract))
        return await self.log.create_soon(drafted, author=author or self.name, turn_id=turn_id)

    async def approve(self, dispatch_id: str, *, by: str, note: str = "", door: str = "") -> Record:
        """Approve as a human: a waiting dispatch starts, a blocked one continues, a waiting phase ends."""
        return await self._decide(dispatch_id, "approve", note, by, door)

    async def unblock(self, dispatch_id: str, note: str, *, by: str, door: str = "") -> Record:
        """Record how a blocker was removed; the dispatch is queued again."""
        return await self._decide(dispatch_id, "unblock", note, by, door)

    async def reject(self, dispatch_id: str, reason: str, *, by: str, door: str = "") -> Record:
        """End a queued or blocked dispatch for good."""
        return await self._decide(dispatch_id, "reject", reason, by, door)

    async def _decide(self, dispatch_id: str, decision: Decision, text: str, by: str, door: str) -> Record:
        return await self.log.append_soon(dispatch_id, make_decision(decision, text), by="human", author=by, door=door)

    async def forget(self, dispatch_id: str, *, by: str = "", why: str = "") -> Forgotten | None:
        """Delete the log of a dispatch that is over, and the content of its entity (`Runtime.forget`).

        Its entity is stopped first. Returns what the runtime forgot, or None if the entity is not in its loom. Raises
        UnknownDispatch, DispatchError for a dispatch that is not over, LoomError.
        """
        record = await self.log.read_soon(dispatch_id)
        if not record.terminal:
            raise DispatchError(f"dispatch {dispatch_id} is {record.status}, and is not forgotten: let it end first")
        entity, entity_id = await self._runtime.read(
            lambda: (self._runtime.entity(dispatch_id), self._runtime.loom.named(dispatch_id))
        )
        if entity is not None:
            await entity.stop()
        forgotten = None if entity_id is None else await self._runtime.forget(entity_id, by=by, why=why)
        await run_for_client(delete_dispatch, self.log, dispatch_id)
        return forgotten

    def gates(self, cantrip: CantripFor) -> tuple[Gate, ...]:
        """Return the gates of an orchestrator whose workers have `cantrip`: `dispatch`, `dispatch_batch`, `unblock`."""
        return make_orchestrator_gates(self.log, partial(self.run, cantrip=cantrip))

    # Running

    async def run(
        self, dispatch_id: str, cantrip: CantripFor, *, wait: bool = False, take_over: bool = False
    ) -> Record:
        """Run a dispatch until it is over or blocked, and return its record as it is then.

        A dispatch that waits for an approval, or is blocked, is returned as it is; with `wait` this waits for it. A
        run that a crash interrupted is resumed; one in another process is waited for, and resumed if that process dies.
        With another cantrip than before, the entity moves to that one; while it is at work in this process, that is
        refused. A dispatch that an entity of another loom runs is refused; if that loom is lost, `take_over` starts a
        new entity, and the old one can write no more.

        Raises UnknownDispatch, TamperedRecord, DispatchError where an entity of another loom runs it or another
        dispatch has the same outputs, LoomError where the loom cannot write; and as `Runtime.ensure` for an invalid
        cantrip.
        """
        while True:
            record = await self.log.read_soon(dispatch_id)
            if record.status == "blocked" and record.released:
                record = await self._append(record, StatusChanged("queued"), by="orchestrator")
            is_due = record.status == "active" or bool(startable([record]))
            if is_due or await self._runtime.read(partial(self._is_at_work, record.id)):
                record = await self._run(record, cantrip, take_over=take_over)
            if record.terminal or not wait:
                return record
            if not is_due:
                await self._wait_for_change(record)

    def _is_at_work(self, dispatch_id: str) -> bool:
        """Return whether the entity of a dispatch has an episode that has not ended. Reads the loom."""
        entity = self._runtime.entity(dispatch_id)
        return entity is not None and self._runtime.loom.state(entity.id) in AT_WORK

    def _make_worker_cantrip(self, record: Record, cantrip: CantripFor) -> Cantrip:
        base = cantrip if isinstance(cantrip, Cantrip) else cantrip(record.contract)
        return make_worker_cantrip(base, record.contract, self._make_companion(record.id))

    def _make_companion(self, dispatch_id: str) -> DispatchCompanion:
        loom = self._runtime.loom
        return DispatchCompanion(self.log, dispatch_id, loom, effectful=self._effectful, strict=self._strict)

    async def _run(self, record: Record, cantrip: CantripFor, *, take_over: bool) -> Record:
        worker = self._make_worker_cantrip(record, cantrip)
        await self._refuse_overlap(record)
        self._running.append(record.contract)
        try:
            entity = await self._find_entity(record, worker, take_over=take_over)
            ending = await self._run_episode(record, entity, worker)
        finally:
            self._running.remove(record.contract)
        after = await self.log.read_soon(record.id)
        if after.queued != record.queued:
            return after
        return await self._make_companion(record.id).settle(Here(entity.id, record.id), ending)

    async def _refuse_overlap(self, record: Record) -> None:
        """Raise DispatchError if another dispatch is writing the same outputs, here or in another process.

        The outputs of an orchestrator are those of its workers, and it waits for them.
        """
        active: list[Contract] = []
        if record.contract.outputs and record.status == "queued":
            records = await run_for_client(read_trusted_records, self.log)
            active = [record.contract for record in records if record.status == "active"]
        for other in (*active, *self._running):
            is_other = other.dispatch_id != record.id and other.role != "orchestrator"
            if is_other and (clashes := overlaps([other, record.contract])):
                raise DispatchError(f"{record.id} cannot start while {other.dispatch_id} is active: {clashes[0]}")

    async def _find_entity(self, record: Record, worker: Cantrip, *, take_over: bool) -> Entity:
        """Return the entity that runs a dispatch, made if none does, with the cantrip of this run."""
        runtime = self._runtime
        if record.status == "active":
            entity = await runtime.read(partial(runtime.find, record.runner, cantrip=worker))
            if entity is not None:
                return entity
            if not take_over:
                raise DispatchError(
                    f"{record.id} is run by entity {record.runner}, which is not in this loom: open the loom that it "
                    "is in; where that is lost, run it with take_over=True"
                )
            await self._append(record, Recovered("its entity is in no loom any more, and another one begins"))
        entity = await runtime.ensure(record.id, worker)
        # a cantrip that the runtime offers under the name of the worker's is not this contract's
        return await runtime.read(partial(runtime.get_entity, entity.id, cantrip=worker))

    async def _run_episode(self, record: Record, entity: Entity, worker: Cantrip) -> StatusChanged:
        """Wait for the episode for which the dispatch was queued, in any process; return the status that follows."""
        if entity.loaded and await self._runtime.read(partial(self._is_at_work, record.id)):
            header = await self._runtime.read(partial(self._runtime.loom.header_in_force, entity.id))
            if header.cantrip_id != worker.id:
                raise DispatchError(
                    f"{record.id} is at work with another cantrip: "
                    "wait for the end of its episode, or run it with that one"
                )
        try:
            episode = await self._send_intent(record, entity, worker)
        except CrystalError as error:
            _log.warning("the crystal of a dispatched entity failed", dispatch=record.id, why=str(error))
            return make_ending("failed", str(error))
        except EntityEnded as ended:
            return make_ending("ended", str(ended))
        except EntityCrashed as crash:
            if crash.__cause__ is None:  # a part of the tree ended with it: it can be resumed
                raise
            if isinstance(crash.__cause__, DispatchError):  # the record is the reason: nothing is written to it
                raise crash.__cause__ from crash
            return make_ending("crashed", str(crash))
        return make_ending(episode.reason, episode.summary or episode.reason)

    async def _send_intent(self, record: Record, entity: Entity, worker: Cantrip) -> Episode:
        """Send the intent for which the dispatch was queued, perhaps again, and wait for its episode."""
        while True:
            if not entity.loaded:
                with suppress(Held):  # another process runs it, and takes the intent
                    await self._runtime.resume(entity.id, cantrip=worker)
            try:
                return await entity.send(_make_intent(record), key=f"queued by entry {record.queued.seq}")
            except DependenciesUnknown:  # that process has died, and no other one has its writer
                if entity.loaded:
                    raise

    async def _append(self, record: Record, event: Any, *, by: Capacity = "supervisor") -> Record:
        """Write on behalf of its entity, under the entity's token."""
        return await self.log.append_soon(record.id, event, by=by, author=self.name, token=record.token)

    async def _wait_for_change(self, record: Record) -> None:
        """Wait until this process or another has written to its log."""
        while (await self.log.read_soon(record.id)).seq == record.seq:  # noqa: ASYNC110  # no event crosses processes
            await anyio.sleep(self._poll)

    # Many

    async def serve(self, cantrip: CantripFor, *, limit: int = 8) -> None:
        """Run every dispatch that may run, `limit` at once, until cancelled. Interrupted ones are resumed first.

        Two that declare overlapping outputs never run at once. A tampered record is left alone, and logged. While the
        loom cannot be read, none is begun, and the log says so.
        """
        check_whole("limit", limit, 1)
        outages = OutageLog("dispatches could not be selected", "dispatches are selected again")
        running: dict[str, Record] = {}
        tried: dict[str, tuple[int, float]] = {}

        async def run_one(record: Record) -> None:
            try:
                await self._try_run(record.id, cantrip)
            finally:
                del running[record.id]

        async with anyio.create_task_group() as tasks:
            while True:
                due: list[Record] = []
                with outages.watch():
                    due = await self._select_due(running, limit)
                for record in due:
                    seq, when = tried.get(record.id, (0, 0.0))
                    if seq != record.seq or anyio.current_time() - when > AGAIN:
                        running[record.id] = record
                        tried[record.id] = (record.seq, anyio.current_time())
                        tasks.start_soon(run_one, record)
                await anyio.sleep(self._poll)

    async def heartbeat(self, cantrip: CantripFor, *, limit: int = 8) -> list[Record]:
        """Run one round without a human: resume crashed dispatches, start those without approval, wait for all.

        Returns the records of the dispatches that ran. A dispatch that cannot be run is logged, and the others run.
        """
        check_whole("limit", limit, 1)
        due = await self._select_due({}, math.inf, heartbeat=True)
        limiter = anyio.Semaphore(limit)
        ended: list[Record | None] = []

        async def run_one(record: Record) -> None:
            async with limiter:
                ended.append(await self._try_run(record.id, cantrip))

        async with anyio.create_task_group() as tasks:
            for record in due:
                tasks.start_soon(run_one, record)
        return sorted(filter(None, ended), key=lambda record: record.id)

    async def _select_due(
        self, running: Mapping[str, Record], limit: float, *, heartbeat: bool = False
    ) -> list[Record]:
        """Return the dispatches to start now, in addition to those that run: active ones, then queued ones, by id.

        Those that another process runs do not count towards the limit.
        """
        records = await run_for_client(read_trusted_records, self.log)
        active = [record for record in records if record.status == "active"]
        queued = startable(records, heartbeat=heartbeat)
        elsewhere = await self._runtime.read(lambda: list(filter(self._runs_elsewhere, active)))
        chosen = dict(running)
        for record in (*active, *queued):
            if record.id in chosen or record in elsewhere or len(chosen) >= limit:
                continue
            if not any(overlaps([record.contract, other.contract]) for other in (*chosen.values(), *elsewhere)):
                chosen[record.id] = record
        return [record for record in chosen.values() if record.id not in running]

    def _runs_elsewhere(self, record: Record) -> bool:
        """Return whether another process runs the entity of a dispatch. It reads the loom in the calling thread."""
        entity = self._runtime.entity(record.id)
        return entity is not None and entity.held and not entity.loaded

    async def _try_run(self, dispatch_id: str, cantrip: CantripFor) -> Record | None:
        """Run a dispatch; if it cannot be run, log why and return None."""
        try:
            return await self.run(dispatch_id, cantrip)
        except CantripError as error:
            _log.error("a dispatch cannot be run", dispatch=dispatch_id, why=str(error))
            return None


def _make_intent(record: Record) -> str:
    """Return the intent for the entity of a dispatch: the contract's, or after a blocker one to go on."""
    match record.queued.event:
        case StatusChanged(reason=note):
            return f"Go on with your dispatch: {note}" if note else "Go on with your dispatch."
        case _:
            return record.contract.intent
