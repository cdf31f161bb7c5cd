"""Images on their way to a provider: which of them it takes, what stands in the place of the others, what they cost.

What a family takes is a `Takes`: media types, bytes, addresses. An image that it does not take, or whose bytes the loom
has lost, becomes a line of text that says so, in its place: a query is never refused for good because of one image that
an old message has. Where a server refuses images as such, that is learnt (`Family.learn`), and from then on every image
is such a line for this crystal.

What an image costs in tokens is a formula of its pixels, each family's own: none is exact for every model, so what they
come to is learnt along with what a character amounts to (`estimate.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.image import Image

__all__ = [
    "BLIND",
    "Shown",
    "Takes",
    "data_url",
    "openai_tokens",
    "parts_of",
    "pixel_tokens",
    "refuses_images",
    "tile_tokens",
]

UNKNOWN: Final = 1_600
"""Tokens of an image whose size in pixels nobody knows: of an address, or of a header that does not say it."""


class Shown(NamedTuple):
    """A text with the images that stand in it."""

    text: str
    images: tuple[Image, ...]


@dataclass(frozen=True, slots=True)
class Takes:
    """The images that a provider takes. `largest` is in bytes of base64, `widest` in pixels of either edge."""

    kinds: frozenset[str] = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
    largest: int | None = None
    widest: int | None = None
    addresses: bool = True
    """Whether it fetches an image from an address."""
    any: bool = True

    def why_not(self, image: Image) -> str | None:
        """What is in the way of an image; None for one that it takes."""
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
            return "its bytes are not in the loom"
        return None


BLIND: Final = Takes(any=False)


def parts_of(text: str, images: Sequence[Image], takes: Takes) -> list[str | Image]:
    """A text and its images, in order; a list of one text where no image is to be sent. Blank texts are left out."""
    parts: list[str | Image] = []
    done = 0
    for image in images:
        at = len(text) if image.after is None else min(image.after, len(text))
        _say(parts, text[done:at])
        done = max(done, at)
        why = takes.why_not(image)
        if why is None:
            parts.append(image)
        else:
            _say(parts, f"[{image.label[1:-1]}: not shown: {why}]")
    _say(parts, text[done:])
    return parts or [text]


def _say(parts: list[str | Image], text: str) -> None:
    text = text.strip("\n") if parts else text.removesuffix("\n")
    if not text.strip():
        return
    if parts and isinstance(parts[-1], str):
        parts[-1] = f"{parts[-1]}\n{text}"
    else:
        parts.append(text)


def data_url(image: Image) -> str:
    """The image as an address: its own, or its bytes."""
    return image.url or f"data:{image.media_type};base64,{image.base64()}"


# -------------------------------------------------------------------------------------------------------- what it costs


def pixel_tokens(image: Image, *, per_token: int = 750, most: int = 4_800) -> int:
    """Tokens by pixels: so many to a token, and what is larger is scaled down."""
    if not image.width or not image.height:
        return UNKNOWN
    return min(most, ceil(image.width * image.height / per_token))


def openai_tokens(image: Image) -> int:
    """1.2 tokens for each patch of 32 pixels: 10,000 of them at most, 2,500 in high detail, and 85 tokens in low."""
    if image.detail == "low":
        return 85
    return tile_tokens(image, edge=32, each=1.2, most=2_500 if image.detail == "high" else 10_000)


def tile_tokens(image: Image, *, edge: int, each: float, most: int) -> int:
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
