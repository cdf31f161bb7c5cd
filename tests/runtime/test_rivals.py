"""One cell of one runtime runs an entity, however many callers ask for it at once."""

import contextlib
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Entity, EntityEnded, InvalidIntent, LoomError, Runtime, RuntimeClosed, ask_first, gate
from cantrip_actors.loom import name_lease
from cantrip_actors.records.records import Ended
from tests.runtime.spells import cantrip, done, say


def spell() -> object:
    async def echoing(context: object) -> object:
        return {**done(context[-1].content), "delay": 0.1}

    return cantrip(echoing)


SPELL = spell()


@gate
async def pay() -> str:
    """Pay."""
    return "paid"


PAYER = cantrip(
    lambda context: done("over") if context[-1].role == "tool" else say("pay"), ask_first(pay), name="payer"
)


@pytest.fixture(params=["jsonl", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path}/loom.db"


async def asleep(url: str) -> str:
    """Return the id of an unloaded entity in this loom."""
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(SPELL, "one", name="keeper")
        await entity.episode()
        return entity.id


@pytest.mark.rule("D-001", "LOOM-2")
async def test_concurrent_sends_to_an_unloaded_entity_load_it_once(url: str) -> None:
    entity_id = await asleep(url)
    results = []
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:

        async def send(text: str) -> None:
            results.append((await runtime.entity("keeper").send(text)).result)

        async with anyio.create_task_group() as tasks:
            for text in ("two", "three", "four"):
                tasks.start_soon(send, text)
        turns = runtime.loom.turns(entity_id)
    assert sorted(results) == ["four", "three", "two"]
    assert [turn.sequence for turn in turns] == [1, 2, 3, 4]


async def test_one_of_two_concurrent_invokes_of_one_name_is_refused(url: str) -> None:
    made: list[Entity] = []
    async with Runtime.open(url) as runtime:

        async def invoke() -> None:
            with contextlib.suppress(InvalidIntent):
                made.append(await runtime.invoke(SPELL, "one", name="keeper"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(invoke)
            tasks.start_soon(invoke)
        assert len(made) == 1
        assert len(runtime.loom.entities()) <= 1
        await made[0].episode()


async def test_a_send_is_answered_by_the_runtime_that_runs_the_entity_and_here_when_that_has_closed(
    tmp_path: Path,
) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    await asleep(url)
    async with Runtime.open(url, cantrips=[SPELL]) as mine:
        async with Runtime.open(url, cantrips=[SPELL]) as other:
            assert (await other.entity("keeper").send("two")).result == "two"
            answers: list[object] = []

            async def send(intent: str) -> None:
                answers.append((await mine.entity("keeper").send(intent)).result)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, "three")
                tasks.start_soon(send, "four")
            assert sorted(answers) == ["four", "three"]
            assert other.entity("keeper").loaded
            assert not mine.entity("keeper").loaded
        assert (await mine.entity("keeper").send("five")).result == "five"
        turns = mine.loom.turns(mine.entity("keeper").id)
    assert [turn.sequence for turn in turns] == [1, 2, 3, 4, 5]


async def test_an_entity_that_ended_in_another_runtime_is_refused_here(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    await asleep(url)
    async with Runtime.open(url, cantrips=[SPELL]) as mine:
        keeper = mine.entity("keeper")
        async with Runtime.open(url, cantrips=[SPELL]) as other:
            await other.entity("keeper").stop()
        with pytest.raises(EntityEnded):
            await keeper.send("two")


@pytest.mark.rule("LOOM-2")
async def test_a_name_is_free_in_other_runtimes_when_its_entity_could_not_begin(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url) as one, Runtime.open(url) as two:
        await one.drain(0)
        with pytest.raises(RuntimeClosed):
            await one.invoke(SPELL, "one", name="keeper")
        with anyio.fail_after(60):
            entity = await two.ensure("keeper", SPELL)
            assert (await entity.send("two")).result == "two"


async def test_a_caller_that_waits_for_a_name_can_be_cancelled(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url) as one, Runtime.open(url) as two:
        await one._tree.claim(name_lease("keeper"))
        with anyio.move_on_after(60) as scope:
            await two.ensure("keeper", SPELL)
        assert scope.cancelled_caught


async def leave(url: str) -> str:
    """Return the id of an entity of this loom that waits for a person, and that no runtime runs."""
    async with Runtime.open(url, cantrips=[PAYER]) as runtime:
        entity = await runtime.start(PAYER, "pay", key="work")
        await anyio.sleep(1)
        return entity.id


@pytest.mark.rule("LOOM-2")
async def test_an_entity_that_ended_in_another_runtime_is_not_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    entity_id = await leave(url)
    async with Runtime.open(url) as here:
        claim = here._tree.claim

        async def claim_late(what: str, *, lift: bool = False) -> int:
            async with Runtime.open(url, cantrips=[PAYER]) as other:
                (request,) = other.requests()
                await other.decide(request.id, "deny", by="anna")
                await (await other.resume(entity_id)).episode()
            return await claim(what, lift=lift)

        monkeypatch.setattr(here._tree, "claim", claim_late)
        await here.abandon(entity_id)
        ends = [record.reason for record in here.loom.records(entity_id) if isinstance(record, Ended)]
    assert ends == ["terminated"]


async def test_an_entity_that_could_not_be_abandoned_is_free_in_other_runtimes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    entity_id = await leave(url)
    async with Runtime.open(url) as here:

        async def append(*_: object) -> None:
            raise LoomError("the disk is full")

        monkeypatch.setattr(here._tree, "append", append)
        with pytest.raises(LoomError, match="the disk is full"):
            await here.abandon(entity_id)
        async with Runtime.open(url, cantrips=[PAYER]) as other:
            assert (await other.resume(entity_id)).id == entity_id


async def test_a_cast_whose_entity_another_process_ends_at_this_moment_returns_its_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url) as other, Runtime.open(url) as here:
        first = await other.start(SPELL, "one", key="k")
        restore = here._tree.launcher.restore

        async def restore_late(*args: Any, **more: Any) -> Any:
            await first.episode()
            await anyio.sleep(1)  # its lease on the entity is released
            return await restore(*args, **more)

        monkeypatch.setattr(here._tree.launcher, "restore", restore_late)
        assert (await here.cast(SPELL, "one", key="k")).result == "one"
