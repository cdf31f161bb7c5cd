"""The worker processes in which Python programs compute: one pool a process, shared by all of its sandboxes.

A worker belongs to a sandbox for the length of one step, and to nobody while a gate runs. So the pool needs no more
workers than there are cores, and entities that wait for their children cannot exhaust it, however deep they nest.

A worker is two processes: `worker.py`, which makes JSON of what a program hands out, and below it the interpreter. The
interpreter has no way to reach the host, and neither process has one either, in case it had: their environment is
empty, their errors go nowhere, and where bubblewrap is installed the interpreter runs in namespaces of its own, without
a network, a capability, or any file but the system's libraries. They are one process group, so that one signal ends
both. Both end with the host: `worker.py` with its standard input, the interpreter with `worker.py`.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from typing import Any, Final, cast

from pydantic_monty._binary import find_monty_binary

from cantrip_actors.circle.python import worker
from cantrip_actors.circle.python.frames import Frame, receive, send
from cantrip_actors.circle.step import Limit

__all__ = ["Worker", "WorkerEnded", "borrow", "close"]

_LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_INTERPRETER: Final = "program"
_NEEDED: Final = ("orjson", "msgspec", "pydantic", "pydantic_core", "pydantic_monty")
"""What a worker imports besides Python's own packages and this one."""

ENDING: Final = 2.0
"""Seconds that an idle worker may take to end by itself."""

_SHOWN: Final = 300
"""Characters of a traceback's last line that are shown."""


class WorkerEnded(Exception):
    """A worker ended before it had answered: why, and what the program had printed until then."""

    def __init__(self, limit: Limit, output: str) -> None:
        super().__init__(limit)
        self.limit = limit
        self.output = output


class Worker:
    """Both processes. They compute one step at a time, and can be killed from another thread meanwhile."""

    def __init__(self, command: list[str]) -> None:
        self.is_fit = True
        """True if it can compute another step."""
        self._is_killed = False
        options: dict[str, Any] = {} if sys.platform == "win32" else {"process_group": 0, "umask": 0o077}
        self._reaping = threading.Lock()
        self._printed = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # `forget` closes it
        """What the present program has printed: for the host to read if the worker cannot answer any more."""
        self.process = subprocess.Popen(  # noqa: S603  # our own program
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            cwd="/",
            env={name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ},  # Windows cannot do without
            **options,
        )

    def compute(self, asked: Mapping[str, Any], state: bytes, most: int) -> Frame:
        """Return the answer to a step: at most `most` bytes of JSON are read. Raises WorkerEnded. Blocks."""
        self.is_fit = False
        try:
            send(cast("RawIOBase", self.process.stdin), asked, state)
            frame = receive(cast("RawIOBase", self.process.stdout), most)
        except (BrokenPipeError, ValueError):  # it has ended, or does not say what it should
            frame = None
        if frame is None:
            raise self._ended()
        self.is_fit = not self._is_killed
        return frame

    def kill(self) -> None:
        """End it at once. Nothing happens if it has ended."""
        self.is_fit, self._is_killed = False, True
        with self._reaping:
            if self.process.returncode is not None:  # its number may be another's by now
                return
            if sys.platform == "win32":
                self.process.kill()
                return
            with suppress(ProcessLookupError, PermissionError):  # of a group in which nothing runs any more
                os.killpg(self.process.pid, signal.SIGKILL)

    def ask_to_end(self) -> None:
        """Let it end as soon as it has nothing to do. `end` waits for that."""
        self.is_fit = False
        if self.process.stdin is not None:
            self.process.stdin.close()

    def end(self) -> None:
        """End it, and give everything back."""
        try:
            self.process.wait(0 if self._is_killed else ENDING)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        self.forget()

    def forget(self) -> None:
        """Close what this process holds of it."""
        for stream in (self.process.stdin, self.process.stdout, self._printed):
            if stream is not None:
                stream.close()

    def _ended(self) -> WorkerEnded:
        """Return why there is no answer. Raises RuntimeError where the fault is not the program's."""
        is_killed = self._is_killed
        self.kill()  # the interpreter below it
        with self._reaping:
            code = self.process.wait()
        self._printed.seek(0)
        output = self._printed.read().decode(errors="replace")
        if code > 0:
            raise RuntimeError(
                f"a worker of the Python medium failed: {output.rstrip().rpartition(chr(10))[2][:_SHOWN]}"
            )
        limit: Limit = "interrupted" if is_killed else "seconds" if code in worker.ENDED_BY_TIME else "crash"
        return WorkerEnded(limit, output)


