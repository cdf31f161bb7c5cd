"""`Work`: one intent of an entity, which any process finds by its id.

`Entity.post`, `Entity.work` and `Runtime.submit` return it, and `Runtime.work` and `Runtime.receipt` find it again.
"""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal

import anyio

from cantrip_actors.loom.reading.redaction import redact_outcome, redacted_loom
from cantrip_actors.loom.reading.view import Loom, fold_entity, make_checked
from cantrip_actors.machine.project import (
    cut_round,
    find_episode,
    find_outcome,
    find_refusal,
    find_settled_at,
    find_times,
    get_outcome,
    has_taken,
    list_intents,
)
from cantrip_actors.records.mail import CONTROL
from cantrip_actors.runtime.events.log_feed import EventFeed
from cantrip_actors.runtime.face.episode import Episode, make_episode
from cantrip_actors.runtime.face.run import BEGINNING, RunEvents, read_event_id
from cantrip_actors.runtime.loom.outage_log import repeat_through_outages
from cantrip_actors.runtime.mail.inboxes import is_open
from cantrip_actors.runtime.people.request import Request
from cantrip_actors.terms.answer import Answer_co
from cantrip_actors.terms.arguments import check, check_name, check_texts, is_finite
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import CantripError, EntityEnded, UnfinishedWork, UnknownEntity
from cantrip_actors.terms.history import History
from cantrip_actors.terms.image import Said
from cantrip_actors.terms.outcome import Outcome
from cantrip_actors.terms.work_id import make_work_id

if TYPE_CHECKING:
    from cantrip_actors.runtime.face.entity import Entity
    from cantrip_actors.runtime.tree import Tree

MOST_WAITING: Final = 10_000
"""The most waiting intents that `Work.note` reads to find its own."""
FIRST: Final = 2
"""How many records an entity has when it has begun with an intent."""
MailState = Literal["waiting", "working", "settled", "refused", "withdrawn"]


def check_timeout(timeout: float) -> None:
    """Raise ValueError for a timeout that is not a finite number of seconds from 0 on."""
    check(is_finite(timeout, 0), "timeout", "a finite number of seconds >= 0, or None", timeout)


