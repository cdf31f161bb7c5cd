"""The circle actor of an entity without programs: it runs gates one after the other (CIRCLE-3).

`circle/gate_call.py` turns whatever a gate raises, and a gate that takes too long, into an observation. A crash beyond
that boundary is a crash of this actor, which the entity's actor observes as its own.

It is a child of the entity's actor, and each call is bounded by its caller: a cancelled call has ended
when the entity continues. The circle actor for entities that write programs is in `program_actor.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from cantrip_actors.circle.gate_call import ReportError, explain, report_failure, run_gate
from cantrip_actors.circle.wrapped_call import run_wrapped
from cantrip_actors.machine.actions import Run
from cantrip_actors.machine.events import Inquired, Observed
from cantrip_actors.records.records import Observation
from cantrip_actors.runtime.circles.resources import Resources
from cantrip_actors.runtime.circles.snapshots import Snapshots
from cantrip_actors.runtime.events.context_variables import (
    DOING,
    WORKING,
    Asker,
    ContextVariables,
    Working,
    bind_variables,
)
from cantrip_actors.terms.wrapping import NO_FENCE, Fence, GateCall
from cantrip_actors.user_code.attempt import Failure, attempt_now
from supervisors import Actor, Caller, ExitReason

_ATOMS: Final = frozenset({str, int, float, bool, type(None)})


class GatesActor(Actor):
    """Runs gates for one entity. `context_variables` returns those of the caller whose episode is under way.

    `report` is called with the exceptions of gates and of the steps around them. `working` is for the lines
    that gates log. `fence` returns the fence of the entity's owner. `snapshots` stores what gates hold open.
    """

    def __init__(
        self,
        entity_id: str = "",
        context_variables: Callable[[], ContextVariables] = tuple,
        report: ReportError | None = None,
        working: Working | None = None,
        fence: Callable[[], Fence] = lambda: NO_FENCE,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._entity_id = entity_id
        self._working = working
        self._context_variables = context_variables
        self._report = report
        self._fence = fence
        self._resources = Resources(snapshots)

    async def handle_call(self, message: Run, caller: Caller) -> Any:  # noqa: ARG002  # the signature of Actor
        """Run a gate and return its observation, with a snapshot of its resource, or its question to a person."""
        gate = message.gate
        with Asker(self._entity_id), bind_variables(self._context_variables()):
            WORKING.set(self._working)  # this actor's own context, as each task has one
            DOING.set((message.turn_id, gate.name))
            site = attempt_now(partial(self._make_site, message)) if gate.wrappers or gate.site else None
            if isinstance(site, Failure):  # a serializer in the type of a parameter is the user's code
                report_failure(self._report, "a gate's arguments cannot be shown", gate.name, site.exception)
                text = f"{gate.name} was not run: its arguments cannot be written as JSON: {explain(site.exception)}"
                return Observation(gate.name, message.call.args, text, True, message.call.id)
            run = await self._resources.lend(message) if gate.dependencies else message
            if gate.wrappers:
                assert site is not None
                result = await run_wrapped(run, site, self._report)
            else:
                result = await run_gate(run.gate, message.call, message.args, site, self._report)
            if run is message or message.checks or isinstance(result, Inquired):
                return result
            return Observed(result, await self._resources.save(run))

    async def terminate(self, reason: ExitReason) -> None:  # noqa: ARG002  # whatever it is
        """Close what the gates hold open."""
        await self._resources.close()

    def _make_site(self, run: Run) -> GateCall:
        """Return the call for the wrapping steps; its arguments are JSON, and not the objects that the gate gets."""
        args = run.args
        if not _ATOMS.issuperset(map(type, args.values())):
            args = run.gate.plain(args)
        call = run.call.id
        fence = self._fence()
        return GateCall(run.gate.name, MappingProxyType(args), self._entity_id, run.turn_id, call, fence, run.inquired)
