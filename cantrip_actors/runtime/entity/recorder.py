"""The recorder of one incarnation: it folds events into the entity's state, and records each step.

The order of a step is fixed: decide (`machine/loop.py`), write its records to the loom (LOOM-1), whose writer publishes
their events, and return its action. Nothing of an incarnation is needed after it that is not in the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from cantrip_actors.machine.accept import MID_TURN
from cantrip_actors.machine.actions import Action, Ask, Consult, Finish, Step
from cantrip_actors.machine.budget import Spent
from cantrip_actors.machine.due import find_spent
from cantrip_actors.machine.events import Begin, Event, Moment
from cantrip_actors.machine.evolve import fold
from cantrip_actors.machine.life import Change
from cantrip_actors.machine.loop import advance, note
from cantrip_actors.machine.project import get_outcome, list_started_gates, sum_usage
from cantrip_actors.machine.state import Phase, State, Transient
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Record
from cantrip_actors.records.timers import Timer
from cantrip_actors.runtime.entity.cell import Cell, EpisodeUnderWay
from cantrip_actors.runtime.entity.environment import Environment
from cantrip_actors.runtime.events.instrument import MailTaken
from cantrip_actors.runtime.people.request_timers import make_cancellation, make_timers
from cantrip_actors.stream.events import StepFailedEvent, StepStartEvent
from cantrip_actors.terms.crystal import get_crystal_name
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import NO_USAGE, Message, Response
from supervisors import ExitReason


class StepRecorder:
    """The state of one incarnation of an entity, and the way from an event to the next action.

    `interrupt` cuts the present action of the entity short.

    Attributes:
        state: the fold of the entity's log.
        live: the unrecorded facts of this incarnation.
        outgoing: mail to other entities, and timers, for the transaction of the next records.
        end_children: ends the entity's background children, once the entity can have some.
    """

    def __init__(self, cell: Cell, environment: Environment, interrupt: Callable[[], None]) -> None:
        self._cell = cell
        self._environment = environment
        self._interrupt = interrupt
        self.state = State(cell.plan.parent_turn)
        self.live = Transient(self.make_moment().fresh)
        self.outgoing: Sequence[Mail | Timer] = ()
        self.end_children: Callable[[], Awaitable[None]] | None = None

    def renew(self) -> None:
        """Forget the unrecorded facts: the log is about to be folded again."""
        self.live = Transient(self.make_moment().fresh)

    def make_moment(self) -> Moment:
        """Return the present moment, with the budgets that limit the entity."""
        core = self._environment.core
        return core.make_moment(self._cell.ledger.make_budget(core.read_time_of_day))

    def find_spent(self) -> Spent | None:
        """Return the budget that is used up now, if any."""
        return find_spent(self.state, self.make_moment())

    @property
    def turn_id(self) -> str:
        """The id of the turn under way, or of the next one."""
        return self.state.turn.id or self.live.fresh

    @property
    def open_request(self) -> str | None:
        """The id of the request that a person has not decided; None without one."""
        turn = self.state.turn
        return None if turn.requested is None or turn.decided is not None else turn.requested.id

    # Steps

    async def take_step(self, event: Event, before: Sequence[Record] = ()) -> Action:
        """Decide a step, record it, and return its action.

        The same transaction writes the records `before`, which the state has folded already.
        """
        cell, state = self._cell, self.state
        if isinstance(event, Begin):
            cell.ledger.begin_intent()
        moment = self.make_moment()
        requested = state.turn.requested
        if self.open_request is not None and requested is not None:  # whatever the event is, the wait for it has ended
            self.outgoing = [make_cancellation(timer) for timer in make_timers(cell, requested, moment)]
        step = advance(cell.plan, state, self.live, moment, event)
        return await self.record_step(Step([*before, *step.records], step.action) if before else step, moment)

    async def record_step(self, step: Step, moment: Moment) -> Action:
        """Record a step, publish the beginning of a turn, and return its action."""
        environment, cell, records, action = self._environment, self._cell, step.records, step.action
        if type(action) is Finish and self.state.phase is Phase.OVER and self.state.background and self.end_children:
            await self.end_children()  # each ends before its parent does
            outcome = get_outcome(self.state, cell.ledger.below)
            action = action if outcome is None else Finish(outcome)
        is_failure = type(action) is Finish and action.outcome.error is not None
        if not is_failure:
            cell.error = None  # a failed query ends no episode if a fold mends it
        before = cell.outcome
        if type(action) is Finish:
            cell.outcome = action.outcome  # the events of its records have it
        else:
            self.note_episode()
        if records:
            if type(action) is Consult:
                self.outgoing = [*self.outgoing, *make_timers(cell, action.request, moment)]
            is_recorded = False
            try:
                await self._append(records)
                is_recorded = True
            finally:
                if not is_recorded:
                    cell.outcome = before  # the callers get what the log has
        if self.state.phase is Phase.OVER:
            environment.core.living.change(cell, Change.ENDS)
        if cell.spans is not None:
            cell.spans.note_step(records, action)
        if type(action) is Ask and environment.bus:
            self._publish_turn()
        return action

    def note_episode(self) -> bool:
        """Note the episode that is under way: mail may end it from now on. Return whether there is one."""
        episode = self.state.episode
        if self._cell.episode is None and self.state.phase not in (Phase.IDLE, Phase.OVER):
            self._note_episode(episode.number, episode.key)
        return self._cell.episode is not None

    def note_intent(self, begin: Begin) -> None:
        """Note the episode of an intent that is about to be recorded."""
        self._note_episode(self.state.episode.number + 1, begin.key)

    def _note_episode(self, number: int, key: str | None) -> None:
        episode = EpisodeUnderWay(number, key, self._interrupt, lambda: self.open_request is not None)
        self._cell.episode = episode

    async def note(self, event: Event) -> None:
        """Record a message that arrives while the entity waits for an intent: no action follows."""
        await self._append(note(self._cell.plan, self.state, self.live, self.make_moment(), event))

    async def record(self, records: Sequence[Record]) -> None:
        """Write records that do not come from a step of the loop, and fold them."""
        await self._append(records)
        fold(self._cell.plan.shape, records, self.state)

    async def _append(self, records: Sequence[Record]) -> None:
        """Write records. The same transaction posts outgoing mail, sets timers, and takes mail by the records' keys."""
        cell, inbox, core = self._cell, self._cell.inbox, self._environment.core
        outgoing, self.outgoing = self.outgoing, ()
        with cell.ledger.counting_calls(list_started_gates(records), core.read_time_of_day):
            await core.append(records, () if inbox is None else inbox.find_taken(records), outgoing)
        cell.recorded += len(records)
        if inbox is not None:
            self._note_taken(inbox.remove_taken(records))
        start = cell.start
        if start is not None and self.state.phase is not Phase.NEW:
            start.records = records
            start.recorded.set()
            if start.released is not None:
                await start.released.wait()
            cell.start = None
        usage = sum_usage(records)
        if usage is not NO_USAGE:
            cell.ledger.add(usage)

    def _note_taken(self, mails: Sequence[Mail]) -> None:
        core = self._environment.core
        for mail in mails:
            if mail.dependencies is not None:
                core.cantrips.forget_sent(mail.entity_id, mail.key)
            if core.instrument is not None:
                core.report(MailTaken(mail.kind, mail.at, self.make_moment().at))

    async def resume_spans(self, last_exit: ExitReason | None) -> None:
        """Continue the spans of an episode after a restart of its actor, or begin new ones in another process."""
        cell, instrument = self._cell, self._environment.instrument
        if cell.spans is not None:
            cell.spans.note_restart(last_exit)
        elif instrument is not None:
            cell.caller.spans = await instrument.resume(cell, self.state)

    # Events that are in no log

    def publish_open_turn(self) -> None:
        """Publish the beginning of a turn that continues, with the utterance that the loom has."""
        if self._environment.bus and self.state.phase in MID_TURN:
            self._publish_turn(self._read_utterance())

    def publish_crash(self) -> None:
        """Publish that the turn under way failed with its actor."""
        if self._environment.bus and self.state.phase in (Phase.ASKING, *MID_TURN):
            self._environment.bus.publish([StepFailedEvent(*self._identify_turn())])

    def _publish_turn(self, utterance: Response | None = None) -> None:
        plan = self._cell.plan
        crystal, spawned_in = get_crystal_name(plan.cantrip.crystal), None if plan.forked else plan.parent_turn
        event = StepStartEvent(*self._identify_turn(), crystal, plan.parent_entity, spawned_in, utterance)
        self._environment.bus.publish([event])

    def _identify_turn(self) -> tuple[str, float, str]:
        """Return the fields of an event of the turn under way: the entity, the time, and the id of the utterance."""
        turn_id = self.state.turn.utterance_id if self.state.phase in MID_TURN else self.turn_id
        return self._cell.entity_id, self.make_moment().wall, turn_id

    def _read_utterance(self) -> Response | None:
        conversation = self.state.conversation
        if not len(conversation.starts):
            return None
        message = conversation.context[conversation.starts[-1][0]]
        assert isinstance(message, Message), "no utterance fades"
        images = tuple(image for image in message.images if isinstance(image, Image))
        return Response(message.content, message.tool_calls, thinking=message.thinking, images=images)
