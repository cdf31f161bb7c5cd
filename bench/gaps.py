"""`python -m bench gaps`: the longest gap of the host's event loop while its loom is busy or locked.

A program that embeds a runtime also serves others from the same event loop. Each row is the longest time, in
milliseconds, for which a task of that program could not run, while entities are cast and get messages all the time:

- *nothing*: nothing else happens. This is what the casts and sends themselves take.
- *locked*: another process holds SQLite's write lock for 7 seconds.
- *forget*, *prune*, *backup*, *verify*, *vacuum*: the operation runs on the loom, of 300 MB, in this process (*here*)
  or in another one (*elsewhere*). *took* is its duration in seconds. `prune` forgets a tenth of the entities; `verify`
  and `vacuum` (`compact_loom`) use a store of their own, in a thread.
- *entities*, *overview*, *requests*, *system*, *stats*, *search*: HTTP serves it from a loom with 100,000 entities.
  *took* is the time of one request.

Each row is measured in a process of its own, on a copy of the loom. The clock ticks every millisecond. Time for which
the thread waited for a core is no part of a gap if the kernel reports it (`/proc/thread-self/schedstat`), so a busy
machine shows about the same gaps as an idle one. *failed* counts the casts and sends that raised an error, as they may
do while another process holds the lock for longer than a store is patient.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx
import orjson

from bench.loom import AT, make_beginning, new_id, turn_of
from cantrip_actors import Cantrip, CantripError, Circle, Runtime, scripted
from cantrip_actors.http import Service, ServiceLimits, make_app
from cantrip_actors.looms import Ended, IntentGiven, Record, compact_loom, open_loom, open_store, verify_loom
from cantrip_actors.wards import max_turns

__all__ = ["main"]

ROOT = Path(__file__).parent.parent
TICK = 0.001
"""Seconds between two looks at the clock."""
PAUSE = 0.02
"""Seconds between two casts, and between two sends."""
SETTLE = 1.0
"""Seconds of casts and sends before a measurement, and after the operation."""
MEGABYTE = 1_000_000
BODY = 50_000
"""Bytes of the intent of each entity of the large loom."""
OLD = "2020-01-01T00:00:00.000Z"
"""When the entities ended that `prune` forgets; one in `PRUNED` of them did."""
PRUNED = 10
BATCH = 100
"""Entities of one append of the large loom."""

OPERATIONS = ("forget", "prune", "backup", "verify", "vacuum")
LISTINGS = {
    "entities": "/api/v1/entities?limit=20",
    "overview": "/api/v1/overview",
    "requests": "/api/v1/requests",
    "system": "/api/v1/system",
    "stats": "/api/v1/loom/stats",
    "search": "/api/v1/loom/search?q=hello&limit=20",
}
REQUESTS = 5
"""How often each listing is requested."""

HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("begin immediate")
time.sleep(float(sys.argv[2]))
connection.execute("rollback")
"""
"""A process that holds the write lock of a file in SQLite."""

CANTRIP = Cantrip(
    scripted(lambda _: {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]}, record=False),
    circle=Circle(["done"], [max_turns(2)]),
    name="clerk",
)


# Making the looms


def make_loom(path: str, megabytes: float) -> None:
    """Make a loom of ended one-shot entities, so large; the first of them is the one that `forget` deletes."""
    count = max(1, int(megabytes * MEGABYTE / BODY))
    with open_store(f"sqlite:{path}") as store:
        for first in range(0, count, BATCH):
            batch: list[Record] = []
            for number in range(first, min(first + BATCH, count)):
                batch += _make_entity(number, OLD if number % PRUNED == 1 else AT, "y" * BODY)
            store.append(batch)


def make_entities(path: str, count: int) -> None:
    """Make a loom of so many ended one-shot entities of one turn."""
    with open_store(f"sqlite:{path}") as store:
        for first in range(0, count, 1000):
            batch: list[Record] = []
            for number in range(first, min(first + 1000, count)):
                batch += _make_entity(number, AT, "hello")
            store.append(batch)


