"""The canonical stream of a live runtime, as its subscribers see it."""

from typing import Any

import anyio
import pytest

from cantrip_actors import Runtime, scripted
from cantrip_actors.observe import Upserts
from cantrip_actors.observe.upserts import MessageUpsert, ToolCallUpsert, TurnComplete, TurnError, TurnStarted
from cantrip_actors.stream.wire import FinalMessage, ItemDelta, ItemDone, ItemStart, ResponseDone, ResponseStart
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
    async with Runtime.open() as runtime:
        envelopes: list[Any] = []
        runtime.watch(envelopes.extend)

        async def forever(_: object) -> Any:
            return {**say("echo", text="x"), "delay": 1.0}

        with anyio.move_on_after(3.5):
            await runtime.cast(family([say("call_agent", intent="a")], forever), "go")
        parent, child = runtime.loom.entities()
    of_child = [e for e in envelopes if e.session_id == child]
    assert {e.parent.session_id for e in of_child} == {parent}
    last = {e.session_id: e.payload for e in envelopes if isinstance(e.payload, ResponseDone)}
    assert last[child].status == "cancelled"
    assert last[parent].status == "cancelled"


@pytest.mark.rule("U-50")
async def test_a_crash_ends_the_turn_for_subscribers_and_the_next_incarnation_begins_it_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cantrip_actors.runtime.entity_actor import EntityActor

    whole, crashed = EntityActor._ask, False

    async def crashing(self: EntityActor, action: Any) -> Any:
        nonlocal crashed
        if not crashed:
            crashed = True
            raise ZeroDivisionError
        return await whole(self, action)

    monkeypatch.setattr(EntityActor, "_ask", crashing)
    async with Runtime.open() as runtime:
        seen, _, episode = await watched(runtime, scripted([done("ok")]))
    assert episode.result == "ok"
    assert [o.error_code for o in seen if isinstance(o, TurnError)] == ["PROCESS_CRASH"]
    assert isinstance([o for o in seen if isinstance(o, TurnComplete | TurnError)][-1], TurnComplete)


@pytest.mark.rule("U-62", "PROD-1")
async def test_a_subscriber_does_not_change_the_episode() -> None:
    async def run(watch: bool) -> list[Any]:
        async with Runtime.open() as runtime:
            end = runtime.watch(Upserts().publish) if watch else (lambda: None)
            episode = await runtime.cast(cantrip([say("echo", text="x"), say("nope"), done(1)]), "go")
            end()
            return [(t.utterance, t.observation, t.sequence) for t in episode.thread]

    assert await run(True) == await run(False)
