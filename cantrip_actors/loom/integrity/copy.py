"""Copy a loom to another store of any kind: `copy_loom` appends every record in the order of recording.

So each tree has the same chain, each thread the same bytes, and both looms have the same fingerprint. That is checked
at the end, by verifying the copy. A loom that is sealed with a key has links of its own, so the records of a
sealed source must verify before it is copied.

Leases are not copied: they concern processes, not history. Waiting mail is copied in its order, and so are timers,
schedules and submissions. Blobs are copied; a snapshot that had the seal of its old store gets the seal of the new one.
A blob that `source` has lost, or that was changed, is not copied, and verifying the copy reports it as missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from cantrip_actors.loom.integrity.verify import Trees, Verified, read_timers, verify_loom, verify_trees
from cantrip_actors.loom.stores.blobs import attach_images
from cantrip_actors.loom.stores.store import Store
from cantrip_actors.loom.stores.unfinished_copies import list_unfinished_copies, mark_copy
from cantrip_actors.machine.project import Life
from cantrip_actors.records.blob import Blob, Snapshot
from cantrip_actors.records.codec import decode, encode
from cantrip_actors.records.mail import MailRow
from cantrip_actors.records.records import Record, get_images, get_snapshot, replace_snapshot
from cantrip_actors.records.timers import Timer
from cantrip_actors.records.tombstone import is_tombstone
from cantrip_actors.terms.arguments import check_kind
from cantrip_actors.terms.errors import LoomError

BATCH = 1000
"""Records that are appended in one batch."""


def copy_loom(source: Store, target: Store) -> Verified:
    """Copy everything in `source` to `target`, which may hold other entities already; return `target`'s verification.

    A copy that is killed or fails leaves a part of `source` in `target`, and `verify_loom` says so. Copying the same
    source again finishes it.

    Raises LoomError if an entity is in both (before anything is written), if `source` cannot be read or `target` cannot
    be written, and if the copy differs.
    """
    for what, store in (("source", source), ("target", target)):
        check_kind(what, store, Store, "a store, as of open_store(…)", LoomError)
    with source.snapshot():  # others may be writing to it
        return _copy(source, target)


def _copy(source: Store, target: Store) -> Verified:
    for origin in list_unfinished_copies(source).values():
        raise LoomError(f"{source.where} is only a part of {origin}, and nothing was copied: finish that copy first")
    entities = [header.entity_id for header in source.headers()]
    mark = entities[0] if entities else ""
    is_begun = mark in list_unfinished_copies(target)
    copied: dict[str, int] = {}
    """How many records of each entity an earlier call for this source has copied."""
    for entity in entities:
        if target.header(entity) is None:
            continue
        if not is_begun:
            raise LoomError(
                f"{target.where} holds entity {entity} already: nothing was copied; copy to another loom, or "
                "remove the earlier copy"
            )
        copied[entity] = len(target.records(entity))
    if source.seal.chain:  # the copy gets links of its own, which would hide a forged record
        faults = [fault for fault in verify_loom(source).faults if fault.blob is None]
        if faults:
            raise LoomError(f"{source.where} has faults, and nothing was copied: {faults[0]}. Repair it first")
    mark_copy(target, mark, source.where)
    trees = Trees(target.seal)
    blobs = _Blobs(source, target)
    batch: list[Record] = []
    tombstones: dict[int, bytes] = {}
    for number, record, line in _read_records(source):
        trees.follow(number, record)
        if is_tombstone(line):
            tombstones[len(batch)] = line
        else:
            line = encode(record)  # the target writes the line in this form
        trees.seal(trees.find_root(record), line)
        if copied.get(record.entity_id):
            copied[record.entity_id] -= 1
            tombstones.pop(len(batch), None)
            continue
        batch.append(blobs.attach(record))
        if len(batch) == BATCH:
            target.append_copied(batch, tombstones)
            batch, tombstones = [], {}
    target.append_copied(batch, tombstones)
    _copy_mail(source, target)
    _copy_timers(source, target)
    _copy_submissions(source, target)
    verified = _compare(trees, target, blobs.lost)
    mark_copy(target, mark, "")
    return verified


def _read_records(source: Store) -> Iterator[tuple[int, Record, bytes]]:
    for number, line in source.lines():
        try:
            yield number, decode(line), line
        except LoomError as error:
            raise LoomError(f"record {number} cannot be copied: {error}") from error


class _Blobs:
    """The blobs of `source` in the form that `target` needs; the keys of both are read for the first snapshot."""

    def __init__(self, source: Store, target: Store) -> None:
        self.lost: set[str] = set()
        self._stores = source, target
        self._keys: tuple[bytes | None, bytes | None] | None = None

    def attach(self, record: Record) -> Record:
        """Return the record with the bytes of its blobs."""
        if get_images(record):
            (record,) = attach_images([record], self._find)
            return record
        snapshot = get_snapshot(record)
        blob = None if snapshot is None else self._find(snapshot.digest)
        return record if blob is None else replace_snapshot(record, Snapshot(blob.digest, self._reseal(blob)))

    def _find(self, digest: str) -> Blob | None:
        blob = self._stores[0].blob(digest)
        if blob is None or not blob.is_whole:
            self.lost.add(digest)
            return None
        return blob

    def _reseal(self, snapshot: Blob) -> Blob:
        if self._keys is None:
            source, target = self._stores
            self._keys = source.key(), target.key()
        old, new = self._keys
        if old is None or new is None or not snapshot.is_sealed_with(old):
            return snapshot
        return snapshot.seal_again(new)


def _copy_mail(source: Store, target: Store) -> None:
    """Copy waiting mail in its order, all of it: the runtime that accepted it may have had larger inboxes."""
    for entity in source.waiting(loads=False):
        mails = [mail for _, mail in source.pending(entity, sys.maxsize)]
        for result in target.post(mails, most=sys.maxsize):
            if not isinstance(result, MailRow):
                raise result


def _copy_timers(source: Store, target: Store) -> None:
    for timer in read_timers(source):
        if can_wait(timer, target):
            target.replace_timer(None, timer)


def _copy_submissions(source: Store, target: Store) -> None:
    after = ""
    while page := source.list_submissions(after, BATCH):
        after = page[-1].id
        for row in page:
            target.add_submission(row)


def can_wait(timer: Timer, store: Store) -> bool:
    """Return whether a timer is a schedule, or its entity is in this store and has not ended.

    A loom in use may set a timer after its records were read.
    """
    life = store.life(timer.entity_id) if timer.entity_id else Life.IDLE
    return life is not None and life < Life.OVER


def _compare(trees: Trees, target: Store, lost: AbstractSet[str]) -> Verified:
    found, heads = verify_trees(target)
    copied = {root: link for root, link in heads.items() if root in trees.heads}
    faults = [fault for fault in found.faults if fault.blob not in lost]
    if faults or copied != trees.heads:
        why = faults[0] if faults else "its records differ"
        raise LoomError(f"the copy in {target.where} differs from its source: {why}")
    return found
