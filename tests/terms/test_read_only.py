"""`Gate.read_only`: how it is declared, where it is recorded, and that no content id depends on it (core.md, 8b)."""

from typing import Any

import pytest

from cantrip_actors import Call, Cantrip, Circle, Folding
from cantrip_actors.gates import gate, standard, wrap
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.own_gates import CALL_AGENT, DONE
from cantrip_actors.wards import max_tokens, max_turns, remove_gate, timeout


@gate(idempotent=True)
async def lookup(name: str, limit: int = 5) -> list[str]:
    """Look a name up."""
    return [name] * limit


def check(call: Any) -> None:
    """A step that lets every call through."""


def files(*names: str) -> list[Gate]:
    return [standard(name).with_(root="/") for name in names]


GOLDEN = {
    "2a6b0e7860d68809": Cantrip("a:b", circle=Circle(["done"], [max_turns(3)])),
    "13666941fdbbe1f4": Cantrip(
        "a:b",
        call=Call(
            system_prompt="Be terse.", temperature=0.5, stop="END", options={"seed": 7, "metadata": {"k": [1, 2]}}
        ),
        circle=Circle(
            ["done", *files("read", "list", "search", "write"), "fetch", "echo"], [max_turns(3), remove_gate("fetch")]
        ),
    ),
    "271e721551d9a275": Cantrip(
        "a:b",
        Call("You lead."),
        Circle(
            ["done", "call_agent", lookup, wrap("echo", pre=[check], name="checked")],
            [max_tokens(1000)],
            medium="python",
        ),
        child_crystal="c:d",
        crystals={"small": "e:f", 1: "g:h"},
        folding=Folding(trigger_after_turns=4),
        require_done_tool=True,
    ),
    "44afe24b07f132b7": Cantrip(
        "a:b",
        circle=Circle(
            [
                "done",
                Gate.of(None, name="far", parameters={"type": "object", "properties": {"x": {"type": "integer"}}}),
            ],
            [timeout(3)],
        ),
    ),
}
"""Cantrips and the content ids that they had before gates could be declared read-only."""


@pytest.mark.parametrize("golden", GOLDEN)
def test_content_ids_of_existing_cantrips_do_not_change(golden):
    assert GOLDEN[golden].id == golden


def test_a_content_id_does_not_depend_on_read_only():
    declared = Cantrip("a:b", circle=Circle(["done", lookup.with_(read_only=True)], [max_turns(3)]))
    assert declared.id == Cantrip("a:b", circle=Circle(["done", lookup], [max_turns(3)])).id


def test_a_gate_is_not_read_only_by_default():
    assert not any(one.read_only for one in (DONE, CALL_AGENT, lookup, standard("write")))


@pytest.mark.parametrize("name", ["read", "list", "search", "fetch", "echo"])
def test_standard_gates_that_change_nothing_are_read_only(name):
    assert standard(name).read_only


def test_a_gate_is_declared_read_only_in_each_way_that_makes_one():
    @gate(read_only=True)
    def decorated(x: int) -> int:
        return x

    given = Gate.of(None, name="far", read_only=True)
    changed = lookup.with_(read_only=True)
    assert [one.read_only for one in (decorated, given, changed)] == [True, True, True]


def test_read_only_can_be_turned_off():
    assert not standard("read").with_(read_only=False).read_only


def test_the_header_has_read_only_only_if_it_is_set():
    gates = Circle(["done", "echo", lookup], [max_turns(3)]).as_json()["gates"]
    assert {one["name"]: one.get("read_only") for one in gates} == {"done": None, "echo": True, "lookup": None}
