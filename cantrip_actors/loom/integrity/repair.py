"""Repair a damaged loom: keep a copy of its files, and rewrite the undamaged part.

In each tree, the records before the first one that is missing, unreadable or does not fit its hash chain are kept: an
entity cannot be continued from a log with a hole. A tree that ends so looks like one whose process died there.

The record that says that an entity is forgotten may be among the lost ones, while its tombstones are kept. Such an
entity is forgotten again, and so is one that a killed process left half forgotten.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Final, TypeVar

from cantrip_actors.loom.integrity.copy import can_wait
from cantrip_actors.loom.integrity.verify import Trees, verify_loom
from cantrip_actors.loom.memory.journal import JournalLine, decode_line
from cantrip_actors.loom.memory.jsonl import JsonlStore
from cantrip_actors.loom.seal.line_file import describe_failure
from cantrip_actors.loom.seal.seal_key import Seal, SealKey, SealMark, open_seal
from cantrip_actors.loom.sqlite.sqlite import SqliteStore
from cantrip_actors.loom.stores.blobs import attach_images, bind_mail
from cantrip_actors.loom.stores.erasure import Erasure
from cantrip_actors.loom.stores.store import Store
from cantrip_actors.machine.project import Life, as_forgotten, as_header, get_turn_number
from cantrip_actors.own_files.claims import SQLITE, is_claimed, list_loom_files
from cantrip_actors.own_files.modes import FOLDER
from cantrip_actors.records.blob import Blob, Snapshot
from cantrip_actors.records.codec import decode
from cantrip_actors.records.instant import format_instant
from cantrip_actors.records.mail import Mail, decode_mail, get_key
from cantrip_actors.records.records import Ended, Record, get_snapshot, replace_snapshot
from cantrip_actors.records.seal import split_link
from cantrip_actors.records.submissions import SubmissionRow, decode_submission
from cantrip_actors.records.timers import Timer, decode_timer
from cantrip_actors.records.tombstone import TombstoneSum, is_tombstone
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError

V = TypeVar("V")

_log = get_logger("cantrip.loom")

LEAST_RECORD: Final = 64
"""The least bytes that a record needs in a file."""

_SHARED: Final = (0x40000002, 510)
"""The first byte, and the number of bytes, of the lock that SQLite has on a file while it is open."""

LARGEST: Final = 2**40
"""The most bytes of a file: a head that names more is itself damaged."""

AUTHOR: Final = ("repair", "the record of its deletion was lost, or the deletion had not been finished")
"""The author and the reason in the record of an entity that a repair forgets again."""

_UNREADABLE = "(unreadable lines)"


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of `repair_file`. `copy` is the folder with the original files.

    `left_out` maps each root entity whose tree lost records to the number of its lines that were left out. `forgotten`
    are the entities that had tombstones, without the record that says that they are forgotten: they are forgotten now.
    """

    copy: Path
    records: int
    left_out: dict[str, int]
    forgotten: tuple[str, ...] = ()


def repair_file(path: Path, *, is_jsonl: bool, seal_key: SealKey | None) -> Repaired:
    """Rewrite the loom in a file without its damaged parts, after making a copy of its files.

    Waiting mail, timers, schedules, submissions and accounts are kept if they can be read. Forged records of a sealed
    loom are left out, and the rest is sealed anew. Raises LoomError if the file is in use, or has no readable part.
    """
    if not path.is_file():
        raise LoomError(f"{path}: there is no such loom")
    with _explain(path), _lock(path, is_jsonl=is_jsonl):
        return _repair(path, is_jsonl=is_jsonl, seal_key=seal_key)


@contextmanager
def _explain(path: Path) -> Iterator[None]:
    """Raise LoomError for an OSError of the block, which repairs a loom."""
    try:
        yield
    except OSError as error:
        raise LoomError(f"cannot repair {path}: {describe_failure(error)}") from error


@contextmanager
def _lock(path: Path, *, is_jsonl: bool) -> Iterator[None]:
    """Keep others from a loom while it is repaired. Raises LoomError if it is open anywhere."""
    with ExitStack() as opened:
        try:
            if is_claimed(path):  # closing a file would end the locks that SQLite has on it in this process
                raise BlockingIOError
            file = opened.enter_context(path.open("r+b"))
            if is_jsonl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            elif hasattr(fcntl, "F_OFD_SETLK"):  # it lasts until this descriptor is closed, and not another one
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, *_SHARED, 0))
            else:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, *reversed(_SHARED))
        except BlockingIOError as error:
            raise LoomError(f"{path} is open, here or in another process: close it there first") from error
        yield


