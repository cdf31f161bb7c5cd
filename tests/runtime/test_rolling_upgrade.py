"""Tables that a later version of cantrip-actors has upgraded while nodes of this version run (N-66).

The later version is SQL here: it adds a table, an index, and a column to every table, and says which versions can
read them.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import psycopg
import pytest

from cantrip_actors import LoomError, Node, Runtime
from cantrip_actors.loom import open_store, verify_loom
from cantrip_actors.loom.tables.schema import READABLE_BY, VERSION
from tests.loom import postgres as servers
from tests.runtime.test_cluster import DESK, answering, crashing

pytestmark = pytest.mark.real_time

LATER = ("create table later (no integer primary key)", "create index later_by_life on entities (life, later)")


class Loom:
    """A loom, and what a later version does to its tables."""

    def __init__(self, url: str, run: Callable[..., list[tuple[str, ...]]], tables: str, bump: str) -> None:
        self.url, self._run, self._tables, self._bump = url, run, tables, bump

    def upgrade(self, readable_by: int) -> None:
        for (table,) in self._run(self._tables):
            self._run(f"alter table {table} add column later integer not null default 7")
        for statement in LATER:
            self._run(statement)
        self.bump(readable_by)

    def bump(self, readable_by: int) -> None:
        for statement in self._bump.format(version=VERSION + 1, readable_by=readable_by).split(";"):
            self._run(statement)


@pytest.fixture(params=["sqlite", "postgres"])
def loom(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Loom]:
    if request.param == "sqlite":
        path = tmp_path / "loom.db"

        def run_there(statement: str) -> list[tuple[str, ...]]:
            with contextlib.closing(sqlite3.connect(path)) as connection, connection:
                return connection.execute(statement).fetchall()

        tables = "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
        bump = "update version set readable_by = {readable_by}; pragma user_version = {version}"
        yield Loom(f"sqlite:{path}", run_there, tables, bump)
        return
    url = servers.fresh()
    server, _, schema = url.rpartition("&schema=")
    with psycopg.connect(server, autocommit=True) as connection:

        def run(statement: str) -> list[tuple[str, ...]]:
            connection.execute(f"set search_path to {schema}")
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

        tables = f"select tablename from pg_tables where schemaname = '{schema}'"
        yield Loom(url, run, tables, "update version set version = {version}, readable_by = {readable_by}")
        connection.execute(f"drop schema {schema} cascade")


def node(loom: Loom, name: str) -> Runtime:
    return Runtime.open(loom.url, cantrips=[DESK], node=Node(name, beat=0.1, ttl=1))


@pytest.mark.rule("N-66")
async def test_a_node_keeps_running_while_a_later_version_upgrades_the_tables(loom: Loom) -> None:
    async with Runtime.open(loom.url) as client, node(loom, "w1") as one:
        await (await one.invoke(DESK, "before", name="keeper")).episode()
        loom.upgrade(readable_by=READABLE_BY)
        assert (await client.entity("keeper").send("after")).result == "after"  # type: ignore[union-attr]
        submission = await client.submit("desk", "a cast")
        assert (await submission.episode()).result == "a cast"
        await one.schedule("keeper", "later", every=3600, id="s")
        assert [found.name for found in await client.cluster.nodes()] == ["w1"]


@pytest.mark.rule("N-66")
async def test_a_node_starts_beside_a_later_version_and_takes_over(loom: Loom) -> None:
    slow = answering(delay=0.5)
    async with crashing(Runtime.open(loom.url, cantrips=[slow])) as program:
        await (await program.invoke(slow, "before", name="keeper")).episode()
        cast = await program.start(slow, "a cast")
    loom.upgrade(readable_by=READABLE_BY)
    async with Runtime.open(loom.url) as client:
        async with Runtime.open(loom.url, cantrips=[slow], node=Node("w1", beat=0.1, ttl=1)):
            with anyio.fail_after(30):
                assert (await client.find(cast.id).episode()).result == "a cast"
                assert (await client.entity("keeper").send("after")).result == "after"  # type: ignore[union-attr]
        assert await client.cluster.nodes() == []
    with open_store(loom.url, read_only=True) as store:
        assert verify_loom(store).ok


@pytest.mark.rule("N-66")
def test_tables_say_which_version_can_use_them(loom: Loom) -> None:
    open_store(loom.url).close()
    assert READABLE_BY <= VERSION
    loom.bump(readable_by=VERSION)
    open_store(loom.url).close()
    loom.bump(readable_by=VERSION + 1)
    for read_only in (True, False):
        with pytest.raises(LoomError, match=f"has tables of version {VERSION + 1}, this version knows up to {VERSION}"):
            open_store(loom.url, read_only=read_only)
