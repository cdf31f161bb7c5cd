"""Another process holds the lock of an SQLite loom, or a thread works on it, and the event loop does not wait."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import anyio
import pytest

from cantrip_actors import LoomError, Runtime
from cantrip_actors.loom.sqlite import sqlite
from cantrip_actors.loom.stores.store import Locked
from tests.runtime.spells import cantrip, done
from tests.slowness import measure_slowness

pytestmark = [pytest.mark.real_time, pytest.mark.rule("K-30")]

LONGEST = 0.3
"""Seconds that the event loop may stand still on an idle machine."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "loom.db"


@contextmanager
def locked(path: Path) -> Iterator[Callable[[], object]]:
    """Hold the write lock as another process does; yield a function that releases it."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    try:
        yield partial(other.execute, "rollback")
    finally:
        other.close()


@asynccontextmanager
async def watched_loop() -> AsyncIterator[None]:
    """Fail if the event loop stands still inside the block."""
    gaps, slowness = [0.0], measure_slowness()

    async def tick() -> None:
        before = monotonic()
        while True:
            await anyio.sleep(0.01)
            gaps.append(monotonic() - before)
            before = monotonic()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await anyio.sleep(0.05)
        yield
        tasks.cancel_scope.cancel()
    assert max(gaps) < LONGEST * max(slowness, measure_slowness())


async def test_a_cast_waits_for_the_lock_of_another_process_and_the_event_loop_does_not(path: Path) -> None:
    async with Runtime.open(f"sqlite:{path}") as runtime, watched_loop(), anyio.create_task_group() as tasks:
        with locked(path) as release:
            ended = []

            async def cast() -> None:
                ended.append(await runtime.cast(cantrip([done("late")]), "go"))

            tasks.start_soon(cast)
            await anyio.sleep(1.0)
            assert not ended
            release()
        with anyio.fail_after(10):
            while not ended:
                await anyio.sleep(0.01)
        assert ended[0].result == "late"


async def test_a_lock_that_is_held_for_too_long_is_an_error_for_all_that_wait_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE", 0.5)
    errors = []

    async def cast(runtime: Runtime) -> None:
        with pytest.raises(LoomError, match="Another process has been writing") as raised:
            await runtime.cast(cantrip([done("late")]), "go")
        errors.append(raised.value)

    async with Runtime.open(f"sqlite:{path}") as runtime:
        began = monotonic()
        with locked(path):
            async with watched_loop(), anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(cast, runtime)
        assert monotonic() - began < 20 * 0.5 / 2
        assert len(errors) == 20
        assert all(isinstance(error, Locked) for error in errors)
        assert (await runtime.cast(cantrip([done("now")]), "go")).result == "now"


async def test_a_slow_read_delays_neither_the_event_loop_nor_an_entity(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime.open(f"sqlite:{path}") as runtime:
        store, reading, may_end = runtime._tree.store, anyio.Event(), Event()

        def read_slowly() -> Any:
            anyio.from_thread.run_sync(reading.set)
            may_end.wait()
            return store.life("nobody")

        async with watched_loop(), anyio.create_task_group() as tasks:
            tasks.start_soon(runtime._tree.access.run_in_thread, read_slowly)
            await reading.wait()
            assert (await runtime.cast(cantrip([done("meanwhile")]), "go")).result == "meanwhile"
            may_end.set()


async def test_a_runtime_opens_and_closes_beside_a_lock_of_another_process(path: Path) -> None:
    async with Runtime.open(f"sqlite:{path}"):
        pass
    async with watched_loop():
        with locked(path) as release:
            async with anyio.create_task_group() as tasks:

                async def release_later() -> None:
                    await anyio.sleep(0.5)
                    release()

                tasks.start_soon(release_later)
                async with Runtime.open(f"sqlite:{path}") as runtime:
                    assert (await runtime.cast(cantrip([done("late")]), "go")).result == "late"


async def test_entities_go_on_while_others_are_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime.open(f"sqlite:{path}") as runtime:
        first = await runtime.cast(cantrip([done("x" * 1000)]), "go")
        store, vacuuming, may_end = runtime._tree.store, anyio.Event(), Event()
        scrub = store.scrub

        def scrub_late() -> None:
            anyio.from_thread.run_sync(vacuuming.set)
            may_end.wait()
            scrub()

        monkeypatch.setattr(store, "scrub", scrub_late)
        async with watched_loop(), anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.forget, first.entity_id)
            await vacuuming.wait()
            assert (await runtime.cast(cantrip([done("meanwhile")]), "go")).result == "meanwhile"
            may_end.set()
        assert runtime._tree.loom.is_forgotten(first.entity_id)
