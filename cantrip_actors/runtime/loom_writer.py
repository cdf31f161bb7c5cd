"""The loom actor: the one writer of a store, and the holder of its leases.

What several entities hand in during one tick is written as one group; each is answered when its records and its mail
are as durable as the store promises. A store that cannot write answers everybody in the group with its error: no entity
continues unrecorded.

Where other processes may write too, an entity's tree is claimed before it is run, and the claim renewed as long as it
lives. One that another process runs is refused, and a writer that was frozen past its lease learns so from its next
append (`loom/lease.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import anyio
import structlog

from cantrip_actors.loom import Lease, Store, Unsure, no_more, this_process
from cantrip_actors.records.mail import Mail, Pending
from cantrip_actors.records.records import Record
from cantrip_actors.terms.errors import LoomError
from supervisors import NO_REPLY, Actor, Caller, ExitReason

__all__ = ["Append", "Claim", "Keep", "LoomActor", "Post", "Release"]

T = TypeVar("T")

GROUP = 512
"""Messages that are written together at most: enough to share a commit, few enough to answer soon."""

LEASE = 30.0
"""Seconds that a claim lasts without being renewed: how long a machine that is gone keeps its entities from others."""

_RENEW = object()

_log = structlog.get_logger("cantrip_actors.runtime")


class Append(NamedTuple):
    """Write records. `taken` are places among them and numbers of the mail that they take; `post` is mail to others.

    The reply is None, or the LoomError is raised. Without records it comes when all before has been written.
    """

    records: Sequence[Record]
    taken: Sequence[tuple[int, int]] = ()
    post: Sequence[Mail] = ()


class Post(NamedTuple):
    """Post mail. The reply is its row, or the error why it is not accepted. `shown` is what the entity is to see."""

    mail: Mail
    shown: Mail


class Keep(NamedTuple):
    """Keep the state of an entity, as bytes, for the present end of its log. The reply is None."""

    entity_id: str
    data: bytes


class Claim(NamedTuple):
    """Claim the tree of a root entity. The reply is None, or the LoomError is raised: another process runs it.

    `lift` ends its quarantine.
    """

    entity_id: str
    lift: bool = False


class Release(NamedTuple):
    """Let go of the tree of a root entity, unless mail waits for it."""

    entity_id: str


class LoomActor(Actor):
    """Writes what it is called with.

    `tell` is called with the records that have been written, so that subscribers are told of all of them and in their
    order, whatever has become of the caller; `deliver` with mail that is durable, `has_mail` with the entities that got
    some otherwise.
    """

    def __init__(
        self,
        store: Store,
        tell: Callable[[Sequence[Record]], None],
        deliver: Callable[[Sequence[Pending]], None],
        has_mail: Callable[[str], None],
    ) -> None:
        self._store = store
        self._tell = tell
        self._deliver = deliver
        self._has_mail = has_mail
        self._group: list[Caller] = []
        self._posts: list[Caller] = []
        self._owner = this_process()
        self._leases: dict[str, Lease] = {}
        self._tokens: dict[str, int] = {}
        self._ended: list[str] = []
        """Roots whose leases are to be released."""
        self._kept = False
        """Whether a lease that it let go of may still be there."""

    async def init(self) -> None:
        """Renew leases from time to time."""
        if self._store.shared:
            self.send_every(LEASE / 3, _RENEW)

    async def terminate(self, reason: ExitReason) -> None:  # noqa: ARG002  # whatever it is
        """Leave no lease behind that would keep the next holder waiting, also if the store cannot be told."""
        with suppress(anyio.WouldBlock):
            while True:  # what they ask for is done by this
                self.receive_nowait(_is_release)
        leases, self._leases = list(self._leases.values()), {}
        try:
            if leases:
                self._kept = not await self._attempt(
                    "leases could not be released", partial(self._store.release, *leases)
                )
        finally:
            if leases or self._kept:
                no_more(self._owner)

    async def handle_call(self, message: Append | Post | Keep | Claim, caller: Caller) -> Any:
        """Take a message into the group, and write the group when nothing else has arrived."""
        if isinstance(message, Append):
            self._group.append(caller)
        elif isinstance(message, Post):
            self._posts.append(caller)
        elif isinstance(message, Keep):
            await self._settle()
            await self._attempt("a checkpoint could not be kept", partial(self._keep, message))
            return None
        else:
            if message.entity_id in self._ended:  # it is loaded before it was let go
                await self._settle()
            await self._claim(message, caller)
        if not self.ref.mailbox_depth or len(self._group) + len(self._posts) >= GROUP:
            await self._settle()
        return NO_REPLY

    async def handle_cast(self, message: Release) -> None:
        """Let go of a lease, once what its holder has handed in is written; of many at once where many have ended."""
        self._ended.append(message.entity_id)
        if not self.ref.mailbox_depth or len(self._ended) >= GROUP:
            await self._settle()

    async def handle_info(self, message: Any) -> None:
        """Renew the leases: the time has come."""
        if message is _RENEW and self._leases:
            await self._attempt("leases could not be renewed", partial(self._store.renew, self._owner, LEASE))

    async def _settle(self) -> None:
        if self._group:
            group, self._group = self._group, []
            await self._write(group)
        if self._posts:
            posts, self._posts = [caller for caller in self._posts if not caller.abandoned], []
            if posts:  # a sender that was cancelled has not sent
                await self._post(posts)
        if self._ended:
            ended, self._ended = self._ended, []
            await self._let_go([lease for one in ended if (lease := self._leases.pop(one, None)) is not None])

    async def _let_go(self, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        kept: list[Lease] = []

        def release() -> None:
            kept.extend(self._store.release_if_empty(*leases))

        if not await self._attempt("leases could not be released", release):
            self._kept = True
        for lease in kept:
            self._leases[lease.entity_id] = lease
            self._has_mail(lease.entity_id)
        for lease in leases:
            if lease not in kept:
                self._tokens.pop(lease.entity_id, None)

    def _keep(self, message: Keep) -> None:
        tip = self._store.tip(message.entity_id)
        if tip is not None:
            self._store.keep_checkpoint(message.entity_id, tip, message.data)

    async def _attempt(self, what: str, work: Callable[[], None]) -> bool:
        try:
            await self._in_store(work)
        except LoomError as error:  # leases run out, or are fenced, by themselves; a checkpoint is never needed
            _log.warning(what, error=str(error))
            return False
        return True

    async def _claim(self, message: Claim, caller: Caller) -> None:
        claim = partial(self._store.claim, message.entity_id, self._owner, LEASE, lift=message.lift)
        try:
            lease = await self._in_store(claim)
        except LoomError as error:
            caller.fail(error)
            return
        self._leases[message.entity_id] = lease
        self._tokens[message.entity_id] = lease.token
        caller.reply(None)

    async def _write(self, group: list[Caller]) -> None:
        records, taken, post = _joined([caller.message for caller in group])
        try:
            if records and self._store.blocking:
                await self._in_store(partial(self._store.append, records, self._tokens, taken=taken, post=post))
            elif records:
                self._store.append(records, self._tokens, taken=taken, post=post)
        except Unsure as error:  # a caller that wrote it once more might write it twice
            for caller in group:
                told = Unsure(str(error))  # each its own: it is going to say whose entity it was
                told.__cause__ = error
                caller.fail(told)
        except LoomError as error:
            if len(group) > 1:  # one entity's mistake is no other's
                for caller in group:
                    await self._write([caller])
            else:
                group[0].fail(error)
        else:
            self._tell(records)
            for _, mail in post:
                self._has_mail(mail.entity_id)
            for caller in group:
                caller.reply(None)

    async def _post(self, posts: list[Caller]) -> None:
        mails = [caller.message.mail for caller in posts]
        try:
            rows = await self._in_store(partial(self._store.post, mails))
        except LoomError as error:
            for caller in posts:
                caller.fail(type(error)(str(error)))
            return
        new = [
            Pending(row.no, caller.message.shown)
            for caller, row in zip(posts, rows, strict=True)
            if not isinstance(row, Exception) and row.taken is None
        ]
        self._deliver(sorted(new, key=lambda one: one.no))
        for caller, row in zip(posts, rows, strict=True):
            caller.reply(row)

    async def _in_store(self, work: Callable[[], T]) -> T:
        if not self._store.blocking:
            return work()
        scope = anyio.CancelScope(shield=True)  # what a thread has begun to write is written: its callers have to know
        with scope:
            done = await anyio.to_thread.run_sync(work)
        return done  # noqa: RET504  # a scope may end without its return, for all that types can tell


def _joined(group: Sequence[Append]) -> tuple[list[Record], list[tuple[int, int]], list[tuple[int, Mail]]]:
    """Return the records of a group, with the mail that they take and that they post, by the places of the records."""
    records: list[Record] = []
    taken: list[tuple[int, int]] = []
    post: list[tuple[int, Mail]] = []
    for message in group:
        before = len(records)
        records.extend(message.records)
        if message.taken:
            taken += [(before + place, no) for place, no in message.taken]
        if message.post:
            post += [(len(records) - 1, mail) for mail in message.post]
    return records, taken, post


def _is_release(message: object) -> bool:
    return isinstance(message, Release)