class NoAnswer(CantripError, TimeoutError):
    """The episode of an intent did not end within the time that its caller gave it.

    The intent is not withdrawn: `receipt.result()`, or `runtime.work(receipt.id).result()` in any process, continues to
    wait, and `receipt.withdraw()` withdraws the intent if it still waits. `receipt` is the `Work`.
    """

    def __init__(self, work: Work[Any], timeout: float) -> None:
        super().__init__(
            f"entity {work.entity_id} did not answer within {timeout:g} s; its intent is {work.state}, and "
            f"stays: wait on with runtime.work({work.id!r}).result()"
        )
        self.receipt = work
        self.entity_id = work.entity_id

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the error without its `receipt`, which belongs to the runtime; its text has the id of the work."""
        make, args, attributes = super().__reduce__()
        return make, args, {name: value for name, value in attributes.items() if name != "receipt"}


class Work(Generic[Answer_co]):
    """One intent of an entity: it is durable, and is worked on exactly once, despite any crash.

    `id` is enough to find it again, in any process that opens the loom: `runtime.work(id)`. It is the id of the entity
    for the intent that it began with, and `ENTITY.KEY` for a later one. `key` is "" for the intent that it began with.
    """

    def __init__(
        self,
        tree: Tree,
        entity_id: str,
        key: str = "",
        begun_with: Cantrip[Answer_co] | None = None,
        entity_name: str | None = None,
    ) -> None:
        self._tree = tree
        self._begun_with = begun_with
        self._entity_name = entity_name
        self._intent_key = key
        self.entity_id = entity_id
        self.key = key

    @property
    def id(self) -> str:
        """The id by which `Runtime.work` finds it."""
        return make_work_id(self.entity_id, self.key)

    @property
    def entity(self) -> Entity[Answer_co]:
        """The entity that works on it, with `send`, `steer`, `stop` and its other methods."""
        return self._make_entity(None)

    def _make_entity(self, cantrip: Cantrip[Answer_co] | None) -> Entity[Answer_co]:
        from cantrip_actors.runtime.face.entity import Entity

        return Entity(self._tree, self.entity_id, self._entity_name, cantrip=cantrip, begun_with=self._begun_with)

    @property
    def state(self) -> MailState:
        """The state of the intent.

        "waiting": it waits in the inbox, or for a node with room. "working": its episode is under way. "settled": its
        episode has ended. "refused": it will not be worked on, since the entity ended first or could not take it;
        `result` says why. "withdrawn": it was withdrawn while it waited.

        It reads the loom in the calling thread: see `Runtime.read`.
        """
        store = self._tree.store
        row = store.find_mail(self.entity_id, self._intent_key)
        if row is None:
            records = store.records(self.entity_id)
        elif row.taken is None:
            return "waiting"
        else:  # the mail names the record that took it
            records = store.records(self.entity_id, after=row.taken - 1)
        if not has_taken(records, self._intent_key):
            refusal = find_refusal(records, self._intent_key)
            return "withdrawn" if refusal is not None and refusal.is_withdrawn else "refused"
        settled = find_episode(records, self._intent_key) if row is None else find_settled_at(records)
        return "working" if settled is None else "settled"

    @property
    def is_known(self) -> bool:
        """Whether the loom has the intent. It reads the loom in the calling thread: see `Runtime.read`."""
        row = self._tree.store.find_mail(self.entity_id, self._intent_key)
        if row is not None:
            return row.lane != CONTROL
        most = sys.maxsize if self._intent_key else FIRST  # the intent that it began with follows the header
        return has_taken(self._tree.store.records(self.entity_id, limit=most), self._intent_key)

    @property
    def note(self) -> Any:
        """The note that its sender keeps with the intent, without secrets; None without one, or once it is forgotten.

        It reads the loom in the calling thread: see `Runtime.read`.
        """
        store = self._tree.store
        row = store.find_mail(self.entity_id, self._intent_key)
        if row is not None and row.taken is None:
            for _, mail in store.pending(self.entity_id, MOST_WAITING):
                if mail.key == self._intent_key:
                    return self._tree.guard.redactor.value(mail.body.get("note"))
            row = store.find_mail(self.entity_id, self._intent_key)  # it was taken meanwhile
        first, most = (0, sys.maxsize) if row is None or row.taken is None else (row.taken, 1)
        intents = list_intents(store.records(self.entity_id, after=first - 1, limit=most))
        notes = (intent.note for intent in intents if (intent.key or "") == self._intent_key)
        return self._tree.guard.redactor.value(next(notes, None))

    def find_outcome(self, *, redacted: bool = False) -> Outcome | None:
        """Return how its episode ended, with `redacted` without secrets; None while it has not ended.

        If the entity ended without it, that is the end of the entity. It reads the loom in the calling thread: see
        `Runtime.read`.
        """
        loom = self._make_loom()
        outcome = self._find_outcome(loom)
        if outcome is None or not redacted:
            return outcome
        redactor = self._tree.guard.redactor
        return redact_outcome(outcome, redactor) or self._find_outcome(redacted_loom(loom, redactor))

    def _find_outcome(self, loom: Loom) -> Outcome | None:
        if is_open(self._tree.store, loom, self.entity_id, self._intent_key):
            return None
        records = loom.records(self.entity_id)
        outcome = find_episode(records, self._intent_key, loom.subtree_usage)
        if outcome is None and loom.is_over(self.entity_id) and self.state != "withdrawn":
            outcome = find_outcome(records, loom.usage_below(self.entity_id))
        return outcome

    def requests(self) -> list[Request]:
        """Return the requests for which its entity, and those below it, wait for a person, the oldest first.

        Deferred calls are not among them, because a program delivers their results. It reads the loom in the calling
        thread: see `Runtime.read`.
        """
        subtree, open_of = self._make_loom().subtree(self.entity_id), self._tree.requests.open_of
        requests = (request for entity_id in subtree for request in open_of(entity_id))
        return sorted(
            (request for request in requests if request.kind != "deferred"), key=lambda request: request.asked_at
        )

    def _make_loom(self) -> Loom:
        return make_checked(self._tree.loom)

    async def result(self, *, timeout: float | None = None) -> Episode[Answer_co]:
        """Wait for the episode of the intent, and return it; at once if it has ended.

        Cancelling the wait does not cancel the episode. `timeout` is the longest wait, in seconds; NoAnswer is raised
        after it. Raises the error that ended the episode, or AskCycle, as `Entity.send`; EntityEnded or InvalidIntent
        if the intent was refused; Withdrawn; RuntimeClosed; ValueError for a negative timeout.
        """
        if timeout is not None:
            check_timeout(timeout)
        if timeout is None or await self._read_state() not in ("waiting", "working"):
            return await self._wait_for_episode()
        with anyio.move_on_after(timeout):
            return await self._wait_for_episode()
        if await self._read_state() not in ("waiting", "working"):  # it has ended at this moment
            return await self._wait_for_episode()
        raise await self._tree.in_store(partial(NoAnswer, self, timeout))

    async def episode(self, *, timeout: float | None = None) -> Episode[Answer_co]:
        """Wait for the episode, as `result` does."""
        return await self.result(timeout=timeout)

    async def _read_state(self) -> MailState:
        return await self._tree.in_store(lambda: self.state)

    async def _wait_for_episode(self, patience: float = 0.0) -> Episode[Answer_co]:
        tree = self._tree
        tree.check_open()
        if not self._intent_key and not patience and not await tree.in_store(self._is_lasting):
            return await self.entity.episode()
        state = await self._read_state()
        if state == "refused" and not self._intent_key:  # it is no mail: it was made without an intent
            await tree.in_store(self.check)
        is_open = state in ("waiting", "working")
        try:
            async with tree.questions.mark_waiting(self.entity_id) if is_open else nullcontext():
                outcome = await tree.inboxes.wait_for_outcome(self.entity_id, self._intent_key, patience)
        except CantripError as error:
            error.entity_id = self.entity_id
            raise tree.guard.redact_error(error) from error.__cause__
        return await make_episode(tree, self.entity_id, outcome, begun_with=self._begun_with)

    def _is_lasting(self) -> bool:
        cell = self._tree.living.get(self.entity_id)
        return self._tree.loom.header(self.entity_id).lasting if cell is None else cell.plan.lasting

    def events(self, after: str | None = None, *, deltas: bool = False) -> RunEvents:
        """Return the events of its episode from the beginning, to its end, in whichever process the entity runs.

        With `after`, the `id` of an event, only later ones come. With `deltas` the pieces of answers are among them,
        while this process runs the entity. It ends without events if the intent is withdrawn or refused. Raises
        InvalidIntent for a text that is no id; iterating raises LoomError.
        """
        position = BEGINNING if after is None else read_event_id(after)
        feed = EventFeed(self._tree, self.entity_id, BEGINNING, deltas=deltas)
        return RunEvents(feed, self._intent_key, self._has_no_episode, self._load, position, self._begins)

    async def _begins(self) -> bool:
        """Wait until its entity is in the loom; return False if it never will be."""
        return True

    async def _has_no_episode(self) -> bool:
        return await self._read_state() in ("refused", "withdrawn")

    def _load(self) -> None:
        self._tree.inboxes.load_if_left(self.entity_id)

    async def withdraw(self, why: str = "no longer needed", *, by: str = "") -> MailState:
        """Withdraw the intent if it still waits in the inbox, whichever process runs the entity.

        Returns the state that the intent has then. "withdrawn": the entity will never see it, and callers that wait for
        its episode get Withdrawn; its key stays used. Any other state: it was too late, and nothing has changed. Once
        "withdrawn" has been returned, it is durable. `by` names the person or program that withdraws it.

        Raises RuntimeClosed and LoomError.
        """
        self._tree.check_open()
        check_texts(why=why, by=by)
        await self._tree.inboxes.withdraw(self.entity_id, self._intent_key, why, by)
        return await self._read_state()

    async def cancel(self, why: str = "cancelled", *, now: bool = False, by: str = "") -> MailState:
        """Withdraw the intent if it still waits, else interrupt its episode, and no other one, if that is under way.

        Returns the state that `withdraw` returned: "withdrawn", or "working" if the episode is interrupted. `now` as
        for `Entity.interrupt`. Raises as `withdraw`, and InboxFull.
        """
        state = await self.withdraw(why, by=by)
        if state == "working":
            inboxes = self._tree.inboxes
            find = partial(inboxes.make_interrupt, self.entity_id, self._intent_key, why, now=now, sender=by)
            mail = await self._tree.in_store(find)
            if mail is not None:
                with suppress(EntityEnded):
                    await inboxes.post(mail)
        return state

    # Continuing

    @property
    def takes_more(self) -> bool:
        """Whether `continue_with` sends a further intent to its entity; otherwise it forks.

        It sends if the entity is long-lived, has not ended, and has made no turn since. It reads the loom in the
        calling thread: see `Runtime.read`. Raises UnfinishedWork while the episode has not ended.
        """
        loom, last_turn = self._make_loom(), self._find_end().last_turn
        if not loom.header(self.entity_id).lasting or loom.is_over(self.entity_id):
            return False
        newest = get_outcome(fold_entity(loom, self.entity_id), loom.usage_below(self.entity_id))
        return newest is not None and newest.last_turn == last_turn

    def _find_end(self) -> Outcome:
        outcome = self.find_outcome()
        if outcome is None:
            raise UnfinishedWork(self.id, self.state)
        return outcome

    def _find_last_turn(self) -> str:
        last_turn = self._find_end().last_turn
        if last_turn is None:
            raise UnfinishedWork(self.id, self.state)
        return last_turn

    async def continue_with(
        self,
        intent: Said,
        *,
        context: Any = None,
        history: History = (),
        note: Any = None,
        cantrip: Cantrip[Answer_co] | None = None,
        key: str | None = None,
        by: str = "",
    ) -> Work[Answer_co]:
        """Continue from its end: send its entity a further intent, or fork it if it has done something else since.

        `takes_more` says which of the two it is. A fork works with `cantrip`, as `fork_with`; a further intent has no
        choice. With a `key` a repeated call returns the same work, whatever was sent in between. The other arguments
        are as for `Entity.post`. Raises UnfinishedWork while the episode has not ended, else as `Entity.post` and
        `fork_with`.
        """
        if await self._tree.in_store(partial(self._sends, key)):
            entity = self._make_entity(cantrip if cantrip is not None and cantrip.additions else None)
            return await entity.post(intent, context=context, history=history, note=note, key=key, by=by)
        return await self.fork_with(
            intent, context=context, history=history, note=note, cantrip=cantrip, key=key, by=by
        )

    def _sends(self, key: str | None) -> bool:
        """Return whether `continue_with` sends; a repeated call does what the first one did."""
        tree = self._tree
        if key is not None:
            check_name("key", key)
            if Work(tree, self.entity_id, key).is_known:
                return True
            self._find_end()  # the entity of a submission that waits has no header
            if tree.loom.has_begun(tree.scheduler.casts.make_id(key, tree.loom.header(self.entity_id).tenant)):
                return False
        return self.takes_more

    async def fork_with(
        self,
        intent: Said,
        *,
        context: Any = None,
        history: History = (),
        note: Any = None,
        cantrip: Cantrip[Answer_co] | None = None,
        crystal: Crystal | str | None = None,
        key: str | None = None,
        by: str = "",
    ) -> Work[Answer_co]:
        """Continue from its last turn with a new entity, which is long-lived if the old one is; the old one stays.

        The arguments are as for `Runtime.start_fork`, and `note` as for `Entity.post`. Raises UnfinishedWork
        while the episode has not ended, else as `Runtime.start_fork`.
        """
        turn = await self._tree.in_store(self._find_last_turn)
        lasting = await self._tree.in_store(self._is_lasting)
        begin = partial(self._tree.scheduler.casts.fork, history=history, note=note, lasting=lasting)
        entity = await begin(self._make_loom(), turn, intent, crystal, cantrip, context, key, by, None)
        return entity.work  # type: ignore[no-any-return]  # the scheduler, which has `casts`, knows no handles

    def check(self) -> None:
        """Raise UnknownEntity if no such intent was posted, or its key has expired."""
        row = self._tree.store.find_mail(self.entity_id, self.key)
        if row is not None and row.lane == CONTROL:
            raise UnknownEntity(
                self.key,
                f"receipt: expected the key of an intent, but {self.key!r} is that of a control message, which has no "
                "episode and cannot be withdrawn: runtime.has_mail(entity, key) says whether it was posted",
            )
        if not self.is_known:
            raise UnknownEntity(
                self.key,
                f"no intent with key {self.key!r} is known for entity {self.entity_id}: it was not posted, or refused "
                "so long ago that its key is not kept any more",
            )

    def __repr__(self) -> str:
        return f"<Work {self.id}: {self.state}>"


def read_times(work: Work[Any]) -> tuple[str, str]:
    """Return when the intent of a work was posted, or taken, and when the last record of its episode was made.

    The times are ISO 8601 in UTC. It reads the loom.
    """
    tree, key = work._tree, work._intent_key  # noqa: SLF001  # of this module
    loom, row = tree.loom, tree.store.find_mail(work.entity_id, key)
    if row is not None and row.taken is None:
        waiting = (intent.at for intent in loom.waiting_intents(work.entity_id) if (intent.key or "") == key)
        posted = next(waiting, None)
        if posted is not None:
            return posted, posted
        row = tree.store.find_mail(work.entity_id, key)  # it was taken meanwhile
    records = loom.records(work.entity_id, after=-1 if row is None or row.taken is None else row.taken - 1)
    return find_times(records, key) or (loom.header(work.entity_id).at, loom.last_time(work.entity_id))


async def wait_through_outages(work: Work[Answer_co]) -> Episode[Answer_co]:
    """Wait for the episode of a work, as `Work.result`, also while the loom is away: for a door whose client waits."""
    return await repeat_through_outages(partial(work._wait_for_episode, math.inf))  # noqa: SLF001  # of this module


Receipt = Work
"""A `Work` as the receipt of an intent that was posted."""


def list_open_work(entity: Entity[Any]) -> list[Work[Any]]:
    """Return the work of a long-lived entity that has not ended: its episode under way, and then the intents that wait
    in its inbox, in order. Reads the loom.
    """
    tree = entity._tree  # noqa: SLF001  # of the same face
    waiting = [mail.key for _, mail in tree.store.pending(entity.id, sys.maxsize) if mail.lane != CONTROL]
    records = tree.loom.newest_records(entity.id, cut_round)  # read last: none is taken unseen
    intents = list_intents(records)
    under_way = [intent.key or "" for intent in intents if find_settled_at(records) is None]
    works = [Work(tree, entity.id, key, entity_name=entity.name) for key in dict.fromkeys([*under_way, *waiting])]
    return [work for work in works if work.key in under_way or work.state in ("waiting", "working")]
