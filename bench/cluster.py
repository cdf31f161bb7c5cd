"""`python -m bench cluster`: the speed of a cluster of nodes on Postgres, all on this machine, server included.

- *send*: milliseconds from a post by another process to the record that takes it, at 120 a second over three nodes.
- *failover*: seconds until the last entity of a killed node has its next record; each node looks like a machine of its
  own, so the others wait for its ttl.
- *hand-over*: seconds that an entity loses when its node is asked to leave.
- *takeover*: seconds until three nodes have taken the leases of a dead node with 10,000 idle entities.
- *schedules*: lateness in seconds, with thousands due within a minute and two nodes.
- *idle*: the load of a node without work on the server and on its core.
- *scaling*: turns a second of 2 and 4 nodes compared with one, 100 entities each, whose model takes half a second a
  turn.
- *member*: CPU of a runtime that has joined compared with one that has not, for the same turns of a model that answers
  at once.

A limit that does not hold is printed, and the exit code is 1. Seconds depend on other load of the machine; ratios do
not, and the limits are those of a quiet machine.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import orjson
import psycopg
from psycopg import sql

from bench.cluster_node import PACED, run_load, run_node
from cantrip_actors import Runtime
from cantrip_actors.looms import Committed, IntentGiven
from conformance.postgres import Server, drop

__all__ = ["main"]

RATE: Final = 120.0
"""Posts a second."""
ENTITIES: Final = 60
LOOK: Final = 0.5
"""Seconds between two looks of a node."""

_processes = multiprocessing.get_context("spawn")
_schemas = itertools.count()


class Figure(NamedTuple):
    """One measured value, and its limit: a maximum, or a minimum if `at_least`."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the value is within its limit."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


class Scale(NamedTuple):
    """The amount of work of each measurement."""

    seconds: float = 20.0
    schedules: int = 10_000
    window: float = 60.0
    """Seconds within which all schedules are due."""
    turns: int = 20
    beat: float = 1.0
    ttl: float = 4.0
    leases: int = 10_000
    rounds: int = 5
    """Pairs of runs whose CPU is compared; the median counts."""


class Nodes:
    """Processes of nodes on one loom."""

    def __init__(self, url: str, scale: Scale) -> None:
        self._url, self._scale = url, scale
        self.schema = url.rpartition("schema=")[2]
        self._number = 0
        self.running: list[BaseProcess] = []

    def start(self, count: int, *, capacity: int = 200, far: bool = False) -> None:
        """Start nodes; `far` ones look like nodes of other machines."""
        for _ in range(count):
            self._number += 1
            name = f"w{self._number}"
            about = (self._url, name, f"machine-{name}" if far else "", capacity, self._scale.beat, self._scale.ttl)
            process = _processes.Process(target=run_node, args=about)
            process.start()
            self.running.append(process)

    def end(self) -> None:
        """Kill all nodes that still run."""
        for process in self.running:
            process.kill()
            process.join()


@asynccontextmanager
async def cluster(server: str, scale: Scale, keepers: int = 0) -> AsyncIterator[tuple[Runtime, Nodes]]:
    """Yield a client that runs nothing and nodes, on a fresh loom with idle entities that no process runs."""
    with fresh(server) as url:
        nodes = Nodes(url, scale)
        try:
            async with Runtime.open(url, cantrips=[PACED]) as runtime:
                for n in range(keepers):
                    await (await runtime.invoke(PACED, "1 0", name=f"keeper-{n}")).episode()
            async with Runtime.open(url) as client:
                yield client, nodes
                nodes.end()
        finally:
            nodes.end()


@contextmanager
def fresh(server: str) -> Iterator[str]:
    """Yield the URL of a fresh loom, which is dropped afterwards."""
    url = f"{server}&schema=bench{os.getpid()}_{next(_schemas)}"
    try:
        yield url
    finally:
        drop(url)


async def await_nodes(client: Runtime, count: int) -> None:
    """Wait until `count` nodes live."""
    while True:
        nodes = await client.cluster.nodes()
        if sum(node.is_living for node in nodes) == count:
            return
        await anyio.sleep(0.1)


