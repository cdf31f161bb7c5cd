"""Interrupted entities, and the quarantine of an entity that kills each process that resumes it."""

import contextlib
import signal
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import CantripError, EntityEnded, LoomError, Runtime, scripted
from cantrip_actors.loom import DamagedLoom, Held, Quarantined
from cantrip_actors.runtime.entity.cells import Cells
from cantrip_actors.runtime.entity.launcher import Launcher
from cantrip_actors.testing import Crash, Process
from tests.loom.processes import python
from tests.runtime.kills import attempt, intents
from tests.runtime.spells import cantrip, done, say


async def slowly(context: Any) -> Any:
    """Echo once, then answer with the intent, ten seconds each."""
    answer = done("over") if context[-1].role == "tool" else say("echo", text="x")
    return {**answer, "delay": 10.0}


SPELL = cantrip(scripted(slowly, record=False))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'loom.db'}"


async def cut_short(url: str, *keys: str) -> list[str]:
    """Return the ids of one-shot entities that a killed process left in the middle of their work."""
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entities = [await runtime.start(SPELL, "go", key=key) for key in keys]
        await anyio.sleep(15)
        Process(Crash(1, False)).attach(runtime)
        await anyio.sleep(20)
        return [entity.id for entity in entities]


def lose(runtime: Runtime, entity_id: str, deaths: int) -> None:
    """Let so many processes claim an entity and die."""
    for n in range(deaths):
        runtime._tree.store.claim(entity_id, f"a process that died {n}", -1)


