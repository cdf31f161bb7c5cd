"""The lines of a JSONL loom that are no records: its first line, and what else the memory store keeps. No I/O.

    {"loom":1}                          the first line; in a sealed loom it has the "mark" and the "head" of the seal
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

import msgspec

from cantrip_actors.loom.seal_key import Head, SealMark
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.codec import convert_from_json, decode, encode_value
from cantrip_actors.records.mail import Mail, MailRow
from cantrip_actors.records.records import Record
from cantrip_actors.records.submissions import SubmissionRow
from cantrip_actors.records.timers import Timer
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.value import Value


class JournalLine(Value, frozen=True, kw_only=True):
    """A line that is no record. One of its fields is set, with those that belong to it."""

    loom: int = 0
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
