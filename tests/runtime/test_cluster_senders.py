"""Runtimes that send to, wait for and watch entities on other nodes."""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import (
    Cantrip,
    CantripUnknown,
    EntityEnded,
    Fence,
    GateCall,
    Injected,
    InvalidIntent,
    Loom,
    LoomError,
    NoAnswer,
    Runtime,
    Stranded,
    ask_first,
    gate,
)
from cantrip_actors.records.records import Adopted
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_tokens, max_turns
from tests.runtime.spells import cantrip, done, say
from tests.runtime.test_cluster import DESK, answering, crashing, node


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/loom.db"


def walker(steps: int = 6, delay: float = 1.0) -> Cantrip:
    """A policy that takes so many turns, each after a delay."""

    async def policy(context: Any) -> object:
        n = sum(message.role == "assistant" for message in context)
        return {**(done("there") if n == steps - 1 else say("echo", text=str(n))), "delay": delay}

    return cantrip(policy, name="walker", wards=(max_turns(50),))


# N-61


@pytest.mark.rule("N-61")
async def test_a_sender_gets_an_error_when_no_living_node_can_run_the_entity(url: str) -> None:
    slow = answering(name="slow", turns=20)
    async with Runtime.open(url, cantrips=[slow]) as program:
        await (await program.invoke(slow, "begin", name="keeper")).episode()
    async with Runtime.open(url, stranded_after=5) as client, node(url, "w1"):
        receipt = await client.entity("keeper").post("work", key="k")
        with pytest.raises(Stranded, match="no living process serves the cantrip") as told:
            await receipt.episode()
        assert isinstance(told.value, CantripUnknown)
        assert told.value.offered == (("desk", DESK.id),)
        async with node(url, "w2", slow):
            assert (await receipt.episode()).result == "work"


@pytest.mark.rule("N-61")
async def test_a_send_fails_when_no_living_node_can_run_the_entity_and_its_mail_stays(url: str) -> None:
    slow = answering(name="slow", turns=20)
    async with Runtime.open(url, cantrips=[slow]) as program:
        await (await program.invoke(slow, "begin", name="keeper")).episode()
    async with Runtime.open(url, stranded_after=5) as client, node(url, "w1"):
        keeper = client.entity("keeper")
        assert keeper is not None
        with pytest.raises(Stranded), anyio.fail_after(20):
            await keeper.send("work", key="k")
        async with node(url, "w2", slow):
            assert (await keeper.send("work", key="k")).result == "work"
            assert len(client.loom.turns(keeper.id)) == 2


@pytest.mark.rule("N-61")
async def test_an_entity_is_stranded_when_the_last_node_has_died(url: str) -> None:
    slow = answering(delay=60)
    async with Runtime.open(url) as client:
        async with crashing(node(url, "w1", slow)) as one:
            await one.start(slow, "work", key="k")
            await anyio.sleep(1)
            assert await client.cluster.stranded() == []
        await anyio.sleep(15)
        why = "its episode was interrupted, and no living node serves its cantrip"
        assert [stranded.why for stranded in await client.cluster.stranded()] == [why]


@pytest.mark.rule("N-61")
async def test_an_entity_is_stranded_when_its_person_has_answered_and_no_living_node_can_run_it(url: str) -> None:
    async def policy(context: Any) -> object:
        return done("all") if any(one.role == "tool" for one in context) else say("echo", text="hello")

    asking = cantrip(policy, ask_first("echo"), name="asking")
    async with Runtime.open(url, stranded_after=5) as client, node(url, "w1"):
        async with node(url, "w2", asking) as leaving:
            await leaving.invoke(asking, "begin", name="keeper")
            await anyio.sleep(1)
            assert await leaving.drain()
        receipt = await client.entity("keeper").post("work", key="k")
        await anyio.sleep(5)
        assert await client.cluster.stranded() == []
        (request,) = client.requests()
        await client.decide(request.id, "allow", by="anna")
        assert [one.name for one in await client.cluster.stranded()] == ["keeper"]
        with pytest.raises(Stranded), anyio.fail_after(20):
            await receipt.episode()
        async with node(url, "w3", asking):
            assert (await receipt.episode()).result == "all"


