"""Keys: a send, cast, start, invoke or fork with a key happens once, however often it is repeated."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    CantripError,
    Circle,
    Entity,
    EntityEnded,
    Episode,
    InvalidIntent,
    KeyUsed,
    LoomError,
    Runtime,
    ask_first,
    gate,
    scripted,
)
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_turns
from supervisors.events import Exited
from tests.exhaustive import part
from tests.runtime.kills import attempt, intents
from tests.runtime.spells import cantrip, done, say


async def slowly(context: Any) -> Any:
    """Answer with the intent, after ten seconds."""
    return {**done(context[-1].content), "delay": 10.0}


def two_turns(context: Any) -> Any:
    """Answer with the intent, at the second turn."""
    return done(context[-3].content) if context[-1].role == "tool" else say("echo", text="x")


SPELL = cantrip(scripted(slowly, record=False))
TWO_TURNS = cantrip(scripted(two_turns, record=False))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'loom.db'}"


async def at_once(number: int, work: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Return the results of so many concurrent calls."""
    results: list[Any] = []

    async def call() -> None:
        results.append(await work())

    async with anyio.create_task_group() as tasks:
        for _ in range(number):
            tasks.start_soon(call)
    return results


def same(episodes: list[Episode]) -> Episode:
    """Return the one episode that all of these are."""
    first, *others = episodes
    for other in others:
        assert (other.entity_id, other.result, other.thread) == (first.entity_id, first.result, first.thread)
    return first


# Sends and posts


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("where", ["loaded", "unloaded"])
async def test_a_send_that_is_repeated_with_its_key_returns_the_same_episode(url: str, where: str) -> None:
    async with Runtime.open(url, passivate_after=60) as runtime:
        entity = await runtime.invoke(SPELL, "start", name="x")
        first = await entity.send("order", key="4711")
        assert first.result == "order"
        if where == "unloaded":
            await anyio.sleep(100)
        assert same([first, await entity.send("order", key="4711")])
        assert same([first, await (await entity.post("order", key="4711")).episode()])
        assert intents(runtime, entity.id) == ["start", "order"]


