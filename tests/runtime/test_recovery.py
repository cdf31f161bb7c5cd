"""Crashes: of an entity's actor, of its circle, of the whole process. Nothing is done twice, nothing is lost."""

import contextlib
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import (
    Cantrip,
    Circle,
    EntityCrashed,
    EntityEnded,
    Invocation,
    LoomError,
    Quarantined,
    ResumedEvent,
    Runtime,
    gate,
    scripted,
)
from cantrip_actors.loom import Held
from cantrip_actors.loom.export.atif import trajectory
from cantrip_actors.loom.export.thread import thread_jsonl
from cantrip_actors.loom.sqlite import sqlite
from cantrip_actors.loom.stores import lease_store
from cantrip_actors.records.instant import format_instant
from cantrip_actors.records.records import Resumed, Utterance
from cantrip_actors.runtime.circles.gates_actor import GatesActor
from cantrip_actors.runtime.entity.delegation import Delegation
from cantrip_actors.runtime.entity.driver import EntityActor
from cantrip_actors.runtime.entity.performer import Performer
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.stream.reading import EventLog
from cantrip_actors.wards import max_tokens, max_turns, timeout
from supervisors import Crash
from tests.loom import postgres
from tests.runtime.spells import cantrip, done, say


class Killed(Exception):
    """The error with which the tests crash an actor."""


class World:
    """The effects of gates, counted outside of the entities."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.paid = 0

    def gate(self) -> object:
        """A gate whose effects are counted."""

        @gate
        async def effect(what: str) -> str:
            """Change the world."""
            self.effects.append(what)
            return f"did {what}"

        return effect

    def spell(self, *script: object, delegates: bool = False, wards: tuple[object, ...] = ()) -> Cantrip:
        def policy(context: Invocation) -> object:
            self.paid += 1
            if context[0].content == "child":
                return done("grown") if len(context) > 1 else say("effect", what="child's")
            return script[sum(m.role == "assistant" for m in context)]

        gates = ["done", "echo", self.gate(), *(["call_agent", "call_agent_batch"] if delegates else [])]
        return Cantrip(scripted(policy), circle=Circle(gates, [max_turns(10), *wards]))


SCRIPT = (say("effect", what="one"), say("effect", what="two"), done("over"))


async def slowly(context: Invocation) -> object:
    """A policy that takes five seconds for each line of the script."""
    return {**SCRIPT[sum(m.role == "assistant" for m in context)], "delay": 5.0}


def crash_at(monkeypatch: pytest.MonkeyPatch, actor: type, method: str, *, after: bool, at: int) -> None:
    """Have the `at`-th call of an actor's method crash it, before or after its work."""
    whole = getattr(actor, method)
    count = 0

    async def crashing(self: object, *args: object) -> object:
        nonlocal count
        count += 1
        if count == at and not after:
            raise Killed
        result = await whole(self, *args)
        if count == at and after:
            count += 1
            raise Killed
        return result

    monkeypatch.setattr(actor, method, crashing)


