"""The canonical stream of a live runtime, as its subscribers see it."""

from itertools import pairwise
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    AttemptFailedEvent,
    Cantrip,
    Circle,
    CrystalError,
    DeltaEvent,
    ItemEndEvent,
    MissedEvent,
    Runtime,
    StepStartEvent,
    StreamedEvent,
    TextEvent,
    gate,
    scripted,
)
from cantrip_actors.observe import Upserts
from cantrip_actors.observe.upserts import (
    FinalResponse,
    MessageUpsert,
    ThinkingUpsert,
    ToolCallUpsert,
    TurnComplete,
    TurnError,
    TurnStarted,
)
from cantrip_actors.stream.pieces import TextPieces
from cantrip_actors.stream.reading import EventId
from cantrip_actors.stream.wire import (
    FinalMessage,
    FinalReasoning,
    ItemDelta,
    ItemDone,
    ItemStart,
    ResponseDone,
    ResponseStart,
)
from cantrip_actors.wards import max_turns
from tests.runtime.spells import cantrip, done, say
from tests.runtime.test_children import family


class Streaming:
    """A crystal that streams its answer slowly; its first attempt may break off."""

    name = "test:stream"

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails

    async def invoke(self, messages: Any, tools: Any, tool_choice: Any, options: Any = None, emit: Any = None) -> Any:
        emit(ResponseStart("stream", "test"))
        emit(ItemStart("0", "message"))
        for n in range(20):
            emit(ItemDelta("0", f"word{n} "))
            await anyio.sleep(0.5)
            if self.fails and n == 10:
                self.fails -= 1
                raise ConnectionError("dropped")
        text = "".join(f"word{n} " for n in range(20))
        emit(ItemDone("0", FinalMessage(text, "agent")))
        emit(ResponseDone("completed"))
        return {"content": text}


async def watched(runtime: Runtime, crystal: Any) -> tuple[list[Any], list[float], Any]:
    upserts = Upserts()
    runtime.watch(upserts.publish)
    seen: list[Any] = []
    times: list[float] = []

    async def read() -> None:
        async for output in upserts.subscribe():
            seen.append(output)
            times.append(anyio.current_time())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        episode = await runtime.cast(cantrip(crystal), "go")
        upserts.close()
    return seen, times, episode


@pytest.mark.rule("U-27", "U-53", "U-58")
async def test_text_is_streamed_while_it_is_generated() -> None:
    async with Runtime.open() as runtime:
        began = anyio.current_time()
        seen, times, episode = await watched(runtime, Streaming())
    texts = [output for output in seen if isinstance(output, MessageUpsert)]
    first = times[seen.index(texts[0])]
    assert first - began < 1.0
    assert anyio.current_time() - began > 9.0
    assert texts[-1].status == "complete"
    assert {output.turn_id for output in seen if hasattr(output, "turn_id")} == {episode.thread[0].id}


@pytest.mark.rule("U-59", "PROD-2", "D-006")
async def test_a_retry_is_one_turn_and_closes_the_items_of_the_attempt_that_failed() -> None:
    async with Runtime.open() as runtime:
        seen, _, episode = await watched(runtime, Streaming(fails=1))
    assert len(episode.thread) == 1
    assert [type(output) for output in seen].count(TurnStarted) == 1
    ends = {o.item_id: o.status for o in seen if isinstance(o, MessageUpsert)}
    assert sorted(ends.values()) == ["complete", "error"]


@pytest.mark.rule("U-58", "U-60")
async def test_gate_results_come_before_the_turn_is_complete() -> None:
    async with Runtime.open() as runtime:
        seen, _, episode = await watched(runtime, scripted([say("echo", text="hi"), done("bye")]))
    tools = [output for output in seen if isinstance(output, ToolCallUpsert) and output.status == "complete"]
    assert [(tool.tool_name, tool.tool_output) for tool in tools] == [("echo", "hi"), ("done", "bye")]
    assert seen.index(tools[0]) < next(n for n, o in enumerate(seen) if isinstance(o, TurnComplete))
    assert [o.turn_id for o in seen if isinstance(o, TurnComplete)] == [turn.id for turn in episode.thread]


