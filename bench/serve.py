"""`python -m bench serve`: the cost of HTTP, compared with the same calls in the process, in one run.

*cast* is the CPU of one cast by `POST /api/v1/casts` with `wait`, and of `runtime.cast`, with a scripted crystal and a
loom in SQLite, client and server in one process (a bare ASGI application under the same server and client is the
floor). *first byte* is the time from the crystal's first piece until a reader of the event stream has it, compared with
`runtime.watch`. *streams* is the time of a turn of an entity that 500 event streams follow, compared with one without
followers. *pace* is how evenly each kind of stream shows the words of a model that says 50 a second (`pace.py`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.pace import (
    LEAST_RATE,
    MOST_BEYOND,
    MOST_LATE,
    Pace,
    PacedCrystal,
    list_faults,
    make_paced_cantrip,
    measure_each,
    measure_many,
)
from cantrip_actors import Cantrip, Circle, Invocation, Runtime, gate, scripted
from cantrip_actors.http import Service, ServiceLimits, ServiceSettings, make_app
from cantrip_actors.http.server import listen, run_hypercorn
from cantrip_actors.wards import max_turns

__all__ = ["main"]

STREAMS_LIMIT = 1.2
"""The highest ratio of a turn's time with 500 readers to that without."""
FIRST_BYTE_LIMIT = 5.0
"""Milliseconds by which a reader may get the first piece later than in the process."""
TURN = 0.25
"""Seconds that the crystal takes for a followed turn."""


@gate
async def think(seconds: float) -> str:
    """Take as long as a model does."""
    await anyio.sleep(seconds)
    return "thought"


def _answer(context: Invocation) -> dict[str, Any]:
    newest = max(n for n, message in enumerate(context) if message.role == "user")
    word, _, rest = str(context[newest].content).partition(" ")
    turns = len(context[newest + 1 :]) // 2
    if word == "turns" and turns < int(rest):
        return {"content": f"turn {turns}", "tool_calls": [{"gate": "think", "args": {"seconds": TURN}}]}
    return {"content": "ok"}


SPELL = Cantrip(scripted(_answer, record=False), circle=Circle(["done", think], [max_turns(1000)]), name="echo")
ASKED = {"cantrip": "echo", "intent": "hi", "wait": 20}


@asynccontextmanager
async def _serve(app: Any) -> AsyncIterator[str]:
    listener, url = listen(ServiceSettings("memory:", bind="127.0.0.1:0"))
    stop, is_up = anyio.Event(), anyio.Event()

    async def started() -> None:
        is_up.set()
        await stop.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_hypercorn, app, listener, started)
        await is_up.wait()
        yield url
        stop.set()


@asynccontextmanager
async def _open_service(runtime: Runtime, cantrip: Cantrip = SPELL) -> AsyncIterator[tuple[Service, str]]:
    limits = ServiceLimits(rate=1e9, burst=1e9, casts=10_000, streams=10_000)
    service = Service(runtime, [cantrip], tokens=None, limits=limits)
    async with service.open(), _serve(make_app(service)) as url:
        yield service, url
        service.end_streams()


async def _measure_cost(work: Callable[[], Awaitable[Any]], number: int) -> tuple[float, float]:
    """Return microseconds of CPU, and of wall clock, for each of `number` calls."""
    for _ in range(20):
        await work()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(number):
        await work()
    return (time.process_time() - cpu) / number * 1e6, (time.perf_counter() - wall) / number * 1e6


async def measure_casts(number: int) -> dict[str, float]:
    """Return the cost of a cast by HTTP and in the process, and of a request that does nothing."""

    async def nothing(request: Request) -> JSONResponse:
        await request.body()
        return JSONResponse({"ok": True})

    bare = Starlette(routes=[Route("/", nothing, methods=["POST"])])
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with Runtime.open(f"sqlite:{folder}/loom.db", cantrips=[SPELL]) as runtime:
            inside, _ = await _measure_cost(lambda: runtime.cast(SPELL, "hi"), number)
            async with _open_service(runtime) as (_, url), httpx.AsyncClient(base_url=url) as client:
                over, wall = await _measure_cost(lambda: client.post("/api/v1/casts", json=ASKED), number)
            async with _serve(bare) as url, httpx.AsyncClient(base_url=url) as client:
                floor, _ = await _measure_cost(lambda: client.post("/", json=ASKED), number)
    return {"cast_inside": inside, "cast_http": over, "request_bare": floor, "requests_a_second": 1e6 / wall}


async def measure_first_byte(number: int) -> dict[str, float]:
    """Return the milliseconds until a watcher in the process, and a reader of the stream, have a new piece."""
    inside: list[float] = []
    outside: list[float] = []
    async with Runtime.open(cantrips=[SPELL]) as runtime, _open_service(runtime) as (_, url):
        entity = await runtime.invoke(SPELL, "hi")
        await entity.episode()
        first = [0.0]

        def look(_events: Any) -> None:
            first[0] = first[0] or time.perf_counter()

        stop = runtime.watch(look)
        async with await _follow(url, entity.id) as line:
            for _ in range(number):
                await _read_all(line)
                first[0], began = 0.0, time.perf_counter()
                await entity.post("hi")
                while b"event: " not in await line.receive():  # the header of a chunk may come alone
                    pass
                outside.append((time.perf_counter() - began) * 1e3)
                inside.append((first[0] - began) * 1e3)
        stop()
    return {"first_inside": statistics.median(inside), "first_http": statistics.median(outside)}