@pytest.mark.rule("K-25", "D-011")
@pytest.mark.parametrize("at", range(1, 15))
async def test_a_family_that_crashes_at_any_record_loses_repeats_and_pays_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The crash is that of the parent or of its child, whichever writes the record with this number."""
    world = World()
    spell = world.spell(say("call_agent", intent="child"), done("over"), delegates=True)
    crash_at(monkeypatch, StepRecorder, "_append", after=True, at=at)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(spell, "go")
        parent, child = runtime.loom.subtree(episode.entity_id)
        records = [*runtime.loom.records(parent), *runtime.loom.records(child)]
        observation = runtime.loom.turns(child)[0].observation
    assert episode.result == "over"
    assert next(call.result for turn in episode.thread for call in turn.gate_calls) == "grown"
    # a gate that was recorded as begun is not called again, because it may have had its effect
    assert world.effects == ([] if "outcome unknown" in observation else ["child's"])
    assert world.paid == sum(isinstance(record, Utterance) for record in records) == 4


@pytest.mark.rule("D-011", "LOOM-1")
@pytest.mark.parametrize("at", range(1, 7))
async def test_an_entity_that_crashes_is_resumed_from_its_log(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    world = World()
    crash_at(monkeypatch, StepRecorder, "record_step", after=True, at=at)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(world.spell(*SCRIPT), "go")
        observations = [turn.observation for turn in runtime.loom.turns(episode.entity_id)]
        assert runtime.loom.state(episode.entity_id) == "terminated"
    assert episode.result == "over"
    assert [turn.sequence for turn in episode.thread] == [1, 2, 3]
    assert len(world.effects) == len(set(world.effects))
    for what, seen in zip(("one", "two"), observations, strict=False):
        assert (seen == f"did {what}") == (what in world.effects)
        assert what in world.effects or "outcome unknown" in seen
    assert world.paid == 3


@pytest.mark.rule("D-011", "D-001")
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("at", range(2, 13))
async def test_every_send_is_answered_when_the_entity_crashes(
    monkeypatch: pytest.MonkeyPatch, at: int, after: bool
) -> None:
    """Also if it crashes after its end is recorded and before callers know it, or before its intent is recorded."""
    world = World()

    @gate
    async def effect(what: str) -> str:
        """Change the world."""
        world.effects.append(what)
        return what

    def policy(context: Invocation) -> object:
        intent = [m.content for m in context if m.role == "user"][-1]
        return done(intent) if context[-1].gate == "effect" else say("effect", what=intent)

    crash_at(monkeypatch, StepRecorder, "record_step", after=after, at=at)
    async with Runtime.open() as runtime:
        with anyio.fail_after(60):
            entity = await runtime.invoke(cantrip(policy, effect), "one")
            results = [(await entity.episode()).result, (await entity.send("two")).result]
            results.append((await entity.send("three")).result)
        intents = [r.intent for r in runtime.loom.records(entity.id) if hasattr(r, "intent")]
        sequence = [turn.sequence for turn in runtime.loom.turns(entity.id)]
    assert results == intents == ["one", "two", "three"]
    assert sequence == list(range(1, 7))
    assert len(world.effects) == len(set(world.effects))


async def test_an_entity_is_restarted_from_its_log_when_its_circle_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    crash_at(monkeypatch, GatesActor, "handle_call", after=False, at=2)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(world.spell(*SCRIPT), "go")
    assert episode.result == "over"
    assert world.effects == ["one"]
    assert "outcome unknown" in episode.thread[1].observation


async def test_children_survive_their_parents_crash_and_it_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    spell = world.spell(say("call_agent", intent="child"), done("over"), delegates=True)
    whole = Delegation.wait
    crashed = False

    async def crashing(*args: object) -> object:
        nonlocal crashed
        result = await whole(*args)
        if not crashed:
            crashed = True
            raise Killed
        return result

    monkeypatch.setattr(Delegation, "wait", crashing)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(spell, "go")
        assert len(runtime.loom.entities()) == 2
    assert episode.thread[1].gate_calls[0].result == "grown"
    assert world.effects == ["child's"]


async def test_an_entity_that_crashes_at_the_same_point_each_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def poisoned(*_: object) -> object:
        raise Killed("poison")

    monkeypatch.setattr(Performer, "_ask", poisoned)
    async with Runtime.open() as runtime:
        with pytest.raises(EntityCrashed, match="poison") as raised:
            await runtime.cast(cantrip([done(1)]), "go")
        assert runtime.loom.state(raised.value.entity_id) == "crashed"
        assert runtime.interrupted() == []


def die_after(runtime: Runtime, appends: int) -> None:
    """Let so many more appends be written, and none after them."""
    store = runtime._tree.store
    whole, left = store.append, appends

    def append(batch: object, leases: object, **mail: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise LoomError("killed")
        whole(batch, leases, **mail)

    store.append = append


class Process:
    """A process that opens a loom and dies as by kill -9: it writes nothing afterwards."""

    def __init__(self, path: Path) -> None:
        self.url = f"jsonl:{path / 'loom.jsonl'}"

    def open(self, **options: object) -> Runtime:
        return Runtime.open(self.url, **options)

    async def die_in(self, runtime: Runtime) -> None:
        runtime._tree.store.append = self._nothing

    def _nothing(self, _: object, leases: object, **mail: Any) -> None:
        raise LoomError("dead")


@pytest.mark.rule("LOOM-1", "D-011")
@pytest.mark.parametrize("records", range(1, 12))
async def test_the_next_process_resumes_interrupted_entities(tmp_path: Path, records: int) -> None:
    """Killed after so many appends, and resumed from the file alone."""
    world, process = World(), Process(tmp_path)
    spell = world.spell(*SCRIPT)
    async with process.open() as runtime:
        die_after(runtime, records)
        with contextlib.suppress(LoomError):
            await runtime.cast(spell, "go")
    async with process.open(cantrips=[spell]) as runtime:
        for header in runtime.interrupted():
            entity = await runtime.resume(header.entity_id)
            await entity.episode()
        (entity_id,) = runtime.loom.entities()
        assert runtime.loom.state(entity_id) == "terminated"
        turns = runtime.loom.turns(entity_id)
    assert [turn.sequence for turn in turns] == [1, 2, 3]
    assert len(world.effects) == len(set(world.effects))
    assert all(("did" in t.observation) or ("unknown" in t.observation) for t in turns[:2])


async def cut_short(process: Process, spell: Cantrip, after: int) -> str:
    """Run a cantrip in a process that is killed after so many appends; the entity's id."""
    async with process.open() as runtime:
        die_after(runtime, after)
        with pytest.raises(LoomError) as raised:
            await runtime.cast(spell, "go")
        return raised.value.entity_id


