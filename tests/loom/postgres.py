"""A Postgres server for the tests: a cluster of its own in a temporary folder, on a Unix socket, gone with the process.

Where no server is installed, tests that need one are skipped and say so; in CI that is a failure.
"""

import atexit
import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

USER = "postgres"
WHO = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
"""Postgres refuses to run as root."""
PDEATHSIG = 1


def found() -> Path | None:
    """The folder of the newest server's programs."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return installed[-1].parent if installed else None


class Server:
    """A running server."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="loom-postgres-"))
        if WHO:
            shutil.chown(self.folder, USER, USER)
        self.url = f"postgresql:///{USER}?host={quote(str(self.folder))}&user={USER}"
        self.process: subprocess.Popen[bytes] | None = None
        data = self.folder / "data"
        made = subprocess.run(
            [programs / "initdb", "--auth=trust", f"--username={USER}", "--no-sync", "-D", data],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            **WHO,
        )
        assert made.returncode == 0, made.stdout.decode(errors="replace")

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = (f"unix_socket_directories={self.folder}", "listen_addresses=", "fsync=off", "max_connections=200")
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", *(f"--{one}" for one in settings)],
                stdout=log,
                stderr=log,
                cwd="/",
                preexec_fn=_ends_with_us,  # noqa: PLW1509  # one call of the system, no lock of ours
                **WHO,
            )
        for _ in range(600):
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return
        raise TimeoutError((self.folder / "log").read_text())

    def stop(self) -> None:
        """Stop it without a word to anybody."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()
            self.process = None

    def away(self) -> None:
        """Leave nothing."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _ends_with_us() -> None:
    """However the tests end: a server that outlived a killed run would stay for good."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGQUIT)


@functools.cache
def running() -> Server:
    """The server, started when it is first asked for."""
    programs = found()
    if programs is None:
        why = "Postgres was not found: no initdb on PATH or in /usr/lib/postgresql (Debian: postgresql)"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    started = Server(programs)
    atexit.register(started.away)
    started.start()
    return started


def server() -> str:
    """The URL of a running server."""
    return running().url


def restart() -> None:
    """Stop the server as a crash would, and start it again."""
    running().stop()
    running().start()


def fresh() -> str:
    """The URL of a loom that nobody has used."""
    return f"{server()}&schema=loom_{uuid.uuid4().hex}"


def drop(url: str) -> None:
    """Away with the loom at `url`."""
    with psycopg.connect(server(), autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute(f"drop schema if exists {url.rpartition('=')[2]} cascade")
