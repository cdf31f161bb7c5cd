"""Submissions: casts that any node may begin, made by `Runtime.submit`.

A submission is a schedule that is due at once and fires once, with a key derived from its own key. So one node begins
it once, and a repeated submission finds the same entity, before or after that. Timers are read in the order in which
they are due, so a submission's priority decides when it is due. One with a queue waits there, in the same order, until
the bounds of the queue let it begin (`queues.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from cantrip_actors.loom import KeyUsed, Loom
from cantrip_actors.machine.project import find_first_intent
from cantrip_actors.machine.schedule import make_firing_key
from cantrip_actors.records.records import IntentGiven
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.records.timers import Rule, Scheduled, Timer
from cantrip_actors.runtime.entity.cells import make_begin
from cantrip_actors.runtime.face.entity import Entity
from cantrip_actors.runtime.face.episode import Episode
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.terms.arguments import check_kind, check_name, check_whole
from cantrip_actors.terms.errors import InvalidIntent, Withdrawn

if TYPE_CHECKING:
    from cantrip_actors.runtime.entity.beginnings import Beginnings
    from cantrip_actors.runtime.tree import Tree

DUE: Final = 0.0
"""The time that it fires for: long ago, and the same for every repetition."""

HIGHEST: Final = 100
"""The highest priority; the lowest is its negative."""

_STEP: Final = 1e10
"""Seconds by which a priority is due before the next lower one: longer than any difference of times of day."""


class Submission:
    """A cast that is durable, and begins on some node. `entity_id` is the id that its entity has or will have."""

    def __init__(
        self, tree: Tree, beginnings: Beginnings, timer_id: str, entity_id: str, key: str, *, is_new: bool = True
    ) -> None:
        self._tree = tree
        self._beginnings = beginnings
        self.timer_id = timer_id
        """The id of the schedule that it waits as."""
        self.entity_id = entity_id
        self.key = key
        self.is_new = is_new
        """Whether this call made it; otherwise an earlier one with its key did."""

    @property
    def has_begun(self) -> bool:
        """Whether a node has begun the entity."""
        return self._tree.loom.has_begun(self.entity_id)

    async def episode(self) -> Episode:
        """Wait until a node has begun the entity and its episode has ended.

        Cancelling the wait does not stop the entity. Raises as `Entity.episode`, and Withdrawn.
        """
        tree = self._tree
        while True:
            waits = await tree.scheduler.find(self.timer_id) is not None  # read first: it goes after the beginning
            if await _has_begun(tree, self.entity_id):  # another process begins it
                return await Entity(tree, self.entity_id).episode()
            if not waits:
                raise Withdrawn(self.entity_id, self.key, "", "its submission was withdrawn")
            tree.check_open()
            await anyio.sleep(POLL_INTERVAL)

    async def withdraw(self) -> bool:
        """Withdraw the submission if it still waits, from any process; return whether this call withdrew it (C-19).

        Once True is returned, the entity will never begin, waiting callers get Withdrawn, and the key can be used
        again. False says that nothing has changed: a process has begun the entity or begins it now, or the submission
        was withdrawn before. To end an entity that has begun, use `runtime.find(submission.entity_id).stop()`. Raises
        RuntimeClosed, LoomError.
        """
        self._tree.check_open()
        return await self._beginnings.withdraw(self.entity_id, self.timer_id)

    def __repr__(self) -> str:
        return f"<Submission {self.key!r} of entity {self.entity_id}>"


async def submit(
    tree: Tree,
    beginnings: Beginnings,
    name: str,
    intent: str,
    *,
    key: str | None,
    tenant: str,
    priority: int,
    queue: str,
) -> Submission:
    """Make a submission, or find the one with that key. Raises as `Runtime.submit`."""
    tree.check_accepting()
    check_name("cantrip", name)
    if key is not None:
        check_name("key", key)
    check_kind("submit", intent, str, "an intent that is a text", InvalidIntent)
    check_whole("priority", priority, -HIGHEST, HIGHEST, InvalidIntent)
    text = make_begin(intent, None).intent
    bounds = None if queue == "" else await tree.scheduler.queues.get_bounds(queue)
    most = (bounds and bounds.max_waiting) or tree.limits.max_submitted
    key = key or tree.make_moment().fresh
    made = _make_handle(tree, beginnings, key, tenant)
    id = made.timer_id
    rule = Rule(at=DUE)
    trace = None if tree.instrument is None else tree.instrument.trace()
    schedule = Scheduled(
        to="cantrip", name=name, intent=text, rule=rule, created=DUE, next=DUE, tenant=tenant, trace=trace, queue=queue
    )
    row = tree.guard.redact_timer(
        Timer(id=id, due=_compute_place(tree.read_time_of_day(), priority), schedule=schedule)
    )
    assert row.schedule is not None
    old = await tree.scheduler.find(id)
    has_begun = await _has_begun(tree, made.entity_id)
    if old is None and not has_begun:
        await tree.scheduler.check_room(row.position.due, queue, most)
        made.is_new = await tree.scheduler.replace(None, row)
        if not made.is_new:
            old = await tree.scheduler.find(id)  # submitted at the same moment by another process
            has_begun = await _has_begun(tree, made.entity_id)
    if has_begun:
        begun, in_queue = await tree.in_store(partial(_read_begun, tree.loom, made.entity_id))
        is_same = begun is not None and begun.intent == row.schedule.intent and in_queue == queue
    else:
        is_same = old is None or (old.schedule is not None and _get_content(old.schedule) == _get_content(row.schedule))
    if not is_same:
        raise KeyUsed(f"key {key!r} was used to submit something else: use another key")
    return made


async def find_submission(tree: Tree, beginnings: Beginnings, key: str, tenant: str) -> Submission | None:
    """Return the submission with a key, if it waits or has begun. Raises as `Runtime.submission`."""
    tree.check_open()
    found = _make_handle(tree, beginnings, check_name("key", key), tenant)
    waits = await tree.scheduler.find(found.timer_id) is not None  # read first: it goes after the beginning
    return found if waits or await _has_begun(tree, found.entity_id) else None


def _make_handle(tree: Tree, beginnings: Beginnings, key: str, tenant: str) -> Submission:
    id = scope_name(tenant, f"submit:{key}")
    return Submission(tree, beginnings, id, beginnings.make_id(make_firing_key(id, DUE), tenant), key, is_new=False)


async def _has_begun(tree: Tree, entity_id: str) -> bool:
    return await tree.in_store(partial(tree.loom.has_begun, entity_id))


def _read_begun(loom: Loom, entity_id: str) -> tuple[IntentGiven | None, str]:
    """Return the first intent of a submission's entity, and the queue that it began from."""
    return find_first_intent(loom.records(entity_id)), loom.header(entity_id).queue


def _get_content(schedule: Scheduled) -> tuple[str, str, str]:
    return schedule.name, schedule.intent, schedule.queue


def _compute_place(now: float, priority: int) -> float:
    """Return when a submission is due, which is its place among them: before all times of day, and so at once."""
    return round(now, 3) - (priority + HIGHEST + 1) * _STEP