@pytest.mark.rule("PAGE-02", "C-01")
@pytest.mark.parametrize("after", [2, 3, 5])
async def test_the_loom_records_the_person_who_resumed_an_episode_and_the_time(tmp_path: Path, after: int) -> None:
    world, process = World(), Process(tmp_path)
    spell = world.spell(*SCRIPT)
    entity_id = await cut_short(process, spell, after)
    async with process.open(cantrips=[spell]) as runtime:
        before = len(runtime.loom.turns(entity_id))
        await (await runtime.resume(entity_id, by="ann")).episode()
        (resumed,) = [one for one in runtime.loom.records(entity_id) if isinstance(one, Resumed)]
        turns = runtime.loom.turns(entity_id)
        assert [[one.by for one in turn.resumes] for turn in turns] == [
            ["ann"] if number == before else [] for number in range(len(turns))
        ]
        events = EventLog().add_all(runtime.loom.records(entity_id))
        shown = [(event.by, format_instant(event.at)) for event in events if isinstance(event, ResumedEvent)]
        assert shown == [("ann", resumed.at)]
        exported = trajectory(runtime.loom, entity_id)["steps"]
        assert [one["extra"]["resumes"] for one in exported if "resumes" in one.get("extra", {})] == [
            [{"by": "ann", "at": resumed.at}]
        ]
        assert thread_jsonl(turns).count(b'"resumes":[{"by":"ann"') == 1


@pytest.mark.rule("C-01")
async def test_a_resume_without_an_interrupted_episode_is_not_recorded() -> None:
    async with Runtime.open() as runtime:
        spell = Cantrip(scripted([done(1), done(2)]), circle=Circle(["done"], [max_turns(3)]))
        entity = await runtime.invoke(spell, "go", name="idle")
        await entity.episode()
        await runtime.resume(entity.id, by="ann")
        await entity.send("again")
        assert not any(isinstance(one, Resumed) for one in runtime.loom.records(entity.id))


