"""The file next to a sealed log that holds its head: one line of a fixed length, overwritten in place.

The head says where the log ended at the last append, so a log that was cut is shorter than its head says. It is written
after the log: a process that is killed between the two leaves a log that is longer, and the next writer checks the
lines after the head before it renews the head.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cantrip_actors.loom.seal.line_file import Disk
from cantrip_actors.loom.seal.seal_key import Head
from cantrip_actors.own_files.modes import FILE

LENGTH: Final = 128
"""Bytes of the line: it fits into one sector of a disk, which is written as a whole or not at all."""
_LINE: Final = re.compile(rb'\{"records":(\d{1,18}),"link":"([0-9a-f]{24})"\} *\n')


class HeadFile:
    """The head of the log in `path`, in `<path>.head`. Its methods raise OSError."""

    def __init__(self, path: Path, disk: Callable[[], Disk], *, synced: bool) -> None:
        self.path = path.with_name(f"{path.name}.head")
        self._disk = disk
        self._synced = synced
        self._fd = -1

    def read(self) -> Head | None:
        """Return the head; None if the file is missing or damaged."""
        try:
            found = _LINE.fullmatch(self.path.read_bytes())
        except FileNotFoundError:
            return None
        return None if found is None else Head(int(found[1]), found[2])

    def write(self, head: Head) -> None:
        """Replace the head."""
        disk = self._disk()
        is_new = self._fd < 0 and not self.path.exists()
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE)
        os.lseek(self._fd, 0, os.SEEK_SET)
        line = b'{"records":%d,"link":"%b"}' % head
        disk.write(self._fd, line.ljust(LENGTH - 1) + b"\n")
        if self._synced:
            disk.sync(self._fd)
            if is_new:
                disk.sync_folder(self.path)

    def close(self) -> None:
        """Close the file. It can still be read."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