TWIN = answering()
"""The content of `DESK`, with another crystal."""


@pytest.mark.rule("N-61", "N-20")
async def test_a_sender_gets_an_error_when_the_only_node_knows_the_cantrip_with_two_crystals(url: str) -> None:
    assert TWIN.id == DESK.id
    nameless = [replace(DESK, name=None), replace(TWIN, name=None)]
    async with Runtime.open(url, cantrips=[DESK]) as program:
        await (await program.invoke(DESK, "begin", name="keeper")).episode()
    async with Runtime.open(url, stranded_after=5) as client, node(url, "w1", *nameless):
        receipt = await client.entity("keeper").post("work", key="k")
        with pytest.raises(Stranded, match="several crystals or dependencies"), anyio.fail_after(20):
            await receipt.episode()
        assert [one.name for one in await client.cluster.stranded()] == ["keeper"]
        async with node(url, "w2", DESK):
            assert (await receipt.episode()).result == "work"


@pytest.mark.rule("N-61", "N-20")
async def test_a_node_leaves_entities_to_others_once_it_has_used_their_cantrip_with_another_crystal(url: str) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as program:
        await (await program.invoke(DESK, "begin", name="keeper")).episode()
    async with Runtime.open(url, stranded_after=5) as client, node(url, "w1", beat=0.5) as one:
        own = await one.invoke(TWIN, "hello", name="own")
        await own.episode()
        await anyio.sleep(2)
        receipt = await client.entity("keeper").post("work", key="k")
        with pytest.raises(Stranded), anyio.fail_after(20):
            await receipt.episode()
        cast = await client.submit("desk", "A cast has no past.", key="c")
        assert (await cast.episode()).result == "A cast has no past."
        assert (await client.entity("own").send("again")).result == "again"


@pytest.mark.rule("N-59", "N-20")
async def test_a_node_continues_entities_of_two_cantrips_of_one_content_that_their_names_tell_apart(url: str) -> None:
    async def shout(context: Any) -> object:
        return done(context[-1].content.upper())

    loud = cantrip(shout, name="loud")
    assert loud.id == DESK.id
    async with Runtime.open(url, cantrips=[DESK, loud]) as program:
        for member in (DESK, loud):
            await (await program.invoke(member, "begin", name=f"{member.name}-1")).episode()
    with capture_logs() as lines:
        async with Runtime.open(url, stranded_after=5) as client, node(url, "w1", DESK, loud):
            for name, result in (("desk-1", "work"), ("loud-1", "WORK")):
                receipt = await client.entity(name).post("work", key="k")
                assert (await receipt.episode()).result == result
    assert not [line for line in lines if "several crystals" in line["event"]]


@pytest.mark.rule("N-61")
async def test_a_sender_continues_to_wait_while_a_node_is_busy_or_full(url: str) -> None:
    slow = answering(delay=40)
    async with Runtime.open(url, stranded_after=5) as client, node(url, "w1", slow, capacity=1):
        casts = [await client.submit("desk", f"job {n}") for n in range(2)]
        assert [(await one.episode()).result for one in casts] == ["job 0", "job 1"]


@pytest.mark.parametrize("wrong", [0, -1, "soon"])
async def test_an_invalid_stranding_time_is_refused(url: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match="stranded_after: expected seconds"):
        Runtime.open(url, stranded_after=wrong)


# N-20


@pytest.mark.rule("N-20")
async def test_an_entity_runs_only_on_nodes_with_the_labels_its_cantrip_needs(url: str) -> None:
    picky = Cantrip(DESK.crystal, DESK.call, DESK.circle, name="picky", needs={"disk": "nfs1"})
    with_disk = {"labels": {"disk": "nfs1", "zone": "a"}}
    async with Runtime.open(url) as client, node(url, "w1", picky, labels={"disk": "other"}):
        job = await client.submit("picky", "work")
        await anyio.sleep(20)
        assert not job.has_begun
        async with node(url, "w2", picky, **with_disk):
            episode = await job.episode()
            assert episode.result == "work"
            served = {one.name: one.serves for one in await client.cluster.nodes()}
            assert served == {"w1": [], "w2": ["picky"]}


