"""Run a scenario with whole runtimes from one seed, and make a seed that fails as simple as possible."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from cantrip_actors.loom import Loom
from cantrip_actors.terms.arguments import check as check_fits
from cantrip_actors.terms.arguments import check_kind, check_whole, is_number
from cantrip_actors.testing.simulation.faults import FAULT_KINDS, FaultKind, InjectedFault, draw_faults
from cantrip_actors.testing.simulation.outside import NotSimulated
from cantrip_actors.testing.simulation.process import SimulatedProcess
from cantrip_actors.testing.simulation.world import Scenario, SimulatedEvent, SimulatedWorld

T = TypeVar("T")

VERSION: Final = 1
"""The version of seeds: it changes with everything that makes another course of the same seed."""

_LINES: Final = 30
"""Lines of the trace that an error shows."""


@dataclass(frozen=True)
class Simulated(Generic[T]):
    """The record of a simulation."""

    value: T
    """The result of the scenario in the first process."""
    seed: str
    """The seed, with its version."""
    faults: tuple[InjectedFault, ...]
    trace: tuple[SimulatedEvent, ...]
    digest: str
    """The hash of all records of the loom, in order: two runs with the same digest have written the same bytes."""
    seconds: float
    """Simulated seconds."""
    deaths: int
    """How many lives of processes ended in a crash."""


class SimulationFailed(AssertionError):
    """A scenario has failed. The message has the line that repeats it, with as few faults as it needs.

    Attributes:
        seed: the seed, with its version.
        faults: the faults that the search has not removed.
        shuffles: whether it needs an order of tasks from the seed.
        trace: the events, with simulated times.
    """

    def __init__(
        self,
        what: str,
        seed: str,
        faults: tuple[InjectedFault, ...],
        trace: tuple[SimulatedEvent, ...],
        *,
        shuffles: bool,
    ) -> None:
        super().__init__(what)
        self.seed = seed
        self.faults = faults
        self.trace = trace
        self.shuffles = shuffles


class _Course(NamedTuple):
    """Everything that decides a run."""

    scenario: Scenario
    seed: str
    backend: str
    nodes: int
    latency: tuple[float, float]
    lasts: float
    check: Callable[[Loom], object] | None
    reset: Callable[[], object]

    def run(self, faults: Sequence[InjectedFault], *, shuffles: bool) -> SimulatedWorld:
        """Run it. Raises NotSimulated."""
        self.reset()
        with tempfile.TemporaryDirectory(prefix="cantrip-simulation-") as folder:
            world = SimulatedWorld(
                self.seed,
                self.scenario,
                processes=self.nodes,
                faults=faults,
                latency=self.latency,
                lasts=self.lasts,
                shuffles=shuffles,
                path=Path(folder, "loom.db"),
            )
            world.run(self.backend, self.check)
        if isinstance(world.error, NotSimulated):
            raise world.error
        return world


def simulate(
    scenario: Callable[[SimulatedProcess], Awaitable[T]],
    seed: int | str,
    *,
    backend: str = "asyncio",
    nodes: int = 1,
    faults: Sequence[InjectedFault] | None = None,
    kinds: Sequence[FaultKind] = FAULT_KINDS,
    within: float = 60.0,
    latency: tuple[float, float] = (0.5, 20.0),
    lasts: float = 86_400.0,
    shuffles: bool = True,
    check: Callable[[Loom], object] | None = None,
    reset: Callable[[], object] = lambda: None,
    shrink: bool = True,
) -> Simulated[T]:
    """Run a scenario in simulated processes, with an order of events, latencies and faults that one seed decides.

    Each process runs `scenario` with its runtimes (`SimulatedProcess.open`), which share one loom. A process that a
    fault has ended runs it again. The simulation ends when the scenario has returned in the first process; the others
    are killed then. Time passes only while all tasks wait, so it takes no time. The same seed has the same course: the
    same records, to the byte, in every run and on both event loops.

    Args:
        scenario: the whole program of a process, which may be run again at any time.
        seed: a number, or the text of a seed that has failed.
        backend: "asyncio" or "trio".
        nodes: how many processes there are. `SimulatedProcess.number` tells them apart.
        faults: the faults of the processes; from the seed if it is left out.
        kinds: the kinds of faults that the seed draws.
        within: the seconds within which faults that are drawn come, if they do not come at a write.
        latency: the shortest and the longest time of a query to a crystal, in seconds.
        lasts: simulated seconds after which a scenario that has not ended has failed.
        shuffles: whether the seed decides the order of tasks that can run at the same time.
        check: called at the end with the loom, which is read-only.
        reset: called before each run, also of a failure that is repeated: it clears what the scenario counts outside.
        shrink: whether a failure is repeated with fewer faults, to find those that it needs.

    Raises:
        SimulationFailed: the scenario or `check` raised an exception, which is its cause, the scenario did not end, or
            the loom is damaged.
        NotSimulated: the scenario used a clock of the machine, a thread, a socket or a subprocess.
        ValueError: the seed is of another version, an argument is outside of its range, or the scenario opens its
            runtime without `SimulatedProcess.open`.
    """
    name = _parse_seed(seed)
    check_whole("nodes", nodes, 1)
    if backend not in ("asyncio", "trio"):
        raise ValueError(f"backend: expected 'asyncio' or 'trio', got {backend!r}")
    _check_functions(scenario, check, reset)
    _check_seconds(within, latency, lasts)
    if faults is None:
        faults = draw_faults(Random(f"{name} faults"), nodes, within, kinds)
    for fault in faults:
        check_kind("faults", fault, InjectedFault, "InjectedFault values")
        if fault.process > nodes:
            raise ValueError(f"faults: expected faults of processes up to {nodes}, the number of nodes, got {fault!r}")
    course = _Course(scenario, name, backend, nodes, latency, lasts, check, reset)
    world = course.run(faults, shuffles=shuffles)
    if world.error is None:
        if world.has_stray_runtime:
            raise ValueError(
                "scenario: its runtime was not opened with process.open, so no fault reaches it and this test tests "
                "nothing: write `async with process.open(cantrips=[…]) as runtime:`"
            )
        return Simulated(
            cast("T", world.value), name, tuple(faults), tuple(world.trace), world.digest, world.seconds, world.deaths
        )
    least, is_shuffled = list(faults), shuffles
    if shrink:
        least, is_shuffled, world = _shrink(course, least, world, shuffles=shuffles)
    raise _make_failure(course, least, world, shuffles=is_shuffled) from world.error


def _check_functions(scenario: object, at_end: object, reset: object) -> None:
    check_fits(callable(scenario), "scenario", "an async function of a SimulatedProcess", scenario)
    check_fits(at_end is None or callable(at_end), "check", "a function of a Loom, or None", at_end)
    check_fits(callable(reset), "reset", "a function without arguments", reset)


def _check_seconds(within: object, latency: object, lasts: object) -> None:
    for what, value in (("within", within), ("lasts", lasts)):
        if not (is_number(value) and value > 0):
            raise ValueError(f"{what}: expected seconds above 0, got {value!r}")
    pair = latency if isinstance(latency, tuple | list) else ()
    if not (len(pair) == 2 and all(map(is_number, pair)) and 0 < pair[0] <= pair[1]):
        raise ValueError(f"latency: expected the shortest and the longest seconds, above 0, got {latency!r}")


def _parse_seed(seed: int | str) -> str:
    """Return the text of a seed. Raises ValueError for one of another version."""
    text = f"{VERSION}-{seed}" if type(seed) is int else str(seed)
    version, dash, number = text.partition("-")
    if not (dash and version.isdigit() and number.isdigit()):
        raise ValueError(f'seed: expected a number from 0 on, or a text such as "{VERSION}-17", got {seed!r}')
    if int(version) != VERSION:
        raise ValueError(
            f"seed {text} is of version {version} of the simulation, and this is version {VERSION}: here it would "
            "take another course. Look for another seed, or use the version of cantrip-actors that printed it"
        )
    return text


def _shrink(
    course: _Course, faults: list[InjectedFault], world: SimulatedWorld, *, shuffles: bool
) -> tuple[list[InjectedFault], bool, SimulatedWorld]:
    """Leave out each fault, and the order from the seed, without which the run fails in the same way."""
    kind = type(_find_leaf(world.error))
    at = 0
    while at < len(faults):
        fewer = [*faults[:at], *faults[at + 1 :]]
        simpler = course.run(fewer, shuffles=shuffles)
        if type(_find_leaf(simpler.error)) is kind:
            faults, world, at = fewer, simpler, 0  # an earlier one may not be needed any more
        else:
            at += 1
    if shuffles:
        simpler = course.run(faults, shuffles=False)
        if type(_find_leaf(simpler.error)) is kind:
            return faults, False, simpler
    return faults, shuffles, world


def _find_leaf(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _make_failure(
    course: _Course, faults: Sequence[InjectedFault], world: SimulatedWorld, *, shuffles: bool
) -> SimulationFailed:
    options: dict[str, Any] = {"backend": course.backend, "nodes": course.nodes, "faults": list(faults)}
    if not shuffles:
        options["shuffles"] = False
    name = getattr(course.scenario, "__name__", "scenario")
    line = f"simulate({name}, {course.seed!r}, {', '.join(f'{key}={value!r}' for key, value in options.items())})"
    trace = tuple(world.trace)
    left_out = [f"… {len(trace) - _LINES} lines before"] if len(trace) > _LINES else []
    error = _find_leaf(world.error)
    text = "\n".join(
        [
            f"seed {course.seed} fails after {world.seconds:.3f} simulated seconds: {type(error).__name__}: {error}",
            *left_out,
            *map(str, trace[-_LINES:]),
            f"repeat it with the same other arguments: {line}",
        ]
    )
    return SimulationFailed(text, course.seed, tuple(faults), trace, shuffles=shuffles)
