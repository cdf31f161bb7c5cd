"""The interface of stores, which keep a loom's records.

A store appends and reads; no call changes or removes records (LOOM-3), except for forgetting. It handles records by
their entities; `view` interprets them. Readers read without awaiting, while another thread may be appending.

A memory loom and a JSONL file have one writer. An SQLite file may have several, in several processes, and a Postgres
database writers on many machines; leases decide which of them may write for an entity (`lease`).
"""

from __future__ import annotations

import math
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, NoReturn, Self, TypeVar

from cantrip_actors.loom.seal.seal_key import UNSEALED, Head, Seal
from cantrip_actors.loom.stores.blobs import bind_mail
from cantrip_actors.loom.stores.checkpoints import StoredCheckpoint, Tip, decode_checkpoint, encode_checkpoint
from cantrip_actors.loom.stores.damage import REPAIR, DamagedLoom
from cantrip_actors.loom.stores.erasure import Erasure
from cantrip_actors.loom.stores.facts import EntityFacts, WithRecords
from cantrip_actors.loom.stores.inbox import InboxFull, KeyUsed, MailPlan, Refusal, compute_lane_limit
from cantrip_actors.loom.stores.lease import NO_LEASES
from cantrip_actors.loom.stores.lease_store import LeaseStore
from cantrip_actors.loom.stores.rules import Plan, Waiting, plan, plan_timers, seal_plan
from cantrip_actors.loom.stores.selection import EVERYTHING, LARGEST_PAGE, ListedEntity, Selection
from cantrip_actors.machine.project import EntityStanding, Life, Status, as_forgotten, get_reward_key
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.codec import decode, encode
from cantrip_actors.records.mail import Mail, MailRow, Pending, decode_mail
from cantrip_actors.records.records import Header, Record
from cantrip_actors.records.seal import NOTHING, compute_link, split_link
from cantrip_actors.records.submissions import FIRST_SUBMISSION, HIGHEST, SubmissionPosition, SubmissionRow
from cantrip_actors.records.timers import FIRST, Due, Timer, decode_timer, encode_timer
from cantrip_actors.records.tombstone import is_tombstone
from cantrip_actors.terms.errors import CantripError, LoomError, UnknownEntity

T = TypeVar("T")

Durability = Literal["process", "power", "none"]
"""The events that an acknowledged record survives: a kill of the process, a power cut, or none for certain."""


class Unsure(LoomError):
    """The answer to an append was lost: all of it is recorded, or nothing. Read again before you append the same."""


class NextDue(NamedTuple):
    """The time when the next timer is due, infinity without one, and whether a submission without a queue waits."""

    due: float
    has_submission: bool


class LoopClock(NamedTuple):
    """The clock of an event loop; in virtual time it runs ahead of the monotonic one."""

    now: Callable[[], float]
    """Returns the loop's seconds, in any thread."""
    behind: float
    """By how many seconds it was behind the monotonic clock at first."""


class EntitySpan(NamedTuple):
    """Where records of an entity are in its tree."""

    root: str
    first: int
    """The first record of the entity."""
    last: int
    """The last record of the span."""
    head: bytes | None
    """The stored last link of the tree, in a store that keeps it apart from the lines."""


SET_BACK: Final = 1.0
"""Seconds by which a clock that was set back is behind. The time of a server, read again, is less behind."""


class Locked(LoomError):
    """Another process has held the lock of the loom for too long: nothing is recorded. Try again."""


class Postponed(BaseException):
    """An attempt has done nothing, because its work has to wait or takes long: do it in a thread (`Store.attempt`).

    It is not an Exception, so that no boundary on its way takes it for an error of the work.
    """


