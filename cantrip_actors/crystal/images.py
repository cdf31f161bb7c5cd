"""Images and other files on their way to a provider: which it takes, what stands in place of others, what they cost.

What a family takes is a `Takes`: media types, bytes, addresses. An image that it does not take, or whose bytes the loom
has lost, becomes a line of text that says so, in its place: a query is never refused for good because of one image that
an old message has. The same holds of other files, but users are told before that: what a crystal does not take is
refused where it is put to an entity (`refused_file`). A text file is sent as text if a family has no other
place for it. If a server refuses all images, the crystal learns that (`Family.learn`), and from then on replaces every
image by such a line.

What an image costs in tokens is a formula of its pixels, each family's own: none is exact for every model, so what they
come to is learnt along with what a character amounts to (`estimate.py`).
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

from cantrip_actors.terms.cantrip import Crystal, crystal_name
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image

UNKNOWN: Final = 1_600
"""Tokens of an image of unknown size in pixels: an address, or a file whose header does not tell it."""


class Shown(NamedTuple):
    """A text with the images and files that stand in it."""

    text: str
    images: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class Takes:
    """The images and files that a provider takes. `largest` is in bytes of base64 of an image, `widest` in its pixels.

    `files` are media types ("application/pdf", "audio/*"). `fetched` are those of which it fetches a file from an
    address, and `ids` the providers whose ids of files it knows. A text file that is not among `files` is sent as text.
    """

    kinds: frozenset[str] = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
    largest: int | None = None
    widest: int | None = None
    addresses: bool = True
    """Whether it fetches an image from an address."""
    any: bool = True
    """Whether it takes images at all."""
    files: tuple[str, ...] = ()
    fetched: tuple[str, ...] = ()
    ids: frozenset[str] = frozenset()

    def why_not(self, image: File) -> str | None:
        """Return why an image or another file is not taken, None if it is."""
        if not isinstance(image, Image):
            return self._why_no_file(image)
        if not self.any:
            return "this model takes no images"
        if image.url is not None:
            return None if self.addresses else "this provider fetches none"
        if image.media_type not in self.kinds:
            return f"this provider takes {', '.join(sorted(self.kinds))}"
        if self.largest is not None and 4 * ceil(image.size / 3) > self.largest:
            return f"this provider takes up to {self.largest * 3 // 4:,} bytes"
        if self.widest is not None and max(image.width or 0, image.height or 0) > self.widest:
            return f"this provider takes up to {self.widest:,} pixels to an edge"
        if image.base64() is None:
            return _LOST
        return None

    def _why_no_file(self, file: File) -> str | None:
        kind = file.media_type
        if file.file_id is not None:
            return None if file.provider in self.ids else f"only {file.provider} has it"
        if file.url is not None:
            return None if _matches(kind, self.fetched) else f"this provider fetches no {kind}"
        if not (_matches(kind, self.files) or file.is_text):
            known = [one for one in self.files if not one.startswith("text/")]
            return f"this model takes {', '.join([*known, 'text'])}"
        return _LOST if file.found() is None else None

    def is_told(self, file: File) -> bool:
        """Whether a file goes as text among texts."""
        return file.is_text and bool(file.digest) and not _matches(file.media_type, self.files)


_LOST: Final = "its bytes are not in the loom"


def _matches(media_type: str, kinds: Sequence[str]) -> bool:
    """Whether a media type is among kinds, of which "audio/*" stands for all of its kind."""
    return media_type in kinds or f"{media_type.partition('/')[0]}/*" in kinds or "*/*" in kinds


def refused_file(crystal: Crystal, files: Iterable[File]) -> str | None:
    """Return why a crystal does not take one of some files, None if it takes all, or does not say what it takes.

    Images are not looked at: what a model says of those that it does not take is in their places.
    """
    why_not = getattr(crystal, "why_not", None)
    if callable(why_not):
        for file in files:
            if not isinstance(file, Image) and isinstance(why := why_not(file), str):
                return f"{file.label[1:-1]}: {crystal_name(crystal)} cannot be given it: {why}"
    return None


def parts_of(text: str, images: Sequence[File], takes: Takes) -> list[str | File]:
    """A text with its images and files, in order; a list of one text where none is to be sent, without blank texts."""
    parts: list[str | File] = []
    done = 0
    for image in images:
        at = len(text) if image.after is None else min(image.after, len(text))
        _say(parts, text[done:at])
        done = max(done, at)
        why = takes.why_not(image)
        if why is None and takes.is_told(image):
            name = image.filename or image.media_type
            _say(parts, f"[file {name}]\n{image.data.decode(errors='replace')}\n[end of file {name}]")
        elif why is None:
            parts.append(image)
        else:
            _say(parts, f"[{image.label[1:-1]}: not shown: {why}]")
    _say(parts, text[done:])
    return parts or [text]


def _say(parts: list[str | File], text: str) -> None:
    text = text.strip("\n") if parts else text.removesuffix("\n")
    if not text.strip():
        return
    if parts and isinstance(parts[-1], str):
        parts[-1] = f"{parts[-1]}\n{text}"
    else:
        parts.append(text)


OFFICE: Final = tuple(
    f"application/vnd.openxmlformats-officedocument.{kind}"
    for kind in ("wordprocessingml.document", "presentationml.presentation", "spreadsheetml.sheet")
)
"""The media types of .docx, .pptx and .xlsx."""


def file_name(file: File) -> str:
    """The name of a file, for providers that want one."""
    return file.filename or f"file{mimetypes.guess_extension(file.media_type) or ''}"


def data_url(image: File) -> str:
    """The image or file as an address: its own, or its bytes."""
    return image.url or f"data:{image.media_type};base64,{image.base64()}"


# -------------------------------------------------------------------------------------------------------- what it costs


def pixel_tokens(image: File, *, per_token: int = 750, most: int = 4_800) -> int:
    """Tokens by pixels: so many to a token, and what is larger is scaled down."""
    if not image.width or not image.height:
        return UNKNOWN
    return min(most, ceil(image.width * image.height / per_token))


def openai_tokens(image: File) -> int:
    """1.2 tokens for each patch of 32 pixels: 10,000 of them at most, 2,500 in high detail, and 85 tokens in low."""
    if image.detail == "low":
        return 85
    return tile_tokens(image, edge=32, each=1.2, most=2_500 if image.detail == "high" else 10_000)


def file_tokens(file: File) -> int:
    """Tokens of a file that is no picture: of a text by its length, of anything else a guess by its bytes."""
    if file.is_text:
        return ceil(file.size * 0.3)
    return max(UNKNOWN, ceil(file.size / 25))


def tile_tokens(image: File, *, edge: int, each: float, most: int) -> int:
    """Tokens by squares of `edge` pixels, each so many, and at most so many squares."""
    if not image.width or not image.height:
        return UNKNOWN
    return ceil(min(most, ceil(image.width / edge) * ceil(image.height / edge)) * each)


# ------------------------------------------------------------------------------------------------------------- refusals

_REFUSES: Final = re.compile(
    r"\b(images?|image[ _](urls?|inputs?|content)|vision|multi-?modal\w*) (is|are) not "
    r"(supported|enabled|available|allowed)"
    r"|(not|n't|cannot|no endpoints found that) (support|accept)\w* [^.]{0,40}"
    r"(images?\b(?!/| (format|type|size|dim))|image_url|vision|multi-?modal)"
    r"|image input (is not|support)|at most 0 images?|mmproj|not a (multimodal|vision) model|text-only model"
    r"|(unknown variant|unexpected|invalid content type)[^.]{0,40}image_url|image_url is only supported"
    r"|content[^.]{0,40}(must|should|expected to) be a (valid )?string",
    re.IGNORECASE,
)
_STATUS: Final = frozenset((400, 404, 415, 422, 500, 501))
"""With which servers say it: llama.cpp with 500, OpenRouter with 404."""


def refuses_images(error: ProviderError) -> bool:
    """Whether a server says that it takes no images at all. (That one of them is too large is no such word.)"""
    return error.status in _STATUS and _REFUSES.search(str(error)) is not None
