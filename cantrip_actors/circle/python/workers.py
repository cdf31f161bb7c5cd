"""The worker processes in which Python programs compute: one pool a process, shared by all of its sandboxes.

A worker belongs to a sandbox for one step, and is free while a gate runs. So the pool needs no more
workers than there are cores, and entities that wait for their children cannot exhaust it, however deep they nest.

The interpreter has no way to reach the host, and the workers have none either, in case it had: their environment is
empty, their errors go nowhere, and where bubblewrap is installed they run in namespaces of their own, without a
network, a capability, or any file but the system's libraries. What stands around a worker is a small shell script: it
outlives bubblewrap's parent thread, which comes and goes with the thread that made the worker, and its death is
bubblewrap's.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic_monty import Monty
from pydantic_monty._binary import find_monty_binary

__all__ = ["GRACE", "Worker", "bytes_read", "checkers", "close", "workers"]

GRACE: Final = 0.6
"""Seconds past its limit after which a worker is killed that has not noticed. What is left of the second that the
contract allows is for the kill, and for a machine that is busy."""

CHECK: Final = 2.0
"""Seconds that a type check may take: its own clock, because nothing of the program runs then."""

SESSIONS: Final = 2_000
"""Steps after which a worker is replaced, so that what one leaks stays small."""

_LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_PROGRAM: Final = "program"
_ADDRESSES: Final = 4 * 1024 * 1024
"""KiB of address space of a worker: the last resort behind the interpreter's own accounting of memory."""


@dataclass
class _Pools:
    """The pools of this process, the script around their workers, and the process itself."""

    made: dict[str, Monty] = field(default_factory=dict)
    script: Path | None = None
    text: str = ""
    process: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_pools = _Pools()


class Worker:
    """A hold on the process that computes a step, to end it from another thread.

    By a file descriptor where the system has those: a number could be another process's by the time it is used.
    """

    __slots__ = ("_descriptor", "_pid")

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._descriptor: int | None = None
        if pid is not None and sys.platform == "linux":
            try:
                self._descriptor = os.pidfd_open(pid)
            except ProcessLookupError:  # it has died already
                self._pid = None
            except OSError:  # the kernel is older than 5.3
                pass

    def kill(self) -> None:
        """Kill the worker. Does nothing if it has ended."""
        try:
            if self._descriptor is not None and sys.platform == "linux":
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            elif self._pid is not None:
                os.kill(self._pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
        except ProcessLookupError:
            pass

    def release(self) -> None:
        """Release the worker: from now on another sandbox may use it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self._pid = None


def bytes_read() -> int:
    """Return the bytes that this thread has read so far: what comes out of a worker is read by who waits for it.

    Always 0 where the system does not count them (it is Linux that does).
    """
    try:
        counts = os.open("/proc/thread-self/io", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(counts, 64).split()[1])
    finally:
        os.close(counts)


def workers() -> Monty:
    """Return the pool that programs run in, made at its first use."""
    return _pool("run", None)


def checkers() -> Monty:
    """Return the pool for type checks: a check has no limits of its own, so the pool sets one."""
    return _pool("check", CHECK)


def close() -> None:
    """End all workers of this process. The next use makes new ones."""
    if _pools.process != os.getpid():  # forked from theirs, which still needs them
        return
    with _pools.lock:
        ended = list(_pools.made.values())
        _pools.made.clear()
        script, _pools.script = _pools.script, None
    for pool in ended:
        pool.__exit__(None, None, None)
    if script is not None:
        shutil.rmtree(script.parent, ignore_errors=True)


atexit.register(close)


def _pool(purpose: str, deadline: float | None) -> Monty:
    if _pools.process not in (None, os.getpid()):  # its native threads did not come along: it would wait for ever
        raise RuntimeError("the Python medium was used before this process was forked: start processes with spawn")
    with _pools.lock:
        if purpose not in _pools.made:
            if not _pools.made:
                _pools.script = _script_around(find_monty_binary())
            pool = Monty(
                binary_path=_pools.script,
                max_processes=_cores(),
                request_timeout=deadline,
                max_checkouts_per_worker=SESSIONS,
                feed_duration_limit_grace=GRACE,
            )
            _pools.made[purpose] = pool.__enter__()
            _pools.process = os.getpid()
        elif _pools.script is not None and not _pools.script.exists():
            # a program that tidies up temporary files has removed it
            _write(_pools.script, _pools.text, find_monty_binary())
        return _pools.made[purpose]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _script_around(binary: str) -> Path | None:
    """Return the script around a worker, or None if no form of it works, so that the bare binary is used."""
    shell = shutil.which("sh")
    if shell is None or sys.platform == "win32":
        return None
    from cantrip_actors.circle import scratch  # which is for such systems only

    path = scratch.folder("python") / "worker"
    if sys.platform == "linux":
        scratch.watch()
    bubblewrap = shutil.which("bwrap")
    for jail in (bubblewrap, None) if bubblewrap else (None,):
        text = _script(shell, path.with_name(_PROGRAM), jail)
        _write(path, text, binary)
        if _works(path):
            _pools.text = text
            return path
    shutil.rmtree(path.parent, ignore_errors=True)  # scripts cannot be run from there
    return None


def _write(path: Path, text: str, binary: str) -> None:
    """Write the script, and a link to the worker beside it: so the command line of bubblewrap names this folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.with_name(_PROGRAM).unlink(missing_ok=True)
    path.with_name(_PROGRAM).symlink_to(os.path.realpath(binary))
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)


def _script(shell: str, binary: Path, bubblewrap: str | None) -> str:
    nice = shutil.which("nice")
    polite = [nice, "-n", "5"] if nice else []  # a program that spins is not to slow down the loop that waits for it
    head = [
        f"#!{shell}",
        "trap '' INT",  # an interrupt from the terminal is for the host, which decides about its workers
        "cd /",
        "umask 077",
        f"ulimit -c 0; ulimit -v {_ADDRESSES}",
    ]
    if bubblewrap is None:
        return "\n".join([*head, f'exec {shlex.join([*polite, str(binary)])} "$@" 2>/dev/null', ""])
    jail = [bubblewrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    for library in _LIBRARIES:
        jail += ["--ro-bind-try", library, library]
    jail += ["--ro-bind", str(binary), "/worker", "--chdir", "/", "/worker"]
    # not `exec`: bubblewrap watches its parent, and that has to be this script
    return "\n".join([*head, f'{shlex.join([*polite, *jail])} "$@" 2>/dev/null', "exit $?", ""])


def _works(wrapper: Path) -> bool:
    try:
        done = subprocess.run([wrapper, "--version"], capture_output=True, timeout=20, check=False, env={})  # noqa: S603  # our own script
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b"monty" in done.stdout
