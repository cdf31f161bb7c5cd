"""Children: how an entity's `call_agent` becomes cells below its own (COMP-2, COMP-3, COMP-5, COMP-8).

All children of one call start in the order of the request, each with its crystal bound in that order, and then run
concurrently; the parent waits. What becomes of a child is a value, an answer or a text that says why there is none:
that a child fails is the parent's observation and never its end, while the child's crash goes to supervision (D-011).

A parent that waits for long needs no task for that: what it waits for is a `Delegation`, and it can leave and ask for
it again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio

from cantrip_actors.model.errors import CantripError, LoomError
from cantrip_actors.model.loop import ChildOutcome, Returned, Spawn
from cantrip_actors.model.messages import NO_USAGE
from cantrip_actors.model.turn import ChildStarted, EndReason
from cantrip_actors.runtime.cell import Cell
from supervisors import Shutdown, StartFailed

__all__ = ["Delegation"]


class Delegation:
    """The children of one call, and what has become of them."""

    __slots__ = ("_action", "_at", "_made", "_parent")

    def __init__(self, parent: Cell, action: Spawn) -> None:
        self._parent = parent
        self._action: Spawn | None = action
        """What was asked for; None once all of them have been started."""
        self._made: tuple[Cell | CantripError, ...] = ()
        self._at = 0
        """Those before that have ended."""

    async def returned(self, why_stopping: Callable[[], EndReason | None], patience: float) -> Returned | None:
        """What they came to; None where some still run after `patience` seconds: ask again, then.

        If the wait is cancelled they are stopped first, last started first, unless `why_stopping` knows no reason: then
        the parent will be back.

        After a crash some of them have begun already: those that have ended since are asked no more, those that still
        run are waited for, the others go on from their logs. A child that cannot be cast at all, for want of its
        crystal, is an outcome like any other failure. But one whose records the loom does not take has not failed, it
        has stopped: so does the parent, with the same LoomError, and both go on when they are resumed.
        """
        try:
            if self._action is not None:
                await self._start(self._action)
                self._action = None
            with anyio.move_on_after(patience):
                while (cell := self.awaited()) is not None:
                    await cell.supervisor.exited()
                    if cell.outcome is None:
                        await cell.buried()
                    self._at += 1
        except anyio.get_cancelled_exc_class():
            why = why_stopping()
            if why is not None:
                await self._stop(why)
            raise
        if self.awaited() is not None:
            return None
        for one in self._made:
            if isinstance(one, Cell) and one.outcome is None and isinstance(one.error, LoomError):
                raise one.error
        return Returned(tuple(map(_outcome, self._made)), self._parent.ledger.spent())

    def awaited(self) -> Cell | None:
        """Whose end is waited for next; None where all have ended."""
        while self._at < len(self._made):
            one = self._made[self._at]
            if isinstance(one, Cell) and _is_started(one):
                return one
            self._at += 1
        return None

    async def _start(self, action: Spawn) -> None:
        parent, services = self._parent, self._parent.services
        self._made = tuple(_made(parent, action, n) for n in range(len(action.children)))
        begun = [
            ChildStarted(parent.entity_id, action.turn_id, action.call.id, cell.entity_id, n)
            for n, cell in enumerate(self._made)
            if isinstance(cell, Cell) and n not in action.started
        ]
        if begun:
            await services.append(begun)
        children = parent.children
        assert children is not None  # whoever may delegate has a place for children
        for cell in self._made:
            if isinstance(cell, Cell) and not (cell.is_over or _is_started(cell)):
                await anyio.lowlevel.checkpoint_if_cancelled()
                services.enter(cell)
                # a start that is left midway ends the child; this parent may be back for it
                with anyio.CancelScope(shield=True), suppress(StartFailed):  # which is an end like any other
                    await children.start_child(cell.spec())

    async def _stop(self, why: EndReason) -> None:
        children = self._parent.children
        assert children is not None
        with anyio.CancelScope(shield=True):
            for cell in reversed(self._made):
                if isinstance(cell, Cell) and _is_started(cell):
                    await children.terminate_child(cell.supervisor, Shutdown(why))


def _is_started(cell: Cell) -> bool:
    return cell.supervisor.parent is not None


def _made(parent: Cell, action: Spawn, n: int) -> Cell | CantripError:
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
        usage = loom.subtree_usage(cell.entity_id) if loom.has(cell.entity_id) else NO_USAGE
        return ChildOutcome(None, f"child crashed: {cell.error or cell.crashed()}", usage)
    usage = outcome.subtree_usage
    if outcome.terminated:
        return ChildOutcome(outcome.result, None, usage, outcome.images)
    if outcome.error is not None:
        return ChildOutcome(None, f"child failed: {outcome.error}", usage)
    return ChildOutcome(None, f"child ended without an answer: {outcome.summary or outcome.reason}", usage)
