"""`Runtime.inspect`: what it tells, and that it needs neither an actor nor the event loop."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from cantrip_actors import LoomError, Runtime, ask_first, gate
from cantrip_actors.observe import Telemetry
from cantrip_actors.runtime.face.system import System
from supervisors import ActorRef
from tests.runtime.spells import cantrip, done, say

pytestmark = pytest.mark.rule("METRIC-05")


@gate
async def look(what: str = "x") -> str:
    """Look at something."""
    return f"saw {what}"


async def until(holds: Callable[[], Any]) -> None:
    with anyio.fail_after(20):
        while not holds():
            await anyio.sleep(0.01)


async def test_a_system_has_the_tree_crystals_counters_loom_requests_and_streams() -> None:
    telemetry = Telemetry(otel=False)
    async with Runtime.open("memory:", telemetry=telemetry) as runtime:
        before = runtime.inspect()
        await runtime.cast(cantrip([done(1)], name="quick"), "go")
        await runtime.start(cantrip([say("look"), done(1)], ask_first(look), name="asking"), "go")
        await until(lambda: runtime.inspect().requests == 1)
        with closing(runtime.events()), closing(runtime.requests(follow=True)):
            stop = runtime.watch(lambda _: None)
            system = runtime.inspect()
            stop()
        after = runtime.inspect()
    assert (before.requests, before.streams) == (0, {"events": 0, "upserts": 0, "requests": 0})
    assert [node.id for node in system.tree.walk()][:2] == ["root", "runtime"]
    assert {one.running for one in system.crystals} == {0}
    turns = [one for one in system.counters if one.name == "cantrip.turns"]
    assert [(one.labels, one.value) for one in turns] == [({"gen_ai.agent.name": "quick"}, 1)]
    assert system.loom == ("memory:", "none", 0, None)
    # a feed of requests listens to events, too
    assert system.streams == {"events": 2, "upserts": 1, "requests": 1}
    assert after.streams == {"events": 0, "upserts": 0, "requests": 0}


@pytest.mark.parametrize(("scheme", "durability"), [("sqlite", "process"), ("sqlite", "power"), ("jsonl", "none")])
async def test_a_system_has_the_durability_and_the_size_of_its_loom(
    tmp_path: Path, scheme: str, durability: str
) -> None:
    path = tmp_path / "loom"
    async with Runtime.open(f"{scheme}:{path}?durability={durability}") as runtime:
        empty = runtime.inspect().loom
        await runtime.cast(cantrip([done("x" * 100_000)]), "go")
        loom = runtime.inspect().loom
        on_disk = sum(one.stat().st_size for one in tmp_path.iterdir() if not one.name.endswith("-shm"))
    assert (loom.url, loom.durability) == (f"{scheme}:{path}?durability={durability}", durability)
    assert empty.size is not None
    assert loom.size is not None
    assert empty.size + 100_000 < loom.size <= on_disk


async def test_the_url_of_a_system_has_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime.open("memory:") as runtime:
        monkeypatch.setattr(runtime._tree, "url", "postgresql://me:hunter2@db.example/looms")
        loom = runtime.inspect().loom
    assert loom.url == "postgresql://me:[redacted]@db.example/looms"


async def test_a_system_counts_the_requests_of_unloaded_entities(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        await runtime.start(cantrip([say("look"), done(1)], ask_first(look)), "go")
        await until(lambda: runtime.inspect().requests == 1)
    async with Runtime.open(url) as runtime:
        assert runtime.inspect().requests == 1


@pytest.mark.real_time
@pytest.mark.parametrize("scheme", ["memory", "sqlite", "jsonl"])
async def test_a_thread_inspects_while_the_event_loop_is_blocked_and_no_actor_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    pages: list[str] = []
    found: list[System] = []
    sent: list[Any] = []

    @gate
    async def block() -> str:
        """Block the event loop until the thread has inspected."""
        call, cast = ActorRef.call, ActorRef.send
        with monkeypatch.context() as patch:
            patch.setattr(ActorRef, "call", lambda *told, **more: (sent.append(told), call(*told, **more))[1])
            patch.setattr(ActorRef, "send", lambda *told, **more: (sent.append(told), cast(*told, **more))[1])
            is_blocked.set()
            ends = time.monotonic() + 20
            while not found and time.monotonic() < ends:
                time.sleep(0.001)  # noqa: ASYNC251  # that is the point
        return "x"

    def inspect_once_it_is_blocked() -> None:
        assert is_blocked.wait(20)
        pages.append(telemetry.prometheus())
        found.append(runtime.inspect())

    url = "memory:" if scheme == "memory" else f"{scheme}:{tmp_path / 'loom'}"
    is_blocked = threading.Event()
    telemetry = Telemetry(otel=False)
    async with Runtime.open(url, telemetry=telemetry) as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(to_thread.run_sync, inspect_once_it_is_blocked)
        await runtime.cast(cantrip([say("block"), done(1)], block, name="stuck"), "go")
    (system,) = found
    assert sent == []
    assert "cantrip_crystal_running{" in pages[0]
    assert "circle" in {node.id for node in system.tree.walk()}


@pytest.mark.real_time
def test_a_blocking_runtime_is_inspected_while_its_loop_is_blocked() -> None:
    with Runtime.blocking("memory:") as runtime:
        found: list[System] = []

        @gate
        async def look_inside() -> str:
            """Look at the runtime from its own event loop, which cannot turn meanwhile."""
            found.append(runtime.inspect())
            return "x"

        runtime.cast(cantrip([say("look_inside"), done(1)], look_inside), "go")
    assert found[0].tree.id == "root"


async def test_a_tenant_and_a_runtime_that_is_not_open_have_no_system() -> None:
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(LoomError, match="whole loom"):
            runtime.tenant("acme").inspect()
