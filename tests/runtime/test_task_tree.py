"""The tree of tasks is the supervision tree (K-01), and scopes around calls bound all that the calls started (K-02)."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cantrip_actors import Cantrip, Circle, Entity, Runtime, gate, scripted
from cantrip_actors.wards import max_depth, max_turns
from supervisors.testing import virtual
from tests.runtime.spells import done, say
from tests.task_tree import list_actors, list_tasks, select_actors

Plan = list[Any]
"""The children of an entity, each with its own plan; an entity without children works."""

PLANS = st.recursive(st.just([]), lambda plans: st.lists(plans, min_size=1, max_size=3), max_leaves=6)


def count_leaves(plan: Plan) -> int:
    return sum(map(count_leaves, plan)) if plan else 1


class Family:
    """A cantrip whose entities delegate as their plan says. The leaves work until they may end.

    `working` counts the leaves at work, `ends` has the intents of leaves that were cancelled, in order, with the time.
    """

    def __init__(self) -> None:
        self.working = 0
        self.ends: list[tuple[str, float]] = []
        self.tasks: dict[str, tuple[str, ...]] = {}
        """The chain of names of the task in which a leaf's gate runs, by the leaf's intent."""
        self.may_end = anyio.Event()

        @gate
        async def work(intent: str) -> str:
            """Work until it may end, and clean up for a second when it is cancelled."""
            self.working += 1
            try:
                await self.may_end.wait()
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1)
                self.ends.append((intent, anyio.current_time()))
                raise
            return "worked"

        def answer(context: Any) -> Any:
            intent = next(message.content for message in reversed(context) if message.role == "user")
            if context[-1].role == "tool" or intent == "quick":
                return done(intent)
            name, plan = json.loads(intent)
            children = [{"intent": json.dumps([f"{name}.{n}", child])} for n, child in enumerate(plan, 1)]
            return say("call_agent_batch", requests=children) if children else say("work", intent=name)

        circle = Circle(["done", "call_agent_batch", work], [max_turns(5), max_depth(9)])
        self.cantrip = Cantrip(scripted(answer, record=False), circle=circle)

    async def begin(self, runtime: Runtime, plan: Plan, name: str = "x") -> Entity:
        """Begin a one-shot entity, and return it when all leaves work."""
        working = self.working + count_leaves(plan)
        entity = await runtime.start(self.cantrip, json.dumps([name, plan]))
        while self.working < working:
            await anyio.sleep(0.1)
        return entity


def make_world(backend: str) -> dict[str, Any]:
    name, options = virtual(backend)
    return {"backend": name, "backend_options": options}


# K-01


@pytest.mark.rule("K-01")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(
    max_examples=15, phases=(Phase.explicit, Phase.generate)
)  # shrinking takes minutes, and small trees come first
@given(plans=st.lists(PLANS, min_size=1, max_size=3))
def test_tasks_have_the_parents_that_inspect_shows_for_any_tree_of_entities(backend: str, plans: list[Plan]) -> None:
    async def main() -> None:
        family = Family()
        async with Runtime.open() as runtime:
            entities = [await family.begin(runtime, plan) for plan in plans]
            actors = set(list_actors(runtime.inspect().tree))
            assert select_actors(list_tasks(), actors) == actors
            family.may_end.set()
            for entity in entities:
                assert (await entity.episode()).terminated

    anyio.run(main, **make_world(backend))


@pytest.mark.rule("K-01", "K-02")
async def test_a_child_runs_below_the_task_of_its_parent() -> None:
    family = Family()
    async with Runtime.open() as runtime:
        parent = await family.begin(runtime, [[[]]])
        child, grandchild = runtime.loom.subtree(parent.id)[1:]
        chains = list(list_tasks())
        for above, below in ((parent.id, child), (child, grandchild)):
            assert any(above in chain[:-1] for chain in chains if chain[-1] == below)
        family.may_end.set()


@pytest.mark.rule("K-01")
async def test_a_gate_runs_below_the_task_of_its_entity() -> None:
    chains: list[tuple[str, ...]] = []

    @gate
    async def look() -> str:
        """Look at the tasks."""
        name = anyio.get_current_task().name
        chains.extend(chain for chain in list_tasks() if chain[-1] == name)
        return "seen"

    cantrip = Cantrip(scripted([say("look"), done("ok")]), circle=Circle(["done", look], [max_turns(3)]))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go")
    assert [chain for chain in chains if episode.entity_id in chain[:-1]]


# K-02


@asynccontextmanager
async def leaves_no_task() -> AsyncIterator[None]:
    """Check that the block leaves no task."""
    before = {task.id for task in anyio.get_running_tasks()}
    yield
    assert [task.name for task in anyio.get_running_tasks() if task.id not in before] == []


@pytest.mark.rule("K-02")
async def test_a_cancelled_cast_ends_its_subtree_last_started_first_and_no_other_entity() -> None:
    family = Family()
    async with Runtime.open() as runtime:
        other = await family.begin(runtime, [[], []], "other")
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.cast, family.cantrip, json.dumps(["x", [[], [[], []], []]]))
                await anyio.sleep(10)
                began = anyio.current_time()
                scope.cancel()
        assert [(name, at - began) for name, at in family.ends] == [
            ("x.3", 1.0),
            ("x.2.2", 2.0),
            ("x.2.1", 3.0),
            ("x.1", 4.0),
        ]
        family.may_end.set()
        assert (await other.episode()).terminated


@pytest.mark.rule("K-02")
async def test_a_cancelled_cast_leaves_no_task() -> None:
    family = Family()
    async with Runtime.open() as runtime:
        await runtime.cast(family.cantrip, "quick")  # it starts the actor of the crystal
        async with leaves_no_task():
            with anyio.move_on_after(10) as scope:
                await runtime.cast(family.cantrip, json.dumps(["x", [[], [[]]]]))
            assert scope.cancelled_caught
        assert len(family.ends) == 2


@pytest.mark.rule("K-02")
async def test_a_cast_that_is_cancelled_at_any_moment_leaves_no_entity_without_an_end() -> None:
    async with Runtime.open() as runtime:
        for moment in range(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.cast, Family().cantrip, json.dumps(["x", [[]]]))
                for _ in range(moment):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            states = {entity_id: runtime.loom.state(entity_id) for entity_id in runtime.loom.entities()}
            assert "active" not in states.values(), f"cancelled at moment {moment}"


@pytest.mark.rule("K-02")
async def test_a_scope_around_a_runtime_ends_everything_in_it() -> None:
    family = Family()
    async with leaves_no_task():
        with anyio.CancelScope() as scope:
            async with Runtime.open() as runtime:
                await family.begin(runtime, [[], [[]]])
                await runtime.invoke(family.cantrip, json.dumps(["y", []]), name="desk")
                await anyio.sleep(10)
                scope.cancel()
                await anyio.sleep(10)
    assert scope.cancelled_caught
    assert sorted(name for name, _ in family.ends) == ["x.1", "x.2.1", "y"]


@pytest.mark.rule("K-02")
async def test_a_cancelled_task_that_holds_a_runtime_ends_after_everything_in_it() -> None:
    family = Family()

    async def hold() -> None:
        async with Runtime.open() as runtime:
            await family.begin(runtime, [[], []])
            await anyio.sleep_forever()

    async with leaves_no_task(), anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await anyio.sleep(10)
        tasks.cancel_scope.cancel()
    assert [name for name, _ in family.ends] == ["x.2", "x.1"]


@pytest.mark.rule("K-02")
async def test_a_block_that_raises_leaves_no_task() -> None:
    family = Family()

    async def fail() -> None:
        async with Runtime.open() as runtime:
            await family.begin(runtime, [[], []])
            raise ZeroDivisionError

    async with leaves_no_task():
        with pytest.raises(ZeroDivisionError):
            await fail()
    assert [name for name, _ in family.ends] == ["x.2", "x.1"]


@pytest.mark.rule("K-02")
async def test_a_block_that_ends_leaves_no_task() -> None:
    family = Family()
    async with leaves_no_task(), Runtime.open() as runtime:
        await runtime.cast(family.cantrip, "quick")
        entity = await runtime.invoke(family.cantrip, "quick", name="desk")
        await entity.episode()
        await family.begin(runtime, [[], []])
