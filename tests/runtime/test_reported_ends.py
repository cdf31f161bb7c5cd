"""No effect follows a reported end: whoever ends an episode waits for what it cancels, and for its record (K-23)."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Entity, Runtime, gate, scripted
from cantrip_actors.looms import GateFinished
from cantrip_actors.wards import max_depth, max_turns, timeout
from supervisors.events import Event, Zombie
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("K-23")

CLEANUP = 0.5


each_kind = pytest.mark.parametrize("what", ["gate", "query", "child"])


class Work:
    """A cantrip whose entities work for an hour, and clean up when they are cancelled: what they do, in order.

    The intent says what works: "gate", "query", or "child", whose gate does.
    """

    def __init__(self, *wards: Any) -> None:
        self.effects: list[str] = []

        @gate
        async def work() -> str:
            """Work for an hour, and clean up."""
            return await self._work("gate")

        async def answer(context: Any) -> Any:
            intent = next(message.content for message in reversed(context) if message.role == "user")
            if context[-1].role == "tool" or intent == "quick":
                return done("ok")
            if intent == "query":
                return done(await self._work("query"))
            return say("call_agent", intent="gate") if intent == "child" else say("work")

        circle = Circle(["done", "call_agent", work], [max_turns(9), max_depth(1), *wards])
        self.cantrip = Cantrip(scripted(answer, record=False), circle=circle)

    async def _work(self, what: str) -> str:
        try:
            await anyio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(CLEANUP)
            self.effects.append(what)
        return "late"

    async def check_over(self, what: str) -> None:
        """Check that the cleanup is over, and that nothing follows."""
        effects = ["gate" if what == "child" else what]
        assert self.effects == effects
        await anyio.sleep(100)
        assert self.effects == effects


async def begin(runtime: Runtime, work: Work, what: str) -> Entity:
    """Return a long-lived entity that has worked for a while."""
    entity = await runtime.invoke(work.cantrip, what, name="desk")
    await anyio.sleep(10)
    return entity


@each_kind
async def test_an_interrupt_now_returns_after_the_cleanup(what: str) -> None:
    work = Work()
    async with Runtime.open() as runtime:
        entity = await begin(runtime, work, what)
        await entity.interrupt(now=True)
        await work.check_over(what)


@each_kind
async def test_the_episode_of_an_interrupted_entity_is_returned_after_the_cleanup(what: str) -> None:
    work = Work()
    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        entity = await begin(runtime, work, what)
        tasks.start_soon(lambda: entity.interrupt(now=True))
        assert (await entity.episode()).reason == "interrupted"
        await work.check_over(what)


@each_kind
async def test_a_send_whose_episode_is_interrupted_returns_after_the_cleanup(what: str) -> None:
    work = Work()

    async def interrupt(entity: Entity) -> None:
        await anyio.sleep(10)
        await entity.interrupt(now=True)

    async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
        entity = await begin(runtime, work, "quick")
        tasks.start_soon(interrupt, entity)
        assert (await entity.send(what)).reason == "interrupted"
        await work.check_over(what)


@each_kind
async def test_a_stop_returns_after_the_cleanup(what: str) -> None:
    work = Work()
    async with Runtime.open() as runtime:
        entity = await begin(runtime, work, what)
        await entity.stop()
        await work.check_over(what)


@each_kind
async def test_an_episode_that_times_out_is_returned_after_the_cleanup(what: str) -> None:
    work = Work(timeout(10))
    async with Runtime.open() as runtime:
        assert (await runtime.cast(work.cantrip, what)).ward == "timeout"
        await work.check_over(what)


@each_kind
async def test_a_runtime_closes_after_the_cleanup(what: str) -> None:
    work = Work()
    async with Runtime.open() as runtime:
        await begin(runtime, work, what)
    await work.check_over(what)


@each_kind
async def test_a_cancelled_cast_raises_after_the_cleanup(what: str) -> None:
    work = Work()
    async with Runtime.open() as runtime:
        with anyio.move_on_after(10) as scope:
            await runtime.cast(work.cantrip, what)
        assert scope.cancelled_caught
        await work.check_over(what)


@each_kind
async def test_a_cancelled_fork_raises_after_the_cleanup(what: str) -> None:
    work = Work()
    async with Runtime.open() as runtime:
        turn = (await runtime.cast(work.cantrip, "quick")).thread[-1]
        with anyio.move_on_after(10) as scope:
            await runtime.fork(turn.id, intent=what)
        assert scope.cancelled_caught
        await work.check_over(what)


async def test_an_interrupt_is_recorded_before_it_returns(tmp_path: Path) -> None:
    work = Work()
    async with Runtime.open(f"sqlite:{tmp_path / 'loom.db'}") as runtime:
        entity = await begin(runtime, work, "gate")
        await entity.interrupt("enough", now=True)
        episode = await entity.episode()
        assert episode.reason == "interrupted"
        assert "outcome unknown" in episode.thread[-1].gate_calls[0].result


# A gate that refuses to end


class Refusal:
    """A cantrip whose gate ignores cancellation for an hour, and the reports of actors that do not end."""

    def __init__(self, *wards: Any) -> None:
        self.results: list[str] = []
        self.reports: list[Event] = []

        @gate
        async def refuse() -> str:
            """Refuse to end."""
            with anyio.CancelScope(shield=True):
                await anyio.sleep(3600)
            self.results.append("late")
            return "late"

        def answer(context: Any) -> Any:
            return say("refuse") if context[-1].content == "go" else done(context[-1].content)

        circle = Circle(["done", refuse], [max_turns(9), *wards])
        self.cantrip = Cantrip(scripted(answer, record=False), circle=circle)

    def watch(self, runtime: Runtime) -> None:
        """Note the reports of a runtime."""
        runtime.watch_actors(lambda event: self.reports.append(event) if isinstance(event, Zombie) else None)


async def interrupt(entity: Entity) -> None:
    await entity.interrupt(now=True)


async def stop(entity: Entity) -> None:
    await entity.stop()


@pytest.mark.parametrize("end", [interrupt, stop])
async def test_a_gate_that_refuses_to_end_is_reported_and_its_result_reaches_nobody(
    end: Callable[[Entity], Awaitable[None]],
) -> None:
    refusal = Refusal()
    async with Runtime.open() as runtime:
        refusal.watch(runtime)
        entity = await runtime.invoke(refusal.cantrip, "go", name="desk")
        await anyio.sleep(10)
        with anyio.fail_after(60):
            await end(entity)
            episode = await entity.episode()
        assert refusal.reports
        records = runtime.loom.records(entity.id)
        await anyio.sleep(3600)
        assert refusal.results == ["late"]
        assert runtime.loom.records(entity.id) == records
    assert not episode.terminated
    assert "late" not in str(episode.thread)


async def test_an_entity_whose_gate_refused_to_end_works_on() -> None:
    refusal = Refusal()
    async with Runtime.open() as runtime:
        refusal.watch(runtime)
        entity = await runtime.invoke(refusal.cantrip, "go", name="desk")
        await anyio.sleep(10)
        await entity.interrupt(now=True)
        with anyio.fail_after(60):
            assert (await entity.send("next")).result == "next"
        assert refusal.reports
        assert refusal.results == []


async def test_a_runtime_closes_after_a_gate_that_refuses_to_end_and_reports_it() -> None:
    refusal = Refusal()
    async with Runtime.open() as runtime:
        refusal.watch(runtime)
        entity = await runtime.invoke(refusal.cantrip, "go", name="desk")
        await anyio.sleep(10)
    assert refusal.reports
    assert refusal.results == ["late"]
    assert not any(isinstance(record, GateFinished) for record in runtime.loom.records(entity.id))
