"""Bounds on what an entity's work hands to its host: values, results, answers, arguments, errors, children, reads."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from cantrip_actors import Cantrip, Circle, InvalidIntent, Runtime, gate, scripted
from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.files import read
from cantrip_actors.circle.medium import Exceeded, Finished, ProgramLimits, Raised, medium
from cantrip_actors.circle.plain import plain
from cantrip_actors.terms.bounds import BYTES, RESULT_BYTES, VALUES, TooLarge
from cantrip_actors.user_code import text_of
from cantrip_actors.wards import max_children, max_compute, max_depth, max_turns
from tests.circle.heart import LATE, Hearts
from tests.circle.unhurried import unhurried
from tests.runtime.spells import done, say

SHARED = {
    "python": "[['x' * 1000] * 1000] * 300",
    "javascript": "Array(300).fill(Array(1000).fill('x'.repeat(1000)))",
}
LONG = {"python": "'x' * 9_000_000", "javascript": "'x'.repeat(9000000)"}
DEEP = {
    "python": "d = []\nfor n in range(500): d = [d]\n{use}",
    "javascript": "var d = []; for (var n = 0; n < 500; n++) d = [d]; {use}",
}


@gate
async def echo(value: Any) -> str:
    """Say nothing."""
    return "taken"


def opened(language: str) -> Any:
    return medium(language).open([echo.definition], ProgramLimits(seconds=20))


@pytest.mark.rule("X-01")
@pytest.mark.parametrize("language", ["python", "javascript"])
@pytest.mark.parametrize("what", [SHARED, LONG], ids=["shared", "long"])
@pytest.mark.parametrize("use", ["{}", "echo({})"], ids=["value", "argument"])
def test_a_value_over_its_bound_is_an_error_of_the_program(language: str, what: dict[str, str], use: str) -> None:
    box = opened(language)
    step = box.begin(use.format(what[language]))
    assert isinstance(step, Raised) or "Exceeded" in type(step).__name__, step
    assert len(str(step)) < 10_000
    assert isinstance(box.begin("1 + 1"), Finished)
    box.close()


@pytest.mark.rule("X-01")
@pytest.mark.parametrize("language", ["python", "javascript"])
def test_a_long_error_text_is_shortened(language: str) -> None:
    box = opened(language)
    code = {"python": "raise ValueError('x' * 3_000_000)", "javascript": "throw new Error('x'.repeat(3000000))"}
    step = box.begin(code[language])
    assert isinstance(step, Raised), step
    assert len(step.error) <= 1_100_000
    box.close()


@pytest.mark.rule("X-01")
@pytest.mark.parametrize("language", ["python", "javascript"])
def test_a_value_deeper_than_json_allows_is_an_error_of_the_program(language: str) -> None:
    box = opened(language)
    step = box.begin(DEEP[language].replace("{use}", "echo(d)"))
    assert isinstance(step, Raised), step
    step = box.begin(DEEP[language].replace("{use}", "d"))
    assert isinstance(step, (Finished, Raised))
    box.close()


def large(kind: str) -> Any:
    match kind:
        case "bytes":
            return "x" * (RESULT_BYTES + 1)
        case "shared":
            return [["x" * 1000] * 1000] * 300
        case "endless":
            return (n for n in iter(int, 1))
        case "deep":
            made: list[Any] = []
            for _ in range(500):
                made = [made]
            return made
        case _:
            return {"x" * 1000 + str(n): 1 for n in range(20_000)}


@pytest.mark.rule("X-01")
@pytest.mark.parametrize("kind", ["bytes", "shared", "endless", "deep", "keys"])
async def test_the_result_of_a_gate_over_its_bound_is_an_error_observation(kind: str) -> None:
    @gate
    async def give() -> Any:
        """Give much."""
        return large(kind)

    cantrip = Cantrip(scripted([say("give"), done("ok")]), circle=Circle(["done", give], [max_turns(4)]))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go")
    (seen,) = episode.thread[0].gate_calls
    assert seen.is_error
    assert "give returned" in seen.content
    assert len(seen.content) < 1_000
    assert episode.result == "ok"


@pytest.mark.rule("X-01")
@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_an_answer_over_its_bound_is_refused(language: str) -> None:
    code = f"done({SHARED[language]})"
    steps = [{"content": f"```{language}\n{code}\n```"}, {"content": f"```{language}\ndone('ok')\n```"}]
    cantrip = Cantrip(scripted(steps), circle=Circle(["done"], [max_turns(4)], medium=language))  # type: ignore[arg-type]
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go")
    assert episode.result == "ok"
    assert sum(len(turn.observation) for turn in episode.thread) < 10_000


def measure_peak(work: Callable[[], object]) -> int:
    """Return the most bytes that `work` needs at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.rule("X-01")
