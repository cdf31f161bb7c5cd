"""Simulations of whole runtimes: what a seed decides, what faults do, and what a scenario may not ask for."""

from __future__ import annotations

import datetime as dt
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import anyio.to_thread
import pytest

from cantrip_actors import Cantrip, Circle, LoomError, Runtime, gate, scripted
from cantrip_actors.loom import Held, Loom
from cantrip_actors.testing import (
    InjectedFault,
    NotSimulated,
    SimulatedProcess,
    SimulationFailed,
    simulate,
    unruly,
)
from cantrip_actors.wards import max_turns
from tests.simulation.planted import run

pytestmark = pytest.mark.rule("Y-43")

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


clerk = Cantrip(scripted(lambda _: "done"), circle=Circle(["done"], [max_turns(2)]), name="clerk")


async def ask_twice(process: SimulatedProcess) -> list[Any]:
    async with process.open(cantrips=[clerk]) as runtime:
        entity = await runtime.ensure("clerk", clerk)
        return [(await entity.send(f"intent {number}", key=f"{number}")).result for number in range(2)]


class TestSeed:
    @pytest.mark.parametrize(("program", "seed"), [("Orders", 14), ("Rush", 2), ("TakeOver", 5), ("Family", 1)])
    def test_a_seed_writes_the_same_bytes_on_both_event_loops_and_each_time(self, program: str, seed: int) -> None:
        first, second = run(program, seed, backend="asyncio"), run(program, seed, backend="trio")
        assert first.digest == second.digest
        assert first.trace == second.trace
        assert first.digest == run(program, seed).digest

    def test_a_seed_writes_the_same_bytes_in_processes_that_hash_texts_differently(self) -> None:
        code = "from tests.simulation.planted import run; print(run('Orders', 14).digest)"
        digests = {
            subprocess.run(
                [sys.executable, "-c", code],
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": hashing},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for hashing in ("1", "2")
        }
        assert len(digests) == 1

    def test_seeds_differ_in_the_order_of_tasks_the_latencies_and_the_faults(self) -> None:
        runs = [simulate(ask_twice, seed) for seed in range(6)]
        assert len({one.digest for one in runs}) == 6
        assert len({one.seconds for one in runs}) == 6
        assert len({one.faults for one in runs}) > 2

    def test_the_seed_decides_which_of_two_tasks_runs_first(self, backend: str) -> None:
        async def race(_: SimulatedProcess) -> str:
            order = ""

            async def note(name: str) -> None:
                nonlocal order
                await anyio.sleep(1)
                order += name

            async with anyio.create_task_group() as tasks:
                for name in "abc":
                    tasks.start_soon(note, name)
            return order

        assert len({simulate(race, seed, backend=backend).value for seed in range(30)}) == 6
        assert {simulate(race, seed, backend=backend, shuffles=False).value for seed in range(5)} == {"abc"}

    def test_random_numbers_are_the_seed_s_and_those_of_the_program_continue(self, backend: str) -> None:
        async def draw(process: SimulatedProcess) -> list[Any]:
            own = process.random.random()
            return [random.random(), uuid.uuid4(), os.urandom(8), secrets.token_hex(8), own]

        random.seed(7)
        before = random.getstate()
        values = simulate(draw, 1, backend=backend).value
        assert values == simulate(draw, 1).value
        assert all(a != b for a, b in zip(values, simulate(draw, 2).value, strict=True))
        assert random.getstate() == before

    def test_a_seed_of_another_version_says_so(self) -> None:
        seed = simulate(ask_twice, 4, faults=[]).seed
        assert simulate(ask_twice, seed, faults=[]).seed == seed
        with pytest.raises(ValueError, match=r"seed 0-4 is of version 0 of the simulation, and this is version \d"):
            simulate(ask_twice, "0-4")

    @pytest.mark.parametrize("seed", ["", "4", "1-x", -1, 0.5, True])
    def test_something_else_is_no_seed(self, seed: Any) -> None:
        with pytest.raises(ValueError, match="seed: expected a number from 0 on"):
            simulate(ask_twice, seed)

    def test_an_unruly_model_does_the_same_again(self, backend: str) -> None:
        @gate
        async def add(a: int, b: int) -> int:
            """Add."""
            return a + b

        circle = Circle(["done", add], [max_turns(4)])
        spell = Cantrip(unruly(circle), circle=circle)

        async def cast(process: SimulatedProcess) -> str:
            async with process.open() as runtime:
                try:
                    return str((await runtime.cast(spell, "go")).outcome)
                except Exception as error:  # it said nothing, again and again
                    return type(error).__name__

        digests = [simulate(cast, seed, backend=backend, faults=[]).digest for seed in range(4)]
        assert digests == [simulate(cast, seed, faults=[]).digest for seed in range(4)]
        assert len(set(digests)) == 4


class TestTime:
    def test_a_day_takes_no_time(self, backend: str) -> None:
        async def wait(process: SimulatedProcess) -> float:
            began = process.time_of_day()
            await anyio.sleep(80_000)
            return process.time_of_day() - began

        began = time.perf_counter()
        result = simulate(wait, 0, backend=backend, faults=[])
        assert (result.value, result.seconds) == (80_000, 80_000)
        assert time.perf_counter() - began < 10

    def test_a_query_takes_between_the_shortest_and_the_longest_latency(self) -> None:
        seconds = [simulate(ask_twice, seed, faults=[], latency=(10, 12)).seconds for seed in range(3)]
        assert all(20 <= one < 24.5 for one in seconds)

    def test_a_scenario_that_does_not_end_has_failed(self, backend: str) -> None:
        async def hang(_: SimulatedProcess) -> None:
            await anyio.sleep_forever()

        with pytest.raises(SimulationFailed, match="did not end in 100 simulated seconds") as caught:
            simulate(hang, 0, backend=backend, lasts=100)
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert "hang (test_simulate.py:" in str(caught.value)

    def test_a_process_that_never_ends_has_failed_and_says_where_each_task_waits(self, backend: str) -> None:
        async def wait_for_nothing(_: SimulatedProcess) -> None:
            with anyio.CancelScope(shield=True):
                await anyio.Event().wait()

        async def leave_work(process: SimulatedProcess) -> None:
            if process.number == 2:
                await wait_for_nothing(process)

        with pytest.raises(SimulationFailed, match="all tasks wait, and nothing will wake them") as caught:
            simulate(leave_work, 0, backend=backend, nodes=2, faults=[])
        (line,) = [line for line in str(caught.value).splitlines() if "leave_work" in line and "p2: " in line]
        assert "> wait_for_nothing (test_simulate.py:" in line

    def test_a_gate_that_is_a_plain_function_needs_no_thread(self, backend: str) -> None:
        @gate
        def double(number: int) -> int:
            """Double a number."""
            threads.append(threading.get_ident())
            return 2 * number

        threads: list[int] = []
        model = scripted([{"tool_calls": [{"gate": "double", "args": {"number": 4}}]}, "eight"])
        spell = Cantrip(model, circle=Circle(["done", double], [max_turns(3)]))

        async def cast(process: SimulatedProcess) -> str:
            async with process.open() as runtime:
                return str((await runtime.cast(spell, "go")).result)

        assert simulate(cast, 0, backend=backend, faults=[]).value == "eight"
        assert threads == [threading.get_ident()]


class TestFaults:
    def test_a_killed_process_begins_again_and_finds_its_loom(self, backend: str) -> None:
        lives: list[int] = []

        async def program(process: SimulatedProcess) -> list[Any]:
            lives.append(process.life)
            return await ask_twice(process)

        faults = [InjectedFault("kill", write=2), InjectedFault("kill", write=5, recorded=True, seconds=9)]
        result = simulate(program, 3, backend=backend, faults=faults)
        assert (result.value, result.deaths, lives) == (["done", "done"], 2, [1, 2, 3])
        assert result.seconds > 10

    def test_a_killed_process_runs_nothing_any_more(self, backend: str) -> None:
        cleaned: list[float] = []

        async def program(process: SimulatedProcess) -> None:
            if process.life == 1:
                try:
                    await anyio.sleep(50)
                finally:
                    cleaned.append(anyio.current_time())
            await anyio.sleep(20)

        simulate(program, 0, backend=backend, faults=[InjectedFault("kill", at=5, seconds=1)])
        assert cleaned == [26]  # when the simulation is over

    def test_a_frozen_process_continues_later(self, backend: str) -> None:
        async def program(_: SimulatedProcess) -> list[float]:
            times = []
            for _ in range(3):
                await anyio.sleep(1)
                times.append(anyio.current_time())
            return times

        faults = [InjectedFault("freeze", at=1.5, seconds=10)]
        assert simulate(program, 0, backend=backend, faults=faults).value == [1, 11.5, 12.5]

    def test_an_outage_fails_what_uses_the_loom_until_it_is_over(self, backend: str) -> None:
        async def program(process: SimulatedProcess) -> list[Any]:
            async with process.open(cantrips=[clerk]) as runtime:
                await anyio.sleep(5)
                with pytest.raises(LoomError, match="cannot be reached"):
                    await runtime.ensure("clerk", clerk)
                await anyio.sleep(5)
                return [(await runtime.ensure("clerk", clerk)).name]

        faults = [InjectedFault("outage", at=2, seconds=6)]
        assert simulate(program, 0, backend=backend, faults=faults).value == ["clerk"]

    def test_a_slow_loom_delays_what_uses_it(self) -> None:
        slow = InjectedFault("slow", at=0, seconds=1000)
        fast, late = (simulate(ask_twice, 4, faults=faults).seconds for faults in ([], [slow]))
        assert late > fast + 1

    @pytest.mark.parametrize("recorded", [True, False])
    def test_an_unsure_write_is_there_or_not(self, backend: str, recorded: bool) -> None:
        async def program(process: SimulatedProcess) -> int | None:
            async with process.open(cantrips=[clerk]) as runtime:
                episode = await runtime.cast(clerk, "go")
                before = len(runtime.loom.records(episode.entity_id))
                try:
                    await runtime.loom.reward(episode.thread[-1].id, 1.0)
                except LoomError:  # the answer to its commit was lost
                    return len(runtime.loom.records(episode.entity_id)) - before
            return None

        faults = [[InjectedFault("unsure", write=write, recorded=recorded)] for write in range(3, 9)]
        added = {simulate(program, 0, backend=backend, faults=one).value for one in faults}
        assert (1 in added) == recorded

    def test_a_program_that_a_fault_of_its_loom_ends_is_started_again(self) -> None:
        result = simulate(ask_twice, 3, faults=[InjectedFault("outage", write=2, seconds=3)])
        assert result.value == ["done", "done"]
        assert result.deaths >= 1

    @pytest.mark.parametrize(("kind", "longest"), [("kill", 2.0), ("lose", 60.0)])
    def test_the_entities_of_a_lost_machine_wait_for_its_leases_and_those_of_a_killed_process_do_not(
        self, backend: str, kind: Any, longest: float
    ) -> None:
        async def program(process: SimulatedProcess) -> float:
            async with process.open(cantrips=[clerk]) as runtime:
                if process.number == 2 and process.life == 1:
                    await (await runtime.ensure("clerk", clerk)).send("one")
                if process.number == 2:
                    await anyio.sleep_forever()
                await anyio.sleep(12)
                while True:
                    try:
                        entity = await runtime.ensure("clerk", clerk)
                        await entity.send("two", key="two")
                    except Held:
                        await anyio.sleep(0.5)
                    else:
                        return anyio.current_time() - 12

        faults = [InjectedFault(kind, process=2, at=11, seconds=500)]
        waited = simulate(program, 1, backend=backend, nodes=2, faults=faults, latency=(0.1, 0.2)).value
        assert (longest / 4 if kind == "lose" else 0) < waited < longest

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"kind": "storm", "at": 1}, "kind: expected 'kill'"),
            ({"kind": "kill"}, "expected one of write and at"),
            ({"kind": "kill", "at": 1, "write": 1}, "expected one of write and at"),
            ({"kind": "kill", "at": -1}, "at: expected seconds from 0 on"),
            ({"kind": "kill", "write": 0}, "write: expected"),
            ({"kind": "kill", "at": 1, "process": 0}, "process: expected"),
            ({"kind": "kill", "at": 1, "seconds": float("inf")}, "seconds: expected seconds from 0 on"),
        ],
    )
    def test_a_fault_that_cannot_come_is_refused(self, arguments: dict[str, Any], match: str) -> None:
        with pytest.raises(ValueError, match=match):
            InjectedFault(**arguments)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"nodes": 0},
            {"backend": "curio"},
            {"latency": (2, 1)},
            {"latency": 5},
            {"within": 0},
            {"lasts": 0},
            {"lasts": "1d"},
            {"faults": ["kill"]},
            {"faults": [InjectedFault("kill", at=1, process=2)]},
            {"check": 5},
            {"reset": 5},
        ],
    )
    def test_other_arguments_that_make_no_sense_are_refused(self, arguments: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=f"{next(iter(arguments))}: expected"):
            simulate(ask_twice, 0, **arguments)

    def test_a_scenario_whose_runtime_is_not_of_the_simulation_is_refused_with_what_to_write(self) -> None:
        async def cast(_: SimulatedProcess) -> None:
            async with Runtime.open("memory:") as runtime:
                await runtime.cast(clerk, "go")

        with pytest.raises(ValueError, match=r"process\.open\(cantrips"):
            simulate(cast, 0, faults=[])

    def test_a_scenario_that_is_no_async_function_is_named(self) -> None:
        with pytest.raises(ValueError, match="scenario: expected an async function"):
            simulate(None, 0)  # type: ignore[arg-type]
        with pytest.raises(SimulationFailed, match="scenario: expected an async function, got one that returned 5"):
            simulate(lambda process: 5, 0)  # type: ignore[arg-type,return-value]


