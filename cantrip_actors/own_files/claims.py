"""The files that belong to the runtime: looms with their side files, dispatches, recipes, keys.

Code that opens such a file claims it in a list of the process, which the file gates check: no gate reads, lists or
writes a claimed file. A claim is compared by inode, so a hard link, a symlink, a mount and another spelling of the path
lead to the same answer; the sidecars of a loom are also known by their names in its folder, whether they exist yet or
not. Unclaimed files are recognised by their content: a folder called `.cantrip`, and a file that begins like a loom or
a dispatch, such as the loom of another process.

Only this module decides. A file that it cannot inspect raises OSError, and the gate refuses.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

HOME: Final = ".cantrip"
"""The folder in which the command line keeps looms and dispatches."""

BESIDE: Final = (".key", ".head", ".new", "-wal", "-shm", "-journal")
"""The endings of the names of side files: of an SQLite loom, of the log of a dispatch, and of a new file of a loom."""


def list_loom_files(loom: Path) -> list[Path]:
    """Return the files of a loom that exist: its own first, then those beside it, also new ones that a crash left."""
    names = (loom.name, *(f"{loom.name}{ending}{new}" for ending in BESIDE for new in ("", ".new")))
    return [path for name in names if (path := loom.with_name(name)).is_file()]


SQLITE: Final = b"SQLite format 3\0"
APPLICATION: Final = 0x4C4F4F4D
"""The application id in the head of a SQLite loom: `LOOM`."""

_APPLICATION_AT: Final = 68
HEAD: Final = 128
"""The number of first bytes that identify a file of the runtime."""

_LINES: Final = re.compile(
    rb'\{"loom": ?\d|\{"kind":"header","entity":|\{"seq":1,"ts":"[^"]{1,40}","kind":"contract",', re.DOTALL
)
_HANDLE: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class FileIdentity(NamedTuple):
    """The identity of a file or folder, under any name."""

    device: int
    inode: int


class FileClaim:
    """A claim that a path belongs to the runtime, until `release` is called."""

    def __init__(self, path: Path, *, is_folder: bool) -> None:
        self.key = path, is_folder
        _claims.add(self)

    def release(self) -> None:
        """End the claim; a second call does nothing."""
        _claims.discard(self)


_claims: Final[set[FileClaim]] = set()
"""No lock: the collector of garbage may release a claim in the middle of any statement, also of one that holds a lock.
Each change is one step of the interpreter."""


def claim_file(path: str | os.PathLike[str]) -> FileClaim:
    """Claim a file, which need not exist yet, and all files in its folder whose names begin with its name."""
    return FileClaim(Path(os.path.realpath(path)), is_folder=False)


def is_claimed(path: str | os.PathLike[str]) -> bool:
    """Return whether this process has claimed a file under this name."""
    return any(claim.key == (Path(os.path.realpath(path)), False) for claim in _claims.copy())


def claim_folder(path: str | os.PathLike[str]) -> FileClaim:
    """Claim a folder, which need not exist yet, with all that is in it."""
    return FileClaim(Path(os.path.realpath(path)), is_folder=True)


def hold(owner: object, claim: FileClaim) -> None:
    """Keep a claim for as long as `owner` exists."""
    weakref.finalize(owner, claim.release)


@dataclass(frozen=True, slots=True)
class Own:
    """The files of the runtime at one moment. `Own.now()` makes it."""

    folders: frozenset[FileIdentity] = frozenset()
    files: frozenset[FileIdentity] = frozenset()
    names: frozenset[tuple[FileIdentity, str]] = frozenset()
    """Folders with the case-folded names of claimed files in them, which need not exist yet."""
    beside: frozenset[tuple[FileIdentity, str]] = frozenset()
    """Those of them that are files: files next to them whose names begin with theirs are claimed, too."""
    paths: tuple[Path, ...] = field(default=(), compare=False)

    @classmethod
    def now(cls) -> Own:
        """Return the files that are claimed now. Raises OSError if a claimed file cannot be inspected."""
        claims = {claim.key for claim in _claims.copy()}
        folders, files, names, beside = set(), set(), set(), set()
        for path, is_folder in claims:
            above = _read_status(path.parent)
            if above is None:
                continue
            name = _make_identity(above), _fold(path.name)
            names.add(name)
            if is_folder:
                folders |= {_make_identity(status) for status in (_read_status(path),) if status is not None}
                continue
            beside.add(name)
            statuses = (_read_status(path.with_name(path.name + ending)) for ending in ("", *BESIDE))
            files |= {_make_identity(status) for status in statuses if status is not None}
        paths = tuple(sorted(path for path, _ in claims))
        return cls(frozenset(folders), frozenset(files), frozenset(names), frozenset(beside), paths)

    def has_folder(self, handle: int) -> bool:
        """Whether the open folder is a claimed one."""
        return _make_identity(os.fstat(handle)) in self.folders

    def has_above(self, folder: Path) -> bool:
        """Whether a folder, or one that it is in, is a claimed one."""
        return any(_make_identity(above.stat()) in self.folders for above in (folder, *folder.parents))

    def has_name(self, folder: int, name: str) -> bool:
        """Return whether the file that has, or would have, that name in the open folder belongs to the runtime."""
        folded = _fold(name)
        if folded == HOME:
            return True
        here = _make_identity(os.fstat(folder))
        if (here, folded) in self.names:
            return True
        if any(where == here and _is_beside(folded, claimed) for where, claimed in self.beside):
            return True
        return any(
            folded.endswith(ending) and _is_ours_named(folder, name[: -len(ending)])
            for ending in BESIDE
            if len(name) > len(ending)
        )

    def has_file(self, handle: int) -> bool:
        """Whether the open file belongs to the runtime, by its inode or by how it begins."""
        return _make_identity(os.fstat(handle)) in self.files or begins_as_ours(os.pread(handle, HEAD, 0))

    def has_path(self, root: str | os.PathLike[str], text: str) -> bool:
        """Return whether a text, as a path below `root` or as an absolute path, leads to a file of the runtime.

        It is resolved as the system does, and as programs do that shorten `a/../b` first. Names that do not exist are
        skipped, so text that is not a path leads nowhere, at any length.
        """
        texts = dict.fromkeys((text, os.path.normpath(text))) if text else ()
        return any(self._leads_here(Path(os.path.realpath(root)), text) for text in texts)

    def _leads_here(self, at: Path, text: str) -> bool:
        missing = 0  # names after one that does not exist
        if text.startswith("/"):
            at = Path("/")
        for part in text.split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                at, missing = (at, missing - 1) if missing else (at.parent, 0)
                continue
            there = None if missing else _resolve_target(at, part)
            if not missing and self._is_own(at, part, there):
                return True
            at, missing = (at, missing + 1) if there is None else (there, 0)
        return False

    def _is_own(self, folder: Path, name: str, target: Path | None) -> bool:
        try:
            handle = os.open(folder, _HANDLE)
        except NotADirectoryError:
            return False
        try:
            if self.has_name(handle, name):
                return True
        finally:
            os.close(handle)
        if target is None:
            return False
        status = target.stat()
        is_own = _make_identity(status) in self.folders | self.files or _fold(target.name) == HOME
        return is_own or (stat.S_ISREG(status.st_mode) and _is_ours(target))


def _resolve_target(folder: Path, name: str) -> Path | None:
    """Return the target of a name in a folder; None if this process cannot reach it."""
    try:
        return Path(os.path.realpath(folder / name, strict=True))
    except (OSError, ValueError):  # there is no such name, or there cannot be one
        return None


def begins_as_ours(head: bytes) -> bool:
    """Return whether a file with these first bytes is a loom or the log of a dispatch, also of another process."""
    if head.startswith(SQLITE):
        return int.from_bytes(head[_APPLICATION_AT : _APPLICATION_AT + 4], "big") == APPLICATION
    return _LINES.match(head) is not None


def _is_beside(name: str, claimed: str) -> bool:
    """Return whether a name is that of a sidecar of a claimed file, or of a draft of it; both are case-folded."""
    return name.startswith((f"{claimed}.", f"{claimed}-", f".{claimed}."))


def _is_ours_named(folder: int, name: str) -> bool:
    try:
        handle = os.open(name, _LOOK, dir_fd=folder)
    except (OSError, ValueError):  # there is no such file, or there cannot be one
        return False
    try:
        return stat.S_ISREG(os.fstat(handle).st_mode) and begins_as_ours(os.pread(handle, HEAD, 0))
    finally:
        os.close(handle)


def _is_ours(path: Path) -> bool:
    try:
        handle = os.open(path, _LOOK)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        return begins_as_ours(os.pread(handle, HEAD, 0))
    finally:
        os.close(handle)


def _read_status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _make_identity(status: os.stat_result) -> FileIdentity:
    return FileIdentity(status.st_dev, status.st_ino)


def _fold(name: str) -> str:
    """Return a name as a file system compares it that ignores case and the composition of letters."""
    return unicodedata.normalize("NFKC", name).casefold()
