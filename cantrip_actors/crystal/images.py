"""Images and other files for a provider: which ones it accepts, the text that replaces others, and their tokens.

A `Takes` has the media types, sizes and addresses that a family accepts. A line of text replaces an image that it does
not accept, or whose bytes the loom has lost, so that one image in an old message does not make every later query fail.
The same holds for other files, but an intent with a file that the crystal does not accept is refused before
(`find_refused_file`). A text file is sent as text if a family does not accept it as a file. If a server refuses all
images, the crystal learns that (`Family.learn`), and replaces every image by such a line from then on.

Each family has a formula for the tokens of an image by its pixels. None is exact for every model, so `estimate.py`
learns a factor for images as it does for characters.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

from cantrip_actors.terms.crystal import Crystal, get_crystal_name
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image

UNKNOWN: Final = 1_600
"""Tokens of an image of unknown size in pixels: an address, or a file whose header does not have it."""


class Shown(NamedTuple):
    """A text with its images and files."""

    text: str
    images: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class Takes:
    """The images and files that a provider accepts. `largest` is in bytes of base64 of an image, `widest` in its
    pixels.

    `files` are media types ("application/pdf", "audio/*"). `fetched` are the media types that it fetches from an
    address, and `ids` the providers whose file ids it knows. A text file that is not among `files` is sent as text.
    """

    kinds: frozenset[str] = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
    largest: int | None = None
    widest: int | None = None
    addresses: bool = True
    """Whether the provider fetches an image from an address."""
    any: bool = True
    """Whether the provider accepts images."""
    files: tuple[str, ...] = ()
    fetched: tuple[str, ...] = ()
    ids: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    """The keys of images and files that the provider has refused (`File.identity`)."""

    def why_not(self, image: File) -> str | None:
        """Return why an image or another file is not accepted; None if it is."""
        if self.refused and image.identity in self.refused:
            return "the provider refused it"
        return self._explain_no_image(image) if isinstance(image, Image) else self._explain_no_file(image)

    def _explain_no_image(self, image: Image) -> str | None:
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

    def _explain_no_file(self, file: File) -> str | None:
        kind = file.media_type
        if file.file_id is not None:
            return None if file.provider in self.ids else f"only {file.provider} has it"
        if file.url is not None:
            return None if _is_among(kind, self.fetched) else f"this provider fetches no {kind}"
        if not (_is_among(kind, self.files) or file.is_text):
            types = [file_type for file_type in self.files if not file_type.startswith("text/")]
            return f"this model takes {', '.join([*types, 'text'])}"
        return _LOST if file.find_data() is None else None

    def is_sent_as_text(self, file: File) -> bool:
        """Return whether a file is sent as text."""
        return file.is_text and bool(file.digest) and not _is_among(file.media_type, self.files)


_LOST: Final = "its bytes are not in the loom"


def _is_among(media_type: str, kinds: Sequence[str]) -> bool:
    """Return whether a media type is among kinds; "audio/*" includes all types of audio."""
    return media_type in kinds or f"{media_type.partition('/')[0]}/*" in kinds or "*/*" in kinds


def find_refused_file(crystal: Crystal, files: Iterable[File]) -> str | None:
    """Return why a crystal does not accept one of the files; None if it accepts all, or does not say.

    Images are not checked: a line of text replaces the ones that a model does not accept.
    """
    why_not = getattr(crystal, "why_not", None)
    if callable(why_not):
        for file in files:
            if not isinstance(file, Image) and isinstance(why := why_not(file), str):
                return f"{file.label[1:-1]}: {get_crystal_name(crystal)} cannot be given it: {why}"
    return None


def list_parts(text: str, images: Sequence[File], takes: Takes) -> list[str | File]:
    """Return a text with its images and files, in order, without blank texts; a list of one text if none is sent."""
    parts: list[str | File] = []
    done = 0
    for image in images:
        at = len(text) if image.after is None else min(image.after, len(text))
        _say(parts, text[done:at])
        done = max(done, at)
        why = takes.why_not(image)
        if why is None and takes.is_sent_as_text(image):
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


def name_file(file: File) -> str:
    """Return the name of a file, for providers that require one."""
    return file.filename or f"file{mimetypes.guess_extension(file.media_type) or ''}"


def make_data_url(image: File) -> str:
    """Return the address of an image or file, or a data: URL with its bytes."""
    return image.url or f"data:{image.media_type};base64,{image.base64()}"


# -------------------------------------------------------------------------------------------------------- what it costs


def estimate_by_pixels(image: File) -> int:
    """Return the tokens of an image in proportion to its pixels; a larger image is scaled down."""
    if not image.width or not image.height:
        return UNKNOWN
    return min(4_800, ceil(image.width * image.height / 750))


def estimate_by_patches(image: File) -> int:
    """Return 1.2 tokens for each patch of 32 pixels: at most 10,000 patches, 2,500 in high detail, and 85 tokens in
    low.
    """
    if image.detail == "low":
        return 85
    return estimate_by_tiles(image, edge=32, each=1.2, most=2_500 if image.detail == "high" else 10_000)


def estimate_file_tokens(file: File) -> int:
    """Return the tokens of a file other than an image: by the length of a text, else a guess by the bytes."""
    if file.is_text:
        return ceil(file.size * 0.3)
    return max(UNKNOWN, ceil(file.size / 25))


def estimate_by_tiles(image: File, *, edge: int, each: float, most: int) -> int:
    """Return the tokens of an image by squares of `edge` pixels."""
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
"""Status codes of such refusals: llama.cpp sends 500, OpenRouter 404."""


def is_image_refusal(error: ProviderError) -> bool:
    """Return whether an error says that the server accepts no images at all, not only that one is too large."""
    return error.status in _STATUS and _REFUSES.search(str(error)) is not None
