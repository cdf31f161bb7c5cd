"""Checkpoints of an SQLite loom, which bound its write-ahead log without delaying the writer.

SQLite would make a checkpoint inside the commit that crosses a threshold, and that entity would wait for it: 35 ms
where a commit takes 30 µs. So checkpoints are made here, in a thread with a connection of its own, after a number of
written bytes. A passive checkpoint copies without blocking writers; but a log restarts from its beginning only when all
of it has been copied, which never happens next to a writer that never pauses. So when the log is `LARGE`, the rest is
copied while the writer waits: it is short, because most has just been copied, but it waits for the disk. That happens
once in 64 MiB, and only under a load without pauses.

A full disk makes a checkpoint due: it frees the log for new commits. A checkpoint that failed is due again at the next
commit, before the log has used up the room that someone makes on the disk.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable

from cantrip_actors.loom.sqlite.acknowledged import AcknowledgedFile
from cantrip_actors.redact.logs import get_logger

DUE = 32 << 20
"""Bytes written since the last checkpoint that cause the next one."""
LARGE = 16_384
"""The size of the log, in pages, at which the writer must wait: 64 MiB."""
PATIENCE = 1.0
"""Seconds that the writer waits for readers while the rest is copied; else this is tried at the next checkpoint."""
PAGE = 4096
A_COMMIT = 4 * PAGE
"""The bytes that a commit writes beyond its lines: whole pages of three or four trees."""

_log = get_logger("cantrip.loom")


class WalCheckpoints:
    """Counts written bytes and starts checkpoints. The holder of the lock `writing` is the writer.

    `noted` says what the log had when it was last written, and what has been copied from it.
    """

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], writing: threading.Lock, noted: AcknowledgedFile
    ) -> None:
        self.noted = noted
        self._connect = connect
        self._writing = writing
        self._written = 0
        self._thread: threading.Thread | None = None
        self._error = ""
        """The error of the last checkpoint, if it failed."""

    def count_written(self, size: int) -> None:
        """Count a commit of lines of that many bytes."""
        self._written += size + A_COMMIT
        if self._written >= DUE and not self.is_at_work:
            self._written = 0
            self._thread = threading.Thread(target=self._run_checkpoint, name="loom-checkpoint")
            self._thread.start()

    @property
    def is_at_work(self) -> bool:
        """Whether the log is being copied: a commit may wait for the disk meanwhile."""
        return self._thread is not None and self._thread.is_alive()

    def note_full_disk(self) -> None:
        """Make a checkpoint at once, because a commit found no room on the disk."""
        self.count_written(DUE)

    def close(self) -> None:
        """Wait for a running checkpoint. Do not hold `writing`."""
        if self._thread is not None:
            self._thread.join()

    def _run_checkpoint(self) -> None:
        try:
            connection = self._connect()
            try:
                (record,) = connection.execute("select coalesce(max(seq), 0) from records").fetchone()
                _, pages, copied = connection.execute("pragma wal_checkpoint(passive)").fetchone()
                if pages == copied:
                    with self._writing:
                        self.noted.note_copied(record)
                if pages > LARGE:
                    with self._writing:
                        connection.execute("pragma wal_checkpoint(restart)").fetchone()
            finally:
                connection.close()
        except sqlite3.Error as error:  # nothing is lost: the log is part of the loom
            self._written = DUE
            if str(error) != self._error:
                _log.warning("loom.no_checkpoint", error=str(error))
            self._error = str(error)
        else:
            self._error = ""
