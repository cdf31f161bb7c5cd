"""A Postgres server of the tests ends with its process, and can be killed and started again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from conformance import postgres

pytestmark = pytest.mark.real_time

MADE = """
import os, sys, time
from conformance.postgres import Server
with Server() as server:
    if os.fork() == 0:  # a fork that outlives it
        time.sleep(60)
    print(server.pid, server.folder, flush=True)
    sys.stdin.read()
"""


def server_or_skip():
    if postgres.programs() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(postgres.MISSING)


def gone(folder: Path, pid: int) -> bool:
    for _ in range(400):
        if not folder.exists() and not Path(f"/proc/{pid}/cmdline").exists():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None], ids=["killed", "terminated", "ended"])
def test_the_server_ends_with_its_process_in_any_way(how):
    server_or_skip()
    command = [sys.executable, "-c", MADE]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    ) as owner:
        pid, folder = owner.stdout.readline().split()
        if how is None:
            owner.stdin.close()
        else:
            owner.send_signal(how)
        owner.wait()
        try:
            assert gone(Path(folder), int(pid))
        finally:
            os.killpg(owner.pid, signal.SIGKILL)  # the fork


def test_a_killed_server_has_the_committed_data_after_a_restart():
    server_or_skip()
    with postgres.Server() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create table kept as select 1 as one")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url)
        server.start()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("select one from kept").fetchone() == (1,)


def test_a_missing_postgres_program_is_named(monkeypatch):
    monkeypatch.setattr(postgres, "programs", lambda: None)
    with pytest.raises(FileNotFoundError, match="no initdb on PATH"):
        postgres.Server()
