"""C-60: SystemExit, GeneratorExit and KeyboardInterrupt of user code, through whole casts on both backends."""

import subprocess
import sys
import textwrap
from typing import Annotated

import anyio
import pytest
from pydantic import AfterValidator, BaseModel, Field, PlainSerializer

from cantrip_actors import Cantrip, Circle, Retry, Runtime, scripted
from cantrip_actors.gates import gate, wrap
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.wards import max_turns
from tests.forked import Forked

pytestmark = pytest.mark.rule("C-60")

EXITS = [SystemExit, GeneratorExit]
DONE = {"tool_calls": [{"gate": "done", "args": {"answer": "on"}}]}


def raising(error, kind):
    """A gate or a step that raises, in one of the ways in which a function can."""

    async def awaited(*_):
        raise error("boom")

    def blocking(*_):
        raise error("boom")

    async def after_a_wait(*_):
        await anyio.sleep(1)
        raise error("boom")

    return {"async": awaited, "blocking": blocking, "after a wait": after_a_wait}[kind]


async def cast(*gates, crystal=None):
    """The observations that a cast sees which calls the gate `it` and then ends."""
    crystal = crystal or scripted([{"tool_calls": [{"gate": "it", "args": {}}]}, DONE])
    async with Runtime.open("memory:") as runtime:
        with anyio.fail_after(60):
            episode = await runtime.cast(Cantrip(crystal, circle=Circle(["done", *gates], [max_turns(5)])), "go")
        assert episode.result == "on"
        return [one for turn in episode.thread for one in turn.observations if one.gate == "it"]


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("kind", ["async", "blocking", "after a wait"])
async def test_an_exit_that_a_gate_raises_is_an_error_observation(error, kind):
    function = raising(error, kind)

    async def it() -> str:
        return await function()

    def it_blocks() -> str:
        return function()

    made = gate(name="it")(it_blocks if kind == "blocking" else it)
    (seen,) = await cast(made)
    assert (seen.is_error, seen.result) == (True, f"{error.__name__}: boom")


async def test_an_interrupt_in_a_worker_thread_is_an_error_observation():
    def it() -> str:
        raise KeyboardInterrupt("boom")

    (seen,) = await cast(it)
    assert (seen.is_error, seen.result) == (True, "KeyboardInterrupt: boom")


async def test_an_exit_in_a_task_group_of_a_gate_is_an_error_observation(anyio_backend_name):
    if anyio_backend_name == "asyncio":
        pytest.skip("asyncio itself raises a SystemExit of a task out of the event loop")

    async def it() -> str:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(raising(SystemExit, "async"))
        return "never"

    (seen,) = await cast(it)
    assert (seen.is_error, seen.result) == (True, "SystemExit: boom")


def test_asyncio_ends_the_program_for_an_exit_in_a_task_of_a_gate():
    """It is documented: no library can mend it but with a task factory, which belongs to the program."""

    async def it() -> str:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(raising(SystemExit, "async"))
        return "never"

    with pytest.raises(SystemExit, match="boom"):
        anyio.run(cast, it, backend="asyncio")


async def test_an_exit_in_a_thread_of_a_gate_is_an_error_observation():
    async def it() -> str:
        return await anyio.to_thread.run_sync(raising(SystemExit, "blocking"))

    (seen,) = await cast(it)
    assert (seen.is_error, seen.result) == (True, "SystemExit: boom")


async def test_an_exit_while_a_result_is_read_is_an_error_observation():
    def results():
        yield 1
        sys.exit("boom")

    async def it() -> list[int]:
        return results()

    (seen,) = await cast(it)
    assert (seen.is_error, seen.result) == (True, "SystemExit: boom")


@pytest.mark.parametrize("error", [*EXITS, KeyError])
async def test_an_exception_of_a_parameters_validator_refuses_the_call(error):
    function, ran = raising(error, "blocking"), []

    async def it(
        x: Annotated[int, AfterValidator(lambda _: function())] = Field(1, validate_default=True),
    ) -> str:
        ran.append(x)
        return "ran"

    (seen,) = await cast(it)
    assert seen.is_error
    assert seen.result.startswith(f"it: checking its arguments raised {error.__name__}: ")
    assert not ran


