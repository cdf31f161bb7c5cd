"""A node in a process of its own, which the campaign kills, freezes and drains."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import threading
from collections.abc import Mapping
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import structlog

from cantrip_actors import Cantrip, Circle, Invocation, Node, Runtime, gate, scripted
from cantrip_actors.wards import max_turns

__all__ = ["BEAT", "TTL", "Freezing", "end_with_parent", "run_worker", "worker_cantrip"]

BEAT: Final = 0.2
TTL: Final = 1.0


def worker_cantrip(ledger: str, pace: float) -> Cantrip:
    """Return a cantrip whose gate writes a line for each intent, and never repeats a possibly finished call."""

    @gate
    def deliver(key: str) -> str:
        """Deliver: not idempotent."""
        with Path(ledger).open("a", encoding="utf-8") as file:
            file.write(f"{key}\n")
        return "delivered"

    async def answer(context: Invocation) -> Mapping[str, Any]:
        last = context[-1]
        is_answered = last.role == "tool"
        call = {"gate": "done", "args": {"answer": last.content}}
        if not is_answered:
            call = {"gate": "deliver", "args": {"key": last.content}}
        return {"content": "", "tool_calls": [call], "delay": pace}

    circle = Circle([deliver, "done"], [max_turns(20)])
    return Cantrip(scripted(answer, record=False), name="worker", circle=circle)


def end_with_parent() -> None:
    """End this process when its parent process has ended, even if the parent was killed."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Freezing(NamedTuple):
    """Two events: the node is asked to freeze inside its next transaction, and is about to."""

    asked: Event
    begun: Event


def freeze_when_asked(runtime: Runtime, freezing: Freezing) -> None:
    """Freeze this process inside a transaction when it is asked to: before it writes, after that, or in a message.

    In a message the server has got half of what a statement needs, and waits for the rest.
    """
    store: Any = runtime._tree.store  # noqa: SLF001  # no public name is inside a transaction
    write = store._write  # noqa: SLF001  # likewise

    def write_and_freeze(db: Any, plan: Any) -> None:
        where = random.choice(("before", "after", "message")) if freezing.asked.is_set() else None
        if where != "before":
            write(db, plan)
        if where is not None:
            freezing.asked.clear()
            if where == "message":
                os.write(db.connection.pgconn.socket, b"P\0\0\1\0half")
            freezing.begun.set()
            os.kill(os.getpid(), signal.SIGSTOP)
        if where == "before":
            write(db, plan)

    store._write = write_and_freeze  # noqa: SLF001  # likewise


def run_worker(url: str, ledger: str, name: str, machine: str, pace: float, freezing: Freezing) -> None:
    """Serve as a node until a signal. With a `machine` it looks like a process of another machine."""
    log = Path(f"{ledger}-{name}.log").open("w", encoding="utf-8")  # noqa: SIM115  # open as long as the process
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
    end_with_parent()
    if machine:
        socket.gethostname = lambda: machine

    async def serve() -> None:
        node = Node(name, capacity=100, beat=BEAT, ttl=TTL, grace=5, passivate_after=1)
        async with Runtime.open(url, cantrips=[worker_cantrip(ledger, pace)], node=node) as runtime:
            freeze_when_asked(runtime, freezing)
            await runtime.serve()

    anyio.run(serve)
