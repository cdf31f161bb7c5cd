"""The stream of one turn: crystal, retries, gates, end."""

from itertools import count

import pytest

from cantrip_actors.model.messages import Response, ToolCall, Usage
from cantrip_actors.model.stream import (
    Envelope,
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalMessage,
    FinalReasoning,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemStart,
    Parent,
    Payload,
    ResponseDone,
    ResponseError,
    ResponseStart,
    Step,
    StreamError,
    StreamUsage,
)
from cantrip_actors.model.turn import SKIPPED, Observation
from cantrip_actors.model.turn_stream import INCOMPLETE, RETRY, TurnStream, cancel_reason, instant

LIMIT = StreamError("RATE_LIMIT", "too many requests")


def turn(**parts) -> TurnStream:
    numbers, ticks = count(1), count(1_700_000_000)
    return TurnStream("t1", "e1", lambda: f"event-{next(numbers)}", lambda: float(next(ticks)), **parts)


def payloads(*parts: list[Envelope]) -> list[Payload]:
    return [envelope.payload for part in parts for envelope in part]


def saw(call_id: str, result: object = "found", *, is_error: bool = False, gate: str = "search") -> Observation:
    return Observation(gate, {"q": 1}, result, is_error, call_id)


@pytest.mark.rule("U-53")
def test_every_envelope_has_the_turn_the_session_its_own_id_and_the_time() -> None:
    stream = turn()
    made = [*stream.start("m", "p"), *stream.answered(Response("hi")), *stream.completed()]
    assert {(e.turn_id, e.session_id) for e in made} == {("t1", "e1")}
    assert [e.event_id for e in made] == [f"event-{n}" for n in range(1, 5)]
    assert [e.timestamp for e in made][:2] == ["2023-11-14T22:13:20.000Z", "2023-11-14T22:13:21.000Z"]
    assert all(Envelope.from_json(e.to_json()) == e for e in made)


@pytest.mark.rule("U-61")
def test_a_childs_envelopes_name_what_it_hangs_from() -> None:
    stream = turn(parent=Parent("root", "t0"))
    made = [*stream.start("m", "p"), *stream.answered(Response("hi")), *stream.completed()]
    assert {e.parent for e in made} == {Parent("root", "t0")}


def test_what_the_crystal_streams_gets_the_turn_and_the_attempt_in_its_ids() -> None:
    stream = turn()
    made = payloads(
        stream.start("m", "p"),
        stream.said(ItemStart("0", "message")),
        stream.said(ItemDelta("0", "hi")),
        stream.said(ItemDone("0", FinalMessage("hi", "agent"))),
        stream.answered(Response("hi")),
        stream.completed(),
    )
    assert made == [
        ResponseStart("m", "p"),
        ItemStart("t1:1:0", "message"),
        ItemDelta("t1:1:0", "hi"),
        ItemDone("t1:1:0", FinalMessage("hi", "agent")),
        ResponseDone("completed", usage=StreamUsage(0, 0)),
    ]


@pytest.mark.rule("U-58")
def test_the_crystals_own_end_waits_for_the_gates() -> None:
    stream = turn()
    stream.start("m", "p")
    stream.said(ItemStart("0", "function_call", name="search", call_id="c1"))
    stream.said(ItemDone("0", FinalFunctionCall("search", "c1", {"q": 1})))
    usage = StreamUsage(10, 2)
    assert stream.said(ResponseDone("completed", "tool_use", usage=usage)) == []
    stream.answered(Response(None, (ToolCall("c1", "search", {"q": 1}),)))
    made = payloads(stream.observed(saw("c1")), stream.completed(Step(1)))
    assert made == [
        ItemStart("t1:1:0:output", "function_call_output", call_id="c1"),
        ItemDone("t1:1:0:output", FinalFunctionCallOutput("c1", "found", is_error=False)),
        ResponseDone("completed", "tool_use", usage=usage, step=Step(1)),
    ]


def test_a_crystal_that_does_not_stream_has_items_all_the_same() -> None:
    stream = turn()
    stream.start("m", "p")
    response = Response(
        "text",
        (ToolCall("c1", "a", {"n": 1}), ToolCall("c2", "b", None, "{broken")),
        Usage(10, 5, 2),
        "hm",
        "x = 1",
        metadata={"stop_reason": "stop"},
    )
    assert payloads(stream.answered(response)) == [
        ItemStart("t1:1:0", "reasoning"),
        ItemDone("t1:1:0", FinalReasoning("hm", "p")),
        ItemStart("t1:1:1", "message"),
        ItemDone("t1:1:1", FinalMessage("text", "agent")),
        ItemStart("t1:1:2", "message"),
        ItemDone("t1:1:2", FinalMessage("x = 1", "agent")),
        ItemStart("t1:1:call0", "function_call", name="a", call_id="c1"),
        ItemDone("t1:1:call0", FinalFunctionCall("a", "c1", {"n": 1})),
        ItemStart("t1:1:call1", "function_call", name="b", call_id="c2"),
        ItemDone("t1:1:call1", FinalFunctionCall("b", "c2", {})),
    ]
    assert payloads(stream.completed())[-1] == ResponseDone("completed", "stop", usage=StreamUsage(10, 5, 2))


