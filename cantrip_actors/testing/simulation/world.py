"""One run of a simulation: its clock, its loom, its processes and its faults."""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from cantrip_actors.loom import Loom
from cantrip_actors.loom.integrity.verify import verify_loom
from cantrip_actors.loom.opening import open_store
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.testing.simulation.faults import FaultKind, InjectedFault
from cantrip_actors.testing.simulation.outside import OutsideWorld
from cantrip_actors.testing.simulation.process import ProcessLife, SimulatedProcess
from cantrip_actors.testing.simulation.scheduler import AllTasksWait, TaskScheduler, make_backend_options
from cantrip_actors.user_code.attempt import WATCH

T = TypeVar("T")

STORE: Final = 0.01
"""Seconds that one way to the store takes at most, if it is not slow."""
_SLOWER: Final = 100.0
"""By how much a slow store is slower."""

Scenario = Callable[[SimulatedProcess], Awaitable[Any]]


class SimulatedEvent(NamedTuple):
    """Something that happened in a simulation."""

    at: float
    """Simulated seconds since the beginning."""
    process: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:12.3f}  {self.process:4}  {self.what}"


class SimulatedWorld:
    """One run. `run` runs it; then it has its outcome in `value` or `error`.

    Args:
        seed: what the whole course depends on.
        scenario: what each process runs.
        processes: how many of them there are.
        faults: what happens to them.
        latency: the shortest and the longest time that a query takes, in seconds.
        lasts: simulated seconds after which the run has failed.
        shuffles: whether the seed decides the order in which tasks run.
        path: where the loom is.
    """

    def __init__(
        self,
        seed: str,
        scenario: Scenario,
        *,
        processes: int,
        faults: Sequence[InjectedFault],
        latency: tuple[float, float],
        lasts: float,
        shuffles: bool,
        path: Path,
    ) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.trace: list[SimulatedEvent] = []
        self.digest = ""
        """The hash of all records, in order."""
        self.seconds = 0.0
        """Simulated seconds until the first process had ended."""
        self.deaths = 0
        self.writes: Counter[int] = Counter()
        """How many writes each process has begun, in all of its lives."""
        self.has_stray_runtime = False
        """Whether an entity worked in a process that has opened no runtime on the loom of the simulation."""
        self.path = path
        self.url = f"sqlite:{path}"
        self.is_shared = processes > 1 or any(fault.kind == "unsure" for fault in faults)
        """Whether the loom is like one on a server, for several processes: no other one loses answers to commits."""
        self._seed = seed
        self._scenario = scenario
        self._processes = processes
        self._faults = list(faults)
        self._latency = tuple(map(math.log, latency))
        self._lasts = lasts
        self._scheduler = TaskScheduler(self.make_chance("order").getrandbits(60) if shuffles else None)
        self._waits = self.make_chance("store")
        self._share = self._waits.choice((0.0, 0.1, 0.5, 1.0))
        """How often an access to the store waits."""
        self._queries = self.make_chance("queries")
        self._troubles: Counter[tuple[int, FaultKind]] = Counter()
        """How many faults of each process, of each kind, have begun and are not over."""
        self._lives: list[ProcessLife] = []

    def make_chance(self, what: str) -> Random:
        """Return random numbers for one purpose, from the seed."""
        return Random(f"{self._seed} {what}")

    @property
    def now(self) -> float:
        """Simulated seconds since the beginning."""
        return self._scheduler.now

    def note(self, process: ProcessLife, what: str) -> None:
        """Add a line to the trace, until the simulation is over."""
        if not self._over.is_set():
            self.trace.append(SimulatedEvent(self.now, process.name, what))

    def run(self, backend: str, check: Callable[[Loom], object] | None) -> None:
        """Run it to its end, and check the loom."""
        outside = OutsideWorld(
            lambda: self.now,
            self.make_chance("outside"),
            run_sync=self._run_sync,
            name_owner=self._name_owner,
            is_owner_running=self._is_owner_running,
            on_refusal=self._fail,
            log=self._log,
        )
        options = make_backend_options(backend, self._scheduler)
        with outside.enter(self._scenario):
            try:
                anyio.run(self._run, check, backend=backend, backend_options=options)
            except (AllTasksWait, BaseExceptionGroup):
                if self._scheduler.lock_up is None:
                    raise
        self.error = self.error or self._scheduler.lock_up

    async def _run(self, check: Callable[[Loom], object] | None) -> None:
        self._over = anyio.Event()
        async with anyio.create_task_group() as self._tasks:
            for number in range(1, self._processes + 1):
                self._lives.append(ProcessLife(self, number, 1))
                self._tasks.start_soon(self._host, self._lives[-1])
            for fault in self._faults:
                if fault.at is not None:
                    self._tasks.start_soon(self._happen_at, fault, fault.at)
            with anyio.move_on_after(self._lasts):
                await self._over.wait()
            if not self._over.is_set():
                what = f"the scenario did not end in {self._lasts:g} simulated seconds; its tasks wait:"
                self._fail(TimeoutError(f"{what}\n{self._scheduler.describe_waits()}"))
            self.seconds = self.now
            self._faults = []
            self._read_loom(check)
            for life in self._lives:
                life.unwind()
            self._tasks.cancel_scope.cancel()

    def _read_loom(self, check: Callable[[Loom], object] | None) -> None:
        """Take the bytes of the loom, before anything else is written, and check them."""
        if not self.path.exists():
            return
        with closing(sqlite3.connect(self.path)) as connection:
            lines = connection.execute("select body from records order by seq").fetchall()
        self.digest = hashlib.sha256(repr(lines).encode()).hexdigest()
        if self.error is not None:
            return
        with open_store(self.url, read_only=True) as store:
            faults = verify_loom(store).faults
            if faults:
                self._fail(AssertionError(f"the loom is damaged: {faults[0]}"))
            elif check is not None:
                try:
                    check(Loom(store, _append_nothing))
                except Exception as error:
                    self._fail(error)

    # The processes

    async def _host(self, process: ProcessLife) -> None:
        """Run the lives of a process, one after the other."""
        while True:
            with self._scheduler.spawn_for(process):
                self._tasks.start_soon(self._live, process)
            down = await process.wait()
            if down is None:
                return
            self.deaths += 1
            await anyio.sleep(down)
            process = ProcessLife(self, process.number, process.life + 1)
            self._lives.append(process)

    async def _live(self, process: ProcessLife) -> None:
        WATCH.set(process.watch)
        self.note(process, "begins")
        try:
            with process.scope:
                running: object = self._scenario(SimulatedProcess(process))
                if not isawaitable(running):
                    raise TypeError(f"scenario: expected an async function, got one that returned {running!r:.80}")
                value = await running
                if not self._over.is_set():
                    self.note(process, "ends")
                    self._finish(process, value)
        except Exception as error:
            if not (process.is_over or self._over.is_set()):
                self.note(process, f"fails with {type(error).__name__}")
                if not process.fail(error):
                    self._fail(error)
        process.end()

    def _finish(self, process: ProcessLife, value: Any) -> None:
        if process.number == 1:
            self.value = value
            self._over.set()

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            self._over.set()

    def _find_process(self) -> ProcessLife | None:
        owner = self._scheduler.find_owner(self._scheduler.find_current_task())
        return owner if isinstance(owner, ProcessLife) else None

    def _name_owner(self) -> str:
        process = self._find_process()
        return "outside" if process is None else process.name_owner()

    def _is_owner_running(self, owner: str) -> bool | None:
        """Return whether the process of a holder runs, for one that asks: it only knows that of its own."""
        process = self._find_process()
        return True if process is not None and owner.startswith(f"{process.name}.{process.life}.") else None

    def _log(self, level: str, text: str) -> None:
        process = self._find_process()
        if process is not None and not process.is_over:
            self.note(process, f"logs at level {level}: {text}")

    # The store

    def must_wait(self, process: ProcessLife) -> bool:
        """Return whether an access to the store waits."""
        return self.has_trouble(process, "slow") or self._waits.random() < self._share

    def has_trouble(self, process: ProcessLife, kind: FaultKind) -> bool:
        """Return whether a fault of this kind has begun and is not over."""
        return self._troubles[process.number, kind] > 0

    async def _run_sync(
        self,
        function: Callable[..., T],
        *args: Any,
        abandon_on_cancel: bool = False,
        limiter: anyio.CapacityLimiter | None = None,
        **_: Any,
    ) -> T:
        """Do the work of a thread: at once, between two pauses."""
        process = self._find_process()
        if process is None:
            return function(*args)

        async def pause() -> None:
            assert process is not None
            await anyio.sleep(self._waits.random() * STORE * (_SLOWER if self.has_trouble(process, "slow") else 1.0))

        async with limiter or nullcontext():
            with anyio.CancelScope(shield=not abandon_on_cancel):
                result = await process.run_in_thread(lambda: function(*args), pause)
        return result  # mypy: a scope may end without its return

    def draw_latency(self) -> float:
        """Return how long the next query takes, in seconds."""
        shortest, longest = self._latency
        return math.exp(shortest + (longest - shortest) * self._queries.random())

    # Faults

    def find_fault(self, number: int) -> InjectedFault | None:
        """Return the fault of the next write of a process, if it has one."""
        write = self.writes[number] + 1
        for fault in self._faults:
            if fault.process == number and fault.write is not None and fault.write <= write:
                return fault
        return None

    def end_fault(self, fault: InjectedFault) -> None:
        """Do not let a fault of a write happen again."""
        self._faults.remove(fault)

    async def _happen_at(self, fault: InjectedFault, at: float) -> None:
        await anyio.sleep(at)
        process = next((life for life in reversed(self._lives) if life.number == fault.process), None)
        if process is not None and not (process.is_over or self._over.is_set()):
            self.begin_fault(process, fault)

    def begin_fault(self, process: ProcessLife, fault: InjectedFault) -> None:
        """Apply a fault to a process; its task ends with the process."""
        self.note(process, repr(fault))
        process.was_disturbed = True
        if fault.kind in ("kill", "lose"):
            process.die(fault)
        elif fault.kind == "unsure":  # at a time: its next write
            self._faults.append(replace(fault, at=None, write=self.writes[process.number] + 1))
        else:
            self._troubles[process.number, fault.kind] += 1
            with self._scheduler.spawn_for(None):
                self._tasks.start_soon(self._end_later, process, fault)

    async def _end_later(self, process: ProcessLife, fault: InjectedFault) -> None:
        await anyio.sleep(fault.seconds)
        self._troubles[process.number, fault.kind] -= 1


async def _append_nothing(_: object) -> None:
    raise LoomError("the simulation is over: no more records are accepted")
