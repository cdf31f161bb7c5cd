"""Budgets for an intent, a day or a month (Y-30): an entity waits, asks or ends, and its spending can be read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cantrip_actors import (
    AlreadyDecided,
    Cantrip,
    Circle,
    Entity,
    EntityEnded,
    InvalidCantrip,
    Request,
    Runtime,
    gate,
    scripted,
)
from cantrip_actors.loom.reading.view import fold_entity
from cantrip_actors.terms.period import PeriodBudget
from cantrip_actors.terms.ward import Wards
from cantrip_actors.wards import Ward, max_cost, max_tokens, max_turns
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("Y-30")

HOUR = 3600.0


@gate
async def look() -> str:
    """Look around."""
    return "a river"


def spend(answer: dict[str, object], cost: float = 0.4) -> dict[str, object]:
    """An answer that costs so many dollars."""
    return {**answer, "usage": {"prompt_tokens": 50, "completion_tokens": 50, "cost": cost}}


def desk(*answers: dict[str, object], wards: tuple[Ward, ...], gates: tuple[object, ...] = ()) -> Cantrip:
    """A cantrip whose every answer costs 0.4 dollars."""
    circle = Circle(["done", look, *gates], [max_turns(5), *wards])
    return Cantrip(scripted([spend(answer) for answer in answers]), circle=circle)


async def wait_for_request(runtime: Runtime) -> Request:
    """Wait until a person is asked, and return the request."""
    while not (page := await runtime.list_requests()).items:
        await anyio.sleep(1)
    return page.items[0]


async def test_an_entity_without_budget_waits_for_the_next_day_and_keeps_its_mail_and_memory() -> None:
    made = desk(done("one"), say("look"), done("two"), done("three"), wards=(max_cost(0.7, per="day"),))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        began = datetime.now(UTC)
        assert (await entity.send("first")).result == "one"
        assert (await entity.send("second")).result == "two"  # its first answer used the day up
        passed = anyio.current_time()
        midnight = began.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        assert passed >= (midnight - began).total_seconds() - 1
        assert (await entity.send("third")).result == "three"
        assert runtime.loom.state(entity.id) == "idle"


async def test_mail_that_comes_meanwhile_is_answered_in_order_on_the_next_day() -> None:
    made = desk(done("one"), done("two"), done("three"), wards=(max_tokens(150, per="day"),))
    answers: list[object] = []
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)

        async def send(text: str) -> None:
            answers.append((await entity.send(text)).result)

        async with anyio.create_task_group() as group:
            for text in ("first", "second", "third"):
                group.start_soon(send, text)
                await anyio.sleep(1)
            await anyio.sleep(1)
            assert answers == ["one", "two"]
    assert answers == ["one", "two", "three"]


async def test_the_budget_of_an_intent_ends_its_episode_and_the_next_has_its_own() -> None:
    made = desk(say("look"), done("late"), say("look"), done("two"), wards=(max_cost(0.3, per="intent"),))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        episode = await entity.send("first")
        assert (episode.truncated, episode.ward) == (True, "max_cost")
        assert runtime.loom.state(entity.id) == "idle"
        assert (await entity.send("second")).result == "late"


async def test_a_daily_budget_ends_an_entity_only_if_it_says_so() -> None:
    made = desk(done("one"), wards=(max_cost(0.3, per="day", when_spent="end"),))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        assert (await entity.send("first")).result == "one"
        episode = await entity.send("second")
        assert (episode.truncated, episode.ward) == (True, "max_cost")
        assert "max_cost(0.3 per day) was used up" in (episode.summary or "")
        assert runtime.loom.state(entity.id) == "truncated"


@pytest.mark.parametrize("per", ["intent", "day", "month"])
async def test_a_person_grants_more_and_the_grant_is_a_record(per: str) -> None:
    made = desk(say("look"), say("look"), done("here"), wards=(max_cost(0.3, per=per, when_spent="ask"),))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        async with anyio.create_task_group() as group:

            async def decide() -> None:
                for amount in (0.2, 5):
                    request = await wait_for_request(runtime)
                    assert request.kind == "question"
                    assert request.args["most"] == 0.3
                    assert runtime.loom.state(entity.id) == "waiting"
                    await runtime.decide(request.id, answer=amount, by="anna")
                    await anyio.sleep(1)

            group.start_soon(decide)
            assert (await entity.send("go")).result == "here"
        decided = [record for record in runtime.loom.records(entity.id) if type(record).__name__ == "Decided"]
        assert [(record.answer, record.by) for record in decided] == [(0.2, "anna"), (5, "anna")]


@pytest.mark.parametrize("per", ["intent", "day", "month"])
async def test_a_grant_lasts_as_long_as_its_budget_if_its_intent_is_undone(per: str) -> None:
    made = desk(say("look"), done("here"), done("there"), wards=(max_cost(0.3, per=per, when_spent="ask"),))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        async with anyio.create_task_group() as group:
            group.start_soon(entity.send, "go")
            await runtime.decide((await wait_for_request(runtime)).id, answer=5, by="anna")
        assert await entity.undo()
        with anyio.fail_after(30):
            assert (await entity.send("go")).result == "there"
        state = fold_entity(runtime.loom, entity.id)
        assert sum(grant.amount for grant in state.granted.values()) == (0 if per == "intent" else 5)


@pytest.mark.parametrize("decision", [{"decision": "deny"}, {"answer": 0}])
@pytest.mark.parametrize("per", ["intent", "day"])
async def test_without_a_grant_the_episode_of_an_intent_ends_or_else_the_entity(
    per: str, decision: dict[str, object]
) -> None:
    made = desk(say("look"), done("later"), wards=(max_cost(0.3, per=per, when_spent="ask"),))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        async with anyio.create_task_group() as group:

            async def decide() -> None:
                await runtime.decide((await wait_for_request(runtime)).id, by="anna", **decision)

            group.start_soon(decide)
            episode = await entity.send("go")
        assert (episode.truncated, episode.ward) == (True, "max_cost")
        assert "anna granted no more" in (episode.summary or "")
        assert runtime.loom.state(entity.id) == ("idle" if per == "intent" else "truncated")
        assert (await runtime.list_requests()).items == []


@pytest.mark.parametrize("stops", ["interrupt", "end"])
async def test_a_request_for_more_of_a_budget_expires_when_the_episode_is_ended(stops: str) -> None:
    made = desk(say("look"), done("again"), wards=(max_cost(0.3, per="intent", when_spent="ask"),))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        work = await entity.post("first")
        request = await wait_for_request(runtime)
        await (entity.interrupt() if stops == "interrupt" else entity.stop())
        await work.result()
        with pytest.raises(AlreadyDecided) as late:
            await runtime.decide(request.id, answer=5)
        assert (late.value.decision, late.value.by) == ("expired", "")


async def test_a_person_who_grants_too_little_is_asked_again() -> None:
    made = desk(say("look"), done("here"), wards=(max_cost(0.3, per="intent", when_spent="ask"),))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        async with anyio.create_task_group() as group:

            async def decide() -> None:
                for amount in (0.01, 0.01, 1):
                    await runtime.decide((await wait_for_request(runtime)).id, answer=amount, by="anna")
                    await anyio.sleep(1)

            group.start_soon(decide)
            assert (await entity.send("go")).result == "here"


async def test_a_request_for_more_expires_with_its_day_and_the_entity_goes_on() -> None:
    made = desk(say("look"), done("next day"), wards=(max_cost(0.3, per="day", when_spent="ask"),))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        assert (await entity.send("go")).result == "next day"
        assert (await runtime.list_requests()).items == []
        decided = [record for record in runtime.loom.records(entity.id) if type(record).__name__ == "Decided"]
        assert {record.decision for record in decided} == {"expired"}


async def test_children_count_for_the_budget_of_their_parent_and_wait_with_it() -> None:
    answers = [say("call_agent", intent="help"), say("look"), done("helped"), done("all")]
    made = desk(*answers, wards=(max_cost(0.7, per="day"),), gates=("call_agent",))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        episode = await entity.send("go")
        assert episode.result == "all"
        assert anyio.current_time() > 0
        spent = await entity.spending(per="month")  # a row more if the next day is in the next month
        assert sum(month.usage.cost for month in spent) == pytest.approx(1.6)


async def test_the_next_process_knows_what_the_day_has_used(tmp_path: Path) -> None:
    loom_url = f"sqlite:{tmp_path}/loom.db"
    wards = (max_cost(0.7, per="day"),)
    async with Runtime.open(loom_url) as runtime:
        entity = await runtime.ensure("desk", desk(done("one"), wards=wards))
        await entity.send("first")
    async with Runtime.open(loom_url) as runtime:
        entity = await runtime.ensure("desk", desk(done("two"), done("three"), wards=wards))
        assert (await entity.send("second")).result == "two"
        with anyio.move_on_after(60) as scope:
            await entity.send("third", key="third")
        assert scope.cancelled_caught
        assert (await entity.spending())[0].usage.cost == pytest.approx(0.8)
    async with Runtime.open(loom_url) as runtime:
        raised = desk(done("three"), wards=(max_cost(1.5, per="day"),))
        entity = runtime.get_entity("desk", cantrip=raised)
        assert (await entity.send("third", key="third")).result == "three"


@pytest.mark.parametrize("now", [False, True])
async def test_an_interrupt_ends_the_wait_for_the_next_day_at_once(*, now: bool) -> None:
    made = desk(done("one"), done("two"), wards=(max_cost(0.3, per="day"),))
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", made)
        await entity.send("first")
        async with anyio.create_task_group() as group:

            async def interrupt() -> None:
                await anyio.sleep(60)
                await entity.interrupt("not today", now=now)

            group.start_soon(interrupt)
            episode = await entity.send("second")
        assert episode.reason == "interrupted"
        assert anyio.current_time() < 65
        assert anyio.current_time() < HOUR * 24


async def test_spending_is_summed_up_by_intents_days_and_months() -> None:
    made = desk(say("look"), done("one"), done("two"), wards=())
    async with Runtime.open() as runtime:
        entity: Entity = await runtime.ensure("desk", made)
        assert await entity.spending() == []
        await entity.send("first")
        await entity.send("second")
        by_intent = await entity.spending(per="intent")
        assert [(period, round(usage.cost, 6)) for period, usage in by_intent] == [("1", 0.8), ("2", 0.4)]
        (day,) = await entity.spending()
        (month,) = await entity.spending(per="month", zone="Europe/Oslo")
        assert day.usage == month.usage
        assert day.usage.total_tokens == 300


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: max_cost(1, when_spent="wait"), 'when_spent: expected together with per="day"'),
        (lambda: max_cost(0, per="day"), "max_cost: expected a number > 0, got 0"),
        (lambda: max_tokens(1.5, per="day"), "max_tokens: expected"),
        (lambda: max_cost(1, per="week"), "per: expected one of 'intent', 'day', 'month', got 'week'"),
        (lambda: max_cost(1, per="intent", when_spent="wait"), "no time brings a new intent"),
        (lambda: max_cost(1, per="intent", zone="Europe/Oslo"), "zone: expected with per"),
        (lambda: max_cost(1, per="day", zone="Mars/Olympus"), "got 'Mars/Olympus'"),
        (lambda: max_cost(1, per="day", when_spent="cry"), "when_spent: expected one of"),
        (lambda: Wards.of([{"max_cost": {"most": 2}}]), "with most and per"),
    ],
)
def test_a_budget_that_cannot_be_is_refused_where_it_is_written(make: object, message: str) -> None:
    with pytest.raises(InvalidCantrip, match=message):
        make()  # type: ignore[operator]


def test_only_a_budget_that_ends_something_bounds_an_entity() -> None:
    def is_bounded(ward: Ward) -> bool:
        return Wards.of([ward]).bounded

    assert is_bounded(max_cost(1, per="intent"))
    assert is_bounded(max_cost(1, per="day", when_spent="end"))
    assert not is_bounded(max_cost(1, per="day"))
    assert not is_bounded(max_cost(1, per="intent", when_spent="ask"))


BUDGETS = st.builds(
    lambda most, per, zone, when: PeriodBudget(
        "max_cost", most, per, zone, "end" if per == "intent" and when == "wait" else when
    ),
    st.sampled_from([1.0, 2.0, 3.0]),
    st.sampled_from(["intent", "day", "month"]),
    st.sampled_from(["UTC", "Europe/Oslo"]),
    st.sampled_from(["end", "wait", "ask"]),
)
SOME_WARDS = st.lists(BUDGETS, max_size=3).map(lambda found: Wards.of([Ward("max_cost", each) for each in found]))


@given(SOME_WARDS, SOME_WARDS, SOME_WARDS)
def test_budgets_for_periods_are_a_semilattice_as_all_wards_are(a: Wards, b: Wards, c: Wards) -> None:
    assert a & a == a
    assert a & b == b & a
    assert (a & b) & c == a & (b & c)
    assert Wards.of(a.list_wards()) == a


@given(
    st.floats(0, 4e9),
    st.sampled_from(["day", "month"]),
    st.sampled_from(["UTC", "Europe/Oslo", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"]),
)
def test_each_moment_is_in_one_period_of_its_zone(wall: float, per: str, zone: str) -> None:
    budget = PeriodBudget("max_cost", 1.0, per, zone)  # type: ignore[arg-type]
    start, end = budget.find_start(wall), budget.find_end(wall)
    assert start <= wall < end
    assert budget.name_period(start) == budget.name_period(wall) == budget.name_period(end - 0.001)
    assert budget.name_period(end) != budget.name_period(wall)
    assert budget.find_start(end) == end


async def test_an_entity_that_used_up_its_budget_tells_later_callers_how_it_ended() -> None:
    spender = desk(done("one"), wards=(max_cost(0.3),))
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.ensure("spender", spender)
        assert (await entity.send("one", key="1")).terminated
        last = await entity.send("two", key="2")
        assert last.summary == "max_cost(0.3) was used up after 0 turns"
        for key in (None, "3"):
            with pytest.raises(EntityEnded, match=r"has ended \(truncated\)"):
                await entity.send("three", key=key)


async def test_an_entity_that_waits_for_its_next_period_looks_at_the_clock_once() -> None:
    spender = desk(done("one"), done("two"), wards=(max_cost(0.3, per="day"),))
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.ensure("spender", spender)
        began = datetime.fromisoformat(runtime.loom.header(entity.id).at)
        midnight = datetime(began.year, began.month, began.day, tzinfo=UTC) + timedelta(days=1)
        await anyio.sleep((midnight - began).total_seconds() - HOUR / 2)
        await entity.send("one")
        with capture_logs() as lines:
            assert (await entity.send("two")).terminated
    assert [line["event"] for line in lines if line["event"] == "budget used up"] == ["budget used up"]