@pytest.mark.rule("U-59")
def test_a_retry_closes_what_the_attempt_left_open_and_numbers_the_next() -> None:
    stream = turn()
    made = payloads(
        stream.start("m", "p"),
        stream.said(ItemStart("0", "reasoning")),
        stream.said(ItemDone("0", FinalReasoning("hm", "p"))),
        stream.said(ItemStart("1", "message")),
        stream.said(ItemDelta("1", "half a")),
        stream.said(ItemStart("2", "function_call", name="search", call_id="c1")),
        stream.said(ResponseError(LIMIT)),
        stream.retry(),
        stream.said(ResponseStart("m", "p")),
        stream.said(ItemStart("0", "message")),
        stream.said(ItemDone("0", FinalMessage("whole", "agent"))),
        stream.answered(Response("whole")),
        stream.completed(),
    )
    assert [p for p in made if isinstance(p, ItemError)] == [ItemError("t1:1:1", RETRY), ItemError("t1:1:2", RETRY)]
    assert [p for p in made if isinstance(p, ResponseStart | ResponseDone | ResponseError)] == [
        ResponseStart("m", "p"),
        ResponseDone("completed", usage=StreamUsage(0, 0)),
    ]
    assert ItemDone("t1:2:0", FinalMessage("whole", "agent")) in made


@pytest.mark.rule("U-59")
def test_an_answer_that_did_not_stream_after_one_that_did_is_shown() -> None:
    stream = turn()
    stream.said(ItemStart("0", "message"))
    stream.retry()
    assert payloads(stream.answered(Response("hi")))[1] == ItemDone("t1:2:0", FinalMessage("hi", "agent"))


@pytest.mark.rule("U-59")
def test_attempts_that_are_numbered_already_keep_their_numbers() -> None:
    stream = turn()
    made = payloads(
        stream.said(ItemStart("1:0", "message")),
        stream.said(ItemError("1:0", RETRY)),
        stream.said(ItemStart("2:0", "message")),
        stream.said(ItemDone("2:0", FinalMessage("hi", "agent"))),
        stream.answered(Response("hi", (ToolCall("c1", "a", {}),))),
    )
    assert [p.item_id for p in made] == ["t1:1:0", "t1:1:0", "t1:2:0", "t1:2:0", "t1:2:call0", "t1:2:call0"]


@pytest.mark.rule("U-59")
def test_an_answer_after_nothing_but_discarded_items_is_shown() -> None:
    stream = turn()
    stream.said(ItemStart("1:0", "message"))
    stream.said(ItemDone("1:0", FinalMessage("first try", "agent")))
    stream.said(ItemError("1:0", RETRY))
    assert payloads(stream.answered(Response("hi")))[1] == ItemDone("t1:2:0", FinalMessage("hi", "agent"))


def test_what_a_crystal_left_unfinished_is_closed_when_it_has_answered() -> None:
    stream = turn()
    stream.said(ItemStart("0", "message"))
    assert payloads(stream.answered(Response("hi"))) == [ItemError("t1:1:0", INCOMPLETE)]
    assert payloads(stream.completed()) == [ResponseDone("completed", usage=StreamUsage(0, 0))]


def test_a_call_that_the_stream_forgot_is_announced_with_the_answer() -> None:
    stream = turn()
    stream.said(ItemStart("0", "function_call", name="a", call_id="c1"))
    stream.said(ItemDone("0", FinalFunctionCall("a", "c1", {})))
    made = payloads(stream.answered(Response(None, (ToolCall("c1", "a", {}), ToolCall("c2", "b", {"n": 2})))))
    assert made == [
        ItemStart("t1:1:call1", "function_call", name="b", call_id="c2"),
        ItemDone("t1:1:call1", FinalFunctionCall("b", "c2", {"n": 2})),
    ]


@pytest.mark.rule("U-58")
def test_a_code_circles_calls_are_announced_when_they_run() -> None:
    stream = turn()
    stream.answered(Response(code="search(q=1)"))
    made = payloads(stream.called(ToolCall("k1", "search", {"q": 1})), stream.observed(saw("k1", {"n": 3})))
    assert made == [
        ItemStart("t1:1:call:k1", "function_call", name="search", call_id="k1"),
        ItemDone("t1:1:call:k1", FinalFunctionCall("search", "k1", {"q": 1})),
        ItemStart("t1:1:call:k1:output", "function_call_output", call_id="k1"),
        ItemDone("t1:1:call:k1:output", FinalFunctionCallOutput("k1", '{"n":3}', is_error=False)),
    ]