@pytest.mark.rule("U-61")
async def test_a_childs_stream_names_its_parent_and_ends_with_it() -> None:
    upserts = Upserts()
    async with Runtime.open() as runtime:
        runtime.watch(upserts.publish)

        async def forever(_: object) -> Any:
            return {**say("echo", text="x"), "delay": 1.0}

        with anyio.move_on_after(3.5):
            await runtime.cast(family([say("call_agent", intent="a")], forever), "go")
        parent, child = runtime.loom.entities()
    ends = {one.session_id: one for one in upserts.snapshot() if isinstance(one, TurnComplete)}
    starts = [one for one in upserts.snapshot(child) if isinstance(one, TurnStarted)]
    assert {one.parent.session_id for one in starts} == {parent}
    assert (ends[child].status, ends[parent].status) == ("cancelled", "cancelled")


@pytest.mark.rule("U-50")
async def test_a_crash_ends_the_turn_for_subscribers_and_the_next_incarnation_begins_it_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cantrip_actors.runtime.entity.performer import Performer

    whole, crashed = Performer._ask, False

    async def crashing(self: Performer, action: Any) -> Any:
        nonlocal crashed
        if not crashed:
            crashed = True
            raise ZeroDivisionError
        return await whole(self, action)

    monkeypatch.setattr(Performer, "_ask", crashing)
    async with Runtime.open() as runtime:
        seen, _, episode = await watched(runtime, scripted([done("ok")]))
    assert episode.result == "ok"
    assert [o.error_code for o in seen if isinstance(o, TurnError)] == ["PROCESS_CRASH"]
    assert isinstance([o for o in seen if isinstance(o, TurnComplete | TurnError)][-1], TurnComplete)


@pytest.mark.rule("U-50", "U-60")
async def test_a_turn_that_is_resumed_has_its_text_and_the_arguments_of_its_calls(tmp_path: Any) -> None:
    waits = [True]

    @gate(idempotent=True)
    async def look(path: str) -> str:
        """Look, at first for ever."""
        if waits:
            await anyio.sleep_forever()
        return f"found {path}"

    def make() -> Cantrip:
        says: Any = [{"content": "I look.", **say("look", path="a")}]
        script = scripted(lambda context: says[0] if context[-1].role == "user" else done("ok"))
        return Cantrip(script, circle=Circle(["done", look], [max_turns(5)]), name="looks")

    url, upserts = f"sqlite:{tmp_path / 'loom.db'}", Upserts()
    async with Runtime.open(url, cantrips=[make()]) as runtime:
        entity = await runtime.invoke(make(), "go", name="looker")
        await anyio.sleep(1)
    waits.clear()
    async with Runtime.open(url, cantrips=[make()]) as runtime:
        runtime.watch(upserts.publish)
        await runtime.resume(entity.id)
        await anyio.sleep(1)
    message, call = [one for one in upserts.snapshot() if isinstance(one, MessageUpsert | ToolCallUpsert)][:2]
    assert (message.content, message.status) == ("I look.", "complete")
    assert (call.tool_arguments, call.tool_output) == ({"path": "a"}, "found a")


@pytest.mark.rule("U-62", "PROD-1")
async def test_a_subscriber_does_not_change_the_episode() -> None:
    async def run(watch: bool) -> list[Any]:
        async with Runtime.open() as runtime:
            end = runtime.watch(Upserts().publish) if watch else (lambda: None)
            episode = await runtime.cast(cantrip([say("echo", text="x"), say("nope"), done(1)]), "go")
            end()
            return [(t.utterance, t.observation, t.sequence) for t in episode.thread]

    assert await run(True) == await run(False)


class Emitting:
    """A crystal that emits `payloads`, then answers with `response`."""

    name = "test:emitting"

    def __init__(self, *payloads: Any, response: Any = "hi") -> None:
        self.payloads = payloads
        self.response = response
        self.emit: Any = None

    async def invoke(self, messages: Any, emit: Any) -> Any:
        self.emit = emit
        for payload in self.payloads:
            emit(payload)
        return self.response


