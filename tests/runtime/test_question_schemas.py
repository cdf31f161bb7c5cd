"""Schemas that a model writes for the answers of people: whatever they hold, they cost little to check."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any

import anyio
import anyio.to_thread
import pytest

from cantrip_actors import Cantrip, Circle, InvalidDecision, Runtime, scripted
from cantrip_actors.terms.json_schema import LARGEST, find_excess, find_misfits, find_schema_fault
from cantrip_actors.wards import max_turns
from tests.runtime.spells import done, say

pytestmark = [pytest.mark.rule("V-36"), pytest.mark.thread_rate(0.01)]


def nest(levels: int) -> dict[str, Any]:
    return {"items": nest(levels - 1)} if levels else {}


def double(levels: int) -> dict[str, Any]:
    """Return a schema whose references double at each level."""
    definitions = {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/0", "$defs": {**definitions, str(levels): {"type": "string"}}}


async def ask(schema: dict[str, Any], answer: object) -> str:
    """Return what an entity observes that asks for an answer of this schema."""
    question = say("question", text="?", schema=schema)
    crystal = scripted(lambda context: done(context[-1].content) if context[-1].role == "tool" else question)
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(Cantrip(crystal, circle=Circle(["done", "question"], [max_turns(3)])), "go")
        with anyio.move_on_after(1):
            async with runtime.requests(follow=True) as feed:
                request = await anext(aiter(feed))
                await runtime.decide(request.id, answer=answer, by="ada")
        return str((await entity.episode()).result)


@pytest.mark.parametrize(
    ("schema", "observed"),
    [
        pytest.param({"type": "string"}, "an answer", id="ordinary"),
        pytest.param({"pattern": "^(a+)+$"}, "an answer", id="a pattern that backtracks"),
        pytest.param({"pattern": "(?i)" + "[\x01-\U0010ffff]" * 400}, "an answer", id="a pattern that compiles slowly"),
        pytest.param({"pattern": "["}, "an answer", id="no pattern"),
        pytest.param({"patternProperties": {"(a+)+$": {}}}, "an answer", id="patterns of names"),
        pytest.param({"properties": {str(n): {} for n in range(LARGEST)}}, "more than 100 objects", id="many"),
        pytest.param({"enum": ["x" * 20_001]}, "more than 100 objects and lists, or 20,000", id="long"),
        pytest.param(nest(98), "an answer", id="deep"),
        pytest.param(nest(150), "more than 100 levels", id="too deep"),
        pytest.param({"type": 5}, "expected a JSON Schema", id="no schema"),
    ],
)
async def test_a_question_with_a_costly_schema_is_asked_without_its_patterns_or_refused(
    schema: dict[str, Any], observed: str
) -> None:
    assert observed in await ask(schema, "an answer")


async def test_an_answer_that_doubling_references_never_settle_is_refused_at_once() -> None:
    with pytest.raises(Exception, match="checking takes more than 100,000 steps"):
        await ask(double(19), "an answer")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"anyOf": [{"type": "string"}] * 90}},
        {"type": "array", "items": {"allOf": [{"type": "integer"}] * 90}},
        {"type": "array", "items": {"enum": list(range(2, 4_000))}},
        {"type": "array", "contains": {"const": 2}, "maxContains": 0},
        {"anyOf": [{"type": "object"}] * 90},
        {"required": [str(n) for n in range(2_000)], "type": "object"},
    ],
    ids=["alternatives", "all of", "enum", "contains", "long messages", "names"],
)
@pytest.mark.rule("Z-02")
def test_a_check_of_a_large_value_ends_after_a_bounded_number_of_steps_and_a_short_text(schema: dict[str, Any]) -> None:
    began = thread_time()
    problems = find_misfits([1] * 100_000, schema, foreign=True)
    assert problems
    assert thread_time() - began < 5  # minutes without the bound
    assert sum(map(len, problems)) < 12_000


async def test_an_error_about_an_answer_shows_a_schema_with_huge_numbers() -> None:
    with pytest.raises(InvalidDecision, match="is not of type 'integer'; expected a value that fits the schema"):
        await ask({"type": "integer", "maximum": 10**4_000}, "an answer")


@pytest.mark.parametrize("value", [7, None, True, 0.5])
def test_a_schema_of_very_many_values_is_refused(value: object) -> None:
    assert find_excess({"enum": [value] * 4_000}) is None
    assert "ask for less at once" in str(find_excess({"enum": [value] * 6_000}))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {str(n): {"type": "string", "pattern": "^a+$"} for n in range(LARGEST - 2)}},
        {"allOf": [{"type": "string"}] * (LARGEST - 2)},
        {"enum": ["x" * 19_000]},
        {"patternProperties": {f"(?i)[\x01-\U0010ffff]{n}": {} for n in range(LARGEST - 2)}},
    ],
    ids=["properties", "all of", "enum", "patterns of names"],
)
def test_the_largest_schema_of_a_question_is_checked_in_little_time(schema: dict[str, Any]) -> None:
    find_schema_fault({}, foreign=True)
    began = time.thread_time()
    assert find_excess(schema) is None
    assert find_schema_fault(schema, foreign=True) is None
    assert time.thread_time() - began < 0.25, "it takes 30 ms on a machine with nothing else to do"


@contextmanager
def borrow_all_threads() -> Iterator[None]:
    """Occupy all threads of the service, as if each of them waited for the runtime."""
    limiter, borrowers = anyio.to_thread.current_default_thread_limiter(), list[object]()
    while limiter.available_tokens:
        borrowers.append(object())
        limiter.acquire_on_behalf_of_nowait(borrowers[-1])
    try:
        yield
    finally:
        for borrower in borrowers:
            limiter.release_on_behalf_of(borrower)


async def test_a_question_is_checked_while_all_threads_of_the_service_wait_for_the_runtime() -> None:
    with borrow_all_threads(), anyio.fail_after(60):
        assert await ask({"type": "integer"}, 3) == "3"
