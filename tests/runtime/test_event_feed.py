"""Events with ids: read again after any of them, in any process, with the pieces of answers in between."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    DeltaEvent,
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    EpisodeEndedEvent,
    FinalResponseEvent,
    InvalidIntent,
    LoomError,
    MissedEvent,
    RewardedEvent,
    Runtime,
    StepCompleteEvent,
    StepStartEvent,
    ToolResultEvent,
)
from cantrip_actors.stream.reading import EventId
from tests.runtime.spells import cantrip, done, say

SCRIPT = [{**say("echo", text="hi"), "content": "let me see", "thinking": "hm"}, say("nope"), done("bye")]


def recorded(events: list[EntityEvent]) -> list[EntityEvent]:
    return [event for event in events if not isinstance(event, StepStartEvent)]


async def read_all(entity: Any, after: str = "0") -> list[EntityEvent]:
    return [event async for event in entity.events(after=after)]


@pytest.mark.rule("K-42")
async def test_events_read_from_the_loom_are_those_from_memory_with_ids() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip(SCRIPT), "go")
        live = recorded([event async for event in entity.events()])
        read = await read_all(entity)
    assert [type(event) for event in read] == [type(event) for event in live]
    assert all(not event.id for event in live)
    ids = [EventId.parse(event.id) for event in read]
    assert ids == sorted(set(ids))
    assert isinstance(read[-1], EntityEndedEvent)
    assert (read[-1].outcome.result, read[-1].reason) == ("bye", "terminated")


@pytest.mark.rule("HTTP-03", "K-42")
async def test_a_reader_that_comes_back_after_any_event_gets_each_later_one_once() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip(SCRIPT), "go")
        await entity.episode()
        whole = await read_all(entity)
        for number, event in enumerate(whole, 1):
            assert await read_all(entity, event.id) == whole[number:]


@pytest.mark.rule("HTTP-03", "K-42")
async def test_ids_are_the_same_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(cantrip(SCRIPT), "go")
        await entity.episode()
        whole = await read_all(entity)
    async with Runtime.open(url) as runtime:
        again = runtime.get_entity(entity.id)
        assert await read_all(again) == whole
        assert await read_all(again, whole[4].id) == whole[5:]


@pytest.mark.rule("N-39")
async def test_a_feed_follows_an_entity_that_another_process_runs(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    spell = cantrip([{**say("echo", text="x"), "delay": 2.0}, {**done("ok"), "delay": 2.0}])
    async with Runtime.open(url) as runs, Runtime.open(url) as watches:
        entity = await runs.start(spell, "go")
        seen = await read_all(watches.find(entity.id))
    assert [event.sequence for event in seen if isinstance(event, StepCompleteEvent)] == [1, 2]
    assert not [event for event in seen if isinstance(event, StepStartEvent)]  # live, and so of the other process


async def test_a_reader_that_never_waits_long_has_the_events_of_another_process(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as worker, Runtime.open(url) as reader:
        entity = await worker.start(cantrip(lambda context: {**done("bye"), "delay": 3.0}), "go")
        feed, events = reader.find(entity.id).events(after="0"), []
        for _ in range(50):
            with anyio.move_on_after(0.1), suppress(StopAsyncIteration):
                events.append(await anext(feed))
    assert isinstance(events[-1], EntityEndedEvent)


async def test_live_events_come_between_the_recorded_ones() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(
            cantrip([{**say("echo", text="x"), "delay": 1.0}, {**done(1), "delay": 1.0}]), "go"
        )
        feed = entity.events(after="0")
        await anyio.sleep(0.5)
        seen = [event async for event in feed]
    steps = [type(event) for event in seen if isinstance(event, StepStartEvent | StepCompleteEvent)]
    assert steps == [StepStartEvent, StepCompleteEvent] * 2


async def test_an_episode_of_a_long_lived_entity_ends_without_the_entity() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip([done(1), done(2)]), "go", name="lasting")
        await entity.episode()
        events = runtime.events(entity=entity.id)
        assert (await entity.send("again")).result == 2
        await entity.stop()
        events.close()
        live = recorded([event async for event in events])
        read = await read_all(entity)
    ends = [event for event in read if isinstance(event, EpisodeEndedEvent | EntityEndedEvent)]
    assert [type(event) for event in ends] == [EpisodeEndedEvent, EpisodeEndedEvent, EntityEndedEvent]
    assert [event.outcome.result for event in ends[:2]] == [1, 2]
    later = read[[type(event) for event in read].index(EpisodeEndedEvent) + 1 :]
    assert [type(event) for event in live] == [type(event) for event in later]
    starts = [event for event in read if isinstance(event, EntityStartedEvent)]
    assert [event.is_further for event in starts] == [False, True]


async def test_a_reward_is_an_event_of_the_log_with_the_following_id() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip([done(1)]), "go")
        episode = await entity.episode()
        before = await read_all(entity)
        await runtime.loom.reward(episode.thread[0].id, 0.5, by="anna")
        (reward,) = await read_all(entity, before[-1].id)
    assert isinstance(reward, RewardedEvent)
    assert (reward.turn_id, reward.reward, reward.by) == (episode.thread[0].id, 0.5, "anna")
    assert EventId.parse(reward.id).number == EventId.parse(before[-1].id).number + 1


async def test_events_of_the_log_have_no_secrets() -> None:
    async with Runtime.open(secrets=["hunter2hunter2"]) as runtime:
        entity = await runtime.start(cantrip([say("echo", text="hunter2hunter2"), done("hunter2hunter2")]), "go")
        await entity.episode()
        seen = await read_all(entity)
    assert "hunter2" not in str(seen)
    assert {type(event) for event in seen if "[redacted" in str(event)} >= {ToolResultEvent, FinalResponseEvent}


@pytest.mark.parametrize("after", ["x", "-1", "7.", 7, ""])
async def test_a_text_that_is_no_id_is_refused(after: Any) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip([done(1)]), "go")
        for read in (entity.events, entity.work.events, runtime.events):
            with pytest.raises(InvalidIntent, match="events: after"):
                read(after=after)
        await entity.episode()


async def test_a_feed_of_an_unknown_entity_raises_when_it_is_read() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip([done(1)]), "go")
        await entity.episode()
        object.__setattr__(entity, "_id", "nobody")
        with pytest.raises(LoomError):
            await anext(entity.events(after="0"))


class Faults:
    """Lets one step of reading fail: before the loom is read, or after it was read in vain."""

    def __init__(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        """The number of the step that fails, from now on; 0 for none."""
        tree, store = runtime._tree, runtime._tree.store
        run = tree.in_store

        async def in_store(work: Any) -> Any:
            result = await run(work)
            self.step()
            return result

        monkeypatch.setattr(tree, "in_store", in_store)
        for name in ("records", "records_after", "tip"):
            monkeypatch.setattr(store, name, partial(self.read, getattr(store, name)))

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise LoomError("the loom does not answer")

    def read(self, read: Any, *args: Any, **named: Any) -> Any:
        self.step()
        return read(*args, **named)


FEEDS: dict[str, Any] = {
    "of an entity": lambda runtime, entity: entity.events("0"),
    "of an entity from now on": lambda runtime, entity: runtime.cluster.events(entity.id),
    "of all entities": lambda runtime, entity: runtime.events(after="5.999999"),
}


@pytest.mark.rule("K-42")
@pytest.mark.parametrize("feed", FEEDS)
async def test_a_feed_gives_each_event_once_if_reading_fails_at_any_step(
    feed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime.open() as runtime:
        faults = Faults(runtime, monkeypatch)
        entity = await runtime.invoke(cantrip(lambda _: done("bye")), "one")
        await entity.episode()
        feeds = [FEEDS[feed](runtime, entity) for _ in range(20)]
        other = await runtime.invoke(cantrip(lambda _: done("bye")), "two")
        await other.episode()
        await entity.send("three")
        expected = [await anext(feeds[0])]
        while not isinstance(expected[-1], EpisodeEndedEvent) or expected[-1].entity_id != entity.id:
            expected.append(await anext(feeds[0]))
        for step, failing in enumerate(feeds[1:], 1):
            faults.left, events = step, list[EntityEvent]()
            with anyio.fail_after(60):  # of virtual time
                while len(events) < len(expected):
                    with suppress(LoomError):
                        events.append(await anext(failing))
            assert events == expected, f"step {step} failed"
        assert faults.left > 0, "every step has failed once"


async def test_a_feed_says_that_pieces_are_lost_although_reading_fails_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime.open() as runtime:
        bus, faults = runtime._tree.bus, Faults(runtime, monkeypatch)
        bus._capacity = 1
        entity = await runtime.invoke(cantrip(lambda _: done("bye")), "one")
        await entity.episode()
        feed = entity.events("0", deltas=True)
        while not isinstance(await anext(feed), EpisodeEndedEvent):
            pass
        for text in "abc":
            bus.publish([DeltaEvent(entity.id, 0.0, "z", "item", "message", text)])
        faults.left = 1
        with pytest.raises(LoomError):
            await anext(feed)
        lost = await anext(feed)
        assert isinstance(lost, MissedEvent)
