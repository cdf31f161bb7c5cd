"""The file next to a sealed log that holds its head: one line of a fixed length, overwritten in place.

The head says where the log ended at the last append, so a log that was cut is shorter than its head says. It is written
after the log: a process that is killed between the two leaves a log that is longer, and the next writer checks the
lines after the head before it renews the head.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from cantrip_actors.loom.seal.line_file import Disk
from cantrip_actors.loom.seal.seal_key import Head
from cantrip_actors.own_files.modes import FILE

LENGTH: Final = 128
"""Bytes of the line: it fits into one sector of a disk, which is written as a whole or not at all."""
_LINE: Final = re.compile(rb'\{"records":(\d{1,18}),"link":"([0-9a-f]{24})"\} *\n')


def read_head(path: Path) -> Head | None:
    """Return the head in a file; None if the file is missing or damaged. Raises OSError."""
    try:
        match = _LINE.fullmatch(path.read_bytes())
    except FileNotFoundError:
        return None
    return None if match is None else Head(int(match[1]), match[2])


def write_head(path: Path, head: Head, disk: Disk) -> None:
    """Replace the head in a file, and wait for the disk. Raises OSError."""
    is_new = not path.exists()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE)
    try:
        line = b'{"records":%d,"link":"%b"}' % head
        disk.write(fd, line.ljust(LENGTH - 1) + b"\n")
        disk.sync(fd)
    finally:
        os.close(fd)
    if is_new:
        disk.sync_folder(path)
