"""Entities that wait for long: parents for children, programs for gates, with the same results."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
import sniffio
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, CantripError, Circle, Runtime, scripted
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.records import Ended
from cantrip_actors.runtime.circles import program_actor
from cantrip_actors.runtime.circles.program_actor import CircleActor
from cantrip_actors.runtime.entity.performer import Performer
from cantrip_actors.wards import max_depth, max_turns, timeout
from supervisors.testing import virtual
from tests.runtime.spells import done, say
from tests.runtime.worlds import find_circle

DELEGATES = ["done", "echo", "call_agent", "call_agent_batch"]
HOUR = 3600.0


def tasks() -> int:
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


def family(parent: object, child: object, *gates: object, wards: tuple[object, ...] = (), **parts: object) -> Cantrip:
    circle = Circle([*DELEGATES, *gates], [max_turns(10), *wards])
    return Cantrip(scripted(parent), circle=circle, child_crystal=scripted(child), **parts)


def slow(answer: object, delay: float = HOUR) -> dict[str, object]:
    return {**done(answer), "delay": delay}


async def test_an_entity_that_waits_for_a_child_is_one_task() -> None:
    def policy(context: Any) -> Any:
        if context[0].content == "work":
            return done("alone")
        return done(context[-1].content) if context[-1].role == "tool" else say("call_agent", intent="compute")

    async def child(_: Any) -> Any:
        return slow(42)

    async with Runtime.open() as runtime:
        spell = family(policy, child)
        await runtime.cast(spell, "go")  # both crystals have their actors now
        await anyio.sleep(10)
        before = tasks()
        entities = [await runtime.start(spell, "go") for _ in range(5)]
        await anyio.sleep(10)
        assert tasks() == before + 5 * 3  # a parent, its child, and the child's query
        assert [(await entity.episode()).result for entity in entities] == ["42"] * 5
        assert anyio.current_time() >= 2 * HOUR


async def test_a_loaded_idle_entity_is_one_task_and_handles_its_mail() -> None:
    async def policy(context: Any) -> Any:
        return done([m.content for m in context if m.role == "user"])

    async with Runtime.open(passivate_after=300) as runtime:
        await runtime.cast(family(policy, policy), "go")  # its crystal has its actor now
        await anyio.sleep(10)
        before = tasks()
        entities = [await runtime.invoke(family(policy, policy), f"{n}") for n in range(5)]
        for entity in entities:
            await entity.episode()
        await anyio.sleep(10)
        assert tasks() == before + 5 * 2  # crystals' actors, and entities
        first, *_ = entities
        await first.steer("mind the gap")
        await first.interrupt()
        await anyio.sleep(10)
        assert tasks() == before + 5 * 2
        assert (await first.send("next")).result == ["0", "mind the gap", "next"]
        assert runtime.loom.state(first.id) != "active"


async def test_an_idle_entity_is_unloaded_after_any_number_of_intents() -> None:
    async with Runtime.open(passivate_after=300) as runtime:
        entity = await runtime.invoke(family([done(n) for n in range(4)], []), "0")
        assert (await entity.episode()).result == 0
        for n in (1, 2):
            await anyio.sleep(299)
            assert entity.loaded
            assert (await entity.send(f"{n}")).result == n
        await anyio.sleep(299)
        assert entity.loaded
        await anyio.sleep(2)
        assert not entity.loaded
        assert (await entity.send("3")).result == 3


@pytest.mark.rule("COMP-3")
async def test_a_parent_waits_for_all_children_that_end_one_after_the_other() -> None:
    ask = say("call_agent_batch", intents=[{"intent": f"{n}"} for n in range(8)])
    delays = [5.0, 50.0, 0.0, 50.0, 500.0, 49.0, 499.5, 1.0]
    child = [slow(n, delay) for n, delay in enumerate(delays)]
    async with Runtime.open() as runtime:
        episode = await runtime.cast(family([ask, done("over")], child), "go")
    assert episode.thread[1].gate_calls[0].result == list(range(8))
    assert episode.result == "over"


async def test_mail_to_a_waiting_parent_is_handled_after_the_turn() -> None:
    def policy(context: Any) -> Any:
        last = context[-1]
        if last.role == "user" and last.content == "first":
            return say("call_agent", intent="compute")
        return done([m.content for m in context if m.role == "user"])

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(family(policy, [slow(42)]), "first")
        await anyio.sleep(60)
        await entity.steer("hurry")
        await anyio.sleep(60)
        await entity.steer("please")
        second: list[Any] = []

        async def send() -> None:
            second.append((await entity.send("second")).result)

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            first = await entity.episode()
            assert anyio.current_time() >= HOUR
        assert first.result == ["first", "hurry", "please"]
        assert second == [["first", "hurry", "please", "second"]]


async def test_an_interrupt_of_a_waiting_parent_takes_effect_after_its_children_end() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(family([say("call_agent", intent="compute")], [slow(42)]), "first")
        await anyio.sleep(60)
        await entity.interrupt("enough")
        episode = await entity.episode()
        assert anyio.current_time() >= HOUR
        assert episode.truncated
        assert episode.thread[-1].gate_calls[0].result == 42


@pytest.mark.rule("CIRCLE-6")
async def test_a_deadline_of_a_waiting_parent_ends_its_children_first() -> None:
    spell = family([say("call_agent", intent="compute")], [slow(42)], wards=(timeout(90),))
    async with Runtime.open() as runtime:
        began = anyio.current_time()
        episode = await runtime.cast(spell, "go")
        assert anyio.current_time() - began == pytest.approx(90)
        assert episode.truncated
        assert episode.thread[-1].ward == "timeout"
        (child,) = [one for one in runtime.loom.entities() if one != episode.entity_id]
        assert "timeout" in runtime.loom.records(child)[-1].detail


@pytest.mark.rule("S-34")
@pytest.mark.parametrize("waited", [0.5, 60.0])
async def test_a_stop_of_a_waiting_parent_ends_its_children_first(waited: float) -> None:
    spell = family([say("call_agent_batch", intents=["a", "b"])], [slow(1), slow(2)])
    async with Runtime.open() as runtime:
        entity = await runtime.start(spell, "go")
        await anyio.sleep(waited)
        ends: list[str] = []
        whole = runtime._tree.store.append

        def append(batch: Any, leases: object, **mail: Any) -> None:
            ends.extend(record.entity_id for record in batch if isinstance(record, Ended))
            whole(batch, leases, **mail)

        runtime._tree.store.append = append
        await entity.stop("enough")
        assert ends[-1] == entity.id
        assert len(ends) == 3
        assert runtime.loom.state(entity.id) == "cancelled"
        children = [one for one in runtime.loom.entities() if one != entity.id]
        assert [runtime.loom.state(one) for one in children] == ["parent_ended"] * 2


@pytest.mark.rule("S-21")
@pytest.mark.parametrize("who", ["circle", "entity"])
async def test_a_waiting_parent_gets_the_result_of_its_child_after_a_restart(who: str) -> None:
    async def compute(_: Any) -> Any:
        return slow(42)

    async with Runtime.open() as runtime:
        spell = family([say("call_agent", intent="compute"), done("over")], compute)
        entity = await runtime.start(spell, "go")
        await anyio.sleep(60)
        cell = runtime._tree.living.get(entity.id)
        assert cell is not None
        struck = cell.actor if who == "entity" else find_circle(cell)
        if struck is not None:
            struck.kill()
        await anyio.sleep(60)
        episode = await entity.episode()
        assert episode.thread[1].gate_calls[0].result == 42
        assert len(runtime.loom.entities()) == 2


@pytest.mark.rule("D-011", "COMP-8")
async def test_a_child_that_crashed_for_good_is_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Performer._ask

    async def ask(self: Performer, action: Any) -> Any:
        if self._cell.parent is not None:
            await anyio.sleep(10)
            raise RuntimeError("a broken child")
        return await whole(self, action)

    monkeypatch.setattr(Performer, "_ask", ask)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(family([say("call_agent", intent="compute"), done("over")], []), "go")
    (seen,) = episode.thread[1].gate_calls
    assert seen.is_error
    assert "a broken child" in seen.result
    assert episode.result == "over"


async def test_a_waiting_parent_stays_active_in_the_loom_when_the_runtime_closes(tmp_path: Path) -> None:
    spell = family([say("call_agent", intent="compute"), done("over")], [slow(42)])
    async with Runtime.open(f"jsonl:{tmp_path / 'loom.jsonl'}") as runtime:
        entity = await runtime.invoke(spell, "go")
        await anyio.sleep(60)
        assert runtime.loom.state(entity.id) == "active"
    assert runtime.loom.state(entity.id) == "active"


# Programs

PROGRAM = "seen = [1, 2]\nsaid = call_agent('look')\ndone([seen, said])"


def programs(waits: anyio.Event) -> Cantrip:
    class Child:
        name = "child"

        async def invoke(self, _: object) -> dict[str, str]:
            await waits.wait()
            return {"code": "done('found')"}

    circle = Circle(["done", "call_agent"], [max_turns(3), max_depth(1)], medium="python")
    return Cantrip(scripted(lambda _: {"code": PROGRAM}), circle=circle, child_crystal=Child())


@pytest.fixture
def circles(monkeypatch: pytest.MonkeyPatch) -> list[CircleActor]:
    """Return the circles that were told that their entities wait, once they have acted on it: at once."""
    told: list[CircleActor] = []
    handle_cast, handle_info = CircleActor.handle_cast, CircleActor.handle_info

    async def note_cast(self: CircleActor, message: str) -> None:
        await handle_cast(self, message)
        if self._release is None:
            told.append(self)

    async def note_info(self: CircleActor, message: str) -> None:
        await handle_info(self, message)
        told.append(self)

    monkeypatch.setattr(CircleActor, "handle_cast", note_cast)
    monkeypatch.setattr(CircleActor, "handle_info", note_info)
    monkeypatch.setattr(program_actor, "PATIENCE", 0.0)
    return told


async def told(circles: list[CircleActor]) -> CircleActor:
    with anyio.fail_after(30):
        while not circles:
            await anyio.sleep(0.005)
    return circles[0]


@pytest.mark.real_time
@pytest.mark.rule("CIRCLE-9", "LOOM-1")
async def test_a_program_that_waits_is_resumed_from_its_snapshot_in_the_loom(circles: list[CircleActor]) -> None:
    waits = anyio.Event()
    async with Runtime.open() as runtime:
        entity = await runtime.start(programs(waits), "go")
        circle = await told(circles)
        assert circle._suspended is None
        waits.set()
        assert (await entity.episode()).result == [[1, 2], "found"]
    assert len(circles) == 1


@pytest.mark.real_time
@pytest.mark.rule("CIRCLE-9", "D-011")
async def test_a_program_that_waits_is_run_again_when_its_snapshot_is_lost(
    circles: list[CircleActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = anyio.Event()
    async with Runtime.open() as runtime:
        entity = await runtime.start(programs(waits), "go")
        await told(circles)

        async def read_nothing(digest: str) -> Blob | None:
            return None

        monkeypatch.setattr(runtime._tree.environment.snapshots, "_read", read_nothing)
        waits.set()
        with capture_logs() as logs:
            assert (await entity.episode()).result == [[1, 2], "found"]
        assert any("programs are run again" in log["event"] for log in logs)
        assert len(runtime.loom.entities()) == 2


@pytest.mark.real_time
async def test_a_program_that_waits_stays_in_memory_in_a_loom_redacted_at_rest(circles: list[CircleActor]) -> None:
    waits = anyio.Event()
    async with Runtime.open(redact="at_rest") as runtime:
        entity = await runtime.start(programs(waits), "go")
        circle = await told(circles)
        assert circle._suspended is not None
        waits.set()
        assert (await entity.episode()).result == [[1, 2], "found"]


# Whatever happens while they wait

Tree = Any
"""A number: an entity that answers after so many seconds. A list: a parent with these children, all at once."""

trees = st.recursive(st.floats(0, 5), lambda below: st.lists(below, min_size=1, max_size=3), max_leaves=8)
blows = st.lists(
    st.tuples(st.floats(0, 8), st.integers(0, 20), st.sampled_from(["entity", "circle", "steer"])), max_size=3
)


def at(tree: Tree, path: str) -> Tree:
    for step in path.split()[1:]:
        tree = tree[int(step)]
    return tree


def answer_of(tree: Tree, path: str = "root") -> Any:
    if isinstance(tree, list):
        return [answer_of(one, f"{path} {n}") for n, one in enumerate(tree)]
    return path


def family_of(tree: Tree) -> Cantrip:
    async def policy(context: Any) -> Any:
        path = context[0].content
        below = at(tree, path)
        if not isinstance(below, list):
            return slow(path, below)
        if any(message.role == "tool" for message in context):
            seen = next(message for message in context if message.role == "tool")
            return done(orjson.loads(seen.content))
        return say("call_agent_batch", intents=[f"{path} {n}" for n in range(len(below))])

    circle = Circle(["done", "call_agent_batch"], [max_turns(9), max_depth(9)])
    return Cantrip(scripted(policy), circle=circle)


async def disturbed(tree: Tree, struck: list[tuple[float, int, str]]) -> Any:
    async def strike(runtime: Runtime, seconds: float, who: int, how: str) -> None:
        await anyio.sleep(seconds)
        cells = list(runtime._tree.living)
        if not cells or not cells[who % len(cells)].actor.alive:
            return
        cell = cells[who % len(cells)]
        if how == "steer":
            with suppress(CantripError):
                await runtime.get_entity(cell.entity_id).steer("hurry")
        else:
            struck = cell.actor if how == "entity" else find_circle(cell)
            if struck is not None:
                struck.kill()

    async with Runtime.open() as runtime, anyio.create_task_group() as group:
        for one in struck:
            group.start_soon(strike, runtime, *one)
        episode = await runtime.cast(family_of(tree), "root")
        group.cancel_scope.cancel()
    return episode.result


@pytest.mark.rule("COMP-2", "COMP-3", "S-21")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_family_reaches_the_same_result_despite_kills(backend: str) -> None:
    @settings(max_examples=40)
    @given(trees, blows)
    def holds(tree: Tree, struck: list[tuple[float, int, str]]) -> None:
        name, options = virtual(backend)
        found = anyio.run(disturbed, tree, struck, backend=name, backend_options=options)
        assert found == answer_of(tree)

    holds()
