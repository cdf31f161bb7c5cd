"""The payloads that a crystal emits: which are accepted, and what is wrong with the others."""

import pytest

from cantrip_actors.stream.wire import (
    AttemptFailed,
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalMessage,
    FinalReasoning,
    InvalidStreamEvent,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemId,
    ItemStart,
    ResponseDone,
    ResponseError,
    ResponseStart,
    StreamError,
    StreamUsage,
    as_wire,
    check_emitted,
)

ERROR = StreamError("RATE_LIMIT", "too many requests")

EVERY = [
    ResponseStart("model-1", "anthropic"),
    ItemStart("i", "message", "Hel"),
    ItemStart("i", "reasoning"),
    ItemStart("i", "function_call", name="search", call_id="c"),
    ItemStart("i", "function_call_output"),
    ItemDelta("i", ""),
    ItemDone("i", FinalMessage("Hello", "agent")),
    ItemDone("i", FinalReasoning("hm", "anthropic")),
    ItemDone("i", FinalFunctionCall("search", "c", {"query": "ü", "deep": {"n": [1, None]}, "large": 10**40})),
    ItemDone("i", FinalFunctionCallOutput("c", "nothing", is_error=False)),
    ItemError("i", ERROR),
    ItemCancelled("i"),
    ItemCancelled("i", "timeout"),
    ResponseDone("completed", "end_turn", usage=StreamUsage(10, 2, 4, 0)),
    ResponseDone("error", error=ERROR),
    ResponseError(ERROR),
    AttemptFailed(ERROR),
]


@pytest.mark.rule("U-01")
@pytest.mark.parametrize("payload", EVERY, ids=lambda payload: type(payload).__name__)
def test_each_payload_is_accepted(payload) -> None:
    check_emitted(payload)


@pytest.mark.rule("U-03")
@pytest.mark.parametrize(
    ("name", "call_id", "missing"),
    [(None, "c", "name"), ("", "c", "name"), ("n", None, "call_id"), ("n", "", "call_id")],
)
def test_a_function_call_starts_with_a_name_and_a_call_id(name, call_id, missing) -> None:
    with pytest.raises(InvalidStreamEvent, match=f"function_call requires a non-empty {missing}"):
        check_emitted(ItemStart("i", "function_call", name=name, call_id=call_id))


@pytest.mark.rule("U-03")
@pytest.mark.parametrize("kind", ["message", "reasoning", "function_call_output"])
def test_other_items_need_no_name_and_no_call_id(kind) -> None:
    check_emitted(ItemStart("i", kind))


@pytest.mark.rule("U-05")
@pytest.mark.parametrize("arguments", ['{"a": 1}', [1], None, 3], ids=repr)
def test_final_arguments_are_an_object(arguments) -> None:
    with pytest.raises(InvalidStreamEvent, match=r"finalItem\.arguments"):
        check_emitted(ItemDone("i", FinalFunctionCall("n", "c", arguments)))


@pytest.mark.rule("U-05")
@pytest.mark.parametrize(
    ("final", "path"),
    [
        (FinalMessage("x", "robot"), "origin"),
        (FinalReasoning("x", None), "providerId"),
        (FinalFunctionCallOutput("c", "x", "no"), "isError"),
        (FinalFunctionCallOutput("c", {}, True), "output"),
        ("text", "finalItem"),
        (None, "finalItem"),
    ],
)
def test_a_wrong_field_of_a_finished_item_is_named(final, path) -> None:
    with pytest.raises(InvalidStreamEvent, match=path):
        check_emitted(ItemDone("i", final))


@pytest.mark.rule("U-06")
@pytest.mark.parametrize("reason", ["because", "", 3])
def test_an_unknown_cancel_reason_is_refused(reason) -> None:
    with pytest.raises(InvalidStreamEvent, match="reason"):
        check_emitted(ItemCancelled("i", reason))


@pytest.mark.rule("U-06")
@pytest.mark.parametrize("reason", ["user_cancel", "timeout", "process_death"])
def test_the_three_cancel_reasons_are_accepted(reason) -> None:
    check_emitted(ItemCancelled("i", reason))


@pytest.mark.rule("U-07")
@pytest.mark.parametrize("status", ["completed", "cancelled", "error"])
@pytest.mark.parametrize("error", [None, ERROR])
def test_a_response_is_done_with_and_without_an_error(status, error) -> None:
    check_emitted(ResponseDone(status, error=error))


@pytest.mark.rule("U-08")
@pytest.mark.parametrize("value", [None, [], "x", 3, {}, {"type": "item_delta"}, FinalMessage("x", "agent")])
def test_a_value_that_is_not_a_payload_is_refused(value) -> None:
    with pytest.raises(InvalidStreamEvent, match=f"got {type(value).__name__}"):
        check_emitted(value)


@pytest.mark.rule("U-08")
@pytest.mark.parametrize("delta", [ItemDelta("0", 5), ItemDelta(None, "x")])
def test_a_delta_without_a_text_is_refused(delta) -> None:
    with pytest.raises(InvalidStreamEvent, match="ItemDelta"):
        check_emitted(delta)


@pytest.mark.parametrize("amount", [True, "3", None, []])
def test_usage_that_is_not_a_number_is_refused(amount) -> None:
    with pytest.raises(InvalidStreamEvent, match="inputTokens"):
        check_emitted(ResponseDone("completed", usage=StreamUsage(amount, 1)))


def test_the_wire_form_is_camel_case_without_absent_fields() -> None:
    assert as_wire(StreamUsage(10, 2, None, 4)) == {"inputTokens": 10, "outputTokens": 2, "cacheCreationInputTokens": 4}
    assert as_wire(ERROR) == {"code": "RATE_LIMIT", "message": "too many requests"}


def test_the_id_of_an_item_names_its_attempt_and_block() -> None:
    assert ItemId.parse(str(ItemId("t", 2, "call:c1")), "t") == ("t", 2, "call:c1")
    assert ItemId.parse("m", "t") is None
    assert ItemId.parse("t:x:0", "t") is None
