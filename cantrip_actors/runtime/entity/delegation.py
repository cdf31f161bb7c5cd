"""Delegation: the children that an entity casts with `call_agent` and `call_agent_batch`, and waits for.

Each child is a task in the nursery of its parent's actor. A child that fails is a value for its parent (COMP-8, D-011):
whatever happens to it becomes its outcome, and the crash report goes to the supervisors' reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import anyio

from cantrip_actors.loom.export.spending import sum_usage_under
from cantrip_actors.machine.actions import Child, Spawn
from cantrip_actors.machine.events import ChildOutcome, Returned
from cantrip_actors.records.records import ChildStarted
from cantrip_actors.runtime.entity.cell import Cell
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


@dataclass(frozen=True, slots=True)
class ParentEntity:
    """One incarnation of an entity as a parent: it makes, starts and stops children, in the nursery of its actor."""

    cell: Cell
    environment: Environment
    recorder: StepRecorder
    maker: ChildMaker
    nursery: Children

    async def make_child(self, turn_id: str, child: Child, known: str | None) -> Cell | ChildOutcome:
        """Return the cell of a child, or its outcome if it cannot be cast. Raises LoomError."""
        try:
            return await self.maker.get_child_cell(self.cell, turn_id, child, known)
        except LoomError:
            raise
        except CantripError as error:
            return ChildOutcome(None, f"child cannot be cast: {error}")

    async def record_beginnings(self, action: Spawn, cells: Mapping[int, Cell]) -> None:
        """Record that children of a call begin: their cells, by their places in it."""
        cell, trace = self.cell, None if self.cell.spans is None else self.cell.spans.trace
        begun = [
            ChildStarted(
                cell.entity_id, action.turn_id, action.call.id, child.entity_id, place, trace, action.is_background
            )
            for place, child in cells.items()
        ]
        if begun:
            with anyio.CancelScope(shield=True):  # a record that is being written belongs to the state
                await self.recorder.record(begun)

    async def start(self, child: Cell) -> None:
        """Start a child. A cancelled start would end it, and a resumed parent may still want it."""
        with anyio.CancelScope(shield=True):
            await self.maker.start_child(child, self.nursery)

    async def stop(self, child: Cell, why: str) -> None:
        """End a child that still runs, and wait until its end is recorded."""
        if child.actor.parent is not None and not child.ending.is_set:
            await self.nursery.stop(child.actor, Shutdown(why))
            if self.environment.core.registry.alive:  # it ends before the entities if their tree gives up
                await child.ending.wait()


class Delegation:
    """The children of one call, until all of them have ended."""

    def __init__(self, parent: ParentEntity, action: Spawn) -> None:
        self._parent = parent
        self._action = action
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
        cells = {index: child for index, child in enumerate(self._children) if isinstance(child, Cell)}
        new = {index: cell for index, cell in cells.items() if index not in action.started}
        await self._parent.record_beginnings(action, new)
        for cell in cells.values():
            if not cell.is_over:
                await anyio.lowlevel.checkpoint_if_cancelled()
                await self._parent.start(cell)

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
        core = self._parent.environment.core
        outcomes = [
            child if isinstance(child, ChildOutcome) else await read_outcome(core, child) for child in self._children
        ]
        return Returned(tuple(outcomes))

    async def stop(self, why: EndReason) -> None:
        """End the children that still run, last started first, and wait until their ends are recorded."""
        with anyio.CancelScope(shield=True):
            for child in reversed(self._children):
                if isinstance(child, Cell):
                    await self._parent.stop(child, why)

    async def _make_child(self, index: int) -> Cell | ChildOutcome:
        action = self._action
        return await self._parent.make_child(action.turn_id, action.children[index], action.started.get(index))

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
