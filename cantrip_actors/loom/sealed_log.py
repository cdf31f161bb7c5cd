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

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import structlog

from cantrip_actors.loom.line_file import Disk, LineFile
from cantrip_actors.own_files.modes import make_folder, narrow
from cantrip_actors.records.seal import seal, sealed_with

__all__ = ["BrokenLine", "Disk", "SealedLog"]

S = TypeVar("S")
_log = structlog.get_logger("cantrip.sealed_log")


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
        make_folder(self.path.parent)
        file = LineFile(new, lambda: self._disk, read_only=False, synced=False)
        try:
            file.append(sealed + b"\n")
            self._disk.sync(file.fd)
            os.link(new, self.path)
        finally:
            file.close()
            new.unlink(missing_ok=True)
        file.sync_folder()

    def read(self) -> S:
        """Return the state that all lines fold to, after verifying each. Raises BrokenLine, OSError."""
        with self._opened(read_only=True) as file:
            return self._catch_up(file).state

    def append(self, decide: Callable[[S], Iterable[bytes]]) -> S:
        """Add the lines that `decide` returns for the state of the moment; return the state with them.

        Raises BrokenLine, OSError, and what `decide` raises; nothing is written then.
        """
        with self._opened(read_only=False) as file:
            inode, data, lines, link, state = self._catch_up(file)
            narrow(file.fd, self.path)
            added = b""
            for line in decide(state):
                lines += 1
                state = self._fold(state, lines, line)
                sealed, link = seal(line, link)
                added += sealed + b"\n"
            if added:
                file.end = len(data)
                torn = os.fstat(file.fd).st_size - file.end
                file.is_dirty = torn > 0
                file.append(added)
                if torn:
                    path, hint = str(self.path), "it was not acknowledged"
                    _log.warning(f"{self._kind}.torn_line", path=path, bytes=torn, hint=hint)
                self._known = _Known(inode, data + added, lines, link, state)
            return state

    @contextmanager
    def _opened(self, *, read_only: bool) -> Iterator[LineFile]:
        """Open and lock the file. Closing it releases the lock."""
        file = LineFile(self.path, lambda: self._disk, read_only=read_only, synced=True)
        if not file.open():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        try:
            fcntl.flock(file.fd, fcntl.LOCK_SH if read_only else fcntl.LOCK_EX)
            yield file
        finally:
            file.close()

    def _catch_up(self, file: LineFile) -> _Known[S]:
        """Read the whole file; verify and fold the lines that are new, or all if others have changed."""
        data, inode = b"".join(file.blocks()), os.fstat(file.fd).st_ino
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
