"""A runtime that closes while callers wait: it suspends long-lived entities, and every caller gets an error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, Entity, LoomError, Quarantined, Runtime, RuntimeClosed, gate, scripted
from cantrip_actors.wards import max_depth, max_turns
from supervisors import Crash
from tests.runtime.spells import cantrip, done, say


async def slow(context: Any) -> dict[str, object]:
    return {**done(context[-1].content), "delay": 10.0}


@pytest.mark.rule("D-001")
async def test_a_sender_gets_an_error_that_says_whether_its_intent_was_taken_when_the_runtime_closes() -> None:
    said: dict[str, str] = {}

    async def send(entity: Entity, intent: str) -> None:
        with pytest.raises(RuntimeClosed) as closed:
            await entity.send(intent)
        said[intent] = str(closed.value)
        assert closed.value.entity_id == entity.id

    async with anyio.create_task_group() as tasks, Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(slow), "start")
        await entity.episode()
        for intent in ("first", "second"):
            tasks.start_soon(send, entity, intent)
            await anyio.sleep(1)
    assert "do not send it again" in said["first"]
    assert "before entity" in said["second"]
    taken = [record.intent for record in runtime.loom.records(entity.id) if hasattr(record, "intent")]
    assert taken == ["start", "first"]


async def test_acting_on_an_entity_raises_runtime_closed_after_the_runtime_closes() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip([done(1)]), "start", name="x")
        turn = (await entity.episode()).thread[-1].id
    for act in (lambda: entity.send("more"), lambda: entity.steer("mind"), entity.interrupt, entity.stop):
        with pytest.raises(RuntimeClosed):
            await act()
    with pytest.raises(RuntimeClosed):
        await runtime.abandon(entity.id)
    with pytest.raises(RuntimeClosed):
        await runtime.loom.reward(turn, 1.0)


@pytest.mark.rule("D-001", "COMP-8")
async def test_a_runtime_closes_while_an_interrupted_entity_waits_for_the_end_of_its_children() -> None:
    @gate
    async def work() -> str:
        """Work, and tidy up for two seconds."""
        try:
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2)
        return "done"

    def policy(context: Any) -> Any:
        return say("work") if context[-1].content == "child" else say("call_agent", intent="child")

    async def interrupt(entity: Entity) -> None:
        with contextlib.suppress(RuntimeClosed):
            await entity.interrupt(now=True)

    began = anyio.current_time()
    async with anyio.create_task_group() as tasks, Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(policy, "call_agent", work, wards=(max_turns(5), max_depth(2))), "go")
        await anyio.sleep(5)
        tasks.start_soon(interrupt, entity)
        await anyio.sleep(1)
    assert anyio.current_time() - began < 10
    child = runtime.loom.below(entity.id)[0]
    assert runtime.loom.state(child) == "parent_ended"


@pytest.mark.rule("D-001", "COMP-3")
@pytest.mark.parametrize("after", [5.0, 30.0, 50.0])
async def test_the_children_of_a_long_lived_entity_are_resumed_with_it(tmp_path: Path, after: float) -> None:
    """Grandchildren are resumed too, also when their parent has hibernated meanwhile."""

    async def policy(context: Any) -> dict[str, object]:
        depth = {"go": 0, "child": 1}.get(context[0].content, 2)
        if depth < 2 and context[-1].role == "user":
            return say("call_agent", intent=["child", "grandchild"][depth])
        return {**done(context[-1].content), "delay": 20.0}

    circle = Circle(["done", "call_agent"], [max_turns(5), max_depth(2)])
    spell = Cantrip(scripted(policy), circle=circle)
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(spell, "go", name="x")
        await anyio.sleep(after)
    async with Runtime.open(url, cantrips=[spell], recover="resume") as runtime:
        assert (await runtime.entity("x").episode()).result == "grandchild"
        states = [runtime.loom.state(id) for id in runtime.loom.subtree(entity.id)]
        assert states == ["idle", "terminated", "terminated"]


async def test_the_children_of_an_entity_that_is_stopped_end_with_it() -> None:
    async def policy(context: Any) -> dict[str, object]:
        if context[0].content == "go":
            return say("call_agent", intent="child")
        return {**done("late"), "delay": 3600.0}

    circle = Circle(["done", "call_agent"], [max_turns(5), max_depth(1)])
    for patience in (0.5, 100.0):
        async with Runtime.open() as runtime:
            entity = await runtime.invoke(Cantrip(scripted(policy), circle=circle), "go", name="x")
            await anyio.sleep(patience)
            await entity.stop("enough")
            _, child = runtime.loom.subtree(entity.id)
            assert runtime.loom.is_over(entity.id)
            assert runtime.loom.is_over(child)


@pytest.mark.rule("D-011")
@pytest.mark.parametrize("is_lasting", [False, True])
async def test_an_entity_that_crashes_for_good_ends_with_its_children_or_is_quarantined(is_lasting: bool) -> None:
    async def policy(context: Any) -> dict[str, object]:
        if context[0].content == "go":
            return say("call_agent", intent="child")
        return {**done("late"), "delay": 3600.0}

    circle = Circle(["done", "call_agent"], [max_turns(5), max_depth(1)])
    spell = Cantrip(scripted(policy), circle=circle)
    async with Runtime.open() as runtime:
        entity = await (runtime.invoke(spell, "go", name="x") if is_lasting else runtime.start(spell, "go"))
        for _ in range(2):
            await anyio.sleep(10)
            cell = runtime._tree.living.get(entity.id)
            assert cell is not None
            cell.actor.exit(Crash(SystemError("the same bug")))
        await anyio.sleep(10)
        assert not entity.loaded
        states = [runtime.loom.state(one) for one in runtime.loom.subtree(entity.id)]
        assert states == (["active", "active"] if is_lasting else ["crashed", "parent_ended"])
        if is_lasting:
            with pytest.raises(Quarantined):
                await entity.send("are you there?")
            resumed = await runtime.resume(entity.id)
            assert resumed.loaded


@pytest.mark.rule("C-68")
class TestAwaited:
    """A runtime that one task opens and another closes."""

    async def test_a_runtime_is_closed_by_another_task_than_the_one_that_opened_it(self) -> None:
        opened: list[Runtime] = []

        async def open_it() -> None:
            opened.append(await Runtime.open())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(open_it)
        (runtime,) = opened
        assert (await runtime.cast(cantrip([done(1)]), "go")).result == 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.aclose)
        with pytest.raises(RuntimeClosed):
            await runtime.cast(cantrip([done(1)]), "go")
        await runtime.aclose()

    @pytest.mark.parametrize("how", ["awaits", "in a thread"])
    async def test_a_gate_that_closes_its_own_runtime_is_cancelled_with_its_entity(
        self, tmp_path: Path, how: str
    ) -> None:
        url = f"sqlite:{tmp_path / 'loom.db'}"
        runtime = await Runtime.open(url)

        @gate
        async def leave() -> str:
            """Close the runtime."""
            if how == "awaits":
                await runtime.aclose()
            else:
                await anyio.to_thread.run_sync(anyio.from_thread.run, runtime.aclose)
            return "never"

        entity = await runtime.start(cantrip([say("leave"), done(1)], leave), "go")
        with anyio.fail_after(5):
            assert (await entity.episode()).reason == "cancelled"
            await runtime.aclose()
        async with Runtime.open(url) as runtime:
            assert runtime.loom.state(entity.id) == "cancelled"

    async def test_an_error_while_opening_reaches_the_caller(self, tmp_path: Path) -> None:
        with pytest.raises(LoomError):
            await Runtime.open(f"jsonl:{tmp_path}")

    async def test_a_caller_that_is_cancelled_while_it_opens_leaves_nothing_open(self) -> None:
        runtime = Runtime.open()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await runtime
        assert scope.cancelled_caught
        with pytest.raises(RuntimeClosed):
            await runtime.cast(cantrip([done(1)]), "go")

    async def test_an_entered_runtime_is_closed_only_by_its_block(self) -> None:
        async with Runtime.open() as runtime:
            with pytest.raises(RuntimeClosed, match="async with"):
                await runtime.aclose()
            assert (await runtime.cast(cantrip([done(1)]), "go")).result == 1

    async def test_a_fixture_of_two_tasks_may_hold_a_runtime(self, anyio_backend_name: str) -> None:
        """As under pytest-asyncio: each half of the fixture runs in a task of its own."""
        if anyio_backend_name != "asyncio":
            pytest.skip("a task of trio cannot end with an open nursery")

        async def hold() -> AsyncIterator[Runtime]:
            async with Runtime.open() as runtime:
                yield runtime

        fixture = hold()
        runtime = await asyncio.create_task(anext(fixture))  # type: ignore[arg-type]
        entity = await runtime.start(cantrip(slow), "go")
        with pytest.raises(StopAsyncIteration):
            await asyncio.create_task(anext(fixture))  # type: ignore[arg-type]
        assert runtime.loom.state(entity.id) == "cancelled"

    async def test_leaving_the_block_in_a_second_task_says_how_to_open_a_runtime(self, anyio_backend_name: str) -> None:
        if anyio_backend_name != "asyncio":
            pytest.skip("a task of trio cannot end with an open nursery")
        runtime, is_left = Runtime.open(), anyio.Event()

        async def enter() -> None:
            await runtime.__aenter__()
            await is_left.wait()

        entering = asyncio.create_task(enter())
        await anyio.sleep(1)
        with pytest.raises(RuntimeClosed, match=r"open it with `runtime = await Runtime.open"):
            await runtime.__aexit__(None, None, None)
        is_left.set()
        await entering

    async def test_gates_see_the_context_variables_of_the_task_that_opened_the_runtime(self) -> None:
        runtime = await Runtime.open()
        entity = await runtime.invoke(cantrip([done(1), done(2)]), "go")
        await entity.episode()
        assert (await entity.send("more")).result == 2
        await runtime.aclose()


@pytest.mark.rule("C-14", "C-18")
@pytest.mark.parametrize("how", ["cast", "start", "invoke", "fork", "start_fork"])
async def test_a_beginning_that_is_cancelled_at_any_step_ends_its_entity_at_once(how: str) -> None:
    async def slowly(_: object) -> dict[str, object]:
        return {**done("ok"), "delay": 60.0}

    slow = cantrip(scripted(slowly))
    async with Runtime.open() as runtime:
        (turn,) = (await runtime.cast(cantrip([done("ok")]), "go")).thread
        begin: Any = {
            "cast": lambda: runtime.cast(slow, "go"),
            "start": lambda: runtime.start(slow, "go"),
            "invoke": lambda: runtime.invoke(slow, "go", name="notes"),
            "fork": lambda: runtime.fork(turn.id, intent="go", cantrip=slow),
            "start_fork": lambda: runtime.start_fork(turn.id, intent="go", cantrip=slow),
        }[how]
        with capture_logs() as logs:
            for steps in range(25):
                known, before, made = len(runtime.loom.entities()), anyio.current_time(), []

                async def call(made: list[Any] = made) -> None:
                    made.append(await begin())

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call)
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
                assert anyio.current_time() - before < 1, steps
                for entity in made:
                    await entity.stop()
                assert all(runtime.loom.is_over(one) for one in runtime.loom.entities()[known:])
        assert [log for log in logs if log["log_level"] == "error"] == []
