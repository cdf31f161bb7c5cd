"""A private Postgres server for the torture bench and the tests: a cluster in a folder, on a Unix socket.

The server ends with the process that made it, even after a SIGKILL. A shell waits at the end of a pipe
(`_WATCHER_SCRIPT`); when the last process closes the other end, the shell stops the server and removes the folder. A
death signal (`PR_SET_PDEATHSIG`) would only stop the server, only on Linux, and too early if a thread had started it.

`fsync` is off. The tests kill clients and servers, and the system keeps the writes of a killed server; they do not test
power cuts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import psycopg

__all__ = ["MISSING", "Server", "drop", "programs"]

MISSING = "Postgres was not found: no initdb on PATH or in /usr/lib/postgresql (Debian: postgresql)"
USER = "postgres"
SETTINGS = ("listen_addresses=", "fsync=off", "max_connections=200")
PATIENCE = 60.0
"""Seconds that the server may take to start: after a kill it replays its own log first."""

_WATCHER_SCRIPT = """
read -r _
kill -QUIT "$(head -n 1 "$1/data/postmaster.pid")"
for _ in 1 2 3 4 5; do [ -e "$1/data/postmaster.pid" ] && sleep 0.2; done
rm -rf "$1"
"""


def programs() -> Path | None:
    """Return the folder of the newest server's programs; None if no server is installed."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return installed[-1].parent if installed else None


class Server:
    """A server that runs from `with` to its end; `url` names it, up to the last option of its query.

    With `follows` it is a standby of another server, from which it streams. Raises FileNotFoundError where Postgres is
    not installed.
    """

    def __init__(self, follows: Server | None = None) -> None:
        self._follows = follows
        installed = programs()
        if installed is None:
            raise FileNotFoundError(MISSING)
        self._programs = installed
        # Postgres refuses to run as root
        self._who: dict[str, Any] = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
        self.folder = Path(tempfile.mkdtemp(prefix="cantrip-postgres-"))
        if self._who:
            shutil.chown(self.folder, USER, USER)
        self.url = f"postgresql:///{USER}?host={quote(str(self.folder), safe='')}&user={USER}"
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = subprocess.Popen(  # noqa: S603  # our words
            ["/bin/sh", "-c", _WATCHER_SCRIPT, "sh", str(self.folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal from the terminal must not reach it
        )
        _OPEN.add(self)

    def __enter__(self) -> Self:
        try:
            self._make()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _make(self) -> None:
        data = self.folder / "data"
        command: list[str | Path] = [
            self._programs / "initdb",
            "--auth=trust",
            f"--username={USER}",
            "--no-sync",
            "-D",
            data,
        ]
        if self._follows is not None:
            source: list[str | Path] = ["-h", self._follows.folder, "-U", USER]
            command = [self._programs / "pg_basebackup", *source, "-D", data, "-R", "-X", "stream", "-c", "fast", "-N"]
        done = subprocess.run(  # noqa: S603  # our words
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            **self._who,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout.decode(errors='replace')}")

    @property
    def pid(self) -> int:
        """The id of the server's parent process; each start makes a new one."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def was_killed(self) -> bool:
        """Whether the server was started and has been killed since."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Start it if it does not run, and wait until it answers.

        After a kill, child processes that still exist may keep a new server from starting: then it tries again.
        """
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self._process is None or self.was_killed:
                self._process = self._start_process()
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url).close()
                return
            time.sleep(0.02)
        raise TimeoutError((self.folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:])

    def _start_process(self) -> subprocess.Popen[bytes]:
        settings = [f"--{setting}" for setting in (f"unix_socket_directories={self.folder}", *SETTINGS)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603  # our words
                [self._programs / "postgres", "-D", self.folder / "data", *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **self._who,
            )

    def run(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def promote(self) -> None:
        """Make a standby the primary."""
        self.run("select pg_promote()")

    def stop(self) -> None:
        """Stop the server at once, without waiting for its clients, as a machine that shuts down in a hurry does."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """`kill -9` the parent process. Its children notice that by themselves."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self.stop()
        self._close_pipe()
        self._watcher.wait()
        _OPEN.discard(self)

    def _close_pipe(self) -> None:
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()


_OPEN: weakref.WeakSet[Server] = weakref.WeakSet()


def _in_a_fork() -> None:
    # a fork that held the pipe's end would keep its parent's servers alive
    for server in list(_OPEN):
        server._close_pipe()  # noqa: SLF001  # of this file


os.register_at_fork(after_in_child=_in_a_fork)


def drop(url: str) -> None:
    """Remove the loom at `url`, which names its schema, and end the open transactions of killed processes there."""
    server, _, options = url.partition("&schema=")
    schema = options.partition("&")[0]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute(_END, (schema,))
        connection.execute(f"drop schema if exists {schema} cascade".encode())


_END = """
select pg_terminate_backend(pid, 5000) from (
  select distinct pid from pg_locks join pg_class on pg_class.oid = relation
  where relnamespace = to_regnamespace(%s) and pid <> pg_backend_pid()) as busy
"""
