"""The JSONL store: the reference format. One file, one record per line, in the order of acknowledgement.

The rules of this file:

- The first line names the version that made the file: `{"loom":1}`. Files of earlier versions begin with a record. In a
  sealed loom it also holds the mark of the seal, and the head is in `<file>.head` (`head_file.py`).
- A record exists once its newline is written. Bytes after the last newline were never acknowledged: a process was
  killed in the middle of a write. Opening the file cuts them off, keeps them in `<file>.torn` and reports it
  (`recovered`, and a warning).
- A batch is one write. If it fails (a full disk, a bad one), the file is cut back to its last whole record and the
  caller gets a LoomError: nothing of the batch was recorded. If even the cut fails, the store refuses to write after
  half a record and tries the cut again at the next append, so it continues once the cause is fixed.
- Blobs are in a file of their own, `<file>.blobs`, and are written before the lines that refer to them. Earlier
  versions kept them in `<file>.images` and `<file>.pictures`, which are still read.
- Mail and timers are in `<file>.mail` and `<file>.timers` (`line_rows.py`).
- The states of entities (`checkpoints.py`) are in `<file>.checkpoints`. They may be deleted at any time.
- One writer: the file is locked while it is open, and the lock ends with the process. Readers (`read_only`) see the
  records that were complete when they opened it, also while it is written.
- A line in the middle that is not a record is not the result of a crash: the file was changed. That is an error that
  names the line, never a guess.

The index (the positions of each entity's records) is kept in memory, 16 bytes per record, and built once at opening;
the lines are parsed on demand. The index of a large loom is also kept in a file (`jsonl_index.py`).

A lone append costs one system call into the page cache and survives a kill of the process. `power` adds an fsync, which
waits for the disk, so `blocking` is then True. `none` has nothing to save here and is the same as `process`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NoReturn, TypeVar
from zlib import crc32

import orjson

from cantrip_actors.loom.checkpoints import CheckpointFile
from cantrip_actors.loom.damage import REPAIR, DamagedLoom
from cantrip_actors.loom.erasure import Erasure
from cantrip_actors.loom.head_file import HeadFile
from cantrip_actors.loom.jsonl_index import WORTH, Known, compute_checksum, keep, restore_index
from cantrip_actors.loom.key_file import read_key
from cantrip_actors.loom.line_file import CHUNK, BlobFile, Disk, LineFile
from cantrip_actors.loom.line_rows import RowFile, encode_mail_line, encode_timer_line, read_mail, read_timer
from cantrip_actors.loom.line_store import LineStore
from cantrip_actors.loom.rules import Plan
from cantrip_actors.loom.seal_key import GivenKey, Head, SealMark, open_seal
from cantrip_actors.loom.store import Durability
from cantrip_actors.machine.project import Life, compute_life
from cantrip_actors.own_files.claims import BESIDE, claim_file
from cantrip_actors.own_files.modes import FILE, file_size, make_folder, narrow_files
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.codec import KINDS, Newer, decode
from cantrip_actors.records.mail import MailRow
from cantrip_actors.records.timers import Timer
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError

__all__ = ["Disk", "JsonlStore", "Recovered", "read_file_mark", "split_lines"]

T = TypeVar("T")

VERSION = 1
"""The version of the file; lines have a version of their own, `codec.SCHEMA`."""

_FIRST_LINE = b'{"loom":%d}\n' % VERSION
_SEALED_LINE = b'{"loom":%d,"salt":"%b","check":"%b"}\n'
_BEGINNINGS = (_FIRST_LINE, b'{"loom":%d,"salt":"' % VERSION, b'{"kind":"header","entity":"')
"""The beginnings of a log, of earlier versions too: a killed process may have written only a part of the first line."""
_VERSION_LINE = re.compile(rb'\{"loom": ?(\d+)(?:,"salt":"([0-9a-f]{32})","check":"([0-9a-f]{24})")?\}')
_BEGINNING = re.compile(rb'\{"kind":"([a-z_]+)","entity":"([^"\\\n]*)"(?:,"turn":"([^"\\\n]*)")?[^\n]*\}\n')
"""The parts of a line by `encode` that the index needs; lines of other writers are parsed completely."""

_log = get_logger("cantrip.loom")


def read_file_mark(path: Path) -> SealMark | None:
    """Return the mark in the first line of a sealed JSONL loom."""
    with path.open("rb") as file:
        found = _VERSION_LINE.fullmatch(file.readline().rstrip(b"\r\n"))
    return SealMark(found[2].decode(), found[3].decode()) if found is not None and found[2] else None


def split_lines(data: bytes) -> Iterator[bytes]:
    """Yield the whole lines of a JSONL loom's bytes that are records."""
    for line in data.split(b"\n")[:-1]:
        if _VERSION_LINE.fullmatch(line) is None:
            yield line


