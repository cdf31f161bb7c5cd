"""Checkpoints: an entity's state after one of its records, as bytes, so that loading skips the earlier records.

A checkpoint names its record by position and link, and is valid only while the log has that record with that link. It
may be deleted at any time. A damaged one is ignored: the state is then folded from the whole log.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

_SUM = 16
_POSITION = 8


class Tip(NamedTuple):
    """The last record of an entity: its number, and the link in its line (empty in a store without links)."""

    position: int
    link: bytes


class StoredCheckpoint(NamedTuple):
    """The stored state after the record at `position`."""

    position: int
    data: bytes


def encode_checkpoint(tip: Tip, data: bytes, key: bytes = b"") -> bytes:
    """Return a checkpoint with the fields that `decode_checkpoint` checks: a checksum, and its record.

    The key is that of a sealed loom: a checkpoint made without it is not accepted.
    """
    rest = b"%b%c%b%b" % (tip.position.to_bytes(_POSITION), len(tip.link), tip.link, data)
    return blake2b(rest, digest_size=_SUM, key=key).digest() + rest


def decode_checkpoint(data: bytes, key: bytes = b"") -> tuple[Tip, bytes] | None:
    """Return the arguments of `encode_checkpoint`; None for damaged bytes."""
    rest = data[_SUM:]
    if len(rest) <= _POSITION or blake2b(rest, digest_size=_SUM, key=key).digest() != data[:_SUM]:
        return None
    start = _POSITION + 1
    end = start + rest[_POSITION]
    return Tip(int.from_bytes(rest[:_POSITION]), rest[start:end]), rest[end:]
