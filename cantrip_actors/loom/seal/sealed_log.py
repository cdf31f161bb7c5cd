"""An append-only file of lines, each sealed with the hash of the lines before it, and the state that they fold to.

The rules of this file:

- A log appears complete, with its first line, or not at all; the second of two that create it is refused.
- `append` locks the file, reads the lines that other processes added, and only then asks its caller for lines. It
  returns when they are on the disk. If the disk fails, the file is cut back to its earlier content.
- Bytes after the last newline were never acknowledged: a reader ignores them, the next append cuts them off.
- Each line ends with its link (`records/seal.py`), which covers the line and every line before it. The first link
  covers `start` as well, so a file under another name is found. A line is folded before it is written, so every written
  line can be read.
- Without a key the chain is not a signature: a program that may write the file may write a new chain. And missing lines
  at the end are noticed only by a reader that has read them.
- With a key (`seal_key.py`) only its holders can make a link. The head of the lines is in a sidecar (`head_file.py`),
  so missing lines at the end are found, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from cantrip_actors.loom.seal.head_file import read_head, write_head
from cantrip_actors.loom.seal.line_file import Disk, LineFile
from cantrip_actors.loom.seal.seal_key import UNSEALED, Head, Seal
from cantrip_actors.own_files.modes import make_folder, narrow
from cantrip_actors.records.seal import seal, split_link
from cantrip_actors.redact.logs import get_logger

__all__ = ["BrokenLine", "Disk", "SealedLog", "delete_log"]

S = TypeVar("S")
_log = get_logger("cantrip.sealed_log")


def delete_log(path: Path) -> None:
    """Remove the log in a file, and its head. Raises OSError."""
    path.unlink()
    path.with_name(f"{path.name}.head").unlink(missing_ok=True)


class BrokenLine(Exception):
    """Line `number` of a log was changed, or lines after it are missing."""

    def __init__(self, number: int, why: str) -> None:
        self.number = number
        self.why = why
        super().__init__(f"line {number}: {why}")


class _Known(NamedTuple, Generic[S]):
    """The verified part of a file: its bytes, the links of its lines, their head, and the folded state."""

    inode: int
    data: bytes
    links: tuple[bytes, ...]
    head: Head
    state: S


class SealedLog(Generic[S]):
    """The log in the file `path`. Tasks, threads and processes of one machine may share the file.

    `fold(state, number, line)` returns the state after one more line (the first state is None, numbers count from 1).
    It raises ValueError for an impossible line. `start` is covered by the first link, `kind` names the log in reports.
    `seal` has the keys of a sealed log (`derive_log_seal`).
    """

    def __init__(
        self,
        path: Path,
        fold: Callable[[S | None, int, bytes], S],
        *,
        start: bytes,
        kind: str,
        disk: Disk,
        seal: Seal = UNSEALED,
    ) -> None:
        self.path = path
        self._fold = fold
        self._start = start
        self._kind = kind
        self._disk = disk
        self._seal = seal
        self._head_path = path.with_name(f"{path.name}.head")
        self._known: _Known[S] | None = None

    def create(self, line: bytes) -> None:
        """Make the file, with its first line, in its folder. Raises FileExistsError if it exists, OSError."""
        sealed, _ = seal(line, self._start, self._seal.chain)
        new = self.path.with_name(f".{self.path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        make_folder(self.path.parent)
        file = LineFile(new, self._disk, read_only=False, synced=False)
        try:
            file.open(create=True)
            file.append(sealed + b"\n")
            self._disk.sync(file.fd)
            if self._seal.chain:
                self._link_with_head(new, sealed)
            else:
                os.link(new, self.path)
        finally:
            file.close()
            new.unlink(missing_ok=True)
        self._disk.sync_folder(new)

    def _link_with_head(self, new: Path, sealed: bytes) -> None:
        """Write the head, then give the log its name. The lock separates two that create the same log."""
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if self.path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path))
            write_head(self._head_path, self._seal.follow(self._seal.beginning, [sealed]), self._disk)
            os.link(new, self.path)
        finally:
            os.close(folder)

    def read(self) -> S:
        """Return the state that all lines fold to, after verifying each. Raises BrokenLine, OSError."""
        with self._open(read_only=True) as file:
            return self._catch_up(file).state

    def read_links(self) -> tuple[bytes, ...]:
        """Return the link of each line, after verifying each. Raises BrokenLine, OSError."""
        with self._open(read_only=True) as file:
            return self._catch_up(file).links

    def append(self, decide: Callable[[S], Iterable[bytes]]) -> S:
        """Add the lines that `decide` returns for the current state; return the state after them.

        Raises BrokenLine, OSError, and any exception of `decide`; nothing is written then.
        """
        with self._open(read_only=False) as file:
            inode, data, known, before, state = self._catch_up(file)
            narrow(file.fd, self.path)
            links, added, head = [*known], b"", before
            for line in decide(state):
                state = self._fold(state, len(links) + 1, line)
                sealed, link = seal(line, links[-1], self._seal.chain)
                links.append(link)
                head = self._seal.follow(head, [sealed])
                added += sealed + b"\n"
            if added:
                file.end = len(data)
                torn = os.fstat(file.fd).st_size - file.end
                file.is_dirty = torn > 0
                file.append(added)
                if self._seal.chain:
                    try:
                        write_head(self._head_path, head, self._disk)
                    except OSError:
                        file.cut(len(data))
                        with suppress(OSError):  # it may have been written, and not synced
                            write_head(self._head_path, before, self._disk)
                        raise
                if torn:
                    path, hint = str(self.path), "it was not acknowledged"
                    _log.warning(f"{self._kind}.torn_line", path=path, bytes=torn, hint=hint)
                self._known = _Known(inode, data + added, tuple(links), head, state)
            return state

    @contextmanager
    def _open(self, *, read_only: bool) -> Iterator[LineFile]:
        """Open and lock the file. Closing it releases the lock."""
        file = LineFile(self.path, self._disk, read_only=read_only, synced=True)
        file.open()
        try:
            fcntl.flock(file.fd, fcntl.LOCK_SH if read_only else fcntl.LOCK_EX)
            yield file
        finally:
            file.close()

    def _catch_up(self, file: LineFile) -> _Known[S]:
        """Read the whole file; verify and fold the new lines, or all lines if earlier ones have changed."""
        data, inode = b"".join(file.read_blocks()), os.fstat(file.fd).st_ino
        before = self._known if self._known is not None and self._known.inode == inode else None
        known = before if before is not None and data.startswith(before.data) else None
        at, links, head, state = (
            (0, [], self._seal.beginning, None)
            if known is None
            else (len(known.data), [*known.links], known.head, known.state)
        )
        kept, fits = self._read_stored_head(), known is not None
        for line in data[at:].split(b"\n")[:-1]:
            plain, found = split_link(line)
            sealed, link = seal(plain, links[-1] if links else self._start, self._seal.chain)
            links.append(link)
            if found is None or sealed != line:
                raise BrokenLine(
                    len(links),
                    "its link does not match: it, or a line before it, was changed or removed, or the key is wrong",
                )
            head = self._seal.follow(head, [line])
            fits = fits or head == kept
            try:
                state = self._fold(state, len(links), plain)
            except ValueError as error:
                raise BrokenLine(len(links), str(error)) from error
        if before is not None and len(before.links) > len(links):
            missing = len(before.links) - len(links)
            raise BrokenLine(len(links), f"{missing} entries that were read before are missing after it")
        if state is None:
            raise BrokenLine(0, "it has no complete line")
        if kept is not None and kept.records > len(links):
            raise BrokenLine(len(links), f"{kept.records - len(links)} entries are missing after it")
        if kept is not None and not fits:
            raise BrokenLine(kept.records, "the head in the sidecar belongs to another log")
        self._known = _Known(inode, data, tuple(links), head, state)
        return self._known

    def _read_stored_head(self) -> Head | None:
        """Return the head of a sealed log. Raises BrokenLine if it is missing, or the log needs a key."""
        if not self._seal.chain:
            if self._head_path.exists():
                raise BrokenLine(1, "the log is sealed, and nothing can be checked without its key: give `seal_key`")
            return None
        head = read_head(self._head_path)
        if head is None:
            raise BrokenLine(1, "its head is missing or damaged, or the log was never sealed with a key")
        return head
