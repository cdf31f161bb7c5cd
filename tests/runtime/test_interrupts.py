"""Interrupts, stops and steering: they overtake intents, end what hangs, and never hit the wrong episode."""

import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, EntityEnded, Episode, Runtime, gate, scripted
from cantrip_actors.records.records import MailRefused, Utterance
from cantrip_actors.wards import max_depth, max_turns
from tests.exhaustive import EXHAUSTIVE, part
from tests.runtime.kills import intents
from tests.runtime.spells import cantrip, done, say

WAITING = 10_000 if EXHAUSTIVE else 2_000
HOUR = 3600.0


def users(context: Any) -> list[str]:
    """Return the texts of the user messages that the entity has, in order."""
    return [message.content for message in context if message.role == "user"]


async def policy(context: Any) -> Any:
    """Hang in a query or a gate, work for an hour in turns of ten seconds, or answer with the user messages."""
    last = users(context)[-1]
    if last == "hang":
        return {**done("late"), "delay": HOUR}
    if context[-1].role == "tool" and context[-1].content != "x":
        return done(context[-1].content)
    if last in ("wait", "block"):
        return say(last)
    if last == "work":
        return {**say("echo", text="x"), "delay": 10.0}
    return done(users(context)[-3:])


@gate
async def wait() -> str:
    """Hang."""
    await anyio.sleep(HOUR)
    return "late"


SPELL = cantrip(scripted(policy, record=False), wait, wards=(max_turns(1000),))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'loom.db'}"


def refused(runtime: Runtime, entity_id: str) -> list[MailRefused]:
    """Return the records of mail that an entity has refused."""
    return [record for record in runtime.loom.records(entity_id) if isinstance(record, MailRefused)]


# Overtaking


@pytest.mark.rule("C-17")
@pytest.mark.parametrize("now", [False, True], ids=["at the border", "now"])
async def test_interrupts_and_steering_overtake_thousands_of_intents(now: bool) -> None:
    async def quick(context: Any) -> Any:
        return {**say("echo", text="x"), "delay": 10.0} if users(context)[-1] == "work" else done(users(context)[-2:])

    async with Runtime.open() as runtime:
        runtime._tree.store.max_waiting = 2 * WAITING
        entity = await runtime.invoke(cantrip(scripted(quick, record=False), wards=(max_turns(1000),)), "work")
        for n in range(WAITING):
            await entity.post(f"{n}", key=f"{n}")
        began = anyio.current_time()
        await entity.interrupt("enough", now=now)
        first = await entity.episode()
        assert (first.reason, "enough" in first.summary) == ("interrupted", True)
        assert anyio.current_time() - began <= (1 if now else 11)
        assert (await runtime.receipt(entity, "0").episode()).result == ["work", "0"]
        await entity.steer("mind the gap")
        await entity.stop("that was all")
        assert len(intents(runtime, entity.id)) < WAITING // 2
        assert runtime.receipt(entity, f"{WAITING - 1}").state == "refused"


@pytest.mark.rule("C-17")
async def test_steering_overtakes_intents_that_wait() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SPELL, "hang")
        for n in range(50):
            await entity.post(f"{n}", key=f"{n}")
        await entity.steer("mind the gap")
        assert (await runtime.receipt(entity, "0").episode()).result == ["hang", "mind the gap", "0"]
        assert (await runtime.receipt(entity, "49").episode()).result == ["47", "48", "49"]


# Now


@pytest.mark.rule("C-17")
@pytest.mark.parametrize("where", ["here", "another runtime"])
@pytest.mark.parametrize("what", ["hang", "wait"])
async def test_an_interrupt_now_ends_a_query_and_a_gate_that_hang(url: str, what: str, where: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime, Runtime.open(url) as other:
        entity = await runtime.invoke(SPELL, what, name="x")
        receipt = await entity.post("next")
        await anyio.sleep(100)
        began = anyio.current_time()
        asks = entity if where == "here" else other.entity("x")
        await asks.interrupt("enough", now=True)
        episode = await entity.episode()
        assert anyio.current_time() - began <= 1
        assert (episode.truncated, episode.reason) == (True, "interrupted")
        assert "enough" in episode.summary
        if what == "wait":
            assert "outcome unknown" in episode.thread[-1].gate_calls[0].result
            assert episode.thread[-1].gate_calls[0].is_error
        else:
            assert list(episode.thread) == []
        assert (await receipt.episode()).result == [what, "next"]
        assert refused(runtime, entity.id) == []


@pytest.mark.rule("C-17")
@pytest.mark.parametrize(("what", "turns"), [("hang", "0 turns"), ("wait", "1 turn")])
async def test_an_interrupt_now_ends_each_of_several_episodes_that_hang(what: str, turns: str) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SPELL, "hello")
        await entity.episode()
        for n in range(3):
            receipt = await entity.post(what, key=f"{n}")
            await anyio.sleep(1)
            await entity.interrupt("enough", now=True)
            episode = await receipt.episode()
            assert episode.summary == f"interrupted (enough) after {turns}"
        assert (await entity.send("and now?")).terminated


