"""The contract of every medium: tests to inherit, and a table of snippets for the language.

    class TestPython(MediumContract):
        language = PYTHON

`Language` names what a snippet does; its text is the language's. A medium that cannot make an image of a suspended
program says so with `has_images=False`, and those tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from anyio import to_thread

from cantrip_actors.circle.medium import (
    CLOSED,
    Answer,
    Exceeded,
    Finished,
    Medium,
    ProgramLimits,
    Raised,
    Sandbox,
    Stepped,
    Suspended,
)
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.own_gates import CALL_AGENT

ROOT = Path(__file__).parent.parent.parent
SHORT = ProgramLimits(seconds=0.3, output=1_000, gate_calls=20)
SECRET = "canary-6f1d"


@dataclass(frozen=True)
class Language:
    """A medium and what the contract's programs look like in its language."""

    name: str
    """Of the object in `module`, for another process to find it."""
    module: str
    make: Callable[[], Medium]
    assign: str
    """x becomes 41"""
    read: str
    """... and x + 1 is the value"""
    statement: str
    """without a value"""
    printing: str
    """prints hello, then again, a line each"""
    call: str
    """search for "notes", with the limit 3, by position; the value is the answer"""
    call_by_name: str
    """the same, by name, and the limit left out"""
    call_twice: str
    """prints one, searches for "a", prints two, searches for "b"; the value is a list of both answers"""
    catching: str
    """searches, and the value is the text of what it catches"""
    adding: str
    """a function in a function adds the answers of three searches to x; the value is the sum"""
    wrong_call: str
    """search with too many arguments; the value is whether that raised"""
    raising: str
    """sets y to 5, and on the second line raises "bad luck" """
    broken: str
    """cannot be parsed"""
    read_y: str
    unknown: str
    """calls nope, which is nothing"""
    replace_gate: str
    """gives the name search to something else"""
    odd: str
    """the value is a function, or something else that is no JSON"""
    spin: str
    """sets x to 13, then never ends"""
    spin_and_catch: str
    """catches whatever can be caught, and never ends"""
    spin_after_call: str
    """sets x to 13, searches, then never ends"""
    hog: str
    """uses up all memory"""
    recurse: str
    """calls itself"""
    flood: str
    """prints 100,000 characters"""
    calls: str
    """searches 1,000 times"""
    done_then_more: str
    """before = 1; done("the answer"); after = 2; searches and keeps what it catches in seen"""
    read_after: str
    """the list of before, after and seen"""
    read_given: str
    """the value of data["names"][1]"""
    delegate: str
    """call_agent with the intent "go deeper" and returns the answer"""
    look_around: str
    """the value is as much of the environment as the language knows words for, or an exception"""
    has_images: bool = True


@gate
async def search(query: str, limit: int = 5) -> list[str]:
    """Search the notes."""
    raise AssertionError("the contract answers itself")


GATES = [one.definition for one in (search, CALL_AGENT, DONE)]


def fresh(language: Language, limits: ProgramLimits = SHORT) -> Sandbox:
    return language.make().open(GATES, limits)


def suspended(step: Stepped) -> Suspended:
    assert isinstance(step, Suspended), step
    return step


def finished(step: Stepped) -> Any:
    assert isinstance(step, Finished), step
    return step.value


async def run(
    sandbox: Sandbox, code: str, gates: Mapping[str, Callable[..., Awaitable[Any]]], limiter: anyio.CapacityLimiter
) -> Stepped:
    """A turn as the runtime drives it: steps in threads, gates on the loop."""
    step = await to_thread.run_sync(sandbox.begin, code, limiter=limiter)
    while isinstance(step, Suspended):
        value = await gates[step.gate](**step.args)
        step = await to_thread.run_sync(sandbox.answer, step, Answer(value), limiter=limiter)
    return step