@dataclass(frozen=True, slots=True)
class Recovered:
    """A torn last line that was cut off when a file was opened: never acknowledged, and kept in `kept_in`."""

    path: Path
    line: int
    offset: int
    length: int
    kept_in: Path


class JsonlStore(LineStore):
    """A loom in a file. `recovered` describes what opening it cut off; None if it was complete.

    Raises LoomError if the file cannot be opened, is open for writing elsewhere, or contains a line that is not a
    record.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "process",
        read_only: bool = False,
        disk: Disk | None = None,
        seal_key: GivenKey = None,
    ) -> None:
        super().__init__()
        self.path = Path(path).absolute()
        self.where = str(self.path)
        self.read_only = read_only
        self.durability = durability
        self.blocking = durability == "power"
        self.recovered: Recovered | None = None
        self._disk = disk or Disk()
        self._file = LineFile(self.path, lambda: self._disk, read_only=read_only, synced=self.blocking)
        self._blobs, *self._old_blobs = self._blob_files = [
            BlobFile(self._make_sidecar("blobs")),
            *(BlobFile(self._make_sidecar(suffix, read_only=True)) for suffix in ("images", "pictures")),
        ]
        self._mail = RowFile(self._make_sidecar("mail"), "mail", read_mail)
        self._timers = RowFile(self._make_sidecar("timers"), "timers", read_timer)
        self._mail_limit: int | None = None
        self._head_file = HeadFile(self.path, lambda: self._disk, synced=self.blocking)
        self._head: Head | None = None
        self._checkpoints = CheckpointFile(self.path.with_name(f"{self.path.name}.checkpoints"))
        self._lines = 0
        self._skipped: list[int] = []  # the numbers of unreadable lines
        self._sidecar_faults: list[str] = []  # the faults of lines of mail and of timers
        self._crc = 0
        self._indexed = Known()  # the part of the file that the stored index covers
        self._own_claim = claim_file(self.path)
        try:
            self._open()
            if read_only:  # a writer may be at work: mail that arrives later belongs to no record that is read
                self._mail_limit = os.fstat(self._mail.file.fd).st_size if self._mail.file.open() else 0
            self._head = self._head_file.read()  # before the lines: a writer may be at work
            self._start = self._read_version(seal_key)
            self._file.end = self._start
            self._indexed = restore_index(self.path, self._file.fd, self._known)
            self._scan()
            if not read_only:
                self._cut_torn()
                self._renew_head()
                self._keep_index()
            self._load_mail()
            self._load_timers()
            if not read_only:
                narrow_files(self.path.with_name(self.path.name + suffix) for suffix in ("", *BESIDE))
        except BaseException:
            self.close()
            raise

    def _make_sidecar(self, suffix: str, *, read_only: bool = False) -> LineFile:
        """Return a sidecar of the log."""
        path = self.path.with_name(f"{self.path.name}.{suffix}")
        return LineFile(path, lambda: self._disk, read_only=read_only or self.read_only, synced=self.blocking)

    # ---------------------------------------------------------------------------------------------------------- opening

    def _open(self) -> None:
        with self._explain("cannot open"):
            if not self.read_only:
                make_folder(self.path.parent)
            self._file.open(create=True)
        with self._explain("cannot lock"):
            if not stat.S_ISREG(os.fstat(self._file.fd).st_mode):
                raise LoomError(f"{self.path} is not a regular file: a loom needs one")
            try:
                if not self.read_only:
                    fcntl.flock(self._file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not os.path.samestat(os.fstat(self._file.fd), self.path.stat()):
                        raise BlockingIOError  # another process has just put a rewritten file in its place
            except BlockingIOError as error:
                raise LoomError(
                    f"{self.path} is open for writing already, in another process or another runtime of this one: "
                    f"close it there first, or open it read-only"
                ) from error

    def _refuse_foreign(self, file: LineFile, beginnings: tuple[bytes, ...]) -> None:
        """Raise LoomError if a file without a whole line does not begin like a loom: it must not be emptied (X-14)."""
        head = b"" if file.end else file.read(0, max(map(len, beginnings)))
        if head and not any(head.startswith(one) or one.startswith(head) for one in beginnings):
            raise LoomError(f"{file.path} is not part of a loom, and was not changed: give the path of another file")

    def _read_version(self, key: GivenKey) -> int:
        """Return the length of the line with the file's version, 0 in a file of earlier versions."""
        first = next(iter(self._read_blocks()), b"").partition(b"\n")[0]
        if first.endswith(b"\r"):
            self._raise_converted(1)
        found = _VERSION_LINE.fullmatch(first)
        mark = SealMark(found[2].decode(), found[3].decode()) if found is not None and found[2] else None
        self.seal = open_seal(key, mark, str(self.path), is_new=not first and not self.read_only)
        if found is None:
            return 0
        if int(found[1]) > VERSION:
            raise Newer(
                f"{self.path} is a JSONL loom of version {int(found[1])}, this version reads up to {VERSION}: "
                "use a newer cantrip-actors"
            )
        return len(first) + 1

    def _scan(self) -> None:
        """Read the part of the file that the index does not cover, once, and index every whole line."""
        index, owners = self._known, self._known.owners
        known: dict[bytes, tuple[str, array[int]]] = {}  # by the id's bytes in a line, which suffice for most lines
        match = _BEGINNING.match
        end, count, crc = self._indexed
        if end == 0 and self._start:
            head = self._file.read(0, self._start)
            end, count, crc = self._start, 1, crc32(head, 0)
        for block in self._read_blocks(end):
            crc = crc32(block, crc)
            at, stop = 0, len(block)
            while at < stop:
                count += 1
                found = match(block, at)
                after = block.index(b"\n", at) + 1 if found is None else found.end()
                kind, entity, turn = (b"", b"", None) if found is None else found.groups()
                if entity in known and kind in _PLAIN_KINDS:
                    spots = known[entity][1]
                elif entity in known and kind == b"turn" and turn is not None and _ENDS not in block[at:after]:
                    owner, spots = known[entity]
                    owners[turn.decode()] = owner
                elif (
                    entity in known
                    and (
                        kind == b"steer" or (kind == b"intent" and index.unfinished.get(known[entity][0]) is Life.BUSY)
                    )
                    and _KEY not in block[at:after]
                ):
                    spots = known[entity][1]
                else:
                    # a header, a record that ends something, or a line that `encode` did not write in its usual form
                    if not self.read_only and block[at:after].endswith(b"\r\n"):
                        self._raise_converted(count)
                    try:
                        record = decode(block[at:after])
                        spots = index.spots[index.follow(record, end + at).no]
                    except LoomError as error:
                        self._skip_line(count, error)
                        at = after
                        continue
                    if entity:
                        known[entity] = record.entity_id, spots
                spots.append(end + at)
                spots.append(after - at)
                at = after
            end += stop
        self._file.end, self._lines, self._crc = end, count, crc
        if self._skipped:
            _log.warning("loom.damaged", path=str(self.path), lines=self._skipped[:20], count=len(self._skipped))

    def _load_mail(self) -> None:
        """Read the file of mail, and find the mail that the log's records took."""
        inboxes, stale = self._known.inboxes, 0

        def add(found: tuple[MailRow, bytes, int, int | None]) -> bool:
            nonlocal stale
            row, body, after, number = found
            if number is not None and number >= self._end:
                return True
            if self._known.find_place(row.entity_id) is None:
                raise LoomError(f"entity {row.entity_id} is not in the log")
            if row.taken is None:
                row = row._replace(taken=self._find_taker(row, after))
            stale += row.taken is not None and bool(body)
            inboxes.add(row, body)
            return False

        void = self._load(self._mail, add, self._mail_limit)
        for entity in inboxes.list_entities():
            self._known.places[entity].tree.waiting = inboxes.count(entity)
        if not self.read_only and (void or 2 * stale > self._mail.lines):
            self._rewrite_mail()

    def _load_timers(self) -> None:
        """Read the file of timers."""
        rows: dict[tuple[str, str], tuple[Timer, bytes]] = {}

        def add(found: tuple[Timer, bytes, int | None]) -> bool:
            timer, body, number = found
            place = self._known.find_place(timer.entity_id)
            if (number is not None and number >= self._end) or (timer.entity_id and place is None):
                return True
            if body and (place is None or place.life < Life.OVER):
                rows[timer.entity_id, timer.id] = timer, body
            else:
                rows.pop((timer.entity_id, timer.id), None)
            return False

        void = self._load(self._timers, add)
        for timer, line in sorted(rows.values(), key=lambda row: row[0].position):  # so that each is added at the end
            self._known.timers.set(timer, line)
            if timer.entity_id:
                self._known.places[timer.entity_id].has_timers = True
        if not self.read_only and (void or self._timers.lines > 2 * len(rows)):
            self._rewrite_timers()

    def _load(self, rows: RowFile[T], add: Callable[[T], bool], limit: int | None = None) -> int:
        """Read a sidecar of rows; return how many are void. Unreadable ones are skipped if the loom is read-only."""

        def skip(where: str, error: LoomError) -> None:
            damaged = DamagedLoom(f"{where} is corrupt: {error}. {REPAIR}")
            if not self.read_only:
                raise damaged from error
            self._sidecar_faults.append(str(damaged))

        with self._explain(f"cannot read the {rows.what} beside"):
            void = rows.load(add, skip, limit)
            if not self.read_only and rows.file.fd >= 0:
                self._refuse_foreign(rows.file, (b"{",))
                rows.file.is_dirty = os.fstat(rows.file.fd).st_size != rows.file.end
        return void

    def _find_taker(self, row: MailRow, after: int) -> int | None:
        """Return the number of the record that took a mail: it carries its key, or ends its entity."""
        number = self._known.keys.get(row.entity_id, {}).get(row.key, -1)
        if number >= after:
            return number
        place = self._known.places[row.entity_id]
        if place.life >= Life.OVER:
            spots = self._known.spots[place.no]
            for n in range(len(spots) - 2, 0, -2):
                record = decode(self._read_bytes(spots[n], spots[n + 1]))
                if compute_life(record, Life.IDLE, lasting=place.lasting) >= Life.OVER:
                    return spots[n]
        return None

    def _keep_index(self) -> None:
        if self._lines - self._indexed.lines >= WORTH:
            self._indexed = Known(self._file.end, self._lines, self._crc)
            keep(self.path, self._indexed, self._known)

    def head(self) -> Head | None:
        """Return the head of a sealed loom."""
        return self._head if self.seal.mark is not None else None

    def _renew_head(self) -> None:
        """Compare the head with the lines, and extend it over those that a killed process wrote after it."""
        if not self.seal.chain:
            return
        records, head = self._lines - bool(self._start), self._head
        if head is None:
            if records:
                raise DamagedLoom(f"{self._head_file.path} is missing or damaged, and {self.path} is sealed. {REPAIR}")
            self._write_head(self.seal.beginning)
        elif head.records > records:
            raise DamagedLoom(f"{self.path}: {head.records - records:,} records at its end are missing. {REPAIR}")
        elif head.records < records:
            lines = [line for _, line in islice(self.lines(), head.records, None)]
            for root in dict.fromkeys(self._known.places[decode(line).entity_id].tree.root for line in lines):
                self.check_chain(root)
            self._write_head(self.seal.follow(head, lines))

    def _write_head(self, head: Head | None) -> None:
        if head is not None:
            with self._explain("cannot write the head beside"):
                self._head_file.write(head)
            self._head = head

    def _read_blocks(self, at: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the file's whole lines from `at` up to `end`, many at a time."""
        if self._file.fd < 0:
            raise LoomError(f"{self.path} is closed: open it again to read it")
        with self._explain("cannot read"):
            yield from self._file.read_blocks(at, end)

    def _skip_line(self, number: int, why: LoomError) -> None:
        """Skip an unreadable line if the loom is open read-only. Raises DamagedLoom before anything is written."""
        if not self.read_only or number == 1 or isinstance(why, Newer):
            self._raise_corrupt_line(number, why)
        self._skipped.append(number)

    def faults(self) -> Iterator[str]:
        """Yield the faults of mail and timers that cannot be read, or that contradict the lines."""
        yield from self._sidecar_faults
        yield from super().faults()

    def _raise_corrupt_line(self, number: int, why: LoomError) -> NoReturn:
        if isinstance(why, Newer):
            raise Newer(f"{self.path}: line {number} {why}") from why
        keep = "" if number == 1 else f", or keep what lies before it: head -n {number - 1}"
        raise DamagedLoom(
            f"{self.path}: line {number} is corrupt: {why}. A killed process leaves no such line: the file was "
            f"changed, its disk is failing, or the power was cut. `cantrip loom repair {self.path}` copies it, and "
            f"leaves out what is damaged, and opening it read-only skips it. Restore it from a copy{keep}"
        )

    def _raise_converted(self, number: int) -> NoReturn:
        raise DamagedLoom(
            f"{self.path}: line {number} ends in CRLF: an editor or a checkout has converted it. "
            f"`cantrip loom repair {self.path}` restores it"
        )

    def _cut_torn(self) -> None:
        """Cut off the bytes after the last newline, keep them in a sidecar, and report it."""
        end = self._file.end
        beside = self.path.with_name(f"{self.path.name}.torn")
        with self._explain("cannot cut the torn last line off"):
            torn = os.fstat(self._file.fd).st_size - end
            if not torn:
                return
            self._refuse_foreign(self._file, _BEGINNINGS)
            self._keep(beside, self._file.read(end, torn))
            self._disk.truncate(self._file.fd, end)
            if self.blocking:
                self._disk.sync(self._file.fd)
        self.recovered = Recovered(self.path, self._lines + 1, end, torn, beside)
        _log.warning(
            "loom.torn_line",
            path=str(self.path),
            line=self._lines + 1,
            bytes=torn,
            kept_in=str(beside),
            hint="a process was killed while it wrote this record, which was never acknowledged",
        )

    def _keep(self, beside: Path, torn: bytes) -> None:
        fd = os.open(beside, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE)
        try:
            self._file.write(fd, torn + b"\n")
        finally:
            os.close(fd)

    # -------------------------------------------------------------------------------------------------------- appending

    def _check_open(self) -> None:
        if self._file.fd < 0:
            raise LoomError(f"{self.path} is closed: nothing can be recorded any more")
        if self.read_only:
            raise LoomError(f"{self.path} was opened read-only: nothing can be recorded")

    @property
    def _first_line(self) -> bytes:
        mark = self.seal.mark
        return _FIRST_LINE if mark is None else _SEALED_LINE % (VERSION, mark.salt.encode(), mark.check.encode())

    @property
    def _end(self) -> int:
        return self._file.end or len(self._first_line)

    def _write(self, db: None, made: Plan) -> None:  # noqa: ARG002  # there is none
        before = self._write_sidecars(made) if made.blobs or made.posted or made.timers else ()
        if not made.lines:
            return
        file, end = self._file, self._file.end
        data = b"%b\n" % b"\n".join(made.lines)
        if not end:
            data = self._first_line + data
        try:
            file.append(data)
            if made.end is not None:
                self._write_head(made.end)
        except OSError as error:
            _cut_back([*before, (file, end)])
            self._fail("cannot write to", error)
        except LoomError:
            _cut_back([*before, (file, end)])
            raise
        if not end:
            self._start, self._lines = len(self._first_line), 1
        self._crc = crc32(data, self._crc)
        self._lines += len(made.lines)

    def _write_sidecars(self, made: Plan) -> Sequence[tuple[LineFile, int]]:
        """Write blobs, mail and timers; return the files of mail and timers, and their ends before that."""
        if made.blobs:
            with self._explain("cannot write blobs beside"):
                blobs = made.blobs.values()
                self._blobs.add(one for one in blobs if not any(old.has(one.digest) for old in self._old_blobs))
        if made.timers and self._timers.lines > WASTE + 2 * len(self._known.timers):
            self._rewrite_timers()
        mail = [encode_mail_line(row, line, self._end, number) for row, line, number in made.posted.values()]
        timers = [encode_timer_line(*key, line, number) for key, (_, line, number) in made.timers.items()]
        before = (self._mail.file, self._mail.file.end), (self._timers.file, self._timers.file.end)
        for rows, lines in ((self._mail, mail), (self._timers, timers)):
            try:
                if lines:
                    rows.file.append(b"".join(lines))
            except OSError as error:
                _cut_back(before)
                self._fail(f"cannot write {rows.what} beside", error)
        self._timers.lines += len(timers)
        return before

    def _rewrite_timers(self) -> None:
        with self._explain("cannot rewrite the timers beside"):
            self._timers.rewrite(encode_timer_line(*row) for row in self._known.timers.list_all())

    def _rewrite_mail(self) -> None:
        with self._explain("cannot rewrite the mail beside"):
            self._mail.rewrite(encode_mail_line(row, line, self._end) for row, line in self._known.inboxes.read_lines())

    def _replace_lines(self, changed: Sequence[tuple[int, bytes]], made: Plan) -> Callable[[], None]:
        if not changed:
            return lambda: None
        end = self._file.end
        with self._explain("cannot rewrite"):
            fd = self._file.write_new(chain(self._splice_lines(changed), [b"\n".join([*made.lines, b""])]))
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before others can see the new file

        def finish() -> None:
            if self._file.end != end:
                os.close(fd)
                self._file.remove_new()
                raise LoomError(f"{self.path} was written to meanwhile: nothing is forgotten, do it again")
            with self._explain("cannot rewrite"):
                self._file.replace(fd)
            self._write_head(made.end)
            self._lines += len(made.lines)
            self._indexed, self._crc = Known(), compute_checksum(self._file.fd, self._file.end) or 0

        return finish

    def _splice_lines(self, changed: Sequence[tuple[int, bytes]]) -> Iterator[bytes]:
        """Yield the bytes of the file with other lines at these offsets."""
        at = 0
        for offset, line in [*changed, (self._file.end, b"")]:
            for start in range(at, offset, CHUNK):
                yield self._file.read(start, min(CHUNK, offset - start))
            yield line
            at = offset + len(line)

    def _remove_schedules(self, ids: Iterable[str]) -> None:
        super()._remove_schedules(ids)
        self._rewrite_timers()

    def _remove_sidecars(self, wanted: Erasure) -> None:
        with self._explain("cannot remove the sidecars of"):
            self._rewrite_mail()
            if self._timers.file.path.exists():
                self._rewrite_timers()
            self._checkpoints.remove()
            self.path.with_name(f"{self.path.name}.index").unlink(missing_ok=True)
            self._remove_torn(wanted.entities)
            for file in (self._file, self._mail.file, *(blobs.file for blobs in self._blob_files)):
                file.remove_new()

    def _remove_torn(self, entities: Sequence[str]) -> None:
        """Remove the lines of entities from the file of torn lines."""
        torn = self._make_sidecar("torn")
        if torn.path.exists():
            ids = [orjson.dumps(entity) for entity in entities]
            lines = torn.path.read_bytes().splitlines(keepends=True)
            torn.rewrite(line for line in lines if not any(entity in line for entity in ids))
            torn.close()

    def _keep_blobs(self, used: AbstractSet[str]) -> int:
        with self._explain("cannot rewrite the blobs beside"):
            return sum(blobs.keep(used) for blobs in self._blob_files)

    @contextmanager
    def _explain(self, what: str) -> Iterator[None]:
        """Raise LoomError for an OSError of the block, with `what` failed and what to do."""
        try:
            yield
        except OSError as error:
            self._fail(what, error)

    def _fail(self, what: str, error: OSError) -> NoReturn:
        advice = _ADVICE.get(error.errno or 0, "")
        raise LoomError(f"{what} {self.path}: {error.strerror or error}{advice}") from error

    # ---------------------------------------------------------------------------------------------------------- reading

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield every record's line with its number, in the order of recording, up to the call."""
        number = 0
        for block in self._read_blocks(self._start, self._file.end):
            for line in block[:-1].split(b"\n"):
                number += 1
                yield number, line

    def blob(self, digest: str) -> Blob | None:
        """Return the blob of that digest, from the sidecars."""
        with self._explain("cannot read blobs beside"):
            return next((found for file in self._blob_files if (found := file.get(digest)) is not None), None)

    def blobs(self) -> Iterator[str]:
        """Yield the digests of all blobs in the sidecars."""
        with self._explain("cannot read blobs beside"):
            return iter({digest: None for file in self._blob_files for digest in file.list_digests()})

    def key(self) -> bytes | None:
        """Return the key in the sidecar."""
        return read_key(self.path, make=not self.read_only)

    def _read_bytes(self, start: int, length: int) -> bytes:
        try:
            return self._file.read(start, length)  # also after closing: an episode may be inspected much later
        except OSError as error:
            self._fail("cannot read", error)

    def _keep_checkpoint(self, entity_id: str, kept: bytes, leases: Mapping[str, int] | None) -> None:  # noqa: ARG002  # one process writes
        self._check_open()
        self._checkpoints.keep(entity_id, kept)

    def _find_checkpoint(self, entity_id: str) -> bytes | None:
        return None if self.read_only or self._file.fd < 0 else self._checkpoints.find(entity_id)

    def _raise_corrupt(self, offset: int, error: LoomError) -> NoReturn:
        before = (self._read_bytes(at, min(CHUNK, offset - at)) for at in range(0, offset, CHUNK))
        self._raise_corrupt_line(1 + sum(block.count(b"\n") for block in before), error)

    def scrub(self) -> None:
        """Rewrite the file of mail without the taken mail."""
        self._check_open()
        self._rewrite_mail()

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return file_size(self.path)

    def close(self) -> None:
        """Close the file and release its lock. It can still be read."""
        self._own_claim.release()
        self._mail.file.close()
        self._timers.file.close()
        self._checkpoints.close()
        self._head_file.close()
        for blobs in self._blob_files:
            blobs.file.close()
        if self._file.fd >= 0:
            if not self.read_only and self._known.places:
                self._keep_index()
            self._file.close()

    def __repr__(self) -> str:
        entities, turns = len(self._known.places), len(self._known.owners)
        return f"<JsonlStore {self.path} of {entities} entities, {turns} turns, {self._file.end} bytes>"


def _cut_back(before: Sequence[tuple[LineFile, int]]) -> None:
    """Cut sidecars back to their ends before a failed write."""
    for file, end in before:
        if file.end != end:
            file.cut(end)


WASTE = 1000
"""Outdated lines in the file of timers at which it is rewritten."""

_PLAIN_KINDS = frozenset(
    kind.encode()
    for kind in KINDS
    - {
        "header",
        "turn",
        "intent",
        "ended",
        "steer",
        "refused",
        "requested",
        "decided",
        "forgotten",
        "reward",
        "adopted",
    }
)
"""Records that the index only locates."""

_ENDS = b'ed":true'
"""The bytes in the line of a turn that is `terminated` or `truncated`."""

_KEY = b'"key":'
"""The bytes in the line of a record that takes mail."""

_ADVICE = {
    errno.ENOSPC: ". Make room on that disk; nothing that was acknowledged is lost; recording continues then",
    errno.EDQUOT: ". The quota is used up: make room; nothing that was acknowledged is lost",
    errno.EIO: ". The disk is failing: what was acknowledged before should be copied elsewhere",
    errno.EROFS: ". It lies on a read-only file system: open it read-only, or elsewhere",
    errno.EACCES: ". Permission is missing: open it read-only, or change who may write it",
    errno.ENOENT: ". There is no such loom",
    errno.ENOLCK: ". That file system has no locks: put the loom on a local one",
}