@pytest.mark.rule("N-20")
async def test_an_entity_is_stranded_when_no_node_has_its_labels(url: str) -> None:
    picky = Cantrip(DESK.crystal, DESK.call, DESK.circle, name="picky", needs={"disk": "nfs1"})
    async with Runtime.open(url, cantrips=[picky]) as program:
        await (await program.invoke(picky, "begin", name="keeper")).episode()
    async with Runtime.open(url) as client, node(url, "w1", picky):
        await client.entity("keeper").post("work")
        await anyio.sleep(5)
        (stranded,) = await client.cluster.stranded()
        assert (stranded.name, stranded.cantrip_name) == ("keeper", "picky")


@pytest.mark.rule("N-20")
def test_the_id_of_a_cantrip_does_not_depend_on_its_needs() -> None:
    picky = Cantrip(DESK.crystal, DESK.call, DESK.circle, name="desk", needs={"disk": "nfs1"})
    assert (picky.id, dict(picky.needs)) == (DESK.id, {"disk": "nfs1"})


# N-38


@pytest.mark.rule("N-38")
async def test_a_waiter_that_is_cancelled_leaves_its_mail_in_place(url: str) -> None:
    slow = answering(delay=5)
    async with Runtime.open(url) as client, node(url, "w1", slow) as one:
        await (await one.invoke(slow, "begin", name="keeper")).episode()
        with anyio.move_on_after(2):
            await client.entity("keeper").send("work", key="k")
        assert (await client.receipt("keeper", "k").episode()).result == "work"


@pytest.mark.rule("N-38")
async def test_a_cast_whose_caller_is_cancelled_is_stopped_on_any_node(url: str) -> None:
    slow = answering(delay=60)
    async with Runtime.open(url) as client, node(url, "w1", slow) as one:
        cast = await one.start(slow, "work")
        with anyio.move_on_after(3):
            await client.find(cast.id).result()
        assert (await client.find(cast.id).episode()).reason == "cancelled"


# N-39, N-41


