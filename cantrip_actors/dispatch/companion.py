"""The companion of a dispatched entity: the rules around its gates, and the entries about its life.

Every rule is checked before the effect, in a step wrapped around a gate, and fails closed:

    around            step
    ----------------  -------------------------------------------------------------------------------------------------
    every gate        before: a checkpoint that is due, reading the dispatch again after a fold (`strict`)
                      after: counts the call
    gates with files  before: no file of the dispatches' logs is touched
    done              before: the exit contract

It writes to the log under the entity's lease, each event once: after a crash a gate call is repeated with the same
turn, and an event that this turn has written is not written again. Its state between two steps is a cache: after a
crash, and in a new process, the checkpoint is counted again from the loom, and refused `done`s are in the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cantrip_actors import Companion, Gate, GateCall, Here, Loom, Observation, Refused
from cantrip_actors.dispatch.checkpoints import Checkpoint, count_gate, may_run
from cantrip_actors.dispatch.errors import DispatchError
from cantrip_actors.dispatch.events import DoneRefused, Event, Folded, Recovered, StatusChanged
from cantrip_actors.dispatch.log import RUNTIME, Dispatches, read_trusted_records
from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.rehydrate import rehydration
from cantrip_actors.dispatch.rules import make_exit
from cantrip_actors.dispatch.status import Capacity
from cantrip_actors.machine.project import list_finished_calls, list_started_calls
from cantrip_actors.own_files.claims import Own
from cantrip_actors.user_code.threads import run_for_client

SHOWN = 120
"""Characters of a refused text that are repeated."""

EFFECTFUL = frozenset({"write", "call_agent", "call_agent_batch", "dispatch", "dispatch_batch"})
"""Gates after which a checkpoint is due; a dispatcher may add others."""

RULES = """\
You work under this contract, which nobody can change. Write progress after each milestone: progress(kind, text); and
evidence for each acceptance criterion: progress("verification", text, item=n). After an effect other gates wait until
you have. When all is done, set_status("completed", result=...); when you cannot go on, set_status("blocked",
blocker=...). Then call done."""


class DispatchCompanion(Companion):
    """The companion of one dispatch's entity, and the writer of its log. A `Dispatcher` makes it."""

    def __init__(
        self,
        log: Dispatches,
        dispatch_id: str,
        loom: Loom,
        *,
        effectful: frozenset[str] = EFFECTFUL,
        strict: bool = False,
    ) -> None:
        self.log = log
        self.dispatch_id = dispatch_id
        self._loom = loom
        self._effectful = effectful
        self._strict = strict
        self._checkpoint = Checkpoint()
        self._without_start: frozenset[str] = frozenset()
        self._unread = False
        self._entity_id = ""
        self._token: int | None = None

    def note_gates(self, gates: Iterable[Gate]) -> None:
        """Note the entity's gates: the loom records the starts of the others than these, which shows what ran."""
        self._without_start = frozenset(gate.name for gate in gates if gate.kind != "function" or gate.idempotent)

    # The log

    async def read(self) -> Record:
        """Return the record. Raises TamperedRecord."""
        return await self.log.read_soon(self.dispatch_id)

    async def start(self, here: Here) -> Record:
        """Make the dispatch active or, if it was active when its entity crashed, recover it.

        The entity holds the loom's lease; the token that refuses late writers of this log is the log's own, one higher
        with each start. A dispatch that has ended is unchanged: its entity only has to finish.

        Raises DispatchError for an entity that is not called after the dispatch, such as a fork of a worker, and if
        another entity runs it; EventRefused if it may not start.
        """
        if here.name != self.dispatch_id:
            raise DispatchError(
                f"{self.dispatch_id} is run by the entity of that name: {here.entity_id} may not run it; give a fork "
                "of its entity a cantrip of its own, which has no contract"
            )
        record = await self.read()
        was_active = record.status == "active"
        if was_active and record.runner != here.entity_id:
            raise DispatchError(
                f"{record.id} is run by entity {record.runner}: {here.entity_id} may not run it as well"
            )
        self._entity_id = here.entity_id
        if record.status not in ("queued", "active"):
            if not here.restored:
                raise DispatchError(f"{record.id} is {record.status}: it cannot be run")
            self._token = record.token
            return record
        self._token = record.next_token
        if was_active:
            await self.write(Recovered("its entity was restarted from its log"), by="supervisor")
        return await self.write(StatusChanged("active"))

    async def write(self, *events: Event, by: Capacity = "worker", turn_id: str | None = None) -> Record:
        """Append the events that this turn has not written yet, and return the record.

        Raises EventRefused, TamperedRecord, DispatchError.
        """
        return await self.log.append_soon(
            self.dispatch_id,
            *events,
            by=by,
            author=self._entity_id if by == "worker" else RUNTIME,
            turn_id=turn_id,
            token=self._token,
            once=turn_id is not None,
        )

    # Its life

    async def begins(self, here: Here) -> str | None:
        """Make the dispatch active, or recover it; return the contract and the progress for the entity to read."""
        record = await self.start(here)
        self._checkpoint = await run_for_client(self._count_calls, here.entity_id)
        return f"{RULES}\n\n{await self._rehydrate(record, here)}"

    async def recalls(self, here: Here, last: int) -> str | None:
        """Record a fold in the log; return the part of the record that stays in the context."""
        record = await self.read()
        if record.status == "active":
            record = await self.write(Folded(1, last))
        self._unread = self._strict
        return await self._rehydrate(record, here)

    async def ends(self, here: Here, outcome: Any) -> None:
        """End a dispatch that the entity did not end itself, according to how its episode ended."""
        await self.settle(here, make_ending(outcome.reason, outcome.summary or outcome.error or outcome.reason))

    async def settle(self, here: Here, ending: StatusChanged) -> Record:
        """Write the status in which an episode has left the dispatch, unless its entity has set one."""
        record = await self.read()
        if record.status == "queued":  # it ended before it could become active
            record = await self.start(here)
        if record.status != "active":
            return record
        if self._token is None:  # its entity has run in another process
            self._token = record.token
        return await self.write(ending, by="supervisor")

    def clear_checkpoint(self) -> None:
        """Reset the count, because a progress entry became durable. Nothing else clears a checkpoint."""
        self._checkpoint = Checkpoint()

    def lend(self, gate: Gate) -> Gate | None:
        """Return a gate without the steps of this dispatch; None for a gate that writes to its log.

        The contract binds its worker: a child has no contract, ends with a plain `done`, and never moves the dispatch.
        What it does is part of the worker's call, which is counted and checked as a whole.
        """
        if any(dependency is self for dependency in gate.dependencies.values()):
            return None
        inherited = [
            wrapper
            for wrapper in gate.wrappers
            if not any(getattr(step, "__self__", None) is self for step in (*wrapper.pre, *wrapper.post))
        ]
        return replace(gate, wrappers=tuple(inherited))

    async def _rehydrate(self, record: Record, here: Here) -> str:
        if record.contract.role != "orchestrator":
            return rehydration(record)
        records = await run_for_client(read_trusted_records, self.log)
        return rehydration(
            record, children=[record for record in records if record.contract.parent_entity_id == here.entity_id]
        )

    def _count_calls(self, entity_id: str) -> Checkpoint:
        """Return the checkpoint that follows from the entity's records.

        A call that failed without a start in the loom was refused, and did not run. Idempotent gates and delegations
        leave no start; their errors count as runs.
        """
        state, records = Checkpoint(), self._loom.records(entity_id)
        starts = list_started_calls(records)
        for call in list_finished_calls(records):
            has_started = call.gate in self._without_start or (call.turn_id, call.tool_call_id) in starts
            if call.gate == "progress" and not call.is_error:
                state = Checkpoint()
            elif may_run(state, call.gate) is None and (has_started or not call.is_error):
                state = count_gate(state, call.gate, effectful=call.gate in self._effectful)
        return state

    # Steps

    def may_run(self, call: GateCall) -> Refused | None:
        """Check a gate call, except for the dispatch's own gates."""
        if self._unread:
            self._unread = False
            return Refused(f"older turns were just folded away: read your dispatch again before {call.gate} runs")
        refusal = may_run(self._checkpoint, call.gate)
        return None if refusal is None else Refused(refusal.text)

    def has_run(self, call: GateCall, seen: Observation) -> None:  # noqa: ARG002  # a step after a gate
        """Count a gate call that ran, also one that failed, except for the dispatch's own gates."""
        self._checkpoint = count_gate(self._checkpoint, call.gate, effectful=call.gate in self._effectful)

    async def may_end(self, call: GateCall) -> Refused | None:
        """Check the exit contract before `done`. One that a crash repeats is refused in the words of the first time."""
        record = await self.read()
        event = make_exit(record)
        if event is None:
            return None
        for entry, earlier in record.of(DoneRefused):
            if entry.turn_id == call.turn_id:
                return Refused(earlier.text)
        await self.write(event, turn_id=call.turn_id, by="supervisor")
        return Refused(event.text) if isinstance(event, DoneRefused) else None