@pytest.mark.parametrize("error", [*EXITS, KeyError])
async def test_an_exception_of_a_parameters_serializer_refuses_the_call_of_a_wrapped_gate(error):
    function = raising(error, "blocking")

    class Part(BaseModel):
        text: Annotated[str, PlainSerializer(lambda _: function())] = "boom"

    async def it(part: Part = Part()) -> str:  # noqa: B008  # pydantic copies a default
        return f"ran with {part.text}"

    (seen,) = await cast(wrap(gate(it), pre=[lambda call: None]))
    assert seen.is_error
    assert seen.result.startswith("it was not run: its arguments cannot be written as JSON: ")
    (seen,) = await cast(it)
    assert (seen.is_error, seen.result) == (False, "ran with boom")


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_an_exit_of_a_step_before_a_gate_refuses_the_call(error, kind):
    ran = []

    async def it() -> str:
        ran.append(1)
        return "ran"

    (seen,) = await cast(wrap(gate(it), pre=[raising(error, kind)]))
    assert seen.is_error
    assert f"before it failed: {error.__name__}: boom" in seen.result
    assert not ran


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_an_exit_of_a_step_after_a_gate_is_an_error_that_says_so(error, kind):
    async def it() -> str:
        return "ran"

    (seen,) = await cast(wrap(gate(it), post=[raising(error, kind)]))
    assert seen.is_error
    assert f"after it failed: {error.__name__}: boom" in seen.result


class Raises:
    """A crystal of a user's."""

    def __init__(self, error, kind):
        self.function = raising(error, kind)
        if kind == "blocking":
            self.invoke = self.invoke_blocking

    async def invoke(self, messages):
        return await self.function()

    def invoke_blocking(self, messages):
        return self.function()


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("kind", ["async", "blocking", "after a wait", "scripted", "scripted async"])
async def test_an_exit_that_a_crystal_raises_ends_the_cast_with_a_crystal_error(error, kind):
    ways = {"scripted": "blocking", "scripted async": "async"}
    crystal = scripted(raising(error, ways[kind])) if kind in ways else Raises(error, kind)
    with pytest.raises(CrystalError, match=f"crystal raised {error.__name__}: boom"):
        await cast(crystal=crystal)


async def test_an_interrupt_that_a_blocking_crystal_raises_is_a_crystal_error():
    with pytest.raises(CrystalError, match="crystal raised KeyboardInterrupt: boom"):
        await cast(crystal=Raises(KeyboardInterrupt, "blocking"))


async def test_a_runtime_continues_to_cast_after_an_exit():
    async with Runtime.open("memory:") as runtime:
        crystal = scripted(lambda _: sys.exit("boom"))
        circle = Circle(["done"], [max_turns(5)])
        for _ in range(3):
            with pytest.raises(CrystalError, match="SystemExit: boom"):
                await runtime.cast(Cantrip(crystal, circle=circle, retry=Retry(max_retries=0)), "go")
        assert (await runtime.cast(Cantrip(scripted([DONE]), circle=circle), "go")).result == "on"


PROGRAM = """
    import anyio, os, signal, sys
    from cantrip_actors import Cantrip, Circle, Runtime, scripted
    from cantrip_actors.wards import max_turns

    signal.signal(signal.SIGINT, signal.default_int_handler)  # these tests may run where it is ignored, as in nohup

    async def it() -> str:
        {body}

    async def main():
        async with Runtime.open("memory:") as runtime:
            crystal = scripted([{{"tool_calls": [{{"gate": "it", "args": {{}}}}]}}, "on"])
            await runtime.cast(Cantrip(crystal, circle=Circle(["done", it], [max_turns(5)])), "go")
            await anyio.sleep(30)
        print("came to its end")

    try:
        anyio.run(main, backend="{backend}")
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.real_time
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    "body",
    [
        "raise KeyboardInterrupt",
        "signal.raise_signal(signal.SIGINT); return 'x'",
        "os.kill(os.getpid(), signal.SIGINT); sum(range(3_000_000)); return 'x'",
    ],
    ids=["raised", "signal", "kill"],
)
def test_an_interrupt_in_the_main_thread_shuts_the_program_down(backend, body):
    program = textwrap.dedent(PROGRAM).format(body=body, backend=backend)
    with Forked(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, err = process.communicate(timeout=25)
    assert (out.strip().splitlines()[-1:], process.returncode) == (["interrupted"], 0), err[-2000:]


EXIT = """
    import anyio, sys
    from cantrip_actors import Cantrip, Circle, Runtime, scripted
    from cantrip_actors.wards import max_turns

    async def it() -> str:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)

    async def leave():
        await anyio.sleep(0)
        sys.exit(7)

    async def main():
        async with Runtime.open("memory:") as runtime:
            crystal = scripted([{"tool_calls": [{"gate": "it", "args": {}}]}, "on"])
            await runtime.cast(Cantrip(crystal, circle=Circle(["done", it], [max_turns(5)])), "go")

    anyio.run(main, backend="asyncio")
"""


@pytest.mark.real_time
@pytest.mark.rule("C-68")
def test_an_exit_in_a_task_group_of_a_gate_ends_the_program_under_asyncio():
    command = [sys.executable, "-c", textwrap.dedent(EXIT)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    assert ended.returncode == 7, ended.stderr[-2000:]
    assert ended.stderr.count("the event loop was closed before the actors were stopped") == 1
