"""Restarts of an entity after a crash: when it is tried again, when it is given up, and what is left of it then."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, EntityCrashed, Quarantined, Runtime, gate, scripted
from cantrip_actors.runtime.entity.performer import Performer
from cantrip_actors.wards import max_turns
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("K-24", "D-011")


class Bug(Exception):
    """A bug of the runtime."""


@pytest.fixture
def crash_in_queries(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], str | None]], list[float]]:
    """Return a function that makes queries crash, and returns the times at which they were tried.

    It takes a function of the number of the attempt, from 0, that returns the text of the crash, or None.
    """

    def install(find_text: Callable[[int], str | None]) -> list[float]:
        ask, times = Performer._ask, []

        async def crash(self: Performer, action: Any) -> Any:
            times.append(anyio.current_time())
            text = find_text(len(times) - 1)
            if text is not None:
                raise Bug(text)
            return await ask(self, action)

        monkeypatch.setattr(Performer, "_ask", crash)
        return times

    return install


def make_cantrip(*responses: Any) -> Cantrip:
    return Cantrip(scripted(list(responses)), circle=Circle(["done"], [max_turns(5)]), name="agent")


async def test_a_crash_that_does_not_repeat_is_survived_at_once(crash_in_queries: Any) -> None:
    times = crash_in_queries(lambda attempt: "once" if attempt == 0 else None)
    async with Runtime.open() as runtime:
        assert (await runtime.cast(make_cantrip(done("well")), "go")).result == "well"
    assert times[1] - times[0] < 0.1


async def test_a_crash_that_repeats_at_the_same_record_is_not_tried_a_third_time(crash_in_queries: Any) -> None:
    times = crash_in_queries(lambda _: "always")
    async with Runtime.open() as runtime:
        with pytest.raises(EntityCrashed, match="Bug: always") as raised:
            await runtime.cast(make_cantrip(done("never")), "go")
        await anyio.sleep(3600)
        assert isinstance(raised.value.__cause__, Bug)
    assert len(times) == 2


async def test_different_crashes_are_tried_again_with_growing_delays(crash_in_queries: Any) -> None:
    times = crash_in_queries(lambda attempt: f"crash {attempt}")
    async with Runtime.open() as runtime:
        with pytest.raises(EntityCrashed, match="crash 3"):
            await runtime.cast(make_cantrip(done("never")), "go")
    first, second, third = (later - before for before, later in itertools.pairwise(times))
    assert first < 0.1
    assert 0.8 <= second <= 1.1
    assert 3.2 <= third <= 4.1


async def test_one_line_reports_a_quarantine_and_names_the_first_crash(crash_in_queries: Any) -> None:
    crash_in_queries(lambda _: "always")
    with capture_logs() as logs:
        async with Runtime.open() as runtime:
            entity = await runtime.invoke(make_cantrip(done("never")), "go", name="notes")
            with pytest.raises(EntityCrashed):
                await entity.episode()
    (quarantined,) = [log for log in logs if log["event"] == "an entity is quarantined: it would crash again"]
    assert quarantined["entity"] == entity.id
    assert quarantined["crashes"] == ["Bug: always", "Bug: always"]
    assert sum(log["event"] == "child terminated" for log in logs) == 1, "the second crash is reported by that line"


@pytest.mark.parametrize("store", ["memory", "sqlite", "jsonl"])
async def test_a_quarantined_entity_keeps_name_inbox_and_memory(
    crash_in_queries: Any, tmp_path: Path, store: str
) -> None:
    broken = [False]
    crash_in_queries(lambda _: "the database is down" if broken[0] else None)
    url = "memory:" if store == "memory" else f"{store}:{tmp_path / 'loom'}"

    async def count(context: Any) -> Any:
        return done(sum(message.role == "user" for message in context))

    cantrip = Cantrip(scripted(count), circle=Circle(["done"], [max_turns(5)]), name="agent")
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        entity = await runtime.invoke(cantrip, "one", name="notes")
        assert (await entity.episode()).result == 1
        broken[0] = True
        with pytest.raises(EntityCrashed):
            await entity.send("two", key="two")
        with pytest.raises(Quarantined):
            await entity.send("three", key="three")
        broken[0] = False
        assert runtime.entity("notes").id == entity.id
        await runtime.resume(entity.id)
        assert (await runtime.receipt(entity.id, "two").episode()).result == 2
        assert (await runtime.receipt(entity.id, "three").episode()).result == 3


async def test_a_one_shot_entity_without_a_key_ends_when_it_is_given_up(crash_in_queries: Any) -> None:
    crash_in_queries(lambda _: "always")
    async with Runtime.open() as runtime:
        with pytest.raises(EntityCrashed) as raised:
            await runtime.cast(make_cantrip(done("never")), "go")
        assert raised.value.entity_id is not None
        assert runtime.loom.state(raised.value.entity_id) == "crashed"


async def test_a_one_shot_entity_with_a_key_is_resumed_after_the_cause_is_mended(crash_in_queries: Any) -> None:
    broken = [True]
    crash_in_queries(lambda _: "always" if broken[0] else None)
    cantrip = Cantrip(scripted(lambda _: done("late")), circle=Circle(["done"], [max_turns(5)]))
    async with Runtime.open() as runtime:
        with pytest.raises(EntityCrashed) as raised:
            await runtime.cast(cantrip, "go", key="order-17")
        broken[0] = False
        assert raised.value.entity_id is not None
        entity = await runtime.resume(raised.value.entity_id)
        assert (await entity.episode()).result == "late"


async def test_a_crash_never_asks_the_provider_again_for_a_recorded_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, effects = [], []

    @gate
    async def act() -> str:
        """Act."""
        effects.append("act")
        return "acted"

    async def answer(context: Any) -> Any:
        queries.append(len(context))
        return done("over") if context[-1].role == "tool" else say("act")

    perform, crashed = Performer.perform, []

    async def crash_after_the_gate(self: Performer, action: Any) -> Any:
        event = await perform(self, action)
        if effects and not crashed:
            crashed.append(action)
            raise Bug("after the gate, before its result is recorded")
        return event

    monkeypatch.setattr(Performer, "perform", crash_after_the_gate)
    cantrip = Cantrip(scripted(answer), circle=Circle(["done", act], [max_turns(5)]))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go")
    assert episode.result == "over"
    assert len(queries) == 2
    assert effects == ["act"]
    assert "outcome unknown" in str(episode.thread[0].observation)