def make_ending(how: str, why: str) -> StatusChanged:
    """Return the status of an active dispatch after its entity's episode: blocked if it can be continued."""
    match how:
        case "terminated":
            return StatusChanged("blocked", blocker="its entity ended without a status")
        case "failed":
            return StatusChanged("blocked", blocker=f"its crystal failed: {why}")
        case "interrupted":
            return StatusChanged("blocked", blocker=f"it was interrupted: {why}")
        case _:
            return StatusChanged("failed", reason=f"{how}: {why}")


def keep_off(root: Any) -> Callable[[GateCall], Awaitable[Refused | None]]:
    """Return a step before a gate with files below `root`, which refuses texts that lead to files of the runtime.

    Every text in the arguments counts, at any depth, as a path from the root or as an absolute one.
    """

    def find(args: Mapping[str, Any]) -> str | None:
        own = Own.now()
        return next((text for text in _list_texts(args) if own.has_path(root, text)), None)

    async def keep_off_own_files(call: GateCall) -> Refused | None:
        try:
            named = await run_for_client(find, call.args)
        except OSError as error:
            return Refused(f"it is unknown whether {call.gate} touches files of the runtime: {error.strerror}")
        if named is None:
            return None
        shown = named if len(named) <= SHOWN else f"{named[:SHOWN]}…"
        return Refused(f"{shown!r} belongs to the runtime, and no gate may touch that; to add to yours use progress")

    return keep_off_own_files


def _list_texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, also the names in objects."""
    todo = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            todo += [*part, *part.values()]
        elif isinstance(part, list | tuple):
            todo += part
