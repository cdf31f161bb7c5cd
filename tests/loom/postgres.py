"""A Postgres server for the tests: a cluster of its own in a temporary folder, on a Unix socket, gone with the process.

Where no server is installed, tests that need one are skipped and say so; in CI that is a failure.
"""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

USER = "postgres"


def found() -> Path | None:
    """The folder of the newest server's programs."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return installed[-1].parent if installed else None


@functools.cache
def server() -> str:
    """The URL of a running server."""
    programs = found()
    if programs is None:
        why = "Postgres was not found: no initdb on PATH or in /usr/lib/postgresql (Debian: postgresql)"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="loom-postgres-"))
    who = {}
    if os.getuid() == 0:  # Postgres refuses to run as root
        who = {"user": USER, "group": USER, "extra_groups": []}
        shutil.chown(folder, USER, USER)
    atexit.register(_stop, programs, folder, who)
    _run(programs / "initdb", "--auth=trust", f"--username={USER}", "--no-sync", "-D", folder / "data", who=who)
    settings = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=200"
    control = ("-D", folder / "data", "-l", folder / "log", "-o", settings, "-w")
    _run(programs / "pg_ctl", "start", *control, who=who)
    return f"postgresql:///{USER}?host={quote(str(folder))}&user={USER}"


def restart() -> None:
    """Stop the server without a word to anybody, and start it again."""
    programs, folder = found(), Path(psycopg.conninfo.conninfo_to_dict(server())["host"])
    who = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
    _run(programs / "pg_ctl", "restart", "-m", "immediate", "-D", folder / "data", "-w", who=who)


def _run(*command: object, who: dict) -> None:
    subprocess.run(
        list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **who
    )


def _stop(programs: Path, folder: Path, who: dict) -> None:
    subprocess.run(
        [programs / "pg_ctl", "stop", "-m", "immediate", "-D", folder / "data"],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        **who,
    )
    shutil.rmtree(folder, ignore_errors=True)


def fresh() -> str:
    """The URL of a loom that nobody has used."""
    return f"{server()}&schema=loom_{uuid.uuid4().hex}"


def drop(url: str) -> None:
    """Away with the loom at `url`."""
    with psycopg.connect(server(), autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute(f"drop schema if exists {url.rpartition('=')[2]} cascade")