class Blocking(Emitting):
    """The same crystal with a plain `invoke`, which runs in a thread."""

    def invoke(self, messages: Any, emit: Any) -> Any:
        for payload in self.payloads:
            emit(payload)
        return self.response


def streams(text: str) -> list[Any]:
    """The payloads of a message in pieces."""
    pieces = [ItemDelta("0", f"{word} ") for word in text.split()]
    return [ItemStart("0", "message"), *pieces, ItemDone("0", FinalMessage(text, "agent"))]


async def cast_watched(crystal: Any, *, watch: bool = True) -> tuple[Any, list[Any]]:
    """The result of a cast, or its error, and the outputs for a subscriber."""
    upserts, result = Upserts(), None
    async with Runtime.open() as runtime:
        if watch:
            runtime.watch(upserts.publish)
        try:
            result = (await runtime.cast(cantrip(crystal), "go")).result
        except CrystalError as error:
            result = str(error)
    return result, list(upserts.snapshot())


@pytest.mark.rule("U-62")
async def test_a_crystal_streams_without_a_watcher() -> None:
    result, outputs = await cast_watched(Emitting(*streams("hi there")), watch=False)
    assert (result, outputs) == ("hi", [])


@pytest.mark.rule("U-55", "U-62")
@pytest.mark.parametrize(
    "payload",
    ["text", None, {"type": "item_delta"}, ItemDelta("0", 5), ItemDone("0", None), ItemStart("0", "function_call")],
    ids=["text", "none", "dict", "number", "no item", "no name"],
)
async def test_a_payload_of_the_wrong_type_fails_the_crystal_with_and_without_a_watcher(payload: Any) -> None:
    crystal = Emitting(ItemStart("0", "message"), payload)
    watched_result, outputs = await cast_watched(crystal)
    assert watched_result == (await cast_watched(crystal, watch=False))[0]
    assert "invalid stream event" in watched_result
    assert [type(one) for one in outputs] == [TurnStarted, MessageUpsert, TurnError]


@pytest.mark.real_time
@pytest.mark.rule("U-55", "U-60")
async def test_a_plain_invoke_streams_from_its_thread() -> None:
    upserts, seen = Upserts(), list[Any]()

    async def read() -> None:
        seen.extend([output async for output in upserts.subscribe()])

    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        runtime.watch(upserts.publish)
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        await runtime.cast(cantrip(Blocking(*streams("hi there"))), "go")
        upserts.close()
    assert [o.content for o in seen if isinstance(o, MessageUpsert)][-1] == "hi there"
    assert isinstance(next(o for o in reversed(seen) if not isinstance(o, FinalResponse)), TurnComplete)


@pytest.mark.rule("U-60")
async def test_the_text_of_an_answer_whose_thinking_alone_was_streamed_is_shown() -> None:
    thought = [ItemStart("0", "reasoning"), ItemDone("0", FinalReasoning("hm", "test"))]
    _, outputs = await cast_watched(Emitting(*thought))
    assert [o.content for o in outputs if isinstance(o, ThinkingUpsert | MessageUpsert)] == ["hm", "hi"]


@pytest.mark.rule("U-53", "U-59")
async def test_nothing_that_a_crystal_emits_after_its_answer_is_shown() -> None:
    crystal = Emitting(*streams("hi there"), response=say("nap"))
    events: list[Any] = []

    @gate
    async def nap() -> str:
        """Emit late."""
        crystal.emit(ItemStart("late", "message"))
        crystal.response = done("ok")
        return "slept"

    async with Runtime.open() as runtime:
        runtime.watch(events.extend)
        await runtime.cast(Cantrip(crystal, circle=Circle(["done", nap], [max_turns(3)])), "go")
    items = [event.item_id for event in events if isinstance(event, DeltaEvent)]
    assert items
    assert not [item for item in items if "late" in item]


