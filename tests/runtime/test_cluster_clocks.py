"""Nodes with wrong wall clocks, on a Postgres loom: no statement has their time, and timers are on time (N-03).

A test cannot set the clock of one process for itself, and libfaketime is not everywhere. So `time.time` is what is
wrong here, for the whole process: the server alone has the right time.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
import psycopg
import pytest

from cantrip_actors import Runtime
from cantrip_actors.records.records import IntentGiven
from tests.loom import postgres
from tests.runtime.test_cluster import DESK, node

pytestmark = pytest.mark.real_time

DAY = 86_400.0
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_SECONDS = re.compile(r"(?<![\d.])1[5-9]\d{8}(?:\.\d+)?(?![\d])")


class Recorded:
    """The parameters of all statements that this process sends."""

    def __init__(self) -> None:
        self.values: list[tuple[str, Any]] = []

    def note(self, query: Any, values: Any) -> None:
        given = values.values() if isinstance(values, dict) else values or ()
        self.values += [(str(query), value) for value in given]

    def times(self) -> Iterator[tuple[str, float]]:
        """The times in all parameters, in seconds since 1970."""
        for query, value in self.values:
            for one in value if isinstance(value, list) else [value]:
                text = one if isinstance(one, str) else repr(one) if isinstance(one, (int, float)) else ""
                for found in _TIME.findall(text):
                    yield query, datetime.fromisoformat(found).timestamp()
                for found in _SECONDS.findall(text):
                    yield query, float(found)


@pytest.fixture
def skew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """By how much the wall clock of this process is wrong."""
    right, wrong = time.time, float(getattr(request, "param", DAY))
    monkeypatch.setattr(time, "time", lambda: right() + wrong)
    return wrong


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    kept = Recorded()
    execute, executemany = psycopg.Connection.execute, psycopg.Cursor.executemany

    def noting(self: Any, query: Any, values: Any = None, **more: Any) -> Any:
        kept.note(query, values)
        return execute(self, query, values, **more)

    def noting_many(self: Any, query: Any, rows: Iterable[Sequence[Any]], **more: Any) -> None:
        rows = list(rows)
        for row in rows:
            kept.note(query, row)
        executemany(self, query, rows, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", noting)
    monkeypatch.setattr(psycopg.Cursor, "executemany", noting_many)
    return kept


def server_time(url: str) -> float:
    with psycopg.connect(url.partition("&schema=")[0]) as connection:
        ((found,),) = connection.execute("select extract(epoch from clock_timestamp())::float8").fetchall()
    return float(found)


@pytest.mark.rule("N-03")
async def test_sql_statements_of_a_node_never_carry_its_wall_clock_time(skew: float, recorded: Recorded) -> None:
    url = postgres.fresh()
    async with node(url, "w1"), Runtime.open(url) as client:
        cast = await client.submit("desk", "Find it.", key="job")
        await cast.episode()
        async with Runtime.open(url, cantrips=[DESK]) as program:
            entity = await program.invoke(DESK, "one", name="keeper")
            await entity.episode()
        await client.entity("keeper").send("two", key="k")
        await client.schedule("keeper", "tick", every=1.0, id="ticks")
        await anyio.sleep(2.5)
        await client.prune("12h")
        assert not client.loom.is_forgotten(cast.entity_id)
        assert len([one for one in client.loom.records(entity.id) if isinstance(one, IntentGiven)]) > 2
    now = server_time(url)
    times = list(recorded.times())
    assert len(times) > 20
    wrong = [(query, at - now) for query, at in times if abs(at - (now + skew)) < DAY / 4]
    assert wrong == []


@pytest.mark.rule("N-03")
@pytest.mark.parametrize("skew", [-DAY, DAY], indirect=True, ids=["a day behind", "a day ahead"])
@pytest.mark.usefixtures("skew")
async def test_a_schedule_fires_by_the_servers_clock() -> None:
    url = postgres.fresh()
    async with node(url, "w1"), Runtime.open(url) as client:
        async with Runtime.open(url, cantrips=[DESK]) as program:
            entity = await program.invoke(DESK, "one", name="keeper")
            await entity.episode()
        due = server_time(url) + 2
        await client.schedule("keeper", "now", at=datetime.fromtimestamp(due, UTC).isoformat(), id="once")
        await anyio.sleep(1)
        given = [one.intent for one in client.loom.records(entity.id) if isinstance(one, IntentGiven)]
        assert given == ["one"]
        with anyio.fail_after(10):
            while len(given) < 2:
                await anyio.sleep(0.1)
                given = [one.intent for one in client.loom.records(entity.id) if isinstance(one, IntentGiven)]
        assert given == ["one", "now"]
        assert server_time(url) >= due
