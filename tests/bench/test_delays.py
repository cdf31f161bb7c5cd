"""`python -m bench delays` measures what lies between a call, the provider's socket and a subscriber."""

import asyncio
from pathlib import Path

import anyio
import pytest

from bench.delays import FEW, CountingRelay, make_answer, measure_cast, measure_to_socket

pytestmark = pytest.mark.real_time


def test_an_answer_has_as_many_chunks_as_it_should() -> None:
    assert make_answer(FEW).count(b'"word "') == FEW


def test_the_request_arrives_between_the_cast_and_its_end() -> None:
    delay = asyncio.run(measure_to_socket("memory:", 3))
    assert 0 < delay["median"] <= delay["p95"] < 5000


def test_a_cast_costs_something_beside_its_turns() -> None:
    assert asyncio.run(measure_cast("memory:", 3)) > 0


def test_a_relay_counts_requests_that_follow_a_reply(tmp_path: Path) -> None:
    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            async for data in stream:
                if b"?" in data:
                    await stream.send(b"!")

    async def run() -> int:
        (tmp_path / "before").mkdir()
        listener = await anyio.create_unix_listener(tmp_path / "server")
        relay = CountingRelay(tmp_path / "server")
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, answer)
            async with relay.open(tmp_path / "before"), await anyio.connect_unix(tmp_path / "before/server") as client:
                await client.send(b"part")
                await anyio.sleep(0.01)
                for _ in range(2):
                    await client.send(b"?")
                    assert await client.receive() == b"!"
            tasks.cancel_scope.cancel()
        return relay.trips

    assert asyncio.run(run()) == 2
