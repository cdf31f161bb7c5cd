"""Nodes that join, leave and are replaced while there is load, and programs beside them that have not joined."""

import statistics
import time
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Node, Runtime, gate
from tests.runtime.spells import cantrip, done, say
from tests.runtime.test_cluster import answering, crashing, node
from tests.runtime.wall_clock import read_wall_clock


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/loom.db"


DESK = answering()


# N-08: who fires


def in_seconds(seconds: float) -> datetime:
    return datetime.fromtimestamp(read_wall_clock() + seconds, UTC)


def count_firings(runtime: Runtime, fired: Counter[str], name: str) -> None:
    """Count the timers that a runtime replaces."""
    store = runtime._tree.store
    replace_timers = store.replace_timers

    def counted(changes: Any) -> Any:
        fired[name] += sum(old is not None for old, _, _ in changes)
        return replace_timers(changes)

    store.replace_timers = counted  # type: ignore[method-assign]


@pytest.mark.rule("N-08", "N-43")
async def test_a_runtime_without_a_node_leaves_timers_to_the_nodes(url: str) -> None:
    fired: Counter[str] = Counter()
    async with node(url, "w1") as one, Runtime.open(url, cantrips=[DESK]) as client:
        await (await one.invoke(DESK, "begin", name="keeper")).episode()
        count_firings(one, fired, "node")
        count_firings(client, fired, "client")
        for n in range(10):
            await client.schedule("keeper", f"intent {n}", at=in_seconds(5), id=f"s{n}")
            await client.schedule(DESK, f"cast {n}", at=in_seconds(5), id=f"c{n}")
        await anyio.sleep(20)
        assert client.schedules() == []
    assert +fired == {"node": 20}


@pytest.mark.rule("N-08", "N-48")
async def test_a_runtime_without_a_node_fires_for_entities_that_it_runs(url: str) -> None:
    fired: Counter[str] = Counter()
    async with Runtime.open(url, cantrips=[DESK]) as client, node(url, "w1") as one:
        one._tree.scheduler.carry_out_due = _do_nothing  # type: ignore[method-assign]
        keeper = await client.invoke(DESK, "begin", name="keeper")
        await keeper.episode()
        count_firings(client, fired, "client")
        await client.schedule("keeper", "intent", at=in_seconds(5), id="s")
        await anyio.sleep(6)
        assert [turn.sequence for turn in client.loom.turns(keeper.id)] == [1, 2]
    assert fired == {"client": 1}


@pytest.mark.rule("N-08", "N-43")
async def test_a_runtime_without_a_node_casts_cantrips_that_no_node_serves(url: str) -> None:
    other = answering(name="other")
    async with node(url, "w1"), Runtime.open(url, cantrips=[other]) as client:
        await client.schedule(other, "go", at=in_seconds(5), id="s")
        await anyio.sleep(10)
        assert client.schedules() == []


@pytest.mark.rule("N-08", "N-43")
async def test_a_runtime_without_a_node_fires_when_the_nodes_have_died(url: str) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as client:
        async with crashing(node(url, "w1")) as dying:
            await (await dying.invoke(DESK, "begin", name="keeper")).episode()
            await client.schedule("keeper", "intent", at=in_seconds(5), id="s")
            dying._tree.scheduler.carry_out_due = _do_nothing  # type: ignore[method-assign]
        await anyio.sleep(60)
        assert client.schedules() == []


async def _do_nothing(_: Any) -> None:
    await anyio.lowlevel.checkpoint()


# N-18


@pytest.mark.rule("N-17", "N-18")
async def test_a_node_that_joins_gets_entities_that_were_idle_elsewhere(url: str) -> None:
    slow = answering(delay=60, name="slow", turns=9)
    async with node(url, "w1", slow, DESK, capacity=20, passivate_after=5) as one, Runtime.open(url) as client:
        keepers = [await one.invoke(DESK, "begin", name=f"keeper-{n}") for n in range(20)]
        for keeper in keepers:
            await keeper.episode()
        casts = [await one.start(slow, f"cast {n}") for n in range(12)]
        async with node(url, "w2", slow, DESK, capacity=20, passivate_after=1000) as two:
            await anyio.sleep(10)
            assert {cell.entity_id for cell in one._tree.living} == {cast.id for cast in casts}  # none of them is moved
            receipts = [await client.entity(f"keeper-{n}").post("work") for n in range(20)]
            for receipt in receipts:
                await receipt.episode()
            assert sum(two._tree.living.get(keeper.id) is not None for keeper in keepers) >= 6
            await anyio.sleep(60)


@pytest.mark.rule("N-18")
async def test_a_node_with_far_more_load_than_others_unloads_idle_entities_at_once(url: str) -> None:
    slow = answering(delay=100, name="slow", turns=9)
    async with node(url, "w1", slow, DESK, capacity=40, passivate_after=1000) as one:
        keeper = await one.invoke(DESK, "begin", name="keeper")
        await keeper.episode()
        casts = [await one.start(slow, f"cast {n}") for n in range(10)]
        await anyio.sleep(10)
        assert keeper.loaded
        async with node(url, "w2", slow, DESK, capacity=40):
            await anyio.sleep(10)
            assert not keeper.loaded
            assert all(cast.loaded for cast in casts)
            await anyio.sleep(100)


@pytest.mark.rule("N-18", "N-47")
async def test_a_node_with_a_little_more_load_than_others_keeps_idle_entities(url: str) -> None:
    slow = answering(delay=100, name="slow", turns=9)
    async with node(url, "w1", slow, DESK, capacity=40, passivate_after=1000) as one, node(url, "w2", slow, DESK):
        keeper = await one.invoke(DESK, "begin", name="keeper")
        await keeper.episode()
        for n in range(2):
            await one.start(slow, f"cast {n}")
        await anyio.sleep(20)
        assert keeper.loaded
        await anyio.sleep(100)