@pytest.mark.rule("C-17")
async def test_an_interrupt_at_the_border_lets_the_gate_end() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SPELL, "wait")
        await anyio.sleep(100)
        await entity.interrupt("enough")
        episode = await entity.episode()
        assert anyio.current_time() >= HOUR
        assert (episode.reason, episode.thread[-1].gate_calls[0].result) == ("interrupted", "late")


@pytest.mark.rule("C-17")
@pytest.mark.parametrize("steps", range(0, 40, 3))
@pytest.mark.parametrize("what", ["hang", "wait"])
async def test_an_interrupt_now_ends_the_episode_at_any_point(what: str, steps: int) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SPELL, "start")
        await entity.episode()
        receipt = await entity.post(what)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(1):
            while receipt.state != "settled":
                await entity.interrupt("enough", now=True)
                await anyio.sleep(0.1)
        assert (await receipt.episode()).reason == "interrupted"
        assert (await entity.send("next")).result[-1] == "next"


@pytest.mark.rule("C-17", "LOOM-1")
async def test_an_interrupt_now_between_any_two_steps_leaves_a_whole_log_and_the_next_episode_runs() -> None:
    """Nothing here waits, so the interrupt comes at each point of a turn, also while a step is recorded."""

    def spin(context: Any) -> Any:
        usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 1}}
        return {**(say("echo", text="x") if users(context)[-1] == "spin" else done("ok")), **usage}

    spell = cantrip(scripted(spin, record=False), wards=(max_turns(100_000),))
    async with Runtime.open() as runtime:
        for steps in part(range(100), 3):
            entity = await runtime.invoke(spell, "spin")
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            with anyio.fail_after(1):
                await entity.interrupt("enough", now=True)
                first = await entity.episode()
            assert first.reason == "interrupted"
            last = await entity.send("next")
            assert last.result == "ok"
            assert refused(runtime, entity.id) == []
            records = runtime.loom.records(entity.id)
            utterances = [record.turn_id for record in records if isinstance(record, Utterance)]
            assert utterances == [turn.id for turn in runtime.loom.turns(entity.id)]
            assert last.usage.total_tokens == 11 * len(utterances)
            assert runtime._tree.living.get(entity.id).ledger.own == last.usage
            await entity.stop()


