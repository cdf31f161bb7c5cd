"""The images of messages and gate results in a store: kept once by their content, and looked up when they are wanted.

A record has an image's facts (`record.py`): its digest, media type, size. Its bytes lie beside the lines, under the
digest, and are written before the first line that refers to them, in the same transaction or in a file of their own. So
a kill in between leaves at most bytes that nobody refers to. The hash chain covers the digest, and so the bytes.

They are part of what happened, unlike the images of sandboxes (`images.py`), which can be had again: one that is
missing is a fault (`verify`), and an entity that goes on without it is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cantrip_actors.model.image import Image
from cantrip_actors.model.turn import GateFinished, IntentGiven, Record, Steered

if TYPE_CHECKING:
    from cantrip_actors.loom.store import Store

__all__ = [
    "Picture",
    "address_of",
    "brought_pictures",
    "picture_faults",
    "pictures_in",
    "with_images",
    "with_pictures",
]

R = TypeVar("R", bound=Record)


class Picture(NamedTuple):
    """The bytes of an image, as a store keeps them."""

    digest: str
    media_type: str
    data: bytes

    @property
    def is_whole(self) -> bool:
        """Whether they are those that the digest was made of."""
        return sha256(self.data).hexdigest() == self.digest


def pictures_in(record: Record) -> tuple[Image, ...]:
    """The images of a record. (Asked of every record that is written, so by its very type.)"""
    kind = type(record)
    if kind is GateFinished:
        return record.observation.images  # type: ignore[union-attr]
    return record.images if kind is IntentGiven or kind is Steered else ()  # type: ignore[union-attr]


def brought_pictures(records: Iterable[Record]) -> list[Picture]:
    """What records bring to be kept, each once, in an order that does not depend on that of the records."""
    found: dict[str, Picture] = {}
    for record in records:
        for image in pictures_in(record):
            if image.digest and image.digest not in found and (data := image.found()) is not None:
                found[image.digest] = Picture(image.digest, image.media_type, data)
    return [found[digest] for digest in sorted(found)] if found else []


def with_images(record: R, images: tuple[Image, ...]) -> R:
    """The record with other images, as many and in the same places."""
    if isinstance(record, GateFinished):
        return replace(record, observation=replace(record.observation, images=images))
    assert isinstance(record, (IntentGiven, Steered)), "others have no images"
    return replace(record, images=images)


def with_pictures(records: Iterable[R], find: Callable[[str], Picture | None]) -> list[R]:
    """The records, their images with bytes that `find` looks up when somebody wants them."""
    return [_attached(record, find) if pictures_in(record) else record for record in records]


def _attached(record: R, find: Callable[[str], Picture | None]) -> R:
    images = pictures_in(record)
    return with_images(record, tuple(image.kept_in(partial(_bytes, find, image.digest)) for image in images))


def _bytes(find: Callable[[str], Picture | None], digest: str) -> bytes | None:
    picture = find(digest)
    return None if picture is None else picture.data


def address_of(image: Image) -> str | None:
    """The image as an address that shows it anywhere: its own, or its bytes; None where there are none."""
    if image.url is not None:
        return image.url
    data = image.base64()
    return None if data is None else f"data:{image.media_type};base64,{data}"


def picture_faults(store: Store, wanted: Mapping[str, int]) -> Iterator[tuple[int | None, str, str]]:
    """What is wrong with pictures: those that records refer to (digest to the first such record), and the others."""
    for digest, number in wanted.items():
        picture = store.picture(digest)
        if picture is None:
            yield number, f"its image {digest} is missing: restore it from a copy", digest
        elif not picture.is_whole:
            yield number, f"its image {digest} is not what was written: restore it from a copy", digest
    for digest in store.pictures():
        if digest not in wanted and (picture := store.picture(digest)) is not None and not picture.is_whole:
            yield None, f"the image {digest} is not what was written", digest
