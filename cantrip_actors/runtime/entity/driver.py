"""The driver of an entity: it feeds events to the pure loop, and carries out the actions that the loop returns.

`machine/loop.py` decides the next step, in a running entity as after a crash. `recorder.py` records it, `performer.py`
carries its action out, `mail_reader.py` reads mail, `checkpoints.py` stores states. What is here is their order:

    load      fold the log, or begin it
    work      perform an action, take the step that its event leads to, until the episode ends
    rest      a long-lived entity waits for its next intent
    terminate record an end from outside, or leave the log as it is

Urgent mail and the deadlines of `timeout` wards cut an action short: they cancel the scope around it, and when the
action has ended with all that it has started, the entity takes the event of the cut in place of the action's. A step is
never cut: the scope is cancelled only while an action is performed. One scope serves all actions until one is cut.

An incarnation of this actor has no state that is not in the entity's log. A crash ends it with its children, which
resume when it does. A crash that would repeat is not tried again (`machine/life.py`): the entity is given up.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, TypeVar

import anyio

from cantrip_actors.crystal.query import PostingCrystal
from cantrip_actors.loom import Held, Taken
from cantrip_actors.machine.actions import Action, Ask, Finish, Spawn
from cantrip_actors.machine.events import Begin, Compact, Event, Interrupt, Steer, Stopped, Undo
from cantrip_actors.machine.evolve import fold
from cantrip_actors.machine.life import Change, CrashMark, Stage, may_restart
from cantrip_actors.machine.loop import resume
from cantrip_actors.machine.project import get_outcome
from cantrip_actors.machine.state import Phase
from cantrip_actors.records.records import Resumed
from cantrip_actors.runtime.crystals.crystal_actor import Abandoned
from cantrip_actors.runtime.entity.cell import Cell, Dismissed, EpisodeCaller, GivenUp, Unloaded
from cantrip_actors.runtime.entity.checkpoints import Checkpoints
from cantrip_actors.runtime.entity.delegation import ChildMaker, ParentEntity
from cantrip_actors.runtime.entity.ends import end_below, end_trees, find_end_reason
from cantrip_actors.runtime.entity.environment import Environment
from cantrip_actors.runtime.entity.loading import find_last_time, load_state
from cantrip_actors.runtime.entity.mail_reader import MailReader
from cantrip_actors.runtime.entity.performer import Performer
from cantrip_actors.runtime.entity.providing import Providing
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.runtime.events.context_variables import WORKING, bind_variables
from cantrip_actors.runtime.events.instrument import MailSettled
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.outcome import EndReason, Outcome
from supervisors import Actor, Crash, Died, ExitReason, Shutdown, Stop
from supervisors.reasons import render_exception

T = TypeVar("T")


class EntityActor(Actor):
    """Drives one entity from its first intent to its end. Its circle and its children are children of its actor."""

    has_children: ClassVar[bool] = True
    max_restarts: float = math.inf  # each child bounds its own

    def __init__(self, cell: Cell, environment: Environment, maker: ChildMaker) -> None:
        self._cell = cell
        self._environment = environment
        self._maker = maker
        self._scope = anyio.CancelScope()
        self._action: Action | None = None
        """The action that is performed now, or next; None while the entity rests."""
        self._is_performing = False
        self._event: Event | None = None
        """The event of an action that had ended when it was cut."""
        self._recorder = StepRecorder(cell, environment, self._cut)
        self._reader = MailReader(cell, self._recorder, environment.core.cantrips)
        self._providing = Providing(cell, environment.core.cantrips)
        self._checkpoints = Checkpoints(cell, environment)
        self._performer: Performer

    async def init(self) -> None:
        """Have the actors of the entity's crystals run."""
        await self._cell.crystal.hold(self._environment.crystals)

    async def run(self) -> None:
        """Drive the entity until it ends or leaves."""
        cell = self._cell
        WORKING.set(cell.working)  # this actor's own context, as each task has one
        self._performer = Performer(
            ParentEntity(cell, self._environment, self._recorder, self._maker, self.children),
            self._reader,
            self._checkpoints,
            wait_for_mail=self._wait_for_mail,
            was_cut=lambda: self._scope.cancel_called and self.stop_reason is None,
        )
        try:
            await self._drive()
        except LoomError as error:  # the loom cannot write
            cell.error, cell.outcome = error, None

    async def _drive(self) -> None:
        cell = self._cell
        if cell.life.stage is not Stage.LOADING and not cell.life.is_final:
            self._change(Change.CRASHES)  # the last incarnation was killed, and could not say so
        with bind_variables(cell.context_variables):
            self._action = await self._load()
        while True:
            with anyio.CancelScope() as self._scope:
                await self._work_and_rest()
            if not self._scope.cancel_called:
                return
            with bind_variables(cell.caller.own_variables):
                event, self._event = self._event, None
                self._action = await self._take_step(event or await self._find_cut(self._action))

    def _change(self, change: Change) -> None:
        self._environment.core.living.change(self._cell, change)

    # Load

    async def _load(self) -> Action | None:
        """Begin the log, or resume from it; return the first action, or None if the entity is idle or over."""
        cell, start, core = self._cell, self._cell.start, self._environment.core
        is_new, cell.episode = start is not None, None
        if self.ref.last_exit is not None:
            # The last incarnation may have been killed while the loom wrote. Without its state, this one could not end.
            await core.finish_writing()
            is_new = is_new and not await core.in_store(partial(core.loom.has, cell.entity_id))
        if not is_new:
            load = partial(load_state, core.loom, cell.plan, core.read_time_of_day())
            self._recorder.state, usage = await core.in_store(load)
            cell.ledger.load(self._recorder.state.usage, usage)
        elif start is not None and start.state is not None:
            self._recorder.state = start.state.copy()
        await self._performer.open_inbox()
        if self._recorder.state.phase is Phase.NEW:
            assert start is not None, "a log without an intent is not loaded"
            return await self._begin(start.begin)
        if isinstance(cell.crystal.crystal, PostingCrystal):
            self._performer.cut_off_at = await core.in_store(partial(find_last_time, core.loom, cell.entity_id))
        await self._adopt_at_once()
        await self._performer.background.resume()
        self._recorder.publish_open_turn()
        state = self._recorder.state
        awaited = [child.child_id for child in state.turn.children] if state.phase is Phase.WAITING else []
        action = await self._resume()
        if awaited and state.phase is not Phase.WAITING:  # its new cantrip has no gate for them
            await end_trees(core, awaited, "its parent continues without it")
        return action

    async def _load_again(self) -> Action | None:
        """Load the log again: the intent that the entity was about to record was withdrawn at this moment."""
        cell, core = self._cell, self._environment.core
        records = await core.in_store(partial(core.loom.records, cell.entity_id))
        cell.end_spans()
        cell.caller = EpisodeCaller()
        self._recorder.renew()
        assert cell.inbox is not None, "the intent came from there"
        cell.inbox.settle_refused(records)
        self._change(Change.CRASHES)
        with bind_variables(cell.context_variables):
            return await self._load()

    async def _resume(self) -> Action | None:
        cell, recorder = self._cell, self._recorder
        if recorder.note_episode():
            await self._prepare(partial(self._providing.provide, recorder.state.episode))
        moment = recorder.make_moment()
        step = resume(cell.plan, recorder.state, recorder.live, moment)
        by, cell.caller.resumed_by = cell.caller.resumed_by, ""
        if step is not None:
            self._change(Change.BEGINS)
            if by:
                await recorder.record([Resumed(cell.entity_id, moment.at, by)])
            await recorder.resume_spans(self.ref.last_exit)
            await self._prepare(partial(self._performer.notify_begin, restored=True))
            return await recorder.record_step(step, moment)
        cell.outcome = get_outcome(recorder.state, cell.ledger.below)
        if recorder.state.phase is Phase.OVER and not cell.is_over:
            self._change(Change.ENDS)
        cell.settle(recorder.state.episode.key, cell.outcome)
        return None

    async def _adopt_at_once(self) -> None:
        """Record the move to a cantrip that a caller gave.

        Raises Held if another process has written to the log meanwhile, so that the cantrip of this cell is outdated.
        """
        cell, plan, state = self._cell, self._cell.plan, self._recorder.state
        if state.phase is Phase.OVER:
            return
        is_adopted = plan.is_adopted(state)
        if cell.adoption == "at_once":
            is_renamed = plan.lasting and plan.cantrip.name not in (None, state.cantrip_name)
            if is_renamed or not is_adopted:
                await self._recorder.record([plan.make_adopted(state, self._recorder.make_moment().at)])
        elif not is_adopted and (cell.adoption is None or state.phase is not Phase.IDLE):
            raise Held(f"another process has continued entity {plan.entity_id} meanwhile: try again")

    async def _begin(self, begin: Begin) -> Action:
        """Record an intent, with the move to another cantrip that comes with it; return the first action."""
        cell, plan, state = self._cell, self._cell.plan, self._recorder.state
        if cell.inbox is not None:
            cell.inbox.is_watched = False
        self._change(Change.BEGINS)
        cell.deadline.start()
        self._recorder.note_intent(begin)
        await self._prepare(partial(self._providing.provide, begin))
        moves = state.phase is not Phase.NEW and not plan.is_adopted(state)
        before = [plan.make_adopted(state, self._recorder.make_moment().at)] if moves else []
        fold(plan.shape, before, state)
        if (instrument := self._environment.instrument) is not None:
            cell.end_spans()
            cell.caller.spans = instrument.begin(cell, state, begin.trace)
            begin = begin._replace(trace=None if cell.spans is None else cell.spans.trace)
        action = await self._recorder.take_step(begin._replace(dependencies=self._providing.mark), before)
        await self._prepare(self._performer.notify_begin)
        return action

    async def _prepare(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do work before the first action. Mail or a deadline that cuts it short then cuts that action short, too."""
        outer = self._scope
        with anyio.CancelScope() as self._scope, bind_variables(self._cell.caller.own_variables):
            await self._perform(work)
        self._scope = outer

    # Work

    async def _work_and_rest(self) -> None:
        """Work on episodes, and rest between them, until the entity ends or leaves, or an action is cut short."""
        while True:
            if self._action is not None:
                with bind_variables(self._cell.caller.own_variables):
                    await self._work(self._action)
                if self._scope.cancel_called:
                    return
            if self._recorder.state.phase is not Phase.IDLE:
                return
            try:
                self._action = await self._rest()
            except Taken:
                self._action = await self._load_again()
                continue
            if self._action is None:
                return

    async def _work(self, action: Action) -> None:
        """Perform actions until the episode ends, or one is cut short."""
        while type(action) is not Finish:
            event = await self._perform(partial(self._performer.perform, action))
            if self._scope.cancel_called:
                self._event = event
                return
            action = self._action = await self._take_step(event)
        await self._finish(action.outcome)

    async def _perform(self, work: Callable[[], Awaitable[T]]) -> T:
        deadline = self._cell.deadline
        self._is_performing = True
        try:
            if self._cell.is_cut_short:
                self._cut()
                await anyio.lowlevel.checkpoint()
            if not deadline.is_set:
                return await work()
            with deadline.limit(self._scope):
                return await work()
        finally:
            self._is_performing = False

    def _cut(self) -> None:
        """Cut the present action short, because urgent mail has arrived."""
        self._performer.hasten_end()
        if self._is_performing:
            self._scope.cancel()

    async def _find_cut(self, action: Action | None) -> Event:
        """Return the event that has cut an action short: mail, or a deadline."""
        cell = self._cell
        if isinstance(action, Spawn) and action.started:  # some that began before a crash may not be loaded
            await end_below(self._environment.core, cell.entity_id)
        event = await self._reader.take_decisive()
        if event is None and type(action) is Ask:
            event = await self._performer.find_answers()
        if event is None and cell.deadline.is_set and cell.deadline.has_passed:
            return Stopped("timeout", cell.deadline.ward)
        return event or Interrupt("interrupted")

    async def _take_step(self, event: Event) -> Action:
        posted = self._recorder.state.turn.posted
        action = await self._recorder.take_step(event)
        if posted is not None and isinstance(event, (Interrupt, Stopped)):
            self._cell.crystal.uses.asks.cast(Abandoned(posted))
        return action

    async def _finish(self, outcome: Outcome) -> None:
        """Give the outcome of the episode to the companion and to the callers that wait."""
        cell = self._cell
        await self._performer.notify_end(outcome)
        cell.episode = None
        if cell.caller.sent:
            self._environment.core.report(MailSettled(cell.caller.sent, self._recorder.make_moment().at))

    # Rest

    async def _rest(self) -> Action | None:
        """Wait for the next intent, and return the action that it leads to; return None if the entity leaves."""
        cell, inbox, reader = self._cell, self._cell.inbox, self._reader
        assert inbox is not None, "a long-lived entity has an inbox"
        cell.caller = EpisodeCaller()
        self._change(Change.RESTS)
        while True:
            event = await reader.take_control() or await reader.take_undo()
            if isinstance(event, (Steer, Compact, Undo)):  # at once: the next intent may come much later
                await self._performer.change_memory(event)
                if isinstance(event, Undo):
                    await self._load_again()
                    self._change(Change.RESTS)
                continue
            if event is None and not cell.moves_on and (inbox.awaited or not self._environment.core.is_draining):
                event = await reader.take_intent(inbox)
            if event is None and not cell.moves_on:
                event = self._performer.background.find_intent()
            if event is None and (cell.moves_on or cell.leaves_when_idle):
                await self._checkpoints.write(self._recorder.state)
                self._change(Change.LEAVES)
                return None
            if event is not None:
                with bind_variables(cell.context_variables):
                    return await (self._begin(event) if isinstance(event, Begin) else self._take_step(event))
            inbox.is_watched = True
            await self._wait_for_mail()

    async def _wait_for_mail(self) -> None:
        """Wait until this actor is notified of mail, or of another reason to look around."""
        await self.receive()
        if self._cell.inbox is not None:
            self._cell.inbox.acknowledge()

    # Ends from outside

    async def terminate(self, reason: ExitReason) -> None:
        """Record the end of an entity that was ended from outside. One that only leaves gets no end.

        Raises Stop after a crash that is not tried again.
        """
        cell, start = self._cell, self._cell.start
        if start is not None and start.released is not None:
            start.released.set()  # a cancelled caller sets it when the end is recorded
        try:
            if isinstance(reason, Shutdown):
                await self._end_from_outside(reason)
            elif isinstance(reason, Crash):
                self._note_crash(reason)
        except LoomError as error:
            cell.error = error
        finally:
            await cell.crystal.release()

    async def _end_from_outside(self, reason: Shutdown) -> None:
        cell, core = self._cell, self._environment.core
        why = find_end_reason(reason.detail, cell.root, core)
        if why is None:
            if not cell.life.is_final:
                self._change(Change.LEAVES)
            await self.children.stop_all(reason)
            if isinstance(reason.detail, Unloaded):
                await self._checkpoints.write(self._recorder.state)
            return
        await self.children.stop_all(Shutdown("timeout" if why == "timeout" else "parent_ended"))
        sender = reason.detail.sender if isinstance(reason.detail, Dismissed) else ""
        await self._stop(why, str(reason.detail or "cancelled"), sender)

    async def _stop(self, why: EndReason, detail: str, sender: str) -> None:
        """Record an end from outside. An entity that has just ended by itself keeps that end."""
        phase = self._recorder.state.phase
        if phase in (Phase.NEW, Phase.OVER):
            return
        self._environment.core.check_loom_runs()
        if phase is Phase.WAITING:
            await end_below(self._environment.core, self._cell.entity_id)
        await self._work(await self._take_step(Stopped(why, detail, sender=sender or None)))

    def _note_crash(self, crash: Crash) -> None:
        """Note a crash for the next incarnation. Raises Stop if there is none, because the crash would repeat."""
        cell = self._cell
        self._recorder.publish_crash()
        if cell.life.stage is Stage.LEAVING:
            raise Stop(Shutdown(Unloaded()))
        exception: BaseException | None = crash.exception
        if isinstance(exception, Died):  # a callee's crash is this actor's; one that was killed says nothing about it
            exception = exception.__cause__
        cell.crashes.last = crash if exception is None else Crash(exception)
        if exception is not None:
            text = f"{type(exception).__name__}: {render_exception(exception)}"
            cell.crashes.marks.append(CrashMark(cell.recorded, text))
            if not may_restart(cell.crashes.marks):
                raise Stop(Shutdown(GivenUp(crash)))
        if not cell.life.is_final:
            self._change(Change.CRASHES)
