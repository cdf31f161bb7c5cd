"""Verify a loom: `verify_loom` reads every line and compares it with its tree's hash chain.

It finds a record that was edited, removed, moved or cut, in any store; a blob (an image, a snapshot of a sandbox) that
is missing or was changed; and turns of an entity whose numbers repeat. For a store with an index, as the SQL ones have,
it also finds where the index contradicts the lines, and a missing end of a tree. A JSONL file has no such index: a
missing end looks like one that was never written, and only an earlier fingerprint shows it.

A forgotten entity leaves tombstones (`records/tombstone.py`). They keep the links of the original lines, so the chain
continues over them, and a record with their checksum follows.

In a loom that is sealed with a key (`seal_key.py`) all of this holds against anyone who can write the loom without the
key, and a missing end is found in every store. If the whole loom was replaced by an older copy of itself, only heads
that were exported before show that (`collect_heads`).

All faults are reported, and none is repaired: restore a loom from a copy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal

import orjson

from cantrip_actors.loom.memory.memory_index import MemoryIndex
from cantrip_actors.loom.seal.seal_key import UNSEALED, Seal
from cantrip_actors.loom.stores.damage import DamagedLoom
from cantrip_actors.loom.stores.store import Store
from cantrip_actors.loom.stores.unfinished_copies import list_unfinished_copies
from cantrip_actors.machine.project import NOTED, Life, as_forgotten, get_committed_turn, get_turn_number
from cantrip_actors.records.codec import decode
from cantrip_actors.records.mail import Mail, get_key
from cantrip_actors.records.records import Record, get_images, get_snapshot
from cantrip_actors.records.seal import NOTHING, compute_link, split_link
from cantrip_actors.records.timers import FIRST, Due, Timer
from cantrip_actors.records.tombstone import TombstoneSum, is_tombstone
from cantrip_actors.terms.arguments import check_kind
from cantrip_actors.terms.errors import LoomError

PAGE: Final = 1000
"""Timers that are read at once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a loom: the number of the record (None if it concerns no single one), and a description.

    `blob` names the blob that the fault is about. Snapshots of sandboxes are replaceable; images are part of the loom.
    """

    record: int | None
    what: str
    blob: str | None = None

    def __str__(self) -> str:
        return self.what if self.record is None else f"record {self.record}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of `verify_loom`. `fingerprint` is the same for every loom with the same records in the same trees.

    `entities` and `records` include forgotten ones, whose content is gone and which are only tombstones.
    """

    entities: int
    turns: int
    records: int
    fingerprint: str
    faults: list[Fault] = field(default_factory=list)
    forgotten: int = 0
    tombstones: int = 0
    seal: Literal["none", "checked", "unchecked"] = "none"
    """Whether the loom is sealed with a key, and its links were checked with it."""

    @property
    def ok(self) -> bool:
        """Whether every record is unchanged since it was written."""
        return not self.faults


