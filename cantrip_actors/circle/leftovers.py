"""End the leftovers of a dead process's sandboxes: running processes and folders.

Sandboxed processes end with their host by the kernel's own means (`--die-with-parent`, PR_SET_PDEATHSIG). Those have
gaps: if the host dies while bubblewrap starts, one half of bubblewrap waits for the other forever; and the signal
reaches the shell but not the processes that it has started. So a watcher, a process of its own, waits for the host's
end and then sweeps the host's folder. The first sandbox of a later process sweeps the folders that no watcher has
swept.

A sweep finds processes by two properties that they cannot change. The command line of a process that starts a sandbox
names its folder. A confined process has a filter of system calls and is in the session that the folder's file `session`
names.

This file runs as a program of its own (`python -I -S leftovers.py`), so it imports only the standard library. Linux
only, except `remove`, and `sweep`, which elsewhere only removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SESSION = "session"
"""The file in a sandbox's folder that identifies its session."""

SETTLING = 0.5
"""Seconds until a process that was just forked has its own command line."""

DYING = 2.0
"""Seconds that killed processes may take to end."""


def watch(folder: Path) -> None:
    """Start a process that sweeps this process's folder after this process has ended."""
    if not sys.executable or hasattr(sys, "frozen"):  # no interpreter to start: the next process sweeps
        return
    arguments = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(folder)]
    closed = [(os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in range(3)]
    signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    os.posix_spawn(sys.executable, arguments, {}, file_actions=closed, setsid=True, setsigmask=(), setsigdef=signals)


def record_session(folder: Path, leader: int) -> None:
    """Record in a sandbox's folder the session of its processes. The leader must not have been reaped yet."""
    (folder / SESSION).write_text(f"{leader} {_read_stat(leader)[_START]} {_read_system()}", encoding="ascii")


def sweep(folder: Path) -> None:
    """End the processes of the sandboxes in a folder whose owner is dead, and remove the folder."""
    if sys.platform == "linux":
        _end_all(folder, set(_find_sessions(folder)))
    remove(folder)


def end_session(session: int) -> None:
    """End all confined processes of a session. Its leader must not have been reaped, so that the id is not reused."""
    _end_all(None, {session})


def _end_all(folder: Path | None, sessions: set[int]) -> None:
    ends = time.monotonic() + DYING
    while _kill(_find_remaining(folder, sessions)) and time.monotonic() < ends:
        time.sleep(0.001)


def remove(path: Path) -> None:
    """Remove a folder of any depth, even if its owner has removed its own right to change it.

    It uses the system's own programs, which follow no link and support any depth. A killed process may still write for
    a moment, so removal is tried more than once. Never raises: a later sweep removes the rest.
    """
    commands = [["/bin/rm", "-rf"]] if os.getuid() == 0 else [["/bin/chmod", "-R", "u+rwX"], ["/bin/rm", "-rf"]]
    for _ in range(20):
        for command in commands if path.exists() else ():
            subprocess.run([*command, "--", str(path)], check=False, stderr=subprocess.DEVNULL)  # noqa: S603
        if not path.exists():
            return
        time.sleep(0.02)


_STATE, _SESSION, _START = 0, 3, 19
"""The positions of a process's state, session and start time in the fields of `_read_stat`."""


def _find_sessions(folder: Path) -> Iterator[int]:
    """Yield the sessions of a folder's sandboxes, except those whose id another process has now."""
    for file in folder.glob(f"*/{SESSION}"):
        with contextlib.suppress(OSError, ValueError):
            session, start, system = file.read_text(encoding="ascii").split()
            if system != _read_system():
                continue
            leader = Path(f"/proc/{session}")
            if not leader.exists() or _read_stat(int(session))[_START] == start:
                yield int(session)


def _read_system() -> str:
    """Return the scope of process ids: the machine's boot and the namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _read_stat(pid: int) -> list[str]:
    """Return the fields of a process's `stat`, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _find_remaining(folder: Path | None, sessions: set[int]) -> Iterator[int]:
    """Yield descriptors of the processes that belong to sandboxes in a folder, or to one of these sessions."""
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            process = os.pidfd_open(pid)
            try:
                # the handle keeps the id from being reused, so a later signal reaches no other process
                if _starts_sandbox(pid, folder) or _is_confined(pid, sessions):
                    yield process
            finally:
                os.close(process)


def _starts_sandbox(pid: int, folder: Path | None) -> bool:
    """True for a process that starts a sandbox in the folder: bubblewrap, or the launcher that becomes a shell."""
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if folder else []
    below = os.fsencode(f"{folder}/")
    is_named = any(argument.startswith(below) for argument in arguments)
    return is_named and not {b"--unshare-all", b"-I"}.isdisjoint(arguments)


def _is_confined(pid: int, sessions: set[int]) -> bool:
    """True for a living process of one of these sessions that has a filter of system calls."""
    fields = _read_stat(pid)
    if fields[_STATE] == "Z" or int(fields[_SESSION]) not in sessions:
        return False
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    return "\nNoNewPrivs:\t1" in status and "\nSeccomp:\t2" in status


def _kill(processes: Iterator[int]) -> bool:
    """Kill these processes, and return whether there was one."""
    has_killed = False
    for process in processes:
        has_killed = True
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    return has_killed


def main(host: int, folder: Path) -> None:
    """Wait until the host has ended, then sweep its folder; sweep again for a process that was just being forked."""
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(host)
        if os.getppid() == host:
            select.select([process], [], [])
    sweep(folder)
    time.sleep(SETTLING)
    sweep(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
