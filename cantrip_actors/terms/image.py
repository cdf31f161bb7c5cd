"""Images: pictures in what is put to an entity and in what its gates give (CRYSTAL-6, D-005).

An `Image` is a value: bytes of which nothing ever changes, or an address that a provider fetches itself. A message's
text stays text, and its images ride beside it; where one stands in the text (`after`) is the image's own. What a gate
gives is JSON with an image's `handle` in the place of each, and people are shown its `label`: bytes are in no text.

The bytes of an image that comes back from a loom are looked up when somebody first wants them. How a provider is sent
one is the families' (`crystal/images.py`), where a loom keeps it `loom/blobs.py`'s.

It does no I/O but for `Image.read`, which is a user's door and called by nothing in here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn, Self, get_args

from cantrip_actors.terms.errors import InvalidImage, InvalidIntent, LoomError, nearest
from cantrip_actors.terms.image_header import media_type_of, size_of

__all__ = [
    "LARGEST",
    "NO_IMAGES",
    "Detail",
    "Given",
    "Image",
    "Said",
    "handles",
    "labelled",
    "named_in",
    "said",
]

LARGEST: Final = 20_000_000
"""Bytes of one image: more than any provider takes."""

LONGEST: Final = 8192
"""Characters of an address."""

Detail = Literal["auto", "low", "high", "original"]
"""How closely a provider is to look, where it can be told; what it costs depends on it."""

_NAME: Final = 8
_HANDLE: Final = re.compile(r"\[image[^\[\]]*, ([0-9a-f]{8})\]")


class _Content:
    """The bytes, shared by all copies of an image: there, or where to look for them. What is made of them is kept."""

    __slots__ = ("data", "find", "text")

    def __init__(self, data: bytes | None, find: Callable[[], bytes | None] | None = None) -> None:
        self.data = data
        self.find = find
        self.text: str | None = None


_NOWHERE: Final = _Content(None)


class Image:
    """A picture: PNG, JPEG, GIF or WebP, of at most 20 MB. Make one of bytes, or with `read` or `at`.

    `detail` says how closely a provider is to look, where it can be told: "auto", "low", "high", "original".
    `media_type` is what its first bytes say, `size` is in bytes, `width` and `height` in pixels where its header has
    them. `digest`, SHA-256 of its bytes in hex, names it in the loom.

    Raises InvalidImage for bytes that are no such picture, for none, for too many, and for an unknown `detail`.
    """

    __slots__ = ("_content", "after", "detail", "digest", "height", "media_type", "size", "url", "width")

    _content: _Content
    media_type: str
    digest: str
    """Empty for one that is only an address."""
    size: int
    width: int | None
    height: int | None
    detail: Detail | None
    url: str | None
    after: int | None
    """Characters of its message's text that stand before it; None: all of them."""

    def __init__(self, data: bytes, *, detail: Detail | None = None) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidImage(
                f"image: expected bytes, got {type(data).__name__}; a file is read with Image.read(path)"
            )
        data = bytes(data)
        kind = _checked(data)
        width, height = size_of(data, kind)
        self._set(kind, sha256(data).hexdigest(), len(data), width, height, _detail(detail), _Content(data))

    @classmethod
    def read(cls, path: str | Path, *, detail: Detail | None = None) -> Image:
        """The picture in a file. Raises InvalidImage, also where it cannot be read."""
        try:
            with Path(path).open("rb") as file:
                data = file.read(LARGEST + 1)
        except OSError as error:
            raise InvalidImage(f"image {path}: cannot read it: {error.strerror}") from error
        try:
            return cls(data, detail=detail)
        except InvalidImage as error:
            raise InvalidImage(f"{path}: {error}") from None

    @classmethod
    def at(cls, url: str, *, detail: Detail | None = None) -> Image:
        """The picture behind an https address, which the provider fetches, each time; nothing of it is in the loom.

        Raises InvalidImage for what is no such address.
        """
        if not isinstance(url, str) or not url.startswith("https://") or len(url) > LONGEST or len(url.split()) != 1:
            raise InvalidImage(f'image: expected an address as in "https://example.org/a.png", got {url!r:.200}')
        return cls.known(_by_ending(url), "", 0, None, None, _detail(detail), url=url)

    @classmethod
    def known(
        cls,
        media_type: str,
        digest: str,
        size: int,
        width: int | None,
        height: int | None,
        detail: Detail | None = None,
        *,
        url: str | None = None,
        after: int | None = None,
        find: Callable[[], bytes | None] | None = None,
    ) -> Self:
        """An image of which everything is known but its bytes: `find` looks them up, once, when they are wanted."""
        made = object.__new__(cls)
        content = _NOWHERE if find is None else _Content(None, find)
        made._set(media_type, digest, size, width, height, detail, content, url, after)
        return made

    def _set(
        self,
        media_type: str,
        digest: str,
        size: int,
        width: int | None,
        height: int | None,
        detail: Detail | None,
        content: _Content,
        url: str | None = None,
        after: int | None = None,
    ) -> None:
        values = (content, after, detail, digest, height, media_type, size, url, width)
        for name, value in zip(Image.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    # Its bytes

    @property
    def data(self) -> bytes:
        """The bytes. Raises LoomError where they are nowhere: those of an address, and those that a loom has lost."""
        found = self.found()
        if found is None:
            where = "an address has none here" if self.url is not None else "the loom does not have them"
            raise LoomError(f"the bytes of {self.label} ({self.digest or self.url}) are not to be had: {where}")
        return found

    def found(self) -> bytes | None:
        """The bytes, None where they are nowhere. Raises LoomError where they lie and what lies there is other ones."""
        content = self._content
        if content.data is None and content.find is not None:
            data = content.find()
            if data is not None and sha256(data).hexdigest() != self.digest:
                raise LoomError(f"image {self.digest} is not what was recorded: restore the loom from a copy")
            content.data = data
        return content.data

    def base64(self) -> str | None:
        """The bytes in base64, made once however often an image is sent; None where there are none."""
        content = self._content
        if content.text is None and (data := self.found()) is not None:
            content.text = base64.b64encode(data).decode()
        return content.text

    @property
    def is_at_hand(self) -> bool:
        """Whether its bytes are in memory."""
        return self._content.data is not None

    # The same image, elsewhere

    def placed(self, after: int | None) -> Image:
        """The same image behind so many characters of a text."""
        return self if after == self.after else self._with(self._content, after)

    def kept_in(self, find: Callable[[], bytes | None]) -> Image:
        """The same image with its bytes where `find` looks; one that has them, or is an address, as it is."""
        if self._content.data is not None or self.url is not None:
            return self
        return self._with(_Content(None, find), self.after)

    def bare(self) -> Image:
        """The same image without its bytes: what is left where they must not be kept."""
        return self._with(_NOWHERE, self.after)

    def behind(self, url: str) -> Image:
        """The same image at another address."""
        return self._with(_NOWHERE, self.after, url)

    def _with(self, content: _Content, after: int | None, url: str | None = None) -> Image:
        made = object.__new__(Image)
        facts = (self.media_type, self.digest, self.size, self.width, self.height, self.detail)
        made._set(*facts, content, url or self.url, after)
        return made

    # As text

    @property
    def label(self) -> str:
        """What people are shown: `[image/png, 12 KB, 640×480]`."""
        return f"[{self._facts}]"

    @property
    def name(self) -> str:
        """Eight hexadecimal digits by which an entity and its programs know it."""
        return (self.digest or sha256((self.url or "").encode()).hexdigest())[:_NAME]

    @property
    def handle(self) -> str:
        """What stands for it in what a gate gives: `[image/png, 12 KB, 640×480, 3f2a9c1e]`."""
        return f"[{self._facts}, {self.name}]"

    @property
    def _facts(self) -> str:
        if self.url is not None:
            return f"image at {self.url.partition('?')[0].translate(_BRACKETS)}"
        pixels = f", {self.width}×{self.height}" if self.width and self.height else ""
        return f"{self.media_type}, {_amount(self.size)}{pixels}"

    # As a value

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"an image does not change: make another one instead of setting {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"an image does not change: {name} cannot be taken away")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Image):
            return NotImplemented
        return (self.digest, self.url, self.detail) == (other.digest, other.url, other.detail)

    def __hash__(self) -> int:
        return hash((self.digest, self.url, self.detail))

    def __copy__(self) -> Image:
        return self

    def __deepcopy__(self, memo: object) -> Image:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.found(), self.url, self.detail, self.after)

    def __repr__(self) -> str:
        return self.label


