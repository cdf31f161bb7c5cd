"""The blobs of records: which ones a record refers to, brings along or lacks.

A line has the digest of each blob. The bytes are stored separately, before the first line that refers to them, in the
same transaction or in a file of their own. So a kill in between leaves at most unreferenced bytes. The hash chain
covers the digests, and so the bytes.

An image or another file is part of the history: `verify` reports a missing one, and an entity that continues without it
gets a note. A snapshot is replaceable: without it programs are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec

from cantrip_actors.records.blob import Blob, Snapshot
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Record, get_images, replace_images
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image

R = TypeVar("R", bound=Record)


def add_snapshot(snapshot: Snapshot, blobs: dict[str, Blob]) -> None:
    """Add the blob of a snapshot, by digest, if it has its bytes."""
    if snapshot.blob is not None:
        blobs[snapshot.digest] = snapshot.blob


def add_images(images: Iterable[File], blobs: dict[str, Blob]) -> None:
    """Add the blobs of images that have their bytes, by digest."""
    for image in images:
        if image.digest and image.digest not in blobs and (data := image.find_data()) is not None:
            blobs[image.digest] = Blob(image.digest, image.media_type, data)


def attach_images(records: Iterable[R], find: Callable[[str], Blob | None]) -> list[R]:
    """Return the records with images whose bytes `find` looks up on first use."""
    return [
        replace_images(record, bind_images(images, find)) if (images := get_images(record)) else record
        for record in records
    ]


def bind_images(images: Iterable[File], find: Callable[[str], Blob | None]) -> tuple[File, ...]:
    """Return images whose bytes `find` looks up on first use."""
    return tuple(image.with_lookup(partial(_read_bytes, find, image.digest)) for image in images)


def bind_mail(mail: Mail, find: Callable[[str], Blob | None]) -> Mail:
    """Return mail with images whose bytes `find` looks up on first use."""
    return msgspec.structs.replace(mail, images=bind_images(mail.images, find)) if mail.images else mail


def _read_bytes(find: Callable[[str], Blob | None], digest: str) -> bytes | None:
    blob = find(digest)
    return None if blob is None else blob.data


def address_of(image: File) -> str | None:
    """Return an address that shows the image anywhere: its own, or one made of its bytes; None without bytes.

    Another file has only its own address; exports describe such a file.
    """
    if image.url is not None or not isinstance(image, Image):
        return image.url
    data = image.base64()
    return None if data is None else f"data:{image.media_type};base64,{data}"