async def test_open_resumes_entities_of_known_cantrips_and_lists_the_others(tmp_path: Path) -> None:
    world, process = World(), Process(tmp_path)
    spell = world.spell(*SCRIPT)
    entity_id = await cut_short(process, spell, 3)
    async with process.open(recover="resume") as runtime:
        assert [header.entity_id for header in runtime.interrupted()] == [entity_id]
        with pytest.raises(LoomError, match="not known in this process"):
            await runtime.resume(entity_id)
    async with process.open(cantrips=[spell], recover="resume") as runtime:
        with anyio.fail_after(60):
            while runtime.loom.state(entity_id) == "active":
                await anyio.sleep(1)
        assert runtime.loom.state(entity_id) == "terminated"


async def test_a_runtime_that_finds_many_interrupted_entities_logs_one_line(tmp_path: Path) -> None:
    world, process = World(), Process(tmp_path)
    ids = [await cut_short(process, world.spell(*SCRIPT), 3) for _ in range(3)]
    with capture_logs() as lines:
        async with process.open() as runtime:
            assert [header.entity_id for header in runtime.interrupted()] == ids
    assert [line for line in lines if "interrupted" in line["event"]] == [
        {"event": "entities were interrupted", "log_level": "info", "count": 3, "newest": ids[-1]}
    ]


async def test_an_abandoned_entity_cannot_be_resumed(tmp_path: Path) -> None:
    world, process = World(), Process(tmp_path)
    entity_id = await cut_short(process, world.spell(*SCRIPT), 3)
    async with process.open(recover="abandon") as runtime:
        assert runtime.interrupted() == []
        assert runtime.loom.state(entity_id) == "abandoned"
        with pytest.raises(EntityEnded, match="abandoned"):
            await runtime.resume(entity_id)


def cut_file(path: Path, kind: str, number: int) -> None:
    """Cut a JSONL loom behind its `number`-th record of a kind: as a kill in the middle of a batch may."""
    lines = path.read_bytes().splitlines(keepends=True)
    found = [n for n, line in enumerate(lines) if line.startswith(b'{"kind":"' + kind.encode())]
    path.write_bytes(b"".join([b'{"loom":1}\n', *lines[1 : found[number - 1] + 1]]))  # no more was acknowledged


@pytest.mark.rule("LOOM-1")
@pytest.mark.parametrize("recover", ["list", "resume", "abandon"])
async def test_an_entity_killed_between_its_header_and_its_intent_is_abandoned(tmp_path: Path, recover: str) -> None:
    process, spell = Process(tmp_path), World().spell(*SCRIPT)
    entity_id = await cut_short(process, spell, 1)
    cut_file(tmp_path / "loom.jsonl", "header", 1)
    async with process.open(cantrips=[spell], recover=recover) as runtime:
        assert runtime.interrupted() == []
        assert runtime.loom.state(entity_id) == "abandoned"


async def test_a_name_whose_entity_never_began_is_free(tmp_path: Path) -> None:
    process, spell = Process(tmp_path), World().spell(*SCRIPT)
    async with process.open(cantrips=[spell]) as runtime:
        await (await runtime.invoke(spell, "go", name="keeper")).episode()
    cut_file(tmp_path / "loom.jsonl", "header", 1)
    async with process.open(cantrips=[spell]) as runtime:
        assert runtime.entity("keeper") is None
        episode = await (await runtime.invoke(spell, "go", name="keeper")).episode()
    assert episode.result == "over"


@pytest.mark.rule("COMP-5")
async def test_a_child_that_was_killed_between_its_header_and_its_intent_gets_it_again(tmp_path: Path) -> None:
    world, process = World(), Process(tmp_path)
    spell = world.spell(say("call_agent", intent="child"), done("over"), delegates=True)
    async with process.open() as runtime:
        entity_id = (await runtime.cast(spell, "go")).entity_id
    world.effects.clear()
    cut_file(tmp_path / "loom.jsonl", "header", 2)
    async with process.open(cantrips=[spell]) as runtime:
        episode = await (await runtime.resume(entity_id)).episode()
        assert len(runtime.loom.entities()) == 2
    assert episode.thread[1].gate_calls[0].result == "grown"
    assert world.effects == ["child's"]


