"""The entity actor: feeds events to the pure loop and carries out the actions that it answers with.

There is no rule in this file. What to do next is `model/loop.py`'s; what is here is the order in which it is done:
first the step's records are in the loom, then subscribers see them, then the action is carried out (LOOM-1).

However the entity ends, its log says so: by a step of the loop where it ends by itself, by a `Stopped` step, shielded,
where its deadline or somebody outside ends it, and by an `Ended` record where it crashed.
"""

from __future__ import annotations

from typing import Any, cast

import anyio

from cantrip_actors.crystal.contract import Query
from cantrip_actors.model.errors import CantripError, InvalidIntent
from cantrip_actors.model.loop import (
    Action,
    Ask,
    Begin,
    Event,
    Failed,
    Finish,
    Observed,
    Outcome,
    Phase,
    Replied,
    Run,
    Spawn,
    Stopped,
    advance,
)
from cantrip_actors.model.messages import Invocation, Response
from cantrip_actors.model.turn import Ended, EndReason
from cantrip_actors.runtime.cell import Cell
from cantrip_actors.runtime.composition import run_children
from cantrip_actors.runtime.crystal import Asked
from cantrip_actors.runtime.events import FinalResponseEvent, StepStartEvent, events_of
from supervisors import Actor, Caller, Crash, ExitReason, Shutdown

__all__ = ["EntityActor"]

_REASONS: dict[str, EndReason] = {"cancelled": "cancelled", "parent_ended": "parent_ended", "timeout": "timeout"}


class EntityActor(Actor):
    """Drives one entity from its first intent to its end. Its mail is further intents: (intent, context)."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._plan = cell.plan
        self._state = cell.state
        self._services = cell.services
        self._options = cell.plan.cantrip.call.sampling()
        self._life: anyio.CancelScope | None = None
        self._ending: Outcome | None = None

    async def init(self) -> None:
        """Make sure that the crystal can be asked."""
        await self._services.crystals.hold(self._cell.uses)

    async def run(self) -> None:
        """Live, and no longer than the `timeout` ward says."""
        timeout = self._plan.wards.timeout
        if timeout is None:
            await self._live()
            return
        with anyio.move_on_after(timeout) as self._life:
            await self._live()
        if self._life.cancelled_caught:
            await self._stop("timeout", f"timeout({timeout:g})")

    async def terminate(self, reason: ExitReason) -> None:
        """Write down how the entity ended, where the loop did not come to that itself."""
        try:
            await self._write_end(reason)
        finally:
            await self._services.crystals.release(self._cell.uses)

    async def _write_end(self, reason: ExitReason) -> None:
        if isinstance(reason, Crash):
            if not isinstance(reason.exception, CantripError):  # a LoomError would only be raised again
                detail = f"{type(reason.exception).__name__}: {reason.exception}"
                record = Ended(self._plan.entity_id, "crashed", self._services.moment().at, detail)
                await self._services.append([record])
                self._services.bus.publish(events_of([record], self._services.moment().wall))
        elif self._state.phase is not Phase.OVER or self._cell.outcome is None:
            detail = str(reason.detail) if isinstance(reason, Shutdown) and reason.detail else "cancelled"
            await self._stop(_REASONS.get(detail, "cancelled"), detail)

    async def _live(self) -> None:
        event = Begin(self._cell.intent, self._cell.context, self._cell.ledger.spent())
        await self._episode(event)
        while self._state.phase is Phase.IDLE:
            caller = cast("Caller", await self.receive())
            intent, context = caller.message
            try:
                caller.reply(await self._episode(Begin(intent, context, self._cell.ledger.spent())))
            except InvalidIntent as refused:  # of a send: nothing happened
                caller.fail(refused)

    async def _episode(self, event: Event) -> tuple[Outcome, CantripError | None]:
        self._cell.error = None
        while True:
            action = await self._step(event)
            if isinstance(action, Finish):
                return action.outcome, self._cell.error
            event = await self._carry_out(action)

    async def _step(self, event: Event) -> Action:
        """One step: decide, record, show."""
        services = self._services
        moment = services.moment()
        self._state, (records, action) = advance(self._plan, self._state, moment, event)
        if isinstance(action, Finish):
            self._ending = action.outcome
        await services.append(records)
        if services.bus:
            services.bus.publish(events_of(records, moment.wall))
            if isinstance(action, Ask):
                started = StepStartEvent(self._plan.entity_id, moment.wall, self._state.turn_id)
                services.bus.publish([started])
            elif isinstance(action, Finish) and action.outcome.terminated:
                services.bus.publish([FinalResponseEvent(self._plan.entity_id, moment.wall, action.outcome.result)])
        if isinstance(action, Finish):
            self._cell.outcome = action.outcome
        return action

    async def _carry_out(self, action: Ask | Run | Spawn) -> Event:
        if isinstance(action, Ask):
            return await self._ask(action)
        if isinstance(action, Run):
            return Observed(await self._cell.circle.call(action))
        return await run_children(self._cell, action, self._why_stopping)

    async def _ask(self, action: Ask) -> Replied | Failed:
        cell = self._cell
        query = Query(Invocation(action.messages, action.tools, action.tool_choice), self._options)
        reply: Any = await cell.uses.asks.call(Asked(cell.crystal, query, self._plan.cantrip.retry))
        if isinstance(reply, Response):
            cell.ledger.add(reply.usage)
            return Replied(reply, cell.ledger.spent())
        cell.error = reply
        return Failed(str(reply))

    def _why_stopping(self) -> EndReason:
        """What to tell children that have to stop because this entity does."""
        return "timeout" if self._life is not None and self._life.cancel_called else "parent_ended"

    async def _stop(self, reason: EndReason, detail: str) -> None:
        """End from outside, where the loop stands."""
        if self._state.phase is Phase.OVER:  # it had just ended by itself: its last records are on their way
            self._cell.outcome = self._ending
        elif self._state.phase is not Phase.NEW:
            await self._step(Stopped(reason, detail))
