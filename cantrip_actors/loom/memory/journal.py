"""The lines of a JSONL loom that are not records: its first line, and the other data of the memory store. No I/O.

    {"loom":1,"end":[…]}                the first line, with the end of what was acknowledged; in a sealed
                                        loom it has the "mark" and the "head" of the seal, too
    {"mail":{…},"no":7}                 a mail that was posted; it waits until a record with its key follows
    {"taken":[7,12,"…","…",…]}          the row of a mail that record 12 took, in a file that was rewritten since
    {"expired":["entity","key"]}        a key of mail that can be used again
    {"timer":{…}}                       a timer or a schedule, in place of the one before it; one without "due" is gone
    {"submission":{…}}                  a submission, which waits until it is removed
    {"removed":"id"}                    the end of a submission: it has begun, or it was withdrawn
    {"account":["name","state"]}        an account, in place of the one before it
    {"blob":{"digest":"…","data":"…"}}  an image, another file or a snapshot, in base64
    {"batch":3}                         so many lines follow that are one transaction: all of them count, or none

A record that takes mail needs no such line, and neither does the end of an entity, which ends its timers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from cantrip_actors.loom.seal.seal_key import Head, SealMark
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.codec import convert_from_json, decode, encode_value
from cantrip_actors.records.mail import Mail, MailRow
from cantrip_actors.records.records import Record
from cantrip_actors.records.submissions import SubmissionRow
from cantrip_actors.records.timers import Timer
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.value import Value

_BLOB: Final = b'{"blob":'


class JournalEnd(NamedTuple):
    """How much of a file was acknowledged: the number of its records, and of its other lines with their checksum.

    Blobs are not counted: the records that refer to them say which are missing.
    """

    records: int = 0
    others: int = 0
    check: int = 0
    boot: str = ""
    """The beginning of the id of the machine's boot at that time."""

    def follow(self, lines: Iterable[bytes]) -> JournalEnd:
        """Return the end after more lines."""
        records, others, check, boot = self
        for line in lines:
            if line.startswith(b'{"kind":'):
                records += 1
            elif not line.startswith(_BLOB):
                others += 1
                check = crc32(line, check)
        return JournalEnd(records, others, check, boot)


class EndReader:
    """Follows the lines of a file that is read, and compares them with the end that its first line names."""

    def __init__(self, noted: JournalEnd | None = None) -> None:
        self.noted = noted
        self.end = JournalEnd()
        self.blobs = 0
        self.is_changed = False
        """Whether a line that is no record is not as it was acknowledged."""

    def follow_other(self, line: bytes) -> None:
        """Follow a line that is no record."""
        if line.startswith(_BLOB):
            self.blobs += 1
            return
        self.end = self.end.follow((line,))
        if self.noted is not None and self.end.others == self.noted.others:
            self.is_changed = self.end.check != self.noted.check
            self.end = self.end._replace(check=self.noted.check)  # so that `verify` finds it again after more lines

    @property
    def is_cut(self) -> bool:
        """Whether there are fewer lines than were acknowledged."""
        noted = self.noted or JournalEnd()
        return noted.records > self.end.records or noted.others > self.end.others

    def describe_lost(self) -> str:
        """Return a text that names the missing part of the acknowledged lines; "" if all are there."""
        parts, noted, end = [], self.noted or JournalEnd(), self.end
        if noted.records > end.records:
            parts.append(f"{noted.records - end.records:,} of {noted.records:,} records")
        if noted.others > end.others:
            parts.append(f"{noted.others - end.others:,} lines of mail, timers, submissions or accounts")
        elif self.is_changed:
            parts.append("a line of mail, a timer, a submission or an account, which was changed or taken out")
        return "; ".join(parts)


class JournalLine(Value, frozen=True, kw_only=True):
    """A line that is no record. One of its fields is set, with those that belong to it."""

    loom: int = 0
    end: JournalEnd | None = None
    mark: SealMark | None = None
    head: Head | None = None
    mail: Mail | None = None
    no: int = 0
    taken: MailRow | None = None
    expired: tuple[str, str] | None = None
    timer: Timer | None = None
    submission: SubmissionRow | None = None
    removed: str | None = None
    account: tuple[str, str] | None = None
    blob: Blob | None = None
    batch: int = 0

    @property
    def row(self) -> MailRow | None:
        """The row of a mail."""
        mail = self.mail
        if mail is None:
            return self.taken
        return MailRow(self.no, None, mail.entity_id, mail.key, mail.lane, mail.loads, mail.digest)


def encode_line(line: JournalLine) -> bytes:
    """Return a line without its newline. For mail and timers, whose own lines are known, wrap these instead."""
    return encode_value(line, ())


def wrap_mail(no: int, line: bytes) -> bytes:
    """Return the line of a mail with that number, given the mail's own line."""
    return b'{"mail":%b,"no":%d}' % (line, no)


def wrap_timer(line: bytes) -> bytes:
    """Return the line of a timer, given the timer's own line."""
    return b'{"timer":%b}' % line


def decode_line(line: bytes) -> Record | JournalLine:
    """Return what a line says, also one that another program has written anew. Raises LoomError."""
    if line.startswith(b'{"kind":'):
        return decode(line)
    try:
        facts = json.loads(line)
        if "kind" in facts:
            return decode(line)
        content = msgspec.convert(facts, JournalLine, dec_hook=convert_from_json)
        if content == JournalLine():
            raise ValueError("it is neither a record nor a line of the journal")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LoomError(f"{line[:60]!r} is not a line of a loom: {error}") from error
    return content


# msgspec describes a class at its first use, and the process crashes if two threads do that at once: describe it now
msgspec.json.Decoder(JournalLine)
