"""The processes of a simulation: each runs the scenario, dies of its faults, and begins again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from cantrip_actors.loom import Unsure
from cantrip_actors.loom.store import Postponed
from cantrip_actors.runtime.face.runtime import Runtime
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.testing.crashes import Crashed
from cantrip_actors.testing.simulation.faults import InjectedFault
from cantrip_actors.testing.simulation.outside import EPOCH
from cantrip_actors.testing.simulation.store import SimulatedStore
from cantrip_actors.user_code.attempt import CodeKind
from supervisors import StartFailed

if TYPE_CHECKING:
    from cantrip_actors.testing.simulation.world import SimulatedWorld

T = TypeVar("T")

_CRASHED = "the process has crashed, because its simulation says so"
_OUTAGE = "the loom cannot be reached, because its simulation says so"
_UNSURE = "the answer to a commit was lost, because its simulation says so"


class SimulatedProcess:
    """One life of a process of a simulation. A scenario is called with it, once for each life."""

    def __init__(self, world: SimulatedWorld, number: int, life: int) -> None:
        self.number = number
        """Its number, from 1 on; it stays the same from life to life."""
        self.life = life
        """Which of its lives it is, from 1 on."""
        self._world = world
        self._is_dead = False
        self._is_unwound = False
        self.scope = anyio.CancelScope()
        """Around the scenario."""
        self._ended = anyio.Event()
        self._unwound = anyio.Event()
        self._down = 1.0
        self.was_disturbed = False
        """Whether a fault has come in this life."""
        self._owners: list[str] = []
        self._chance = world.make_chance(f"process {number}")

    @property
    def name(self) -> str:
        """Its name, as for a `Node`: "p1", "p2" …"""
        return f"p{self.number}"

    @property
    def is_running(self) -> bool:
        """Whether its tasks may run now."""
        return self._is_unwound or not (self._is_dead or self._world.has_trouble(self, "freeze"))

    @property
    def is_over(self) -> bool:
        """Whether this life has ended, one way or the other."""
        return self._is_dead or self._ended.is_set()

    @property
    def random(self) -> Random:
        """Random numbers of its own, from the seed; each life begins with the same ones."""
        return self._chance

    def open(self, **options: Any) -> Runtime:
        """Return a runtime on the loom of the simulation; enter it with `async with`.

        Args:
            options: those of `Runtime.open`. `recover` is "resume" if it is left out.
        """
        world = self._world
        runtime = Runtime.open(world.url, **{"recover": "resume", **options})
        runtime._tree.opening = lambda: SimulatedStore(world.path, self, shared=world.is_shared)  # noqa: SLF001
        return runtime

    def time_of_day(self) -> float:
        """Return the simulated seconds since 1970."""
        return EPOCH + self._world.now

    def note(self, text: str) -> None:
        """Add a line to the trace of the simulation."""
        self._world.note(self, text)

    # Its store

    def must_wait(self) -> bool:
        """Return whether the next access to its store waits, as for a disk or a server."""
        return self._world.must_wait(self)

    def check_reachable(self) -> None:
        """Raise LoomError while its store cannot be reached."""
        if self._world.has_trouble(self, "outage") and not self._is_dead:
            self.was_disturbed = True  # also if it began before this life
            raise LoomError(_OUTAGE)

    def write(self, write: Callable[[], T], *, is_attempt: bool) -> T:
        """Write to its store, or do what a fault does to this write."""
        if self._is_dead:
            raise Crashed(_CRASHED)
        self.check_reachable()
        world = self._world
        fault = world.find_fault(self.number)
        if fault is not None and is_attempt:
            raise Postponed  # a dead process needs a wait in which it remains
        world.writes[self.number] += 1
        try:
            if fault is None:
                return write()
            return self._write_with(fault, write)
        except Postponed:
            world.writes[self.number] -= 1
            raise

    def _write_with(self, fault: InjectedFault, write: Callable[[], T]) -> T:
        world = self._world
        world.end_fault(fault)
        if fault.kind in ("kill", "lose", "unsure"):
            if fault.recorded:
                write()
            if fault.kind == "unsure":
                self.note(repr(fault))
                self.was_disturbed = True
                raise Unsure(_UNSURE)
            world.begin_fault(self, fault)
            raise Crashed(_CRASHED)
        world.begin_fault(self, fault)
        self.check_reachable()
        return write()

    async def run_in_thread(self, work: Callable[[], T], pause: Callable[[], Awaitable[object]]) -> T:
        """Return the result of `work`, which a thread would do; no task runs meanwhile but before and after it."""
        await pause()
        try:
            result = work()
        except BaseException:
            await self._remain_dead()
            raise
        await pause()
        await self._remain_dead()
        return result

    async def _remain_dead(self) -> None:
        """Wait, if it has died, for the end of the simulation."""
        if self._is_dead:
            await self._unwound.wait()
            raise Crashed(_CRASHED)

    # Its life

    def name_owner(self) -> str:
        """Return a new name for a holder of leases in this life."""
        owner = f"{self.name}.{self.life}.{len(self._owners) + 1}"
        self._owners.append(owner)
        return owner

    def fail(self, error: Exception) -> bool:
        """Handle an error that ends the scenario; return whether it is the end of this life only.

        A program that a fault of the loom ends is started again, as one that crashes.
        """
        if not (self.was_disturbed and _is_of_loom(error)):
            return False
        self._is_dead = True
        self._world.mark_gone(self._owners)
        return True

    def die(self, fault: InjectedFault) -> None:
        """Run nothing any more, from the next wait on."""
        self._is_dead, self._down = True, fault.seconds
        if fault.kind == "kill":
            self._world.mark_gone(self._owners)
        self.end()

    def end(self) -> None:
        """Let `wait` return."""
        self._ended.set()

    async def wait(self) -> float | None:
        """Wait until this life has ended; return after how many seconds the next one begins, if it has died."""
        await self._ended.wait()
        return self._down if self._is_dead else None

    def unwind(self) -> None:
        """End its tasks, after the simulation; nothing that they do is recorded."""
        self._is_dead = self._is_unwound = True
        self._unwound.set()
        self.scope.cancel()

    async def watch(self, kind: CodeKind, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do a call of a gate or a query, with the latency of a query."""
        if self._is_dead:
            raise Crashed(_CRASHED)
        self.note(f"{kind} {name} begins")
        if kind == "query":
            await anyio.sleep(self._world.draw_latency())
        result = await call()
        self.note(f"{kind} {name} ends")
        return result


def _is_of_loom(error: BaseException) -> bool:
    """Return whether an error, or each one of a group, is one of the loom."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_of_loom, error.exceptions))
    return isinstance(error, (LoomError, StartFailed))
