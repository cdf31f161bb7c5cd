"""The circle actor: one for each entity, in which its gates run, one after the other (CIRCLE-3).

What a gate raises, and how long it may take, is dealt with around the gate call (`circle/gates.py`); here is only the
place where it happens, so that a gate's crash beyond that boundary is this actor's crash and not the entity's.
"""

from __future__ import annotations

from cantrip_actors.circle.gates import run_gate
from cantrip_actors.model.loop import Run
from cantrip_actors.model.turn import Observation
from supervisors import Actor, Caller

__all__ = ["CircleActor"]


class CircleActor(Actor):
    """Runs gates for one entity."""

    async def handle_call(self, message: Run, caller: Caller) -> Observation:  # noqa: ARG002  # it is the actor's face
        """The observation that running a gate comes to."""
        return await run_gate(message.gate, message.call, message.args)
