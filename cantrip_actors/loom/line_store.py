"""The base of the memory and JSONL stores: lines in order, and an index in memory of their positions."""

from __future__ import annotations

import itertools
import sys
import time
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NoReturn, TypeVar

from cantrip_actors.loom.blobs import attach_images
from cantrip_actors.loom.checkpoints import Tip
from cantrip_actors.loom.erasure import (
    Erasure,
    check_ended,
    erase,
    find_blobs_in_line,
    find_blobs_in_mail,
    is_schedule_for,
)
from cantrip_actors.loom.inbox import TakenMail, mark_fault, select_settled
from cantrip_actors.loom.index import Index
from cantrip_actors.loom.lease import NO_LEASES, Holder, read_boot_clock
from cantrip_actors.loom.rules import NONE_WAITS, Plan, Tree, Waiting
from cantrip_actors.loom.store import Store
from cantrip_actors.machine.project import Life, get_header, get_time
from cantrip_actors.records.codec import decode, encode
from cantrip_actors.records.mail import Mail, MailRow, Pending
from cantrip_actors.records.records import Header, Record
from cantrip_actors.records.seal import NOTHING, SEAL_LENGTH, split_link
from cantrip_actors.records.timers import FIRST, Due, Timer
from cantrip_actors.terms.errors import LoomError

T = TypeVar("T")

TOGETHER = 1 << 22
"""Bytes of adjacent lines that are read at once."""


