"""One example of a cancellation, and examples picked at random.

An example prepares an act, lets some time pass, begins the act in a task of its own, waits until a moment, takes some
steps of the event loop, and cancels. The moment is a multiple of half a second, like all that the world does, so the
steps after it lead through what happens at that moment. Then the caller does what callers do, time passes, the runtime
closes, and another one continues from the loom. Time is virtual.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import shlex
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, Literal

import anyio
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from cantrip_actors import Entity, Runtime
from cantrip_actors.circle.python import workers
from conformance.cancel.acts import ACTS
from conformance.cancel.laws import Resources, find_late_effects, find_leaks, read_faults
from conformance.cancel.world import PLANS, World
from supervisors.testing import virtual

__all__ = ["Example", "pick", "run"]

CLOSES = ("close", "aclose")
"""The acts that close the runtime: leaving its block, opened and left in the cancelled scope, and `Runtime.aclose`."""
NAMES: Final = (*ACTS, *CLOSES)

LATTICE = 0.5
LONGEST = 8.0
"""Virtual seconds up to which moments are picked; what takes longer is a stubborn gate."""
STEPS = 80
"""The most steps of the event loop between a moment and the cancellation."""
PATIENCE = 100.0
"""Virtual seconds that anything may take: more than a stubborn gate, and the graces of all that are above it."""
AFTERWARDS = 40.0
"""Virtual seconds for late effects."""

How = Literal["scope", "native"]


@dataclass(frozen=True, slots=True)
class Example:
    """One cancellation; its text repeats it.

    `how`: by a cancel scope, or on asyncio by `Task.cancel`. `waits` seconds pass before the act begins, then `moment`
    seconds and `steps` steps of the event loop before it is cancelled.
    """

    backend: str
    store: str
    act: str
    plan: str
    how: How
    waits: float
    moment: float
    steps: int

    def __str__(self) -> str:
        what = f"{self.backend} {self.store} {self.act} {self.plan} {self.how}"
        return f"{what} {self.waits:g} {self.moment:g} {self.steps}"

    @classmethod
    def of(cls, text: str) -> Example:
        """Return the example of a text. Raises ValueError."""
        backend, store, act, plan, how, waits, moment, steps = shlex.split(text)
        return cls(
            backend,
            store,
            act,
            plan,
            "native" if how == "native" else "scope",
            float(waits),
            float(moment),
            int(steps),
        )


def pick(
    rng: random.Random, *, backends: tuple[str, ...] = ("asyncio", "trio"), acts: tuple[str, ...] = NAMES
) -> Iterator[Example]:
    """Yield examples without end. A program takes real processes, so it is rarer."""
    while True:
        act = rng.choice(acts)
        plans = ACTS[act].plans if act in ACTS else PLANS
        plan = rng.choice(plans)
        if plan == "program" and rng.random() < 0.7:
            plan = "tidy"
        backend = rng.choice(backends)
        waits = act in CLOSES or ACTS[act].waits
        yield Example(
            backend,
            rng.choices(("jsonl", "sqlite"), (3, 1))[0],
            act,
            plan,
            rng.choice(("scope", "native")) if backend == "asyncio" else "scope",
            rng.randrange(int(LONGEST / LATTICE)) * LATTICE if waits else 0.0,
            0.0 if waits and rng.random() < 0.5 else rng.randrange(int(LONGEST / LATTICE)) * LATTICE,
            min(STEPS, int(rng.expovariate(1 / 12))),
        )


def run(example: Example) -> list[str]:
    """Return what is wrong after an example, in words."""
    world = World()
    faults: list[str] = []
    _warm_up(example.backend, example.plan == "program")
    before = Resources.read()
    with tempfile.TemporaryDirectory(prefix="cancel-") as folder, capture_logs():
        url = f"{example.store}:{folder}/loom"
        try:
            _run_virtual(example.backend, partial(_play, example, world, url, faults))
        except Exception as error:
            faults += [f"raised {type(leaf).__name__}: {leaf}" for leaf in _list_leaves(error)]
        faults += find_late_effects(world.journal.entries)
        faults += read_faults(url, world.journal.entries)
    if example.plan == "program":
        workers.close()
    faults += find_leaks(before)
    return faults


def _run_virtual(backend: str, main: Callable[[], Awaitable[None]]) -> None:
    name, options = virtual(backend)
    if name == "trio":  # it runs ready tasks in a random order, of which a report has to name the seed
        vars(importlib.import_module("trio._core._run"))["_r"].seed(0)
    anyio.run(main, backend=name, backend_options=options)


@cache
def _warm_up(backend: str, has_program: bool) -> None:
    """Import and start whatever a process imports and starts once."""

    async def cast() -> None:
        world = World()
        async with Runtime.open() as runtime:
            await runtime.cast(world.get_cantrip("program" if has_program else "quick"), "quick warm")
        await anyio.to_thread.run_sync(int)

    _run_virtual(backend, cast)
    workers.close()


async def _play(example: Example, world: World, url: str, faults: list[str]) -> None:
    tasks = {task.id for task in anyio.get_running_tasks()}
    await (_play_closing if example.act in CLOSES else _play_act)(example, world, url)
    world.journal.note("end", "")
    await anyio.sleep(AFTERWARDS)
    await _continue(example, world, url)
    world.journal.note("end", "")
    await anyio.sleep(AFTERWARDS)
    left = [task for task in anyio.get_running_tasks() if task.id not in tasks]
    faults += [f"the task {task.name} is left" for task in left]


async def _play_act(example: Example, world: World, url: str) -> None:
    async with Runtime.open(url, cantrips=world.cantrips) as runtime:
        world.journal.note("opened", "")
        runtime.watch_actors(world.journal.note_actor)
        act = ACTS[example.act](world, runtime, example.plan)
        await act.prepare()
        await anyio.sleep(example.waits)
        was_cancelled = await _cancel(example, act.perform)
        with anyio.fail_after(PATIENCE):
            await act.settle(was_cancelled=was_cancelled)
        await anyio.sleep(AFTERWARDS)
        if not act.closes:
            await _probe(runtime, world)


async def _play_closing(example: Example, world: World, url: str) -> None:
    async def begin(runtime: Runtime) -> None:
        world.journal.note("opened", "")
        runtime.watch_actors(world.journal.note_actor)
        await _begin(example, world, runtime)

    async def live() -> None:
        async with Runtime.open(url, cantrips=world.cantrips) as runtime:
            await begin(runtime)
            await anyio.sleep(example.waits)

    if example.act == "close":
        await _cancel(example, live)
        return
    runtime = await Runtime.open(url, cantrips=world.cantrips)
    await begin(runtime)
    await anyio.sleep(example.waits)
    await _cancel(example, runtime.aclose)
    await runtime.aclose()


async def _begin(example: Example, world: World, runtime: Runtime) -> Entity:
    return await runtime.invoke(world.get_cantrip(example.plan), f"{example.plan} x", name="desk", key="begin")


async def _continue(example: Example, world: World, url: str) -> None:
    """Continue what another process would find."""
    async with Runtime.open(url, cantrips=world.cantrips, recover="resume") as runtime:
        world.journal.note("opened", "")
        runtime.watch_actors(world.journal.note_actor)
        if example.act in (*CLOSES, "drain"):
            entity = await _begin(example, world, runtime)
            with anyio.fail_after(PATIENCE):
                await entity.episode()
        await _probe(runtime, world)


async def _probe(runtime: Runtime, world: World) -> None:
    """Check that the runtime still works."""
    with anyio.fail_after(PATIENCE):
        episode = await runtime.cast(world.get_cantrip("quick"), f"quick probe-{len(world.journal.entries)}")
    assert episode.result == "ok", f"a cast afterwards ended with {episode.summary or episode}"


async def _cancel(example: Example, work: Callable[[], Awaitable[None]]) -> bool:
    """Begin a piece of work, cancel it when the example says so, and return whether it was cancelled."""
    is_over = anyio.Event()
    returned: list[bool] = []

    async def run() -> None:
        try:
            await work()
            returned.append(True)
        finally:
            is_over.set()

    async def run_in(scope: anyio.CancelScope) -> None:
        with scope:
            await run()

    async def wait() -> None:
        with anyio.move_on_after(example.moment):
            await is_over.wait()
        for _ in range(example.steps):
            await checkpoint()

    with anyio.fail_after(PATIENCE + example.moment):
        if example.how == "native":
            task = asyncio.ensure_future(run())
            await wait()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        else:
            async with anyio.create_task_group() as tasks:
                scope = anyio.CancelScope()
                tasks.start_soon(run_in, scope)
                await wait()
                scope.cancel()
    return not returned


def _list_leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _list_leaves(inner)
    else:
        yield error
