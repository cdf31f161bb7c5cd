"""A real pgbouncer in front of a Postgres server, which gives each transaction any of its connections."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

__all__ = ["MISSING", "open_pooler"]

MISSING: Final = "pgbouncer was not found on PATH (Debian: pgbouncer)"
PATIENCE: Final = 30.0
"""Seconds within which it must answer."""

_CONFIG: Final = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 5
logfile = {folder}/log
"""


@contextlib.contextmanager
def open_pooler(url: str) -> Iterator[str]:
    """Yield the URL of a server behind a pooler that runs meanwhile. Raises FileNotFoundError without pgbouncer."""
    program = shutil.which("pgbouncer")
    if program is None:
        raise FileNotFoundError(MISSING)
    server = conninfo_to_dict(url)
    user = str(server.get("user") or "postgres")
    folder = Path(tempfile.mkdtemp(prefix="cantrip-pooler-"))
    config = _CONFIG.format(host=server["host"], port=server.get("port", 5432), user=user, folder=folder)
    (folder / "pgbouncer.ini").write_text(config, encoding="utf-8")
    who: dict[str, Any] = {}
    if os.getuid() == 0:  # it refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        who = {"user": "postgres", "group": "postgres", "extra_groups": []}
    process = subprocess.Popen([program, "-q", folder / "pgbouncer.ini"], cwd="/", **who)  # noqa: S603  # our words
    pooled = f"postgresql:///{server['dbname']}?host={quote(str(folder), safe='')}&user={user}&port=6432"
    try:
        _wait_for_answer(pooled)
        yield pooled
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_answer(url: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(url, prepare_threshold=None).close()
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return
