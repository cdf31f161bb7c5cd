"""The companion of a dispatched entity: what holds for it before its gates do, and what is written as its life turns.

Every rule stands before the effect, as a step wrapped around a gate (F-45), and fails closed:

    around            step
    ----------------  -------------------------------------------------------------------------------------------------
    every gate        before: a checkpoint that is due (F-18), the first look after a fold where that is asked for
                      after: counts the call
    gates with files  before: nothing that lies among the dispatches is touched
    done              before: the exit contract (F-21)

What it remembers between two steps is a cache: after a crash, and in a new process, the checkpoint is counted again
from the loom, and refused `done`s are in the log (F-27, F-31).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from anyio import to_thread

from cantrip_actors import Companion, GateCall, Here, Loom, Observation, Refused
from cantrip_actors.dispatch.checkpoints import EXEMPT, Checkpoint, may_run, progress_written, ran
from cantrip_actors.dispatch.events import DoneRefused, Folded, StatusChanged
from cantrip_actors.dispatch.exits import Accept, Refuse, exit_of
from cantrip_actors.dispatch.hand import Hand
from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.rehydrate import rehydration

__all__ = ["EFFECTFUL", "DispatchCompanion", "ending", "is_its_own", "keeps_off"]

LONGEST_PATH = 4096

EFFECTFUL = frozenset({"write", "call_agent", "call_agent_batch", "dispatch", "dispatch_batch"})
"""Gates after which a checkpoint is due, unless a desk is told of others."""

RULES = """\
You work under this contract, which nobody can change. Write progress after each milestone: progress(kind, text); and
evidence for each acceptance criterion: progress("verification", text, item=n). After an effect other gates wait until
you have. When all is done, set_status("completed", result=...); when you cannot go on, set_status("blocked",
blocker=...). Then call done."""


class DispatchCompanion(Companion):
    """Goes along with the entity of one dispatch. Made by a `Desk`."""

    def __init__(
        self,
        hand: Hand,
        loom: Loom,
        *,
        effectful: frozenset[str] = EFFECTFUL,
        strict: bool = False,
        children: Callable[[str], Iterable[Record]],
    ) -> None:
        self._hand = hand
        hand.noted = self._written
        self._loom = loom
        self._effectful = effectful
        self._strict = strict
        self._children = children
        self._checkpoint = Checkpoint()
        self._is_counted = False
        self._unread = False

    # Its life

    async def begins(self, here: Here) -> str | None:
        """Make the dispatch active, or recover it; the entity reads its contract, and how far it came."""
        record = await self._hand.begin(here)
        if here.restored or not self._is_counted:
            self._checkpoint, self._is_counted = self._counted(here.entity_id), True
        return f"{RULES}\n\n{await self._told(record, here)}"

    async def recalls(self, here: Here, last: int) -> str | None:
        """What of the record is to stay in sight (F-28). Noted in the log."""
        record = await self._hand.read()
        if record.status == "active":
            record = await self._hand.write(Folded(1, last))
        self._unread = self._strict
        return await self._told(record, here)

    async def ends(self, here: Here, outcome: Any) -> None:  # noqa: ARG002  # it has one entity
        """What was not ended by the entity itself is ended here, by the reason for which its episode is over."""
        record = await self._hand.read()
        if record.status != "active":
            return
        why = outcome.summary or outcome.error or outcome.reason
        await self._hand.write(ending(outcome.reason, why), by="supervisor")

    def _written(self) -> None:
        self._checkpoint = progress_written(self._checkpoint)

    async def _told(self, record: Record, here: Here) -> str:
        if record.contract.role != "orchestrator":
            return rehydration(record)
        return rehydration(record, children=await to_thread.run_sync(self._children, here.entity_id))

    def _counted(self, entity_id: str) -> Checkpoint:
        """The checkpoint as the entity's log has it."""
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
        """Before every gate but those of the dispatch itself."""
        if self._unread:
            self._unread = False
            return Refused(f"older turns were just folded away: read your dispatch again before {call.gate} runs")
        refusal = may_run(self._checkpoint, call.gate)
        return None if refusal is None else Refused(refusal.text)

    def has_run(self, call: GateCall, seen: Observation) -> None:  # noqa: ARG002  # also a failed call may have an effect
        """After every gate but those."""
        self._checkpoint = ran(self._checkpoint, call.gate, effectful=call.gate in self._effectful)

    async def may_end(self, call: GateCall) -> Refused | None:
        """Before `done`."""
        record = await self._hand.read()
        verdict = exit_of(record)
        if isinstance(verdict, Accept):
            return None
        if isinstance(verdict, Refuse):
            refused = DoneRefused(verdict.text)
            await self._hand.write(refused, turn_id=call.turn_id, by="supervisor")
            return Refused(verdict.text)
        blocked = StatusChanged("blocked", blocker=verdict.blocker)
        await self._hand.write(blocked, turn_id=call.turn_id, by="supervisor")
        return None


def ending(how: str, why: str) -> StatusChanged:
    """What becomes of an active dispatch whose entity's episode is over: blocked where somebody may have it go on."""
    match how:
        case "terminated":
            return StatusChanged("blocked", blocker="its entity ended without a status")
        case "failed":
            return StatusChanged("blocked", blocker=f"its crystal failed: {why}")
        case "interrupted":
            return StatusChanged("blocked", blocker=f"it was interrupted: {why}")
        case _:
            return StatusChanged("failed", reason=f"{how}: {why}")


def keeps_off(folder: Path, root: Any) -> Callable[[GateCall], Awaitable[Refused | None]]:
    """A step before a gate that works with files below `root`: what names something among the dispatches is refused.

    A path is one below the root, or an absolute one. Links are followed as they are now.
    """

    def inside(args: Mapping[str, Any]) -> str | None:
        kept = folder.resolve()
        for value in args.values():
            if isinstance(value, str) and 0 < len(value) < LONGEST_PATH and value.isprintable():
                found = (Path(root) / value).resolve()
                if found == kept or kept in found.parents:
                    return value
        return None

    async def keeps_off_the_dispatches(call: GateCall) -> Refused | None:
        named = await to_thread.run_sync(inside, call.args)
        if named is None:
            return None
        return Refused(
            f"{named} is where dispatches are kept, and no gate may touch them; to add to yours use progress"
        )

    return keeps_off_the_dispatches


def is_its_own(gate: str) -> bool:
    """Whether a gate is one of those that are never held up."""
    return gate in EXEMPT or gate == "done"
