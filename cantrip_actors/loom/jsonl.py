"""The JSONL store: the reference format. One file, one record a line, in the order in which they were acknowledged.

The rules of this file:

- A record is there when its newline is. What follows the last newline was never acknowledged: a process was killed in
  the middle of a write. Opening the file cuts it off, keeps the bytes in `<file>.torn` and says so (`recovered`, and
  a warning).
- A batch is one write. Where that fails (a full disk, a bad one), the file is cut back to its last whole record and the
  caller gets a LoomError: nothing of the batch was recorded. Where even that fails the store refuses to write behind
  half a record, and tries the cut again at the next append: it goes on once the cause is mended.
- Images of sandboxes lie in a file beside it (`jsonl_images`), those of messages and results in another one
  (`jsonl_pictures`), and are written before the lines that refer to them.
- One writer: the file is locked for as long as it is open, and the lock goes with the process. Readers (`read_only`)
  see what was whole when they opened it, and may do so beside a writer.
- A line in the middle that is no record was not torn by a crash; somebody or something changed the file. That is an
  error that names the line, never a guess.

The index (which entity's records lie where) is kept in memory, 16 bytes a record, and read once at opening; the lines
themselves are parsed when somebody asks for them. That of a large loom is kept beside it, too (`jsonl_index.py`).

A lone append costs one system call into the page cache and survives a kill of the process. `power` adds an fsync,
which waits for the disk, so `blocking` is then True. `none` has nothing to save here and is the same as `process`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import structlog

from cantrip_actors.loom.chain import NOTHING, seal, sealed_with
from cantrip_actors.loom.images import brought, key_beside
from cantrip_actors.loom.index import IndexedStore
from cantrip_actors.loom.jsonl_images import ImageFile, LineFile
from cantrip_actors.loom.jsonl_index import WORTH, Known, checksum, keep, kept
from cantrip_actors.loom.jsonl_pictures import PictureFile
from cantrip_actors.loom.lease import NO_LEASES
from cantrip_actors.loom.life import Life
from cantrip_actors.loom.pictures import Picture, brought_pictures, with_pictures
from cantrip_actors.loom.record import KINDS, Newer, decode, encode
from cantrip_actors.loom.store import Durability
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.snapshot import SandboxImage
from cantrip_actors.model.turn import Header, Record

__all__ = ["Disk", "JsonlStore", "Recovered"]

B = TypeVar("B", bound=LineFile[Any])

CHUNK = 1 << 22
"""Bytes read at once when a file is opened."""

_BEGINNING = re.compile(rb'\{"kind":"([a-z_]+)","entity":"([^"\\\n]*)"(?:,"turn":"([^"\\\n]*)")?[^\n]*\}\n')
"""A line as `encode` writes it, as far as the index needs it; lines that others wrote are parsed whole."""

_log = structlog.get_logger("cantrip.loom")


@dataclass(frozen=True, slots=True)
class Disk:
    """The system calls that change a file; tests put failing ones here."""

    write: Callable[[int, bytes | memoryview], int] = os.write
    truncate: Callable[[int, int], None] = os.ftruncate
    sync: Callable[[int], None] = os.fsync


@dataclass(frozen=True, slots=True)
class Recovered:
    """A torn last line that was cut off when a file was opened: never acknowledged, and kept in `kept_in`."""

    path: Path
    line: int
    offset: int
    length: int
    kept_in: Path


class JsonlStore(IndexedStore["array[int]"]):
    """A loom in a file. `recovered` says what opening it had to cut off, None where it was whole.

    Raises LoomError where the file cannot be opened, is open for writing elsewhere, or holds a line that is no record.
    """

    shared = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "process",
        read_only: bool = False,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(_places)
        self.path = Path(path).absolute()
        self.read_only = read_only
        self.durability = durability
        self.blocking = durability == "power"
        self.recovered: Recovered | None = None
        self._disk = disk or Disk()
        self._end = 0  # the file's whole records end here
        self._lines = 0
        self._crc = 0
        self._known = Known()  # what of it the index that is kept beside it knows
        self._dirty = False  # bytes of a failed write may lie behind `_end`
        self._heads: dict[str, bytes] = {}  # tree to its last link, of the trees written to since it was opened
        self._images = self._beside(ImageFile, "images")
        self._pictures = self._beside(PictureFile, "pictures")
        self._fd = self._open()
        try:
            self._known = kept(self.path, self._fd, self._index)
            self._scan()
            if not read_only:
                self._cut_torn()
                self._keep_index()
        except BaseException:
            self.close()
            raise

    def _beside(self, kind: type[B], suffix: str) -> B:
        """A file of lines beside it."""
        return kind(
            self.path.with_name(f"{self.path.name}.{suffix}"),
            read_only=self.read_only,
            write=self._write,
            truncate=lambda fd, size: self._disk.truncate(fd, size),  # noqa: PLW0108  # tests exchange the disk
            sync=(lambda fd: self._disk.sync(fd)) if self.blocking else None,  # noqa: PLW0108  # likewise
        )

    # ---------------------------------------------------------------------------------------------------------- opening

    def _open(self) -> int:
        try:
            if self.read_only:
                fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
        except OSError as error:
            self._fail("cannot open", error)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise LoomError(f"{self.path} is no file: a loom needs a regular one")
            if not self.read_only:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.durability == "power":
                    self._sync_folder()
        except BlockingIOError as error:
            os.close(fd)
            raise LoomError(
                f"{self.path} is open for writing already, in another process or another runtime of this one: "
                f"close it there first, or open it read-only"
            ) from error
        except OSError as error:
            os.close(fd)
            self._fail("cannot lock", error)
        except LoomError:
            os.close(fd)
            raise
        return fd

    def _sync_folder(self) -> None:
        """Make the file's name as durable as its records will be."""
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._disk.sync(folder)
        finally:
            os.close(folder)

    def _scan(self) -> None:
        """Read what is not known of the file yet, once, and take note of every whole line."""
        index, owners = self._index, self._index.owners
        known: dict[bytes, tuple[str, array[int]]] = {}  # by the id as it stands in a line: most lines need no more
        match = _BEGINNING.match
        end, count, crc = self._known
        for block in self._blocks(end):
            crc = checksum(block, crc)
            at, stop = 0, len(block)
            while at < stop:
                count += 1
                found = match(block, at)
                after = block.index(b"\n", at) + 1 if found is None else found.end()
                kind, entity, turn = (b"", b"", None) if found is None else found.groups()
                if entity in known and kind in _PLAIN_KINDS:
                    place = known[entity][1]
                elif entity in known and kind == b"turn" and turn is not None and _ENDS not in block[at:after]:
                    owner, place = known[entity]
                    owners[turn.decode()] = owner
                elif entity in known and kind == b"intent" and index.unfinished.get(known[entity][0]) is Life.BUSY:
                    place = known[entity][1]
                else:
                    record = self._parsed(block[at:after], count)
                    place = self._taken(record, count)
                    if entity:
                        known[entity] = record.entity_id, place
                place.append(end + at)
                place.append(after - at)
                at = after
            end += stop
        self._end, self._lines, self._crc = end, count, crc

    def _keep_index(self) -> None:
        if self._lines - self._known.lines >= WORTH:
            self._known = Known(self._end, self._lines, self._crc)
            keep(self.path, self._known, self._index)

    def _parsed(self, line: bytes, number: int) -> Record:
        try:
            return decode(line)
        except LoomError as error:
            self._corrupt(number, error)

    def _taken(self, record: Record, number: int) -> array[int]:
        """The place of a record that had to be parsed: a header, or a line that `encode` did not write like that."""
        entity = record.entity_id
        begins = isinstance(record, Header)
        if begins == (entity in self._index.places):
            what = "begins a second time" if begins else "has no header before it"
            self._corrupt(number, f"entity {entity} {what}")
        return self._index.add(record)

    def _blocks(self, at: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The file's whole lines from `at` up to `end`, many at a time."""
        rest, size = b"", CHUNK
        while True:
            if self._fd < 0:
                raise LoomError(f"{self.path} is closed: open it again to read it")
            try:
                read = os.pread(self._fd, size if end is None else min(size, end - at), at)
            except OSError as error:
                self._fail("cannot read", error)
            if not read:
                return
            at += len(read)
            whole = read.rfind(b"\n") + 1
            if whole:
                yield rest + read[:whole]
                rest, size = read[whole:], CHUNK
            else:  # a line longer than that: read more of it at once, lest joining becomes quadratic
                rest, size = rest + read, size * 2

    def _corrupt(self, number: int, why: str | LoomError) -> NoReturn:
        if isinstance(why, Newer):
            raise Newer(f"{self.path}: line {number} {why}") from why
        keep = "" if number == 1 else f", or keep what lies before it: head -n {number - 1}"
        raise LoomError(
            f"{self.path}: line {number} is corrupt: {why}. A killed process leaves no such line: the file was "
            f"changed, its disk is failing, or the power was cut. Restore it from a copy{keep}"
        )

    def _cut_torn(self) -> None:
        """Cut off what follows the last newline, keep it beside the file, and say so."""
        try:
            torn = os.fstat(self._fd).st_size - self._end
            if not torn:
                return
            beside = self.path.with_name(f"{self.path.name}.torn")
            self._keep(beside, os.pread(self._fd, torn, self._end))
            self._disk.truncate(self._fd, self._end)
            if self.durability == "power":
                self._disk.sync(self._fd)
        except OSError as error:
            self._fail("cannot cut the torn last line off", error)
        self.recovered = Recovered(self.path, self._lines + 1, self._end, torn, beside)
        _log.warning(
            "loom.torn_line",
            path=str(self.path),
            line=self._lines + 1,
            bytes=torn,
            kept_in=str(beside),
            hint="a process was killed while it wrote this record; nobody was told that it was recorded",
        )

    def _keep(self, beside: Path, torn: bytes) -> None:
        fd = os.open(beside, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._write(fd, torn + b"\n")
        finally:
            os.close(fd)

    # -------------------------------------------------------------------------------------------------------- appending

    def append(self, records: Sequence[Record], leases: Mapping[str, int] = NO_LEASES) -> None:
        """Write `records` as one batch, all or none."""
        if self._fd < 0 or self.read_only or self._dirty:
            self._ready()
        lines = [encode(record) for record in records]
        self._check(records, leases)
        if not lines:
            return
        images, pictures = brought(records), brought_pictures(records)
        if images or pictures:
            try:
                self._keep_beside(images, pictures)
            except OSError as error:
                self._fail("cannot write images beside", error)
        heads = self._seal(records, lines)
        lines.append(b"")
        try:
            data = b"\n".join(lines)
            self._write(self._fd, data)
            if self.blocking:
                self._disk.sync(self._fd)
        except OSError as error:
            self._dirty = True
            self._restore()
            self._fail("cannot write to", error)
        at = self._end
        for record, line in zip(records, lines, strict=False):
            place = self._index.add(record)
            place.append(at)
            place.append(len(line) + 1)
            at += len(line) + 1
        self._end, self._crc = at, checksum(data, self._crc)
        self._lines += len(records)
        self._heads.update(heads)

    def _keep_beside(self, images: Sequence[SandboxImage], pictures: Sequence[Picture]) -> None:
        if images:
            self._images.add(images)
        if pictures:
            is_new = not self._pictures.path.exists()
            self._pictures.add(pictures)
            if is_new and self.blocking:  # a picture is part of the loom: its file must outlive a power cut, too
                self._sync_folder()

    def _seal(self, records: Sequence[Record], lines: list[bytes]) -> dict[str, bytes]:
        """Seal `lines` in place; the heads of their trees once they are written."""
        heads: dict[str, bytes] = {}
        for at, tree in enumerate(self._index.roots(records)):
            before = heads.get(tree)
            if before is None:
                before = self._heads[tree] if tree in self._heads else self._head(tree)
            lines[at], heads[tree] = seal(lines[at], before)
        return heads

    def _head(self, tree: str) -> bytes:
        """The last link of a tree that this process has not written to yet."""
        index, last, length = self._index, 0, 0
        todo = [tree] if tree in index.places else []
        while todo:
            entity = todo.pop()
            start, size = index.places[entity][-2:]
            last, length = max((last, length), (start, size))
            todo.extend(index.below.get(entity, ()))
        return sealed_with(self._pread(last, length)[:-1])[1] or NOTHING

    def _ready(self) -> None:
        if self._fd < 0:
            raise LoomError(f"{self.path} is closed: nothing can be recorded any more")
        if self.read_only:
            raise LoomError(f"{self.path} was opened read-only: nothing can be recorded")
        self._restore()
        if self._dirty:
            raise LoomError(
                f"{self.path} ends in half a record of a write that failed, and cannot be cut back to its last whole "
                f"one: nothing can be recorded until its disk is mended"
            )

    def _write(self, fd: int, data: bytes) -> None:
        """Write all of `data`: a signal or a nearly full disk may take it in parts."""
        write = self._disk.write
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

    def _restore(self) -> None:
        """Cut back to the last whole record after a failed write; stays dirty where that fails too."""
        try:
            self._disk.truncate(self._fd, self._end)
        except OSError as error:
            _log.error("loom.half_record", path=str(self.path), offset=self._end, error=str(error))
        else:
            self._dirty = False

    def _fail(self, what: str, error: OSError) -> NoReturn:
        advice = _ADVICE.get(error.errno or 0, "")
        raise LoomError(f"{what} {self.path}: {error.strerror or error}{advice}") from error

    # ---------------------------------------------------------------------------------------------------------- reading

    def records(self, entity_id: str) -> Sequence[Record]:
        """Everything recorded of an entity, in order."""
        place = self._index.places.get(entity_id)
        return [] if place is None else with_pictures(self._read(place, len(place) // 2), self.picture)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line with its number, in the order in which they were recorded, up to the moment of the call."""
        number = 0
        for block in self._blocks(0, self._end):
            for line in block[:-1].split(b"\n"):
                number += 1
                yield number, line

    def image(self, digest: str) -> SandboxImage | None:
        """The image of that digest, from the file beside."""
        try:
            return self._images.get(digest)
        except OSError as error:
            self._fail("cannot read images beside", error)

    def images(self) -> Iterator[str]:
        """The digests of all images in the file beside."""
        try:
            return iter(self._images.digests())
        except OSError as error:
            self._fail("cannot read images beside", error)

    def picture(self, digest: str) -> Picture | None:
        """The picture of that digest, from the file beside."""
        try:
            return self._pictures.get(digest)
        except OSError as error:
            self._fail("cannot read pictures beside", error)

    def pictures(self) -> Iterator[str]:
        """The digests of all pictures in the file beside."""
        try:
            return iter(self._pictures.digests())
        except OSError as error:
            self._fail("cannot read pictures beside", error)

    def key(self) -> bytes | None:
        """The key in the file beside it."""
        return key_beside(self.path, make=not self.read_only)

    def _first(self, place: array[int]) -> Record:
        return next(self._read(place, 1))

    def _read(self, place: array[int], count: int) -> Iterator[Record]:
        """The first `count` records of a place; lines that lie together are read together."""
        n = 0
        while n < count:
            start, length = place[2 * n], place[2 * n + 1]
            n += 1
            while n < count and place[2 * n] == start + length and length < CHUNK:
                length += place[2 * n + 1]
                n += 1
            data = self._pread(start, length)
            at = 0
            while at < length:
                after = data.find(b"\n", at) + 1
                try:
                    if not after:
                        raise LoomError("it was cut short while this loom was open")
                    record = decode(data[at:after])
                except LoomError as error:
                    self._corrupt(self._line_number(start + at), error)
                yield record
                at = after

    def _pread(self, start: int, length: int) -> bytes:
        data = b""
        fd = self._fd
        try:
            if self._fd < 0:  # closed: an episode may be looked at long after its runtime
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            while len(data) < length and (more := os.pread(fd, length - len(data), start + len(data))):
                data += more
        except OSError as error:
            self._fail("cannot read", error)
        finally:
            if fd >= 0 and fd != self._fd:
                os.close(fd)
        return data

    def _line_number(self, offset: int) -> int:
        """For an error's text only: it reads all that lies before."""
        count = 1
        for at in range(0, offset, CHUNK):
            count += os.pread(self._fd, min(CHUNK, offset - at), at).count(b"\n")
        return count

    def close(self) -> None:
        """Close the file and let go of its lock. It can still be read."""
        self._images.close()
        self._pictures.close()
        if self._fd >= 0:
            if not self.read_only and self._index.places:
                self._keep_index()
            os.close(self._fd)
            self._fd = -1

    def __repr__(self) -> str:
        index = self._index
        return f"<JsonlStore {self.path} of {len(index.places)} entities, {len(index.owners)} turns, {self._end} bytes>"


def _places() -> array[int]:
    """Offset and length of each record, in turns."""
    return array("Q")


_PLAIN_KINDS = frozenset(kind.encode() for kind in KINDS - {"header", "turn", "intent", "ended"})
"""What the index takes no note of, but for its place."""

_ENDS = b'ed":true'
"""What stands in the line of a turn that is `terminated` or `truncated`."""

_ADVICE = {
    errno.ENOSPC: ". Make room on that disk; nothing that was acknowledged is lost, and recording goes on then",
    errno.EDQUOT: ". The quota is used up: make room; nothing that was acknowledged is lost",
    errno.EIO: ". The disk is failing: what was acknowledged before should be copied elsewhere",
    errno.EROFS: ". It lies on a read-only file system: open it read-only, or elsewhere",
    errno.EACCES: ". Permission is missing: open it read-only, or change who may write it",
    errno.ENOENT: ". There is no such loom",
    errno.ENOLCK: ". That file system has no locks: put the loom on a local one",
}
