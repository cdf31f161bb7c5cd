"""A loom into another store, of whichever kind: `copy_loom` appends every record in the order in which it was recorded.

So each tree has the same chain, each thread the same bytes, and both looms have the same fingerprint. That is checked
once all is there, by reading the copy again. Leases are not copied: they are about processes, not about what happened.
Images of sandboxes are, and get the seal of the store that they are in now, if they had that of the other; so are those
of messages and results. One that `source` has lost, or that was changed, is not copied, and the copy says that it is
missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cantrip_actors.loom.chain import sealed_with
from cantrip_actors.loom.pictures import Picture, pictures_in, with_pictures
from cantrip_actors.loom.record import decode, encode
from cantrip_actors.loom.store import Store
from cantrip_actors.loom.verify import Trees, Verified, verify_loom
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.snapshot import SandboxImage, Snapshot
from cantrip_actors.model.turn import Committed, GateStarted, Record

__all__ = ["copy_loom"]

BATCH = 1000
"""Records that are appended at once."""


def copy_loom(source: Store, target: Store) -> Verified:
    """Copy everything in `source` to `target`, which may hold other entities already; what `target` holds then.

    Raises LoomError where an entity is in both (before anything is written), where `source` cannot be read or `target`
    not be written, and where the copy turns out to be another one.
    """
    for header in source.headers():
        if target.header(header.entity_id) is not None:
            raise LoomError(f"{target!r} holds entity {header.entity_id} already: nothing was copied")
    trees = Trees()
    images = _Images(source, target)
    batch: list[Record] = []
    for record in _records(source):
        trees.add(record, encode(record))
        batch.append(images.with_image(record))
        if len(batch) == BATCH:
            target.append(batch)
            batch = []
    target.append(batch)
    return _compared(trees, target, images.lost)


def _records(source: Store) -> Iterator[Record]:
    for number, line in source.lines():
        try:
            yield decode(sealed_with(line)[0])
        except LoomError as error:
            raise LoomError(f"record {number} cannot be copied: {error}") from error


class _Images:
    """The images of `source`, as `target` is to have them; the keys of both are looked for with the first one."""

    def __init__(self, source: Store, target: Store) -> None:
        self.lost: set[str] = set()
        self._stores = source, target
        self._keys: tuple[bytes | None, bytes | None] | None = None

    def with_image(self, record: Record) -> Record:
        """The record, with the images that it refers to."""
        if pictures_in(record):
            (record,) = with_pictures([record], self._whole)
            return record
        if not isinstance(record, (Committed, GateStarted)) or record.snapshot is None:
            return record
        digest = record.snapshot.digest
        image = self._stores[0].image(digest)
        if image is None or not image.is_whole:
            self.lost.add(digest)
            return record
        return replace(record, snapshot=Snapshot(digest, self._sealed(image)))

    def _whole(self, digest: str) -> Picture | None:
        picture = self._stores[0].picture(digest)
        if picture is None or not picture.is_whole:
            self.lost.add(digest)
            return None
        return picture

    def _sealed(self, image: SandboxImage) -> SandboxImage:
        if self._keys is None:
            source, target = self._stores
            self._keys = source.key(), target.key()
        old, new = self._keys
        return image if old is None or new is None or not image.is_sealed_with(old) else image.sealed_again(new)


def _compared(trees: Trees, target: Store, lost: AbstractSet[str]) -> Verified:
    found = verify_loom(target)
    copied = Trees()
    for _, line in target.lines():
        plain = sealed_with(line)[0]
        record = decode(plain)
        if copied.root(record) in trees.heads:
            copied.add(record, plain)
    faults = [fault for fault in found.faults if fault.image not in lost]
    if faults or copied.heads != trees.heads:
        why = faults[0] if faults else "its records are other ones"
        raise LoomError(f"the copy in {target!r} is not what was copied: {why}")
    return found
