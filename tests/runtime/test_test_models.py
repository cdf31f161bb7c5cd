"""Models for tests: one that does anything, one that obeys, stand-ins, and the refusal of real queries."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from itertools import product
from typing import Annotated, Any, Literal

import anyio
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from cantrip_actors import Cantrip, Circle, CrystalError, InvalidCantrip, Runtime, gate, scripted
from cantrip_actors.crystal.testing import FaultyServer, Reply
from cantrip_actors.crystals import local, openai
from cantrip_actors.terms.gate import Refused
from cantrip_actors.terms.messages import ToolCall
from cantrip_actors.testing import RealQuery, obedient, refuse_real_queries, replace, virtual, wild
from cantrip_actors.testing.json_values import make_value, make_values
from cantrip_actors.wards import max_turns
from tests.crystal.test_client import body

pytestmark = pytest.mark.rule("Y-41")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str = Field(min_length=3)
    number: int = Field(gt=0)
    former: list[Address] = Field(default=[], max_length=2)


calls: list[dict[str, Any]] = []


@gate
async def order(
    what: Annotated[str, Field(min_length=2, max_length=9)],
    count: Annotated[int, Field(ge=1, le=5)],
    to: Address,
    colours: Annotated[list[Colour], Field(min_length=1)],
    way: Literal["post", "courier"],
    price: Annotated[float, Field(gt=0)] | None = None,
) -> str:
    """Order something."""
    calls.append({"what": what, "count": count, "to": to, "colours": colours, "way": way, "price": price})
    return "ordered"


@gate
async def look() -> str:
    """Look around."""
    calls.append({})
    return "nothing"


CIRCLE = Circle(["done", order, look], [max_turns(8)])


@settings(max_examples=30)
@given(st.lists(wild(CIRCLE), min_size=1, max_size=6), st.sampled_from(["asyncio", "trio"]))
def test_an_entity_survives_whatever_a_wild_model_answers(answers: list[dict[str, Any]], name: str) -> None:
    async def cast() -> None:
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.start(Cantrip(scripted([*answers, "end"] * 9), circle=CIRCLE), "go")
            with suppress(CrystalError):  # the answers said nothing, again and again
                assert (await entity.episode()).reason

    backend, options = virtual(name)
    anyio.run(cast, backend=backend, backend_options=options)


def test_wild_answers_have_all_that_a_model_may_do_wrong() -> None:
    seen: set[str] = set()

    @settings(max_examples=150, database=None)
    @given(wild(CIRCLE))
    def look_at(answer: dict[str, Any]) -> None:
        made = answer.get("tool_calls", [])
        seen.update(call["gate"] for call in made)
        if len(made) > 1:
            seen.add("several")
        if not answer.get("content", "x").strip():
            seen.add("blank")
        for call in made:
            if call["gate"] == "order":
                seen.add("wrong" if isinstance(order.check(ToolCall("1", "order", call["args"])), Refused) else "right")

    look_at()
    assert seen >= {"done", "order", "look", "no_such_gate", "several", "blank", "right", "wrong"}


@pytest.mark.parametrize("step", [1, 2, 7])
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_a_number_fits_its_bounds_if_one_does(kind: str, step: int) -> None:
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    for bounds in product((None, -8, 1, 5), (None, -3, 6), (None, 0, 5), (None, 1, 7)):
        least, most, above, below = bounds

        def fits(number: float, least=least, most=most, above=above, below=below) -> bool:  # type: ignore[no-untyped-def]
            is_within = (least is None or number >= least) and (most is None or number <= most)
            return is_within and (above is None or number > above) and (below is None or number < below)

        if any(map(fits, range(-28, 29, step))):
            schema = {name: bound for name, bound in zip(names, bounds, strict=True) if bound is not None}
            number = make_value({"type": kind, **schema, **({"multipleOf": step} if step > 1 else {})})
            assert fits(number), schema
            assert number % step == 0 or (kind, step) == ("number", 1), schema


@given(make_values({"type": "integer", "minimum": 5, "exclusiveMinimum": 0, "maximum": 9, "exclusiveMaximum": 9}))
def test_a_drawn_number_fits_the_narrowest_of_its_bounds(number: int) -> None:
    assert 5 <= number < 9


async def test_an_obedient_model_calls_each_gate_once_with_arguments_that_fit() -> None:
    calls.clear()
    async with Runtime.open("memory:") as runtime:
        crystal = obedient(CIRCLE)
        assert (await runtime.cast(Cantrip(crystal, circle=CIRCLE), "go")).terminated
        assert (await runtime.cast(Cantrip(crystal, circle=CIRCLE), "again")).terminated
    assert len(calls) == 4
    first = calls[0]
    assert (first["what"], first["count"], first["way"], first["colours"]) == ("text", 1, "post", [Colour.RED])
    assert first["to"] == Address(street="text", number=1)


async def test_an_obedient_model_calls_gates_on_demand_once() -> None:
    circle = Circle(["done"], [max_turns(5)], on_demand=[order, look])
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(obedient(circle), circle=circle), "go")
    named = [(call.gate, call.is_error) for turn in episode.thread for call in turn.gate_calls]
    assert named == [("find_gates", False), ("order", False), ("look", False), ("done", False)]


def test_a_circle_that_runs_programs_has_no_obedient_model() -> None:
    with pytest.raises(InvalidCantrip, match="expected a circle of tools, got one that runs programs in python"):
        obedient(Circle(["done"], [max_turns(2)], medium="python"))


QUOTING = Cantrip(openai("gpt-5", api_key="k"), circle=Circle(["done"], [max_turns(2)]))


async def test_a_stand_in_answers_for_a_real_crystal_in_a_whole_application() -> None:
    async def quote(_request: Any) -> JSONResponse:
        async with Runtime.open("memory:") as runtime:
            return JSONResponse({"quote": (await runtime.cast(QUOTING, "tea?")).result})

    app = Starlette(routes=[Route("/quote", quote)])
    with refuse_real_queries(), replace("openai:gpt-5", scripted(["ten crowns"])):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            assert (await client.get("/quote")).json() == {"quote": "ten crowns"}


async def test_a_query_to_a_provider_is_refused_and_says_what_to_do() -> None:
    with refuse_real_queries():
        async with Runtime.open("memory:") as runtime:
            with pytest.raises(CrystalError, match=r"a query to api\.openai\.com was refused") as refused:
                await runtime.cast(QUOTING, "tea?")
            assert isinstance(refused.value, RealQuery)
            with pytest.raises(RealQuery, match=r"replace its crystal with testing\.replace"):
                await runtime.cast(QUOTING, "milk?")


async def test_a_query_is_refused_without_a_key_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with refuse_real_queries():
        async with Runtime.open("memory:") as runtime:
            with pytest.raises(RealQuery):
                await runtime.cast(Cantrip("openai:gpt-5", gates=[], max_turns=2), "tea?")


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_stand_in_for_a_crystal_without_a_valid_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidCantrip, match="replace: expected the name of a crystal"), replace(name, scripted([])):
        pass


@pytest.mark.real_time
@pytest.mark.parametrize("stand_in", [None, 5, "nofamily:x", object()])
def test_a_stand_in_that_is_not_a_crystal_is_refused(stand_in: Any) -> None:
    with pytest.raises(InvalidCantrip, match="stand_in: "), replace("openai:gpt-5", stand_in):
        raise AssertionError


async def test_a_server_on_this_machine_is_no_provider() -> None:
    async with FaultyServer([Reply(body("local"))]) as server, local(server.url, "m") as model:
        with refuse_real_queries():
            async with Runtime.open("memory:") as runtime:
                episode = await runtime.cast(Cantrip(model, circle=Circle(["done"], [max_turns(2)])), "go")
    assert episode.thread


async def test_stand_ins_and_refusals_end_with_their_block() -> None:
    first, second = scripted(["first"] * 3), scripted(["second"])
    with replace("openai:gpt-5", first):
        with replace("openai:gpt-5", second):
            assert await _ask() == "second"
        assert await _ask() == "first"
    with refuse_real_queries(), pytest.raises(RealQuery):
        await _ask()


async def _ask() -> Any:
    async with Runtime.open("memory:") as runtime:
        return (await runtime.cast(QUOTING, "tea?")).result


class Node(BaseModel):
    share: Annotated[float, Field(gt=0, le=0.3)]
    weight: Annotated[int, Field(gt=1, lt=3)]
    steps: Annotated[int, Field(gt=0, multiple_of=5)]
    next: Node | None


@gate
async def walk(node: Node) -> str:
    """Walk along nodes that contain each other."""
    calls.append({"node": node})
    return "walked"


WALK = Circle(["done", walk], [max_turns(4)])


async def test_an_obedient_model_keeps_to_narrow_bounds_and_ends_schemas_that_contain_themselves() -> None:
    calls.clear()
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(obedient(WALK), circle=WALK), "go")
    assert episode.thread[0].observation == "walked"
    assert (calls[0]["node"].weight, calls[0]["node"].steps) == (2, 5)


@settings(max_examples=30)
@given(wild(WALK))
def test_wild_answers_are_made_of_schemas_that_contain_themselves(answer: dict[str, Any]) -> None:
    assert answer.keys() <= {"content", "tool_calls"}
