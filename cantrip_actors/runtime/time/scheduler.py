"""The scheduler: it carries out due timers, for entities and for schedules, and begins submissions.

All timers are rows of the loom, and the scheduler keeps only the time when the next one is due: a waiting timer costs
no task. A firing replaces its row and posts its mail in one transaction of the store, together with others that are
due, and only if the row has not changed since it was read. So it happens once, in any process. A firing that
casts an entity first begins it with the firing's key, and then replaces the row: if it is repeated after a crash, it
finds the entity. Submissions are rows of another table, and begin in the same way as soon as there is room for them.

A firing that is not possible now is set aside and tried again every `RETRY` seconds: no cantrip or entity of that name
is known here, an inbox is full, or the previous firing has to end first.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import anyio

from cantrip_actors.loom import InboxFull, KeyUsed, QueueFull
from cantrip_actors.loom.reading.view import Loom, fold_entity
from cantrip_actors.loom.stores.nodes import NodeRow
from cantrip_actors.loom.stores.store import NextDue
from cantrip_actors.machine.project import Life
from cantrip_actors.machine.schedule import make_firing_key, plan_step
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import OnClose
from cantrip_actors.records.submissions import FIRST_SUBMISSION, SubmissionRow
from cantrip_actors.records.tenant import scope_name, unscope_name
from cantrip_actors.records.timers import FIRST, Due, Scheduled, Timer
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.events.instrument import Fired
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.runtime.loom.loom_writer import TimerChange
from cantrip_actors.runtime.loom.outage_log import OutageLog, is_outage
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL, Inboxes
from cantrip_actors.runtime.nodes.placing import count_nodes_before, has_room_here, may_cast_here
from cantrip_actors.runtime.time.queues import Queues, compute_pause
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import CantripError, EntityEnded, RuntimeClosed, Withdrawn
from cantrip_actors.terms.history import History
from cantrip_actors.terms.image import Said
from cantrip_actors.terms.queue import Queue
from supervisors import Actor, ActorRef, Alarm

RETRY: Final = 30.0
"""Seconds after which a firing that was set aside is tried again."""

LONGEST: Final = 60.0
"""The longest sleep in seconds while a timer waits, because the time of day may be changed meanwhile."""

SOON: Final = 0.001
"""Extra seconds of sleep, because clocks are read with rounding errors."""

GAP: Final = 0.05
"""The least seconds between two polls if something was due; timers due in between are fired together."""

PAGE: Final = 100
"""Timers that are read, and fired in one transaction, at once."""

SELDOM: Final = 4
"""If processes send hints and none arrived, every this many polls one reads the timers of other processes."""

_WAKE: Final = object()
_TICK: Final = object()

_log = get_logger("cantrip_actors.runtime")


class Casts(Protocol):
    """Begins and ends the entities of submissions, and of schedules that cast."""

    def make_id(self, key: str, tenant: str = "") -> str:
        """Return the id of the entity that begins with a key."""

    async def fire(self, cantrip: Cantrip, timer: Timer, key: str) -> None:
        """Cast an entity for a schedule, unless the one with this key has begun. Raises Withdrawn if it was removed."""

    async def begin_submission(self, cantrip: Cantrip, row: SubmissionRow) -> None:
        """Cast the entity of a submission, unless it has begun. Raises Withdrawn if it was withdrawn."""

    async def withdraw(self, entity_id: str, id: str) -> bool:
        """Remove a submission whose entity has not begun; return False if it has begun, or begins now."""

    async def resume_if_left(self, entity_id: str) -> None:
        """Resume a submitted entity that no process runs any more, if this process knows its cantrip.

        It leaves the entity to the nodes if one lives.
        """

    async def stop(self, entity_id: str, why: str) -> None:
        """End an entity."""

    async def fork(
        self,
        loom: Loom,
        turn_id: str,
        intent: Said,
        crystal: Crystal | str | None,
        cantrip: Cantrip | None,
        context: Any,
        key: str | None,
        by: str,
        on_close: OnClose | None,
        *,
        history: History = (),
        note: Any = None,
        lasting: bool = False,
    ) -> Any:
        """Begin an entity that continues from a turn in `loom`; return its handle."""


class Scheduler:
    """Finds due timers, and carries them out. Its actor calls `carry_out_due`."""

    def __init__(self, core: Core, inboxes: Inboxes, casts: Casts, queues: Sequence[Queue] = ()) -> None:
        self._core = core
        self._inboxes = inboxes
        self.casts = casts
        self.queues = Queues(core, queues, casts.make_id, self.wake)
        self._failed: dict[str, float] = {}
        """The submissions and timers that could not be carried out, and when they are tried again."""
        self.actor: ActorRef[Any] = ActorRef()
        self.next = math.inf
        """The time of day when the next timer is due, or one that was set aside is retried."""
        self._carried_out_until = -math.inf
        """The time of day up to which everything was carried out, if some of it was set aside."""
        self._retry_at = math.inf
        """The time of day when everything is tried again."""
        self._has_news = False
        """Whether a timer was set that may be due before `_carried_out_until`."""
        self._lacks_room = False
        """Whether submissions without a queue wait because this node has no room for them."""
        self._unqueued_at = -math.inf
        """The time of day when the submissions without a queue are read again, if this node has room."""
        self._casting: set[str] = set()
        """The ids of the schedules whose firings are being cast."""
        self._beginning: set[str] = set()
        """The ids of the submissions whose entities are beginning."""
        self._waits = False
        """Whether a submission without a queue waited at the last look."""
        self._begins_queued_first = False
        """Whether the next poll begins queued submissions before other casts: the two kinds alternate."""
        self.has_fired = False
        """Whether something was due at the last poll."""
        self._nodes: Sequence[NodeRow] = ()
        """The living nodes, if this runtime is not a node."""
        self._learns_at = -math.inf
        """The event loop time when the living nodes are read again."""

    def read_time_of_day(self) -> float:
        """Return the time of day by which timers are due."""
        return self._core.read_time_of_day()

    def wake(self) -> None:
        """Carry out everything that is due, soon."""
        self._has_news = True
        self.actor.send(_WAKE)

    def note_name(self) -> None:
        """An entity has begun with a name: a schedule may have waited for it."""
        if self._retry_at != math.inf:
            self.wake()

    def wake_in(self, delay: float) -> None:
        """Carry out everything that is due, in this many seconds."""
        self._has_news, self.next = True, self._core.read_time_of_day() + delay

    @property
    def hints(self) -> int | None:
        """The number of hints from other processes; None if they send none."""
        return None if self._inboxes.hints is None else self._inboxes.hints_received

    def note(self, timer: Timer) -> None:
        """Handle a timer that was set. If it is due soon, send a hint to other processes."""
        self._failed.pop(timer.id, None)
        if timer.due is not None and timer.due <= self._core.read_time_of_day() + POLL_INTERVAL * SELDOM:
            self._inboxes.notify_processes()
        if timer.due is not None and timer.due <= max(self.next, self._carried_out_until):
            self.wake()

    async def carry_out_due(self, start_soon: Callable[..., object]) -> None:
        """Carry out due timers, casts with `start_soon`, and find the time when the next timer is due."""
        core = self._core
        self.next = math.inf if core.is_draining or not core.is_open else self.next
        if core.is_open and await self.queues.settle():
            self._inboxes.notify_processes()  # others may begin what waits for these places
        if core.is_draining or not core.is_open:
            return
        now, self.has_fired = core.read_time_of_day(), False
        self._failed = {id: until for id, until in self._failed.items() if until > now}
        has_news = self._has_news
        is_first = self._begins_queued_first
        delay = await self._begin_queued(now, start_soon, has_news) if is_first else math.inf
        if self._has_news:
            self._unqueued_at = -math.inf
        if self._has_news or now >= self._retry_at:
            self._has_news, self._carried_out_until, self._retry_at = False, -math.inf, math.inf
        if self.next > now or has_news:
            self.next, self._waits = await self._look()
        if self.next <= now or self._reads_unqueued(now):
            self.has_fired |= self._reads_unqueued(now) and await self._begin_unqueued(now, start_soon)
            self.has_fired |= self.next <= now and await self._carry_out(now, start_soon)
            if self._casting:  # meanwhile others may set a timer that is due earlier
                self._retry_at = min(self._retry_at, now + POLL_INTERVAL)
            self._carried_out_until = -math.inf if self._retry_at == math.inf else now
            self.next, self._waits = await self._look()
        if not is_first:
            delay = await self._begin_queued(now, start_soon, has_news)
        if self._waits:
            delay = min(delay, POLL_INTERVAL if self._lacks_room else max(0.0, self._unqueued_at - now))
        self.next = min(self.next, self._retry_at, now + delay)

    async def _look(self) -> NextDue:
        """Return when the next timer is due that was not set aside, and whether a submission without a queue waits."""
        return await self._core.in_store(partial(self._core.store.next_due, self._carried_out_until))

    def _reads_unqueued(self, now: float) -> bool:
        """Return whether submissions without a queue wait, and it is time to read them or they lacked room."""
        return self._waits and (self._lacks_room or now >= self._unqueued_at)

    async def _begin_queued(self, now: float, start_soon: Callable[..., object], has_news: bool) -> float:  # one caller
        """Begin the submissions that their queues admit; return the seconds until the next poll."""
        claimed = await self.queues.claim(self._learn_nodes, self._may_begin, self._beginning, has_news=has_news)
        for row in claimed.rows:
            self._beginning.add(row.id)
            self.has_fired = True
            start_soon(self._begin_in_queue, row, now)
            self._begins_queued_first = False
        return claimed.delay

    def _may_begin(self, row: SubmissionRow) -> bool:
        """Return whether a submission to a queue is not set aside, and is not left to nodes."""
        return row.id not in self._failed and not self._is_served_by_node(row.cantrip)

    async def _begin_unqueued(self, now: float, start_soon: Callable[..., object]) -> bool:
        """Begin the submissions without a queue that fall to this runtime; return whether any waited."""
        after, core = FIRST_SUBMISSION, self._core
        waiting, soonest = 0, math.inf
        page: Sequence[SubmissionRow] | None = None
        while page is None or len(page) == PAGE:
            self._lacks_room = not has_room_here(core)
            if self._lacks_room:
                break
            page = await core.in_store(partial(core.store.submissions, "", after=after, limit=PAGE))
            if page:
                await self._learn_nodes()
                after = page[-1].position
            for row in page:
                if row.id in self._beginning:
                    continue
                delay = RETRY if row.id in self._failed else self._find_delay(row.id, row.cantrip)
                if delay:
                    waiting, soonest = waiting + 1, min(soonest, delay)
                else:
                    self._beginning.add(row.id)
                    self._begins_queued_first = True
                    start_soon(self._begin, row, now)
            await anyio.lowlevel.checkpoint()
        self._unqueued_at = now + min(soonest, compute_pause(waiting, is_shared=core.store.shared))
        return after != FIRST_SUBMISSION

    def _find_delay(self, id: str, name: str) -> float:
        """Return 0 if this runtime casts a cantrip for a submission or a schedule, else the seconds until it may."""
        cantrip = self._core.cantrips.find_offered(name)
        if cantrip is None or self._is_served_by_node(name):
            return RETRY
        return 0.0 if may_cast_here(self._core, id, cantrip) else POLL_INTERVAL

    async def _carry_out(self, now: float, start_soon: Callable[..., object]) -> bool:
        """Fire the due timers; return whether there was anything."""
        after, page = _make_due_after(self._carried_out_until), None
        while page is None or len(page) == PAGE:
            page = await self._core.in_store(partial(self._core.store.timers_due, now, after=after, limit=PAGE))
            if not page:
                break
            await self._learn_nodes()
            mailing: list[Timer] = []
            for timer in page:
                if (until := self._failed.get(timer.id)) is not None:
                    self._retry_at = min(self._retry_at, until)
                elif timer.schedule is not None and timer.schedule.to == "cantrip":
                    if timer.id in self._casting:
                        continue
                    if delay := self._find_delay(timer.id, timer.schedule.name):
                        self._retry_at = min(self._retry_at, now + delay)
                    else:
                        self._casting.add(timer.id)
                        self._begins_queued_first = True
                        start_soon(self._cast, timer, now)
                elif self._is_left_to_node(timer):
                    self._retry_at = min(self._retry_at, now + POLL_INTERVAL * SELDOM)
                elif now - timer.position.due >= POLL_INTERVAL * count_nodes_before(self._core, timer.id):
                    mailing.append(timer)
                else:
                    self._retry_at = min(self._retry_at, now + POLL_INTERVAL)
            await self._fire_together(mailing, now)
            after = page[-1].position
            await anyio.lowlevel.checkpoint()
        return after > _make_due_after(self._carried_out_until)

    async def _learn_nodes(self) -> None:
        """Read which nodes live, from time to time, if this runtime is not one itself."""
        now = anyio.current_time()
        if self._core.membership is None and self._core.store.shared and now >= self._learns_at:
            self._nodes = [one for one in await self._core.in_store(self._core.store.nodes) if one.is_living]
            self._learns_at = now + (POLL_INTERVAL * SELDOM if self._nodes else RETRY)

    def _is_left_to_node(self, timer: Timer) -> bool:
        """Return whether a timer is left to a node of the cluster: this runtime is not one, and a node can fire it.

        A runtime without a node fires for the entities that it runs itself, and casts cantrips that no node
        serves.
        """
        if not self._nodes:
            return False
        schedule, living = timer.schedule, self._core.living
        if schedule is None:
            assert timer.mail is not None, "a timer of an entity has mail"
            return living.get(timer.mail.entity_id) is None
        name = scope_name(schedule.tenant, schedule.name)
        return living.find_named(name) is None and living.get(schedule.name) is None

    def _is_served_by_node(self, name: str) -> bool:
        """Return whether a cast is left to a node of the cluster: this runtime is not one, and a node serves it."""
        return any(name in node.info.names for node in self._nodes)

    async def _cast(self, timer: Timer, now: float) -> None:
        try:
            await self._try(timer, self._fire_cast, now)
        finally:
            self._casting.discard(timer.id)
        self.actor.send(_WAKE)

    async def _begin_in_queue(self, row: SubmissionRow, now: float) -> None:
        """Begin the entity of a submission that has its place; give the place back if that is not possible."""
        try:
            await self._begin(row, now)
        finally:
            self.queues.leave(row.queue, self.queues.make_entity_id(row))

    async def _begin(self, row: SubmissionRow, now: float) -> None:
        """Begin the entity of a submission, and remove the submission; set it aside if that is not possible."""
        cantrip = self._core.cantrips.find_offered(row.cantrip)
        try:
            if cantrip is not None:
                with suppress(KeyUsed):  # it has begun, with another version of the cantrip
                    await self.casts.begin_submission(cantrip, row)
                await self.drop_submission(row)
        except (RuntimeClosed, Withdrawn):
            pass
        except CantripError as error:
            why = f"{type(error).__name__}: {self._core.guard.redact_error(error)}"
            _log.warning("a submission could not begin", submission=row.id, error=why)
            self._failed[row.id] = now + RETRY
        finally:
            self._beginning.discard(row.id)
        self.actor.send(_WAKE)

    async def _try(self, timer: Timer, fire: Callable[[Timer, float], Awaitable[Timer | None]], now: float) -> None:
        """Fire a timer as often as it is due; set it aside if that is not possible now."""
        one: Timer | None = timer
        while one is not None and one.due is not None and one.due <= now:
            before, now = one, max(now, self._core.read_time_of_day())
            try:
                one = await fire(before, now)
                if one == before:
                    raise _SetAside(math.inf)
            except _SetAside as aside:
                self._retry_at = min(self._retry_at, now + RETRY, aside.until)
                return
            except RuntimeClosed:
                return
            except CantripError as error:
                why = f"{type(error).__name__}: {self._core.guard.redact_error(error)}"
                _log.warning("a timer could not be carried out", timer=timer.id, entity=timer.entity_id, error=why)
                self._retry_at = min(self._retry_at, now + RETRY)
                if not is_outage(error):
                    self._failed[timer.id] = now + RETRY  # whatever else happens meanwhile
                return

    # Entities

    async def _fire_together(self, timers: Sequence[Timer], now: float) -> None:
        """Fire the timers of a page in one transaction; a timer that needs more than one mail gets its own."""
        firings: list[_Firing] = []
        alone: list[Timer] = []
        for timer in timers:
            try:
                firing = await self._core.in_store(partial(self._plan_mail, timer, now))
            except CantripError:
                firing = None
            except _SetAside as aside:
                self._retry_at = min(self._retry_at, now + RETRY, aside.until)
                continue
            if firing is None or len(firing.change.post) > 1 or firing.change.new == timer:
                alone.append(timer)
            else:
                firings.append(firing)
        results = await self._replace_together([firing.change for firing in firings], now) if firings else ()
        for firing, result in zip(firings, results, strict=True):
            before, after = firing.change.old, firing.change.new
            assert before is not None, "it is due"
            if isinstance(result, CantripError):
                alone.append(before)
            elif result is not None:  # otherwise another process was faster
                self._note_fired(now, firing.fires)
                if after is not None and after.due is not None and after.due <= now:
                    alone.append(after)
        for timer in alone:
            await self._try(timer, self._fire_mail, now)

    async def _replace_together(self, changes: Sequence[TimerChange], now: float) -> Sequence[Any]:
        """Make changes in one transaction; return their results, or the error for each if the transaction failed."""
        try:
            return await self._core.in_writer(lambda writer: writer.replace_timers(changes))
        except RuntimeClosed:
            self._retry_at = min(self._retry_at, now + RETRY)
            return [None] * len(changes)
        except CantripError as error:
            if is_outage(error):
                raise
            return [error] * len(changes)

    async def _fire_mail(self, timer: Timer, now: float) -> Timer | None:
        """Post the mail of an entity's timer, or of a schedule for an entity; return the new row."""
        firing = await self._core.in_store(partial(self._plan_mail, timer, now))
        self._note_fired(now, firing.fires)
        if firing.change.new == timer:
            return timer
        return await self._replace(timer, firing.change.new, firing.change.post)

    def _plan_mail(self, timer: Timer, now: float) -> _Firing:
        """Return the current action of an entity's timer, or of a schedule for an entity. Reads the loom."""
        schedule = timer.schedule
        if schedule is None:
            assert timer.mail is not None, "a timer of an entity has mail"
            return _Firing(TimerChange(timer, None, [timer.mail]), timer.due)
        entity_id = self._address(schedule, now)
        mail: list[Mail] = []
        what = plan_step(timer, now, is_busy=schedule.last is not None and self._is_at_work(entity_id, schedule.last))
        if what.stops_last and schedule.last is not None:
            interrupt = self._inboxes.make_interrupt(
                entity_id, schedule.last, STOPPED, now=True, key=f"{schedule.last} stop"
            )
            mail += [] if interrupt is None else [interrupt]
            if not mail:  # the previous firing still waits in the inbox, and does the same work
                return _Firing(TimerChange(timer, _note_last_firing(what.becomes, schedule.last)))
        if what.fires is not None:
            body, key = {"intent": schedule.intent}, make_firing_key(timer.id, what.fires)
            who = f"schedule {unscope_name(timer.id)}"
            mail.append(self._inboxes.make_mail(entity_id, "timer", body, key=key, sender=who, root=entity_id))
        return _Firing(TimerChange(timer, what.becomes, mail), what.fires)

    def _note_fired(self, now: float, due: float | None) -> None:
        if due is not None:
            self._core.report(Fired(max(0.0, now - due)))

    def _address(self, schedule: Scheduled, now: float) -> str:
        try:
            return self._inboxes.resolve_address(schedule.name, schedule.tenant)
        except CantripError:  # there is no such entity any more; another one may get its name
            raise _SetAside(_find_later(schedule, now)) from None

    def _is_at_work(self, entity_id: str, key: str) -> bool:
        """Return whether an entity has not ended the episode of the intent with that key."""
        core = self._core
        row = core.store.find_mail(entity_id, key)
        if row is not None and row.taken is None:
            return True
        if (
            row is None
            or core.store.life(entity_id) not in (Life.WAITING, Life.BUSY)
            or not self._is_running(entity_id)
        ):
            return False
        cell = core.living.get(entity_id)
        if cell is not None and cell.episode is not None:
            return cell.episode.key == key
        episode = fold_entity(core.loom, entity_id).episode
        return episode.key == key and episode.end is None

    # Casts

    async def _fire_cast(self, timer: Timer, now: float) -> Timer | None:
        """Cast the entity of a schedule; return the new row."""
        schedule, core = timer.schedule, self._core
        assert schedule is not None, "only schedules cast"
        cantrip = core.cantrips.find_offered(schedule.name)
        if cantrip is None:
            raise _SetAside(_find_later(schedule, now))
        last = None if schedule.last is None else self.casts.make_id(schedule.last, schedule.tenant)
        is_busy = last is not None and await core.in_store(partial(self._is_running, last))
        what = plan_step(timer, now, is_busy=is_busy)
        if what.stops_last and last is not None:
            await self.casts.stop(last, STOPPED)
        if what.fires is not None:
            self._note_fired(now, what.fires)
            try:
                await self.casts.fire(cantrip, timer, make_firing_key(timer.id, what.fires))
            except KeyUsed:  # it has begun, with another version of the cantrip
                pass
            except Withdrawn:
                return None
        becomes = timer if what.becomes == timer else await self._replace(timer, what.becomes)
        if not what.waits or becomes is None or becomes.schedule is None or becomes != what.becomes:
            return becomes
        if last is None or not await core.in_store(partial(self._is_running, last)):  # it has just ended
            return await self._fire_cast(becomes, now)
        await self._inboxes.listen(last, "", self.wake)
        raise _SetAside(_find_later(becomes.schedule, now))

    def _is_running(self, entity_id: str) -> bool:
        """Return whether an entity has not ended, and a process runs it or it waits for a person."""
        core = self._core
        if not core.loom.has(entity_id) or core.loom.is_over(entity_id):
            return False
        return core.is_run_or_waiting(entity_id)

    # Rows

    async def _replace(self, old: Timer, new: Timer | None, post: Sequence[Mail] = ()) -> Timer | None:
        """Replace a row and post mail; return the current row, which another process may have changed."""
        while True:
            try:
                rows = await self._change(TimerChange(old, new, post))
            except InboxFull:
                raise _SetAside(math.inf) from None
            except (KeyUsed, EntityEnded):
                if not post:
                    raise
                post = ()  # it was posted before, or its entity has ended
                continue
            if rows is not None:
                return new
            return await self._find(old.entity_id, old.id)

    async def _change(self, change: TimerChange) -> Any:
        (result,) = await self._core.in_writer(lambda writer: writer.replace_timers([change]))
        if isinstance(result, CantripError):
            raise result
        return result

    # Submissions

    async def check_room(self, row: SubmissionRow, most: int) -> None:
        """Raise QueueFull if so many submissions of at least this priority wait that this one would be too many."""
        if await self._core.in_store(partial(self._core.store.has_submissions, row.queue, most, row.priority)):
            where = f'in the queue "{row.queue}"' if row.queue else "for a node"
            raise QueueFull(
                f"{most} submissions of this priority or a higher one wait {where}: no more are accepted, submit it "
                "again later"
            )

    async def find_submission(self, id: str) -> SubmissionRow | None:
        """Return the submission with that id; None if none waits."""
        return await self._core.in_store(partial(self._core.store.find_submission, id))

    async def submit(self, row: SubmissionRow) -> bool:
        """Add a submission, and let all processes look for it; return False if one with its id waits."""
        is_new = await self._core.in_writer(lambda writer: writer.add_submission(row))
        if is_new:
            self._inboxes.notify_processes()
            self.wake()
        return is_new

    async def drop_submission(self, row: SubmissionRow) -> bool:
        """Remove a submission; return False if exactly this one does not wait any more."""
        return await self._core.in_writer(lambda writer: writer.drop_submission(row))

    # Schedules

    async def find(self, id: str) -> Timer | None:
        """Return the row of a schedule; None if it does not exist."""
        return await self._find("", id)

    async def _find(self, entity_id: str, id: str) -> Timer | None:
        return await self._core.in_store(partial(self._core.store.find_timer, entity_id, id))

    async def replace(self, old: Timer | None, new: Timer | None) -> bool:
        """Replace the row of a schedule (None means that there is no row); return False if the row is not `old` any
        more.
        """
        return await self._change(TimerChange(old, new)) is not None


