"""The short forms of a cantrip's parts, in Python; `tests/recipes` has those of recipes."""

from typing import Annotated, Any

import pytest
from annotated_types import Gt

from cantrip_actors import Call, Cantrip, Circle, InvalidCantrip, ask_first, gate, wrap
from cantrip_actors.wards import max_turns, remove_gate

pytestmark = pytest.mark.rule("Y-10")


@gate
def search(query: str) -> str:
    """Search the notes."""
    return query


@gate
def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


def test_a_cantrip_in_short_forms_is_the_one_in_parts() -> None:
    short = Cantrip("local:b", system="You are terse.", gates=[search, ask_first(pay)], max_turns=8)
    long = Cantrip("local:b", Call("You are terse."), Circle(["done", search, ask_first(pay)], [max_turns(8)]))
    assert (short.id, short.call, short.circle) == (long.id, long.call, long.circle)


@pytest.mark.parametrize(
    ("gates", "names"),
    [
        ([], ["done"]),
        ([search], ["done", "search"]),
        ([search, "done"], ["search", "done"]),
        ((part for part in (search,)), ["done", "search"]),
        ([wrap("done", pre=[lambda call: None])], ["done"]),
    ],
)
def test_done_is_added_once(gates: Any, names: list[str]) -> None:
    assert [gate.name for gate in Cantrip("local:b", gates=gates, max_turns=8).circle.gates] == names


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"call": Call(), "system": "You are terse."}, "system is short for"),
        ({"circle": Circle(["done"], [max_turns(8)]), "gates": [search]}, "gates is short for"),
        ({"circle": Circle(["done"], [max_turns(8)]), "max_turns": 8}, "max_turns is short for"),
        ({"circle": Circle([gate(name="done")(search.function)], [max_turns(8)]), "answer": int}, "leave out one"),
        ({"gates": [search]}, "at least one truncation ward"),
        ({"gates": [search], "max_turns": 0}, "max_turns"),
        ({"gates": [search, search], "max_turns": 8}, 'two gates are called "search"'),
        ({"gates": ["saerch"], "max_turns": 8}, 'did you mean "search"'),
        ({"gates": "search", "max_turns": 8}, "circle: gates: expected a list"),
        ({"max_turns": 8, "system": 7}, "system_prompt: expected text"),
        ({"system": "You are terse."}, "cantrip requires a circle"),
        ({"answer": int}, "cantrip requires a circle"),
        ({"answer": "int", "max_turns": 8}, "answer: expected a type"),
        ({"answer": lambda: 7, "max_turns": 8}, "answer: expected a type, such as"),
        ({"answer": len, "max_turns": 8}, "answer: expected a type, such as"),
        ({"answer": 7, "max_turns": 8}, "answer: expected a type that pydantic can validate, got '?7"),
        ({"answer": object(), "max_turns": 8}, "answer: expected a type that pydantic can validate"),
        ({"answer": {"total": 1}, "max_turns": 8}, "a dict, such as a JSON Schema, is not a type"),
        ({"answer": {"type": "int"}, "max_turns": 8}, "a dict, such as a JSON Schema, is not a type"),
        ({"answer": list[{"a": 1}], "max_turns": 8}, "a dict, such as a JSON Schema, is not a type"),  # type: ignore[misc]  # noqa: F821
    ],
)
def test_short_forms_keep_the_rules_of_the_parts(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCantrip, match=message):
        Cantrip("local:b", **parts)


@pytest.mark.rule("CIRCLE-1")
def test_an_answer_type_does_not_bring_back_a_done_gate_that_a_ward_removes() -> None:
    with pytest.raises(InvalidCantrip, match="must have a done gate"):
        Cantrip("local:b", circle=Circle(["done"], [max_turns(8), remove_gate("done")]), answer=int)


@pytest.mark.rule("Y-11")
def test_the_type_of_the_answers_is_a_part_of_the_cantrips_content() -> None:
    ids = [
        Cantrip("local:b", max_turns=8, answer=answer).id
        for answer in (None, int, str, list[int], Annotated[int, Gt(0)])
    ]
    assert len(set(ids)) == len(ids)
    assert Cantrip("local:b", max_turns=8, answer=list[int]).id == ids[3]
