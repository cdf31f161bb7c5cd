"""An append-only file of lines: the log of a JSONL loom, and each of its sidecars.

A line exists once its newline is written. Bytes after the last newline were never acknowledged: a process was killed in
the middle of a write, or a write failed. A writer cuts them off.

The methods here raise OSError; the code that opened the loom says which file it was and what to do.
"""

from __future__ import annotations

import base64
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import orjson

from cantrip_actors.own_files.modes import FILE
from cantrip_actors.records.blob import Blob
from cantrip_actors.redact.logs import get_logger

CHUNK = 1 << 22
"""Bytes read at once."""

_HALF = "it ends in half a line of a write that failed, and cannot be cut back to its last whole one"

_BLOB = re.compile(rb'\{"digest":"([0-9a-f]+)",[^\n]*\}\r?\n')

_log = get_logger("cantrip.loom")


@dataclass(frozen=True, slots=True)
class Disk:
    """The system calls that change a file; tests replace them by failing ones."""

    write: Callable[[int, bytes | memoryview], int] = os.write
    truncate: Callable[[int, int], None] = os.ftruncate
    sync: Callable[[int], None] = os.fsync

    def sync_folder(self, path: Path) -> None:
        """Make the name of the file at `path` as durable as its content."""
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(folder)
        finally:
            os.close(folder)