def _read_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _rank(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def send(server: str, scale: Scale) -> list[Figure]:
    """Measure the time from a post to the record that takes it."""
    async with cluster(server, scale, ENTITIES) as (client, nodes):
        nodes.start(3)
        await await_nodes(client, 3)
        entities = [client.entity(f"keeper-{n}") for n in range(ENTITIES)]
        for entity in entities:  # so that a node loads each of them
            assert entity is not None
            await entity.send("1 0")
        sent: dict[str, float] = {}

        async def post(n: int) -> None:
            entity, key = entities[n % ENTITIES], f"post {n}"
            assert entity is not None
            sent[key] = time.time()
            await entity.post("1 0", key=key)

        async with anyio.create_task_group() as tasks:
            for n in range(int(scale.seconds * RATE)):
                tasks.start_soon(post, n)
                await anyio.sleep(1 / RATE)
        await anyio.sleep(2.0)
        records = {
            record.key: _read_time(record.at)
            for entity in entities
            if entity is not None
            for record in client.loom.records(entity.id)
            if isinstance(record, IntentGiven) and record.key in sent
        }
    waits = [(records[key] - sent[key]) * 1e3 for key in sent]
    return [
        Figure("send p50", _rank(waits, 50), "ms", 15),
        Figure("send p99", _rank(waits, 99), "ms", 60),
    ]


async def leave(server: str, scale: Scale) -> list[Figure]:
    """Measure how long entities stand still when their node is killed, and when it is asked to leave."""
    pace = 0.2
    async with cluster(server, scale) as (client, nodes):
        nodes.start(4, far=True)
        await await_nodes(client, 4)
        wanted = int((2 * scale.ttl + 2 * scale.seconds) / pace)
        casts = [await client.submit("paced", f"{wanted} {pace}") for _ in range(ENTITIES)]
        await anyio.sleep(scale.seconds / 2)
        figures = []
        for what in ("failover", "hand-over"):
            victim = nodes.running.pop(0)
            began = time.time()
            if what == "failover":
                victim.kill()
            else:
                victim.terminate()
            await anyio.sleep(scale.ttl + scale.beat + LOOK + 5.0)
            await anyio.to_thread.run_sync(victim.join)
            gaps = sorted(_find_gap(client, cast.entity_id, began) for cast in casts)
            if what == "failover":
                limit = scale.ttl + scale.beat + LOOK + 1.0
                figures.append(Figure("failover, longest", gaps[-1], "s", limit))
            else:
                figures.append(Figure("hand-over p99", max(0.0, _rank(gaps, 99) - pace), "s", 1.0))
    return figures


def _find_gap(client: Runtime, entity_id: str, since: float) -> float:
    """Return the longest time between two turns of an entity that ends after `since`."""
    times = [_read_time(record.at) for record in client.loom.records(entity_id) if isinstance(record, Committed)]
    return max(later - before for before, later in itertools.pairwise(times) if later > since)


async def schedules(server: str, scale: Scale) -> list[Figure]:
    """Measure the lateness of schedules, 20 for each entity: a turn of an entity with a long past costs more."""
    keepers = max(1, scale.schedules // 20)
    async with cluster(server, scale, keepers) as (client, nodes):
        nodes.start(2)
        await await_nodes(client, 2)
        first = time.time() + scale.schedules / 100 + 10
        due: dict[str, float] = {}
        for n in range(scale.schedules):
            at = first + n * scale.window / scale.schedules
            due[f"s{n}"] = at
            when = datetime.fromtimestamp(at, UTC)
            await client.schedule(f"keeper-{n % keepers}", "1 0", at=when, id=f"s{n}")
        await anyio.sleep(max(0.0, first - time.time()) + scale.window + 5)
        late = [
            _read_time(record.at) - due[(record.sender or "").removeprefix("schedule ")]
            for n in range(keepers)
            if (entity := client.entity(f"keeper-{n}")) is not None
            for record in client.loom.records(entity.id)
            if isinstance(record, IntentGiven) and (record.sender or "").startswith("schedule ")
        ]
    missing = scale.schedules - len(late)
    return [
        Figure("schedules, lateness p99", _rank(late, 99), "s", 2.0),
        Figure("schedules that did not fire", missing, "", 0),
    ]


async def takeover(server: str, scale: Scale) -> list[Figure]:
    """Measure how long the leases of a dead node remain, if its entities are idle."""
    quick = scale._replace(beat=0.5, ttl=2.0)
    async with cluster(server, quick) as (client, nodes):
        nodes.start(3)
        await await_nodes(client, 3)
        await anyio.sleep(2 * quick.ttl)  # a node takes nothing over before it has renewed for a whole ttl
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.SQL("set search_path to {}").format(sql.Identifier(nodes.schema)))
            began = time.monotonic()
            connection.execute(
                "with dead as (insert into holders (owner, until) values ('elsewhere/1/1/1/1/1', clock_timestamp()) "
                "returning no) insert into leases (entity, holder) "
                "select 'idle-' || n, dead.no from dead, generate_series(1, %s) as n",
                (scale.leases,),
            )
            await anyio.to_thread.run_sync(_wait_for_release, connection)
            took = time.monotonic() - began
    return [Figure("takeover of idle entities", took, "s", 5.0)]


def _wait_for_release(connection: psycopg.Connection) -> None:
    while connection.execute("select 1 from leases limit 1").fetchone():
        time.sleep(0.02)


async def member(server: str, scale: Scale) -> list[Figure]:
    """Compare the CPU of a member with that of a runtime alone."""

    def spend(*, has_joined: bool) -> float:
        ours, theirs = _processes.Pipe()
        with fresh(server) as url:
            about = (url, has_joined, ENTITIES, scale.turns, theirs)
            process = _processes.Process(target=run_load, args=about)
            process.start()
            spent = float(ours.recv())
            process.join()
            return spent

    ratios = []
    for _ in range(scale.rounds):
        alone = await anyio.to_thread.run_sync(lambda: spend(has_joined=False))
        member = await anyio.to_thread.run_sync(lambda: spend(has_joined=True))
        ratios.append(member / alone)
    return [Figure("member beside alone, CPU", statistics.median(ratios), "x", 1.15)]


async def idle(server: str, scale: Scale) -> list[Figure]:
    """Measure the cost of a node without work, while no other process uses the server."""
    with fresh(server) as url:
        nodes = Nodes(url, scale._replace(beat=2.0, ttl=10.0))
        try:
            nodes.start(1)
            async with Runtime.open(url) as client:
                await await_nodes(client, 1)
            await anyio.sleep(3.0)
            (process,) = nodes.running
            assert process.pid is not None
            before, used = _count_transactions(server), _read_cpu(process.pid)
            await anyio.sleep(scale.seconds)
            transactions, spent = _count_transactions(server) - before, _read_cpu(process.pid) - used
            connections = _count_connections(server)
        finally:
            nodes.end()
    return [
        Figure("idle, transactions a second", transactions / scale.seconds, "", 5),
        Figure("idle, of a core", spent / scale.seconds * 100, "%", 1),
        Figure("idle, connections", connections, "", 4),
    ]


def _count_transactions(server: str) -> int:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("select pg_stat_clear_snapshot()")
        query = "select sum(xact_commit + xact_rollback) from pg_stat_database where datname = current_database()"
        row = connection.execute(query).fetchone()
        return int(row[0]) if row else 0


def _count_connections(server: str) -> int:
    with psycopg.connect(server, autocommit=True) as connection:
        query = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        row = connection.execute(query).fetchone()
        return int(row[0]) if row else 0


def _read_cpu(process: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure_scaling(server: str, scale: Scale) -> list[Figure]:
    """Measure the turns a second of one, two and four nodes."""
    rates: dict[int, float] = {}
    for count in (1, 2, 4):
        async with cluster(server, scale) as (client, nodes):
            casts = [await client.submit("paced", f"{scale.turns} 0.5") for _ in range(100 * count)]
            nodes.start(count, capacity=100)
            episodes = [await cast.episode() for cast in casts]
            times = [
                _read_time(record.at)
                for episode in episodes
                for record in client.loom.records(episode.entity_id)
                if isinstance(record, Committed)
            ]
        times.sort()
        middle = times[len(times) // 10 : -len(times) // 10]  # without the beginning and the end
        rates[count] = len(middle) / (middle[-1] - middle[0])
    return [
        Figure("turns a second, 1 node", rates[1], ""),
        Figure("2 nodes beside 1", rates[2] / rates[1], "x", 1.8, at_least=True),
        Figure("4 nodes beside 1", rates[4] / rates[1], "x", 3.0, at_least=True),
    ]


MEASURED: Final[dict[str, Callable[[str, Scale], Awaitable[list[Figure]]]]] = {
    "send": send,
    "leave": leave,
    "takeover": takeover,
    "schedules": schedules,
    "idle": idle,
    "scaling": measure_scaling,
    "member": member,
}


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url if "?" in url else f"{url}?"
        return
    with Server() as server:
        yield server.url


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if a limit does not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench cluster", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="|".join(MEASURED), help="left out: all of them")
    parser.add_argument("--postgres", metavar="URL", help="measure on that server; left out: one is started")
    for name, value in Scale()._asdict().items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    unknown = [name for name in options.what if name not in MEASURED]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; expected some of {', '.join(MEASURED)}")
    scale = Scale(*(getattr(options, name) for name in Scale._fields))
    figures: list[Figure] = []
    with _server(options.postgres) as server:
        for what in options.what or MEASURED:
            measured = anyio.run(MEASURED[what], server, scale)
            figures += measured
            for figure in [] if options.json else measured:
                sign = "" if figure.limit is None else f"  {'>=' if figure.at_least else '<='} {figure.limit:g}"
                print(
                    f"{figure.name:<32}{figure.value:>10.2f} {figure.unit:<4}{sign}{'' if figure.holds else '  over'}",
                    flush=True,
                )
    if options.json:
        print(orjson.dumps([{**figure._asdict(), "holds": figure.holds} for figure in figures]).decode())
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
