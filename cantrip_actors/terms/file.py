"""Files: documents, recordings and films in messages to an entity and in the results of its gates.

A `File` is a value: immutable bytes, an address that a provider fetches itself, or the id under which a provider has
the file. An `Image` (`image.py`) is a file that is a picture. A message has its text and its files apart; `after` of a
file is its position in the text. In the JSON result of a gate the `handle` of a file takes the place of the file, and
people see its `label`: no text contains bytes.

The bytes of a file read from a loom are looked up on first use. `crystal/images.py` encodes files for providers, and
`loom/stores/blobs.py` stores them.

This module does no I/O except in `File.read`, which only users call.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NoReturn, Self, TypeVar

from cantrip_actors.terms.arguments import check, check_kind, is_text
from cantrip_actors.terms.errors import InvalidFile, LoomError
from cantrip_actors.terms.file_header import TEXT, detect_file_type, guess_type, is_textual
from cantrip_actors.terms.image_header import detect_media_type
from cantrip_actors.terms.value import set_fields

F = TypeVar("F")

LARGEST: Final = 20_000_000
"""Bytes of one file."""

_URL: Final = re.compile(r"https://[^\s/?#]\S*")

_LONGEST: Final = 8192
"""Characters of an address."""

Detail = Literal["auto", "low", "high", "original"]
"""How closely a provider should look at an image, if it has such a setting; the cost depends on it."""

_NAME: Final = 8
_FILENAME: Final = 200


class FileContent:
    """The bytes of a file, or the function that finds them, shared by all copies of the file; caches their base64."""

    __slots__ = ("data", "find", "text")

    def __init__(self, data: bytes | None, find: Callable[[], bytes | None] | None = None) -> None:
        self.data = data
        self.find = find
        self.text: str | None = None


NOWHERE: Final = FileContent(None)


class File:
    """A PDF, a text, a recording or a film, of at most 20 MB. Make one of bytes, or with `read`, `at` or `uploaded`.

    `filename` is the name that models and people see. `media_type` is detected from its bytes; for texts and for .docx,
    .pptx and .xlsx, from its name. Pass one for a format that the bytes do not show. `size` is in bytes. `digest`,
    SHA-256 of its bytes in hex, names it in the loom.

    Raises InvalidFile for bytes of an unknown format, for no bytes or too many, for a picture (make an `Image`), and
    for a `media_type` that the bytes contradict.
    """

    __slots__ = (
        *("_content", "after", "detail", "digest", "file_id", "filename", "height", "media_type", "provider"),
        *("size", "url", "width"),
    )

    kind: ClassVar[str] = "file"
    """The word for it in messages to people."""

    _content: FileContent
    media_type: str
    digest: str
    """Empty for a file that is only an address or an id."""
    size: int
    width: int | None
    """In pixels, of an image."""
    height: int | None
    detail: Detail | None
    """How closely a provider should look at an image."""
    url: str | None
    after: int | None
    """The position in its message's text, in characters; None for the end."""
    filename: str | None
    provider: str | None
    """The provider that has it under `file_id`: "anthropic", "openai", "google"."""
    file_id: str | None

    def __init__(self, data: bytes, *, filename: str | None = None, media_type: str | None = None) -> None:
        check_kind("file", data, bytes | bytearray | memoryview, "bytes, as of File.read(path)", InvalidFile)
        data = bytes(data)
        filename = _clean_name(filename)
        kind = _check_media_type(data, filename, media_type)
        self._set(FileContent(data), kind, sha256(data).hexdigest(), len(data), filename=filename)

    @classmethod
    def read(cls, path: str | Path, *, media_type: str | None = None) -> File:
        """Return the file at a path, with its name. Raises InvalidFile, also if it cannot be read."""
        return read_file(path, partial(File, filename=Path(path).name, media_type=media_type), "file", InvalidFile)

    @classmethod
    def at(cls, url: str, *, filename: str | None = None, media_type: str | None = None) -> File:
        """Return the file at an https address. The provider fetches it each time; its bytes are not in the loom.

        Its type follows from the ending of the address, and is PDF if the ending says nothing. Raises InvalidFile.
        """
        filename = _clean_name(filename)
        guessed = guess_type(_get_path(check_url(url, "file", "a.pdf"))) or "application/pdf"
        kind = _check_type_name(media_type or guessed)
        if kind.startswith("image/"):
            raise InvalidFile(f'file: "{url:.200}" is a picture by its ending: give it as an image')
        return File.from_facts(kind, "", 0, url=url, filename=filename)

    @classmethod
    def uploaded(
        cls, file_id: str, provider: str, *, filename: str | None = None, media_type: str = "application/pdf"
    ) -> File:
        """Return the file that a provider has under an id, from the provider's own file API.

        `provider` is the family: "anthropic", "openai" (also for "openai-chat"), "google" (whose ids are addresses).
        Other providers do not get the file. Raises InvalidFile.
        """
        for what, value in (("file_id", file_id), ("provider", provider)):
            fits = is_text(value) and len(value) <= _LONGEST
            check(fits, f"file: {what}", 'a text as in File.uploaded("file_1", "openai")', value, InvalidFile)
        kind, name = _check_type_name(media_type), _clean_name(filename)
        return File.from_facts(kind, "", 0, filename=name, provider=provider, file_id=file_id)

    @classmethod
    def from_facts(
        cls,
        media_type: str,
        digest: str,
        size: int,
        width: int | None = None,
        height: int | None = None,
        detail: Detail | None = None,
        *,
        url: str | None = None,
        after: int | None = None,
        find: Callable[[], bytes | None] | None = None,
        filename: str | None = None,
        provider: str | None = None,
        file_id: str | None = None,
    ) -> Self:
        """Return a file whose bytes are not loaded yet: `find` looks them up once, on first use."""
        file = object.__new__(cls)
        content = NOWHERE if find is None else FileContent(None, find)
        file._set(content, media_type, digest, size, width=width, height=height, detail=detail, url=url, after=after)
        set_fields(file, filename=filename, provider=provider, file_id=file_id)
        return file

    def _set(self, content: FileContent, media_type: str, digest: str, size: int, **more: Any) -> None:
        """Set all fields; a field that the caller leaves out gets None or an empty value."""
        facts = {"_content": content, "media_type": media_type, "digest": digest, "size": size}
        set_fields(self, **dict.fromkeys(File.__slots__) | facts | more)

    # Its bytes

    @property
    def data(self) -> bytes:
        """The bytes. Raises LoomError if there are none: the file is an address or an id, or the loom has lost them."""
        data = self.find_data()
        if data is None:
            where = "the loom does not have them" if self.digest else "only the provider has them"
            where = where if self.url is None else "an address has none here"
            raise LoomError(f"the bytes of {self.label} ({self.identity}) are not to be had: {where}")
        return data

    def find_data(self) -> bytes | None:
        """Return the bytes, or None if there are none. Raises LoomError if the stored bytes do not match the digest."""
        content = self._content
        if content.data is None and content.find is not None:
            data = content.find()
            if data is not None and sha256(data).hexdigest() != self.digest:
                raise LoomError(f"{self.kind} {self.digest} is not what was recorded: restore the loom from a copy")
            content.data = data
        return content.data

    def base64(self) -> str | None:
        """Return the bytes in base64, encoded only once; None if there are none."""
        content = self._content
        if content.text is None and (data := self.find_data()) is not None:
            content.text = base64.b64encode(data).decode()
        return content.text

    @property
    def is_at_hand(self) -> bool:
        """True if its bytes are in memory."""
        return self._content.data is not None

    @property
    def is_text(self) -> bool:
        """True if its media type is that of a text."""
        return is_textual(self.media_type)

    @property
    def identity(self) -> str:
        """The digest of its bytes, else its address or its id."""
        return self.digest or self.url or f"{self.provider}:{self.file_id}"

    # The same file, elsewhere

    def with_position(self, after: int | None) -> Self:
        """Return the same file at the position `after` of a text."""
        return self if after == self.after else self._replace(after=after)

    def with_lookup(self, find: Callable[[], bytes | None]) -> Self:
        """Return the same file with `find` to look its bytes up, unless they are in memory or it has none."""
        if self._content.data is not None or not self.digest:
            return self
        return self._replace(_content=FileContent(None, find))

    def bare(self) -> Self:
        """Return the same file without its bytes, for places that must not keep them."""
        return self._replace(_content=NOWHERE)

    def behind(self, url: str) -> Self:
        """Return the same file at another address."""
        return self._replace(_content=NOWHERE, url=url)

    def with_name(self, filename: str) -> Self:
        """Return the same file with another name."""
        return self._replace(filename=_clean_name(filename) or self.filename)

    def _replace(self, **changed: Any) -> Self:
        file = object.__new__(type(self))
        set_fields(file, **{name: getattr(self, name) for name in File.__slots__} | changed)
        return file

    # As text

    @property
    def label(self) -> str:
        """The text that people see: `[file report.pdf, application/pdf, 12 KB]`, `[image/png, 12 KB, 640×480]`."""
        return f"[{self._facts}]"

    @property
    def name(self) -> str:
        """Eight hexadecimal digits by which an entity and its programs refer to it."""
        return (self.digest or sha256(self.identity.encode()).hexdigest())[:_NAME]

    @property
    def handle(self) -> str:
        """The text that takes its place in a gate's result: label and name, `[image/png, 12 KB, 640×480, 3f2a9c1e]`."""
        return f"[{self._facts}, {self.name}]"

    @property
    def _facts(self) -> str:
        if self.url is not None:
            return f"{self.kind} at {self.url.partition('?')[0].translate(BRACKETS)}"
        where = render_size(self.size) if self.digest else f"at {self.provider}"
        return f"file {self.filename or 'without a name'}, {self.media_type}, {where}"

    # As a value

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{self.kind}: it does not change: make another one instead of setting {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self.kind}: it does not change: {name} cannot be taken away")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, File):
            return NotImplemented
        return self._get_key() == other._get_key()

    def __hash__(self) -> int:
        return hash(self._get_key())

    def _get_key(self) -> tuple[Any, ...]:
        return (self.digest, self.url, self.detail, self.filename, self.media_type, self.provider, self.file_id)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        values = tuple(getattr(self, name) for name in File.__slots__[1:])
        return _unpickle, (type(self), self.find_data(), values)

    def __repr__(self) -> str:
        return self.label


