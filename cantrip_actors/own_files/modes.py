"""Files that only their owner may read: 0600, their folders 0700, whatever the umask.

A file that exists with a wider mode is narrowed, and the log says so. A file of another user is left alone: its
owner has decided who may read it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cantrip_actors.own_files.claims import HOME

FILE: Final = 0o600
FOLDER: Final = 0o700


def _warn(event: str, **values: Any) -> None:
    """Log with structlog; to stderr where the program has not configured it. A line that fails is lost."""
    with suppress(Exception):
        import structlog  # takes longer than all of this package

        if structlog.is_configured():
            logger = structlog.get_logger("cantrip_actors.own_files")
        else:
            logger = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
        logger.warning(event, **values)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, with mode 0700. Narrow one that is called `.cantrip`.

    A folder of another name that exists may have been made for other things, and keeps its mode. Raises OSError.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    for place in reversed(missing):
        with suppress(FileExistsError):
            place.mkdir(mode=FOLDER)
    for place in (path, *path.parents):
        if place.name == HOME and place not in missing:
            _narrow(place, place, FOLDER)


def make_file(path: Path) -> bool:
    """Make an empty file with mode 0600; return False if the file exists. Raises OSError."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE))
    except FileExistsError:
        return False
    return True


def private(path: str, flags: int) -> int:
    """Open a file for `open(…, opener=private)`: one that is made has mode 0600. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC, FILE)


def narrow_files(paths: Iterable[Path]) -> None:
    """Narrow those of some paths that are files. Raises OSError."""
    for path in paths:
        if path.is_file():
            _narrow(path, path, FILE)


def file_size(path: Path) -> int:
    """Return the bytes of a file; 0 for one that is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def narrow(fd: int, path: Path) -> None:
    """Take the rights of others from an open file, and report it. Raises OSError."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        _narrow(fd, path, FILE)


def _narrow(file: Path | int, path: Path, mode: int) -> None:
    if sys.platform == "win32":  # a mode does not say there who may read a file
        return
    status = os.stat(file)  # noqa: PTH116  # it may be a descriptor
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        os.chmod(file, mode)  # noqa: PTH101
        _warn(
            "others could read or change a file of the runtime: only its owner may now",
            path=str(path),
            mode=f"{stat.S_IMODE(status.st_mode):04o}",
        )
