"""Wrapped gates in the circle and in the loop: what wraps what, and when `done` and `call_agent` go through."""

from typing import Any

import pytest

import cantrip_actors.circle  # noqa: F401  # makes the standard gates known by name
from cantrip_actors.machine.actions import Run, Spawn
from cantrip_actors.machine.events import Called, Computed, Moment
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.child_cantrip import carve
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import Gate, Refused
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.messages import Response
from cantrip_actors.terms.own_gates import AgentRequest
from cantrip_actors.terms.ward import max_turns
from cantrip_actors.terms.wrapping import GateCall, wrap
from tests.machine.driver import Drive, Loop, call, cantrip, done, look, say


def through(call: GateCall) -> None:
    """Lets everything through."""


def look_again(call: GateCall, seen: Any) -> None:
    """A step after."""


class Until:
    """Refuses the first so many calls."""

    def __init__(self, refusals: int) -> None:
        self.left = refusals
        self.asked: list[GateCall] = []

    def __call__(self, call: GateCall) -> Refused | None:
        self.asked.append(call)
        self.left -= 1
        return Refused("not yet") if self.left >= 0 else None


def names(made: Gate | None) -> list[str]:
    assert made is not None
    return [wrapper.name for wrapper in made.wrappers]


@gate
def write(path: str) -> str:
    """Write a file."""
    return path


class TestResolving:
    @pytest.mark.rule("F-42", "F-41")
    def test_a_wrapper_finds_its_gate_by_name_and_is_outside_of_earlier_wrappers(self) -> None:
        circle = Circle(
            ["done", wrap("write", pre=[through], name="inner"), write, wrap("write", pre=[through], name="outer")]
        )
        assert [one.name for one in circle.gates] == ["done", "write"]
        assert names(circle.gate("write")) == ["outer", "inner"]

    @pytest.mark.rule("F-42")
    def test_a_wrapper_holds_only_its_targets_name(self) -> None:
        around = wrap("write", pre=[through])

        @gate(name="write")
        def newer(path: str, text: str) -> str:
            """Write a file in a newer way."""
            return path + text

        old, new = (Circle(["done", inner, around]).gate("write") for inner in (write, newer))
        assert old is not None
        assert new is not None
        assert (old.description, new.description) == ("Write a file.", "Write a file in a newer way.")
        assert new.parameters == newer.parameters
        assert names(old) == names(new) == ["through"]

    def test_a_standard_gate_is_looked_up_and_a_gate_may_be_given(self) -> None:
        circle = Circle(["done", wrap("echo", pre=[through]), wrap(write, post=[look_again])])
        assert [one.name for one in circle.gates] == ["done", "echo", "write"]
        assert names(circle.gate("write")) == ["look_again"]

    def test_a_wrapper_can_wrap_a_wrapper(self) -> None:
        circle = Circle(["done", wrap(wrap(write, pre=[through], name="in"), pre=[through], name="out")])
        assert names(circle.gate("write")) == ["out", "in"]

    def test_the_recorded_circle_names_the_wrappers(self) -> None:
        told = Circle(["done", wrap("done", pre=[through], name="exit")]).as_json()
        assert told["gates"][0]["wrapped"] == ["exit"]
        assert "wrapped" not in Circle(["done"]).as_json()["gates"][0]

    @pytest.mark.parametrize("steps", [{}, {"pre": ["no function"]}, {"post": [3]}])
    def test_a_wrapper_without_callable_steps_is_refused(self, steps: dict[str, Any]) -> None:
        with pytest.raises(InvalidCantrip, match=r"wrap: .*expected"):
            wrap("write", **steps)

    @pytest.mark.rule("F-44")
    @pytest.mark.parametrize("when", ["pre", "post"])
    def test_steps_that_are_not_in_a_list_are_refused(self, when: str) -> None:
        """Those of a generator were checked, and then none were left to run."""
        for steps in (through, (step for step in [through]), {through}):
            with pytest.raises(InvalidCantrip, match=f"wrap: {when}: expected a list of functions"):
                wrap("write", **{when: steps})

    def test_an_unknown_gate_is_refused(self) -> None:
        with pytest.raises(InvalidCantrip, match='unknown gate "wriet"'):
            Circle(["done", wrap("wriet", pre=[through])])

    @pytest.mark.rule("F-44", "COMP-1")
    def test_a_child_inherits_the_wrapped_gate_and_cannot_have_another(self) -> None:
        parent = cantrip(gates=["done", write, wrap("write", pre=[through], name="rule"), "call_agent"])
        child = carve(parent, AgentRequest(intent="x", gates=("write",)))
        assert isinstance(child, Cantrip)
        assert names(child.circle.gate("write")) == ["rule"]
        assert child.circle.gate("write") is parent.circle.gate("write")

    def test_a_gate_call_parameter_is_hidden_from_the_crystal(self) -> None:
        @gate
        def note(text: str, call: GateCall) -> str:
            return f"{call.entity_id}: {text}"

        assert list(note.parameters["properties"]) == ["text"]
        assert [parameter for parameter, _ in note.site] == ["call"]


