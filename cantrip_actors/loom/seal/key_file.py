"""The key file next to a loom, from which the key is made that seals snapshots of sandboxes.

The file is `<loom>.key`, readable for its owner only. It is made when the first snapshot is kept. The key depends on
the bytes in the file and on the file's identity on this disk (its inode, and when it was last changed). So a key file
that was copied together with a loom, in an archive or a repository, gives another key, and opens nothing. To move a
loom with its snapshots, pass the key (`Runtime.open(…, snapshot_key=…)`).
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import stat
import time
from pathlib import Path
from typing import Final

from cantrip_actors.own_files.modes import make_file
from cantrip_actors.redact.logs import get_logger

SECRET: Final = 32
"""Bytes in a key file."""

_HINT: Final = "no snapshots are written or loaded: programs are run again instead"

_log = get_logger("cantrip.loom")


def read_key(loom: Path, *, make: bool) -> bytes | None:
    """Return the key for the snapshots of the loom at `loom`; None, with a warning, if its file cannot be trusted.

    With `make` a missing file is made.
    """
    path = loom.with_name(f"{loom.name}.key")
    try:
        if make and make_file(path):
            path.write_bytes(secrets.token_bytes(SECRET))
        return _derive_key(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("loom.no_snapshot_key", path=str(path), error=error.strerror, hint=_HINT)
        return None


def _derive_key(path: Path) -> bytes | None:
    secret, facts = read_private_file(path, SECRET + 1, os.O_NOFOLLOW)
    for pause in (0.001, 0.01, 0.1):  # another process may be about to write it
        if not secret:
            time.sleep(pause)
            secret, facts = read_private_file(path, SECRET + 1, os.O_NOFOLLOW)
    if len(secret) == SECRET:
        return hmac.digest(secret, f"{facts.st_ino} {facts.st_ctime_ns}".encode(), "sha256")
    why = f"expected {SECRET} bytes, found {len(secret)}: remove it, and a new one is made"
    _log.warning("loom.no_snapshot_key", path=str(path), error=why, hint=_HINT)
    return None


def read_private_file(path: Path, most: int, flags: int = 0) -> tuple[bytes, os.stat_result]:
    """Return the first bytes of a file that only this user may read and change, and facts about it.

    Raises OSError for any other file, with what to do about it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise PermissionError(errno.EPERM, "expected a regular file", str(path))
        if facts.st_mode & 0o077 or facts.st_uid not in (os.geteuid(), 0):
            why = "others may read or change it, or it belongs to another user: expected this user's, with mode 0600"
            raise PermissionError(errno.EPERM, f"{why}: chmod 600 {path}", str(path))
        return os.read(fd, most), os.fstat(fd)  # anew: the process that makes it may have written it only now
    finally:
        os.close(fd)