Said = str | Image | Sequence[str | Image]
"""What can be put to an entity: a text, an image, or both in any order."""

NO_IMAGES: Final[tuple[Image, ...]] = ()


class Given(NamedTuple):
    """What was put to an entity: its text, and the images that stand in it."""

    text: str
    images: tuple[Image, ...] = NO_IMAGES


def said(given: object, what: str) -> Given:
    """Text and images of what a user said; `what` it is for names it in the error (INTENT-1).

    Texts are joined by line breaks. Images alone have a text as well: what they are.

    Raises InvalidIntent for anything else, and for a text that says nothing.
    """
    if isinstance(given, str):
        if given.strip():
            return Given(given)
    elif isinstance(given, Image):
        return Given(given.label, (given,))
    elif isinstance(given, (list, tuple)) and given and all(isinstance(one, (str, Image)) for one in given):
        return _joined(given)
    raise InvalidIntent(f"{what}, or a list of texts and images; got {given!r:.300}")


def _joined(given: Sequence[str | Image]) -> Given:
    texts: list[str] = []
    length = 0
    images: list[Image] = []
    for one in given:
        if isinstance(one, Image):
            images.append(one.placed(length))
        elif one.strip():
            length += len(one) + (1 if texts else 0)
            texts.append(one)
    if not texts:
        if not images:
            raise InvalidIntent("a list of empty texts says nothing: expected a text or an image in it")
        return Given("\n".join(image.label for image in images), tuple(image.placed(None) for image in images))
    placed = [image.placed(None if image.after == length else image.after) for image in images]
    return Given("\n".join(texts), tuple(placed))


