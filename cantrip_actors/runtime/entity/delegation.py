"""Children: how an entity's `call_agent` becomes cells below its own (COMP-2, COMP-3, COMP-5, COMP-8).

All children of one call start in the order of the request, each with its crystal bound in that order, and then run
concurrently; the parent waits. The outcome of a child is a value: an answer, or a text that says why the child has
none. So a child's failure is an observation of its parent and does not end it, and a child's crash goes to supervision
(D-011).

A parent that waits for long hibernates: it stores the `Delegation`, and calls `wait_for_event` again later.

The results of a batch have the bounds of one gate's result together. They are counted in the order of the requests, and
a result that exceeds them is dropped as soon as its child has ended, because a batch may have a thousand large ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, Final, Literal

import anyio

from cantrip_actors.machine.actions import Spawn
from cantrip_actors.machine.events import ChildOutcome, Returned
from cantrip_actors.records.records import ChildStarted, Record
from cantrip_actors.runtime.entity.awaited import Awaited
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.entity.loading import sum_usage_under
from cantrip_actors.runtime.entity.one_shot_event import OneShotEvent
from cantrip_actors.terms.bounds import RESULT_BYTES, RESULT_VALUES, measure_share
from cantrip_actors.terms.errors import CantripError, LoomError
from cantrip_actors.terms.messages import as_text
from cantrip_actors.terms.outcome import EndReason
from supervisors import Shutdown, StartFailed

TOO_MUCH: Final = (
    f"the answers of this batch exceed what one call may return ({RESULT_BYTES:,} bytes, {RESULT_VALUES:,} values), so "
    "this one is left out: ask for shorter answers, or for fewer at once"
)


class Delegation(Awaited):
    """The children of one call, and their outcomes. `record` writes records of the parent."""

    __slots__ = ("_action", "_at", "_children", "_parent", "_record", "_shares")
    kind: ClassVar[Literal["", "children", "crystal"]] = "children"

    def __init__(self, parent: Cell, action: Spawn, record: Callable[[Sequence[Record]], Awaitable[None]]) -> None:
        self._parent = parent
        self._action: Spawn | None = action
        """The requested children; None once all of them are started."""
        self._record = record
        self._children: list[Cell | ChildOutcome] = []
        """The children; in place of one that cannot be cast, and of one whose result is dropped, its outcome."""
        self._shares: dict[int, float] = {}
        """The share of the bounds that the result of each child takes, by its index, where there are several."""
        self._at = 0
        """The index of the child that is waited for: the children before it have ended."""

    async def wait_for_event(self, why_stopping: Callable[[], EndReason | None], patience: float) -> Returned | None:
        """Return the outcomes of the children; None if some still run after `patience` seconds: call again then.

        If the wait is cancelled, the children are stopped first, last started first. They are not stopped if
        `why_stopping` returns None: then the parent will be resumed.

        After a crash some children have begun already. This method collects the outcomes of the ended children, waits
        for the running ones, and resumes the others from their logs. A child that cannot be cast, because its
        crystal is missing, has a failed outcome. But if the loom could not write a child's records, the child has not
        failed but stopped: the parent stops with the same LoomError, and both continue when they are resumed.
        """
        try:
            if self._action is not None:
                await self._start(self._action)
                self._action = None
            with anyio.move_on_after(patience):
                while (cell := self._find_awaited()) is not None:
                    await cell.supervisor.exited()
                    if cell.outcome is None:
                        await cell.ending.wait()
                    self._at += 1
        except anyio.get_cancelled_exc_class():
            why = why_stopping()
            if why is not None:
                await self._stop(why)
            raise
        if self._find_awaited() is not None:
            return None
        for one in self._children:
            if isinstance(one, Cell) and one.outcome is None and isinstance(one.error, LoomError):
                raise one.error
        return Returned(tuple([await _make_outcome(one) for one in self._children]))

    @property
    def ready(self) -> OneShotEvent:
        """Set when the next child in order has ended."""
        cell = self._find_awaited()
        assert cell is not None, "wait_for_event returns if all children have ended"
        return cell.ending

    def leave(self) -> None:
        """Stop waiting. Their supervisor stops the children."""

    def _find_awaited(self) -> Cell | None:
        """Return the next child that has not ended; None if all have ended."""
        while self._at < len(self._children):
            one = self._children[self._at]
            if isinstance(one, Cell) and _is_started(one):
                return one
            self._at += 1
        return None

    async def _start(self, action: Spawn) -> None:
        parent, services = self._parent, self._parent.services
        for n in range(len(action.children)):
            child = await _make_child(parent, action, n)
            self._children.append(child)
            if isinstance(child, Cell) and len(action.children) > 1:
                child.ending.listen(partial(self._drop_excess, n))
                self._drop_excess(n)
        trace = None if parent.spans is None else parent.spans.trace
        begun = [
            ChildStarted(parent.entity_id, action.turn_id, action.call.id, cell.entity_id, n, trace)
            for n, cell in enumerate(self._children)
            if isinstance(cell, Cell) and n not in action.started
        ]
        if begun:
            with anyio.CancelScope(shield=True):  # a record that is being written belongs to the state
                await self._record(begun)
        for cell in self._children:
            if isinstance(cell, Cell) and not (cell.is_over or _is_started(cell)):
                await anyio.lowlevel.checkpoint_if_cancelled()
                # a cancelled start would end the child, and a resumed parent may still want it
                with (
                    anyio.CancelScope(shield=True),
                    suppress(StartFailed),
                ):  # a child that fails to start has an outcome, too
                    await services.start_child(cell)

    def _drop_excess(self, ended: int) -> None:
        """Drop the results that exceed the bounds of one call, once the child of that index has ended."""
        child = self._children[ended]
        if not isinstance(child, Cell) or child.outcome is None:
            return
        self._shares[ended] = measure_share(as_text(child.outcome.result))
        if sum(self._shares.values()) <= 1:
            return
        total = 0.0
        for n in sorted(self._shares):
            total += self._shares[n]
            child = self._children[n]
            if total > 1 and isinstance(child, Cell) and child.outcome is not None:
                self._children[n] = ChildOutcome(None, TOO_MUCH, child.outcome.subtree_usage)

    async def _stop(self, why: EndReason) -> None:
        children = self._parent.children
        assert children is not None
        with anyio.CancelScope(shield=True):
            for cell in reversed(self._children):
                if isinstance(cell, Cell) and _is_started(cell):
                    await children.terminate_child(cell.supervisor, Shutdown(why))


def _is_started(cell: Cell) -> bool:
    return cell.supervisor.parent is not None


async def _make_child(parent: Cell, action: Spawn, n: int) -> Cell | ChildOutcome:
    try:
        return await parent.services.child(parent, action.turn_id, action.children[n], action.started.get(n))
    except LoomError:
        raise
    except CantripError as error:
        return ChildOutcome(None, f"child cannot be cast: {error}")


async def _make_outcome(cell: Cell | ChildOutcome) -> ChildOutcome:
    if isinstance(cell, ChildOutcome):
        return cell
    outcome = cell.outcome
    if outcome is None:
        reading = cell.services.reading
        usage = await reading.in_store(partial(sum_usage_under, reading.loom, cell.entity_id))
        return ChildOutcome(None, f"child crashed: {cell.error or cell.make_crash_error()}", usage)
    usage = outcome.subtree_usage
    if outcome.terminated:
        return ChildOutcome(outcome.result, None, usage, outcome.images)
    if outcome.error is not None:
        return ChildOutcome(None, f"child failed: {outcome.error}", usage)
    return ChildOutcome(None, f"child ended without an answer: {outcome.summary or outcome.reason}", usage)
