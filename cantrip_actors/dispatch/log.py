"""Where the logs of dispatches are kept: `<folder>/<id>.jsonl`, one line an entry, written once and never changed.

There is `create`, `append` and `read`, and nothing that edits or removes. The rules of this file:

- A log appears whole, with its contract in it, or not at all; of two that create the same id one is refused (F-03).
- Every append asks the rules of `record.py` first, against what the file says then, under the file's lock: tasks,
  threads and processes come one after the other, without gap or double (F-08). What is refused changes no byte.
- `append` returns when the entry is on the disk (F-09). Where the disk fails, the file is cut back to what it held.
- What follows the last newline was never acknowledged. It is passed over in reading, and cut off before the next append
  (F-10).
- Every line is sealed with a link over itself and all lines before it, which begins with the dispatch's id; every line
  carries the contract's hash. A file that was edited, renamed, or whose lines were moved is found when it is read
  (F-04). That is no signature: who may write the file may write a whole new chain. And no chain can tell that whole
  lines are missing at its end.

The record of a log that this process has read is kept. An append reads only what was written since; reading looks at
every byte, and at the lines again only where those that were read before have changed.

What may wait for a disk or for another process runs in a thread when it is called from a task: `create_soon`,
`append_soon`, `read_soon` are the same for `await`.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

import anyio.to_thread
import structlog

from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.errors import (
    DispatchError,
    DispatchExists,
    EventRefused,
    TamperedRecord,
    UnknownDispatch,
)
from cantrip_actors.dispatch.events import Dispatched, Entry, Event, decoded, encoded
from cantrip_actors.dispatch.record import Record, apply, follow_up, refusal
from cantrip_actors.dispatch.status import Capacity
from cantrip_actors.dispatch.terms import ID
from cantrip_actors.loom.chain import seal, sealed_with
from cantrip_actors.loom.jsonl import Disk

__all__ = ["Dispatches", "now"]

T = TypeVar("T")
_log = structlog.get_logger("cantrip.dispatch")

RUNTIME = "runtime"
"""Who writes what the runtime adds by itself."""


def now() -> str:
    """The time, as entries have it: RFC 3339 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Known(NamedTuple):
    """A log as far as it was read: its record, where its whole lines end, its last link, and the file it was.

    `seen` is the digest of all bytes up to there: where they are the same again, so is what they add up to.
    """

    record: Record
    end: int
    link: bytes
    inode: int
    seen: blake2b


