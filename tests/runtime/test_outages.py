"""A loom that cannot be reached for a while: each entity that this stops goes on by itself, whatever it was doing."""

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Companion, LoomError, Quarantined, Runtime, ask_first, gate, scripted
from cantrip_actors.loom import Unsure
from cantrip_actors.runtime.loom.outages import FIRST, LONGEST, PATIENCE, Outages
from cantrip_actors.wards import max_turns
from tests.runtime.spells import cantrip, done, say

pytestmark = pytest.mark.rule("N-71", "V-10")


async def answer(context: Any) -> Any:
    return {**done(f"did {context[-1].content}"), "delay": 1.0}


DESK = cantrip(answer, name="desk")


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'loom'}"


@asynccontextmanager
async def opened(url: str, desk: Cantrip = DESK) -> AsyncIterator[tuple[Runtime, Any]]:
    """A runtime with an idle entity that is not loaded, and its store."""
    async with Runtime.open(url, cantrips=[desk], passivate_after=0.0) as runtime:
        await runtime.ensure("desk", desk)
        await anyio.sleep(1)
        assert not runtime.entity("desk").loaded
        yield runtime, runtime._tree.store


ALL_METHODS = ("append", "post", "records", "facts", "newest", "tip", "standing", "life", "find_mail", "named", "claim")
"""The methods of a store that fail during an outage."""


@contextmanager
def failing(store: Any, *names: str) -> Iterator[None]:
    """A block in which these methods of a store cannot reach it."""

    def fail(*_: Any, **__: Any) -> Any:
        raise LoomError("the loom cannot be reached")

    before = {name: getattr(store, name) for name in names}
    try:
        for name in names:
            setattr(store, name, fail)
        yield
    finally:
        for name, method in before.items():
            setattr(store, name, method)


def lose_next_answer(store: Any, name: str) -> None:
    """Have a method do its work the next time, and its caller not know whether it did."""
    method: Callable[..., Any] = getattr(store, name)

    def write(*args: Any, **more: Any) -> Any:
        setattr(store, name, method)
        method(*args, **more)
        raise Unsure("the answer was lost")

    setattr(store, name, write)


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=5)


def results(runtime: Runtime) -> list[Any]:
    return [turn.gate_calls[-1].result for turn in runtime.loom.turns(runtime.entity("desk").id)]


# The kinds of work that an outage can stop


async def test_an_intent_is_answered_though_its_entity_could_not_be_loaded_at_first(url: str) -> None:
    async with opened(url) as (runtime, store):
        facts = store.facts

        def read_header_only(entity_id: str, with_records: str) -> Any:
            if with_records != "never":
                raise LoomError("the loom cannot be reached")
            return facts(entity_id, with_records)

        store.facts = read_header_only
        await runtime.entity("desk").post("a")
        await anyio.sleep(20)
        store.facts = facts
        await anyio.sleep(40)
        assert results(runtime) == ["did a"]


@pytest.mark.parametrize("recorded", [0, 1, 2])
async def test_an_intent_is_answered_though_its_entity_could_not_record_something_at_first(
    url: str, recorded: int
) -> None:
    async with opened(url) as (runtime, store):
        append = store.append

        def append_so_many(*args: Any, **more: Any) -> None:
            nonlocal recorded
            recorded -= 1
            if recorded < 0:
                raise LoomError("the loom cannot be reached")
            append(*args, **more)

        store.append = append_so_many
        await runtime.entity("desk").post("a")
        await anyio.sleep(20)
        store.append = append
        await anyio.sleep(40)
        assert results(runtime) == ["did a"]
        assert runtime.interrupted() == []


async def test_an_intent_is_answered_though_it_was_not_known_whether_it_was_posted(url: str) -> None:
    async with opened(url) as (runtime, store):
        lose_next_answer(store, "post")
        with pytest.raises(Unsure):
            await runtime.entity("desk").post("a", key="a")
        await anyio.sleep(40)
        assert results(runtime) == ["did a"]


async def test_an_intent_of_a_timer_is_answered_though_it_was_not_known_whether_the_timer_has_fired(url: str) -> None:
    async with opened(url) as (runtime, store):
        await runtime.schedule("desk", "tick", at=soon(), id="tick")
        lose_next_answer(store, "replace_timers")
        await anyio.sleep(20)
        assert results(runtime) == ["did tick"]


async def test_a_timer_fires_soon_after_an_outage(url: str) -> None:
    async with opened(url) as (runtime, store):
        await runtime.schedule("desk", "tick", at=soon(), id="tick")
        with failing(store, "replace_timers"):
            await anyio.sleep(10)
        await anyio.sleep(5)
        assert results(runtime) == ["did tick"]