class Store(LeaseStore):
    """An append-only log of records, in order for each entity.

    Its methods may wait: for a disk, a server, or the lock of another process. They may take as long as the loom is
    large. `attempt` is for callers that can do neither.
    """

    where: str = "memory:"
    """Its name in messages: the path of its file, or the name of its database."""
    blocking: bool = False
    """Whether every change waits for a disk or a server, so that an attempt to make one is always postponed."""
    sealed: bool = True
    """Whether its lines have the links of a hash chain (`seal`)."""
    durability: Durability = "none"
    """The failures that an acknowledged record survives."""
    seal: Seal = UNSEALED
    """The keys for links, in a loom that was opened with `seal_key`."""
    written: int = 0
    """The number of bytes of records that it has appended."""
    numbers_in_order: bool = True
    """Whether records and mail are committed in the order of their numbers."""
    loop_clock: LoopClock | None = None
    """The clock of the runtime's event loop, with which `clock` runs ahead in virtual time."""
    _latest: float = 0.0
    """The time that `clock` returned last."""
    connections: int = 0
    """The number of connections to a server so far: after each new one the loom may be another replica."""
    max_waiting: int = 1000
    """How much mail may wait in each lane of an inbox; the control lane accepts some more that is urgent."""
    _conflicts: tuple[type[Exception], ...] = ()
    """The driver's error for a row that exists already."""

    def attempt(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which uses this store, if it neither waits nor takes long.

        Else raise Postponed, and change nothing. `work` may be called again, in a thread: so it makes at most one
        change of the store, as its last use of it.
        """
        if self.blocking:
            raise Postponed
        return work()

    def append(
        self,
        records: Sequence[Record],
        leases: Mapping[str, int] = NO_LEASES,
        *,
        taken: Sequence[tuple[int, int]] = (),
        post: Sequence[tuple[int, Mail]] = (),
        timers: Sequence[tuple[int, Timer]] = (),
    ) -> None:
        """Append `records`, all of them in this order or none; on return they are as durable as the store promises.

        `leases` maps root entities to the tokens under which the caller runs them, and may contain unneeded ones. The
        blobs of the records, images and snapshots (`Snapshot.blob`), are stored before those records, each once.

        Changes of mail are written in the same transaction. Each is given with the index of its record in `records`:
        `taken` is the number of a mail that the record takes, `post` a mail of another entity that is posted with the
        record, also to a full inbox (`check_room` before). A record that takes mail carries its key. One that ends a
        root entity for good takes all of its mail.

        `timers` are set in the same transaction, in place of those with the same entity and id; one with `due` None is
        cancelled. A record that ends an entity removes the timers of that entity.

        A process that is killed during the call may leave the first few of them, never a gap and never half of one.
        Raises LoomError if they cannot be written (a full disk) or may not come next (a turn that exists already),
        Fenced if another holder runs one of the entities, Taken for mail that a record took before, KeyUsed for a
        `post` whose key has other content, and for a reward whose key an earlier reward of its entity has, EntityEnded,
        and Unsure if it cannot know whether they are stored.
        """
        lines = [encode(record) for record in records]

        def work(db: Any) -> int:
            if not lines:
                return 0
            mails, numbers = [mail for _, mail in post], [no for _, no in taken]
            entities = [timer.entity_id for _, timer in timers]
            plan, mail_numbers = self._plan(db, records, lines, leases, mails=mails, taken=numbers, entities=entities)
            if plan.asides:
                self._check_reward_keys(db, records)
            if taken or post or plan.over:
                MailPlan(plan, self._known, self.max_waiting, mail_numbers).follow(taken=taken, post=post)
            if timers:
                plan_timers(plan, self._known, timers)
            self._write(db, plan)
            self._known.apply(plan)
            return sum(map(len, plan.lines))

        try:
            self.written += self._transact(work, *self._conflicts)
        except self._conflicts as error:
            self._refuse(records, error)

    def _check_reward_keys(self, db: Any, records: Sequence[Record]) -> None:
        """Raise KeyUsed for a reward whose key an earlier reward of its entity has; the plan has locked the tree."""
        for at, record in enumerate(records):
            entity_id, key = record.entity_id, get_reward_key(record)
            if key:
                earlier = chain(self._read_asides(db, entity_id), records[:at])
                if any((each.entity_id, get_reward_key(each)) == (entity_id, key) for each in earlier):
                    raise KeyUsed(f"the key {key!r} was used for another reward: give this one another key")

    @abstractmethod
    def _read_asides(self, db: Any, entity_id: str) -> Iterator[Record]:
        """Yield an entity's rewards and moves, inside of a transaction."""

    def append_copied(self, records: Sequence[Record], tombstones: Mapping[int, bytes]) -> None:
        """Append records of another store. `tombstones` are lines to copy unchanged, by the index of the record."""
        plain = {at: split_link(line) for at, line in tombstones.items()}
        kept = {at: line for at, (line, _) in plain.items()} if self.sealed else tombstones
        lines = [kept[at] if at in kept else encode(record) for at, record in enumerate(records)]
        links = [plain[at][1] if at in plain else None for at in range(len(records))]

        def work(db: Any) -> None:
            if records:
                plan, _ = self._plan(db, records, lines, links=links)
                self._write(db, plan)
                self._known.apply(plan)

        self._transact(work)

    def _plan(
        self,
        db: Any,
        records: Sequence[Record],
        lines: Sequence[bytes],
        leases: Mapping[str, int] = NO_LEASES,
        links: Sequence[bytes | None] = (),
        **facts: Sequence[Any],
    ) -> tuple[Plan, Iterator[int]]:
        """Look up the facts that a batch depends on; return the plan of its records, and numbers for its mail."""
        end = self._lock_head(db)
        numbers, mail_numbers = self._look_up(db, records, **facts)
        planned = plan(records, lines, numbers, self._known, leases)
        if not self.sealed:
            planned.lines += lines
            return planned, mail_numbers
        seal_plan(planned, self.seal.chain, links)
        if end is not None:
            planned.end = self.seal.follow(end, planned.lines)
        return planned, mail_numbers

    def _lock_head(self, db: Any) -> Head | None:  # noqa: ARG002  # a store with one writer has no lock
        """Return the head of a sealed loom, locked until the transaction ends; else None."""
        return self.head() if self.seal.chain else None

    def head(self) -> Head | None:
        """Return the stored head of a sealed loom; None if it is missing or cannot be read."""
        return None

    @abstractmethod
    def prepare_forget(self, wanted: Erasure, leases: Mapping[str, int] = NO_LEASES) -> Callable[[], int]:
        """Replace the records of ended entities by tombstones; `loom/maintenance/forget.py` decides which.

        This may take long, and may run in a thread while nothing is written. It returns a function that must be called
        in the store's own thread: it does the rest, and returns how many blobs were removed. Repeating both finishes
        what a killed process left. Raises LoomError for an entity that has not ended, Fenced if another holder runs its
        tree.
        """

    def half_forgotten(self) -> AbstractSet[str]:
        """Return the entities that a killed process has left without some of their content: forget them again."""
        return frozenset()

    @abstractmethod
    def scrub(self) -> None:
        """Remove deleted content from the store's free space, as far as possible; it may take long."""

    def snapshot(self) -> AbstractContextManager[object]:
        """Make all reads inside the block see one state. A JSONL file that is open read-only always does.

        A block inside of another one sees the state of the outer one.
        """
        return nullcontext()

    @abstractmethod
    def drop_unused_blobs(self) -> int:
        """Delete the blobs that no record, waiting mail or timer refers to; return how many."""

    @abstractmethod
    def ended_roots(self, after: str | None = None, limit: int = 100) -> list[str]:
        """Return root entities that have ended and are not forgotten, in order of creation, after that entity."""

    def post(self, mails: Sequence[Mail], *, most: int | None = None) -> list[MailRow | Refusal]:
        """Post mail, all in one transaction; on return it is as durable as the store promises.

        Returns for each mail its row, or the error for mail that is not accepted: KeyUsed, InboxFull, EntityEnded, or
        another LoomError (there is no such entity). A mail with the key and content of an earlier one gets the earlier
        row, which is not new. Raises LoomError if nothing can be written, and Unsure if it cannot know: then post the
        same again.

        `most` is how much mail may wait in a lane, in place of `max_waiting`.
        """

        def work(db: Any) -> list[MailRow | Refusal]:
            _, numbers = self._look_up(db, mails=mails)
            plan = Plan()
            mail_plan = MailPlan(plan, self._known, self.max_waiting if most is None else most, numbers)
            results = [mail_plan.post(mail) for mail in mails]
            if plan.posted:
                self._write(db, plan)
                self._known.apply(plan)
            return results

        return self._transact(work)

    @abstractmethod
    def pending(self, entity_id: str, limit: int = 100) -> list[Pending]:
        """Return the first mails that wait for an entity: control mail, then intents, each in the order of posting."""

    @abstractmethod
    def waiting(self, *, loads: bool = True) -> list[str]:
        """Return the root entities with waiting mail; with `loads` only mail for which an entity is loaded counts."""

    @abstractmethod
    def find_mail(self, entity_id: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key; None if it was never posted, or is forgotten."""

    @abstractmethod
    def expire_mail(self, before: str) -> None:
        """Forget mail that was settled before that time (ISO 8601, UTC); its keys can be used again.

        An intent is settled when its episode has ended, other mail when a record takes it. The latest mail of a store
        is kept, so that no number is used twice.
        """

    @abstractmethod
    def new_mail(self, after: int) -> tuple[int, list[MailRow]]:
        """Return the waiting mail with a number above `after`, in all inboxes, and the number for the next call.

        It is for mail of other processes; mail posted by this process may be included. The first call asks after 0. If
        there is very much mail, it may return only the first part, and the rest at the next calls. A call costs next to
        nothing while no other process has posted.
        """

    def replace_timer(self, old: Timer | None, new: Timer | None, post: Sequence[Mail] = ()) -> list[MailRow] | None:
        """Replace a timer by another one, and post mail, all in one transaction.

        With `old` None the timer is new, with `new` None it is removed. Returns None, and changes nothing, if the timer
        in the store is not `old`: then another process was faster. Else returns the rows of the mail. Raises KeyUsed,
        InboxFull, EntityEnded or another LoomError, without any change.
        """
        (result,) = self.replace_timers([(old, new, post)])
        if isinstance(result, CantripError):
            raise result
        return result

    def replace_timers(
        self, changes: Sequence[tuple[Timer | None, Timer | None, Sequence[Mail]]]
    ) -> list[list[MailRow] | Refusal | None]:
        """Make several changes like `replace_timer`, all in one transaction; return the result or error of each.

        No timer may occur twice. A single change may post several mails, several changes one mail each. Raises
        LoomError if nothing can be written.
        """
        which = [(one.entity_id, one.id) for one in (old or new for old, new, _ in changes) if one is not None]
        mails = [mail for _, _, post in changes for mail in post]

        def work(db: Any) -> list[list[MailRow] | Refusal | None]:
            _, numbers = self._look_up(db, mails=mails, entities=[owner for owner, _ in which if owner])
            plan = Plan()
            mail_plan = MailPlan(plan, self._known, self.max_waiting, numbers)
            rows = self._check_timers(db, which, [old for old, _, _ in changes])
            timers = []
            for at, (_, new, post) in enumerate(changes):
                if isinstance(rows[at], list):
                    rows[at] = _plan_mails(mail_plan, post)
                if isinstance(rows[at], list):
                    owner, id = which[at]
                    timers.append((None, new or Timer(id=id, due=None, entity_id=owner)))
            if timers:
                plan_timers(plan, self._known, timers)
                self._write(db, plan)
                self._known.apply(plan)
            return [rows[at] for at in range(len(changes))]

        return self._transact(work)

    def _check_timers(
        self, db: Any, which: Sequence[tuple[str, str]], olds: Sequence[Timer | None]
    ) -> dict[int, list[MailRow] | Refusal | None]:
        """Return, by its index, an empty list for a timer that may be replaced, an error for one of an unknown entity,
        and None for one that is not as expected.
        """
        rows: dict[int, list[MailRow] | Refusal | None] = {
            at: UnknownEntity(entity_id, f"timer {id!r} belongs to entity {entity_id}, which is not in this loom")
            for at, (entity_id, id) in enumerate(which)
            if entity_id and self._known.find_place(entity_id) is None
        }
        # all writers lock rows in one order
        order = sorted((at for at in range(len(which)) if at not in rows), key=which.__getitem__)
        lines = self._read_timer_lines(db, [which[at] for at in order])
        for at, line in zip(order, lines, strict=True):
            old = olds[at]
            rows[at] = [] if line == (None if old is None else encode_timer(old)) else None
        return rows

    @abstractmethod
    def timers(self, entity_id: str = "") -> list[Timer]:
        """Return the timers of an entity, or without one the schedules, by their ids."""

    @abstractmethod
    def find_timer(self, entity_id: str, id: str) -> Timer | None:
        """Return a timer of an entity, or for "" a schedule; None if it does not exist."""

    @abstractmethod
    def timers_due(self, until: float, *, after: Due = FIRST, limit: int = 100) -> list[Timer]:
        """Return the first timers after a position that are due at `until` (seconds since 1970), in order.

        The time that this takes does not depend on how many timers are not due.
        """

    @abstractmethod
    def next_due(self, after: float) -> NextDue:
        """Return when the first timer after a time is due, and whether a submission without a queue waits."""

    @abstractmethod
    def _read_timer_lines(self, db: Any, which: Sequence[tuple[str, str]]) -> list[bytes | None]:
        """Return the lines of timers, given by entity and id, None for a missing one; lock them against changes."""

    @abstractmethod
    def submissions(
        self, queue: str, *, after: SubmissionPosition = FIRST_SUBMISSION, limit: int = 100
    ) -> list[SubmissionRow]:
        """Return the first submissions after a position that wait in a queue, in the order in which they begin.

        The time that this takes does not depend on how many wait there, or in other queues.
        """

    @abstractmethod
    def list_submissions(self, after: str = "", limit: int = 500) -> list[SubmissionRow]:
        """Return the first submissions of all queues after an id, by their ids."""

    @abstractmethod
    def find_submission(self, id: str) -> SubmissionRow | None:
        """Return the submission with that id; None if none waits."""

    @abstractmethod
    def has_submissions(self, queue: str, count: int, priority: int = -HIGHEST) -> bool:
        """Return whether at least `count` submissions of at least that priority wait in a queue."""

    @abstractmethod
    def count_submissions(self, queue: str) -> int:
        """Return how many submissions wait in a queue; it reads all of them in the index."""

    def add_submission(self, row: SubmissionRow) -> bool:
        """Add a submission; return False, and change nothing, if one with its id waits. Raises LoomError."""
        return self._transact(lambda db: self._add_submission(db, row))

    def drop_submission(self, row: SubmissionRow) -> bool:
        """Remove a submission; return False if exactly this one does not wait any more. Raises LoomError."""
        return self._transact(lambda db: self._drop_submission(db, row))

    @abstractmethod
    def _add_submission(self, db: Any, row: SubmissionRow) -> bool:
        """Do the work of `add_submission` in a transaction."""

    @abstractmethod
    def _drop_submission(self, db: Any, row: SubmissionRow) -> bool:
        """Do the work of `drop_submission` in a transaction."""

    def risks(self) -> list[str]:
        """Return the ways in which acknowledged records may be lost, for an administrator."""
        return []

    def can_hint(self) -> bool:
        """Return whether processes of this loom can send each other hints to poll it (`hint`, `listen`)."""
        return False

    def hint(self) -> None:  # most stores have no other processes
        """Send a hint to the other processes of the loom, so that they poll it. May block for a moment."""

    def listen(self, receive: Callable[[], object], stopped: threading.Event) -> None:  # likewise
        """Call `receive` for each hint, and once at the beginning, until `stopped`; blocks. Raises LoomError."""

    def read_clock(self) -> float:
        """Return the seconds since 1970 by the clock of the loom's server, or else of this machine."""
        return time.time()

    def clock(self) -> float:
        """Return the seconds since 1970 by the clock of the loom; in virtual time it runs ahead as the event loop does.

        Each call returns a later time than the call before, so times order what happens in a process. Only a clock that
        was set back by a second or more goes back. Any thread may ask.
        """
        loop = self.loop_clock
        now = self.read_clock()
        if loop is not None:
            now += loop.behind - (time.monotonic() - loop.now())
        if self._latest - SET_BACK < now <= self._latest:
            now = math.nextafter(self._latest, math.inf)
        self._latest = now
        return now

    @abstractmethod
    def change_account(self, name: str, change: Callable[[str | None, float], tuple[str, T]], now: float) -> T:
        """Change an account, a text that all processes of the loom share; return the second result of `change`.

        `change` gets the account, None for a new one, and the time in seconds: the server's, or `now` if only one
        process writes.
        """

    @abstractmethod
    def accounts(self, prefix: str) -> dict[str, str]:
        """Return the accounts whose names begin with `prefix`, which has no `%` and no `_`, as they are now."""

    def check_room(self, mail: Mail) -> None:
        """Raise InboxFull if this mail would not be accepted because too much waits."""
        waits, most = self.count_mail(mail.entity_id)[mail.lane], compute_lane_limit(mail, self.max_waiting)
        if waits >= most and self.find_mail(mail.entity_id, mail.key) is None:
            raise InboxFull.at(most, mail.entity_id)

    @abstractmethod
    def count_mail(self, entity_id: str) -> Waiting:
        """Return how much mail waits for an entity."""

    @abstractmethod
    def records(self, entity_id: str, *, after: int = -1, limit: int = sys.maxsize) -> Sequence[Record]:
        """Return the records of an entity, in order; nothing for an unknown entity.

        `after` skips the records up to that position (`tip`), at no cost; `limit` is the most records to read. The
        bytes of their images are read on first use.
        """

    @abstractmethod
    def newest(self, entity_id: str, limit: int) -> Sequence[Record]:
        """Return the last records of an entity, at most `limit`, in order."""

    @abstractmethod
    def asides(self, entity_id: str) -> Sequence[tuple[int, Record]]:
        """Return an entity's rewards, moves to other cantrips and undos (`ASIDES`), in order, with their positions.

        The other records are not read.
        """

    @abstractmethod
    def tip(self, entity_id: str) -> Tip | None:
        """Return the position of an entity's last record; None for an unknown entity."""

    @abstractmethod
    def standing(self, entity_id: str) -> EntityStanding | None:
        """Return how an entity stands after its last record; None for an unknown entity."""

    @abstractmethod
    def standings(self) -> Iterator[tuple[str, EntityStanding]]:
        """Yield every entity and how it stands, in order of creation (`verify`)."""

    def life(self, entity_id: str) -> Life | None:
        """Return the phase of an entity's life; None for an unknown entity."""
        standing = self.standing(entity_id)
        return None if standing is None else standing.life

    def keep_checkpoint(self, entity_id: str, tip: Tip, data: bytes, leases: Mapping[str, int] | None = None) -> None:
        """Store the state of an entity after its record at `tip`, in place of the earlier checkpoint.

        `leases` are the tokens of the entity's holder, as for `append`. Raises Fenced if another holder, whose records
        this state lacks, runs it, and LoomError if it cannot be written; the entity does not need it.
        """
        self._keep_checkpoint(entity_id, encode_checkpoint(tip, data, self.seal.state), leases)

    def checkpoint(self, entity_id: str) -> StoredCheckpoint | None:
        """Return the last checkpoint, if the log still has its record."""
        rows = self._open_checkpoint(self._find_checkpoint(entity_id))
        if rows is None or self._link(entity_id, rows[0].position) != rows[0].link:
            return None
        return StoredCheckpoint(rows[0].position, rows[1])

    def _open_checkpoint(self, data: bytes | None) -> tuple[Tip, bytes] | None:
        """Return the record that stored bytes name, and the state after it; None for damaged ones."""
        return None if data is None or self.seal.is_locked else decode_checkpoint(data, self.seal.state)

    def facts(self, entity_id: str, with_records: WithRecords = "always") -> EntityFacts | None:
        """Return the facts that a process needs before it runs an entity; None for an unknown entity."""
        held = self.find_held(entity_id)  # read first: its holder records the end before it releases it
        header, life = self.header(entity_id), self.life(entity_id)
        if header is None or life is None:
            return None
        if with_records == "never" or (with_records == "unless_held" and held):
            return EntityFacts(header, life, held, None, ())
        kept = self.checkpoint(entity_id)
        records = self.records(entity_id, after=-1 if kept is None else kept.position)
        return EntityFacts(header, life, held, kept, records)

    @abstractmethod
    def _keep_checkpoint(self, entity_id: str, data: bytes, leases: Mapping[str, int] | None) -> None:
        """Store bytes for an entity. Raises Fenced."""

    @abstractmethod
    def _find_checkpoint(self, entity_id: str) -> bytes | None:
        """Return the bytes stored for an entity."""

    @abstractmethod
    def _link(self, entity_id: str, position: int) -> bytes | None:
        """Return the link in the line at a position; None if that is not a record of the entity."""

    def check_chain(self, root: str, after: int = -1) -> None:
        """Raise DamagedLoom if a record of a tree, from position `after` on, was changed, moved or removed."""
        before: bytes | None = None if after >= 0 else NOTHING
        key = self.seal.chain
        erased: set[str] = set()
        for number, line in self._read_tree_lines(root, after) if self.sealed and not self.seal.is_locked else ():
            plain, link = split_link(line)
            is_erased = is_tombstone(plain)
            is_forged = link is None if key else False
            if before is not None and link is not None and not is_erased:
                is_forged = link != compute_link(plain, before, key)
            if is_forged:
                raise DamagedLoom(
                    f"entity {root} cannot be continued: record {number} is not what was written after the one before "
                    f"it, so one of them was changed or taken out. {REPAIR}"
                )
            if key and is_erased:
                erased.add(decode(plain).entity_id)
            elif erased and as_forgotten(record := decode(plain)) is not None:
                erased.discard(record.entity_id)
            before = compute_link(plain, before or NOTHING) if link is None else link
        if erased:
            erased -= self.half_forgotten()
        if erased:  # only a record with a link proves that an entity was forgotten
            raise DamagedLoom(
                f"entity {root} cannot be continued: records of entity {min(erased)} are gone, and no record says that "
                f"it was forgotten. {REPAIR}"
            )

    def check_records(self, entity_id: str, after: int = -1, count: int = sys.maxsize) -> None:
        """Raise DamagedLoom if one of the next `count` records of an entity after a position was changed (0171).

        It checks the chain of the entity's tree up to the record after the last of them, so it also finds records that
        were moved or removed; nothing in a loom that was opened without its key.
        """
        span = self._find_span(entity_id, after, count) if self.sealed and not self.seal.is_locked else None
        if span is None:
            return
        root, first, last, head = span
        before: bytes | None = NOTHING
        if after >= 0:
            first, before = after, None
        elif root != entity_id:
            before = self._find_link_before(root, first)
        number, key, links = first, self.seal.chain, set[bytes]()
        for number, line in self._read_tree_lines(root, first, last - first + 2):
            plain, link = split_link(line)
            expected = link if before is None or (link and is_tombstone(plain)) else compute_link(plain, before, key)
            if link != expected and (link is not None or key):
                what = f"record {number} of its tree is not what was written after the one before it"
                raise DamagedLoom(f"entity {entity_id} cannot be read: {what}, so one of them was changed. {REPAIR}")
            before = expected or compute_link(plain, NOTHING)
            links.add(before)
            if number > last:
                return
        if number < last or (head is not None and links and head not in links):
            what = "the records at the end of its tree are not those that were written last"
            raise DamagedLoom(f"entity {entity_id} cannot be read: {what}. {REPAIR}")

    @abstractmethod
    def _find_span(self, entity_id: str, after: int, count: int) -> EntitySpan | None:
        """Return where the next records of an entity after a position are; None without any."""

    @abstractmethod
    def _find_link_before(self, root: str, number: int) -> bytes:
        """Return the link of the last line of a tree before a number."""

    @abstractmethod
    def _read_tree_lines(self, root: str, first: int, expected: int = sys.maxsize) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of a tree with their numbers, in order, from that number on; about `expected` are needed."""

    @abstractmethod
    def records_after(self, number: int, limit: int) -> list[tuple[int, Record]]:
        """Return the next records of all entities after that number, with their numbers, in order.

        The bytes of their images are not attached.
        """

    @abstractmethod
    def last_number(self) -> int:
        """Return the number of the last record; 0 for an empty loom."""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield every record as its number and its line, in the order of recording, up to the call."""
        return ((number, line) for number, line, _ in self.indexed_lines())

    @abstractmethod
    def indexed_lines(self) -> Iterator[tuple[int, bytes, tuple[str | None, str | None] | None]]:
        """Yield every line with its number, and its row's entity and turn; None in a store without rows."""

    @abstractmethod
    def blob(self, digest: str) -> Blob | None:
        """Return the stored blob of that digest, or None. Check a snapshot's seal before you load it."""

    @abstractmethod
    def blobs(self) -> Iterator[str]:
        """Return the digests of all blobs."""

    def key(self) -> bytes | None:
        """Return the key that seals this store's snapshots, made on demand; None for a store without one.

        It is stored next to the loom, and works only where it was made (`key_file`).
        """
        return None

    def heads(self) -> Mapping[str, bytes] | None:
        """Return the last link of each root's tree, if the store keeps them apart from its lines (`verify`)."""
        return None

    def _decode_pending(self, no: int, line: bytes) -> Pending:
        """Return the mail of its line; the bytes of its images are read on first use. Raises DamagedLoom."""
        try:
            return Pending(no, bind_mail(decode_mail(line), self.blob))
        except LoomError as error:
            raise DamagedLoom(f"mail {no} of {self.where} is damaged: {error}. {REPAIR}") from error

    def _decode_timer(self, line: bytes) -> Timer:
        """Return the timer of its line; the bytes of its mail's images are read on first use."""
        try:
            timer = decode_timer(line)
        except LoomError as error:
            raise DamagedLoom(f"a timer of {self.where} is damaged: {error}. {REPAIR}") from error
        return timer if timer.mail is None else replace(timer, mail=bind_mail(timer.mail, self.blob))

    def faults(self) -> Iterator[str]:
        """Yield the faults in the store that the lines do not show (`verify`)."""
        yield from ()

    @abstractmethod
    def header(self, entity_id: str) -> Header | None:
        """Return an entity's header; None if the entity is not in this loom."""

    @abstractmethod
    def headers(self) -> Iterator[Header]:
        """Yield every entity's header, in order of creation."""

    @abstractmethod
    def owner(self, turn_id: str) -> str | None:
        """Return the entity that a committed turn belongs to; None for an unknown turn."""

    @abstractmethod
    def children(self, turn_id: str) -> Sequence[str]:
        """Return the entities that a turn spawned, in order of creation."""

    @abstractmethod
    def forks(self, turn_id: str) -> Sequence[str]:
        """Return the entities that were forked from a turn, in order of creation."""

    @abstractmethod
    def branches(self, entity_id: str) -> Sequence[str]:
        """Return the entities that were forked from any turn of an entity, in order of creation."""

    @abstractmethod
    def below(self, entity_id: str) -> Sequence[str]:
        """Return the entities that an entity spawned, at any turn, in order of creation."""

    @abstractmethod
    def named(self, name: str) -> str | None:
        """Return the latest long-lived entity with that name in its header, ended or not; None without one."""

    @abstractmethod
    def select(
        self,
        selection: Selection = EVERYTHING,
        cursor: str | None = None,
        limit: int = LARGEST_PAGE,
        *,
        oldest_first: bool = False,
    ) -> list[ListedEntity]:
        """Return the newest entities of a selection, at most `limit`: those that began last come first.

        With `oldest_first` the order is reversed. With a `cursor`, the id of an entity, those that follow it in this
        order; none for an unknown id. The time that this takes depends on how many it returns; with several
        conditions, also on how many fit the rarest one.
        """

    @abstractmethod
    def count_states(self, tenant: str | None = None) -> dict[Status, int]:
        """Return how many entities of all tenants, or of one, are in each state; it reads an index only."""

    def unfinished(self, *, idle: bool = True) -> Sequence[str]:
        """Return the entities that have not ended for good according to their logs, in order of creation.

        Without `idle`, entities that are idle or wait for a person themselves are left out.
        """
        return self.entities_at(Life.WAITING, Life.IDLE) if idle else self.entities_at(Life.BUSY, Life.BUSY)

    @abstractmethod
    def entities_at(self, first: Life, last: Life) -> Sequence[str]:
        """Return the entities with lives between two phases, in order of creation; not for OVER."""

    def size(self) -> int | None:
        """Return the size of the loom in bytes; None if it is not on this disk. It reads no line and takes no lock."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release the store's file or connections. Closing twice is fine; a later append raises LoomError."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    # ----------------------------------------------------------------------------------- what each kind of store does

    @abstractmethod
    def _write(self, db: Any, plan: Plan) -> None:
        """Write lines, blobs, mail and their consequences; all or none of the lines and the mail."""

    def _refuse(self, records: Sequence[Record], error: Exception) -> NoReturn:  # noqa: ARG002  # tables say which
        """Raise LoomError for records that one of `_conflicts` kept from being written."""
        raise error


def _plan_mails(mail_plan: MailPlan, post: Sequence[Mail]) -> list[MailRow] | Refusal:
    """Plan mail; return its rows, or the error for one that is refused."""
    rows = []
    for mail in post:
        row = mail_plan.post(mail)
        if not isinstance(row, MailRow):
            return row
        rows.append(row)
    return rows