@dataclass(frozen=True, slots=True)
class Heads:
    """The ends of all trees of a loom at one time: each root's last link. `salt` is a sealed loom's."""

    records: int
    trees: Mapping[str, bytes]
    salt: str = ""

    def as_json(self) -> bytes:
        """Return the heads as a JSON document, for a file."""
        trees = {root: link.decode() for root, link in sorted(self.trees.items())}
        facts = {"heads": 1, "records": self.records, "salt": self.salt, "trees": trees}
        return orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Heads:
        """Return the heads of a file. Raises LoomError for anything else."""
        try:
            facts = orjson.loads(data)
            if facts["heads"] != 1:
                raise LoomError(f"expected heads of version 1, got {facts['heads']!r}: use a newer cantrip-actors")
            trees = {str(root): str(link).encode() for root, link in facts["trees"].items()}
            return cls(int(facts["records"]), trees, str(facts["salt"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LoomError("expected a file that `cantrip loom head` wrote") from error


class Trees:
    """Follows records in order: the tree of each record, and the current link of each tree.

    The links are made with the key of `seal`; if it is not known, the links in the lines are used.
    """

    def __init__(self, seal: Seal = UNSEALED) -> None:
        self.index = MemoryIndex()
        self.heads: dict[str, bytes] = {}
        """The last link of each root's tree."""
        self._seal = seal
        self._prints = self.heads if seal.mark is None else {}
        """The same, with links that are made without a key: sealing a loom does not change its fingerprint."""

    def follow(self, number: int, record: Record) -> None:
        """Add the next record. Raises LoomError if it is not allowed there."""
        if record.__class__ in NOTED or record.entity_id not in self.index.places:
            self.index.follow(record, number)

    def find_root(self, record: Record) -> str:
        """Return the root of a record's tree."""
        place = self.index.places.get(record.entity_id)
        return record.entity_id if place is None else place.tree.root

    def expect(self, root: str, line: bytes) -> bytes:
        """Return the link that a tree's next line should have; for a tombstone, the original line's."""
        plain, found = split_link(line)
        if found and (self._seal.is_locked or is_tombstone(plain)):
            return found
        return compute_link(plain, self.heads.get(root, NOTHING), self._seal.chain)

    def seal(self, root: str, line: bytes) -> bytes:
        """Add a tree's next line, and return the link that it should have."""
        link = self.heads[root] = self.expect(root, line)
        if self._prints is not self.heads:
            plain, found = split_link(line)
            is_kept = found is not None and is_tombstone(plain)
            self._prints[root] = link if is_kept else compute_link(plain, self._prints.get(root, NOTHING))
        return link

    @property
    def fingerprint(self) -> str:
        """Return a hash of all trees that does not depend on their order."""
        whole = blake2b(digest_size=12)
        for root, head in sorted(self._prints.items()):
            whole.update(b"%b %b\n" % (root.encode(errors="surrogatepass"), head))
        return whole.hexdigest()


def verify_loom(store: Store, heads: Heads | None = None) -> Verified:
    """Read everything in `store` and compare. Raises LoomError if it cannot be read at all.

    `heads` are the result of `collect_heads` at an earlier time. Each of these trees must exist and have passed its
    earlier end; otherwise the loom, or the tree, was replaced by an older copy. This needs no key.
    """
    check_kind("store", store, Store, "a store, as of open_store(…)", LoomError)
    verified, _ = verify_trees(store, heads)
    sources = list_unfinished_copies(store).values()
    what = "it has only a part of {}, whose copy was not finished: copy that again, which finishes it"
    verified.faults.extend(Fault(None, what.format(source)) for source in sources)
    return verified


def verify_trees(store: Store, heads: Heads | None = None) -> tuple[Verified, Mapping[str, bytes]]:
    """Return the result of `verify_loom`, and the last link of each tree by the lines."""
    with store.snapshot():  # others may be writing to it
        reading = _read(store, heads)
        reading.faults.extend(Fault(None, what) for what in store.faults())
        reading.faults.extend(reading.find_head_faults())
        reading.faults.extend(reading.find_tombstone_faults(store.half_forgotten()))
        reading.faults.extend(reading.compare(store))
        reading.faults.extend(reading.find_mail_faults(store))
        reading.faults.extend(reading.find_timer_faults(store))
        reading.faults.extend(_find_blob_faults(store, reading.referred))
    index = reading.trees.index
    verified = Verified(
        len(index.places),
        len(index.owners),
        reading.count,
        reading.trees.fingerprint,
        reading.faults,
        len(reading.forgotten),
        sum(reading.forgotten.values()),
        "none" if store.seal.mark is None else "unchecked" if store.seal.is_locked else "checked",
    )
    return verified, reading.trees.heads


def collect_heads(store: Store) -> Heads:
    """Return the last link of each tree. Raises LoomError for a loom that does not verify."""
    with store.snapshot():
        reading = _read(store, None)
    faults = [*reading.faults, *reading.find_head_faults()]
    if faults:
        hint = "`cantrip loom verify` shows all faults"
        raise LoomError(f"the loom has faults, so its heads are not exported: {faults[0]}; {hint}")
    return Heads(reading.count, dict(reading.trees.heads), _read_salt(store))


def _read(store: Store, heads: Heads | None) -> _Reading:
    reading = _Reading(store, heads)
    for number, line, row in store.indexed_lines():
        reading.take(number, line, row)
    return reading


def _read_salt(store: Store) -> str:
    return "" if store.seal.mark is None else store.seal.mark.salt


class _Reading:
    """The result of the lines read so far."""

    def __init__(self, store: Store, heads: Heads | None) -> None:
        self.count = 0
        self.trees = Trees(store.seal)
        self.faults: list[Fault] = []
        self.referred: dict[str, tuple[int, str]] = {}
        """Blobs that records refer to: the first such record, and the kind: snapshots, images, other files."""
        self.keys: dict[tuple[str, str], tuple[int, str]] = {}
        """The roots and keys of mail: the last record that took it, and when."""
        self.tombstones: dict[str, TombstoneSum] = {}
        """The tombstones of entities, up to the record that ends them."""
        self.forgotten: dict[str, int] = {}
        """Forgotten entities, and their number of tombstones."""
        self.sequences: dict[str, int] = {}
        """Entities to the number of their last turn."""
        self.whole: dict[str, int] = {}
        """The last record of each entity that is not a tombstone."""
        self._sealed = store.sealed
        self._seal = store.seal
        self._kept = store.head()
        """The stored head."""
        self._head = store.seal.beginning
        self._fits = self._kept == self._head
        """Whether the lines up to the head's position lead to it."""
        self._exported = {} if heads is None else dict(heads.trees)
        """The exported heads that no line has led to yet."""
        self._salts = None if heads is None else (heads.salt, _read_salt(store))

    def take(self, number: int, line: bytes, row: tuple[str | None, str | None] | None) -> None:
        """Add the next line, and its row's entity and turn, if it has a row."""
        self.count += 1
        self._follow_head(line)
        plain, link = split_link(line)
        try:
            record = decode(plain)
        except LoomError as error:
            self.faults.append(Fault(number, str(error)))
            return
        if row is not None and row != (record.entity_id, get_committed_turn(record)):
            self.faults.append(Fault(number, "its row names another entity, or another turn, than its line"))
        misplaced = None
        try:
            self.trees.follow(number, record)
        except LoomError as error:
            misplaced = Fault(number, str(error))
        root = self.trees.find_root(record)
        expected = self.trees.seal(root, line)
        self._count_tombstones(number, record, line)
        if self._sealed and link != expected:
            self.faults.append(Fault(number, _describe_misfit(record, link)))
            if link is not None:  # the following lines were written after the line that used to be here
                self.trees.heads[root] = link
        if self._exported and self._exported.get(root) == self.trees.heads[root]:
            del self._exported[root]
        if misplaced is not None:
            self.faults.append(misplaced)
        self._note_blobs(number, record)
        self._count_turn(number, record)
        if (key := get_key(record)) is not None:
            self.keys[root, key] = number, getattr(record, "at", "")

    def _count_turn(self, number: int, record: Record) -> None:
        """Compare the number of a turn with that of the one before it: two writers of one entity would repeat it."""
        turn = get_turn_number(record)
        if turn is not None:
            last = self.sequences.get(record.entity_id, 0)
            if turn <= last:
                what = f"this is turn {turn} of entity {record.entity_id}, and turn {last} is recorded already"
                self.faults.append(Fault(number, what))
            self.sequences[record.entity_id] = max(last, turn)

    def _follow_head(self, line: bytes) -> None:
        if self._seal.chain:
            self._head = self._seal.follow(self._head, [line])
            if self._kept is not None and self._kept.records == self.count:
                self._fits = self._kept == self._head

    def _note_blobs(self, number: int, record: Record) -> None:
        snapshot = get_snapshot(record)
        if snapshot is not None:
            self.referred.setdefault(snapshot.digest, (number, "snapshot"))
        for image in get_images(record):
            if image.digest:
                self.referred.setdefault(image.digest, (number, image.kind))

    def _count_tombstones(self, number: int, record: Record, line: bytes) -> None:
        """Add a tombstone; compare an entity's tombstones with the record that says how they were made."""
        entity, forgotten = record.entity_id, as_forgotten(record)
        if is_tombstone(line):
            self.tombstones.setdefault(entity, TombstoneSum()).add(line)
        elif forgotten is None:
            self.whole[entity] = number
        elif not self.tombstones.pop(entity, TombstoneSum()).is_match(forgotten):
            self.faults.append(Fault(number, f"the tombstones of entity {entity} were changed since they were made"))
        else:
            self.forgotten[entity] = forgotten.records

    def find_head_faults(self) -> Iterator[Fault]:
        """Yield where the head of a sealed loom, or an exported head, contradicts the lines."""
        if self._seal.mark is not None and self._kept is None:
            yield Fault(None, "the head of this sealed loom is missing, or damaged")
        elif self._kept is not None and self._kept.records > self.count:
            yield Fault(None, f"{self._kept.records - self.count:,} records at its end, or whole trees, are missing")
        elif self._seal.chain and not self._fits:
            what = "some were edited, moved, put in or taken out"
            yield Fault(None, f"its records are not those that its head was written for: {what}")
        if self._salts is not None and self._salts[0] != self._salts[1]:
            yield Fault(None, "the exported heads are those of another loom, or of one with another seal")
            return
        for root in self._exported:
            what = "its tree is not as far as when its head was exported: it, or the loom, is an older copy, or forged"
            yield Fault(None, f"entity {root}: {what}")

    def find_tombstone_faults(self, half_forgotten: AbstractSet[str]) -> Iterator[Fault]:
        """Yield tombstones of entities that were not forgotten, and records with content of forgotten ones."""
        for entity in self.tombstones.keys() - half_forgotten:
            yield Fault(None, f"records of entity {entity} are gone, and no record says that it was forgotten")
        for entity, at in self.whole.items():
            if entity in self.forgotten:
                yield Fault(at, f"entity {entity} was forgotten, and this record still has its content")

    def compare(self, store: Store) -> Iterator[Fault]:
        """Yield where the store's own answers contradict its lines."""
        heads = store.heads()
        if heads is not None:
            for root, head in self.trees.heads.items():
                if heads.get(root) != head:
                    yield Fault(None, f"the tree of entity {root} does not end where its last record was written")
            for root in sorted(heads.keys() - self.trees.heads.keys()):
                yield Fault(None, f"the tree of entity {root} is missing")
        for turn, entity in self.trees.index.owners.items():
            if store.owner(turn) != entity:
                yield Fault(None, f"turn {turn} is entity {entity}'s, and the index says otherwise")
        places = self.trees.index.places
        for entity, standing in store.standings():
            place = places.get(entity)
            if place is not None and place.standing != standing:
                found, expected = (
                    f"{how.life.name.lower()}, {how.status}, of cantrip {how.cantrip}"
                    for how in (standing, place.standing)
                )
                what = f"the index says that entity {entity} is {found}, and its records say that it is {expected}"
                yield Fault(None, what)

    def find_mail_faults(self, store: Store) -> Iterator[Fault]:
        """Yield mail that is damaged, or waits although a record took it or its entity has ended; note its images."""
        for entity in store.waiting(loads=False):
            place = self.trees.index.find_place(entity)
            try:
                pending = store.pending(entity, sys.maxsize)
            except DamagedLoom as error:
                yield Fault(None, str(error))
                continue
            for no, mail in pending:
                number, at = self.keys.get((entity, mail.key), (None, ""))
                if number is not None and at >= mail.at:  # otherwise the key was used by an earlier, forgotten mail
                    yield Fault(number, f"it took mail {no}, which still waits")
                elif place is not None and place.life >= Life.OVER:
                    yield Fault(None, f"mail {no} was not taken by an entity that has ended")
                yield from self._find_missing_images(store, mail, f"mail {no}")

    def find_timer_faults(self, store: Store) -> Iterator[Fault]:
        """Yield the missing images of mail that timers will post; the faults of the store name damaged timers."""
        with suppress(DamagedLoom):
            for timer in read_timers(store):
                if timer.mail is not None:
                    yield from self._find_missing_images(store, timer.mail, f"timer {timer.id}")

    def _find_missing_images(self, store: Store, mail: Mail, place: str) -> Iterator[Fault]:
        for image in mail.images:
            if image.digest and image.digest not in self.referred and store.blob(image.digest) is None:
                yield Fault(None, f"the {image.kind} {image.digest} of {place} is missing", image.digest)


def read_timers(store: Store) -> Iterator[Timer]:
    """Yield the timers and the schedules of a store, those that are due first."""
    after, ends = FIRST, set[Due]()  # a row that differs from its line may lead back to an earlier end
    while after not in ends and (page := store.timers_due(math.inf, after=after, limit=PAGE)):
        ends.add(after)
        after = page[-1].position
        yield from page
    yield from (timer for timer in store.timers() if timer.due is None)


def _describe_misfit(record: Record, link: bytes | None) -> str:
    what = type(record).__name__
    if link is None:
        return f"this {what} of entity {record.entity_id} has no link: no store wrote this line"
    return (
        f"this {what} of entity {record.entity_id} does not follow the record before it: it was edited, or an "
        f"earlier record of its tree was edited, moved or removed"
    )


def _find_blob_faults(store: Store, referred: Mapping[str, tuple[int, str]]) -> Iterator[Fault]:
    for digest, (number, what) in referred.items():
        blob = store.blob(digest)
        if blob is None or not blob.is_whole:
            fault = "is missing" if blob is None else "is not what was written"
            remedy = "programs are run again instead" if what == "snapshot" else "restore it from a copy"
            yield Fault(number, f"its {what} {digest} {fault}: {remedy}", digest)
    for digest in store.blobs():
        if digest not in referred:
            blob = store.blob(digest)
            if blob is not None and not blob.is_whole:
                yield Fault(None, f"the blob {digest} is not what was written", digest)