def _repair(path: Path, *, is_jsonl: bool, seal_key: SealKey | None) -> Repaired:
    files = list_loom_files(path)
    with _open_draft(path) as draft:
        repaired, single = (f"{path.stem}.{what}{path.suffix}" for what in ("repaired", "single"))
        for file in files:
            shutil.copy2(file, draft / file.name)
            shutil.copy2(file, draft / f"{single}{file.name.removeprefix(path.name)}")
        old = _JsonlLines(draft / single) if is_jsonl else _SqliteLines(draft / single)
        kind = JsonlStore if is_jsonl else SqliteStore
        with closing(old):
            seal = open_seal(seal_key, old.mark(), str(path), is_new=False)
            with kind(draft / repaired, seal_key=seal_key) as target:
                salvage = _Salvage(old, target, seal)
                salvage.copy()
        if not salvage.records and not _is_sound(draft / single, kind, seal_key):
            raise LoomError(f"{path}: nothing of it can be read: restore it from a backup")
        copy = draft.rename(path.with_name(f"{path.name}.damaged-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%f')}"))
    with _lock(copy / single, is_jsonl=is_jsonl):
        _replace(path, files, copy / single, copy / repaired)
    left_out, forgotten = dict(salvage.left_out), tuple(salvage.tombstones)
    facts = {"records": salvage.records, "left_out": left_out, "forgotten": forgotten}
    _log.warning("loom.repaired", path=str(path), copy=str(copy), **facts)
    return Repaired(copy, salvage.records, left_out, forgotten)


def _is_sound(path: Path, kind: type[JsonlStore | SqliteStore], seal_key: SealKey | None) -> bool:
    """Return whether a file is a loom without a fault: one without records, or one whose making was interrupted."""
    try:
        with kind(path, seal_key=seal_key) as store:
            return verify_loom(store).ok
    except LoomError:
        return False