def _make_entity(number: int, ended: str, text: str) -> list[Record]:
    entity = new_id()
    header, _ = make_beginning(entity)
    turn = turn_of(entity, None, 1)
    intent = IntentGiven(entity, f"{number} {text}", AT)
    return [header, intent, *turn.asked, *turn.done, Ended(entity, "terminated", ended, result="ok")]


# What happens to the loom meanwhile


async def _run_operation(name: str, url: str, runtime: Runtime) -> float:
    """Carry out an operation on the loom in this process, and return its duration in seconds."""
    began = time.perf_counter()
    if name == "forget":
        await runtime.forget(await anyio.to_thread.run_sync(_find_first, url))
    elif name == "prune":
        await runtime.prune("365d")
    elif name == "backup":
        await runtime.backup(f"{url.removeprefix('sqlite:')}.copy")
    else:
        await anyio.to_thread.run_sync(_run_in_store, name, url)
    return time.perf_counter() - began


def _find_first(url: str) -> str:
    with open_loom(url) as loom:
        return loom.entities()[0]


def _run_in_store(name: str, url: str) -> None:
    with open_store(url, read_only=name == "verify") as store:
        if name == "verify":
            verify_loom(store)
        else:
            compact_loom(store)


async def _run_elsewhere(name: str, url: str, _: Runtime) -> float:
    """Carry out an operation on the loom in another process, and return its duration in seconds."""
    result = await anyio.run_process(_command("operate", name, url), cwd=ROOT, stderr=None)
    return float(result.stdout)


async def _operate(name: str, url: str) -> float:
    async with Runtime.open(url) as runtime:
        return await _run_operation(name, url, runtime)


async def _hold_lock(seconds: float, url: str, _: Runtime) -> float:
    command = [sys.executable, "-c", HOLD, url.removeprefix("sqlite:"), str(seconds)]
    async with await anyio.open_process(command, stdout=None, stderr=None) as process:
        await process.wait()
    return seconds


async def _wait(seconds: float, _: Runtime) -> float:
    await anyio.sleep(seconds)
    return seconds


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench.gaps", *arguments]


# The measurement


