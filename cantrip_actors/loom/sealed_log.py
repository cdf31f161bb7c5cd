"""A file of lines that are only ever added, each sealed with the hash of the lines before it; and what they fold to.

The rules of this file:

- A log appears whole, with its first line, or not at all; the second of two that create it is refused.
- `append` holds the file's lock, reads what other processes added, and asks its caller for lines only then. It returns
  when they are on the disk. If the disk fails, the file is cut back to what it held.
- Bytes after the last newline were never acknowledged: a reader ignores them, the next append cuts them off.
- Each line ends with its link (`records/seal.py`), which covers the line and every line before it. The first link
  covers `start` as well, so a file under another name is found. A line is folded before it is written, so every line
  that was written can be read.
- The chain is not a signature: a program that may write the file may write a new chain. And it cannot tell that whole
  lines are missing at the end, except to a reader that has read them.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import structlog

from cantrip_actors.records.seal import seal, sealed_with

__all__ = ["BrokenLine", "Disk", "SealedLog"]

S = TypeVar("S")
_log = structlog.get_logger("cantrip.sealed_log")


@dataclass(frozen=True, slots=True)
class Disk:
    """The system calls that change a file; tests put failing ones here."""

    write: Callable[[int, bytes | memoryview], int] = os.write
    truncate: Callable[[int, int], None] = os.ftruncate
    sync: Callable[[int], None] = os.fsync


class BrokenLine(Exception):
    """Line `number` of a log is not as it was written, or lines after it are gone."""

    def __init__(self, number: int, why: str) -> None:
        self.number = number
        self.why = why
        super().__init__(f"line {number}: {why}")


class _Known(NamedTuple, Generic[S]):
    """The verified part of a file: its bytes, the number of its lines, their last link, and what they fold to."""

    inode: int
    data: bytes
    lines: int
    link: bytes
    state: S


class SealedLog(Generic[S]):
    """The log in the file `path`. Tasks, threads and processes of one machine may share the file.

    `fold(state, number, line)` returns the state with one more line (the first state is None, numbers count from 1). It
    raises ValueError for a line that cannot be. `start` is what the first link covers, `kind` names the log in reports.
    """

    def __init__(
        self, path: Path, fold: Callable[[S | None, int, bytes], S], *, start: bytes, kind: str, disk: Disk
    ) -> None:
        self.path = path
        self._fold = fold
        self._start = start
        self._kind = kind
        self._disk = disk
        self._known: _Known[S] | None = None

    def create(self, line: bytes) -> None:
        """Make the file, with its first line, in its folder. Raises FileExistsError if it exists, OSError."""
        sealed, _ = seal(line, self._start)
        new = self.path.with_name(f".{self.path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _opened(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                self._write(fd, sealed + b"\n")
                self._disk.sync(fd)
            os.link(new, self.path)
        finally:
            new.unlink(missing_ok=True)
        with _opened(self.path.parent, os.O_RDONLY | os.O_DIRECTORY) as fd:
            self._disk.sync(fd)

    def read(self) -> S:
        """Return the state that all lines fold to, after verifying each. Raises BrokenLine, OSError."""
        with _opened(self.path, os.O_RDONLY) as fd:
            fcntl.flock(fd, fcntl.LOCK_SH)  # closing the file releases the lock
            return self._catch_up(fd).state

    def append(self, decide: Callable[[S], Iterable[bytes]]) -> S:
        """Add the lines that `decide` returns for the state of the moment; return the state with them.

        Raises BrokenLine, OSError, and what `decide` raises; nothing is written then.
        """
        with _opened(self.path, os.O_RDWR | os.O_APPEND) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            inode, data, lines, link, state = self._catch_up(fd)
            added = b""
            for line in decide(state):
                lines += 1
                state = self._fold(state, lines, line)
                sealed, link = seal(line, link)
                added += sealed + b"\n"
            if added:
                self._put(fd, added, len(data))
                self._known = _Known(inode, data + added, lines, link, state)
            return state

    def _catch_up(self, fd: int) -> _Known[S]:
        """Read the whole file; verify and fold the lines that are new, or all if others have changed."""
        data, inode = _bytes(fd), os.fstat(fd).st_ino
        data = data[: data.rfind(b"\n") + 1]
        before = self._known if self._known is not None and self._known.inode == inode else None
        known = before if before is not None and data.startswith(before.data) else None
        at, lines, link, state = (
            (0, 0, self._start, None) if known is None else (len(known.data), known.lines, known.link, known.state)
        )
        for line in data[at:].split(b"\n")[:-1]:
            lines += 1
            plain, found = sealed_with(line)
            sealed, link = seal(plain, link)
            if found is None or sealed != line:
                raise BrokenLine(lines, "it is not as it was written, or a line before it was taken out")
            try:
                state = self._fold(state, lines, plain)
            except ValueError as error:
                raise BrokenLine(lines, str(error)) from error
        if before is not None and before.lines > lines:
            raise BrokenLine(lines, f"{before.lines - lines} entries that were read before are gone after it")
        if state is None:
            raise BrokenLine(0, "there is no whole line")
        self._known = _Known(inode, data, lines, link, state)
        return self._known

    def _put(self, fd: int, added: bytes, end: int) -> None:
        """Write after the last whole line, and wait for the disk."""
        torn = os.fstat(fd).st_size - end
        try:
            if torn:
                self._disk.truncate(fd, end)
                _log.warning(f"{self._kind}.torn_line", path=str(self.path), bytes=torn, hint="it was not acknowledged")
            self._write(fd, added)
            self._disk.sync(fd)
        except OSError:
            with suppress(OSError):  # if this fails too, the line may stay, although its writer gets an error
                self._disk.truncate(fd, end)
            raise

    def _write(self, fd: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            with suppress(InterruptedError):
                rest = rest[self._disk.write(fd, rest) :]


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _bytes(fd: int) -> bytes:
    parts, at = [], 0
    while part := os.pread(fd, 1 << 22, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)
