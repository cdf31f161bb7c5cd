"""Content ids are the same in every version, because only what the user wrote is hashed."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import AnyUrl, BaseModel, Field
from typing_extensions import TypedDict

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


def _make_id(hint: Any, default: Any = ...) -> str:
    def act(x: Any) -> None:
        """Act."""

    act.__annotations__["x"] = hint
    if default is not ...:
        act.__defaults__ = (default,)
    return Cantrip("local:b", circle=Circle(["done", gate(act)], [max_turns(1)])).id


@pytest.mark.rule("C-42")
def test_a_content_id_tells_the_keys_of_a_default_apart_by_their_types() -> None:
    defaults = [{"1": "x"}, {1: "x"}, {1: "x", "2": "y"}, {"1": "x", "2": "y"}, {None: "x"}, {"None": "x"}]
    assert len({_make_id(Any, default) for default in defaults}) == len(defaults)
    assert _make_id(Any, {1: "x", "2": "y"}) == _make_id(Any, {"2": "y", 1: "x"})


class _Kind(Enum):
    RED = "red"


class _Label(str):
    __slots__ = ()


@dataclass
class _Place:
    x: int = 1


class _PlaceModel(BaseModel):
    x: int = 1


_DEFAULTS: list[list[Any]] = [
    [[1], (1,), {1}, frozenset({1}), {1: 1}],
    [_Kind.RED, "red", "_Kind.RED", _Label("red"), _Label("blue"), {"type": "_Kind", "content": "RED"}],
    [{"x": 1}, _Place(), _Place(2), _PlaceModel(), _PlaceModel(x=2), MappingProxyType({"x": 1})],
    [1, 1.0, True, "1", Decimal(1), Decimal(2), Fraction(1)],
    [
        date(2026, 1, 1),
        date(2026, 1, 2),
        datetime(2026, 1, 1, tzinfo=UTC),
        time(1),
        time(2),
        timedelta(1),
        timedelta(2),
    ],
    [
        b"a",
        b"b",
        PurePosixPath("a"),
        PurePosixPath("b"),
        re.compile("a"),
        re.compile("b"),
        re.compile("a", re.IGNORECASE),
    ],
    [
        *(UUID(int=number) for number in (1, 2)),
        *(read(f"0.0.0.{end}") for end in (1, 2) for read in (IPv4Address, IPv4Interface, IPv4Network)),
        *(read(f"::{end}") for end in (1, 2) for read in (IPv6Address, IPv6Interface, IPv6Network)),
        *(ZoneInfo(name) for name in ("Europe/Paris", "Europe/Rome")),
        *(AnyUrl(f"https://{name}.example") for name in "ab"),
    ],
    [len, max, int, str, "len", "int", {"type": "function", "name": "len"}],
]


@pytest.mark.rule("C-42")
@pytest.mark.parametrize("defaults", _DEFAULTS, ids=repr)
def test_a_content_id_tells_defaults_apart_by_their_types_and_contents(defaults: list[Any]) -> None:
    assert len({_make_id(Any, default) for default in defaults}) == len(defaults)


@pytest.mark.rule("C-42")
def test_a_content_id_does_not_depend_on_the_order_of_a_set() -> None:
    program = (
        "from tests.terms.test_content_ids import _make_id; "
        "print(_make_id(None, {frozenset({a + b for b in 'stuv'}) for a in 'abcdef'}))"
    )
    ids = set()
    for seed in "123":
        env = os.environ | {"PYTHONHASHSEED": seed}
        ids.add(subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True).stdout)
    assert len(ids) == 1


def _make_models() -> Iterator[type]:
    for described in (False, True):
        yield type("Order", (BaseModel,), {"__annotations__": {"items": list}, "__doc__": "An order." * described})
    for default in (Field(default_factory=list), Field(validation_alias="i"), Field(deprecated=True)):
        yield type("Order", (BaseModel,), {"__annotations__": {"items": list}, "items": default})
    yield type("Order", (BaseModel,), {"__annotations__": {"items": list}, "model_config": {"extra": "forbid"}})


@pytest.mark.rule("C-42")
def test_a_content_id_depends_on_all_that_the_crystal_sees_of_a_class() -> None:
    models = list(_make_models())
    places = [make_dataclass("Place", [("x", list, field(**default))]) for default in ({}, {"default_factory": list})]
    totals = [TypedDict("Total", {"x": int}, total=total) for total in (True, False)]  # type: ignore[operator, misc]
    pairs = [NamedTuple("Pair", [("x", int)]), NamedTuple("Pair", [("x", int)])]
    pairs[1]._field_defaults["x"] = 2  # type: ignore[attr-defined]
    for classes in (models, places, totals, pairs):
        assert len({_make_id(cls) for cls in classes}) == len(classes)


@pytest.mark.rule("C-42")
def test_a_content_id_tells_patterns_and_bounds_apart() -> None:
    patterns = [Annotated[str, Field(pattern=re.compile(text))] for text in ("a", "b")]
    bounds = [Annotated[Decimal, Field(ge=Decimal(text))] for text in ("1", "2")]
    choices = [Literal[_Kind.RED], Literal["_Kind.RED"]]
    for hints in (patterns, bounds, choices):
        assert len({_make_id(hint) for hint in hints}) == len(hints)
