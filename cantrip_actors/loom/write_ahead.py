"""Checkpoints of an SQLite loom: what keeps its write-ahead log from growing without end, and out of the writer's way.

SQLite would do one inside the commit that crosses a threshold, and that entity would wait for it: 35 ms where a commit
takes 30 µs. So it is done here, in a thread with a connection of its own, once so many bytes have been written. A
passive one copies without keeping anybody from writing; but a log starts again from its beginning only when all of it
has been copied, which beside a writer that never rests is never. So where the log is `LARGE`, the rest is copied while
the writer waits: little, since most has just been copied, but it waits for the disk. That is once in 64 MiB, and only
under a load that leaves no pause.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable

from cantrip_actors.redact.logs import get_logger

__all__ = ["WalCheckpoints"]

DUE = 32 << 20
"""Bytes written since the last one."""
LARGE = 16_384
"""Pages in the log: 64 MiB."""
PAGE = 4096
A_COMMIT = 4 * PAGE
"""What a commit writes beyond its lines: the pages are written whole, those of three or four trees."""

_log = get_logger("cantrip.loom")


class WalCheckpoints:
    """Counts what is written and starts a checkpoint when it is time. Who holds `writing` is the one who writes."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], writing: threading.Lock) -> None:
        self._connect = connect
        self._writing = writing
        self._written = 0
        self._thread: threading.Thread | None = None

    def wrote(self, size: int) -> None:
        """Take note of a commit of lines of that many bytes."""
        self._written += size + A_COMMIT
        if self._written >= DUE and (self._thread is None or not self._thread.is_alive()):
            self._written = 0
            self._thread = threading.Thread(target=self._checkpoint, name="loom-checkpoint")
            self._thread.start()

    def close(self) -> None:
        """Wait for the one that is under way; not while `writing` is held."""
        if self._thread is not None:
            self._thread.join()

    def _checkpoint(self) -> None:
        try:
            connection = self._connect()
            try:
                _, pages, _ = connection.execute("pragma wal_checkpoint(passive)").fetchone()
                if pages > LARGE:
                    with self._writing:
                        connection.execute("pragma wal_checkpoint(restart)").fetchone()
            finally:
                connection.close()
        except sqlite3.Error as error:  # nothing is lost: the log is the loom, too, and the next one tries again
            _log.warning("loom.no_checkpoint", error=str(error))
