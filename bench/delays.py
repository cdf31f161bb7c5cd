"""`python -m bench delays`: the delays from a call to the provider's socket, and from there to a subscriber.

*to the socket* is the time from `runtime.cast` until a provider on this machine has the whole request, over a kept
connection: median and 95th percentile. *a chunk* is the CPU of one streamed event from the socket to `run.events()`:
the difference between answers of many chunks and of few. All chunks of an answer come at once; with *a chunk alone*
each comes after a pause, and its figure has the CPU of the provider's pause and sending, too. *a cast* is the CPU of a
cast beside its turns: that of a cast with one turn, less the cost of a turn. *round trips* are those of a turn on
Postgres, and of a cast beside its turns, counted by a relay in front of the server. The goals are those of the project;
none is a limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import quote

import anyio
import anyio.abc
import orjson
from anyio.streams.buffered import BufferedByteReceiveStream

from bench.turns_worker import cantrip_of
from cantrip_actors import Cantrip, Circle, DeltaEvent, Runtime
from cantrip_actors.crystals import openai
from cantrip_actors.wards import max_turns
from conformance.postgres import MISSING, Server

__all__ = ["CountingRelay", "main"]

GOALS = {
    "to the socket, memory": 2.0,
    "to the socket, sqlite": 2.0,
    "a chunk": 25.0,
    "a cast, memory": 400.0,
    "a cast, sqlite": 400.0,
    "round trips a turn": 2.0,
}
"""Milliseconds, then microseconds, then a number."""
FEW, MANY = 10, 510
"""Chunks of the two answers whose difference is measured."""


class TimedProvider:
    """A provider in this event loop: it notes when it has each request, and answers with so many chunks."""

    def __init__(self) -> None:
        self.arrived = 0.0
        self.chunks = 1
        self.pause = 0.0
        """Seconds before each chunk; 0 to send the whole answer at once."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Yield its address."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._serve)
            yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
            tasks.cancel_scope.cancel()

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        stream = BufferedByteReceiveStream(client)
        async with client:
            with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                while True:
                    head = (await stream.receive_until(b"\r\n\r\n", 1 << 16)).lower()
                    await stream.receive_exactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
                    self.arrived = time.perf_counter()
                    await self._answer(client)

    async def _answer(self, client: anyio.abc.SocketStream) -> None:
        answer, end = make_answer(self.chunks), b"\n\n\r\n"
        while self.pause and end in answer:
            event, _, answer = answer.partition(end)
            await anyio.sleep(self.pause)
            await client.send(event + end)
        await client.send(answer)


def make_answer(chunks: int) -> bytes:
    """Return an HTTP response that streams an answer of so many chunks of text."""
    deltas: list[dict[str, Any]] = [{"content": "word "}] * chunks
    events = [json.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    events += [json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}), "[DONE]"]
    body = b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in (f"data: {event}\n\n".encode() for event in events))
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + body
        + b"0\r\n\r\n"
    )


def _make_cantrip(url: str) -> Cantrip:
    crystal = openai("gpt-5-mini", chat=True, base_url=url, api_key="none")
    return Cantrip(crystal, circle=Circle(["done"], [max_turns(3)]))


async def measure_to_socket(loom: str, casts: int) -> dict[str, float]:
    """Return the milliseconds from a cast until the provider has its request: the median and the 95th percentile."""
    provider, delays = TimedProvider(), list[float]()
    async with provider.open() as url, Runtime.open(loom) as runtime:
        cantrip = _make_cantrip(url)
        for number in range(casts + 10):
            began = time.perf_counter()
            await runtime.cast(cantrip, "go")
            if number >= 10:
                delays.append((provider.arrived - began) * 1e3)
    return {"median": median(delays), "p95": quantiles(delays, n=20)[-1]}


async def measure_chunk(rounds: int, pause: float = 0.0) -> float:
    """Return the CPU microseconds of a chunk, from the socket to the events of a run."""
    provider = TimedProvider()
    provider.pause = pause
    async with provider.open() as url, Runtime.open() as runtime:
        cantrip = _make_cantrip(url)

        async def stream(chunks: int) -> float:
            provider.chunks = chunks
            cpu, text = time.process_time(), ""
            async with runtime.stream(cantrip, "go") as run:
                async for event in run.events():
                    text += event.text if isinstance(event, DeltaEvent) else ""
                await run.result()
            assert text == "word " * chunks, f"expected {chunks} words, got {text!r}"
            return time.process_time() - cpu

        await stream(MANY)
        costs = [(await stream(FEW), await stream(MANY)) for _ in range(rounds)]
    return float(median(many for _, many in costs) - median(few for few, _ in costs)) / (MANY - FEW) * 1e6