class LineFile:
    """One file. With `synced` an append waits for the disk. `end` is the known end of its whole lines."""

    def __init__(self, path: Path, disk: Callable[[], Disk], *, read_only: bool, synced: bool) -> None:
        self.path = path
        self.read_only = read_only
        self.fd = -1
        self.end = 0
        self.is_dirty = False
        """Whether bytes of a failed write may follow the last whole line."""
        self._disk = disk
        self._synced = synced and not read_only

    def open(self, *, create: bool = False) -> bool:
        """Open the file; return whether it is open. Without `create` a missing file is not an error."""
        if self.fd >= 0:
            return True
        flags = os.O_RDONLY if self.read_only else os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
        try:
            self.fd = os.open(self.path, flags | os.O_NONBLOCK | os.O_CLOEXEC, FILE)
        except FileNotFoundError:
            if create:
                raise
            return False
        if create and self._synced:
            self._disk().sync_folder(self.path)
        return True

    def close(self) -> None:
        """Close the file. It can still be read."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    # ---------------------------------------------------------------------------------------------------------- writing

    def append(self, data: bytes) -> int:
        """Write whole lines at the end, and return their offset. Nothing has changed if this raises OSError."""
        if self.fd < 0:
            self.open(create=True)
        if self.is_dirty and not self.cut():
            raise OSError(errno.EIO, _HALF)
        try:
            self.write(self.fd, data)
            if self._synced:
                self._disk().sync(self.fd)
        except OSError:
            self.is_dirty = True
            self.cut()
            raise
        at, self.end = self.end, self.end + len(data)
        return at

    def write(self, fd: int, data: bytes) -> None:
        """Write all of `data`: a signal or a nearly full disk may split the write."""
        write = self._disk().write
        rest: bytes | memoryview = data
        while rest:
            try:
                written = write(fd, rest)
            except InterruptedError:
                continue
            if written == len(rest):
                return
            if written <= 0:
                raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
            rest = memoryview(rest)[written:]

    def cut(self, end: int | None = None) -> bool:
        """Cut off the bytes after the last whole line, or `end`; return False, and log it, if the disk refuses."""
        end = self.end if end is None else end
        try:
            self._disk().truncate(self.fd, end)
        except OSError as error:
            self.is_dirty = True
            _log.error("loom.half_record", path=str(self.path), offset=end, error=str(error))
            return False
        self.end, self.is_dirty = end, False
        return True

    @property
    def _new(self) -> Path:
        return self.path.with_name(f"{self.path.name}.new")

    def write_new(self, parts: Iterable[bytes]) -> int:
        """Write a file that `replace` can put in this one's place; return it, open and synced to disk."""
        fd = os.open(self._new, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE)
        try:
            for part in parts:
                self.write(fd, part)
            self._disk().sync(fd)
        except BaseException:
            os.close(fd)
            self._new.unlink(missing_ok=True)
            raise
        return fd

    def replace(self, fd: int) -> None:
        """Replace this file by the one that `write_new` returned."""
        self._new.replace(self.path)
        old, self.fd = self.fd, fd
        if old >= 0:
            os.close(old)
        self.end, self.is_dirty = os.fstat(fd).st_size, False
        self._disk().sync_folder(self.path)

    def rewrite(self, parts: Iterable[bytes]) -> None:
        """Replace all lines by others, all or none."""
        self.replace(self.write_new(parts))

    def remove_new(self) -> None:
        """Remove the new file of a process that was killed while it wrote it."""
        self._new.unlink(missing_ok=True)

    # ---------------------------------------------------------------------------------------------------------- reading

    def read_blocks(self, at: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the whole lines from `at` up to `end`, many at a time."""
        rest, size = b"", CHUNK
        while read := os.pread(self.fd, size if end is None else min(size, end - at), at):
            at += len(read)
            whole = read.rfind(b"\n") + 1
            if whole:
                yield rest + read[:whole]
                rest, size = read[whole:], CHUNK
            else:  # a longer line: read more of it at once, so that joining does not become quadratic
                rest, size = rest + read, size * 2

    def read(self, at: int, length: int) -> bytes:
        """Return up to `length` bytes from `at`, also when the file is closed."""
        data = b""
        fd = self.fd if self.fd >= 0 else os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(data) < length and (more := os.pread(fd, length - len(data), at + len(data))):
                data += more
        finally:
            if fd != self.fd:
                os.close(fd)
        return data


class BlobFile:
    """Blobs in a file of lines, each once. It is opened, and read once, at the first use of a blob.

        {"digest":"…","kind":"image/png","data":"…"}       data in base64; a snapshot has a "seal", too

    Earlier versions kept images and snapshots in two files; their lines have "type", or "engine", and are read as well.
    """

    def __init__(self, file: LineFile) -> None:
        self.file = file
        self._places: dict[str, tuple[int, int]] = {}

    def add(self, blobs: Iterable[Blob]) -> None:
        """Write the blobs that are not in the file yet."""
        self._look()
        new = [blob for blob in blobs if blob.digest not in self._places]
        if not new:
            return
        lines = [_encode_blob(blob) for blob in new]
        at = self.file.append(b"".join(lines))
        for blob, line in zip(new, lines, strict=True):
            self._places[blob.digest] = at, len(line)
            at += len(line)

    def get(self, digest: str) -> Blob | None:
        """Return the stored blob; None if it is missing or its line is damaged."""
        if not self.has(digest):
            return None
        try:
            return _decode_blob(orjson.loads(self.file.read(*self._places[digest])))
        except (ValueError, KeyError, TypeError):  # the line was changed
            return None

    def has(self, digest: str) -> bool:
        """Return whether the file has a blob of that digest; a reader also looks for blobs that a writer has added."""
        if not self._look():
            return False
        return digest in self._places or (self.file.read_only and self._look(again=True) and digest in self._places)

    def keep(self, wanted: AbstractSet[str]) -> int:
        """Rewrite the file with these blobs only; return how many others there were."""
        others = [digest for digest in self.list_digests() if digest not in wanted]
        if others:
            kept = {digest: spot for digest, spot in self._places.items() if digest in wanted}
            self.file.rewrite(self.file.read(*spot) for spot in kept.values())
            at, self._places = 0, {}
            for digest, (_, length) in kept.items():
                self._places[digest] = at, length
                at += length
        return len(others)

    def list_digests(self) -> list[str]:
        """Return the digests of all blobs."""
        return list(self._places) if self._look() else []

    def _look(self, *, again: bool = False) -> bool:
        """Open the file and read its new lines; return False if there is no file."""
        if self.file.fd < 0:
            if not self.file.open():
                return False
            self._places.clear()
            self.file.end = 0
        elif not again:
            return True
        at = self.file.end
        for block in self.file.read_blocks(at):
            for found in _BLOB.finditer(block):
                self._places[found[1].decode()] = at + found.start(), found.end() - found.start()
            at += len(block)
        self.file.end = at
        self.file.is_dirty = os.fstat(self.file.fd).st_size != at
        return True


def _encode_blob(blob: Blob) -> bytes:
    facts = {"digest": blob.digest, "kind": blob.kind, "data": base64.b64encode(blob.data).decode()}
    return orjson.dumps(facts | {"seal": blob.seal} if blob.seal else facts) + b"\n"


def _decode_blob(facts: dict[str, str]) -> Blob:
    kind = facts.get("kind") or facts.get("type") or f"snapshot/{facts['engine']}"
    return Blob(facts["digest"], kind, base64.b64decode(facts["data"], validate=True), facts.get("seal", ""))
