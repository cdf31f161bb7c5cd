"""A node in a process of its own, which tests kill, freeze and ask to leave."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import structlog

from cantrip_actors import Cantrip, Node, Runtime, gate
from cantrip_actors.wards import max_turns
from tests.runtime.spells import cantrip, done, say

BEAT, TTL = 0.2, 1.0


def worker_cantrip(ledger: str, pace: float) -> Cantrip:
    """Return a cantrip whose gate writes a line for each intent, and never repeats what may have had its effect."""

    @gate
    def deliver(key: str) -> str:
        """Deliver: not idempotent."""
        with Path(ledger).open("a", encoding="utf-8") as file:
            file.write(f"{key}\n")
        return "delivered"

    async def policy(context: Any) -> object:
        last = context[-1]
        what = done(last.content) if last.role == "tool" else say("deliver", key=last.content)
        return {**what, "delay": pace}

    return cantrip(policy, deliver, name="worker", wards=(max_turns(20),))


def run_worker(url: str, ledger: str, name: str, machine: str, pace: float) -> None:
    """Serve as a node until a signal. With a `machine` it looks like a process of another machine."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(Path(os.devnull).open("w")))  # noqa: SIM115
    if machine:
        hostname: Callable[[], str] = lambda: machine  # noqa: E731
        socket.gethostname = hostname

    async def serve() -> None:
        node = Node(name, capacity=100, beat=BEAT, ttl=TTL, grace=5, passivate_after=1)
        async with Runtime.open(url, cantrips=[worker_cantrip(ledger, pace)], node=node) as runtime:
            await runtime.serve()

    anyio.run(serve)
