"""The blobs of records: which ones a record refers to, brings with it or lacks.

A line has the digest of each blob; the bytes are kept beside the lines, before the first line that refers to them, in
the same transaction or in a file of their own. So a kill in between leaves at most bytes that no line refers to. The
hash chain covers the digests, and so the bytes.

An image or another file is part of what happened: `verify` reports one that is missing, and an entity that continues
without it is told so. A snapshot can be made again: without it programs run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from cantrip_actors.records.blob import Blob
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import WITH_IMAGES, WITH_SNAPSHOT, Record, images_of, with_images
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image

__all__ = [
    "address_of",
    "attach_images",
    "attached",
    "blobs_of",
]

R = TypeVar("R", bound=Record)


def blobs_of(records: Iterable[Record], mails: Iterable[Mail] = ()) -> list[Blob]:
    """Return the blobs that records and mail bring to be kept, each once.

    They are in the order of their digests: two transactions that write the same ones do not wait for each other in a
    circle.
    """
    found: dict[str, Blob] = {}
    for record in records:
        kind = type(record)
        if kind in WITH_SNAPSHOT:
            snapshot = record.snapshot  # type: ignore[union-attr]  # its type says so
            if snapshot is not None and snapshot.blob is not None:
                found[snapshot.digest] = snapshot.blob
        elif kind in WITH_IMAGES and record.images:  # type: ignore[union-attr]  # likewise
            _add_images(record.images, found)  # type: ignore[union-attr]  # likewise
    for mail in mails:
        _add_images(mail.images, found)
    return [found[digest] for digest in sorted(found)] if found else []


def _add_images(images: Iterable[File], found: dict[str, Blob]) -> None:
    for image in images:
        if image.digest and image.digest not in found and (data := image.found()) is not None:
            found[image.digest] = Blob(image.digest, image.media_type, data)


def attach_images(records: Iterable[R], find: Callable[[str], Blob | None]) -> list[R]:
    """Return the records with images whose bytes `find` looks up when they are first wanted."""
    return [with_images(one, attached(images, find)) if (images := images_of(one)) else one for one in records]


def attached(images: Iterable[File], find: Callable[[str], Blob | None]) -> tuple[File, ...]:
    """Return images whose bytes `find` looks up when they are first wanted."""
    return tuple(image.kept_in(partial(_bytes, find, image.digest)) for image in images)


def _bytes(find: Callable[[str], Blob | None], digest: str) -> bytes | None:
    blob = find(digest)
    return None if blob is None else blob.data


def address_of(image: File) -> str | None:
    """Return an address that shows the image anywhere: its own, or one made of its bytes; None without bytes.

    Of another file there is none but its own: exports say what it is (R-20).
    """
    if image.url is not None or not isinstance(image, Image):
        return image.url
    data = image.base64()
    return None if data is None else f"data:{image.media_type};base64,{data}"
