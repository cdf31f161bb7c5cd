"""The entity actor: feeds events to the pure loop and carries out the actions that it answers with.

There is no rule in this file. What to do next is `model/loop.py`'s, and after a crash `model/recovery.py`'s; what is
here is the order in which it is done: first the step's records are in the loom, then subscribers see them, then the
action is carried out (LOOM-1).

An incarnation of this actor knows nothing that is not in the entity's log. The first one begins the log; any other, in
this process or the next, reads it and goes on from there.

However the entity ends, its log says so: by a step of the loop where it ends by itself, by a `Stopped` step, shielded,
where its deadline or somebody outside ends it. One that lasts may also just stop being driven (it is idle, its runtime
closes): then its log is as it was, and the next intent wakes it.

While its children work, and while it is idle, it has nothing to do: after a moment it hibernates, without a task, until
one of them ends or there is mail.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, Final

import anyio

from cantrip_actors.crystal.contract import Query
from cantrip_actors.model.companion import Here
from cantrip_actors.model.errors import InvalidIntent, LoomError
from cantrip_actors.model.loop import (
    Action,
    Answer,
    Ask,
    Begin,
    Compute,
    Event,
    Failed,
    Finish,
    Interrupt,
    Moment,
    Observed,
    Outcome,
    Phase,
    Remember,
    Replied,
    Returned,
    Run,
    Spawn,
    State,
    Steer,
    Step,
    Stopped,
    advance,
    begin,
    put_in,
)
from cantrip_actors.model.messages import Invocation, Response
from cantrip_actors.model.recovery import outcome_of, resume
from cantrip_actors.model.stream import Payload
from cantrip_actors.model.turn import EndReason, Record
from cantrip_actors.runtime.cell import NUDGED, Cell, GiveWay, Nudge, Ticket, kept
from cantrip_actors.runtime.circle import PUT_AWAY
from cantrip_actors.runtime.composition import Delegation
from cantrip_actors.runtime.crystal import Asked
from cantrip_actors.runtime.crystals import InUse
from cantrip_actors.runtime.events import StepStartEvent
from cantrip_actors.runtime.remembering import remember
from cantrip_actors.runtime.within import within
from supervisors import HIBERNATE, Actor, Crash, ExitReason, GaveUp, Killed, RestartedWith, Shutdown
from supervisors.backend import Timer

__all__ = ["EntityActor"]

PATIENCE: Final = 1.0
"""Seconds that it waits for its children, or for mail, before it gives its task back."""

_REASONS: dict[object, EndReason] = {
    reason: reason for reason in ("cancelled", "parent_ended", "timeout", "budget", "abandoned")
}


class EntityActor(Actor):
    """Drives one entity from its first intent to its end. Its mail is `Ticket`s (intents), `NUDGED` and `GiveWay`."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._plan = cell.plan
        self._state = self._first()
        self._services = cell.services
        self._options = cell.plan.cantrip.call.sampling()
        self._life: anyio.CancelScope | None = None
        self._recalled: str | None = None
        """What the companion has to say before the next query."""
        self._hibernates = False
        self._delegation: Delegation | None = None
        """What it hibernates for; None where it is idle."""
        self._sleeps_at: float | None = None
        """When it goes to sleep if it stays idle, on the event loop's clock."""
        self._alarm: Timer | None = None

    def _first(self) -> State:
        moment = self._cell.services.moment()
        start = self._cell.start
        return begin(self._cell.plan, moment) if start is None else start._replace(turn_id=moment.fresh)

    async def init(self) -> None:
        """Make sure that the crystals can be asked."""
        for uses in self._used():
            await self._services.crystals.hold(uses)

    def _used(self) -> list[InUse]:
        cell = self._cell
        return [cell.uses] if cell.summariser is None else [cell.uses, cell.summariser[1]]

    async def run(self) -> object:
        """Live, and no longer than the `timeout` ward says. Where the loom cannot write, that is the end for now."""
        cell = self._cell
        try:
            timeout = self._plan.wards.timeout
            if timeout is None:
                return await self._live()
            if cell.until is None:
                cell.until = anyio.current_time() + timeout
            with anyio.CancelScope(deadline=cell.until) as self._life:
                return await self._live()
            await self._stop("timeout", f"timeout({timeout:g})")
        except LoomError as error:
            cell.error = error
        return None

    async def terminate(self, reason: ExitReason) -> None:
        """Write down that somebody ended the entity, where it did not come to an end by itself."""
        try:
            if isinstance(reason, Crash) and self._cell.stream is not None:
                self._services.watchers.publish(self._services.guard.envelopes(self._cell.stream.crashed()))
            if isinstance(reason, (Shutdown, Killed)):
                await self._end(reason.detail if isinstance(reason, Shutdown) else "killed")
        except LoomError as error:
            self._cell.error = error
        finally:
            for uses in self._used():
                await self._services.crystals.release(uses)

    async def _end(self, detail: object) -> None:
        if self._goes_on(detail):
            return
        await self._stop(_REASONS.get(detail, "cancelled"), str(detail or "cancelled"))

    # Episodes

    async def _live(self) -> object:
        cell = self._cell
        with within(cell.around):
            if self._hibernates:
                await self._awake()
            elif await self._has_begun():
                await self._go_on()
            else:
                await self._episode(Begin(cell.intent, cell.context, cell.ledger.spent(), cell.images))
        while self._state.phase is Phase.IDLE:
            cell.around = ()
            await self._note_down()
            message = await self._next_mail()
            if message is None or isinstance(message, GiveWay):
                self._cell.falls_asleep = not self._hibernates
                break
            if isinstance(message, Ticket):
                cell.around = message.around
                with within(cell.around):
                    await self._take(message)
            else:  # while nothing is under way there is nothing to interrupt
                cell.nudges = kept(cell.nudges)
        return HIBERNATE if self._hibernates else None

    async def _has_begun(self) -> bool:
        """Whether it has a log, to which nothing is added any more that an incarnation before has handed in.

        That may have been killed while the loom wrote. Who is stopped just now waits for that, too: a state that is not
        known could not be ended.
        """
        cell = self._cell
        if self.ref.last_exit is not None:
            with anyio.CancelScope(shield=True):
                await self._services.append(())
            cell.begun = cell.begun or self._services.loom().has(cell.entity_id)
        return cell.begun

    async def _next_mail(self) -> object | None:
        """The next message; None where it is to hibernate until there is one, or may go to sleep."""
        if self._sleeps_at is None:
            self._sleeps_at = anyio.current_time() + self._services.passivate_after
        message: object | None = None
        with anyio.CancelScope(deadline=min(anyio.current_time() + PATIENCE, self._sleeps_at)):
            message = await self.receive(_is_mail)
        if message is None:
            with contextlib.suppress(anyio.WouldBlock):  # it may have come just now
                message = self.receive_nowait(_is_mail)
        if message is not None:
            self._sleeps_at = None
        elif anyio.current_time() < self._sleeps_at:
            self._hibernate(until=self._sleeps_at)
        return message

    async def _take(self, ticket: Ticket) -> None:
        cell = self._cell
        try:
            cell.ticket = ticket
            await self._episode(Begin(ticket.intent, ticket.context, cell.ledger.spent(), ticket.images))
        except InvalidIntent as refused:  # nothing happened
            cell.answer(ticket, None, refused)
            cell.ticket = None

    async def _go_on(self) -> None:
        """From the log, after a crash or a sleep."""
        services, entity_id = self._services, self._plan.entity_id
        loom = services.loom()
        records = loom.records(entity_id)
        below = {child: loom.subtree_usage(child) for child in loom.below(entity_id)}
        moment = services.moment()
        self._state, step = resume(self._plan, self._first(), records, moment, below)
        if self._state.phase is Phase.NEW:  # its header is there; the intent is to follow, and whoever asked has it
            self._state = self._state._replace(phase=Phase.IDLE)
            cell = self._cell
            await self._episode(Begin(cell.intent, cell.context, cell.ledger.spent(), cell.images))
        elif step is not None:
            await self._accompany(restored=True)
            await self._finish(await self._carry(step, moment))
        else:
            await self._settle(records)

    async def _settle(self, records: Sequence[Record]) -> None:
        """Nothing is under way. A send that was taken before a crash has its end in the log, or never got into it."""
        cell, ticket = self._cell, self._cell.ticket
        cell.is_over = self._state.phase is Phase.OVER
        if cell.is_over or ticket is not None:
            cell.outcome = outcome_of(records, self._services.loom().usage_below(cell.entity_id))
        if ticket is not None and ticket.begun:
            cell.answer(ticket, cell.outcome, cell.error)
            cell.ticket = None
        elif ticket is not None and not cell.is_over:
            await self._take(ticket)

    async def _episode(self, event: Event) -> None:
        self._cell.error = None
        action = await self._step(event)
        await self._accompany()
        await self._finish(action)

    async def _accompany(self, *, restored: bool = False) -> None:
        """Tell the companion that an episode begins or goes on; what it has to say comes before the next query."""
        companion = self._plan.circle.companion
        if companion is not None:
            self._recalled = await companion.begins(self._here(restored=restored))

    def _here(self, *, restored: bool = False) -> Here:
        return Here(self._plan.entity_id, self._plan.name, restored)

    async def _finish(self, action: Action) -> None:
        """Carry out actions up to the end of the episode, and tell who waits for it; or up to where it hibernates."""
        while not isinstance(action, Finish):
            event = await self._carry_out(action)
            if event is None:
                return
            action = await self._step(event)
        await self._part(action.outcome)

    async def _part(self, outcome: Outcome) -> None:
        """An episode is over: tell the companion, and who waits for it."""
        cell, companion = self._cell, self._plan.circle.companion
        if companion is not None:
            await companion.ends(self._here(), outcome)
        if cell.ticket is not None:
            cell.answer(cell.ticket, outcome, cell.error)
            cell.ticket = None

    # Steps

    async def _step(self, event: Event) -> Action:
        """Decide, record, show."""
        moment = self._services.moment()
        self._state, step = advance(self._plan, self._state, moment, event)
        return await self._carry(step, moment)

    async def _carry(self, step: Step, moment: Moment) -> Action:
        services, (records, action) = self._services, step
        if isinstance(action, Finish):
            self._cell.ending = action.outcome
        if records:
            await services.append(records)
            self._cell.begun = True
            if self._cell.ticket is not None:
                self._cell.ticket.begun = True
        if services.watchers:
            services.watchers.publish(services.guard.envelopes(self._cell.streamed().step(step, self._state.turn_id)))
        if services.bus and isinstance(action, Ask):
            services.bus.publish([StepStartEvent(self._plan.entity_id, moment.wall, self._state.turn_id)])
        if isinstance(action, Finish):
            self._cell.outcome = action.outcome
            self._cell.is_over = self._state.phase is Phase.OVER
        return action

    async def _carry_out(self, action: Ask | Remember | Run | Compute | Answer | Spawn) -> Event | None:
        if isinstance(action, Ask):
            return self._nudged() or await self._ask(action)
        if isinstance(action, Remember):
            return await remember(self._cell, action, self._here())
        if isinstance(action, Run):
            return Observed(await self._cell.circle.call(action))
        if isinstance(action, (Compute, Answer)):
            event: Event = await self._cell.circle.call(action)
            return event
        return await self._wait_for(Delegation(self._cell, action))

    async def _ask(self, action: Ask) -> Replied | Failed:
        cell = self._cell
        emit = self._emit if self._services.watchers else None
        query = Query(Invocation(action.messages, action.tools, action.tool_choice), self._options, emit)
        reply: Any = await cell.uses.asks.call(Asked(cell.crystal, query, self._plan.cantrip.retry, cell.around))
        if isinstance(reply, Response):
            cell.ledger.add(reply.usage)
            return Replied(reply, cell.ledger.spent())
        cell.error = reply
        return Failed(str(reply))

    def _emit(self, payload: Payload) -> None:
        """What the crystal streams while it answers."""
        self._services.watchers.publish(self._services.guard.envelopes(self._cell.streamed().said(payload)))

    def _nudged(self) -> Steer | Interrupt | None:
        """What has to happen before the next query: an interruption first, else all messages that came."""
        while self.ref.mailbox_depth:
            try:
                self.receive_nowait(_is_nudge)
            except anyio.WouldBlock:  # further intents, which have to wait
                break
        cell, recalled = self._cell, self._recalled
        if not (cell.nudges or recalled):
            return None
        for nudge in cell.nudges:
            if nudge.interrupts:  # what else was said stays, for the next intent
                cell.nudges, self._recalled = kept(cell.nudges), None
                return Interrupt(nudge.text)
        nudges, cell.nudges, self._recalled = cell.nudges, (), None
        return _steer(nudges if not recalled else (Nudge(recalled), *nudges))

    async def _note_down(self) -> None:
        """What was said to it while it has no query to put that before: nobody knows when, and where, it is woken."""
        cell = self._cell
        said = kept(cell.nudges)
        if said:
            cell.nudges = tuple(nudge for nudge in cell.nudges if nudge.interrupts)
            self._state, records = put_in(self._plan, self._state, self._services.moment(), _steer(said))
            await self._services.append(records)

    # Children, and waiting for long

    async def _wait_for(self, delegation: Delegation) -> Returned | None:
        """What the children came to; None where that takes so long that it hibernates meanwhile."""
        patience = math.inf if self.ref.mailbox_depth else PATIENCE  # mail would only wake it again
        returned = await delegation.returned(self._why_stopping, patience)
        if returned is None:
            awaited = delegation.awaited()
            assert awaited is not None, "it would have returned"
            awaited.tell_at_end(self.ref)
            if self._plan.circle.medium != "tools":
                self._cell.circle.cast(PUT_AWAY)
            self._delegation = delegation
            self._hibernate()
        return returned

    def _hibernate(self, until: float = math.inf) -> None:
        """Have itself woken then, and by its deadline; any mail does that, too."""
        self._hibernates = True
        until = min(until, math.inf if self._cell.until is None else self._cell.until)
        if until < math.inf:
            self._alarm = self.send_after(max(0.0, until - anyio.current_time()), "time")

    async def _awake(self) -> None:
        """Go on: waiting, or with what the children came to."""
        self._hibernates = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        with contextlib.suppress(anyio.WouldBlock):
            while self.ref.mailbox_depth:  # what else woke it says nothing that is not plain to see
                self.receive_nowait(_is_signal)
        delegation, self._delegation = self._delegation, None
        if delegation is not None:
            awaited = delegation.awaited()
            if awaited is not None:
                awaited.awaited_by = None
            returned = await self._wait_for(delegation)
            if returned is not None:
                await self._finish(await self._step(returned))

    # Ends from outside

    def _goes_on(self, detail: object) -> bool:
        """Whether it is only driven no further, for `detail`: it goes on at once or, as its runtime closes, later.

        A child whose parent crashed for good has nobody to go on for.
        """
        if isinstance(detail, RestartedWith):
            return True
        orphaned = isinstance(detail, GaveUp) and self._cell.parent is not None
        return self._cell.lasts and not orphaned and detail not in _REASONS

    def _why_stopping(self) -> EndReason | None:
        """What to tell children that have to stop because this entity does; None where it does not, but goes on."""
        reason = self.stop_reason
        if isinstance(reason, Killed) or (isinstance(reason, Shutdown) and self._goes_on(reason.detail)):
            return None
        return "timeout" if self._life is not None and self._life.cancel_called else "parent_ended"

    async def _stop(self, reason: EndReason, detail: str) -> None:
        """End from outside, where the loop stands."""
        if self._state.phase is Phase.OVER:  # it had just ended by itself: its last records are on their way
            self._cell.outcome = self._cell.ending or self._cell.outcome
            self._cell.is_over = True
        elif self._state.phase is not Phase.NEW:
            loom, entity_id = self._services.loom(), self._plan.entity_id
            below = loom.usage_below(entity_id) if loom.has(entity_id) else None  # its header may be on its way
            ended = await self._step(Stopped(reason, detail, below))
            if isinstance(ended, Finish):
                await self._part(ended.outcome)


def _steer(nudges: Sequence[Nudge]) -> Steer:
    images = tuple(nudge.images for nudge in nudges)
    return Steer(tuple(nudge.text for nudge in nudges), images if any(images) else ())


def _is_nudge(message: object) -> bool:
    return message is NUDGED


def _is_mail(message: object) -> bool:
    return message is NUDGED or isinstance(message, (Ticket, GiveWay))


def _is_signal(message: object) -> bool:
    return not _is_mail(message)
