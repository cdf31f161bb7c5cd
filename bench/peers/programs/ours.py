"""This project: a cast for each run; a crash is resumed by the same cast, with the same key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Self

from bench.peers.programs.work import Program, main, note_query
from cantrip_actors import Cantrip, Circle, Invocation, Runtime, gate, scripted
from cantrip_actors.stream.wire import FinalMessage, ItemDelta, ItemDone, ItemStart
from cantrip_actors.wards import max_depth, max_turns


@gate
async def echo(text: str) -> str:
    """Give back the text."""
    return text


def call(gate_name: str, **args: Any) -> dict[str, Any]:
    """Return the utterance that calls one gate."""
    return {"tool_calls": [{"gate": gate_name, "args": args}]}


def make_cantrip(turns: int) -> Cantrip:
    """Return a cantrip whose entity calls `echo` in each turn, and `done` in the last one."""

    def answer(context: Invocation) -> dict[str, Any]:
        turn = len(context) // 2
        note_query(turn)
        return call("echo", text=f"hello {turn}") if turn < turns - 1 else call("done", answer="ok")

    return Cantrip(scripted(answer, record=False), circle=Circle(["done", echo], [max_turns(turns + 1)]), name="run")


def make_parent(children: int) -> Cantrip:
    """Return a cantrip whose entity asks this many children in one batch."""

    def answer(context: Invocation) -> dict[str, Any]:
        if context[0].content == "go" and len(context) == 1:
            return call("call_agent_batch", intents=[f"child {child}" for child in range(children)])
        return call("done", answer="ok")

    circle = Circle(["done", "call_agent_batch"], [max_turns(3), max_depth(1)])
    return Cantrip(scripted(answer, record=False), circle=circle)


class Speaker:
    """A crystal that streams words."""

    name = "speaker"
    context_window = None

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks

    async def invoke(self, messages: Any, emit: Callable[[Any], None]) -> str:
        """Say the words."""
        del messages
        emit(ItemStart("text", "message"))
        for _ in range(self.chunks):
            emit(ItemDelta("text", "word "))
        text = "word " * self.chunks
        emit(ItemDone("text", FinalMessage(text, "agent")))
        return text


class Ours(Program):
    """A runtime on a loom in memory, in SQLite or in Postgres."""

    async def __aenter__(self) -> Self:
        """Open the runtime."""
        urls = {"memory": "memory:", "sqlite": f"sqlite:{self.folder}/loom.db"}
        self._stack = AsyncExitStack()
        self.runtime = await self._stack.enter_async_context(Runtime.open(urls.get(self.store, self.store)))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the runtime."""
        await self._stack.aclose()

    async def run(self, turns: int, key: str) -> None:
        """Cast, or resume the cast that has this key."""
        episode = await self.runtime.cast(make_cantrip(turns), "go", key=key)
        assert episode.result == "ok"

    async def delegate(self, children: int) -> None:
        """Cast an entity with children."""
        assert (await self.runtime.cast(make_parent(children), "go")).result == "ok"

    async def stream(self, chunks: int) -> str:
        """Collect the text of a streamed episode."""
        async with self.runtime.stream(Cantrip(Speaker(chunks), circle=Circle(["done"], [max_turns(2)])), "go") as run:
            return "".join([text async for text in run.text()])


if __name__ == "__main__":
    main(Ours)
