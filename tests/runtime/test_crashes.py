"""`cantrip_actors.testing`: a program that is crashed at a write, and run again."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from inspect import getmembers, getsource, isfunction
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted
from cantrip_actors.loom import MemoryStore
from cantrip_actors.loom.postgres.postgres import PostgresStore
from cantrip_actors.loom.sqlite.sqlite import SqliteStore
from cantrip_actors.testing import Crash, Crashed, Process, every_crash_point, run_with_crashes, virtual
from cantrip_actors.wards import max_turns
from tests.runtime.kills import intents
from tests.runtime.spells import cantrip as answering
from tests.runtime.spells import done

SPELL = answering(lambda context: done(context[-1].content))


class Shop:
    """A clerk who ships orders with a gate, and the parcels that have left."""

    def __init__(self, *, idempotent: bool = False) -> None:
        self.shipped: Counter[str] = Counter()
        shipped = self.shipped

        @gate(idempotent=idempotent)
        async def ship(order: str) -> str:
            """Ship an order."""
            await anyio.sleep(1)
            shipped[order] += 1
            return f"{order} shipped"

        def answer(context: Any) -> dict[str, Any]:
            last = context[-1]
            if last.role == "user":
                return {"tool_calls": [{"gate": "ship", "args": {"order": last.content}}]}
            return done(last.content)

        self.clerk = Cantrip(scripted(answer, record=False), circle=Circle(["done", ship], [max_turns(5)]))

    async def program(self, url: str, process: Process) -> str | None:
        async with process.attach(Runtime.open(url, cantrips=[self.clerk], recover="resume")) as runtime:
            entity = await runtime.invoke(self.clerk, "order 1", name="orders", key="begin")
            await entity.episode()
            return (await entity.send("order 2", key="2")).result


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[object], str]:
    if request.param == "memory":
        return lambda _: "memory:"
    return lambda number: f"{request.param}:{tmp_path / str(number)}"


@pytest.mark.rule("C-10", "C-11")
@pytest.mark.parametrize("recorded", [False, True], ids=["not written", "written"])
async def test_a_program_crashed_at_each_write_ships_each_order_at_most_once(
    new_url: Callable[[object], str], recorded: bool
) -> None:
    write, results = 1, []
    while True:
        shop = Shop()
        survived = await run_with_crashes(partial(shop.program, new_url(write)), [Crash(write, recorded)])
        assert max(shop.shipped.values()) == 1
        results.append(survived.value or "")
        if survived.crashes == 0:
            break
        write += 1
    assert write == 10
    assert sum("outcome unknown" in result for result in results) == 1
    assert results.count("order 2 shipped") == 9


@pytest.mark.rule("C-10", "C-11")
@pytest.mark.parametrize("name", ["asyncio", "trio"])
@settings(max_examples=40)
@given(crashes=st.lists(st.builds(Crash, st.integers(1, 10), st.booleans()), max_size=4))
def test_an_idempotent_gate_has_run_for_each_order_after_any_crashes(name: str, crashes: list[Crash]) -> None:
    shop = Shop(idempotent=True)
    backend, options = virtual(name)
    program = partial(shop.program, "memory:")
    survived = anyio.run(run_with_crashes, program, crashes, backend=backend, backend_options=options)
    assert survived.value == "order 2 shipped"
    assert shop.shipped.keys() == {"order 1", "order 2"}


async def test_a_program_without_a_crash_returns_its_value() -> None:
    survived = await run_with_crashes(partial(Shop().program, "memory:"))
    assert (survived.value, survived.crashes) == ("order 2 shipped", 0)


async def test_later_crashes_are_not_needed_after_a_life_that_ends_well() -> None:
    survived = await run_with_crashes(partial(Shop().program, "memory:"), [Crash(2), Crash(99), Crash(1)])
    assert (survived.value, survived.crashes) == ("order 2 shipped", 1)


@pytest.mark.parametrize("recorded", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("store", ["jsonl", "sqlite"])
async def test_a_sender_in_a_crashed_process_gets_an_error_whether_or_not_its_intent_is_written(
    tmp_path: Path, store: str, recorded: bool
) -> None:
    url = f"{store}:{tmp_path / 'loom'}"
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(SPELL, "begin", name="x")
        await entity.episode()
        process = Process(Crash(1, recorded))
        process.attach(runtime)
        with pytest.raises(Crashed, match="the process has crashed, because its test says so"):
            await entity.post("first")
        assert process.has_crashed
        assert process.writes == 1
        with pytest.raises(Crashed):
            await entity.post("second")
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        assert (await runtime.entity("x").send("last")).result == "last"
        assert intents(runtime, entity.id) == ["begin", *(["first"] if recorded else []), "last"]


async def test_a_program_that_waits_is_ended_by_the_crash(new_url: Callable[[object], str]) -> None:
    lives: list[str] = []

    async def program(process: Process) -> str:
        async with process.attach(Runtime.open(new_url("one"))) as runtime:
            if lives:
                return "second life"
            lives.append("first life")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.cast, SPELL, "go")
                await anyio.sleep_forever()
        raise AssertionError("nothing ends the sleep but the crash")

    assert (await run_with_crashes(program, [Crash(1)])).value == "second life"


async def test_an_error_that_a_program_raises_after_its_crash_has_no_effect() -> None:
    async def program(process: Process) -> str:
        async with process.attach(Runtime.open("memory:")) as runtime:
            try:
                return str((await runtime.cast(SPELL, "go")).result)
            except BaseException as error:
                raise RuntimeError("cannot go on") from error

    assert (await run_with_crashes(program, [Crash(1), Crash(2)])).value == "go"


async def test_an_error_of_a_program_that_has_not_crashed_is_raised() -> None:
    async def program(process: Process) -> None:
        async with process.attach(Runtime.open("memory:")):
            raise KeyError("mistake")

    with pytest.raises(KeyError, match="mistake"):
        await run_with_crashes(program, [Crash(7)])


async def test_each_loom_in_memory_of_a_program_keeps_its_own_records() -> None:
    async def program(process: Process) -> list[list[str | None]]:
        found = []
        for name in ("one", "two"):
            async with process.attach(Runtime.open("memory:")) as runtime:
                entity = await runtime.invoke(SPELL, "begin", name=name, key="begin")
                await entity.episode()
                found.append([header.name for header in runtime.loom.headers()])
        return found

    assert (await run_with_crashes(program, [Crash(5)])).value == [["one"], ["two"]]


async def open_unattached(_: Process) -> object:
    async with Runtime.open("memory:") as runtime:
        return (await runtime.cast(SPELL, "go")).result


@pytest.mark.parametrize("crash", [Crash(1), Crash(query=1), Crash(gate="pay"), Crash(after=60)], ids=str)
async def test_a_program_that_gives_no_runtime_to_its_process_is_refused_with_what_to_write(crash: Crash) -> None:
    with pytest.raises(ValueError, match=r"process\.attach\(Runtime\.open"):
        await run_with_crashes(open_unattached, [crash])


async def test_a_sweep_of_a_program_without_an_attached_runtime_is_refused() -> None:
    with pytest.raises(ValueError, match=r"process\.attach\(Runtime\.open"):
        await every_crash_point(open_unattached)


async def test_a_program_that_crashes_before_it_opens_a_runtime_runs_again() -> None:
    async def program(process: Process) -> object:
        await anyio.sleep(10)
        async with process.attach(Runtime.open("memory:")) as runtime:
            return (await runtime.cast(SPELL, "go")).result

    survived = await run_with_crashes(program, [Crash(after=1)])
    assert (survived.value, survived.crashes) == ("go", 1)


async def test_a_cancelled_caller_ends_the_program() -> None:
    async def program(process: Process) -> None:
        async with process.attach(Runtime.open("memory:")):
            await anyio.sleep_forever()

    with anyio.move_on_after(5) as scope:
        await run_with_crashes(program, [Crash(1)])
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Crash(0), "write: expected a whole number >= 1, got 0"),
        (lambda: Crash(True), "write: expected a whole number >= 1, got True"),
        (lambda: Crash(1, recorded="no"), "recorded: expected True or False, got str"),  # type: ignore[arg-type]
        (lambda: Process(3), "crash: expected a Crash, or None, got int"),  # type: ignore[arg-type]
        (lambda: Process().attach("memory:"), "runtime: expected a Runtime, got str"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.rule("C-10")
def test_no_method_of_a_store_writes_after_the_crash() -> None:
    for kind in (MemoryStore, SqliteStore, PostgresStore):
        store = kind.__new__(kind)
        Process()._watch(store)
        methods = {name: method for name, method in getmembers(kind, isfunction) if not name.startswith("_")}
        writing = {name for name, method in methods.items() if re.search(r"\._(transact|run_while)", getsource(method))}
        assert len(writing) > 5
        assert writing - {"hint"} <= vars(store).keys()  # a hint wakes other processes, and writes nothing
