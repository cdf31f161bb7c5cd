"""Images in a store: what records bring with them, the key that they are sealed with, and whether they are all there.

A store keeps an image before the record that refers to it, and each image once. It never needs one: a loom whose images
are gone is whole but for the time that running programs again takes.

The key lies beside the loom, in `<loom>.key`, readable for its owner only, and is made when the first image is kept.
What images are sealed with is made of the bytes in there and of which file that is on this disk (its inode, and when it
was last changed): a key file that came along with somebody's loom, in an archive or a repository, is another file here,
and opens nothing. Whoever moves a loom with its images gives the key by hand (`Runtime.open(…, snapshot_key=…)`).
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog

from cantrip_actors.loom.store import Store
from cantrip_actors.model.snapshot import SandboxImage, Snapshot
from cantrip_actors.model.turn import Committed, GateStarted, Record

__all__ = ["brought", "image_faults", "key_beside", "refers_to"]

SECRET: Final = 32
"""Bytes of a key file."""

_log = structlog.get_logger("cantrip.loom")


def refers_to(record: Record) -> Snapshot | None:
    """The snapshot that a record refers to."""
    return record.snapshot if isinstance(record, (Committed, GateStarted)) else None


def brought(records: Iterable[Record]) -> list[SandboxImage]:
    """The images that records bring with them, each once, in an order that does not depend on that of the records."""
    found: dict[str, SandboxImage] = {}
    for record in records:
        snapshot = refers_to(record)
        if snapshot is not None and snapshot.image is not None:
            found[snapshot.digest] = snapshot.image
    return [found[digest] for digest in sorted(found)] if found else []


def image_faults(store: Store, wanted: Mapping[str, int]) -> Iterator[tuple[int | None, str, str]]:
    """What is wrong with images: those that records refer to (digest to the first such record), and the others."""
    for digest, number in wanted.items():
        image = store.image(digest)
        if image is None:
            yield number, f"its snapshot {digest} is missing: programs are run again instead", digest
        elif not image.is_whole:
            yield number, f"its snapshot {digest} is not what was written: programs are run again instead", digest
    for digest in store.images():
        if digest not in wanted and (image := store.image(digest)) is not None and not image.is_whole:
            yield None, f"the snapshot {digest} is not what was written", digest


def key_beside(path: Path, *, make: bool) -> bytes | None:
    """The key for the images of the loom at `path`; None, with a line in the log, where there is none to be trusted."""
    if sys.platform == "win32":  # a file's mode says nothing there about who may read it
        return None
    beside = path.with_name(f"{path.name}.key")
    try:
        if make:
            _make(beside)
        return _read(beside)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("loom.no_snapshot_key", path=str(beside), error=error.strerror, hint=_HINT)
        return None


_HINT: Final = "no snapshots are written or loaded: programs are run again instead"


def _make(beside: Path) -> None:
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    try:
        os.write(fd, secrets.token_bytes(SECRET))
    finally:
        os.close(fd)


def _read(beside: Path) -> bytes | None:
    fd = os.open(beside, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        secret = b""
        for pause in (0.0, 0.001, 0.01, 0.1):  # another process may be about to write it
            if not secret:
                time.sleep(pause)
                secret = os.pread(fd, SECRET + 1, 0)
        about = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        why = "somebody else may read or change it: expected a file of this user with mode 0600"
    elif len(secret) != SECRET:
        why = f"expected {SECRET} bytes, found {len(secret)}: remove it, and a new one is made"
    else:
        return hmac.digest(secret, f"{about.st_ino} {about.st_ctime_ns}".encode(), "sha256")
    _log.warning("loom.no_snapshot_key", path=str(beside), error=why, hint=_HINT)
    return None
