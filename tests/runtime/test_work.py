"""`Work`: one intent, found by its id in any process, whatever began, sent or submitted it (W-01)."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    CantripError,
    Circle,
    EntityEndedEvent,
    EntityStartedEvent,
    EpisodeEndedEvent,
    InvalidIntent,
    LoomError,
    Runtime,
    UnfinishedWork,
    UnknownEntity,
    Withdrawn,
    Work,
    gate,
    scripted,
)
from cantrip_actors.runtime.face.work import list_open_work
from cantrip_actors.wards import max_turns
from tests.loom.test_store import LASTING, anywhere
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("W-01")


@gate(idempotent=True)
async def wait(seconds: float) -> str:
    """Wait."""
    await anyio.sleep(seconds)
    return "waited"


def answer(context: Any) -> Any:
    last, intents = context.messages[-1], [each.content for each in context.messages if each.role == "user"]
    return say("wait", seconds=20) if intents[-1] == "slow" and last.role == "user" else done(" ".join(intents))


DESK = Cantrip(scripted(answer), circle=Circle(["done", wait], [max_turns(5)]), name="desk")


@pytest.fixture(params=LASTING)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with anywhere(request.param) as place:
        yield place.url


async def cast(runtime: Runtime, intent: str) -> Work:
    return (await runtime.start(DESK, intent)).work


async def invoke(runtime: Runtime, intent: str) -> Work:
    return (await runtime.invoke(DESK, intent)).work


async def post(runtime: Runtime, intent: str) -> Work:
    return await (await runtime.ensure("desk-1", DESK)).post(intent, key="order.17/a")


async def submit(runtime: Runtime, intent: str) -> Work:
    return await runtime.submit("desk", intent, key="job.9/a")


@pytest.mark.parametrize("begin", [cast, invoke, post, submit])
async def test_work_is_found_by_its_id_in_a_later_process_with_its_state_its_events_and_its_result(
    url: str, begin: Any
) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        work = await begin(runtime, "hello")
        assert (await work.result()).result == "hello"
        events = [event async for event in work.events()]
        assert isinstance(events[0], EntityStartedEvent)
        assert isinstance(events[-1], EpisodeEndedEvent | EntityEndedEvent)
    async with Runtime.open(url) as other:
        same = other.work(work.id)
        assert same is not None
        assert same is not work
        assert (same.id, same.entity_id, same.key, same.state) == (work.id, work.entity_id, work.key, "settled")
        assert (await same.result()).result == "hello"
        outcome = same.find_outcome()
        assert outcome is not None
        assert outcome.result == "hello"
        assert [event.id async for event in same.events(events[1].id)] == [event.id for event in events[2:] if event.id]
        assert same.entity.id == work.entity_id
        assert same.entity.name == ("desk-1" if begin is post else None)
        for unknown in ("", f"{work.id}.", f"{work.id}x", "submission:other", "x.y"):
            assert other.work(unknown) is None
            with pytest.raises(UnknownEntity, match="is not in this loom"):
                other.get_work(unknown)
        with pytest.raises(InvalidIntent, match="the id of an event"):
            same.events("yesterday")


@pytest.mark.parametrize(("begin", "states"), [(post, "working waiting"), (submit, "working working")])
async def test_work_is_withdrawn_while_it_waits_and_cancelled_while_it_runs(url: str, begin: Any, states: str) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        running = await begin(runtime, "slow")
        await anyio.sleep(1)
        another = await invoke(runtime, "slow")
        later = await another.entity.post("later")
        assert f"{running.state} {(later if begin is post else another).state}" == states
        assert await later.withdraw() == "withdrawn"
        with pytest.raises(Withdrawn):
            await later.result()
        assert [event async for event in later.events()] == []
        assert await running.cancel("enough", now=True) == "working"
        episode = await running.result()
        assert (episode.truncated, episode.reason) == (True, "interrupted")


async def test_a_submission_that_was_withdrawn_has_no_events_and_no_result(url: str) -> None:
    async with Runtime.open(url) as client, anyio.create_task_group() as tasks:
        work, seen = await submit(client, "hello"), list[Any]()

        async def follow() -> None:
            seen.extend([event async for event in work.events()])
            seen.append("end")

        tasks.start_soon(follow)
        await anyio.sleep(1)
        assert [work.state, work.find_outcome(), await work.cancel()] == ["waiting", None, "withdrawn"]
        with pytest.raises(Withdrawn):
            await work.result()
        await anyio.sleep(2)
        assert seen == ["end"]
        assert client.work(work.id) is None


async def test_work_continues_with_a_send_at_its_end_and_else_with_a_fork() -> None:
    async with Runtime.open(cantrips=[DESK]) as runtime:
        first = await invoke(runtime, "a")
        await first.result()
        sent = await first.continue_with("b", key="k")
        assert (sent.entity_id, (await sent.result()).result) == (first.entity_id, "a b")
        forked = await first.continue_with("c", key="l")
        assert forked.entity_id != first.entity_id
        assert (await forked.result()).result == "a c"
        again = [await first.continue_with("b", key="k"), await first.continue_with("c", key="l")]
        assert [work.id for work in again] == [sent.id, forked.id]
        assert (await (await forked.continue_with("d")).result()).result == "a c d"
        assert (await (await sent.fork_with("e")).result()).result == "a b e"


async def test_work_continues_only_from_an_end() -> None:
    async with Runtime.open(cantrips=[DESK]) as runtime:
        once = await cast(runtime, "once")
        await once.result()
        assert not once.takes_more
        forked = await once.continue_with("more")
        assert (await forked.result()).result == "once more"
        slow = await invoke(runtime, "slow")
        for attempt in (partial(slow.continue_with, "x"), partial(slow.fork_with, "x")):
            with pytest.raises(UnfinishedWork, match="wait for its result first"):
                await attempt()


async def test_work_that_failed_without_a_turn_continues_in_its_long_lived_entity() -> None:
    def refuse_first(context: Any) -> Any:
        return {"error": {"status": 400, "message": "no"}} if context[-1].content == "bad" else answer(context)

    desk = DESK.with_crystal(scripted(refuse_first))
    async with Runtime.open(cantrips=[desk]) as runtime:
        lasting = (await runtime.invoke(desk, "bad")).work
        with pytest.raises(CantripError):
            await lasting.result()
        assert (await (await lasting.continue_with("more")).result()).result == "bad more"
        once = (await runtime.start(desk, "bad")).work
        with pytest.raises(CantripError):
            await once.result()
        for attempt in (partial(once.continue_with, "x"), partial(lasting.fork_with, "x")):
            with pytest.raises(UnfinishedWork, match="ended without a turn: begin a new entity"):
                await attempt()


async def test_work_that_was_withdrawn_says_why_it_has_no_end() -> None:
    async with Runtime.open(cantrips=[DESK]) as runtime:
        withdrawn = await (await runtime.invoke(DESK, "slow")).post("a")
        await withdrawn.withdraw()
        for attempt in (partial(withdrawn.continue_with, "x"), partial(withdrawn.fork_with, "x")):
            with pytest.raises(UnfinishedWork, match="its intent was withdrawn"):
                await attempt()


async def test_an_entity_without_an_intent_has_no_first_work() -> None:
    async with Runtime.open(cantrips=[DESK]) as runtime:
        desk = await runtime.ensure("desk-1", DESK)
        assert runtime.work(desk.id) is None
        with pytest.raises(LoomError, match="no intent"):
            await desk.work.result()


async def test_listing_open_work_reads_the_newest_records_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(DESK, "hello", name="desk")
        for number in range(50):
            await entity.send(f"hello {number}")
        store, read = runtime._tree.store, []

        def count(method: Any) -> Any:
            def call(*args: Any, **more: Any) -> Any:
                records = method(*args, **more)
                read.extend(records)
                return records

            return call

        for name in ("records", "newest"):
            monkeypatch.setattr(store, name, count(getattr(store, name)))
        assert list_open_work(entity) == []
        assert 0 < len(read) < 30 < len(runtime.loom.intents(entity.id))
