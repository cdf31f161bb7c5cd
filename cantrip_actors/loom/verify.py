"""Whether a loom is what was written to it: `verify_loom` reads every line and holds it against its tree's hash chain.

It finds a record that was edited, taken out, put elsewhere or cut, whichever store it lies in, and a blob (an image, a
snapshot of a sandbox) that is missing or not the one that was written. For a store that keeps an index
beside its lines, as the SQL ones do, it also finds where that says something else than the lines, and an end of a tree
that is missing. A JSONL file keeps no such thing: a missing end looks like one that was never written, and only the
fingerprint of an earlier time tells.

Of an entity that was forgotten, tombstones stay (`records/tombstone.py`). They keep the links of the original lines, so
the chain goes on over them, and a record with their checksum follows.

What is wrong is told, all of it, and nothing is mended: a loom is restored from a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from cantrip_actors.loom.index import Index
from cantrip_actors.loom.store import Store
from cantrip_actors.machine.project import NOTED, Life, as_forgotten, committed_turn
from cantrip_actors.records.codec import decode
from cantrip_actors.records.mail import key_of
from cantrip_actors.records.records import Record, images_of, snapshot_of
from cantrip_actors.records.seal import NOTHING, seal, sealed_with
from cantrip_actors.records.tombstone import TombstoneSum, is_tombstone
from cantrip_actors.terms.errors import LoomError

__all__ = ["Fault", "Trees", "Verified", "verify_loom"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as it was written: the number of the record (None: of no single one), and what it is.

    `blob` names the blob that it is about. A loom does without snapshots of sandboxes; images are part of it.
    """

    record: int | None
    what: str
    blob: str | None = None

    @property
    def image(self) -> str | None:
        """Deprecated: the same as `blob`."""
        return self.blob

    def __str__(self) -> str:
        return self.what if self.record is None else f"record {self.record}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify_loom` found. `fingerprint` is the same for every loom with the same records in the same trees.

    Of the `entities` and `records`, so many are forgotten, and are tombstones: their content is gone.
    """

    entities: int
    turns: int
    records: int
    fingerprint: str
    faults: list[Fault] = field(default_factory=list)
    forgotten: int = 0
    tombstones: int = 0

    @property
    def ok(self) -> bool:
        """Whether every record is as it was written."""
        return not self.faults


class Trees:
    """Follows records in order: which tree each belongs to, and the link that each tree has come to."""

    def __init__(self) -> None:
        self.index = Index()
        self.heads: dict[str, bytes] = {}
        """Root to its tree's last link."""

    def follow(self, number: int, record: Record) -> None:
        """Take note of the next record. Raises LoomError where it cannot stand."""
        if record.__class__ in NOTED or record.entity_id not in self.index.places:
            self.index.follow(record, number)

    def root(self, record: Record) -> str:
        """Return the root of a record's tree."""
        place = self.index.places.get(record.entity_id)
        return record.entity_id if place is None else place.tree.root

    def expect(self, root: str, line: bytes) -> bytes:
        """Return the link that a tree's next line should have: a tombstone has that of the original."""
        plain, found = sealed_with(line)
        return found if found and is_tombstone(plain) else seal(plain, self.heads.get(root, NOTHING))[1]

    def seal(self, root: str, line: bytes) -> bytes:
        """Take note of a tree's next line, and return the link that it should have."""
        link = self.heads[root] = self.expect(root, line)
        return link

    @property
    def fingerprint(self) -> str:
        """What all of them come to, in any order."""
        whole = blake2b(digest_size=12)
        for root, head in sorted(self.heads.items()):
            whole.update(b"%b %b\n" % (root.encode(errors="surrogatepass"), head))
        return whole.hexdigest()


def verify_loom(store: Store) -> Verified:
    """Read everything in `store` and compare. Raises LoomError where it cannot be read at all."""
    reading = _Reading(store.sealed)
    for number, line, row in store.indexed_lines():
        reading.take(number, line, row)
    reading.faults.extend(Fault(None, what) for what in store.faults())
    reading.faults.extend(reading.tombstone_faults())
    reading.faults.extend(reading.compared(store))
    reading.faults.extend(reading.mail_faults(store))
    reading.faults.extend(Fault(*found) for found in _blob_faults(store, reading.snapshots, reading.images))
    index = reading.trees.index
    return Verified(
        len(index.places),
        len(index.owners),
        reading.count,
        reading.trees.fingerprint,
        reading.faults,
        len(reading.forgotten),
        sum(reading.forgotten.values()),
    )


