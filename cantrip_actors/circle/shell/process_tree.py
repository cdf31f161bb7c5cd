"""The processes of one jail as the kernel lists them: the living ones, and the unnamed files that they hold.

The kernel keeps for every process the list of its children. A jail is one tree of processes: below the first process of
its namespace (bubblewrap), or below its shell, to which orphans return (Landlock). A process that lives in it always
has a living parent in it, so a list of children shows it, however fast processes start others and end.

This file trusts no statement of a process about itself. A list that cannot be read raises OSError: the caller ends the
jail.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_DELETED: Final = re.compile(rb"^(\S+) \S+ \S+ (\S+) (\d+) +(/.*) \(deleted\)$", re.MULTILINE)
"""A mapping of a file without a name in `maps`: addresses, device, inode, and the name that it had."""

_ZERO: Final = b"/dev/zero"
"""The kernel's name for shared memory without a file, including a shared mapping of /dev/zero."""


_EXITING: Final = 0x4
"""The kernel's PF_EXITING: a thread with this flag no longer runs code of its program."""


class Hidden(NamedTuple):
    """Resources that processes hold and no folder lists."""

    size: int
    """Bytes of files that no longer have a name."""
    shares: bool
    """True if a process has shared memory without a file."""


def list_children(process: int) -> tuple[int, ...]:
    """Return the children of all threads of a process, oldest first. Raises OSError if they cannot be read."""
    children: list[int] = []
    for thread in Path(f"/proc/{process}/task").iterdir():
        children += map(int, (thread / "children").read_bytes().split())
    return tuple(children)


def walk_descendants(process: int) -> Iterator[int]:
    """Yield a process and all below it. A process that ends meanwhile is left out."""
    waiting = [process]
    while waiting:
        current = waiting.pop()
        yield current
        with contextlib.suppress(OSError):
            waiting += list_children(current)


def is_stopped(process: int) -> bool:
    """Return whether every thread of a process is stopped or dead: it continues only if another process wakes it."""
    return all(state in "TtZX" for state in map(_read_state, _list_threads(process)))


def is_dead(process: int) -> bool:
    """Return whether all threads of a process have ended; its id may still be taken."""
    return all(state in "ZX" for state in map(_read_state, _list_threads(process)))


def _list_threads(process: int) -> tuple[str, ...]:
    """Return the kernel's folder of each thread of a process. The first may be dead while others run."""
    try:
        with os.scandir(f"/proc/{process}/task") as listed:
            return tuple(entry.path for entry in listed)
    except (FileNotFoundError, ProcessLookupError):
        return ()


def _read_state(thread: str) -> str:
    """Return the letter for a thread's state: X also for one that is about to end."""
    try:
        text = Path(f"{thread}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    fields = text.rpartition(")")[2].split()
    return "X" if int(fields[6]) & _EXITING else fields[0]


def read_limits(process: int) -> bytes:
    """Return the kernel's table of a process's resource limits. Raises OSError."""
    return Path(f"/proc/{process}/limits").read_bytes()


def measure_hidden(processes: Iterable[int], largest: int) -> Hidden:
    """Return the resources of these processes that no folder lists. Raises PermissionError if a living one hides them.

    A file that is only mapped, and that only root may inspect, counts `largest` bytes.
    """
    sizes: dict[tuple[int, int], int] = {}
    shares = False
    for thread in (thread for process in processes for thread in _list_threads(process)):
        try:
            for status in _stat_open_files(thread):
                if status.st_nlink == 0:
                    sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
            for addresses, device, inode, name in _DELETED.findall(Path(f"{thread}/maps").read_bytes()):
                if name == _ZERO:
                    shares = True
                    continue
                major, _, minor = device.partition(b":")
                key = os.makedev(int(major, 16), int(minor, 16)), int(inode)
                if key not in sizes:
                    sizes[key] = _measure_mapping(thread, addresses.decode(), largest)
        except PermissionError:  # also raised for a thread that is ending: without memory it belongs to root
            if _read_state(thread) not in "ZX":
                raise
        except (FileNotFoundError, ProcessLookupError):
            continue
    return Hidden(sum(sizes.values()), shares)


def _stat_open_files(thread: str) -> Iterator[os.stat_result]:
    with os.scandir(f"{thread}/fd") as listed:
        for entry in listed:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                if stat.S_ISREG(status.st_mode):
                    yield status


def _measure_mapping(thread: str, addresses: str, largest: int) -> int:
    process = Path(thread).parents[1]  # threads have no list of their own
    try:
        return (process / "map_files" / addresses).stat().st_blocks * 512
    except PermissionError:
        return largest
