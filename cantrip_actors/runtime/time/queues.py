"""The queues of submissions: their bounds, their places, and which waiting submissions this runtime begins.

The loom has an account for each queue (`machine/queues.py`), and its waiting submissions, in order. At a poll the
scheduler reads the accounts, then the first submissions of each queue with room, and takes places for the submissions
that this runtime can begin, in the order of priority. A full queue costs one row, however many submissions wait.

The end of an entity frees its place at the next poll of the node that ran it. If that node died in between, or the
entity ended without being loaded, any node that finds the queue full frees the place.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import anyio

from cantrip_actors.loom import Store, mark_gone, this_process
from cantrip_actors.loom.stores.lease import is_gone
from cantrip_actors.machine.placement import Candidate, can_run
from cantrip_actors.machine.project import Life
from cantrip_actors.machine.queues import PREFIX, Account, declare, decode_account, free, take
from cantrip_actors.records.submissions import FIRST_SUBMISSION, SubmissionRow, make_submission_key
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.terms.errors import InvalidIntent, LoomError, suggest_nearest
from cantrip_actors.terms.queue import Queue

T = TypeVar("T")

PAGE: Final = 100
"""Submissions of a queue that are read at once."""

SELDOM: Final = 4
"""Polls between two searches for free places. Without hints, also between two for queues if the loom has no queue."""

SWEEP: Final = 0.02
"""The least seconds between two searches for free places, for each place, so that they cost little."""

ASIDE: Final = 30.0
"""The most seconds until submissions are read again of which this runtime can begin none."""

EACH: Final = 0.2
"""Seconds of that for each of them, so that reading them costs little."""

COUNT: Final = 10.0
"""Seconds between two counts of waiting submissions, and between two searches for queues if the loom has no queue."""

_log = get_logger("cantrip_actors.runtime")


def compute_pause(waiting: int, *, is_shared: bool) -> float:
    """Return the seconds until submissions are read again of which this runtime could begin none.

    Another process of a shared loom may submit something meanwhile that this one can begin; nothing else shows it.
    """
    return min(ASIDE, max(POLL_INTERVAL, waiting * EACH)) if is_shared else ASIDE


class QueueStatus(NamedTuple):
    """A queue as it was at the moment of the call: its bounds, and how many entities wait and run."""

    name: str
    waiting: int
    """Submissions that have not begun."""
    running: int
    """Entities that have a place: they are about to begin, or have begun and are not over."""
    max_running: int | None
    per_node: int | None
    max_waiting: int | None


class Claimed(NamedTuple):
    """The submissions that this runtime begins now, and the seconds until it polls again."""

    rows: Sequence[SubmissionRow]
    delay: float


class Queues:
    """The queues of a loom, for one runtime. The scheduler calls `claim`.

    `notify_end` is called when an entity of a queue has ended here.
    """

    def __init__(
        self,
        core: Core,
        queues: Sequence[Queue],
        make_id: Callable[[str, str], str],
        notify_end: Callable[[], object],
    ) -> None:
        self._core = core
        self._declared = queues
        self._make_id = make_id
        self._owner = this_process()
        self._notify_end = notify_end
        self.status: Sequence[QueueStatus] = ()
        """The queues at the last poll."""
        self._here: dict[str, set[str]] = {}
        """By queue, the entities that run here or are about to begin here."""
        self._left: list[tuple[str, str]] = []
        """Queues and entities that do not run here any more."""
        self._reads_at = -math.inf
        self._counts_at = -math.inf
        self._waiting: dict[str, int] = {}
        self._sweeps_at: dict[str, float] = {}
        self._aside: dict[str, float] = {}
        self._last = ""
        """The queue that was served last: the one after it is the first at the next poll."""

    # Opening and closing

    async def declare(self) -> None:
        """Give the declared queues their bounds, for all processes of the loom. Raises LoomError."""
        if not self._declared:
            return
        known = await self._core.in_store(partial(self._core.store.accounts, PREFIX))
        running: dict[str, list[str]] = {}
        if any(PREFIX + queue.name not in known for queue in self._declared):
            running = await self._core.in_store(partial(_find_unfinished, self._core.store))
        for queue in self._declared:
            found = running.get(queue.name, ())
            before = await self._change(queue.name, partial(declare, queue, found, self._owner))
            if before != queue:
                _log.warning("the bounds of a queue were changed", queue=queue.name, before=str(before), now=str(queue))

    def close(self) -> None:
        """Declare this runtime gone, so that others may use the places whose entities it never began."""
        mark_gone(self._owner)

    # Submitting

    async def get_bounds(self, name: object) -> Queue:
        """Return the bounds of a queue. Raises InvalidIntent for a name that is no queue of the loom."""
        known = await self._core.in_store(partial(self._core.store.accounts, PREFIX))
        if isinstance(name, str) and PREFIX + name in known:
            return decode_account(known[PREFIX + name]).queue
        names = sorted(one.removeprefix(PREFIX) for one in known)
        raise InvalidIntent(
            f"queue: expected a queue of this loom, got {name!r}; queues: {suggest_nearest(str(name), names)}. "
            "Opening a runtime with another queue makes one"
        )

    # Looking

    def note(self, cell: Cell) -> None:
        """Handle a root entity that is about to run here."""
        queue, entity_id = cell.plan.queue, cell.entity_id
        if queue:
            self._here.setdefault(queue, set()).add(entity_id)
            cell.ending.listen(lambda: self.leave(queue, entity_id))

    def leave(self, queue: str, entity_id: str) -> None:
        """Handle an entity of a queue that no longer runs here, or was not begun here."""
        if self._core.living.get(entity_id) is None:
            self._here.get(queue, set()).discard(entity_id)
            self._left.append((queue, entity_id))
            self._notify_end()

    def expect_news(self) -> None:
        """Look for new queues at the next poll: another process has sent a hint."""
        self._reads_at = -math.inf

    async def settle(self) -> bool:
        """Free the places of entities that have ended here; return whether there were any. Raises LoomError."""
        left, freed = self._left, 0
        for queue in dict.fromkeys(queue for queue, _ in left):
            entities = [one for name, one in left if name == queue and one not in self._here.get(queue, ())]
            over = await self._core.in_store(partial(self._select_over, entities))
            if over:
                freed += await self._change(queue, partial(free, over, []))
        self._left = self._left[len(left) :]
        return freed > 0

    def _select_over(self, entities: Sequence[str]) -> list[str]:
        """Return the entities that are over, or that never began in this loom."""
        store = self._core.store
        lives = ((entity, store.life(entity)) for entity in entities)
        return [one for one, life in lives if (life is None and not store.is_held(one)) or _is_over(life)]

    async def claim(
        self,
        prepare: Callable[[], Awaitable[object]],
        may_begin: Callable[[SubmissionRow], bool],
        beginning: Collection[str],
        *,
        has_news: bool,
    ) -> Claimed:
        """Take places for waiting submissions that this runtime may begin. Raises LoomError.

        `prepare` is called before `may_begin`, if there is a queue. `beginning` are the ids of the submissions whose
        entities are beginning here.
        """
        now = anyio.current_time()
        if not has_news and now < self._reads_at:
            return Claimed((), math.inf)
        accounts = await self._read_accounts(now)
        if accounts:
            await prepare()
        if has_news:
            self._aside.clear()
        accounts = [one for one in accounts if one.queue.name > self._last] + [
            one for one in accounts if one.queue.name <= self._last
        ]
        taken: list[SubmissionRow] = []
        delay = math.inf
        for account in accounts:
            try:
                claimed = await self._claim_of(account, may_begin, beginning, now)
            except LoomError:
                if not taken:
                    raise
                return Claimed(taken, POLL_INTERVAL)  # these have their places, so they begin
            if claimed.rows:
                taken += claimed.rows
                self._last = account.queue.name
            delay = min(delay, claimed.delay)
        return Claimed(taken, delay)

    async def _read_accounts(self, now: float) -> list[Account]:
        """Read the accounts of all queues, and count from time to time what waits."""
        store = self._core.store
        found = await self._core.in_store(partial(store.accounts, PREFIX))
        accounts = sorted(map(decode_account, found.values()), key=lambda one: one.queue.name)
        can_hint = await self._core.in_store(store.can_hint)
        self._reads_at = -math.inf if accounts else now + (COUNT if can_hint else POLL_INTERVAL * SELDOM)
        if accounts and (now >= self._counts_at or not store.shared):
            self._counts_at = now + COUNT
            names = [account.queue.name for account in accounts]
            self._waiting = await self._core.in_store(lambda: {name: store.count_submissions(name) for name in names})
        self.status = [
            _make_status(account, self._waiting.get(account.queue.name, 0), len(account.places)) for account in accounts
        ]
        return accounts

    async def _claim_of(
        self, account: Account, may_begin: Callable[[SubmissionRow], bool], beginning: Collection[str], now: float
    ) -> Claimed:
        name = account.queue.name
        if self._aside.get(name, -math.inf) > now:
            return Claimed((), self._aside[name] - now)
        here = len(self._here.get(name, ()))
        room = account.count_room(here)
        capacity = self._compute_capacity()
        if room <= 0 or capacity <= 0:
            waits = await self._core.in_store(partial(self._core.store.has_submissions, name, 1))
            if not waits:
                return Claimed((), math.inf)
            if await self._sweep(account, list(account.places), now):
                return Claimed((), 0)
            return Claimed((), POLL_INTERVAL if room > 0 else self._sweep_delay)
        found, waiting, are_all = await self._find(name, may_begin, beginning)
        if not found:
            delay = compute_pause(waiting, is_shared=self._core.store.shared) if waiting else math.inf
            self._aside[name] = now + delay if waiting else -math.inf
            return Claimed((), delay)
        ids = [self.make_entity_id(one) for one in found]
        share = math.ceil(min(len(found), room) / self._count_sharers())
        most = min(share, capacity)
        taken = set(await self._change(name, partial(take, ids, self._owner, most)))
        self._here.setdefault(name, set()).update(taken)
        if self._core.membership is not None:
            self._core.membership.busy += len(taken)  # until the next count
        if len(taken) == len(found):
            return Claimed(found, math.inf if are_all else 0)
        held = [entity_id for entity_id in ids if entity_id in account.places and entity_id not in taken]
        is_free = bool(held) and await self._sweep(account, held, now)
        rows = [row for row, entity_id in zip(found, ids, strict=True) if entity_id in taken]
        is_full = account.count_room(here) <= len(taken)
        return Claimed(rows, 0 if is_free else self._sweep_delay if is_full or held else POLL_INTERVAL)

    @property
    def _sweep_delay(self) -> float:
        """Seconds until it searches for free places; the ends of entities of this process make it search at once."""
        return POLL_INTERVAL * SELDOM if self._core.store.shared else ASIDE

    def _compute_capacity(self) -> int:
        """Return how many more entities this runtime may begin: as a node, as many as its capacity leaves."""
        membership = self._core.membership
        if membership is None:
            return PAGE
        me = membership.own
        return 0 if me is None or not membership.is_ready else me.room

    def _count_sharers(self) -> int:
        """Return how many nodes share the waiting submissions."""
        membership = self._core.membership
        return 1 if membership is None else max(1, sum(not member.is_draining for member in membership.members))

    def may_run(self, row: SubmissionRow) -> bool:
        """Return whether the cantrip of a submission is offered here, and falls to this node's release."""
        cantrip = self._core.cantrips.find_offered(row.cantrip)
        membership = self._core.membership
        if cantrip is None or membership is None:
            return cantrip is not None
        me = membership.own
        one = Candidate(row.id, cantrip.id, cantrip.name, may_move=True)
        return me is not None and can_run(me, one, membership.members)

    async def _find(
        self, queue: str, may_begin: Callable[[SubmissionRow], bool], beginning: Collection[str]
    ) -> tuple[list[SubmissionRow], int, bool]:
        """Return the first submissions of a queue that may begin here.

        Also return how many were read that do not begin yet, and whether those behind them were read.
        """
        after, waiting = FIRST_SUBMISSION, 0
        while True:
            page = await self._core.in_store(partial(self._core.store.submissions, queue, after=after, limit=PAGE))
            unbegun = [row for row in page if row.id not in beginning]
            rows, waiting = [row for row in unbegun if may_begin(row) and self.may_run(row)], waiting + len(unbegun)
            if rows or len(page) < PAGE:
                return rows, waiting, len(page) < PAGE
            after = page[-1].position

    def make_entity_id(self, row: SubmissionRow) -> str:
        """Return the id that the entity of a submission has or will have."""
        return self._make_id(make_submission_key(row.key), row.tenant)

    async def _sweep(self, account: Account, entities: Sequence[str], now: float) -> bool:
        """Free the places of entities that are over, or that a dead process took; return whether there were any."""
        name = account.queue.name
        if now < self._sweeps_at.get(name, -math.inf):
            return False
        self._sweeps_at[name] = now + max(POLL_INTERVAL * SELDOM, len(entities) * SWEEP)
        here = frozenset(self._here.get(name, ()))
        over, absent = await self._core.in_store(partial(self._select_without_entity, account, entities, here))
        return bool(over or absent) and await self._change(name, partial(free, over, absent)) > 0

    def _select_without_entity(
        self, account: Account, entities: Sequence[str], here: frozenset[str]
    ) -> tuple[list[str], list[str]]:
        store = self._core.store
        over, absent = [], []
        for entity in entities:
            if entity in here:
                continue
            life = store.life(entity)
            if _is_over(life) or (life is None and is_gone(account.places[entity].owner)):
                over.append(entity)
            elif life is None and not store.is_held(entity):
                absent.append(entity)
        return over, absent

    async def _change(self, name: str, change: Callable[[str | None, float], tuple[str, T]]) -> T:
        work = partial(self._core.store.change_account, PREFIX + name, change, anyio.current_time())
        return await self._core.in_store(work)


def _is_over(life: Life | None) -> bool:
    return life is not None and life >= Life.OVER


def _find_unfinished(store: Store) -> dict[str, list[str]]:
    """Return the entities of each queue that have begun and are not over."""
    found: dict[str, list[str]] = {}
    for entity_id in store.entities_at(Life.WAITING, Life.BUSY):
        header = store.header(entity_id)
        if header is not None and header.queue:
            found.setdefault(header.queue, []).append(entity_id)
    return found


def read_queue_status(store: Store) -> list[QueueStatus]:
    """Return all queues of a loom by their names, as they are now. Raises LoomError."""
    accounts = [decode_account(text) for text in store.accounts(PREFIX).values()]
    return [
        _make_status(
            one, store.count_submissions(one.queue.name), sum(not _is_over(store.life(entity)) for entity in one.places)
        )
        for one in sorted(accounts, key=lambda one: one.queue.name)
    ]


def _make_status(account: Account, waiting: int, running: int) -> QueueStatus:
    queue = account.queue
    return QueueStatus(queue.name, waiting, running, queue.max_running, queue.per_node, queue.max_waiting)
