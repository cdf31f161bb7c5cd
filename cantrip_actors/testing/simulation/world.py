"""One run of a simulation: its clock, its loom, its processes and its faults."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio

from cantrip_actors.loom import Loom
from cantrip_actors.loom.integrity.verify import verify_loom
from cantrip_actors.loom.opening import open_store
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.testing.simulation.conditions import SimulatedConditions
from cantrip_actors.testing.simulation.faults import InjectedFault
from cantrip_actors.testing.simulation.outside import OutsideWorld
from cantrip_actors.testing.simulation.process import ProcessLife, SimulatedProcess
from cantrip_actors.testing.simulation.scheduler import AllTasksWait, TaskScheduler, make_backend_options
from cantrip_actors.user_code.attempt import WATCH

T = TypeVar("T")

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
        self._conditions = conditions = SimulatedConditions(seed, path, processes, faults, latency)
        self._scenario = scenario
        self._processes = processes
        self._lasts = lasts
        self._scheduler = TaskScheduler(conditions.make_chance("order").getrandbits(60) if shuffles else None)
        self._lives: list[ProcessLife] = []

    @property
    def has_stray_runtime(self) -> bool:
        """Whether an entity worked in a process that has opened no runtime on the loom of the simulation."""
        return any(life.has_stray_runtime for life in self._lives)

    def _note(self, process: ProcessLife, what: str) -> None:
        """Add a line to the trace, until the simulation is over."""
        if not self._over.is_set():
            self.trace.append(SimulatedEvent(self._scheduler.now, process.name, what))

    def run(self, backend: str, check: Callable[[Loom], object] | None) -> None:
        """Run it to its end, and check the loom."""
        outside = OutsideWorld(
            lambda: self._scheduler.now,
            self._conditions.make_chance("outside"),
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
                self._tasks.start_soon(self._host, self._begin_life(number, 1))
            for fault in self._conditions.faults:
                if fault.at is not None:
                    self._tasks.start_soon(self._happen_at, fault, fault.at)
            with anyio.move_on_after(self._lasts):
                await self._over.wait()
            if not self._over.is_set():
                what = f"the scenario did not end in {self._lasts:g} simulated seconds; its tasks wait:"
                self._fail(TimeoutError(f"{what}\n{self._scheduler.describe_waits()}"))
            self.seconds = self._scheduler.now
            self._conditions.faults = []
            self._read_loom(check)
            for life in self._lives:
                life.unwind()
            self._tasks.cancel_scope.cancel()

    def _read_loom(self, check: Callable[[Loom], object] | None) -> None:
        """Take the bytes of the loom, before anything else is written, and check them."""
        path = self._conditions.path
        if not path.exists():
            return
        with closing(sqlite3.connect(path)) as connection:
            lines = connection.execute("select body from records order by seq").fetchall()
        self.digest = hashlib.sha256(repr(lines).encode()).hexdigest()
        if self.error is not None:
            return
        with open_store(self._conditions.url, read_only=True) as store:
            faults = verify_loom(store).faults
            if faults:
                self._fail(AssertionError(f"the loom is damaged: {faults[0]}"))
            elif check is not None:
                try:
                    check(Loom(store, _append_nothing))
                except Exception as error:
                    self._fail(error)

    # The processes

    def _begin_life(self, number: int, life: int) -> ProcessLife:
        self._lives.append(ProcessLife(self._conditions, number, life, self._begin_fault, self._note))
        return self._lives[-1]

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
            process = self._begin_life(process.number, process.life + 1)

    async def _live(self, process: ProcessLife) -> None:
        WATCH.set(process.watch)
        self._note(process, "begins")
        try:
            with process.scope:
                running: object = self._scenario(SimulatedProcess(process))
                if not isawaitable(running):
                    raise TypeError(f"scenario: expected an async function, got one that returned {running!r:.80}")
                value = await running
                if not self._over.is_set():
                    self._note(process, "ends")
                    self._finish(process, value)
        except Exception as error:
            if not (process.is_over or self._over.is_set()):
                self._note(process, f"fails with {type(error).__name__}")
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
            self._note(process, f"logs at level {level}: {text}")

    # The store

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
            await anyio.sleep(self._conditions.draw_pause(process.number))

        async with limiter or nullcontext():
            with anyio.CancelScope(shield=not abandon_on_cancel):
                result = await process.run_in_thread(lambda: function(*args), pause)
        return result  # mypy: a scope may end without its return

    # Faults

    async def _happen_at(self, fault: InjectedFault, at: float) -> None:
        await anyio.sleep(at)
        process = next((life for life in reversed(self._lives) if life.number == fault.process), None)
        if process is not None and not (process.is_over or self._over.is_set()):
            self._begin_fault(process, fault)

    def _begin_fault(self, process: ProcessLife, fault: InjectedFault) -> None:
        """Apply a fault to a process; its task ends with the process."""
        self._note(process, repr(fault))
        process.was_disturbed = True
        if fault.kind in ("kill", "lose"):
            process.die(fault)
        elif fault.kind == "unsure":  # at a time: its next write
            conditions = self._conditions
            conditions.faults.append(replace(fault, at=None, write=conditions.writes[process.number] + 1))
        else:
            self._conditions.troubles[process.number, fault.kind] += 1
            with self._scheduler.spawn_for(None):
                self._tasks.start_soon(self._end_later, process, fault)

    async def _end_later(self, process: ProcessLife, fault: InjectedFault) -> None:
        await anyio.sleep(fault.seconds)
        self._conditions.troubles[process.number, fault.kind] -= 1


async def _append_nothing(_: object) -> None:
    raise LoomError("the simulation is over: no more records are accepted")