def test_an_observation_of_an_unannounced_call_announces_it() -> None:
    stream = turn()
    made = payloads(stream.observed(saw("k1", is_error=True)), stream.observed(Observation("look", None, "seen")))
    assert [type(p).__name__ for p in made] == ["ItemStart", "ItemDone"] * 4
    assert made[3] == ItemDone("t1:1:call:k1:output", FinalFunctionCallOutput("k1", "found", is_error=True))
    assert made[7].final_item == FinalFunctionCallOutput("t1:call2", "seen", is_error=False)


@pytest.mark.rule("U-58")
def test_observers_get_the_real_result_of_an_ephemeral_gate() -> None:
    stream = turn()
    stream.answered(Response(None, (ToolCall("c1", "page", {}),)))
    made = payloads(stream.observed(Observation("page", None, "the whole page", False, "c1", ephemeral=True)))
    assert made[-1].final_item.output == "the whole page"


def test_a_skipped_call_has_the_output_that_the_crystal_reads() -> None:
    stream = turn()
    stream.answered(Response(None, (ToolCall("c1", "done", {}), ToolCall("c2", "search", {}))))
    stream.observed(saw("c1", "bye", gate="done"))
    made = payloads(stream.completed(Step(1, terminated=True, result="bye")))
    assert made[1] == ItemDone("t1:1:call1:output", FinalFunctionCallOutput("c2", SKIPPED, is_error=False))
    assert made[-1].step.result == "bye"


@pytest.mark.rule("U-46")
def test_cancelling_cancels_what_is_open_then_the_turn() -> None:
    stream = turn()
    stream.said(ItemStart("0", "message"))
    stream.said(ItemStart("1", "function_call", name="a", call_id="c1"))
    assert payloads(stream.cancelled("timeout")) == [
        ItemCancelled("t1:1:0", "timeout"),
        ItemCancelled("t1:1:1", "timeout"),
        ResponseDone("cancelled"),
    ]


@pytest.mark.rule("U-06")
def test_how_entities_end_says_why_items_are_cancelled() -> None:
    assert cancel_reason("cancelled") == cancel_reason("parent_ended") == "user_cancel"
    assert (cancel_reason("timeout"), cancel_reason("crashed")) == ("timeout", "process_death")


@pytest.mark.rule("U-39")
@pytest.mark.parametrize(
    ("told", "given", "code"),
    [
        ([], None, "RESPONSE_ERROR"),
        ([ResponseError(LIMIT)], None, "RATE_LIMIT"),
        ([ResponseDone("error", "overloaded")], None, "overloaded"),
        ([ResponseDone("error", error=StreamError("A", "a"))], None, "A"),
        ([ResponseDone("error", error=StreamError("A", "a")), ResponseError(LIMIT)], None, "RATE_LIMIT"),
        ([ResponseError(LIMIT), ResponseDone("error", error=StreamError("A", "a"))], None, "RATE_LIMIT"),
        ([ResponseError(LIMIT)], StreamError("GIVEN", "x"), "GIVEN"),
    ],
)
def test_a_failed_turn_tells_one_error_in_whatever_order_the_crystal_told_them(told, given, code) -> None:
    stream = turn()
    stream.start("m", "p")
    for payload in told:
        assert stream.said(payload) == []
    (end,) = payloads(stream.failed(given))
    assert isinstance(end, ResponseError)
    assert end.error.code == code


@pytest.mark.rule("U-42")
def test_whatever_is_told_after_the_end_is_dropped() -> None:
    stream = turn()
    stream.completed()
    assert stream.ended
    assert not stream.start("m", "p")
    assert not stream.said(ItemStart("0", "message"))
    assert not stream.retry()
    assert not stream.answered(Response("hi"))
    assert not stream.called(ToolCall("c", "a", {}))
    assert not stream.observed(saw("c"))
    assert not stream.completed()
    assert not stream.cancelled()
    assert not stream.failed()


@pytest.mark.rule("U-63")
def test_a_turn_that_ran_out_of_tokens_is_complete_and_says_so() -> None:
    stream = turn()
    stream.said(ResponseDone("completed", "max_tokens", usage=StreamUsage(1, 4096)))
    stream.answered(Response("half"))
    assert payloads(stream.completed())[-1] == ResponseDone("completed", "max_tokens", usage=StreamUsage(1, 4096))


def test_items_that_a_crystal_gives_up_itself_are_passed_on() -> None:
    stream = turn()
    stream.said(ItemStart("0", "function_call", name="a", call_id="c1"))
    stream.said(ItemStart("1", "message"))
    assert payloads(stream.said(ItemCancelled("0", "timeout")), stream.said(ItemError("1", LIMIT))) == [
        ItemCancelled("t1:1:0", "timeout"),
        ItemError("t1:1:1", LIMIT),
    ]
    assert payloads(stream.completed()) == [ResponseDone("completed")]


def test_the_time_of_day_is_utc_with_milliseconds_and_z() -> None:
    assert instant(1_700_000_000.9996) == "2023-11-14T22:13:20.999Z"
