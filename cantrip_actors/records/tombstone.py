"""Tombstones: the remains of a record whose content was forgotten.

A tombstone is a line of the same kind. It keeps the fields of `KEPT`, which the tree of turns is made of, and the link
that the original line had in the hash chain; `gone` is the original's length in bytes. `decode` returns the record with
empty values in place of the content, so a store, a thread and an export read it like any other record.

    {"kind":"utterance","entity":"…","turn":"…","usage":{…},"gone":412,"chain":"…"}
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from cantrip_actors.records.codec import decode, dump_json
from cantrip_actors.records.records import Committed, Ended, ForgottenRecord, Header, IntentGiven
from cantrip_actors.records.seal import add_link, split_link

KEPT = frozenset(
    (
        *("entity_id", "turn_id", "schema", "parent_entity", "parent_turn", "forked", "depth", "lasting"),
        *("parent_id", "sequence", "continues", "terminated", "truncated", "child_id", "index"),
        *("first", "last", "usage", "reward"),
    )
)
"""Ids of entities and turns, positions, and numbers that are billed or rewarded."""
KEPT_TOO = {Header: "at", Committed: "at", IntentGiven: "at", Ended: "reason"}
"""Fields that only this kind keeps: elsewhere the same name may hold a text, or a tombstone would be too long."""

_MARK = b',"gone":'


def make_tombstone(line: bytes) -> bytes:
    """Return the tombstone of a stored line. A tombstone is its own tombstone.

    Raises LoomError for a line that is not a record.
    """
    plain, link = split_link(line)
    if is_tombstone(plain):
        return line
    record = decode(plain)
    facts: dict[str, Any] = {"kind": record.__struct_config__.tag}
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        if (field.name in KEPT or field.name == KEPT_TOO.get(type(record))) and (
            field.required or value != field.default
        ):
            facts[field.encode_name] = msgspec.to_builtins(value)
    tombstone = b"%b%b%d}" % (dump_json(facts)[:-1], _MARK, len(line))
    return tombstone if link is None else add_link(tombstone, link)


def is_tombstone(line: bytes) -> bool:
    """Return whether a line, with or without its link, is a tombstone."""
    head, mark, size = split_link(line)[0].rpartition(_MARK)
    return bool(mark) and size[:-1].isdigit() and head[:1] == b"{"


def read_length(tombstone: bytes) -> int:
    """Return the length of the line that a tombstone replaced."""
    return int(split_link(tombstone)[0].rpartition(_MARK)[2][:-1])


class TombstoneSum:
    """The checksum over an entity's tombstones, in order and with their links."""

    def __init__(self) -> None:
        self.count = 0
        self._whole = blake2b(digest_size=12)
        self._unlinked = blake2b(digest_size=12)

    def add(self, line: bytes) -> None:
        """Add the next tombstone."""
        plain, link = split_link(line)
        self.count += 1
        self._whole.update(b"%b%b\n" % (plain, link or b""))
        self._unlinked.update(plain + b"\n")

    def compute_hexdigest(self) -> str:
        """Return the checksum."""
        return self._whole.hexdigest()

    def is_match(self, record: ForgottenRecord) -> bool:
        """Return whether these are the tombstones that the record names. A memory loom's had no links."""
        return record.records == self.count and record.sum in (self.compute_hexdigest(), self._unlinked.hexdigest())
