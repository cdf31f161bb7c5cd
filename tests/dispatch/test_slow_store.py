"""Dispatches on a loom on a server that takes long to answer, or is away for a while."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, LoomError, Runtime
from cantrip_actors.dispatch import Dispatcher
from tests.dispatch.contracts import contract
from tests.dispatch.entities import DONE, FINISH, block, folder, progress, say, worker
from tests.loom import postgres
from tests.loom.statements import Watched, watch_statements
from tests.runtime.test_outages import failing


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return watch_statements(monkeypatch)


@pytest.mark.real_time
@pytest.mark.rule("N-13")
async def test_no_dispatch_waits_for_the_server_in_the_event_loop(watched: Watched, tmp_path: Path) -> None:
    says: list[dict[str, Any]] = [progress(), say("absent"), say("echo", text="x"), block(), DONE, *FINISH]
    made = worker(says)
    async with Runtime.open(postgres.fresh(), passivate_after=0.0) as runtime:
        dispatcher = Dispatcher(runtime, folder(tmp_path), poll=0.1)
        record = await dispatcher.dispatch(contract(), author="ada")
        with watched.watching():
            assert (await dispatcher.run(record.id, made)).status == "blocked"
            await dispatcher.unblock(record.id, "here it is", by="ada")
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(dispatcher.serve, made)
                    while (await dispatcher.log.read_soon(record.id)).status != "completed":
                        await anyio.sleep(0.1)
                    tasks.cancel_scope.cancel()
            assert (await dispatcher.run(record.id, made)).status == "completed"
            assert await dispatcher.forget(record.id) is not None


@asynccontextmanager
async def interrupted(tmp_path: Path) -> AsyncIterator[tuple[Runtime, Dispatcher, str, Cantrip]]:
    """Yield a runtime and a dispatcher with a dispatch whose process has stopped while its entity worked."""
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime, anyio.create_task_group() as tasks:
        dispatcher = Dispatcher(runtime, folder(tmp_path))
        record = await dispatcher.dispatch(contract(), author="ada")
        tasks.start_soon(dispatcher.run, record.id, worker([{**progress(), "delay": 1000.0}]))
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()
    async with Runtime.open(url) as runtime:
        yield runtime, Dispatcher(runtime, folder(tmp_path)), record.id, worker([*FINISH])


@pytest.mark.rule("F-02", "N-71")
async def test_dispatches_are_served_again_after_the_loom_was_away(tmp_path: Path) -> None:
    async with interrupted(tmp_path) as (runtime, dispatcher, dispatch_id, cantrip), anyio.create_task_group() as tasks:
        with failing(runtime._tree.store, "named"):
            tasks.start_soon(dispatcher.serve, cantrip)
            await anyio.sleep(3)
        with anyio.fail_after(60):
            while (await dispatcher.log.read_soon(dispatch_id)).status != "completed":
                await anyio.sleep(1)
        tasks.cancel_scope.cancel()


@pytest.mark.rule("F-02", "N-71")
async def test_no_other_entity_takes_a_dispatch_over_while_the_loom_is_away(tmp_path: Path) -> None:
    async with interrupted(tmp_path) as (runtime, dispatcher, dispatch_id, cantrip):
        before = await dispatcher.log.read_soon(dispatch_id)
        with failing(runtime._tree.store, "standing"), pytest.raises(LoomError, match="cannot be reached"):
            await dispatcher.run(dispatch_id, cantrip, take_over=True)
        assert (await dispatcher.log.read_soon(dispatch_id)).seq == before.seq
        assert (await dispatcher.run(dispatch_id, cantrip)).status == "completed"