class TestFailures:
    @staticmethod
    async def lose_count(process: SimulatedProcess) -> None:
        """Fail if it is killed twice."""
        process.note(f"life {process.life}")
        await anyio.sleep(40)
        assert process.life < 3

    def test_a_failure_has_only_the_faults_that_it_needs_and_a_line_that_repeats_it(self, backend: str) -> None:
        kinds = ("slow", "kill", "freeze", "kill", "outage")
        faults = [InjectedFault(kind, at=at + 1, seconds=0.5) for at, kind in enumerate(kinds)]
        with pytest.raises(SimulationFailed) as caught:
            simulate(self.lose_count, 5, backend=backend, faults=faults)
        failed = caught.value
        assert [fault.kind for fault in failed.faults] == ["kill", "kill"]
        assert not failed.shuffles
        assert [(event.at, event.what) for event in failed.trace if event.what.startswith("life")] == [
            (0.0, "life 1"),
            (2.5, "life 2"),
            (4.5, "life 3"),
        ]
        line = str(failed).splitlines()[-1].partition(": ")[2]
        names = {"simulate": simulate, "lose_count": self.lose_count, "InjectedFault": InjectedFault}
        with pytest.raises(SimulationFailed) as again:
            eval(line, names)
        assert again.value.trace == failed.trace

    def test_the_cause_of_a_failure_is_what_the_scenario_raised(self, backend: str) -> None:
        async def fail(process: SimulatedProcess) -> None:
            if process.number == 2:
                raise KeyError("missing")
            await anyio.sleep(1)

        with pytest.raises(
            SimulationFailed, match=r"seed 1-0 fails after 0\.000 simulated seconds: KeyError"
        ) as caught:
            simulate(fail, 0, backend=backend, nodes=2, faults=[])
        assert isinstance(caught.value.__cause__, KeyError)

    def test_a_check_of_the_loom_may_fail(self) -> None:
        def check(loom: Loom) -> None:
            assert len(loom.entities()) == 2, "one is missing"

        with pytest.raises(SimulationFailed, match="AssertionError: one is missing"):
            simulate(ask_twice, 0, check=check)

    def test_the_loom_of_a_check_is_read_only(self) -> None:
        async def reward(loom: Loom) -> None:
            await loom.reward(loom.last_turn(loom.entities()[0]).id, 1.0)  # type: ignore[union-attr]

        def check(loom: Loom) -> None:
            with pytest.raises(LoomError, match="the simulation is over"):
                reward(loom).send(None)

        simulate(ask_twice, 0, check=check)

    async def test_a_simulation_does_not_run_in_an_event_loop(self) -> None:
        with pytest.raises(RuntimeError, match="lready running"):
            simulate(ask_twice, 0)


