"""The memory store: a loom that lives as long as its process, for tests, demos and throw-away casts.

It keeps lines, as a file would, and not record objects: a million of those would take several times the memory, and the
garbage collector would traverse them again and again. The number of a record is the position of its line, from 1 on.

The JSONL store is this store with a journal (`jsonl.py`).
"""

from __future__ import annotations

import heapq
import hmac
import itertools
import math
import secrets
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, TypeVar

from cantrip_actors.loom.memory.journal import JournalLine
from cantrip_actors.loom.memory.memory_index import MemoryIndex
from cantrip_actors.loom.seal.seal_key import GivenKey, Head, open_seal
from cantrip_actors.loom.stores.blobs import attach_images
from cantrip_actors.loom.stores.checkpoints import Tip
from cantrip_actors.loom.stores.erasure import (
    ErasedLog,
    Erasure,
    check_ended,
    find_blobs_in_line,
    find_blobs_in_mail,
    find_blobs_in_timer,
    is_schedule_for,
    make_blank_key,
)
from cantrip_actors.loom.stores.inbox import TakenMail, mark_fault, select_settled
from cantrip_actors.loom.stores.lease import NO_LEASES, Holder, QuarantineRow, make_holder, read_boot_clock
from cantrip_actors.loom.stores.read_budget import UNIT, ReadBudget
from cantrip_actors.loom.stores.rules import NONE_WAITS, Plan, Waiting
from cantrip_actors.loom.stores.selection import EVERYTHING, LARGEST_PAGE, ListedEntity, Selection
from cantrip_actors.loom.stores.store import EntitySpan, NextDue, Postponed, Store
from cantrip_actors.machine.project import EntityStanding, Life, Status, get_header, get_time
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.codec import decode, encode
from cantrip_actors.records.mail import MailRow, Pending, decode_mail
from cantrip_actors.records.records import ForgottenRecord, Header, Record
from cantrip_actors.records.seal import NOTHING, split_link
from cantrip_actors.records.submissions import FIRST_SUBMISSION, HIGHEST, SubmissionPosition, SubmissionRow
from cantrip_actors.records.timers import FIRST, Due, Timer
from cantrip_actors.terms.errors import LoomError

T = TypeVar("T")

NUMBERS: Final = 100
"""Numbers of lines that cost as much of a `ReadBudget` as a line."""


class Erased(NamedTuple):
    """The changes that forget entities: tombstones by their numbers, and the plan of the records that follow them."""

    lines: Mapping[int, bytes] = {}  # a tuple's default, never changed
    plan: Plan = Plan()
    mail: Mapping[int, tuple[MailRow, MailRow]] = {}  # likewise
    """Rows of mail by their numbers, and their new values."""
    schedules: Sequence[str] = ()
    """The ids of schedules to remove."""
    names: AbstractSet[str] = frozenset()
    """The names, scoped, that led to one of the entities."""
    blobs: AbstractSet[str] = frozenset()
    """The digests of blobs that nothing refers to any more."""
    last_mail: int = 0
    """The number of the last mail when these blobs were found."""


NOTHING_ERASED = Erased()


