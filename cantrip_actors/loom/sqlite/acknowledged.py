"""The file beside an SQLite loom that says how much was acknowledged, so that a cut write-ahead log is found.

SQLite drops whatever follows the first damaged page of its write-ahead log, or all of a log that is gone, and calls the
rest sound. So after each commit this file gets the numbers that the commit reached. A process that is killed between
the two leaves a loom that has more than the file says, never less.

- The file is written and not synced: what is written survives the process. A power cut may keep it and lose the log.
- The file has several slots, and a process writes into one of its own, so no process waits for another one, or
  overwrites what it said. The numbers only grow, so an old slot stays true.
- The file exists as long as the write-ahead log: the last process that closes the loom removes both.
- The numbers are about one lineage of the loom, an id in the loom itself. A backup, a repaired loom and an older copy
  that was put in the place of the loom begin a new lineage, and the slots of another lineage mean nothing.
- It reveals accidents, not forgery: that is what a seal is for (`seal_key.py`).
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from cantrip_actors.loom.stores.lease import read_boot_id
from cantrip_actors.own_files.modes import FILE
from cantrip_actors.records.seal import NOTHING
from cantrip_actors.redact.logs import get_logger

SLOTS: Final = 32
SLOT: Final = 128
"""Bytes of a slot: it fits into one sector of a disk, which is written as a whole or not at all."""

_FIELDS: Final = struct.Struct("<16s16s4Q24s")
"""The lineage, the boot, the numbers, and the link of the last record; a checksum of these follows."""

_log = get_logger("cantrip.loom")


class LoomEnd(NamedTuple):
    """The numbers that a loom has reached."""

    record: int = 0
    """The number of the last record."""
    mail: int = 0
    """The number of the last mail."""
    edits: int = 0
    """How many transactions changed timers or submissions, and added neither a record nor mail."""
    copied: int = 0
    """The last record that is known to be in the file of the loom, and not only in its write-ahead log."""
    link: bytes = NOTHING
    """The link of the last record."""
    boot: bytes = b""
    """The boot of the machine on which it was written."""


class AcknowledgedFile:
    """The file `<loom>.head`. `end` is the end of the loom as this process knows it."""

    def __init__(self, loom: Path) -> None:
        self.path = loom.with_name(f"{loom.name}.head")
        self.lineage = ""
        self.end = LoomEnd()
        self._next: LoomEnd | None = None
        """The end after the transaction that is under way."""
        self._boot = blake2b(read_boot_id().encode(), digest_size=16).digest()
        self._at = SLOT * secrets.randbelow(SLOTS)
        self._fd = -1
        self._error = ""

    def begin(self, lineage: str, end: LoomEnd) -> None:
        """Begin to note the end of a loom that was found in this state."""
        self.lineage, self.end, self._next = lineage, end, None

    def expect(self, **reached: Any) -> None:
        """Note the fields of `end` that the transaction under way changes; `write` follows its commit, or `drop`."""
        self._next = (self._next or self.end)._replace(**reached)

    def drop(self) -> None:
        """Forget what a transaction that was rolled back would have reached."""
        self._next = None

    def write(self) -> None:
        """Write what the committed transaction reached, if it reached anything new."""
        if self._next is not None:
            self.end, self._next = self._next, None
            self._write_slot()

    def note_copied(self, record: int) -> None:
        """Note that the file of the loom has all records up to this one."""
        if record > self.end.copied:
            self.end = self.end._replace(copied=record)
            self._write_slot()

    def _write_slot(self) -> None:
        record, mail, edits, copied, link, _ = self.end
        data = _FIELDS.pack(self.lineage.encode(), self._boot, record, mail, edits, copied, link)
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE)
            os.pwrite(self._fd, data + zlib.crc32(data).to_bytes(4, "little"), self._at)
        except OSError as error:  # the records themselves are written: only the proof that they were is missing
            if str(error) != self._error:
                hint = "damage to the loom's write-ahead log may go unnoticed"
                _log.warning("loom.head_not_written", path=str(self.path), error=str(error), hint=hint)
            self._error = str(error)

    def read(self, lineage: str) -> list[LoomEnd]:
        """Return the ends that processes have noted for a lineage, "" for any; none without a readable file."""
        try:
            data = self.path.read_bytes()
        except OSError:
            return []
        slots = (data[at : at + _FIELDS.size + 4] for at in range(0, SLOT * SLOTS, SLOT))
        ends = []
        for slot in slots:
            fields, check = slot[: _FIELDS.size], slot[_FIELDS.size :]
            if len(check) == 4 and any(fields) and zlib.crc32(fields).to_bytes(4, "little") == check:
                owner, boot, record, mail, edits, copied, link = _FIELDS.unpack(fields)
                if lineage in ("", owner.decode(errors="replace")):
                    ends.append(LoomEnd(record, mail, edits, copied, link.rstrip(b"\0"), boot))
        return ends

    def is_of_this_boot(self, end: LoomEnd) -> bool:
        """Return whether the machine has not been started since an end was noted, so that no power cut explains it."""
        return end.boot == self._boot

    def remove(self) -> None:
        """Remove the file. One that cannot be removed does no harm: its numbers are of another lineage, or true."""
        with suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def describe_missing(noted: Iterable[LoomEnd], end: LoomEnd, links: Mapping[int, bytes]) -> str:
    """Return a text that names the missing part of the noted ends in a loom with that end; "" if none is missing.

    `links` are those of the records in the loom with the numbers of the noted ones.
    """
    parts, noted = [], [*noted, end]
    record, mail, edits = (max(numbers) for numbers in list(zip(*noted, strict=True))[:3])
    if record > end.record:
        parts.append(f"records {end.record + 1:,} to {record:,}")
    changed = [each.record for each in noted if each.record in links and each.link != links[each.record]]
    if changed:
        parts.append(f"record {min(changed):,}, in whose place is another one")
    if mail > end.mail:
        parts.append(f"mail {end.mail + 1:,} to {mail:,}")
    if edits > end.edits:
        parts.append(f"the last {edits - end.edits:,} changes of timers or submissions")
    return "; ".join(parts)
