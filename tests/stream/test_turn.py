"""The stream of one turn: crystal, retries, gates, end."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.machine.context import SKIPPED
from cantrip_actors.records.records import Observation
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.stream.turn import INCOMPLETE, RETRY, TurnStream, choose_cancel_reason, format_instant
from cantrip_actors.stream.wire import (
    AttemptFailed,
    Envelope,
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalMessage,
    FinalReasoning,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemId,
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
from cantrip_actors.terms.messages import Response, ToolCall, Usage

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
    made = [*stream.start("m", "p"), *stream.answer(Response("hi")), *stream.complete()]
    assert {(e.turn_id, e.session_id) for e in made} == {("t1", "e1")}
    assert [e.event_id for e in made] == [f"event-{n}" for n in range(1, 5)]
    assert [e.timestamp for e in made][:2] == ["2023-11-14T22:13:20.000Z", "2023-11-14T22:13:21.000Z"]
    assert all(Envelope.from_json(e.to_json()) == e for e in made)


@pytest.mark.rule("U-61")
def test_a_childs_envelopes_name_the_spawning_turn() -> None:
    stream = turn(parent=Parent("root", "t0"))
    made = [*stream.start("m", "p"), *stream.answer(Response("hi")), *stream.complete()]
    assert {e.parent for e in made} == {Parent("root", "t0")}


def test_streamed_item_ids_have_the_turn_and_the_attempt() -> None:
    stream = turn()
    made = payloads(
        stream.start("m", "p"),
        stream.pass_on(ItemStart("0", "message")),
        stream.pass_on(ItemDelta("0", "hi")),
        stream.pass_on(ItemDone("0", FinalMessage("hi", "agent"))),
        stream.answer(Response("hi")),
        stream.complete(),
    )
    assert made == [
        ResponseStart("m", "p"),
        ItemStart("t1:1:0", "message"),
        ItemDelta("t1:1:0", "hi"),
        ItemDone("t1:1:0", FinalMessage("hi", "agent")),
        ResponseDone("completed", usage=StreamUsage(0, 0)),
    ]


@pytest.mark.rule("U-58")
def test_the_end_of_a_response_is_sent_after_the_gates() -> None:
    stream = turn()
    stream.start("m", "p")
    stream.pass_on(ItemStart("0", "function_call", name="search", call_id="c1"))
    stream.pass_on(ItemDone("0", FinalFunctionCall("search", "c1", {"q": 1})))
    usage = StreamUsage(10, 2)
    assert stream.pass_on(ResponseDone("completed", "tool_use", usage=usage)) == []
    stream.answer(Response(None, (ToolCall("c1", "search", {"q": 1}),)))
    made = payloads(stream.finish_call(saw("c1")), stream.complete(Step(1)))
    assert made == [
        ItemStart("t1:1:0:output", "function_call_output", call_id="c1"),
        ItemDone("t1:1:0:output", FinalFunctionCallOutput("c1", "found", is_error=False)),
        ResponseDone("completed", "tool_use", usage=usage, step=Step(1)),
    ]


def test_a_crystal_that_does_not_stream_has_items() -> None:
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
    assert payloads(stream.answer(response)) == [
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
    assert payloads(stream.complete())[-1] == ResponseDone("completed", "stop", usage=StreamUsage(10, 5, 2))


@pytest.mark.rule("U-59")
def test_a_retry_closes_open_items_and_numbers_the_next_attempt() -> None:
    stream = turn()
    made = payloads(
        stream.start("m", "p"),
        stream.pass_on(ItemStart("0", "reasoning")),
        stream.pass_on(ItemDone("0", FinalReasoning("hm", "p"))),
        stream.pass_on(ItemStart("1", "message")),
        stream.pass_on(ItemDelta("1", "half a")),
        stream.pass_on(ItemStart("2", "function_call", name="search", call_id="c1")),
        stream.pass_on(ResponseError(LIMIT)),
        stream.retry(),
        stream.pass_on(ResponseStart("m", "p")),
        stream.pass_on(ItemStart("0", "message")),
        stream.pass_on(ItemDone("0", FinalMessage("whole", "agent"))),
        stream.answer(Response("whole")),
        stream.complete(),
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
    stream.pass_on(ItemStart("0", "message"))
    stream.retry()
    assert payloads(stream.answer(Response("hi")))[1] == ItemDone("t1:2:0", FinalMessage("hi", "agent"))


@pytest.mark.rule("U-59")
def test_a_failed_attempt_closes_its_open_items_and_numbers_the_next() -> None:
    stream = turn()
    made = payloads(
        stream.pass_on(ItemStart("0", "message")),
        stream.pass_on(AttemptFailed(LIMIT)),
        stream.pass_on(ItemStart("0", "message")),
        stream.pass_on(ItemDone("0", FinalMessage("hi", "agent"))),
        stream.answer(Response("hi", (ToolCall("c1", "a", {}),))),
    )
    assert made[1] == ItemError("t1:1:0", LIMIT)
    assert [p.item_id for p in made] == ["t1:1:0", "t1:1:0", "t1:2:0", "t1:2:0", "t1:2:call0", "t1:2:call0"]


@pytest.mark.rule("U-59")
def test_an_answer_after_nothing_but_discarded_items_is_shown() -> None:
    stream = turn()
    stream.pass_on(ItemStart("0", "message"))
    stream.pass_on(ItemDone("0", FinalMessage("first try", "agent")))
    stream.pass_on(ItemError("0", RETRY))
    assert payloads(stream.answer(Response("hi")))[1] == ItemDone("t1:2:0", FinalMessage("hi", "agent"))


@pytest.mark.rule("U-60")
def test_an_unfinished_item_is_closed_and_replaced_by_the_text_of_the_answer() -> None:
    stream = turn()
    stream.pass_on(ItemStart("0", "message"))
    closed, _, done = payloads(stream.answer(Response("hi")))
    assert (closed, done) == (ItemError("t1:1:0", INCOMPLETE), ItemDone("t1:2:0", FinalMessage("hi", "agent")))
    assert payloads(stream.complete()) == [ResponseDone("completed", usage=StreamUsage(0, 0))]


@pytest.mark.rule("U-60")
def test_texts_that_a_crystal_did_not_stream_follow_with_its_answer() -> None:
    stream = turn()
    stream.pass_on(ItemDone("0", FinalReasoning("hm", "test")))
    made = payloads(stream.answer(Response("hi", thinking="hm")))
    assert made == [ItemStart("t1:1:answer0", "message"), ItemDone("t1:1:answer0", FinalMessage("hi", "agent"))]


def test_a_call_that_was_not_streamed_is_announced_with_the_answer() -> None:
    stream = turn()
    stream.pass_on(ItemStart("0", "function_call", name="a", call_id="c1"))
    stream.pass_on(ItemDone("0", FinalFunctionCall("a", "c1", {})))
    made = payloads(stream.answer(Response(None, (ToolCall("c1", "a", {}), ToolCall("c2", "b", {"n": 2})))))
    assert made == [
        ItemStart("t1:1:call1", "function_call", name="b", call_id="c2"),
        ItemDone("t1:1:call1", FinalFunctionCall("b", "c2", {"n": 2})),
    ]


@pytest.mark.rule("U-58")
def test_a_code_circles_calls_are_announced_when_they_run() -> None:
    stream = turn()
    stream.answer(Response(code="search(q=1)"))
    made = payloads(stream.begin_call(ToolCall("k1", "search", {"q": 1})), stream.finish_call(saw("k1", {"n": 3})))
    assert made == [
        ItemStart("t1:1:call:k1", "function_call", name="search", call_id="k1"),
        ItemDone("t1:1:call:k1", FinalFunctionCall("search", "k1", {"q": 1})),
        ItemStart("t1:1:call:k1:output", "function_call_output", call_id="k1"),
        ItemDone("t1:1:call:k1:output", FinalFunctionCallOutput("k1", '{"n":3}', is_error=False)),
    ]


def test_an_observation_of_an_unannounced_call_announces_it() -> None:
    stream = turn()
    made = payloads(stream.finish_call(saw("k1", is_error=True)), stream.finish_call(Observation("look", None, "seen")))
    assert [type(p).__name__ for p in made] == ["ItemStart", "ItemDone"] * 4
    assert made[3] == ItemDone("t1:1:call:k1:output", FinalFunctionCallOutput("k1", "found", is_error=True))
    assert made[7].final_item == FinalFunctionCallOutput("t1:call2", "seen", is_error=False)


@pytest.mark.rule("U-58")
def test_observers_get_the_real_result_of_an_ephemeral_gate() -> None:
    stream = turn()
    stream.answer(Response(None, (ToolCall("c1", "page", {}),)))
    made = payloads(stream.finish_call(Observation("page", None, "the whole page", False, "c1", ephemeral=True)))
    assert made[-1].final_item.output == "the whole page"


def test_a_skipped_call_has_the_output_that_the_crystal_reads() -> None:
    stream = turn()
    stream.answer(Response(None, (ToolCall("c1", "done", {}), ToolCall("c2", "search", {}))))
    stream.finish_call(saw("c1", "bye", gate="done"))
    made = payloads(stream.complete(Step(1, terminated=True, result="bye")))
    assert made[1] == ItemDone("t1:1:call1:output", FinalFunctionCallOutput("c2", SKIPPED, is_error=False))
    assert made[-1].step.result == "bye"


@pytest.mark.rule("U-46")
def test_cancelling_cancels_open_items_and_then_the_turn() -> None:
    stream = turn()
    stream.pass_on(ItemStart("0", "message"))
    stream.pass_on(ItemStart("1", "function_call", name="a", call_id="c1"))
    assert payloads(stream.cancel("timeout")) == [
        ItemCancelled("t1:1:0", "timeout"),
        ItemCancelled("t1:1:1", "timeout"),
        ResponseDone("cancelled"),
    ]


@pytest.mark.rule("U-06")
def test_the_cancel_reason_follows_from_the_end_of_the_entity() -> None:
    assert choose_cancel_reason("cancelled") == choose_cancel_reason("parent_ended") == "user_cancel"
    assert (choose_cancel_reason("timeout"), choose_cancel_reason("crashed")) == ("timeout", "process_death")


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
def test_a_failed_turn_has_one_error_in_any_order_of_reports(told, given, code) -> None:
    stream = turn()
    stream.start("m", "p")
    for payload in told:
        assert stream.pass_on(payload) == []
    (end,) = payloads(stream.fail(given))
    assert isinstance(end, ResponseError)
    assert end.error.code == code


@pytest.mark.rule("U-42")
def test_events_after_the_end_are_dropped() -> None:
    stream = turn()
    stream.complete()
    assert stream.is_ended
    assert not stream.start("m", "p")
    assert not stream.pass_on(ItemStart("0", "message"))
    assert not stream.retry()
    assert not stream.answer(Response("hi"))
    assert not stream.begin_call(ToolCall("c", "a", {}))
    assert not stream.finish_call(saw("c"))
    assert not stream.complete()
    assert not stream.cancel()
    assert not stream.fail()


@pytest.mark.rule("U-63")
def test_a_turn_that_ran_out_of_tokens_is_complete_with_that_reason() -> None:
    stream = turn()
    stream.pass_on(ResponseDone("completed", "max_tokens", usage=StreamUsage(1, 4096)))
    stream.answer(Response("half"))
    assert payloads(stream.complete())[-1] == ResponseDone("completed", "max_tokens", usage=StreamUsage(1, 4096))


def test_items_that_a_crystal_gives_up_are_passed_on() -> None:
    stream = turn()
    stream.pass_on(ItemStart("0", "function_call", name="a", call_id="c1"))
    stream.pass_on(ItemStart("1", "message"))
    assert payloads(stream.pass_on(ItemCancelled("0", "timeout")), stream.pass_on(ItemError("1", LIMIT))) == [
        ItemCancelled("t1:1:0", "timeout"),
        ItemError("t1:1:1", LIMIT),
    ]
    assert payloads(stream.complete()) == [ResponseDone("completed")]


def test_the_time_of_day_is_utc_with_milliseconds_and_z() -> None:
    assert format_instant(1_700_000_000.9996) == "2023-11-14T22:13:20.999Z"


@given(st.text(), st.integers(1, 10**6), st.text())
def test_an_item_id_is_parsed_as_it_was_written(turn_id, attempt, block) -> None:
    made = ItemId(turn_id, attempt, block)
    assert ItemId.parse(str(made), turn_id) == made


@pytest.mark.parametrize("text", ["m1", "", "t1:", "t1:x:0", "t1:0", "t2:1:0", "1:0"])
def test_an_item_id_of_another_program_has_no_parts(text) -> None:
    assert ItemId.parse(text, "t1") is None


@pytest.mark.rule("U-55")
def test_deltas_are_redacted_and_so_is_the_finished_item() -> None:
    stream = turn(redactor=lambda: Redactor([("key", "sesame-9876")]))
    deltas = ["open ses", "ame-98", "76 now", " please"]
    made = payloads(
        stream.pass_on(ItemStart("0", "message")),
        *(stream.pass_on(ItemDelta("0", text)) for text in deltas),
        stream.pass_on(ItemDone("0", FinalMessage("".join(deltas), "agent"))),
    )
    assert "".join(p.delta_content for p in made if isinstance(p, ItemDelta)) == "open [redacted:key] now "
    assert made[-1].final_item.content == "open [redacted:key] now please"