def test_a_snapshot_does_not_copy_unchanged_memory() -> None:
    box = medium("javascript").open([], ProgramLimits())
    box.begin("var zeros = new ArrayBuffer(40_000_000)")
    assert measure_peak(box.dump) < 2_000_000


@pytest.mark.rule("X-01")
@pytest.mark.parametrize("part", ["name", "message"])
def test_a_part_of_an_exception_over_its_bound_is_cut(part: str) -> None:
    step = opened("javascript").begin(f"const e = new Error(); e.{part} = 'x'.repeat(900_000); throw e")
    assert isinstance(step, Raised)
    assert len(step.error) < 11_000


class Text(str):
    """A text of another type."""

    __slots__ = ()


@pytest.mark.rule("X-01")
@pytest.mark.parametrize(
    "value",
    [
        pytest.param("é" * 40_000_000, id="text"),
        pytest.param(Text("é" * 40_000_000), id="subclass of str"),
        pytest.param({"é" * 40_000_000: 1}, id="key"),
        pytest.param(b"\xff" * 40_000_000, id="bytes"),
        pytest.param(1 << 320_000_000, id="number"),
    ],
)
def test_a_value_over_its_bound_is_refused_before_it_is_copied(value: object) -> None:
    def convert() -> None:
        with pytest.raises(TooLarge):
            plain(value)

    assert measure_peak(convert) < 1_000_000


@pytest.mark.rule("X-01")
def test_a_long_message_is_cut_before_it_is_copied() -> None:
    error = ValueError("é" * 40_000_000)
    assert measure_peak(lambda: text_of(error)) < 1_000_000


@pytest.mark.rule("X-01")
@pytest.mark.parametrize("gate", ["done", "echo"])
@pytest.mark.parametrize("value", ["x" * 50_000_000, ["x"] * 300_000], ids=["bytes", "values"])
async def test_arguments_of_a_tool_call_have_the_bounds_of_a_programs(gate: str, value: Any) -> None:
    name = "answer" if gate == "done" else "value"
    cantrip = Cantrip(scripted([say(gate, **{name: value}), done("ok")]), circle=Circle(["done", echo], [max_turns(4)]))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go")
    (seen,) = episode.thread[0].gate_calls
    assert seen.is_error
    assert f"{gate}: its arguments are more than" in seen.content
    assert len(seen.content) < 1_000
    assert episode.result == "ok"


@pytest.mark.rule("X-01")
@pytest.mark.parametrize(
    "more",
    [{f"k{n}": n for n in range(200_001)}, {f"k{n}": "\0" * 60_000 for n in range(24)}],
    ids=["values", "bytes"],
)
async def test_flat_arguments_have_bounds_on_all_of_them(more: dict[str, Any]) -> None:
    @gate
    async def take(**more: Any) -> str:
        """Take all that is given."""
        return f"{len(more)} taken"

    cantrip = Cantrip(scripted([say("take", **more), done("ok")]), circle=Circle(["done", take], [max_turns(4)]))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go")
    (seen,) = episode.thread[0].gate_calls
    assert seen.is_error
    assert "take: its arguments are more than" in seen.content


@pytest.mark.rule("X-01")
@pytest.mark.parametrize("levels", [100, 102])
def test_a_value_of_a_javascript_program_has_at_most_a_hundred_levels(levels: int) -> None:
    box = opened("javascript")
    nested = f"JSON.parse('{'[' * levels}{']' * levels}')"
    argument, value = box.begin(f"echo({nested})"), box.begin(nested)
    box.close()
    assert ("Raised" in str(argument)) == (levels > 101)
    assert ("nested more than 100 levels deep" in str(value)) == (levels > 101)


