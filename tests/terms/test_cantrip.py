"""Cantrips: refusals when one is made, the order of errors, and how a child's cantrip is derived."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cantrip_actors.crystal.resolve import FAMILIES
from cantrip_actors.terms.call import Call
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.child_cantrip import carve
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.crystal import FAMILY_NAMES, Crystal, get_crystal_name
from cantrip_actors.terms.errors import CantripError, InvalidCantrip
from cantrip_actors.terms.folding import Folding
from cantrip_actors.terms.gate import Refused
from cantrip_actors.terms.own_gates import AgentRequest
from cantrip_actors.terms.retry import Retry
from cantrip_actors.terms.ward import (
    Ward,
    max_cost,
    max_depth,
    max_tokens,
    max_turns,
    remove_gate,
    require_done_tool,
    timeout,
)
from tests.machine.driver import GATES, cantrip, echo

DONE_ONLY = Circle(gates=["done"], wards=[max_turns(10)])


class Named:
    """A crystal with a name; and a length, which must not matter."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 0

    async def invoke(self, *_: Any) -> str:
        return self.name


class TestConstruction:
    @pytest.mark.rule("CANTRIP-1")
    def test_a_cantrip_without_a_crystal_is_refused(self) -> None:
        with pytest.raises(InvalidCantrip, match="cantrip requires a crystal"):
            Cantrip(circle=DONE_ONLY)

    @pytest.mark.rule("CANTRIP-1")
    def test_a_cantrip_without_a_circle_is_refused(self) -> None:
        with pytest.raises(InvalidCantrip, match="cantrip requires a circle"):
            Cantrip("local:b")

    @pytest.mark.rule("CANTRIP-1")
    def test_a_missing_call_is_an_empty_call(self) -> None:
        assert Cantrip("local:b", circle=DONE_ONLY).call == Call()

    @pytest.mark.rule("CIRCLE-1", "CANTRIP-3")
    @pytest.mark.parametrize("gates", [[], [echo]])
    def test_a_cantrip_without_a_done_gate_is_refused(self, gates: list[Any]) -> None:
        with pytest.raises(InvalidCantrip, match="circle must have a done gate"):
            Cantrip("local:b", circle=Circle(gates=gates, wards=[max_turns(10)]))

    @pytest.mark.rule("CIRCLE-1")
    def test_a_done_gate_that_a_ward_removes_does_not_count(self) -> None:
        with pytest.raises(InvalidCantrip, match="circle must have a done gate"):
            Cantrip("local:b", circle=Circle(gates=["done"], wards=[max_turns(10), remove_gate("done")]))

    @pytest.mark.rule("LOOP-2", "D-002")
    @pytest.mark.parametrize(
        "parts",
        [
            {"call": Call(require_done_tool=True), "circle": Circle(wards=[max_turns(10)])},
            {"require_done_tool": True, "circle": Circle(wards=[max_turns(10)])},
            {"circle": Circle(wards=[max_turns(10), require_done_tool()])},
        ],
        ids=["call", "cantrip", "ward"],
    )
    def test_require_done_tool_without_a_done_gate_is_refused(self, parts: dict[str, Any]) -> None:
        with pytest.raises(InvalidCantrip, match="cantrip with require_done must have a done gate"):
            Cantrip("local:b", **parts)

    @pytest.mark.rule("LOOP-2", "CIRCLE-2", "CANTRIP-3")
    @pytest.mark.parametrize("wards", [[], [max_depth(3)], [require_done_tool()]])
    def test_a_cantrip_without_a_truncating_ward_is_refused(self, wards: list[Ward]) -> None:
        with pytest.raises(InvalidCantrip, match="cantrip must have at least one truncation ward"):
            Cantrip("local:b", circle=Circle(gates=["done"], wards=wards))

    @pytest.mark.rule("CIRCLE-2")
    @pytest.mark.parametrize("ward", [max_turns(1), timeout(1), max_tokens(1), max_cost(1)])
    def test_any_truncating_ward_is_enough(self, ward: Ward) -> None:
        assert Cantrip("local:b", circle=Circle(gates=["done"], wards=[ward])).circle.resolved.bounded

    @pytest.mark.rule("CALL-1")
    def test_an_unknown_setting_of_a_call_is_refused_in_the_name_of_call(self) -> None:
        with pytest.raises(TypeError, match=r"^Call\.__init__\(\) got an unexpected keyword argument 'system'"):
            Call(system="You are terse.")  # type: ignore[call-arg]

    @pytest.mark.rule("CANTRIP-3")
    def test_gates_are_checked_before_wards(self) -> None:
        with pytest.raises(InvalidCantrip, match="circle must have a done gate"):
            Cantrip("local:b", circle=Circle())
        with pytest.raises(InvalidCantrip, match="require_done"):
            Cantrip("local:b", circle=Circle(), require_done_tool=True)

    @pytest.mark.rule("CANTRIP-1")
    @pytest.mark.parametrize(
        ("parts", "why"),
        [
            ({"crystal": "claude"}, "cantrip requires a crystal: crystal: expected 'family:model'"),
            ({"crystal": ":"}, "expected 'family:model', which names a model"),
            ({"crystal": "claude"}, "got 'claude'; families: anthropic, azure"),
            ({"crystal": "openai/gpt"}, "did you mean 'openai:gpt'"),
            ({"crystal": object()}, "an object with invoke"),
            ({"crystal": lambda context: "hi"}, r"as a script: scripted\(…\)"),
            ({"crystal": ["hi"]}, r"as a script: scripted\(…\)"),
            ({"child_crystal": "claude"}, "child_crystal: expected"),
            ({"child_crystal": 0}, "child_crystal: expected"),
            ({"crystals": {"big": None}}, "'big'.*expected"),
            ({"crystals": {"big": "claude"}}, "'big'.*expected"),
            ({"crystals": ["claude"]}, "cantrip: crystals: expected a mapping.*got list"),
            ({"call": "You are terse"}, "cantrip: call: expected a Call, got str"),
            ({"circle": ["done"]}, "cantrip: circle: expected a Circle, got list"),
            ({"folding": 3}, "cantrip: folding: expected a Folding, got int"),
            ({"retry": {"max_retries": 3}}, "cantrip: retry: expected a Retry, got dict"),
            ({"require_done_tool": "yes"}, "cantrip: require_done_tool: expected a bool, got str"),
            ({"name": 5}, "cantrip: name: expected a str, got int"),
            ({"name": ""}, "cantrip: name: expected a text that is not empty, without control characters, got ''"),
            ({"name": "a\x00b"}, "cantrip: name: expected a text that is not empty, without control characters"),
            ({"name": "n" * 1_001}, "cantrip: name: expected a text of at most 1,000 bytes"),
            ({"crystals": {0: "local:b"}}, "cantrip: crystals: expected a name, or a depth from 1 on .*got 0"),
            ({"crystals": {True: "local:b"}}, "cantrip: crystals: expected a name, or a depth from 1 on .*got True"),
        ],
    )
    def test_parts_of_the_wrong_kind_are_refused(self, parts: dict[str, Any], why: str) -> None:
        with pytest.raises(InvalidCantrip, match=why):
            Cantrip(**{"crystal": "local:b", "circle": DONE_ONLY, **parts})

    def test_every_refusal_is_a_cantrip_error_and_a_value_error(self) -> None:
        assert issubclass(InvalidCantrip, CantripError)
        assert issubclass(InvalidCantrip, ValueError)

    def test_any_object_with_invoke_is_a_crystal(self) -> None:
        crystal = Named("mine")
        assert isinstance(crystal, Crystal)
        assert Cantrip(crystal, circle=DONE_ONLY).crystal is crystal
        names = [get_crystal_name(one) for one in (crystal, "local:b", Named(5))]
        assert names == ["mine", "local:b", "Named"]


