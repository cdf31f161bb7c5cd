"""The sidecars of a JSONL loom with a row in each line: `<loom>.mail` and `<loom>.timers`.

    {"no":7,"entity":"…","key":"…","lane":1,"loads":true,"digest":"…","after":1234,"mail":{…}}
    {"entity":"…","id":"…","with":1234,"timer":{…}}

The log is the truth: mail waits until a record in the log carries its key, at an offset from `after` on. So taking mail
writes nothing here. A line without "mail" was taken by the record at the offset "taken", and remains so that its key
stays reserved. Of timers the latest line with an entity and an id counts; one without "timer" removes it, and those of
an ended entity are void. A line with "with" was written together with the record at that offset, and is void if the log
ends before that record.

Opening a file for writing rewrites it if lines are void, or most of them are out of date.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from cantrip_actors.loom.line_file import LineFile
from cantrip_actors.records.mail import MailRow
from cantrip_actors.records.timers import Timer, decode_timer
from cantrip_actors.terms.errors import LoomError

T = TypeVar("T")


class RowFile(Generic[T]):
    """A sidecar of rows, and its number of lines. `read` returns the row of a line, or raises LoomError."""

    def __init__(self, file: LineFile, what: str, read: Callable[[bytes], T]) -> None:
        self.file = file
        self.what = what
        self.lines = 0
        self._read = read

    def load(self, add: Callable[[T], bool], skip: Callable[[str, LoomError], None], limit: int | None = None) -> int:
        """Read the rows up to an offset; return how many are void.

        `add` gets each row, and returns whether it is void. `skip` gets the lines that `read` or `add` refuses.
        """
        void = 0
        for block in self.file.read_blocks(end=limit) if self.file.open() else ():
            for line in block.splitlines():
                self.lines += 1
                try:
                    void += add(self._read(line))
                except LoomError as error:
                    skip(f"{self.file.path}: line {self.lines}", error)
            self.file.end += len(block)
        return void

    def rewrite(self, lines: Iterable[bytes]) -> None:
        """Replace all rows, given their lines. Raises OSError."""
        lines = [*lines]
        self.file.rewrite(lines)
        self.lines = len(lines)


def encode_mail_line(row: MailRow, line: bytes, after: int, number: int | None = None) -> bytes:
    """Return the line of a mail; `number` is that of the record that it was posted with."""
    facts: dict[str, Any] = {
        "no": row.no,
        "entity": row.entity_id,
        "key": row.key,
        "lane": row.lane,
        "loads": row.loads,
        "digest": row.digest.hex(),
    }
    if row.taken is not None:
        facts["taken"] = row.taken
    else:
        facts["after"] = after
        if number is not None:
            facts["with"] = number
    return _encode(facts, _MAIL, line)


def read_mail(line: bytes) -> tuple[MailRow, bytes, int, int | None]:
    """Return row, line, `after` and `with` of a line. Raises LoomError if `encode_mail_line` did not write it."""

    def make(facts: dict[str, Any], mail: bytes) -> tuple[MailRow, bytes, int, int | None]:
        taken, digest = facts.get("taken"), bytes.fromhex(facts["digest"])
        row = MailRow(facts["no"], taken, facts["entity"], facts["key"], facts["lane"], facts["loads"], digest)
        return row, mail, facts.get("after", 0), facts.get("with", taken)

    return _decode(line, "mail", _MAIL, make)


def encode_timer_line(entity_id: str, id: str, line: bytes, number: int | None = None) -> bytes:
    """Return the line of a timer; `number` is that of the record that it was written with."""
    facts: dict[str, Any] = {"entity": entity_id, "id": id}
    if number is not None:
        facts["with"] = number
    return _encode(facts, _TIMER, line)


def read_timer(line: bytes) -> tuple[Timer, bytes, int | None]:
    """Return timer, its own line, and `with` of a line. Raises LoomError if `encode_timer_line` did not write it."""

    def make(facts: dict[str, Any], own: bytes) -> tuple[Timer, bytes, int | None]:
        timer = decode_timer(own) if own else Timer(id=facts["id"], due=None, entity_id=facts["entity"])
        return timer, own, facts.get("with")

    return _decode(line, "timer", _TIMER, make)


_MAIL, _TIMER = b',"mail":', b',"timer":'
"""The last fields of rows: what their own codecs wrote, unchanged."""


def _encode(facts: dict[str, Any], field: bytes, own: bytes) -> bytes:
    head = json.dumps(facts, separators=(",", ":")).encode()
    return b"%b%b%b}\n" % (head[:-1], field, own) if own else head + b"\n"


def _decode(line: bytes, what: str, field: bytes, make: Callable[[dict[str, Any], bytes], T]) -> T:
    head, found, own = line.rstrip(b"\n").partition(field)
    try:
        return make(json.loads(head + b"}" if found else head), own[:-1])
    except (ValueError, KeyError, TypeError) as error:
        raise LoomError(f"{line[:60]!r} is not a {what}: {error}") from error
