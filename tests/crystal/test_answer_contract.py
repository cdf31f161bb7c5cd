"""What a crystal's answer has to be, and what is asked if it is not."""

from __future__ import annotations

import pytest

from cantrip_actors.crystal.answer_contract import NotAsAsked, ask_again, read_answer
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.terms.messages import Invocation, Message, ToolDefinition

TOOLS = (ToolDefinition("read", "Reads.", {"type": "object"}), ToolDefinition("done", "Ends.", {"type": "object"}))
CALL = {"tool_calls": [{"id": "1", "gate": "read", "args": {}}]}


def put_question(choice: str | None) -> Invocation:
    return Invocation([Message("user", "Go.")], TOOLS, choice)


@pytest.mark.rule("CRYSTAL-3")
@pytest.mark.parametrize("choice", [None, "auto", "required", "none"])
def test_an_answer_without_content_and_calls_is_an_error_for_every_tool_choice(choice: str | None) -> None:
    with pytest.raises(CrystalError, match="neither content nor tool_calls"):
        read_answer({"content": ""}, put_question(choice))


@pytest.mark.rule("CRYSTAL-5")
@pytest.mark.parametrize(
    ("choice", "answer", "wanted", "advice"),
    [
        ("required", "words", "call at least one of read, done", "a crystal that can be made to call"),
        ("gate:done", CALL, "a call of done is required", "a crystal that can be made to call"),
        ("none", CALL, "answer in words", "a crystal that can be kept from calling"),
    ],
)
def test_an_answer_against_tool_choice_is_quoted_with_what_is_wanted(
    choice: str, answer: object, wanted: str, advice: str
) -> None:
    question = put_question(choice)
    with pytest.raises(NotAsAsked) as raised:
        read_answer(answer, question)

    again = ask_again(question, raised.value)
    assert [message.role for message in again.messages] == ["user", "assistant", "user"]
    assert wanted in str(again.messages[-1].content)
    assert advice in raised.value.advice
    assert raised.value.advice.endswith("(tools: read, done)")


@pytest.mark.rule("CRYSTAL-5")
@pytest.mark.parametrize(
    ("choice", "answer"),
    [(None, "words"), ("auto", CALL), ("required", CALL), ("gate:read", CALL), ("none", "words")],
)
def test_an_answer_that_follows_tool_choice_is_returned(choice: str | None, answer: object) -> None:
    response = read_answer(answer, put_question(choice))
    assert bool(response.tool_calls) == (answer is CALL)
