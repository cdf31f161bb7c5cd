"""Snapshots of sandboxes: which are worth keeping, how they are sealed, and which may be loaded again.

A small snapshot is kept with every program: it costs a tenth of a millisecond, and a program that is not run again
saves one or two. A larger one has to be earned, by programs that need not be run again: so many bytes for each of them,
and so many for each second that they computed. So snapshots cost a small part of the time that programs take, whatever
their size, and a sandbox that grows from program to program is kept more and more rarely.

Only a snapshot that this loom's owner has kept (`Blob.is_sealed_with`), that is whole and of the engine that is to load
it is loaded. Anything else is a line in the log, and the programs are run again.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import orjson
import structlog

from cantrip_actors.records.blob import Blob, Snapshot

__all__ = ["Account", "SnapshotContent", "Snapshots"]

Kind = Literal["idle", "suspended"]

SMALL: Final = 16 * 1024
"""Bytes that a snapshot may have which is kept each time; in the loom it takes a third of that."""

SMALL_MIDWAY: Final = 32 * 1024
"""Bytes, likewise, of a program that waits for a gate: what comes back of it is more than time."""

A_PROGRAM: Final = 2 * 1024
"""Bytes that a larger one may have for each program since the last one that was kept."""

A_SECOND: Final = 1024 * 1024
"""Bytes, likewise, for each second that they computed: making, sealing and writing so many takes some 15 to 60 ms."""

_log = structlog.get_logger("cantrip_actors.runtime")


@dataclass(slots=True)
class Account:
    """What programs have earned since a snapshot was kept, and what the next one will take: as much as the last."""

    small: int = SMALL
    programs: int = 0
    seconds: float = 0.0
    size: int = 0

    def affords(self) -> bool:
        """Whether a snapshot like the last one is worth keeping."""
        return self.size <= self.small or self.size <= self.programs * A_PROGRAM + self.seconds * A_SECOND

    def take(self, size: int) -> bool:
        """Whether a snapshot of that many bytes is kept; pay for it."""
        self.size = size
        if not self.affords():
            return False
        self.programs, self.seconds = 0, 0.0
        return True


class SnapshotContent(NamedTuple):
    """What is in a snapshot: the sandbox, and what its program had printed where it waits for a gate."""

    image: bytes
    output: str


class Snapshots:
    """The snapshots of one runtime. `key` and `read` are asked when the first one is made or wanted."""

    def __init__(self, key: Callable[[], bytes | None], read: Callable[[str], Blob | None]) -> None:
        self._find_key = key
        self._read = read
        self._lock = threading.Lock()
        self._keys: list[bytes | None] = []

    def seal(self, engine: str, kind: Kind, image: bytes, output: str, account: Account) -> Snapshot | None:
        """A snapshot of what an engine wrote, if `account` can pay for it. Blocks; for a thread."""
        key = self._key()
        if key is None or not account.take(len(image)):
            return None
        head = orjson.dumps({"kind": kind, "output": output})
        sealed = Blob.of_snapshot(engine, zlib.compress(head + b"\n" + image, 1), key)
        return Snapshot(sealed.digest, sealed)

    def load(self, snapshot: Snapshot, engine: str, kind: Kind) -> SnapshotContent | None:
        """What a snapshot has kept, or None, with a line in the log, where it cannot be used."""
        blob = self._read(snapshot.digest)
        key = self._key()
        if key is None:
            return None  # which has been said
        why = None
        if blob is None:
            why = "it is not in the loom"
        elif blob.engine != engine:
            why = f"it is of {blob.engine}, and this is {engine}"
        elif not blob.is_whole:
            why = "it is not what was written"
        elif not blob.is_sealed_with(key):
            why = "it was not kept by this loom's owner, or the loom has been moved without its key"
        if blob is None or why is not None:
            self.warn_unusable(snapshot, why)
            return None
        head, _, rest = zlib.decompress(blob.data).partition(b"\n")
        said = orjson.loads(head)
        if said["kind"] != kind:
            self.warn_unusable(snapshot, f"it is of a sandbox that is {said['kind']}, not {kind}")
            return None
        return SnapshotContent(rest, said["output"])

    def warn_unusable(self, snapshot: Snapshot, why: object) -> None:
        """Say that programs are run again."""
        _log.warning("a snapshot cannot be used: programs are run again", snapshot=snapshot.digest, why=str(why))

    def _key(self) -> bytes | None:
        with self._lock:
            if not self._keys:
                self._keys.append(self._find_key())
            return self._keys[0]
