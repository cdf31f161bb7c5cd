"""The memory store: a loom that lives as long as its process. For tests, demos and casts that nobody looks at again.

It keeps the same lines as a file would, one buffer an entity, and not the records themselves: a million records as
objects would cost several times the memory, and the garbage collector would walk through them again and again.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterator, Mapping, Sequence

from cantrip_actors.loom.images import brought
from cantrip_actors.loom.index import IndexedStore
from cantrip_actors.loom.lease import NO_LEASES
from cantrip_actors.loom.pictures import Picture, brought_pictures, with_pictures
from cantrip_actors.loom.record import decode, encode
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.snapshot import SandboxImage
from cantrip_actors.model.turn import Record

__all__ = ["MemoryStore"]


class MemoryStore(IndexedStore[bytearray]):
    """A store without a disk. It can still be read when it is closed. Its lines have no links: nobody can edit them."""

    shared = False

    sealed = False

    def __init__(self) -> None:
        super().__init__(bytearray)
        self._numbers: dict[str, int] = {}
        self._order = array("L")  # the number of the entity whose line came next
        self._images: dict[str, SandboxImage] = {}
        self._pictures: dict[str, Picture] = {}
        self._key = secrets.token_bytes(32)
        self._closed = False

    def append(self, records: Sequence[Record], leases: Mapping[str, int] = NO_LEASES) -> None:
        """Keep `records`, all or none, until the process ends."""
        if self._closed:
            raise LoomError("the loom is closed: nothing can be recorded any more")
        lines = [encode(record) for record in records]
        self._check(records, leases)
        for image in brought(records):
            self._images.setdefault(image.digest, image)
        for picture in brought_pictures(records):
            self._pictures.setdefault(picture.digest, picture)
        for record, line in zip(records, lines, strict=True):
            buffer = self._index.add(record)
            buffer += line + b"\n"
            self._order.append(self._numbers.setdefault(record.entity_id, len(self._numbers)))

    def records(self, entity_id: str) -> Sequence[Record]:
        """Everything recorded of an entity, in order."""
        lines = bytes(self._index.places.get(entity_id, b"")).splitlines()
        return with_pictures(map(decode, lines), self.picture)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line with its number, in the order in which they were recorded, up to the moment of the call."""
        rest = [iter(bytes(buffer).splitlines()) for buffer in self._index.places.values()]
        for number, entity in enumerate(self._order[:], 1):
            yield number, next(rest[entity])

    def image(self, digest: str) -> SandboxImage | None:
        """The image of that digest."""
        return self._images.get(digest)

    def images(self) -> Iterator[str]:
        """The digests of all images."""
        return iter(list(self._images))

    def picture(self, digest: str) -> Picture | None:
        """The picture of that digest."""
        return self._pictures.get(digest)

    def pictures(self) -> Iterator[str]:
        """The digests of all pictures."""
        return iter(list(self._pictures))

    def key(self) -> bytes:
        """A key that lives as long as the store."""
        return self._key

    def _first(self, place: bytearray) -> Record:
        return decode(bytes(place[: place.index(b"\n")]))

    def close(self) -> None:
        """Take no more records."""
        self._closed = True

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self._index.places)} entities, {len(self._index.owners)} turns>"