@pytest.mark.rule("X-01")
@pytest.mark.real_time
@pytest.mark.skipif(sys.platform != "linux", reason="no shell here")
async def test_arguments_of_a_shells_command_that_nest_too_deeply_are_refused() -> None:
    steps = [{"code": f"gate_echo '{'[' * 900}{']' * 900}' || echo caught"}, {"code": "done ok"}]
    circle = Circle(["done", echo], [max_turns(4)], medium="shell")
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(scripted(steps), circle=circle), "go")
    assert "nested more than 100 levels deep\\ncaught" in episode.thread[0].observation
    assert episode.result == "ok"


# Values that take for ever to be made: the hash of a tuple that shares its parts doubles with each level

NESTED = "t = (1,)\nfor i in range(50):\n    t = (t, t)\n"
HASHES = pytest.mark.skipif(sys.version_info >= (3, 14), reason="a tuple keeps its hash: such a value is soon made")
FOR_EVER = {
    "value": "{t: 1}",
    "member": "[{t}]",
    "argument": "echo({t: 1})",
    "caught": "try:\n    echo({t: 1})\nexcept BaseException:\n    pass",
    "exception": "{}[t]",
}


@pytest.mark.rule("X-01")
@pytest.mark.real_time
@pytest.mark.parametrize("what", FOR_EVER)
@HASHES
def test_a_python_value_that_never_finishes_ends_only_its_program(what: str) -> None:
    limits = ProgramLimits(seconds=0.2)
    box = medium("python").open([echo.definition], limits)
    assert unhurried(box, "kept = 1") == Finished(None)
    ended = box.begin(f"kept = 2\n{NESTED}{FOR_EVER[what]}")
    # an exception is written out in the sandbox, where it may also run out of memory first
    assert ended in [Exceeded(limits.describe(one)) for one in ("seconds", "memory")[: 1 + (what == "exception")]]
    assert unhurried(box, "kept") == Finished(1)


@pytest.mark.rule("X-01")
@pytest.mark.real_time
@HASHES
async def test_an_answer_that_never_finishes_is_refused() -> None:
    steps = [{"code": f"{NESTED}done({{t: 1}})"}, {"code": "done('ok')"}]
    circle = Circle(["done"], [max_turns(4), max_compute(0.2)], medium="python")
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(scripted(steps), circle=circle), "go")
    assert episode.result == "ok"
    assert "0.2 s of computing" in episode.thread[0].observation


@pytest.mark.rule("X-01")
@pytest.mark.real_time
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one program computes at a time")
@HASHES
async def test_the_loop_and_other_programs_continue_while_a_python_value_never_finishes() -> None:
    late: list[float] = []
    with Hearts() as hearts:
        while not late or (late[-1] > LATE and len(late) < 8):
            late.append(await hearts.late_by(compute_beside))
    assert late[-1] <= LATE, late