async def _follow(url: str, entity_id: str) -> anyio.abc.SocketStream:
    """Return a connection over which an event stream is sent."""
    host, port = url.partition("//")[2].split(":")
    line = await anyio.connect_tcp(host, int(port))
    request = f"GET /api/v1/entities/{entity_id}/events HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n"
    await line.send(request.encode())
    return line


async def _read_all(line: anyio.abc.SocketStream) -> None:
    """Read until nothing arrives for a while."""
    while True:
        with anyio.move_on_after(0.1) as quiet:
            await line.receive()
        if quiet.cancelled_caught:
            return


async def measure_streams(streams: int, turns: int) -> dict[str, float]:
    """Return the time of a turn without readers, and with this many."""
    async with Runtime.open(cantrips=[SPELL]) as runtime, _open_service(runtime) as (service, url):

        async def seconds(readers: int) -> float:
            entity = await runtime.invoke(SPELL, "hi")
            await entity.episode()

            async def read() -> None:
                async with await _follow(url, entity.id) as line:
                    async for _ in line:
                        pass

            async with anyio.create_task_group() as tasks:
                for _ in range(readers):
                    tasks.start_soon(read)
                await _wait_for_readers(service, entity.id, readers)
                began = time.perf_counter()
                await entity.send(f"turns {turns}")
                took = time.perf_counter() - began
                tasks.cancel_scope.cancel()
            await entity.stop()
            return took / turns

        return {"turn_alone": await seconds(0) * 1e3, "turn_followed": await seconds(streams) * 1e3}


async def _wait_for_readers(service: Service, entity_id: str, readers: int) -> None:
    """Wait until so many connections read the events of an entity."""
    with service.feed(entity_id) as feed:
        while feed.readers <= readers:  # noqa: ASYNC110  # no event says so
            await anyio.sleep(0.01)
        await anyio.sleep(0.5)


async def measure_pace(streams: int, words: int) -> dict[str, Pace]:
    """Return the pace of each kind of stream, and of event streams with this many readers."""
    crystal = PacedCrystal(words)
    cantrip = make_paced_cantrip(crystal)
    async with Runtime.open(cantrips=[cantrip]) as runtime, _open_service(runtime, cantrip) as (service, url):
        paces = await measure_each(runtime, crystal, cantrip, url)
        paces["many: median"], paces["many: slowest"] = await measure_many(
            runtime, crystal, cantrip, url, streams, lambda entity_id: _wait_for_readers(service, entity_id, streams)
        )
    return paces


async def measure(casts: int, streams: int) -> dict[str, float]:
    """Measure all of it except the pace."""
    return {
        **await measure_casts(casts),
        **await measure_first_byte(max(5, casts // 20)),
        **await measure_streams(streams, 8),
    }


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if a limit does not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench serve", description=__doc__)
    parser.add_argument("--casts", type=int, default=500)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--words", type=int, default=250)
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    figures = anyio.run(measure, options.casts, options.streams, backend=options.backend)
    paces = anyio.run(measure_pace, options.streams, options.words, backend=options.backend)
    ratio = figures["turn_followed"] / figures["turn_alone"]
    later = figures["first_http"] - figures["first_inside"]
    is_over = ratio > STREAMS_LIMIT or later > FIRST_BYTE_LIMIT or any(list_faults(paces))
    if options.json:
        pace = {name: measured._asdict() for name, measured in paces.items()}
        print(orjson.dumps({**figures, "ratio": ratio, "later": later, "pace": pace, "over": is_over}).decode())
        return int(is_over)
    print(f"cast in the process    {figures['cast_inside']:>8,.0f} us of CPU")
    print(f"cast over HTTP         {figures['cast_http']:>8,.0f} us of CPU, client included")
    print(f"a bare request         {figures['request_bare']:>8,.0f} us of CPU, client included")
    print(f"casts a second         {figures['requests_a_second']:>8,.0f} by one client, one after the other")
    inside = figures["first_inside"]
    print(f"first piece            {figures['first_http']:>8,.1f} ms over HTTP, {inside:,.1f} in the process")
    print(
        f"a turn                 {figures['turn_alone']:>8,.0f} ms alone, {figures['turn_followed']:,.0f} with readers"
    )
    print(f"with {options.streams} streams       {ratio:>8,.2f} times (limit {STREAMS_LIMIT})")
    print(f"pace at 50 words a second (limits {LEAST_RATE:.0f} updates, {MOST_BEYOND:.0f} and {MOST_LATE:.0f} ms):")
    for name, measured in paces.items():
        print(
            f"  {name:<20} {measured.rate:>6.1f} updates a second, longest gap {measured.beyond:,.0f} ms beyond the"
            f" crystal's, first text after {measured.first:,.0f} ms"
        )
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
