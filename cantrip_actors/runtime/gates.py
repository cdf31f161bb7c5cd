"""The actor of a circle in which gates run, one after the other (CIRCLE-3).

What a gate raises, and how long it may take, is dealt with around the gate call (`circle/gates.py`); here is only the
place where it happens, so that a crash beyond that boundary is this actor's crash and not the entity's.

It keeps nothing and has nothing to give back, so that one which waits needs no task, and none to end either. Where an
entity writes programs these run here as well, in a sandbox that is kept: that is `circle.py`.
"""

from __future__ import annotations

from copy import deepcopy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cantrip_actors.circle.gates import run_gate
from cantrip_actors.circle.wrapping import run_wrapped
from cantrip_actors.model.loop import Run
from cantrip_actors.model.wrapping import GateCall
from cantrip_actors.runtime.within import within
from supervisors import Actor, Caller

if TYPE_CHECKING:
    from cantrip_actors.runtime.cell import Cell

__all__ = ["GatesActor"]

_ATOMS: Final = frozenset({str, int, float, bool, type(None)})


class GatesActor(Actor):
    """Runs gates for one entity."""

    hibernate_after = 1.0
    """Seconds: most circles wait, for a crystal or for a child. What else surrounds an entity keeps to it, too."""

    def __init__(self, entity_id: str = "", cell: Cell | None = None) -> None:
        self._entity_id = entity_id
        self._cell = cell

    async def handle_call(self, message: Run, caller: Caller) -> Any:  # noqa: ARG002  # it is the actor's face
        """The observation that running a gate comes to."""
        gate = message.gate
        with within(() if self._cell is None else self._cell.around):
            if gate.wrappers:
                return await run_wrapped(message, self._site(message))
            return await run_gate(gate, message.call, message.args, None if gate.site is None else self._site(message))

    def _site(self, run: Run) -> GateCall:
        """The call as steps around the gate see it. Whatever they do to its arguments, the gate gets what was asked."""
        args = run.args
        if not _ATOMS.issuperset(map(type, args.values())):
            args = deepcopy(dict(args))
        return GateCall(run.gate.name, MappingProxyType(args), self._entity_id, run.turn_id, run.call.id)