def use_time() -> None:
    time.time()


def use_imported_clock() -> None:
    monotonic()


def use_sleep() -> None:
    time.sleep(1)


def use_now() -> None:
    datetime.now(dt.UTC)


def use_utcnow() -> None:
    dt.datetime.utcnow()  # noqa: DTZ003  # that is the subject


def use_today() -> None:
    dt.date.today()  # noqa: DTZ011  # likewise


def use_thread() -> None:
    threading.Thread(target=print).start()


def use_worker_thread() -> None:
    anyio.to_thread.run_sync(print)


def use_socket() -> None:
    with socket.socket() as unused:
        unused.connect(("127.0.0.1", 9))


def use_name_server() -> None:
    socket.create_connection(("example.org", 80))


def use_subprocess() -> None:
    subprocess.run(["true"], check=False)


REFUSED: dict[Callable[[], None], str] = {
    use_time: "time.time()",
    use_imported_clock: "time.monotonic()",
    use_sleep: "time.sleep()",
    use_now: "datetime.now()",
    use_utcnow: "datetime.utcnow()",
    use_today: "date.today()",
    use_thread: "threading.Thread.start()",
    use_worker_thread: "anyio.to_thread.run_sync()",
    use_socket: "socket.connect()",
    use_name_server: "socket.getaddrinfo()",
    use_subprocess: "subprocess.Popen()",
}