@pytest.mark.rule("COMP-5", "LOOM-8")
@pytest.mark.parametrize("after", range(2, 9))
async def test_children_are_resumed_with_their_parents(tmp_path: Path, after: int) -> None:
    world, process = World(), Process(tmp_path)
    spell = world.spell(say("call_agent", intent="child"), done("over"), delegates=True)
    entity_id = await cut_short(process, spell, after)
    async with process.open(cantrips=[spell]) as runtime:
        episode = await (await runtime.resume(entity_id)).episode()
        assert len(runtime.loom.entities()) == 2
        assert all(runtime.loom.state(one) == "terminated" for one in runtime.loom.entities())
    assert episode.result == "over"
    assert episode.thread[1].gate_calls[0].result == "grown"
    assert world.effects in (["child's"], [])


async def test_a_budget_counts_what_was_spent_before_the_crash(tmp_path: Path) -> None:
    paid = {"usage": {"prompt_tokens": 40, "completion_tokens": 10}}
    spell = cantrip(lambda _: {**say("echo", text="x"), **paid}, wards=(max_tokens(140),))
    process = Process(tmp_path)
    entity_id = await cut_short(process, spell, 5)
    async with process.open(cantrips=[spell]) as runtime:
        episode = await (await runtime.resume(entity_id)).episode()
    assert episode.ward == "max_tokens"
    assert episode.usage.total_tokens == 150


async def test_a_timeout_counts_the_time_in_which_no_process_runs_the_entity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cantrip_actors.runtime import tree as house

    spell = World().spell(*SCRIPT, wards=(timeout(100.0),))
    process = Process(tmp_path)
    entity_id = await cut_short(process, spell, 3)
    real = house.time.time
    monkeypatch.setattr(house.time, "time", lambda: real() + 1000)
    async with process.open(cantrips=[spell]) as runtime:
        episode = await (await runtime.resume(entity_id)).episode()
    assert episode.ward == "timeout"


async def test_an_entity_stops_when_its_store_cannot_write_and_is_resumed_once_it_can(tmp_path: Path) -> None:
    world = World()
    spell = world.spell(*SCRIPT)
    async with Process(tmp_path).open() as runtime:
        store = runtime._tree.store
        whole, full = store.append, False

        def append(batch: object, leases: object, **mail: Any) -> None:
            if full:
                raise LoomError("cannot write: no space left on device")
            whole(batch, leases, **mail)

        store.append = append
        entity = await runtime.start(spell, "go")
        full = True
        with pytest.raises(LoomError, match="no space left"):
            await entity.episode()
        full = False
        assert [header.entity_id for header in runtime.interrupted()] == [entity.id]
        episode = await (await runtime.resume(entity.id)).episode()
    assert episode.result == "over"
    assert len(world.effects) == len(set(world.effects))