async def compute_beside() -> None:
    """Let one program hand out what takes for ever, and another one take steps until that has ended."""
    stuck = medium("python").open([], ProgramLimits(seconds=1))
    other = medium("python").open([], ProgramLimits(seconds=20))
    steps = 0
    ended: list[Any] = []

    async def hang() -> None:
        ended.append(await to_thread.run_sync(stuck.begin, f"{NESTED}print('made')\n{{t: 1}}"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hang)
        while not ended:
            step = await to_thread.run_sync(partial(other.begin, f"x = {steps}\nx"))
            assert step == Finished(steps)
            steps += not ended
    assert ended == [Exceeded("1 s of computing", "made\n")]
    assert steps >= 1


MEASURE = """
import resource, sys
from cantrip_actors.circle.medium import ProgramLimits, medium
box = medium("python").open([], ProgramLimits(seconds=20))
box.begin("1")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for code in sys.argv[1:]:
    box.begin(code)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.rule("X-01")
@pytest.mark.real_time
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the unit is another one")
def test_the_memory_of_the_host_rises_by_no_more_than_twice_the_bound() -> None:
    codes = [
        SHARED["python"],
        "'x' * 30_000_000",
        "a = ['x' * 1000] * 10000\n[a] * 1000",
        "[[]] * 3_000_000",
        "[1.5] * 4_000_000",
    ]
    done = subprocess.run([sys.executable, "-c", MEASURE, *codes], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 <= 2 * BYTES


def test_the_bounds_match_the_documentation() -> None:
    assert (BYTES, VALUES, RESULT_BYTES) == (8 << 20, 200_000, 16 << 20)


# Children


def parent(*steps: Any, wards: tuple[Any, ...] = ()) -> Cantrip:
    child = scripted(lambda _: done("hi"))
    crystal = scripted([*steps, done("ok")])
    gates = ["done", "call_agent", "call_agent_batch"]
    return Cantrip(crystal, child_crystal=child, circle=Circle(gates, [max_turns(9), max_depth(1), *wards]))


@pytest.mark.rule("X-06")
@pytest.mark.parametrize("count", [1_001, 10_001])
async def test_a_batch_of_too_many_children_starts_none(count: int) -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(parent(say("call_agent_batch", intents=["hello"] * count)), "go")
        (seen,) = episode.thread[0].gate_calls
        assert seen.is_error
        assert f"expected at most 1,000 requests, got {count:,}" in seen.content
        assert len(runtime.loom.entities()) == 1


@pytest.mark.rule("X-06", "COMP-3")
@pytest.mark.parametrize("value", ["x" * 6_000_000, [1] * 190_000], ids=["bytes", "values"])
async def test_results_of_a_batch_have_the_bound_of_one_result(value: Any) -> None:
    fits = 2 if isinstance(value, str) else 5

    @gate
    async def wait(seconds: float) -> str:
        """Wait."""
        await anyio.sleep(seconds)
        return "waited"

    def answer(invocation: Any) -> Any:  # the later a child was asked for, the earlier it ends
        said = invocation.messages[-1]
        return done(value) if said.role == "tool" else say("wait", seconds=10 - int(said.content))

    crystal = scripted([say("call_agent_batch", intents=[str(n) for n in range(8)]), done("ok")])
    circle = Circle(["done", "call_agent_batch", wait], [max_turns(9), max_depth(1)])
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(crystal, child_crystal=scripted(answer), circle=circle), "go")
        assert len(runtime.loom.entities()) == 9
    (seen,) = [turn.gate_calls[0] for turn in episode.thread if turn.gate_calls][:1]
    assert not seen.is_error
    assert [one == value for one in seen.result] == [n < fits for n in range(8)]
    for one in seen.result[fits:]:
        assert one["is_error"]
        assert "the answers of this batch exceed what one call may return" in one["error"]


@pytest.mark.rule("X-06")
async def test_children_count_over_the_life_of_an_entity() -> None:
    batch = say("call_agent_batch", intents=["a", "b"])
    async with Runtime.open() as runtime:
        cantrip = parent(batch, batch, say("call_agent", intent="c"), wards=(max_children(3), max_children(9)))
        episode = await runtime.cast(cantrip, "go")
        turns = [turn for turn in episode.thread if turn.gate_calls]
        assert [turn.gate_calls[0].is_error for turn in turns[:3]] == [False, True, False]
        assert "may have 3 children (max_children), it had 2" in turns[1].gate_calls[0].content
        assert len(runtime.loom.entities()) == 4


@pytest.mark.rule("X-06")
async def test_the_count_survives_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    one = say("call_agent", intent="c")
    async with Runtime.open(url) as runtime:
        first = await runtime.invoke(parent(one, wards=(max_children(1),)), "go", name="x")
        await first.episode()
    async with Runtime.open(url) as runtime:
        again = runtime.entity("x", cantrip=parent(one, wards=(max_children(1),)))
        assert again is not None
        episode = await again.send("go")
    assert "may have 1 children" in episode.thread[-2].gate_calls[0].content


# Reads, contexts


@pytest.mark.rule("X-06")
@pytest.mark.parametrize("where", [{"offset": 10**9}, {"column": 10**12}, {"offset": 2, "column": 10**12}])
def test_a_read_far_into_a_sparse_file_is_bounded_by_work(tmp_path: Path, where: dict[str, int]) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"text\n" * 4096)
        file.truncate(20_000_000_000)
    with pytest.raises(GateError, match="beyond the first 64,000,000 bytes"):
        read(root=tmp_path, path="sparse", **where)
    assert str(read(root=tmp_path, path="sparse", limit=1)).startswith("text\n")


@pytest.mark.rule("X-06")
async def test_a_context_of_fifty_megabytes_is_refused_before_the_cast() -> None:
    async with Runtime.open() as runtime:
        for context in ("x" * 50_000_000, {"data": ["x" * 1000] * 50_000}):
            with pytest.raises(InvalidIntent, match="expected at most 16,777,216"):
                await runtime.cast(parent(), "go", context=context)
        assert runtime.loom.entities() == []