def _unpickle(kind: type[File], data: bytes | None, values: tuple[Any, ...]) -> File:
    """Return the file that was pickled."""
    file = object.__new__(kind)
    content = NOWHERE if data is None else FileContent(data)
    set_fields(file, **dict(zip(File.__slots__, (content, *values), strict=True)))
    return file


def read_file(path: str | Path, make: Callable[[bytes], F], what: str, error: type[InvalidFile]) -> F:
    """Return what `make` makes of the bytes of a file. Raises `error`, with the path, if it cannot be read or made."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as problem:  # a ValueError for a NUL, or half a surrogate pair, in the path
        raise error(f"{what} {path!s}: cannot read it: {getattr(problem, 'strerror', None) or problem}") from problem
    try:
        return make(data)
    except InvalidFile as problem:
        raise error(f"{path}: {problem}") from None


def check_url(url: str, what: str, example: str) -> str:
    """Return an https address. Raises InvalidFile for anything else."""
    fits = isinstance(url, str) and len(url) <= _LONGEST and _URL.fullmatch(url) is not None
    check(fits, what, f'an address as in "https://example.org/{example}"', url, InvalidFile)
    return url


def _check_media_type(data: bytes, filename: str | None, media_type: str | None) -> str:
    """Return the media type of a file."""
    if not data:
        raise InvalidFile("file: expected a document, a text, audio or video, got no bytes at all")
    if len(data) > LARGEST:
        raise InvalidFile(f"file: expected at most {LARGEST:,} bytes, got more")
    if (picture := detect_media_type(data)) is not None:
        raise InvalidFile(
            f"file: expected a document, a text, audio or video, got a picture ({picture}): give it as an image"
        )
    detected = detect_file_type(data)
    if media_type is not None:
        media_type = _check_type_name(media_type)
        fits = (
            detected is None
            or detected == media_type
            or (is_textual(media_type) if detected == TEXT else _is_alike(detected, media_type))
        )
        if not fits:
            raise InvalidFile(f'file: media_type "{media_type}", but its bytes are {detected}')
        return media_type
    named = guess_type(filename)
    if detected is None and named is not None and data.startswith(b"PK\x03\x04") and "officedocument" in named:
        return named
    if detected is None:
        raise InvalidFile(
            f"file: expected a PDF, text in UTF-8, audio or video, got bytes that begin with {data[:8]!r}; if a model "
            "takes another format, give its media type, too"
        )
    return named if detected == TEXT and named is not None and is_textual(named) else detected


def _is_alike(detected: str, declared: str) -> bool:
    """Return whether both are sound or film: one container may hold either."""
    return detected.startswith(("audio/", "video/")) and declared.startswith(("audio/", "video/"))


def _check_type_name(value: object) -> str:
    kind, slash, rest = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not (kind and slash and rest) or not str(value).isascii() or len(str(value).split()) != 1 or "," in str(value):
        raise InvalidFile(f'file: media_type: expected a type as in "application/pdf", got {value!r:.200}')
    return f"{kind}/{rest}".lower()


def _clean_name(filename: str | None) -> str | None:
    """Return a file's name for use in texts: without folders, brackets, commas and line breaks."""
    if filename is None:
        return None
    check(is_text(filename), "file: filename", "a text", filename, InvalidFile)
    name = Path(filename.replace("\\", "/")).name.encode("utf-8", "replace").decode()
    return "".join("_" if sign in '[],"' or not sign.isprintable() else sign for sign in name)[:_FILENAME] or None


def _get_path(url: str) -> str:
    return url.partition("?")[0].partition("#")[0].removeprefix("https://").partition("/")[2]


def render_size(size: int) -> str:
    """Return a number of bytes for people."""
    if size < 1000:
        return f"{size} B"
    return f"{round(size / 1000)} KB" if size < 999_500 else f"{size / 1_000_000:.1f} MB"


BRACKETS: Final = str.maketrans({"[": "%5B", "]": "%5D", ",": "%2C"})
