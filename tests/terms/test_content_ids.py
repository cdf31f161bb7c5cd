"""Content ids are the same in every version, because only what the user wrote is hashed."""

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from cantrip_actors import Cantrip, Circle, gate
from cantrip_actors.terms import gate as gates
from cantrip_actors.terms.gate import Gate, standard
from cantrip_actors.wards import max_turns
from tests.terms.cantrips import Desk, cantrips, pay, search

pytestmark = pytest.mark.filterwarnings("ignore::cantrip_actors.LethalTrifecta")  # one circle has all standard gates

GOLDEN = Path(__file__).with_name("content_ids.json")


@pytest.mark.rule("C-42")
def test_the_content_ids_of_thirty_cantrips_are_the_same_in_every_release(tmp_path: Path) -> None:
    assert {what: one.id for what, one in cantrips(tmp_path).items()} == json.loads(GOLDEN.read_text())


@pytest.mark.rule("C-42")
def test_content_ids_of_different_cantrips_differ(tmp_path: Path) -> None:
    ids = {what: one.id for what, one in cantrips(tmp_path).items() if what != "a companion and retries"}
    assert len(set(ids.values())) == len(ids)


@pytest.mark.rule("C-42")
def test_a_content_id_does_not_depend_on_texts_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {what: one.id for what, one in cantrips(tmp_path).items()}
    for name, one in list(gates._standard.items()):
        parameters = {"type": "object", "properties": {"new": {}, **one.parameters["properties"]}}
        changed = {"description": f"Better: {one.description}", "parameters": parameters}
        monkeypatch.setitem(gates._standard, name, Gate(**{**_fields(one), **changed}))
    assert {what: one.id for what, one in cantrips(tmp_path).items()} == before


def _fields(one: Gate) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


@pytest.mark.rule("C-42")
def test_a_content_id_does_not_depend_on_the_schemas_of_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(function: Any) -> str:
        return Cantrip("local:b", circle=Circle(["done", gate(function)], [max_turns(1)])).id

    def plain(query: str, limit: int | None = None) -> str:
        """Look."""
        return query

    def other(count: Annotated[int, Field(ge=1)], pair: tuple[int, str] = (1, "a")) -> str:
        """Look."""
        return str(count)

    before = made(plain), made(other)
    other_schema = {"type": "object", "x-pydantic": 3}
    monkeypatch.setattr("cantrip_actors.terms.argument_model.strip_titles", lambda _: other_schema)
    assert (made(plain), made(other)) == before


@pytest.mark.rule("C-42")
def test_a_content_id_does_not_depend_on_names_dependencies_and_objects() -> None:
    def made(*parts: Any, **more: Any) -> str:
        return Cantrip("local:b", circle=Circle(["done", *parts], [max_turns(1)]), **more).id

    assert made(name="one") == made(name="two") == made()
    assert made(pay.with_(account="anna")) == made(pay.with_(account="bert"))
    assert made(Desk().answer) == made(Desk().answer)
    assert made(search) != made(search.with_(description="Other.")) != made(standard("echo"))


@pytest.mark.rule("C-42")
def test_a_content_id_depends_on_annotations_and_constraints() -> None:
    def made(hint: Any) -> str:
        def act(x: Any) -> None:
            """Act."""

        act.__annotations__["x"] = hint
        return Cantrip("local:b", circle=Circle(["done", gate(act)], [max_turns(1)])).id

    hints = [int, str, list[int], tuple[int], tuple[str], Annotated[int, Field(ge=1)], Annotated[int, Field(ge=2)]]
    assert len({made(hint) for hint in hints}) == len(hints)


@pytest.mark.rule("C-42")
def test_a_content_id_tells_the_keys_of_a_default_apart_by_their_types() -> None:
    def make_id(default: Any) -> str:
        def act(x: Any = default) -> None:
            """Act."""

        return Cantrip("local:b", circle=Circle(["done", gate(act)], [max_turns(1)])).id

    defaults = [{"1": "x"}, {1: "x"}, {1: "x", "2": "y"}, {"1": "x", "2": "y"}, {None: "x"}, {"None": "x"}]
    assert len({make_id(default) for default in defaults}) == len(defaults)
    assert make_id({1: "x", "2": "y"}) == make_id({"2": "y", 1: "x"})