class _Pool:
    """The workers of this process, and the script around their interpreters."""

    def __init__(self) -> None:
        self.script: Path | None = None
        self._command: list[str] | None = None
        self._text = ""
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._is_closed = False
        self._room = threading.BoundedSemaphore(_cores())
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self) -> Iterator[Worker]:
        """Lend a worker for one step, as soon as one is free."""
        with self._room:
            lent = self._take()
            try:
                yield lent
            finally:
                with self._lock:
                    self._busy.discard(lent)
                    is_kept = lent.is_fit and not self._is_closed
                    if is_kept:
                        self._idle.append(lent)
                if not is_kept:
                    lent.kill()
                    lent.end()

    def close(self) -> None:
        """End all workers, in the middle of a step, too."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            script, self.script = self.script, None
            for one in self._busy:
                one.kill()
        for one in idle:
            one.ask_to_end()
        for one in idle:
            one.end()
        if script is not None:
            shutil.rmtree(script.parent, ignore_errors=True)

    def forget(self) -> None:
        """Close what a process that was forked has of these workers: they are not its own."""
        for one in (*self._idle, *self._busy):
            one.process.returncode = 0
            one.forget()

    def _take(self) -> Worker:
        with self._lock:
            lent = self._take_idle() or Worker(self._started_by())
            if self.script is not None and not os.access(self.script, os.F_OK):
                # a program that tidies up temporary files has removed it
                _write(self.script, self._text, find_monty_binary())
            self._busy.add(lent)
            return lent

    def _take_idle(self) -> Worker | None:
        while self._idle:
            one = self._idle.pop()
            if one.process.poll() is None:
                return one
            one.end()
        return None

    def _started_by(self) -> list[str]:
        """Return the command that starts a worker."""
        if self._command is None:
            if not sys.executable or hasattr(sys, "frozen"):
                raise RuntimeError(
                    "the Python medium starts processes with the interpreter of Python, and there is none"
                )
            binary = find_monty_binary()
            self.script, self._text = _script_around(binary)
            program = [sys.executable, "-I", "-S", worker.__file__, str(self.script or binary)]
            self._command = [*program, *_folders()]
        return self._command


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _folders() -> list[str]:
    """Return the folders in which a worker finds packages, whatever this process's own path is.

    Not the folder of the program that runs here: an entity may have write access to that, and a worker starts late.
    """
    needed = [str(Path(file).parents[1]) for name in _NEEDED if (file := sys.modules[name].__file__) is not None]
    installed = [one for one in sys.path if Path(one).name in ("site-packages", "dist-packages")]
    return list(dict.fromkeys([*needed, *installed]))


def _script_around(binary: str) -> tuple[Path | None, str]:
    """Return the script that puts an interpreter into a jail, and its text; None where the bare binary has to do."""
    shell, bubblewrap = shutil.which("sh"), shutil.which("bwrap")
    if sys.platform != "linux" or shell is None or bubblewrap is None:
        return None, ""
    from cantrip_actors.circle import scratch  # which is for such systems only

    path = scratch.folder("python") / "worker"
    scratch.watch()
    text = _script(shell, path.with_name(_INTERPRETER), bubblewrap)
    _write(path, text, binary)
    if _works(path):
        return path, text
    shutil.rmtree(path.parent, ignore_errors=True)
    return None, ""


def _write(path: Path, text: str, binary: str) -> None:
    """Write the script, and a link to the interpreter beside it: so bubblewrap's command line names this folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.with_name(_INTERPRETER).unlink(missing_ok=True)
    path.with_name(_INTERPRETER).symlink_to(os.path.realpath(binary))
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)


def _script(shell: str, binary: Path, bubblewrap: str) -> str:
    jail = [bubblewrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    for library in _LIBRARIES:
        jail += ["--ro-bind-try", library, library]
    jail += ["--ro-bind", str(binary), "/worker", "--chdir", "/", "/worker"]
    return "\n".join([f"#!{shell}", f'exec {shlex.join(jail)} "$@"', ""])


def _works(script: Path) -> bool:
    try:
        done = subprocess.run([script, "--version"], capture_output=True, timeout=20, check=False, env={})  # noqa: S603  # our own script
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b"monty" in done.stdout


_pool = _Pool()


def borrow() -> AbstractContextManager[Worker]:
    """Lend a worker for the length of a `with`, as soon as one is free."""
    return _pool.borrow()


def close() -> None:
    """End all workers of this process. The next use makes new ones."""
    global _pool
    closed, _pool = _pool, _Pool()
    closed.close()


def _begin_anew() -> None:
    """After a fork: make the pool of the new process."""
    global _pool
    inherited, _pool = _pool, _Pool()
    inherited.forget()


atexit.register(close)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_begin_anew)
