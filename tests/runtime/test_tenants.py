"""A tenant of a loom reaches nothing of another tenant by any id, name, key or search (X-42)."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    CantripError,
    Circle,
    Entity,
    Loom,
    LoomError,
    Request,
    Runtime,
    UnknownRequest,
    ask_first,
    gate,
    open_loom,
    scripted,
)
from cantrip_actors.gates import ask, post
from cantrip_actors.loom import thread_jsonl
from cantrip_actors.loom.export.atif import trajectory
from cantrip_actors.loom.export.chat import chat_jsonl
from cantrip_actors.loom.export.conversation import conversation_of
from cantrip_actors.loom.export.html import html_page
from cantrip_actors.loom.reading.redaction import redacted_loom
from cantrip_actors.loom.reading.search import Query, search
from cantrip_actors.loom.reading.statistics import statistics
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.wards import max_depth, max_turns
from tests.loom import postgres
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("X-42")

SECRET = "acme's plans"


@gate
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@cache
def cantrip(name: str | None = None, *, asks: bool = False, to: tuple[str, ...] = ()) -> Cantrip:
    def answer(context: Any) -> Any:
        last = context.messages[-1].content
        if last == "delegate":
            return say("call_agent", intent="help")
        if asks and last == "pay":
            return say("pay", amount=3)
        if str(last).startswith("tell "):
            _, gate_name, whom = str(last).split(" ")
            return say(gate_name, to=whom, message="hello")
        return done(last)

    gates: list[Any] = ["done", "call_agent"]
    gates += [ask_first(pay)] if asks else []
    gates += [post.with_(to=list(to)), ask.with_(to=list(to))] if to else []
    return Cantrip(scripted(answer), circle=Circle(gates, [max_turns(6), max_depth(1)]), name=name)


@pytest.fixture(params=["memory", "jsonl", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return postgres.fresh()
    return "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'loom'}"


@dataclass
class World:
    """A loom with two tenants, and the entities of one of them."""

    runtime: Runtime
    acme: Runtime
    other: Runtime
    entity: Entity
    named: Entity
    turn: str
    child: str
    forked: str
    request: Request


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    async with Runtime.open(url, cantrips=[cantrip("daily")]) as runtime:
        acme, other = runtime.tenant("acme"), runtime.tenant("other")
        episode = await acme.cast(cantrip(), SECRET)
        parent = await acme.cast(cantrip(), "delegate")
        named = await acme.invoke(cantrip(), SECRET, name="notes", key="begun")
        await named.episode()
        await named.send("more", key="once")
        waiting = await acme.start(cantrip(asks=True), "pay")
        while not acme.requests():
            await anyio.sleep(0.1)
        fork = await acme.fork(episode.thread[-1].id, intent="again", cantrip=cantrip())
        await acme.schedule("daily", SECRET, every=1e6, id="plan")
        (child,) = acme.loom.children(parent.thread[0].id)
        assert waiting.id == acme.requests()[0].entity
        yield World(
            runtime,
            acme,
            other,
            acme.get_entity(episode.entity_id),
            named,
            episode.thread[-1].id,
            child,
            fork.entity_id,
            acme.requests()[0],
        )


IDS = ("entity.id", "named.id", "child", "forked")

Look = Callable[[World, str], Any]

REFUSED: dict[str, Look] = {
    "loom.facts": lambda w, id: w.other.loom.facts(id),
    "get_entity": lambda w, id: w.other.get_entity(id),
    "get_submission": lambda w, id: w.other.get_submission("later"),
    "receipt": lambda w, id: w.other.receipt(id, "once"),
    "get_work": lambda w, id: w.other.get_work(id),
    "messages": lambda w, id: w.other.messages(id),
    "stream": lambda w, id: w.other.stream(cantrip(), "mine", resume=f"{id}:1").__aenter__(),
    "has_mail": lambda w, id: w.other.has_mail(id, "once"),
    "resume": lambda w, id: w.other.resume(id),
    "abandon": lambda w, id: w.other.abandon(id),
    "forget": lambda w, id: w.other.forget(id),
    "loom.ancestry": lambda w, id: w.other.loom.ancestry(id),
    "loom.header": lambda w, id: w.other.loom.header(id),
    "loom.header_in_force": lambda w, id: w.other.loom.header_in_force(id),
    "loom.records": lambda w, id: w.other.loom.records(id),
    "loom.records_since": lambda w, id: w.other.loom.records_since(id),
    "loom.turns": lambda w, id: w.other.loom.turns(id),
    "loom.list_turns": lambda w, id: w.other.loom.list_turns(id),
    "loom.count_turns": lambda w, id: w.other.loom.count_turns(id),
    "loom.last_turn": lambda w, id: w.other.loom.last_turn(id),
    "loom.originals": lambda w, id: w.other.loom.originals(id),
    "loom.intents": lambda w, id: w.other.loom.intents(id),
    "loom.waiting_intents": lambda w, id: w.other.loom.waiting_intents(id),
    "loom.last_metadata": lambda w, id: w.other.loom.last_metadata(id),
    "loom.outcome": lambda w, id: w.other.loom.outcome(id),
    "loom.state": lambda w, id: w.other.loom.state(id),
    "loom.is_over": lambda w, id: w.other.loom.is_over(id),
    "loom.open_request": lambda w, id: w.other.loom.open_request(id),
    "loom.last_time": lambda w, id: w.other.loom.last_time(id),
    "loom.newest_round": lambda w, id: w.other.loom.newest_round(id),
    "loom.find_call": lambda w, id: w.other.loom.find_call(id, "c1"),
    "loom.texts_since": lambda w, id: w.other.loom.texts_since(id),
    "loom.texts_before": lambda w, id: w.other.loom.texts_before(id, "once"),
    "loom.newest_records": lambda w, id: w.other.loom.newest_records(id, lambda records: records),
    "is_interrupted": lambda w, id: w.other.is_interrupted(id),
    "loom.usage": lambda w, id: w.other.loom.usage(id),
    "loom.subtree": lambda w, id: w.other.loom.subtree(id),
    "loom.subtree_usage": lambda w, id: w.other.loom.subtree_usage(id),
    "loom.usage_below": lambda w, id: w.other.loom.usage_below(id),
    "loom.forget": lambda w, id: w.other.loom.forget(id),
    "search": lambda w, id: list(search(w.other.loom, Query(text="plans", entity=id, below=True))),
    "statistics": lambda w, id: statistics(w.other.loom, id),
    "trajectory": lambda w, id: trajectory(w.other.loom, id),
    "html of it": lambda w, id: b"".join(html_page(w.other.loom, [id])),
    "redacted": lambda w, id: redacted_loom(w.other.loom, Redactor()).turns(id),
}
"""Reads by an id of an entity: each raises LoomError, as for an unknown id."""

OF_TURNS: dict[str, Look] = {
    "fork": lambda w, turn: w.other.fork(turn, intent="mine now"),
    "start_fork": lambda w, turn: w.other.start_fork(turn, intent="mine now"),
    "model_input": lambda w, turn: w.other.model_input(turn),
    "loom.turn": lambda w, turn: w.other.loom.turn(turn),
    "loom.__getitem__": lambda w, turn: w.other.loom[turn],
    "loom.owner": lambda w, turn: w.other.loom.owner(turn),
    "loom.children": lambda w, turn: w.other.loom.children(turn),
    "loom.forks": lambda w, turn: w.other.loom.forks(turn),
    "loom.thread": lambda w, turn: w.other.loom.thread(turn),
    "loom.intents_before": lambda w, turn: w.other.loom.intents_before(turn),
    "loom.lineage": lambda w, turn: w.other.loom.lineage(turn),
    "loom.first_turns": lambda w, turn: w.other.loom.first_turns(turn),
    "loom.header_at": lambda w, turn: w.other.loom.header_at(turn),
    "loom.reward": lambda w, turn: w.other.loom.reward(turn, 1.0),
}
"""The same by the id of a turn."""

NOTHING: dict[str, Look] = {
    "entity": lambda w, _: w.other.entity("notes"),
    "find": lambda w, id: w.other.find(id),
    "begun_with": lambda w, _: w.other.begun_with("begun"),
    "submission": lambda w, _: w.other.submission("later"),
    "work": lambda w, id: w.other.work(id) or w.other.work(f"{id}.once") or w.other.work("submission:later"),
    "shown_loom": lambda w, _: w.other.shown_loom.entities(),
    "requests": lambda w, _: w.other.requests(),
    "list_requests": lambda w, _: w.other.list_requests(),
    "entities": lambda w, _: w.other.entities(),
    "submissions": lambda w, _: w.other.submissions(),
    "loom.page": lambda w, _: w.other.loom.page(),
    "loom.count_states": lambda w, _: w.other.loom.count_states(),
    "loom.read_since": lambda w, _: w.other.loom.read_since(0)[0],
    "loom.last_number": lambda w, _: w.other.loom.last_number() and [],
    "schedules": lambda w, _: w.other.schedules(),
    "interrupted": lambda w, _: w.other.interrupted(),
    "cantrips": lambda w, _: [],  # those of the program, for all tenants
    "not_resumed": lambda w, _: list(w.other.not_resumed),
    "would_adopt": lambda w, _: w.other.would_adopt(),
    "read": lambda w, _: w.other.read(w.other.loom.entities),
    "loom.entities": lambda w, _: w.other.loom.entities(),
    "loom.headers": lambda w, _: list(w.other.loom.headers()),
    "loom.unfinished": lambda w, _: w.other.loom.unfinished(),
    "loom.leaves": lambda w, _: list(w.other.loom.leaves()),
    "loom.threads": lambda w, _: list(w.other.loom.threads()),
    "loom.named": lambda w, _: w.other.loom.named("notes"),
    "loom.has": lambda w, id: w.other.loom.has(id),
    "loom.has_begun": lambda w, id: w.other.loom.has_begun(id),
    "loom.is_forgotten": lambda w, id: w.other.loom.is_forgotten(id),
    "loom.below": lambda w, id: w.other.loom.below(id),
    "loom.branches": lambda w, id: w.other.loom.branches(id),
    "loom.first_intent": lambda w, id: w.other.loom.first_intent(id),
    "loom.checkpoint": lambda w, id: w.other.loom.checkpoint(id),
    "loom.__contains__": lambda w, _: w.turn in w.other.loom,
    "loom.quarantines": lambda w, _: w.other.loom.quarantines(),
    "loom.prune": lambda w, _: w.other.loom.prune(0, dry_run=True).entities,
    "prune": lambda w, _: w.other.prune(0, dry_run=True),
    "search all": lambda w, _: list(search(w.other.loom, Query(text="plans"))),
    "statistics all": lambda w, _: statistics(w.other.loom).turns,
    "chat": lambda w, _: b"".join(chat_jsonl(conversation_of(w.other.loom, one) for one in w.other.loom.entities())),
    "redacted all": lambda w, _: redacted_loom(w.other.loom, Redactor()).entities(),
}
"""Listings: each is empty for the other tenant."""

ELSEWHERE = {
    *(
        "events",
        "watch",
        "decide",
        "deliver",
        "schedule",
        "cast",
        "start",
        "invoke",
        "ensure",
        "tenant",
        "loom",
        "add_request_source",
    ),
    *("batch", "submit", "set_allowance", "check_allowance"),
    *("loom.tenant",),
}
"""Methods with a test of their own below, and methods that make something new."""

OF_THE_WHOLE = {"aclose", "drain", "backup", "dump", "cluster", "serve", "inspect", "telemetry", "watch_actors"}
OF_NO_ENTITY = {
    "open",
    "blocking",
    "ask",
    "crystals",
    "redact",
    "check_writer",
    "derive_key",
    "id_of_key",
    "seal_key",
    "use_server",
    "loom.attach",
    "loom.check_chain",
    "loom.find_number",
    "loom.numbers_in_order",
}


def id_of(world: World, path: str) -> str:
    found: Any = world
    for part in path.split("."):
        found = getattr(found, part)
    return str(found)


async def result_of(found: Any) -> Any:
    return await found if isinstance(found, Awaitable) else found


async def test_every_read_by_an_id_of_another_tenant_says_that_there_is_no_such_entity(world: World) -> None:
    for path in IDS:
        id = id_of(world, path)
        for name, look in REFUSED.items():
            with pytest.raises(LoomError) as refused:
                await result_of(look(world, id))
            assert "is not in this loom" in str(refused.value), (name, path)
            assert SECRET not in str(refused.value)
    for name, look in OF_TURNS.items():
        with pytest.raises(LoomError) as refused:
            await result_of(look(world, world.turn))
        assert "is not in this loom" in str(refused.value), name


async def test_every_listing_of_another_tenant_is_empty(world: World) -> None:
    for path in IDS:
        for name, look in NOTHING.items():
            found = await result_of(look(world, id_of(world, path)))
            found = found.entities if name == "prune" else found
            assert not found, (name, found)
    assert SECRET.encode() not in b"".join(html_page(world.other.loom))


async def test_a_tenant_finds_all_of_its_own_data(world: World) -> None:
    """Without this, the tests above would pass for data that does not exist."""
    loom = world.acme.loom
    assert len(loom.entities()) == len(world.runtime.loom.entities()) == 6
    for path in IDS:
        assert loom.header(id_of(world, path)).tenant == "acme"
        assert loom.has_begun(id_of(world, path))
        assert world.acme.find(id_of(world, path)).id == id_of(world, path)
    assert world.acme.receipt("notes", "once").state == "settled"
    assert loom.named("notes") == world.named.id
    assert [one.id for one in world.acme.schedules()] == ["plan"]
    assert len(list(search(loom, Query(text="plans")))) >= 2
    assert SECRET.encode() in thread_jsonl(loom.thread(world.turn))
    assert world.acme.entity("notes") is not None


def test_the_matrix_of_these_tests_has_every_public_method() -> None:
    public = {name for name, _ in inspect.getmembers(Runtime) if not name.startswith("_")}
    public |= {f"loom.{name}" for name, _ in inspect.getmembers(Loom) if not name.startswith("_")}
    known = {*REFUSED, *OF_TURNS, *NOTHING, *ELSEWHERE, *OF_THE_WHOLE, *OF_NO_ENTITY}
    assert public <= known, f"say in this matrix what a tenant sees by {sorted(public - known)}"


async def test_a_request_is_decided_by_its_own_tenant_only(world: World) -> None:
    with pytest.raises(UnknownRequest):
        await world.other.decide(world.request.id, "allow", by="eve")
    with pytest.raises(UnknownRequest):
        await world.other.deliver(world.request.id, "paid 3")
    assert [one.id for one in world.acme.requests()] == [world.request.id]
    await world.acme.decide(world.request.id, "allow", by="ann")
    assert (await world.acme.find(world.request.entity or "").episode()).result == "paid 3"


async def test_a_feed_of_requests_has_only_requests_of_its_tenant(world: World) -> None:
    async with world.other.requests(follow=True) as feed:
        mine = await world.other.start(cantrip(asks=True), "pay")
        assert (await anext(feed)).entity == mine.id
    await mine.stop()


async def test_events_and_the_stream_have_only_entities_of_the_tenant(world: World) -> None:
    events, envelopes = world.other.events(), []
    stop = world.other.watch(envelopes.extend)
    await world.acme.cast(cantrip(), SECRET)
    await world.named.send(SECRET)
    mine = await world.other.cast(cantrip(), "mine")
    stop()
    events.close()
    assert {event.entity_id async for event in events} == {mine.entity_id}
    assert {event.entity_id for event in envelopes} == {mine.entity_id}


async def test_names_keys_and_schedules_belong_to_one_tenant(world: World) -> None:
    mine = await world.other.invoke(cantrip(), "mine", name="notes", key="begun")
    everybodys = await world.runtime.invoke(cantrip(), "whole", name="notes", key="begun")
    assert len({mine.id, everybodys.id, world.named.id}) == 3
    assert world.other.loom.named("notes") == mine.id
    assert world.runtime.loom.named("notes") == everybodys.id
    assert (await world.other.schedule("daily", "mine", every=1e6, id="plan")).intent == "mine"
    assert sorted(one.intent for one in world.runtime.schedules()) == [SECRET, "mine"]
    (schedule,) = world.other.schedules()
    await schedule.remove()
    assert [one.intent for one in world.runtime.schedules()] == [SECRET]


async def test_a_schedule_casts_for_its_tenant(world: World) -> None:
    await world.other.schedule("daily", "mine", every=5, id="often")
    while not world.other.loom.entities():
        await anyio.sleep(1.0)
    (schedule,) = world.other.schedules()
    await schedule.remove()
    assert {header.tenant for header in world.other.loom.headers()} == {"other"}


@pytest.mark.parametrize("gate_name", ["post", "ask"])
async def test_messages_between_entities_stay_within_a_tenant(world: World, gate_name: str) -> None:
    teller = cantrip(to=("*",))
    for whom in ("notes", world.named.id):
        episode = await world.other.cast(teller, f"tell {gate_name} {whom}")
        (seen,) = episode.thread[0].gate_calls
        assert seen.is_error
        assert "is not in this loom" in str(seen.result)
    assert "hello" not in str([one.utterance for one in world.acme.loom.turns(world.named.id)])
    episode = await world.acme.cast(teller, f"tell {gate_name} notes")
    assert not episode.thread[0].gate_calls[0].is_error


async def test_operations_on_the_whole_loom_are_refused(world: World, tmp_path: Path) -> None:
    for what in (world.other.drain(), world.other.backup(tmp_path / "copy.db"), world.other.aclose()):
        with pytest.raises(LoomError, match="about the whole loom"):
            await what


async def test_pruning_forgets_only_entities_of_the_tenant(world: World) -> None:
    mine = await world.other.cast(cantrip(), "mine")
    await anyio.sleep(0.01)  # it ended in this millisecond
    pruned = await world.other.prune(0)
    assert pruned.entities == (mine.entity_id,)
    assert not world.runtime.loom.is_forgotten(world.entity.id)


@pytest.mark.parametrize("name", ["", " ", "a\x1fb", "a\nb", "x" * 201, None, 7])
async def test_an_invalid_tenant_name_is_refused(name: Any) -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(ValueError, match="tenant: expected a name"):
            runtime.tenant(name)


async def test_entities_of_a_tenant_are_loaded_in_the_next_process(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        first = await runtime.tenant("acme").invoke(cantrip("notes"), "one", name="notes")
        await first.episode()
    async with Runtime.open(url, cantrips=[cantrip("notes")]) as runtime:
        assert runtime.entity("notes") is None
        assert runtime.tenant("other").entity("notes") is None
        found = runtime.tenant("acme").entity("notes")
        assert found is not None
        assert (await found.send("two")).result == "two"
        with pytest.raises(CantripError, match='"notes" is there already'):
            await runtime.tenant("acme").invoke(cantrip(), "three", name="notes")
    with open_loom(url, tenant="other") as loom:
        assert loom.entities() == []
    with open_loom(url, tenant="acme") as loom:
        assert loom.named("notes") == first.id


def test_a_blocking_runtime_has_tenants() -> None:
    with Runtime.blocking() as runtime:
        runtime.tenant("acme").cast(cantrip(), "hello")
        assert runtime.tenant("other").loom.entities() == []
        assert len(runtime.tenant("acme").loom.entities()) == 1


@pytest.mark.rule("Y-01")
async def test_each_tenant_ensures_an_entity_of_its_own() -> None:
    async with Runtime.open(cantrips=[cantrip("notes")]) as runtime:
        ids = {(await each.ensure("notes", cantrip("notes"))).id for each in (runtime, runtime.tenant("acme"))}
        assert len(ids) == 2
