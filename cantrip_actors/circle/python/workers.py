"""The worker processes that compute Python programs: one pool per process, shared by all of its sandboxes.

A worker serves a sandbox for one step and is free while a gate runs. So the pool needs no more workers than there are
cores, and entities that wait for their children cannot exhaust it, however deep they nest.

A worker is two processes: `worker.py`, which converts a program's results to JSON, and below it the interpreter. The
interpreter has no access to the host. In case it gained some, both processes have an empty environment and discard
their errors, and where bubblewrap is installed the interpreter runs in namespaces of its own, without a network, a
capability, or any file but the system's libraries. Both are one process group, so one signal ends them. Both end with
the host: `worker.py` with its standard input, the interpreter with `worker.py`.
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
from importlib.util import find_spec
from io import RawIOBase
from pathlib import Path
from typing import Any, Final, cast

from pydantic_monty._binary import find_monty_binary

from cantrip_actors.circle.python import worker as worker_program
from cantrip_actors.circle.python.frames import WorkerFrame, receive, send
from cantrip_actors.circle.step import Limit

_LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_INTERPRETER: Final = "program"
_NEEDED: Final = ("orjson", "msgspec", "pydantic", "pydantic_core", "pydantic_monty")
"""Packages that a worker imports besides the standard library and this project."""

_QUOTED: Final = 300
"""Characters of a traceback's last line that an error message quotes."""


class WorkerEnded(Exception):
    """A worker ended before it had answered: the reason, and what the program had printed until then."""

    def __init__(self, limit: Limit, output: str) -> None:
        super().__init__(limit)
        self.limit = limit
        self.output = output


class Worker:
    """A worker: both processes. It computes one step at a time; another thread may kill it meanwhile."""

    def __init__(self, command: list[str]) -> None:
        self._has_answered = True
        self._is_killed = False
        options: dict[str, Any] = {} if sys.platform == "win32" else {"process_group": 0, "umask": 0o077}
        self._reaping = threading.Lock()
        self._printed = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # `forget` closes it
        """The output of the current program, for the host to read if the worker dies before it answers."""
        self.process = subprocess.Popen(  # noqa: S603  # our own program
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            cwd="/",
            env={
                name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ
            },  # Windows needs this variable
            **options,
        )

    def compute(self, request: Mapping[str, Any], state: bytes, most: int) -> WorkerFrame:
        """Return the answer to a step; its JSON has at most `most` bytes. Blocks. Raises WorkerEnded."""
        self._has_answered = False
        try:
            send(cast("RawIOBase", self.process.stdin), request, state)
            frame = receive(cast("RawIOBase", self.process.stdout), most)
        except (BrokenPipeError, ValueError):  # the worker has ended, or its answer is not a valid message
            frame = None
        if frame is None:
            raise self._explain_end()
        self._has_answered = True
        return frame

    @property
    def is_fit(self) -> bool:
        """Whether the worker can compute another step."""
        return self._has_answered and not self._is_killed

    def kill(self) -> None:
        """Kill both processes at once. Does nothing if they have ended."""
        self._is_killed = True
        with self._reaping:
            if self.process.returncode is not None:  # the process id may belong to another process by now
                return
            if sys.platform == "win32":
                self.process.kill()
                return
            with suppress(ProcessLookupError, PermissionError):  # no process is left in the group
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill both processes, which have no state between two steps, and release the worker's resources."""
        self.kill()
        self.process.wait()
        self.forget()

    def forget(self) -> None:
        """Close this process's handles of the worker."""
        for stream in (self.process.stdin, self.process.stdout, self._printed):
            if stream is not None:
                stream.close()

    def _explain_end(self) -> WorkerEnded:
        """Return why the worker did not answer. Raises RuntimeError if the program is not the cause."""
        is_killed = self._is_killed
        self.kill()  # the interpreter below it may still run
        with self._reaping:
            code = self.process.wait()
        self._printed.seek(0)
        output = self._printed.read().decode(errors="replace")
        if code > 0:
            raise RuntimeError(
                f"a worker of the Python medium failed: {output.rstrip().rpartition(chr(10))[2][:_QUOTED]}"
            )
        limit: Limit = "interrupted" if is_killed else "seconds" if code in worker_program.ENDED_BY_TIME else "crash"
        return WorkerEnded(limit, output)


