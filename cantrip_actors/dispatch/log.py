"""The logs of dispatches: `<folder>/<id>.jsonl`, one line for each entry, written once and never changed.

A log is a `SealedLog` (`loom/seal/sealed_log.py`): created whole or not at all, appended under the file's lock, on the
disk when `append` returns, repaired after a torn write, verified line by line. This file adds the rules of dispatches:

- Every append asks the rules of `rules.py` first, for the state of the moment. A refused event changes no byte.
- Every line carries the contract's hash. The chain begins with the dispatch's id.
- With `seal_key` the links, and with them the approvals, are made with a key, without which no line can be
  written.
- There is no operation that edits or removes an entry. `Dispatcher.forget` deletes the file of a dispatch that is over.

`create_soon`, `append_soon` and `read_soon` do the same in a thread, for tasks: disks and other processes take time. A
write that has begun is carried out, even if its task is cancelled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.errors import (
    DispatchError,
    DispatchExists,
    EventRefused,
    TamperedRecord,
    UnknownDispatch,
)
from cantrip_actors.dispatch.events import Dispatched, Entry, Event, decode_entry, encode_entry
from cantrip_actors.dispatch.record import EventsFor, Record, apply, make_follow_up
from cantrip_actors.dispatch.rules import refusal
from cantrip_actors.dispatch.status import Capacity
from cantrip_actors.dispatch.terms import is_id
from cantrip_actors.loom.integrity.verify import Heads
from cantrip_actors.loom.seal.line_file import describe_failure
from cantrip_actors.loom.seal.seal_key import UNSEALED, SealKey, derive_log_seal, read_secret
from cantrip_actors.loom.seal.sealed_log import BrokenLine, Disk, SealedLog, delete_log
from cantrip_actors.own_files.claims import claim_folder, hold
from cantrip_actors.records.instant import format_instant
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.user_code.threads import run_for_client

P = ParamSpec("P")
T = TypeVar("T")

_log = get_logger("cantrip_actors.dispatch")

RUNTIME = "runtime"
"""The author of entries that the runtime adds."""


def now() -> str:
    """Return the time as entries have it: RFC 3339 in UTC, to the millisecond."""
    return format_instant(time.time())


def _run_in_thread(
    method: Callable[Concatenate[Dispatches, P], T],
) -> Callable[Concatenate[Dispatches, P], Awaitable[T]]:
    @wraps(method)
    async def run(self: Dispatches, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run_for_client(partial(method, self, *args, **kwargs))

    return run


class Dispatches:
    """The logs of dispatches in a folder, which is made when the first is created.

    `clock` gives an entry's time. Safe among tasks, threads and processes that share the folder on one machine.

    With `seal_key` (at least 16 secret bytes, or the `Path` of a file of mode 0600) all logs of the folder are sealed:
    a log that was written, truncated or swapped without the key is not trusted, and neither is one that was never
    sealed. Raises LoomError for a key that cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        clock: Callable[[], str] = now,
        disk: Disk | None = None,
        seal_key: SealKey | None = None,
    ) -> None:
        self.folder: Path = Path(folder)
        self._secret = None if seal_key is None else read_secret(seal_key)
        hold(self, claim_folder(self.folder))
        self._clock = clock
        self._disk = disk or Disk(sync=getattr(os, "fdatasync", os.fsync))  # length and data, not the times
        self._logs: dict[str, SealedLog[Record]] = {}

    def path(self, dispatch_id: str) -> Path:
        """Return the path of a dispatch's log. Raises UnknownDispatch for a text that cannot be an id."""
        if not is_id(dispatch_id):
            raise UnknownDispatch(f"{dispatch_id!r} is not an id of a dispatch")
        return self.folder / f"{dispatch_id}.jsonl"

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all dispatches here, sorted. Those that were forgotten are dropped from memory."""
        ids = tuple(sorted(path.stem for path in self.folder.glob("*.jsonl") if is_id(path.stem)))
        for forgotten in set(self._logs).difference(ids):
            self._logs.pop(forgotten, None)
        return ids

    def create(
        self,
        contract: Contract,
        *,
        author: str,
        by: Capacity = "orchestrator",
        turn_id: str | None = None,
        door: str = "",
        key: str = "",
    ) -> Record:
        """Dispatch a contract: its log is on the disk, with the contract as its first line, and queued.

        With a `key` (see `Entry`) a repeated request for this id returns the record as the first one left it.

        Raises DispatchExists for an id that is taken, KeyUsed if its log has the key of another request, DispatchError
        if the folder cannot be written.
        """
        entry = Entry(1, self._clock(), by, author, Dispatched(contract), contract.hash, turn_id, door=door, key=key)
        _check(None, entry)
        try:
            with self._open_log(contract.dispatch_id, "create") as log:
                log.create(encode_entry(entry))
        except DispatchExists:  # perhaps because the same request came twice at once
            written = self.read(contract.dispatch_id).written_with(key) if key else None
            if written is None:
                raise
            return written
        return self.read(contract.dispatch_id)

    def append(
        self,
        dispatch_id: str,
        *events: Event | EventsFor,
        by: Capacity,
        author: str,
        turn_id: str | None = None,
        token: int | None = None,
        once: bool = False,
        door: str = "",
        key: str = "",
    ) -> Record:
        """Write events, one entry each, all of them or none, and what follows from them; return the new record.

        An event may be a function, which returns the events for the record as it is when they are written.

        `by` is the capacity in which `author` writes, `token` the fencing token of the author's lease, `turn_id` the
        turn it happens in, `door` that of a human's decision. With `once` an event that this turn has
        already written is left out: a gate call that a crash interrupted is being repeated. With a `key` (see `Entry`)
        a repeated request writes nothing.

        Raises KeyUsed if another request had the key, EventRefused if a rule forbids one of them (nothing is written
        then), TamperedRecord for a log that is not as it was written, UnknownDispatch, DispatchError if the disk
        fails.
        """

        def decide(record: Record) -> Iterator[bytes]:
            if key and record.written_with(key) is not None:
                return
            for event in chain.from_iterable(make(record) if callable(make) else (make,) for make in events):
                if once and record.has(event, turn_id):
                    continue
                due: Event | None = event
                writer: tuple[Capacity, str, int | None, str, str] = (by, author, token, door, key)
                while due is not None:
                    who, name, lease, way, request = writer
                    place = record.seq + 1, self._clock()
                    entry = Entry(*place, who, name, due, record.contract.hash, turn_id, lease, way, request)
                    _check(record, entry)
                    yield encode_entry(entry)
                    record = apply(record, entry)
                    due, writer = make_follow_up(record), ("supervisor", RUNTIME, record.token, "", "")

        with self._open_log(dispatch_id, "write to") as log:
            return log.append(decide)

    def read(self, dispatch_id: str) -> Record:
        """Return the record of a dispatch, after verifying every line of its log against the chain.

        Raises UnknownDispatch, TamperedRecord for a changed log.
        """
        with self._open_log(dispatch_id, "read") as log:
            return log.read()

    def records(self) -> tuple[Record, ...]:
        """Return the records of all dispatches here, by id."""
        return tuple(map(self.read, self.ids()))

    def heads(self) -> Heads:
        """Return the last link of every log, for a file that is kept elsewhere. Raises as `read`."""
        ends = {dispatch_id: self._read_links(dispatch_id)[-1] for dispatch_id in self.ids()}
        return Heads(len(ends), ends)

    def verify(self, heads: Heads | None = None) -> dict[str, str]:
        """Read all logs, and return the faults of those that are untrustworthy or cannot be read, by id.

        `heads` are those of an earlier time: each of these logs must exist and have passed its earlier end.
        """
        faults: dict[str, str] = {}
        links: dict[str, tuple[bytes, ...]] = {}
        for dispatch_id in self.ids():
            try:
                self.read(dispatch_id)
                links[dispatch_id] = self._read_links(dispatch_id)
            except DispatchError as error:
                faults[dispatch_id] = str(error)
        for dispatch_id, link in () if heads is None else heads.trees.items():
            if dispatch_id not in faults and link not in links.get(dispatch_id, ()):
                what = "is an older copy, or forged" if dispatch_id in links else "is gone"
                faults[dispatch_id] = f"the log {what}: it had come further when its head was exported"
        return faults

    def _read_links(self, dispatch_id: str) -> tuple[bytes, ...]:
        with self._open_log(dispatch_id, "read") as log:
            return log.read_links()

    create_soon = _run_in_thread(create)
    append_soon = _run_in_thread(append)
    read_soon = _run_in_thread(read)

    @contextmanager
    def _open_log(self, dispatch_id: str, what: str) -> Iterator[SealedLog[Record]]:
        """Yield the log of a dispatch; errors of its file inside the block are raised as a DispatchError."""
        path, log = self.path(dispatch_id), self._logs.get(dispatch_id)
        if log is None:
            start = dispatch_id.encode()  # so that a renamed log is found
            seal = UNSEALED if self._secret is None else derive_log_seal(self._secret, start)
            log = SealedLog(path, _fold, start=start, kind="dispatch", disk=self._disk, seal=seal)
            self._logs[dispatch_id] = log
        try:
            yield log
        except BrokenLine as broken:
            if not broken.number:
                raise TamperedRecord(f"{path} holds no contract: restore it from a copy, or remove it") from None
            raise TamperedRecord(
                f"{path}: line {broken.number} is not to be trusted: {broken.why}. Nothing runs on this record; "
                "restore it from a copy"
            ) from broken.__cause__
        except FileExistsError:
            raise DispatchExists(
                f"{path} exists: a contract is written once. Give the new one another dispatch_id, and say in "
                f"`supersedes` which one it replaces"
            ) from None
        except FileNotFoundError:
            newest = ", ".join(self.ids()[-8:])
            raise UnknownDispatch(
                f"there is no dispatch {dispatch_id!r} in {self.folder}; its newest dispatches: {newest or 'none'}"
            ) from None
        except OSError as error:
            raise DispatchError(f"cannot {what} {path}: {describe_failure(error)}") from error


def read_trusted_records(log: Dispatches) -> list[Record]:
    """Return the records of all dispatches, by id, without those that are tampered or unreadable, which are logged."""
    records: list[Record] = []
    for dispatch_id in log.ids():
        try:
            records.append(log.read(dispatch_id))
        except UnknownDispatch:  # it was forgotten meanwhile
            continue
        except DispatchError as error:
            _log.error("a dispatch cannot be read, or not be trusted", dispatch=dispatch_id, why=str(error))
    return records


def delete_dispatch(log: Dispatches, dispatch_id: str) -> None:
    """Delete the whole log of a dispatch, for `Dispatcher.forget`. Raises DispatchError."""
    try:
        delete_log(log.path(dispatch_id))
    except OSError as error:
        raise DispatchError(f"cannot delete the log of {dispatch_id}: {error.strerror}") from error
    log.ids()  # drops it from memory


def find_written(log: Dispatches, key: str) -> Record | None:
    """Return the record that the request with this key (see `Entry`) left; None if none had the key.

    Raises KeyUsed if another request had it.
    """
    written = (record.written_with(key) for record in read_trusted_records(log))
    return next((record for record in written if record is not None), None)


def _check(record: Record | None, entry: Entry) -> None:
    refused = refusal(record, entry)
    if refused is not None:
        raise EventRefused(refused)


def _fold(record: Record | None, number: int, line: bytes) -> Record:
    """Return the record with one more line. Raises ValueError for a line that could not have been written."""
    entry = decode_entry(line)
    contract = entry.event.contract if isinstance(entry.event, Dispatched) else None
    if record is not None:
        contract = record.contract
    if entry.seq != number:
        raise ValueError(f"it says that it is entry {entry.seq}")
    if contract is None or entry.contract_hash != contract.hash:
        raise ValueError("its contract's hash differs")
    refused = refusal(record, entry)
    if refused is not None:
        raise ValueError(f"it could never have been written: {refused.text}")
    return apply(record, entry)