def handles(text: str) -> list[str]:
    """The names of the images whose handles stand in a text, each once, in order."""
    return list(dict.fromkeys(_HANDLE.findall(text))) if ", " in text and "[image" in text else []


def named_in(text: str, images: Iterable[Image]) -> tuple[Image, ...]:
    """Those of `images` whose handles stand in the text, in the order of the text."""
    names = handles(text)
    if not names:
        return NO_IMAGES
    by_name = {image.name: image for image in images}
    return tuple(by_name[name].placed(None) for name in names if name in by_name)


def labelled(text: str, images: Sequence[Image]) -> str:
    """A text as people are shown it: with the labels of the images that came with it."""
    labels = [image.label for image in images if image.label not in text and image.handle not in text]
    return " ".join([text, *labels]) if labels else text


def _checked(data: bytes) -> str:
    if not data:
        raise InvalidImage("image: expected a picture, got no bytes at all")
    if len(data) > LARGEST:
        raise InvalidImage(f"image: expected at most {LARGEST:,} bytes, got more")
    kind = media_type_of(data)
    if kind is None:
        raise InvalidImage(f"image: expected a PNG, JPEG, GIF or WebP picture, got bytes that begin with {data[:8]!r}")
    return kind


def _detail(detail: object) -> Any:
    known = get_args(Detail)
    if detail is not None and detail not in known:
        raise InvalidImage(f'image: unknown detail "{detail}": {nearest(str(detail), known)}')
    return detail


def _again(data: bytes | None, url: str | None, detail: Detail | None, after: int | None) -> Image:
    if url is not None:
        return Image.at(url, detail=detail).placed(after)
    return Image(data or b"", detail=detail).placed(after)


def _by_ending(url: str) -> str:
    ending = url.partition("?")[0].partition("#")[0].rpartition(".")[2].lower()
    return f"image/{ending}" if ending in ("png", "gif", "webp") else "image/jpeg"


def _amount(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    return f"{round(size / 1000)} KB" if size < 999_500 else f"{size / 1_000_000:.1f} MB"


_BRACKETS: Final = str.maketrans({"[": "%5B", "]": "%5D", ",": "%2C"})
