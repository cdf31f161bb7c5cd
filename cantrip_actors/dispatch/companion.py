"""The companion of a dispatched entity: the rules around its gates, and the entries for how its life goes.

Every rule is checked before the effect, in a step wrapped around a gate (F-45), and fails closed:

    around            step
    ----------------  -------------------------------------------------------------------------------------------------
    every gate        before: a checkpoint that is due (F-18), a new look at the dispatch after a fold (`strict`)
                      after: counts the call
    gates with files  before: no file of the dispatches' logs is touched
    done              before: the exit contract (F-21)

Its state between two steps is a cache: after a crash, and in a new process, the checkpoint is counted again from the
loom, and refused `done`s are in the log (F-27, F-31).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from anyio import to_thread

from cantrip_actors import Companion, GateCall, Here, Loom, Observation, Refused
from cantrip_actors.dispatch.checkpoints import EXEMPT, Checkpoint, may_run, progress_written, ran
from cantrip_actors.dispatch.events import DoneRefused, Folded, StatusChanged
from cantrip_actors.dispatch.exit_contract import Accept, Refuse, exit_of
from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.rehydrate import rehydration
from cantrip_actors.dispatch.writer import DispatchWriter

__all__ = ["EFFECTFUL", "DispatchCompanion", "ending", "is_own_gate", "keep_off"]

LONGEST_PATH = 4096

EFFECTFUL = frozenset({"write", "call_agent", "call_agent_batch", "dispatch", "dispatch_batch"})
"""Gates after which a checkpoint is due; a dispatcher may add others."""

RULES = """\
You work under this contract, which nobody can change. Write progress after each milestone: progress(kind, text); and
evidence for each acceptance criterion: progress("verification", text, item=n). After an effect other gates wait until
you have. When all is done, set_status("completed", result=...); when you cannot go on, set_status("blocked",
blocker=...). Then call done."""


class DispatchCompanion(Companion):
    """The companion of one dispatch's entity. A `Dispatcher` makes it."""

    def __init__(
        self,
        writer: DispatchWriter,
        loom: Loom,
        *,
        effectful: frozenset[str] = EFFECTFUL,
        strict: bool = False,
        children: Callable[[str], Iterable[Record]],
    ) -> None:
        self._writer = writer
        writer.noted = self._clear_checkpoint
        self._loom = loom
        self._effectful = effectful
        self._strict = strict
        self._children = children
        self._checkpoint = Checkpoint()
        self._is_counted = False
        self._unread = False

    # Its life

    async def begins(self, here: Here) -> str | None:
        """Make the dispatch active, or recover it; return the contract and the progress for the entity to read."""
        record = await self._writer.begin(here)
        if here.restored or not self._is_counted:
            self._checkpoint, self._is_counted = self._count_calls(here.entity_id), True
        return f"{RULES}\n\n{await self._rehydrate(record, here)}"

    async def recalls(self, here: Here, last: int) -> str | None:
        """Record a fold in the log; return the part of the record that stays in the context (F-28)."""
        record = await self._writer.read()
        if record.status == "active":
            record = await self._writer.write(Folded(1, last))
        self._unread = self._strict
        return await self._rehydrate(record, here)

    async def ends(self, here: Here, outcome: Any) -> None:  # noqa: ARG002  # it has one entity
        """End a dispatch that the entity did not end itself, by the reason why its episode is over."""
        record = await self._writer.read()
        if record.status != "active":
            return
        why = outcome.summary or outcome.error or outcome.reason
        await self._writer.write(ending(outcome.reason, why), by="supervisor")

    def _clear_checkpoint(self) -> None:
        self._checkpoint = progress_written(self._checkpoint)

    async def _rehydrate(self, record: Record, here: Here) -> str:
        if record.contract.role != "orchestrator":
            return rehydration(record)
        return rehydration(record, children=await to_thread.run_sync(self._children, here.entity_id))

    def _count_calls(self, entity_id: str) -> Checkpoint:
        """Return the checkpoint that follows from the entity's turns."""
        state = Checkpoint()
        for turn in self._loom.turns(entity_id):
            for seen in turn.gate_calls:
                if seen.gate == "progress" and not seen.is_error:
                    state = progress_written(state)
                elif may_run(state, seen.gate) is None:
                    state = ran(state, seen.gate, effectful=seen.gate in self._effectful)
        return state

    # Steps

    def may_run(self, call: GateCall) -> Refused | None:
        """Check a gate call that is not one of the dispatch itself."""
        if self._unread:
            self._unread = False
            return Refused(f"older turns were just folded away: read your dispatch again before {call.gate} runs")
        refusal = may_run(self._checkpoint, call.gate)
        return None if refusal is None else Refused(refusal.text)

    def has_run(self, call: GateCall, seen: Observation) -> None:  # noqa: ARG002  # also a failed call may have an effect
        """Count a gate call that is not one of the dispatch itself."""
        self._checkpoint = ran(self._checkpoint, call.gate, effectful=call.gate in self._effectful)

    async def may_end(self, call: GateCall) -> Refused | None:
        """Check the exit contract before `done`."""
        record = await self._writer.read()
        verdict = exit_of(record)
        if isinstance(verdict, Accept):
            return None
        if isinstance(verdict, Refuse):
            refused = DoneRefused(verdict.text)
            await self._writer.write(refused, turn_id=call.turn_id, by="supervisor")
            return Refused(verdict.text)
        blocked = StatusChanged("blocked", blocker=verdict.blocker)
        await self._writer.write(blocked, turn_id=call.turn_id, by="supervisor")
        return None


def ending(how: str, why: str) -> StatusChanged:
    """Return the status of an active dispatch whose entity's episode is over: blocked if it can be continued."""
    match how:
        case "terminated":
            return StatusChanged("blocked", blocker="its entity ended without a status")
        case "failed":
            return StatusChanged("blocked", blocker=f"its crystal failed: {why}")
        case "interrupted":
            return StatusChanged("blocked", blocker=f"it was interrupted: {why}")
        case _:
            return StatusChanged("failed", reason=f"{how}: {why}")


def keep_off(folder: Path, root: Any) -> Callable[[GateCall], Awaitable[Refused | None]]:
    """Return a step before a gate with files below `root`, which refuses paths of the dispatches' logs.

    A path is relative to the root, or absolute. Links are followed.
    """

    def inside(args: Mapping[str, Any]) -> str | None:
        logs = folder.resolve()
        for value in args.values():
            if isinstance(value, str) and 0 < len(value) < LONGEST_PATH and value.isprintable():
                found = (Path(root) / value).resolve()
                if found == logs or logs in found.parents:
                    return value
        return None

    async def keep_off_dispatches(call: GateCall) -> Refused | None:
        named = await to_thread.run_sync(inside, call.args)
        if named is None:
            return None
        return Refused(
            f"{named} is in the folder of the dispatches, and no gate may touch that; to add to yours use progress"
        )

    return keep_off_dispatches


def is_own_gate(gate: str) -> bool:
    """Return whether a gate is one of the dispatch itself, which no checkpoint holds up."""
    return gate in EXEMPT or gate == "done"