@contextmanager
def _open_draft(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside a locked loom; it is removed if it still has its name after the block.

    A process that was killed leaves its folder, and the next repair removes it.
    """
    draft = path.with_name(f".{path.name}.repair")
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir(mode=FOLDER)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _replace(path: Path, old: Sequence[Path], single: Path, repaired: Path) -> None:
    """Put the repaired file in the place of the old ones; a kill at any step leaves all that the loom has.

    `single` is the old loom as one file, with which the write-ahead log beside it agrees. So that log can be removed
    before the repaired file, with which it does not agree, is there.
    """
    _move_durably(single, path)
    for file in old:
        if file != path and file.suffix != ".key":
            file.unlink(missing_ok=True)  # SQLite removes its own when it closes
    _move_durably(repaired, path)
    for file in list_loom_files(single):
        file.unlink()


def _move_durably(file: Path, path: Path) -> None:
    """Move a file to the place of another one, so that its content survives a power cut."""
    with file.open("rb") as opened:
        os.fsync(opened)
    file.replace(path)


class _JsonlLines:
    """The readable parts of a damaged JSONL file."""

    def __init__(self, path: Path) -> None:
        # JSON escapes line ends: those of a file that an editor or a checkout has converted are outside the lines
        lines = path.read_bytes().replace(b"\r\n", b"\n").split(b"\n")[:-1]  # the rest was never acknowledged
        self._records: list[bytes | None] = []
        self._journal: list[JournalLine] = []
        for line in lines:
            try:
                content = decode_line(line)
            except LoomError:
                content = None
            if isinstance(content, JournalLine):
                self._journal.append(content)
            else:
                self._records.append(line)

        self._blobs = {line.blob.digest: line.blob for line in self._journal if line.blob is not None}

    def close(self) -> None:
        """Do nothing: all of it is in memory."""

    def mark(self) -> SealMark | None:
        return next((line.mark for line in self._journal if line.mark), None)

    def read_lines(self) -> Iterator[bytes | None]:
        yield from self._records

    def read_waiting_mail(self) -> Iterator[Mail]:
        yield from (line.mail for line in self._journal if line.mail is not None)

    def read_timers(self) -> Iterator[Timer]:
        timers = {(line.timer.entity_id, line.timer.id): line.timer for line in self._journal if line.timer is not None}
        yield from (timer for timer in timers.values() if timer.due is not None or timer.schedule is not None)

    def read_submissions(self) -> Iterator[SubmissionRow]:
        submissions: dict[str, SubmissionRow] = {}
        for line in self._journal:
            if line.submission is not None:
                submissions[line.submission.id] = line.submission
            elif line.removed is not None:
                submissions.pop(line.removed, None)
        yield from submissions.values()

    def read_accounts(self) -> Iterator[tuple[str, str]]:
        yield from dict(line.account for line in self._journal if line.account is not None).items()

    def read_blob(self, digest: str) -> Blob | None:
        return self._blobs.get(digest)


class _SqliteLines:
    """The readable parts of a damaged SQLite file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        _pad(path)
        with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as file:  # it is one file when this is closed
            file.execute("pragma wal_checkpoint(truncate)")
        self._file = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        self._file.text_factory = bytes

    def close(self) -> None:
        self._file.close()

    def mark(self) -> SealMark | None:
        with suppress(sqlite3.Error, AttributeError, UnicodeDecodeError):
            row = self._file.execute("select salt, mark from seal").fetchone()
            return None if row is None else SealMark(row[0].decode(), row[1].decode())
        return None

    def read_lines(self) -> Iterator[bytes | None]:
        last = 0
        """The last number that a readable row names; if the end of a table is lost, a later one may be readable."""
        most = self._path.stat().st_size // LEAST_RECORD
        for query in ("select max(seq) from records", "select max(no) from entities", "select max(taken) from mail"):
            with suppress(sqlite3.Error):
                (found,) = self._file.execute(query).fetchone()
                if isinstance(found, int):  # a damaged row may have anything in its columns
                    last = max(last, found)
                    most = last if query.endswith("records") else most
        lost = 0
        for at in range(1, max(last, most) + 1):
            try:
                row = self._file.execute("select body from records where seq = ?", (at,)).fetchone()
            except sqlite3.Error:
                row = None
            if row is None and at > last:
                lost += 1
                continue
            yield from repeat(None, lost)
            lost = 0
            yield row[0] if row is not None and isinstance(row[0], bytes) else None

    def read_waiting_mail(self) -> Iterator[Mail]:
        return self._decode_each("select line from mail where taken is null order by no", decode_mail)

    def read_timers(self) -> Iterator[Timer]:
        return self._decode_each("select line from timers", decode_timer)

    def read_submissions(self) -> Iterator[SubmissionRow]:
        return self._decode_each("select line from submissions", decode_submission)

    def read_accounts(self) -> Iterator[tuple[str, str]]:
        with suppress(sqlite3.Error):
            for name, state in self._file.execute("select name, state from accounts"):
                with suppress(AttributeError, UnicodeDecodeError):  # of a damaged row
                    yield name.decode(), state.decode()

    def _decode_each(self, query: str, decode_line: Callable[[bytes], V]) -> Iterator[V]:
        """Yield what the lines of a query say, as far as they can be read."""
        with suppress(sqlite3.Error):
            for (line,) in self._file.execute(query):
                with suppress(LoomError):
                    if isinstance(line, bytes):
                        yield decode_line(line)

    def read_blob(self, digest: str) -> Blob | None:
        with suppress(sqlite3.Error, AttributeError, UnicodeDecodeError):
            query = "select kind, data, seal from blobs where digest = ?"
            row = self._file.execute(query, (digest,)).fetchone()
            return None if row is None else Blob(digest, row[0].decode(), row[1], row[2].decode())
        return None


def _pad(path: Path) -> None:
    """Give a file that lost its end the length that its head names: SQLite reads no page of a file that is shorter."""
    with path.open("r+b") as file:
        head = file.read(32)
        size, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
        whole = (65536 if size == 1 else size) * pages
        if head.startswith(SQLITE) and path.stat().st_size < whole < LARGEST:
            file.truncate(whole)


@dataclass
class _Salvage:
    """Copies the undamaged part. `cut` holds the root entities of which no further record is kept."""

    old: _JsonlLines | _SqliteLines
    target: Store
    seal: Seal
    records: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    cut: set[str] = field(default_factory=set)
    keys: dict[tuple[str, str], str] = field(default_factory=dict)
    """The roots and keys of taken mail, and when the last one with that key was taken."""
    tombstones: dict[str, TombstoneSum] = field(default_factory=dict)
    """The tombstones of each entity that no record names as forgotten."""
    sequences: dict[str, int] = field(default_factory=dict)
    """Entities to the number of their last turn: the chain does not cover what a tombstone says."""

    def copy(self) -> None:
        """Copy records, mail, timers, submissions and accounts; forget again what had been forgotten."""
        trees = Trees(self.seal)
        for line in self.old.read_lines():
            try:
                if line is None:
                    raise LoomError("it cannot be read")
                root = self._copy_line(trees, line)
            except LoomError:
                root = _UNREADABLE
            if root is not None:
                self.left_out[root] += 1
        for mail in self.old.read_waiting_mail():
            taken_at = self.keys.get((mail.entity_id, mail.key))
            if taken_at is None or taken_at < mail.at:  # else a key that had expired was used again
                self.target.post([bind_mail(mail, self.old.read_blob)], most=sys.maxsize)
        for timer in self.old.read_timers():
            if can_wait(timer, self.target):
                bound = None if timer.mail is None else bind_mail(timer.mail, self.old.read_blob)
                self.target.replace_timer(None, replace(timer, mail=bound))
        for row in self.old.read_submissions():
            self.target.add_submission(row)
        for name, state in self.old.read_accounts():
            self.target.change_account(name, lambda *_, state=state: (state, None), 0.0)
        self._forget_again()

    def _forget_again(self) -> None:
        """Forget the entities with tombstones that no record explains, and everything below them."""
        doomed = [entity for entity in self.tombstones if self.target.header(entity) is not None]
        if not doomed:
            return
        for entity in doomed:
            doomed.extend(child for child in self.target.below(entity) if child not in doomed)
        at = format_instant(self.target.clock())
        unfinished = [entity for entity in doomed if (self.target.life(entity) or Life.BUSY) < Life.OVER]
        self.target.append([Ended(entity, "abandoned", at) for entity in unfinished])
        self.target.prepare_forget(Erasure(doomed, (), at, *AUTHOR))()

    def _copy_line(self, trees: Trees, line: bytes) -> str | None:
        """Copy a line; return the root of its tree if it is left out. Raises LoomError if it is not a record."""
        link = split_link(line)[1]
        record = decode(line)
        header = as_header(record)
        above = None if header is None or header.forked else header.parent_entity
        root = record.entity_id
        if (place := trees.index.places.get(above or root)) is not None:
            root = place.tree.root
        elif header is None or above is not None:
            return above or root
        if root in self.cut:
            return root
        try:
            if link != trees.expect(root, line):
                raise LoomError("it does not fit the chain")
            self._check_place(trees, record, line)
            (whole,) = attach_images([record], self.old.read_blob)
            snapshot = get_snapshot(whole)
            blob = None if snapshot is None else self.old.read_blob(snapshot.digest)
            if blob is not None:
                whole = replace_snapshot(whole, Snapshot(blob.digest, blob))
            self.target.append_copied([whole], {0: line} if is_tombstone(line) else {})
            trees.follow(self.records, record)
        except LoomError:
            self.cut.add(root)
            return root
        trees.seal(root, line)
        self.records += 1
        if (key := get_key(record)) is not None:
            self.keys[root, key] = getattr(record, "at", "")
        return None

    def _check_place(self, trees: Trees, record: Record, line: bytes) -> None:
        """Note a turn and a tombstone. Raises LoomError for a record that cannot follow those before it.

        That is a turn whose number is not the next one, a ForgottenRecord of other tombstones, and what follows it.
        """
        entity, forgotten = record.entity_id, as_forgotten(record)
        place = trees.index.places.get(entity)
        if place is not None and place.life is Life.FORGOTTEN:
            raise LoomError("its entity was forgotten before it")
        turn = get_turn_number(record)
        if turn is not None:
            if turn <= self.sequences.get(entity, 0):
                raise LoomError("a turn before it has its number, or a later one")
            self.sequences[entity] = turn
        if is_tombstone(line):
            self.tombstones.setdefault(entity, TombstoneSum()).add(line)
        elif forgotten is not None:
            if not self.tombstones.get(entity, TombstoneSum()).is_match(forgotten):
                raise LoomError("the tombstones before it were changed")
            del self.tombstones[entity]
