"""`python -m bench crystals`: what providers' streams and contexts cost, in CPU microseconds.

Three measurements for each family: a chunk decoded (framing, JSON, canonical payload), a chunk over a socket (httpx and
all, the server in a process of its own), and a turn of an entity whose answers come from a transport in memory, around
turn 50 and around turn 2,000: what a context costs that is old.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import anyio
import httpx
import orjson

from cantrip_actors import Call, Cantrip, Circle, Runtime, gate
from cantrip_actors.crystals import ProviderCrystal, Recording, anthropic, google, openai, testing
from cantrip_actors.wards import max_turns

CHUNKS = 2000
TURNS = 2100
EARLY, LATE = (40, 60), (1950, 2050)


def _anthropic(parts: list[str], call: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": {"id": "m", "model": "claude", "usage": {"input_tokens": 9}}}
    start: dict[str, Any] = {"type": "text", "text": ""}
    if call is not None:
        start = {"type": "tool_use", "id": "", "name": call["name"], "input": call["args"]}
    yield {"type": "content_block_start", "index": 0, "content_block": start}
    for part in parts:
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}
    yield {"type": "message_stop"}


def _responses(parts: list[str], call: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    item: dict[str, Any] = {"type": "message", "id": "i", "content": []}
    if call is not None:
        item = {"type": "function_call", "id": "i", "call_id": "", "name": call["name"]}
        item["arguments"] = orjson.dumps(call["args"]).decode()
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    for part in parts:
        yield {"type": "response.output_text.delta", "output_index": 0, "item_id": "i", "delta": part}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": {"status": "completed", "output": [], "model": "gpt"}}


def _chat(parts: list[str], call: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"content": part} for part in parts]
    if call is not None:
        function = {"name": call["name"], "arguments": orjson.dumps(call["args"]).decode()}
        deltas.append({"tool_calls": [{"index": 0, "function": function}]})
    for delta in deltas:
        yield {"id": "c", "model": "gpt", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {"id": "c", "model": "gpt", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def _google(parts: list[str], call: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    said: list[dict[str, Any]] = [{"text": part} for part in parts]
    if call is not None:
        said.append({"functionCall": call})
    for part in said:
        yield {"candidates": [{"content": {"parts": [part]}}], "modelVersion": "gemini"}
    yield {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}], "modelVersion": "gemini"}


def _openai_chat(model: str, **settings: Any) -> ProviderCrystal:
    return openai(model, chat=True, **settings)


FAMILIES: dict[str, tuple[Callable[..., ProviderCrystal], Callable[..., Iterator[dict[str, Any]]]]] = {
    "anthropic": (anthropic, _anthropic),
    "openai-responses": (openai, _responses),
    "openai-chat": (_openai_chat, _chat),
    "google": (google, _google),
}


def decoding(family: str) -> float:
    """Measure the decoding of a chunk."""
    sent = list(FAMILIES[family][1](["word "] * CHUNKS, None))
    recording = Recording(family, tuple(orjson.dumps(value) for value in sent))
    chunks = [testing.events(value) for value in sent]
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        recording.play(chunks)
        best = min(best, time.process_time() - began)
    return best / len(chunks) * 1e6


def serve(family: str, told: Connection) -> None:
    """Answer until told to stop, a chunk an event."""
    sent = [testing.events(value) for value in FAMILIES[family][1](["word "] * CHUNKS, None)]

    class PieceByPiece(testing.Reply):
        def pieces(self) -> Iterator[bytes]:
            return iter(sent)

    async def run() -> None:
        async with testing.FaultyServer([PieceByPiece()]) as server:
            told.send(server.url)
            await anyio.to_thread.run_sync(told.recv)

    anyio.run(run)


def over_a_socket(family: str, backend: str) -> float:
    """Measure a chunk over a socket, without the server's time."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(family, theirs))
    process.start()
    crystal = FAMILIES[family][0]("m", base_url=ours.recv(), api_key="k")

    async def run() -> float:
        question = Call("Be terse.")
        await crystal.invoke([], options=question.sampling(), emit=lambda _: None)
        began = time.process_time()
        for _ in range(3):
            await crystal.invoke([], options=question.sampling(), emit=lambda _: None)
        return (time.process_time() - began) / 3 / CHUNKS * 1e6

    cost = anyio.run(run, backend=backend)
    ours.send("stop")
    process.join()
    return cost


@gate
async def look(path: str) -> str:
    """Look at something."""
    return f"{path}: " + "what there is to see " * 15


def a_turn(family: str) -> tuple[float, float, int]:
    """Measure turns around turn 50 and around turn 2,000, and the bytes of the last request."""
    make, stream = FAMILIES[family]
    moments: list[float] = []
    size = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal size
        moments.append(time.process_time())
        size = len(request.content)
        call = {"name": "look", "args": {"path": "a"}}
        if len(moments) >= TURNS:
            call = {"name": "done", "args": {"answer": "seen"}}
        return httpx.Response(200, content=testing.events(*stream([], call)))

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client, Runtime.open() as runtime:
            crystal = make("m", client=client, base_url="http://provider")
            circle = Circle(gates=["done", look], wards=[max_turns(TURNS + 1)])
            await runtime.cast(Cantrip(crystal, Call("Be terse."), circle), "look around")

    anyio.run(run)
    early, late = ((moments[b] - moments[a]) / (b - a) * 1e6 for a, b in (EARLY, LATE))
    return early, late, size


def main(argv: list[str]) -> int:
    """Print the table; the exit code is 0."""
    parser = argparse.ArgumentParser(prog="python -m bench crystals", description=__doc__)
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    backend = parser.parse_args(argv).backend
    print(f"{'':18}{'decoded':>9}{'over a socket':>15}{'turn 50':>9}{'turn 2000':>11}{'its request':>13}")
    for family in FAMILIES:
        early, late, size = a_turn(family)
        costs = f"{decoding(family):>9.1f}{over_a_socket(family, backend):>15.1f}{early:>9.0f}{late:>11.0f}"
        print(f"{family:18}{costs}{size / 1000:>10.0f} kB")
    print("CPU microseconds: a chunk, a chunk, a turn, a turn")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
