"""Submissions: casts that any node may begin, made by `Runtime.submit`.

A submission is a row of the loom until its entity has begun. The entity's id is made from the submission's key, so one
node begins it once, and a repeated submission finds the same entity, before or after that. It waits in a queue, whose
bounds let it begin (`queues.py`), or without one until this runtime, or a node, has room (`scheduler.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from cantrip_actors.loom import KeyUsed, Loom
from cantrip_actors.loom.stores.selection import Page, check_page_limit
from cantrip_actors.machine.project import find_first_intent
from cantrip_actors.records.submissions import HIGHEST, SubmissionRow, make_submission_key
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.runtime.entity.cells import make_begin
from cantrip_actors.runtime.face.episode import Episode
from cantrip_actors.runtime.face.work import MailState, Work
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.terms.arguments import check_kind, check_name, check_texts, check_whole
from cantrip_actors.terms.errors import InvalidIntent, Withdrawn
from cantrip_actors.terms.outcome import Outcome

if TYPE_CHECKING:
    from cantrip_actors.runtime.face.entity import Entity
    from cantrip_actors.runtime.people.request import Request
    from cantrip_actors.runtime.tree import Tree


SUBMITTED: Final = "submission:"
"""The prefix of the id of a submission; its key follows."""


class Submission(Work):
    """The work on a cast that is durable, and begins on some node; `entity_id` is the id that its entity has or gets.

    Its `id` is "submission:KEY", before its entity has begun and afterwards.
    """

    def __init__(self, tree: Tree, key: str, tenant: str) -> None:
        super().__init__(tree, tree.scheduler.casts.make_id(make_submission_key(key), tenant))
        self._row_id = scope_name(tenant, key)
        self.key = key
        self.is_new = False
        """Whether this call made it; otherwise an earlier one with its key did."""

    @property
    def id(self) -> str:
        """The id by which `Runtime.work` finds it."""
        return f"{SUBMITTED}{self.key}"

    @property
    def entity(self) -> Entity:
        """The entity that works on it, as of any `Work`; its `stop` withdraws a submission that still waits."""
        from cantrip_actors.runtime.face.entity import Entity

        return Entity(self._tree, self.entity_id, withdraw=self.withdraw)

    @property
    def has_begun(self) -> bool:
        """Whether a node has begun the entity. It reads the loom in the calling thread: see `Runtime.read`."""
        return self._tree.loom.has_begun(self.entity_id)

    @property
    def is_known(self) -> bool:
        """Whether it waits, or its entity has begun. It reads the loom in the calling thread: see `Runtime.read`."""
        waits = self._tree.store.find_submission(self._row_id) is not None  # read first: it goes after the beginning
        return waits or self.has_begun

    @property
    def state(self) -> MailState:
        """The state, as of any `Work`; "withdrawn" after it was withdrawn. It reads the loom: see `Runtime.read`."""
        waits = self._tree.store.find_submission(self._row_id) is not None  # read first: it goes after the beginning
        if self.has_begun:
            return super().state
        return "waiting" if waits else "withdrawn"

    @property
    def cantrip_name(self) -> str | None:
        """The name of the cantrip that it casts; None if it does not wait. It reads the loom: see `Runtime.read`."""
        row = self._tree.store.find_submission(self._row_id)
        return None if row is None else row.cantrip

    def find_outcome(self, *, redacted: bool = False) -> Outcome | None:
        """Return how its episode ended, as any `Work` does; None while it has not begun."""
        return super().find_outcome(redacted=redacted) if self.has_begun else None

    def requests(self) -> list[Request]:
        """Return the requests for which it waits for a person, as any `Work` does; none while it has not begun."""
        return super().requests() if self.has_begun else []

    async def _wait_for_episode(self, patience: float = 0.0) -> Episode:
        """Wait until a node has begun the entity and its episode has ended. Raises as `Work.result`."""
        if not await self._begins():
            raise Withdrawn(self.entity_id, self.key, "", "its submission was withdrawn")
        await self._tree.scheduler.casts.resume_if_left(self.entity_id)
        return await super()._wait_for_episode(patience)

    async def _begins(self) -> bool:
        tree = self._tree
        while True:
            waits = await tree.scheduler.find_submission(self._row_id)  # read first: it goes after the beginning
            if await _has_begun(tree, self.entity_id):  # another process begins it
                return True
            if waits is None:
                return False
            tree.check_open()
            await anyio.sleep(POLL_INTERVAL)

    async def withdraw(self, why: str = "no longer needed", *, by: str = "") -> MailState:
        """Withdraw the submission if it still waits, from any process; return the state that it has then.

        Once "withdrawn" is returned, the entity will never begin, waiting callers get Withdrawn, and the key can be
        used again. With any other state the submission is unchanged: a process has begun the entity, or begins it now.
        `cancel` ends its episode then. Raises RuntimeClosed, LoomError.
        """
        self._tree.check_open()
        check_texts(why=why, by=by)
        await self._tree.scheduler.casts.withdraw(self.entity_id, self._row_id)
        return await self._read_state()


async def submit(
    tree: Tree,
    name: str,
    intent: str,
    *,
    key: str | None,
    tenant: str,
    priority: int,
    queue: str,
    by: str,
) -> Submission:
    """Make a submission, or find the one with that key. Raises as `Runtime.submit`."""
    tree.check_accepting()
    check_name("cantrip", name)
    check_texts(by=by)
    if key is not None:
        check_name("key", key)
    check_kind("submit", intent, str, "an intent that is a text", InvalidIntent)
    check_whole("priority", priority, -HIGHEST, HIGHEST, InvalidIntent)
    text = make_begin(intent, None).intent
    bounds = None if queue == "" else await tree.scheduler.queues.get_bounds(queue)
    most = (bounds and bounds.max_waiting) or tree.limits.max_submitted
    key = key or tree.make_moment().fresh
    trace = None if tree.instrument is None else tree.instrument.trace()
    at = round(tree.read_time_of_day(), 3)
    row = tree.guard.redact_submission(
        SubmissionRow(
            key=key,
            cantrip=name,
            intent=text,
            at=at,
            priority=priority,
            tenant=tenant,
            queue=queue,
            sender=by,
            trace=trace,
        )
    )
    submission = Submission(tree, key, tenant)
    old = await tree.scheduler.find_submission(row.id)
    has_begun = await _has_begun(tree, submission.entity_id)
    if old is None and not has_begun:
        await tree.allowances.check(tenant, by)
        await tree.scheduler.check_room(row, most)
        submission.is_new = await tree.scheduler.submit(row)
        if not submission.is_new:
            old = await tree.scheduler.find_submission(row.id)  # submitted at the same moment by another process
            has_begun = await _has_begun(tree, submission.entity_id)
    if has_begun:
        _check_same(row, await tree.in_store(partial(_read_begun, tree.loom, submission.entity_id, key)))
    elif old is not None:
        _check_same(row, _Content(old.cantrip, old.intent, old.queue))
    return submission


async def find_submission(tree: Tree, key: str, tenant: str) -> Submission | None:
    """Return the submission with a key, if it waits or has begun. Raises as `Runtime.submission`."""
    tree.check_open()
    submission = Submission(tree, check_name("key", key), tenant)
    return submission if await tree.in_store(lambda: submission.is_known) else None


async def list_submissions(tree: Tree, tenant: str | None, cursor: str | None, limit: int) -> Page[Submission]:
    """Return the waiting submissions of all tenants, or of one, after a cursor. Raises as `Runtime.submissions`."""
    tree.check_open()
    check_page_limit(limit)
    first = "" if tenant is None else scope_name(tenant, "")
    rows = await tree.in_store(lambda: tree.store.list_submissions(cursor or first, limit + 1))
    own = [row for row in rows if tenant in (None, row.tenant)]
    items = [Submission(tree, row.key, row.tenant) for row in own[:limit]]
    return Page(items, own[limit - 1].id if len(own) > limit else None)


async def _has_begun(tree: Tree, entity_id: str) -> bool:
    return await tree.in_store(partial(tree.loom.has_begun, entity_id))


class _Content(NamedTuple):
    """The content of a submission, which a repeated call with its key must have, too."""

    cantrip: str
    intent: str
    queue: str


def _check_same(row: SubmissionRow, before: _Content) -> None:
    """Raise KeyUsed if a row submits something else than its key was used for."""
    now = _Content(row.cantrip, row.intent, row.queue)
    differing = [name for name in _Content._fields if getattr(before, name) != getattr(now, name)]
    if differing:
        raise KeyUsed(
            f"key {row.key!r} was used to submit something else; what differs is {' and '.join(differing)}: use "
            "another key"
        )


def _read_begun(loom: Loom, entity_id: str, key: str) -> _Content:
    """Return what a submission's entity began with. Raises KeyUsed if it is forgotten."""
    if loom.is_forgotten(entity_id):
        raise KeyUsed(f"key {key!r} was used for an entity that is forgotten: use another key")
    header, intent = loom.header(entity_id), find_first_intent(loom.records(entity_id))
    assert intent is not None, "it has begun"
    return _Content(header.cantrip_name or "", intent.intent, header.queue)
