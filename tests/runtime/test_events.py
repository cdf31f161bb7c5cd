"""Events: what subscribers see, and that none of them can slow or break an entity."""

import anyio
import pytest

from cantrip_actors import (
    EntityEndedEvent,
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
from tests.runtime.spells import cantrip, done, forever, say


async def test_a_run_is_seen_from_start_to_end() -> None:
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
        EntityEndedEvent,
        FinalResponseEvent,
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


async def test_a_subscriber_that_falls_behind_is_told_what_it_missed() -> None:
    async with Runtime.open() as runtime:
        events = runtime._house.bus.subscribe(capacity=5)
        episode = await runtime.cast(cantrip([say("echo", text="x"), done(1)]), "go")
        events.close()
        seen = [event async for event in events]
    assert isinstance(seen[0], MissedEvent)
    assert seen[0].count > 0
    assert len(seen) == 6
    assert episode.result == 1


@pytest.mark.rule("PROD-1")
async def test_subscribers_change_nothing_that_is_recorded() -> None:
    async def run(watched: bool) -> list[object]:
        async with Runtime.open() as runtime:
            events = [runtime.events() for _ in range(3 if watched else 0)]
            episode = await runtime.cast(cantrip([say("echo", text="x"), say("nope"), done(1)]), "go")
            del events
            return [(t.utterance, t.observation, t.sequence, t.terminated, t.truncated) for t in episode.thread]

    assert await run(True) == await run(False)


async def test_a_subscriber_that_raises_breaks_only_itself() -> None:
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


async def test_letting_go_of_a_subscription_ends_it() -> None:
    async with Runtime.open() as runtime:
        events = runtime.events()
        assert runtime._house.bus
        del events
        assert not runtime._house.bus
