"""What a process can do that offers no cantrip, with an entity that another process runs: a web service, for example.

Two runtimes stand for the two processes: they share nothing but the file of the loom.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Entity,
    EntityEnded,
    EntityInterrupted,
    EntityStartedEvent,
    EpisodeEndedEvent,
    Runtime,
    ToolStartEvent,
    ask_first,
    gate,
)
from tests.runtime.spells import cantrip, done, say


@gate
async def work(seconds: float) -> str:
    """Work for some seconds."""
    await anyio.sleep(seconds)
    return f"worked {seconds:g} s"


@gate
async def pay(to: str) -> str:
    """Pay an amount."""
    return f"paid {to}"


def decide(context: Any) -> Any:
    """Call the gate that the intent names; else end with the newest text."""
    last = context[-1]
    if last.role != "user":
        return done(last.content)
    name, _, argument = last.content.partition(" ")
    if name == "work":
        return say("work", seconds=float(argument))
    return say("pay", to=argument) if name == "pay" else done(last.content)


KEEPER = cantrip(decide, work, ask_first(pay), name="keeper")


@asynccontextmanager
async def keeping(tmp_path: Path) -> AsyncIterator[tuple[Runtime, Entity[Any]]]:
    """Yield a process without cantrips, and its handle of an idle entity that another process has loaded."""
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[KEEPER]) as worker, Runtime.open(url) as door:
        await (await worker.invoke(KEEPER, "begin", name="keeper")).episode()
        keeper = door.entity("keeper")
        assert keeper is not None
        with anyio.fail_after(60):
            yield door, keeper
        assert not keeper.loaded


async def send(door: Runtime, keeper: Entity[Any]) -> None:
    assert (await keeper.send("hello")).result == "hello"


async def post_and_wait(door: Runtime, keeper: Entity[Any]) -> None:
    work_id = (await keeper.post("hello", key="k")).id
    assert (await door.get_work(work_id).result(timeout=5)).result == "hello"


async def send_twice_with_a_key(door: Runtime, keeper: Entity[Any]) -> None:
    first = await keeper.send("hello", key="k")
    assert (await keeper.send("hello", key="k")).last_turn == first.last_turn


async def stream(door: Runtime, keeper: Entity[Any]) -> None:
    async with keeper.stream("work 3") as run:
        events = [event async for event in run.events()]
        assert (await run.result()).result == "worked 3 s"
    assert isinstance(events[0], EntityStartedEvent)
    assert isinstance(events[-1], EpisodeEndedEvent)
    assert {event.entity_id for event in events} == {keeper.id}


async def continue_a_stream(door: Runtime, keeper: Entity[Any]) -> None:
    async with keeper.stream("work 3", key="k") as run:
        async for event in run.events():
            if isinstance(event, ToolStartEvent):
                break
        position = run.position
    async with keeper.stream("work 3", key="k", resume=position) as run:
        assert isinstance([event async for event in run.events()][-1], EpisodeEndedEvent)
        assert (await run.result()).result == "worked 3 s"


async def leave_a_stream(door: Runtime, keeper: Entity[Any]) -> None:
    began = anyio.current_time()
    async with keeper.stream("work 50") as run:
        async for event in run.events():
            if isinstance(event, ToolStartEvent):
                break
    assert anyio.current_time() - began < 10
    assert door.loom.state(keeper.id) == "idle"


async def read_events(door: Runtime, keeper: Entity[Any]) -> None:
    await keeper.post("hello")
    ends = 0
    async for event in keeper.events(after="0"):
        ends += isinstance(event, EpisodeEndedEvent)
        if ends == 2:
            return


async def read_events_of_the_loom(door: Runtime, keeper: Entity[Any]) -> None:
    await keeper.post("hello")
    ends = 0
    async for event in door.events(after="0"):
        ends += isinstance(event, EpisodeEndedEvent)
        if ends == 2:
            return


async def read_turns(door: Runtime, keeper: Entity[Any]) -> None:
    await keeper.post("hello")
    async for turn in keeper.story():
        if turn.sequence == 2:
            return


async def withdraw(door: Runtime, keeper: Entity[Any]) -> None:
    await keeper.post("work 3")
    assert await (await keeper.post("hello")).withdraw() == "withdrawn"


async def cancel(door: Runtime, keeper: Entity[Any]) -> None:
    sent = await keeper.post("work 50")
    await anyio.sleep(2)
    assert await sent.cancel("no longer needed", now=True) == "working"
    assert (await sent.result(timeout=5)).truncated


async def interrupt(door: Runtime, keeper: Entity[Any]) -> None:
    sent = await keeper.post("work 50")
    await anyio.sleep(2)
    await keeper.interrupt(now=True)
    assert door.loom.state(keeper.id) == "idle"
    assert (await sent.result()).truncated


async def steer(door: Runtime, keeper: Entity[Any]) -> None:
    sent = await keeper.post("work 3")
    await anyio.sleep(1)
    await keeper.steer("and be brief")
    await sent.result()
    assert "and be brief" in [message.content for message in await keeper.messages()]


async def allow(door: Runtime, keeper: Entity[Any]) -> None:
    sent = await keeper.post("pay anna")
    async with door.requests(follow=True) as requests:
        await door.decide((await anext(requests)).id, "allow", by="bob")
    assert (await sent.result()).result == "paid anna"


async def undo(door: Runtime, keeper: Entity[Any]) -> None:
    await keeper.send("hello")
    assert await keeper.undo()
    assert "hello" not in [message.content for message in await keeper.messages()]


async def stop(door: Runtime, keeper: Entity[Any]) -> None:
    await keeper.stop()
    with pytest.raises(EntityEnded):
        await keeper.send("hello")


@pytest.mark.parametrize(
    "use",
    [
        send,
        post_and_wait,
        send_twice_with_a_key,
        stream,
        continue_a_stream,
        leave_a_stream,
        read_events,
        read_events_of_the_loom,
        read_turns,
        withdraw,
        cancel,
        interrupt,
        steer,
        allow,
        undo,
        stop,
    ],
)
async def test_a_process_without_cantrips_can_use_an_entity_of_another_process(
    tmp_path: Path, use: Callable[[Runtime, Entity[Any]], Awaitable[None]]
) -> None:
    async with keeping(tmp_path) as (door, keeper):
        await use(door, keeper)


@pytest.mark.parametrize("of", ["stream", "work"])
async def test_a_reader_of_an_episode_takes_it_over_when_the_process_that_runs_it_ends(tmp_path: Path, of: str) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    worker = await Runtime.open(url, cantrips=[KEEPER])
    await (await worker.invoke(KEEPER, "begin", name="keeper")).episode()
    async with Runtime.open(url, cantrips=[KEEPER]) as door:
        keeper = door.entity("keeper")
        assert keeper is not None
        with anyio.fail_after(60):
            async with keeper.stream("work 50", key="k") as run:
                async for event in run.events() if of == "stream" else door.receipt(keeper, "k").events():
                    if isinstance(event, ToolStartEvent):
                        await worker.aclose()
                assert isinstance(event, EpisodeEndedEvent)
                assert "outcome unknown" in (await run.result()).result


async def test_an_interrupt_of_an_episode_that_no_process_continues_waits_for_the_process_that_resumes_it(
    tmp_path: Path,
) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    worker = await Runtime.open(url, cantrips=[KEEPER])
    await (await worker.invoke(KEEPER, "begin", name="keeper")).episode()
    async with Runtime.open(url) as door:
        keeper = door.entity("keeper")
        assert keeper is not None
        sent = await keeper.post("work 50")
        await anyio.sleep(5)
        await worker.aclose()
        with anyio.fail_after(10), pytest.raises(EntityInterrupted):
            await keeper.interrupt(now=True)
        async with Runtime.open(url, cantrips=[KEEPER], recover="resume"):
            assert (await sent.result(timeout=10)).truncated


@pytest.mark.parametrize("reader", ["sender", "worker"])
async def test_the_events_of_an_entity_end_when_it_ends_in_another_process(tmp_path: Path, reader: str) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    worker = await Runtime.open(url, cantrips=[KEEPER])
    keeper = await worker.invoke(KEEPER, "begin", name="keeper")
    await keeper.episode()
    async with Runtime.open(url, cantrips=[KEEPER]) as door:
        other = door.entity("keeper")
        assert other is not None
        handle = other if reader == "sender" else keeper
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                if reader == "worker":
                    keeper.unload()
                    await anyio.sleep(1)
                    await other.send("work 0")
                events = handle.events()
                tasks.start_soon(_read_to_end, events)
                await anyio.sleep(1)
                await (keeper if reader == "sender" else other).stop()
    await worker.aclose()


async def _read_to_end(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass
