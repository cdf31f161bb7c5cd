"""An append-only file of lines: a JSONL loom, or the log of a dispatch.

A line exists once its newline is written. Bytes after the last newline were never acknowledged: a process was killed in
the middle of a write, or a write failed. A writer cuts them off.

The methods here raise OSError; the code that opened the file says which file it was and what to do.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cantrip_actors.own_files.modes import FILE
from cantrip_actors.redact.logs import get_logger

CHUNK = 1 << 22
"""Bytes read at once."""

_HALF = "it ends in half a line of a write that failed, and cannot be cut back to its last whole one"

_log = get_logger("cantrip.loom")


_ADVICE: dict[int | None, str] = {
    errno.ENOSPC: ". Make room on that disk; nothing that was acknowledged is lost; recording continues then",
    errno.EDQUOT: ". The quota is used up: make room; nothing that was acknowledged is lost",
    errno.EIO: ". The disk is failing: what was acknowledged before should be copied elsewhere",
    errno.EROFS: ". It lies on a read-only file system: open it read-only, or elsewhere",
    errno.EACCES: ". Permission is missing: open it read-only, or change who may write it",
    errno.ENOENT: ". There is no such loom",
    errno.ENOLCK: ". That file system has no locks: put the file on a local one",
}


def describe_failure(error: OSError) -> str:
    """Return the system's message about a failure, with a remedy."""
    return f"{error.strerror or error}{_ADVICE.get(error.errno, '')}"


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

    def __init__(self, path: Path, disk: Disk, *, read_only: bool, synced: bool) -> None:
        self.path = path
        self.disk = disk
        self.read_only = read_only
        self.fd = -1
        self._start = -1
        """A descriptor for the first bytes: `fd` only appends."""
        self.end = 0
        self.is_dirty = False
        """Whether bytes of a failed write may follow the last whole line."""
        self._synced = synced and not read_only
        self._is_new = False
        """Whether a power cut may still take the file's name from it."""

    def open(self, *, create: bool = False) -> None:
        """Open the file; with `create` make a missing one, unless it is opened for reading only."""
        flags = os.O_RDONLY if self.read_only else os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
        self.fd = os.open(self.path, flags | os.O_NONBLOCK | os.O_CLOEXEC, FILE)
        self._is_new = create and self._synced
        self._sync_name()

    def _sync_name(self) -> None:
        if self._is_new:
            self.disk.sync_folder(self.path)
            self._is_new = False

    def close(self) -> None:
        """Close the file."""
        self._close_start()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _close_start(self) -> None:
        if self._start >= 0:
            os.close(self._start)
            self._start = -1

    # ---------------------------------------------------------------------------------------------------------- writing

    def append(self, data: bytes) -> None:
        """Write whole lines at the end. Nothing has changed if this raises OSError."""
        self._sync_name()
        if self.is_dirty and not self.cut():
            raise OSError(errno.EIO, _HALF)
        try:
            self.write(self.fd, data)
            if self._synced:
                self.disk.sync(self.fd)
        except OSError:
            self.is_dirty = True
            self.cut()
            raise
        self.end += len(data)

    def write(self, fd: int, data: bytes) -> None:
        """Write all of `data`: a signal or a nearly full disk may split the write."""
        rest: bytes | memoryview = data
        while rest:
            try:
                written = self.disk.write(fd, rest)
            except InterruptedError:
                continue
            if written == len(rest):
                return
            if written <= 0:
                raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
            rest = memoryview(rest)[written:]

    def overwrite(self, data: bytes) -> None:
        """Replace the first bytes of the file in place."""
        os.lseek(self._open_start(), 0, os.SEEK_SET)
        self.write(self._start, data)
        if self._synced:
            self.disk.sync(self._start)

    def note(self, data: bytes) -> None:
        """Replace the first bytes of the file in place, without waiting for the disk; log it if that fails."""
        try:
            os.pwrite(self._open_start(), data, 0)
        except OSError as error:  # the lines themselves are written: only the proof that they were is missing
            _log.warning("loom.head_not_written", path=str(self.path), error=str(error))

    def _open_start(self) -> int:
        if self._start < 0:
            self._start = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        return self._start

    def cut(self, end: int | None = None) -> bool:
        """Cut off the bytes after the last whole line, or `end`; return False, and log it, if the disk refuses."""
        end = self.end if end is None else end
        try:
            self.disk.truncate(self.fd, end)
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
            self.disk.sync(fd)
        except BaseException:
            os.close(fd)
            self._new.unlink(missing_ok=True)
            raise
        return fd

    def replace(self, fd: int, first: bytes, added: bytes) -> None:
        """Replace this file by the one that `write_new` returned, with that first line and more lines at its end."""
        try:
            self.write(fd, added)
            with self._new.open("r+b") as file:
                file.write(first)
            self._new.replace(self.path)
        except OSError:
            os.close(fd)
            self.remove_new()
            raise
        self._close_start()
        os.close(self.fd)
        self.fd = fd
        self.end, self.is_dirty = os.fstat(fd).st_size, False
        self._is_new = self._synced
        with suppress(OSError):  # the file is in its place: the next append tries it again before it writes
            self._sync_name()

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
        """Return up to `length` bytes from `at`."""
        data = b""
        while len(data) < length and (more := os.pread(self.fd, length - len(data), at + len(data))):
            data += more
        return data
