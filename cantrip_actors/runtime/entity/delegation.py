"""Delegation: the children that an entity casts with `call_agent` and `call_agent_batch`, and waits for.

Each child is a task in the nursery of its parent's actor. A child that fails is a value for its parent (COMP-8, D-011):
whatever happens to it becomes its outcome, and the crash report goes to the supervisors' reports.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

import anyio

from cantrip_actors.loom.export.spending import sum_usage_under
from cantrip_actors.machine.actions import Child, Spawn
from cantrip_actors.machine.events import ChildOutcome, Returned
from cantrip_actors.records.records import ChildStarted
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.entity.ends import wait_for_stopped
from cantrip_actors.runtime.entity.environment import Environment
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.terms.bounds import RESULT_BYTES, RESULT_VALUES, measure_share
from cantrip_actors.terms.cut_off import note_cut_off
from cantrip_actors.terms.errors import CantripError, LoomError
from cantrip_actors.terms.messages import as_text
from cantrip_actors.terms.outcome import EndReason, Outcome
from supervisors import Children, Shutdown

TOO_MUCH: Final = (
    f"the answers of this batch exceed what one call may return ({RESULT_BYTES:,} bytes, {RESULT_VALUES:,} values), so "
    "this one is left out: ask for shorter answers, or for fewer at once"
)


class ChildMaker(Protocol):
    """Makes and starts the cells of children."""

    async def get_child_cell(self, parent: Cell, turn_id: str, child: Child, known: str | None) -> Cell:
        """Return the cell of a child: a new cell or, after a crash, one loaded from the log. Raises CantripError."""

    async def start_child(self, cell: Cell, children: Children) -> None:
        """Start a child among the children of its parent's actor."""


class Delegation:
    """The children of one call, until all of them have ended. `children` are those of the parent's actor."""

    def __init__(
        self,
        parent: Cell,
        action: Spawn,
        *,
        environment: Environment,
        recorder: StepRecorder,
        maker: ChildMaker,
        children: Children,
    ) -> None:
        self._parent = parent
        self._action = action
        self._environment = environment
        self._recorder = recorder
        self._maker = maker
        self._nursery = children
        self._children: list[Cell | ChildOutcome] = []
        """The children; in place of one that cannot be cast, and of one whose result is dropped, its outcome."""
        self._shares: dict[int, float] = {}
        """The share of the bounds that the result of each child takes, by its index, where there are several."""

    async def begin(self) -> None:
        """Make the children, record that they begin, and start them.

        After a crash of the parent, some of them have begun already: those that have ended have their outcomes, and
        the others are resumed from their logs. A child that cannot be cast, because its crystal is missing, has a
        failed outcome. Raises LoomError.
        """
        action = self._action
        for index in range(len(action.children)):
            child = await self._make_child(index)
            self._children.append(child)
            if isinstance(child, Cell) and len(action.children) > 1:
                child.ending.listen(partial(self._drop_excess, index))
                self._drop_excess(index)
        await self._record_beginnings()
        for child in self._children:
            if isinstance(child, Cell) and not child.is_over:
                await anyio.lowlevel.checkpoint_if_cancelled()
                # a cancelled start would end the child, and a resumed parent may still want it
                with anyio.CancelScope(shield=True):
                    await self._maker.start_child(child, self._nursery)

    async def wait(self) -> Returned:
        """Wait until all children have ended, and return their outcomes.

        If the loom could not write a child's records, the child has not failed but stopped: its LoomError is raised,
        and parent and child continue when they are resumed.
        """
        cells = [child for child in self._children if isinstance(child, Cell)]
        for cell in cells:
            if not cell.is_over or cell.actor.parent is not None:
                await cell.ending.wait()
        for cell in cells:
            if cell.outcome is None and isinstance(cell.error, LoomError):
                raise cell.error
        return Returned(tuple([await self._make_outcome(child) for child in self._children]))

    async def stop(self, why: EndReason) -> None:
        """End the children that still run, last started first, and wait until their ends are recorded."""
        with anyio.CancelScope(shield=True):
            for child in reversed(self._children):
                if isinstance(child, Cell) and child.actor.parent is not None and not child.ending.is_set:
                    await self._nursery.stop(child.actor, Shutdown(why))
                    await wait_for_stopped(child, self._environment.core)

    async def _make_child(self, index: int) -> Cell | ChildOutcome:
        action = self._action
        try:
            return await self._maker.get_child_cell(
                self._parent, action.turn_id, action.children[index], action.started.get(index)
            )
        except LoomError:
            raise
        except CantripError as error:
            return ChildOutcome(None, f"child cannot be cast: {error}")

    async def _record_beginnings(self) -> None:
        parent, action = self._parent, self._action
        trace = None if parent.spans is None else parent.spans.trace
        begun = [
            ChildStarted(parent.entity_id, action.turn_id, action.call.id, child.entity_id, index, trace)
            for index, child in enumerate(self._children)
            if isinstance(child, Cell) and index not in action.started
        ]
        if begun:
            with anyio.CancelScope(shield=True):  # a record that is being written belongs to the state
                await self._recorder.record(begun)

    def _drop_excess(self, ended: int) -> None:
        """Drop the results that exceed the bounds of one call, once the child of that index has ended."""
        child = self._children[ended]
        if not isinstance(child, Cell) or child.outcome is None:
            return
        self._shares[ended] = measure_share(as_text(child.outcome.result))
        if sum(self._shares.values()) <= 1:
            return
        total = 0.0
        for index in sorted(self._shares):
            total += self._shares[index]
            child = self._children[index]
            if total > 1 and isinstance(child, Cell) and child.outcome is not None:
                self._children[index] = ChildOutcome(None, TOO_MUCH, child.outcome.subtree_usage)

    async def _make_outcome(self, child: Cell | ChildOutcome) -> ChildOutcome:
        return child if isinstance(child, ChildOutcome) else await read_outcome(self._environment.core, child)


async def read_outcome(core: Core, child: Cell) -> ChildOutcome:
    """Return the outcome of a child that has ended, as a value for its parent (COMP-8)."""
    if child.outcome is not None:
        return describe_outcome(child.outcome)
    usage = await core.in_store(partial(sum_usage_under, core.loom, child.entity_id))
    return ChildOutcome(None, f"child crashed: {child.error or child.make_crash_error()}", usage)


def describe_outcome(outcome: Outcome) -> ChildOutcome:
    """Return the outcome of a child that has not crashed, as a value for its parent (COMP-8)."""
    usage = outcome.subtree_usage
    if outcome.terminated:
        return ChildOutcome(note_cut_off(outcome.result, outcome.cut_off), None, usage, outcome.images)
    if outcome.error is not None:
        return ChildOutcome(None, f"child failed: {outcome.error}", usage)
    return ChildOutcome(None, f"child ended without an answer: {outcome.summary or outcome.reason}", usage)
