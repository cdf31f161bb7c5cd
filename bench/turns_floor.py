"""The bare floor of this architecture: the cost of a turn that consists only of its messages.

An entity asks a crystal, a circle and a loom, each a task with a mailbox of a deque and a future, and writes one record
per turn; with JSONL, two, since the utterance must be on disk before a gate runs. With SQLite it makes one transaction
a turn, on the event loop, that a killed process does not lose; ours makes two. No checks, no supervision, no events, no
tree of turns: nothing that this floor leaves out may cost much.

It exists for asyncio only. On trio the same floor is higher, and is not measured.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import orjson

__all__ = ["run_floor"]

Append = Callable[[list[bytes]], None]


class _Box:
    """A mailbox for one reader."""

    __slots__ = ("mail", "wake")

    def __init__(self) -> None:
        self.mail: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self.wake: asyncio.Future[None] | None = None

    def ask(self, message: Any) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.mail.append((message, reply))
        wake, self.wake = self.wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)
        return reply

    async def get(self) -> tuple[Any, asyncio.Future[Any]]:
        while not self.mail:
            self.wake = asyncio.get_running_loop().create_future()
            await self.wake
        return self.mail.popleft()


async def _run_crystal(box: _Box, turns: int) -> None:
    while True:
        turn, reply = await box.get()
        last = turn == turns - 1
        reply.set_result(("done" if last else "echo", {"text": f"hello {turn}"}, f"call_{turn}"))


async def _run_circle(box: _Box) -> None:
    while True:
        (gate, args, call_id), reply = await box.get()
        reply.set_result({"gate": gate, "args": args, "result": args["text"], "is_error": False, "id": call_id})


async def _run_loom(box: _Box, append: Append) -> None:
    """Write all messages that have arrived as one group."""
    while True:
        group = [await box.get()]
        while box.mail:
            group.append(box.mail.popleft())
        append([line for lines, _ in group for line in lines])
        for _, reply in group:
            reply.set_result(None)


async def _run_entity(crystal: _Box, circle: _Box, loom: _Box, turns: int, *, ahead: bool) -> None:
    context: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for turn in range(turns):
        began = time.monotonic()
        call = await crystal.ask(turn)
        context.append({"role": "assistant", "tool_calls": [{"id": call[2], "gate": call[0], "args": call[1]}]})
        if ahead:
            await loom.ask([orjson.dumps(context[-1])])
        seen = await circle.ask(call)
        context.append({"role": "tool", "content": seen["result"], "tool_call_id": seen["id"]})
        record = {
            "id": f"01J{turn:020d}",
            "parent_id": f"01J{turn - 1:020d}",
            "entity_id": "e",
            "sequence": turn + 1,
            "gate_calls": [seen],
            "observation": seen["result"],
            "metadata": {"tokens_prompt": 10, "tokens_completion": 5, "duration_ms": (time.monotonic() - began) * 1e3},
            "terminated": turn == turns - 1,
        }
        await loom.ask([orjson.dumps(record)])


@contextmanager
def _open_store(store: str, file: str | None) -> Iterator[Append]:
    """Yield the function that writes a group of lines."""
    if file is None:
        stored: list[bytes] = []
        yield stored.extend
    elif store == "jsonl":
        log = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        yield partial(_write, log)
        os.close(log)
    else:
        with closing(sqlite3.connect(file, isolation_level=None)) as database:
            database.execute("pragma journal_mode = wal")
            database.execute("pragma synchronous = normal")
            database.execute("create table if not exists log (number integer primary key, line blob)")
            yield partial(_insert, database)


def _write(log: int, lines: list[bytes]) -> None:
    os.write(log, b"\n".join(lines) + b"\n")


def _insert(database: sqlite3.Connection, lines: list[bytes]) -> None:
    database.execute("begin immediate")
    database.executemany("insert into log (line) values (?)", [(line,) for line in lines])
    database.execute("commit")


async def run_floor(turns: int, entities: int, store: str, file: str | None) -> float:
    """Return the CPU seconds for `entities` at once of `turns` turns each; `file` is None for the store memory."""
    with _open_store(store, file) as append:
        return await _run_entities(turns, entities, append, ahead=store == "jsonl")


async def _run_entities(turns: int, entities: int, append: Append, *, ahead: bool) -> float:
    crystal, loom = _Box(), _Box()
    servers = [asyncio.ensure_future(_run_crystal(crystal, turns)), asyncio.ensure_future(_run_loom(loom, append))]
    began = time.process_time()
    async with asyncio.TaskGroup() as running:
        for _ in range(entities):
            circle = _Box()
            servers.append(asyncio.ensure_future(_run_circle(circle)))
            running.create_task(_run_entity(crystal, circle, loom, turns, ahead=ahead))
    spent = time.process_time() - began
    for server in servers:
        server.cancel()
    await asyncio.gather(*servers, return_exceptions=True)
    return spent
