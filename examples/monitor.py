"""A monitor of services, with `supervisors` alone: no cantrips, no models, only `pip install cantrip-supervisors`.

Each service has a host with a prober as its child. A prober that crashes is restarted, at once and then after longer
and longer waits; one that crashes too often takes its host with it, and the supervisor of the hosts starts that anew.
The board collects what is seen. A check is a call that owns its work: when it takes too long, the probe is cancelled.

The services are made up, so that the program runs anywhere: run it with `python examples/monitor.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import anyio

from supervisors import (
    Actor,
    ActorRef,
    ActorSystem,
    Backoff,
    Caller,
    CallTimeout,
    ChildSpec,
    Died,
    ExitReason,
    MessageTo,
    Supervisor,
)
from supervisors.inspect import dump


@dataclass
class Service:
    """A made-up service: what each request to it does, the last one for good."""

    name: str
    answers: list[str | float | Exception]
    asked: int = 0

    async def get(self) -> str:
        """Answer a request: with a text, late (seconds), or with an exception."""
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await anyio.sleep(answer)
            return "late"
        return answer


@dataclass
class Check(MessageTo["Prober", str]):
    """Ask the service, and reply with what it says."""


@dataclass
class Seen(MessageTo["Board", None]):
    """Something was seen of a service."""

    service: str
    what: str


@dataclass
class Read(MessageTo["Board", dict[str, list[str]]]):
    """Reply with all that was seen, by service."""


class Board(Actor):
    """Keeps what was seen of each service; it survives a restart of the services."""

    async def init(self) -> None:
        """Begin with an empty board."""
        self.seen: dict[str, list[str]] = {}

    async def handle_cast(self, message: Seen) -> None:
        """Add what was seen."""
        self.seen.setdefault(message.service, []).append(message.what)

    async def handle_call(self, message: Read, caller: Caller) -> dict[str, list[str]]:  # noqa: ARG002
        """Return what was seen."""
        return self.seen


class Prober(Actor):
    """Asks one service, a check at a time."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def handle_call(self, message: Check, caller: Caller) -> str:  # noqa: ARG002
        """Check the service."""
        return await self.service.get()


@dataclass
class Watch(Actor):
    """Checks a service again and again, through a prober of its own."""

    service: Service
    board: ActorRef[Board]
    every: float = 0.05
    has_children = True
    max_restarts = 3
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.01, factor=4, maximum=60))

    async def run(self) -> None:
        """Check the service until this actor is stopped, or its prober has crashed too often."""
        spec = ChildSpec("prober", lambda: Prober(self.service), backoff=self.backoff)
        prober = await self.children.start(spec)
        while True:
            try:
                what = await prober.call(Check(), timeout=0.1, grace=1.0)
            except CallTimeout:
                what = "too slow"
            except Died as died:
                what = f"crashed: {died.__cause__}"
            self.board.cast(Seen(self.service.name, what))
            await anyio.sleep(self.every)

    async def terminate(self, reason: ExitReason) -> None:  # noqa: ARG002
        """Say goodbye while the prober still lives."""
        self.board.cast(Seen(self.service.name, f"stopped, {len(self.children)} prober"))


async def main() -> None:
    """Watch three services for a moment, and print what was seen."""
    services = [
        Service("shop", ["ok"]),
        Service("search", [math.inf, "ok"]),
        Service("mail", [OSError("no route"), OSError("no route"), "ok"]),
    ]
    async with ActorSystem("monitor", reports=None) as system:
        board = await system.start(ChildSpec("board", Board))
        watches = [ChildSpec(one.name, lambda one=one: Watch(one, board)) for one in services]
        await system.start(ChildSpec("services", lambda: Supervisor(watches)))
        await anyio.sleep(1)
        print(dump(system))
        await system.root.terminate_child("services")
        seen = await board.call(Read())
    for service, things in seen.items():
        print(f"{service}: {', '.join(dict.fromkeys(things))}")


if __name__ == "__main__":
    anyio.run(main)
