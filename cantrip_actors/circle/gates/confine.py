"""Paths inside one folder: the file gates stay below their root for any path.

There are two steps. `place` decides: it resolves the path with every symlink in it, also a dangling one, and refuses a
path that does not end below the root. `ConfinedPath.open` acts: it walks from the root to the resolved place by
directory handles and follows no symlink at all. Since the resolved path has none, meeting one means that a folder was
swapped for a link in between, and that is refused as well. So there is no gap between check and use.

On the way, each folder and the file at the end are compared, as open handles, with what belongs to the runtime itself
(`own_files/claims.py`): looms, dispatches, recipes and keys are refused, also through a hard link or a mount.

Refusals say what is expected and repeat the path as it was given. They never show the path of the root on the host.

It does not guard against hard links or mounts that lead to other files: a process that can make those inside the root
already has access outside it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.own_files.claims import Own

LONGEST: Final = 4096
"""Characters of a path, as on Linux."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # opening a pipe or a terminal must not block


def place(root: str | os.PathLike[str], path: str) -> ConfinedPath:
    """Return the place that `path` leads to below `root`; `path` is relative to the root, or absolute and inside it.

    Raises GateError if it leads elsewhere or is not a path.
    """
    shown = _shorten(path)
    if "\0" in path:
        raise GateError(f"path {shown}: expected a path without NUL characters")
    if len(path) > LONGEST:
        raise GateError(f"path {shown}: expected at most {LONGEST} characters, got {len(path)}")
    if not path.isascii() and path.encode("utf-8", "replace").decode() != path:
        raise GateError(f"path {shown}: expected text that can be written as UTF-8")
    requested = Path(path)
    if ".." in requested.parts:
        raise GateError(f'path {shown}: ".." is not allowed: name the path from the root folder')
    base = Path(root)
    try:
        own = Own.now()
        real = Path(os.path.realpath(base))
        target = Path(os.path.realpath(base / requested))
    except OSError as error:
        raise explain_refusal(error, path) from error
    if requested.is_absolute() and not (requested.is_relative_to(base.absolute()) or requested.is_relative_to(real)):
        raise GateError(f"path {shown} is outside the root folder: expected a path relative to it")
    if not target.is_relative_to(real):
        raise GateError(f"path {shown} leads outside the root folder: expected a path inside it")
    return ConfinedPath(real, target.relative_to(real).parts, path, own)


def explain_refusal(error: OSError, path: str, near: str = "") -> GateError:
    """Return the error that the entity reads about an operating system's refusal of `path`."""
    shown = _shorten(path)
    match error.errno:
        case errno.ENOENT:
            return GateError(f"no such file or folder: {shown}{near}")
        case errno.EISDIR:
            return GateError(f"{shown} is a folder, expected a file")
        case errno.ENOTDIR:
            return GateError(f"{shown}: a part of the path is a file, expected folders{near}")
        case errno.ELOOP:
            return GateError(f"path {shown} leads out of the root folder or in a circle")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return GateError(f"no permission for {shown}")
        case errno.ENAMETOOLONG:
            return GateError(f"path {shown}: a name in it is too long")
        case _:
            return GateError(f"{shown}: {error.strerror or type(error).__name__}")


def _shorten(path: str) -> str:
    text = path if len(path) <= 120 else f"{path[:117]}…"
    return f'"{text.encode("utf-8", "backslashreplace").decode()}"'.replace("\0", "\\0")


@dataclass(frozen=True, slots=True)
class ConfinedPath:
    """A resolved place below a root: `parts` lead there from `root`, and none was a symlink when it was checked."""

    root: Path
    parts: tuple[str, ...]
    requested: str
    """The path as it was given, for messages."""
    own: Own = field(default_factory=Own.now, compare=False, repr=False)
    """The files of the runtime, which are refused."""

    @property
    def name(self) -> str:
        """The path from the root, as the entity may use it; "." for the root itself."""
        return "/".join(self.parts) or "."

    @contextmanager
    def folder(self, *, above: bool = False, make: bool = False) -> Iterator[int]:
        """Yield a handle of the folder here, or with `above` of the one that contains this place; `make` creates it.

        Raises GateError if the folder does not exist.
        """
        parts = self.parts[:-1] if above else self.parts
        try:
            is_own = self.own.has_above(self.root)
            handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise GateError("the root folder does not exist or cannot be opened") from error
        try:
            self._refuse_own(is_own)
            for part in parts:
                deeper = self._step(handle, part, make=make)
                os.close(handle)
                handle = deeper
            yield handle
        finally:
            os.close(handle)

    def _step(self, handle: int, part: str, *, make: bool) -> int:
        self._refuse_own(self.own.has_name(handle, part))
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=handle)
            deeper = os.open(part, _FOLDER, dir_fd=handle)
        except OSError as error:
            if error.errno == errno.ENOTDIR and stat.S_ISLNK(read_mode(part, handle)):
                error = OSError(errno.ELOOP, "", part)
            raise explain_refusal(error, self.requested, _suggest_names(handle, part)) from error
        if self.own.has_folder(deeper):
            os.close(deeper)
            self._refuse_own(True)
        return deeper

    def _refuse_own(self, is_own: bool) -> None:  # `is_own` is the result of the check that it wraps
        if is_own:
            raise GateError(
                f"{_shorten(self.requested)} belongs to the runtime, which keeps its looms, dispatches, recipes and "
                "keys to itself: name another path"
            )

    def check_target(self, folder: int) -> None:
        """Raise GateError if the file that is, or would be, here in its open folder belongs to the runtime."""
        name = self.parts[-1]
        self._refuse_own(self.own.has_name(folder, name))
        if stat.S_ISREG(read_mode(name, folder)):
            try:
                handle = os.open(name, os.O_RDONLY | _FILE, dir_fd=folder)
            except OSError as error:  # the file cannot be inspected
                raise explain_refusal(error, self.requested) from error
            try:
                self._refuse_own(self.own.has_file(handle))
            finally:
                os.close(handle)

    def open(self) -> int:
        """Return a handle of the regular file here, for reading.

        Raises GateError if there is no such file.
        """
        if not self.parts:
            raise GateError(f"{_shorten(self.requested)} is a folder, expected a file")
        with self.folder(above=True) as folder:
            self._refuse_own(self.own.has_name(folder, self.parts[-1]))
            try:
                handle = os.open(self.parts[-1], os.O_RDONLY | _FILE, dir_fd=folder)
            except OSError as error:
                raise explain_refusal(error, self.requested, _suggest_names(folder, self.parts[-1])) from error
        kind = os.fstat(handle).st_mode
        if not stat.S_ISREG(kind):
            os.close(handle)
            what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
            raise GateError(f"{_shorten(self.requested)} is {what}, expected a file")
        if self.own.has_file(handle):
            os.close(handle)
            self._refuse_own(True)
        return handle


def read_mode(name: str, folder: int) -> int:
    """Return the mode of the file with that name in a folder, without following a link; 0 if it is unknown."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _suggest_names(folder: int, name: str) -> str:
    """Return the end of a "no such file" error: similar names in the folder."""
    import difflib

    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    close = difflib.get_close_matches(name, names[:1000], n=3)
    return f"; did you mean {', '.join(map(_shorten, close))}?" if close else ""
