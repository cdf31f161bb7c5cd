"""The files of one shell: their size, their state after the last program, and how to restore that state.

A shell has three folders: its own, `tmp` and `shared`, which it sees as /tmp and /dev/shm if it has those. After each
program `keep` walks all of them and copies changed files; when the next program exceeds a limit, `undo` builds new
folders from those copies and the unchanged files.

The program made these files, and may change them during the walk. So every step goes from folder to folder by handle,
follows no link, opens only regular files, and never blocks on one. New folders are made where no program can reach
them.

In files that were copied back, hard links become separate files, and attributes other than mode and time are lost.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from cantrip_actors.circle import scratch

FILES: Final = 256 * 1024 * 1024
"""Bytes that the files of a shell may take."""

ENTRIES: Final = 20_000
"""Files and folders that it may have."""

DEEPEST: Final = 100
"""The depth of its nested folders."""

IMAGE: Final = 8 * 1024 * 1024
"""The most bytes of files that a snapshot contains."""

FOLDERS: Final = ("home", "tmp", "shared")
FRESH: Final = 20_000_000
"""Nanoseconds in which two changes of a file can have the same time, because the kernel's clock has ticks."""

CHUNK: Final = 1024 * 1024
NAME_MAX: Final = 255
PATH_MAX: Final = 4096
_KINDS: Final = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO)
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TooMuch(Exception):
    """There are more files than allowed, or some cannot be inspected."""


class _Found(NamedTuple):
    """An entry of the walk: its path below the shell's top folder, a handle of its folder, and its status."""

    path: str
    folder: int
    status: os.stat_result


class _Kept(NamedTuple):
    """An entry after the last program. A file's `copy` is a number; a link's `target` is where it leads."""

    mode: int
    time: int
    looks: tuple[int, ...]
    """The facts that change with the file: inode, size, times. Empty if it may change without changing them."""
    copy: int = 0
    target: str = ""


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    """One file's entry in a snapshot. Its bytes follow those of the files before it."""

    path: str
    mode: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
    time: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    length: Annotated[int, msgspec.Meta(ge=0)]
    target: str

    def __post_init__(self) -> None:
        """Raise ValueError for values that `pack` never writes."""
        parts = self.path.split("/")
        if parts[0] not in FOLDERS or not all(map(_is_name, parts)):
            raise ValueError("the snapshot names a file that is in none of its folders")
        if stat.S_IFMT(self.mode) not in _KINDS or stat.S_ISLNK(self.mode) != bool(self.target):
            raise ValueError("the snapshot names something that is not a file, folder, link or pipe")
        if "\0" in self.target or len(self.target) >= PATH_MAX:
            raise ValueError("the snapshot has a link without a target")


