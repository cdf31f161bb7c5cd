"""Checkpoints: an entity's state after one of its records, as bytes, so that loading skips the earlier records.

A checkpoint names its record by position and link, and is valid only while the log has that record with that link. It
may be deleted at any time. A damaged one is ignored: the state is then folded from the whole log.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from cantrip_actors.own_files.modes import make_file
from cantrip_actors.terms.errors import LoomError

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


def decode_checkpoint(kept: bytes, key: bytes = b"") -> tuple[Tip, bytes] | None:
    """Return the arguments of `encode_checkpoint`; None for damaged bytes."""
    rest = kept[_SUM:]
    if len(rest) <= _POSITION or blake2b(rest, digest_size=_SUM, key=key).digest() != kept[:_SUM]:
        return None
    start = _POSITION + 1
    end = start + rest[_POSITION]
    return Tip(int.from_bytes(rest[:_POSITION]), rest[start:end]), rest[end:]


class CheckpointFile:
    """The checkpoints of a JSONL loom: an SQLite file, `<loom>.checkpoints`, one row for each entity."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: sqlite3.Connection | None = None

    def keep(self, entity_id: str, kept: bytes) -> None:
        """Store a checkpoint in place of the entity's earlier one. A damaged file is replaced. Raises LoomError."""
        try:
            self._write(entity_id, kept)
        except sqlite3.DatabaseError:
            self.close()
            try:
                self._path.unlink(missing_ok=True)
                self._write(entity_id, kept)
            except (OSError, sqlite3.Error) as error:
                self.close()
                raise LoomError(f"cannot write to {self._path}: {error}") from error

    def _write(self, entity_id: str, kept: bytes) -> None:
        if self._file is None:
            self._open().execute("create table if not exists checkpoints (entity blob primary key, data blob not null)")
        self._open().execute("insert or replace into checkpoints values (?, ?)", (_derive_key(entity_id), kept))

    def _open(self) -> sqlite3.Connection:
        if self._file is None:
            make_file(self._path)
            self._file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._file.execute("pragma synchronous = off")
        return self._file

    def find(self, entity_id: str) -> bytes | None:
        """Return the checkpoint of an entity; None if there is no readable one."""
        with suppress(sqlite3.Error):
            if self._file is not None or self._path.exists():
                query = "select data from checkpoints where entity = ?"
                row = self._open().execute(query, (_derive_key(entity_id),)).fetchone()
                return None if row is None else row[0]
        return None

    def remove(self) -> None:
        """Delete the file; entities load without it. Raises OSError."""
        self.close()
        for suffix in ("", "-journal"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None


def _derive_key(entity_id: str) -> bytes:
    return entity_id.encode(errors="surrogatepass")