@pytest.mark.rule("CANTRIP-2")
class TestValue:
    def test_a_cantrip_cannot_be_changed(self) -> None:
        crystals: dict[str | int, Any] = {"big": "local:c"}
        made = Cantrip("local:b", circle=DONE_ONLY, crystals=crystals)
        crystals["small"] = "local:d"
        assert made.crystals == {"big": "local:c"}
        with pytest.raises(FrozenInstanceError):
            made.crystal = "local:c"
        with pytest.raises(TypeError):
            made.crystals["small"] = "local:d"

    def test_replace_makes_another_cantrip(self) -> None:
        made = Cantrip("local:b", circle=DONE_ONLY, require_done_tool=True, name="n", crystals={"big": "local:c"})
        other = replace(made, call=Call("You are terse"))
        assert (other.call.system_prompt, other.crystal, other.require_done_tool) == ("You are terse", "local:b", True)
        assert made.call == Call()

    def test_with_crystal_changes_only_the_crystal(self) -> None:
        child = carve(cantrip(), AgentRequest(intent="x", gates=("echo",)))
        assert isinstance(child, Cantrip)
        other = child.with_crystal("local:y")
        assert (other.crystal, other.circle, other.level) == ("local:y", child.circle, 1)
        assert (child.crystal, other.id == child.id) == ("local:model", False)
        with pytest.raises(InvalidCantrip, match="cantrip requires a crystal"):
            child.with_crystal("y")

    def test_the_id_of_a_cantrip_follows_from_its_content(self) -> None:
        parts: dict[str, Any] = {"call": Call("p", options={"top_k": 2**70}), "circle": DONE_ONLY}
        made = Cantrip("local:b", **parts)
        assert made.id == Cantrip("local:b", **parts).id
        others = [
            Cantrip("local:c", **parts),
            Cantrip("local:b", **parts, child_crystal="local:c"),
            Cantrip("local:b", **parts, crystals={"big": "local:c"}),
            Cantrip("local:b", **parts, folding=Folding(3)),
            Cantrip("local:b", **parts, require_done_tool=True),
            Cantrip("local:b", call=Call("q"), circle=DONE_ONLY),
            Cantrip("local:b", call=parts["call"], circle=Circle(gates=["done"], wards=[max_turns(11)])),
            Cantrip("local:b", call=parts["call"], circle=Circle(gates=["done", echo], wards=[max_turns(10)])),
            Cantrip(
                "local:b",
                call=parts["call"],
                circle=Circle(gates=["done", echo.with_(description="x")], wards=[max_turns(10)]),
            ),
        ]
        assert len({made.id, *(one.id for one in others)}) == len(others) + 1

    def test_the_id_of_a_cantrip_is_the_same_in_every_process(self) -> None:
        code = (
            "from cantrip_actors.terms.cantrip import Cantrip; from cantrip_actors.terms.circle import Circle;"
            "print(Cantrip('local:b', circle=Circle(gates=['done'], wards=[{'max_turns': 10}])).id)"
        )
        command = [sys.executable, "-c", code]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
        assert ran.stdout.strip() == Cantrip("local:b", circle=DONE_ONLY).id


