"""Casting: episodes, errors of the cast, refused input."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio
import trio
from structlog.testing import capture_logs

from cantrip_actors import (
    Call,
    Cantrip,
    Circle,
    CrystalError,
    EntityCrashed,
    Gate,
    InvalidCantrip,
    InvalidIntent,
    ProviderError,
    Runtime,
    RuntimeClosed,
    gate,
    scripted,
)
from cantrip_actors.wards import max_tokens, max_turns, timeout
from tests.exhaustive import part
from tests.runtime.spells import cantrip, done, forever, say


@pytest.mark.rule("CANTRIP-2", "ENTITY-2")
async def test_a_cantrip_is_cast_many_times_concurrently() -> None:
    spell = cantrip(lambda ctx: done(ctx[0].content))
    results = {}
    async with Runtime.open() as runtime:

        async def one(n: int) -> None:
            episode = await runtime.cast(spell, f"task {n}")
            results[episode.entity_id] = episode.result

        async with anyio.create_task_group() as tasks:
            for n in range(50):
                tasks.start_soon(one, n)
    assert sorted(results.values()) == sorted(f"task {n}" for n in range(50))
    assert len(results) == 50


@pytest.mark.real_time
@pytest.mark.rule("LOOM-1")
async def test_a_runtime_closed_right_after_many_casts_answers_each_caller_and_releases_every_lease(tmp_path) -> None:
    url, count = f"sqlite:{tmp_path}/loom.db", 400
    together = anyio.Event()

    class Together:
        """Answers all at once."""

        waiting = 0

        async def invoke(self, query: object) -> object:
            self.waiting += 1
            if self.waiting == count:
                together.set()
            await together.wait()
            return done("ok")

    spell = Cantrip(Together(), circle=Circle(["done"], [max_turns(2)]))
    with capture_logs() as logs:
        async with Runtime.open(url) as runtime, anyio.create_task_group() as tasks:
            for n in range(count):
                tasks.start_soon(runtime.cast, spell, f"task {n}")
    assert [log for log in logs if log["event"] == "dead letter"] == []
    with closing(sqlite3.connect(tmp_path / "loom.db")) as loom, loom:
        assert loom.execute("select count(*) from leases").fetchone() == (0,)


@pytest.mark.rule("LOOP-3", "CIRCLE-7", "CIRCLE-8")
async def test_an_episode_has_its_result_and_its_thread() -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip([say("echo", text="a"), done("b")]), "go")
    assert (episode.result, episode.terminated, episode.truncated) == ("b", True, False)
    assert [turn.observation for turn in episode.thread] == ["a", "b"]
    assert [turn.parent_id for turn in episode.thread] == [None, episode.thread[0].id]


@pytest.mark.rule("LOOP-4", "LOOM-7")
async def test_a_truncated_episode_names_its_ward() -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip(lambda _: say("echo", text="x"), wards=(max_turns(3),)), "go")
    assert (episode.truncated, episode.terminated, episode.ward) == (True, False, "max_turns")
    assert "3 turns" in episode.summary
    assert "echo x3" in episode.summary
    assert [turn.truncated for turn in episode.thread] == [False, False, True]


@pytest.mark.rule("CRYSTAL-3", "D-011")
async def test_a_crystal_that_breaks_its_contract_is_an_error_of_the_cast() -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(CrystalError, match="neither content nor tool_calls") as raised:
            await runtime.cast(cantrip([say("echo", text="x"), {"content": None}]), "go")
        entity = raised.value.entity_id
        assert [turn.observation for turn in runtime.loom.turns(entity)] == ["x"]
        assert runtime.loom.state(entity) == "failed"


@pytest.mark.rule("PROD-2", "D-006")
async def test_retries_leave_one_turn() -> None:
    error = {"error": {"status": 429, "message": "slow down"}}
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip([error, error, done("ok")]), "go")
    assert episode.result == "ok"
    assert len(episode.thread) == 1


@pytest.mark.rule("D-006")
async def test_a_provider_that_fails_for_good_is_an_error_with_its_status() -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(ProviderError, match="key") as raised:
            await runtime.cast(cantrip([{"error": {"status": 401, "message": "no key"}}]), "go")
    assert (raised.value.status, raised.value.attempts) == (401, 1)


@pytest.mark.rule("INTENT-1")
@pytest.mark.parametrize("intent", [None, "", "  ", 7])
async def test_a_cast_without_an_intent_makes_no_entity(intent: object) -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(InvalidIntent, match="intent is required"):
            await runtime.cast(cantrip([done(1)]), intent)
        assert runtime.loom.entities() == []


async def test_a_crystal_of_an_unknown_family_is_refused() -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(InvalidCantrip, match="no crystal family"):
            await runtime.cast(Cantrip("nobody:x", circle=Circle(["done"], [max_turns(1)])), "go")


async def test_a_cast_of_a_non_cantrip_is_refused() -> None:
    async with Runtime.open() as runtime:
        for intent in ("go", cantrip([done(1)])):  # the second caller has swapped the two
            with pytest.raises(InvalidCantrip, match="cast: expected a Cantrip, got str"):
                await runtime.cast("hello", intent)


async def test_a_cast_in_a_runtime_that_is_not_open_is_an_error() -> None:
    runtime = Runtime.open()
    with pytest.raises(RuntimeClosed, match="async with"):
        await runtime.cast(cantrip([done(1)]), "go")
    async with runtime:
        pass
    with pytest.raises(RuntimeClosed):
        await runtime.cast(cantrip([done(1)]), "go")


@pytest.mark.rule("ENTITY-4", "LOOM-10")
async def test_a_thread_can_be_read_after_the_runtime_has_closed() -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip([say("echo", text="x"), done("y")]), "go")
    assert len(episode.thread) == 2
    assert runtime.loom.thread(episode.thread[-1].id) == episode.thread


@pytest.mark.rule("CIRCLE-5", "D-005", "D-011")
async def test_a_gate_that_raises_is_an_observation() -> None:
    @gate
    async def boom() -> str:
        """Explode."""
        raise RuntimeError("something went wrong")

    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip([say("boom"), done("recovered")], boom), "go")
    (seen,) = episode.thread[0].gate_calls
    assert (seen.gate, seen.is_error, seen.args) == ("boom", True, {})
    assert "something went wrong" in seen.content
    assert episode.result == "recovered"


@pytest.mark.rule("D-011")
async def test_a_bug_of_the_runtime_is_a_crash_and_not_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    from cantrip_actors.runtime.entity import performer

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async with Runtime.open() as runtime:
        monkeypatch.setattr(performer, "Observed", broken)
        with pytest.raises(EntityCrashed, match="a bug") as raised:
            await runtime.cast(cantrip([say("echo", text="x"), done(1)]), "go")
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        assert runtime.loom.state(raised.value.entity_id) == "crashed"
        monkeypatch.undo()
        assert (await runtime.cast(cantrip([done("still here")]), "go")).result == "still here"


@pytest.mark.rule("CIRCLE-2", "LOOP-4")
async def test_a_timeout_ward_ends_a_gate_that_hangs() -> None:
    @gate
    async def hang() -> str:
        """Never answer."""
        await anyio.sleep_forever()
        return ""

    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip([say("hang")], hang, wards=(timeout(30),)), "go")
        assert (episode.truncated, episode.ward, episode.reason) == (True, "timeout", "timeout")
        (turn,) = episode.thread
        assert turn.truncated
        assert "outcome unknown" in turn.observation
        assert runtime.loom.state(episode.entity_id) == "truncated"


@pytest.mark.rule("LOOP-4")
async def test_a_timeout_ward_ends_a_crystal_that_hangs() -> None:
    class Slow:
        async def invoke(self, messages: object, tools: object, tool_choice: object) -> object:
            await anyio.sleep(3600)

    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip(Slow(), wards=(timeout(1),)), "go")
        assert (episode.truncated, episode.thread) == (True, [])
        assert runtime.loom.state(episode.entity_id) == "truncated"


@pytest.mark.rule("PROD-3")
async def test_a_token_budget_truncates_at_the_turn_that_used_it_up() -> None:
    spent = {**say("echo", text="x"), "usage": {"prompt_tokens": 40, "completion_tokens": 10}}
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip(lambda _: spent, wards=(max_tokens(120),)), "go")
    assert (episode.truncated, episode.ward, len(episode.thread)) == (True, "max_tokens", 3)
    assert episode.usage.total_tokens == 150


async def test_cancelling_a_cast_stops_the_entity_and_records_that() -> None:
    class Slow:
        closed = False

        async def invoke(self, messages: object, tools: object, tool_choice: object) -> object:
            try:
                await anyio.sleep_forever()
            finally:
                self.closed = True

    slow = Slow()
    async with Runtime.open() as runtime:
        with anyio.move_on_after(5) as scope:
            await runtime.cast(cantrip(slow), "go")
        assert scope.cancelled_caught
        assert slow.closed
        (entity,) = runtime.loom.entities()
        assert runtime.loom.state(entity) == "cancelled"


async def test_closing_the_runtime_ends_running_entities() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip(forever), "go")
        await anyio.sleep(2.5)
    assert runtime.loom.state(entity.id) == "cancelled"
    assert len(runtime.loom.turns(entity.id)) == 2


@pytest.mark.rule("CALL-4")
async def test_the_call_is_the_root_of_the_thread_in_the_loom() -> None:
    async with Runtime.open() as runtime:
        spell = cantrip([done(1)], call=Call(system_prompt="Be terse.", temperature=0.5))
        episode = await runtime.cast(spell, "go")
        header = runtime.loom.header(episode.entity_id)
    assert header.call["system_prompt"] == "Be terse."
    assert header.call["temperature"] == 0.5
    assert header.cantrip_id == spell.id == episode.thread[0].cantrip_id


@pytest.mark.rule("COMP-7", "CRYSTAL-1")
async def test_a_crystal_gets_the_whole_context_in_each_query() -> None:
    crystal = scripted([say("echo", text="x"), done("y")])
    async with Runtime.open() as runtime:
        await runtime.cast(cantrip(crystal, call=Call(system_prompt="Hi", tool_choice="required")), "go")
    first, second = crystal.invocations
    assert [m.role for m in first] == ["system", "user"]
    assert [m.role for m in second] == ["system", "user", "assistant", "tool"]
    assert [tool.name for tool in first.tools] == ["done", "echo"]
    assert first.tool_choice == "required"


async def test_a_gate_that_never_returns_json_becomes_an_observation() -> None:
    async def odd() -> object:
        return object()

    async with Runtime.open() as runtime:
        spell = cantrip([say("odd"), done("on")], Gate.of(odd, name="odd"))
        episode = await runtime.cast(spell, "go")
    assert episode.thread[0].gate_calls[0].is_error
    assert episode.result == "on"


@pytest.mark.parametrize("moments", range(0, 60, 12))
@pytest.mark.parametrize("store", ["memory:", "sqlite:"])
async def test_a_caller_cancelled_while_it_opens_or_casts_leaves_no_task_and_no_open_loom(
    tmp_path, store, moments
) -> None:
    """The cancellation comes one turn of the event loop later each time."""
    for moment in part(range(moments, moments + 12), 2):
        url = store if store == "memory:" else f"sqlite:{tmp_path}/{moment}.db"
        spell = cantrip([say("echo", text="x"), done("y")])
        await anyio.lowlevel.checkpoint()
        before = tasks()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as others:

                async def cancel(scope: anyio.CancelScope = scope, moment: int = moment) -> None:
                    for _ in range(moment):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()

                others.start_soon(cancel)
                async with Runtime.open(url) as runtime:
                    await runtime.cast(spell, "go")
        assert tasks() == before
        async with Runtime.open(url) as runtime:
            assert (await runtime.cast(cantrip([done("z")]), "go")).result == "z"


@pytest.mark.rule("LOOP-5")
@pytest.mark.parametrize(
    ("context", "read"),
    [
        (lambda: iter([1, 2]), [1, 2]),
        (lambda: (n for n in (1, 2)), [1, 2]),
        (lambda: {"a": map(int, "12")}, {"a": [1, 2]}),
        (lambda: zip("a", "b", strict=True), [["a", "b"]]),
    ],
    ids=["an iterator", "a generator", "a map inside", "pairs"],
)
async def test_a_context_that_can_be_read_once_is_read_once(context: Callable[[], Any], read: Any) -> None:
    script = scripted([{"content": "Read."}])
    async with Runtime.open() as runtime:
        await runtime.cast(cantrip(script), "Read it.", context=context())
    assert json.loads(script.invocations[0][-1].content.removeprefix("context:\n")) == read


def tasks() -> int:
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())
