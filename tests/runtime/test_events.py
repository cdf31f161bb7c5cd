"""Events: subscribers see them, and cannot slow down or break an entity."""

import asyncio
from contextlib import suppress

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import (
    CrystalError,
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    FinalResponseEvent,
    MissedEvent,
    Runtime,
    StepCompleteEvent,
    StepStartEvent,
    TextEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from cantrip_actors.runtime.events.events import Bus
from tests.runtime.spells import cantrip, done, forever, say


async def test_events_show_a_run_from_start_to_end() -> None:
    first = {**say("echo", text="hi"), "content": "let me see", "thinking": "hm"}
    async with Runtime.open() as runtime:
        events = runtime.events()
        episode = await runtime.cast(cantrip([first, done("bye")]), "go")
        events.close()
        seen = [event async for event in events]
    assert [type(event) for event in seen] == [
        EntityStartedEvent,
        StepStartEvent,
        ThinkingEvent,
        TextEvent,
        ToolCallEvent,
        UsageEvent,
        ToolResultEvent,
        StepCompleteEvent,
        StepStartEvent,
        ToolCallEvent,
        UsageEvent,
        ToolResultEvent,
        StepCompleteEvent,
        FinalResponseEvent,
        EntityEndedEvent,
    ]
    assert {event.entity_id for event in seen} == {episode.entity_id}
    assert [event.turn_id for event in seen if isinstance(event, StepCompleteEvent)] == [t.id for t in episode.thread]


async def test_an_entitys_own_events_end_with_it() -> None:
    async with Runtime.open() as runtime:
        await runtime.start(cantrip(forever), "another")
        entity = await runtime.start(cantrip([{**say("echo", text="x"), "delay": 1.0}, done(1)]), "go")
        seen = [event async for event in entity.events()]
    assert {event.entity_id for event in seen} == {entity.id}
    assert isinstance(seen[-1], EntityEndedEvent)


@pytest.mark.rule("C-69")
async def test_a_subscriber_that_falls_behind_learns_how_much_it_missed() -> None:
    bus = Bus(capacity=5)
    events = bus.subscribe()
    bus.publish(StepStartEvent("e", float(n), "t") for n in range(12))
    events.close()
    seen = [event async for event in events]
    assert isinstance(seen[0], MissedEvent)
    assert seen[0].count == 7
    assert [event.at for event in seen[1:]] == [7.0, 8.0, 9.0, 10.0, 11.0]


@pytest.mark.rule("PROD-1")
async def test_subscribers_do_not_change_the_records() -> None:
    async def run(watched: bool) -> list[object]:
        async with Runtime.open() as runtime:
            events = [runtime.events() for _ in range(3 if watched else 0)]
            episode = await runtime.cast(cantrip([say("echo", text="x"), say("nope"), done(1)]), "go")
            del events
            return [(t.utterance, t.observation, t.sequence, t.terminated, t.truncated) for t in episode.thread]

    assert await run(True) == await run(False)


async def test_a_subscriber_that_raises_does_not_disturb_the_entity() -> None:
    async with Runtime.open() as runtime:
        events = runtime.events()

        async def reads_one() -> None:
            async for _ in events:
                raise ZeroDivisionError

        async def reader() -> None:
            with pytest.raises(ZeroDivisionError):
                await reads_one()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader)
            assert (await runtime.cast(cantrip([done("fine")]), "go")).result == "fine"


async def test_a_dropped_subscription_ends() -> None:
    async with Runtime.open() as runtime:
        events = runtime.events()
        assert runtime._tree.bus
        del events
        assert not runtime._tree.bus


@pytest.mark.rule("PROD-1")
async def test_the_events_of_an_entity_include_its_answer() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip([{**done("bye"), "delay": 1.0}]), "go")
        seen = [event async for event in entity.events()]
    assert [type(event) for event in seen[-2:]] == [FinalResponseEvent, EntityEndedEvent]
    assert seen[-2].result == "bye"


@pytest.mark.rule("PROD-1")
@pytest.mark.parametrize("how", ["done", "failed", "stopped", "by name"])
async def test_an_entity_that_has_ended_has_no_more_events(how: str) -> None:
    async with Runtime.open(passivate_after=10) as runtime:
        spell = cantrip([] if how == "failed" else [done(1)])
        entity = await (runtime.invoke(spell, "go", name="x") if how == "by name" else runtime.start(spell, "go"))
        if how == "stopped":
            await entity.stop()
        elif how == "by name":
            await entity.episode()
            await anyio.sleep(100)
            entity = runtime.entity("x")
            live = entity.events()
            await entity.stop()
            assert isinstance([event async for event in live][-1], EntityEndedEvent)
        else:
            with suppress(CrystalError):
                await entity.episode()
        assert [event async for event in entity.events()] == []


@pytest.mark.rule("PROD-1")
async def test_a_reader_that_gave_up_before_the_first_event_still_learns_that_its_entity_has_ended() -> None:
    async def has_ended() -> bool:
        await anyio.sleep(1)
        return True

    events = Bus().subscribe(entity_id="e", has_ended=has_ended)
    with anyio.move_on_after(0.5):
        await anext(events)
    with anyio.fail_after(10):
        assert [event async for event in events] == []


async def test_an_event_filter_that_raises_fails_only_its_subscriber() -> None:
    def fussy(event: EntityEvent) -> bool:
        if isinstance(event, ToolResultEvent):
            raise ZeroDivisionError
        return True

    async with Runtime.open() as runtime:
        events = runtime.events(fussy)
        for _ in range(2):
            assert (await runtime.cast(cantrip([done(1)]), "go")).result == 1
        seen = [await anext(events) for _ in range(4)]
        assert isinstance(seen[-1], UsageEvent)
        with pytest.raises(ZeroDivisionError):
            await anext(events)
        assert [event async for event in events] == []


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError, GeneratorExit, BaseException])
async def test_a_watcher_that_raises_is_removed(error: type[BaseException]) -> None:
    told: list[object] = []

    def breaks(envelopes: object) -> None:
        told.append(envelopes)
        raise error

    async with Runtime.open() as runtime:
        runtime.watch(breaks)
        with capture_logs() as logs:
            assert (await runtime.cast(cantrip([done(1)]), "go")).result == 1
        assert len(told) == 1
    assert [entry["event"] for entry in logs] == ["a watcher has raised, and is not called any more"]


async def test_several_tasks_can_read_one_subscription() -> None:
    async with Runtime.open() as runtime:
        events, seen = runtime.events(), []

        async def reader() -> None:
            seen.extend([event async for event in events])

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(reader)
            with anyio.move_on_after(1):
                await anext(events)  # a reader that gives up takes no event with it
            await runtime.cast(cantrip([done(1)]), "go")
            await anyio.sleep(1)
            events.close()
    assert len(seen) == 8


@pytest.mark.rule("C-64")
async def test_a_subscriber_right_after_the_start_sees_the_beginning() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip([done(1)]), "go")
        seen = [type(event) async for event in entity.events()]
        assert seen[:2] == [EntityStartedEvent, StepStartEvent]
        assert seen.count(EntityStartedEvent) == 1
        lasting = await runtime.invoke(cantrip([done(1)]), "go")
        assert isinstance(await anext(lasting.events()), EntityStartedEvent)
