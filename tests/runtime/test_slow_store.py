"""A loom that takes long to answer: no statement that may wait is sent from the event loop's thread.

An entity that waits for the loom then delays no other actor.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    Circle,
    Entity,
    EntityEndedEvent,
    EntityStartedEvent,
    Node,
    Queue,
    Runtime,
    ask_first,
    gate,
    scripted,
)
from cantrip_actors.gates import standard
from cantrip_actors.wards import max_turns
from tests.loom import postgres
from tests.loom.statements import Watched, watch_statements
from tests.observe.spans import Sdk
from tests.runtime.spells import cantrip, done, say
from tests.runtime.test_cluster import DESK

pytestmark = [pytest.mark.real_time, pytest.mark.rule("N-13", "K-30")]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return watch_statements(monkeypatch)


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return postgres.fresh() if request.param == "postgres" else f"sqlite:{tmp_path / 'loom.db'}"


@gate
async def pay(euros: int) -> str:
    "Pay."
    return f"paid {euros}"


def make_payer() -> Cantrip:
    """Return a cantrip of its own for a test, since its crystal counts its answers."""
    return cantrip([say("pay", euros=1), done("paid")], ask_first(pay), name="payer")


async def unload(entity: Entity) -> None:
    entity.unload()
    with anyio.fail_after(10):
        while entity.loaded:
            await anyio.sleep(0.01)


async def keeper(runtime: Runtime) -> Entity:
    entity = await runtime.invoke(DESK, "hello", name="keeper")
    await entity.episode()
    return entity


Use = Callable[[Runtime], Awaitable[Callable[[], Awaitable[Any]]]]
"""Prepares a use of a runtime, and returns it."""


async def cast(runtime: Runtime) -> Any:
    return partial(runtime.cast, DESK, "hello")


async def cast_with_a_key(runtime: Runtime) -> Any:
    return partial(runtime.cast, DESK, "hello", key="k")


async def cast_with_a_key_again(runtime: Runtime) -> Any:
    await runtime.cast(DESK, "hello", key="k")
    return partial(runtime.cast, DESK, "hello", key="k")


async def invoke(runtime: Runtime) -> Any:
    return partial(runtime.invoke, DESK, "hello", name="keeper")


async def send(runtime: Runtime) -> Any:
    return partial((await keeper(runtime)).send, "more", key="k")


async def send_to_an_unloaded_entity(runtime: Runtime) -> Any:
    entity = await keeper(runtime)
    await unload(entity)
    return partial(entity.send, "more")


async def post_to_an_unloaded_entity(runtime: Runtime) -> Any:
    entity = await keeper(runtime)
    await unload(entity)

    async def use() -> None:
        receipt = await entity.post("more")
        await receipt.episode(timeout=30)
        await receipt.episode()

    return use


async def steer_an_unloaded_entity(runtime: Runtime) -> Any:
    entity = await keeper(runtime)
    await unload(entity)
    return partial(entity.steer, "more")


async def interrupt_an_unloaded_entity(runtime: Runtime) -> Any:
    entity = await keeper(runtime)
    await unload(entity)
    return partial(entity.interrupt, key="k")


async def stop_an_unloaded_entity(runtime: Runtime) -> Any:
    entity = await keeper(runtime)
    await unload(entity)
    return entity.stop


async def send_to_an_unloaded_entity_that_writes_programs(runtime: Runtime) -> Any:
    program = {"content": "```python\nfirst = 1\nsubmit_answer(first)\n```"}
    spell = Cantrip(scripted([program, program]), circle=Circle(["done"], [max_turns(3)], medium="python"))
    entity = await runtime.ensure("programmer", spell)
    await entity.send("go")
    await unload(entity)
    return partial(entity.send, "more")


async def resume(runtime: Runtime) -> Any:
    entity = await keeper(runtime)
    await unload(entity)
    return partial(runtime.resume, entity.id)


async def fork(runtime: Runtime) -> Any:
    episode = await runtime.cast(DESK, "hello")
    return partial(runtime.fork, episode.thread[-1].id, intent="another way")


async def decide(runtime: Runtime) -> Any:
    async def use() -> None:
        entity = await runtime.start(make_payer(), "pay")
        async with runtime.requests(follow=True) as requests:
            await runtime.decide((await anext(requests)).id, "allow")
        await entity.episode()

    return use


async def submit(runtime: Runtime) -> Any:
    async def use() -> None:
        await (await runtime.submit("desk", "hello", queue="reports")).episode()

    return use


async def schedule(runtime: Runtime) -> Any:
    entity = await keeper(runtime)

    async def use() -> None:
        await runtime.schedule("keeper", "tick", every=1, id="s")
        async for turn in entity.story():
            if turn.sequence >= 2:
                break

    return use


async def follow_the_events_of_a_new_entity(runtime: Runtime) -> Any:
    async def use() -> None:
        entity = await runtime.start(DESK, "hello")
        events = [type(event) async for event in entity.events()]
        assert (events[0], events[-1]) == (EntityStartedEvent, EntityEndedEvent)

    return use


async def follow_the_events_of_an_unloaded_entity(runtime: Runtime) -> Any:
    entity = await keeper(runtime)
    await unload(entity)

    async def use() -> None:
        events = entity.events()
        await entity.send("more")
        assert isinstance(await anext(events), EntityStartedEvent)

    return use


async def follow_the_events_of_an_entity_that_has_ended(runtime: Runtime) -> Any:
    entity = await runtime.start(DESK, "hello")
    await entity.episode()

    async def use() -> None:
        assert [event async for event in entity.events()] == []

    return use


async def withdraw_and_cancel(runtime: Runtime) -> Any:
    entity = await keeper(runtime)
    await unload(entity)

    async def use() -> None:
        receipt = await entity.post("more")
        await receipt.withdraw()
        await receipt.cancel(now=True)
        await entity.stop()

    return use


async def withdraw_a_submission(runtime: Runtime) -> Any:
    async def use() -> None:
        await (await runtime.submit("desk", "hello", queue="reports", key="s")).withdraw()
        await runtime.submission("s")

    return use


async def pause_and_remove_a_schedule(runtime: Runtime) -> Any:
    await keeper(runtime)

    async def use() -> None:
        made = await runtime.schedule("keeper", "tick", every=3600, id="s")
        await made.pause()
        await made.resume()
        await made.remove()

    return use


async def reward_forget_and_prune(runtime: Runtime) -> Any:
    first, second = await runtime.cast(DESK, "one"), await runtime.cast(DESK, "two")
    turn = first.thread[-1].id

    async def use() -> None:
        await runtime.loom.reward(turn, 1.0)
        await runtime.forget(first.entity_id)
        await runtime.prune(0)
        await runtime.check_writer()
        await runtime.read(lambda: runtime.loom.is_forgotten(second.entity_id))

    return use


async def ask_an_entity(runtime: Runtime) -> Any:
    await keeper(runtime)
    ask = standard("ask").with_(to=["*"])
    asker = cantrip([say("ask", to="keeper", message="hello"), done("answered")], ask, name="asker")
    return partial(runtime.cast, asker, "ask")


async def look_at_the_cluster(runtime: Runtime) -> Any:
    await keeper(runtime)

    async def use() -> None:
        cluster = runtime.cluster
        await cluster.nodes()
        await cluster.where("keeper")
        await cluster.stranded()
        await cluster.queues()
        await cluster.backlog()
        await cluster.free("keeper")

    return use


USES = [
    cast,
    cast_with_a_key,
    cast_with_a_key_again,
    invoke,
    send,
    send_to_an_unloaded_entity,
    send_to_an_unloaded_entity_that_writes_programs,
    post_to_an_unloaded_entity,
    steer_an_unloaded_entity,
    interrupt_an_unloaded_entity,
    stop_an_unloaded_entity,
    resume,
    fork,
    decide,
    submit,
    schedule,
    follow_the_events_of_a_new_entity,
    follow_the_events_of_an_unloaded_entity,
    follow_the_events_of_an_entity_that_has_ended,
    withdraw_and_cancel,
    withdraw_a_submission,
    pause_and_remove_a_schedule,
    reward_forget_and_prune,
    ask_an_entity,
    look_at_the_cluster,
]


def opened(url: str, *cantrips: Cantrip, **more: Any) -> Runtime:
    return Runtime.open(url, cantrips=cantrips or [DESK], queues=[Queue("reports", max_running=2)], **more)


@pytest.mark.parametrize("prepare", USES, ids=lambda use: use.__name__)
async def test_no_use_waits_for_the_store_in_the_event_loop(watched: Watched, url: str, prepare: Use) -> None:
    async with opened(url) as runtime:
        use = await prepare(runtime)
        with watched.watching():
            await use()


async def test_opening_and_closing_do_not_wait_for_the_store_in_the_event_loop(watched: Watched, url: str) -> None:
    async with opened(url) as runtime:
        await keeper(runtime)
    with watched.watching():
        async with opened(url, recover="resume"):
            await anyio.sleep(0.6)


async def test_an_asker_is_loaded_after_a_restart_without_a_wait_in_the_event_loop(watched: Watched, url: str) -> None:
    ask, payer = standard("ask").with_(to=["*"]), make_payer()
    asker = cantrip([say("ask", to="payer", message="pay"), done("answered")], ask, name="asker")
    async with opened(url, asker, payer) as runtime:
        await runtime.invoke(payer, "pay", name="payer")
        asking = await runtime.start(asker, "ask")
        async with runtime.requests(follow=True) as requests:
            request = await anext(requests)
    with watched.watching(), anyio.fail_after(20):
        async with opened(url, asker, payer) as runtime:
            await runtime.decide(request.id, "allow")
            while await runtime.read(lambda: runtime.loom.state(asking.id)) == "active":
                await anyio.sleep(0.05)


async def test_the_spans_of_an_earlier_process_are_not_read_in_the_event_loop(watched: Watched, url: str) -> None:
    payer = make_payer()
    async with opened(url, payer, telemetry=Sdk().telemetry()) as runtime:
        entity = await runtime.invoke(payer, "pay", name="payer")
        async with runtime.requests(follow=True) as requests:
            request = await anext(requests)
    sdk = Sdk()
    async with opened(url, payer, telemetry=sdk.telemetry()) as runtime:
        with watched.watching(), anyio.fail_after(20):
            await runtime.decide(request.id, "allow")
            await (await runtime.resume(entity.id)).episode()
    assert any("cantrip.backfilled" in span.attributes for span in sdk.spans)


async def test_a_node_does_not_wait_for_the_store_in_the_event_loop(watched: Watched, url: str) -> None:
    async with opened(url) as client:
        entity = await keeper(client)
        await unload(entity)
        with watched.watching():
            async with opened(url, node=Node("w1")):
                assert (await entity.send("again")).result == "again"
                await anyio.sleep(1.1)
