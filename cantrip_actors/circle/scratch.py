"""Temporary folders of sandboxes, which do not outlive their process.

Each process has one folder, with one inside for each sandbox. The process holds a lock on the folder while it lives,
and the kernel releases the lock however the process ends. So an unlocked folder has no owner, and a later process of
the same user sweeps such folders before it makes its first one (`leftovers.py`). (Programs that clean temporary folders
skip locked ones, too.) An orderly end removes the folder; if processes run in it, a watcher removes it.

POSIX only: elsewhere no sandbox needs a folder.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cantrip_actors.circle import leftovers
from cantrip_actors.circle.leftovers import remove

__all__ = ["remove"]

PREFIX: Final = "cantrip-sandboxes-"
_MODE: Final = 0o711
"""Other users may pass through, because a shell may have a user of its own."""


@dataclass
class _Own:
    """This process's folder, and the lock on it."""

    path: Path | None = None
    lock: int | None = None
    is_watched: bool = False
    changing: threading.Lock = field(default_factory=threading.Lock)


_own = _Own()


def _begin_anew() -> None:
    """Give a forked process a folder of its own; the lock on its parent's folder is its parent's alone."""
    global _own
    inherited, _own = _own, _Own()
    if inherited.lock is not None:
        os.close(inherited.lock)


os.register_at_fork(after_in_child=_begin_anew)


def make_folder(purpose: str) -> Path:
    """Return a new, empty folder, mode 0711, that is removed when this process ends, however it ends.

    Release it with `remove`. Blocks: the first call sweeps the folders of dead processes. Raises OSError.
    """
    with _own.changing:
        if _own.path is None or not _own.path.exists():
            _sweep(Path(tempfile.gettempdir()))
            if _own.lock is not None:
                os.close(_own.lock)
            _own.path, _own.lock = _make_own_folder()
            _own.is_watched = False
        folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_own.path))
    folder.chmod(_MODE)
    return folder


def watch() -> None:
    """Make the processes in these folders end with this process, however it ends. Blocks for milliseconds."""
    with _own.changing:
        if _own.path is not None and not _own.is_watched:
            leftovers.watch(_own.path)
            _own.is_watched = True


def _make_own_folder() -> tuple[Path, int]:
    """Return a new folder under a lock. If another process sweeps it before it is locked, another one is made."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            lock = _lock(path)
            path.chmod(_MODE)
        except (BlockingIOError, FileNotFoundError):  # it is being swept
            continue
        except OSError:  # no descriptor is left, or the file system has no locks
            with suppress(OSError):
                path.rmdir()
            raise
        return path, lock


def _lock(path: Path) -> int:
    """Lock a folder of this user's, and return its handle.

    Raises BlockingIOError if another process holds the lock, FileNotFoundError if it is not this user's folder any
    more, and any other OSError.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        here, there = os.fstat(handle), path.lstat()
        if (here.st_dev, here.st_ino, here.st_uid) != (there.st_dev, there.st_ino, os.getuid()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _sweep(where: Path) -> None:
    """Remove the folders of this user's dead processes."""
    for path in where.glob(f"{PREFIX}????????"):
        try:
            lock = _lock(path)
        except OSError:  # it is another user's, or in use
            continue
        try:
            leftovers.sweep(path)
        finally:
            os.close(lock)


def _end() -> None:
    if _own.path is not None:
        leftovers.remove(_own.path)


atexit.register(_end)
