"""A node in a process of its own, for `python -m bench cluster`, and the cantrip that it serves."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import structlog

from cantrip_actors import Cantrip, Circle, Invocation, Node, Runtime, gate, scripted
from cantrip_actors.wards import max_turns
from conformance.cluster.worker import end_with_parent

__all__ = ["PACED", "run_load", "run_node"]


@gate
async def step() -> str:
    """Do nothing, so that there is another turn."""
    return "done"


async def _answer(context: Invocation) -> Mapping[str, Any]:
    """Take as many turns as the last intent says, each for as many seconds: "20 0.5"."""
    newest = max(n for n, message in enumerate(context) if message.role == "user")
    turns, seconds = str(context[newest].content).split()
    had = sum(message.role == "assistant" for message in context[newest:])
    call = {"gate": "step", "args": {}} if had + 1 < int(turns) else {"gate": "done", "args": {"answer": "ok"}}
    return {"content": "", "tool_calls": [call], "delay": float(seconds)}


PACED = Cantrip(scripted(_answer, record=False), name="paced", circle=Circle([step, "done"], [max_turns(100_000)]))


def _log_nothing() -> None:
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open as long as the process
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(nowhere))


def run_load(url: str, has_joined: bool, entities: int, turns: int, answer: Connection) -> None:
    """Cast entities with this many turns, in a runtime that is a node or not; send the CPU seconds."""
    _log_nothing()

    async def work() -> float:
        node = Node("w", capacity=entities * 2) if has_joined else None
        async with Runtime.open(url, cantrips=[PACED], node=node) as runtime:
            await (await runtime.start(PACED, "10 0")).episode()
            before = time.process_time()
            casts = [await runtime.start(PACED, f"{turns} 0") for _ in range(entities)]
            for cast in casts:
                await cast.episode()
            return time.process_time() - before

    answer.send(anyio.run(work))


def run_node(url: str, name: str, machine: str, capacity: int, beat: float, ttl: float) -> None:
    """Serve until a signal. With a `machine` it looks like a process of another machine."""
    _log_nothing()
    end_with_parent()
    if machine:
        socket.gethostname = lambda: machine

    async def serve() -> None:
        node = Node(name, capacity=capacity, beat=beat, ttl=ttl, grace=30)
        async with Runtime.open(url, cantrips=[PACED], node=node) as runtime:
            await runtime.serve()

    anyio.run(serve)
