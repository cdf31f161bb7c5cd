"""How many statements a node sends to Postgres to load an entity: each is a wait for the server.

The bounds are a little above the counts of today. What a node asks by itself, at each look, is not counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import psycopg
import pytest

from cantrip_actors import Runtime
from tests.loom import postgres
from tests.runtime.test_cluster import DESK, answering, crashing, node

pytestmark = pytest.mark.real_time

LOOKS = (
    "from mails",
    "where mail.no > %s and taken is null",
    "union all select 'holder'",
    "select (select due from timers",
    "set until =",
)
"""Parts of the statements that a node sends again and again, whatever it runs."""


TOGETHER = ("begin", "commit")
"""Statements that are sent together with others."""


class Counted:
    """The statements that this process sends, apart from those of looks."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def note(self, query: Any) -> None:
        if query not in TOGETHER and not any(part in str(query) for part in LOOKS):
            self.statements.append(" ".join(str(query).split()))

    @contextmanager
    def at_most(self, bound: int) -> Iterator[None]:
        """Check how many are sent in the block."""
        self.statements.clear()
        yield
        shown = "\n".join(self.statements)
        assert 0 < len(self.statements) <= bound, f"{len(self.statements)} statements:\n{shown}"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    kept = Counted()
    execute, executemany = psycopg.Connection.execute, psycopg.Cursor.executemany

    def counting(self: Any, query: Any, *values: Any, **more: Any) -> Any:
        kept.note(query)
        return execute(self, query, *values, **more)

    def counting_many(self: Any, query: Any, rows: Any, **more: Any) -> None:
        kept.note(query)
        executemany(self, query, rows, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", counting)
    monkeypatch.setattr(psycopg.Cursor, "executemany", counting_many)
    return kept


async def unloaded(url: str, *names: str) -> None:
    """Leave idle entities that no process runs."""
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        for name in names:
            await (await runtime.invoke(DESK, "hello", name=name)).episode()


@pytest.mark.rule("N-21")
async def test_a_send_to_an_unloaded_entity_needs_few_statements(counted: Counted) -> None:
    url = postgres.fresh()
    names = ["warm", "keeper", "second", "third"]
    await unloaded(url, *names)
    async with node(url, "w1") as runtime:
        await anyio.sleep(0.7)  # it has looked, and knows which tables there are
        sent: list[list[str]] = []
        for name in names:
            counted.statements.clear()
            assert (await runtime.entity(name).send("again")).result == "again"
            sent.append([*counted.statements])
        fewest = min(sent[1:], key=len)  # a look meanwhile finds the mail, and reads the entity, too
        assert len(fewest) <= 43, "\n".join(fewest)
        with counted.at_most(18):
            assert (await runtime.entity("keeper").send("more")).result == "more"


@pytest.mark.rule("N-21")
async def test_a_resume_needs_few_statements(counted: Counted) -> None:
    url = postgres.fresh()
    await unloaded(url, "keeper")
    async with node(url, "w1") as runtime:
        await anyio.sleep(0.7)
        entity = runtime.entity("keeper")
        with counted.at_most(14):
            await runtime.resume(entity.id)


@pytest.mark.rule("N-10")
async def test_a_takeover_needs_few_statements(counted: Counted) -> None:
    url = postgres.fresh()
    slow = answering(delay=30)
    async with node(url, "w2", slow, beat=0.5) as heir:
        async with crashing(node(url, "w1", slow)) as dying:
            cast = await dying.start(slow, "a cast")
            await anyio.sleep(0.5)
        found = heir.find(cast.id)
        with counted.at_most(20), anyio.fail_after(20):
            while not found.loaded:
                await anyio.sleep(0.05)
            await anyio.sleep(0.5)  # its state is read once it is claimed
