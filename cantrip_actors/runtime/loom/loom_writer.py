"""The loom actor: the only writer of a store, and the holder of its leases.

The actor writes the messages of one tick as one group. It replies to each caller when the records and the mail are as
durable as the store promises. If the store cannot write, every caller in the group gets the error: no entity continues
unrecorded.

If other processes may write too, the actor claims an entity's tree before it is run, and renews the claim while the
entity lives. If time alone decides who may claim (`Store.expires`), a thread renews (`LeaseRenewal`). The actor refuses
a tree that another process runs. A writer that was frozen past its lease gets an error from its next append
(`loom/stores/lease.py`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import anyio

from cantrip_actors.loom import (
    Fenced,
    Forgotten,
    Lease,
    QuarantineRow,
    Store,
    Unsure,
    Wanted,
    begin_forget,
    mark_gone,
    service_lease,
    this_process,
)
from cantrip_actors.loom.stores.inbox import Refusal
from cantrip_actors.loom.stores.store import Locked, Postponed
from cantrip_actors.machine.node import Joined, Renewed
from cantrip_actors.records.mail import Mail, MailRow, Pending
from cantrip_actors.records.records import Record
from cantrip_actors.records.submissions import SubmissionRow
from cantrip_actors.records.timers import Timer
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.events.instrument import Instrument, StoreFailed
from cantrip_actors.runtime.loom.lease_renewal import LeaseRenewal
from cantrip_actors.runtime.loom.leases import claim_lease, release_leases, release_strays
from cantrip_actors.runtime.loom.outage_log import is_outage
from cantrip_actors.runtime.loom.store_access import StoreAccess
from cantrip_actors.runtime.mail.inbox import read_mail
from cantrip_actors.terms.errors import CantripError, EntityEnded, LoomError
from cantrip_actors.terms.value import Value
from supervisors import NO_REPLY, Actor, Caller, Crash, ExitReason

if TYPE_CHECKING:
    from cantrip_actors.loom.tables.node_tables import NodeTables
    from cantrip_actors.runtime.nodes.membership import Membership

T = TypeVar("T")

GROUP = 512
"""The most messages that are written together: enough to share a commit, few enough to answer soon."""

LEASE = 30.0
"""Seconds that a claim lasts without a renewal; after a machine dies, others wait this long for its entities."""

_RENEW = object()

_log = get_logger("cantrip_actors.runtime")


class Append(Value, frozen=True):
    """Write records. `taken` holds pairs: the index of a record, and the number of the mail that it takes.

    `outgoing` is mail to other entities, and timers. The reply is None, or the LoomError is raised. An append without
    records gets its reply when all earlier appends have been written.
    """

    records: Sequence[Record]
    taken: Sequence[tuple[int, int]] = ()
    outgoing: Sequence[Mail | Timer] = ()


class Post(NamedTuple):
    """Post mail. The reply is its row, or the error that refuses it. `shown` is the mail as the entity will see it."""

    mail: Mail
    shown: Mail


class TimerChange(NamedTuple):
    """Replace a timer by another one, and post mail, as `Store.replace_timer`."""

    old: Timer | None
    new: Timer | None
    post: Sequence[Mail] = ()


class Claim(NamedTuple):
    """Claim the tree of a root entity. The reply is the token of the lease, or LoomError is raised.

    Raises Held if another process runs the entity. `lift` ends its quarantine.
    """

    entity_id: str
    lift: bool = False


class Release(NamedTuple):
    """Release the tree of a root entity, unless mail waits for it."""

    entity_id: str


class WriterTask(NamedTuple):
    """Do some work on the writer between two groups of writes. The reply is its result, or its error is raised.

    So no record takes mail that the work has read, and no lease is released that it uses.
    """

    work: Callable[[LoomWriter], Awaitable[Any]]


class CallGroup:
    """The calls that wait for the next write of the loom actor, by the kind of write."""

    def __init__(self) -> None:
        self.appends: list[Caller] = []
        self.posts: list[Caller] = []
        self.claims: list[Caller] = []

    def __len__(self) -> int:
        return len(self.appends) + len(self.posts) + len(self.claims)


class WriterListeners(NamedTuple):
    """The functions that the loom actor calls."""

    publish: Callable[[Sequence[Record]], None]
    """Called with all written records, in order, even if their caller was cancelled meanwhile."""
    deliver: Callable[[Sequence[Pending], str | None], None]
    """Called with posted mail that is durable, and the root entity for which further mail waits."""
    on_mail: Callable[[str], None]
    """Called with each entity that got mail in another way."""
    on_timer: Callable[[Timer], None]
    """Called with each timer that was set."""
    on_outage: Callable[[], None]
    """Called when the store has not answered."""
    notify_processes: Callable[[], None]
    """Called when entities were released for other nodes."""


class LoomWriter(Actor):
    """Writes the records and the mail that callers send.

    It calls `listeners`, and reports commits and failures of the store to `instrument`.
    """

    def __init__(
        self,
        store: Store,
        access: StoreAccess,
        listeners: WriterListeners,
        instrument: Instrument | None = None,
        membership: Membership | None = None,
        serves: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._access = access
        self._listeners = listeners
        self._instrument = instrument
        self._group = CallGroup()
        self.owner = this_process()
        """The holder of its leases."""
        self._service = service_lease(self.owner, serves) if serves else ""
        """The text on which it has a lease while it serves cantrips; "" if it offers none."""
        self._leases: dict[str, Lease] = {}
        self._tokens: dict[str, int] = {}
        self._membership = membership
        node = None if membership is None else membership.node
        self._ttl, self._beat = (LEASE, LEASE / 3) if node is None else (node.ttl, node.beat)
        stall = {} if node is None else {"stall": node.stall}
        self._renewal = LeaseRenewal(self._renew, self._beat, **stall)
        self._ended: list[str] = []
        """Roots whose leases will be released."""
        self._connections = 0
        """The number of the store's connections when leases were last compared."""
        self._unreleased: dict[str, Lease] = {}
        """Leases that could not be released; they are retried, because renewals would keep them for good."""
        self._last = ""
        """The entity that wrote last."""
        self._is_forgetting = False
        """Whether entities are being forgotten: nothing is written meanwhile."""

    async def init(self) -> None:
        """Renew leases from time to time. A node joins, before anything else happens."""
        if self._membership is not None:
            join = partial(cast("NodeTables", self._store).join, self.owner, self._ttl, self._membership.info)
            await self._access.run_in_thread(join)
            self._membership.advance(Joined(self.owner))
            if self._store.expires:
                self._renewal.start()
        if self._store.shared:
            self.send_every(self._beat, _RENEW)
            await self._announce()

    async def _announce(self) -> None:
        """Let other processes know which cantrips this one serves, as long as it lives.

        The row of a node says that already. If the store fails, the next beat tries again.
        """
        if not self._service or self._service in self._leases or self._membership is not None:
            return

        def claim() -> None:
            self._leases[self._service] = claim_lease(self._store, self._service, self.owner, self._ttl)

        is_announced = await self._attempt("other processes cannot be told which cantrips this one serves", claim)
        if is_announced and self._store.expires:
            self._renewal.start()

    async def terminate(self, reason: ExitReason) -> None:  # noqa: ARG002  # whatever it is
        """Release all leases. If the store fails, declare their owner gone, so that the next holder does not wait."""
        await self._renewal.stop()
        with suppress(anyio.WouldBlock):
            while True:  # drop these requests: all leases are released below
                self.receive_nowait(_is_release)
        leases, self._leases = [*self._leases.values(), *self._unreleased.values()], {}
        may_hold = False
        try:
            if leases:
                may_hold = not await self._attempt(
                    "leases could not be released", partial(self._store.release, *leases)
                )
            if self._membership is not None:
                leave = partial(cast("NodeTables", self._store).leave, self.owner)
                may_hold = not await self._attempt("a node could not leave", leave) or may_hold
        finally:
            if leases or may_hold:
                mark_gone(self.owner)

    async def handle_call(self, message: Append | Post | Claim | WriterTask, caller: Caller) -> Any:
        """Add a message to the group, and write the group when nothing else has arrived."""
        if isinstance(message, Append):
            self._group.appends.append(caller)
        elif isinstance(message, Post):
            self._group.posts.append(caller)
        elif isinstance(message, WriterTask):
            await self._settle()
            try:
                return await message.work(self)
            except CantripError as error:
                caller.fail(error)
                return NO_REPLY
        else:
            if message.entity_id in self._ended:  # its lease is about to be released
                await self._settle()
            self._group.claims.append(caller)
        if not self.ref.mailbox_depth or len(self._group) >= GROUP:
            await self._settle()
        return NO_REPLY

    async def handle_cast(self, message: Release | WriterTask) -> None:
        """Do some work, or release a lease once the records of its holder are written.

        Many leases are released at once if many entities ended.
        """
        if isinstance(message, WriterTask):
            await self._settle()
            await message.work(self)
            return
        self._ended.append(message.entity_id)
        if not self.ref.mailbox_depth or len(self._ended) >= GROUP:
            await self._settle()

    async def handle_info(self, message: Any) -> None:
        """Renew the leases."""
        if message is not _RENEW:
            return
        if self._store.expires:
            self._renewal.tick()
        elif self._leases or self._membership is not None:
            await self._attempt("leases could not be renewed", self._renew)
        await self._announce()
        await self._release_leases(list(self._unreleased.values()))
        await self._release_strays()

    async def _release_strays(self) -> None:
        """Release leases that came back with a server that failed over; it checks once for each new connection."""
        connections = self._store.connections
        if connections == self._connections:
            return
        known = {lease.token for lease in (*self._leases.values(), *self._unreleased.values())}

        released: list[str] = []

        def release() -> None:
            released.extend(release_strays(self._store, self.owner, known))

        if await self._attempt("leases could not be compared with those of the loom", release):
            self._connections = connections
        if released:
            _log.warning("leases came back that were released before: the server failed over", leases=len(released))
            for entity_id in released:
                self._listeners.on_mail(entity_id)

    def _renew(self) -> None:
        node = self._membership
        if node is not None:
            beat = cast("NodeTables", self._store).beat
            is_asked = beat(self.owner, self._ttl, node.info, busy=node.busy, is_draining=node.is_draining)
            node.advance(Renewed(is_asked))
        elif self._leases:
            self._store.renew(self.owner, self._ttl)

    @property
    def tokens(self) -> dict[str, int]:
        """The tokens of its leases, by the roots of the trees."""
        return dict(self._tokens)

    def write_now(
        self, records: Sequence[Record], taken: Sequence[tuple[int, int]], outgoing: Sequence[Mail | Timer]
    ) -> bool:
        """Write an entity's records in the entity's own task; return False if they must be sent to this actor.

        This saves an entity that writes alone the way to this actor and back. It is not done if the write is postponed,
        if this actor has work, which comes first, or if another entity wrote last: entities that write concurrently
        share a group. Raises LoomError like the reply to a sent message.
        """
        if not records:
            return False
        entity, last = records[0].entity_id, self._last
        self._last = entity
        if entity != last or len(self._group) or self._ended or self._is_forgetting:
            return False
        ref = self.ref
        if ref.mailbox_depth or not ref.alive:
            return False
        post, timers = _split(len(records) - 1, outgoing) if outgoing else ((), ())
        began = time.perf_counter()
        append = partial(self._store.append, records, self._tokens, taken=taken, post=post, timers=timers)
        try:
            self._access.attempt_to_write(append)
        except Postponed:
            return False
        except (LoomError, EntityEnded) as error:
            self._note_failure(error)
            raise
        except BaseException as error:  # this actor crashes, as it does when it writes itself
            self.ref.exit(Crash(error))
            raise
        self._note_written(records, post, timers, began, 1)
        return True

    async def _settle(self) -> None:
        if len(self._group):
            group, self._group = self._group, CallGroup()
            if group.appends:
                await self._write(group.appends)
            posts = [caller for caller in group.posts if not caller.abandoned]
            if posts:  # a cancelled sender has not sent
                await self._post(posts)
            await self._claim(group.claims)
        if self._ended:  # after the claims: a cancelled claim may be granted, and is released then
            ended, self._ended = self._ended, []
            await self._release_leases([lease for one in ended if (lease := self._leases.pop(one, None)) is not None])

    async def _release_leases(self, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        kept: list[Lease] = []

        def release() -> None:
            kept.extend(release_leases(self._store, leases, is_member=self._membership is not None))

        if not await self._attempt("leases could not be released", release):
            self._unreleased.update((lease.entity_id, lease) for lease in leases)
            return
        if self._membership is not None and self._membership.is_draining:
            self._listeners.notify_processes()
        for lease in kept:
            self._leases[lease.entity_id] = lease
            self._listeners.on_mail(lease.entity_id)
        for lease in leases:
            self._unreleased.pop(lease.entity_id, None)
            if lease not in kept:
                self._tokens.pop(lease.entity_id, None)

    async def _attempt(self, what: str, work: Callable[[], None]) -> bool:
        try:
            await self._change(work)
        except LoomError as error:  # a lease expires or is fenced by itself, and an entity loads without a checkpoint
            _log.warning(what, error=str(error))
            return False
        return True

    def _note_failure(self, error: CantripError) -> None:
        """Report that the store could not be reached, and to the instrument also that it refused a late writer."""
        is_fenced = isinstance(error, Fenced)
        if is_outage(error):
            self._listeners.on_outage()
        if self._instrument is not None and (is_fenced or is_outage(error)):
            self._instrument.noted(StoreFailed(is_fenced))

    async def _claim(self, callers: Sequence[Caller]) -> None:
        """Claim leases. If another process holds the lock of the store for too long, all callers get the error."""
        for index, caller in enumerate(callers):
            message = caller.message
            now = self._store.clock()
            claim = partial(
                claim_lease, self._store, message.entity_id, self.owner, self._ttl, lift=message.lift, now=now
            )
            try:
                lease = await self._access.write(claim)
            except Locked as error:
                _fail_all(callers[index:], error)
                return
            except LoomError as error:
                caller.fail(error)
                continue
            self._leases[message.entity_id] = lease
            self._tokens[message.entity_id] = lease.token
            self._unreleased.pop(message.entity_id, None)
            if self._store.expires:
                self._renewal.start()
            caller.reply(lease.token)

    async def _write(self, group: list[Caller]) -> None:
        records, taken, post, timers = _join_group([caller.message for caller in group])
        began = time.perf_counter()
        try:
            if records:
                await self._access.write(
                    partial(self._store.append, records, self._tokens, taken=taken, post=post, timers=timers)
                )
        except (Unsure, Locked) as error:  # not retried: it may be in the store already, or each would wait as long
            self._note_failure(error)
            _fail_all(group, error)
        except (LoomError, EntityEnded) as error:  # EntityEnded: of an entity that its mail was for
            if len(group) > 1:  # write one by one: only the entity at fault gets the error
                for caller in group:
                    await self._write([caller])
            else:
                self._note_failure(error)
                group[0].fail(error)
        else:
            self._note_written(records, post, timers, began, len(group))
            for caller in group:
                caller.reply(None)

    def _note_written(
        self,
        records: Sequence[Record],
        post: Sequence[tuple[int, Mail]],
        timers: Sequence[tuple[int, Timer]],
        began: float,
        count: int,
    ) -> None:
        """Report a commit of this many appends: its records, mail and timers are in the store."""
        if records and self._instrument is not None:
            self._instrument.committed(time.perf_counter() - began, count)
            self._instrument.written(records)
        self._listeners.publish(records)
        for _, mail in post:
            self._listeners.on_mail(mail.entity_id)
        for _, timer in timers:
            self._listeners.on_timer(timer)

    async def _post(self, posts: list[Caller]) -> None:
        mails = [caller.message.mail for caller in posts]
        try:
            rows = await self._access.write(partial(self._store.post, mails))
        except LoomError as error:
            self._note_failure(error)
            _fail_all(posts, error)
            return
        new = [
            Pending(row.no, caller.message.shown)
            for caller, row in zip(posts, rows, strict=True)
            if not isinstance(row, Exception) and row.taken is None
        ]
        self._listeners.deliver(sorted(new, key=lambda one: one.no), None)
        for caller, row in zip(posts, rows, strict=True):
            caller.reply(row)

    async def _change(self, work: Callable[[], T]) -> T:
        try:
            return await self._access.write(work)
        except CantripError as error:
            self._note_failure(error)
            raise

    # Tasks

    async def fetch(self, entity_id: str) -> None:
        """Deliver the mail that waits for a root entity that is loaded here."""
        try:
            mail, has_more = await self._change(partial(read_mail, self._store, entity_id))
            self._listeners.deliver(mail, entity_id if has_more else None)
        except LoomError as error:  # the search after an outage finds it
            _log.warning("mail could not be read", entity=entity_id, error=str(error))

    async def hand_over(self, entity_id: str, is_loaded: Callable[[str], bool]) -> None:
        """Release the tree of a root entity, unless it is loaded here: its mail waits for another process."""
        lease = None if is_loaded(entity_id) else self._leases.pop(entity_id, None)
        if lease is None:
            return
        if not await self._attempt("a lease could not be released", partial(self._store.release, lease)):
            self._unreleased[entity_id] = lease
            return
        self._tokens.pop(entity_id, None)
        self._listeners.notify_processes()

    async def keep_checkpoint(self, entity_id: str, data: bytes) -> None:
        """Store the state of an entity, as bytes, for the current end of its log."""

        def keep() -> None:
            tip = self._store.tip(entity_id)
            if tip is not None:  # a writer that has lost the lease lacks the records up to there
                self._store.keep_checkpoint(entity_id, tip, data, self._tokens if self._store.shared else None)

        await self._attempt("a checkpoint could not be kept", keep)

    async def quarantine(self, entity_id: str, why: str, *, is_repeated: bool) -> QuarantineRow:
        """Let no process run the tree of a root entity for a time, because it would crash again.

        `is_repeated` as for `LeaseStore.quarantine`. Raises LoomError: its lease is released when it has left, and it
        is tried again.
        """
        now = self._store.clock()
        row = await self._change(partial(self._store.quarantine, entity_id, why, now, is_repeated=is_repeated))
        self._leases.pop(entity_id, None)
        self._tokens.pop(entity_id, None)
        return row

    async def forget(self, wanted: Wanted, is_loaded: Callable[[str], bool]) -> Forgotten:
        """Forget entities that have ended, in a store with one writer. Raises LoomError.

        The slow part runs in a thread, in which `is_loaded` is called, too; nothing is written meanwhile.
        """
        self._is_forgetting = True
        try:
            with anyio.CancelScope(shield=True):
                finish = await self._access.run_in_thread(
                    partial(begin_forget, self._store, wanted, self.tokens, is_loaded)
                )
                forgotten = await self._access.write(finish)
        finally:
            self._is_forgetting = False
        return forgotten

    async def replace_timers(self, changes: Sequence[TimerChange]) -> list[list[MailRow] | Refusal | None]:
        """Make changes of timers in one transaction, as `Store.replace_timers`. Raises CantripError."""
        results = await self._change(partial(self._store.replace_timers, changes))
        new: list[Pending] = []
        for change, rows in zip(changes, results, strict=True):
            if isinstance(rows, list):
                new += [Pending(row.no, mail) for row, mail in zip(rows, change.post, strict=True) if row.taken is None]
                if change.new is not None:
                    self._listeners.on_timer(change.new)
        self._listeners.deliver(new, None)
        return results

    async def add_submission(self, row: SubmissionRow) -> bool:
        """Add a submission; return False if one with its id waits. Raises CantripError."""
        return await self._change(partial(self._store.add_submission, row))

    async def drop_submission(self, row: SubmissionRow) -> bool:
        """Remove a submission; return False if exactly this one does not wait any more. Raises CantripError."""
        return await self._change(partial(self._store.drop_submission, row))


def _fail_all(callers: Sequence[Caller], error: LoomError) -> None:
    """Raise an error in each caller. Each gets one of its own, because it adds the id of its entity."""
    for caller in callers:
        own = type(error)(str(error))
        own.__cause__ = error
        caller.fail(own)


def _join_group(
    group: Sequence[Append],
) -> tuple[list[Record], list[tuple[int, int]], list[tuple[int, Mail]], list[tuple[int, Timer]]]:
    """Return the records of a group; the mail that they take and post, and timers, by the indexes of the records."""
    records: list[Record] = []
    taken: list[tuple[int, int]] = []
    post: list[tuple[int, Mail]] = []
    timers: list[tuple[int, Timer]] = []
    for message in group:
        before = len(records)
        records.extend(message.records)
        if message.taken:
            taken += [(before + index, no) for index, no in message.taken]
        if message.outgoing:
            own_post, own_timers = _split(len(records) - 1, message.outgoing)
            post += own_post
            timers += own_timers
    return records, taken, post, timers


def _split(at: int, outgoing: Sequence[Mail | Timer]) -> tuple[list[tuple[int, Mail]], list[tuple[int, Timer]]]:
    """Return outgoing mail and timers, each with the index of the record that it goes out with."""
    timers = [(at, one) for one in outgoing if isinstance(one, Timer)]
    return [(at, one) for one in outgoing if not isinstance(one, Timer)], timers


def _is_release(message: object) -> bool:
    return isinstance(message, Release)
