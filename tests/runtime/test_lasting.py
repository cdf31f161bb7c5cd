"""Long-lived entities: invoke, send, stop (D-001), and forks of their turns."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Call,
    Cantrip,
    Circle,
    EntityEnded,
    EntityEndedEvent,
    InvalidCantrip,
    InvalidIntent,
    KeyUsed,
    LoomError,
    Runtime,
    gate,
    scripted,
)
from cantrip_actors.machine.project import find_outcome
from cantrip_actors.wards import max_tokens, max_turns, timeout
from tests.circle.words_medium import Words
from tests.runtime.spells import cantrip, done, say


@pytest.mark.rule("D-001")
async def test_a_second_send_sees_the_answer_of_the_first() -> None:
    crystal = scripted([done("one"), done("two"), {"content": "three"}])
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(crystal), "first", name="notes")
        assert (await entity.send("second")).result == "two"
        assert (await entity.send("third")).result == "three"
        await entity.stop()
        assert runtime.entity("notes") is None
    said = [(m.role, m.content) for m in crystal.invocations[2]]
    assert [content for role, content in said if role == "user"] == ["first", "second", "third"]
    assert [content for role, content in said if role == "tool"] == ["one", "two"]


@pytest.mark.rule("LOOP-4")
async def test_max_turns_counts_anew_for_each_send() -> None:
    def talk(ctx: object) -> object:
        return say("echo", text="x") if ctx[-1].role == "user" else done("ok")

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(talk, wards=(max_turns(3),)), "start")
        results = [(await entity.send(f"task {n}")).result for n in range(20)]
    assert results == ["ok"] * 20


async def test_sends_are_handled_in_order() -> None:
    async def slow(ctx: object) -> object:
        return {**done(ctx[-1].content), "delay": 1.0}

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(slow), "start")
        order = []

        async def send(text: str) -> None:
            order.append((await entity.send(text)).result)

        async with anyio.create_task_group() as tasks:
            for text in "abcde":
                tasks.start_soon(send, text)
                await anyio.lowlevel.checkpoint()
                await anyio.sleep(0.01)
    assert order == list("abcde")


async def test_a_send_to_an_ended_entity_is_refused() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip([done(1)]), "start")
        await entity.stop()
        with pytest.raises(EntityEnded, match="has ended"):
            await entity.send("hello")


@pytest.mark.rule("INTENT-1")
async def test_a_send_without_an_intent_changes_nothing() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip([done(1), done(2)]), "start")
        with pytest.raises(InvalidIntent):
            await entity.send("")
        assert (await entity.send("more")).result == 2


async def test_a_name_belongs_to_one_entity_at_a_time() -> None:
    async with Runtime.open() as runtime:
        first = await runtime.invoke(cantrip([done(1)]), "start", name="x")
        with pytest.raises(InvalidIntent, match='"x"'):
            await runtime.invoke(cantrip([done(1)]), "start", name="x")
        assert runtime.entity("x").id == first.id


@pytest.mark.rule("LOOM-4", "INTENT-3")
async def test_a_fork_continues_from_a_turn_and_does_not_affect_the_original() -> None:
    branch_crystal = scripted([done("forked")])
    async with Runtime.open() as runtime:
        spell = cantrip([say("echo", text="A"), say("echo", text="B"), done("original")])
        episode = await runtime.cast(spell, "go")
        before = list(episode.thread)
        branch = await runtime.fork(episode.thread[0].id, intent="another way", crystal=branch_crystal)
        assert [turn.id for turn in branch.thread[:1]] == [before[0].id]
        assert len(branch.thread) == 2
        assert branch.result == "forked"
        assert runtime.loom.turns(episode.entity_id) == before
        assert list(runtime.loom.forks(before[0].id)) == [branch.entity_id]
    (seen,) = branch_crystal.invocations
    assert [m.content for m in seen if m.role == "user"] == ["go", "another way"]
    assert [m.content for m in seen if m.role == "tool"] == ["A"]


@pytest.mark.rule("LOOM-4")
async def test_forks_of_forks_keep_the_whole_path() -> None:
    async with Runtime.open() as runtime:
        crystal = scripted(lambda ctx: say("echo", text=str(len(ctx))) if len(ctx) < 6 else done(len(ctx)))
        episode = await runtime.cast(cantrip(crystal), "go")
        one = await runtime.fork(episode.thread[-1].id, intent="again")
        two = await runtime.fork(one.thread[-1].id, intent="and again")
    assert len(two.thread) == len(episode.thread) + 2
    assert [turn.sequence for turn in two.thread] == [1, 2, 3, 4, 1, 1][-len(two.thread) :]


async def test_a_fork_of_an_unknown_turn_is_refused() -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(LoomError):
            await runtime.fork("nowhere", intent="x")


async def test_episode_waits_for_the_first_episode_of_an_invoked_entity() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip([{**done("first"), "delay": 5.0}, done("second")]), "start", name="x")
        assert (await entity.episode()).result == "first"
        await entity.send("more")
        assert (await entity.episode()).result == "first"
        assert (await runtime.entity("x").episode()).result == "second"


async def test_an_idle_entity_is_unloaded_and_a_send_loads_it() -> None:
    crystal = scripted(lambda ctx: done(sum(m.role == "user" for m in ctx)))
    async with Runtime.open(passivate_after=60.0) as runtime:
        entity = await runtime.invoke(cantrip(crystal), "start", name="x")
        await entity.episode()
        await anyio.sleep(30)
        assert entity.loaded
        await anyio.sleep(60)
        assert not entity.loaded
        assert runtime.loom.state(entity.id) == "idle"
        assert (await entity.send("more")).result == 2
        assert (await runtime.entity("x").send("and more")).result == 3
    assert [turn.sequence for turn in runtime.loom.turns(entity.id)] == [1, 2, 3]


async def test_an_entity_remembers_in_the_next_process(tmp_path) -> None:
    spell = cantrip(lambda ctx: done([m.content for m in ctx if m.role == "user"]))
    url = f"jsonl:{tmp_path / 'loom.jsonl'}"
    async with Runtime.open(url) as runtime:
        await (await runtime.invoke(spell, "start", name="notes")).episode()
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        entity = runtime.entity("notes")
        assert runtime.interrupted() == []
        assert (await entity.send("buy milk")).result == ["start", "buy milk"]
        await entity.stop()
        assert runtime.entity("notes") is None
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        assert runtime.entity("notes") is None


async def test_a_runtime_that_closes_suspends_a_working_entity_until_it_is_resumed(tmp_path) -> None:
    async def slow(ctx: object) -> object:
        return {**(say("echo", text="x") if len(ctx) < 6 else done(len(ctx))), "delay": 10.0}

    spell = cantrip(slow)
    url = f"jsonl:{tmp_path / 'loom.jsonl'}"
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(spell, "start", name="x")
        await anyio.sleep(15)
    assert runtime.loom.state(entity.id) == "active"
    async with Runtime.open(url, cantrips=[spell], recover="resume") as runtime:
        assert (await runtime.entity("x").episode()).result == 7
    assert [turn.sequence for turn in runtime.loom.turns(entity.id)] == [1, 2, 3, 4]


async def test_an_entity_is_steered_between_two_turns() -> None:
    async def slow(ctx: object) -> object:
        told = [m.content for m in ctx if m.role == "user"]
        return {**(done(told) if len(told) > 1 else say("echo", text="x")), "delay": 10.0}

    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip(slow), "go")
        await anyio.sleep(15)
        await entity.steer("stop it now")
        assert (await entity.episode()).result == ["go", "stop it now"]


async def test_a_steering_message_to_an_idle_entity_comes_before_its_next_intent() -> None:
    crystal = scripted(lambda ctx: done([m.content for m in ctx if m.role == "user"]))
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(crystal), "start")
        await entity.episode()
        await entity.steer("by the way")
        assert (await entity.send("more")).result == ["start", "by the way", "more"]


async def test_an_episode_is_interrupted_between_two_turns_and_the_entity_continues() -> None:
    async def slow(ctx: object) -> object:
        return {**(done("ok") if ctx[-1].content == "again" else say("echo", text="x")), "delay": 10.0}

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(slow), "start")
        await anyio.sleep(15)
        await entity.interrupt("enough")
        episode = await entity.episode()
        assert (episode.truncated, episode.reason) == (True, "interrupted")
        assert "enough" in episode.summary
        assert [turn.observation for turn in episode.thread] == ["x", "x"]
        assert (await entity.send("again")).result == "ok"


async def test_cancelling_a_send_does_not_withdraw_the_intent() -> None:
    async def slow(ctx: object) -> object:
        return {**done(ctx[-1].content), "delay": 10.0}

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(slow), "start")
        await entity.episode()
        with anyio.move_on_after(5):
            await entity.send("first")
        assert (await entity.send("second")).result == "second"
        assert [t.observation for t in runtime.loom.turns(entity.id)] == ["start", "first", "second"]


async def test_a_thousand_sends_from_many_tasks_are_all_answered() -> None:
    crystal = scripted(lambda ctx: done(ctx[-1].content), record=False)
    async with Runtime.open(passivate_after=0.001) as runtime:
        entity = await runtime.invoke(cantrip(crystal), "start")
        answers = []

        async def ask(n: int) -> None:
            await anyio.sleep(n * 0.0007)
            answers.append((await entity.send(f"{n}")).result)

        async with anyio.create_task_group() as tasks:
            for n in range(300):
                tasks.start_soon(ask, n)
    assert sorted(map(int, answers)) == list(range(300))


async def remembering(context: object) -> dict[str, object]:
    return done([message.content for message in context if message.role == "user"])


@pytest.mark.rule("D-001")
async def test_a_steering_message_survives_unloading_and_the_end_of_its_process(tmp_path) -> None:
    spell = cantrip(remembering)
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, passivate_after=60) as runtime:
        entity = await runtime.invoke(spell, "start", name="x")
        await entity.episode()
        await entity.steer("mind the gap")
        await anyio.sleep(100)
        assert not entity.loaded
        assert (await entity.send("more")).result == ["start", "mind the gap", "more"]
        await entity.steer("and the train")
        await anyio.sleep(1)
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        answer = await runtime.entity("x").send("again")
        assert answer.result == ["start", "mind the gap", "more", "and the train", "again"]


async def test_a_steering_message_before_an_interrupt_is_not_lost() -> None:
    async def slow(context: object) -> object:
        answer = await remembering(context) if context[-1].content == "again" else say("echo", text="x")
        return {**answer, "delay": 10.0}

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(slow), "start")
        await anyio.sleep(5)
        await entity.steer("from now on, be brief")
        await entity.interrupt("enough")
        assert (await entity.episode()).reason == "interrupted"
        assert (await entity.send("again")).result == ["start", "from now on, be brief", "again"]


async def test_an_unloaded_entity_is_stopped_through_its_handle() -> None:
    async with Runtime.open(passivate_after=60) as runtime:
        entity = await runtime.invoke(cantrip([done(1)]), "start", name="x")
        await entity.episode()
        await anyio.sleep(100)
        assert not entity.loaded
        await entity.stop("nobody asks any more")
        assert runtime.entity("x") is None
        assert runtime.loom.records(entity.id)[-1].detail == "nobody asks any more"


@pytest.mark.parametrize("asleep", [False, True])
async def test_an_entity_is_stopped_with_any_reason(asleep: bool) -> None:
    async with Runtime.open(passivate_after=60) as runtime:
        entity = await runtime.invoke(cantrip([done(1)]), "start", name="x")
        await entity.episode()
        await anyio.sleep(100 if asleep else 10)
        await entity.stop("I have another one now")
        assert runtime.entity("x") is None
        with pytest.raises(EntityEnded):
            await entity.send("more")


@pytest.mark.rule("LOOP-4")
async def test_a_waiter_gets_the_episode_that_a_timeout_or_a_stop_ends() -> None:
    async def slow(context: object) -> object:
        return {**done(context[-1].content), "delay": 10.0}

    async with Runtime.open() as runtime:
        timed = await runtime.invoke(cantrip(slow, wards=(max_turns(5), timeout(5))), "start")
        late = await timed.episode()
        assert (late.truncated, late.ward) == (True, "timeout")

        stopped = await runtime.invoke(cantrip(slow), "start")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stopped.stop)
            episode = await stopped.episode()
        assert (episode.truncated, episode.reason) == (True, "cancelled")


@pytest.mark.rule("LOOP-4")
async def test_a_timeout_limits_each_episode_and_not_the_time_between_them() -> None:
    delays = iter([10.0, 10.0, 99.0, 10.0])

    async def slow(context: object) -> object:
        return {**done(context[-1].content), "delay": next(delays)}

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(slow, wards=(max_turns(5), timeout(15))), "one", name="notes")
        assert (await entity.episode()).result == "one"
        await anyio.sleep(86_400)
        assert (await entity.send("two")).result == "two"
        late = await entity.send("three")
        assert (late.truncated, late.ward, late.summary[:20]) == (True, "timeout", "stopped (timeout(15))"[:20])
        await anyio.sleep(86_400)
        assert (await entity.send("four")).result == "four"
        assert runtime.loom.state(entity.id) == "idle"


@pytest.mark.rule("LOOP-4")
async def test_a_resumed_episode_has_the_time_that_its_timeout_left(tmp_path) -> None:
    delays = iter([1.0, 99.0, 8.0, 20.0])

    async def slow(context: object) -> object:
        return {**done(context[-1].content), "delay": next(delays)}

    spell = cantrip(slow, wards=(max_turns(5), timeout(15)))
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        entity = await runtime.invoke(spell, "one", name="notes")
        await entity.episode()
        await anyio.sleep(60)
        await entity.post("two")
        await anyio.sleep(10)
    async with Runtime.open(url, cantrips=[spell], recover="resume") as runtime:
        entity = runtime.entity("notes")
        began = anyio.current_time()
        assert (await entity.episode()).ward == "timeout"
        assert anyio.current_time() - began == pytest.approx(5, abs=2)
        assert (await entity.send("three")).ward == "timeout"


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "two\nlines", "half \ud83d", 5])
async def test_an_invalid_name_is_refused(name: object) -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(InvalidIntent, match="name: expected a text"):
            await runtime.invoke(cantrip([done(1)]), "start", name=name)
        assert runtime.loom.entities() == []


async def test_one_of_two_processes_that_make_an_entity_of_one_name_is_refused(tmp_path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    told: list[str] = []

    async def make(runtime: Runtime) -> None:
        try:
            await runtime.invoke(cantrip([done(1)]), "start", name="x")
        except InvalidIntent as error:
            told.append(str(error))

    async with Runtime.open(url) as one, Runtime.open(url) as two:
        async with anyio.create_task_group() as tasks:
            for runtime in (one, two, one, two):
                tasks.start_soon(make, runtime)
        assert len(told) == 3
        await anyio.sleep(1)
        assert len(one.loom.entities()) == 1
        for runtime in (one, two):
            with pytest.raises(InvalidIntent, match="is there already"):
                await runtime.invoke(cantrip([done(1)]), "start", name="x")
        maker = one if one.entity("x").loaded else two
        await maker.entity("x").stop()
        await anyio.sleep(1)
        await runtime.invoke(cantrip([done(2)]), "start", name="x")
        assert (await runtime.entity("x").episode()).result == 2


@pytest.mark.rule("D-001")
async def test_an_entity_keeps_the_cantrip_it_was_given_after_unloading(tmp_path) -> None:
    def spell(prompt: str) -> Cantrip:
        return cantrip(lambda ctx: done(ctx[0].content), call=Call(system_prompt=prompt))

    old, new = spell("the old one"), spell("the new one")
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        assert (await (await runtime.invoke(old, "start", name="x")).episode()).result == "the old one"
    async with Runtime.open(url, cantrips=[old], passivate_after=60) as runtime:
        entity = await runtime.resume(runtime.entity("x").id, cantrip=new)
        for _ in range(3):
            assert (await entity.send("more")).result == "the new one"
            await anyio.sleep(100)
            assert not entity.loaded


async def test_a_loaded_entity_refuses_another_cantrip() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip([done(1), done(2)]), "start")
        await entity.episode()
        with pytest.raises(LoomError, match="loaded with another cantrip"):
            await runtime.resume(entity.id, cantrip=cantrip([], call=Call(system_prompt="another")))
        assert (await entity.send("more")).result == 2


async def test_a_send_without_a_cantrip_for_the_entity_says_what_to_do(tmp_path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        await (await runtime.invoke(cantrip([done(1)]), "start", name="x")).episode()
    async with Runtime.open(url) as runtime:
        with pytest.raises(LoomError, match=r"runtime\.resume\(entity_id, cantrip=…\)"):
            await runtime.entity("x").send("more")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("recover", "resum"),
        ("recover", True),
        ("redact", "at-rest"),
        ("passivate_after", "5"),
        ("passivate_after", None),
    ],
)
def test_an_invalid_option_is_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{option}: expected"):
        Runtime.open(**{option: value})


def test_a_non_cantrip_is_refused_when_the_runtime_is_made() -> None:
    with pytest.raises(InvalidCantrip, match="cantrips: expected a Cantrip, got str"):
        Runtime.open(cantrips=["notes"])


async def test_a_loom_may_be_named_by_its_path(tmp_path) -> None:
    async with Runtime.open(tmp_path / "loom.db") as runtime:
        assert (await runtime.cast(cantrip([done(1)]), "go")).result == 1


@pytest.mark.rule("LOOP-4")
@pytest.mark.parametrize(
    ("ward", "named"), [(max_turns(2), "max_turns"), (max_tokens(120), "max_tokens"), (timeout(35), "timeout")]
)
async def test_the_ward_that_truncated_an_episode_is_read_from_the_log(tmp_path, ward: object, named: str) -> None:
    async def on(context: object) -> object:
        usage = {"prompt_tokens": 50, "completion_tokens": 10}
        return {**say("echo", text="x"), "usage": usage, "delay": 10.0}

    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(cantrip(on, wards=(max_turns(9), ward)), "start", name="x")
        live = await entity.episode()
    async with Runtime.open(url) as runtime:
        last = runtime.entity("x")
        told = await last.episode() if last is not None else None
        outcome = find_outcome(runtime.loom.records(entity.id))
    assert live.truncated
    assert live.ward == outcome.ward == named
    assert f"truncated by {ward}" in outcome.summary or f"stopped ({ward})" in outcome.summary
    assert told is None or told.ward == named


@pytest.mark.rule("D-001")
@pytest.mark.parametrize("idle_for", [1.0, 2.0, 5.0], ids=["awake", "falling asleep", "asleep"])
async def test_a_send_is_taken_after_its_caller_was_cancelled(tmp_path, idle_for: float) -> None:
    """A send cancelled before its mail is durable was not sent; any other is taken, by a loaded entity or not."""
    async with Runtime.open(f"sqlite:{tmp_path / 'loom.db'}", passivate_after=2) as runtime:
        entity = await runtime.invoke(cantrip(remembering), "start")
        await entity.episode()
        sent: list[str] = []
        for steps in range(1, 30):
            await anyio.sleep(idle_for)
            begun = anyio.Event()

            async def send(intent: str, begun: anyio.Event = begun) -> None:
                begun.set()
                await entity.send(intent)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, f"{steps}")
                await begun.wait()
                for _ in range(steps - 1):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            await anyio.sleep(1)
            taken = [record.intent for record in runtime.loom.records(entity.id) if hasattr(record, "intent")]
            assert taken[1:] in (sent, [*sent, f"{steps}"])
            sent = taken[1:]
            assert (await entity.episode()).terminated
        assert len(sent) >= 25


async def test_a_send_cancelled_before_it_began_sends_nothing() -> None:
    async with Runtime.open(passivate_after=60) as runtime:
        entity = await runtime.invoke(cantrip([done(1), done(2)]), "start")
        await entity.episode()
        await anyio.sleep(100)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await entity.send("never")
        await anyio.sleep(1)
        assert not entity.loaded
        assert (await entity.send("more")).result == 2


async def test_a_steering_message_to_an_unloading_entity_is_not_lost() -> None:
    async with Runtime.open(passivate_after=0.003) as runtime:
        entity = await runtime.invoke(cantrip(remembering), "start")
        await entity.episode()
        for n in range(100):
            await anyio.sleep(0.0031)
            await entity.steer(f"{n}")
        assert (await entity.send("more")).result == ["start", *map(str, range(100)), "more"]


async def test_an_entity_that_is_unloaded_at_once_is_loaded_for_each_send() -> None:
    async with Runtime.open(passivate_after=0) as runtime:
        entity = await runtime.invoke(cantrip(remembering), "0")
        await entity.episode()
        with anyio.fail_after(60):
            for n in range(1, 20):
                await entity.steer(f"{n}")
                await anyio.sleep(n % 3)
                assert (await entity.send("more")).result[-1] == "more"
        assert len((await entity.send("last")).result) == 40


@pytest.mark.rule("D-001")
async def test_a_subscriber_sees_one_end_event_when_an_unloaded_entity_is_stopped() -> None:
    async with Runtime.open(passivate_after=1) as runtime:
        entity = await runtime.invoke(cantrip(scripted([{"content": "noted"}])), "one", name="notes")
        await entity.episode()
        await anyio.sleep(10)
        assert not entity.loaded
        events = runtime.events()
        await entity.stop()
    assert [type(event) for event in [event async for event in events]] == [EntityEndedEvent]


@pytest.mark.rule("D-001", "C-05")
async def test_an_adopted_cantrip_stays_in_force_in_the_next_process(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    first, second = cantrip([done("first")] * 3), cantrip([done("second")] * 9, wards=(max_turns(7),))
    async with Runtime.open(url) as runtime:
        await (await runtime.invoke(first, "start", name="x")).episode()
        changed = runtime.entity("x", cantrip=second)
        assert changed is not None
        assert (await changed.send("more")).result == "second"
    async with Runtime.open(url, cantrips=[second]) as runtime:
        again = runtime.entity("x")
        assert again is not None
        assert (await again.send("more")).result == "second"
    async with Runtime.open(url, cantrips=[first]) as runtime:
        again = runtime.entity("x")
        assert again is not None
        with pytest.raises(LoomError, match="is not known in this process"):
            await again.send("more")


@pytest.mark.rule("C-10")
async def test_a_receipt_waits_for_a_process_that_knows_the_cantrip(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    spell = cantrip([done("here")] * 9)
    async with Runtime.open(url) as runtime:
        await (await runtime.invoke(spell, "start", name="x")).episode()
    async with Runtime.open(url) as stranger, anyio.create_task_group() as tasks:
        entity = stranger.entity("x")
        assert entity is not None
        receipt = await entity.post("more", key="k")
        answers: list[object] = []

        async def wait() -> None:
            answers.append((await receipt.episode()).result)

        tasks.start_soon(wait)
        await anyio.sleep(60)
        assert (receipt.state, answers) == ("waiting", [])
        async with Runtime.open(url, cantrips=[spell]):
            await anyio.sleep(5)
        assert (receipt.state, answers) == ("settled", ["here"])


@pytest.mark.rule("C-11")
async def test_keys_are_kept_for_the_configured_time(tmp_path: Path) -> None:
    async with Runtime.open(f"jsonl:{tmp_path / 'loom.jsonl'}", keep_keys=0) as runtime:
        entity = await runtime.invoke(cantrip([done(1)] * 9), "start")
        await entity.episode()
        for text in ("one", "two", "three"):
            await entity.send(text, key=text)
        with pytest.raises(KeyUsed):
            await entity.post("other", key="one")
        await anyio.sleep(2 * 3600)
        assert (await entity.send("other", key="one")).result == 1


@pytest.mark.rule("C-69")
async def test_input_that_would_stop_the_event_loop_is_refused() -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(InvalidIntent, match="expected at most 16,777,216"):
            await runtime.cast(cantrip([done(1)]), "go", context={"large": "x" * 17_000_000})
        with pytest.raises(InvalidIntent, match="expected at most 16,777,216"):
            await runtime.cast(cantrip([done(1)]), "go", context={"large": "x" * 17_000_000, "long": 2**70})
        with pytest.raises(InvalidIntent, match="expected at most 16,777,216"):
            await runtime.cast(cantrip([done(1)]), "é" * 9_000_000)
        entity = await runtime.invoke(cantrip([done(1)] * 2), "start")
        with pytest.raises(InvalidIntent, match="expected at most 16,777,216"):
            await entity.send("x" * 17_000_000)
        assert (await entity.send("small")).result == 1


@pytest.mark.rule("C-68")
async def test_waiting_for_an_episode_that_has_ended_lets_other_tasks_run() -> None:
    ran = []

    async def note() -> None:
        ran.append(1)

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip([done("first")]), "start", name="x")
        await entity.episode()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note)
            for _ in range(3):
                await entity.episode()
            assert ran


class Unread:
    """A crystal with an attribute that cannot be read while its service is away."""

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if name == self.attribute and self.is_away:
            raise ConnectionError("the list of models is away")
        raise AttributeError(name)

    async def invoke(self, messages: Any, tools: Any = (), tool_choice: Any = None) -> Any:
        await anyio.sleep(5)
        return {"content": "read"}


@pytest.mark.rule("V-30", "D-011")
@pytest.mark.parametrize("attribute", ["context_window", "secrets", "bind"])
async def test_a_crystal_whose_attributes_cannot_be_read_is_an_error_of_its_callers_alone(attribute: str) -> None:
    unread = Unread(attribute)
    circle = Circle(["done"], [max_turns(3)])
    made, other = Cantrip(unread, circle=circle, name="unread"), Cantrip(scripted(["well"]), circle=circle)
    async with Runtime.open(cantrips=[made]) as runtime:
        entity = await runtime.ensure("unread", made)
        unread.is_away = True
        for number in range(5):
            await runtime.submit("unread", "go", key=f"submission {number}")
            with (
                anyio.fail_after(20),
                pytest.raises(InvalidCantrip, match="the list of models is away"),
            ):
                await entity.send("go")
        with pytest.raises(InvalidCantrip, match="the list of models is away"):
            await runtime.cast(made, "go")
        await anyio.sleep(60)
        assert (await runtime.cast(other, "go")).result == "well"
        unread.is_away = False
        assert (await entity.send("go")).result == "read"


@pytest.mark.rule("V-30", "D-011")
async def test_an_entity_whose_crystal_cannot_be_read_keeps_no_other_from_being_resumed(tmp_path: Path) -> None:
    unread = Unread("secrets")

    @gate(idempotent=True)
    async def wait() -> str:
        """Wait."""
        await anyio.sleep(10)
        return "waited"

    circle = Circle(["done", wait], [max_turns(3)])
    waits = [say("wait"), "waited"]
    crystals = {"unread": unread, "waits": scripted([*waits, *waits])}
    made = [Cantrip(crystal, circle=circle, name=name) for name, crystal in crystals.items()]
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=made) as runtime:
        await (await runtime.ensure("unread", made[0])).post("go", key="go")
        await (await runtime.ensure("waits", made[1])).post("go", key="go")
        await anyio.sleep(1)
    unread.is_away = True
    async with Runtime.open(url, cantrips=made, recover="resume") as runtime:
        assert runtime.not_resumed.keys() == {runtime.get_entity("unread").id}
        with anyio.fail_after(30):
            assert (await runtime.receipt("waits", "go").result()).result == "waited"


@pytest.mark.rule("V-30", "D-011")
async def test_a_medium_that_cannot_describe_itself_is_an_error_of_its_callers_alone(tmp_path: Path) -> None:
    class Away(Words):
        is_away = False

        def capability(self, gates: Any, limits: Any) -> str:
            if self.is_away:
                raise ConnectionError("the machine of the sandboxes is away")
            return super().capability(gates, limits)

    medium, url = Away(), f"sqlite:{tmp_path / 'loom.db'}"
    circle = Circle(["done"], [max_turns(3)], medium=medium)
    made = Cantrip(scripted(lambda context: {"code": 'call done {"answer": "well"}'}), circle=circle, name="away")
    other = Cantrip(scripted(["well"]), circle=Circle(["done"], [max_turns(3)]))
    async with Runtime.open(url, cantrips=[made]) as runtime:
        await runtime.ensure("away", made)
    medium.is_away = True
    async with Runtime.open(url, cantrips=[made]) as runtime:
        for _ in range(5):
            with anyio.fail_after(20), pytest.raises(InvalidCantrip, match="the machine of the sandboxes is away"):
                await runtime.get_entity("away").send("go")
        assert (await runtime.cast(other, "go")).result == "well"
        medium.is_away = False
        assert (await runtime.get_entity("away").send("go")).result == "well"
