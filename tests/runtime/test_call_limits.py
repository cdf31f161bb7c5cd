"""Limits of the calls of one gate (V-23): for an episode, a day or a month, children included."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, InvalidCantrip, Runtime, gate, scripted
from cantrip_actors.machine.budget import Ledger
from cantrip_actors.terms.call_limit import CallLimit
from cantrip_actors.terms.period import Period
from cantrip_actors.terms.ward import Wards
from cantrip_actors.testing import Crash, Process, run_with_crashes
from cantrip_actors.wards import max_calls, max_depth, max_turns
from tests.runtime.spells import done

pytestmark = pytest.mark.rule("V-23")


def say(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [{"gate": name, "args": args} for name, args in calls]}


PAY, LOOK = ("pay", {}), ("look", {})


class Shop:
    """Gates that count their calls."""

    def __init__(self) -> None:
        self.paid = self.looks = 0

    def circle(self, *wards: Any, medium: Any = "tools", more: tuple[Any, ...] = ()) -> Circle:
        @gate
        async def pay(fails: bool = False) -> str:
            """Pay."""
            self.paid += 1
            if fails:
                raise ValueError("the bank says no")
            return "paid"

        @gate(idempotent=True)
        async def look() -> str:
            """Look."""
            self.looks += 1
            await anyio.sleep(1)
            return "seen"

        return Circle(["done", pay, look, *more], [max_turns(9), *wards], medium=medium)


async def test_an_episode_may_call_a_gate_so_often_and_the_next_again() -> None:
    shop = Shop()
    steps = [say(PAY, ("pay", {"fails": True})), say(PAY, LOOK), done("one"), say(PAY), done("two")]
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", Cantrip(scripted(steps), circle=shop.circle(max_calls("pay", 2))))
        first = await entity.send("first")
        assert (first.result, shop.paid) == ("one", 2)  # one that failed has begun
        refused = first.thread[1].gate_calls[0]
        assert refused.is_error
        assert refused.result == "pay was not run: its calls are used up: max_calls(pay, 2 for each intent)"
        await entity.send("second")
    assert (shop.paid, shop.looks) == (3, 1)


async def test_calls_that_are_refused_for_another_reason_do_not_count() -> None:
    shop = Shop()
    steps = [say(("pay", {"fails": 3}), ("pay", {"no": 1})), say(PAY), done("ok")]
    async with Runtime.open() as runtime:
        await runtime.cast(Cantrip(scripted(steps), circle=shop.circle(max_calls("pay", 1))), "go")
    assert shop.paid == 1


async def test_children_that_work_at_once_share_the_calls_of_their_parent() -> None:
    shop = Shop()

    def policy(context: Any) -> dict[str, Any]:
        texts = [str(message.content) for message in context]
        if texts[-1] == "go":
            return say(("call_agent_batch", {"intents": [f"child {number}" for number in range(6)]}))
        if texts[-1].startswith("child"):
            return say(LOOK)
        return done("ok")

    circle = shop.circle(max_calls("look", 4), max_depth(1), more=("call_agent_batch",))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(scripted(policy), circle=circle), "go")
        assert episode.result == "ok"
        assert shop.looks == 4
        observed = [
            observation.result
            for child in runtime.loom.subtree(episode.entity_id)
            for turn in runtime.loom.turns(child)
            for observation in turn.gate_calls
            if observation.gate == "look"
        ]
    assert sorted(result == "seen" for result in observed) == [False] * 2 + [True] * 4


def find_zone_at_noon() -> str:
    """Return a zone in which this day began hours ago and lasts for hours."""
    hours = datetime.now(UTC).hour - 12
    return f"Etc/GMT{hours:+d}"


def cast_that_pays(shop: Shop, per: Period) -> Cantrip:
    limit = max_calls("pay", 1, per=per, zone=find_zone_at_noon())
    policy = scripted(lambda context: say(PAY) if str(context[-1].content) == "pay" else done("ok"))
    return Cantrip(policy, circle=shop.circle(limit))


async def test_processes_of_one_day_share_its_calls(tmp_path: Path) -> None:
    shop = Shop()
    for _ in range(3):
        async with Runtime.open(f"sqlite:{tmp_path / 'loom.db'}") as runtime:
            await (await runtime.ensure("desk", cast_that_pays(shop, "month"))).send("pay")
    assert shop.paid == 1


async def test_the_next_day_has_its_own_calls() -> None:
    shop = Shop()
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", cast_that_pays(shop, "day"))
        for paid in (1, 2):
            for _ in range(2):
                await entity.send("pay")
            assert shop.paid == paid
            await anyio.sleep(24 * 3600)


async def test_deferred_calls_count_and_a_result_that_was_delivered_is_never_refused() -> None:
    @gate(deferred=True)
    def ship() -> str:
        """Ship it."""

    steps = [say(("ship", {})), say(("ship", {})), done("ok")]
    circle = Circle(["done", ship], [max_turns(5), max_calls("ship", 1)])
    async with Runtime.open() as runtime:
        entity = await runtime.start(Cantrip(scripted(steps), circle=circle), "go")
        while not (requests := await runtime.list_requests()).items:
            await anyio.sleep(1)
        await runtime.deliver(requests.items[0].id, "sent")
        episode = await entity.episode()
    first, second = (turn.gate_calls[0] for turn in episode.thread[:2])
    assert (first.result, first.is_error) == ("sent", False)
    assert second.is_error
    assert "its calls are used up" in second.result


async def test_a_program_over_the_limit_gets_an_error() -> None:
    shop = Shop()
    code = "for _ in range(3):\n    try:\n        pay()\n    except Exception as error:\n        print(error)"
    circle = shop.circle(max_calls("pay", 2), medium="python")
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(scripted([{"code": code}, {"code": "done(1)"}]), circle=circle), "go")
    assert shop.paid == 2
    assert "its calls are used up" in episode.thread[0].observation


@pytest.mark.parametrize("number", range(1, 12))
async def test_a_crash_at_any_write_neither_adds_a_call_nor_takes_one(number: int) -> None:
    shop = Shop()

    def policy(context: Any) -> dict[str, Any]:
        return say(LOOK) if sum(message.role == "assistant" for message in context) < 3 else done("ok")

    made = Cantrip(scripted(policy), circle=shop.circle(max_calls("look", 2)))

    async def program(process: Process) -> Any:
        async with process.attach(Runtime.open()) as runtime:
            return await runtime.cast(made, "go", key="once")

    survived = await run_with_crashes(program, [Crash(number, recorded=number % 2 == 0)])
    seen = [observation.result == "seen" for turn in survived.value.thread for observation in turn.gate_calls]
    assert seen == [True, True, False, False]


def test_the_meet_of_limits_is_the_strictest_of_each_gate_and_period() -> None:
    stated = Wards.of(
        [
            {"max_calls": {"pay": 3, "look": {"most": 5, "per": "day"}}},
            max_calls("pay", 2),
            max_calls("pay", 1, per="month", zone="Europe/Oslo"),
        ]
    )
    assert [str(limit) for limit in stated.calls] == [
        "max_calls(look, 5 per day)",
        "max_calls(pay, 2 for each intent)",
        "max_calls(pay, 1 per month)",
    ]
    assert Wards.of(stated.list_wards()) == stated
    assert stated & Wards.of([]) == stated


@pytest.mark.parametrize(
    ("ward", "problem"),
    [
        (lambda: max_calls("pay", -1), "max_calls: expected a whole number"),
        (lambda: max_calls("", 1), "a gate's name"),
        (lambda: max_calls("pay", 1, per="week"), "per: "),  # type: ignore[arg-type]
        (lambda: max_calls("pay", 1, zone="UTC"), "zone: expected with per"),
        (lambda: max_calls("pay", 1, per="day", zone="Mars"), "zone: expected a name of the IANA database"),
        (lambda: {"max_calls": 5}, 'expected max_calls("search", 5)'),
        (lambda: max_calls("pya", 1), 'did you mean "pay"'),
        (lambda: max_calls("done", 1), "has no function whose calls are counted"),
    ],
)
def test_a_wrong_limit_is_refused_where_it_is_written(ward: Any, problem: str) -> None:
    with pytest.raises(InvalidCantrip) as refused:
        Shop().circle(ward())
    assert problem in str(refused.value)


@pytest.mark.parametrize("per", ["day", "intent"])
def test_calls_that_were_not_recorded_give_the_next_period_no_more_calls(per: Period) -> None:
    limit = CallLimit("pay", 1, per)
    ledger, now = Ledger(Wards(calls=(limit,))), 86_399.0
    with pytest.raises(OSError, match="full"), ledger.counting_calls(["pay"], lambda: now):  # noqa: PT012
        now += 2.0
        ledger.begin_intent()
        with ledger.counting_calls(["pay"], lambda: now):
            pass
        raise OSError("the disk is full")
    assert ledger.make_budget(lambda: now).spent_calls == {"pay": limit}
