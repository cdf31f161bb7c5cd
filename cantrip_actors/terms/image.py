"""Images: pictures in messages to an entity, in results of its gates and in its utterances (CRYSTAL-6, D-005).

An `Image` is a `File` (`file.py`) that is a picture. `split_message` reads a user's message to an entity: texts,
images and other files. `find_handles`, `select_named` and `add_labels` handle references to them in texts. The `images`
of a text in this package include other files (decision 0041).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, get_args

from cantrip_actors.terms.arguments import check_kind, render
from cantrip_actors.terms.errors import InvalidFile, InvalidImage, InvalidIntent, suggest_nearest
from cantrip_actors.terms.file import BRACKETS, LARGEST, Detail, File, FileContent, check_url, read_file, render_size
from cantrip_actors.terms.image_header import detect_media_type, read_size

_HANDLE: Final = re.compile(r"\[(?:image|file)[^\[\]]*, ([0-9a-f]{8})\]")


class Image(File):
    """A picture: PNG, JPEG, GIF or WebP, of at most 20 MB. Make one of bytes, or with `read` or `at`.

    `detail` says how closely a provider should look, if the provider has such a setting: "auto", "low", "high",
    "original". `media_type` is read from its first bytes, `size` is in bytes, `width` and `height` are in pixels if its
    header has them. `digest`, SHA-256 of its bytes in hex, names it in the loom.

    Raises InvalidImage for bytes that are not such a picture, that are empty or too many, and for an unknown `detail`.
    """

    __slots__ = ()

    kind: ClassVar[str] = "image"

    def __init__(self, data: bytes, *, detail: Detail | None = None) -> None:
        check_kind("image", data, bytes | bytearray | memoryview, "bytes, as of Image.read(path)", InvalidImage)
        data = bytes(data)
        kind = _check_picture(data)
        width, height = read_size(data, kind)
        pixels = {"width": width, "height": height, "detail": _check_detail(detail)}
        self._set(FileContent(data), kind, sha256(data).hexdigest(), len(data), **pixels)

    @classmethod
    def read(cls, path: str | Path, *, detail: Detail | None = None) -> Image:  # type: ignore[override]  # of its own
        """Return the picture in a file. Raises InvalidImage, also if the file cannot be read."""
        return read_file(path, partial(cls, detail=detail), "image", InvalidImage)

    @classmethod
    def at(cls, url: str, *, detail: Detail | None = None) -> Image:  # type: ignore[override]  # likewise
        """Return the picture at an https address. The provider fetches it each time; its bytes are not in the loom.

        Raises InvalidImage for anything but such an address.
        """
        try:
            check_url(url, "image", "a.png")
        except InvalidFile as error:
            raise InvalidImage(str(error)) from None
        return cls.from_facts(_guess_by_ending(url), "", 0, None, None, _check_detail(detail), url=url)

    @property
    def _facts(self) -> str:
        if self.url is not None:
            return f"image at {self.url.partition('?')[0].translate(BRACKETS)}"
        pixels = f", {self.width}×{self.height}" if self.width and self.height else ""
        return f"{self.media_type}, {render_size(self.size)}{pixels}"


Said = str | File | Sequence[str | File]
"""A message to an entity: a text, an image or another file, or several of them in any order."""

NO_IMAGES: Final[tuple[File, ...]] = ()


def select_files(images: Iterable[File]) -> tuple[File, ...]:
    """Return the files that are not pictures."""
    return tuple(image for image in images if not isinstance(image, Image))


def select_pictures(images: Iterable[File]) -> tuple[Image, ...]:
    """Return the files that are pictures."""
    return tuple(image for image in images if isinstance(image, Image))


class MessageParts(NamedTuple):
    """A message to an entity: its text, and the images in it."""

    text: str
    images: tuple[File, ...] = NO_IMAGES


def split_message(value: object, what: str) -> MessageParts:
    """Return the text and the images of a user's message; the error begins with `what` (INTENT-1).

    Texts are joined by line breaks. The text of images alone is their labels.

    Raises InvalidIntent for anything else, and for a blank text.
    """
    if isinstance(value, str):
        if value.strip():
            return MessageParts(value)
    elif isinstance(value, File):
        return MessageParts(value.label, (value,))
    elif isinstance(value, (list, tuple)) and value and all(isinstance(part, (str, File)) for part in value):
        return _join(value)
    raise InvalidIntent(f"{what}, or a list of texts, images and files; got {render(value):.300}")


def _join(parts: Sequence[str | File]) -> MessageParts:
    texts: list[str] = []
    length = 0
    images: list[File] = []
    for part in parts:
        if isinstance(part, File):
            images.append(part.with_position(length))
        elif part.strip():
            length += len(part) + (1 if texts else 0)
            texts.append(part)
    if not texts:
        if not images:
            raise InvalidIntent("a list of empty texts says nothing: expected a text or an image in it")
        return MessageParts(
            "\n".join(image.label for image in images), tuple(image.with_position(None) for image in images)
        )
    placed = [image.with_position(None if image.after == length else image.after) for image in images]
    return MessageParts("\n".join(texts), tuple(placed))


def move_files(files: Iterable[File], by: int) -> tuple[File, ...]:
    """Return files of a text before which `by` characters were inserted."""
    return tuple(file if file.after is None else file.with_position(file.after + by) for file in files)


def find_handles(text: str) -> list[str]:
    """Return the names of the images whose handles are in a text, each once, in order."""
    return list(dict.fromkeys(_HANDLE.findall(text))) if ", " in text and ("[image" in text or "[file " in text) else []


def select_named(text: str, images: Iterable[File]) -> tuple[File, ...]:
    """Return those of `images` whose handles are in the text, in the order of the text."""
    names = find_handles(text)
    if not names:
        return NO_IMAGES
    by_name = {image.name: image for image in images}
    return tuple(by_name[name].with_position(None) for name in names if name in by_name)


def add_labels(text: str, images: Sequence[File]) -> str:
    """Return a text for people, with the labels of its images."""
    labels = [image.label for image in images if image.label not in text and image.handle not in text]
    return " ".join([text, *labels]) if labels else text


def add_handles(text: str | None, images: Sequence[File]) -> str | None:
    """Return the text of an entity with the handles of the images that it made, by which it refers to them later."""
    missing = [image.handle for image in images if text is None or image.handle not in text]
    return "\n".join([text, *missing] if text else missing) if missing else text


def _check_picture(data: bytes) -> str:
    if not data:
        raise InvalidImage("image: expected a picture, got no bytes at all")
    if len(data) > LARGEST:
        raise InvalidImage(f"image: expected at most {LARGEST:,} bytes, got more")
    kind = detect_media_type(data)
    if kind is None:
        raise InvalidImage(f"image: expected a PNG, JPEG, GIF or WebP picture, got bytes that begin with {data[:8]!r}")
    return kind


def _check_detail(detail: object) -> Any:
    details = get_args(Detail)
    if detail is not None and detail not in details:
        raise InvalidImage(f'image: unknown detail "{detail}": {suggest_nearest(str(detail), details)}')
    return detail


def _guess_by_ending(url: str) -> str:
    ending = url.partition("?")[0].partition("#")[0].rpartition(".")[2].lower()
    return f"image/{ending}" if ending in ("png", "gif", "webp") else "image/jpeg"
