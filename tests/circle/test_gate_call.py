"""Gate calls: every outcome of a gate is an observation; only the entity's own end passes through."""

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.circle.gate_call import LONGEST, GateError, run_gate
from cantrip_actors.records.records import Observation
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.gate import BoundArguments, Gate
from cantrip_actors.terms.gate_function import Injected, gate
from cantrip_actors.terms.messages import ToolCall


async def call(one: Gate, **args: Any) -> Observation:
    made = ToolCall("c1", one.name, args)
    bound = one.check(made)
    assert isinstance(bound, BoundArguments), bound
    return await run_gate(one, made, bound.args)


def gate_raising(error: BaseException, **settings: Any) -> Gate:
    async def failing() -> None:
        raise error

    return gate(**settings)(failing)


class Stubborn(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.rule("CIRCLE-4", "D-005")
async def test_a_result_is_an_observation_in_the_canonical_shape():
    @gate
    async def greet(name: str) -> str:
        return f"hello {name}"

    assert await call(greet, name="Ann") == Observation(
        gate="greet", args={"name": "Ann"}, result="hello Ann", is_error=False, tool_call_id="c1", ephemeral=False
    )


@pytest.mark.rule("CIRCLE-4", "D-005")
@pytest.mark.parametrize("blocking", [False, True])
async def test_the_result_of_an_async_generator_is_the_list_of_what_it_yields(blocking):
    @gate(blocking=blocking)
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            await anyio.sleep(60)
            yield number

    assert (await call(count, to=3)).result == [0, 1, 2]


@pytest.mark.rule("D-005")
async def test_an_async_generator_that_yields_too_much_is_closed():
    closed = []

    @gate
    async def endless() -> AsyncIterator[str]:
        try:
            while True:
                yield "x" * 1_000_000
        finally:
            closed.append(True)

    assert (await call(endless)).result.startswith("endless returned more than")
    assert closed


@pytest.mark.rule("D-005")
async def test_a_value_that_an_async_generator_yields_and_json_has_not_is_named_with_its_place():
    @gate
    async def things() -> AsyncIterator[object]:
        yield 1
        yield {"here": object()}

    assert "a object at result[1]['here']" in (await call(things)).result


@pytest.mark.rule("CIRCLE-3")
async def test_the_observation_is_returned_after_the_gate_has_finished():
    done = []

    @gate
    async def slow() -> str:
        await anyio.sleep(3600)
        done.append("work")
        return "completed"

    began = anyio.current_time()
    assert (await call(slow)).result == "completed"
    assert done == ["work"]
    assert anyio.current_time() - began == pytest.approx(3600)


@pytest.mark.rule("CIRCLE-3")
async def test_a_blocking_gate_runs_beside_the_loop():
    ran_in = []

    @gate
    def blocking(seconds: float) -> str:
        ran_in.append(threading.current_thread())
        time.sleep(seconds)
        return "completed"

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await anyio.sleep(0.005)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        assert (await call(blocking, seconds=0.05)).result == "completed"
        group.cancel_scope.cancel()
    assert ran_in[0] is not threading.current_thread()
    assert ticks > 1


async def test_a_plain_function_that_never_waits_stays_on_the_loop():
    @gate(blocking=False)
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    here = threading.current_thread() is threading.main_thread()
    assert (await call(where)).result is here


async def test_a_plain_function_may_return_an_awaitable():
    async def work() -> int:
        await anyio.sleep(1)
        return 7

    for blocking in (True, False):
        made = Gate.of(lambda: work(), name="lazy", blocking=blocking)  # noqa: PLW0108  # the awaitable is the point
        assert (await call(made)).result == 7


async def test_a_partial_and_an_object_with_call_are_functions():
    async def add(a: int, b: int) -> int:
        return a + b

    class Doubler:
        async def __call__(self, n: int) -> int:
            return 2 * n

    assert (await call(gate(name="add_two")(functools.partial(add, b=2)), a=1)).result == 3
    assert (await call(Gate.of(Doubler(), name="double"), n=4)).result == 8


@pytest.mark.rule("CIRCLE-10")
async def test_dependencies_are_passed_and_never_observed():
    @gate
    async def whose(root: Injected[Path], name: str) -> str:
        return f"{name} under {root.name}"

    observation = await call(whose.with_(root=Path("/secret/data")), name="x")
    assert observation.result == "x under data"
    assert observation.args == {"name": "x"}


@pytest.mark.rule("D-010", "PROD-5")
async def test_an_ephemeral_gates_observation_is_marked_and_whole():
    @gate(ephemeral=True)
    async def page() -> str:
        return "very large content"

    observation = await call(page)
    assert observation.ephemeral
    assert observation.result == "very large content"


class TestFailures:
    """CIRCLE-5: the entity sees its failures, in words that it can use."""

    @pytest.mark.rule("CIRCLE-5", "D-011")
    async def test_an_exception_of_a_gate_is_an_error_observation(self):
        observation = await call(gate_raising(ValueError("something went wrong")))
        assert observation.is_error
        assert observation.result == "ValueError: something went wrong"
        assert observation.tool_call_id == "c1"

    @pytest.mark.rule("CIRCLE-5")
    async def test_an_exception_of_a_blocking_gate_is_an_error_observation(self):
        @gate
        def failing() -> None:
            raise KeyError("x")

        assert (await call(failing)).result == "KeyError: 'x'"

    @pytest.mark.rule("CIRCLE-5")
    async def test_a_gate_error_is_observed_by_its_message_alone(self):
        assert (await call(gate_raising(GateError("the shop is closed")))).result == "the shop is closed"

    async def test_an_error_without_a_message_is_its_name(self):
        assert (await call(gate_raising(TimeoutError()))).result == "TimeoutError"
        assert (await call(gate_raising(GateError()))).result == "GateError"

    async def test_an_error_observation_has_no_traceback_and_no_host_path(self, tmp_path):
        @gate
        def opening() -> str:
            return (tmp_path / "deep" / "missing.txt").read_text()

        observation = await call(opening)
        assert observation.result == "FileNotFoundError: No such file or directory: 'missing.txt'"

    async def test_an_exception_group_is_described_by_its_leaves(self):
        inner = ExceptionGroup("inner", [KeyError("b"), ValueError("a")])
        observation = await call(gate_raising(ExceptionGroup("outer", [ValueError("a"), inner])))
        assert observation.result == "ValueError: a\nKeyError: 'b'"

    async def test_an_exception_whose_text_raises_is_an_error_observation(self):
        observation = await call(gate_raising(Stubborn()))
        assert observation.is_error
        assert observation.result == "Stubborn: (an error whose message cannot be shown)"

    async def test_an_endless_message_is_cut(self):
        observation = await call(gate_raising(ValueError("x" * 50_000)))
        assert len(observation.result) < LONGEST + 50
        assert "more characters" in observation.result

    @pytest.mark.rule("X-01")
    async def test_messages_of_a_group_are_cut_together(self):
        errors = [ValueError(str(number) * 5_000) for number in range(100)]
        assert len((await call(gate_raising(ExceptionGroup("many", errors)))).result) < LONGEST + 50

    async def test_a_message_that_cannot_be_encoded_is_escaped(self):
        assert (await call(gate_raising(ValueError("\udc80")))).result == "ValueError: \\udc80"

    @pytest.mark.parametrize(
        "error", [StopIteration("x"), StopAsyncIteration("x"), MemoryError("x"), RecursionError("x")]
    )
    async def test_errors_that_python_treats_specially_are_error_observations(self, error):
        @gate
        def in_a_thread() -> None:
            raise error

        @gate(blocking=False)
        def on_the_loop() -> None:
            raise error

        for one in (in_a_thread, on_the_loop, gate_raising(error)):
            observation = await call(one)
            assert observation.is_error
            assert observation.result

    async def test_a_stray_cancellation_is_a_failure_of_the_gate(self, anyio_backend_name):
        if anyio_backend_name != "asyncio":
            pytest.skip("trio lets nobody cancel a task that others wait for")

        @gate
        async def waits_for_a_cancelled_task() -> None:
            task = asyncio.ensure_future(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(task.cancel)
            await task

        observation = await call(waits_for_a_cancelled_task)
        assert observation.is_error
        assert "CancelledError" in observation.result

    @given(st.text())
    async def test_an_exception_with_any_message_is_an_observation(self, message):
        observation = await call(gate_raising(ValueError(message)))
        assert observation.is_error
        observation.content.encode()


class TestCancellation:
    """Cancellation and the process's own end are no failures of a gate."""

    async def test_cancellation_passes_through_a_gate(self):
        cleaned = []

        @gate
        async def hanging() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                cleaned.append(True)

        reached = False
        with anyio.move_on_after(5) as scope:
            await call(hanging)
            reached = True
        assert scope.cancelled_caught
        assert cleaned
        assert not reached

    async def test_cancellation_passes_through_a_gate_with_a_timeout(self):
        @gate(timeout=100)
        async def hanging() -> None:
            await anyio.sleep_forever()

        with anyio.move_on_after(5) as scope:
            await call(hanging)
        assert scope.cancelled_caught

    async def test_only_the_cancellation_is_raised_when_the_gate_also_fails(self):
        @gate
        async def failing_when_cancelled() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                try:
                    await anyio.sleep_forever()
                finally:
                    raise ValueError("on the way out")

        with anyio.move_on_after(5) as scope:
            await call(failing_when_cancelled)
            await anyio.sleep_forever()
        assert scope.cancel_called

    async def test_a_hanging_thread_does_not_delay_a_cancelled_entity(self):
        let_go = threading.Event()

        @gate
        def hanging() -> None:
            let_go.wait(10)

        began = time.monotonic()
        with anyio.move_on_after(0.05) as scope:
            await call(hanging)
        let_go.set()
        assert scope.cancelled_caught
        assert time.monotonic() - began < 5


@pytest.mark.rule("D-011")
async def test_calling_a_gate_that_runs_elsewhere_crashes():
    with pytest.raises(AssertionError, match="done is carried out by the runtime"):
        await run_gate(DONE, ToolCall("c1", "done", {}), {})


class TestTimeout:
    """`gate.timeout` seconds, then an error observation."""

    @pytest.mark.rule("CIRCLE-5")
    async def test_a_gate_that_exceeds_its_timeout_is_an_error(self):
        @gate(timeout=2.5)
        async def slow() -> str:
            await anyio.sleep(60)
            return "never"

        began = anyio.current_time()
        observation = await call(slow)
        assert observation.is_error
        assert observation.result == "slow timed out after 2.5 s"
        assert anyio.current_time() - began == pytest.approx(2.5)

    async def test_a_gate_that_ends_before_its_timeout_succeeds(self):
        @gate(timeout=2.5)
        async def quick() -> None:
            await anyio.sleep(2)

        assert not (await call(quick)).is_error

    async def test_a_blocking_gate_that_exceeds_its_timeout_is_an_error(self):
        let_go = threading.Event()

        @gate(timeout=0.05)
        def hanging() -> None:
            let_go.wait(10)

        began = time.monotonic()
        observation = await call(hanging)
        let_go.set()
        assert observation.result == "hanging timed out after 0.05 s"
        assert time.monotonic() - began < 5

    async def test_a_gates_own_timeout_error_is_described_as_an_exception(self):
        assert (await call(gate_raising(TimeoutError("the shop"), timeout=5))).result == "TimeoutError: the shop"

    async def test_a_failure_while_the_timeout_cancels_is_an_error_observation(self):
        @gate(timeout=1)
        async def failing_when_cancelled() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                try:
                    await anyio.sleep_forever()
                finally:
                    raise ValueError("on the way out")

        observation = await call(failing_when_cancelled)
        assert observation.is_error
        assert "timed out" in observation.result or "on the way out" in observation.result

    async def test_hanging_threads_do_not_use_up_the_threads_of_the_runtime(self):
        let_go = threading.Event()

        @gate(timeout=0.2)
        def hanging() -> None:
            let_go.wait(10)

        async with anyio.create_task_group() as group:
            for _ in range(50):  # anyio's own limit is 40
                group.start_soon(call, hanging)
            await anyio.sleep(0.05)
            with anyio.fail_after(5):
                assert await anyio.to_thread.run_sync(lambda: "free") == "free"
            let_go.set()


class TestResults:
    """What JSON cannot say is said in another way, or refused by name."""

    async def test_a_result_without_a_json_form_is_an_error_with_the_expected_form(self):
        @gate
        async def odd() -> object:
            return {"handle": object()}

        observation = await call(odd)
        assert observation.is_error
        assert observation.result.startswith("odd returned a object at result['handle'], which is not a JSON value")
        assert "expected" in observation.result

    async def test_the_observation_is_not_changed_by_a_gate_that_keeps_its_result(self):
        kept: list[int] = []

        @gate
        async def growing() -> list[int]:
            kept.append(1)
            return kept

        first = await call(growing)
        await call(growing)
        assert first.result == [1]

    async def test_an_endless_generator_is_refused_without_holding_up_the_loop(self):
        @gate
        def endless() -> Any:
            return (n for n in iter(int, 1))

        observation = await call(endless)
        assert observation.is_error
        assert "more than 1,000,000 values" in observation.result

    async def test_a_generator_that_fails_is_a_failure_of_the_gate(self):
        @gate
        def lazy() -> Any:
            yield 1
            raise ValueError("half way")

        assert (await call(lazy)).result == "ValueError: half way"


@pytest.mark.real_time
async def test_the_boundary_costs_microseconds():
    @gate
    async def echo(text: str) -> str:
        return text

    made = ToolCall("c1", "echo", {"text": "x"})
    args = {"text": "x"}
    best = 1.0
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(200):
            await run_gate(echo, made, args)
        best = min(best, (time.perf_counter() - began) / 200)
    assert best < 10e-6  # 1.3 µs on the machine where this was written


def test_every_exported_name_of_the_gates_is_a_gate() -> None:
    from cantrip_actors import gates

    assert [getattr(gates, name).name for name in ("echo", "fetch", "read", "write")] == [
        "echo",
        "fetch",
        "read",
        "write",
    ]
