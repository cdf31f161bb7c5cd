"""Schedules and timers: each firing happens once, at its time, in virtual time as in real time."""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import (
    Cantrip,
    Circle,
    InvalidIntent,
    InvalidSchedule,
    LoomError,
    Runtime,
    RuntimeClosed,
    ask_first,
    gate,
    scripted,
)
from cantrip_actors.gates import wake_me
from cantrip_actors.loom.stores.store import NextDue
from cantrip_actors.records.records import GateFinished, IntentGiven
from cantrip_actors.records.timers import Timer
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_turns
from supervisors.testing import virtual
from tests.exhaustive import part
from tests.loom import postgres
from tests.runtime.kills import intents
from tests.runtime.spells import cantrip, done, say
from tests.runtime.wall_clock import read_wall_clock

HOUR, DAY = 3600.0, 86_400.0


def repeat(context: Any) -> Any:
    """Answer with the intent."""
    return done(context[-1].content)


async def slowly(context: Any) -> Any:
    """Answer with the intent, after a thousand seconds."""
    return {**repeat(context), "delay": 1000.0}


SPELL = cantrip(scripted(repeat, record=False), name="spell")
SLOW = cantrip(scripted(slowly, record=False), name="slow")


@pytest.fixture(params=["memory", "jsonl", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory:"
    return postgres.fresh() if request.param == "postgres" else f"{request.param}:{tmp_path / 'loom'}"


async def invoked(runtime: Runtime, spell: Cantrip = SPELL, name: str = "x") -> str:
    """Make a long-lived entity, and return its id once it is idle."""
    entity = await runtime.invoke(spell, "start", name=name)
    await entity.episode()
    return entity.id


def casts(runtime: Runtime) -> list[str]:
    """The intents of the one-shot entities, in order."""
    return [intents(runtime, header.entity_id)[0] for header in runtime.loom.headers() if not header.lasting]


def local(seconds: float = 0.0) -> str:
    """Return a future time, in UTC, without an offset."""
    return datetime.fromtimestamp(read_wall_clock() + seconds, UTC).replace(tzinfo=None).isoformat()


# -------------------------------------------------------------------------------------------------------------- firing


async def test_a_schedule_gives_an_entity_its_intent_again_and_again(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity = await invoked(runtime)
        made = await runtime.schedule("x", "tick", every=20)
        assert (made.to, made.name, made.intent, made.rule) == ("entity", "x", "tick", "every 20 s")
        await anyio.sleep(65)
        assert intents(runtime, entity) == ["start", "tick", "tick", "tick"]


@pytest.mark.rule("C-31")
async def test_schedules_fire_if_one_has_an_intent_with_half_a_character(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity = await invoked(runtime)
        await runtime.schedule("x", "half a character: \ud83d", every=20)
        await runtime.schedule("x", "tick", every=30)
        await anyio.sleep(35)
        assert intents(runtime, entity) == ["start", "half a character: \ud83d", "tick"]


async def test_a_schedule_casts_a_new_entity_at_each_firing(url: str) -> None:
    async with Runtime.open(url) as runtime:
        made = await runtime.schedule(SPELL, "look", every=20)
        assert (made.to, made.name) == ("cantrip", "spell")
        await anyio.sleep(65)
        assert casts(runtime) == ["look", "look", "look"]
        assert all(runtime.loom.is_over(one) for one in runtime.loom.entities())


async def test_a_schedule_fires_at_a_time_once_and_is_gone(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        await runtime.schedule("spell", "then", at=local(30))
        await anyio.sleep(29)
        assert casts(runtime) == []
        await anyio.sleep(2)
        assert casts(runtime) == ["then"]
        assert runtime.schedules() == []


@pytest.mark.rule("C-31", "N-43")
async def test_a_cron_line_fires_each_day_in_its_zone() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        entity = await invoked(runtime)
        made = await runtime.schedule("x", "good morning", cron="0 9 * * *", zone="Asia/Kolkata")
        assert made.next_at is not None
        assert (made.next_at.hour, made.next_at.utcoffset()) == (9, timedelta(hours=5, minutes=30))
        await anyio.sleep(2 * DAY)
        assert intents(runtime, entity).count("good morning") == 2


async def test_a_firing_loads_an_entity_that_is_not_loaded() -> None:
    async with Runtime.open(cantrips=[SPELL], passivate_after=10) as runtime:
        entity = await invoked(runtime)
        await runtime.schedule("x", "tick", every=HOUR)
        await anyio.sleep(HOUR - 10)
        assert not runtime.get_entity(entity).loaded
        await anyio.sleep(11)
        assert intents(runtime, entity) == ["start", "tick"]


async def test_a_schedule_prefers_an_entity_to_a_cantrip_of_the_same_name() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        await invoked(runtime, name="spell")
        assert (await runtime.schedule("spell", "tick", every=20)).to == "entity"
        assert (await runtime.schedule("spell", "tick", every=20, to="cantrip")).to == "cantrip"


async def test_an_entity_is_scheduled_by_its_id() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        entity = await invoked(runtime)
        await runtime.schedule(entity, "tick", every=20)
        await anyio.sleep(21)
        assert intents(runtime, entity) == ["start", "tick"]


async def test_the_receipt_of_a_firing_is_found_by_its_key() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        await invoked(runtime)
        await runtime.schedule("x", "tick", every=20, id="s")
        await anyio.sleep(21)
        (made,) = runtime.schedules()
        assert made.last_key is not None
        assert (await runtime.receipt("x", made.last_key).episode()).result == "tick"


async def test_a_waiting_schedule_needs_no_task() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        before = len(anyio.get_running_tasks())
        for n in range(50):
            await runtime.schedule("spell", "tick", every=HOUR + n)
        assert len(anyio.get_running_tasks()) == before


# ---------------------------------------------------------------------------------------------------------- the handle


@pytest.mark.rule("N-49")
async def test_a_paused_schedule_does_not_fire_and_skips_the_times_of_its_pause(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        made = await runtime.schedule("spell", "tick", every=20)
        await made.pause()
        assert made.is_paused
        assert made.next_at is None
        await anyio.sleep(50)
        await made.resume()
        assert casts(runtime) == []
        await anyio.sleep(12)
        assert casts(runtime) == ["tick"]


async def test_pausing_and_resuming_twice_changes_nothing() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        made = await runtime.schedule("spell", "tick", every=20)
        due = made.next_at
        await made.resume()
        assert made.next_at == due
        await made.pause()
        await made.pause()
        assert made.is_paused


async def test_a_removed_schedule_does_not_fire(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        made = await runtime.schedule("spell", "tick", every=20)
        await made.remove()
        await made.remove()
        await anyio.sleep(50)
        assert casts(runtime) == []
        assert runtime.schedules() == []
        with pytest.raises(LoomError, match="not in the loom any more"):
            await made.pause()


async def test_a_schedule_whose_time_passed_in_its_pause_cannot_be_resumed() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        made = await runtime.schedule("spell", "tick", at=local(20))
        await made.pause()
        await anyio.sleep(30)
        with pytest.raises(InvalidSchedule, match="its time passed while it was paused"):
            await made.resume()


@pytest.mark.rule("N-49")
async def test_schedules_are_listed_by_their_ids_in_every_process(url: str) -> None:
    if url == "memory:":
        pytest.skip("a memory loom has one process")
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        await runtime.schedule("spell", "b", every=HOUR, id="b")
        await runtime.schedule("spell", "a", cron="0 9 * * MON", zone="Europe/Oslo", id="a", overlap="queue")
    async with Runtime.open(url) as runtime:
        first, second = runtime.schedules()
        assert (first.id, first.rule, first.zone, first.overlap) == ("a", "cron 0 9 * * MON", "Europe/Oslo", "queue")
        assert (second.id, second.intent, second.catch_up) == ("b", "b", "one")
        await second.remove()
        assert [one.id for one in runtime.schedules()] == ["a"]


async def test_a_schedule_with_the_same_id_and_content_is_made_once() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        first = await runtime.schedule("spell", "tick", every=20, id="s")
        await anyio.sleep(15)
        again = await runtime.schedule("spell", "tick", every=20, id="s")
        assert again.next_at == first.next_at
        await anyio.sleep(6)
        assert casts(runtime) == ["tick"]


@pytest.mark.rule("N-49")
async def test_a_schedule_with_the_same_id_and_other_content_replaces_the_first_one() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        await runtime.schedule("spell", "old", every=20, id="s")
        await anyio.sleep(15)
        await runtime.schedule("spell", "new", every=30, id="s")
        await anyio.sleep(31)
        assert casts(runtime) == ["new"]
        assert len(runtime.schedules()) == 1


@pytest.mark.rule("N-49")
@pytest.mark.parametrize("rule", ["at", "every"])
@pytest.mark.parametrize("to", ["entity", "cantrip"])
async def test_a_due_firing_happens_with_the_intent_of_a_new_release(tmp_path: Path, to: Any, rule: str) -> None:
    """The second release sets its schedule before any process can fire that of the first one."""
    url, given = f"jsonl:{tmp_path / 'loom'}", {"at": local(20)} if rule == "at" else {"every": 20}
    more: dict[str, Any] = {**given, "id": "s", "to": to}
    async with Runtime.open(url) as runtime:
        await runtime.schedule("x" if to == "entity" else "spell", "old", **more)
        await anyio.sleep(25)
    async with Runtime.open(url) as runtime:
        await runtime.schedule("x" if to == "entity" else "spell", "new", **more)
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity = await invoked(runtime)
        await anyio.sleep(5)
        assert [*intents(runtime, entity), *casts(runtime)] == ["start", "new"]


@pytest.mark.rule("N-49")
async def test_a_new_intent_of_a_schedule_does_not_move_its_times() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        for number in range(5):
            await runtime.schedule("spell", f"tick {number}", every=20, id="s")
            await anyio.sleep(14)
        assert casts(runtime) == ["tick 1", "tick 2", "tick 4"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": "nobody"}, 'no long-lived entity and no cantrip of this runtime is called "nobody"'),
        ({"target": cantrip([])}, "a schedule keeps the name of its cantrip"),
        ({"target": SPELL, "to": "entity"}, "a cantrip was given"),
        ({"target": ""}, "expected a cantrip, or the name"),
        ({"to": "somebody"}, "to: expected one of 'entity', 'cantrip'"),
        ({"id": "a\nb"}, "id: expected a text that is not empty, without control characters"),
        ({"catch_up": "some"}, "catch_up: expected one of 'one', 'all', 'skip'"),
        ({"overlap": "run"}, "overlap: expected one of 'skip', 'queue', 'stop'"),
        ({"every": None, "at": "2020-01-01T00:00"}, "at: expected a time to come"),
        ({"every": None, "cron": "0 9 31 2 *"}, "is not a rule that fires"),
        ({"every": None, "cron": "0 9 * * *", "zone": "Nowhere/At_All"}, "zone: expected a name of the IANA database"),
        ({"every": None, "cron": "0 9 * * *", "zone": ""}, "zone: expected a name of the IANA database"),
    ],
)
async def test_an_invalid_schedule_is_refused(given: dict[str, Any], message: str) -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        options: dict[str, Any] = {"target": "spell", "every": 60, **given}
        with pytest.raises(InvalidSchedule, match=message):
            await runtime.schedule(options.pop("target"), "tick", **options)
        assert runtime.schedules() == []


@pytest.mark.parametrize("intent", ["", " ", 3])
async def test_a_schedule_without_an_intent_is_refused(intent: Any) -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        with pytest.raises(InvalidIntent):
            await runtime.schedule("spell", intent, every=60)


async def test_a_runtime_that_drains_makes_no_schedule_and_fires_none() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        await runtime.schedule("spell", "tick", every=20)
        await runtime.drain()
        await anyio.sleep(50)
        assert casts(runtime) == []
        with pytest.raises(RuntimeClosed):
            await runtime.schedule("spell", "tick", every=20)


async def test_a_schedule_is_redacted_at_rest() -> None:
    async with Runtime.open(cantrips=[SPELL], secrets=["open sesame"], redact="at_rest") as runtime:
        await runtime.schedule("spell", "say open sesame", every=20, id="s")
        made = await runtime.schedule("spell", "say open sesame", every=20, id="s")
        assert "sesame" not in made.intent
        await anyio.sleep(21)
        assert casts(runtime) == [made.intent]


async def test_a_blocking_runtime_has_schedules() -> None:
    def work() -> None:
        with Runtime.blocking(cantrips=[SPELL]) as runtime:
            made = runtime.schedule("spell", "tick", every=HOUR, id="s")
            made.pause()
            assert [one.id for one in runtime.schedules()] == [made.id] == ["s"]
            assert made.state.is_paused
            made.resume()
            made.remove()
            assert runtime.schedules() == []

    await anyio.to_thread.run_sync(work)


# --------------------------------------------------------------------------------------------- overlap, catching up


@pytest.mark.rule("C-31", "N-46")
@pytest.mark.parametrize("to", ["entity", "cantrip"])
@pytest.mark.parametrize(("overlap", "begun"), [("skip", 3), ("queue", 3), ("stop", 8)])
async def test_firings_overlap_as_the_schedule_says(to: Any, overlap: Any, begun: int) -> None:
    """An episode takes 1000 s, a firing is due every 400 s: at 400, 800, … 3200."""
    async with Runtime.open(cantrips=[SLOW]) as runtime:
        entity = await invoked(runtime, SLOW) if to == "entity" else ""
        await runtime.schedule("x" if entity else "slow", "tick", every=400, overlap=overlap)
        await anyio.sleep(3399)
        assert (intents(runtime, entity)[1:] if entity else casts(runtime)) == ["tick"] * begun
        (made,) = runtime.schedules()
        await made.remove()
        await anyio.sleep(20_000)
        total = 8 if overlap == "queue" and entity else begun
        assert len(intents(runtime, entity)[1:] if entity else casts(runtime)) == total
        reasons = {runtime.loom.state(one) for one in runtime.loom.entities()} - {"idle"}
        assert entity or reasons == ({"terminated", "cancelled"} if overlap == "stop" else {"terminated"}), reasons


@gate
async def pay() -> str:
    """Pay."""
    return "paid"


def pays(context: Any) -> Any:
    """Answer the first intent, and pay for each later one and for each of a one-shot entity."""
    return done("ok") if context[-1].content in ("start", "paid") else say("pay")


PAYS = Cantrip(scripted(pays, record=False), circle=Circle(["done", ask_first(pay)], [max_turns(5)]), name="pays")


@pytest.mark.rule("C-31", "N-46")
@pytest.mark.parametrize("to", ["entity", "cantrip"])
@pytest.mark.parametrize(("overlap", "begun"), [("skip", 1), ("queue", 1), ("stop", 10)])
async def test_a_firing_is_at_work_while_its_entity_waits_for_a_person(to: Any, overlap: Any, begun: int) -> None:
    """The entity is unloaded after five minutes, and waits for hours."""
    async with Runtime.open(cantrips=[PAYS]) as runtime:
        entity = await invoked(runtime, PAYS) if to == "entity" else ""
        await runtime.schedule("x" if entity else "pays", "tick", every=1000, overlap=overlap)
        await anyio.sleep(10_500)
        assert (intents(runtime, entity)[1:] if entity else casts(runtime)) == ["tick"] * begun
        assert len(runtime.requests()) == 1
        waiting = runtime._tree.store.count_mail(entity).intents
        assert waiting == (9 if entity and overlap == "queue" else 0)


@pytest.mark.rule("C-31")
async def test_a_queued_firing_begins_as_soon_as_the_last_one_ends_although_that_was_unloaded() -> None:
    async with Runtime.open(cantrips=[PAYS]) as runtime:
        await runtime.schedule("pays", "tick", every=1000, overlap="queue")
        await anyio.sleep(2517)
        assert casts(runtime) == ["tick"]
        await runtime.decide(runtime.requests()[0].id, "allow")
        await anyio.sleep(1)
        assert casts(runtime) == ["tick", "tick"]


@pytest.mark.rule("C-31", "N-44")
@pytest.mark.parametrize("to", ["entity", "cantrip"])
@pytest.mark.parametrize(("catch_up", "fired"), [("one", 1), ("all", 5), ("skip", 0)])
async def test_times_that_passed_while_no_runtime_was_open_are_caught_up(
    tmp_path: Path, to: Any, catch_up: Any, fired: int
) -> None:
    url = f"jsonl:{tmp_path / 'loom'}"
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity = await invoked(runtime)
        await runtime.schedule("x" if to == "entity" else "spell", "tick", every=200, catch_up=catch_up)
    await anyio.sleep(1090)
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        await anyio.sleep(20)
        assert [*intents(runtime, entity), *casts(runtime)].count("tick") == fired
        await anyio.sleep(100)
        assert [*intents(runtime, entity), *casts(runtime)].count("tick") == fired + 1


async def test_a_firing_stays_due_and_is_listed_until_its_cantrip_is_offered(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path / 'loom'}"
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        await runtime.schedule("spell", "tick", every=100)
    async with Runtime.open(url) as runtime:
        await anyio.sleep(150)
        (made,) = runtime.schedules()
        assert made.is_due
        assert casts(runtime) == []
        await runtime.schedule(SPELL, "other", every=HOUR)
        await anyio.sleep(1)
        assert casts(runtime) == ["tick"]
        assert not runtime.schedules()[0].is_due


@pytest.mark.parametrize("how", ["invoke", "ensure"])
async def test_a_firing_for_an_ended_entity_waits_for_the_next_entity_with_its_name(how: str) -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        await invoked(runtime)
        await runtime.schedule("x", "tick", every=100)
        entity = runtime.entity("x")
        assert entity is not None
        await entity.stop()
        await anyio.sleep(150)
        assert runtime.schedules()[0].is_due
        new = await (invoked(runtime) if how == "invoke" else runtime.ensure("x", SPELL))
        await anyio.sleep(1)
        assert intents(runtime, new.id if how == "ensure" else new) == (
            ["start", "tick"] if how == "invoke" else ["tick"]
        )


async def test_a_firing_that_is_set_aside_does_not_delay_others() -> None:
    async with Runtime.open(cantrips=[SPELL]) as runtime:
        for n in range(150):
            await runtime.schedule("unknown", "tick", every=100, to="cantrip" if n % 2 else "entity")
        await runtime.schedule("spell", "tick", every=101)
        await anyio.sleep(102)
        assert casts(runtime) == ["tick"]
        await runtime.schedule("spell", "soon", at=local(5))
        await anyio.sleep(6)
        assert casts(runtime) == ["tick", "soon"]


@pytest.mark.rule("C-31")
async def test_a_firing_with_overlap_stop_adds_no_intent_while_the_last_one_waits_in_the_inbox() -> None:
    async with Runtime.open(cantrips=[SLOW]) as runtime:
        entity = await runtime.invoke(SLOW, "start", name="x")
        await runtime.schedule("x", "tick", every=200, overlap="stop")
        await anyio.sleep(990)
        (made,) = runtime.schedules()
        await made.remove()
        await anyio.sleep(5000)
        assert intents(runtime, entity.id) == ["start", "tick"]


async def test_a_firing_into_a_full_inbox_is_delivered_later() -> None:
    async with Runtime.open(cantrips=[SLOW], max_waiting=1) as runtime:
        entity = await runtime.invoke(SLOW, "start", name="x")
        await entity.post("fills the inbox")
        await runtime.schedule("x", "tick", every=700)
        await anyio.sleep(701)
        assert runtime.schedules()[0].is_due
        await anyio.sleep(2500)
        assert "tick" in intents(runtime, entity.id)


async def test_a_scheduled_intent_is_not_logged() -> None:
    broken = Cantrip(scripted([]), circle=Circle(["done"], [max_turns(1)], medium="python"), name="broken")
    with capture_logs() as logs:
        async with Runtime.open(cantrips=[SPELL, broken]) as runtime:
            await runtime.schedule("broken", "a secret matter", every=20)
            await runtime.schedule("spell", "a secret matter", every=20)
            await anyio.sleep(100)
    assert "secret" not in repr(logs)


# --------------------------------------------------------------------------------------------------------------- timers


def wakes(**args: Any) -> Cantrip:
    """A cantrip whose entities call wake_me on their first intent."""

    def answer(context: Any) -> Any:
        said = [message for message in context if message.role in ("user", "tool")][-1]
        return say("wake_me", **args) if said.content == "start" else done(said.content)

    return Cantrip(scripted(answer, record=False), circle=Circle(["done", "wake_me"], [max_turns(5)]), name="wakes")


def observation(runtime: Runtime, entity: str) -> Any:
    """The observation of an entity's first gate call."""
    return next(one for one in runtime.loom.records(entity) if isinstance(one, GateFinished))


@pytest.mark.rule("N-48")
async def test_wake_me_sends_an_entity_mail_at_the_set_time(url: str) -> None:
    spell = wakes(in_seconds=30, why="look again")
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        entity = await invoked(runtime, spell)
        seen = observation(runtime, entity)
        assert (seen.is_error, seen.result) == (False, "you will be woken in 30 s")
        await anyio.sleep(29)
        assert intents(runtime, entity) == ["start"]
        await anyio.sleep(2)
        assert intents(runtime, entity) == ["start", "look again"]
        assert runtime._tree.store.timers(entity) == []


@pytest.mark.rule("N-48")
async def test_an_entity_that_is_unloaded_wakes_in_the_next_process(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path / 'loom'}"
    spell = wakes(in_seconds=DAY, why="look again")
    async with Runtime.open(url, cantrips=[spell], passivate_after=10) as runtime:
        entity = await invoked(runtime, spell)
        await anyio.sleep(HOUR)
        assert not runtime.get_entity(entity).loaded
    await anyio.sleep(2 * DAY)
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        await anyio.sleep(1)
        assert intents(runtime, entity) == ["start", "look again"]


@pytest.mark.rule("N-48")
async def test_a_timer_ends_with_its_entity() -> None:
    spell = wakes(in_seconds=30, why="look again")
    async with Runtime.open(cantrips=[spell]) as runtime:
        entity = await invoked(runtime, spell)
        await runtime.get_entity(entity).stop()
        assert runtime._tree.store.timers_due(math.inf) == []


@pytest.mark.parametrize("zone", [None, "Asia/Kolkata"])
async def test_wake_me_reads_local_times_in_the_zone_of_its_gate(zone: str | None) -> None:
    own = wake_me if zone is None else wake_me.with_(zone=zone)

    def answer(context: Any) -> Any:
        return say("wake_me", at="2100-01-01T12:00", why="it is noon") if len(context) < 2 else done("x")

    spell = Cantrip(scripted(answer, record=False), circle=Circle(["done", own], [max_turns(5)]))
    async with Runtime.open(cantrips=[spell]) as runtime:
        entity = await invoked(runtime, spell)
        hour = "12:00:00" if zone is None else "06:30:00"
        assert observation(runtime, entity).result == f"you will be woken at 2100-01-01T{hour}.000Z"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"why": "x"}, "expected one of `at` and `in_seconds`"),
        ({"why": "x", "at": "2100-01-01", "in_seconds": 5}, "expected one of `at` and `in_seconds`"),
        ({"why": "x", "at": "2020-01-01T00:00"}, "expected a time to come, got 2020-01-01T00:00; it is 20"),
        ({"why": "x", "at": "soon"}, "expected a time as in"),
        ({"why": "x", "in_seconds": -1}, "in_seconds"),
        ({"why": "x", "in_seconds": 1e12}, "in_seconds: expected at most 3,162,240,000 seconds, got 1000000000000.0"),
        ({"at": "2100-01-01"}, "why"),
    ],
)
async def test_wake_me_with_wrong_arguments_is_an_error_observation(args: dict[str, Any], message: str) -> None:
    spell = wakes(**args)
    async with Runtime.open(cantrips=[spell]) as runtime:
        entity = await invoked(runtime, spell)
        seen = observation(runtime, entity)
        assert seen.is_error
        assert message in seen.result
        assert runtime._tree.store.timers(entity) == []


async def test_wake_me_in_a_one_shot_entity_is_an_error_observation_that_says_to_use_invoke() -> None:
    spell = wakes(in_seconds=30, why="look again")
    async with Runtime.open() as runtime:
        episode = await runtime.cast(spell, "start")
        seen = observation(runtime, episode.entity_id)
        assert seen.is_error
        assert "invoke" in seen.result


async def test_wake_me_in_a_program_sets_a_timer() -> None:
    def answer(context: Any) -> Any:
        intent = next(one.content for one in reversed(context) if one.role == "user")
        return {"code": "wake_me(in_seconds=30, why='look again'); done('x')" if intent == "start" else "done('x')"}

    spell = Cantrip(scripted(answer, record=False), circle=Circle(["done", wake_me], [max_turns(5)], medium="python"))
    async with Runtime.open(cantrips=[spell]) as runtime:
        entity = await invoked(runtime, spell)
        await anyio.sleep(31)
        assert intents(runtime, entity) == ["start", "look again"]


# ---------------------------------------------------------------------------------------------------------------- kills


def scheduled(runtime: Runtime) -> list[str]:
    """The keys of all firings that were taken or begun."""
    keys: list[str | None] = []
    for header in runtime.loom.headers():
        records = runtime.loom.records(header.entity_id)
        keys += [header.key, *(one.key for one in records if isinstance(one, IntentGiven))]
    return [key for key in keys if key is not None and key.startswith("schedule:")]


async def killed_at(url: str, at: int, *, durable: bool) -> None:
    """Kill a process at its `at`-th write, and let the next one continue; each firing happens once.

    The times are short, because a runtime that shares its loom looks for news twice a second.
    """
    waking = wakes(in_seconds=6, why="look again")
    spells = [SPELL, waking]
    async with Runtime.open(url, cantrips=spells, recover="resume") as runtime:
        entity = await invoked(runtime)
        woken = await invoked(runtime, waking, "y")
        await runtime.schedule("x", "tick", every=4, id="x", catch_up="all", overlap="queue")
        await runtime.schedule("spell", "tick", every=4, id="c", catch_up="all", overlap="queue")
        Process(Crash(at, durable)).attach(runtime)
        await anyio.sleep(13)
    async with Runtime.open(url, cantrips=spells, recover="resume") as runtime:
        await anyio.sleep(14)
        for made in runtime.schedules():
            await made.remove()
        await anyio.sleep(1)
        keys = scheduled(runtime)
        assert len(keys) == len(set(keys))
        of_entity, of_cantrip = ([key for key in keys if key.startswith(f"schedule:{id}@")] for id in "xc")
        assert of_entity == sorted(of_entity)
        assert len(of_entity) == len(of_cantrip) in (6, 7)
        assert [intents(runtime, entity).count("tick"), len(casts(runtime))] == [len(of_entity), len(of_cantrip)]
        assert intents(runtime, woken) == ["start", "look again"]


@pytest.mark.rule("C-30")
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("store", ["sqlite", "jsonl"])
@pytest.mark.parametrize("at", part(range(1, 24), 4))
async def test_each_firing_happens_once_when_the_process_is_killed_at_any_write(
    tmp_path: Path, at: int, store: str, durable: bool
) -> None:
    await killed_at(f"{store}:{tmp_path / 'loom'}", at, durable=durable)


@pytest.mark.rule("C-30", "N-43")
@pytest.mark.parametrize("at", [2, 5])
async def test_each_firing_happens_once_in_postgres_when_the_process_is_killed(at: int) -> None:
    await killed_at(postgres.fresh(), at, durable=True)


@pytest.mark.rule("C-30", "N-43")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_two_runtimes_fire_each_time_once(tmp_path: Path, kind: str) -> None:
    url = postgres.fresh() if kind == "postgres" else f"sqlite:{tmp_path / 'loom'}"
    async with Runtime.open(url, cantrips=[SPELL]) as runtime, Runtime.open(url, cantrips=[SPELL]) as other:
        entity = await invoked(runtime)
        await other.schedule("x", "tick", every=20, id="x")
        await runtime.schedule("spell", "tick", every=20, id="c")
        await anyio.sleep(65)
        keys = scheduled(other)
        assert len(keys) == len(set(keys)) == 6
        assert intents(other, entity) == ["start", "tick", "tick", "tick"]
        assert casts(other) == ["tick"] * 3


@pytest.mark.rule("C-30", "N-49")
async def test_a_runtime_sees_the_schedules_of_another_process(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        async with Runtime.open(url) as other:
            await other.schedule("spell", "tick", at=local(5), to="cantrip")
        await anyio.sleep(7)
        assert casts(runtime) == ["tick"]


# ------------------------------------------------------------------------------------------------------------- many


@pytest.mark.rule("C-32")
def test_schedules_that_are_not_due_are_not_read() -> None:
    """A runtime asks once a minute when the next one is due, with 20,000 of them as with one, and reads none."""
    looks, reads = Counter[int](), Counter[int]()

    async def work(number: int) -> None:
        async with Runtime.open(cantrips=[SPELL]) as runtime:
            store = runtime._tree.store
            row: Timer | None = None
            for n in range(number):
                if row is None:
                    made = await runtime.schedule("spell", "tick", every=30 * DAY, id="0")
                    row = made._row
                    assert row is not None
                else:
                    store.replace_timer(None, Timer(id=str(n), due=row.due, schedule=row.schedule))
            next_due = store.next_due

            def count_look(after: float) -> NextDue:
                looks[number] += 1
                return next_due(after)

            def count_read(*_: Any, **__: Any) -> list[Timer]:
                reads[number] += 1
                return []

            store.next_due = count_look  # type: ignore[method-assign]
            store.timers_due = count_read  # type: ignore[method-assign]
            await anyio.sleep(HOUR)

    for backend, options in (virtual("asyncio"), virtual("trio")):
        looks.clear()
        for number in (1, 20_000):
            anyio.run(work, number, backend=backend, backend_options=options)
        assert [58 <= looks[number] <= 62 for number in (1, 20_000)] == [True, True], looks
        assert not reads
