"""Snapshots of sandboxes: which are worth storing, how they are sealed, and which may be restored.

A small snapshot is stored with every program: it costs a tenth of a millisecond, and not running a program again saves
one or two. A larger snapshot needs a budget, and the programs since the last one provide it: `A_PROGRAM` bytes for each
program, and `A_SECOND` bytes for each second of computing. So snapshots of any size cost a small part of the time that
programs take, and a growing sandbox is stored more and more rarely.

A snapshot is restored only if it is complete, was sealed by this loom's owner (`Blob.is_sealed_with`), and comes from
the same engine. Any other snapshot is reported in the log, and the programs are run again.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple

import orjson

from cantrip_actors.records.blob import Blob, Snapshot
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.user_code.threads import run_apart

Kind = Literal["idle", "suspended"]

SMALL: Final = 16 * 1024
"""Bytes up to which a snapshot is always stored; in the loom it takes a third of that."""

SMALL_MIDWAY: Final = 32 * 1024
"""Bytes, likewise, of a program that waits for a gate: its snapshot saves more than time."""

A_PROGRAM: Final = 2 * 1024
"""Bytes of a larger snapshot that each program since the last stored one pays for."""

A_SECOND: Final = 1024 * 1024
"""Bytes, likewise, for each second of computing: to dump, seal and write this much takes 15 to 60 ms."""

_log = get_logger("cantrip_actors.runtime")


@dataclass(slots=True)
class Account:
    """The budget since the last stored snapshot, and the expected size of the next one: that of the last."""

    small: int = SMALL
    programs: int = 0
    seconds: float = 0.0
    size: int = 0

    def can_afford(self) -> bool:
        """Return whether a snapshot as large as the last one is worth storing."""
        return self.size <= self.small or self.size <= self.programs * A_PROGRAM + self.seconds * A_SECOND

    def take(self, size: int) -> bool:
        """Return whether to store a snapshot of that many bytes; if so, reset the budget."""
        self.size = size
        if not self.can_afford():
            return False
        self.programs, self.seconds = 0, 0.0
        return True


class SnapshotContent(NamedTuple):
    """The content of a snapshot: the sandbox, and the output of its program so far if it waits for a gate."""

    image: bytes
    output: str


class Snapshots:
    """The snapshots of one runtime. `key` and `read` are first called when a snapshot is stored or restored."""

    def __init__(self, key: Callable[[], bytes | None], read: Callable[[str], Awaitable[Blob | None]]) -> None:
        self._find_key = key
        self._read = read
        self._lock = threading.Lock()
        self._keys: list[bytes | None] = []

    def seal(self, engine: str, kind: Kind, image: bytes, output: str, account: Account) -> Snapshot | None:
        """Return a sealed snapshot of a sandbox, or None if `account` cannot pay for it. Blocks: run it in a thread."""
        key = self._get_key()
        if key is None or not account.take(len(image)):
            return None
        head = orjson.dumps({"kind": kind, "output": output})
        sealed = Blob.of_snapshot(engine, zlib.compress(head + b"\n" + image, 1), key)
        return Snapshot(sealed.digest, sealed)

    async def load(self, snapshot: Snapshot, engine: str, kind: Kind) -> SnapshotContent | None:
        """Return the content of a snapshot; if it cannot be used, log why and return None."""
        blob = await self._read(snapshot.digest)
        return await run_apart(partial(self._open, snapshot, blob, engine, kind))

    def _open(self, snapshot: Snapshot, blob: Blob | None, engine: str, kind: Kind) -> SnapshotContent | None:
        key = self._get_key()
        if key is None:
            return None  # logged already
        why = None
        if blob is None:
            why = "it is not in the loom"
        elif blob.engine != engine:
            why = f"it is of {blob.engine}, and this is {engine}"
        elif not blob.is_whole:
            why = "it is not what was written"
        elif not blob.is_sealed_with(key):
            why = "it was not sealed by this loom's owner, or the loom was moved, or opened again, without its key"
        if blob is None or why is not None:
            self.warn_unusable(snapshot, why)
            return None
        head, _, rest = zlib.decompress(blob.data).partition(b"\n")
        content = orjson.loads(head)
        if content["kind"] != kind:
            self.warn_unusable(snapshot, f"it is of a sandbox that is {content['kind']}, not {kind}")
            return None
        return SnapshotContent(rest, content["output"])

    def warn_unusable(self, snapshot: Snapshot, why: object) -> None:
        """Log that a snapshot cannot be used, so programs are run again."""
        _log.warning("a snapshot cannot be used: programs are run again", snapshot=snapshot.digest, why=str(why))

    def _get_key(self) -> bytes | None:
        with self._lock:
            if not self._keys:
                self._keys.append(self._find_key())
            return self._keys[0]
