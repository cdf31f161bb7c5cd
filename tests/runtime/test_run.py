"""An episode that is followed while it happens: `Runtime.stream` and `Entity.stream` (Y-20)."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    Circle,
    DeltaEvent,
    EntityEndedEvent,
    EntityStartedEvent,
    EpisodeEndedEvent,
    InvalidIntent,
    ProviderError,
    Runtime,
    UnknownEntity,
    Withdrawn,
    scripted,
)
from cantrip_actors.runtime.events.log_feed import EventFeed
from cantrip_actors.stream.wire import FinalMessage, ItemDelta, ItemDone, ItemStart
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("Y-20")


class Poet:
    """A crystal that streams its answer, a word each second; its first turn calls a gate."""

    name = "demo:poet"

    async def invoke(self, messages: Any, emit: Any) -> Any:
        last = messages[-1]
        text = f"I read {last.content} twice." if last.role == "tool" else "Let me see."
        emit(ItemStart("0", "message"))
        for word in text.split(" "):
            emit(ItemDelta("0", word if word in ("I", "Let") else f" {word}"))
            await anyio.sleep(1)
        emit(ItemDone("0", FinalMessage(text, "agent")))
        calls = [] if last.role == "tool" else [{"gate": "echo", "args": {"text": last.content}}]
        return {"content": text, "tool_calls": calls}


POET = Cantrip(Poet(), circle=Circle(["done", "echo"], [max_turns(5)]), name="poet")
TEXT = "Let me see.\n\nI read go twice."


async def test_a_run_has_the_text_in_pieces_and_then_the_result() -> None:
    async with Runtime.open() as runtime:
        async with runtime.stream(POET, "go", by="anna") as run:
            pieces = [piece async for piece in run.text()]
            episode = await run.result()
        assert len(pieces) > 5
        assert ("".join(pieces), episode.result) == (TEXT, "I read go twice.")
        assert runtime.loom.first_intent(run.entity_id).sender == "anna"
        poet = await runtime.ensure("poet", POET)
        for _ in "12":
            async with poet.stream("go") as run:
                assert "".join([piece async for piece in run.text()]) == TEXT
                assert (await run.result()).terminated


async def test_a_run_has_the_events_of_its_own_episode_only() -> None:
    async with Runtime.open() as runtime:
        poet = await runtime.ensure("poet", POET)
        await poet.send("before")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poet.send, "meanwhile")
            await anyio.sleep(0.5)
            async with poet.stream("go", key="mine") as run:
                seen = [event async for event in run.events()]
        assert isinstance(seen[0], EntityStartedEvent)
        assert seen[0].intent == "go"
        assert isinstance(seen[-1], EpisodeEndedEvent)
        assert sum(isinstance(event, EntityStartedEvent | EpisodeEndedEvent) for event in seen) == 2
        assert any(isinstance(event, DeltaEvent) for event in seen)
        async with poet.stream("go", key="mine") as run:  # the same episode again, from the loom
            assert [event async for event in run.events()] == [event for event in seen if event.id]


@pytest.mark.parametrize("words", [0, 2, 6])
async def test_leaving_a_run_cancels_its_episode_unless_it_has_a_key(words: int) -> None:
    async with Runtime.open() as runtime:
        poet = await runtime.ensure("poet", POET)
        for key, reason in ((None, "interrupted"), ("k", "terminated")):
            async with poet.stream("go", key=key) as run:
                pieces = run.text()
                for _ in range(words):
                    await anext(pieces)
                await anyio.sleep(0.1)
            if key is None:
                assert runtime.loom.state(poet.id) == "idle"
            assert (await poet.episode()).reason == reason
            async with runtime.stream(POET, "go", key=key) as run:
                await anyio.sleep(0.1)
            entity = runtime.get_entity(run.entity_id)
            assert (await entity.episode()).reason == ("cancelled" if key is None else reason)


async def test_leaving_a_run_whose_intent_waits_withdraws_it() -> None:
    async with Runtime.open() as runtime:
        poet = await runtime.ensure("poet", POET)
        async with poet.stream("first") as first:
            async with poet.stream("second") as second:
                pass
            with pytest.raises(Withdrawn):
                await second.result()
            assert [event async for event in second.events()] == []
            assert (await first.result()).terminated
        intents = [one.content for one in await poet.messages() if one.role == "user"]
        assert intents == ["first"]


@pytest.mark.real_time
async def test_a_run_has_the_events_of_an_episode_that_another_process_runs(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    echoes = Cantrip(scripted(lambda context: context[-1].content), gates=["done"], max_turns=3, name="echoes")
    async with Runtime.open(url, cantrips=[echoes]) as worker:
        await (await worker.invoke(echoes, "hello", name="desk")).episode()
        async with Runtime.open(url) as door:
            desk = door.entity("desk")
            assert desk is not None
            with anyio.fail_after(10):
                async with desk.stream("go") as run:
                    events = [type(event) async for event in run.events()]
            assert (events[0], events[-1]) == (EntityStartedEvent, EpisodeEndedEvent)


async def test_a_run_of_a_log_that_takes_long_to_read_has_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    read = EventFeed._read

    async def read_slowly(self: EventFeed) -> Any:
        await anyio.sleep(2)
        return await read(self)

    monkeypatch.setattr(EventFeed, "_read", read_slowly)
    async with Runtime.open() as runtime:
        poet = await runtime.ensure("poet", POET)
        with anyio.fail_after(60):
            async with poet.stream("go") as run:
                assert "".join([piece async for piece in run.text()]) == TEXT


async def test_leaving_a_run_returns_although_the_process_that_ran_the_episode_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[POET]) as worker, Runtime.open(url) as door:
        await (await worker.invoke(POET, "hello", name="poet")).episode()
        poet = door.entity("poet")
        assert poet is not None
        async with poet.stream("go") as run:
            await anext(run.events())
            Process(Crash(1, False)).attach(worker)
            await anyio.sleep(20)
            left = anyio.current_time()
        assert anyio.current_time() - left < 90
        assert door.loom.state(poet.id) == "active"


async def test_a_run_of_a_withdrawn_intent_ends_without_events() -> None:
    async with Runtime.open() as runtime:
        poet = await runtime.ensure("poet", POET)
        async with poet.stream("first") as first, poet.stream("second", key="k") as second:
            await runtime.receipt(poet, "k").withdraw()
            assert [event async for event in second.events()] == []
            assert (await first.result()).terminated


async def test_a_run_that_is_resumed_after_any_event_has_each_later_one_once(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[POET]) as runtime:
        poet = await runtime.ensure("poet", POET)
        await poet.send("before")
        async with poet.stream("go", key="k") as lasting, runtime.stream(POET, "go", key="k") as once:
            runs = [(run, [(event, run.position) async for event in run.events()]) for run in (lasting, once)]
        await poet.send("after")
    async with Runtime.open(url, cantrips=[POET]) as runtime:
        poet = runtime.get_entity("poet")
        for run, seen in runs:
            recorded = [event for event, _ in seen if event.id]
            for at, (event, position) in enumerate(seen):
                if not event.id or at % 3:
                    continue
                rest = recorded[recorded.index(event) + 1 :]
                for key, resume in (("k", event.id), (None, position), (None, event.id)):
                    if run is once and key is None and resume == event.id:
                        continue
                    again = (poet if run is lasting else runtime).stream
                    arguments = ("go",) if run is lasting else (POET, "go")
                    async with again(*arguments, key=key, resume=resume) as resumed:
                        assert [event async for event in resumed.events()] == rest
                        assert (await resumed.result()).result == "I read go twice."


async def test_a_run_that_is_resumed_in_the_middle_of_an_answer_has_its_whole_text() -> None:
    async with Runtime.open() as runtime:
        async with runtime.stream(POET, "go", key="k") as run:
            first = [await anext(run.text()) for _ in "12"]
        async with runtime.stream(POET, "go", key="k", resume=run.position) as again:
            pieces = [piece async for piece in again.text()]
    assert first == ["Let ", "me "]
    assert "".join(pieces) == TEXT


async def test_the_result_of_a_run_raises_as_a_cast() -> None:
    def fail(_: Any) -> str:
        raise ProviderError("it is broken")

    broken = Cantrip(scripted(fail), circle=Circle(["done"], [max_turns(2)]))
    async with Runtime.open() as runtime, runtime.stream(broken, "go") as run:
        seen = [event async for event in run.events()]
        assert isinstance(seen[-1], EntityEndedEvent)
        with pytest.raises(ProviderError, match="it is broken"):
            await run.result()


async def test_a_wrong_position_is_refused() -> None:
    async with Runtime.open() as runtime:
        poet = await runtime.ensure("poet", POET)
        for resume in ("x", "", "a:b", 5):
            given: Any = resume
            for stream in (
                lambda r: runtime.stream(POET, "go", key="k", resume=r),
                lambda r: poet.stream("go", resume=r),
            ):
                with pytest.raises(InvalidIntent, match="resume: expected a position"):
                    stream(given)
        with pytest.raises(InvalidIntent, match="resume: expected a key"):
            async with runtime.stream(POET, "go", resume="5.1"):
                pass
        with pytest.raises(UnknownEntity):
            async with runtime.stream(POET, "go", resume="nobody:5.1"):
                pass


@pytest.mark.real_time
def test_a_blocking_run_is_read_in_a_thread() -> None:
    echo = Cantrip(scripted(["Hello!", "Again."]), circle=Circle(["done"], [max_turns(3)]), name="echo")
    with Runtime.blocking() as runtime:
        with runtime.stream(echo, "go") as run:
            assert list(run.text()) == ["Hello!"]
            assert run.result().result == "Hello!"
        with runtime.ensure("echo", echo).stream("go") as run:
            assert isinstance(list(run.events())[-1], EpisodeEndedEvent)
