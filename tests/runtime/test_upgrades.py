"""Long-lived entities move to another content of their cantrip: when, to which one, and how the loom records it."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import (
    AlreadyDecided,
    Call,
    Cantrip,
    CantripUnknown,
    Circle,
    Entity,
    Episode,
    InvalidCantrip,
    InvalidDecision,
    LoomError,
    Move,
    Request,
    Runtime,
    ask_first,
    gate,
    open_loom,
    scripted,
)
from cantrip_actors.loom import verify_loom
from cantrip_actors.loom.export.atif import segments, trajectory
from cantrip_actors.loom.export.chat import chat_jsonl
from cantrip_actors.loom.export.conversation import conversation_of
from cantrip_actors.loom.export.pairs import pairs_jsonl
from cantrip_actors.records.records import Adopted, IntentGiven
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_turns
from supervisors.testing import virtual
from tests.exhaustive import EXHAUSTIVE, part
from tests.loom.test_store import LASTING, SHARED, anywhere
from tests.runtime.kills import attempt, intents
from tests.runtime.spells import done, say


def prompted(context: Any) -> Any:
    """Answer with the system prompt."""
    return done(context[0].content)


async def waiting(context: Any) -> Any:
    """The same, ten seconds later, if the intent is to wait."""
    return {**prompted(context), "delay": 10.0} if context[-1].content == "wait" else prompted(context)


def version(text: str, name: str | None = "clerk", **parts: Any) -> Cantrip:
    """A cantrip of this name with this system prompt, which its entities answer with."""
    crystal = scripted(waiting, record=False, name="clerk-model")
    return Cantrip(crystal, Call(text), Circle(["done"], [max_turns(10)]), name=name, **parts)


V1, V2, V3 = version("one"), version("two"), version("three")


@pytest.fixture(params=LASTING)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with anywhere(request.param) as place:
        yield place.url


async def begin(url: str, cantrip: Cantrip = V1, name: str = "x") -> str:
    """Return the id of an idle entity of this name in a loom that no process uses."""
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        entity = await runtime.invoke(cantrip, "start", name=name)
        await entity.episode()
        return entity.id


def entity_of(runtime: Runtime, name: str = "x", **options: Any) -> Entity:
    entity = runtime.entity(name, **options)
    assert entity is not None
    return entity


async def send(url: str, *cantrips: Cantrip, text: str = "more", **options: Any) -> Episode:
    """Send an intent from a process that offers these cantrips."""
    async with Runtime.open(url, cantrips=cantrips, **options) as runtime:
        return await entity_of(runtime).send(text)


async def refused(url: str, *cantrips: Cantrip, **options: Any) -> CantripUnknown:
    with pytest.raises(CantripUnknown) as raised:
        await send(url, *cantrips, **options)
    return raised.value


def moves_in(runtime: Runtime, entity_id: str) -> list[Adopted]:
    return [record for record in runtime.loom.records(entity_id) if isinstance(record, Adopted)]


# Which entities move


@pytest.mark.rule("C-40", "N-59")
async def test_an_entity_moves_to_the_offered_cantrip_of_its_name_with_its_next_intent(url: str) -> None:
    entity_id = await begin(url)
    assert (await send(url, V2)).result == "two"
    async with Runtime.open(url) as runtime:
        records = runtime.loom.records(entity_id)
        (at,) = (n for n, record in enumerate(records) if isinstance(record, Adopted))
        moved, intent = records[at : at + 2]
        assert isinstance(moved, Adopted)
        assert isinstance(intent, IntentGiven)
        assert (moved.previous, moved.cantrip_id, moved.cantrip_name) == (V1.id, V2.id, "clerk")
        assert moved.call == {"system_prompt": "two"}
        assert verify_loom(runtime._tree.store).ok


@pytest.mark.rule("C-40")
async def test_an_entity_moves_back_when_the_former_cantrip_is_offered_again(url: str) -> None:
    entity_id = await begin(url)
    assert [(await send(url, cantrip)).result for cantrip in (V2, V1, V1, V3)] == ["two", "one", "one", "three"]
    async with Runtime.open(url) as runtime:
        assert [one.cantrip_id for one in moves_in(runtime, entity_id)] == [V2.id, V1.id, V3.id]


@pytest.mark.rule("C-40", "N-59")
async def test_an_entity_stays_when_upgrade_is_never(url: str) -> None:
    await begin(url)
    error = await refused(url, V2, upgrade="never")
    assert (error.cantrip_name, error.cantrip_id, error.offered) == ("clerk", V1.id, (("clerk", V2.id),))
    assert (await send(url, V1, upgrade="never")).result == "one"


@pytest.mark.rule("C-40", "N-59")
async def test_a_function_decides_which_entities_move(url: str) -> None:
    entity_id = await begin(url)
    await begin(url, name="y")
    asked: list[Move] = []

    def upgrade(move: Move) -> bool:
        asked.append(move)
        return move.entity_name == "x"

    async with Runtime.open(url, cantrips=[V2], upgrade=upgrade) as runtime:
        assert (await entity_of(runtime).send("more")).result == "two"
        with pytest.raises(CantripUnknown):
            await entity_of(runtime, "y").send("more")
    assert (asked[0].entity_id, asked[0].cantrip_name, asked[0].from_id) == (entity_id, "clerk", V1.id)
    assert asked[0].cantrip is V2


@pytest.mark.rule("C-40")
async def test_an_upgrade_function_that_raises_is_an_error_of_the_send(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    await begin(url)

    def upgrade(move: Move) -> bool:
        raise KeyError(move.entity_name)

    with pytest.raises(LoomError, match="it raised KeyError: 'x'"):
        await send(url, V2, upgrade=upgrade)


@pytest.mark.rule("C-40")
async def test_an_entity_whose_name_is_not_offered_keeps_its_mail(url: str) -> None:
    entity_id = await begin(url)
    other = version("two", name="other")
    async with Runtime.open(url, cantrips=[other]) as runtime:
        receipt = await entity_of(runtime).post("later", key="k")
        with pytest.raises(CantripUnknown, match=rf'"clerk" \({V1.id}\).*offers "other" \({other.id}\)') as raised:
            await entity_of(runtime).send("more")
        assert (raised.value.entity_id, receipt.state) == (entity_id, "waiting")
    async with Runtime.open(url, cantrips=[V2]) as runtime:
        assert (await runtime.receipt("x", "k").episode()).result == "two"


@pytest.mark.rule("C-40")
async def test_a_cantrip_without_a_name_never_moves(url: str) -> None:
    await begin(url, version("one", name=None))
    error = await refused(url, version("two", name=None))
    assert (error.cantrip_name, error.offered[0][0]) == (None, None)
    assert (await send(url, version("one", name=None))).result == "one"


@pytest.mark.rule("C-40")
async def test_an_entity_without_a_cantrip_name_gets_one_when_it_is_given_a_cantrip(url: str) -> None:
    await begin(url, version("one", name=None))
    async with Runtime.open(url) as runtime:
        assert (await entity_of(runtime, cantrip=V1).send("more")).result == "one"
    assert (await send(url, V2)).result == "two"


@pytest.mark.rule("C-40")
def test_two_offered_cantrips_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidCantrip, match='two cantrips are called "clerk"'):
        Runtime.open(cantrips=[V1, V2])


@pytest.mark.rule("C-40")
def test_an_unknown_upgrade_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'idle', 'never' or a function"):
        Runtime.open(upgrade="always")  # type: ignore[arg-type]


# Episodes under way


async def interrupt(url: str, name: str = "x") -> str:
    """Return the id of an entity in whose episode its process has closed."""
    async with Runtime.open(url, cantrips=[V1]) as runtime:
        entity = await runtime.invoke(V1, "wait", name=name)
        await anyio.sleep(1)
        return entity.id


@pytest.mark.rule("C-40", "N-59")
async def test_an_episode_under_way_keeps_its_cantrip_and_the_next_intent_moves(url: str) -> None:
    entity_id = await interrupt(url)
    async with Runtime.open(url, cantrips=[V2], recover="resume") as runtime:
        with pytest.raises(CantripUnknown):
            await entity_of(runtime).send("more")
        with pytest.raises(CantripUnknown):
            await runtime.resume(entity_id)
        entity = await runtime.resume(entity_id, cantrip=V1)
        assert (await entity.episode()).result == "one"
        assert moves_in(runtime, entity_id) == []
        assert (await entity.send("more")).result == "two"
        assert (await entity.send("more")).result == "two"
        assert len(moves_in(runtime, entity_id)) == 1


@pytest.mark.rule("C-40")
async def test_mail_that_waits_for_the_end_of_an_old_episode_is_taken_with_the_offered_cantrip(url: str) -> None:
    entity_id = await interrupt(url)
    async with Runtime.open(url, cantrips=[V2]) as runtime:
        receipt = await entity_of(runtime).post("more", key="k")
        entity = await runtime.resume(entity_id, cantrip=V1)
        assert (await entity.episode()).result == "one"
        assert (await receipt.episode()).result == "two"


@pytest.mark.rule("C-40", "C-41")
async def test_a_cantrip_that_is_given_to_resume_changes_an_episode_under_way(url: str) -> None:
    entity_id = await interrupt(url)
    async with Runtime.open(url, cantrips=[V2]) as runtime:
        entity = await runtime.resume(entity_id, cantrip=V3)
        assert (await entity.episode()).result == "three"
        assert [turn.cantrip_id for turn in runtime.loom.turns(entity_id)] == [V3.id]
        assert (await entity.send("more")).result == "three"
    assert (await send(url, V2)).result == "two"


@pytest.mark.rule("C-40")
async def test_a_given_cantrip_is_used_in_its_process_and_the_offered_cantrip_in_the_next(url: str) -> None:
    await begin(url)
    async with Runtime.open(url, cantrips=[V2], passivate_after=10) as runtime:
        assert (await entity_of(runtime, cantrip=V3).send("more")).result == "three"
        await anyio.sleep(60)
        assert (await entity_of(runtime).send("more")).result == "three"
    assert (await send(url, V2)).result == "two"


@pytest.mark.rule("C-40", "N-59")
async def test_a_one_shot_entity_keeps_its_cantrip(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await runtime.start(V1, "wait")
        Process(Crash(1, False)).attach(runtime)
        await attempt(entity.episode())
    async with Runtime.open(url, cantrips=[V2], recover="resume") as runtime:
        assert [header.entity_id for header in runtime.interrupted()] == [entity.id]
        with pytest.raises(CantripUnknown):
            await runtime.resume(entity.id)
        assert runtime.would_adopt() == []
        assert (await (await runtime.resume(entity.id, cantrip=V1)).episode()).result == "one"


# Kills around a move


@pytest.mark.rule("C-40", "C-10")
@pytest.mark.parametrize("durable", [False, True], ids=["lost", "written"])
@pytest.mark.parametrize("at", part(range(1, 6), 2))
async def test_a_process_killed_around_a_move_neither_repeats_nor_loses_it(url: str, at: int, durable: bool) -> None:
    entity_id = await begin(url)
    async with Runtime.open(url, cantrips=[V2]) as runtime:
        Process(Crash(at, durable)).attach(runtime)
        await attempt(entity_of(runtime).send("more", key="k"))
    async with Runtime.open(url, cantrips=[V2], recover="resume") as runtime:
        assert (await entity_of(runtime).send("more", key="k")).result == "two"
        assert intents(runtime, entity_id) == ["start", "more"]
        records = [record for record in runtime.loom.records(entity_id) if isinstance(record, Adopted | IntentGiven)]
        assert [type(record) for record in records] == [IntentGiven, Adopted, IntentGiven]
        assert verify_loom(runtime._tree.store).ok


# Two processes


@pytest.mark.rule("C-40")
@pytest.mark.parametrize("kind", SHARED)
async def test_two_processes_with_two_versions_each_answer_with_their_own_cantrip(kind: str) -> None:
    with anywhere(kind) as place:
        entity_id = await begin(place.url)
        async with (
            Runtime.open(place.url, cantrips=[V1], passivate_after=10) as old,
            Runtime.open(place.url, cantrips=[V2], passivate_after=10) as new,
        ):
            assert (await entity_of(old).send("more")).result == "one"
            assert (await entity_of(new).send("more")).result == "one"  # the other process runs it
            await anyio.sleep(60.2)
            assert (await entity_of(new).send("more")).result == "two"
            assert len(moves_in(new, entity_id)) == 1
            with anyio.fail_after(600):
                answer = "two"
                while answer == "two":  # on a busy machine the other process may find the mail first
                    await anyio.sleep(60.2)
                    answer = (await entity_of(old).send("more")).result
            assert answer == "one"
            await anyio.sleep(60)
            assert [one.cantrip_id for one in moves_in(new, entity_id)] == [V2.id, V1.id]


# What shows the call in force


@pytest.mark.rule("C-41")
async def test_each_turn_has_the_cantrip_in_force_and_a_fork_continues_with_it(url: str) -> None:
    entity_id = await begin(url)
    await send(url, V2)
    async with Runtime.open(url, cantrips=[V2]) as runtime:
        old, new = runtime.loom.turns(entity_id)
        assert (old.cantrip_id, new.cantrip_id) == (V1.id, V2.id)
        assert (await runtime.fork(new.id, intent="again")).result == "two"
        with pytest.raises(CantripUnknown) as raised:
            await runtime.fork(old.id, intent="again")
        assert raised.value.cantrip_id == V1.id
        assert (await runtime.fork(old.id, intent="again", cantrip=V1)).result == "one"
        assert runtime.loom.header_at(old.id).call == {"system_prompt": "one"}
        assert runtime.loom.header_at(new.id).call == {"system_prompt": "two"}


# The dry run


@pytest.mark.rule("C-40")
async def test_would_adopt_lists_the_moves_and_changes_nothing(url: str) -> None:
    first, second = await begin(url), await interrupt(url, "y")
    async with Runtime.open(url, cantrips=[V2]) as runtime:
        moves = runtime.would_adopt()
        assert [(one.entity_id, one.entity_name, one.is_idle) for one in moves] == [
            (first, "x", True),
            (second, "y", False),
        ]
        assert all(one.cantrip is V2 and one.from_id == V1.id for one in moves)
        assert moves_in(runtime, first) == []
        await entity_of(runtime).send("more")
        assert [one.entity_id for one in runtime.would_adopt()] == [second]
    async with Runtime.open(url, cantrips=[V2], upgrade="never") as runtime:
        assert runtime.would_adopt() == []


@pytest.mark.rule("C-40")
async def test_would_adopt_says_that_an_entity_that_waits_for_a_person_is_not_idle(url: str) -> None:
    def asking(context: Any) -> Any:
        return prompted(context) if context[-1].content == "yes" else say("question", text="Shall I?")

    def clerk(text: str) -> Cantrip:
        return Cantrip(scripted(asking), Call(text), Circle(["done", "question"], [max_turns(5)]), name="clerk")

    async with Runtime.open(url, cantrips=[clerk("one")]) as runtime:
        await runtime.invoke(clerk("one"), "start", name="x")
        await anyio.sleep(1)
    async with Runtime.open(url, cantrips=[clerk("two")]) as runtime:
        assert [one.is_idle for one in runtime.would_adopt()] == [False]
        (request,) = runtime.requests()
        await runtime.decide(request.id, answer="yes")
    async with Runtime.open(url, cantrips=[clerk("one")], recover="resume", upgrade="never") as runtime:
        assert (await entity_of(runtime).episode()).result == "one"
    async with Runtime.open(url, cantrips=[clerk("two")]) as runtime:
        assert [one.is_idle for one in runtime.would_adopt()] == [True]


@pytest.mark.rule("C-40")
def test_an_async_upgrade_function_is_refused() -> None:
    async def upgrade(move: Move) -> bool:
        return False

    with pytest.raises(ValueError, match="returns True or False at once, got async"):
        Runtime.open(upgrade=upgrade)  # type: ignore[arg-type]


@pytest.mark.rule("C-40")
async def test_a_key_finds_its_entity_after_a_move(url: str) -> None:
    async with Runtime.open(url, cantrips=[V1]) as runtime:
        await (await runtime.invoke(V1, "start", name="x", key="k")).episode()
    await send(url, V2)
    async with Runtime.open(url, cantrips=[V2]) as runtime:
        assert (await (await runtime.invoke(V1, "start", name="x", key="k")).send("more")).result == "two"


@pytest.mark.rule("C-41")
async def test_exports_show_the_call_in_force_at_each_turn(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    entity_id = await begin(url)
    await send(url, V2)
    await send(url, V2)
    with open_loom(url) as loom:
        told = conversation_of(loom, entity_id)
        lines = [orjson.loads(line) for line in chat_jsonl([told], metadata=True)]
        assert [[m["content"] for m in line["messages"] if m["role"] in ("system", "user")] for line in lines] == [
            ["one", "start"],
            ["two", "start", "more", "more"],
        ]
        assert [line["metadata"]["turn"] for line in lines] == [loom.turns(entity_id)[at].id for at in (0, 2)]
        documents = segments(loom, entity_id)
        assert [(one["steps"][0]["message"], one["agent"]["version"]) for one in documents] == [
            ("one", V1.id),
            ("two", V2.id),
        ]
        prompts = [step["message"] for step in trajectory(loom, entity_id)["steps"] if step["source"] == "system"]
        assert prompts == ["one", "two"]


@pytest.mark.rule("C-41")
async def test_preference_pairs_have_the_call_that_was_in_force_after_the_fork(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    entity_id = await begin(url)
    async with Runtime.open(url, cantrips=[V2]) as runtime:
        await entity_of(runtime).send("more")
        first, second = runtime.loom.turns(entity_id)
        fork = await runtime.fork(first.id, intent="more", cantrip=V2)
        await runtime.loom.reward(second.id, 1.0)
        await runtime.loom.reward(fork.thread[-1].id, 0.0)
        (pair,) = map(orjson.loads, pairs_jsonl(runtime.loom))
    assert [message["content"] for message in pair["prompt"] if message["role"] in ("system", "user")] == [
        "two",
        "start",
        "more",
    ]


# Any sequence of deployments and kills


class Life(NamedTuple):
    """One process: which version it offers, at which write it is killed, if at all, and whether that one is made."""

    version: int
    kill_at: int | None
    durable: bool


VERSIONS = (V1, V2, V3)
lives = st.builds(Life, st.integers(0, 2), st.none() | st.integers(1, 7), st.booleans())


async def deployments(url: str, planned: list[Life]) -> None:
    entity_id = await begin(url)
    for n, life in enumerate(planned):
        async with Runtime.open(url, cantrips=[VERSIONS[life.version]]) as runtime:
            if life.kill_at is not None:
                Process(Crash(life.kill_at, life.durable)).attach(runtime)
            await attempt(entity_of(runtime).send(f"intent {n}", key=f"{n}"))
    with open_loom(url) as loom:
        in_force = loom.header_in_force(entity_id).cantrip_id
    async with Runtime.open(url, cantrips=[one for one in VERSIONS if one.id == in_force]) as runtime:
        await runtime.resume(entity_id)
        for n in range(len(planned)):
            assert (await entity_of(runtime).send(f"intent {n}", key=f"{n}")).terminated
        taken = intents(runtime, entity_id)
        assert sorted(taken) == sorted(["start", *(f"intent {n}" for n in range(len(planned)))])
        records = list(runtime.loom.records(entity_id))
        assert verify_loom(runtime._tree.store).ok
        for turn in runtime.loom.turns(entity_id):
            prompt = runtime.loom.header_at(turn.id).call["system_prompt"]
            assert (turn.gate_calls[-1].result, turn.cantrip_id) == (prompt, version(prompt).id)
    for record, following in pairwise(records):
        assert not isinstance(record, Adopted) or isinstance(following, IntentGiven)


@pytest.mark.rule("C-40", "C-41", "C-10")
@settings(max_examples=20 if EXHAUSTIVE else 8)
@given(st.sampled_from(["asyncio", "trio"]), st.lists(lives, min_size=1, max_size=4))
@pytest.mark.rule("N-65")
def test_deployments_and_kills_in_any_order_lose_no_intent_and_mix_no_versions(
    backend: str, planned: list[Life]
) -> None:
    name, options = virtual(backend)
    with anywhere("sqlite") as place:
        anyio.run(deployments, place.url, planned, backend=name, backend_options=options)


# Entities that move while they wait for a person

PAID: list[int] = []


@gate
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return "paid"


def paying(*gates: Any) -> Cantrip:
    """A cantrip that pays, and answers with what it observed."""

    def answer(context: Any) -> Any:
        return done(context[-1].content) if context[-1].role == "tool" else say("pay", amount=3)

    return Cantrip(scripted(answer, record=False), circle=Circle(["done", *gates], [max_turns(9)]), name="payer")


async def begin_paying(url: str) -> Request:
    """Return the request of an entity that waits for a person, in a loom that no process uses."""
    PAID.clear()
    cantrip = paying(ask_first(pay))
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        await runtime.invoke(cantrip, "go", name="x")
        async for request in runtime.requests(follow=True):
            return request
    raise AssertionError


@pytest.mark.rule("C-40", "C-20")
async def test_a_request_is_closed_when_its_entity_moves_to_a_cantrip_without_the_gate(url: str) -> None:
    request = await begin_paying(url)
    async with Runtime.open(url, cantrips=[paying()]) as runtime:
        entity = await runtime.resume(request.entity, cantrip=paying())
        with anyio.fail_after(5):
            result = (await entity.episode()).result
        assert "pay was not run: the entity moved to a cantrip without it before the decision; gate not" in result
        assert list(runtime.requests()) == PAID == []
        with pytest.raises(AlreadyDecided, match="expired"):
            await runtime.decide(request.id, "allow", by="anna")
        assert verify_loom(runtime._tree.store).ok


@pytest.mark.rule("C-40", "C-20")
async def test_a_decision_about_a_gate_that_a_move_removed_runs_nothing_and_the_entity_learns_why(url: str) -> None:
    request = await begin_paying(url)
    async with Runtime.open(url, cantrips=[paying()]) as runtime:
        await runtime.decide(request.id, "allow", by="anna")
        entity = await runtime.resume(request.entity, cantrip=paying())
        with anyio.fail_after(5):
            result = (await entity.episode()).result
        assert "pay was not run: the entity moved to a cantrip without it before the decision" in result
        assert PAID == []
        assert verify_loom(runtime._tree.store).ok


@pytest.mark.rule("C-40", "N-59")
async def test_a_decision_waits_for_the_cantrip_that_asked_when_a_process_offers_another_one(url: str) -> None:
    request = await begin_paying(url)
    async with Runtime.open(url, cantrips=[paying()]) as runtime:
        await runtime.decide(request.id, "allow", by="anna")
        await anyio.sleep(2)
        assert PAID == []
    async with Runtime.open(url, cantrips=[paying(ask_first(pay))]) as runtime:
        with anyio.fail_after(5):
            assert (await entity_of(runtime).episode()).result == "paid"
        assert PAID == [3]


@pytest.mark.rule("C-40", "Y-05")
async def test_ensure_continues_an_episode_that_waits_for_a_person_with_the_new_version(url: str) -> None:
    request, new = await begin_paying(url), paying(ask_first(pay), "echo")
    async with Runtime.open(url, cantrips=[new]) as runtime:
        entity = await runtime.ensure("x", new)
        more = await entity.post("more")
        await runtime.decide(request.id, "allow", by="anna")
        with anyio.fail_after(5):
            assert (await entity.work.result()).result == "paid"
            async with runtime.requests(follow=True) as requests:
                await runtime.decide((await anext(requests)).id, "allow", by="anna")
            assert (await more.result()).result == "paid"
        assert PAID == [3, 3]


@pytest.mark.rule("C-40", "N-59")
async def test_an_entity_moves_after_an_episode_that_waited_for_a_person_with_the_old_version(url: str) -> None:
    request, old, new = await begin_paying(url), paying(ask_first(pay)), paying(pay)
    async with Runtime.open(url, cantrips=[new]) as runtime:
        entity = await runtime.resume(request.entity, cantrip=old)
        await runtime.decide(request.id, "allow", by="anna")
        assert (await entity.episode()).result == "paid"
        assert (await entity.send("more")).result == "paid"
        assert [turn.cantrip_id for turn in runtime.loom.turns(entity.id)] == [old.id, old.id, new.id, new.id]


@pytest.mark.rule("C-40", "C-20")
async def test_every_process_checks_changed_arguments_by_the_version_that_the_entity_moved_to(tmp_path: Path) -> None:
    @gate(name="pay")
    def pay_in(amount: int, currency: str) -> str:
        """Pay in a currency."""
        return f"paid {amount} {currency}"

    url = f"sqlite:{tmp_path / 'loom.db'}"
    request, new = await begin_paying(url), paying(ask_first(pay_in))
    async with Runtime.open(url, cantrips=[new]) as runtime, Runtime.open(url) as door:
        entity = await runtime.resume(request.entity or "", cantrip=new)
        while not moves_in(runtime, entity.id):
            await anyio.sleep(0.1)
        with pytest.raises(InvalidDecision, match="currency"):
            await door.decide(request.id, "allow", args={"amount": 4}, by="anna")
        await door.decide(request.id, "allow", args={"amount": 4, "currency": "EUR"}, by="anna")
        assert (await entity.episode()).result == "paid 4 EUR"
