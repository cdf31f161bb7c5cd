"""Where looms lie: a folder for files, a schema for each on a Postgres server.

The server is the one that `CANTRIP_POSTGRES` names, or one of our own: a cluster in a temporary folder on a Unix
socket, which goes when the bench does. `fsync` is off there. It is the client that is killed, and what the server does
about a power cut is not ours to test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = ["DURABILITIES", "STORES", "drop", "postgres", "url_of"]

STORES = ("jsonl", "sqlite", "postgres")
DURABILITIES = ("process", "power", "none")
USER = "postgres"


def url_of(store: str, durability: str, folder: Path, server: str | None) -> str:
    """The URL of a loom that is `folder`'s own."""
    if store == "postgres":
        assert server is not None  # the campaign starts one where it is wanted
        name = folder.name.replace("-", "_").lower()
        return f"{server}&schema={name}&durability={durability}&application_name={name}"
    ending = {"jsonl": "jsonl", "sqlite": "db"}[store]
    return f"{store}:{folder}/loom.{ending}?durability={durability}"


def drop(url: str) -> None:
    """Away with a loom on a server."""
    if not url.startswith("postgresql:"):
        return
    import psycopg

    server, _, options = url.partition("&schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute(f"drop schema if exists {options.partition('&')[0]} cascade".encode())


@contextmanager
def postgres() -> Iterator[str | None]:
    """The URL of a running server, up to its query's last option; None where there is none to be had."""
    given = os.environ.get("CANTRIP_POSTGRES")
    programs = _programs()
    if given or programs is None:
        yield given if given is None or "?" in given else f"{given}?connect_timeout=10"
        return
    folder = Path(tempfile.mkdtemp(prefix="crash-postgres-"))
    who: dict[str, Any] = {}
    if os.getuid() == 0:  # Postgres refuses to run as root
        who = {"user": USER, "group": USER, "extra_groups": []}
        shutil.chown(folder, USER, USER)
    settings = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=100"
    control = [str(programs / "pg_ctl"), "-D", str(folder / "data")]
    try:
        _run([str(programs / "initdb"), "--auth=trust", f"--username={USER}", "--no-sync", *control[1:]], who)
        _run([*control, "start", "-l", str(folder / "log"), "-o", settings, "-w"], who)
        yield f"postgresql:///{USER}?host={quote(str(folder), safe='')}&user={USER}"
    finally:
        _run([*control, "stop", "-m", "immediate"], who, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[str], who: dict[str, Any], *, check: bool = True) -> None:
    # into a file: what pg_ctl starts would keep a pipe open
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(command, check=False, cwd="/", stdout=said, stderr=said, **who)  # noqa: S603  # our words
        if check and done.returncode:
            said.seek(0)
            raise RuntimeError(f"{command[0]} failed: {said.read().decode(errors='replace')}")


def _programs() -> Path | None:
    """The folder of the newest server's programs."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return installed[-1].parent if installed else None