@pytest.mark.rule("C-65")
async def test_an_entity_that_a_live_runtime_runs_is_not_interrupted(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as one, Runtime.open(url, cantrips=[SPELL]) as two:
        entity = await one.start(SPELL, "go")
        await anyio.sleep(5)
        assert one.interrupted() == two.interrupted() == []
        async with Runtime.open(url, cantrips=[SPELL], recover="resume") as three:
            assert three.interrupted() == []
        async with Runtime.open(url, cantrips=[SPELL], recover="abandon") as four:
            assert four.interrupted() == []
        assert (await entity.episode()).result == "over"


@pytest.mark.rule("C-65")
async def test_an_entity_whose_runtime_was_killed_is_interrupted_until_another_resumes_it(url: str) -> None:
    (entity_id,) = await cut_short(url, "a")
    async with Runtime.open(url, cantrips=[SPELL]) as one, Runtime.open(url, cantrips=[SPELL]) as two:
        for runtime in (one, two):
            assert [header.entity_id for header in runtime.interrupted()] == [entity_id]
        entity = await one.resume(entity_id)
        assert one.interrupted() == two.interrupted() == []
        with pytest.raises(LoomError, match="is being run by"):
            await two.resume(entity_id)
        assert (await entity.episode()).result == "over"


@pytest.mark.rule("C-65")
async def test_an_entity_whose_processes_died_three_times_is_not_resumed_and_the_others_are(url: str) -> None:
    poison, sound = await cut_short(url, "poison", "sound")
    async with Runtime.open(url) as runtime:
        lose(runtime, poison, 3)
        lose(runtime, sound, 2)
    with capture_logs() as logs:
        async with Runtime.open(url, cantrips=[SPELL], recover="resume") as runtime:
            assert (await runtime.get_entity(sound).episode()).result == "over"
            assert runtime.loom.state(poison) == "active"
            assert [header.entity_id for header in runtime.interrupted()] == [poison]
    (line,) = [line for line in logs if line.get("entity") == poison]
    assert "quarantined" in line["why"]


@pytest.mark.rule("C-65")
async def test_resuming_an_entity_lifts_its_quarantine(url: str) -> None:
    (poison,) = await cut_short(url, "poison")
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        lose(runtime, poison, 3)
    async with Runtime.open(url, cantrips=[SPELL], recover="resume") as runtime:
        assert runtime.loom.state(poison) == "active"
        entity = await runtime.resume(poison)
        assert (await entity.episode()).result == "over"
        assert runtime.interrupted() == []


@pytest.mark.rule("C-65")
async def test_abandoning_an_entity_in_quarantine_ends_it(url: str) -> None:
    (poison,) = await cut_short(url, "poison")
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        lose(runtime, poison, 3)
        await runtime.abandon(poison)
        assert runtime.loom.state(poison) == "abandoned"


@pytest.mark.rule("C-65")
async def test_an_idle_entity_is_not_quarantined_after_any_number_of_dead_processes(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity = await runtime.invoke(SPELL, "go", name="x")
        await entity.episode()
    async with Runtime.open(url) as runtime:
        lose(runtime, entity.id, 5)
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        assert (await runtime.entity("x").send("more")).result == "over"


@pytest.mark.rule("C-65")
async def test_mail_to_an_entity_in_quarantine_waits_and_its_sender_gets_an_error(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity = await runtime.invoke(SPELL, "go", name="x")
        await entity.episode()
    async with Runtime.open(url) as runtime:
        await runtime.entity("x").post("more", key="k")
        lose(runtime, entity.id, 3)
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        with anyio.fail_after(10):
            result = await attempt(runtime.entity("x").send("more", key="k"))
        assert isinstance(result, Quarantined)
        assert runtime.receipt("x", "k").state == "waiting"
        await runtime.resume(entity.id)
        assert (await runtime.receipt("x", "k").episode()).result == "over"


@pytest.mark.rule("C-65")
async def test_resuming_an_entity_lifts_its_quarantine_while_its_mail_loads_it(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity = await runtime.invoke(SPELL, "go", name="x")
        await entity.episode()
    async with Runtime.open(url) as runtime:
        await runtime.entity("x").post("more", key="k")
        lose(runtime, entity.id, 3)
    async with Runtime.open(url, cantrips=[SPELL]) as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(attempt, runtime.receipt("x", "k").episode())  # loads the entity, without lifting
        for _ in range(1000):
            await anyio.lowlevel.checkpoint()
            if runtime._tree.living.get(entity.id) is not None:
                break
        else:
            raise AssertionError("it is not loaded")
        await runtime.resume(entity.id)
        assert (await runtime.receipt("x", "k").episode()).result == "over"


DIE = """
import os, signal, sys
import anyio
from cantrip_actors import Runtime, gate, scripted
from tests.runtime.spells import cantrip, done, say

@gate(idempotent=True)
async def die() -> str:
    "End this process."
    os.kill(os.getpid(), signal.SIGKILL)

def policy(context):
    if context[-1].role == "tool":
        return done("over")
    return say("die") if context[0].content == "die" else say("echo", text="x")

SPELL = cantrip(scripted(policy), die)

async def main(url, mode):
    async with Runtime.open(url, cantrips=[SPELL], recover="resume") as runtime:
        if mode == "begin":
            await runtime.invoke(SPELL, "live", name="sound")
            entity = await runtime.start(SPELL, "die", key="k")
            await entity.episode()
        else:
            await anyio.sleep(0.2)
            print(*(header.entity_id for header in runtime.interrupted()), flush=True)
            print((await runtime.entity("sound").send("more")).result, flush=True)

anyio.run(main, *sys.argv[1:])
"""


@pytest.mark.real_time
@pytest.mark.rule("C-65")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_entity_that_kills_each_process_that_resumes_it_is_quarantined(url: str) -> None:
    codes, output = [], ""
    for n in range(6):
        with python(DIE, url, "resume" if n else "begin") as process:
            output, _ = process.communicate(timeout=60)
            codes.append(process.returncode)
        if codes[-1] == 0:
            break
    assert codes == [-signal.SIGKILL] * 3 + [0]
    (quarantined, answer) = output.split()
    assert answer == "over"
    async with Runtime.open(url) as runtime:
        with contextlib.suppress(LoomError):
            await runtime.abandon(quarantined)
        assert runtime.loom.state(quarantined) == "abandoned"


@pytest.mark.rule("N-14")
async def test_mail_that_waits_for_an_entity_is_taken_once_its_quarantine_is_lifted(url: str) -> None:
    quick = cantrip(lambda context: done(context[-1].content), name="quick")
    async with Runtime.open(url, cantrips=[quick]) as runtime:
        await (await runtime.invoke(quick, "hello", name="keeper")).episode()
    async with Runtime.open(url) as client:
        keeper = client.entity("keeper")
        receipt = await keeper.post("work", key="k")
        lose(client, keeper.id, 3)
        async with Runtime.open(url, cantrips=[quick]) as runtime:
            await anyio.sleep(5)
            assert runtime.loom.state(keeper.id) == "idle"
            assert [turn.sequence for turn in runtime.loom.turns(keeper.id)] == [1]
            assert await runtime.cluster.free("keeper")
            with anyio.fail_after(2):
                assert (await receipt.episode()).result == "work"


@pytest.mark.rule("Z-11")
@pytest.mark.parametrize(
    ("offered", "deaths", "why"),
    [
        ([], 0, "is not known in this process"),
        ([SPELL, cantrip(scripted(slowly, record=False))], 0, "with several crystals or dependencies"),
        ([SPELL], 9, "died"),
    ],
    ids=["unknown", "ambiguous", "quarantined"],
)
async def test_an_entity_that_is_not_resumed_when_a_loom_is_opened_is_in_a_warning_and_in_a_list(
    url: str, offered: list[Any], deaths: int, why: str
) -> None:
    [entity_id] = await cut_short(url, "k")
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        with contextlib.suppress(Quarantined):
            lose(runtime, entity_id, deaths)
    with capture_logs() as logs:
        async with Runtime.open(url, cantrips=offered, recover="resume") as runtime:
            assert list(runtime.not_resumed) == [entity_id]
            assert why in runtime.not_resumed[entity_id]
            assert runtime.tenant("another").not_resumed == {}
    warnings = [line for line in logs if line["event"] == "an entity is not resumed"]
    assert [(line["log_level"], line["entity"]) for line in warnings] == [("warning", entity_id)]


@pytest.mark.rule("Z-11")
@pytest.mark.parametrize("recover", ["resume", "abandon"])
@pytest.mark.parametrize(
    ("error", "is_listed"),
    [(DamagedLoom("a record was changed"), True), (Held("another process"), False), (EntityEnded("just now"), False)],
    ids=["damaged", "held", "ended"],
)
async def test_a_runtime_opens_and_recovers_the_other_entities_if_one_cannot_be_recovered(
    url: str, recover: Any, error: CantripError, is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await cut_short(url, "a", "b")
    method = {"resume": "restore", "abandon": "abandon"}[recover]
    work = getattr(Launcher, method)

    async def fail(self: Launcher, entity_id: str, *args: Any, **named: Any) -> Any:
        if entity_id == first:
            raise error
        return await work(self, entity_id, *args, **named)

    monkeypatch.setattr(Launcher, method, fail)
    async with Runtime.open(url, cantrips=[SPELL], recover=recover) as runtime:
        assert dict(runtime.not_resumed) == ({first: str(error)} if is_listed else {})
        assert runtime.interrupted() == [runtime.loom.header(first)]
        assert (runtime.find(second).loaded, runtime.loom.is_over(second)) == (recover == "resume", recover != "resume")


@pytest.mark.rule("Z-11")
@pytest.mark.parametrize("recover", ["list", "resume", "abandon"])
async def test_a_runtime_opens_and_recovers_the_other_entities_if_the_header_of_one_is_damaged(
    url: str, recover: Any
) -> None:
    first, second = await cut_short(url, "a", "b")
    connection = sqlite3.connect(url.removeprefix("sqlite:"))
    connection.execute("update records set body = '{' where seq = (select no from entities where id = ?)", [first])
    connection.commit()
    connection.close()
    async with Runtime.open(url, cantrips=[SPELL], recover=recover) as runtime:
        assert list(runtime.not_resumed) == [first]
        assert "is corrupt" in runtime.not_resumed[first]
        assert (runtime.find(second).loaded, runtime.loom.is_over(second)) == (
            recover == "resume",
            recover == "abandon",
        )


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The entities that crash while they are loaded, before they have an actor."""
    crashing: set[str] = set()
    load = Cells.load_cell

    async def load_cell(self: Cells, facts: Any, *args: Any) -> Any:
        if facts.entity_id in crashing:
            raise ZeroDivisionError("a bug")
        return await load(self, facts, *args)

    monkeypatch.setattr(Cells, "load_cell", load_cell)
    return crashing


@pytest.mark.rule("D-011")
@pytest.mark.parametrize("is_shared", [False, True])
async def test_an_entity_that_crashes_while_its_mail_loads_it_is_quarantined_and_the_others_work(
    url: str, crashing: set[str], is_shared: bool
) -> None:
    async with Runtime.open(url if is_shared else "memory:", cantrips=[SPELL], passivate_after=1) as runtime:
        poison, sound = [await runtime.invoke(SPELL, "go", name=name) for name in ("poison", "sound")]
        await poison.episode()
        await sound.episode()
        await anyio.sleep(5)
        crashing.add(poison.id)
        for _ in range(5):
            with anyio.fail_after(100):
                result = await attempt(runtime.entity("poison").send("more", key="k"))
            assert isinstance(result, Quarantined)
            assert "ZeroDivisionError: a bug" in str(result)
        assert list(runtime.loom.quarantines()) == [poison.id]
        assert (await runtime.entity("sound").send("more")).result == "over"
        crashing.clear()
        await anyio.sleep(700)  # its quarantine ends by itself
        assert (await runtime.receipt("poison", "k").episode()).result == "over"
        assert runtime.loom.quarantines() == {}


@pytest.mark.rule("D-011", "Z-11")
async def test_a_runtime_opens_and_resumes_the_others_if_an_interrupted_entity_crashes_while_it_is_loaded(
    url: str, crashing: set[str]
) -> None:
    poison, sound = await cut_short(url, "poison", "sound")
    crashing.add(poison)
    async with Runtime.open(url, cantrips=[SPELL], recover="resume") as runtime:
        assert list(runtime.not_resumed) == [poison]
        assert "ZeroDivisionError: a bug" in runtime.not_resumed[poison]
        assert (await runtime.get_entity(sound).episode()).result == "over"
        crashing.clear()
        await anyio.sleep(700)
        assert (await runtime.get_entity(poison).episode()).result == "over"


@pytest.mark.rule("D-011")
async def test_a_schedule_and_a_submission_are_tried_again_if_their_entity_crashes_before_it_begins(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cell, poison = Cells.make_cell, cantrip(scripted(slowly, record=False), name="poison")
    is_mended, tries = False, 0

    def make(self: Cells, its: Any, *args: Any) -> Any:
        nonlocal tries
        if its.name == "poison" and not is_mended:
            tries += 1
            raise ZeroDivisionError("a bug")
        return make_cell(self, its, *args)

    monkeypatch.setattr(Cells, "make_cell", make)
    async with Runtime.open(url, cantrips=[poison, SPELL]) as runtime:
        await runtime.schedule(poison, "tick", every=10)
        submission = await runtime.submit("poison", "go", key="k")
        await anyio.sleep(100)
        assert tries <= 8  # every 30 s, and each of the two
        assert (await runtime.cast(SPELL, "go")).result == "over"
        is_mended = True
        with anyio.fail_after(100):
            assert (await submission.episode()).result == "over"
        await anyio.sleep(50)
        assert "tick" in [intents(runtime, header.entity_id)[0] for header in runtime.loom.headers()]


@pytest.mark.rule("Z-11")
async def test_nothing_is_listed_if_everything_is_resumed(url: str) -> None:
    await cut_short(url, "k")
    async with Runtime.open(url, cantrips=[SPELL], recover="resume") as runtime:
        assert runtime.not_resumed == {}