# N-21


STATES = ["unloaded", "loaded here", "loaded elsewhere", "without an owner", "unloading"]


@pytest.mark.rule("N-21")
@pytest.mark.parametrize("sender", ["node", "client"])
@pytest.mark.parametrize("state", STATES)
async def test_a_send_reaches_an_entity_wherever_it_is(url: str, state: str, sender: str) -> None:
    async with AsyncExitStack() as stack:
        if state == "without an owner":
            own = await stack.enter_async_context(node(url, "w1"))
            async with crashing(node(url, "dying")) as dying:
                await (await dying.invoke(DESK, "begin", name="keeper")).episode()
        else:
            other = await stack.enter_async_context(node(url, "w1", passivate_after=2))
            await (await other.invoke(DESK, "begin", name="keeper")).episode()
            if state == "unloaded":
                await anyio.sleep(10)
            elif state == "unloading":
                await anyio.sleep(2)  # to the moment
            own = other if state == "loaded here" else await stack.enter_async_context(node(url, "w2"))
        given = own if sender == "node" else await stack.enter_async_context(Runtime.open(url))
        entity = given.entity("keeper")
        assert entity is not None
        assert (await entity.send("and now?", key="k")).result == "and now?"
        assert [turn.sequence for turn in given.loom.turns(entity.id)] == [1, 2]


# N-60


@pytest.mark.rule("N-59", "N-60")
@pytest.mark.parametrize("how", ["one command", "the old release only"])
async def test_a_roll_back_brings_idle_entities_back_to_the_first_version(url: str, how: str) -> None:
    versions = {"v1": answering(turns=10), "v2": answering(turns=11)}

    def release(name: str) -> Any:
        return node(url, f"w {name}", versions[name], release=name, passivate_after=2)

    async with Runtime.open(url) as client:

        async def send(text: str) -> str:
            await anyio.sleep(10)  # it is unloaded
            await client.entity("keeper").send(text)
            return client.loom.header_in_force(keeper.id).cantrip_id

        async with release("v1") as first:
            keeper = await first.invoke(versions["v1"], "begin", name="keeper")
            await keeper.episode()
            async with release("v2"):
                assert await send("forward") == versions["v2"].id
                if how == "one command":
                    await client.cluster.use_release("v1")
                    assert await send("back") == versions["v1"].id
        if how == "the old release only":
            async with release("v1"):
                assert await send("back") == versions["v1"].id


# N-64


def payer(paid: Counter[str], asked: Counter[tuple[str, int]]) -> Cantrip:
    """An entity that pays three times for each intent."""

    @gate
    async def pay(what: str) -> str:
        """Pay."""
        await anyio.sleep(0.1)
        paid[what] += 1
        return "paid"

    async def answer(context: Any) -> object:
        at = max(n for n, one in enumerate(context) if one.role == "user")
        intent, turns = context[at].content, sum(one.role == "assistant" for one in context[at:])
        asked[intent, turns] += 1
        return {**(done(intent) if turns == 3 else say("pay", what=f"{intent}/{turns}")), "delay": 0.1}

    return cantrip(answer, pay, name="payer")


@pytest.mark.rule("N-64", "N-82")
async def test_a_rolling_restart_of_four_nodes_under_load_is_not_noticed_by_senders(url: str) -> None:
    paid: Counter[str] = Counter()
    asked: Counter[tuple[str, int]] = Counter()
    spell = payer(paid, asked)
    waits: dict[str, list[float]] = {"quiet": [], "restarts": []}
    phase, is_over = "quiet", False

    async def serve(name: str, stop: anyio.Event) -> None:
        async with Runtime.open(url, cantrips=[spell], node=Node(name)) as runtime:
            await stop.wait()
            assert await runtime.drain()

    async def send(number: int) -> None:
        n, entity = 0, client.entity(f"keeper-{number}")
        assert entity is not None
        while not is_over:
            now, began, text = phase, anyio.current_time(), f"{number}-{n}"
            began_really = time.perf_counter()
            assert (await entity.send(text, key=text)).result == text
            # While a thread works, virtual time passes as real time does; the speed of the machine is left out.
            waits[now].append(anyio.current_time() - began - (time.perf_counter() - began_really))
            n += 1
            await anyio.sleep(0.5)

    async with Runtime.open(url) as client, anyio.create_task_group() as tasks:
        stops = [anyio.Event() for _ in range(4)]
        for n, stop in enumerate(stops):
            tasks.start_soon(serve, f"w{n}", stop)
        async with Runtime.open(url, cantrips=[spell]) as program:
            for n in range(12):
                await (await program.invoke(spell, f"begin {n}", name=f"keeper-{n}")).episode()
        async with anyio.create_task_group() as senders:
            for n in range(12):
                senders.start_soon(send, n)
            await anyio.sleep(20)
            phase = "restarts"
            for n, stop in enumerate(stops):
                stop.set()
                stops[n] = anyio.Event()
                tasks.start_soon(serve, f"w{n} again", stops[n])
                await anyio.sleep(5)
            is_over = True
        for stop in stops:
            stop.set()
    assert set(paid.values()) == set(asked.values()) == {1}
    quiet, restarts = (statistics.quantiles(waits[one], n=100)[98] for one in ("quiet", "restarts"))
    assert min(len(found) for found in waits.values()) > 100
    assert restarts <= 3 * quiet
