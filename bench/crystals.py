"""`python -m bench crystals`: the cost of providers' streams and contexts, in CPU microseconds.

For each family: a decoded chunk (framing, JSON, payload), compared with framing and JSON alone; a chunk over a socket
(with all of httpx, the server in a process of its own); a message of a context that is encoded for the first time; and
a turn of an entity whose answers come from a transport in memory, around turn 50 and around turn 2,000: the cost of an
old context.

`--beside TREE` measures a checkout of another commit in the same run, alternately, and prints the ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import httpx
import orjson

from cantrip_actors import Call, Cantrip, Circle, Message, Runtime, ToolCall, gate
from cantrip_actors.crystal.sse import Framing
from cantrip_actors.crystals import ProviderCrystal, Recording, anthropic, google, openai, testing
from cantrip_actors.wards import max_turns

CHUNKS = 2000
TURNS = 2100
EARLY = (40, 60)
LIMITS = {"x_raw": 1.5, "x_late": 2.0, "x_chunk": 1.05, "x_message": 1.05, "x_turn": 1.1}
"""The most that a figure may be, as a multiple of framing and JSON alone, of an early turn, and of the other commit."""

ROOT = Path(__file__).resolve().parent.parent


def _stream_anthropic(parts: list[str], call: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
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


def _stream_responses(parts: list[str], call: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    item: dict[str, Any] = {"type": "message", "id": "i", "content": []}
    if call is not None:
        item = {"type": "function_call", "id": "i", "call_id": "", "name": call["name"]}
        item["arguments"] = orjson.dumps(call["args"]).decode()
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    for part in parts:
        yield {"type": "response.output_text.delta", "output_index": 0, "item_id": "i", "delta": part}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": {"status": "completed", "output": [], "model": "gpt"}}


def _stream_chat(parts: list[str], call: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"content": part} for part in parts]
    if call is not None:
        function = {"name": call["name"], "arguments": orjson.dumps(call["args"]).decode()}
        deltas.append({"tool_calls": [{"index": 0, "function": function}]})
    for delta in deltas:
        yield {"id": "c", "model": "gpt", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {"id": "c", "model": "gpt", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def _stream_google(parts: list[str], call: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    chunks: list[dict[str, Any]] = [{"text": part} for part in parts]
    if call is not None:
        chunks.append({"functionCall": call})
    for part in chunks:
        yield {"candidates": [{"content": {"parts": [part]}}], "modelVersion": "gemini"}
    yield {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}], "modelVersion": "gemini"}


def _openai_chat(model: str, **settings: Any) -> ProviderCrystal:
    return openai(model, chat=True, **settings)


FAMILIES: dict[str, tuple[Callable[..., ProviderCrystal], Callable[..., Iterator[dict[str, Any]]]]] = {
    "anthropic": (anthropic, _stream_anthropic),
    "openai-responses": (openai, _stream_responses),
    "openai-chat": (_openai_chat, _stream_chat),
    "google": (google, _stream_google),
}


def measure_decoding(family: str, times: int = 9) -> tuple[float, float]:
    """Measure the decoding of a chunk, and the part of framing and JSON in it."""
    sent = list(FAMILIES[family][1](["word "] * CHUNKS, None))
    recording = Recording(family, tuple(orjson.dumps(value) for value in sent))
    chunks = [testing.events(value) for value in sent]
    decoded = raw = float("inf")
    for _ in range(times):  # alternately, because a machine has slow moments
        began = time.process_time()
        parser = Framing()
        for chunk in chunks:
            for event in parser.feed(chunk):
                orjson.loads(event.data)
        between = time.process_time()
        recording.play(chunks)
        raw, decoded = min(raw, between - began), min(decoded, time.process_time() - between)
    return decoded / len(chunks) * 1e6, raw / len(chunks) * 1e6


def measure_encoding(family: str, times: int = 5) -> float:
    """Measure a message that is encoded for the first time, in a context of 1,000."""
    make, stream = FAMILIES[family]
    body = testing.events(*stream(["word"], None))
    messages = [Message("system", "Be terse."), Message("user", "look around")]
    for n in range(499):
        messages.append(Message("assistant", "Let me look.", (ToolCall(f"c{n}", "look", {"path": "a"}),)))
        messages.append(Message("tool", "what there is to see " * 15, (), f"c{n}", "look"))

    async def run() -> float:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
        async with httpx.AsyncClient(transport=transport) as client:
            best = float("inf")
            for _ in range(times):
                crystal = make("m", client=client, base_url="http://provider")
                began = time.process_time()
                await crystal.invoke(messages)
                best = min(best, time.process_time() - began)
            return best

    return anyio.run(run) / len(messages) * 1e6


def serve(family: str, connection: Connection) -> None:
    """Answer until told to stop, one chunk per event."""
    sent = [testing.events(value) for value in FAMILIES[family][1](["word "] * CHUNKS, None)]

    class PieceByPiece(testing.Reply):
        def pieces(self) -> Iterator[bytes]:
            return iter(sent)

    async def run() -> None:
        async with testing.FaultyServer([PieceByPiece()]) as server:
            connection.send(server.url)
            await anyio.to_thread.run_sync(connection.recv)

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


def a_turn(family: str, turns: int) -> tuple[float, float]:
    """Measure turns around turn 50, and the last hundred of `turns`."""
    make, stream = FAMILIES[family]
    moments: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:  # noqa: ARG001  # as httpx wants it
        moments.append(time.process_time())
        call = {"name": "look", "args": {"path": "a"}}
        if len(moments) >= turns:
            call = {"name": "done", "args": {"answer": "seen"}}
        return httpx.Response(200, content=testing.events(*stream([], call)))

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client, Runtime.open() as runtime:
            crystal = make("m", client=client, base_url="http://provider")
            circle = Circle(gates=["done", look], wards=[max_turns(turns + 1)])
            await runtime.cast(Cantrip(crystal, Call("Be terse."), circle), "look around")

    anyio.run(run)
    last = len(moments) - 1
    early, late = ((moments[b] - moments[a]) / (b - a) * 1e6 for a, b in (EARLY, (max(EARLY[0], last - 100), last)))
    return early, late


def main(argv: Sequence[str]) -> int:
    """Print the table; return 1 if a limit is exceeded, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench crystals", description=__doc__)
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    parser.add_argument("--beside", type=Path, metavar="TREE", help="a checkout of another commit to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=TURNS, help="turns of an entity; fewer are quicker, and tell less")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    trees = [ROOT] if options.beside is None else [ROOT, options.beside.resolve()]
    least: dict[Path, dict[str, dict[str, float]]] = {}
    for _ in range(options.rounds):
        for tree in trees:
            for family, figures in _measure(tree, options.turns).items():
                best = least.setdefault(tree, {}).setdefault(family, figures)
                best.update({what: min(value, best[what]) for what, value in figures.items()})
    for family, figures in least[ROOT].items():
        figures["x_raw"] = figures["chunk"] / figures["raw"]
        figures["x_late"] = figures["late"] / figures["early"]
        if len(trees) > 1:
            other = least[trees[1]][family]
            for what, mine in (("chunk", "chunk"), ("message", "message"), ("turn", "late")):
                figures[f"x_{what}"] = figures[mine] / other[mine]
    over = [
        f"{family}: {what} {figures[what]:.2f}"
        for family, figures in least[ROOT].items()
        for what, limit in LIMITS.items()
        if figures.get(what, 0.0) > limit
    ]
    if options.json:
        print(orjson.dumps({**least[ROOT], "over": over}, option=orjson.OPT_INDENT_2).decode())
        return 1 if over else 0
    for family, figures in least[ROOT].items():
        figures["socket"] = over_a_socket(family, options.backend)
        print(f"{family:18}" + "  ".join(f"{what} {value:,.2f}" for what, value in figures.items()))
    print("CPU microseconds: a chunk, framing and JSON of it, a new message, turn 50, turn 2,000; and ratios")
    print(f"over the limit: {', '.join(over)}" if over else "every limit holds")
    return 1 if over else 0


def _measure(tree: Path, turns: int) -> dict[str, dict[str, float]]:
    # the other commit may have another version of this file, so this one runs and imports the modules of that tree
    command = [sys.executable, str(Path(__file__).resolve()), str(turns)]
    ran = subprocess.run(command, cwd=tree, env={"PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, check=True)
    figures: dict[str, dict[str, float]] = orjson.loads(ran.stdout)
    return figures


def measure(turns: int) -> dict[str, dict[str, float]]:
    """Return the figures of each family."""
    figures: dict[str, dict[str, float]] = {}
    for family in FAMILIES:
        chunk, raw = measure_decoding(family)
        early, late = a_turn(family, turns)
        figures[family] = {
            "chunk": chunk,
            "raw": raw,
            "message": measure_encoding(family),
            "early": early,
            "late": late,
        }
    return figures


if __name__ == "__main__":
    print(orjson.dumps(measure(int(sys.argv[1]))).decode())