@pytest.mark.rule("C-17", "LOOM-1")
async def test_an_interrupt_now_never_cancels_the_record_of_an_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the interrupt of the episode before came while a step was recorded."""
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("worker", SPELL)
        tree, append = runtime._tree, runtime._tree.append

        async def append_slowly(*args: Any) -> None:
            await anyio.sleep(1)
            await append(*args)

        monkeypatch.setattr(tree, "append", append_slowly)
        for text in ("work", "hang"):
            receipt = await entity.post(text)
            await anyio.sleep(0.5)
            await entity.interrupt("enough", now=True)
            with anyio.fail_after(HOUR):
                assert (await receipt.episode()).reason == "interrupted"
        assert intents(runtime, entity.id) == ["work", "hang"]


@pytest.mark.rule("C-17", "K-23")
@pytest.mark.real_time
async def test_an_interrupt_now_waits_until_a_gate_in_a_thread_has_ended() -> None:
    effects: list[str] = []

    @gate
    def block() -> str:
        """Work in a thread."""
        time.sleep(0.6)
        effects.append("effect")
        return "late"

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(scripted(policy, record=False), block), "block")
        await anyio.sleep(0.2)
        await entity.interrupt("enough", now=True)
        assert effects == ["effect"]
        episode = await entity.episode()
        assert "outcome unknown" in episode.thread[-1].gate_calls[0].result
        assert (await entity.send("next")).result == ["block", "next"]


@pytest.mark.rule("C-17", "K-23")
@pytest.mark.real_time
async def test_an_interrupt_now_reports_a_gate_in_a_thread_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cantrip_actors.user_code.threads.GRACE", 0.2)
    let_go = threading.Event()

    @gate
    def block() -> str:
        """Hang in a thread."""
        let_go.wait(10)
        return "late"

    try:
        with capture_logs() as logs:
            async with Runtime.open() as runtime:
                entity = await runtime.invoke(cantrip(scripted(policy, record=False), block), "block")
                await anyio.sleep(0.2)
                began = anyio.current_time()
                await entity.interrupt("enough", now=True)
                assert anyio.current_time() - began <= 2
                assert any(log["event"] == "a gate does not end" for log in logs)
                let_go.set()
                assert (await entity.send("next")).result == ["block", "next"]
    finally:
        let_go.set()


@pytest.mark.rule("C-17")
async def test_an_interrupt_now_stops_children_that_hang() -> None:
    def parent(context: Any) -> Any:
        return say("call_agent", intent="hang") if users(context)[-1] == "delegate" else done(users(context))

    spell = Cantrip(
        scripted(parent),
        circle=Circle(["done", "call_agent"], [max_turns(5), max_depth(1)]),
        child_crystal=scripted(policy, record=False),
    )
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(spell, "delegate")
        await anyio.sleep(100)
        began = anyio.current_time()
        await entity.interrupt("enough", now=True)
        episode = await entity.episode()
        assert (episode.reason, anyio.current_time() - began <= 1) == ("interrupted", True)
        (child,) = runtime.loom.below(entity.id)
        assert runtime.loom.state(child) not in ("active", "terminated")
        assert (await entity.send("next")).result == ["delegate", "next"]


@pytest.mark.rule("C-17")
async def test_an_interrupt_now_of_a_child_does_not_affect_its_parent() -> None:
    def parent(context: Any) -> Any:
        if context[-1].role == "tool":
            return done(context[-1].content)
        return say("call_agent", intent="hang")

    spell = Cantrip(
        scripted(parent),
        circle=Circle(["done", "call_agent"], [max_turns(5), max_depth(1)]),
        child_crystal=scripted(policy, record=False),
    )
    async with Runtime.open() as runtime:
        entity = await runtime.start(spell, "delegate")
        await anyio.sleep(100)
        (child,) = runtime.loom.below(entity.id)
        await runtime.get_entity(child).interrupt("enough", now=True)
        episode = await entity.episode()
        assert anyio.current_time() < 110
        assert "enough" in episode.result or "interrupted" in episode.result
        assert episode.terminated


@pytest.mark.rule("C-17")
@pytest.mark.parametrize("now", [False, True])
async def test_a_one_shot_entity_that_is_interrupted_is_over(now: bool) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.start(SPELL, "wait")
        await anyio.sleep(100)
        await entity.interrupt("enough", now=now)
        assert (await entity.episode()).reason == "interrupted"
        assert (anyio.current_time() < 110) == now
        assert runtime.interrupted() == []


# The right episode


@pytest.mark.rule("C-17")
@pytest.mark.parametrize("now", [False, True])
async def test_an_interrupt_that_arrives_after_its_episode_has_no_effect(now: bool) -> None:
    """The episode ends while the interrupt is on its way; the next one is not harmed."""
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SPELL, "start", name="x")
        await entity.episode()
        late = runtime._tree.inboxes.make_mail(entity.id, "interrupt", {"episode": 1, "why": "enough", "now": now})
        receipt = await entity.post("wait")
        await anyio.sleep(100)
        await runtime._tree.inboxes.post(late)
        episode = await receipt.episode()
        assert (episode.result, anyio.current_time() >= HOUR) == ("late", True)
        (record,) = refused(runtime, entity.id)
        assert (record.mail, record.key, "over" in record.reason) == ("interrupt", late.key, True)


@pytest.mark.rule("C-17")
async def test_an_interrupt_of_an_idle_or_unloaded_entity_changes_nothing(url: str) -> None:
    async with Runtime.open(url, passivate_after=60) as runtime:
        entity = await runtime.invoke(SPELL, "start")
        await entity.episode()
        for idle in (0, 30, 100):
            await anyio.sleep(idle)
            await entity.interrupt("enough")
            await entity.interrupt("enough", now=True)
            assert (await entity.send("next")).terminated
        assert refused(runtime, entity.id) == []


@pytest.mark.rule("C-17")
async def test_an_interrupt_of_a_crashed_episode_ends_it_when_it_is_resumed(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity = await runtime.invoke(SPELL, "work", name="x")
        await anyio.sleep(25)
    async with Runtime.open(url) as runtime:
        await runtime.entity("x").interrupt("enough")
    async with Runtime.open(url, cantrips=[SPELL], recover="resume") as runtime:
        episode = await runtime.entity("x").episode()
        assert (episode.reason, len(episode.thread)) == ("interrupted", 2)
        assert (await runtime.entity("x").send("next")).result[-1] == "next"
        assert intents(runtime, entity.id) == ["work", "next"]


@pytest.mark.rule("C-17")
async def test_several_interrupts_count_once_and_do_not_end_the_next_episode() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SPELL, "wait")
        await anyio.sleep(100)
        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(lambda n=n: entity.interrupt(f"reason {n}", now=n % 2 == 1))
        episode: Episode = await entity.episode()
        assert (episode.reason, anyio.current_time() < 102) == ("interrupted", True)
        receipt = await entity.post("work")
        await anyio.sleep(100)
        assert receipt.state == "working"
        await entity.interrupt("enough", now=True)
        assert len((await receipt.episode()).thread) > 8
        assert len(refused(runtime, entity.id)) == 9
        await anyio.sleep(400)
        assert not entity.loaded


# Steering and stopping


@pytest.mark.rule("C-17")
@pytest.mark.parametrize("where", ["here", "another runtime"])
@pytest.mark.parametrize("idle", [0.0, 30.0, 100.0], ids=["idle", "hibernating", "unloaded"])
async def test_a_steering_message_to_an_idle_entity_is_seen_with_the_next_intent(
    url: str, idle: float, where: str
) -> None:
    async with Runtime.open(url, passivate_after=60) as runtime, Runtime.open(url) as other:
        entity = await runtime.invoke(SPELL, "start", name="x")
        await entity.episode()
        await anyio.sleep(idle)
        await (entity if where == "here" else other.entity("x")).steer("mind the gap")
        await anyio.sleep(1)
        assert entity.loaded == (idle < 60)
        assert (await entity.send("next")).result == ["start", "mind the gap", "next"]


@pytest.mark.rule("C-17")
async def test_a_steering_message_from_another_runtime_is_seen_in_the_next_query(url: str) -> None:
    async with Runtime.open(url) as runtime, Runtime.open(url) as other:
        entity = await runtime.invoke(SPELL, "work", name="x")
        await anyio.sleep(25)
        await other.entity("x").steer("that will do")
        assert (await entity.episode()).result == ["work", "that will do"]
        assert anyio.current_time() < 45


@pytest.mark.rule("C-17")
@pytest.mark.parametrize("state", ["working", "hanging in a gate", "idle", "unloaded"])
async def test_an_entity_is_stopped_from_another_runtime(url: str, state: str) -> None:
    what = {"working": "work", "hanging in a gate": "wait"}.get(state, "start")
    async with Runtime.open(url, passivate_after=60) as runtime, Runtime.open(url) as other:
        entity = await runtime.invoke(SPELL, what, name="x")
        receipt = await entity.post("next")
        await anyio.sleep(100 if state == "unloaded" else 25)
        began = anyio.current_time()
        await other.entity("x").stop("we closed")
        assert anyio.current_time() - began < 3
        assert other.entity("x") is runtime.entity("x") is None
        assert runtime.loom.state(entity.id) == ("abandoned" if state == "unloaded" else "cancelled")
        assert "we closed" in runtime.loom.records(entity.id)[-1].detail
        assert receipt.state == ("settled" if what == "start" else "refused")
        with pytest.raises(EntityEnded):
            await entity.send("more")


@pytest.mark.rule("C-17")
async def test_an_entity_that_is_just_being_loaded_is_stopped_at_once(url: str) -> None:
    async with Runtime.open(url, passivate_after=3) as runtime:
        for steps in range(25):
            entity = await runtime.invoke(SPELL, "start")
            await entity.episode()
            await anyio.sleep(5)
            assert not entity.loaded
            receipt = await entity.post("work")
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            began = anyio.current_time()
            await entity.stop("we closed")
            assert anyio.current_time() - began < 3
            assert runtime.loom.state(entity.id) in ("cancelled", "abandoned")
            assert receipt.state in ("settled", "refused")


@pytest.mark.rule("C-17", "C-13")
async def test_interrupts_and_stops_go_through_to_an_entity_whose_inbox_is_full_of_intents(url: str) -> None:
    async with Runtime.open(url, cantrips=[SPELL]) as runtime, Runtime.open(url) as other:
        runtime._tree.store.max_waiting = other._tree.store.max_waiting = 3
        entity = await runtime.invoke(SPELL, "hang", name="x")
        for _ in range(3):
            await entity.post("hang")
        await other.entity("x").interrupt("enough", now=True)
        assert (await entity.episode()).reason == "interrupted"
        await entity.post("hang")
        await other.entity("x").stop("that was all")
        assert runtime.entity("x") is None
