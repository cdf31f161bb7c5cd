"""What a process that offers no cantrip can do with the children of an entity that another process runs.

Two runtimes stand for the two processes: they share nothing but the file of the loom.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    Circle,
    Entity,
    EntityEnded,
    EntityEndedEvent,
    InvalidIntent,
    LoomError,
    Runtime,
    gate,
    scripted,
)
from cantrip_actors.wards import max_depth, max_turns
from tests.runtime.spells import done, say


@gate
async def work(seconds: float) -> str:
    """Work for some seconds."""
    await anyio.sleep(seconds)
    return f"worked {seconds:g} s"


async def decide(context: Any) -> Any:
    """Delegate "wait …" and "leave …", work as long as "work …" says, and end with the last observation."""
    last = context[-1]
    if last.role != "user" or "[child " in last.content:
        return done(last.content)
    how, _, rest = last.content.partition(" ")
    if how == "work":
        return say("work", seconds=float(rest))
    if how == "think":
        return {**done("thought"), "delay": float(rest)}
    return say("call_agent", intent=rest, wait=how == "wait") if how in ("wait", "leave") else done(last.content)


PARENT = Cantrip(
    scripted(decide), circle=Circle(["done", "background", work], [max_turns(10), max_depth(1)]), name="parent"
)


@asynccontextmanager
async def delegating(tmp_path: Path, how: str) -> AsyncIterator[tuple[Runtime, Entity[Any], Entity[Any]]]:
    """Yield a process without cantrips, and its handles of a parent and of its child that works for ten seconds."""
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[PARENT]) as worker, Runtime.open(url) as door:
        await worker.invoke(PARENT, f"{how} work 10", name="parent")
        await anyio.sleep(1)
        parent = door.get_entity("parent")
        (child_id,) = door.loom.below(parent.id)
        with anyio.fail_after(60):
            yield door, parent, door.get_entity(child_id)


async def stop(door: Runtime, child: Entity[Any]) -> str:
    await child.stop("no longer needed", by="anna")
    assert door.loom.state(child.id) == "cancelled"
    return "no longer needed"


async def interrupt(door: Runtime, child: Entity[Any]) -> str:
    await child.interrupt("that will do", now=True)
    assert (await child.episode()).truncated
    return "that will do"


async def cancel(door: Runtime, child: Entity[Any]) -> str:
    work = door.get_work(child.id)
    assert await work.cancel("never mind", now=True) == "working"
    assert (await work.result(timeout=5)).truncated
    return "never mind"


async def leave_its_result(door: Runtime, child: Entity[Any]) -> str:
    with anyio.move_on_after(1):
        await child.result()
    assert (await child.episode()).truncated
    return "cancelled"


async def steer(door: Runtime, child: Entity[Any]) -> str:
    await child.steer("and be brief")
    await child.episode()
    assert "and be brief" in [message.content for message in await child.messages()]
    return "and be brief"


async def read_events(door: Runtime, child: Entity[Any]) -> str:
    assert isinstance([event async for event in child.events(after="0")][-1], EntityEndedEvent)
    return "worked 10 s"


async def read_turns(door: Runtime, child: Entity[Any]) -> str:
    assert [turn.sequence async for turn in child.story()] == [1, 2]
    return "worked 10 s"


async def refuse(door: Runtime, child: Entity[Any]) -> str:
    for call in (child.send("more"), child.undo()):
        with pytest.raises(InvalidIntent):
            await call
    for call in (door.abandon(child.id), door.forget(child.id)):
        with pytest.raises(LoomError):
            await call
    with pytest.raises(LoomError, match=f"resume the root {door.get_entity('parent').id}"):
        await door.resume(child.id)
    return str((await child.episode()).result)


@pytest.mark.parametrize("how", ["wait", "leave"])
@pytest.mark.parametrize("use", [stop, interrupt, cancel, leave_its_result, steer, read_events, read_turns, refuse])
async def test_a_process_without_cantrips_can_use_a_child_and_its_parent_gets_the_answer(
    tmp_path: Path, use: Callable[[Runtime, Entity[Any]], Awaitable[str]], how: str
) -> None:
    async with delegating(tmp_path, how) as (door, parent, child):
        answer = await use(door, child)
        await anyio.sleep(2)
        assert door.loom.state(parent.id) == "idle"
        assert answer in str((await parent.messages())[-1].content)


@pytest.mark.parametrize("how", ["wait", "leave"])
async def test_a_child_that_no_process_runs_is_stopped_in_the_loom_and_its_parent_gets_the_reason(
    tmp_path: Path, how: str
) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[PARENT]) as worker:
        await worker.invoke(PARENT, f"{how} work 10", name="parent")
        await anyio.sleep(1)
    async with Runtime.open(url) as door:
        parent = door.get_entity("parent")
        (child_id,) = door.loom.below(parent.id)
        await door.get_entity(child_id).stop("no longer needed")
        assert door.loom.state(child_id) == "abandoned"
    async with Runtime.open(url, cantrips=[PARENT], recover="resume") as worker:
        await anyio.sleep(2)
        assert worker.loom.state(parent.id) == "idle"
        assert "no longer needed" in str((await worker.messages("parent"))[-1].content)


async def test_a_process_that_waits_for_a_child_continues_it_when_its_parents_process_ends(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[PARENT]) as other, anyio.create_task_group() as tasks:
        async with Runtime.open(url, cantrips=[PARENT]) as worker:
            parent = await worker.invoke(PARENT, "wait work 10", name="parent")
            await anyio.sleep(1)
            (child_id,) = other.loom.below(parent.id)
            results: list[Any] = []

            async def wait() -> None:
                results.append((await other.get_entity(child_id).episode()).result)

            tasks.start_soon(wait)
            await anyio.sleep(1)
        with anyio.fail_after(30):
            while not results:
                await anyio.sleep(1)
        assert "outcome unknown" in results[0]


@pytest.mark.parametrize("how", ["wait", "leave"])
async def test_mail_that_a_child_has_not_taken_before_its_end_does_not_load_its_parent_again(
    tmp_path: Path, how: str
) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[PARENT], passivate_after=1) as worker, Runtime.open(url) as door:
        parent = await worker.invoke(PARENT, f"{how} think 10", name="parent")
        await anyio.sleep(5)
        (child_id,) = door.loom.below(parent.id)
        child = door.get_entity(child_id)
        await child.steer("and be brief")
        with pytest.raises(EntityEnded):  # it folds before its next query, and makes none
            await child.compact()
        await anyio.sleep(10)
        for _ in range(10):
            assert not parent.held
            await anyio.sleep(0.7)
        assert (await door.get_entity("parent").post("more")).state == "waiting"
        await anyio.sleep(2)
        assert (await worker.messages("parent"))[-1].content == "more"


async def test_a_child_that_has_ended_takes_no_mail(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[PARENT]) as worker, Runtime.open(url) as door:
        parent = await worker.invoke(PARENT, "wait work 1", name="parent")
        await parent.episode()
        (child_id,) = door.loom.below(parent.id)
        for runtime in (worker, door):
            with pytest.raises(EntityEnded):
                await runtime.get_entity(child_id).steer("more")


async def test_a_child_ends_whose_parent_is_resumed_with_a_cantrip_that_delegates_nothing(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    alone = Cantrip(scripted(decide), circle=Circle(["done", work], [max_turns(10)]), name="parent")
    async with Runtime.open(url, cantrips=[PARENT]) as runtime:
        parent = await runtime.invoke(PARENT, "wait work 100", name="parent")
        await anyio.sleep(1)
    async with Runtime.open(url) as runtime:
        resumed = await runtime.resume(parent.id, cantrip=alone)
        assert "gate not available" in str((await resumed.episode()).result)
        (child_id,) = runtime.loom.below(parent.id)
        assert runtime.loom.state(child_id) == "parent_ended"
