"""The stream of one answer: from payloads to events."""

from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import AttemptFailedEvent, DeltaEvent, ItemEndEvent, StreamedEvent
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.stream.answer import AnswerStream
from cantrip_actors.stream.answer_so_far import AnswerSoFar
from cantrip_actors.stream.wire import (
    AttemptFailed,
    Emitted,
    FinalFunctionCall,
    FinalMessage,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemStart,
    ResponseDone,
    ResponseError,
    ResponseStart,
    StreamError,
)

RETRY = StreamError("RETRY", "again")
LIMIT = StreamError("RATE_LIMIT", "too many requests")


def stream(*secrets: str) -> AnswerStream:
    ticks = count(1_700_000_000)
    return AnswerStream("e1", "t1", lambda: float(next(ticks)), lambda: Redactor(secrets))


def read(answer: AnswerStream, *payloads: Emitted) -> list[StreamedEvent]:
    return [event for payload in payloads if (event := answer.read(payload)) is not None]


@pytest.mark.rule("U-53")
def test_events_have_the_entity_the_turn_their_time_and_the_attempt_of_their_item() -> None:
    final = FinalMessage("hi there", "agent")
    events = read(stream(), ItemStart("0", "message"), ItemDelta("0", "hi there "), ItemDone("0", final))
    assert events == [
        DeltaEvent("e1", 1_700_000_000.0, "t1", "t1:1:0", "message", "", is_start=True),
        DeltaEvent("e1", 1_700_000_001.0, "t1", "t1:1:0", "message", "hi there "),
        ItemEndEvent("e1", 1_700_000_002.0, "t1", "t1:1:0", final),
    ]


def test_a_call_begins_with_its_gate_and_its_id() -> None:
    final = FinalFunctionCall("search", "c1", {"q": 1})
    begun, ended = read(stream(), ItemStart("0", "function_call", name="search", call_id="c1"), ItemDone("0", final))
    assert (begun.gate, begun.tool_call_id, begun.is_start) == ("search", "c1", True)
    assert ended.final == final


@pytest.mark.rule("U-59")
def test_a_failed_attempt_is_an_event_and_the_next_one_numbers_its_items() -> None:
    answer = stream()
    first, failed, second = read(answer, ItemStart("0", "message"), AttemptFailed(RETRY), ItemStart("0", "message"))
    assert (first.item_id, second.item_id) == ("t1:1:0", "t1:2:0")
    assert (failed.error, failed.is_retried) == (RETRY, True)
    assert read(answer, AttemptFailed(RETRY), ItemDelta("0", "of the failed attempt ")) != []
    assert read(answer, ItemDelta("0", "of the failed attempt ")) == []


@pytest.mark.rule("U-14")
def test_a_delta_without_an_open_item_is_dropped() -> None:
    answer = stream()
    assert read(answer, ItemDelta("0", "text ")) == []
    read(answer, ItemStart("0", "message"), ItemDone("0", FinalMessage("x", "agent")))
    assert read(answer, ItemDelta("0", "late "), ItemDone("0", FinalMessage("y", "agent"))) == []
    assert len(read(answer, ItemStart("0", "message"), ItemStart("0", "message"))) == 1


@pytest.mark.rule("U-14")
def test_an_item_may_end_without_a_beginning() -> None:
    (event,) = read(stream(), ItemDone("0", FinalMessage("x", "agent")))
    assert isinstance(event, ItemEndEvent)


@pytest.mark.rule("U-45", "U-47")
def test_an_item_that_is_given_up_or_fails_ends() -> None:
    cancelled, failed = read(stream(), ItemCancelled("0", "timeout"), ItemError("1", LIMIT))
    assert (cancelled.final, cancelled.error) == (None, None)
    assert (failed.final, failed.error) == (None, LIMIT)


@pytest.mark.rule("U-39", "U-40")
@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([ResponseError(LIMIT), ResponseDone("error", "other", RETRY)], "RATE_LIMIT"),
        ([ResponseDone("error", "other", LIMIT)], "RATE_LIMIT"),
        ([ResponseDone("error", "stopped"), ResponseError(LIMIT)], "stopped"),
        ([ResponseDone("error")], "RESPONSE_ERROR"),
    ],
)
def test_a_response_that_ends_in_error_is_one_failed_attempt(ends, code) -> None:
    (event,) = read(stream(), ResponseStart("m", "p"), *ends)
    assert isinstance(event, AttemptFailedEvent)
    assert (event.error.code, event.is_retried) == (code, False)


def test_a_good_end_is_left_to_the_records() -> None:
    assert read(stream(), ResponseStart("m", "p"), ResponseDone("completed"), ResponseDone("cancelled")) == []


@pytest.mark.rule("U-53")
def test_nothing_is_read_after_the_end() -> None:
    answer = stream()
    answer.close()
    assert read(answer, ItemStart("0", "message"), AttemptFailed(RETRY), ResponseError(LIMIT)) == []


@given(st.lists(st.integers(0, 60), max_size=6))
def test_a_secret_that_is_cut_anywhere_is_in_no_event(cuts: list[int]) -> None:
    text = "the key is hunter2hunter2 and no other, do not tell"
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [ItemDelta("0", text[a:b]) for a, b in pairwise(places)]
    done = ItemDone("0", FinalMessage(text, "agent"))
    events = read(stream("hunter2hunter2"), ItemStart("0", "message"), *pieces, done)
    assert "hunter2" not in str(events)
    shown = "".join(event.text for event in events if isinstance(event, DeltaEvent))
    assert events[-1].final.content.startswith(shown)


def test_secrets_in_initial_texts_and_errors_are_redacted() -> None:
    answer = stream("hunter2hunter2")
    events = read(
        answer,
        ItemStart("0", "message", "hunter2hunter2 "),
        ItemError("0", StreamError("X", "bad key hunter2hunter2")),
        ResponseError(StreamError("X", "bad key hunter2hunter2")),
    )
    assert len(events) == 3
    assert "hunter2" not in str(events)


def test_a_reader_in_the_middle_gets_the_texts_of_an_item_that_started_again() -> None:
    final = FinalMessage("first", "agent")
    start, end = ItemStart("0", "message"), ItemDone("0", final)
    payloads = [start, ItemDelta("0", "first "), end, start, ItemDelta("0", "second "), ItemDelta("0", "and more ")]
    so_far = AnswerSoFar(stream())
    for payload in payloads:
        so_far.add(payload)
        so_far.make_events()
    texts = [event.text for event in so_far.list_events() if isinstance(event, DeltaEvent)]
    assert texts == ["first ", "second and more "]
