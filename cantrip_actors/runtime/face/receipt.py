"""Receipts of posted intents: the result of `Entity.post`, which `Runtime.receipt` finds again in any process."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal

import anyio

from cantrip_actors.machine.project import find_episode, find_refusal, has_taken
from cantrip_actors.records.mail import CONTROL
from cantrip_actors.runtime.face.episode import Episode, make_episode
from cantrip_actors.terms.answer import Answer_co
from cantrip_actors.terms.arguments import check, check_texts, is_finite
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import CantripError, EntityEnded, LoomError

if TYPE_CHECKING:
    from cantrip_actors.runtime.tree import Tree

MailState = Literal["waiting", "working", "settled", "refused", "withdrawn"]


def check_timeout(timeout: float) -> None:
    """Raise ValueError for a timeout that is not a finite number of seconds from 0 on."""
    check(is_finite(timeout, 0), "timeout", "a finite number of seconds >= 0, or None", timeout)


class NoAnswer(CantripError, TimeoutError):
    """The episode of an intent did not end within the time that its caller gave it (N-38).

    The intent is not withdrawn: `receipt.episode()`, or `runtime.receipt(entity_id, key).episode()`, continues to wait,
    and `receipt.withdraw()` withdraws the intent if it still waits.
    """

    def __init__(self, receipt: Receipt[Any], timeout: float) -> None:
        super().__init__(
            f"entity {receipt.entity_id} did not answer within {timeout:g} s; its intent is {receipt.state}, and "
            f"stays: wait on with runtime.receipt({receipt.entity_id!r}, {receipt.key!r}).episode()"
        )
        self.receipt = receipt
        self.entity_id = receipt.entity_id


class Receipt(Generic[Answer_co]):
    """An intent that was posted: it is durable, and is worked on exactly once, despite any crash.

    `entity_id` and `key` are enough to find it again: `runtime.receipt(entity_id, key)`.
    """

    def __init__(self, tree: Tree, entity_id: str, key: str, begun_with: Cantrip[Answer_co] | None = None) -> None:
        self._tree = tree
        self._begun_with = begun_with
        self.entity_id = entity_id
        self.key = key

    @property
    def state(self) -> MailState:
        """The state of the intent.

        "waiting": it waits in the inbox. "working": its episode is under way. "settled": its episode has ended.
        "refused": it will not be worked on, since the entity ended first or could not take it; `episode` says why.
        "withdrawn": it was withdrawn while it waited.

        It reads the loom in the calling thread: see `Runtime.read`.
        """
        store = self._tree.store
        row = store.find_mail(self.entity_id, self.key)
        if row is None:
            records = store.records(self.entity_id)
        elif row.taken is None:
            return "waiting"
        else:  # the mail names the record that took it
            records = store.records(self.entity_id, after=row.taken - 1, limit=1)
        if not has_taken(records, self.key):
            refusal = find_refusal(records, self.key)
            return "withdrawn" if refusal is not None and refusal.is_withdrawn else "refused"
        return "working" if find_episode(store.records(self.entity_id), self.key) is None else "settled"

    async def episode(self, *, timeout: float | None = None) -> Episode[Answer_co]:
        """Wait for the episode of the intent; at once if it has ended.

        `timeout` is the longest wait, in seconds; NoAnswer is raised after it. Raises the error that ended the episode,
        or AskCycle, as `Entity.send`; EntityEnded or InvalidIntent if the intent was refused; Withdrawn; RuntimeClosed;
        ValueError for a negative timeout.
        """
        if timeout is not None:
            check_timeout(timeout)
        if timeout is None or await self._read_state() not in ("waiting", "working"):
            return await self._wait_for_episode()
        with anyio.move_on_after(timeout):
            return await self._wait_for_episode()
        raise await self._tree.in_store(partial(NoAnswer, self, timeout))

    async def _read_state(self) -> MailState:
        return await self._tree.in_store(lambda: self.state)

    async def _wait_for_episode(self) -> Episode[Answer_co]:
        tree = self._tree
        tree.check_open()
        is_open = await self._read_state() in ("waiting", "working")
        try:
            async with tree.questions.mark_waiting(self.entity_id) if is_open else nullcontext():
                outcome = await tree.inboxes.wait_for_outcome(self.entity_id, self.key)
        except CantripError as error:
            error.entity_id = self.entity_id
            raise tree.guard.redact_error(error) from error.__cause__
        return await make_episode(tree, self.entity_id, outcome, begun_with=self._begun_with)

    async def withdraw(self, why: str = "no longer needed", *, by: str = "") -> MailState:
        """Withdraw the intent if it still waits in the inbox, whichever process runs the entity (C-19).

        Returns the state that the intent has then. "withdrawn": the entity will never see it, and callers that wait for
        its episode get Withdrawn; its key stays used. Any other state: it was too late, and nothing has changed. Once
        "withdrawn" has been returned, it is durable. `by` says who withdraws it.

        Raises RuntimeClosed and LoomError.
        """
        self._tree.check_open()
        check_texts(why=why, by=by)
        await self._tree.inboxes.withdraw(self.entity_id, self.key, why, by)
        return await self._read_state()

    async def cancel(self, why: str = "cancelled", *, now: bool = False, by: str = "") -> MailState:
        """Withdraw the intent if it still waits, else interrupt its episode, and no other one, if that is under way.

        Returns the state that `withdraw` returned: "withdrawn", or "working" if the episode is interrupted. `now` as
        for `Entity.interrupt`. Raises as `withdraw`, and InboxFull.
        """
        state = await self.withdraw(why, by=by)
        if state == "working":
            inboxes = self._tree.inboxes
            find = partial(inboxes.make_interrupt, self.entity_id, self.key, why, now=now, sender=by)
            mail = await self._tree.in_store(find)
            if mail is not None:
                with suppress(EntityEnded):
                    await inboxes.post(mail)
        return state

    def check(self) -> None:
        """Raise LoomError if no such intent was posted, or its key has expired."""
        store = self._tree.store
        row = store.find_mail(self.entity_id, self.key)
        if row is not None and row.lane == CONTROL:
            raise LoomError(
                f"receipt: expected the key of an intent, but {self.key!r} is that of a control message, which has no "
                "episode and cannot be withdrawn: runtime.has_mail(entity, key) says whether it was posted"
            )
        if row is None and not has_taken(store.records(self.entity_id), self.key):
            raise LoomError(
                f"no intent with key {self.key!r} is known for entity {self.entity_id}: it was not posted, or refused "
                "so long ago that its key is not kept any more"
            )

    def __repr__(self) -> str:
        return f"<Receipt {self.key!r} of entity {self.entity_id}: {self.state}>"