@pytest.mark.rule("N-39")
async def test_a_story_has_each_turn_once_and_in_order_over_a_takeover(url: str) -> None:
    spell = walker()
    async with Runtime.open(url) as client, node(url, "w2", spell):
        async with crashing(node(url, "w1", spell)) as dying:
            cast = await dying.start(spell, "walk")
            await anyio.sleep(2.5)
        told = [turn.sequence async for turn in client.find(cast.id).story(after=1)]
        assert told == [2, 3, 4, 5, 6]
        assert [turn.sequence async for turn in client.find(cast.id).story()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.rule("N-39")
async def test_a_story_of_a_long_lived_entity_continues_after_unloading(url: str) -> None:
    async with Runtime.open(url, cantrips=[DESK], passivate_after=1) as runtime:
        keeper = await runtime.invoke(DESK, "one", name="keeper")
        seen: list[int] = []

        async def follow() -> None:
            seen.extend([turn.sequence async for turn in keeper.story()])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await keeper.episode()
            await anyio.sleep(30)
            assert not keeper.loaded
            await keeper.send("two")
            await keeper.stop()
        assert seen == [1, 2]


@pytest.mark.rule("N-39")
async def test_a_story_ends_when_it_is_closed_and_when_the_runtime_closes(url: str) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        keeper = await runtime.invoke(DESK, "one", name="keeper")
        await keeper.episode()
        closed, left = keeper.story(), keeper.story()
        assert (await anext(closed)).sequence == (await anext(left)).sequence == 1
        closed.close()
        assert [turn async for turn in closed] == []
    assert [turn async for turn in left] == []


@pytest.mark.rule("N-39")
async def test_a_story_reads_the_loom_once_for_events_that_arrive_together(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        keeper = await runtime.invoke(DESK, "one", name="keeper")
        await keeper.episode()
        story = keeper.story()
        assert (await anext(story)).sequence == 1
        await keeper.send("two")
        await keeper.send("three")
        reads = 0
        records_since = Loom.records_since

        def count(*given: Any) -> Any:
            nonlocal reads
            reads += 1
            return records_since(*given)

        monkeypatch.setattr(Loom, "records_since", count)
        assert [(await anext(story)).sequence for _ in range(2)] == [2, 3]
        with anyio.move_on_after(0.4):  # shorter than the interval of polls
            await anext(story)
        assert reads == 1


@pytest.mark.real_time
@pytest.mark.rule("N-39")
async def test_each_turn_of_a_story_goes_to_one_of_the_tasks_that_iterate_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime.open("memory:") as runtime:
        keeper = await runtime.invoke(answering(delay=0), "1", name="keeper")
        story = keeper.story()
        records_since = Loom.records_since

        def read_slowly(*given: Any) -> Any:
            found = records_since(*given)
            time.sleep(0.05)
            return found

        monkeypatch.setattr(Loom, "records_since", read_slowly)
        monkeypatch.setattr(runtime._tree.store, "blocking", True, raising=False)
        seen: list[int] = []

        async def follow() -> None:
            seen.extend([turn.sequence async for turn in story])

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(follow)
            for n in range(2, 6):
                await keeper.send(f"{n}")
            await keeper.stop()
        assert sorted(seen) == [1, 2, 3, 4, 5]


@pytest.mark.rule("N-39")
@pytest.mark.parametrize("after", [-1, "1", True])
async def test_a_story_after_an_invalid_turn_number_is_refused(url: str, after: Any) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        keeper = await runtime.invoke(DESK, "one", name="keeper")
        with pytest.raises(InvalidIntent, match="after: expected the number of a turn"):
            keeper.story(after)


def test_blocking_code_reads_a_story(tmp_path: Path) -> None:
    with Runtime.blocking(f"sqlite:{tmp_path / 'loom.db'}", cantrips=[DESK]) as runtime:
        keeper = runtime.invoke(DESK, "one", name="keeper")
        events = runtime.cluster.events("keeper")
        keeper.episode()
        keeper.stop()
        assert [turn.sequence for turn in keeper.story()] == [1]
        assert type(list(events)[-1]).__name__ == "EntityEndedEvent"


@pytest.mark.rule("N-41", "N-40")
async def test_events_of_an_entity_on_another_node_come_from_the_loom(url: str) -> None:
    spell = walker(steps=3)
    async with Runtime.open(url) as client, node(url, "w1", spell) as one:
        own = client.events()
        cast = await one.start(spell, "walk")
        told = [type(event).__name__ async for event in client.cluster.events(cast.id)]
        assert told.count("StepCompleteEvent") == 3
        assert told[-1] == "EntityEndedEvent"
        own.close()
        assert [event async for event in own] == []
        with pytest.raises(LoomError, match="not in this loom"):
            client.cluster.events("nobody")


# N-29, N-42


@pytest.mark.rule("N-29")
@pytest.mark.parametrize("durable", [True, False], ids=["written", "not written"])
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_mail_to_an_entity_of_the_senders_own_node_is_taken_once(url: str, at: int, durable: bool) -> None:
    async with Runtime.open(url) as client, node(url, "w2", passivate_after=1):
        async with node(url, "w1") as own:
            keeper = await own.invoke(DESK, "begin", name="keeper")
            await keeper.episode()
            Process(Crash(at, durable)).attach(own)
            posted = True
            with anyio.move_on_after(5):
                try:
                    await keeper.send("work", key="k")
                except (LoomError, EntityEnded):
                    posted = client._tree.store.find_mail(keeper.id, "k") is not None
        if posted:
            assert (await client.receipt("keeper", "k").episode()).result == "work"
        assert (await client.entity("keeper").send("work", key="k")).result == "work"
        said = [turn.utterance for turn in client.loom.turns(keeper.id)]
        assert len(said) == 2


@pytest.mark.rule("N-42")
async def test_an_end_recorded_before_its_node_died_settles_the_mail(url: str) -> None:
    spell = answering(delay=1)
    async with Runtime.open(url) as client:
        async with node(url, "w1", spell) as dying:
            keeper = await dying.invoke(spell, "begin", name="keeper")
            await keeper.episode()
            receipt = await client.entity("keeper").post("go again", key="k")
            await anyio.sleep(0.9)
            Process(Crash(1, True)).attach(dying)  # the record of its answer
            await anyio.sleep(5)
        assert receipt.state in ("working", "settled")
        async with node(url, "w2", spell):
            assert (await receipt.episode()).result == "go again"
            assert len(client.loom.turns(keeper.id)) == 2


# N-56


@pytest.mark.rule("N-56")
async def test_the_budget_of_an_entity_holds_on_another_node(url: str) -> None:

    async def policy(context: Any) -> object:
        return {**say("echo", text="more"), "delay": 1, "usage": {"prompt_tokens": 5, "completion_tokens": 5}}

    spell = cantrip(policy, name="spender", wards=(max_turns(50), max_tokens(60)))
    async with Runtime.open(url) as client, node(url, "w2", spell):
        async with crashing(node(url, "w1", spell)) as dying:
            cast = await dying.start(spell, "spend")
            await anyio.sleep(3.5)
        episode = await client.find(cast.id).episode()
        assert episode.truncated
        assert 60 <= episode.usage.total_tokens <= 80


# N-62, N-68, N-85


@pytest.mark.rule("N-62")
async def test_a_move_records_the_release_on_which_it_was_made(url: str) -> None:
    async with Runtime.open(url) as client:
        async with node(url, "w1", answering(turns=10), release="1") as one:
            keeper = await one.invoke(answering(turns=10), "one", name="keeper")
            await keeper.episode()
        newer = answering(turns=11)
        async with node(url, "w2", newer, release="2"):
            await client.entity("keeper").send("two")
        (moved,) = [one for one in client.loom.records(keeper.id) if isinstance(one, Adopted)]
        assert (moved.cantrip_id, moved.release) == (newer.id, "2")


@pytest.mark.rule("N-68")
async def test_a_node_that_drains_keeps_receiving_mail_until_it_has_released_an_entity(url: str) -> None:
    slow = answering(delay=10)
    async with Runtime.open(url) as client, node(url, "w1", slow, grace=30) as leaving:
        keeper = await leaving.invoke(slow, "first", name="keeper")
        await anyio.sleep(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leaving.drain)
            await anyio.sleep(1)
            receipt = await client.entity("keeper").post("second")
            assert receipt.state == "waiting"
        async with node(url, "w2", slow):
            assert (await receipt.episode()).result == "second"
            assert len(client.loom.turns(keeper.id)) == 2


@pytest.mark.rule("N-85")
async def test_a_takeover_writes_one_line_that_names_the_node(url: str) -> None:
    slow = answering(delay=30)
    async with crashing(Runtime.open(url, cantrips=[slow])) as program:
        for n in range(5):
            await program.start(slow, f"cast {n}")
        await anyio.sleep(1)
    with capture_logs() as lines:
        async with node(url, "w1", slow) as one:
            await anyio.sleep(5)
            (ours,) = await one.cluster.nodes()
    told = [line for line in lines if "taken over" in line["event"]]
    assert [(line["node"], line["id"], line["entities"]) for line in told] == [("w1", ours.id, 5)]


@pytest.mark.rule("N-71", "N-85")
async def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_is_over(url: str) -> None:
    async with node(url, "w1") as one:
        await anyio.sleep(5)
        store = one._tree.store
        before = {name: getattr(store, name) for name in ("new_mail", "next_due", "accounts", "survey")}
        with capture_logs() as lines:
            for name in before:
                setattr(store, name, raise_lost_connection)
            await anyio.sleep(60)
        assert Counter(line["event"] for line in lines) == {
            f"the loom could not be searched for {what}": 1 for what in ("mail", "timers", "entities without an owner")
        }
        with capture_logs() as lines:
            for name, works in before.items():
                setattr(store, name, works)
            await anyio.sleep(60)
        assert Counter(line["event"] for line in lines) == {
            f"the loom is searched for {what} again": 1 for what in ("mail", "timers", "entities without an owner")
        }


@pytest.mark.rule("N-71", "N-85")
async def test_entities_that_cannot_be_claimed_are_not_logged_as_taken_over(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = answering(delay=30)
    async with crashing(Runtime.open(url, cantrips=[slow])) as program:
        await program.start(slow, "go")
        await anyio.sleep(1)
    kind = type(program._tree.store)
    with capture_logs() as lines, monkeypatch.context() as outage:
        outage.setattr(kind, "claim", raise_lost_connection)
        one = await node(url, "w1", slow)
        await anyio.sleep(60)
    try:
        assert [line for line in lines if "taken over" in line["event"]] == []
        with capture_logs() as lines:
            await anyio.sleep(30)
        assert [line["entities"] for line in lines if "taken over" in line["event"]] == [1]
    finally:
        await one.aclose()


def raise_lost_connection(*_: Any, **__: Any) -> Any:
    raise LoomError("the server is gone")


# N-19


@pytest.mark.rule("N-19")
async def test_a_gate_gets_a_fence_that_grows_with_each_owner_of_its_tree(url: str) -> None:

    seen: list[tuple[str, int]] = []

    @gate
    async def write(n: int, fence: Injected[Fence], call: GateCall) -> str:
        """Write it elsewhere."""
        assert fence == call.fence
        seen.append(fence)
        return f"wrote {n}"

    async def policy(context: Any) -> object:
        n = sum(message.role == "assistant" for message in context)
        return {**(done("all") if n == 4 else say("write", n=n)), "delay": 1}

    spell = cantrip(policy, write, name="writer")
    async with Runtime.open(url) as client, node(url, "w2", spell):
        async with crashing(node(url, "w1", spell)) as dying:
            cast = await dying.start(spell, "write")
            await anyio.sleep(2.5)
        await client.find(cast.id).episode()
    trees, tokens = {tree for tree, _ in seen}, [token for _, token in seen]
    assert trees == {cast.id}
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 2


async def test_on_a_loom_of_one_process_the_fence_is_always_the_same() -> None:

    seen: list[Any] = []

    @gate
    async def look(call: GateCall) -> str:
        """Look."""
        seen.append(call.fence)
        return "seen"

    async def policy(context: Any) -> object:
        n = sum(message.role == "assistant" for message in context)
        return done("all") if n else say("look")

    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip(policy, look), "go")
    assert seen == [(episode.entity_id, 0)]


# N-38: a deadline of the waiter


@pytest.mark.rule("N-38")
@pytest.mark.parametrize("way", ["send", "episode"])
async def test_a_caller_that_timed_out_can_wait_on_a_receipt(url: str, way: str) -> None:
    async with Runtime.open(url) as client, node(url, "w1", slow := answering(delay=5.0, turns=20)):
        async with Runtime.open(url, cantrips=[slow]) as program:
            await (await program.invoke(slow, "begin", name="keeper")).episode()
        entity = client.entity("keeper")
        receipt = await entity.post("work", key="k")
        with pytest.raises(NoAnswer, match="did not answer within 2 s; its intent is w") as late:
            await (entity.send("work", key="k", timeout=2) if way == "send" else receipt.episode(timeout=2))
        assert isinstance(late.value, TimeoutError)
        assert late.value.entity_id == entity.id
        assert (await late.value.receipt.episode()).result == "work"
        assert (await entity.send("work", key="k", timeout=0)).result == "work"


@pytest.mark.rule("N-38")
@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "2", True])
async def test_an_invalid_timeout_is_refused_before_the_intent_is_sent(url: str, timeout: Any) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as runtime:
        entity = await runtime.invoke(DESK, "begin", name="keeper")
        await entity.episode()
        with pytest.raises(ValueError, match="timeout: expected a finite number of seconds >= 0"):
            await entity.send("work", key="k", timeout=timeout)
        with pytest.raises(LoomError, match="no intent with key"):
            runtime.receipt("keeper", "k")
