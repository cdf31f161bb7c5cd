"""Wrapped gates at work: steps before and after, in order, in the tree."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, GateCall, Observation, Refused, Runtime, ask_first, gate, scripted, wrap
from cantrip_actors.gates import GateError, write
from cantrip_actors.wards import max_turns
from tests.runtime.spells import cantrip, done, say


class Trail:
    """A gate and steps that leave a trail."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def gate(self) -> Any:
        @gate
        async def press(key: str, times: int = 1) -> str:
            """Press a key."""
            self.left.append(f"press {key}")
            if key == "broken":
                raise GateError("the key is broken")
            return f"pressed {key}"

        return press

    def before(self, name: str, refuses: str | None = None) -> Any:
        async def step(call: GateCall) -> Refused | None:
            self.left.append(name)
            await anyio.lowlevel.checkpoint()
            return None if refuses is None else Refused(refuses)

        return step

    def after(self, name: str, says: Any = None) -> Any:
        def step(call: GateCall, seen: Observation) -> Any:
            self.left.append(name)
            return says

        return step


async def observed(*gates: Any, key: str = "a") -> Observation:
    """Return the observation of one press."""
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip([say("press", key=key), done("ok")], *gates), "go")
        assert episode.result == "ok"
        return episode.thread[0].gate_calls[0]


@pytest.mark.rule("F-41")
async def test_steps_and_wrappers_run_in_order_around_one_gate_call() -> None:
    trail = Trail()
    seen = await observed(
        trail.gate(),
        wrap("press", pre=[trail.before("in 1"), trail.before("in 2")], post=[trail.after("in 3")]),
        wrap("press", pre=[trail.before("out 1")], post=[trail.after("out 2")]),
    )
    assert trail.left == ["out 1", "in 1", "in 2", "press a", "in 3", "out 2"]
    assert (seen.result, seen.is_error) == ("pressed a", False)


@pytest.mark.rule("F-41", "F-20")
async def test_a_refused_gate_does_not_run_and_the_entity_continues() -> None:
    trail = Trail()
    seen = await observed(
        trail.gate(),
        wrap("press", pre=[trail.before("in", refuses="not this key")], post=[trail.after("never")]),
        wrap("press", pre=[trail.before("out")], post=[trail.after("looked")]),
    )
    assert trail.left == ["out", "in", "looked"]
    assert (seen.result, seen.is_error) == ("not this key", True)


@pytest.mark.rule("F-43")
async def test_a_pre_step_that_raises_blocks_the_gate() -> None:
    trail = Trail()

    def broken(call: GateCall) -> None:
        raise ZeroDivisionError("oh")

    seen = await observed(trail.gate(), wrap("press", pre=[broken]))
    assert trail.left == []
    assert seen.is_error
    assert seen.result == "press was not run: the step broken before it failed: ZeroDivisionError: oh"


@pytest.mark.rule("F-43")
async def test_a_pre_step_that_returns_an_unexpected_value_blocks_the_gate() -> None:
    trail = Trail()
    seen = await observed(trail.gate(), wrap("press", pre=[lambda call: True]))
    assert trail.left == []
    assert "it returned True; expected None or Refused" in seen.result


@pytest.mark.rule("F-43")
async def test_a_post_step_that_raises_is_an_error_that_says_that_the_gate_ran() -> None:
    trail = Trail()

    def broken(call: GateCall, seen: Observation) -> None:
        raise ZeroDivisionError("oh")

    seen = await observed(trail.gate(), wrap("press", post=[broken]))
    assert trail.left == ["press a"]
    assert seen.is_error
    assert seen.result.startswith("press did run, but the step broken after it failed: ZeroDivisionError: oh")
    assert seen.result.endswith("what press gave: pressed a")


@pytest.mark.rule("F-43")
async def test_a_post_step_cannot_turn_an_error_into_a_success() -> None:
    trail = Trail()
    seen = await observed(trail.gate(), wrap("press", post=[trail.after("x", says="all is well")]), key="broken")
    assert seen.is_error
    assert seen.result == "the key is broken\n[all is well]"


@pytest.mark.rule("F-41")
async def test_a_post_step_can_refuse_a_result_or_add_a_remark() -> None:
    trail = Trail()
    refused = await observed(trail.gate(), wrap("press", post=[trail.after("x", says=Refused("not like this"))]))
    assert (refused.is_error, refused.result) == (True, "not like this\nwhat press gave: pressed a")
    remarked = await observed(trail.gate(), wrap("press", post=[trail.after("x", says="one"), trail.after("y", "two")]))
    assert (remarked.is_error, remarked.result) == (False, "pressed a\n[one]\n[two]")


async def test_a_remark_is_added_to_a_result_that_is_not_a_string() -> None:
    @gate
    async def press(key: str) -> dict[str, str]:
        return {"key": key}

    trail = Trail()
    seen = await observed(press, wrap("press", post=[trail.after("x", says="one"), trail.after("y", says="two")]))
    assert seen.result == {"result": {"key": "a"}, "remarks": ["one", "two"]}


@pytest.mark.rule("F-41")
async def test_a_step_cannot_change_the_arguments_of_the_gate() -> None:
    got: list[Any] = []

    @gate
    async def press(keys: list[str]) -> str:
        got.extend(keys)
        return "ok"

    def meddles(call: GateCall) -> None:
        call.args["keys"].append("z")

    async with Runtime.open() as runtime:
        wrapped = cantrip([say("press", keys=["a"]), done("ok")], press, wrap("press", pre=[meddles]))
        await runtime.cast(wrapped, "go")
    assert got == ["a"]