class MediumContract:
    """Inherit it, and set `language`."""

    language: ClassVar[Language]

    # ------------------------------------------------------------------------------------------------- what is said

    def test_the_engine_is_named_with_its_version(self):
        assert any(letter.isdigit() for letter in self.language.make().engine)

    def test_the_capability_text_has_gates_and_limits(self):
        text = self.language.make().capability(GATES, ProgramLimits(seconds=7, gate_calls=33))
        for word in ("search", "query", "limit", "Search the notes.", "call_agent", "done", "submit_answer", "7", "33"):
            assert word in text
        assert len(text) < 6_000

    # --------------------------------------------------------------------------------------------- values, variables

    @pytest.mark.rule("CIRCLE-9")
    def test_variables_persist_from_turn_to_turn(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        assert finished(sandbox.begin(self.language.read)) == 42

    def test_a_program_without_a_value_evaluates_to_none(self):
        assert finished(fresh(self.language).begin(self.language.statement)) is None

    def test_output_is_returned_with_the_step(self):
        step = fresh(self.language).begin(self.language.printing)
        assert isinstance(step, Finished)
        assert step.output == "hello\nagain\n"

    def test_a_value_that_is_not_json_is_rendered_as_text(self):
        json.dumps(finished(fresh(self.language).begin(self.language.odd)))

    def test_variables_can_be_given(self):
        sandbox = fresh(self.language)
        data = {"data": {"names": ["Ann", "Bo — 東"], "more": None}}
        assert finished(sandbox.begin(self.language.read_given, data)) == "Bo — 東"
        assert finished(sandbox.begin(self.language.read_given)) == "Bo — 東"

    def test_sandboxes_are_isolated_from_each_other(self):
        one, other = fresh(self.language), fresh(self.language)
        one.begin(self.language.assign)
        assert isinstance(other.begin(self.language.read), Raised)

    # ---------------------------------------------------------------------------------------------------------- gates

    @pytest.mark.rule("CIRCLE-3")
    def test_a_call_suspends_the_program_until_it_is_answered(self):
        sandbox = fresh(self.language)
        step = suspended(sandbox.begin(self.language.call))
        assert (step.gate, dict(step.args)) == ("search", {"query": "notes", "limit": 3})
        assert finished(sandbox.answer(step, Answer(["a", {"b": 1.5}]))) == ["a", {"b": 1.5}]

    def test_arguments_can_be_passed_by_name(self):
        step = suspended(fresh(self.language).begin(self.language.call_by_name))
        assert dict(step.args) == {"query": "notes"}

    @pytest.mark.rule("CIRCLE-7")
    def test_calls_suspend_one_by_one_with_the_output_since_the_last(self):
        sandbox = fresh(self.language)
        first = suspended(sandbox.begin(self.language.call_twice))
        second = suspended(sandbox.answer(first, Answer(1)))
        assert [first.output, second.output] == ["one\n", "two\n"]
        assert [first.args["query"], second.args["query"]] == ["a", "b"]
        assert finished(sandbox.answer(second, Answer(2))) == [1, 2]

    @pytest.mark.parametrize("value", [None, True, 0, -3, 2.5, "", "text — 東\n", [], [[1], []], {"a": {"b": [None]}}])
    def test_every_json_value_crosses(self, value: Any):
        sandbox = fresh(self.language)
        assert finished(sandbox.answer(suspended(sandbox.begin(self.language.call)), Answer(value))) == value

    @pytest.mark.rule("CIRCLE-5")
    def test_a_gates_failure_can_be_caught_with_its_text(self):
        sandbox = fresh(self.language)
        step = sandbox.answer(
            suspended(sandbox.begin(self.language.catching)), Answer("ValueError: no such note", True)
        )
        assert finished(step) == "ValueError: no such note"

    @pytest.mark.rule("CIRCLE-5")
    def test_a_gates_failure_that_is_not_caught_ends_the_program(self):
        sandbox = fresh(self.language)
        step = sandbox.answer(suspended(sandbox.begin(self.language.call)), Answer("no such note", True))
        assert isinstance(step, Raised)
        assert "no such note" in step.error

    def test_arguments_without_a_matching_name_raise_in_the_program(self):
        assert finished(fresh(self.language).begin(self.language.wrong_call)) is True

    def test_an_unknown_gate_cannot_be_called(self):
        step = fresh(self.language).begin(self.language.unknown)
        assert isinstance(step, Raised)
        assert "nope" in step.error

    @pytest.mark.rule("CIRCLE-3")
    def test_a_gate_that_a_program_replaced_is_back_in_the_next_program(self):
        sandbox = fresh(self.language)
        assert isinstance(sandbox.begin(self.language.replace_gate), Finished)
        assert suspended(sandbox.begin(self.language.call)).gate == "search"

    @pytest.mark.rule("D-003")
    def test_after_done_the_program_runs_to_its_end_without_gates(self):
        sandbox = fresh(self.language)
        step = suspended(sandbox.begin(self.language.done_then_more))
        assert (step.gate, dict(step.args)) == ("done", {"answer": "the answer"})
        assert isinstance(sandbox.answer(step, Answer(None, closed=True)), Finished)
        before, after, seen = finished(sandbox.begin(self.language.read_after))
        assert (before, after) == (1, 2)
        assert CLOSED in seen

    @pytest.mark.rule("D-003")
    def test_submit_answer_is_done(self):
        sandbox = fresh(self.language)
        step = suspended(sandbox.begin(self.language.done_then_more.replace("done(", "submit_answer(")))
        assert (step.gate, dict(step.args)) == ("done", {"answer": "the answer"})

    # --------------------------------------------------------------------------------------------- exceptions, limits

    def test_changes_before_an_exception_are_kept(self):
        sandbox = fresh(self.language)
        step = sandbox.begin(self.language.raising)
        assert isinstance(step, Raised)
        assert "bad luck" in step.error
        assert "2" in step.error.replace("bad luck", "")  # the line
        assert finished(sandbox.begin(self.language.read_y)) == 5

    def test_code_that_cannot_be_parsed_raises(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        assert isinstance(sandbox.begin(self.language.broken), Raised)
        assert finished(sandbox.begin(self.language.read)) == 42

    @pytest.mark.parametrize(
        ("what", "limit"),
        [
            ("spin", SHORT.describe("seconds")),
            ("spin_and_catch", SHORT.describe("seconds")),
            ("hog", SHORT.describe("memory")),
            ("recurse", SHORT.describe("recursion")),
        ],
    )
    def test_a_limit_undoes_the_turn(self, what: str, limit: str):
        # a machine that is busy needs longer to fill the memory, and that has to be the limit that ends it
        limits = replace(SHORT, seconds=30.0) if what == "hog" else SHORT
        sandbox = fresh(self.language, limits)
        sandbox.begin(self.language.assign)
        started = time.monotonic()
        step = sandbox.begin(getattr(self.language, what))
        assert isinstance(step, Exceeded), step
        assert step.limit == limit
        assert time.monotonic() - started < limits.seconds + 2.7
        assert finished(sandbox.begin(self.language.read)) == 42

    def test_a_limit_after_a_gate_undoes_the_whole_turn(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        step = sandbox.answer(suspended(sandbox.begin(self.language.spin_after_call)), Answer("ok"))
        assert isinstance(step, Exceeded)
        assert finished(sandbox.begin(self.language.read)) == 42

    def test_gate_calls_are_counted_over_the_whole_turn(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        step = sandbox.begin(self.language.calls)
        answered = 0
        while isinstance(step, Suspended):
            step = sandbox.answer(step, Answer("ok"))
            answered += 1
        assert step == Exceeded(SHORT.describe("gate_calls"))
        assert answered == SHORT.gate_calls
        assert finished(sandbox.begin(self.language.read)) == 42

    def test_long_output_is_cut_with_a_note(self):
        step = fresh(self.language).begin(self.language.flood)
        assert len(step.output) < SHORT.output + 100
        assert "cut" in step.output

    def test_a_step_can_be_interrupted_from_another_thread(self):
        sandbox = fresh(self.language, replace(SHORT, seconds=30))
        sandbox.begin(self.language.assign)
        timer = threading.Timer(0.3, sandbox.interrupt)
        timer.start()
        started = time.monotonic()
        step = sandbox.begin(self.language.spin)
        timer.join()
        assert step == Exceeded(SHORT.describe("interrupted"))
        assert time.monotonic() - started < 5
        assert finished(sandbox.begin(self.language.read)) == 42

    def test_interrupting_an_idle_sandbox_does_nothing(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        sandbox.interrupt()
        assert finished(sandbox.begin(self.language.read)) == 42

    # --------------------------------------------------------------------------------------------------------- images

    @pytest.mark.rule("CIRCLE-9")
    def test_a_sandbox_is_restored_from_its_snapshot(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        image = sandbox.dump()
        if image is None:
            pytest.skip("this medium replays")
        for _ in range(2):
            other = fresh(self.language)
            other.load(image)
            assert finished(other.begin(self.language.read)) == 42

    def test_an_empty_sandbox_is_restored_from_its_snapshot(self):
        image = fresh(self.language).dump()
        if image is None:
            pytest.skip("this medium replays")
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        sandbox.load(image)
        assert isinstance(sandbox.begin(self.language.read), Raised)

    def test_a_snapshot_of_another_engine_is_refused(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        image = sandbox.dump()
        if image is None:
            pytest.skip("this medium replays")
        engine = self.language.make().engine.encode()
        assert engine in image
        for wrong in (image.replace(engine, b"another 0.0"), b"", b"rubbish", b'{"engine": 1}\n'):
            with pytest.raises(ValueError):
                sandbox.load(wrong)
        assert finished(sandbox.begin(self.language.read)) == 42

    def test_the_two_kinds_of_snapshot_are_not_mistaken_for_each_other(self):
        sandbox = fresh(self.language)
        image = self._image_of(suspended(sandbox.begin(self.language.call)))
        with pytest.raises(ValueError):
            sandbox.load(image)
        idle = sandbox.dump()
        assert idle is not None
        with pytest.raises(ValueError):
            sandbox.resume(idle)

    def test_a_suspension_can_be_answered_twice(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        step = suspended(sandbox.begin(self.language.call))
        self._image_of(step)
        assert finished(sandbox.answer(step, Answer("left"))) == "left"
        assert finished(sandbox.answer(step, Answer("right"))) == "right"

    def test_a_fork_is_independent_of_its_origin(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        before = sandbox.dump()
        step = suspended(sandbox.begin(self.language.adding))
        image = self._image_of(step)
        sums = []
        for add in (1, 10):
            fork = fresh(self.language)
            fork.load(before or b"")
            fork_step: Stepped = fork.resume(image)
            while isinstance(fork_step, Suspended):
                fork_step = fork.answer(fork_step, Answer(add))
            sums.append(finished(fork_step))
        assert sums == [44, 71]

    def test_a_program_resumes_in_another_process(self, tmp_path: Path):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        before = sandbox.dump()
        step = suspended(sandbox.begin(self.language.adding))
        step = suspended(sandbox.answer(step, Answer(1)))
        (tmp_path / "before").write_bytes(before or b"")
        (tmp_path / "image").write_bytes(self._image_of(step))
        elsewhere = subprocess.run(
            [sys.executable, __file__, self.language.module, self.language.name, str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )
        assert elsewhere.returncode == 0, elsewhere.stderr
        here: Stepped = step
        while isinstance(here, Suspended):
            here = sandbox.answer(here, Answer(1))
        assert json.loads(elsewhere.stdout) == [dict(step.args), finished(here), 44]

    def test_a_limit_after_a_resume_rolls_back_to_the_loaded_state(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        before, step = sandbox.dump(), suspended(sandbox.begin(self.language.spin_after_call))
        other = fresh(self.language)
        image = self._image_of(step)
        other.load(before or b"")
        assert isinstance(other.answer(other.resume(image), Answer("ok")), Exceeded)
        assert finished(other.begin(self.language.read)) == 42

    def _image_of(self, step: Suspended) -> bytes:
        if step.image is None or not self.language.has_images:
            pytest.skip("this medium replays")
        return step.image

    # ------------------------------------------------------------------------------------------------- among others

    @pytest.mark.real_time
    @pytest.mark.rule("COMP-2")
    async def test_programs_nest_twenty_deep_on_two_threads(self):
        limiter = anyio.CapacityLimiter(2)
        deepest = 0

        async def call_agent(depth: int, intent: str) -> Any:
            nonlocal deepest
            deepest = max(deepest, depth)
            if depth == 20:
                return "the bottom"
            gates = {"call_agent": partial(call_agent, depth + 1)}
            child = fresh(self.language, replace(SHORT, seconds=5))
            return finished(await run(child, self.language.delegate, gates, limiter))

        with anyio.fail_after(60):
            assert await call_agent(0, "begin") == "the bottom"
        assert deepest == 20

    @pytest.mark.real_time
    @pytest.mark.rule("C-67")
    async def test_suspended_programs_hold_no_thread(self):
        limiter = anyio.CapacityLimiter(2)
        released = anyio.Event()
        waiting = 0
        threads = threading.active_count()

        async def wait(query: str, limit: int) -> str:
            nonlocal waiting
            waiting += 1
            await released.wait()
            return query

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(run, fresh(self.language), self.language.call, {"search": wait}, limiter)
            with anyio.fail_after(60):
                while waiting < 50:
                    await anyio.sleep(0.01)
            assert threading.active_count() <= threads + 4  # trio has one more until the last one is back
            released.set()

    # -------------------------------------------------------------------------------------------------------- secrets

    def test_a_program_cannot_see_the_hosts_environment(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("CANTRIP_CANARY", SECRET)
        sandbox = fresh(self.language)
        step = sandbox.begin(self.language.look_around)
        assert SECRET not in repr(step)
        assert SECRET.encode() not in (sandbox.dump() or b"")

    def test_closing_discards_the_state(self):
        sandbox = fresh(self.language)
        sandbox.begin(self.language.assign)
        sandbox.close()
        sandbox.close()


def _elsewhere(module: str, name: str, folder: str) -> None:
    """The other process: take up what lies in `folder`, and print what it waited for, its value, and the x it left."""
    language: Language = getattr(import_module(module), name)
    sandbox = fresh(language)
    sandbox.load(Path(folder, "before").read_bytes())
    resumed = sandbox.resume(Path(folder, "image").read_bytes())
    step: Stepped = resumed
    while isinstance(step, Suspended):
        step = sandbox.answer(step, Answer(1))
    sys.stdout.write(json.dumps([dict(resumed.args), finished(step), finished(sandbox.begin(language.read)) - 1]))


if __name__ == "__main__":
    from tests.circle import medium_contract  # the same module under the name that the languages know it by

    medium_contract._elsewhere(*sys.argv[1:])
