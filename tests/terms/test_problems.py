"""Descriptions of invalid arguments, in terms of JSON."""

from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, Field

from cantrip_actors.terms import errors
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.messages import ToolCall
from cantrip_actors.terms.own_gates import CALL_AGENT, CALL_AGENT_BATCH
from cantrip_actors.terms.wrapping import Refused


@gate
async def find(query: str, limit: int | str = 5, where: dict[str, int] | None = None) -> str:
    """Find."""
    return ""


def check_code(code: str) -> str:
    if not code.startswith("DE"):
        raise ValueError("a code begins with DE")
    return code


@gate
async def move(
    side: Literal["North", "South"] = "North",
    code: Annotated[str, AfterValidator(check_code)] = "DE1",
    key: Annotated[str, Field(pattern="^[A-Z]+$")] = "A",
) -> str:
    """Move."""
    return ""


def refused(one: Gate, **args: object) -> str:
    found = one.check(ToolCall("1", one.name, args))
    assert isinstance(found, Refused)
    return found.reason.partition("; expected ")[0]


@pytest.mark.rule("CIRCLE-5")
@pytest.mark.parametrize(
    ("one", "args", "said"),
    [
        (
            CALL_AGENT_BATCH,
            {"intents": [{"intnt": "a"}]},
            'missing required argument "intents.0.intent"; unexpected argument "intents.0.intnt"',
        ),
        (
            CALL_AGENT_BATCH,
            {"intents": ["a", 5]},
            (
                'argument "intents.1": input should be an object, got 5; '
                'argument "intents.1": input should be a valid string, got 5'
            ),
        ),
        (CALL_AGENT_BATCH, {"intents": []}, 'argument "intents": list should have at least 1 item, not 0, got []'),
        (CALL_AGENT_BATCH, {"intents": "a"}, "argument \"intents\": input should be a valid list, got 'a'"),
        (CALL_AGENT_BATCH, {}, 'missing required argument "intents"'),
        (
            CALL_AGENT_BATCH,
            {"intents": [{"intent": "a", "gates": "x"}]},
            "argument \"intents.0.gates\": input should be a valid list, got 'x'",
        ),
        (CALL_AGENT, {"intent": "a", "gates": "x"}, "argument \"gates\": input should be a valid list, got 'x'"),
        (
            find,
            {"query": "x", "limit": 1.5},
            'argument "limit": input should be a valid integer, got a number with a fractional part, got 1.5',
        ),
        (
            find,
            {"query": "x", "where": {"a": "b"}},
            "argument \"where.a\": input should be a valid integer, unable to parse string as an integer, got 'b'",
        ),
        (move, {"side": "north"}, "argument \"side\": input should be 'North' or 'South', got 'north'"),
        (move, {"code": "fr1"}, "argument \"code\": value error, a code begins with DE, got 'fr1'"),
        (move, {"key": "a"}, "argument \"key\": string should match pattern '^[A-Z]+$', got 'a'"),
        (find, {"limt": 1}, 'missing required argument "query"; unexpected argument "limt"'),
    ],
)
def test_a_problem_is_described_in_terms_of_json(one: Gate, args: dict[str, object], said: str) -> None:
    assert refused(one, **args) == f"{one.name}: {said}"


def test_a_wrong_name_of_any_length_is_compared_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(errors.difflib, "get_close_matches", lambda word, *_, **__: compared.append(word) or [])
    errors.suggest_nearest("ab" * 1_000_000, ["alpha"])
    errors.find_nearest("ab" * 1_000_000, ["alpha"])
    assert compared == ["ab" * 32] * 2
