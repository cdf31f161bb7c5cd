"""The ward algebra: a meet of restrictions, in a circle and down the tree (D-009)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import wards as public_wards
from cantrip_actors.circle.medium import ProgramLimits
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.messages import Usage
from cantrip_actors.terms.ward import Ward, Wards, parse
from cantrip_actors.wards import (
    max_compute,
    max_cost,
    max_depth,
    max_gate_calls,
    max_memory,
    max_output,
    max_tokens,
    max_turns,
    remove_gate,
    require_done_tool,
    timeout,
)

numbers = st.none() | st.integers(1, 5)
resolved = st.builds(
    Wards,
    max_turns=numbers,
    max_depth=st.none() | st.integers(0, 4),
    timeout=st.none() | st.floats(0.5, 9),
    max_tokens=numbers,
    max_cost=st.none() | st.floats(0.5, 9),
    max_gate_calls=st.none() | st.integers(1, 200),
    max_compute=st.none() | st.floats(0.5, 9),
    max_memory=st.none() | st.integers(2**20, 2**27),
    max_output=st.none() | st.integers(1, 10**6),
    require_done_tool=st.booleans(),
    removed=st.frozensets(st.sampled_from(["read", "write", "fetch"])),
)
single = st.one_of(
    st.integers(1, 9).map(max_turns),
    st.integers(0, 9).map(max_depth),
    st.floats(0.5, 9).map(timeout),
    st.integers(1, 9).map(max_tokens),
    st.floats(0.5, 9).map(max_cost),
    st.integers(1, 200).map(max_gate_calls),
    st.floats(0.5, 9).map(max_compute),
    st.integers(2**20, 2**27).map(max_memory),
    st.integers(1, 10**6).map(max_output),
    st.sampled_from(["read", "write"]).map(remove_gate),
    st.booleans().map(require_done_tool),
)


NUMBERS = (
    "max_turns",
    "timeout",
    "max_tokens",
    "max_cost",
    "max_gate_calls",
    "max_compute",
    "max_memory",
    "max_output",
)


def at_least_as_strict(a: Wards, b: Wards) -> bool:
    """Whether whatever `b` forbids, `a` forbids."""
    lower = all(
        getattr(b, name) is None or (getattr(a, name) is not None and getattr(a, name) <= getattr(b, name))
        for name in (*NUMBERS, "max_depth")
    )
    return lower and a.require_done_tool >= b.require_done_tool and a.removed >= b.removed


@pytest.mark.rule("D-009")
class TestMeet:
    @given(resolved, resolved)
    def test_meet_is_commutative(self, a: Wards, b: Wards) -> None:
        assert a & b == b & a

    @given(resolved, resolved, resolved)
    def test_meet_is_associative(self, a: Wards, b: Wards, c: Wards) -> None:
        assert (a & b) & c == a & (b & c)

    @given(resolved)
    def test_meet_is_idempotent_and_the_empty_set_is_neutral(self, a: Wards) -> None:
        assert a & a == a
        assert a & Wards() == a

    @given(resolved, resolved)
    def test_meet_is_at_least_as_strict_as_either(self, a: Wards, b: Wards) -> None:
        assert at_least_as_strict(a & b, a)
        assert at_least_as_strict(a & b, b)

    @given(resolved, resolved, resolved)
    def test_meet_is_no_stricter_than_necessary(self, a: Wards, b: Wards, c: Wards) -> None:
        if at_least_as_strict(c, a) and at_least_as_strict(c, b):
            assert at_least_as_strict(c, a & b)

    @given(resolved, resolved, resolved)
    def test_a_stricter_set_stays_stricter_under_the_same_wards(self, a: Wards, b: Wards, c: Wards) -> None:
        assert at_least_as_strict(a & b & c, b & c)
        b = replace(b, max_depth=b.depth)  # without a ward the depth is one level; a ward can allow two
        assert at_least_as_strict((a & b).down(c), b.down(c))

    @given(st.lists(single), st.randoms())
    def test_the_order_of_a_list_does_not_matter(self, wards: list[Ward], dice: Any) -> None:
        mixed = list(wards) + wards[:1]
        dice.shuffle(mixed)
        assert Wards.of(mixed) == Wards.of(wards)

    @pytest.mark.parametrize(
        ("wards", "met"),
        [
            ([max_turns(5), max_turns(3)], Wards(max_turns=3)),
            ([require_done_tool(False), require_done_tool()], Wards(require_done_tool=True)),
            ([remove_gate("read"), remove_gate("write")], Wards(removed=frozenset({"read", "write"}))),
            ([max_depth(0), max_depth(2)], Wards(max_depth=0)),
            ([{"max_turns": 4, "remove_gate": ["read", "call_entity"]}], None),
        ],
    )
    def test_meet_of_two_examples_is_as_expected(self, wards: list[Any], met: Wards | None) -> None:
        assert Wards.of(wards) == (met or Wards(max_turns=4, removed=frozenset({"read", "call_agent"})))


class TestDown:
    @pytest.mark.rule("D-009", "COMP-1")
    @given(resolved, resolved)
    def test_a_child_never_has_more_than_its_parent(self, parent: Wards, request: Wards) -> None:
        child = parent.down(request)
        for name in NUMBERS:
            assert getattr(child, name) == getattr(parent & request, name)
        assert child.removed == parent.removed | request.removed
        assert child.require_done_tool == (parent.require_done_tool or request.require_done_tool)

    @pytest.mark.rule("COMP-6", "D-009")
    @given(resolved, st.lists(resolved, max_size=6))
    def test_each_level_has_one_less_depth_until_delegation_ends(self, wards: Wards, requests: list[Wards]) -> None:
        for request in requests:
            child = wards.down(request)
            assert child.depth <= max(wards.depth - 1, 0)
            if request.max_depth is not None:
                assert child.depth <= request.max_depth
            wards = child
        assert wards.depth == 0 or len(requests) < 5

    @pytest.mark.rule("COMP-6")
    @pytest.mark.parametrize(
        ("own", "asked", "left"), [(None, None, 0), (None, 5, 0), (3, None, 2), (3, 1, 1), (3, 9, 2), (0, None, 0)]
    )
    def test_a_child_has_one_level_of_depth_less(self, own: int | None, asked: int | None, left: int) -> None:
        assert Wards(max_depth=own).down(Wards(max_depth=asked)).depth == left


class TestBounded:
    @pytest.mark.rule("CIRCLE-2", "LOOP-2")
    @pytest.mark.parametrize("ward", [max_turns(1), timeout(1), max_tokens(1), max_cost(1)])
    def test_each_ward_that_truncates_bounds_an_entity(self, ward: Ward) -> None:
        assert Wards.of([ward]).bounded

    @pytest.mark.rule("CIRCLE-2", "LOOP-2")
    @pytest.mark.parametrize(
        "ward", [max_depth(1), remove_gate("read"), require_done_tool(), max_gate_calls(1), max_compute(1)]
    )
    def test_other_wards_do_not_bound_an_entity(self, ward: Ward) -> None:
        assert not Wards.of([ward]).bounded

    @pytest.mark.parametrize(
        ("usage", "ward"),
        [
            (Usage(4, 5), None),
            (Usage(5, 5), max_tokens(10)),
            (Usage(cost=0.5), None),
            (Usage(cost=1.0), max_cost(1)),
            (Usage(99, 0, cost=99.0), max_tokens(10)),
        ],
    )
    def test_a_budget_is_used_up_when_it_is_reached_exactly(self, usage: Usage, ward: Ward | None) -> None:
        assert Wards.of([max_tokens(10), max_cost(1)]).find_exhausted(usage) == ward

    def test_without_a_budget_nothing_is_used_up(self) -> None:
        assert Wards(max_turns=1).find_exhausted(Usage(10**9, 0, cost=1e9)) is None


class TestChecks:
    @pytest.mark.rule("D-009")
    def test_a_timeout_refuses_a_while_waiting_that_is_not_a_boolean(self) -> None:
        no: Any = "no"
        with pytest.raises(InvalidCantrip, match="timeout: while_waiting: expected true or false, got 'no'"):
            timeout(3, while_waiting=no)

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("max_turns", 0, "max_turns: expected a whole number >= 1, got 0"),
            ("max_turns", True, "whole number"),
            ("max_turns", "5", "whole number"),
            ("max_depth", -1, "max_depth: expected a whole number >= 0"),
            ("timeout", 0, "timeout: expected a number > 0"),
            ("timeout", float("inf"), "number > 0"),
            ("timeout", 10**400, "number > 0"),
            ("timeout", float("nan"), "number > 0"),
            ("max_tokens", 1.5, "whole number"),
            ("max_cost", -1, "number > 0"),
            ("max_cost", True, "number > 0"),
            ("max_gate_calls", 0, "max_gate_calls: expected a whole number >= 1, got 0"),
            ("max_compute", 0, "max_compute: expected a number > 0"),
            ("max_compute", -0.5, "number > 0"),
            ("max_compute", float("inf"), "number > 0"),
            ("max_memory", 64, "max_memory: expected a whole number >= 1048576, got 64"),
            ("max_memory", -1, "whole number"),
            ("max_output", 0, "max_output: expected a whole number >= 1"),
            ("max_output", 2.5, "whole number"),
            ("remove_gate", "", "gate's name"),
            ("remove_gate", 3, "gate's name"),
            ("require_done_tool", "yes", "true or false"),
        ],
    )
    def test_an_invalid_value_is_refused_in_each_form(self, name: str, value: Any, expected: str) -> None:
        for made in (Ward, lambda name, value: parse({name: value})):
            with pytest.raises(InvalidCantrip, match=expected):
                made(name, value)

    def test_an_unknown_ward_is_refused_with_the_nearest_right_one(self) -> None:
        with pytest.raises(InvalidCantrip, match='unknown ward "max_turn": did you mean "max_turns"'):
            parse({"max_turn": 5})

    @pytest.mark.parametrize("ward", [{}, "max_turns", 5, None])
    def test_an_invalid_ward_is_refused(self, ward: Any) -> None:
        with pytest.raises(InvalidCantrip, match="expected for example max_turns"):
            parse(ward)

    @pytest.mark.rule("D-002")
    def test_aliases_of_gates_are_normalised(self) -> None:
        assert remove_gate("call_entity") == remove_gate("call_agent")

    def test_a_ward_has_a_readable_text(self) -> None:
        assert [str(ward) for ward in (max_turns(5), max_cost(0.5), remove_gate("read"))] == [
            "max_turns(5)",
            "max_cost(0.5)",
            "remove_gate(read)",
        ]


class TestLimits:
    @given(resolved, resolved)
    @pytest.mark.rule("D-009", "CIRCLE-6")
    def test_the_meet_of_two_sets_has_the_smaller_limit_of_each(self, a: Wards, b: Wards) -> None:
        both, one, other = (ProgramLimits.under(wards) for wards in (a & b, a, b))
        for name in ("seconds", "memory", "output", "gate_calls"):
            assert getattr(both, name) == min(getattr(one, name), getattr(other, name))

    @given(resolved)
    @pytest.mark.rule("D-009")
    def test_a_ward_never_widens_the_usual_limits(self, wards: Wards) -> None:
        left, usual = ProgramLimits.under(wards), ProgramLimits()
        assert left.seconds <= usual.seconds
        assert left.memory <= usual.memory
        assert left.output <= usual.output
        assert left.gate_calls <= usual.gate_calls
        assert ProgramLimits.under(Wards()) == usual

    @given(resolved, resolved)
    @pytest.mark.rule("D-009", "COMP-1")
    def test_a_childs_programs_have_no_more_than_its_parents(self, parent: Wards, request: Wards) -> None:
        child, above = ProgramLimits.under(parent.down(request)), ProgramLimits.under(parent)
        for name in ("seconds", "memory", "output", "gate_calls"):
            assert getattr(child, name) <= getattr(above, name)


@pytest.mark.rule("CALL-4")
@given(resolved)
def test_as_json_has_every_restriction(wards: Wards) -> None:
    stated = wards.as_json()
    removed = stated.pop("removed", [])
    assert Wards.of([stated] if stated else []) & Wards(removed=frozenset(removed)) == wards


@pytest.mark.rule("COMP-6")
def test_depth_0_is_a_restriction() -> None:
    assert Wards(max_depth=0).as_json() == {"max_depth": 0}


@pytest.mark.parametrize("per", ["", 0, False, []])
def test_an_empty_period_is_refused(per: Any) -> None:
    with pytest.raises(InvalidCantrip, match="max_calls: per: expected one of"):
        public_wards.max_calls("pay", 1, per=per)


@pytest.mark.parametrize("most", [1, 2_000_000, 10**400])
def test_a_budget_of_tokens_is_written_in_digits(most: int) -> None:
    assert str(public_wards.max_tokens(most, per="day")) == f"max_tokens({most} per day)"