def carved(parent: Cantrip, **request: Any) -> Cantrip:
    """The child that is granted."""
    child = carve(parent, AgentRequest(intent="x", **request))
    assert isinstance(child, Cantrip), child
    return child


def refused(parent: Cantrip, **request: Any) -> str:
    """Why the child is not granted."""
    child = carve(parent, AgentRequest(intent="x", **request))
    assert isinstance(child, Refused)
    return child.reason


DEEP = cantrip(max_turns(20), max_depth(3))


BOUNDS = st.fixed_dictionaries(
    {},
    optional={
        "max_gate_calls": st.integers(1, 200),
        "max_compute": st.floats(0.01, 60),
        "max_memory": st.integers(2**20, 2**30),
        "max_output": st.integers(1, 10**6),
    },
)


class TestCarve:
    def test_a_crystal_with_a_call_of_its_own_is_not_conditioned_by_the_parent(self) -> None:
        class Program:
            call = Call(require_done_tool=True)

            async def invoke(self, messages: Any) -> str:
                return "x"

        parent = Cantrip(
            "local:b", Call("You are terse", tool_choice="required"), DEEP.circle, crystals={"p": Program()}
        )
        assert carved(parent, crystal="p").call is Program.call
        assert carved(parent, crystal="p").requires_done
        assert carved(parent, crystal="p", system_prompt="Be brief").call.system_prompt == "Be brief"
        assert carved(parent).call is parent.call

    @pytest.mark.rule("COMP-1")
    def test_a_child_has_its_parents_gates_if_the_request_names_none(self) -> None:
        assert [*carved(DEEP).circle.open_gates] == [*DEEP.circle.open_gates]

    @pytest.mark.rule("COMP-1")
    @pytest.mark.parametrize(
        ("gates", "granted"),
        [
            ((), ["done"]),
            (("look", "echo"), ["look", "echo", "done"]),
            (("done", "echo"), ["done", "echo"]),
            (("echo", "echo"), ["echo", "done"]),
            (("call_entity",), ["call_agent", "done"]),
        ],
    )
    def test_a_child_gets_the_gates_it_requests_and_done(self, gates: tuple[str, ...], granted: list[str]) -> None:
        child = carved(DEEP, gates=gates)
        assert [*child.circle.open_gates] == granted
        assert len(child.circle.gates) == len(granted)

    @pytest.mark.rule("COMP-1")
    def test_a_child_cannot_get_a_gate_that_its_parent_lacks(self) -> None:
        assert refused(DEEP, gates=("echo", "fetch")).startswith('cannot grant gate "fetch"')

    @pytest.mark.rule("COMP-1", "CIRCLE-6")
    def test_a_child_cannot_get_a_gate_that_a_ward_removed_from_its_parent(self) -> None:
        parent = cantrip(max_turns(9), remove_gate("echo"))
        assert 'cannot grant gate "echo"' in refused(parent, gates=("echo",))
        assert "echo" not in carved(parent).circle.open_gates

    @pytest.mark.rule("COMP-1")
    def test_a_child_cannot_grant_gates_that_it_gave_up(self) -> None:
        child = carved(DEEP, remove_gates=("echo", "call_entity_batch"))
        assert {"echo", "call_agent_batch"}.isdisjoint(child.circle.open_gates)
        assert 'cannot grant gate "echo"' in refused(child, gates=("echo",))

    @pytest.mark.rule("COMP-1")
    def test_a_child_that_is_to_lack_an_unknown_gate_is_refused_with_the_names_there_are(self) -> None:
        text = refused(DEEP, remove_gates=("ecko",))
        assert text.startswith('cannot remove gate "ecko": the parent\'s gates are done')

    def test_a_child_cannot_give_up_done(self) -> None:
        assert "done" in carved(DEEP, remove_gates=("done",)).circle.open_gates

    @pytest.mark.rule("COMP-6", "D-009")
    def test_each_generation_is_one_level_less_deep_until_delegation_is_gone(self) -> None:
        made, depths = DEEP, []
        for _ in range(3):
            made = carved(made)
            depths.append(made.circle.resolved.depth)
        assert depths == [2, 1, 0]
        assert {"call_agent", "call_agent_batch"}.isdisjoint(made.circle.open_gates)
        assert "max_depth is 0" in refused(made)
        assert made.circle.as_json()["wards"]["max_depth"] == 0

    @pytest.mark.rule("D-009", "COMP-1")
    @given(
        st.fixed_dictionaries(
            {},
            optional={
                "max_turns": st.integers(1, 30),
                "max_depth": st.integers(0, 5),
                "timeout": st.floats(1, 30),
                "max_tokens": st.integers(1, 30),
                "require_done_tool": st.booleans(),
            },
        )
    )
    def test_the_wards_of_a_child_are_at_least_as_strict_as_its_parents(self, request_: dict[str, Any]) -> None:
        parent = cantrip(max_turns(20), max_depth(3), timeout(20), require_done_tool(False))
        wards = carved(parent, **request_).circle.resolved
        assert wards.max_turns == min(20, request_.get("max_turns", 20))
        assert wards.max_depth == min(2, request_.get("max_depth", 2))
        assert wards.timeout == min(20, request_.get("timeout", 20))
        assert wards.max_tokens == request_.get("max_tokens")
        assert wards.require_done_tool == request_.get("require_done_tool", False)

    @pytest.mark.rule("D-009", "COMP-1", "CIRCLE-6")
    @given(st.lists(BOUNDS, max_size=2), BOUNDS)
    def test_a_childs_program_bounds_are_the_minimum_of_all_ancestors(
        self, requests: list[dict[str, Any]], own: dict[str, Any]
    ) -> None:
        wards = [max_turns(20), max_depth(3), own] if own else [max_turns(20), max_depth(3)]
        made, asked = Cantrip("local:model", circle=Circle(GATES, wards, medium="python")), [own]
        for request_ in requests:
            made = carved(made, **request_)
            asked.append(request_)
        for name in ("max_gate_calls", "max_compute", "max_memory", "max_output"):
            said = [one[name] for one in asked if name in one]
            assert getattr(made.circle.resolved, name) == (min(said) if said else None)

    @pytest.mark.parametrize("name", ["max_compute", "max_memory", "max_output"])
    def test_program_wards_are_refused_for_a_child_without_programs(self, name: str) -> None:
        assert refused(DEEP, **{name: 2**20}).startswith(f"cannot narrow {name}: it bounds programs")

    @pytest.mark.parametrize(
        "request_",
        [
            {"max_compute": 0},
            {"max_compute": float("inf")},
            {"max_memory": 2**20 - 1},
            {"max_output": 0},
            {"max_gate_calls": 0},
            {"timeout": float("inf")},
        ],
    )
    def test_a_request_with_an_invalid_ward_value_is_refused(self, request_: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            AgentRequest(intent="x", **request_)

    def test_a_child_cannot_turn_off_require_done_tool(self) -> None:
        assert carved(cantrip(require_done_tool=True), require_done_tool=False).requires_done

    @pytest.mark.rule("COMP-7")
    def test_a_child_has_its_parents_call_unless_the_request_names_another_prompt(self) -> None:
        parent = cantrip(call=Call("You are terse", temperature=0.2))
        assert carved(parent).call is parent.call
        assert carved(parent, system_prompt="You are kind").call == Call("You are kind", temperature=0.2)

    @pytest.mark.rule("COMP-7")
    def test_a_child_gets_the_crystal_of_its_request_its_depth_or_its_parent(self) -> None:
        own, child, two, big = (Named(name) for name in ("own", "child", "two", "big"))
        plain = replace(DEEP, crystal=own)
        assert carved(plain).crystal is own
        with_child = replace(plain, child_crystal=child)
        assert carved(with_child).crystal is child
        assert carved(carved(with_child)).crystal is child
        by_depth = replace(with_child, crystals={2: two, "big": big})
        assert carved(by_depth).crystal is child
        assert carved(carved(by_depth)).crystal is two
        assert carved(carved(by_depth), crystal="big").crystal is big

    @pytest.mark.rule("COMP-7")
    def test_an_unknown_crystal_is_refused_with_the_known_names(self) -> None:
        parent = replace(DEEP, crystals={1: "local:b", "big": "local:c"})
        assert refused(parent, crystal="huge") == ('unknown crystal "huge": crystals that may be named here: big')
        assert refused(parent, crystal="1").endswith("here: big")
        assert refused(DEEP, crystal="huge").endswith("here: none")

    def test_a_child_has_one_level_less_and_its_parents_policies(self) -> None:
        parent = replace(DEEP, folding=Folding(3), retry=Retry(max_retries=1))
        child = carved(carved(parent))
        assert (child.level, child.folding, child.retry) == (2, Folding(3), Retry(max_retries=1))

    def test_these_tests_name_every_open_gate(self) -> None:
        assert {one if isinstance(one, str) else one.name for one in GATES} == {*DEEP.circle.open_gates}


class TestRetry:
    @pytest.mark.rule("D-006")
    def test_max_retries_are_attempts_after_the_first(self) -> None:
        retry = Retry(max_retries=2)
        assert [retry.delay(n, 429, None, 0.0) is None for n in (1, 2, 3)] == [False, False, True]
        assert Retry(max_retries=0).delay(1, 429, None, 0.0) is None

    @pytest.mark.rule("D-006", "PROD-2")
    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504, None])
    def test_retryable_failures_are_retried(self, status: int | None) -> None:
        assert Retry().delay(1, status, None, 0.0) == 0.5

    @pytest.mark.rule("D-006")
    @pytest.mark.parametrize("status", [400, 401, 403, 404, 418])
    def test_other_failures_are_not_retried(self, status: int) -> None:
        assert Retry().delay(1, status, None, 0.0) is None

    def test_delays_double_up_to_the_maximum(self) -> None:
        retry = Retry(max_retries=100)
        assert [retry.delay(n, None, None, 1.0) for n in (1, 2, 3, 7, 100)] == [1, 2, 4, 60, 60]

    @given(st.integers(1, 200), st.floats(0, 1), st.none() | st.floats(0, 1e6))
    def test_no_delay_is_longer_than_the_maximum_or_shorter_than_half(
        self, attempt: int, chance: float, after: float | None
    ) -> None:
        delay = Retry(max_retries=200).delay(attempt, 429, after, chance)
        assert delay is not None
        assert min(60, 2.0 ** (attempt - 1)) / 2 <= delay <= 60

    def test_the_wait_that_the_provider_asks_for_is_used_within_limits(self) -> None:
        retry = Retry()
        assert retry.delay(1, 429, 7.5, 0.0) == 7.5
        assert retry.delay(1, 429, 3600, 0.0) == 60
        assert retry.delay(1, 429, 0.0, 0.0) == 0.5

    @pytest.mark.parametrize(
        ("fields", "why"),
        [
            ({"max_retries": -1}, "max_retries: expected a whole number >= 0"),
            ({"max_retries": True}, "max_retries"),
            ({"base_delay": -1}, "0 <= base_delay <= max_delay"),
            ({"base_delay": 61}, "0 <= base_delay <= max_delay"),
            ({"base_delay": "1"}, "0 <= base_delay <= max_delay"),
            ({"base_delay": float("nan")}, "0 <= base_delay <= max_delay"),
            ({"retryable_status_codes": (429, 404)}, "404 cannot be retried"),
            ({"retryable_status_codes": ("429",)}, "'429' cannot be retried"),
        ],
    )
    def test_an_invalid_policy_is_refused(self, fields: dict[str, Any], why: str) -> None:
        with pytest.raises(InvalidCantrip, match=why):
            Retry(**fields)

    def test_status_codes_may_be_a_list(self) -> None:
        assert Retry(retryable_status_codes=[429]) == Retry(retryable_status_codes=(429,))