async def measure_cast(loom: str, rounds: int) -> float:
    """Return the CPU microseconds of a cast beside its turns."""
    async with Runtime.open(loom) as runtime:

        async def cast(turns: int) -> float:
            cantrip, cpu = cantrip_of(turns), time.process_time()
            for _ in range(10):
                await runtime.cast(cantrip, "go")
            return (time.process_time() - cpu) / 10

        await cast(2)
        costs = [(await cast(1), await cast(21)) for _ in range(rounds)]
    few, many = median(few for few, _ in costs), median(many for _, many in costs)
    return float(few - (many - few) / 20) * 1e6


class CountingRelay:
    """A socket in front of a Postgres server that counts round trips: requests that follow a reply, or come first."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.trips = 0

    @asynccontextmanager
    async def open(self, folder: Path) -> AsyncIterator[None]:
        """Listen in a folder, as the server does in its own."""
        listener = await anyio.create_unix_listener(folder / self._target.name)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._serve)
            yield
            tasks.cancel_scope.cancel()

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        is_asked = False

        async def pass_on(source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream, *, asks: bool) -> None:
            nonlocal is_asked
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for data in source:
                    self.trips += asks and not is_asked
                    is_asked = asks
                    await sink.send(data)
            await sink.aclose()

        async with client, await anyio.connect_unix(self._target) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(pass_on, client, server, asks=True))
            tasks.start_soon(partial(pass_on, server, client, asks=False))


async def measure_round_trips(url: str, folder: Path, socket: Path) -> dict[str, float]:
    """Return the round trips of a turn on Postgres, and of a cast beside its turns."""
    relay = CountingRelay(socket)
    async with relay.open(folder), Runtime.open(url) as runtime:

        async def count(turns: int) -> float:
            before = relay.trips
            for _ in range(5):
                await runtime.cast(cantrip_of(turns), "go")
            return (relay.trips - before) / 5

        await count(2)
        few, many = await count(1), await count(21)
    return {"turn": (many - few) / 20, "cast": few - (many - few) / 20}


def _count_round_trips(folder: Path) -> Iterator[tuple[str, float, float]]:
    with Server() as server:
        (socket,) = [path for path in server.folder.iterdir() if path.name.startswith(".s.PGSQL") and path.is_socket()]
        url = server.url.replace(quote(str(server.folder), safe=""), quote(str(folder), safe=""))
        trips = asyncio.run(measure_round_trips(url, folder, socket))
    yield "round trips a turn", trips["turn"], trips["turn"]
    yield "round trips a cast", trips["cast"], trips["cast"]


@contextmanager
def _open_loom(store: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        yield "memory:" if store == "memory" else f"sqlite:{folder}/loom.db"


def measure(casts: int, rounds: int) -> Iterator[tuple[str, float, float]]:
    """Yield each measure: its name, its figure, and the 95th percentile where it has one."""
    for store in ("memory", "sqlite"):
        with _open_loom(store) as loom:
            delay = asyncio.run(measure_to_socket(loom, casts))
        yield f"to the socket, {store}", delay["median"], delay["p95"]
    chunk = asyncio.run(measure_chunk(rounds))
    yield "a chunk", chunk, chunk
    alone = asyncio.run(measure_chunk(max(1, rounds // 3), pause=0.001))
    yield "a chunk alone", alone, alone
    for store in ("memory", "sqlite"):
        with _open_loom(store) as loom:
            cast = asyncio.run(measure_cast(loom, rounds))
        yield f"a cast, {store}", cast, cast
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            yield from _count_round_trips(Path(folder))
        except FileNotFoundError:
            print(MISSING, file=sys.stderr)


def main(argv: Sequence[str]) -> int:
    """Measure and print; the exit code is 0, whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m bench delays", description=__doc__)
    parser.add_argument("--casts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    figures = {}
    for name, figure, late in measure(options.casts, options.rounds):
        figures[name] = {"figure": figure, "p95": late, "goal": GOALS.get(name)}
        if not options.json:
            unit = "ms" if "socket" in name else "" if "trips" in name else "us of CPU"
            goal = f"  goal {GOALS[name]:g}" if name in GOALS else ""
            tail = f"  p95 {late:,.2f}" if late != figure else ""
            print(f"{name:<24}{figure:>10,.2f} {unit}{tail}{goal}", flush=True)
    if options.json:
        print(orjson.dumps(figures).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