class _Reading:
    """What has been read so far."""

    def __init__(self, sealed: bool) -> None:
        self.count = 0
        self.trees = Trees()
        self.faults: list[Fault] = []
        self.snapshots: dict[str, int] = {}
        """Snapshots that records refer to, to the first such record."""
        self.images: dict[str, int] = {}
        """Likewise, images."""
        self.keys: dict[tuple[str, str], tuple[int, str]] = {}
        """Roots and keys of mail, to the last record that took it, and when."""
        self.tombstones: dict[str, TombstoneSum] = {}
        """The tombstones of entities, until the record that ends them."""
        self.forgotten: dict[str, int] = {}
        """Forgotten entities, and how many tombstones they have."""
        self.whole: dict[str, int] = {}
        """Entities to the last of their records that is not a tombstone."""
        self._sealed = sealed

    def take(self, number: int, line: bytes, row: tuple[str | None, str | None] | None) -> None:
        """The next line, and the entity and the turn that its row names, if it has one."""
        self.count += 1
        plain, link = sealed_with(line)
        try:
            record = decode(plain)
        except LoomError as error:
            self.faults.append(Fault(number, str(error)))
            return
        if row is not None and row != (record.entity_id, committed_turn(record)):
            self.faults.append(Fault(number, "its row names another entity, or another turn, than its line"))
        misplaced = None
        try:
            self.trees.follow(number, record)
        except LoomError as error:
            misplaced = Fault(number, str(error))
        root = self.trees.root(record)
        expected = self.trees.seal(root, line)
        self._count_tombstones(number, record, line)
        if self._sealed and link != expected:
            self.faults.append(Fault(number, _misfit(record, link)))
            if link is not None:  # what follows was written after the line that once stood here
                self.trees.heads[root] = link
        if misplaced is not None:
            self.faults.append(misplaced)
        snapshot = snapshot_of(record)
        if snapshot is not None:
            self.snapshots.setdefault(snapshot.digest, number)
        for image in images_of(record):
            if image.digest:
                self.images.setdefault(image.digest, number)
        if (key := key_of(record)) is not None:
            self.keys[root, key] = number, getattr(record, "at", "")

    def _count_tombstones(self, number: int, record: Record, line: bytes) -> None:
        """Take note of a tombstone; compare an entity's with the record that says how they were made."""
        entity, forgotten = record.entity_id, as_forgotten(record)
        if is_tombstone(line):
            self.tombstones.setdefault(entity, TombstoneSum()).add(line)
        elif forgotten is None:
            self.whole[entity] = number
        elif not self.tombstones.pop(entity, TombstoneSum()).matches(forgotten):
            self.faults.append(Fault(number, f"the tombstones of entity {entity} are not those that were made"))
        else:
            self.forgotten[entity] = forgotten.records

    def tombstone_faults(self) -> Iterator[Fault]:
        """Where a record was replaced by a tombstone and nobody forgot it, or was not replaced and should be."""
        for entity in self.tombstones:
            yield Fault(None, f"records of entity {entity} are gone, and no record says that it was forgotten")
        for entity in self.forgotten.keys() & self.whole.keys():
            yield Fault(self.whole[entity], f"entity {entity} was forgotten, and this record still has its content")

    def compared(self, store: Store) -> Iterator[Fault]:
        """Where the store's own answers differ from what its lines say."""
        heads = store.heads()
        for root, head in self.trees.heads.items() if heads is not None else ():
            if heads is not None and heads.get(root) != head:
                yield Fault(None, f"the tree of entity {root} does not end where its last record was written")
        for root in heads.keys() - self.trees.heads.keys() if heads is not None else ():
            yield Fault(None, f"the tree of entity {root} is missing")
        for turn, entity in self.trees.index.owners.items():
            if store.owner(turn) != entity:
                yield Fault(None, f"turn {turn} is entity {entity}'s, and the index says otherwise")
        if list(store.unfinished()) != list(self.trees.index.unfinished):
            yield Fault(None, "which entities are over is not what the index says")

    def mail_faults(self, store: Store) -> Iterator[Fault]:
        """Mail that waits and should not: a record took it, or its entity has ended. Its images are looked for, too."""
        for entity in store.waiting(loads=False):
            place = self.trees.index.place(entity)
            for no, mail in store.pending(entity, sys.maxsize):
                number, at = self.keys.get((entity, mail.key), (None, ""))
                if number is not None and at >= mail.at:  # else the key was used before, and is forgotten
                    yield Fault(number, f"it took mail {no}, which still waits")
                elif place is not None and place.life >= Life.OVER:
                    yield Fault(None, f"mail {no} was not taken by an entity that has ended")
                for image in mail.images:
                    if image.digest and image.digest not in self.images and store.blob(image.digest) is None:
                        yield Fault(None, f"the image {image.digest} of mail {no} is missing", image.digest)


def _misfit(record: Record, link: bytes | None) -> str:
    what = type(record).__name__
    if link is None:
        return f"this {what} of entity {record.entity_id} has no link: something else than a store wrote the line"
    return (
        f"this {what} of entity {record.entity_id} is not what was written after what stands before it: it was edited, "
        f"or a record of its tree before it was edited, moved or taken out"
    )


def _blob_faults(
    store: Store, snapshots: Mapping[str, int], images: Mapping[str, int]
) -> Iterator[tuple[int | None, str, str]]:
    """Yield what is wrong with blobs: record, fault, digest. The arguments map digests to the first such record."""
    for wanted, what, remedy in (
        (snapshots, "snapshot", "programs are run again instead"),
        (images, "image", "restore it from a copy"),
    ):
        for digest, number in wanted.items():
            blob = store.blob(digest)
            if blob is None or not blob.is_whole:
                fault = "is missing" if blob is None else "is not what was written"
                yield number, f"its {what} {digest} {fault}: {remedy}", digest
    for digest in store.blobs():
        if digest not in snapshots and digest not in images:
            blob = store.blob(digest)
            if blob is not None and not blob.is_whole:
                yield None, f"the blob {digest} is not what was written", digest