class Stepping:
    """A crystal whose answers wait for `go`; `asked` is set when it is asked for the n-th time."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.asked = [anyio.Event() for _ in answers]
        self.go = [anyio.Event() for _ in answers]
        self.count = 0

    async def invoke(self, messages: Any, tools: Any = (), tool_choice: Any = None) -> Any:
        n, self.count = self.count, self.count + 1
        self.asked[n].set()
        await self.go[n].wait()
        return self.answers[n]


@pytest.mark.rule("U-53", "U-62")
async def test_a_watcher_that_missed_turns_gets_the_later_ones_under_their_own_ids() -> None:
    crystal, upserts = Stepping(say("echo", text="1"), say("echo", text="2"), done("ok")), Upserts()
    async with Runtime.open() as runtime:
        unwatch = runtime.watch(lambda _: None)
        entity = await runtime.start(cantrip(crystal), "go")
        await crystal.asked[0].wait()
        unwatch()
        for n in (0, 1):
            crystal.go[n].set()
            await crystal.asked[n + 1].wait()
        runtime.watch(upserts.publish)
        crystal.go[2].set()
        await entity.episode()
        last = runtime.loom.turns(entity.id)[-1]
    assert {output.turn_id for output in upserts.snapshot()} == {last.id}
    assert [output.tool_output for output in upserts.snapshot() if isinstance(output, ToolCallUpsert)] == ["ok"]


@pytest.mark.rule("U-57")
async def test_a_function_that_watches_twice_is_called_until_it_has_stopped_twice() -> None:
    events: list[Any] = []
    watch = events.extend
    async with Runtime.open() as runtime:
        stop, _ = runtime.watch(watch), runtime.watch(watch)
        stop()
        stop()
        await runtime.cast(cantrip(scripted([done("ok")])), "go")
    assert [type(event) for event in events].count(StepStartEvent) == 1


async def test_deltas_come_between_the_recorded_events_of_their_turn() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip(Streaming()), "go")
        events = [event async for event in entity.events(deltas=True)]
    kinds = [type(event) for event in events]
    assert kinds.count(DeltaEvent) == 21  # the beginning of the text, and its words
    assert kinds.index(StepStartEvent) < kinds.index(DeltaEvent) < kinds.index(ItemEndEvent) < kinds.index(TextEvent)
    deltas = "".join(event.text for event in events if isinstance(event, DeltaEvent))
    (text,) = [event.text for event in events if isinstance(event, TextEvent)]
    assert text.startswith(deltas)  # the last word is held back: a secret may begin in it


async def test_deltas_are_published_only_to_subscribers_that_request_them() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip(Streaming()), "go")
        whole, pieces = entity.events(), entity.events(deltas=True)
        await entity.episode()
        assert not [event async for event in whole if isinstance(event, StreamedEvent)]
        assert [event async for event in pieces if isinstance(event, StreamedEvent)]


@pytest.mark.rule("K-42")
async def test_a_reader_with_an_id_gets_deltas_and_never_a_delta_after_its_text() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip(Streaming()), "go")
        feed, seen = entity.events(after="0", deltas=True), list[Any]()
        await anyio.sleep(2)
        async for event in feed:
            seen.append(event)
            if isinstance(event, DeltaEvent) and len(seen) % 3 == 0:
                await anyio.sleep(3)  # a slow reader: meanwhile the answer is recorded
    kinds = [type(event) for event in seen]
    assert DeltaEvent in kinds
    assert StreamedEvent not in {base for kind in kinds[kinds.index(TextEvent) :] for base in kind.__mro__}
    assert [EventId.parse(event.id) for event in seen if event.id] == sorted(
        {EventId.parse(e.id) for e in seen if e.id}
    )


@pytest.mark.rule("K-42")
async def test_a_reader_that_comes_in_the_middle_of_an_answer_gets_it_from_its_beginning() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip(Streaming(fails=1)), "go")
        first = entity.events(after="0", deltas=True)
        with anyio.move_on_after(8):  # the first attempt has failed meanwhile
            await entity.episode()
        late = entity.events(after="0", deltas=True)
        first.close()
        both = [[event async for event in feed] for feed in (late, entity.events(after="0"))]
    assert [event for event in both[0] if event.id] == both[1]
    streamed = [event for event in both[0] if isinstance(event, StreamedEvent)]
    assert [type(event) for event in streamed[:2]] == [DeltaEvent, AttemptFailedEvent]
    second = [event for event in streamed[2:] if isinstance(event, DeltaEvent)]
    assert [event.is_start for event in second] == [True] + [False] * (len(second) - 1)
    assert second[0].text.startswith("word0 word1 ")
    pieces = TextPieces()
    (answer,) = [event.text for event in both[0] if isinstance(event, TextEvent)]
    texts = [pieces.add(event) for event in both[0]]
    assert pieces.turn == answer
    assert sum(map(bool, texts)) > 5  # it grew


class Bursting:
    """A crystal that says words, so many of them without a wait."""

    name = "test:bursts"

    def __init__(self, words: int, burst: int) -> None:
        self.words = words
        self.burst = burst

    async def invoke(self, messages: Any, emit: Any) -> str:
        emit(ItemStart("0", "message"))
        for number in range(self.words):
            if number % self.burst == 0:
                await anyio.sleep(0.1)
            emit(ItemDelta("0", f"word{number} "))
        text = "".join(f"word{number} " for number in range(self.words))
        emit(ItemDone("0", FinalMessage(text, "agent")))
        return text


@pytest.mark.rule("K-42")
@pytest.mark.parametrize("burst", [1, 50])
async def test_words_that_a_crystal_says_without_a_wait_are_one_event_for_each_reader(burst: int) -> None:
    crystal = Bursting(burst * 20, burst)
    seen: list[list[Any]] = [[], []]

    async def read(feed: Any, events: list[Any]) -> None:
        events.extend([(anyio.current_time(), event) async for event in feed])

    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        entity = await runtime.start(cantrip(crystal), "go")
        for events in seen:
            tasks.start_soon(read, entity.events(after="0", deltas=True), events)
        await entity.episode()
    for events in seen:
        times = [at for at, event in events if isinstance(event, DeltaEvent)]
        pieces = [event.text for _, event in events if isinstance(event, DeltaEvent)]
        assert "".join(pieces) == "".join(f"word{number} " for number in range(crystal.words))
        assert len(pieces) == 21  # the item's start, and one for each burst
        assert max(later - earlier for earlier, later in pairwise(times)) < 0.11


@pytest.mark.rule("K-42")
async def test_a_reader_that_comes_late_misses_no_piece_of_a_burst() -> None:
    async with Runtime.open() as runtime, runtime.stream(cantrip(Bursting(20_000, 20_000)), "go") as run:
        await run.result()
        events = [event async for event in run.events()]
    assert not [event for event in events if isinstance(event, MissedEvent)]
    (answer,) = [event.text for event in events if isinstance(event, TextEvent)]
    pieces = TextPieces()
    assert "".join(map(pieces.add, events)) == answer


@pytest.mark.rule("K-42")
async def test_pieces_come_before_the_recorded_events_of_their_turn_for_a_reader_of_all_entities() -> None:
    async with Runtime.open() as runtime:
        feed = runtime.events(deltas=True)
        await runtime.cast(cantrip(Bursting(100, 10)), "go")
        feed.close()
        events = [event async for event in feed]
    kinds = [type(event) for event in events]
    last = max(index for index, kind in enumerate(kinds) if issubclass(kind, StreamedEvent))
    assert kinds.index(StepStartEvent) < kinds.index(DeltaEvent)
    assert last < kinds.index(TextEvent)


async def test_streamed_events_are_made_while_someone_reads_them() -> None:
    async with Runtime.open() as runtime:
        whole = runtime.events()
        assert not runtime._tree.bus.delivers_deltas
        pieces = runtime.events(deltas=True)
        assert runtime._tree.bus.delivers_deltas
        del pieces
        assert not runtime._tree.bus.delivers_deltas
        whole.close()
