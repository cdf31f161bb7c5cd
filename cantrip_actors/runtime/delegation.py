"""Children: how an entity's `call_agent` becomes cells below its own (COMP-2, COMP-3, COMP-5, COMP-8).

All children of one call start in the order of the request, each with its crystal bound in that order, and then run
concurrently; the parent waits. What becomes of a child is a value, an answer or a text that says why there is none: a
child's failure is the parent's observation and never its end, while the child's crash goes to supervision (D-011).

A parent that waits for long needs no task for that: it keeps the `Delegation`, and asks it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio

from cantrip_actors.machine.actions import Spawn
from cantrip_actors.machine.events import ChildOutcome, Returned
from cantrip_actors.records.records import ChildStarted, Record
from cantrip_actors.runtime.awaited import Awaited
from cantrip_actors.runtime.cell import Cell
from cantrip_actors.runtime.loading import usage_under
from cantrip_actors.terms.errors import CantripError, LoomError
from cantrip_actors.terms.outcome import EndReason
from supervisors import Shutdown, StartFailed

__all__ = ["Delegation"]


class Delegation(Awaited):
    """The children of one call, and what has become of them. `record` writes their parent's records."""

    __slots__ = ("_action", "_at", "_children", "_parent", "_record")

    def __init__(self, parent: Cell, action: Spawn, record: Callable[[Sequence[Record]], Awaitable[None]]) -> None:
        self._parent = parent
        self._action: Spawn | None = action
        """What was asked for; None once all of them have been started."""
        self._record = record
        self._children: tuple[Cell | CantripError, ...] = ()
        self._at = 0
        """Those before that have ended."""

    async def wait_for_event(self, why_stopping: Callable[[], EndReason | None], patience: float) -> Returned | None:
        """Return what the children came to; None if some still run after `patience` seconds: call again then.

        If the wait is cancelled the children are stopped first, last started first, unless `why_stopping` knows no
        reason: then the parent will be back.

        After a crash some of them have begun already: those that have ended since are asked no more, those that still
        run are waited for, the others continue from their logs. A child that cannot be cast at all, because its crystal
        is missing, is an outcome like any other failure. But one whose records the loom does not take has not failed,
        it has stopped: so does the parent, with the same LoomError, and both continue when they are resumed.
        """
        try:
            if self._action is not None:
                await self._start(self._action)
                self._action = None
            with anyio.move_on_after(patience):
                while (cell := self._awaited()) is not None:
                    await cell.supervisor.exited()
                    if cell.outcome is None:
                        await cell.ending.wait()
                    self._at += 1
        except anyio.get_cancelled_exc_class():
            why = why_stopping()
            if why is not None:
                await self._stop(why)
            raise
        if self._awaited() is not None:
            return None
        for one in self._children:
            if isinstance(one, Cell) and one.outcome is None and isinstance(one.error, LoomError):
                raise one.error
        return Returned(tuple(map(_outcome, self._children)))

    def listen(self, tell: Callable[[], object]) -> None:
        """Call `tell` when the child that is waited for next has ended."""
        cell = self._awaited()
        assert cell is not None, "it would have returned"
        cell.ending.listen(tell)

    def leave(self) -> None:
        """Stop waiting. The children are stopped by their supervisor."""

    def _awaited(self) -> Cell | None:
        """Return the child whose end is waited for next; None if all have ended."""
        while self._at < len(self._children):
            one = self._children[self._at]
            if isinstance(one, Cell) and _is_started(one):
                return one
            self._at += 1
        return None

    async def _start(self, action: Spawn) -> None:
        parent, services = self._parent, self._parent.services
        self._children = tuple(_make_child(parent, action, n) for n in range(len(action.children)))
        begun = [
            ChildStarted(parent.entity_id, action.turn_id, action.call.id, cell.entity_id, n)
            for n, cell in enumerate(self._children)
            if isinstance(cell, Cell) and n not in action.started
        ]
        if begun:
            with anyio.CancelScope(shield=True):  # a record that is on its way belongs to the state
                await self._record(begun)
        for cell in self._children:
            if isinstance(cell, Cell) and not (cell.is_over or _is_started(cell)):
                await anyio.lowlevel.checkpoint_if_cancelled()
                # a start that is left midway ends the child; this parent may be back for it
                with anyio.CancelScope(shield=True), suppress(StartFailed):  # that is an end like any other
                    await services.start_child(cell)

    async def _stop(self, why: EndReason) -> None:
        children = self._parent.children
        assert children is not None
        with anyio.CancelScope(shield=True):
            for cell in reversed(self._children):
                if isinstance(cell, Cell) and _is_started(cell):
                    await children.terminate_child(cell.supervisor, Shutdown(why))


def _is_started(cell: Cell) -> bool:
    return cell.supervisor.parent is not None


def _make_child(parent: Cell, action: Spawn, n: int) -> Cell | CantripError:
    try:
        return parent.services.child(parent, action.turn_id, action.children[n], action.started.get(n))
    except LoomError:
        raise
    except CantripError as error:
        return error


def _outcome(cell: Cell | CantripError) -> ChildOutcome:
    if isinstance(cell, CantripError):
        return ChildOutcome(None, f"child cannot be cast: {cell}")
    outcome = cell.outcome
    if outcome is None:
        loom = cell.services.loom()
        usage = usage_under(loom, cell.entity_id)
        return ChildOutcome(None, f"child crashed: {cell.error or cell.crash_error()}", usage)
    usage = outcome.subtree_usage
    if outcome.terminated:
        return ChildOutcome(outcome.result, None, usage, outcome.images)
    if outcome.error is not None:
        return ChildOutcome(None, f"child failed: {outcome.error}", usage)
    return ChildOutcome(None, f"child ended without an answer: {outcome.summary or outcome.reason}", usage)
