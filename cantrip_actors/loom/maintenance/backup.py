"""Back up and compact a loom while it is in use."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cantrip_actors.loom.integrity.copy import copy_loom
from cantrip_actors.loom.integrity.verify import Verified, verify_loom
from cantrip_actors.loom.memory.jsonl import JsonlStore
from cantrip_actors.loom.opening import open_store
from cantrip_actors.loom.seal.line_file import describe_failure
from cantrip_actors.loom.seal.seal_key import SealKey
from cantrip_actors.loom.sqlite.sqlite import SqliteStore
from cantrip_actors.loom.stores.store import Store
from cantrip_actors.own_files.claims import list_loom_files
from cantrip_actors.own_files.modes import make_folder
from cantrip_actors.records.instant import format_instant
from cantrip_actors.redact.urls import render_url
from cantrip_actors.terms.arguments import check, check_kind, is_finite
from cantrip_actors.terms.errors import LoomError

KEEP_KEYS = 7 * 86_400.0
"""Seconds for which `compact_loom` keeps the keys of taken mail."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of `compact_loom`: deleted blobs, and the size of the loom's files before and after, in bytes.

    The sizes are 0 for a loom without files.
    """

    blobs: int
    before: int = 0
    after: int = 0


def backup_loom(
    url: str | os.PathLike[str], file: str | os.PathLike[str], *, seal_key: SealKey | None = None
) -> Verified:
    """Copy the loom at `url`, which may be in use, to a new SQLite or JSONL file; return the copy's verification.

    The copy is the loom at one moment, without leases, so it opens anywhere. The file appears once it is complete.
    Snapshots of sandboxes are copied; their key is not, so programs are replayed where the key is missing. A blob that
    the loom has lost is lost in the copy, too, and the verification says so.

    The copy of a sealed loom is sealed with the same key.

    Raises LoomError if the file or a file beside it exists, the loom cannot be read, or a record does not verify.
    """
    path = Path(file).absolute()
    if path.exists():
        raise LoomError(f"{path} exists already: give the name of a new file")
    for left in list_loom_files(path):  # of a file that is gone: its write-ahead log would be read as the copy's
        if left.stat().st_size and not left.name.endswith("-shm"):
            raise LoomError(f"{left} exists already: remove it, or give the name of another file")
    kind = JsonlStore if path.suffix == ".jsonl" else SqliteStore
    with open_store(url, read_only=True, seal_key=seal_key) as source, _open_folder(path) as folder:
        part = folder / path.name
        if isinstance(source, SqliteStore) and kind is SqliteStore:
            source.copy_to(part)
            with kind(part, read_only=True, seal_key=seal_key) as target:
                verified = verify_loom(target)
        else:
            with kind(part, seal_key=seal_key) as target:
                verified = copy_loom(source, target)
        faults = [fault for fault in verified.faults if fault.blob is None]
        if faults:
            raise LoomError(f"the loom at {render_url(os.fspath(url))} has faults, and no backup was made: {faults[0]}")
        key = part.with_name(f"{part.name}.key")
        if key.exists():
            key.replace(path.with_name(f"{path.name}.key"))
        part.replace(path)
    return verified


@contextmanager
def _open_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside a new file, in which only this call makes that file; it is removed afterwards.

    A process that was killed leaves its folder, and the next call for the same file uses it. Raises LoomError if
    another call has the folder, or has just made the file.
    """
    folder = path.with_name(f".{path.name}.parts")
    with ExitStack() as stack:
        try:
            make_folder(folder)
            lock = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock.fileno()), Path(lock.name).stat()):
                raise BlockingIOError  # the call that had the folder has just removed it
        except (BlockingIOError, FileNotFoundError) as error:
            raise LoomError(f"another backup to {path} is being made: wait for it, or name another file") from error
        except OSError as error:
            raise LoomError(f"cannot write to {path.parent}: {describe_failure(error)}") from error
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if path.exists():
            raise LoomError(f"{path} exists already: give the name of a new file")
        for left in folder.iterdir():
            if left.name != "lock":
                left.unlink()
        yield folder


def compact_loom(store: Store, now: float | None = None) -> Compacted:
    """Delete unreferenced blobs and the keys of mail settled a week ago, and free space; return the result.

    The loom is rewritten, so no other process should write to it for long meanwhile. Raises LoomError.
    """
    check_kind("store", store, Store, "a store, as of open_store(…)", LoomError)
    check(now is None or is_finite(now), "now", "seconds since 1970", now)
    before = _measure_size(store)
    blobs = store.drop_unused_blobs()
    store.expire_mail(format_instant((time.time() if now is None else now) - KEEP_KEYS))
    store.scrub()
    return Compacted(blobs, before, _measure_size(store))


def _measure_size(store: Store) -> int:
    path = getattr(store, "path", None)
    return 0 if path is None else sum(file.stat().st_size for file in list_loom_files(path))
