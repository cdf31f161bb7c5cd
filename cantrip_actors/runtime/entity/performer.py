"""The performer: it carries out the actions of an entity, and returns their events.

Whatever an action waits for, it waits in place, in the entity's own task. So a cancellation ends it with everything
that it has started: a query, a gate, a program or a child has ended when the cancelled action has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import anyio

from cantrip_actors.crystal.query import PostingCrystal, Query
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
    Pause,
    Remember,
    Run,
    Spawn,
)
from cantrip_actors.machine.events import (
    Called,
    Compact,
    Computed,
    Decide,
    Elapsed,
    Event,
    Failed,
    Observed,
    Posted,
    Replied,
    Returned,
    Steer,
    Steering,
    Undo,
)
from cantrip_actors.machine.life import Change, Stage, WaitKind
from cantrip_actors.machine.mail import NOTHING_TO_FOLD
from cantrip_actors.records.records import Observation
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.circles.gates_actor import GatesActor
from cantrip_actors.runtime.circles.program_actor import RELEASE_PROGRAM, CircleActor
from cantrip_actors.runtime.crystals.crystal_actor import Watched
from cantrip_actors.runtime.crystals.querying import query_crystal
from cantrip_actors.runtime.crystals.sampling import Sampling
from cantrip_actors.runtime.crystals.summary import remember
from cantrip_actors.runtime.entity.background import BackgroundChildren
from cantrip_actors.runtime.entity.checkpoints import Checkpoints
from cantrip_actors.runtime.entity.delegation import Delegation, ParentEntity
from cantrip_actors.runtime.entity.mail_reader import MailReader
from cantrip_actors.runtime.entity.recall import recall_result
from cantrip_actors.runtime.entity.unavailable import call_until_available
from cantrip_actors.runtime.nodes.placing import ends_here
from cantrip_actors.stream.answer import AnswerStream
from cantrip_actors.stream.answer_so_far import AnswerSoFar
from cantrip_actors.stream.named_calls import NamedCallStream
from cantrip_actors.stream.wire import Emitted
from cantrip_actors.terms.companion import Here, Pinned
from cantrip_actors.terms.errors import AskCycle
from cantrip_actors.terms.messages import Invocation, Response, Usage
from cantrip_actors.terms.outcome import EndReason, Outcome
from cantrip_actors.terms.own_gate_names import ASK, COMPACT, OF_CHILDREN, RECALL
from cantrip_actors.terms.wrapping import Fence
from supervisors import ActorRef, ChildSpec

_log = get_logger("cantrip_actors.runtime")

GRACE: Final = 5.0
"""Seconds that a cancelled gate or program has to end. One that does not is reported as a zombie. A companion has as
many for the end of an episode that was ended from outside."""
_BY_ITSELF: Final[tuple[EndReason, ...]] = ("terminated", "truncated", "failed", "budget")
"""The reasons of an episode that was not ended from outside."""

CLOCK_CHECK: Final = 3600.0
"""Seconds after which an entity that waits for the next day looks at the clock again: a machine may have slept."""
LATE: Final = 0.001
"""Seconds after the end of a period: a timer may fire a moment before the clock has reached it."""


class Performer:
    """Carries out the actions of one incarnation of an entity.

    Args:
        parent: the entity, its state, and the nursery of its actor, for its circle and its children.
        reader: its mail.
        checkpoints: its checkpoints.
        wait_for_mail: waits until the actor is notified of mail.
        was_cut: says whether the driver cut the action under way short, and the actor itself continues. Otherwise a
            cancellation ends the whole actor, and its children with it.
    """

    recalled: str | None = None
    """The companion's message for the next query."""
    cut_off_at: str | None = None
    """If a crash may have cut off the next query: the time of the last record."""

    def __init__(
        self,
        parent: ParentEntity,
        reader: MailReader,
        checkpoints: Checkpoints,
        *,
        wait_for_mail: Callable[[], Awaitable[object]],
        was_cut: Callable[[], bool],
    ) -> None:
        self._parent = parent
        self._cell = parent.cell
        self._environment = parent.environment
        self._recorder = parent.recorder
        self._reader = reader
        self._checkpoints = checkpoints
        self._wait_for_mail = wait_for_mail
        self._was_cut = was_cut
        self.background = BackgroundChildren(parent, self._interrupt_query)
        parent.recorder.end_children = self.background.end
        self._options = parent.cell.plan.cantrip.call.sampling()
        self._circle: ActorRef[Any] | None = None
        self._is_querying = False
        self._ending = anyio.CancelScope()
        """The scope in which the companion is notified of the end of an episode."""
        self._has_own_mail = False
        """Whether the entity has posted mail to itself, which it takes before the next query."""

    def make_here(self, *, restored: bool = False) -> Here:
        """Return the facts about the entity for its companion."""
        plan = self._cell.plan
        return Here(plan.entity_id, plan.name, restored)

    async def notify_begin(self, *, restored: bool = False) -> None:
        """Notify the companion that an episode begins or resumes; its answer is inserted before the next query."""
        companion, here = self._cell.plan.circle.companion, self.make_here(restored=restored)
        if companion is not None:
            self.recalled = await call_until_available(lambda: companion.begins(here), here.entity_id)

    async def notify_end(self, outcome: Outcome) -> None:
        """Notify the companion that an episode has ended, and then the callers that wait for this outcome.

        An episode that was ended from outside waits no longer than `GRACE` for its companion.
        """
        companion, here = self._cell.plan.circle.companion, self.make_here()
        try:
            if companion is not None:
                with anyio.CancelScope() as self._ending:
                    if outcome.reason not in _BY_ITSELF:
                        self.hasten_end()
                    await call_until_available(lambda: companion.ends(here, outcome), here.entity_id)
                if self._ending.cancelled_caught:
                    _log.error("the hook `ends` of a companion did not end in time", entity=here.entity_id)
        finally:  # the end is recorded: the callers do not wait until a companion that crashed is restarted
            self._cell.settle(self._recorder.state.episode.key, outcome)

    def hasten_end(self) -> None:
        """Give a companion that is being notified of the end of the episode `GRACE` seconds from now."""
        self._ending.deadline = min(self._ending.deadline, anyio.current_time() + GRACE)

    async def perform(self, action: Action) -> Event:
        """Carry out an action and return its event.

        Raises LoomError, and the errors of the companion. A cancelled action has ended, with all that it has started.
        """
        event: Event
        match action:
            case Ask():
                event = await self._ask(action)
            case Run():
                event = await self._run_gate(action)
            case Compute() | Answer():
                event = await self._compute(action)
            case Spawn():
                event = await self._delegate(action)
            case Consult():
                event = await self._consult(action)
            case Contact():
                event = await self._contact(action)
            case Await():
                event = await self._await_answer(action)
            case Pause():
                event = await self._pause(action)
            case Remember():
                event = await remember(self._environment.instrument, self._cell, action, self.make_here(), self._charge)
            case _:
                assert isinstance(action, Collect), action
                event = await self._collect(action)
        return event

    async def change_memory(self, event: Steer | Compact | Undo) -> None:
        """Record what changes the memory of an idle entity. After an Undo, its log has to be folded again."""
        if isinstance(event, Compact):
            action = await self._recorder.take_step(event)
            while type(action) is not Finish:
                action = await self._recorder.take_step(await self.perform(action))
            return
        await self._recorder.note(event)
        circle = self._circle
        if isinstance(event, Undo) and circle is not None:
            self._circle = None  # the next call begins with the sandbox that the log describes
            await self._parent.nursery.stop(circle)

    async def _contact(self, action: Contact) -> Event:
        if action.gate.name == RECALL:
            return await recall_result(self._cell, self._environment.core, action)
        if action.gate.name == COMPACT:
            return self._request_fold(action)
        if action.gate.name in OF_CHILDREN:
            return await self.background.contact(action, partial(self._waiting, "children"))
        event, self._recorder.outgoing = await self._environment.questions.contact(self._cell, action)
        return event

    def _request_fold(self, action: Contact) -> Observed:
        """Post the entity's wish for a fold, which it takes before its next query, with the observation of the call."""
        cell, call, state = self._cell, action.call, self._recorder.state
        if not state.can_fold:
            return Observed(Observation(call.gate, call.args, f"{COMPACT}: {NOTHING_TO_FOLD}", True, call.id))
        body = {"instructions": action.args["instructions"]}
        key = f"{cell.entity_id}:{action.turn_id}:{call.id}"
        root, self._has_own_mail = cell.root.entity_id, True
        make_mail = self._environment.inboxes.make_mail
        self._recorder.outgoing = [make_mail(cell.entity_id, "compact", body, key=key, sender=call.gate, root=root)]
        return Observed(Observation(call.gate, call.args, "your older turns are folded now", False, call.id))

    @contextmanager
    def _waiting(self, kind: WaitKind, *, asks: str | None = None) -> Iterator[None]:
        """Have the entity wait for something while the block runs. `asks` is the entity that has to answer."""
        cell, living = self._cell, self._environment.core.living
        living.change(cell, Change.WAITS, kind, asks=asks)
        if cell.plan.circle.has_programs and self._circle is not None:
            self._circle.cast(RELEASE_PROGRAM)
        try:
            yield
        finally:
            if cell.life.stage is Stage.WAITING:  # else it leaves, or has ended
                living.change(cell, Change.CONTINUES)

    # Crystals

    async def _ask(self, action: Ask) -> Event:
        """Query the crystal, unless control mail comes before the query."""
        cell, environment = self._cell, self._environment
        if self._checkpoints.is_due(self._recorder.state):
            await self._checkpoints.write(self._recorder.state)
        if environment.core.is_handing_over and not ends_here(environment.core, cell.root):
            with self._waiting("node"):  # this node suspends it between two turns, for another one
                await anyio.sleep_forever()
        if self._has_own_mail:
            self._has_own_mail = False
            environment.inboxes.attach(cell)
            await self.open_inbox()
        has_control = cell.inbox is not None and cell.inbox.has_control
        if self.recalled is not None or has_control or self.background.has_answers:
            event = await self._find_control()
            if event is not None:
                return event
        if not environment.bus.delivers_deltas:
            return await self._query(self._make_query(action))
        bus, core = environment.bus, environment.core
        turn_id = self._recorder.turn_id
        answer = AnswerStream(cell.entity_id, turn_id, core.read_time_of_day, lambda: core.guard.redactor)
        so_far = bus.answers[cell.entity_id] = AnswerSoFar(answer)
        calls = NamedCallStream() if cell.plan.circle.has_calls_by_name else None

        def emit(emitted: Emitted) -> None:
            for payload in (emitted,) if calls is None else calls.read(emitted):
                if so_far.add(payload):
                    bus.announce(so_far)

        try:
            return await self._query(self._make_query(action, emit))
        finally:
            bus.publish_streamed()
            answer.close()
            del bus.answers[cell.entity_id]

    async def _find_control(self) -> Event | None:
        """Return the event of control mail, of the companion's message or of answers, which come before a query."""
        event, recalled = await self._reader.take_control(), self.recalled
        if event is not None and not isinstance(event, Steer):
            return event
        self.recalled = None
        messages = () if event is None else event.messages
        if recalled is not None:
            messages = (Steering(str(recalled), pinned=isinstance(recalled, Pinned)), *messages)
        messages = (*messages, *await self.background.take_answers())
        return Steer(messages) if messages else None

    async def find_answers(self) -> Steer | None:
        """Return the answers of background children, one of which has cut a query short; None without any."""
        answers = await self.background.take_answers()
        return Steer(answers) if answers else None

    def _interrupt_query(self) -> None:
        """Cut the present query short, if there is one: a child has answered urgently."""
        if self._is_querying and self._cell.episode is not None:
            self._cell.episode.interrupt()

    async def _collect(self, action: Collect) -> Event:
        """Wait for the answer to a query that was posted. A crystal that cannot announce it is queried for it."""
        cell, query = self._cell, self._make_query(action, handle=action.handle)
        with self._waiting("crystal"):
            if isinstance(cell.crystal.crystal, PostingCrystal):
                watched = Watched(query.handle)
                cell.crystal.uses.asks.cast(watched)
                try:
                    await watched.ready.wait()
                finally:
                    watched.is_left = not watched.ready.is_set
            return await self._query(query)

    def _make_query(
        self, action: Ask | Collect, emit: Callable[[Emitted], None] | None = None, handle: Any = None
    ) -> Query:
        """Return a query with a key that is the same after a crash."""
        conversation, since = self._recorder.state.conversation, self.cut_off_at
        self.cut_off_at = None
        invocation = Invocation(action.messages, action.tools, action.tool_choice)
        key = f"{self._cell.entity_id}:{conversation.said}:{conversation.folded}:{len(action.messages)}"
        if undone := self._recorder.state.undone:
            key = f"{key}:{undone}"
        return Query(invocation, self._options, emit, handle, key, since, charge=self._charge)

    def _charge(self, usage: Usage) -> None:
        """Have the next record book the usage of a query whose answer is not recorded."""
        live = self._recorder.live
        live.unbooked = live.unbooked + usage

    async def _query(self, query: Query) -> Replied | Posted | Failed:
        cell = self._cell
        self._is_querying = query.handle is None  # one that was posted is only collected
        try:
            reply = await query_crystal(self._environment.instrument, cell, cell.crystal, query)
        finally:
            self._is_querying = False
        if isinstance(reply, Response):
            cell.error = None  # that of a context that was too long is mended
            try:
                for call in cell.plan.circle.resolve_calls(reply.tool_calls):
                    await self._environment.requests.prepare(call.gate, call.args)
            except anyio.get_cancelled_exc_class():
                query.report_unanswered(reply.usage)
                raise
            return Replied(reply) if reply.handle is None else Posted(reply.handle)
        cell.error = reply
        return Failed(str(reply), reply.usage, reply.overflows)

    # The circle

    async def _call(self, action: Run | Compute | Answer) -> Any:
        """Have the circle run a gate or a program; a cancelled call has ended when this raises."""
        circle = self._circle
        if circle is None or not circle.alive:
            circle = self._circle = await self._parent.nursery.start(
                ChildSpec("circle", self._make_circle, "temporary")
            )
        return await circle.call(action, grace=GRACE)

    def _make_circle(self) -> GatesActor:
        cell, core = self._cell, self._environment.core

        def fence() -> Fence:
            root = cell.root.entity_id
            return Fence(root, core.living.tokens.get(root, 0))  # without a lease it is older than every token

        entity_id, variables, report = cell.entity_id, lambda: cell.context_variables, core.guard.report_failure
        snapshots = self._environment.snapshots
        if not cell.plan.circle.has_programs:
            return GatesActor(entity_id, variables, report, cell.working, fence, snapshots)
        return CircleActor(cell.plan.circle, snapshots, entity_id, variables, report, cell.working, fence)

    async def _run_gate(self, action: Run) -> Event:
        result = await (self._run_with_sampling(action) if self._cell.crystal.samplers else self._call(action))
        return Observed(result) if isinstance(result, Observation) else result

    async def _run_with_sampling(self, action: Run) -> Any:
        """Run a gate whose server may query a crystal meanwhile. Raises the error of an answer that is not recorded."""
        cell, server = self._cell, action.gate.server
        used = next(
            (used for used in cell.crystal.servers if server is not None and used.server.name == server.name), None
        )
        sampler = None if used is None else cell.crystal.samplers.get(used.server.name)
        if used is None or sampler is None:
            return await self._call(action)
        recorder = self._recorder
        sampling = Sampling(
            self._environment.core,
            cell,
            sampler,
            action.turn_id,
            record=recorder.record,
            find_spent=recorder.find_spent,
            charge=self._charge,
        )
        used.samples[cell.entity_id] = sampling.answer
        try:
            result = await self._call(action)
        finally:
            del used.samples[cell.entity_id]
            await sampling.close()
        if sampling.error is not None:
            raise sampling.error
        return result

    async def _compute(self, action: Compute | Answer) -> Event:
        """Continue the program up to its next gate call or its end."""
        event: Event = await self._call(action)
        if isinstance(event, Called):
            await self._environment.requests.prepare(event.gate, event.args)
        if self._cell.spans is not None and isinstance(event, Computed):
            self._cell.spans.note_computation(event.seconds, event.memory)
        return event

    # Others

    async def _delegate(self, action: Spawn) -> Returned:
        """Cast children and wait for all of them; if this is cut short, end them first, last started first.

        Background children are only started.
        """
        if action.is_background:
            return await self.background.spawn(action)
        delegation = Delegation(self._parent, action)
        try:
            await delegation.begin()
            with self._waiting("children"):
                return await delegation.wait()
        except anyio.get_cancelled_exc_class():
            if self._was_cut():
                await delegation.stop("timeout" if self._cell.deadline.has_passed else "parent_ended")
            raise

    async def _consult(self, consult: Consult) -> Event:
        """Wait until a person has decided; return that decision, or the event of other control mail."""
        await self._watch_inbox()
        with self._waiting("person"):
            while (event := await self._reader.take_control() or self._deny_unattended(consult)) is None:
                await self._wait_for_mail()
        return event

    async def _pause(self, pause: Pause) -> Event:
        """Wait for the next period of a budget, an hour at most: the loop asks the clock again.

        A stop or an interrupt ends the wait. Other mail is taken before the next query.
        """
        _log.info("budget used up", entity=self._cell.entity_id, ward=pause.ward, seconds=round(pause.seconds))
        await self._watch_inbox()
        until = anyio.current_time() + min(pause.seconds, CLOCK_CHECK) + LATE
        with self._waiting("budget"):
            while (event := await self._reader.take_decisive()) is None:
                with anyio.CancelScope(deadline=until) as scope:
                    await self._wait_for_mail()
                if scope.cancelled_caught:
                    return Elapsed()
        return event

    async def _watch_inbox(self) -> None:
        """Have the entity notified of the mail that comes while it waits."""
        inbox = self._environment.inboxes.attach(self._cell)
        if inbox.signal is None:
            await self.open_inbox()
        inbox.is_watched = False

    async def open_inbox(self) -> None:
        """Read the mail that waits for the entity, and have it notified of new mail."""
        cell, state = self._cell, self._recorder.state
        if cell.inbox is not None:
            await cell.inbox.open(partial(cell.actor.send, MAIL), lambda key: key == state.episode.key)

    def _deny_unattended(self, consult: Consult) -> Decide | None:
        """Return the denial of a request that no program follows, if `unattended` is "deny"; otherwise None.

        The result of a deferred call may come from a program that follows no requests.
        """
        if consult.request.deferred:
            return None
        gate = self._cell.plan.gates.get(consult.request.gate)
        ask = None if gate is None else gate.ask_first
        setting = None if gate is None else ask.unattended if ask is not None else gate.dependencies.get("unattended")
        if self._environment.requests.denies(setting):
            return Decide("deny", "the runtime", "no program follows requests")
        return None

    async def _await_answer(self, action: Await) -> Event:
        """Wait for the answer of another entity. A cycle of askers is an error observation."""
        cell, questions = self._cell, self._environment.questions
        try:
            await questions.check(cell.entity_id, action.to)
        except AskCycle as cycle:
            call = action.call
            return Observed(Observation(call.gate, call.args, f"{ASK}: {cycle}", True, call.id))
        with self._waiting("entity", asks=action.to):
            return await questions.wait_for_answer(cell, action)


MAIL: Final = object()
"""The message to an entity's actor that mail has arrived."""
