"""The file gates: `read`, `write`, `list` and `search` below one folder (SPEC 4.4, CIRCLE-10).

The folder is a dependency, `read.with_(root="notes")`, and a circle requires it. With `read.with_(root=…, images=True)`
images can be read; otherwise they are refused as binary files. `confine.py` decides which paths are allowed; this file
reads and writes there. All of it blocks, so it runs in worker threads.

Results are bounded, because they become part of a context that is paid for on every turn; a truncated result ends with
a line in brackets that says how to get the rest. Results are ordered by name, so two runs on the same folder agree.
Only a newline ends a line, so that `search` and `read` count the same lines.
"""

from __future__ import annotations

import io
import os
import secrets
import stat
import time
from builtins import list as list_
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, Final, TextIO

from pydantic import Field

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates import grep
from cantrip_actors.circle.gates.confine import ConfinedPath, explain_refusal, place, read_mode
from cantrip_actors.terms.file import LARGEST as LARGEST_IMAGE
from cantrip_actors.terms.gate import provide
from cantrip_actors.terms.gate_function import Injected, gate
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.image_header import detect_media_type

CHARACTERS: Final = 50_000
"""Characters of one result: about 12,000 tokens."""

ENTRIES: Final = 1_000
"""Entries of one listing."""

LINE: Final = 300
"""Characters of a matching line that are shown."""

LONGEST_LINE: Final = 10_000
"""Characters of a line that are searched: longer lines are generated."""

LARGEST: Final = 8_000_000
"""The largest file, in bytes, that is searched."""

VOLUME: Final = 64_000_000
"""The most characters that one regular expression is tried on."""

SECONDS: Final = 10.0
"""Seconds that a search may take."""

DEEPEST: Final = 64
"""The depth of nested folders in a walk, because each level holds an open handle."""

PASSED: Final = 64_000_000
"""Bytes of a file that `read` can skip before the part that it shows."""

_PEEK: Final = 8192

_PIECE: Final = 65_536

Root = Injected[Path]


@gate(idempotent=True, read_only=True, risks=["private_data"])
def read(
    path: Annotated[str, Field(description="path of a text file, from the root folder")],
    root: Root,
    offset: Annotated[int, Field(ge=1, description="the first line, counted from 1")] = 1,
    limit: Annotated[int | None, Field(ge=1, description="how many lines; left out: as many as fit")] = None,
    column: Annotated[int, Field(ge=0, description="characters of the first line to skip")] = 0,
    images: Injected[bool] = False,
) -> str | Image:
    """Read a text file. A result that is too long is truncated, and ends with a note how to read the rest."""
    with os.fdopen(place(root, path).open(), "rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        beginning = raw.read(_PEEK)
        if images and detect_media_type(beginning) is not None:
            return _make_image(beginning + raw.read(max(0, LARGEST_IMAGE + 1 - len(beginning))), path, size)
        if b"\0" in beginning:
            raise GateError(f'"{path}" is a binary file of {size:,} bytes: expected a text file')
        raw.seek(0)
        text, note = _read_excerpt(raw, offset, limit, column)
    text, strange = _make_readable(text)
    notes = [note] if note else []
    if strange:
        what = "1 byte is" if strange == 1 else f"{strange} bytes are"
        notes.append(f"{what} not UTF-8 and shown as \N{REPLACEMENT CHARACTER}")
    if not notes:
        return text
    return f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}[{'; '.join(notes)}]"


def _make_image(data: bytes, path: str, size: int) -> Image:
    if len(data) > LARGEST_IMAGE:
        raise GateError(f'"{path}" is a picture of {size:,} bytes: expected at most {LARGEST_IMAGE:,}')
    return Image(data)


def _read_excerpt(raw: BinaryIO, offset: int, limit: int | None, column: int) -> tuple[str, str]:
    """Return the requested lines, as far as they fit, and a note how to read the rest (empty at the end)."""
    lines = _skip_lines(raw, offset - 1)
    if lines < offset - 1:
        size = f"has {lines} lines" if lines else "is empty"
        return "", f"the file {size}, there is no line {offset}"
    encoding = "utf-8" if lines else "utf-8-sig"
    with io.TextIOWrapper(raw, encoding=encoding, errors="surrogateescape", newline="\n") as file:
        return _read_lines(file, offset, limit, column)


def _read_lines(file: TextIO, offset: int, limit: int | None, column: int) -> tuple[str, str]:
    _refuse_beyond(column)
    left = column
    while left and (piece := file.read(min(left, _PIECE))):
        left -= len(piece)
    pieces: list_[str] = []
    room, line, at = CHARACTERS, offset, column
    while room and (limit is None or line < offset + limit):
        piece = file.readline(room)
        if not piece:
            return "".join(pieces), ""
        pieces.append(piece)
        room -= len(piece)
        if piece.endswith("\n"):
            line, at = line + 1, 0
        else:
            at += len(piece)
    if not file.read(1):
        return "".join(pieces), ""
    onward = f"offset={line}, column={at}" if at else f"offset={line}"
    return "".join(pieces), f"the file has more: read it with {onward}"


