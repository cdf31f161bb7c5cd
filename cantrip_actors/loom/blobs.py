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

from cantrip_actors.records.blob import Blob
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import WITH_IMAGES, WITH_SNAPSHOT, Record, get_images, replace_images
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image

R = TypeVar("R", bound=Record)


def collect_blobs(records: Iterable[Record], mails: Iterable[Mail] = ()) -> list[Blob]:
    """Return the blobs that records and mail bring along, each once.

    They are ordered by digest, so that two transactions that write the same ones cannot deadlock.
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
    """Return the records with images whose bytes `find` looks up on first use."""
    return [replace_images(one, bind_images(images, find)) if (images := get_images(one)) else one for one in records]


def bind_images(images: Iterable[File], find: Callable[[str], Blob | None]) -> tuple[File, ...]:
    """Return images whose bytes `find` looks up on first use."""
    return tuple(image.kept_in(partial(_read_bytes, find, image.digest)) for image in images)


def _read_bytes(find: Callable[[str], Blob | None], digest: str) -> bytes | None:
    blob = find(digest)
    return None if blob is None else blob.data


def address_of(image: File) -> str | None:
    """Return an address that shows the image anywhere: its own, or one made of its bytes; None without bytes.

    Another file has only its own address; exports describe such a file (R-20).
    """
    if image.url is not None or not isinstance(image, Image):
        return image.url
    data = image.base64()
    return None if data is None else f"data:{image.media_type};base64,{data}"
