"""The compiled JavaScript engine on disk, so that it is compiled once per machine and not once per process.

The file is machine code: a process that can change it can run anything as this user. So it is read only if folder and
file belong to this user, are not writable by others and are not links; and its digest is checked in memory before the
engine gets it. wasmtime refuses code of another version of itself or for another processor. If a check fails, or the
file cannot be stored, the engine is compiled; that is not an error and needs no setup. The folder is in
`XDG_CACHE_HOME`, else in `~/.cache`, and can be removed at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final

import wasmtime

LARGEST: Final = 64 * 1024 * 1024
"""The most bytes that are read of a file."""

KEPT: Final = 4
"""The number of files that are kept, newest first; each is of another version."""

_DIGEST: Final = 32


def load_module(engine: wasmtime.Engine, wasm: bytes, settings: str) -> wasmtime.Module:
    """Return the module: from the folder if it is there, else compiled and stored there.

    `settings` names everything else that the machine code depends on. Blocks: compiling takes about a second.
    """
    path = find_path(wasm, settings)
    if path is not None:
        code = _read(path)
        if code is not None:
            with contextlib.suppress(wasmtime.WasmtimeError):  # the file is of another version or for another processor
                return wasmtime.Module.deserialize(engine, code)
    module = wasmtime.Module(engine, wasm)
    if path is not None:
        with contextlib.suppress(OSError):
            _write(path, bytes(module.serialize()))
    return module


def find_path(wasm: bytes, settings: str) -> Path | None:
    """Return the path for a module's machine code; None if it cannot be stored."""
    if sys.platform == "win32":  # it has no owners and modes to check
        return None
    try:
        base = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(base) if base else Path.home() / ".cache") / "cantrip-actors" / "engines"
    except RuntimeError:  # the user has no home directory
        return None
    about = f"wasmtime {version('wasmtime')}\n{sys.platform}\n{settings}\n".encode()
    return folder / f"javascript-{hashlib.sha256(about + wasm).hexdigest()[:32]}"


def _read(path: Path) -> bytes | None:
    """Return the machine code in a file, or None if it cannot be trusted."""
    try:
        if not _is_ours(path.parent.lstat(), stat.S_ISDIR):
            return None
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not _is_ours(os.fstat(handle), stat.S_ISREG):
            return None
        with open(handle, "rb", closefd=False) as file:  # the handle was checked; the path may name another file by now
            data = file.read(LARGEST)
    finally:
        os.close(handle)
    digest, code = data[:_DIGEST], data[_DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def _is_ours(status: os.stat_result, kind: Callable[[int], bool]) -> bool:
    return kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _write(path: Path, code: bytes) -> None:
    """Store the code, whole or not at all. Raises OSError if that fails."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(path.parent.lstat(), stat.S_ISDIR):
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    cached = sorted(path.parent.glob("javascript-*"), key=lambda file: file.lstat().st_mtime, reverse=True)
    for old in cached[KEPT:]:
        old.unlink(missing_ok=True)