@pytest.mark.rule("Y-13")
class TestNames:
    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            (
                {"crystal": "antropic:claude-sonnet-4-5"},
                'crystal: no crystal family "antropic" .*did you mean "anthropic"',
            ),
            ({"crystal": "batch:antropic:claude-sonnet-4-5"}, 'no crystal family "antropic"'),
            ({"child_crystal": "opnai:gpt-5"}, 'child_crystal: no crystal family "opnai" .*did you mean "openai"'),
            ({"crystals": {"big": "opnai:gpt-5"}}, "crystals.'big'.: no crystal family"),
        ],
    )
    def test_an_unknown_family_is_refused_when_the_cantrip_is_made(self, parts: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidCantrip, match=message):
            Cantrip(**{"crystal": "anthropic:claude-sonnet-4-5", "circle": DONE_ONLY} | parts)
        with pytest.raises(InvalidCantrip, match="no crystal family"):
            Cantrip("local:b", circle=DONE_ONLY).with_crystal("nowhere:model")
        with pytest.raises(InvalidCantrip, match="no crystal family"):
            Folding(summary="nowhere:model")

    def test_the_families_that_may_be_named_are_those_that_can_be_made(self) -> None:
        assert set(FAMILIES) == FAMILY_NAMES


def test_a_cantrip_is_printed_without_what_has_its_default() -> None:
    circle = Circle(["done", "call_agent"], [max_turns(3), max_depth(1)])
    printed = repr(Cantrip("openai:gpt-5", Call(system_prompt="Be kind.", temperature=0), circle, name="desk"))
    gates = "Gate(name='done', kind='done'), Gate(name='call_agent', kind='delegate')"
    wards = "Ward(name='max_turns', value=3), Ward(name='max_depth', value=1)"
    assert printed == (
        "Cantrip(crystal='openai:gpt-5', call=Call(system_prompt='Be kind.', temperature=0), "
        f"circle=Circle(gates=({gates}), wards=({wards})), name='desk')"
    )