async def test_a_timer_that_an_entity_has_set_fires_though_it_was_not_known_whether_it_is_set(url: str) -> None:
    def policy(context: Any) -> Any:
        last = context[-1]
        return say("wake_me", why="up", in_seconds=5) if last.content == "go" else done(f"did {last.content}")

    async with opened(url, cantrip(policy, "wake_me", name="desk")) as (runtime, store):
        append = store.append

        def lose_answer_of_timer(records: Any, leases: Any, **more: Any) -> None:
            append(records, leases, **more)
            if more.get("timers"):
                raise Unsure("the answer was lost")

        store.append = lose_answer_of_timer
        await runtime.entity("desk").post("go")
        await anyio.sleep(60)
        assert results(runtime)[-1] == "did up"


async def test_mail_for_an_entity_that_is_loaded_is_delivered_though_it_could_not_be_read_at_first(url: str) -> None:
    async with opened(url) as (runtime, store):
        await runtime.entity("desk").post("a")
        await anyio.sleep(0.5)
        lose_next_answer(store, "post")
        with failing(store, "pending"), pytest.raises(Unsure):
            await runtime.entity("desk").post("b", key="b")
        await anyio.sleep(40)
        assert results(runtime) == ["did a", "did b"]


async def test_an_entity_is_quarantined_though_that_could_not_be_recorded_at_first(url: str) -> None:
    class Broken(Companion):
        """A companion that always crashes."""

        async def begins(self, here: Any) -> None:
            raise ZeroDivisionError

    circle = Circle(["done"], [max_turns(9)], companion=Broken())
    async with opened(url, Cantrip(scripted(answer), circle=circle, name="desk")) as (runtime, store):
        with failing(store, "quarantine"):
            await runtime.entity("desk").post("a")
            await anyio.sleep(20)
        await anyio.sleep(60)
        with pytest.raises(Quarantined):
            await runtime.entity("desk").send("b")


# What it costs


async def test_an_entity_pays_once_though_an_outage_stops_it_around_the_payment(url: str) -> None:
    paid: Counter[str] = Counter()

    @gate
    async def pay(what: str) -> str:
        """Pay."""
        paid[what] += 1
        return f"paid {what}"

    def policy(context: Any) -> Any:
        last = context[-1]
        return done(last.content) if last.role == "tool" else say("pay", what=last.content)

    async with opened(url, cantrip(policy, pay, name="desk")) as (runtime, store):
        for number in range(1, 6):
            append, left = store.append, number

            def append_but(*args: Any, append: Any = append, **more: Any) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise LoomError("the loom cannot be reached")
                append(*args, **more)

            store.append = append_but
            await runtime.entity("desk").post(f"bill {number}")
            await anyio.sleep(60)
            store.append = append
        assert max(paid.values()) == 1
        assert len(runtime.loom.intents(runtime.entity("desk").id)) == 5
        assert runtime.interrupted() == []


async def test_an_entity_that_stops_again_and_again_is_tried_less_and_less_often(url: str) -> None:
    asked = 0

    def policy(_: Any) -> Any:
        nonlocal asked
        asked += 1
        return done("over")

    async with opened(url, cantrip(policy, name="desk")) as (runtime, store):
        append = store.append

        def append_intents(records: Any, *args: Any, **more: Any) -> None:
            if any(type(record).__name__ != "IntentGiven" for record in records):
                raise LoomError("there is no room for an answer")
            append(records, *args, **more)

        store.append = append_intents
        await runtime.entity("desk").post("a")
        await anyio.sleep(600)
        assert 5 < asked < 25
        store.append = append
        await anyio.sleep(LONGEST + 5)
        assert results(runtime) == ["over"]


async def test_a_feed_of_requests_continues_after_an_outage(url: str) -> None:
    async def ask(context: Any) -> Any:
        return done("paid") if context[-1].role == "tool" else say("pay", amount=3)

    @gate
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    async with opened(url, cantrip(ask, ask_first(pay), name="desk")) as (runtime, store):
        async with runtime.requests(follow=True) as requests:
            with failing(store, "entities_at"), anyio.move_on_after(2):
                await anext(requests)
            await runtime.entity("desk").post("pay")
            with anyio.fail_after(5):
                request = await anext(requests)
        assert request.gate == "pay"
        assert request.root == request.entity == runtime.entity("desk").id


async def test_a_cast_that_an_outage_stops_is_left_to_its_caller_with_the_error(url: str) -> None:
    async with Runtime.open(url) as runtime:
        work = await runtime.start(cantrip(answer), "a")
        store = runtime._tree.store
        with failing(store, "append"), pytest.raises(LoomError, match="cannot be reached"):
            await work.episode()
        await anyio.sleep(120)
        assert [header.entity_id for header in runtime.interrupted()] == [work.id]
        assert (await (await runtime.resume(work.id)).episode()).result == "did a"


