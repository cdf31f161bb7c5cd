"""The canonical events: their wire format, and refused events."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.stream import wire as stream
from cantrip_actors.stream.wire import (
    Envelope,
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalMessage,
    FinalReasoning,
    InvalidStreamEvent,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemStart,
    Parent,
    ResponseDone,
    ResponseError,
    ResponseStart,
    Step,
    StreamError,
    StreamUsage,
)

FRAME = {"eventId": "e", "timestamp": "2026-02-16T08:00:00.000Z", "turnId": "t", "sessionId": "s"}
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
    ItemDone("i", FinalFunctionCall("search", "c", {"query": "ü", "deep": {"n": [1, None]}})),
    ItemDone("i", FinalFunctionCallOutput("c", "nothing", is_error=False)),
    ItemError("i", ERROR),
    ItemCancelled("i"),
    ItemCancelled("i", "timeout"),
    ResponseDone("completed", "end_turn", usage=StreamUsage(10, 2, 4, 0)),
    ResponseDone("error", error=ERROR),
    ResponseDone("completed", step=Step(3, terminated=True, result={"answer": 42, "large": 10**40})),
    ResponseError(ERROR),
]


def wire(payload: dict[str, object], **changed: object) -> dict[str, object]:
    return {**FRAME, "type": payload.get("type"), "payload": payload, **changed}


def problems(value: object) -> dict[str, str]:
    with pytest.raises(InvalidStreamEvent) as caught:
        Envelope.parse(value)
    return dict(caught.value.problems)


@pytest.mark.rule("U-01")
@pytest.mark.parametrize("payload", EVERY, ids=lambda p: p.type)
def test_each_event_survives_json(payload) -> None:
    made = Envelope("e", "2026-02-16T08:00:00.000Z", "t", "s", payload)
    assert Envelope.from_json(made.to_json()) == made
    assert made.type == payload.type


@pytest.mark.rule("U-01")
def test_the_events_of_these_tests_have_all_eight_types() -> None:
    assert {payload.type for payload in EVERY} == set(stream.EventType.__args__)


@pytest.mark.rule("U-01")
def test_wire_fields_are_camel_case_and_absent_ones_are_left_out() -> None:
    made = Envelope("e", "2026-02-16T08:00:00Z", "t", "s", ItemStart("i", "function_call", name="search", call_id="c"))
    assert made.as_wire() == {
        "eventId": "e",
        "timestamp": "2026-02-16T08:00:00Z",
        "turnId": "t",
        "sessionId": "s",
        "type": "item_start",
        "payload": {
            "type": "item_start",
            "itemId": "i",
            "itemType": "function_call",
            "name": "search",
            "callId": "c",
        },
    }


@pytest.mark.rule("U-61")
def test_an_envelope_keeps_its_parent() -> None:
    made = Envelope("e", "2026-02-16T08:00:00Z", "t", "child", ResponseStart("m", "p"), Parent("root", "turn-3"))
    assert made.as_wire()["parent"] == {"sessionId": "root", "turnId": "turn-3"}
    assert Envelope.from_json(made.to_json()) == made


@pytest.mark.rule("U-01")
def test_unknown_keys_are_dropped_and_empty_strings_are_fine() -> None:
    read = Envelope.parse(wire({"type": "item_delta", "itemId": "", "deltaContent": "", "extra": 1}, eventId="", x=2))
    assert read.payload == ItemDelta("", "")
    assert read.event_id == ""


@pytest.mark.rule("U-02")
def test_a_type_that_differs_from_the_payloads_is_an_error() -> None:
    delta = {"type": "item_delta", "itemId": "i", "deltaContent": "x"}
    assert problems(wire(delta, type="item_start")) == {"type": "Envelope type must match payload.type"}


@pytest.mark.rule("U-03")
@pytest.mark.parametrize("given", [{}, {"name": "", "callId": ""}, {"name": None, "callId": None}])
def test_a_function_call_starts_with_a_name_and_a_call_id(given) -> None:
    start = {"type": "item_start", "itemId": "i", "itemType": "function_call", **given}
    assert problems(wire(start)) == {
        "payload.name": "function_call requires a non-empty name",
        "payload.callId": "function_call requires a non-empty callId",
    }


@pytest.mark.rule("U-03")
def test_other_items_need_no_name_and_no_call_id() -> None:
    for kind in ("message", "reasoning", "function_call_output"):
        assert Envelope.parse(wire({"type": "item_start", "itemId": "i", "itemType": kind})).payload.item_type == kind


@pytest.mark.rule("U-04")
@pytest.mark.parametrize(
    "stamp",
    [
        "2026-02-16T08:00:00+00:00",
        "2026-02-16",
        "2026-02-16T08:00:00",
        "2026-02-16 08:00:00Z",
        "2026-02-30T08:00:00Z",
        "2026-02-16T25:00:00Z",
        "2026-02-16T08:00:00z",
        "2026-02-16T08:00:00Z\n",
        "٢٠٢٦-02-16T08:00:00Z",
        "now",
        "",
    ],
)
def test_timestamps_are_iso_in_utc_with_z(stamp) -> None:
    found = problems(wire({"type": "item_cancelled", "itemId": "i"}, timestamp=stamp))
    assert set(found) == {"timestamp"}


@pytest.mark.rule("U-04")
@pytest.mark.parametrize("stamp", ["2026-02-16T08:00:00Z", "2026-02-16T08:00:00.1Z", "2024-02-29T23:59:59.123456789Z"])
def test_timestamps_may_have_any_precision(stamp) -> None:
    assert Envelope.parse(wire({"type": "item_cancelled", "itemId": "i"}, timestamp=stamp)).timestamp == stamp


@pytest.mark.rule("U-05")
@pytest.mark.parametrize(
    ("arguments", "kind"), [('{"a": 1}', "str"), ([1], "array"), (None, "null"), (3, "int")], ids=repr
)
def test_final_arguments_are_an_object(arguments, kind) -> None:
    final = {"type": "function_call", "name": "n", "callId": "c", "arguments": arguments}
    found = problems(wire({"type": "item_done", "itemId": "i", "finalItem": final}))
    assert found == {"payload.finalItem.arguments": f"Expected object, got {kind}"}


@pytest.mark.rule("U-05")
@pytest.mark.parametrize(
    ("final", "path"),
    [
        ({"type": "message", "content": "x"}, "payload.finalItem.origin"),
        ({"type": "message", "content": "x", "origin": "robot"}, "payload.finalItem.origin"),
        ({"type": "reasoning", "content": "x"}, "payload.finalItem.providerId"),
        ({"type": "function_call_output", "callId": "c", "output": "x", "isError": "no"}, "payload.finalItem.isError"),
        ({"type": "function_call_output", "callId": "c", "output": {}, "isError": True}, "payload.finalItem.output"),
        ({"type": "video"}, "payload.finalItem.type"),
        ({}, "payload.finalItem.type"),
        ("text", "payload.finalItem"),
    ],
)
def test_problems_of_a_finished_item_are_named(final, path) -> None:
    assert set(problems(wire({"type": "item_done", "itemId": "i", "finalItem": final}))) == {path}


@pytest.mark.rule("U-06")
@pytest.mark.parametrize("reason", ["because", "", 3])
def test_an_unknown_cancel_reason_is_refused(reason) -> None:
    assert set(problems(wire({"type": "item_cancelled", "itemId": "i", "reason": reason}))) == {"payload.reason"}


@pytest.mark.rule("U-06")
@pytest.mark.parametrize("reason", ["user_cancel", "timeout", "process_death"])
def test_the_three_cancel_reasons_are_accepted(reason) -> None:
    assert Envelope.parse(wire({"type": "item_cancelled", "itemId": "i", "reason": reason})).payload.reason == reason


@pytest.mark.rule("U-07")
@pytest.mark.parametrize("status", ["completed", "cancelled", "error"])
def test_a_response_is_done_with_and_without_an_error(status) -> None:
    bare = {"type": "response_done", "status": status}
    assert Envelope.parse(wire(bare)).payload == ResponseDone(status)
    given = {**bare, "error": {"code": "X", "message": "y"}}
    assert Envelope.parse(wire(given)).payload.error == StreamError("X", "y")


@pytest.mark.rule("U-07")
def test_the_path_of_an_error_names_its_field() -> None:
    assert set(problems(wire({"type": "response_error", "error": {"code": "X"}}))) == {"payload.error.message"}


@pytest.mark.rule("U-08")
def test_an_unknown_type_is_an_error() -> None:
    assert set(problems(wire({"type": "item_paused"}))) == {"type", "payload.type"}
    assert set(problems({**FRAME, "payload": {"type": "item_cancelled", "itemId": "i"}})) == {"type"}


@pytest.mark.rule("U-08")
def test_all_problems_of_an_event_are_reported_at_once() -> None:
    found = problems({"eventId": 3, "timestamp": "2026", "type": "item_delta", "payload": {"type": "item_delta"}})
    assert set(found) == {
        "eventId",
        "turnId",
        "sessionId",
        "timestamp",
        "payload.itemId",
        "payload.deltaContent",
    }


@pytest.mark.rule("U-08")
@pytest.mark.parametrize("value", [None, [], "x", 3, {}, {"payload": []}])
def test_a_value_that_is_not_an_event_is_refused(value) -> None:
    with pytest.raises(InvalidStreamEvent):
        Envelope.parse(value)


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidStreamEvent, match="expected JSON"):
        Envelope.from_json(b'{"eventId":')


@pytest.mark.parametrize("amount", [True, "3", None, []])
def test_usage_that_is_not_a_number_is_refused(amount) -> None:
    done = {"type": "response_done", "status": "completed", "usage": {"inputTokens": amount, "outputTokens": 1}}
    assert set(problems(wire(done))) == {"payload.usage.inputTokens"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["type", "payload", "itemId", "finalItem", "error", "status", "usage", "step"])
                | st.text(max_size=3),
                inner
                | st.sampled_from(["item_start", "item_done", "response_done", "message", "function_call", "error"]),
                max_size=5,
            )
        ),
    )
)
def test_any_json_value_is_an_event_or_an_invalid_stream_event(value) -> None:
    for given_value in (value, wire({"type": "item_done", "itemId": "i", "finalItem": value})):
        with contextlib.suppress(InvalidStreamEvent):
            Envelope.parse(given_value)
