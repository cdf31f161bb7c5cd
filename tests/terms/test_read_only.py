"""`Gate.read_only`: how it is declared, where it is recorded, and that no content id depends on it (core.md, 8b)."""

import pytest

from cantrip_actors import Cantrip, Circle
from cantrip_actors.gates import gate, standard
from cantrip_actors.terms.done_gate import DONE
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.own_gates import CALL_AGENT
from cantrip_actors.wards import max_turns


@gate(idempotent=True)
async def lookup(name: str, limit: int = 5) -> list[str]:
    """Look a name up."""
    return [name] * limit


def test_a_content_id_does_not_depend_on_read_only():
    declared = Cantrip("local:b", circle=Circle(["done", lookup.with_(read_only=True)], [max_turns(3)]))
    assert declared.id == Cantrip("local:b", circle=Circle(["done", lookup], [max_turns(3)])).id


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