class Dispatches:
    """The logs of dispatches in a folder, which is made when the first is created.

    `clock` gives an entry's time. Safe among tasks, threads and processes that share the folder on one machine.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, clock: Callable[[], str] = now, disk: Disk | None = None
    ) -> None:
        self.folder = Path(folder)
        self._clock = clock
        self._disk = disk or Disk(sync=getattr(os, "fdatasync", os.fsync))  # length and data; nobody needs the times
        self._known: dict[str, _Known] = {}

    def path(self, dispatch_id: str) -> Path:
        """Where the log of a dispatch is. Raises UnknownDispatch for what can be no id."""
        if not ID.fullmatch(dispatch_id) or ".." in dispatch_id:
            raise UnknownDispatch(f"{dispatch_id!r} is no id of a dispatch")
        return self.folder / f"{dispatch_id}.jsonl"

    def ids(self) -> tuple[str, ...]:
        """The ids of all dispatches here, sorted."""
        return tuple(sorted(path.stem for path in self.folder.glob("*.jsonl") if ID.fullmatch(path.stem)))

    # --------------------------------------------------------------------------------------------------------- creating

    def create(
        self,
        contract: Contract,
        *,
        author: str,
        by: Capacity = "orchestrator",
        turn_id: str | None = None,
    ) -> Record:
        """Dispatch a contract: its log is on the disk, with the contract as its first line, and queued (F-02).

        Raises DispatchExists where the id is taken, DispatchError where the folder cannot be written.
        """
        path = self.path(contract.dispatch_id)
        entry = self._entry(None, Dispatched(contract), contract.hash, by, author, turn_id, None)
        _legal(None, entry)
        line, _ = seal(encoded(entry), _before(contract.dispatch_id))
        beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._write_new(beside, line + b"\n")
                os.link(beside, path)
            finally:
                beside.unlink(missing_ok=True)
            self._sync_folder()
        except FileExistsError:
            raise DispatchExists(
                f"{path} exists: a contract is written once. Give the new one another dispatch_id, and say in "
                f"`supersedes` which one it replaces"
            ) from None
        except OSError as error:
            self._fail("cannot create", path, error)
        return self.read(contract.dispatch_id)

    def _write_new(self, path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            self._write(fd, data)
            self._disk.sync(fd)
        finally:
            os.close(fd)

    def _sync_folder(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._disk.sync(fd)
        finally:
            os.close(fd)

    # -------------------------------------------------------------------------------------------------------- appending

    def append(
        self,
        dispatch_id: str,
        *events: Event,
        by: Capacity,
        author: str,
        turn_id: str | None = None,
        token: int | None = None,
        once: bool = False,
    ) -> Record:
        """Write events, one entry each, all of them or none; the record with them. What follows by itself follows.

        `by` is the capacity in which `author` writes, `token` the fencing token of the lease that it holds, `turn_id`
        the turn it happens in. With `once` an event that this turn has written already is left out: a gate call that a
        crash cut short is being repeated.

        Raises EventRefused where a rule forbids one of them (nothing is written then), TamperedRecord where the log is
        not as it was written, UnknownDispatch where there is none, DispatchError where the disk fails.
        """
        path = self.path(dispatch_id)
        with self._open(path, os.O_RDWR | os.O_APPEND) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)  # let go of with the file
            known = self._caught_up(dispatch_id, path, fd)
            record, link, lines = known.record, known.link, b""
            for event in events:
                if once and record.has(event, turn_id):
                    continue
                entry = self._entry(record, event, record.contract.hash, by, author, turn_id, token)
                record, link, lines = _with(record, entry, link, lines)
                while (due := follow_up(record)) is not None:
                    entry = self._entry(record, due, record.contract.hash, "supervisor", RUNTIME, turn_id, record.token)
                    record, link, lines = _with(record, entry, link, lines)
            if lines:
                self._put(path, fd, lines, known.end)
                seen = _and(known.seen, lines)
                self._known[dispatch_id] = _Known(record, known.end + len(lines), link, known.inode, seen)
        return record

    def _entry(
        self,
        record: Record | None,
        event: Event,
        contract_hash: str,
        by: Capacity,
        author: str,
        turn_id: str | None,
        token: int | None,
    ) -> Entry:
        return Entry(
            seq=1 if record is None else record.seq + 1,
            ts=self._clock(),
            by=by,
            author=author,
            event=event,
            contract_hash=contract_hash,
            turn_id=turn_id,
            token=token,
        )

    def _put(self, path: Path, fd: int, lines: bytes, end: int) -> None:
        """Write whole lines behind the last whole line, and wait for the disk."""
        torn = os.fstat(fd).st_size - end
        try:
            if torn:
                self._disk.truncate(fd, end)
                _log.warning("dispatch.torn_line", path=str(path), bytes=torn, hint="nobody was told that it was there")
            self._write(fd, lines)
            self._disk.sync(fd)
        except OSError as error:
            with suppress(OSError):  # where even this fails, the entry may stand there, though its writer is told not
                self._disk.truncate(fd, end)
            self._fail("cannot write to", path, error)

    def _write(self, fd: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            with suppress(InterruptedError):
                rest = rest[self._disk.write(fd, rest) :]

    # ---------------------------------------------------------------------------------------------------------- reading

    def read(self, dispatch_id: str) -> Record:
        """The record of a dispatch, with every line of its log held against the chain (F-04).

        Raises UnknownDispatch where there is none, TamperedRecord where the log is not as it was written.
        """
        path = self.path(dispatch_id)
        with self._open(path, os.O_RDONLY) as fd:
            fcntl.flock(fd, fcntl.LOCK_SH)
            return self._caught_up(dispatch_id, path, fd, whole=True).record

    def records(self) -> tuple[Record, ...]:
        """The records of all dispatches here, by id."""
        return tuple(map(self.read, self.ids()))

    def _caught_up(self, dispatch_id: str, path: Path, fd: int, *, whole: bool = False) -> _Known:
        """What the file says now, reading on from where it was read before.

        With `whole` every byte is looked at again, and every line unless all that was read before is still the same.
        """
        status = os.fstat(fd)
        known = self._known.get(dispatch_id)
        if known is not None and known.inode != status.st_ino:
            known = None
        before = known if known is not None and not whole and _still(known, fd) else None
        data = _bytes(fd, 0 if before is None else before.end, status.st_size)
        if known is not None and whole and known.seen.digest() == blake2b(data[: known.end]).digest():
            before, data = known, data[known.end :]
        if before is None:
            record, at, link, number, seen = None, 0, _before(dispatch_id), 0, blake2b()
        else:
            record, at, link, number, seen = before.record, before.end, before.link, before.record.seq, before.seen
        end = data.rfind(b"\n") + 1
        for line in data[:end].split(b"\n")[:-1]:
            number += 1
            record, link = _read_line(path, number, line, record, link)
        if record is None:
            raise TamperedRecord(f"{path} holds no contract: restore it from a copy, or remove it")
        if record.id != dispatch_id:
            raise TamperedRecord(f"{path} holds the log of {record.id}: give it its name back")
        if known is not None and known.record.seq > number:
            _tampered(path, number, f"{known.record.seq - number} entries that were read before are gone after it")
        found = _Known(record, at + end, link, status.st_ino, _and(seen, data[:end]))
        self._known[dispatch_id] = found
        return found

    @contextmanager
    def _open(self, path: Path, flags: int) -> Iterator[int]:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            there = ", ".join(self.ids()[-8:])
            raise UnknownDispatch(
                f"there is no dispatch {path.stem!r} in {self.folder}; there: {there or 'none'}"
            ) from None
        except OSError as error:
            self._fail("cannot open", path, error)
        try:
            yield fd
        finally:
            os.close(fd)

    @staticmethod
    def _fail(what: str, path: Path, error: OSError) -> NoReturn:
        raise DispatchError(f"{what} {path}: {error.strerror or error}") from error

    # ---------------------------------------------------------------------------------------------------------- waiting

    async def create_soon(
        self, contract: Contract, *, author: str, by: Capacity = "orchestrator", turn_id: str | None = None
    ) -> Record:
        """As `create`, in a thread. Once begun it is carried out, also where the task is cancelled."""
        return await _in_thread(partial(self.create, contract, author=author, by=by, turn_id=turn_id))

    async def append_soon(
        self,
        dispatch_id: str,
        *events: Event,
        by: Capacity,
        author: str,
        turn_id: str | None = None,
        token: int | None = None,
        once: bool = False,
    ) -> Record:
        """As `append`, in a thread. Once begun it is carried out, also where the task is cancelled."""
        return await _in_thread(
            partial(self.append, dispatch_id, *events, by=by, author=author, turn_id=turn_id, token=token, once=once)
        )

    async def read_soon(self, dispatch_id: str) -> Record:
        """As `read`, in a thread."""
        return await _in_thread(partial(self.read, dispatch_id))


async def _in_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work)


def _before(dispatch_id: str) -> bytes:
    """What the first line's link covers beside the line: a log that was renamed is found."""
    return dispatch_id.encode()


