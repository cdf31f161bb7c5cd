"""Children: how an entity's `call_agent` becomes cells below its own (COMP-2, COMP-3, COMP-5, COMP-8).

All children of one call start in the order of the request, each with its crystal bound in that order, and then run
concurrently; the parent waits. What becomes of a child is a value, an answer or a text that says why there is none:
that a child fails is the parent's observation and never its end, while the child's crash goes to supervision (D-011).
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from cantrip_actors.model.errors import CantripError, LoomError
from cantrip_actors.model.loop import ChildOutcome, Returned, Spawn
from cantrip_actors.model.turn import ChildStarted, EndReason
from cantrip_actors.runtime.cell import Cell, cell_spec
from supervisors import Shutdown

__all__ = ["run_children"]


async def run_children(parent: Cell, action: Spawn, why_stopping: Callable[[], EndReason]) -> Returned:
    """Run the children of one call to their ends. If the wait is cancelled they are stopped first, last started first.

    After a crash some of them have begun already: those that have ended since are asked no more, those that still run
    are waited for, the others go on from their logs. A child that cannot be cast at all, for want of its crystal, is an
    outcome like any other failure. But one whose records the loom does not take has not failed, it has stopped: so does
    the parent, with the same LoomError, and both go on when they are resumed.
    """
    services = parent.services
    made = [_made(parent, action, n) for n in range(len(action.children))]
    cells = [cell for cell in made if isinstance(cell, Cell)]
    begun = [
        ChildStarted(parent.entity_id, action.turn_id, action.call.id, cell.entity_id, n)
        for n, cell in enumerate(made)
        if isinstance(cell, Cell) and n not in action.started
    ]
    if begun:
        await services.append(begun)
    children = parent.children
    assert children is not None  # whoever may delegate has a place for children
    waited: list[Cell] = []
    try:
        for cell in cells:
            if not cell.is_over:
                waited.append(cell)
                if cell.supervisor.parent is None:
                    services.enter(cell)
                    await children.start_child(cell_spec(cell))
        for cell in waited:
            await cell.supervisor.exited()
            if cell.outcome is None:
                await cell.buried()
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            for cell in reversed(waited):
                await children.terminate_child(cell.supervisor, Shutdown(why_stopping()))
        raise
    for cell in waited:
        if cell.outcome is None and isinstance(cell.error, LoomError):
            raise cell.error
    return Returned(tuple(_outcome(cell) for cell in made), parent.ledger.spent())


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
    outcome, usage = cell.outcome, cell.ledger.usage
    if outcome is None:
        return ChildOutcome(None, f"child crashed: {cell.error or cell.crashed()}", usage)
    if outcome.terminated:
        return ChildOutcome(outcome.result, None, usage, outcome.images)
    if outcome.error is not None:
        return ChildOutcome(None, f"child failed: {outcome.error}", usage)
    return ChildOutcome(None, f"child ended without an answer: {outcome.summary or outcome.reason}", usage)
