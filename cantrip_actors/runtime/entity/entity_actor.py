"""The entity actor: it feeds events to the pure loop, and carries out the actions that the loop returns.

`machine/loop.py` decides the next step, both in a running entity and after a crash. This actor ensures the order: it
writes the step's records to the loom, then publishes them to subscribers, then carries out the action (LOOM-1). It
takes control mail between two turns, and an intent when the entity is idle.

An incarnation of this actor has no state that is not in the entity's log. The first incarnation begins the log. Any
later one, in this process or another, folds the log and resumes from there.

The log records every end of an entity. If the entity ends by itself, a step of the loop records it; if its deadline or
a caller ends it, a shielded `Stopped` step does. A long-lived entity may also be suspended, because it is idle or its
runtime closes: then its log stays as it is, and the next intent loads it.

While the entity is idle, or waits for a person, its children or another entity, the actor soon hibernates and needs no
task. If it is idle for long, or everything that it waits for waits for people, it is unloaded.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import anyio

from cantrip_actors.crystal.query import PostingCrystal, Query
from cantrip_actors.loom import Held, Taken
from cantrip_actors.machine.actions import (
    Action,
    Answer,
    Ask,
    Await,
    Collect,
    Compute,
    Consult,
    Contact,
    Finish,
    Remember,
    Run,
    Spawn,
    Step,
)
from cantrip_actors.machine.checkpoint import encode_checkpoint
from cantrip_actors.machine.events import (
    Begin,
    Computed,
    Decide,
    Event,
    Failed,
    Inquired,
    Interrupt,
    Moment,
    Observed,
    Posted,
    Replied,
    Steer,
    Steering,
    Stopped,
)
from cantrip_actors.machine.evolve import fold
from cantrip_actors.machine.loop import advance, note, resume
from cantrip_actors.machine.mail import Void, read_mail
from cantrip_actors.machine.project import get_outcome, sum_usage
from cantrip_actors.machine.state import Phase, State, Transient
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import MailRefused, Record, Resumed
from cantrip_actors.records.timers import Timer
from cantrip_actors.runtime.circles.program_actor import RELEASE_PROGRAM
from cantrip_actors.runtime.crystals.crystal_actor import Abandoned
from cantrip_actors.runtime.crystals.posted_query import PostedQuery
from cantrip_actors.runtime.crystals.querying import make_retry_callback, query_crystal
from cantrip_actors.runtime.crystals.sampling import Sampling
from cantrip_actors.runtime.crystals.summary import remember
from cantrip_actors.runtime.entity.awaited import Awaited
from cantrip_actors.runtime.entity.cell import Caller, Cell, Dismissed, EpisodeUnderWay
from cantrip_actors.runtime.entity.delegation import Delegation
from cantrip_actors.runtime.entity.loading import find_last_time, load_state
from cantrip_actors.runtime.events.context_variables import WORKING, bind_variables
from cantrip_actors.runtime.events.events import StepStartEvent
from cantrip_actors.runtime.events.instrument import MailSettled, MailTaken
from cantrip_actors.runtime.mail.inbox import Inbox, make_refusal_error
from cantrip_actors.runtime.people.request_timers import make_cancellation, make_timers
from cantrip_actors.stream.wire import Emitted
from cantrip_actors.terms.companion import Here
from cantrip_actors.terms.errors import CrystalError, LoomError
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import NO_USAGE, Invocation, Message, Response
from cantrip_actors.terms.outcome import EndReason, Outcome
from supervisors import HIBERNATE, Actor, Crash, ExitReason, GaveUp, Killed, RestartedWith, Shutdown
from supervisors.backend import Timer as Alarm

PATIENCE: Final = 1.0
"""Seconds that the actor waits for children or mail before it hibernates."""

UNLOAD_RETRY: Final = 1.0
"""The least seconds between two attempts to unload an entity for which callers wait; `passivate_after` if longer."""

CHECKPOINT_EVERY: Final = 1_000
"""Records after which a checkpoint is written, so that loading the entity does not have to fold them."""

RECORDS_PER_MESSAGE: Final = 4
"""Records per message of the context after which a checkpoint is written, if this product is larger than
`CHECKPOINT_EVERY`: a checkpoint takes time in proportion to the context, and the cost of a turn must not grow."""

UNLOAD_WHEN_IDLE: Final = object()
"""Makes a long-lived entity unload once it is idle, so that it can be loaded with another cantrip."""

_MAIL: Final = object()
_TIME: Final = object()

_REASONS: dict[object, EndReason] = {
    reason: reason for reason in ("cancelled", "parent_ended", "timeout", "budget", "abandoned")
}


class _Acting:
    """The action that an entity carries out, and whether urgent mail interrupts it."""

    scope: anyio.CancelScope
    """The cancel scope around all actions, until urgent mail cancels it; the next ones get a new one."""
    action: Action | Awaited | None = None
    """The action that is being carried out, or was last."""
    is_acting = False
    """Whether an action is being carried out: an action may be cancelled, the recording of a step may not."""
    is_interrupted = False
    """Whether urgent mail cancels the query or the gate under way."""
    interrupted: Action | Awaited | None = None
    """The action that urgent mail has interrupted in this episode."""
    unrecorded: Event | None = None
    """The event of an action that had ended when the scope was cancelled."""


class EntityActor(Actor):
    """Drives one entity from its first intent to its end."""

    _recalled: str | None = None
    """The companion's message for the next query."""
    _awaited: Awaited | Consult | None = None
    """The wait of the hibernating entity; None if it is idle."""
    _hibernates = False
    _unloads_at: float | None = None
    """When it unloads if it stays idle or waits for people, in event loop time."""
    _alarm: Alarm | None = None
    _cut_off_at: str | None = None
    """If a crash may have cut off the next query: the time of the last record."""
    _outgoing: Sequence[Mail | Timer] = ()
    """Mail to other entities and timers, for the next records."""
    _should_unload = False
    _since_checkpoint = 0
    """The number of records since the last checkpoint."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._plan = cell.plan
        self._services = cell.services
        self._state = State(cell.plan.parent_turn)
        self._transient = Transient(self._make_moment().fresh)
        self._options = cell.plan.cantrip.call.sampling()
        self._retried = make_retry_callback(cell, cell.crystal)
        self._acting = _Acting()

    async def init(self) -> None:
        """Start the actors of the entity's crystals and servers of tools, if they do not run."""
        await self._cell.crystal.hold(self._services.crystals)

    async def run(self) -> object:
        """Run the entity; if it has ended, clean up at once, which costs less than `terminate`."""
        cell, result = self._cell, None
        try:
            result = await (self._drive_in_time() if cell.wait.deadline.is_set else self._drive())
        except LoomError as error:  # the loom cannot write
            cell.error, cell.outcome = error, None
        except BaseException:
            if isinstance(self.stop_reason, Killed):  # it gets no `terminate`
                await cell.crystal.release()
            raise
        if self._state.phase is Phase.OVER:
            await cell.crystal.release()
            self.has_terminate = False
        return result

    async def _drive_in_time(self) -> object:
        """Run the entity no longer than the `timeout` ward allows."""
        deadline = self._cell.wait.deadline
        with deadline.make_scope():
            return await self._drive()
        await self._stop("timeout", deadline.ward)
        return None

    async def terminate(self, reason: ExitReason) -> None:
        """Record the end of an entity that was ended from outside; a suspended entity gets no end."""
        if isinstance(self._awaited, Awaited):
            self._awaited.leave()
        if self._cell.start is not None and self._cell.start.released is not None:
            self._cell.start.released.set()  # a cancelled caller sets it when the end is recorded
        try:
            if isinstance(reason, Crash) and self._cell.stream is not None:
                self._services.watchers.publish(self._cell.stream.crash())
            if isinstance(reason, (Shutdown, Killed)):
                detail = reason.detail if isinstance(reason, Shutdown) else "killed"
                if not self._will_resume(detail):
                    sender = detail.sender if isinstance(detail, Dismissed) else ""
                    await self._stop(_REASONS.get(str(detail), "cancelled"), str(detail or "cancelled"), sender)
        except LoomError as error:
            self._cell.error = error
        finally:
            await self._cell.crystal.release()

    # Episodes

    async def _drive(self) -> object:
        """Run episodes until the entity hibernates, unloads or ends."""
        cell = self._cell
        WORKING.set(cell.working)  # this actor's own context, as each task has one
        with bind_variables(cell.context_variables):
            action = self._wake() if self._hibernates else await self._start()
        while True:
            with anyio.CancelScope() as self._acting.scope:
                while True:
                    if action is not None:
                        with bind_variables(cell.caller.own_variables):
                            await self._run_episode(action)
                    if self._hibernates:
                        return HIBERNATE
                    if self._state.phase is not Phase.IDLE:  # it is over, or unloaded while it waits for people
                        return None
                    cell.caller = Caller()
                    try:
                        action = await self._wait_for_intent()
                    except Taken:
                        action = await self._restore()
                        continue
                    if action is None:
                        return HIBERNATE if self._hibernates else None
            with bind_variables(cell.caller.own_variables):
                action = await self._resume_after_cut()

    async def _start(self) -> Action | None:
        """Begin the log, or resume from it; return the first action, or None if the entity is idle or over."""
        cell, start, loom = self._cell, self._cell.start, self._services.reading.loom
        is_new = start is not None  # then the state is that of a new entity
        if self.ref.last_exit is not None:
            # The last incarnation may have been killed while the loom wrote. Wait for that write even if this one is
            # being stopped: without its state, the entity could not be ended.
            with anyio.CancelScope(shield=True):
                await self._services.append((), (), ())
            is_new = is_new and not await self._services.reading.in_store(partial(loom.has, cell.entity_id))
        if not is_new:
            self._state, below = await self._services.reading.in_store(partial(load_state, loom, self._plan))
            cell.ledger.load(self._state.usage, below)
        elif start is not None and start.state is not None:
            self._state = start.state.copy()
        if cell.inbox is not None:
            await self._open(cell.inbox)
        if self._state.phase is Phase.NEW:
            assert start is not None, "a log without an intent is not loaded"
            return await self._begin(start.begin)
        if isinstance(cell.crystal.crystal, PostingCrystal):
            self._cut_off_at = await self._services.reading.in_store(partial(find_last_time, loom, cell.entity_id))
        await self._adopt_at_once()
        moment = self._make_moment()
        step = resume(self._plan, self._state, self._transient, moment)
        by, cell.caller.resumed_by = cell.caller.resumed_by, ""
        if step is not None:
            if by:
                await self._record([Resumed(cell.entity_id, moment.at, by)])
            await self._resume_spans()
            await self._notify_companion(restored=True)
            return await self._record_step(step, moment)
        cell.outcome = get_outcome(self._state, cell.ledger.below)
        cell.is_over = self._state.phase is Phase.OVER
        self._settle(cell.outcome)
        return None

    async def _restore(self) -> Action | None:
        """Restore the state from the log: the intent that it was about to record was withdrawn at this moment."""
        cell, reading = self._cell, self._services.reading
        records = await reading.in_store(partial(reading.loom.records, cell.entity_id))
        cell.end_spans()
        cell.caller, cell.episode, self._transient = Caller(), None, Transient(self._make_moment().fresh)
        inbox = cell.inbox
        assert inbox is not None, "the intent came from there"
        inbox.settle_refused(records)
        with bind_variables(cell.context_variables):
            return await self._start()

    async def _open(self, inbox: Inbox) -> None:
        await inbox.open(self._signal, lambda key: key == self._state.episode.key)
        self._acting.is_interrupted = inbox.has_urgent(self._state.episode.number)

    def _signal(self) -> None:
        self._cell.entity.send(_MAIL)

    async def _adopt_at_once(self) -> None:
        """Record the move to a cantrip that a caller gave.

        Raises Held if another process has written to the log meanwhile, so that the cantrip of this cell is outdated.
        """
        plan, state, adoption = self._plan, self._state, self._cell.adoption
        if state.phase is Phase.OVER:
            return
        is_adopted = plan.is_adopted(state)
        if adoption == "at_once":
            is_renamed = plan.lasting and plan.cantrip.name not in (None, state.cantrip_name)
            if is_renamed or not is_adopted:
                await self._record([plan.make_adopted(state, self._make_moment().at)])
        elif not is_adopted and (adoption is None or state.phase is not Phase.IDLE):
            raise Held(f"another process has continued entity {plan.entity_id} meanwhile: try again")

    async def _begin(self, begin: Begin) -> Action:
        cell, plan, state = self._cell, self._plan, self._state
        cell.error = None
        if cell.inbox is not None:
            cell.inbox.is_watched = False
        moves = state.phase is not Phase.NEW and not plan.is_adopted(state)
        before = [plan.make_adopted(state, self._make_moment().at)] if moves else []
        fold(plan.shape, before, state)
        instrument = self._services.watchers.instrument
        if instrument is not None:
            cell.end_spans()
            cell.caller.spans = instrument.begin(cell, state, begin.trace)
            begin = begin._replace(trace=None if cell.spans is None else cell.spans.trace)
        action = await self._take_step(begin, before)
        with bind_variables(cell.caller.own_variables):
            await self._notify_companion()
        return action

    async def _resume_spans(self) -> None:
        """Continue the spans of an episode after a restart of this actor, or begin new ones in another process."""
        cell, instrument = self._cell, self._services.watchers.instrument
        if cell.spans is not None:
            cell.spans.note_restart(self.ref.last_exit)
        elif instrument is not None:
            cell.caller.spans = await instrument.resume(cell, self._state)

    async def _notify_companion(self, *, restored: bool = False) -> None:
        """Notify the companion that an episode begins or resumes; its answer is inserted before the next query."""
        companion = self._plan.circle.companion
        if companion is not None:
            self._recalled = await companion.begins(self._make_here(restored=restored))

    def _make_here(self, *, restored: bool = False) -> Here:
        return Here(self._plan.entity_id, self._plan.name, restored)

    async def _run_episode(self, action: Action | Awaited) -> None:
        """Carry out actions until the episode ends, or the entity hibernates or unloads."""
        acting = self._acting
        while type(action) is not Finish:
            acting.action, acting.is_acting = action, True
            if acting.is_interrupted:
                await self._cancel_action(action)
            event = await (self._ask(action) if type(action) is Ask else self._carry_out(action))
            acting.is_acting = False
            if acting.is_interrupted and acting.scope.cancel_called:  # after the action had ended
                acting.unrecorded = event
                await anyio.lowlevel.checkpoint()  # leave the scope
            if event is None:
                return
            action = await self._take_step(event)
        await self._finish(action.outcome)
        interrupted, acting.interrupted = acting.interrupted, None
        if isinstance(interrupted, (Run, Compute, Answer)):
            await self._replace_circle()
        elif isinstance(interrupted, Spawn) and interrupted.started:
            await self._services.end_below(self._cell)

    async def _resume_after_cut(self) -> Action | Awaited | None:
        """Record the outcome of the action whose scope was cancelled, and return the next action."""
        if self._acting.is_acting:
            self._acting.is_acting = self._acting.is_interrupted = False
            self._acting.interrupted = self._acting.action
            return await self._take_step(await self._find_control() or Interrupt("interrupted"))
        event, self._acting.unrecorded = self._acting.unrecorded, None
        if event is not None:
            return await self._take_step(event)
        if self._hibernates:
            self._signal()
            return None
        return self._acting.action

    async def _replace_circle(self) -> None:
        """Replace the circle actor: a cancelled gate or program may still run in the old one."""
        cell = self._cell
        with anyio.CancelScope(shield=True):  # an entity without a circle could not be restarted
            await cell.supervisor.terminate_child(cell.circle)
            await cell.supervisor.restart_child(cell.circle)

    async def _finish(self, outcome: Outcome) -> None:
        """Give the outcome of the episode to the companion and to the callers that wait."""
        cell, companion = self._cell, self._plan.circle.companion
        cell.episode, self._acting.is_interrupted = None, False
        if companion is not None:
            await companion.ends(self._make_here(), outcome)
        self._settle(outcome)
        instrument = self._services.watchers.instrument
        if instrument is not None and cell.caller.sent:
            instrument.noted(MailSettled(cell.caller.sent, self._make_moment().at))
        self._services.living.wake_waiters()

    def _interrupt(self) -> None:
        """Cancel the query or the gate under way, because urgent mail has arrived."""
        self._acting.is_interrupted = True
        if self._acting.is_acting:
            self._acting.scope.cancel()
        elif self._hibernates:
            self._signal()

    def _settle(self, outcome: Outcome | None) -> None:
        """Give the outcome of the episode to the callers that wait for it."""
        cell = self._cell
        if cell.inbox is not None:
            cell.inbox.settle(self._state.episode.key or "", outcome, cell.error)

    # Steps

    async def _take_step(self, event: Event, before: Sequence[Record] = ()) -> Action:
        """Decide a step, record it, publish its events, and return its action.

        The same transaction writes the records `before`, which the state has folded already.
        """
        moment = self._make_moment()
        if self._cell.wait.kind:
            requested = self._state.turn.requested
            if self._cell.wait.kind == "person" and requested is not None:
                self._outgoing = [make_cancellation(timer) for timer in make_timers(self._cell, requested, moment)]
            self._cell.end_wait()
            self._unloads_at = None
        posted = self._state.turn.posted
        step = advance(self._plan, self._state, self._transient, moment, event)
        follows = await self._record_step(Step([*before, *step.records], step.action) if before else step, moment)
        if posted is not None and isinstance(event, (Interrupt, Stopped)):
            self._cell.crystal.uses.asks.cast(Abandoned(posted))
        return follows

    def _make_moment(self) -> Moment:
        return self._services.moment(self._cell.ledger.make_budget())

    async def _record_step(self, step: Step, moment: Moment) -> Action:
        services, cell, records, action = self._services, self._cell, step.records, step.action
        if type(action) is Finish:
            cell.outcome = action.outcome
            cell.is_over = self._state.phase is Phase.OVER
        elif cell.episode is None:
            cell.episode = EpisodeUnderWay(self._state.episode.number, self._state.episode.key, self._interrupt)
        if records:
            if type(action) is Consult:
                self._outgoing = make_timers(cell, action.request, moment)
            await self._append(records)
        spans = cell.caller.spans
        if spans is not None:
            spans.note_step(records, action)
        if services.watchers.has_any:
            services.watchers.publish(cell.open_stream().step(step, self._make_turn_id(), self._read_utterance))
        else:
            cell.stream = None  # it would miss steps, and later watchers would get them under the id of an old turn
        if type(action) is Ask and services.bus:
            services.bus.publish([StepStartEvent(self._plan.entity_id, moment.wall, self._make_turn_id())])
        return action

    def _read_utterance(self) -> Response | None:
        """Return the last utterance of the conversation."""
        conversation = self._state.conversation
        if not len(conversation.starts):
            return None
        message = conversation.context[conversation.starts[-1][0]]
        assert isinstance(message, Message), "no utterance fades"
        images = tuple(one for one in message.images if isinstance(one, Image))
        return Response(message.content, message.tool_calls, thinking=message.thinking, images=images)

    async def _append(self, records: Sequence[Record]) -> None:
        """Write records. The same transaction posts outgoing mail, sets timers, and takes mail by the records' keys."""
        services, cell, inbox = self._services, self._cell, self._cell.inbox
        outgoing, self._outgoing = self._outgoing, ()
        await services.append(records, () if inbox is None else inbox.find_taken(records), outgoing)
        if inbox is not None:
            taken, instrument = inbox.remove_taken(records), services.watchers.instrument
            if taken and instrument is not None:
                at = self._make_moment().at
                for mail in taken:
                    instrument.noted(MailTaken(mail.kind, mail.at, at))
        if cell.start is not None and self._state.phase is not Phase.NEW:
            cell.start.records = records
            cell.start.recorded.set()
            if cell.start.released is not None:
                await cell.start.released.wait()
            cell.start = None
        usage = sum_usage(records)
        if usage is not NO_USAGE:
            cell.ledger.add(usage)
        self._since_checkpoint += len(records)

    async def _record(self, records: Sequence[Record]) -> None:
        """Write records that do not come from a step of the loop, and fold them."""
        await self._append(records)
        fold(self._plan.shape, records, self._state)

    def _make_turn_id(self) -> str:
        return self._state.turn.id or self._transient.fresh

    # Actions

    async def _ask(self, action: Ask) -> Event:
        """Query the crystal, unless control mail comes before the query."""
        cell, since = self._cell, self._since_checkpoint
        if since >= CHECKPOINT_EVERY and since >= RECORDS_PER_MESSAGE * len(self._state.conversation.context):
            await self._write_checkpoint()
        living = self._services.living
        if living.is_handing_over and not living.ends_here(cell.root):
            await self._wait_for_handover()
        if self._recalled is not None or (cell.inbox is not None and cell.inbox.has_control):
            event = await self._find_control()
            if event is not None:
                return event
        emit = self._emit if self._services.watchers.has_any else None
        return self._make_reply_event(await query_crystal(cell, cell.crystal, self._make_query(action, emit)))

    async def _carry_out(self, action: Action | Awaited) -> Event | None:
        """Carry out any other action and return its event; return None if the entity hibernates until then."""
        cell = self._cell
        event: Event | None
        match action:
            case Run():
                result = await (self._run_with_sampling(action) if cell.crystal.samplers else cell.circle.call(action))
                event = result if isinstance(result, Inquired) else Observed(result)
            case Compute() | Answer():
                event = await self._compute(action)
            case Remember():
                event = await remember(cell, action, self._make_here())
            case Spawn():
                event = await self._wait_for(Delegation(cell, action, self._record))
            case Await():
                event = await self._wait_for(self._services.question(cell, action))
            case Awaited():
                event = await self._wait_for(action)
            case Consult():
                event = await self._consult(action)
            case Contact():
                event, self._outgoing = await self._services.contact(cell, action)
            case _:
                assert isinstance(action, Collect), action
                event = await self._wait_for(
                    PostedQuery(cell, self._make_query(action, handle=action.handle), self._make_reply_event)
                )
        return event

    async def _run_with_sampling(self, action: Run) -> Any:
        """Run a gate whose server may query a crystal meanwhile. Raises the error of an answer that is not recorded."""
        cell, server = self._cell, action.gate.server
        used = next(
            (one for one in cell.crystal.servers if server is not None and one.server.name == server.name), None
        )
        sampler = None if used is None else cell.crystal.samplers.get(used.server.name)
        if used is None or sampler is None:
            return await cell.circle.call(action)
        sampling = Sampling(cell, sampler, action.turn_id, self._record)
        used.samples[cell.entity_id] = sampling.answer
        try:
            result = await cell.circle.call(action)
        finally:
            del used.samples[cell.entity_id]
            await sampling.close()
        if sampling.error is not None:
            raise sampling.error
        return result

    async def _compute(self, action: Compute | Answer) -> Event:
        """Continue the program up to its next gate call or its end."""
        event: Event = await self._cell.circle.call(action)
        if self._cell.spans is not None and isinstance(event, Computed):
            self._cell.spans.note_computation(event.seconds, event.memory)
        return event

    async def _wait_for_handover(self) -> None:
        """Wait between two turns until this node suspends the entity, to hand it over to another node (N-63)."""
        self._cell.wait.kind = "node"
        self._services.living.wake_waiters()
        await anyio.sleep_forever()

    def _make_query(
        self, action: Ask | Collect, emit: Callable[[Emitted], None] | None = None, handle: Any = None
    ) -> Query:
        """Return a query with a key that is the same after a crash."""
        conversation, since = self._state.conversation, self._cut_off_at
        self._cut_off_at = None
        invocation = Invocation(action.messages, action.tools, action.tool_choice)
        key = f"{self._plan.entity_id}:{conversation.said}:{conversation.folded}:{len(action.messages)}"
        return Query(invocation, self._options, emit, handle, key, since, retried=self._retried)

    def _make_reply_event(self, reply: Response | CrystalError) -> Replied | Posted | Failed:
        if isinstance(reply, Response):
            return Replied(reply) if reply.handle is None else Posted(reply.handle)
        self._cell.error = reply
        return Failed(str(reply), reply.usage, reply.overflows)

    def _emit(self, emitted: Emitted) -> None:
        """Publish a part of the crystal's answer to watchers."""
        self._services.watchers.publish(self._cell.open_stream().pass_on(emitted))

    async def _cancel_action(self, action: Action | Awaited) -> None:
        """Cancel an action because of urgent mail, before the action begins or while the entity hibernates."""
        self._acting.scope.cancel()
        if not isinstance(action, Awaited):  # an Awaited cleans up when it is cancelled
            await anyio.lowlevel.checkpoint()

    async def _find_control(self) -> Event | None:
        """Return the event of control mail or of the companion's message that comes before the next query."""
        event, recalled = await self._take_control(), self._recalled
        if recalled is None or isinstance(event, (Stopped, Interrupt)):
            return event
        self._recalled = None
        messages = event.messages if isinstance(event, Steer) else ()
        return Steer((Steering(recalled), *messages))

    async def _take_control(self) -> Event | None:
        """Take control mail: a stop, an interrupt of this episode or a decision first, then all steering messages.

        Steering messages wait as long as the entity waits for a person.
        """
        inbox = self._cell.inbox
        if inbox is None or not inbox.has_control:
            return None
        for kind in ("stop", "interrupt", "decision"):
            taken = inbox.take(kind)
            for n, one in enumerate(taken):
                event = await self._read(one.mail)
                if event is not None:
                    for other in taken[n + 1 :]:  # the first one counts; the others are refused later
                        inbox.put_back(other)
                    return event
        if self._open_request() is not None:
            return None
        steers = [event for one in inbox.take("steer") if isinstance(event := await self._read(one.mail), Steer)]
        return Steer(tuple(message for event in steers for message in event.messages)) if steers else None

    def _open_request(self) -> str | None:
        turn = self._state.turn
        return None if turn.requested is None or turn.decided is not None else turn.requested.id

    async def _read(self, mail: Mail) -> Begin | Steer | Interrupt | Stopped | Decide | None:
        """Return the event of claimed mail; if the mail is void, record its refusal and return None."""
        episode = self._cell.episode
        event = read_mail(mail, None if episode is None else episode.number, self._open_request())
        if not isinstance(event, Void):
            return event
        await self._refuse(mail, event.reason)
        return None

    async def _refuse(self, mail: Mail, why: str) -> None:
        at, inbox = self._make_moment().at, self._cell.inbox
        assert inbox is not None, "the mail came from there"
        refusal = MailRefused(self._plan.entity_id, mail.key, mail.kind, why, at, mail.sender or None)
        await self._record([refusal])
        inbox.settle(mail.key, None, make_refusal_error(refusal))

    # Waiting

    async def _wait_for_intent(self) -> Action | None:
        """Wait for the next intent; return None if the entity hibernates or unloads meanwhile."""
        cell, inbox = self._cell, self._cell.inbox
        assert inbox is not None, "a long-lived entity has an inbox"
        while True:
            event: Event | None = await self._take_control() if inbox.has_control else None
            if isinstance(event, Steer):  # recorded at once: the next intent may come much later
                await self._append(note(self._plan, self._state, self._transient, self._make_moment(), event))
                continue
            if event is None:
                event = await self._take_next_intent(inbox)
            if event is not None:
                self._unloads_at = None
                with bind_variables(cell.context_variables):
                    return await (self._begin(event) if isinstance(event, Begin) else self._take_step(event))
            now = anyio.current_time()
            if self._unloads_at is None:
                self._unloads_at = now + self._services.passivate_after
            if self._should_unload or now >= self._unloads_at:
                if await self._unload(inbox):
                    return None
                self._unloads_at = now + max(PATIENCE, self._services.passivate_after)
            inbox.is_watched = True
            if not await self._has_news(min(PATIENCE, self._unloads_at - now)) and now < self._unloads_at:
                self._hibernate(until=self._unloads_at)
                return None

    async def _take_next_intent(self, inbox: Inbox) -> Begin | None:
        if self._services.is_draining() and not inbox.awaited:
            return None  # the next process takes the intent
        if self._cell.is_for_episode and inbox.has_intents:
            self._should_unload = True  # and it is loaded with the cantrip that it moves to
            return None
        while (one := await inbox.take_intent()) is not None:
            event = await self._read(one.mail)
            if event is not None:
                assert isinstance(event, Begin), "intents are in a lane of their own"
                self._cell.caller = Caller(inbox.get_variables(one.mail.key), sent=one.mail.at)
                return event
        return None

    async def _has_news(self, patience: float = PATIENCE) -> bool:
        """Wait for mail, `patience` seconds at most; return whether any arrived."""
        try:
            self._should_unload = await self.receive(timeout=patience) is UNLOAD_WHEN_IDLE or self._should_unload
        except TimeoutError:
            return False
        return True

    def _read_signals(self) -> None:
        """Read all signals in the mailbox."""
        with contextlib.suppress(anyio.WouldBlock):
            while True:
                self._should_unload = self.receive_nowait() is UNLOAD_WHEN_IDLE or self._should_unload

    async def _unload(self, inbox: Inbox | None) -> bool:
        """Unload the entity, unless mail or callers wait, or a child has work again; return whether it unloads."""
        await self._write_checkpoint()
        cell = self._cell
        is_free = inbox is None or inbox.is_empty or self._should_unload
        if not is_free or cell.wait.callers or (cell.wait.kind and not cell.is_waiting_for_people):
            return False
        self._services.unload(cell)
        return True

    async def _write_checkpoint(self) -> None:
        """Write the state as a checkpoint, if records were added since the last one.

        A checkpoint counts the usage of the children before it, so while children run none is written.
        """
        has_children = self._cell.wait.kind == "children"
        if has_children or not self._since_checkpoint or not self._plan.is_adopted(self._state):
            return
        below, self._since_checkpoint = self._cell.ledger.below, 0
        # the loom is redacted at rest, and a restart must fold to the same state
        state = self._state
        if self._services.guard.at_rest:
            load = partial(load_state, self._services.reading.loom, self._plan)
            state, below = await self._services.reading.in_store(load)
        data = encode_checkpoint(self._plan, state, below)
        if data is not None:
            await self._services.checkpoint(self._plan.entity_id, data)

    async def _consult(self, request: Consult) -> Event | None:
        """Return the event that ends the wait for a person: a decision or other control mail.

        Returns None if the entity hibernates or unloads meanwhile.
        """
        cell, services = self._cell, self._services
        inbox = services.attach(cell)
        if inbox.signal is None:
            await self._open(inbox)
        inbox.is_watched = False
        cell.wait_for_person()
        services.living.wake_waiters()
        while (event := await self._take_control() or self._deny_unattended(request)) is None:
            if await self._unload_for_people():
                return None
            if not await self._has_news():
                self._hibernate_for(request)
                return None
        return event

    def _deny_unattended(self, consult: Consult) -> Decide | None:
        """Return the denial of a request that no program follows, if `unattended` is "deny"; otherwise None."""
        gate = self._plan.gates.get(consult.request.gate)
        ask = None if gate is None else gate.ask_first
        setting = None if gate is None else ask.unattended if ask is not None else gate.dependencies.get("unattended")
        return Decide("deny", "the runtime", "no program follows requests") if self._services.denies(setting) else None

    async def _unload_for_people(self) -> bool:
        """Unload the entity's tree, if the entity is its root and all of it has waited for people long enough."""
        cell, now = self._cell, anyio.current_time()
        if cell.parent is not None or not cell.is_waiting_for_people:
            self._unloads_at = None
            return False
        if self._unloads_at is None:
            self._unloads_at = now + self._services.passivate_after
        if now < self._unloads_at:
            return False
        cell.wait.is_suspended = await self._unload(cell.inbox)
        self._unloads_at = now + max(UNLOAD_RETRY, self._services.passivate_after)
        return cell.wait.is_suspended

    async def _wait_for(self, awaited: Awaited) -> Event | None:
        """Return the event of children or of another entity; None if this entity hibernates or unloads meanwhile."""
        cell = self._cell
        cell.wait.kind = awaited.kind
        self._services.living.wake_waiters()
        event = await awaited.wait_for_event(self._explain_stopping, PATIENCE)
        if event is None and not await self._unload_for_people():
            self._hibernate_for(awaited)
            awaited.ready.listen(self._signal)
        return event

    def _hibernate_for(self, awaited: Awaited | Consult) -> None:
        """Hibernate until an event, or until the tree may be unloaded because all of it waits for people."""
        if self._plan.circle.medium != "tools":
            self._cell.circle.cast(RELEASE_PROGRAM)
        self._awaited = awaited
        self._hibernate(until=math.inf if self._unloads_at is None else self._unloads_at)

    def _hibernate(self, until: float = math.inf) -> None:
        """Hibernate, until a signal or the deadline comes."""
        self._hibernates = True
        until = min(until, self._cell.wait.deadline.time)
        if until < math.inf:
            self._alarm = self.send_after(max(0.0, until - anyio.current_time()), _TIME)

    def _wake(self) -> Awaited | Consult | None:
        """End the hibernation; return what the entity waits for, or None if it is idle."""
        self._hibernates = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._read_signals()
        awaited, self._awaited = self._awaited, None
        return awaited

    # Ends from outside

    def _will_resume(self, detail: object) -> bool:
        """Return whether the entity is suspended and resumes later, instead of being ended.

        A child whose parent crashed for good is ended: no entity waits for its result.
        """
        if isinstance(detail, RestartedWith):
            return True
        is_orphan = isinstance(detail, GaveUp) and self._cell.parent is not None
        if is_orphan or isinstance(detail, Dismissed) or detail in _REASONS:
            return False
        root = self._cell.root
        root.wait.is_suspended = root.wait.is_suspended or root.can_suspend
        root.wait.is_suspended = root.wait.is_suspended or self._services.living.is_handing_over
        return root.plan.lasting or root.wait.is_suspended

    def _explain_stopping(self) -> EndReason | None:
        """Return why the children have to stop with this entity; None if the entity will resume."""
        reason = self.stop_reason
        if isinstance(reason, Killed) or (isinstance(reason, Shutdown) and self._will_resume(reason.detail)):
            return None
        return "timeout" if self._cell.wait.deadline.has_passed else "parent_ended"

    async def _stop(self, reason: EndReason, detail: str, sender: str = "") -> None:
        """Record an end from outside. An entity that has just ended by itself keeps that end."""
        if self._state.phase in (Phase.NEW, Phase.OVER):
            return
        action = await self._take_step(Stopped(reason, detail, sender=sender or None))
        assert isinstance(action, Finish), "nothing comes after a stop"
        await self._finish(action.outcome)