def _skip_lines(raw: BinaryIO, count: int) -> int:
    """Skip lines of any length without storing them; return how many there were.

    It counts the lines of whole pieces, because a file may have millions of short ones.
    """
    skipped, piece = 0, b""
    while skipped < count:
        _refuse_beyond(raw.tell())
        before, piece = piece, raw.read(_PIECE)
        if not piece:
            return skipped + bool(before and not before.endswith(b"\n"))
        breaks = piece.count(b"\n")
        if skipped + breaks >= count:
            raw.seek(-len(piece), os.SEEK_CUR)
            for _ in range(count - skipped):
                raw.readline()
        skipped = min(skipped + breaks, count)
    return skipped


def _refuse_beyond(position: int) -> None:
    """Refuse to skip more of a file. A file may be larger than its disk, because holes take no space."""
    if position > PASSED:
        raise GateError(
            f"what was asked for lies beyond the first {PASSED:,} bytes of the file: expected an offset and a "
            "column before that; search finds lines further on"
        )


def _make_readable(text: str) -> tuple[str, int]:
    """Return the text with a replacement for each byte that is not UTF-8, and the number of such bytes."""
    if text.isascii():
        return text, 0
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return shown, sum("\udc80" <= sign <= "\udcff" for sign in text)


@gate
def write(
    path: Annotated[str, Field(description="path of the file, from the root folder; missing folders are made")],
    content: Annotated[str, Field(description="the whole text of the file")],
    root: Root,
) -> str:
    """Write a text file, new or in place of the old one."""
    try:
        data = content.encode()
    except UnicodeEncodeError as error:
        raise GateError(f"content: expected text that can be written as UTF-8: {error.reason}") from error
    where = place(root, path)
    if not where.parts:
        raise GateError(f'"{path}" is a folder, expected the path of a file')
    with where.folder(above=True, make=True) as folder:
        mode = read_mode(where.parts[-1], folder)
        if stat.S_ISDIR(mode):
            raise GateError(f'"{path}" is a folder, expected the path of a file')
        if mode and not stat.S_ISREG(mode):
            raise GateError(f'"{path}" is not a regular file and is not replaced')
        where.check_target(folder)
        _replace(folder, where, data, mode)
    lines = content.count("\n") + (not content.endswith("\n") and content != "")
    done = "replaced" if mode else "wrote"
    return f'{done} "{where.name}": {lines} {"line" if lines == 1 else "lines"}, {len(data):,} bytes'


