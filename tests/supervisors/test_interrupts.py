"""Ctrl-C reaches the task that the program began with, and interrupts no actor."""

import signal
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from supervisors import Actor, ActorSystem, ChildSpec
from supervisors.interrupts import allow_interrupts

pytestmark = [
    pytest.mark.rule("Z-12"),
    pytest.mark.real_time,
    pytest.mark.parametrize("backend", ["asyncio", "trio"]),
]


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[Any]:
    """Ctrl-C is handled as in a program that Python has just begun, and as before afterwards."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


class Interrupted(Actor):
    """An actor in which Ctrl-C arrives, in its own code or in a task of it."""

    has_tasks = True

    def __init__(self, log: list[str], where: str) -> None:
        self._log = log
        self._where = where

    async def init(self) -> None:
        if self._where == "init":
            self._interrupt()

    async def handle_cast(self, message: object) -> None:  # there is one
        if self._where == "handler":
            self._interrupt()
        elif self._where == "task":
            self.tasks.start_soon(self._interrupt_soon)

    async def terminate(self, reason: object) -> None:
        if self._where == "terminate":
            self._interrupt()
        self._log.append(f"ended: {reason}")

    async def _interrupt_soon(self) -> None:
        self._interrupt()

    def _interrupt(self) -> None:
        signal.raise_signal(signal.SIGINT)
        self._log.append("went on")


@pytest.mark.parametrize("where", ["init", "handler", "task", "terminate"])
def test_ctrl_c_ends_a_system_in_order_and_interrupts_no_actor(backend: str, where: str) -> None:
    log: list[str] = []

    async def main() -> None:
        async with ActorSystem() as system:
            ref = await system.start(ChildSpec("a", lambda: Interrupted(log, where)))
            ref.cast("go")
            await anyio.sleep(0.01 if where == "terminate" else 10)

    with pytest.raises(KeyboardInterrupt):
        anyio.run(main, backend=backend)
    assert log == ["went on", "ended: shutdown: system"]


def test_ctrl_c_interrupts_the_user_code_of_an_actor_that_allows_it_on_trio(backend: str) -> None:
    log: list[str] = []

    def use() -> None:
        signal.raise_signal(signal.SIGINT)
        log.append("went on")

    class Calling(Actor):
        async def handle_cast(self, message: object) -> None:  # there is one
            try:
                allowed()
            except KeyboardInterrupt:
                log.append("interrupted")
                raise

    @allow_interrupts
    def allowed() -> None:
        use()

    async def main() -> None:
        async with ActorSystem(reports=None) as system:
            (await system.start(ChildSpec("a", Calling))).cast("go")
            await anyio.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        anyio.run(main, backend=backend)
    assert log == ["interrupted" if backend == "trio" else "went on"]


def test_a_handler_of_the_programs_own_stays(backend: str) -> None:
    signals: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: signals.append(number))

    async def main() -> None:
        async with ActorSystem(), ActorSystem() as system:
            ref = await system.start(ChildSpec("a", lambda: Interrupted([], "handler")))
            ref.cast("go")
            await anyio.sleep(0.01)

    anyio.run(main, backend=backend)
    assert signals == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)
