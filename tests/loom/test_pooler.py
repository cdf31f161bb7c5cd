"""Looms in Postgres behind a transaction pooler, a real pgbouncer, which gives each transaction any connection."""

import contextlib
import os
import shutil
import subprocess
import threading
import time
import uuid
from urllib.parse import quote

import psycopg
import pytest

from cantrip_actors import LoomError, Node, Runtime
from cantrip_actors.loom import open_store, verify_loom
from tests.loom import postgres as servers
from tests.loom.histories import run, turn

pytestmark = pytest.mark.rule("N-75")

MISSING = "pgbouncer was not found on PATH (Debian: pgbouncer)"
CONFIG = """
[databases]
* = host={server} user=postgres
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 3
logfile = {folder}/log
"""


@pytest.fixture(scope="module")
def pooler():
    """The URL of the tests' server behind a pooler."""
    program = shutil.which("pgbouncer")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    server = servers.running()
    folder = server.folder / f"pooler-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (folder / "pgbouncer.ini").write_text(CONFIG.format(server=server.folder, folder=folder), encoding="utf-8")
    who = {}
    if os.getuid() == 0:  # it refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        who = {"user": "postgres", "group": "postgres", "extra_groups": []}
    process = subprocess.Popen([program, "-q", folder / "pgbouncer.ini"], cwd="/", **who)
    url = f"postgresql:///postgres?host={quote(str(folder), safe='')}&user=postgres&port=6432"
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(url, prepare_threshold=None).close()
            break
        time.sleep(0.02)
    yield url
    process.kill()
    process.wait()


def loom_at(pooler):
    return f"{pooler}&schema=loom_{uuid.uuid4().hex}"


def test_two_looms_behind_a_pooler_are_separate(pooler):
    places = {name: loom_at(pooler) for name in ("alpha", "beta")}

    def write(name):
        with open_store(places[name]) as store:
            assert store.is_pooled
            store.append(run(f"{name}0", f"{name}-t0", ends=False))
            before = f"{name}-t0"
            for n in range(1, 20):
                store.append(turn(f"{name}0", f"{name}-t{n}", before, n + 1))
                before = f"{name}-t{n}"

    threads = [threading.Thread(target=write, args=(name,)) for name in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, url in places.items():
        with open_store(url) as store:
            assert [header.entity_id for header in store.headers()] == [f"{name}0"]
            assert len(store.records(f"{name}0")) == 6 + 19 * 4
            assert verify_loom(store).ok


def test_leases_snapshots_and_vacuum_work_behind_a_pooler(pooler):
    url = loom_at(pooler)
    with open_store(url) as store, open_store(url) as other:
        store.append(run("e", "t1", ends=False))
        lease = store.claim("e", "me/1", 60)
        store.append(turn("e", "t2", "t1", 2), {"e": lease.token})
        store.renew("me/1", 60)
        with other.snapshot():
            assert len(other.records("e")) == 10
        store.release(lease)
        store.scrub()
        assert verify_loom(other).ok


def test_a_direct_server_is_distinguished_from_a_pooler(pooler):
    with open_store(servers.fresh()) as store:
        assert not store.is_pooled


@pytest.mark.rule("N-07")
@pytest.mark.real_time
async def test_a_node_behind_a_pooler_is_refused_and_asked_for_a_direct_address(pooler):
    with pytest.raises(LoomError, match=r"the address is that of a pooler.*give the server's address"):
        async with Runtime.open(loom_at(pooler), node=Node("w1")):
            pass
