"""Folders for what sandboxes need on disk, which do not outlive their process by more than the next one's start.

Each process has one folder, and in it one for each purpose. It holds a lock on it for as long as it lives, which the
kernel takes back however it ends; so a folder of ours without a lock is nobody's, and the first folder that a later
process of the same user asks for is preceded by a sweep. (Who else tidies up temporary folders leaves locked ones
alone, too.) In an orderly end the folder goes with the process.

POSIX only: elsewhere nothing here needs a folder.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["folder", "remove"]

PREFIX: Final = "cantrip-sandboxes-"
_MODE: Final = 0o711
"""Other users may pass through: a shell may have a user of its own."""


@dataclass
class _Own:
    """This process's folder, and the lock on it."""

    process: int | None = None
    path: Path | None = None
    lock: int | None = None
    changing: threading.Lock = field(default_factory=threading.Lock)


_own = _Own()


def folder(purpose: str) -> Path:
    """A new, empty folder, mode 0711, that is removed when this process has ended, by whatever end.

    Give it back with `remove`. Blocks: the first one looks for what others have left. Raises OSError.
    """
    with _own.changing:
        if _own.process != os.getpid():
            _own.process, _own.path, _own.lock = os.getpid(), None, None  # a forked process has its own
        if _own.path is None or not _own.path.exists():
            _sweep(Path(tempfile.gettempdir()))
            if _own.lock is not None:
                os.close(_own.lock)
            _own.path, _own.lock = _locked_folder()
        made = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_own.path))
    made.chmod(_MODE)
    return made


def remove(path: Path) -> None:
    """Remove a folder, however deep it is, and where its owner has taken himself the right to change it.

    By the system's own programs: they follow no link, and need no path longer than paths can be. Who has just been
    killed may for a moment still write, so it is tried more than once. Never raises: what is left is swept later.
    """
    commands = [["/bin/rm", "-rf"]] if os.getuid() == 0 else [["/bin/chmod", "-R", "u+rwX"], ["/bin/rm", "-rf"]]
    for _ in range(20):
        for command in commands if path.exists() else ():
            subprocess.run([*command, "--", str(path)], check=False, stderr=subprocess.DEVNULL)  # noqa: S603
        if not path.exists():
            return
        time.sleep(0.02)


def _locked_folder() -> tuple[Path, int]:
    """A new folder under a lock. Between its making and its lock somebody may sweep it: then there is another one."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock_on(path)
        if lock is not None:
            path.chmod(_MODE)
            return path, lock


def _lock_on(path: Path) -> int | None:
    """A lock on a folder of this user's, or None where somebody has it, it is not one, or it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        here, there = os.fstat(handle), path.lstat()
    except OSError:
        os.close(handle)
        return None
    if (here.st_dev, here.st_ino, here.st_uid) != (there.st_dev, there.st_ino, os.getuid()):
        os.close(handle)
        return None
    return handle


def _sweep(where: Path) -> None:
    """Remove what processes of this user have left that are no more."""
    for path in where.glob(f"{PREFIX}????????"):
        lock = _lock_on(path)
        if lock is not None:
            remove(path)
            os.close(lock)


def _end() -> None:
    if _own.process == os.getpid() and _own.path is not None:
        remove(_own.path)


atexit.register(_end)