class _Pool:
    """The workers of this process, and the script that starts their interpreters in a jail."""

    def __init__(self) -> None:
        self.script: Path | None = None
        self._command: list[str] | None = None
        self._text = ""
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._is_closed = False
        self._room = threading.BoundedSemaphore(_count_cores())
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
                    lent.end()

    def close(self) -> None:
        """End all workers, including those that compute a step."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            script, self.script = self.script, None
            for worker in self._busy:
                worker.kill()
        for worker in idle:
            worker.end()
        if script is not None:
            shutil.rmtree(script.parent, ignore_errors=True)

    def forget(self) -> None:
        """Close a forked process's handles of these workers, which belong to its parent."""
        for worker in (*self._idle, *self._busy):
            worker.process.returncode = 0
            worker.forget()

    def _take(self) -> Worker:
        with self._lock:
            lent = self._take_idle() or Worker(self._start_command())
            if self.script is not None and not os.access(self.script, os.F_OK):
                # a program that cleans up temporary files has removed it
                _write(self.script, self._text, find_monty_binary())
            self._busy.add(lent)
            return lent

    def _take_idle(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.end()
        return None

    def _start_command(self) -> list[str]:
        if self._command is None:
            if not sys.executable or hasattr(sys, "frozen"):
                raise RuntimeError(
                    "the Python medium starts processes with Python: expected its path in sys.executable, got none"
                )
            binary = find_monty_binary()
            self.script, self._text = _make_script(binary)
            program = [sys.executable, "-I", "-S", worker_program.__file__, str(self.script or binary)]
            self._command = [*program, *_list_folders()]
        return self._command


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _list_folders() -> list[str]:
    """Return the folders from which a worker imports packages, independent of this process's `sys.path`.

    The folder of the running program is left out: an entity may be able to write there, and a worker starts late.
    """
    specs = filter(None, map(find_spec, _NEEDED))  # this process may not have imported them yet
    needed = [str(Path(spec.origin).parents[1]) for spec in specs if spec.origin is not None]
    installed = [folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")]
    return list(dict.fromkeys([*needed, *installed]))


def _make_script(binary: str) -> tuple[Path | None, str]:
    """Return the path and the text of the script that starts an interpreter in a jail; None where no jail works."""
    shell, bubblewrap = shutil.which("sh"), shutil.which("bwrap")
    if sys.platform != "linux" or shell is None or bubblewrap is None:
        return None, ""
    from cantrip_actors.circle import scratch  # works on POSIX systems only

    path = scratch.make_folder("python") / "worker"
    scratch.watch()
    text = _render_script(shell, path.with_name(_INTERPRETER), bubblewrap)
    _write(path, text, binary)
    if _is_working(path):
        return path, text
    shutil.rmtree(path.parent, ignore_errors=True)
    return None, ""


def _write(path: Path, text: str, binary: str) -> None:
    """Write the script, and a link to the interpreter next to it: so bubblewrap's command line names this folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.with_name(_INTERPRETER).unlink(missing_ok=True)
    path.with_name(_INTERPRETER).symlink_to(os.path.realpath(binary))
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)


def _render_script(shell: str, binary: Path, bubblewrap: str) -> str:
    jail = [bubblewrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    for library in _LIBRARIES:
        jail += ["--ro-bind-try", library, library]
    jail += ["--ro-bind", str(binary), "/worker", "--chdir", "/", "/worker"]
    return "\n".join([f"#!{shell}", f'exec {shlex.join(jail)} "$@"', ""])


def _is_working(script: Path) -> bool:
    try:
        done = subprocess.run([script, "--version"], capture_output=True, timeout=20, check=False, env={})  # noqa: S603  # our own script
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b"monty" in done.stdout


_pool = _Pool()


def borrow() -> AbstractContextManager[Worker]:
    """Lend a worker for the length of a `with` block, as soon as one is free."""
    return _pool.borrow()


def close() -> None:
    """End all workers of this process. The next step starts new ones."""
    global _pool
    closed, _pool = _pool, _Pool()
    closed.close()


def _replace_pool() -> None:
    """Give a forked process a pool of its own."""
    global _pool
    inherited, _pool = _pool, _Pool()
    inherited.forget()


atexit.register(close)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_replace_pool)