def _legal(record: Record | None, entry: Entry) -> None:
    refused = refusal(record, entry)
    if refused is not None:
        raise EventRefused(refused)


def _with(record: Record, entry: Entry, link: bytes, lines: bytes) -> tuple[Record, bytes, bytes]:
    _legal(record, entry)
    line, link = seal(encoded(entry), link)
    return apply(record, entry), link, lines + line + b"\n"


def _read_line(path: Path, number: int, line: bytes, record: Record | None, link: bytes) -> tuple[Record, bytes]:
    """The record with one more line, which has to be exactly as it was written."""
    bare, found = sealed_with(line)
    sealed, expected = seal(bare, link)
    if found is None or sealed != line:
        _tampered(path, number, "it is not as it was written, or a line before it was taken out")
    try:
        entry = decoded(bare)
    except ValueError as error:
        _tampered(path, number, str(error))
    contract = entry.event.contract if isinstance(entry.event, Dispatched) else None
    if record is not None:
        contract = record.contract
    if entry.seq != number:
        _tampered(path, number, f"it says that it is entry {entry.seq}")
    if contract is None or entry.contract_hash != contract.hash:
        _tampered(path, number, "its contract's hash is another one")
    refused = refusal(record, entry)
    if refused is not None:
        _tampered(path, number, f"it could never have been written: {refused.text}")
    return apply(record, entry), expected


def _tampered(path: Path, number: int, why: str) -> NoReturn:
    raise TamperedRecord(
        f"{path}: line {number} is not to be trusted: {why}. Nothing runs on this record; restore it from a copy"
    )


def _and(seen: blake2b, more: bytes) -> blake2b:
    """The digest of what was seen and of `more`; others may hold the one that it goes on from."""
    if not more:
        return seen
    digest = seen.copy()
    digest.update(more)
    return digest


def _still(known: _Known, fd: int) -> bool:
    """Whether the file still holds what was read of it, by its last line's link."""
    tail = b'%b"}\n' % known.link
    return os.pread(fd, len(tail), known.end - len(tail)) == tail


def _bytes(fd: int, at: int, end: int) -> bytes:
    parts = []
    while at < end and (part := os.pread(fd, end - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)