class TestDone:
    @pytest.mark.rule("F-21", "CIRCLE-5")
    def test_a_refused_done_is_an_observation_and_the_loop_continues(self) -> None:
        step = Until(1)
        drive = Drive(cantrip(gates=["done", look, wrap("done", pre=[step])]), say(done("a")), say(done("b")))
        outcome = drive.go()
        assert (outcome.result, outcome.terminated) == ("b", True)
        first, second = drive.turns
        assert (first.gate_calls[0].result, first.gate_calls[0].is_error, first.terminated) == ("not yet", True, False)
        assert second.terminated
        assert [asked.args for asked in step.asked] == [{"answer": "a"}, {"answer": "b"}]
        assert [asked.turn_id for asked in step.asked] == [first.id, second.id]

    @pytest.mark.rule("F-21", "LOOP-2")
    def test_max_turns_ends_an_entity_whose_done_is_always_refused(self) -> None:
        drive = Drive(
            cantrip(max_turns(3), gates=["done", wrap("done", pre=[Until(99)])]), *(say(done()) for _ in range(3))
        )
        assert drive.go().truncated

    @pytest.mark.rule("LOOP-3")
    def test_calls_after_a_refused_done_are_run(self) -> None:
        drive = Drive(
            cantrip(gates=["done", look, wrap("done", pre=[Until(1)])]), say(done("a"), call("look")), say(done())
        )
        drive.go()
        assert [seen.is_error for seen in drive.turns[0].gate_calls] == [True, False]

    @pytest.mark.rule("D-003")
    def test_a_program_gets_the_refusal_and_continues(self) -> None:
        circle = Circle(["done", wrap("done", pre=[Until(1)])], [max_turns(5)], medium="python")
        made = Cantrip("local:model", circle=circle)
        drive = Drive(
            made,
            Response(code="x"),
            Called("done", {"answer": 1}),
            Called("submit_answer", {"answer": 2}),
            Computed(),
        )
        assert drive.go().result == 2
        first, second = drive.turns[0].gate_calls[:2]
        assert (first.is_error, second.is_error, second.result) == (True, False, 2)

    @pytest.mark.rule("F-23")
    def test_wrapping_steps_interrupted_by_a_crash_run_again(self) -> None:
        step = Until(0)
        drive = Drive(cantrip(gates=["done", wrap("done", pre=[step])]), say(done("a")))
        drive.go(upto=Run)
        loop, again = Loop.again(drive.plan, drive.records, Moment(8, 8, "t8"), Moment(9, 9, "t9"))
        assert again is not None
        assert isinstance(again.action, Run)
        assert (again.action.gate.name, loop.live.wrapping) == ("done", "before")


class TestDelegation:
    def wrapped(self, step: Until, **more: Any) -> Cantrip:
        return cantrip(gates=["done", look, "call_agent", wrap("call_agent", pre=[step], **more)])

    @pytest.mark.rule("F-01")
    def test_a_refused_call_agent_starts_no_child_and_does_not_split_the_turn(self) -> None:
        drive = Drive(self.wrapped(Until(1)), say(call("call_agent", intent="a")), say(done()))
        drive.go()
        assert drive.spawned == []
        assert [len(drive.turns), drive.turns[0].gate_calls[0].result] == [2, "not yet"]

    @pytest.mark.rule("F-41")
    def test_an_allowed_call_agent_starts_one_child(self) -> None:
        drive = Drive(self.wrapped(Until(0)), say(call("call_agent", intent="a"), call("look")), say(done()))
        drive.go()
        assert len(drive.spawned) == 1
        assert [seen.result for seen in drive.turns[1].gate_calls] == ["A", "seen"]

    @pytest.mark.rule("F-41")
    def test_steps_after_a_delegation_see_the_childrens_results(self) -> None:
        drive = Drive(
            self.wrapped(Until(0), post=[look_again]), say(call("call_agent", intent="a"), call("look")), say(done())
        )
        drive.go()
        assert [name for name, _ in drive.ran] == ["call_agent", "call_agent", "look"]
        assert [seen.result for seen in drive.turns[1].gate_calls] == ["A, looked at", "seen"]

    @pytest.mark.rule("F-23")
    def test_running_children_are_awaited_without_running_the_steps_again(self) -> None:
        step = Until(0)
        drive = Drive(self.wrapped(step), say(call("call_agent", intent="a")), say(done()))
        drive.go(upto=Spawn)
        _, again = Loop.again(drive.plan, drive.records, Moment(8, 8, "t8"), Moment(9, 9, "t9"))
        assert again is not None
        assert isinstance(again.action, Spawn)
        assert len(step.asked) == 1
