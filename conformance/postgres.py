"""A Postgres server of one's own, for the torture bench and the tests: a cluster in a folder, on a Unix socket.

It ends with the process that made it, however that ends. A shell waits at the end of a pipe for that (`_LAST`); once
nobody holds the other end any more, also after a SIGKILL, it stops the server and takes the folder away. A death signal
(`PR_SET_PDEATHSIG`) would do the first half only, only on Linux, and too early where a server was started in a thread.

`fsync` is off. Processes are killed here, clients and servers, and what a killed server handed to the system is kept;
what it does about a power cut is not ours to test.
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
"""Seconds that it may take to start: after a kill it reads its own log first."""

_LAST = """
read -r _
kill -QUIT "$(head -n 1 "$1/data/postmaster.pid")"
for _ in 1 2 3 4 5; do [ -e "$1/data/postmaster.pid" ] && sleep 0.2; done
rm -rf "$1"
"""


def programs() -> Path | None:
    """The folder of the newest server's programs; None where none is installed."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return installed[-1].parent if installed else None


class Server:
    """A server that runs from `with` to its end; `url` names it, up to the last option of its query.

    Raises FileNotFoundError where Postgres is not installed.
    """

    def __init__(self) -> None:
        found = programs()
        if found is None:
            raise FileNotFoundError(MISSING)
        self._programs = found
        # Postgres refuses to run as root
        self._who: dict[str, Any] = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
        self.folder = Path(tempfile.mkdtemp(prefix="cantrip-postgres-"))
        if self._who:
            shutil.chown(self.folder, USER, USER)
        self.url = f"postgresql:///{USER}?host={quote(str(self.folder), safe='')}&user={USER}"
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = subprocess.Popen(  # noqa: S603  # our words
            ["/bin/sh", "-c", _LAST, "sh", str(self.folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what a terminal sends to us is not for it
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
        made = subprocess.run(  # noqa: S603  # our words
            [self._programs / "initdb", "--auth=trust", f"--username={USER}", "--no-sync", "-D", self.folder / "data"],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            **self._who,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stdout.decode(errors='replace')}")

    @property
    def pid(self) -> int:
        """The process that all of the server's others are children of; it is new after each start."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def fell(self) -> bool:
        """Whether it was started, and somebody has killed it since."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Start it if it does not run, and wait until it answers.

        After a kill its children may still be about to go, and keep a new one from starting: then once more.
        """
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self._process is None or self.fell:
                self._process = self._started()
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url).close()
                return
            time.sleep(0.02)
        raise TimeoutError((self.folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:])

    def _started(self) -> subprocess.Popen[bytes]:
        settings = [f"--{one}" for one in (f"unix_socket_directories={self.folder}", *SETTINGS)]
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

    def stop(self) -> None:
        """Stop it without a word to anybody, as a machine that goes down in a hurry does."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """`kill -9` the process that all others are children of. Those find out by themselves."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Leave nothing."""
        self.stop()
        self._let_go()
        self._watcher.wait()
        _OPEN.discard(self)

    def _let_go(self) -> None:
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()


_OPEN: weakref.WeakSet[Server] = weakref.WeakSet()


def _in_a_fork() -> None:
    # a fork that held the pipe's end would keep its parent's servers alive
    for server in list(_OPEN):
        server._let_go()  # noqa: SLF001  # of this file


os.register_at_fork(after_in_child=_in_a_fork)


def drop(url: str) -> None:
    """Away with the loom at `url`, which names its schema."""
    server, _, options = url.partition("&schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute(f"drop schema if exists {options.partition('&')[0]} cascade".encode())