def _replace(folder: int, where: ConfinedPath, data: bytes, mode: int) -> None:
    """Replace a file, which has this mode, or 0 if it is new: readers see the old or the new one, also after a kill."""
    draft = f".{secrets.token_hex(8)}.draft"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(draft, flags, 0o666, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            if mode:
                os.fchmod(handle, stat.S_IMODE(mode))
            file.write(data)
        os.rename(draft, where.parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise explain_refusal(error, where.requested) from error


@gate(name="list", idempotent=True, read_only=True, risks=["private_data"])
def list_files(
    root: Root,
    path: Annotated[str, Field(description="a folder, from the root folder")] = ".",
    recursive: Annotated[bool, Field(description="also what lies in its folders, hidden ones left out")] = False,
    offset: Annotated[int, Field(ge=0, description="entries to skip, to go on with a long listing")] = 0,
) -> list_[str]:
    """List the files and folders in a folder, as paths from the root folder; a folder ends with a slash."""
    where = place(root, path)
    with where.folder() as folder:
        walk = _walk(folder, where, 0 if recursive else DEEPEST)
        names = ["/".join(parts) + ("/" if is_folder else "") for parts, is_folder in walk]
    shown = names[offset : offset + ENTRIES]
    if offset + len(shown) < len(names):
        shown.append(f"[{len(names):,} entries in all: continue with offset={offset + len(shown)}]")
    return shown


def _walk(folder: int, where: ConfinedPath, depth: int) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield all entries of a folder, by name, each folder before its own entries.

    Links are listed and never followed; folders of the runtime are listed and never entered.
    """
    try:
        with os.scandir(folder) as entries:
            listed = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError:  # removed or made unreadable meanwhile: nothing to list
        return
    for name, is_folder in listed:
        parts = (*where.parts, name)
        yield parts, is_folder
        if is_folder and depth < DEEPEST and not name.startswith("."):
            try:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except OSError:
                continue
            try:
                if not where.own.has_folder(inner):
                    yield from _walk(inner, replace(where, parts=parts), depth + 1)
            finally:
                os.close(inner)


@gate(idempotent=True, read_only=True, risks=["private_data"])
def search(
    pattern: Annotated[str, Field(min_length=1, max_length=1000, description="what to look for")],
    root: Root,
    path: Annotated[str, Field(description="a file or a folder to look in, from the root folder")] = ".",
    regex: Annotated[bool, Field(description="the pattern is a Python regular expression")] = False,
    ignore_case: bool = False,
    limit: Annotated[int, Field(ge=1, le=1000, description="how many matching lines to show")] = 100,
) -> list_[str]:
    """Search text files for lines that contain the pattern, as "path:line: text". Hidden folders are left out."""
    hunt = _Hunt(place(root, path), time.monotonic() + SECONDS)
    look = hunt.find_by_regex if regex else hunt.find_by_text
    matches = look(pattern, ignore_case, limit + 1)
    shown = [f"{name}:{number}: {_clip(line)}" for name, number, line in matches[:limit]]
    if len(matches) > limit:
        hunt.notes.append(f"stopped after {limit} matching lines: narrow the pattern or the path, or raise limit")
    return [*shown, *(f"[{note}]" for note in hunt.notes)]


class _Hunt:
    """One search over the text files of a place, and the notes about files that it left out."""

    def __init__(self, where: ConfinedPath, ends: float) -> None:
        self.where, self.ends = where, ends
        self.notes: list_[str] = []

    def find_by_text(self, pattern: str, ignore_case: bool, limit: int) -> list_[tuple[str, int, str]]:
        fold = str.casefold if ignore_case else str
        wanted = fold(pattern)
        texts = ((name, text) for name, text in self._read_texts() if wanted in fold(text))
        lines = ((name, number, line) for name, text in texts for number, line in enumerate(text.split("\n"), 1))
        return list_(islice((line for line in lines if wanted in fold(line[2])), limit))

    def find_by_regex(self, pattern: str, ignore_case: bool, limit: int) -> list_[tuple[str, int, str]]:
        names: list_[str] = []
        texts = self._read_texts_to_match(names)
        try:
            matches = grep.find_matching_lines(pattern, texts, ignore_case=ignore_case, limit=limit, ends=self.ends)
        except grep.TooSlow as error:
            raise GateError(
                f"the pattern {pattern!r} did not finish within {SECONDS:g} s: expected one without repetitions inside "
                "repetitions; or narrow the path"
            ) from error
        except ValueError as error:
            raise GateError(
                f"pattern {pattern!r} is not a regular expression: {error}; regex=false takes it as it is"
            ) from error
        return [(names[index], number, line) for index, number, line in matches]

    def _read_texts_to_match(self, names: list_[str]) -> Iterator[str]:
        """Yield the texts for one regular expression, with their lines cut, and add their names to `names`."""
        volume = 0
        for name, text in self._read_texts():
            volume += len(text)
            if volume > VOLUME:
                self.notes.append(f'stopped before "{name}": too much text for one search; narrow the path')
                break
            names.append(name)
            yield "\n".join(line[:LONGEST_LINE] for line in text.split("\n"))

    def _read_texts(self) -> Iterator[tuple[str, str]]:
        """Yield each text file of the place, by name. Binary, huge and unreadable files are left out."""
        large = 0
        for entry in self._find_files():
            if time.monotonic() > self.ends:
                self.notes.append(f'stopped before "{entry.name}" after {SECONDS:g} s: narrow the path')
                break
            try:
                handle = entry.open()
            except GateError:
                continue
            with os.fdopen(handle, "rb") as file:
                if os.fstat(handle).st_size > LARGEST:
                    large += 1
                    continue
                data = file.read(LARGEST)
            if b"\0" not in data[:_PEEK]:
                yield entry.name, data.decode("utf-8", "replace")
        if large:
            self.notes.append(f"{large} {'file' if large == 1 else 'files'} of more than {LARGEST:,} bytes left out")

    def _find_files(self) -> Iterator[ConfinedPath]:
        with self.where.folder(above=True) as above:
            is_file = bool(self.where.parts) and not stat.S_ISDIR(read_mode(self.where.parts[-1], above))
        if is_file:
            os.close(self.where.open())  # a missing file is an error, not a search without matches
            yield self.where
            return
        with self.where.folder() as folder:
            for parts, is_folder in _walk(folder, self.where, 0):
                if not is_folder:
                    yield replace(self.where, parts=parts, requested="/".join(parts))


def _clip(line: str) -> str:
    line = line.removesuffix("\r")
    return line if len(line) <= LINE else f"{line[:LINE]}…"


provide(list_files, read, search, write)
