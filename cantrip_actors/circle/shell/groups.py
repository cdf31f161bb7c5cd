"""Control groups (cgroup v2) for jails, where the machine has delegated a part of its tree to this process.

A group bounds the total of all processes of a jail, and ends them in one step that no process can escape. A part counts
as delegated if this process may write there and either systemd says so (the attribute `delegate`, as for a user's slice
or `Delegate=yes`), or this process is at the root of the tree that it sees, as in a container, and no systemd manages
that tree.

The kernel gives limits to the children of a group only if the group itself has no processes. If this process is the
only one in it, it moves into a child group; otherwise groups end jails and bound nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

PREFIX: Final = "cantrip-"
CONTROLLERS: Final = ("memory", "pids", "cpu")

ENDING: Final = 0.5
"""Seconds that the kernel may take to empty a group whose processes have been killed."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Group:
    """The control group of one jail."""

    path: Path

    def add(self, process: int) -> None:
        """Put a process into this group; processes that it starts later are in it too. Raises OSError."""
        (self.path / "cgroup.procs").write_text(f"{process}\n", encoding="ascii")

    def kill(self) -> None:
        """End all processes of this group at once."""
        with contextlib.suppress(OSError):  # before Linux 5.14 this file does not exist
            (self.path / "cgroup.kill").write_text("1\n", encoding="ascii")

    def has_killed_for_memory(self) -> bool:
        """Return whether the kernel ended a process of this group because no memory was left."""
        try:
            events = (self.path / "memory.events").read_text(encoding="ascii")
        except FileNotFoundError:
            return False
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in events.splitlines())

    def remove(self) -> None:
        """End the group's processes and remove it. A group that does not empty is left to a later process."""
        self.kill()
        ends = time.monotonic() + ENDING
        while self.path.exists() and time.monotonic() < ends:
            try:
                self.path.rmdir()
            except OSError:
                time.sleep(0.001)


@dataclass(frozen=True, slots=True)
class DelegatedGroups:
    """A part of the tree in which this process may make groups, and the limits that it can set there."""

    path: Path
    controllers: frozenset[str]

    @property
    def bounds_memory(self) -> bool:
        """Whether a whole jail's memory is bounded, shared memory and unwritten files included."""
        return "memory" in self.controllers

    def make(self, limits: Mapping[str, str]) -> Group:
        """Return a new, empty group with these limits, by the names of their files. Raises OSError."""
        group = Group(self.path / f"{PREFIX}{os.getpid()}-{next(_numbers)}")
        group.path.mkdir()
        try:
            for name, limit in limits.items():
                if name.partition(".")[0] in self.controllers:
                    with contextlib.suppress(FileNotFoundError):  # for example swap, if the machine has none
                        (group.path / name).write_text(f"{limit}\n", encoding="ascii")
        except OSError:
            group.remove()
            raise
        return group


@cache
def find_delegated() -> DelegatedGroups | None:
    """Return the part of the machine's tree that this process may use, or None."""
    mount = _find_mount()
    if mount is None:
        return None
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        inside = next((line[3:] for line in lines if line.startswith("0::")), None)
        if inside is not None:
            is_managed = Path("/run/systemd/system").exists()
            return find(mount / inside.lstrip("/"), is_root=inside == "/" and not is_managed)
    return None


def find(path: Path, *, is_root: bool) -> DelegatedGroups | None:
    """Return the part of the group at `path`, which contains this process, that the process may use; None if it was not
    delegated.

    `is_root` says that the group is the root of the tree and nothing else manages it.
    """
    if not (is_root or _is_marked(path)) or not os.access(path, os.W_OK):
        return None
    _sweep(path)
    with contextlib.suppress(OSError):
        offered = set((path / "cgroup.controllers").read_text(encoding="ascii").split()) & set(CONTROLLERS)
        enabled = _read_controllers(path)
        if not offered <= enabled:
            with contextlib.suppress(OSError):
                _enable(path, offered - enabled)
        return DelegatedGroups(path, frozenset(offered & _read_controllers(path)))
    return None


def _read_controllers(path: Path) -> set[str]:
    return set((path / "cgroup.subtree_control").read_text(encoding="ascii").split())


def _enable(path: Path, controllers: set[str]) -> None:
    words = " ".join(f"+{name}" for name in sorted(controllers))
    control = path / "cgroup.subtree_control"
    try:
        control.write_text(words, encoding="ascii")
    except OSError:  # the group contains other processes
        if (path / "cgroup.procs").read_text(encoding="ascii").split() != [str(os.getpid())]:
            raise
        own = path / f"{PREFIX}host-{os.getpid()}"
        own.mkdir()
        (own / "cgroup.procs").write_text(f"{os.getpid()}\n", encoding="ascii")
        control.write_text(words, encoding="ascii")


def _sweep(path: Path) -> None:
    for left in path.glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).removeprefix("host-").partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            Group(left).remove()


def _is_marked(path: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    return False


def _find_mount() -> Path | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if fields[fields.index("-") + 1] == "cgroup2":
                return Path(fields[4])
    return None
