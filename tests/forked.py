"""Processes for tests that start at once: each is forked from a server that has imported what most of them need.

A new interpreter that imports the runtime takes half a second of CPU, and the tests start hundreds. `Forked` is a
`subprocess.Popen` in all else: a process of its own, with its own streams, environment and folder, that can be killed.
It runs a script, or with `COMMAND` the program `cantrip`.

The server is a new interpreter, so nothing of a test is in it. It has one thread, and runs nothing but imports.
"""

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMAND = "from cantrip_actors.cli.main import main; main()"
"""The program `cantrip`, with the arguments that follow."""

CONFORMANCE = "import sys; from conformance.__main__ import main; sys.exit(main(sys.argv[1:]))"
"""`python -m conformance`, with the arguments that follow."""

PROGRAM = """
import runpy, sys
del sys.argv[0]
sys.path.insert(0, ".")
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""The Python program whose file and arguments follow; it is in the current folder."""

ROOT = Path(__file__).parents[1]

PRELOADED = (
    "pytest",
    "cantrip_actors.runtime.face.runtime",
    "cantrip_actors.loom.opening",
    "cantrip_actors.cli.app",
    "cantrip_actors.cli.entities",
    "cantrip_actors.cli.loom",
    "cantrip_actors.cli.session",
    "cantrip_actors.cli.serve",
    "cantrip_actors.http.server",
    "cantrip_actors.mcp",
    "cantrip_actors.mcp_server",
    "cantrip_actors.recipes",
    "cantrip_actors.agentic",
    "fastapi",
    "jsonschema",
    "httpx",
    "uvicorn",
    "anyio._backends._asyncio",
    "anyio._backends._trio",
)

_STATUS = struct.Struct("ii")
_server: socket.socket | None = None


class Forked(subprocess.Popen):
    """A process that runs `script`, with `arguments` in `sys.argv`; the options are those of Popen.

    With `start_new_session` its terminal, if it has one, is its controlling terminal: ctrl-C interrupts it. It is no
    child of this process: one that is killed leaves no zombie here. With `finalizes` it ends as any Python program
    does, with all that the interpreter does at its exit; that takes a tenth of a second, and is left out otherwise.
    """

    def __init__(self, script: str, *arguments: object, finalizes: bool = False, **options: Any) -> None:
        self._is_session = options.get("start_new_session", False)
        self._finalizes = finalizes
        super().__init__([script, *map(str, arguments)], **options)

    def _execute_child(self, args: Any, *given: Any) -> None:
        _, _, _, _, cwd, env, _, _, _, *ends = given[:15]
        stdin, stdout, stderr = ends[0], ends[3], ends[5]
        streams = [own if end == -1 else end for own, end in enumerate((stdin, stdout, stderr))]
        told = pickle.dumps(
            {
                "argv": args,
                "cwd": os.fspath(cwd or Path.cwd()),
                "env": dict(os.environ if env is None else env),
                "is_session": self._is_session,
                "finalizes": self._finalizes,
            }
        )
        server = _started()
        self._keeper, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(server, [struct.pack("i", len(told))], [*streams, theirs.fileno()])
                server.sendall(told)
            self.pid, _ = _STATUS.unpack(_read(self._keeper, _STATUS.size))
        finally:
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]  # as Popen does
        self._child_created = True
        self._ended: int | None = None

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._ended is None:
            if flags & os.WNOHANG and not select.select([self._keeper], [], [], 0)[0]:
                return 0, 0
            _, self._ended = _STATUS.unpack(_read(self._keeper, _STATUS.size))
            self._keeper.close()
        return self.pid, self._ended

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            raise EOFError("the server of forked processes has ended")
        data += piece
    return data


def _started() -> socket.socket:
    """Return the connection to the server of this process, and start it if there is none."""
    global _server  # noqa: PLW0603  # one for each process that runs tests
    if _server is None:
        ours, theirs = socket.socketpair()
        subprocess.Popen(
            [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a ctrl-C at the tests is not for it
        ).returncode = 0  # it ends with this process, which does not wait for it
        theirs.close()
        _server = ours
    return _server


def _serve(server: socket.socket) -> None:
    import gc
    import importlib

    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # as in conftest.py
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for keepers
    with contextlib.suppress(EOFError):
        while True:
            size, descriptors, _, _ = socket.recv_fds(server, 4, 4)
            if not size:
                return
            told = pickle.loads(_read(server, *struct.unpack("i", size)))  # from the tests
            if not os.fork():
                server.close()
                _keep(told, descriptors)
            for one in descriptors:
                os.close(one)


def _keep(told: dict[str, Any], descriptors: list[int]) -> None:
    """Run a process, and tell how it ended; this one does nothing else."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, control = descriptors
    pid = os.fork()
    if not pid:
        os.close(control)
        _run(told, streams)
    for one in streams:
        os.close(one)
    os.write(control, _STATUS.pack(pid, 0))
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        os.write(control, _STATUS.pack(pid, status))
    os._exit(0)


def _run(told: dict[str, Any], streams: list[int]) -> None:
    """Be the process."""
    import atexit
    import fcntl
    import io
    import termios
    import threading
    import traceback
    import types

    for target, one in enumerate(streams):
        os.dup2(one, target)
        os.set_inheritable(target, True)
    for one in streams:
        if one > 2:
            os.close(one)
    if told["is_session"]:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    time.tzset()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(one, "w", closefd=False)),
            "utf-8",
            errors,
            line_buffering=one == 2 or os.isatty(one),
        )
        for one, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    script, *arguments = told["argv"]
    sys.argv = ["-c", *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    code: object = 0
    if told["finalizes"]:
        exec(compile(script, "<string>", "exec"), main.__dict__)
        sys.exit()
    try:
        exec(compile(script, "<string>", "exec"), main.__dict__)
    except SystemExit as left:
        code = left.code
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as at the end of any program
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(int(code or 0) & 0xFF)  # type: ignore[call-overload]  # it is a number


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
