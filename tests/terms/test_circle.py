"""The circle as a value: which gates are open, what the crystal is shown of them, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.gate_function import Injected, gate
from cantrip_actors.terms.own_gates import CALL_AGENT
from cantrip_actors.terms.ward import (
    Ward,
    Wards,
    max_compute,
    max_depth,
    max_gate_calls,
    max_memory,
    max_output,
    max_turns,
    remove_gate,
)
from tests.machine.driver import GATES, echo


@gate
def read(path: str, root: Injected[Path]) -> str:
    """Read a file."""
    return (root / path).read_text()


class TestGates:
    @pytest.mark.rule("CALL-3")
    def test_definitions_come_from_the_gates_in_their_order(self) -> None:
        own = Gate.of(lambda path: path, name="read", parameters={"properties": {"path": {"type": "string"}}})
        circle = Circle(gates=["done", own, echo])
        assert [one.name for one in circle.definitions] == ["done", "read", "echo"]
        assert circle.definitions[1].parameters == {"type": "object", "properties": {"path": {"type": "string"}}}
        assert circle.definitions[2].description == "Say it again."

    def test_a_gate_is_a_name_a_gate_or_an_annotated_function(self) -> None:
        def shout(text: str) -> str:
            return text.upper()

        circle = Circle(gates=["done", echo, shout])
        assert [one.name for one in circle.gates] == ["done", "echo", "shout"]
        assert circle.gates[0] is DONE

    @pytest.mark.rule("D-002")
    def test_aliases_of_the_delegation_gates_are_normalised(self) -> None:
        circle = Circle(gates=["done", "call_entity", "call_entity_batch"])
        assert [*circle.open_gates] == ["done", "call_agent", "call_agent_batch"]
        assert circle.gate("call_entity") is CALL_AGENT

    def test_done_and_delegation_work_under_any_description(self) -> None:
        own = [Gate.of(None, name=name, parameters={"type": "object"}) for name in ("done", "call_agent")]
        assert [one.kind for one in Circle(gates=own).gates] == ["done", "delegate"]

    @pytest.mark.rule("CIRCLE-10")
    def test_a_circle_takes_the_dependencies_of_its_gates(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("hello world")
        circle = Circle(gates=["done", read.with_(root=tmp_path)])
        made = circle.gate("read")
        assert made is not None
        assert made("a.txt") == "hello world"
        assert "root" not in made.parameters["properties"]

    @pytest.mark.rule("CIRCLE-10")
    def test_a_missing_dependency_is_refused_when_the_circle_is_made(self) -> None:
        with pytest.raises(InvalidCantrip, match="gate read needs root"):
            Circle(gates=["done", read])


class TestWards:
    @pytest.mark.rule("CIRCLE-6")
    def test_a_removed_gate_is_closed_and_the_error_lists_the_open_ones(self) -> None:
        circle = Circle(gates=["done", echo], wards=[remove_gate("echo")])
        assert [*circle.open_gates] == ["done"]
        assert circle.unavailable("echo") == "gate not available: echo; available: done"

    @pytest.mark.rule("CIRCLE-6")
    def test_a_ward_that_removes_an_unknown_gate_is_refused_with_the_names_there_are(self) -> None:
        with pytest.raises(InvalidCantrip, match=r'remove_gate\("ecko"\).*did you mean "echo"\? known: done, echo'):
            Circle(gates=["done", echo], wards=[remove_gate("ecko")])

    @pytest.mark.rule("COMP-6", "D-009")
    def test_at_depth_0_the_delegation_gates_are_gone_and_calling_one_names_the_limit(self) -> None:
        circle = Circle(gates=GATES, wards=[max_depth(0)])
        assert [name for name in circle.open_gates if "agent" in name] == []
        for name in ("call_agent", "call_agent_batch"):
            assert circle.unavailable(name).startswith(f"gate not available: {name}")
            assert "max_depth is 0" in circle.unavailable(name)

    @pytest.mark.rule("COMP-6")
    def test_children_may_not_have_children_without_a_depth_ward(self) -> None:
        circle = Circle(gates=["done", "call_agent"])
        assert "call_agent" in circle.open_gates
        assert circle.resolved.down(Wards()).depth == 0

    def test_a_call_of_an_unlisted_delegation_gate_is_not_explained_by_depth(self) -> None:
        circle = Circle(gates=["done"], wards=[max_depth(0)])
        assert circle.unavailable("call_agent") == "gate not available: call_agent; available: done"

    def test_wards_may_be_mappings_as_recipes_write_them(self) -> None:
        circle = Circle(gates=["done"], wards=[{"max_turns": 5, "max_depth": 2}, max_turns(3)])
        assert circle.resolved == Wards(max_turns=3, max_depth=2)
        assert circle.wards == (Ward("max_turns", 5), Ward("max_depth", 2), Ward("max_turns", 3))


@pytest.mark.rule("COMP-1", "COMP-6")
@given(
    st.builds(
        Wards,
        max_turns=st.none() | st.integers(1, 3),
        max_depth=st.none() | st.integers(0, 3),
        timeout=st.none() | st.floats(1, 2),
        require_done_tool=st.booleans(),
        removed=st.frozensets(st.sampled_from(["echo", "page"])),
    )
)
def test_a_narrowed_circle_equals_one_written_that_way(wards: Wards) -> None:
    whole = Circle(gates=GATES)
    narrowed = whole.narrowed(whole.gates[:4], wards)
    assert narrowed.resolved == wards
    written = Circle(gates=whole.gates[:4], wards=narrowed.wards)
    assert written == narrowed
    assert written.resolved == wards
    assert written.as_json() == narrowed.as_json()


class TestRefused:
    @pytest.mark.parametrize(
        ("parts", "why"),
        [
            ({"gates": ["done", "dome"]}, 'unknown gate "dome": did you mean "done"'),
            ({"gates": ["done", 5]}, "gate: expected a name, a gate or an annotated function, got 5"),
            ({"gates": ["done", echo, echo]}, 'two gates are called "echo"'),
            ({"gates": ["done", "call_agent", "call_entity"]}, 'two gates are called "call_agent"'),
            ({"gates": "done"}, "circle: gates: expected a list, as in Circle"),
            ({"gates": {"done": {}}}, "circle: gates: expected a list, as in Circle"),
            ({"gates": None}, "circle: gates: expected a list, as in Circle"),
            ({"wards": max_turns(5)}, "circle: wards: expected a list, as in Circle"),
            ({"wards": {"max_turns": 5}}, "circle: wards: expected a list, as in Circle"),
            ({"wards": "max_turns"}, "circle: wards: expected a list, as in Circle"),
            ({"servers": None}, "circle: servers: expected a list, as in Circle"),
            ({"servers": [5]}, "circle: servers: expected servers of tools"),
            ({"wards": [{"max_turn": 5}]}, 'unknown ward "max_turn"'),
            ({"wards": [5]}, "ward: expected for example"),
            ({"medium": "pyhton"}, 'unknown medium "pyhton": did you mean "python"'),
            ({"medium": None}, "unknown medium"),
        ],
    )
    def test_an_invalid_circle_is_refused(self, parts: dict[str, Any], why: str) -> None:
        with pytest.raises(InvalidCantrip, match=why):
            Circle(**parts)


def test_equal_circles_are_equal_values() -> None:
    circle = Circle(gates=["done", echo], wards=[max_turns(5)])
    assert circle == Circle(gates=["done", echo], wards=[max_turns(5)])
    stricter = replace(circle, wards=(*circle.wards, max_turns(2)))
    assert (stricter.resolved.max_turns, circle.resolved.max_turns) == (2, 5)
    with pytest.raises(AttributeError):
        circle.gates = ()


def test_the_recorded_circle_has_the_open_gates() -> None:
    circle = Circle(gates=["done", echo], wards=[max_turns(5), max_depth(0), remove_gate("echo")])
    assert circle.as_json() == {
        "medium": "tools",
        "gates": [{"name": "done", "parameters": DONE.parameters}],
        "wards": {"max_turns": 5, "max_depth": 0, "removed": ["echo"]},
    }


@pytest.mark.rule("CIRCLE-6")
class TestWardsOnPrograms:
    @pytest.mark.parametrize("ward", [max_compute(1), max_memory(2**20), max_output(9)])
    def test_program_wards_are_refused_for_a_circle_without_programs(self, ward: Ward) -> None:
        with pytest.raises(InvalidCantrip, match=f"{ward.name}.*it bounds programs.*python, javascript, shell"):
            Circle(["done"], [max_turns(1), ward])
        assert Circle(["done"], [max_turns(1), ward], medium="javascript").resolved.as_json()[ward.name] == ward.value

    def test_gate_calls_are_counted_in_every_medium(self) -> None:
        assert Circle(["done"], [max_gate_calls(2)]).resolved.max_gate_calls == 2