class MemoryStore(Store):
    """A store with one process and without a disk. It can still be read after it is closed.

    Its lines have no links, because no other program can edit them, unless it has a `seal_key`.
    """

    shared = False
    sealed = False

    _known: MemoryIndex

    def __init__(self, *, seal_key: GivenKey = None) -> None:
        self._known = MemoryIndex()
        self._lines: list[bytes] = []
        self._blobs: dict[str, Blob] = {}
        self._checkpoints: dict[str, bytes] = {}
        self._accounts: dict[str, str] = {}
        self._claims = 0
        self._writing = threading.RLock()
        """Held by each change, of a file and of the index: a file that is rewritten meanwhile has all of it."""
        self._budget = ReadBudget()
        self._key = secrets.token_bytes(32)
        self._closed = False
        self.seal = open_seal(seal_key, None, self.where, is_new=True)
        self.sealed = self.sealed or self.seal.mark is not None
        self._head: Head | None = self.seal.beginning

    def _check_open(self) -> None:
        if self._closed:
            raise LoomError("the loom is closed: nothing can be recorded any more")

    def attempt(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise Postponed, as for a large read."""
        if self.blocking:
            raise Postponed
        return self._budget.attempt(work)

    def _transact(self, work: Callable[[None], T], *expected: type[Exception]) -> T:  # noqa: ARG002  # nothing to undo
        with self._writing:
            return work(None)

    def _look_up(
        self,
        db: None,  # noqa: ARG002  # there is none
        records: Sequence[Record] = (),
        *,
        roots: Sequence[str] = (),
        **_: object,  # the index has everything
    ) -> tuple[Sequence[int], Iterator[int]]:
        if not roots:  # a lease is also released once the store is closed
            self._check_open()
        first = len(self._lines) + 1
        return range(first, first + len(records)), itertools.count(self._known.mail.last + 1)

    def _write(self, db: None, plan: Plan) -> None:  # noqa: ARG002  # there is none
        for digest, blob in plan.blobs.items():
            self._blobs.setdefault(digest, blob)
        self._lines += plan.lines
        if plan.end is not None:
            self._head = plan.end

    def head(self) -> Head | None:
        """Return the head of a sealed loom."""
        return None if self.seal.mark is None else self._head

    # --------------------------------------------------------------------------------------------------------- accounts

    def change_account(self, name: str, change: Callable[[str | None, float], tuple[str, T]], now: float) -> T:
        """Change an account; the time is `now`, because no other process writes to this loom."""

        def work(_: None) -> T:
            old = self._accounts.get(name)
            state, result = change(old, now)
            self._change([JournalLine(account=(name, state))] if state != old else [])
            return result

        return self._transact(work)

    def accounts(self, prefix: str) -> dict[str, str]:
        """Return the accounts whose names begin with `prefix`."""
        return {name: state for name, state in list(self._accounts.items()) if name.startswith(prefix)}

    # ------------------------------------------------------------------------------------------------------------- mail

    def pending(self, entity_id: str, limit: int = 100) -> list[Pending]:
        """Return the waiting mail of an entity, control lane first, then in order."""
        return [self._decode_pending(no, line) for no, line in self._known.mail.list_pending(entity_id, limit)]

    def waiting(self, *, loads: bool = True) -> list[str]:
        """Return the entities that have waiting mail for which they are loaded."""
        places = self._known.places
        return [id for id in self._known.mail.list_entities() if not loads or places[id].tree.waiting.loads]

    def find_mail(self, entity_id: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key."""
        return self._known.find_mail(entity_id, key)

    def new_mail(self, after: int) -> tuple[int, list[MailRow]]:
        """Return the waiting mail with a number above `after`."""
        mail = self._known.mail
        return mail.last, mail.list_waiting_after(after)

    def count_mail(self, entity_id: str) -> Waiting:
        """Return how much mail waits for an entity."""
        place = self._known.find_place(entity_id)
        return NONE_WAITS if place is None else place.tree.waiting

    def expire_mail(self, before: str) -> None:
        """Forget mail that was settled before that time."""
        self._check_open()
        mail = self._known.mail
        rows = {row.no: row for row in list(mail.rows.values()) if row.no < mail.last}
        old = [
            TakenMail(row.no, row.entity_id, row.lane, row.taken)
            for row in rows.values()
            if row.taken is not None and get_time(self._decode_line(row.taken)) < before
        ]
        settled = [rows[mail.no] for mail in select_settled(old, before, self.records)]
        self._transact(lambda _: self._change([JournalLine(expired=(row.entity_id, row.key)) for row in settled]))

    def faults(self) -> Iterator[str]:
        """Yield where the stored mail contradicts the lines."""
        places = self._known.places
        for row in list(self._known.mail.rows.values()):
            if row.taken is not None:
                try:
                    record = self._decode_line(row.taken)
                except LoomError:
                    record = None
                lasting, tree = places[row.entity_id].lasting, places[row.entity_id].tree
                if record is not None and (record.entity_id not in places or places[record.entity_id].tree is not tree):
                    record = None
                if (fault := mark_fault(row.no, row.entity_id, row.key, record, lasting=lasting)) is not None:
                    yield fault

    # ----------------------------------------------------------------------------------------------------------- timers

    def timers(self, entity_id: str = "") -> list[Timer]:
        """Return the timers of an entity, or the schedules."""
        return [self._decode_timer(line) for line in self._known.timers.list_lines(entity_id)]

    def find_timer(self, entity_id: str, id: str) -> Timer | None:
        """Return the timer with that id."""
        line = self._known.timers.find(entity_id, id)
        return None if line is None else self._decode_timer(line)

    def timers_due(self, until: float, *, after: Due = FIRST, limit: int = 100) -> list[Timer]:
        """Return the first timers that are due, in order."""
        return [self._decode_timer(line) for line in self._known.timers.list_due(until, after, limit)]

    def next_due(self, after: float) -> NextDue:
        """Return when the first timer after a time is due, and whether a submission without a queue waits."""
        due, index = self._known.timers.find_next(after), self._known
        return NextDue(math.inf if due is None else due, index.submissions.count("", -HIGHEST) > 0)

    def _read_timer_lines(self, db: None, which: Sequence[tuple[str, str]]) -> list[bytes | None]:  # noqa: ARG002  # none
        return [self._known.timers.find(entity_id, id) for entity_id, id in which]

    # ------------------------------------------------------------------------------------------------------ submissions

    def submissions(
        self, queue: str, *, after: SubmissionPosition = FIRST_SUBMISSION, limit: int = 100
    ) -> list[SubmissionRow]:
        """Return the first submissions that wait in a queue, in order."""
        return self._known.submissions.list_next(queue, after, limit)

    def list_submissions(self, after: str = "", limit: int = 500) -> list[SubmissionRow]:
        """Return submissions of all queues, by their ids."""
        rows = [item for item in list(self._known.submissions.rows.items()) if item[0] > after]
        return [row for _, row in heapq.nsmallest(limit, rows)]

    def find_submission(self, id: str) -> SubmissionRow | None:
        """Return the submission with that id."""
        return self._known.submissions.rows.get(id)

    def has_submissions(self, queue: str, count: int, priority: int = -HIGHEST) -> bool:
        """Return whether at least `count` submissions of at least that priority wait in a queue."""
        return self._known.submissions.count(queue, priority) >= count

    def count_submissions(self, queue: str) -> int:
        """Return how many submissions wait in a queue."""
        return self._known.submissions.count(queue, -HIGHEST)

    def _add_submission(self, db: None, row: SubmissionRow) -> bool:  # noqa: ARG002  # there is none
        is_new = row.id not in self._known.submissions.rows
        self._change([JournalLine(submission=row)] if is_new else [])
        return is_new

    def _drop_submission(self, db: None, row: SubmissionRow) -> bool:  # noqa: ARG002  # likewise
        waits = self._known.submissions.rows.get(row.id) == row
        self._change([JournalLine(removed=row.id)] if waits else [])
        return waits

    def _change(self, lines: Sequence[JournalLine]) -> None:
        """Make changes that have no record; a store with a file writes them first."""
        index = self._known
        for line in lines:
            if line.account is not None:
                self._accounts.update([line.account])
            elif line.expired is not None:
                index.mail.remove(*line.expired)
            elif line.submission is not None:
                index.submissions.add(line.submission)
            elif line.removed is not None:
                index.submissions.remove(line.removed)

    # ------------------------------------------------------------------------------------------------------- forgetting

    def prepare_forget(self, wanted: Erasure, leases: Mapping[str, int] = NO_LEASES) -> Callable[[], int]:
        """Prepare tombstones for the records of ended entities, and a file without their content."""
        self._check_open()
        erased = self._erase(wanted, leases)
        replace_file = self._rewrite(erased)

        def complete() -> int:
            removed = self._replace(erased, replace_file)
            for entity in (*wanted.entities, *wanted.forks):
                self._checkpoints.pop(entity, None)
            return removed

        return complete

    def _replace(self, erased: Erased, replace_file: Callable[[AbstractSet[str]], None]) -> int:
        """Make these changes, for which a new file was prepared; return how many blobs were removed.

        A blob stays if mail or a timer refers to it that has come since the changes were planned.
        """
        with self._writing:
            late = self._find_blobs_of_waiting(erased.blobs, self._known.mail.list_waiting_after(erased.last_mail))
            replace_file(late)
            unused = erased.blobs - late
            self._apply_erased(erased._replace(blobs=unused))
        return len(unused)

    def _erase(self, wanted: Erasure, leases: Mapping[str, int]) -> Erased:
        """Return the changes that forget entities; nothing is changed yet."""
        known = self._known
        tombstones: dict[int, bytes] = {}
        records: list[ForgottenRecord] = []
        for entity in wanted.entities:
            place = known.find_place(entity)
            if place is None or place.life is Life.FORGOTTEN:
                continue
            check_ended(entity, place.life)
            numbers = known.list_numbers(entity)
            log = ErasedLog(entity)
            tombstones.update((number, log.add(self._lines[number - 1])) for number in numbers)
            records.append(log.make_record(wanted))
        plan, _ = self._plan(None, records, [encode(record) for record in records], leases)
        mail: dict[int, tuple[MailRow, MailRow]] = {}
        for record, number in zip(records, plan.numbers, strict=True):
            for row in self._select_mail(record.entity_id):
                blank = row._replace(key=make_blank_key(row.no), digest=b"", taken=number)
                mail.setdefault(row.no, (row, blank))
        names = {name for name, entity in known.names.items() if entity in wanted.entities}
        schedules = [timer.id for timer in self.timers() if is_schedule_for(timer, wanted.entities, names)]
        return self._plan_blobs(Erased(tombstones, plan, mail, schedules, names))

    def _select_mail(self, entity: str) -> Iterator[MailRow]:
        """Yield the mail of an entity: in its own inbox, or in that of its root for it."""
        place = self._known.places[entity]
        root, numbers = place.tree.root, frozenset(self._known.list_numbers(entity))
        for row, line in self._known.mail.read_lines():
            if row.entity_id == root and (
                root == entity or row.taken in numbers or (line and decode_mail(line).child == entity)
            ):
                yield row

    def _plan_blobs(self, erased: Erased = NOTHING_ERASED) -> Erased:
        """Return the same changes, and the removal of the blobs that nothing refers to after them."""
        mail = self._known.mail
        last, digests, used = mail.last, set(self._blobs), set[str]()
        if digests:
            for number, line in self.lines():
                used.update(find_blobs_in_line(erased.lines.get(number, line), digests))
            rows = (row for row in mail.list_waiting_after(0) if row.no not in erased.mail)
            used |= self._find_blobs_of_waiting(digests, rows)
        return erased._replace(blobs=digests - used, last_mail=last)

    def _find_blobs_of_waiting(self, digests: AbstractSet[str], rows: Iterable[MailRow]) -> AbstractSet[str]:
        """Return which of these blobs are those of this waiting mail, or of timers."""
        mail, timers = self._known.mail, self._known.timers.list_all()
        return {
            *(digest for row in rows for digest in find_blobs_in_mail(mail.get_line(row), digests)),
            *(digest for _, _, line in timers for digest in find_blobs_in_timer(line, digests)),
        }

    def _apply_erased(self, erased: Erased) -> None:
        known = self._known
        for number, line in erased.lines.items():
            self._lines[number - 1] = line
        MemoryStore._write(self, None, erased.plan)  # a store with a file has written them
        known.apply(erased.plan)
        for row, blank in erased.mail.values():
            known.mail.replace(row, blank)
            known.places[row.entity_id].tree.waiting = known.mail.count(row.entity_id)
        for record in erased.plan.records:
            known.listing.clear_origin(record.entity_id)
        for name in erased.names:
            self._restore_name(name)
        for id in erased.schedules:
            known.timers.remove("", id)
        for digest in erased.blobs:
            del self._blobs[digest]

    def _restore_name(self, name: str) -> None:
        """Find the latest remaining entity with a name that a forgotten entity had."""
        self._known.names.pop(name)
        for header in self.headers():
            if header.lasting and header.scoped_name == name:
                self._known.names[name] = header.entity_id

    def _rewrite(self, erased: Erased = NOTHING_ERASED) -> Callable[[AbstractSet[str]], None]:  # noqa: ARG002  # a store with a file does
        """Write the loom after these changes to a new file; return a function that puts it in the file's place.

        That function takes the digests of blobs that are kept after all.
        """
        return lambda _: None

    def drop_unused_blobs(self) -> int:
        """Delete the blobs that no record, waiting mail or timer refers to; return their number."""
        erased = self._plan_blobs()
        return self._replace(erased, self._rewrite(erased)) if erased.blobs else 0

    def scrub(self) -> None:
        """Do nothing: replaced lines are gone already."""

    def ended_roots(self, after: str | None = None, limit: int = 100) -> list[str]:
        """Return root entities that have ended and are not forgotten, after that one."""
        places = iter(list(self._known.places.items()))
        if after is not None:
            places = itertools.dropwhile(lambda item: item[0] != after, places)
            next(places, None)
        roots = (id for id, place in places if place.life is Life.OVER and place.tree.root == id)
        return [*itertools.islice(roots, limit)]

    # ----------------------------------------------------------------------------------------------------------- leases

    def _find_holder(self, db: None, entity: str) -> Holder | None:  # noqa: ARG002  # no other writer
        holder = self._known.leases.get(entity)
        return None if holder is None else holder._replace(left=holder.left - read_boot_clock())

    def _grant(
        self,
        db: None,  # noqa: ARG002  # likewise
        entity: str,
        owner: str | None,
        deaths: int,
        ttl: float,
        note: str,
        until: float | None = None,
    ) -> tuple[int, float]:
        token = self._claims + 1
        self._set_lease(entity, token, make_holder(token, owner, deaths, read_boot_clock() + ttl, until, note))
        return token, time.time() + ttl

    def _drop(self, db: None, entity: str, token: int) -> None:  # noqa: ARG002  # likewise
        if self._known.find_token(entity) == token:
            self._set_lease(entity, token, None)

    def _set_lease(self, entity: str, token: int, holder: Holder | None) -> None:
        self._claims = max(self._claims, token)
        if holder is None:
            self._known.leases.pop(entity, None)
        else:
            self._known.leases[entity] = holder

    def quarantines(self) -> list[QuarantineRow]:
        """Return the quarantines, in the order of the entities' ids."""
        leases = sorted(self._known.leases.items())
        return [QuarantineRow(entity, row.why, row.until) for entity, row in leases if row.owner is None]

    def renew(self, owner: str, ttl: float) -> None:
        """Let all leases of `owner` last until `ttl` seconds from now."""
        until, leases = read_boot_clock() + ttl, self._known.leases
        leases.update({id: holder._replace(left=until) for id, holder in [*leases.items()] if holder.owner == owner})

    def find_held(self, entity_id: str) -> None:
        """Return None: no other process opens the store."""

    # ---------------------------------------------------------------------------------------------------------- reading

    def records_after(self, number: int, limit: int) -> list[tuple[int, Record]]:
        """Return the next records of all entities after that number."""
        return [(at, decode(line)) for at, line in enumerate(self._lines[number : number + limit], number + 1)]

    def last_number(self) -> int:
        """Return the number of the last record."""
        return len(self._lines)

    def indexed_lines(self) -> Iterator[tuple[int, bytes, None]]:
        """Yield every line with its number, in the order of recording, up to the moment of the call."""
        return ((number, self._lines[number - 1], None) for number in range(1, len(self._lines) + 1))

    def _decode_line(self, number: int) -> Record:
        """Return the record with that number. Raises LoomError."""
        if not 0 < number <= len(self._lines):
            raise LoomError(f"there is no record {number}")
        return decode(self._lines[number - 1])

    def records(self, entity_id: str, *, after: int = -1, limit: int = sys.maxsize) -> Sequence[Record]:
        """Return an entity's records after that number, in order."""
        numbers = self._known.list_numbers(entity_id)
        first = bisect_right(numbers, after) if after >= 0 else 0
        return attach_images(self._read(numbers[first : first + limit]), self.blob)

    def newest(self, entity_id: str, limit: int) -> Sequence[Record]:
        """Return the last records of an entity, in order."""
        numbers = self._known.list_numbers(entity_id)
        return attach_images(self._read(numbers[max(0, len(numbers) - limit) :]), self.blob)

    def _read(self, numbers: Sequence[int]) -> Iterator[Record]:
        self._budget.spend(len(numbers))
        lines = [self._lines[number - 1] for number in numbers]
        self._budget.spend(sum(map(len, lines)) // UNIT)
        return map(decode, lines)

    def asides(self, entity_id: str) -> Sequence[tuple[int, Record]]:
        """Return an entity's rewards and moves, with their numbers."""
        return [(number, self._decode_line(number)) for number in tuple(self._known.asides.get(entity_id, ()))]

    def _read_asides(self, db: None, entity_id: str) -> Iterator[Record]:  # noqa: ARG002  # they are in memory
        return (record for _, record in self.asides(entity_id))

    def _read_tree_lines(self, root: str, first: int, expected: int = sys.maxsize) -> Iterator[tuple[int, bytes]]:  # noqa: ARG002  # they are in memory
        numbers = self._list_tree(root)
        for number in numbers[bisect_left(numbers, first) :]:
            self._budget.spend(1)
            yield number, self._lines[number - 1]

    def _find_span(self, entity_id: str, after: int, count: int) -> EntitySpan | None:
        place, numbers = self._known.find_place(entity_id), self._known.list_numbers(entity_id)
        end = min(len(numbers), bisect_right(numbers, after) + count)
        return None if place is None else EntitySpan(place.tree.root, numbers[0], numbers[end - 1], None)

    def _find_link_before(self, root: str, number: int) -> bytes:
        numbers = self._list_tree(root)
        at = bisect_left(numbers, number)
        return self._get_link(numbers[at - 1]) if at else NOTHING

    def _list_tree(self, root: str) -> list[int]:
        entities, numbers = [root], list[int]()
        for entity in entities:
            numbers.extend(self._known.list_numbers(entity))
            entities.extend(self._known.below.get(entity, ()))
        self._budget.spend(len(numbers) // NUMBERS)
        return sorted(numbers)

    def header(self, entity_id: str) -> Header | None:
        """Return an entity's header; None if the entity is not in this loom."""
        numbers = self._known.list_numbers(entity_id)
        return get_header([self._decode_line(numbers[0])]) if numbers else None  # the rules want a header first

    def headers(self) -> Iterator[Header]:
        """Yield every entity's header, in order of creation, up to the moment of the call."""
        for entity_id in list(self._known.places):
            header = self.header(entity_id)
            assert header is not None  # entities never leave an index
            yield header

    def tip(self, entity_id: str) -> Tip | None:
        """Return the position of an entity's last record."""
        numbers = self._known.list_numbers(entity_id)
        return Tip(numbers[-1], self._get_link(numbers[-1])) if numbers else None

    def _link(self, entity_id: str, position: int) -> bytes | None:
        numbers = self._known.list_numbers(entity_id)
        index = bisect_left(numbers, position) if position >= 0 else len(numbers)
        return self._get_link(position) if index < len(numbers) and numbers[index] == position else None

    def _get_link(self, number: int) -> bytes:
        return split_link(self._lines[number - 1])[1] or NOTHING

    def standing(self, entity_id: str) -> EntityStanding | None:
        """Return how an entity stands."""
        place = self._known.find_place(entity_id)
        return None if place is None else place.standing

    def standings(self) -> Iterator[tuple[str, EntityStanding]]:
        """Yield how each entity stands, in order of creation."""
        return ((id, place.standing) for id, place in list(self._known.places.items()))

    def select(
        self,
        selection: Selection = EVERYTHING,
        cursor: str | None = None,
        limit: int = LARGEST_PAGE,
        *,
        oldest_first: bool = False,
    ) -> list[ListedEntity]:
        """Return the newest entities of a selection, or those that follow `cursor`."""
        return self._known.listing.select(selection, cursor, limit, oldest_first=oldest_first)

    def count_states(self, tenant: str | None = None) -> dict[Status, int]:
        """Return how many entities are in each state."""
        return self._known.listing.count_states(tenant)

    def owner(self, turn_id: str) -> str | None:
        """Return the entity that a committed turn belongs to."""
        return self._known.find_owner(turn_id)

    def children(self, turn_id: str) -> Sequence[str]:
        """Return the entities that a turn spawned."""
        return tuple(self._known.children.get(turn_id, ()))

    def forks(self, turn_id: str) -> Sequence[str]:
        """Return the entities that were forked from a turn."""
        return tuple(self._known.forks.get(turn_id, ()))

    def branches(self, entity_id: str) -> Sequence[str]:
        """Return the entities that were forked from any turn of an entity."""
        return tuple(self._known.branches.get(entity_id, ()))

    def below(self, entity_id: str) -> Sequence[str]:
        """Return the entities that an entity spawned."""
        return tuple(self._known.below.get(entity_id, ()))

    def named(self, name: str) -> str | None:
        """Return the latest long-lived entity of that name."""
        return self._known.names.get(name)

    def entities_at(self, first: Life, last: Life) -> Sequence[str]:
        """Return the entities between these phases of life, in order of creation."""
        return tuple(id for id, life in list(self._known.unfinished.items()) if first <= life <= last)

    def blob(self, digest: str) -> Blob | None:
        """Return the blob of that digest."""
        return self._blobs.get(digest)

    def blobs(self) -> Iterator[str]:
        """Return the digests of all blobs."""
        return iter(list(self._blobs))

    def key(self) -> bytes:
        """Return a key that lives as long as the store, or as the key of a sealed loom."""
        return hmac.digest(self.seal.state, b"snapshots", "sha256") if self.seal.state else self._key

    def _keep_checkpoint(self, entity_id: str, data: bytes, leases: Mapping[str, int] | None) -> None:  # noqa: ARG002  # one process writes
        self._check_open()
        self._checkpoints[entity_id] = data

    def _find_checkpoint(self, entity_id: str) -> bytes | None:
        return self._checkpoints.get(entity_id)

    def close(self) -> None:
        """Refuse further records."""
        self._closed = True

    def reopen(self) -> None:
        """Accept records again."""
        self._closed = False

    def __repr__(self) -> str:
        entities, turns = len(self._known.places), len(self._known.owners)
        return f"<{type(self).__name__} {self.where} of {entities} entities, {turns} turns>"