class TestRefused:
    @pytest.mark.parametrize("ask", REFUSED)
    def test_an_operation_that_no_seed_can_repeat_is_refused_by_its_line(
        self, ask: Callable[[], None], backend: str
    ) -> None:
        async def use(_: SimulatedProcess) -> None:
            ask()

        line = ask.__code__.co_firstlineno + (2 if ask is use_socket else 1)
        with pytest.raises(NotSimulated) as caught:
            simulate(use, 0, backend=backend)
        assert f"{REFUSED[ask]} at {__file__}:{line} is not simulated" in str(caught.value)

    def test_it_is_refused_also_in_a_gate_and_where_the_error_is_caught(self, backend: str) -> None:
        @gate
        async def look() -> float:
            """Look at the clock."""
            return time.time()

        model = scripted([{"tool_calls": [{"gate": "look", "args": {}}]}, "late"])
        spell = Cantrip(model, circle=Circle(["done", look], [max_turns(3)]))

        async def cast(process: SimulatedProcess) -> None:
            async with process.open() as runtime:
                await runtime.cast(spell, "go")

        with pytest.raises(NotSimulated, match=r"time\.time\(\) at .*test_simulate\.py:\d+ is not simulated"):
            simulate(cast, 0, backend=backend)

    def test_the_world_outside_is_as_before_after_a_simulation(self) -> None:
        simulate(ask_twice, 0)
        assert abs(time.time() - datetime.now(dt.UTC).timestamp()) < 60
        assert isinstance(datetime.now(dt.UTC), dt.datetime)
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        assert Runtime.open("memory:") is not None
