"""The JSONL store: the reference format. One file, one record per line, in the order of acknowledgement.

It is the memory store with a journal: opening the file reads it into memory, and each change is written before it is
made there. The rules of this file:

- The lines are records, and those of `journal.py`: mail, timers, accounts, blobs. The first line names the version and
  the end of what was acknowledged, so that a file without its end is found; in a sealed loom also the head of the seal.
  Each append overwrites it, after the lines. A file that was made by hand may lack it.
- A line exists once its newline is written, and a batch once its last line is. What follows was never acknowledged: a
  process was killed in the middle of a write. Opening the file cuts it off, with a warning; a last line that lacks only
  its newline gets it.
- A transaction is one write. If that fails (a full disk, a bad one), the file is cut back and nothing was recorded.
- Forgetting and compacting write a new file, in a thread, and put it in the place of the old one.
- The file is locked while it is open for writing, so there is one writer; the lock ends with the process, and so do
  leases, which are in memory only. Readers see what was complete when they opened the file.
- A line in the middle that cannot be read is no trace of a crash: the file was changed. That is an error that names it.

An append costs one system call into the page cache and survives a kill of the process. `power` adds an fsync, which
waits for the disk, so `blocking` is then True. `none` has nothing to save here and is the same as `process`.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import NoReturn

from cantrip_actors.loom.memory.journal import (
    EndReader,
    JournalEnd,
    JournalLine,
    decode_line,
    encode_line,
    wrap_mail,
    wrap_timer,
)
from cantrip_actors.loom.memory.memory import NOTHING_ERASED, Erased, MemoryStore
from cantrip_actors.loom.seal.line_file import Disk, LineFile, describe_failure
from cantrip_actors.loom.seal.seal_key import GivenKey, Head, SealMark, open_seal
from cantrip_actors.loom.stores.damage import REPAIR, DamagedLoom
from cantrip_actors.loom.stores.lease import read_boot_id
from cantrip_actors.loom.stores.read_budget import UNIT
from cantrip_actors.loom.stores.rules import Place, Plan, Tree
from cantrip_actors.loom.stores.store import Durability
from cantrip_actors.machine.project import NOTED, Life
from cantrip_actors.own_files.claims import claim_file
from cantrip_actors.own_files.modes import file_size, make_folder, narrow_files
from cantrip_actors.records.codec import Newer, decode
from cantrip_actors.records.mail import encode_mail
from cantrip_actors.records.records import Record
from cantrip_actors.records.timers import Timer, encode_timer
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError

VERSION = 1
"""The version of the file; lines have a version of their own, `codec.SCHEMA`."""
LARGE = 200_000_000
"""Bytes of a file from which SQLite suits better: a JSONL loom is in memory as a whole."""
WASTE = 1 << 20
"""Bytes of out-of-date lines for which opening the file does not rewrite it yet."""

_FIRST = 256
"""Bytes of the first line: one sector of a disk has it, which is written as a whole or not at all."""
_BEGINNINGS = (b'{"loom":', b'{"kind":"header"')

_log = get_logger("cantrip.loom")


class JsonlStore(MemoryStore):
    """A loom in a file. `recovered` is the number of bytes that opening it cut off, because a write was interrupted.

    Raises LoomError if the file cannot be opened, is open for writing elsewhere, or has a line that cannot be read.
    """

    sealed = True

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
        self.path: Path = Path(path).absolute()
        self.where: str = str(self.path)
        self.read_only = read_only
        self.durability = durability
        self.blocking: bool = durability == "power"
        self.recovered: int = 0
        self._file = LineFile(self.path, disk or Disk(), read_only=read_only, synced=self.blocking)
        self._late: list[bytes] | None = None
        """While the file is rewritten: what was written to the old one meanwhile, and is no record."""
        self._is_large = False
        self._journal_size = 0
        """Bytes of the lines that are neither records nor blobs, when the file was opened."""
        self._damaged: list[int] = []
        self._mark: SealMark | None = None
        self._head = None
        self._ends = EndReader()
        """The content of the file when it was opened."""
        self._end = JournalEnd()
        self._has_end = False
        """Whether the first line has room for the end. A file made by hand gets it when it is rewritten."""
        self._own_claim = claim_file(self.path)
        try:
            self._open()
            with self._explain("cannot read"):
                torn = self._load(seal_key)
            if not read_only:
                self._refuse_lost_end()  # before the file is changed
                self._mend_end(torn)
                self._renew_head()
                is_whole = not self._ends.describe_lost()
                if is_whole and self._journal_size > WASTE + 2 * sum(map(len, self._dump_journal(NOTHING_ERASED))):
                    self._rewrite()(set())
                self._file.remove_new()
                narrow_files([self.path])
                if self._file.end > LARGE:
                    self._warn_of_size()
        except BaseException:
            self.close()
            raise

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

    def _load(self, seal_key: GivenKey) -> int:
        """Read the file into memory; return the number of the line after the last whole one."""
        batch: list[tuple[int, bytes]] = []
        left = end = number = 0
        self._ends = ends = EndReader(self._read_noted_end())  # before the lines: a writer may be at work
        whole = end, number, ends.end, ends.blobs
        for line in self._read_lines():
            number += 1
            end += len(line) + 1
            if left:
                batch.append((number, line))
                left -= 1
            else:
                left = self._add_line(number, line)
            if not left:
                for each in batch:
                    self._add_line(*each)
                batch.clear()
                whole = end, number, ends.end, ends.blobs
        if not end:
            self._check_beginning()
        self.seal = open_seal(seal_key, self._mark, self.where, is_new=not end and not self.read_only)
        self._note_ends()
        self._file.end, number, last, blobs = whole
        records = max(0, number - last.others - blobs - 1)
        ends.end = self._end = last._replace(records=records, boot=read_boot_id()[:8])
        lost = ends.describe_lost()
        if self.read_only and lost:
            _log.warning("loom.acknowledged_missing", path=self.where, missing=lost)
        if damaged := self._damaged:
            _log.warning("loom.damaged", path=self.where, lines=damaged[:20], count=len(damaged))
        return number + 1

    def _read_lines(self) -> Iterator[bytes]:
        """Yield the lines of the file; the last one also if it lacks only its newline."""
        end, size = 0, os.fstat(self._file.fd).st_size  # a writer may be at work
        for block in self._file.read_blocks(0, size):
            yield from block[:-1].split(b"\n")
            end += len(block)
        rest = self._file.read(end, size - end)
        if rest and _is_line(rest):
            yield rest

    def _add_line(self, number: int, line: bytes) -> int:
        """Add what a line says to the loom in memory; return how many lines follow that belong to it."""
        try:
            if line.endswith(b"\r") and not self.read_only:
                raise LoomError("it ends in CRLF: an editor or a checkout has converted the file")
            if line.startswith(b'{"kind":'):
                content: Record | JournalLine = decode(line)
            else:
                if number > 1:
                    self._ends.follow_other(line)
                content = decode_line(line)
            if isinstance(content, JournalLine):
                self._add_journal_line(number, content)
                self._journal_size += 0 if content.blob else len(line)
                return content.batch
            index = self._known
            place = index.places.get(content.entity_id)
            if place is None or content.__class__ in NOTED:
                place = index.follow(content, len(self._lines) + 1)
            self._lines.append(line)
            index.numbers[place.no].append(len(self._lines))
        except LoomError as error:
            self._skip_line(number, line, error)
        return 0

    def _read_noted_end(self) -> JournalEnd | None:
        """Return what the first line says was acknowledged; None if it says nothing."""
        first = b""
        while (again := self._file.read(0, _FIRST)) != first:  # a writer may be overwriting it
            first = again
        self._has_end = first.startswith(_BEGINNINGS[0]) and first.find(b"\n") + 1 == _FIRST
        try:
            line = decode_line(first[:-1]) if self._has_end else None
        except LoomError:  # reading the lines reports it
            return None
        return line.end if isinstance(line, JournalLine) else None

    def _refuse_lost_end(self) -> None:
        """Raise DamagedLoom if acknowledged lines are missing, unless a power cut explains it; log changed ones."""
        lost, noted = self._ends.describe_lost(), self._ends.noted
        if self._ends.is_cut and (self.blocking or (noted is not None and noted.boot == self._end.boot)):
            hint = "The file was damaged, cut or edited"
            raise DamagedLoom(f"{self.path}: acknowledged records are missing: {lost}. {hint}. {REPAIR}")
        if lost:
            hint = "it was edited, or the machine was started again: only ?durability=power survives a power cut"
            _log.warning("loom.acknowledged_missing", path=self.where, missing=lost, hint=hint)

    def faults(self) -> Iterator[str]:
        """Yield what of the acknowledged lines is missing, and where the stored mail contradicts the lines."""
        if lost := self._ends.describe_lost():
            yield f"acknowledged records are missing: {lost}"
        yield from super().faults()

    def _add_journal_line(self, number: int, line: JournalLine) -> None:
        row = line.row
        if line.loom:
            if number > 1:
                raise LoomError("only the first line names a version")
            if line.loom != VERSION:
                raise Newer(f"is of version {line.loom}, this version reads {VERSION}: use a newer cantrip-actors")
            self._mark, self._head = line.mark, line.head
        elif row is not None:
            self._find_place(row.entity_id)
            self._known.mail.add(row, b"" if line.mail is None else encode_mail(line.mail))
        elif line.timer is not None:
            self._add_timer(line.timer)
        elif line.blob is not None:
            self._blobs[line.blob.digest] = line.blob
        else:
            super()._change([line])

    def _add_timer(self, timer: Timer) -> None:
        if timer.entity_id:
            place = self._find_place(timer.entity_id)
            place.has_timers = True
            if place.life >= Life.OVER:
                return
        self._known.timers.set(timer, b"" if timer.due is None and timer.schedule is None else encode_timer(timer))

    def _find_place(self, entity: str) -> Place:
        if (place := self._known.find_place(entity)) is None:
            raise LoomError(f"entity {entity} has no header before it")
        return place

    def _note_ends(self) -> None:
        index, last = self._known, dict[Tree, int]()
        for place in index.places.values():
            last[place.tree] = max(last.get(place.tree, 0), index.numbers[place.no][-1])
        for tree, number in last.items():
            tree.waiting, tree.head = index.mail.count(tree.root), self._get_link(number)

    def _skip_line(self, number: int, line: bytes, why: LoomError) -> None:
        """Skip an unreadable line if the loom is open read-only. Raises DamagedLoom before anything is written."""
        if isinstance(why, Newer):
            raise Newer(f"{self.path}: line {number} {why}") from why
        if not self.read_only or number == 1:
            raise DamagedLoom(
                f"{self.path}: line {number} is corrupt: {why}. No crash leaves such a line: the file was changed, or "
                f"its disk fails. Opening it read-only skips the line, `cantrip loom repair {self.path}` copies the "
                f"file and leaves it out. Restore it from a copy"
            )
        self._damaged.append(number)
        self._lines.append(line)  # `verify` reports it, and nothing copies the loom

    def _check_beginning(self) -> None:
        """Raise LoomError for a file without a whole line, unless a killed process may have begun it."""
        data = self._file.read(0, 16)
        if data and not any(data.startswith(known) or known.startswith(data) for known in _BEGINNINGS):
            raise LoomError(f"{self.path} is not a loom, and was not changed: give the path of another file")

    def _mend_end(self, number: int) -> None:
        """Complete the last line, or cut off what a killed process left from that line on, and report it."""
        file, end = self._file, self._file.end
        size = os.fstat(file.fd).st_size
        with self._explain("cannot repair"):
            if end > size:
                file.end = size
                file.append(b"\n")
            elif end < size:
                file.disk.truncate(file.fd, end)
        if end < size:
            self.recovered = size - end
            hint = "a process was killed while it wrote this, which was never acknowledged"
            _log.warning("loom.torn_line", path=self.where, line=number, bytes=size - end, hint=hint)

    def _renew_head(self) -> None:
        """Compare the head of a sealed loom with the lines, and extend it over those that a killed process added."""
        if not self.seal.chain:
            return
        records, head = len(self._lines), self._head
        if records and self._file.read(0, _FIRST).find(b"\n") + 1 != _FIRST:
            raise DamagedLoom(f"{self.path}: its first line was changed, and it is sealed. {REPAIR}")
        if head is None and not records:
            self._head = self.seal.beginning
            self._write_lines([])
        elif head is None or head.records > records:
            what = "the head in its first line is" if head is None else f"{head.records - records:,} records are"
            raise DamagedLoom(f"{self.path}: {what} missing, and it is sealed. {REPAIR}")
        elif head.records < records:
            added = self._lines[head.records :]
            for root in dict.fromkeys(self._known.places[decode(line).entity_id].tree.root for line in added):
                self.check_chain(root)
            self._write_lines([], self.seal.follow(head, added))

    def _check_open(self) -> None:
        if self._closed:
            raise LoomError(f"{self.path} is closed: nothing can be recorded any more")
        if self.read_only:
            raise LoomError(f"{self.path} was opened read-only: nothing can be recorded")

    def _write(self, db: None, plan: Plan) -> None:
        lines = plan.lines
        if lines and self._late is not None:
            raise LoomError(f"{self.path} is being rewritten, and nothing was recorded: try again in a moment")
        if plan.posted or plan.timers:
            lines = [*lines, *(wrap_mail(row.no, line) for row, line, _ in plan.posted.values())]
            lines += (wrap_timer(line or encode_timer(timer)) for timer, line, _ in plan.timers.values())
            if len(lines) > 1:
                lines.insert(0, encode_line(JournalLine(batch=len(lines))))
        if plan.blobs:
            new = [blob for blob in plan.blobs.values() if blob.digest not in self._blobs]
            lines = [*(encode_line(JournalLine(blob=blob)) for blob in new), *lines]
        if lines:
            self._write_lines(lines, plan.end)
        super()._write(db, plan)

    def _write_lines(self, lines: Sequence[bytes], head: Head | None = None) -> None:
        """Write lines at the end of the file, and then the head of a sealed loom; all or nothing."""
        data = b"\n".join([*lines, b""]) if lines else b""
        self._budget.spend(len(data) // UNIT)
        file, end, last = self._file, self._file.end, self._end.follow(lines)
        first = self._encode_first_line(last, head or self._head)
        try:
            file.append(data if end else self._encode_first_line(self._end, self._head) + data)
            if head is not None:
                file.overwrite(first)
            elif self._has_end or not end:
                file.note(first)
        except OSError as error:
            if file.end != end:
                file.cut(end)
            self._fail("cannot write to", error)
        self._end, self._head, self._has_end = last, head or self._head, self._has_end or not end
        if self._late is not None:
            self._late += lines
        if file.end > LARGE and not self._is_large:
            self._warn_of_size()

    def _encode_first_line(self, end: JournalEnd, head: Head | None) -> bytes:
        mark, seal = self.seal.mark, ""
        records, others, check, boot = end
        if mark is not None:
            seal = f",{encode_line(JournalLine(mark=mark, head=head))[1:-1].decode()}"
        line = f'{{"loom":{VERSION},"end":[{records},{others},{check},"{boot}"]{seal}}}'
        return line.ljust(_FIRST - 1).encode() + b"\n"

    def _change(self, lines: Sequence[JournalLine]) -> None:
        if lines:
            self._check_open()
            self._write_lines([encode_line(line) for line in lines])
            super()._change(lines)

    def _warn_of_size(self) -> None:
        self._is_large = True
        hint = "SQLite suits it better, as it does not read a loom into memory: cantrip loom copy FROM sqlite:TO.db"
        _log.warning("loom.large", path=self.where, bytes=self._file.end, hint=hint)

    def _rewrite(self, erased: Erased = NOTHING_ERASED) -> Callable[[AbstractSet[str]], None]:
        self._check_open()
        with self._writing:
            self._late = []  # from here on no record is written
        try:
            if erased.plan.numbers and erased.plan.numbers[0] <= len(self._lines):
                raise LoomError(f"{self.path} was written to meanwhile: nothing is forgotten, do it again")
            end = JournalEnd(boot=self._end.boot)

            def follow(lines: Iterable[bytes]) -> Iterator[bytes]:
                nonlocal end
                for line in lines:
                    end = end.follow((line,))
                    yield line

            head = erased.plan.end or self._head
            first = self._encode_first_line(end, head)[:-1]  # it is written anew when the file is in its place
            with self._explain("cannot rewrite"):
                fd = self._file.write_new(_join(chain((first,), follow(self._dump(erased)))))
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before others can see the new file
        except BaseException:
            self._late = None
            raise

        def replace_file(digests: AbstractSet[str]) -> None:
            with self._writing, self._explain("cannot rewrite"):
                blobs = [encode_line(JournalLine(blob=self._blobs[digest])) for digest in digests]
                late, self._late = [*blobs, *(self._late or [])], None
                last = end.follow(late)
                self._file.replace(fd, self._encode_first_line(last, head), b"".join(line + b"\n" for line in late))
                self._end, self._has_end = last, True

        return replace_file

    def _dump(self, erased: Erased) -> Iterator[bytes]:
        """Yield the lines of the loom after these changes, without the first one."""
        blobs = (blob for blob in list(self._blobs.values()) if blob.digest not in erased.blobs)
        yield from (encode_line(JournalLine(blob=blob)) for blob in blobs)
        yield from (erased.lines.get(number, line) for number, line in self.lines())
        yield from erased.plan.lines
        yield from self._dump_journal(erased)

    def _dump_journal(self, erased: Erased) -> Iterator[bytes]:
        for row, line in self._known.mail.read_lines():
            _, new = erased.mail.get(row.no, (row, row))
            yield wrap_mail(row.no, line) if new.taken is None else encode_line(JournalLine(taken=new))
        for entity, id, line in self._known.timers.list_all():
            if entity or id not in erased.schedules:
                yield wrap_timer(line)
        yield from (encode_line(JournalLine(submission=row)) for row in list(self._known.submissions.rows.values()))
        yield from (encode_line(JournalLine(account=account)) for account in list(self._accounts.items()))

    def scrub(self) -> None:
        """Rewrite the file without lines that are out of date."""
        self._rewrite()(set())

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return file_size(self.path)

    def close(self) -> None:
        """Close the file and release its lock. It can still be read."""
        super().close()
        self._own_claim.release()
        self._file.close()

    @contextmanager
    def _explain(self, what: str) -> Iterator[None]:
        """Raise LoomError for an OSError of the block; its text says that `what` failed, and names a remedy."""
        try:
            yield
        except OSError as error:
            self._fail(what, error)

    def _fail(self, what: str, error: OSError) -> NoReturn:
        raise LoomError(f"{what} {self.path}: {describe_failure(error)}") from error


def _is_line(data: bytes) -> bool:
    try:
        decode_line(data)
    except LoomError as error:
        return isinstance(error, Newer)
    return True


def _join(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines with their newlines, many at a time."""
    lines = iter(lines)
    while chunk := [*islice(lines, 256)]:
        yield b"\n".join([*chunk, b""])