@pytest.mark.rule("C-11")
async def test_a_send_that_is_repeated_after_the_entity_was_stopped_returns_the_same_episode(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(SPELL, "start", name="x")
        first = await entity.send("order", key="4711")
        await entity.stop()
        assert same([first, await entity.send("order", key="4711")])
        assert same([first, await runtime.receipt(entity, "4711").episode()])
        with pytest.raises(EntityEnded):
            await entity.send("order", key="another")


@gate
async def pay() -> str:
    """Pay."""
    return "paid"


@pytest.mark.rule("C-11")
async def test_a_key_is_known_while_its_intent_waits_for_a_person_for_weeks(tmp_path: Path) -> None:
    pays = scripted(lambda context: say("pay") if context[-1].content == "order" else done("ok"), record=False)
    spell = Cantrip(pays, circle=Circle(["done", ask_first(pay)], [max_turns(5)]))
    async with Runtime.open(f"jsonl:{tmp_path / 'loom'}") as runtime:
        entity = await runtime.invoke(spell, "start", name="x")
        await entity.post("order", key="4711")
        await entity.post("later", key="4712")
        while not runtime.requests():
            await anyio.sleep(1)
        await anyio.sleep(8 * 86_400.0)
        assert (await entity.post("order", key="4711")).state == "working"
        await runtime.decide(runtime.requests()[0].id, "allow")
        await anyio.sleep(6 * 86_400.0)
        assert (await entity.post("order", key="4711")).state == "settled"
        assert intents(runtime, entity.id) == ["start", "order", "later"]


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("seconds", [0.0, 5.0, 30.0, 200.0], ids=["waiting", "working", "settled", "unloaded"])
async def test_other_content_with_a_key_that_was_sent_is_refused(url: str, seconds: float) -> None:
    async with Runtime.open(url, passivate_after=60) as runtime:
        entity = await runtime.invoke(SPELL, "start", name="x")
        if seconds:
            await entity.episode()
        await entity.post("order", key="4711")
        await anyio.sleep(seconds)
        for intent, context in (("another order", None), ("order", {"of": 3})):
            for give in (entity.send, entity.post):
                with pytest.raises(KeyUsed):
                    await give(intent, context=context, key="4711")
        assert (await entity.send("order", key="4711")).result == "order"
        assert intents(runtime, entity.id) == ["start", "order"]


@pytest.mark.rule("C-11")
async def test_a_key_belongs_to_one_entity() -> None:
    async with Runtime.open() as runtime:
        for n in range(2):
            entity = await runtime.invoke(SPELL, "start")
            assert (await entity.send(f"order {n}", key="4711")).result == f"order {n}"


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("where", ["loaded", "working", "unloaded"])
async def test_20_concurrent_sends_with_one_key_are_handled_once(url: str, where: str) -> None:
    async with Runtime.open(url, passivate_after=60) as runtime:
        entity = await runtime.invoke(SPELL, "start", name="x")
        if where != "working":
            await entity.episode()
        await anyio.sleep(100 if where == "unloaded" else 0)

        async def send() -> Episode:
            return await entity.send("order", key="4711")

        assert same(await at_once(20, send)).result == "order"
        assert intents(runtime, entity.id) == ["start", "order"]


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_concurrent_sends_that_repeat_several_keys_are_each_handled_once(url: str, store: str) -> None:
    """All posts share one transaction, which gives repetitions the number of the mail that they repeat."""
    crashes: list[Exited] = []
    async with Runtime.open(url if store == "sqlite" else "memory:") as runtime:
        runtime.watch_actors(lambda event: crashes.append(event) if isinstance(event, Exited) else None)
        entity = await runtime.invoke(SPELL, "start")
        await entity.episode()
        results: list[Any] = []

        async def send(n: int) -> None:
            results.append((n, (await entity.send(f"order {n}", key=f"{n}")).result))

        async with anyio.create_task_group() as tasks:
            for n in [*range(5)] * 3:
                tasks.start_soon(send, n)
        assert sorted(results) == sorted((n, f"order {n}") for n in [*range(5)] * 3)
        assert sorted(intents(runtime, entity.id)) == [*(f"order {n}" for n in range(5)), "start"]
        assert crashes == []


@pytest.mark.rule("C-11")
async def test_sends_with_one_key_through_two_runtimes_are_handled_once(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as one, Runtime.open(url, cantrips=[SPELL]) as two:
        made = await one.invoke(SPELL, "start", name="x")
        episodes: list[Episode] = []

        async def send(runtime: Runtime) -> None:
            entity = runtime.entity("x")
            assert entity is not None
            episodes.append(await entity.send("order", key="4711"))

        async with anyio.create_task_group() as tasks:
            for runtime in (one, two) * 10:
                tasks.start_soon(send, runtime)
        assert same(episodes).result == "order"
        assert intents(two, made.id) == ["start", "order"]
        with pytest.raises(KeyUsed):
            await two.entity("x").send("another order", key="4711")


@pytest.mark.rule("C-11")
async def test_a_send_without_a_key_is_another_intent_each_time() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SPELL, "start")
        for _ in range(3):
            await entity.send("again")
        assert intents(runtime, entity.id) == ["start", "again", "again", "again"]


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("key", ["", "  ", 5])
async def test_a_key_that_is_not_a_text_is_refused(key: Any) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SPELL, "start")
        for work in (
            entity.send("x", key=key),
            entity.post("x", key=key),
            runtime.cast(SPELL, "x", key=key),
            runtime.start(SPELL, "x", key=key),
            runtime.invoke(SPELL, "x", key=key),
        ):
            with pytest.raises(InvalidIntent, match="key: expected a text"):
                await work