class _Firing(NamedTuple):
    """The action of a timer: the change of its row, and the time for which it fires."""

    change: TimerChange
    fires: float | None = None


class _SetAside(Exception):
    """Raised if a firing is not possible now; retry at `until` (a time of day), or after `RETRY` seconds."""

    def __init__(self, until: float) -> None:
        super().__init__(until)
        self.until = until


def _make_due_after(time: float) -> Due:
    """Return the position after everything that is due at a time."""
    return FIRST if time == -math.inf else Due(math.nextafter(time, math.inf))


def _note_last_firing(timer: Timer | None, key: str) -> Timer | None:
    """Return the row of a schedule with the key of its last firing."""
    if timer is None or timer.schedule is None:
        return timer
    return replace(timer, schedule=replace(timer.schedule, last=key))


def _find_later(schedule: Scheduled, now: float) -> float:
    """Return the next time of a schedule, if it is in the future."""
    return schedule.next if schedule.next is not None and schedule.next > now else math.inf


STOPPED: Final = "stopped, because its schedule is due again"


class SchedulerActor(Actor):
    """Sleeps until the next timer is due; if other processes may set timers, polls every `POLL_INTERVAL` seconds, too.

    If processes send hints and none arrived, it polls only every fourth time.
    """

    has_tasks = True

    def __init__(self, scheduler: Scheduler, *, polls: bool) -> None:
        self._scheduler = scheduler
        self._polls = polls
        self._alarm: Alarm | None = None
        self._log = OutageLog("the loom could not be searched for timers", "the loom is searched for timers again")
        self._ticks = 0
        self._heard: int | None = None
        self._not_before = -math.inf
        """The event loop time before which it does not poll."""

    async def init(self) -> None:
        """Poll at once after a crash of this actor; otherwise the runtime wakes it once it is open."""
        if self._polls:
            self.send_every(POLL_INTERVAL, _TICK)
        self._scheduler.wake()

    async def handle_info(self, message: Any) -> None:
        """Carry out due timers, and sleep until the next one is due."""
        if message is _TICK:
            self._ticks += 1
            before, self._heard = self._heard, self._scheduler.hints
            if self._heard != before:
                self._scheduler.queues.expect_news()
            if self._heard is not None and self._heard == before and self._ticks % SELDOM:
                return
        elif message is not _WAKE:
            return
        elif (early := self._not_before - anyio.current_time()) > 0:
            self._set_alarm(early)
            return
        with self._log.watch():
            await self._scheduler.carry_out_due(self.tasks.start_soon)
        if self._log.has_failed:
            self._scheduler.wake_in(POLL_INTERVAL)
        self._not_before = anyio.current_time() + GAP if self._scheduler.has_fired else -math.inf
        delay = max(0.0, self._scheduler.next - self._scheduler.read_time_of_day()) + SOON
        self._set_alarm(min(delay, LONGEST) if delay < math.inf else None)

    def _set_alarm(self, delay: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None if delay is None else self.send_after(delay, _WAKE)