async def test_two_runtimes_on_one_loom_do_not_run_one_entity(tmp_path: Path) -> None:
    world = World()
    spell = cantrip(slowly, world.gate())
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as first:
        entity = await first.start(spell, "go")
        await anyio.sleep(7)
        async with Runtime.open(url, cantrips=[spell], recover="resume") as second:
            with pytest.raises(LoomError, match="is being run by"):
                await second.resume(entity.id)
            assert len(second.loom.turns(entity.id)) == 1
        assert (await entity.episode()).result == "over"
    assert world.effects == ["one", "two"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_runtime_without_the_cantrip_is_told_which_process_runs_the_entity(tmp_path: Path, kind: str) -> None:
    url = postgres.fresh() if kind == "postgres" else f"sqlite:{tmp_path / 'loom.db'}"
    spell = cantrip(slowly, World().gate())
    async with Runtime.open(url) as runner, Runtime.open(url) as stranger:
        entity = await runner.start(spell, "go")
        with pytest.raises(Held, match="is being run by") as held:
            await stranger.resume(entity.id)
        assert held.value.holder is not None
        assert (await entity.episode()).result == "over"
        with pytest.raises(EntityEnded):
            await stranger.resume(entity.id)


async def test_an_entity_that_ends_elsewhere_as_it_is_stopped_counts_as_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runner, Runtime.open(url) as stopper:
        entity = await runner.start(cantrip(slowly, World().gate()), "go")
        inboxes = stopper._tree.inboxes
        post = inboxes.post

        async def post_too_late(mail: Any) -> Any:
            await entity.stop()
            return await post(mail)

        monkeypatch.setattr(inboxes, "post", post_too_late)
        await stopper.find(entity.id).stop()
        assert stopper.loom.is_over(entity.id)


async def test_a_lease_that_was_taken_over_stops_the_late_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the first process had been frozen past its lease, and thawed."""
    world = World()
    spell = cantrip(slowly, world.gate())
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as first:
        entity = await first.start(spell, "go")
        await anyio.sleep(7)
        first._tree.store.renew = lambda *_: None
        real = sqlite.read_boot_clock
        monkeypatch.setattr(sqlite, "read_boot_clock", lambda: real() + 3600)
        monkeypatch.setattr(lease_store, "is_alive", lambda _: False)  # as on another machine
        async with Runtime.open(url, cantrips=[spell]) as second:
            episode = await (await second.resume(entity.id)).episode()
            assert episode.result == "over"
            with pytest.raises(LoomError, match="lease"):
                await entity.episode()
    assert len(world.effects) == len(set(world.effects))


@pytest.mark.rule("LOOM-1")
async def test_a_lease_that_was_not_released_does_not_block_the_next_runtime_of_the_process(
    tmp_path: Path,
) -> None:
    """A store that cannot be reached does not release leases either."""
    world = World()
    spell = world.spell(*SCRIPT)
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as first:
        die_after(first, 3)
        first._tree.store.release_if_empty = lambda *_: first._tree.store.append([], {})  # which raises likewise
        first._tree.store.release = first._tree.store.release_if_empty
        with pytest.raises(LoomError, match="killed"):
            await first.cast(spell, "go")
    async with Runtime.open(url, cantrips=[spell]) as second:
        (header,) = second.interrupted()
        assert (await (await second.resume(header.entity_id)).episode()).result == "over"
    assert len(world.effects) == len(set(world.effects))


@pytest.mark.rule("D-011", "LOOM-1")
@pytest.mark.parametrize("store", ["jsonl", "sqlite"])
async def test_a_run_reads_the_same_from_every_store(tmp_path: Path, store: str) -> None:
    world = World()
    url = f"{store}:{tmp_path / 'loom'}"
    async with Runtime.open(url) as runtime:
        episode = await runtime.cast(world.spell(*SCRIPT), "go")
        entity = await runtime.invoke(world.spell(*SCRIPT), "keep", name="x")
        await entity.episode()
    async with Runtime.open(url) as runtime:
        assert runtime.loom.turns(episode.entity_id) == episode.thread
        assert runtime.entity("x").id == entity.id
        assert runtime.interrupted() == []


@pytest.mark.rule("COMP-8", "D-011")
@pytest.mark.parametrize("kind", ["Header", "Utterance", "GateFinished", "Ended"])
async def test_a_child_that_cannot_be_recorded_stops_its_parent_and_both_are_resumed(tmp_path: Path, kind: str) -> None:
    """A stopped child is not an outcome for its parent: it has not failed, and will be resumed."""
    world = World()
    spell = world.spell(say("call_agent_batch", intents=["child", "child"]), done("over"), delegates=True)
    async with Process(tmp_path).open() as runtime:
        store = runtime._tree.store
        whole, root, refused = store.append, [], set()

        def append(records: list, *leases: object, **mail: Any) -> None:
            root.append(records[0].entity_id)
            found = [r.entity_id for r in records if type(r).__name__ == kind and r.entity_id != root[0]]
            refused.update(found[:1] if not refused else ())
            if any(record.entity_id in refused for record in records):
                raise LoomError("cannot write: no space left on device")
            whole(records, *leases, **mail)

        store.append = append
        entity = await runtime.start(spell, "go")
        with pytest.raises(LoomError, match="no space left"):
            await entity.episode()
        assert len(refused) == 1
        store.append = whole
        episode = await (await runtime.resume(entity.id)).episode()
        states = [runtime.loom.state(one) for one in runtime.loom.entities()]
    assert states == ["terminated"] * 3
    assert episode.result == "over"
    assert [call.result for call in episode.thread[1].gate_calls] == [["grown", "grown"]]
    assert len(world.effects) <= 2


@pytest.mark.real_time
@pytest.mark.rule("D-011", "LOOM-1")
@pytest.mark.parametrize("at", range(1, 6))
async def test_an_entity_killed_during_a_write_is_resumed_from_the_finished_write(at: int, tmp_path: Path) -> None:
    world = World()
    async with Runtime.open(f"sqlite:{tmp_path / 'loom.db'}?durability=power") as runtime:
        store, (loop, called) = runtime._tree.store, (anyio.Event(), 0)
        whole = store.append

        def append(batch: object, leases: object, **mail: Any) -> None:
            nonlocal called
            called += 1
            if called == at:
                anyio.from_thread.run_sync(loop.set)
                time.sleep(0.05)  # as a disk may
            whole(batch, leases, **mail)

        store.append = append
        with anyio.fail_after(30):
            entity = await runtime.start(world.spell(*SCRIPT), "go")
            await loop.wait()
            cell = runtime._tree.living.get(entity.id)
            assert cell is not None
            cell.actor.kill()
            assert (await entity.episode()).result == "over"
    assert len(world.effects) == len(set(world.effects))


@pytest.mark.rule("D-011", "S-31")
async def test_a_caller_gets_the_crash_that_repeats_and_a_person_resumes_the_entity() -> None:
    async def answer(context: Invocation) -> object:
        return {**done(context[-1].content), "delay": 0 if context[-1].content == "start" else 5.0}

    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        entity = await runtime.invoke(cantrip(scripted(answer)), "start")
        await entity.episode()

        async def strike() -> None:
            await anyio.sleep(1)
            cell = runtime._tree.living.get(entity.id)
            assert cell is not None
            for _ in range(2):
                cell.actor.exit(Crash(RuntimeError("struck")))
                await anyio.sleep(0.001)

        tasks.start_soon(strike)
        with pytest.raises(EntityCrashed, match="struck"):
            await entity.send("one")
        with pytest.raises(Quarantined):
            await entity.send("two")
        await runtime.resume(entity.id)
        assert (await entity.send("three")).result == "three"


@pytest.mark.rule("D-011", "COMP-8")
@pytest.mark.parametrize("who", ["the root", "a child"])
async def test_an_entity_that_cannot_start_has_crashed(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    whole = EntityActor.run

    async def run(self: EntityActor) -> None:
        if (self._cell.parent is None) == (who == "the root"):
            raise Killed("no room")
        await whole(self)

    monkeypatch.setattr(EntityActor, "run", run)
    spell = world.spell(say("call_agent", intent="child"), done("over"), delegates=True)
    async with Runtime.open() as runtime:
        if who == "the root":
            with pytest.raises(EntityCrashed, match="no room"):
                await runtime.cast(spell, "go")
            assert len(runtime._tree.living) == 0
        else:
            episode = await runtime.cast(spell, "go")
            (seen,) = episode.thread[1].gate_calls
            assert seen.is_error
            assert "no room" in seen.result
            assert episode.result == "over"