class ShellFiles:
    """One shell's folders. They belong to `user`, if the host is root and each shell has its own user."""

    def __init__(self, user: int | None) -> None:
        self.user = user
        self.folder = scratch.make_folder("shell")
        """The folder that contains everything, copies included."""
        self._top = self.folder / "files"
        self.home, self.tmp, self.shared = (self._top / name for name in FOLDERS)
        """The shell's first working folder, and the folders that it may see as /tmp and /dev/shm."""
        self._copies = self.folder / "copies"
        self._copies.mkdir(mode=0o700)
        self._copied = 0
        self._kept: dict[str, _Kept] = {}
        self._make()
        self.keep()

    def _make(self) -> None:
        self._top.mkdir(mode=0o711)
        self._top.chmod(0o711)
        for folder in (self.home, self.tmp, self.shared):
            folder.mkdir(mode=0o700)
            self._give(folder)

    def _give(self, path: Path) -> None:
        if self.user is not None:
            os.chown(path, self.user, self.user, follow_symlinks=False)

    def grant_access(self) -> None:
        """Restore the user's rights to the folders, which a program may have removed."""
        for folder in (self.home, self.tmp, self.shared):
            mode = stat.S_IMODE(folder.stat().st_mode)
            if mode & 0o700 != 0o700:
                folder.chmod(mode | 0o700)

    # ------------------------------------------------------------------------------------------------------- how much

    def has_too_much(self, hidden: int = 0) -> bool:
        """Return whether the files, with `hidden` bytes of unnamed ones, exceed the bounds or cannot be inspected."""
        try:
            for _ in self._walk(self._top, hidden):
                pass
        except TooMuch:
            return True
        return False

    def _walk(self, top: Path, hidden: int = 0) -> Iterator[_Found]:
        """Yield all entries, a folder before its own entries. Raises TooMuch; `hidden` bytes count too."""
        size, entries = hidden, 0
        if size > FILES:
            raise TooMuch
        try:
            for name in FOLDERS:
                handle = os.open(top / name, _FOLDER)
                try:
                    yield _Found(name, -1, os.fstat(handle))
                    for entry in self._walk_below(name, handle, 1):
                        entries += 1
                        size += entry.status.st_blocks * 512
                        if entries > ENTRIES or size > FILES:
                            raise TooMuch
                        yield entry
                finally:
                    os.close(handle)
        except OSError as problem:
            raise TooMuch from problem

    def _walk_below(self, path: str, folder: int, depth: int) -> Iterator[_Found]:
        if depth > DEEPEST:
            raise TooMuch
        with os.scandir(folder) as listed:
            for item in listed:
                try:
                    entry = _Found(f"{path}/{item.name}", folder, item.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue  # the entry was removed meanwhile and takes no space
                yield entry
                if stat.S_ISDIR(entry.status.st_mode):
                    try:
                        handle = self._open(folder, item.name, _FOLDER)
                    except FileNotFoundError:
                        continue
                    mode = stat.S_IMODE(entry.status.st_mode)
                    hidden = os.getuid() != 0 and mode & 0o700 != 0o700
                    try:
                        if hidden:
                            os.fchmod(handle, mode | 0o700)
                        yield from self._walk_below(entry.path, handle, depth + 1)
                    finally:
                        if hidden:
                            os.fchmod(handle, mode)
                        os.close(handle)

    def _open(self, folder: int, name: str, flags: int) -> int:
        """Return a handle of an entry in a folder, even if its owner, who may be this user, has no right to it."""
        try:
            return os.open(name, flags, dir_fd=folder)
        except PermissionError:
            place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                status = os.fstat(place)
                if stat.S_ISLNK(status.st_mode):
                    raise
                here = Path(f"/proc/self/fd/{place}")
                here.chmod(stat.S_IMODE(status.st_mode) | 0o700)
                try:
                    return os.open(here, flags & ~os.O_NOFOLLOW)
                finally:
                    here.chmod(stat.S_IMODE(status.st_mode))
            finally:
                os.close(place)

    # ------------------------------------------------------------------------------------------- what was there before

    def keep(self, hidden: int = 0) -> bool:
        """Save the current state for `undo`. If there is too much, save nothing and return False.

        Files without a name count with `hidden` bytes, but cannot be restored.
        """
        files: dict[str, _Kept] = {}
        copies: list[int] = []
        try:
            for entry in self._walk(self._top, hidden):
                now = self._recall(entry, copies)
                if now is not None:
                    files[entry.path] = now
        except (TooMuch, OSError):
            self._forget(set(copies))
            return False
        self._forget({file.copy for file in self._kept.values()} - {file.copy for file in files.values()})
        self._kept = files
        return True

    def _recall(self, entry: _Found, copies: list[int]) -> _Kept | None:
        status, before = entry.status, self._kept.get(entry.path)
        mode, looks, name = status.st_mode, _read_looks(status), entry.path.rpartition("/")[2]
        if stat.S_ISREG(mode):
            if before is not None and before.looks == looks and before.mode == mode:
                return before
            is_fresh = status.st_ctime_ns > time.time_ns() - FRESH
            copy = self._make_copy(entry.folder, name)
            copies.append(copy)
            return _Kept(mode, status.st_mtime_ns, () if is_fresh else looks, copy)
        if stat.S_ISLNK(mode):
            return _Kept(mode, status.st_mtime_ns, looks, target=os.readlink(name, dir_fd=entry.folder))
        if stat.S_ISDIR(mode) or stat.S_ISFIFO(mode):
            return _Kept(mode, status.st_mtime_ns, looks)
        return None  # a program cannot create any other kind

    def _make_copy(self, folder: int, name: str) -> int:
        source = self._open(folder, name, _FILE)
        try:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise TooMuch  # it was a regular file when it was listed
            self._copied += 1
            self._copy(source, self._copies / str(self._copied))
        finally:
            os.close(source)
        return self._copied

    def _copy(self, source: int, to: Path) -> None:
        target = os.open(to, _NEW, 0o600)
        try:
            _copy(source, target)
        finally:
            os.close(target)

    def _forget(self, copies: set[int]) -> None:
        for copy in copies - {0}:
            (self._copies / str(copy)).unlink(missing_ok=True)

    def undo(self) -> None:
        """Restore the state that `keep` saved last. No process may run in the folders."""
        aside = self.folder / "undone"
        self._top.rename(aside)
        self._build(aside)
        scratch.remove(aside)

    def _build(self, aside: Path | None) -> None:
        """Build the folders as they were saved; unchanged files are moved from the folders that were set aside."""
        self._make()
        top = self._top
        folders = dict.fromkeys(FOLDERS)
        for path, file in self._kept.items():  # a folder comes before its entries
            if path not in folders and stat.S_ISDIR(file.mode) and path.rpartition("/")[0] in folders:
                (top / path).mkdir(mode=0o700)
                folders[path] = None
        moved = set() if aside is None else self._move(aside, top, folders)
        there = {
            path: file for path, file in self._kept.items() if path in folders or path.rpartition("/")[0] in folders
        }
        for path, file in there.items():
            if path not in folders:
                if path not in moved:
                    self._restore_file(top / path, file)
                # none is fresh: starting the next shell takes longer than a tick of the clock
                there[path] = file._replace(looks=_read_looks((top / path).lstat()))
        for path in reversed(folders):
            if path in there:
                self._finish(top / path, there[path])
        self._kept = there

    def _move(self, aside: Path, top: Path, folders: Collection[str]) -> set[str]:
        moved = set()
        try:
            for entry in self._walk(aside):
                file = self._kept.get(entry.path)
                folder, _, name = entry.path.rpartition("/")
                if file is None or not stat.S_ISREG(file.mode) or folder not in folders:
                    continue
                if file.mode == entry.status.st_mode and file.looks == _read_looks(entry.status):
                    os.rename(name, top / entry.path, src_dir_fd=entry.folder)
                    moved.add(entry.path)
        except TooMuch:
            pass  # the rest is copied
        return moved

    def _restore_file(self, path: Path, file: _Kept) -> None:
        if stat.S_ISLNK(file.mode):
            path.symlink_to(file.target)
            self._give(path)
            os.utime(path, ns=(file.time, file.time), follow_symlinks=False)
            return
        if stat.S_ISFIFO(file.mode):
            os.mkfifo(path, 0o600)
        else:
            source = os.open(self._copies / str(file.copy), _FILE)
            try:
                self._copy(source, path)
            finally:
                os.close(source)
        self._finish(path, file)

    def _finish(self, path: Path, file: _Kept) -> None:
        self._give(path)
        path.chmod(stat.S_IMODE(file.mode))
        os.utime(path, ns=(file.time, file.time))

    # --------------------------------------------------------------------------------------------------------- as bytes

    def pack(self) -> bytes | None:
        """Return the state that `keep` saved last as a snapshot; None if it is too large for one."""
        rows, parts, size = [], [], 0
        for path, file in self._kept.items():
            length = 0
            if stat.S_ISREG(file.mode):
                copy = self._copies / str(file.copy)
                length = copy.stat().st_size
                size += length
                if size > IMAGE:
                    return None
                parts.append(copy.read_bytes())
            rows.append(_Packed(_encode_path(path), file.mode, file.time, length, _encode_path(file.target)))
        return msgspec.json.encode(rows) + b"\n" + b"".join(parts)

    def unpack(self, image: bytes) -> None:
        """Restore the state of a `pack`. No process may run in the folders. Raises ValueError for other bytes."""
        head, _, rest = image.partition(b"\n")
        files: dict[str, _Kept] = {}
        at = 0
        for packed in msgspec.json.decode(head, type=list[_Packed]):
            copy = 0
            if stat.S_ISREG(packed.mode):
                self._copied += 1
                copy = self._copied
                (self._copies / str(copy)).write_bytes(rest[at : at + packed.length])
                at += packed.length
            files[_decode_path(packed.path)] = _Kept(
                packed.mode, packed.time, (), copy, target=_decode_path(packed.target)
            )
        if at != len(rest):
            raise ValueError("the snapshot is damaged: its files are not as long as it says")
        self._forget({file.copy for file in self._kept.values()})
        self._kept = files
        scratch.remove(self._top)
        self._build(None)

    def remove(self) -> None:
        """Remove all folders."""
        scratch.remove(self.folder)


def _read_looks(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and "\0" not in part and len(part) <= NAME_MAX


def _encode_path(path: str) -> str:
    """Return a name, which may have any bytes, as text."""
    return os.fsencode(path).decode("latin-1")


def _decode_path(text: str) -> str:
    return os.fsdecode(text.encode("latin-1"))


def _copy(source: int, target: int) -> None:
    """Copy a file with its holes, and share its bytes where the file system can."""
    size, at = os.fstat(source).st_size, 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as problem:
            if problem.errno == errno.ENXIO:  # only a hole remains
                break
            raise
        ends = min(os.lseek(source, at, os.SEEK_HOLE), size)
        os.lseek(source, at, os.SEEK_SET)
        os.lseek(target, at, os.SEEK_SET)
        while at < ends:
            wrote = _copy_some(source, target, ends - at)
            if not wrote:
                return
            at += wrote
    os.ftruncate(target, size)


def _copy_some(source: int, target: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, count)
    except OSError as problem:
        if problem.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return os.write(target, os.read(source, min(count, CHUNK)))