@pytest.mark.rule("C-11", "C-10")
@pytest.mark.parametrize("durable", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("store", ["sqlite", "jsonl"])
async def test_a_send_that_is_repeated_after_a_crash_is_handled_once(
    tmp_path: Path, store: str, at: int, durable: bool
) -> None:
    url = f"{store}:{tmp_path / 'loom'}"
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(TWO_TURNS, "start", name="x")
        await entity.episode()
        Process(Crash(at, durable)).attach(runtime)
        await attempt(entity.send("order", key="4711"))
    async with Runtime.open(url, cantrips=[TWO_TURNS]) as runtime:
        entity = runtime.entity("x")
        assert (await entity.send("order", key="4711")).result == "order"
        with pytest.raises(KeyUsed):
            await entity.send("another order", key="4711")
        assert intents(runtime, entity.id) == ["start", "order"]


# Receipts


@pytest.mark.rule("C-11")
async def test_a_receipt_has_the_state_of_its_intent(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime, Runtime.open(url) as other:
        entity = await runtime.invoke(SPELL, "start", name="x")
        receipt = await entity.post("order", key="4711")
        same_one = other.receipt("x", "4711")
        assert [receipt.state, same_one.state] == ["waiting", "waiting"]
        await anyio.sleep(15)
        assert [receipt.state, same_one.state] == ["working", "working"]
        await anyio.sleep(10)
        assert [receipt.state, same_one.state] == ["settled", "settled"]
        assert (await receipt.episode()).result == "order"
        assert (await same_one.episode()).result == "order"
        assert (same_one.entity_id, same_one.key) == (entity.id, "4711")
        assert "settled" in repr(receipt)


@pytest.mark.rule("C-11")
async def test_a_receipt_of_another_runtime_waits_for_the_episode(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime, Runtime.open(url) as other:
        entity = await runtime.invoke(SPELL, "start", name="x")
        await entity.post("order", key="4711")
        began = anyio.current_time()
        assert (await other.receipt(entity, "4711").episode()).result == "order"
        assert anyio.current_time() - began < 22


@pytest.mark.rule("C-11")
async def test_a_receipt_is_found_by_name_id_and_handle_and_by_its_own_key(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(SPELL, "start", name="x")
        receipt = await entity.post("without a key")
        assert receipt.key
        for address in ("x", entity.id, entity):
            assert (await runtime.receipt(address, receipt.key).episode()).result == "without a key"
        for unknown in ("nobody", "x"):
            with pytest.raises(LoomError):
                runtime.receipt(unknown, "4711")


@pytest.mark.rule("C-11")
async def test_a_receipt_of_an_entity_that_was_stopped_first_is_refused_and_says_why() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SPELL, "start", name="x")
        receipt = await entity.post("order", key="4711")
        await entity.stop("we closed")
        assert receipt.state == "refused"
        with pytest.raises(CantripError, match="ended before it took the intent") as raised:
            await receipt.episode()
        assert raised.value.entity_id == entity.id


# Beginnings


BEGIN = {
    "cast": lambda runtime, **more: runtime.cast(SPELL, "go", **more),
    "start": lambda runtime, **more: runtime.start(SPELL, "go", **more),
    "invoke": lambda runtime, **more: runtime.invoke(SPELL, "go", **more),
}


async def ended(begun: Any) -> Episode:
    """Return the episode of a beginning, which returned a handle or the episode itself."""
    return await begun.episode() if isinstance(begun, Entity) else begun


async def fork_at(runtime: Runtime) -> str:
    """Return the id of a turn to fork from."""
    return (await runtime.cast(SPELL, "the original")).thread[0].id


async def begin(runtime: Runtime, how: str, turn_id: str, key: str = "k") -> Episode:
    """Begin an entity with a key, and wait for its episode."""
    if how == "fork":
        return await runtime.fork(turn_id, intent="go", cantrip=SPELL, key=key)
    return await ended(await BEGIN[how](runtime, key=key))


HOWS = [*BEGIN, "fork"]


@pytest.mark.rule("C-18")
@pytest.mark.parametrize("how", HOWS)
async def test_20_beginnings_with_one_key_at_once_give_one_entity(url: str, how: str) -> None:
    async with Runtime.open(url) as runtime:
        turn_id = await fork_at(runtime)

        async def once() -> Episode:
            return await begin(runtime, how, turn_id)

        assert same(await at_once(20, once)).result == "go"
        assert len(runtime.loom.entities()) == 2
        assert (await begin(runtime, how, turn_id, "another key")).result == "go"
        assert len(runtime.loom.entities()) == 3


@pytest.mark.rule("C-18")
@pytest.mark.parametrize("how", HOWS)
async def test_beginnings_with_one_key_in_two_runtimes_give_one_entity(url: str, how: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as one, Runtime.open(url, cantrips=[SPELL]) as two:
        turn_id = await fork_at(one)
        episodes: list[Episode] = []

        async def once(runtime: Runtime) -> None:
            episodes.append(await begin(runtime, how, turn_id))

        async with anyio.create_task_group() as tasks:
            for runtime in (one, two, two, one, two):
                tasks.start_soon(once, runtime)
        assert same(episodes).result == "go"
        assert len(two.loom.entities()) == 2
        assert same([*episodes, await begin(two, how, turn_id), await begin(one, how, turn_id)])


@pytest.mark.rule("C-18")
@pytest.mark.parametrize("durable", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("store", part(["sqlite", "jsonl"], 2))
async def test_a_beginning_that_is_repeated_after_a_crash_gives_one_entity(
    tmp_path: Path, store: str, how: str, at: int, durable: bool
) -> None:
    url = f"{store}:{tmp_path / 'loom'}"
    async with Runtime.open(url) as runtime:
        turn_id = await fork_at(runtime)
        Process(Crash(at, durable)).attach(runtime)
        first = await attempt(begin(runtime, how, turn_id))
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        episode = await begin(runtime, how, turn_id)
        assert episode.result == "go"
        assert len(runtime.loom.entities()) == 2
        assert isinstance(first, CantripError) or same([first, episode])
        again = await begin(runtime, how, turn_id)
        assert same([episode, again])


@pytest.mark.rule("C-18")
@pytest.mark.parametrize("how", ["cast", "start", "invoke"])
@pytest.mark.parametrize("when", ["working", "ended", "the next process"])
async def test_other_content_with_a_key_that_began_an_entity_is_refused(url: str, how: str, when: str) -> None:
    async def check(runtime: Runtime) -> None:
        begin_with = getattr(runtime, how)
        for spell, intent, context in (
            (SPELL, "another intent", None),
            (SPELL, "go", {"another": "context"}),
        ):
            differing = "context" if context else "intent"
            with pytest.raises(KeyUsed, match=f"'k' .* what differs is {differing}"):
                await begin_with(spell, intent, context=context, key="k")
        if how == "invoke":
            with pytest.raises(KeyUsed, match="what differs is name"):
                await runtime.invoke(SPELL, "go", name="x", key="k")
        others = {"cast": "invoke", "start": "invoke", "invoke": "start"}
        with pytest.raises(KeyUsed, match="whether it is long-lived"):
            await getattr(runtime, others[how])(SPELL, "go", key="k")
        assert len(runtime.loom.entities()) == 1

    async with Runtime.open(url) as runtime:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: BEGIN[how](runtime, key="k"))
            await anyio.sleep(1)
            if when == "working":
                await check(runtime)
        if when == "ended":
            await anyio.sleep(20)
            await check(runtime)
    if when == "the next process":
        async with Runtime.open(url, cantrips=[SPELL]) as runtime:
            await check(runtime)


@pytest.mark.rule("C-18")
async def test_a_fork_with_a_used_key_from_another_turn_is_refused(url: str) -> None:
    async with Runtime.open(url) as runtime:
        first, second = await fork_at(runtime), await fork_at(runtime)
        await runtime.fork(first, intent="go", key="k")
        for turn_id, intent in ((second, "go"), (first, "another")):
            with pytest.raises(KeyUsed):
                await runtime.fork(turn_id, intent=intent, key="k")
        assert len(runtime.loom.entities()) == 3


@pytest.mark.rule("C-18")
async def test_a_cast_with_a_key_that_is_cancelled_does_not_stop_its_entity(url: str) -> None:
    async with Runtime.open(url) as runtime:
        episodes: list[Episode] = []

        async def cast() -> None:
            episodes.append(await runtime.cast(SPELL, "go", key="k"))

        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(5):
                await runtime.cast(SPELL, "go", key="k")
            tasks.start_soon(cast)
        assert same(episodes).result == "go"
        assert len(runtime.loom.entities()) == 1
        assert anyio.current_time() < 12


@pytest.mark.rule("C-18", "C-14")
async def test_a_cast_with_a_key_that_is_cancelled_at_any_step_can_be_repeated(url: str) -> None:
    async with Runtime.open(url) as runtime:
        for steps in range(25):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda key=f"{steps}": runtime.cast(SPELL, "go", key=key))
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            episode = await runtime.cast(SPELL, "go", key=f"{steps}")
            assert episode.result == "go", steps
            assert len(runtime.loom.entities()) == steps + 1


@pytest.mark.rule("C-18")
async def test_a_named_entity_that_is_invoked_again_with_its_key_is_the_same(url: str) -> None:
    async with Runtime.open(url) as runtime:
        first = await runtime.invoke(SPELL, "start", name="x", key="k")
        assert (await first.send("more")).result == "more"
        again = await runtime.invoke(SPELL, "start", name="x", key="k")
        assert again.id == first.id
        assert (await again.send("still more")).result == "still more"
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        again = await runtime.invoke(SPELL, "start", name="x", key="k")
        assert (await again.send("at last")).result == "at last"
        assert intents(runtime, first.id) == ["start", "more", "still more", "at last"]
        await again.stop()
        over = await runtime.invoke(SPELL, "start", name="x", key="k")
        assert over.id == first.id
        assert runtime.entity("x") is None


@pytest.mark.rule("C-18", "V-32")
@pytest.mark.parametrize("is_working", [False, True], ids=["idle", "working"])
@pytest.mark.parametrize("where", ["here", "the next process"])
@pytest.mark.parametrize("how", ["invoke", "fork"])
async def test_a_repeated_beginning_returns_its_own_episode_after_later_sends(
    url: str, how: str, where: str, is_working: bool
) -> None:
    async def begin_again(runtime: Runtime, turn_id: str) -> Entity:
        if how == "fork":
            return await runtime.start_fork(turn_id, intent="first", cantrip=SPELL, lasting=True, key="k")
        return await runtime.invoke(SPELL, "first", key="k")

    async def check(runtime: Runtime, turn_id: str) -> None:
        entity = await begin_again(runtime, turn_id)
        assert (await entity.episode()).result == (await entity.result()).result == "first"
        assert (await entity.send("second", key="2")).result == "second"
        assert (await entity.episode()).result == "first"

    async with Runtime.open(url) as runtime:
        turn_id = await fork_at(runtime)
        entity = await begin_again(runtime, turn_id)
        assert (await entity.episode()).result == "first"
        receipt = await entity.post("second", key="2")
        if not is_working:
            await receipt.episode()
        if where == "here":
            await check(runtime, turn_id)
            return
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        await check(runtime, turn_id)


@pytest.mark.rule("C-18")
async def test_a_keyed_cast_of_an_unknown_cantrip_value_is_the_same_by_content(url: str) -> None:
    """The content id counts, not the value: the same program in the next process makes an equal cantrip."""

    def made() -> Cantrip:
        return cantrip(scripted(slowly))

    async with Runtime.open(url) as runtime:
        first = await runtime.cast(made(), "go", key="k")
    async with Runtime.open(url) as runtime:
        assert same([first, await runtime.cast(made(), "go", key="k")])
