"""The processes of a simulation: each runs the scenario, dies of its faults, and begins again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

import anyio

from cantrip_actors.loom import Unsure, mark_gone
from cantrip_actors.loom.stores.store import Postponed
from cantrip_actors.runtime.face.runtime import Runtime
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.testing.crashes import Crashed
from cantrip_actors.testing.simulation.conditions import SimulatedConditions
from cantrip_actors.testing.simulation.faults import InjectedFault
from cantrip_actors.testing.simulation.outside import EPOCH
from cantrip_actors.testing.simulation.store import SimulatedStore
from cantrip_actors.user_code.attempt import CodeKind
from supervisors import StartFailed

T = TypeVar("T")

_CRASHED = "the process has crashed, because its simulation says so"
_OUTAGE = "the loom cannot be reached, because its simulation says so"
_UNSURE = "the answer to a commit was lost, because its simulation says so"


class ProcessLife:
    """One life of a process: its store, the faults that come, and its end.

    Args:
        conditions: those of the run.
        begin_fault: does what a fault does to a process.
        note: adds a line to the trace.
    """

    def __init__(
        self,
        conditions: SimulatedConditions,
        number: int,
        life: int,
        begin_fault: Callable[[ProcessLife, InjectedFault], object],
        note: Callable[[ProcessLife, str], object],
    ) -> None:
        self.number = number
        self.life = life
        self._conditions = conditions
        self._begin_fault = begin_fault
        self._note = note
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
        self._has_runtime = False
        self.has_stray_runtime = False
        """Whether an entity worked in this life before it opened a runtime on the loom of the simulation."""

    @property
    def name(self) -> str:
        """Its name, as for a `Node`: "p1", "p2" …"""
        return f"p{self.number}"

    @property
    def is_running(self) -> bool:
        """Whether its tasks may run now."""
        return self._is_unwound or not (self._is_dead or self._conditions.has_trouble(self.number, "freeze"))

    @property
    def is_over(self) -> bool:
        """Whether this life has ended, one way or the other."""
        return self._is_dead or self._ended.is_set()

    def open(self, **options: Any) -> Runtime:
        """Return a runtime on the loom of the simulation."""
        conditions = self._conditions
        self._has_runtime = True
        runtime = Runtime.open(conditions.url, **{"recover": "resume", **options})
        opening = partial(SimulatedStore, conditions.path, self, shared=conditions.is_shared)
        runtime._tree.opening = opening  # noqa: SLF001
        return runtime

    def make_chance(self) -> Random:
        """Return the random numbers of this process."""
        return self._conditions.make_chance(f"process {self.number}")

    def note(self, text: str) -> None:
        """Add a line to the trace of the simulation."""
        self._note(self, text)

    # Its store

    def must_wait(self) -> bool:
        """Return whether the next access to its store waits, as for a disk or a server."""
        return self._conditions.must_wait(self.number)

    def check_reachable(self) -> None:
        """Raise LoomError while its store cannot be reached."""
        if self._conditions.has_trouble(self.number, "outage") and not self._is_dead:
            self.was_disturbed = True  # also if it began before this life
            raise LoomError(_OUTAGE)

    def write(self, write: Callable[[], T], *, is_attempt: bool) -> T:
        """Write to its store, or do what a fault does to this write."""
        if self._is_dead:
            raise Crashed(_CRASHED)
        self.check_reachable()
        conditions = self._conditions
        fault = conditions.find_fault(self.number)
        if fault is not None and is_attempt:
            raise Postponed  # a dead process needs a wait in which it remains
        conditions.writes[self.number] += 1
        try:
            if fault is None:
                return write()
            return self._write_with(fault, write)
        except Postponed:
            conditions.writes[self.number] -= 1
            raise

    def _write_with(self, fault: InjectedFault, write: Callable[[], T]) -> T:
        self._conditions.faults.remove(fault)
        if fault.kind in ("kill", "lose", "unsure"):
            if fault.recorded:
                write()
            if fault.kind == "unsure":
                self.note(repr(fault))
                self.was_disturbed = True
                raise Unsure(_UNSURE)
            self._begin_fault(self, fault)
            raise Crashed(_CRASHED)
        self._begin_fault(self, fault)
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
        self._mark_gone()
        return True

    def die(self, fault: InjectedFault) -> None:
        """Run nothing any more, from the next wait on."""
        self._is_dead, self._down = True, fault.seconds
        if fault.kind == "kill":
            self._mark_gone()
        self.end()

    def _mark_gone(self) -> None:
        """Let all processes know that its holders of leases have ended."""
        for owner in self._owners:
            mark_gone(owner)

    def end(self) -> None:
        """Let `wait` return."""
        self._ended.set()

    async def wait(self) -> float | None:
        """Wait until this life has ended; return after how many seconds the next one begins, if it has died.

        The end of the simulation is no death.
        """
        await self._ended.wait()
        return self._down if self._is_dead and not self._is_unwound else None

    def unwind(self) -> None:
        """End its tasks, after the simulation; nothing that they do is recorded."""
        self._is_dead = self._is_unwound = True
        self._unwound.set()
        self.scope.cancel()

    async def watch(self, kind: CodeKind, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do a call of a gate or a query, with the latency of a query."""
        if self._is_dead:
            raise Crashed(_CRASHED)
        self.has_stray_runtime = self.has_stray_runtime or not self._has_runtime
        self.note(f"{kind} {name} begins")
        if kind == "query":
            await anyio.sleep(self._conditions.draw_latency())
        result = await call()
        self.note(f"{kind} {name} ends")
        return result


def _is_of_loom(error: BaseException) -> bool:
    """Return whether an error, or each one of a group, is one of the loom."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_of_loom, error.exceptions))
    return isinstance(error, (LoomError, StartFailed))


class SimulatedProcess:
    """A process of a simulation. The scenario is called with it, and with a new one after a crash."""

    def __init__(self, life: ProcessLife) -> None:
        self._life = life
        self.random: Random = life.make_chance()
        """Random numbers of its own, from the seed; each life begins with the same ones."""

    @property
    def number(self) -> int:
        """Its number, from 1 on; it stays the same after a crash."""
        return self._life.number

    @property
    def life(self) -> int:
        """Which of its lives it is, from 1 on."""
        return self._life.life

    @property
    def name(self) -> str:
        """Its name, as for a `Node`: "p1", "p2" …"""
        return self._life.name

    def open(self, **options: Any) -> Runtime:
        """Return a runtime on the loom of the simulation; enter it with `async with`.

        Args:
            options: those of `Runtime.open`. `recover` is "resume" if it is left out.
        """
        return self._life.open(**options)

    def time_of_day(self) -> float:
        """Return the simulated seconds since 1970."""
        return EPOCH + anyio.current_time()

    def note(self, text: str) -> None:
        """Add a line to the trace of the simulation."""
        self._life.note(text)