class LineStore(Store):
    """A store with one process. A record's number is the offset of its line."""

    shared = False

    _known: Index

    def __init__(self) -> None:
        self._known = Index()
        self._claims = 0
        self._accounts: dict[str, str] = {}

    @abstractmethod
    def _check_open(self) -> None:
        """Raise LoomError if nothing can be recorded."""

    def change_account(self, name: str, change: Callable[[str | None, float], tuple[str, T]], now: float) -> T:
        """Change an account. It is kept in memory, because no other process writes to this loom."""
        self._accounts[name], result = change(self._accounts.get(name), now)
        return result

    def accounts(self, prefix: str) -> dict[str, str]:
        """Return the accounts whose names begin with `prefix`."""
        return {name: state for name, state in self._accounts.items() if name.startswith(prefix)}

    @property
    @abstractmethod
    def _end(self) -> int:
        """Return the offset of the next line."""

    def _rewrite_mail(self) -> None:  # a store without a file has nothing to rewrite
        """Rewrite the file of mail."""

    @abstractmethod
    def _read_bytes(self, start: int, length: int) -> bytes:
        """Return this many bytes of the lines, or fewer at the end."""

    @abstractmethod
    def _raise_corrupt(self, offset: int, error: LoomError) -> NoReturn:
        """Raise an error for the line at `offset`, which is not a record."""

    def _transact(self, work: Callable[[None], T], *expected: type[Exception]) -> T:  # noqa: ARG002  # nothing to undo
        return work(None)

    def _look_up(
        self,
        db: None,  # noqa: ARG002  # there is none
        records: Sequence[Record] = (),  # noqa: ARG002  # all is known
        lines: Sequence[bytes] = (),
        mails: Sequence[Mail] = (),  # noqa: ARG002  # likewise
        taken: Sequence[int] = (),  # noqa: ARG002  # likewise
        roots: Sequence[str] = (),
        entities: Sequence[str] = (),  # noqa: ARG002  # likewise
    ) -> tuple[list[int], Iterator[int]]:
        if not roots:  # a claim is kept in memory only, also once the store is closed
            self._check_open()
        offset, extra = self._end, SEAL_LENGTH + 1 if self.sealed else 1
        offsets = []
        for line in lines:
            offsets.append(offset)
            offset += len(line) + extra
        return offsets, itertools.count(self._known.inboxes.last + 1)

    def _find_head(self, tree: Tree) -> bytes:
        """Return the link in the last line of a tree that this process has not written to yet."""
        index, last, todo = self._known, (0, 0), [tree.root]
        while todo:
            entity = todo.pop()
            start, length = index.spots[index.places[entity].no][-2:]
            last = max(last, (start, length))
            todo.extend(index.below.get(entity, ()))
        return self._link_of(*last)

    # ------------------------------------------------------------------------------------------------------------- mail

    def pending(self, entity_id: str, limit: int = 100) -> list[Pending]:
        """Return the waiting mail of an entity, control lane first, then in order."""
        return [self._decode_pending(no, line) for no, line in self._known.inboxes.list_pending(entity_id, limit)]

    def waiting(self, *, loads: bool = True) -> list[str]:
        """Return the entities that have waiting mail for which they are loaded."""
        places = self._known.places
        return [one for one in self._known.inboxes.list_entities() if not loads or places[one].tree.waiting.loads]

    def find_mail(self, entity_id: str, key: str) -> MailRow | None:
        """Return the mail of an entity with that key."""
        return self._known.find_mail(entity_id, key)

    def new_mail(self, after: int) -> tuple[int, list[MailRow]]:
        """Return the waiting mail with a number above `after`."""
        inboxes = self._known.inboxes
        return inboxes.last, inboxes.list_waiting_after(after)

    def count_mail(self, entity_id: str) -> Waiting:
        """Return how much mail waits for an entity."""
        place = self._known.find_place(entity_id)
        return NONE_WAITS if place is None else place.tree.waiting

    def expire_mail(self, before: str) -> None:
        """Forget mail that was settled before that time."""
        self._check_open()
        inboxes = self._known.inboxes
        rows = {row.no: row for row in inboxes.rows.values() if row.no < inboxes.last}
        old = [
            TakenMail(row.no, row.entity_id, row.lane, row.taken)
            for row in rows.values()
            if row.taken is not None and get_time(self._record_at(row.taken)) < before
        ]
        expired = select_settled(old, before, self.records)
        for one in expired:
            inboxes.forget(rows[one.no])
        if expired:
            self._rewrite_mail()

    def faults(self) -> Iterator[str]:
        """Yield where the stored mail contradicts the lines."""
        places = self._known.places
        for row in self._known.inboxes.rows.values():
            if row.taken is not None:
                try:
                    record = self._record_at(row.taken)
                except LoomError:
                    record = None
                lasting, tree = places[row.entity_id].lasting, places[row.entity_id].tree
                if record is not None and (record.entity_id not in places or places[record.entity_id].tree is not tree):
                    record = None
                if record is not None and places[record.entity_id].life is Life.FORGOTTEN:
                    continue  # a killed process did not blank the mail; forgetting again will
                if (fault := mark_fault(row.no, row.entity_id, row.key, record, lasting=lasting)) is not None:
                    yield fault

    def _record_at(self, number: int) -> Record:
        """Return the record with that number. Raises LoomError."""
        size = 1 << 12
        while b"\n" not in (data := self._read_bytes(number, size)) and len(data) == size:
            size *= 4
        return decode(data.partition(b"\n")[0])

    # ----------------------------------------------------------------------------------------------------------- timers

    def timers(self, entity_id: str = "") -> list[Timer]:
        """Return the timers of an entity, or the schedules."""
        return [self._decode_timer(line) for line in self._known.timers.list_lines(entity_id)]

    def find_timer(self, entity_id: str, id: str) -> Timer | None:
        """Return the timer with that id."""
        line = self._known.timers.find(entity_id, id)
        return None if line is None else self._decode_timer(line)

    def timers_due(self, until: float, *, after: Due = FIRST, limit: int = 100, queue: str = "") -> list[Timer]:
        """Return the first timers that are due, in order."""
        return [self._decode_timer(line) for line in self._known.timers.list_due(until, after, limit, queue)]

    def has_due(self, until: float, count: int, queue: str = "") -> bool:
        """Return whether at least `count` timers are due."""
        return self._known.timers.has_due(until, count, queue)

    def count_queued(self, queue: str) -> int:
        """Return how many timers wait in a queue."""
        return self._known.timers.count(queue)

    def _read_timer_lines(self, db: None, which: Sequence[tuple[str, str]]) -> list[bytes | None]:  # noqa: ARG002  # none
        return [self._known.timers.find(entity_id, id) for entity_id, id in which]

    # ------------------------------------------------------------------------------------------------------- forgetting

    def prepare_forget(self, wanted: Erasure, leases: Mapping[str, int] = NO_LEASES) -> Callable[[], int]:
        """Replace the records of ended entities by tombstones of the same length, so that all offsets stay."""
        self._check_open()
        changed: list[tuple[int, bytes]] = []
        records: list[Record] = []
        for entity in wanted.entities:
            place = self._known.find_place(entity)
            if place is None or place.life is Life.FORGOTTEN:
                continue
            check_ended(entity, place.life)
            spots = self._known.spots[place.no]
            lines = [
                self._read_bytes(start, length)[:-1] for start, length in zip(spots[::2], spots[1::2], strict=True)
            ]
            tombstones, record = erase(entity, lines, wanted, is_padded=True)
            changed += zip(spots[::2], tombstones, strict=True)
            records.append(record)
        lines = [encode(record) for record in records]
        made, _ = self._plan(None, records, lines, leases)
        finish = self._replace_lines(sorted(changed), made)

        names = {name for name, entity in self._known.names.items() if entity in wanted.entities}

        def complete() -> int:
            schedules = [one.id for one in self.timers() if is_schedule_for(one, wanted.entities, names)]
            if schedules:  # first: a call that is repeated after a crash would not find the names in the log
                self._remove_schedules(schedules)
            finish()
            if records:
                self._known.apply(made)
            for entity in wanted.entities:
                if (place := self._known.find_place(entity)) is not None and place.life is Life.FORGOTTEN:
                    self._known.forget_mail(entity)
            for name in names:
                self._restore_name(name)
            self._remove_sidecars(wanted)
            return self.drop_unused_blobs()

        return complete

    def _restore_name(self, name: str) -> None:
        """Find the latest remaining entity with a name that a forgotten entity had."""
        self._known.names.pop(name)
        for header in self.headers():
            if header.lasting and header.scoped_name == name:
                self._known.names[name] = header.entity_id

    def _remove_schedules(self, ids: Iterable[str]) -> None:
        """Remove these schedules for good."""
        for id in ids:
            self._known.timers.remove("", id)

    @abstractmethod
    def _replace_lines(self, changed: Sequence[tuple[int, bytes]], made: Plan) -> Callable[[], None]:
        """Write these lines in place of those at the same offsets, and the new ones of a plan at the end.

        Return a function that makes all changes visible at once.
        """

    def _remove_sidecars(self, wanted: Erasure) -> None:  # a store without a file has only checkpoints
        """Remove the sidecar data of forgotten entities: checkpoints, mail."""

    def drop_unused_blobs(self) -> int:
        """Delete the blobs that neither a record nor waiting mail refers to; return their number."""
        known, used = set(self.blobs()), set[str]()
        if known:
            for _, line in self.lines():
                used.update(find_blobs_in_line(line, known))
            for row, line in self._known.inboxes.read_lines():
                if row.taken is None:
                    used.update(find_blobs_in_mail(line, known))
        return self._keep_blobs(used) if known - used else 0

    @abstractmethod
    def _keep_blobs(self, used: AbstractSet[str]) -> int:
        """Delete all blobs but these; return the number of deleted ones."""

    def scrub(self) -> None:
        """Do nothing: replaced lines are gone already."""

    def ended_roots(self, after: str | None = None, limit: int = 100) -> list[str]:
        """Return root entities that have ended and are not forgotten, after that one."""
        places = iter(self._known.places.items())
        if after is not None:
            places = itertools.dropwhile(lambda item: item[0] != after, places)
            next(places, None)
        found = (one for one, place in places if place.life is Life.OVER and place.tree.root == one)
        return [*itertools.islice(found, limit)]

    # ----------------------------------------------------------------------------------------------------------- leases

    def _find_holder(self, db: None, entity: str) -> Holder | None:  # noqa: ARG002  # no other writer
        held = self._known.leases.get(entity)
        return None if held is None else held._replace(left=held.left - read_boot_clock())

    def _grant(self, db: None, entity: str, owner: str | None, deaths: int, ttl: float) -> tuple[int, float]:  # noqa: ARG002  # likewise
        self._claims += 1
        self._known.leases[entity] = Holder(self._claims, owner, deaths, read_boot_clock() + ttl)
        return self._claims, time.time() + ttl

    def _drop(self, db: None, entity: str, token: int) -> None:  # noqa: ARG002  # likewise
        if self._known.find_token(entity) == token:
            del self._known.leases[entity]

    def quarantined(self) -> list[str]:
        """Return the entities whose holders died."""
        return [entity for entity, held in self._known.leases.items() if held.owner is None]

    def renew(self, owner: str, ttl: float) -> None:
        """Let all leases of `owner` last until `ttl` seconds from now."""
        until = read_boot_clock() + ttl
        leases = self._known.leases
        leases.update({entity: held._replace(left=until) for entity, held in leases.items() if held.owner == owner})

    def is_held(self, entity_id: str) -> bool:  # noqa: ARG002  # whichever it is
        """Return False: no other process opens the store."""
        return False

    # ---------------------------------------------------------------------------------------------------------- reading

    def records(self, entity_id: str, *, after: int = -1, limit: int = sys.maxsize) -> Sequence[Record]:
        """Return an entity's records after that offset, in order."""
        spots = self._get_spots(entity_id)
        return attach_images(self._read(spots, _count_up_to(spots, after), limit), self.blob)

    def newest(self, entity_id: str, limit: int) -> Sequence[Record]:
        """Return the last records of an entity, in order."""
        spots = self._get_spots(entity_id)
        return attach_images(self._read(spots, max(0, len(spots) // 2 - limit)), self.blob)

    def asides(self, entity_id: str) -> Sequence[tuple[int, Record]]:
        """Return an entity's rewards and moves, with their offsets."""
        return [(number, self._record_at(number)) for number in tuple(self._known.asides.get(entity_id, ()))]

    def _get_spots(self, entity_id: str) -> array[int]:
        place = self._known.find_place(entity_id)
        return _NOWHERE if place is None else self._known.spots[place.no]

    def _read(self, spots: array[int], first: int = 0, limit: int = sys.maxsize) -> Iterator[Record]:
        """Yield the records of an entity from the first one on; adjacent lines are read together."""
        n, stop = first, min(len(spots) // 2, first + limit)
        while n < stop:
            start, length = spots[2 * n], spots[2 * n + 1]
            n += 1
            while n < stop and spots[2 * n] == start + length and length < TOGETHER:
                length += spots[2 * n + 1]
                n += 1
            data = self._read_bytes(start, length)
            at = 0
            while at < length:
                after = data.find(b"\n", at) + 1
                try:
                    if not after:
                        raise LoomError("it was cut short while this loom was open")
                    record = decode(data[at:after])
                except LoomError as error:
                    self._raise_corrupt(start + at, error)
                yield record
                at = after

    def _read_tree_lines(self, root: str, first: int) -> Iterator[tuple[int, bytes]]:
        todo, found = [root], list[tuple[int, int]]()
        while todo:
            entity = todo.pop()
            spots = self._get_spots(entity)
            new = spots[2 * _count_up_to(spots, first - 1) :]
            found += zip(new[::2], new[1::2], strict=True)
            todo.extend(self._known.below.get(entity, ()))
        for start, length in sorted(found):
            yield start, self._read_bytes(start, length)[:-1]

    def header(self, entity_id: str) -> Header | None:
        """Return an entity's header; None if the entity is not in this loom."""
        place = self._known.find_place(entity_id)
        if place is None:
            return None
        return get_header([*self._read(self._known.spots[place.no], limit=1)])  # the rules want a header first

    def headers(self) -> Iterator[Header]:
        """Yield every entity's header, in order of creation, up to the moment of the call."""
        for entity_id in list(self._known.places):
            header = self.header(entity_id)
            assert header is not None  # entities never leave an index
            yield header

    def tip(self, entity_id: str) -> Tip | None:
        """Return the position of an entity's last record."""
        spots = self._get_spots(entity_id)
        return Tip(spots[-2], self._link_of(spots[-2], spots[-1])) if spots else None

    def _link(self, entity_id: str, position: int) -> bytes | None:
        spots = self._get_spots(entity_id)
        n = _count_up_to(spots, position) - 1
        return self._link_of(position, spots[2 * n + 1]) if n >= 0 and spots[2 * n] == position else None

    def _link_of(self, start: int, length: int) -> bytes:
        tail = min(length, SEAL_LENGTH + 2)
        return split_link(self._read_bytes(start + length - tail, tail)[:-1])[1] or NOTHING

    def life(self, entity_id: str) -> Life | None:
        """Return the phase of an entity's life."""
        place = self._known.find_place(entity_id)
        return None if place is None else place.life

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
        known = self._known
        found = [forks for turn, forks in list(known.forks.items()) if known.owners[turn] == entity_id]
        return sorted(itertools.chain.from_iterable(found), key=lambda one: known.places[one].no)

    def below(self, entity_id: str) -> Sequence[str]:
        """Return the entities that an entity spawned."""
        return tuple(self._known.below.get(entity_id, ()))

    def named(self, name: str) -> str | None:
        """Return the latest long-lived entity of that name."""
        return self._known.names.get(name)

    def entities_at(self, first: Life, last: Life) -> Sequence[str]:
        """Return the entities between these phases of life, in order of creation."""
        return tuple(one for one, life in list(self._known.unfinished.items()) if first <= life <= last)


_NOWHERE: array[int] = array("Q")


def _count_up_to(spots: array[int], position: int) -> int:
    """Return how many lines begin at that offset or before it."""
    return bisect_right(range(len(spots) // 2), position, key=lambda n: spots[2 * n])