class Gaps:
    """The longest time for which a task could not run, and the calls that failed meanwhile."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._failed = 0

    def begin(self) -> None:
        """Forget what was seen so far."""
        self._longest, self._failed = 0.0, 0

    def end(self, took: float) -> dict[str, float]:
        """Return the figures since `begin`."""
        return {"gap_ms": self._longest * 1e3, "took_s": took, "failed": self._failed}

    async def watch(self) -> None:
        """Look at the clock every `TICK` seconds."""
        now, waited = time.perf_counter(), _read_core_wait()
        while True:
            await anyio.sleep(TICK)
            before, waited_before = now, waited
            now, waited = time.perf_counter(), _read_core_wait()
            self._longest = max(self._longest, now - before - TICK - (waited - waited_before))

    async def repeat(self, call: Callable[[], Awaitable[object]]) -> None:
        """Make a call again and again."""
        while True:
            try:
                await call()
            except CantripError:
                self._failed += 1
            await anyio.sleep(PAUSE)


def _read_core_wait() -> float:
    """Return the seconds that this thread has waited for a core; 0 if the kernel does not say."""
    with suppress(OSError), open("/proc/thread-self/schedstat", encoding="ascii") as file:  # noqa: PTH123  # quicker
        return int(file.read().split()[1]) / 1e9
    return 0.0


async def measure_busy(url: str, operate: Callable[[Runtime], Awaitable[float]]) -> dict[str, float]:
    """Return the longest gap during an operation, while entities are cast and get messages."""
    gaps = Gaps()
    async with Runtime.open(url, cantrips=[CANTRIP]) as runtime, anyio.create_task_group() as tasks:
        entity = await runtime.invoke(CANTRIP, "begin", name="desk")
        await entity.episode()
        tasks.start_soon(gaps.watch)
        tasks.start_soon(gaps.repeat, partial(runtime.cast, CANTRIP, "go"))
        tasks.start_soon(gaps.repeat, partial(entity.send, "go"))
        await anyio.sleep(SETTLE)
        gaps.begin()
        took = await operate(runtime)
        await anyio.sleep(SETTLE)
        figures = gaps.end(took)
        tasks.cancel_scope.cancel()
    return figures


async def measure_listing(url: str, path: str) -> dict[str, float]:
    """Return the longest gap while HTTP serves a listing, and the seconds that one request takes."""
    gaps = Gaps()
    async with Runtime.open(url, cantrips=[CANTRIP]) as runtime:
        service = Service(runtime, [CANTRIP], tokens=None, limits=ServiceLimits(rate=1e9, burst=1e9))
        transport = httpx.ASGITransport(make_app(service))
        async with (
            service.open(),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=600) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(gaps.watch)
            await anyio.sleep(SETTLE)
            gaps.begin()
            began = time.perf_counter()
            for _ in range(REQUESTS):
                (await client.get(path)).raise_for_status()
            took = (time.perf_counter() - began) / REQUESTS
            await anyio.sleep(10 * TICK)
            figures = gaps.end(took)
            tasks.cancel_scope.cancel()
    return figures


async def _measure(row: str, where: str, url: str, hold: str) -> dict[str, float]:
    if row in LISTINGS:
        return await measure_listing(url, LISTINGS[row])
    if row == "nothing":
        return await measure_busy(url, partial(_wait, float(hold)))
    if row == "locked":
        return await measure_busy(url, partial(_hold_lock, float(hold), url))
    return await measure_busy(url, partial(_run_operation if where == "here" else _run_elsewhere, row, url))


def measure(rows: Sequence[tuple[str, str]], megabytes: float, entities: int, hold: float) -> dict[str, Any]:
    """Return the figures of each row, each from a process of its own."""
    gaps: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        large, many, used = (f"{folder}/{name}.db" for name in ("large", "many", "used"))
        if any(row not in LISTINGS for row, _ in rows):
            make_loom(large, megabytes)
        if any(row in LISTINGS for row, _ in rows):
            make_entities(many, entities)
        for row, where in rows:
            for path in Path(folder).glob("used*"):
                path.unlink()
            for path in Path(folder).glob(f"{'many' if row in LISTINGS else 'large'}*"):  # and the files beside it
                shutil.copy(path, path.with_name(path.name.replace(path.name.partition(".")[0], "used", 1)))
            command = _command("measure", row, where, f"sqlite:{used}", str(hold))
            ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
            gaps[f"{row} {where}".strip()] = orjson.loads(ran.stdout)
    return gaps


ROWS: tuple[tuple[str, str], ...] = (
    ("nothing", ""),
    ("locked", ""),
    *((operation, where) for operation in OPERATIONS for where in ("here", "elsewhere")),
    *((listing, "") for listing in LISTINGS),
)


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if a gap is above the limit, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench gaps", description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[*dict(ROWS), []], help="default: all")
    parser.add_argument("--megabytes", type=float, default=300, help="the size of the large loom")
    parser.add_argument("--entities", type=int, default=100_000, help="the entities that are listed")
    parser.add_argument("--hold", type=float, default=7, help="how many seconds the lock is held")
    parser.add_argument("--limit", type=float, help="fail if a gap is longer, in milliseconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    rows = [row for row in ROWS if not options.rows or row[0] in options.rows]
    gaps = measure(rows, options.megabytes, options.entities, options.hold)
    over = [row for row, figures in gaps.items() if options.limit is not None and figures["gap_ms"] > options.limit]
    if options.json:
        print(orjson.dumps({**gaps, "over": over}, option=orjson.OPT_INDENT_2).decode())
    else:
        print(f"{'':<20}{'gap, ms':>10}{'took, s':>10}{'failed':>8}")
        for row, figures in gaps.items():
            print(f"{row:<20}{figures['gap_ms']:>10,.1f}{figures['took_s']:>10,.2f}{figures['failed']:>8.0f}")
        if options.limit is not None:
            print(
                f"over {options.limit:g} ms: {', '.join(over)}" if over else f"every gap is below {options.limit:g} ms"
            )
    return 1 if over else 0


if __name__ == "__main__":
    if sys.argv[1] == "operate":
        print(anyio.run(_operate, sys.argv[2], sys.argv[3]))
    else:
        print(orjson.dumps(anyio.run(_measure, sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5])).decode())