async def test_steps_and_gates_get_the_gate_call() -> None:
    told: list[GateCall] = []

    @gate
    async def press(key: str, call: GateCall) -> str:
        told.append(call)
        return "ok"

    def step(call: GateCall) -> None:
        told.append(call)

    async with Runtime.open() as runtime:
        made = cantrip([say("press", key="a"), done("ok")], press, wrap("press", pre=[step]))
        episode = await runtime.cast(made, "go")
    assert told[0] == told[1]
    assert (told[0].gate, dict(told[0].args)) == ("press", {"key": "a"})
    assert (told[0].entity_id, told[0].turn_id) == (episode.entity_id, episode.thread[0].id)
    assert told[0].call_id == episode.thread[0].tool_calls[0].id


@pytest.mark.rule("F-44", "F-45")
async def test_a_child_cannot_remove_the_wrappers_of_its_parents_gate(tmp_path: Path) -> None:
    def only_notes(call: GateCall) -> Refused | None:
        return None if call.args["path"].endswith(".md") else Refused("only notes may be written")

    def child(context: Any) -> Any:
        last = context[-1]
        return done(last.content) if last.role == "tool" else say("write", path="evil.sh", content="x")

    circle = Circle(["done", "call_agent", write.with_(root=tmp_path), wrap("write", pre=[only_notes])], [max_turns(9)])
    parent = scripted([say("call_agent", intent="write it", gates=["write"]), done("ok")])
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(parent, circle=circle, child_crystal=scripted(child)), "go")
    assert episode.thread[1].gate_calls[0].result == "only notes may be written"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("F-45")
async def test_a_gate_called_by_a_program_runs_the_same_steps() -> None:
    trail = Trail()
    circle = Circle(
        ["done", trail.gate(), wrap("press", pre=[trail.before("x", refuses="not this key")])],
        [max_turns(4)],
        medium="python",
    )
    code = "try:\n    press(key='a')\nexcept Exception as e:\n    done(answer=str(e))"
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(scripted([{"code": code}]), circle=circle), "go")
    assert "not this key" in episode.result
    assert trail.left == ["x"]


@pytest.mark.rule("F-21", "F-01")
async def test_done_and_call_agent_are_wrapped_like_any_gate() -> None:
    answers: list[object] = []

    def whole(call: GateCall) -> Refused | None:
        answers.append(call.args["answer"])
        return None if call.args["answer"] == "whole" else Refused("the answer is not whole")

    def named(call: GateCall) -> Refused | None:
        return None if call.args["intent"].startswith("please") else Refused("say please")

    circle = Circle(["done", "call_agent", wrap("done", pre=[whole]), wrap("call_agent", pre=[named])], [max_turns(9)])
    parent = scripted(
        [say("call_agent", intent="work"), done("half"), say("call_agent", intent="please work"), done("whole")]
    )
    async with Runtime.open() as runtime:
        made = Cantrip(parent, circle=circle, child_crystal=scripted([done("whole")]))
        episode = await runtime.cast(made, "go")
        headers = list(runtime.loom.headers())
    assert episode.result == "whole"
    assert [seen.result for turn in episode.thread for seen in turn.gate_calls] == [
        "say please",
        "the answer is not whole",
        "whole",
        "whole",
    ]
    assert len(headers) == 2  # the refused child was never made
    assert answers == ["half", "whole", "whole"]  # the child inherits the wrapped `done`
    assert [one.get("wrapped") for one in headers[0].circle["gates"]] == [["whole"], ["named"]]


class Unreadable:
    """A value without a text."""

    def __repr__(self) -> str:
        raise RuntimeError("it cannot be shown")


@pytest.mark.parametrize("value", [Unreadable(), ["x" * 1000] * 1000])
async def test_an_unexpected_value_of_a_step_is_quoted_in_a_short_error(value: Any) -> None:
    trail = Trail()
    seen = await observed(wrap(trail.gate(), post=[trail.after("after", says=value)]))
    assert seen.is_error
    assert "press did run, but the step step after it failed: it returned" in seen.result
    assert len(seen.result) < 1000
    assert trail.left == ["press a", "after"]


@pytest.mark.parametrize("reason", [None, 5, ValueError("no")])
async def test_a_refusal_without_a_text_blocks_the_gate(reason: Any) -> None:
    trail = Trail()

    def refuse(call: GateCall) -> Refused:
        return Refused(reason)

    seen = await observed(wrap(trail.gate(), pre=[refuse]))
    assert seen.is_error
    assert "press was not run: the step refuse before it failed: TypeError: Refused: expected a text" in seen.result
    assert trail.left == []


@gate(name="press")
async def press_in_vain(key: str) -> str:
    """Fail with half a character, as in the name of a file."""
    raise OSError(5, f"half \ud83d{key}", "file")


def say_half(*_: Any) -> str:
    return "half \ud83d"


def refuse_half(*_: Any) -> Refused:
    return Refused("half \ud83d")


HALVES = {
    "error": lambda: press_in_vain,
    "remark": lambda: wrap(Trail().gate(), post=[say_half]),
    "refused result": lambda: wrap(Trail().gate(), post=[refuse_half]),
    "refused call": lambda: wrap(Trail().gate(), pre=[refuse_half]),
}


@pytest.mark.parametrize("source", HALVES)
async def test_half_a_character_in_a_text_of_user_code_is_written_as_an_escape(source: str) -> None:
    assert "half \\ud83d" in (await observed(HALVES[source]())).result


async def test_half_a_character_in_the_reason_of_a_request_is_written_as_an_escape() -> None:
    crystal = cantrip([say("press", key="a"), done("ok")], ask_first(Trail().gate(), when=say_half))
    async with Runtime.open() as runtime:
        await runtime.start(crystal, "go")
        async with runtime.requests(follow=True) as requests:
            async for request in requests:
                assert request.text == "half \\ud83d"
                break