async def test_a_cast_with_a_key_goes_on_by_itself_after_an_outage(url: str) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        work = await runtime.start(DESK, "a", key="a")
        with failing(runtime._tree.store, "append"), pytest.raises(LoomError, match="cannot be reached"):
            await work.episode()
        await anyio.sleep(20)
        assert (await runtime.cast(DESK, "a", key="a")).result == "did a"
        assert len(runtime.loom.entities()) == 1


# The list of interrupted work


class List:
    """The list, and when its work is due."""

    def __init__(self) -> None:
        self.notified = 0
        self.outages = Outages(self._count)

    def _count(self) -> None:
        self.notified += 1

    def delays(self, many: int) -> list[float]:
        """Stop an entity whenever it is loaded; return the delays until it is loaded again."""
        now, delays = 0.0, list[float]()
        for _ in range(many):
            self.outages.suspend("a", LoomError("away"), now)
            delays.append(self.outages.next - now)
            now = self.outages.next
            assert self.outages.take_due(now).entities == ["a"]
        return delays


def test_the_delay_doubles_each_time_up_to_a_minute() -> None:
    assert List().delays(9) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_the_delay_begins_anew_when_an_entity_has_recorded_something() -> None:
    interrupted = List()
    interrupted.delays(5)
    interrupted.outages.suspend("a", LoomError("away"), 100.0, has_recorded=True)
    assert interrupted.outages.next == 100.0 + FIRST


def test_callers_wait_for_as_long_as_their_patience_lasts() -> None:
    outages, now = Outages(lambda: None), 0.0
    outages.suspend("a", LoomError("away"), now)
    while outages.keeps_waiting("a", began=-1.0, now=now, patience=PATIENCE):
        now = outages.next
        outages.take_due(now)
        outages.suspend("a", LoomError("away"), now)
    assert PATIENCE <= now < 1.1 * PATIENCE


def test_a_caller_that_came_during_a_failing_attempt_waits_for_the_next_one() -> None:
    outages = Outages(lambda: None)
    outages.suspend("a", LoomError("away"), 0.0)
    assert not outages.keeps_waiting("a", began=-1.0, now=0.0, patience=0.0)
    outages.take_due(FIRST)
    outages.suspend("a", LoomError("away"), FIRST + 0.1)
    assert not outages.keeps_waiting("a", began=FIRST - 0.1, now=FIRST + 0.1, patience=0.0)
    assert outages.keeps_waiting("a", began=FIRST + 0.05, now=FIRST + 0.1, patience=0.0)


def test_a_caller_gets_the_error_of_its_own_attempt_between_two_others() -> None:
    outages = Outages(lambda: None)
    for at in (0.0, FIRST):
        outages.take_due(at)
        outages.suspend("a", LoomError("away"), at)
    assert not outages.keeps_waiting("a", began=FIRST + 0.1, now=FIRST + 0.3, patience=0.0, attempt=FIRST + 0.2)


def test_an_entity_is_listed_once_and_no_more_once_it_is_forgotten() -> None:
    interrupted = List()
    for _ in range(2):
        interrupted.outages.suspend("a", LoomError("away"), 0.0)
    assert interrupted.notified == 1
    assert interrupted.outages.is_suspended("a")
    interrupted.outages.forget("a")
    assert not interrupted.outages.is_suspended("a")
    assert interrupted.outages.take_due(60.0).entities == []
    assert interrupted.outages.next == math.inf


def test_a_search_is_due_once_for_all_that_failed() -> None:
    interrupted = List()
    interrupted.outages.note(0.0)
    interrupted.outages.note(0.2)
    assert interrupted.notified == 1
    assert not interrupted.outages.take_due(FIRST / 2).has_search
    assert interrupted.outages.take_due(FIRST).has_search
    assert not interrupted.outages.take_due(60.0).has_search


@pytest.mark.parametrize("ticks", range(8))
async def test_an_intent_that_comes_in_the_moment_in_which_its_entity_is_unloaded_is_answered(ticks: int) -> None:
    async with Runtime.open(cantrips=[DESK], passivate_after=2.0) as runtime:
        entity = await runtime.ensure("desk", DESK)
        await entity.send("a")
        await anyio.sleep(2.0)
        for _ in range(ticks):
            await anyio.lowlevel.checkpoint()
        await entity.post("b")
        await anyio.sleep(10)
        assert results(runtime) == ["did a", "did b"]


def test_an_outage_long_after_another_one_counts_anew_for_an_entity_that_has_recorded_nothing_since() -> None:
    outages, error = Outages(lambda: None), LoomError("the loom does not answer")
    outages.suspend("e", error, 0.0)
    assert outages.take_due(FIRST).entities == ["e"]
    outages.suspend("e", error, 1000.0)
    assert outages.next == 1000.0 + FIRST
    assert outages.keeps_waiting("e", 999.0, 1000.0 + PATIENCE - 1, PATIENCE)
