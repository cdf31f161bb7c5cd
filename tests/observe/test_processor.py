"""The processor: texts by their gradient and their timers, calls, ends, errors, provenance."""

import itertools

import pytest

from cantrip_actors import FinalResponseEvent, StepCompleteEvent, StepStartEvent, ToolCallEvent, ToolResultEvent
from cantrip_actors.observe import (
    Batching,
    FinalResponse,
    MessageUpsert,
    Parent,
    Processor,
    ThinkingUpsert,
    ToolCallUpsert,
    TurnComplete,
    TurnError,
    TurnStarted,
)
from cantrip_actors.observe.processor import INCOMPLETE
from cantrip_actors.records.instant import format_instant
from cantrip_actors.stream.wire import (
    FinalFunctionCallOutput,
    ItemCancelled,
    ItemDone,
    ItemError,
    ItemStart,
    ResponseDone,
    ResponseError,
    ResponseStart,
    StreamError,
    StreamUsage,
    as_wire,
)
from tests.observe.stage import (
    MORNING,
    Source,
    Stage,
    begin,
    call,
    called,
    contents,
    more,
    mused,
    output,
    output_begins,
    said,
    statuses,
    text,
    thought,
    tokens,
    upserts,
    words,
)

ERROR = StreamError("RATE_LIMIT", "too many requests")
CRASH = StreamError("PROCESS_CRASH", "it is gone")


def failed(error: StreamError | None = None, reason: str | None = None) -> ResponseDone:
    return ResponseDone("error", reason, error)


class TestContent:
    @pytest.mark.rule("U-09")
    def test_short_text_is_created_then_complete(self) -> None:
        made = Stage([1]).feed(text(), more("hello "), said("hello world"))
        assert statuses(made) == ["create", "complete"]
        assert contents(made) == ["hello ", "hello world"]

    @pytest.mark.rule("U-10")
    def test_every_emission_has_the_whole_text_so_far(self) -> None:
        made = Stage([1, 1, 1]).feed(text(), more("alpha beta"), more(" gamma"), said("alpha beta gamma"))
        assert statuses(made) == ["create", "update", "complete"]
        assert contents(made) == ["alpha beta", "alpha beta gamma", "alpha beta gamma"]

    @pytest.mark.rule("U-11")
    def test_completion_shows_the_final_content_and_origin(self) -> None:
        made = Stage([1]).feed(text(), more("what was streamed"), said("what is true", origin="system"))
        assert [(m.content, m.origin) for m in made] == [("what was streamed", "agent"), ("what is true", "system")]

    @pytest.mark.rule("U-12")
    def test_an_empty_item_is_one_completion(self) -> None:
        made = Stage().feed(text(), said(""))
        assert [(m.status, m.content) for m in made] == [("complete", "")]

    @pytest.mark.rule("U-12")
    def test_a_blank_item_is_one_completion(self) -> None:
        assert statuses(Stage().feed(text(), more("  \n"), said("  \n"))) == ["complete"]

    @pytest.mark.rule("U-13")
    def test_reasoning_is_thinking_of_the_responses_provider_until_the_item_says_whose(self) -> None:
        _, *made = Stage([1]).feed(begin, thought(), more("let me see", "r"), mused("let me see.", provider="other"))
        assert {type(m) for m in made} == {ThinkingUpsert}
        assert [(m.status, m.provider_id) for m in made] == [("create", "provider-1"), ("complete", "other")]

    @pytest.mark.rule("U-14")
    def test_done_without_start_completes(self) -> None:
        assert statuses(Stage().feed(said("hello"), mused("hm"))) == ["complete", "complete"]

    @pytest.mark.rule("U-14")
    def test_a_delta_for_an_unknown_item_emits_nothing(self) -> None:
        stage = Stage([1])
        assert stage.feed(more("a b c d"), begin, more("a b c d")) == stage.seen[:1]
        assert stage.wait(60) == []

    @pytest.mark.rule("U-11")
    def test_an_item_is_finished_once(self) -> None:
        stage = Stage([1])
        stage.feed(text(), said("hello"))
        assert stage.feed(more(" again and again"), said("hello again"), ItemError("m", ERROR)) == []

    @pytest.mark.rule("U-15")
    def test_blank_deltas_count_no_tokens(self) -> None:
        made = Stage([2]).feed(text(), *[more(blank) for blank in (" ", "\n", "\t ", "") * 50], more("a b"), more(" c"))
        assert tokens(made) == [3]

    @pytest.mark.rule("U-16")
    def test_a_word_cut_by_deltas_counts_once(self) -> None:
        stage = Stage([2])
        assert stage.feed(text(), *[more(piece) for piece in ("str", "eam", "", "ing is", "n", "'t")]) == []
        assert contents(stage.feed(more(" hard"))) == ["streaming isn't hard"]

    @pytest.mark.rule("U-17")
    def test_initial_content_counts_and_starts_the_timer(self) -> None:
        assert tokens(Stage([3]).feed(text(initial="one two three four"))) == [4]
        stage = Stage()
        assert stage.feed(text(initial="one two")) == []
        assert contents(stage.wait(1.0)) == ["one two"]

    @pytest.mark.rule("U-17")
    def test_a_start_without_content_starts_no_timer(self) -> None:
        stage = Stage()
        stage.feed(text())
        assert stage.processor.deadline is None

    def test_a_repeated_start_of_an_open_item_changes_nothing(self) -> None:
        stage = Stage([2])
        stage.feed(text(), more("one two"), text())
        assert contents(stage.feed(more(" three"))) == ["one two three"]


class TestGradient:
    @pytest.mark.rule("U-18")
    @pytest.mark.parametrize(
        ("gradient", "sizes", "expected"),
        [
            pytest.param([], [1] * 700, [11, 32, 73, 154, 275, 396, 517, 638], id="default, one by one"),
            pytest.param([], [5] * 100, [15, 40, 85, 170, 295, 420], id="default, five by five"),
            pytest.param([], [300] + [1] * 125, [300, 421], id="default, 300 and then one by one"),
            pytest.param([1, 2], [1] * 10, [2, 5, 8], id="1 2, one by one"),
            pytest.param([2, 4, 8], [10] + [1] * 9, [10, 19], id="2 4 8, 10 and then one by one"),
            pytest.param([3], [3, 1], [4], id="3, three and then one"),
        ],
    )
    def test_batches_have_the_sizes_of_the_golden_table(self, gradient, sizes, expected) -> None:
        made = Stage(gradient).feed(text(), *[more("word " * size) for size in sizes])
        assert tokens(made) == expected
        assert statuses(made) == ["create"] + ["update"] * (len(expected) - 1)

    @pytest.mark.rule("U-18")
    def test_small_steps_show_a_text_soon(self) -> None:
        pieces = [text(), more("one two"), more(" three"), more(" four"), said("one two three four")]
        assert len(Stage([1, 2, 3, 4, 5]).feed(*pieces)) >= 3

    @pytest.mark.rule("U-18")
    def test_large_steps_come_after_a_small_one(self) -> None:
        made = Stage([1, 40, 120]).feed(text(), more("one two"), *words(12), said("all"))
        assert statuses(made).count("update") <= 1

    @pytest.mark.rule("U-19")
    def test_thresholds_are_strict(self) -> None:
        stage = Stage([3])
        assert stage.feed(text(), more("one two three")) == []
        assert statuses(stage.feed(more(" four"))) == ["create"]

    @pytest.mark.rule("U-20")
    def test_a_delta_of_any_size_causes_one_emission(self) -> None:
        made = Stage([2, 4, 8]).feed(text(), more("word " * 10_000))
        assert tokens(made) == [10_000]

    @pytest.mark.rule("U-21")
    def test_the_last_value_repeats(self) -> None:
        assert tokens(Stage([2, 3]).feed(text(), *words(20))) == [3, 7, 11, 15, 19]

    @pytest.mark.rule("U-22")
    def test_an_empty_gradient_is_the_default_one(self) -> None:
        assert Batching(()).gradient == Batching().gradient == (10, 20, 40, 80, 120)
        stage = Stage([])
        assert stage.feed(text(), *words(10)) == []
        assert tokens(stage.feed(more("more"))) == [11]

    @pytest.mark.rule("U-22")
    @pytest.mark.parametrize("gradient", [(0,), (3, -1), (True,), (1.5,)])
    def test_an_invalid_gradient_is_refused(self, gradient) -> None:
        with pytest.raises(ValueError, match="gradient"):
            Batching(gradient)

    @pytest.mark.parametrize("field", ["timeout", "max_latency", "max_wait"])
    def test_an_invalid_time_is_refused(self, field) -> None:
        with pytest.raises(ValueError, match=field):
            Batching(**{field: -1.0})

    @pytest.mark.rule("U-23")
    def test_items_do_not_share_gradient_state(self) -> None:
        stage = Stage([2, 10])
        assert tokens(stage.feed(text("a"), text("b"), *words(3, "a"))) == [3]
        assert tokens(stage.feed(*words(3, "b"))) == [3]
        assert tokens(stage.feed(*words(11, "a"))) == [14]


class TestTimer:
    @pytest.mark.rule("U-24")
    def test_an_idle_batch_is_flushed_on_time(self) -> None:
        stage = Stage(timeout=0.05)
        stage.feed(text(), more("hello"))
        assert stage.wait(0.049) == []
        assert statuses(stage.wait(0.001)) == ["create"]

    @pytest.mark.rule("U-24")
    def test_each_delta_starts_the_wait_anew(self) -> None:
        stage = Stage(timeout=0.05)
        stage.feed(text(), more("hello"))
        stage.wait(0.04)
        stage.feed(more(" you"))
        assert stage.wait(0.049) == []
        assert contents(stage.wait(0.001)) == ["hello you"]

    @pytest.mark.rule("U-24")
    def test_a_flush_after_the_first_one_is_an_update(self) -> None:
        stage = Stage(timeout=0.05)
        stage.feed(text(), more("hello"))
        stage.wait(1)
        stage.feed(more(" you"))
        assert statuses(stage.wait(1)) == ["update"]

    @pytest.mark.rule("U-24")
    def test_a_flush_of_few_tokens_climbs_no_step(self) -> None:
        stage = Stage([3, 100], timeout=0.05)
        stage.feed(text(), more("one "))
        stage.wait(1)
        assert tokens(stage.feed(*words(4))) == [5]

    @pytest.mark.rule("U-25")
    @pytest.mark.parametrize(
        "end",
        [
            said("hello"),
            ItemCancelled("m"),
            ItemError("m", ERROR),
            ResponseDone("completed"),
            ResponseDone("cancelled"),
            failed(ERROR),
            ResponseError(ERROR),
        ],
        ids=lambda end: end.type,
    )
    def test_an_end_cancels_the_timer(self, end) -> None:
        stage = Stage()
        stage.feed(begin, text(), more("hello"), end)
        assert stage.wait(60) == []
        assert stage.processor.deadline is None

    @pytest.mark.rule("U-25")
    def test_destroying_cancels_the_timers(self) -> None:
        stage = Stage()
        stage.feed(text(), more("hello"))
        stage.crash(CRASH)
        assert stage.wait(60) == []

    @pytest.mark.rule("U-26")
    def test_a_timeout_with_nothing_new_emits_nothing(self) -> None:
        stage = Stage([1])
        assert statuses(stage.feed(text(), more("hello you"))) == ["create"]
        assert stage.feed(more("")) == []
        assert stage.wait(60) == []

    @pytest.mark.rule("U-26")
    def test_a_delta_of_blanks_emits_nothing(self) -> None:
        stage = Stage(max_latency=0.2)
        stage.feed(text(), more(" \n "))
        assert stage.wait(60) == []

    @pytest.mark.rule("U-27")
    def test_a_slow_trickle_becomes_visible_in_time(self) -> None:
        stage = Stage(max_latency=0.2)
        stage.feed(text())
        for _ in range(2):
            stage.feed(more("w "))
            stage.wait(0.15)
        first, *_ = upserts(stage.seen)
        assert first.emitted_at == format_instant(MORNING + 0.2)
        assert first.content == "w w "

    @pytest.mark.rule("U-27")
    def test_the_wait_begins_with_the_first_visible_content(self) -> None:
        stage = Stage(max_latency=0.2)
        stage.feed(text(), more("\n\n"))
        stage.wait(5)
        stage.feed(more("hello"))
        assert stage.wait(0.199) == []
        assert contents(stage.wait(0.001)) == ["\n\nhello"]

    @pytest.mark.rule("U-27")
    def test_the_gradient_continues_after_the_first_flush_for_latency(self) -> None:
        stage = Stage([3], max_latency=0.2)
        stage.feed(text(), more("one "))
        assert len(stage.wait(0.2)) == 1
        stage.feed(more("two "))
        assert stage.wait(0.9) == []
        assert tokens(stage.feed(more("a b c "))) == [5]

    @pytest.mark.rule("U-27")
    def test_a_steady_drip_never_delays_later_content_beyond_the_maximum_wait(self) -> None:
        stage = Stage(max_latency=0.2, max_wait=2.0)
        stage.feed(text())
        for _ in range(40):
            stage.feed(more("w "))
            stage.wait(0.5)
        times = [float(m.emitted_at[17:23]) for m in upserts(stage.seen)]
        assert times[0] == 0.2
        assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 2.5

    @pytest.mark.rule("U-27")
    def test_the_default_latency_is_200_ms(self) -> None:
        assert Batching().max_latency == 0.2

    @pytest.mark.rule("U-28")
    def test_the_rest_of_a_cut_word_is_flushed_by_the_timer(self) -> None:
        stage = Stage()
        stage.feed(text(), more("par"))
        assert contents(stage.wait(1)) == ["par"]
        stage.feed(more("tial"))
        assert contents(stage.wait(1)) == ["partial"]

    @pytest.mark.rule("U-28")
    def test_the_rest_of_a_cut_word_is_flushed_at_the_end_of_the_turn(self) -> None:
        stage = Stage()
        stage.feed(text(), more("par"))
        stage.wait(1)
        made = stage.feed(more("tial"), ResponseDone("completed"))
        assert contents(made) == ["partial"]


class TestTools:
    @pytest.mark.rule("U-29")
    def test_created_at_start_before_any_argument(self) -> None:
        (made,) = Stage().feed(call())
        assert (made.type, made.status, made.tool_name, made.tool_arguments) == ("tool_call", "create", "search", {})
        assert (made.tool_output, made.tool_output_is_error) == (None, None)

    @pytest.mark.rule("U-29")
    def test_a_call_that_starts_twice_is_created_once(self) -> None:
        made = Stage().feed(call(), call(), called({"q": 1}), output_begins(), output())
        assert [m.status for m in made] == ["create", "update", "complete"]

    @pytest.mark.rule("W-11")
    def test_a_call_shows_its_arguments_once_as_soon_as_they_are_complete(self) -> None:
        stage = Stage()
        stage.feed(call(), more('{"q": 1}', "c"))
        (made,) = stage.feed(called({"q": 1}))
        assert (made.status, made.tool_arguments, made.tool_output) == ("update", {"q": 1}, None)
        assert stage.see([ToolCallEvent("s", MORNING, "t", made.call_id, "search", {"q": 1})]) == []

    @pytest.mark.rule("U-30")
    def test_argument_deltas_emit_nothing(self) -> None:
        stage = Stage([1], max_latency=0.2)
        stage.feed(call())
        assert stage.feed(*[more('{"query": "a b c d"}', "c")] * 20) == []
        assert stage.wait(60) == []

    @pytest.mark.rule("U-31")
    def test_completion_carries_the_final_name_and_arguments(self) -> None:
        made = Stage().feed(call(), called({"query": "x"}, name="search_all"), output_begins(), output("found"))
        last = made[-1]
        assert (last.tool_name, last.tool_arguments, last.tool_output) == ("search_all", {"query": "x"}, "found")

    @pytest.mark.rule("U-32")
    def test_two_upserts_for_a_successful_call_with_the_items_of_the_call(self) -> None:
        made = Stage().feed(call(), called({}), output_begins(), output())
        assert [(m.status, m.item_id) for m in made] == [("create", "c"), ("complete", "c")]

    @pytest.mark.rule("U-32")
    def test_an_output_completes_a_call_whose_arguments_never_came(self) -> None:
        made = Stage().feed(call("A"), output_begins("B"), output(item="B"))
        assert [(m.status, m.item_id, m.tool_arguments) for m in made] == [("create", "A", {}), ("complete", "A", {})]

    @pytest.mark.rule("U-33")
    def test_done_without_start_is_created_with_its_full_arguments(self) -> None:
        made = Stage().feed(called({"q": 1}), output())
        assert [(m.status, m.tool_arguments) for m in made] == [("create", {"q": 1}), ("complete", {"q": 1})]

    @pytest.mark.rule("U-34")
    def test_interleaved_calls_do_not_mix(self) -> None:
        made = Stage().feed(
            call("a", "1", "add"),
            call("b", "2", "sub"),
            called({"n": 2}, "b", "2", "sub"),
            called({"n": 1}, "a", "1", "add"),
            output("B", "ob", "2"),
            output("A", "oa", "1"),
        )
        ends = [(m.item_id, m.call_id, m.tool_name, m.tool_arguments, m.tool_output) for m in made[4:]]
        assert ends == [("b", "2", "sub", {"n": 2}, "B"), ("a", "1", "add", {"n": 1}, "A")]

    @pytest.mark.rule("U-35")
    def test_an_error_output_is_marked_and_complete(self) -> None:
        *_, last = Stage().feed(call(), called({}), output("no such file", is_error=True))
        assert (last.status, last.tool_output_is_error, last.error_code) == ("complete", True, None)

    @pytest.mark.rule("U-36")
    def test_a_result_without_a_call_is_shown_with_its_gate(self) -> None:
        stage = Stage()
        assert stage.feed(output("found", "o", "who-knows")) == []  # of a tool that the crystal says it has run itself
        result = ToolResultEvent("s", MORNING, "t", "who-knows", "search", "found", is_error=False, args={"q": 1})
        made = stage.see([result])
        assert [m.status for m in made] == ["create", "complete"]
        assert (made[1].tool_name, made[1].tool_arguments, made[1].tool_output) == ("search", {"q": 1}, "found")

    @pytest.mark.rule("U-36")
    def test_an_output_after_a_cancelled_call_emits_nothing(self) -> None:
        assert statuses(Stage().feed(call(), ItemCancelled("c"), called({}), output_begins(), output())) == ["create"]

    @pytest.mark.rule("U-32", "U-36")
    def test_a_second_output_of_a_call_emits_nothing(self) -> None:
        assert statuses(Stage().feed(call(), output(), output(item="o2"))) == ["create", "complete"]

    def test_cancelling_an_output_leaves_the_call_open(self) -> None:
        made = Stage().feed(call(), output_begins(), ItemCancelled("o"), output(item="o2"))
        assert statuses(made) == ["create", "complete"]


class TestTerminal:
    @pytest.mark.rule("U-37")
    def test_a_cancelled_turn_shows_open_content_then_one_turn_event(self) -> None:
        made = Stage().feed(begin, text(), more("hello"), ResponseDone("cancelled"))
        assert [(m.type, m.status) for m in made[1:]] == [("message", "create"), ("turn_complete", "cancelled")]

    @pytest.mark.rule("U-37", "U-60")
    def test_an_answer_closes_the_items_that_it_left_open(self) -> None:
        made = Stage().feed(begin, text(), call(), more("hello"), ResponseDone("completed"))
        ends = [(m.type, m.status, m.error_code) for m in upserts(made) if m.terminal]
        assert ends == [("message", "error", INCOMPLETE.code), ("tool_call", "error", INCOMPLETE.code)]
        assert made[-1].status == "completed"

    @pytest.mark.rule("U-37")
    @pytest.mark.parametrize("end", [failed(ERROR), ResponseError(ERROR)], ids=lambda end: end.type)
    def test_an_error_closes_every_open_item_before_the_turn(self, end) -> None:
        stage = Stage()
        stage.feed(begin, text(), thought(), call(), text("empty"), more("hello"), more("hm", "r"))
        *made, last = stage.feed(end)
        errors = [m for m in made if m.status == "error"]
        assert [m.item_id for m in errors] == ["m", "r", "c", "empty"]
        assert [m.content for m in errors if not isinstance(m, ToolCallUpsert)] == ["hello", "hm", ""]
        assert {(m.error_code, m.error_message) for m in errors} == {("RATE_LIMIT", "too many requests")}
        assert last == TurnError("t", "s", "RATE_LIMIT", "too many requests")

    @pytest.mark.rule("U-37")
    def test_a_finished_item_is_not_closed_again_by_an_error(self) -> None:
        stage = Stage()
        stage.feed(begin, said("a", "m1"), call(), output())
        assert stage.feed(ResponseError(ERROR)) == [TurnError("t", "s", "RATE_LIMIT", "too many requests")]

    @pytest.mark.rule("U-38")
    def test_a_complete_turn_has_its_status_and_usage(self) -> None:
        usage = StreamUsage(10, 2, 4)
        assert Stage().feed(begin, ResponseDone("completed", "end_turn", usage=usage))[1:] == [
            TurnComplete("t", "s", "completed", usage)
        ]

    @pytest.mark.rule("U-38")
    def test_a_turn_starts_with_its_model_and_provider(self) -> None:
        assert Stage().feed(begin) == [TurnStarted("t", "s", "model-1", "provider-1")]

    @pytest.mark.rule("U-38")
    def test_the_answer_of_the_entity_follows_the_turn_that_gave_it(self) -> None:
        stage = Stage()
        stage.feed(begin)
        done = StepCompleteEvent("s", MORNING, "t", 2, terminated=True, truncated=False)
        made = stage.see([done, FinalResponseEvent("s", MORNING, {"answer": 42}, "t")])
        assert made == [TurnComplete("t", "s", "completed"), FinalResponse("t", "s", {"answer": 42})]

    @pytest.mark.rule("U-39")
    @pytest.mark.parametrize(
        ("end", "code", "message"),
        [
            (ResponseError(ERROR), "RATE_LIMIT", "too many requests"),
            (failed(ERROR, "other"), "RATE_LIMIT", "too many requests"),
            (failed(None, "max_budget"), "max_budget", "Response finished with error status"),
            (failed(), "RESPONSE_ERROR", "Response finished with error status"),
            (failed(None, ""), "RESPONSE_ERROR", "Response finished with error status"),
        ],
    )
    def test_a_failed_turn_shows_its_error(self, end, code, message) -> None:
        assert Stage().feed(begin, end)[1:] == [TurnError("t", "s", code, message)]

    @pytest.mark.rule("U-39")
    @pytest.mark.parametrize("status", ["completed", "cancelled"])
    def test_an_error_of_another_status_is_ignored(self, status) -> None:
        (made,) = Stage().feed(begin, ResponseDone(status, error=ERROR))[1:]
        assert (type(made), made.status) == (TurnComplete, status)

    @pytest.mark.rule("U-40")
    @pytest.mark.parametrize(
        ("ends", "code"),
        [
            ([ResponseError(ERROR), failed(CRASH)], "RATE_LIMIT"),
            ([failed(None, "stopped"), ResponseError(ERROR)], "stopped"),
            ([ResponseDone("completed"), ResponseError(ERROR)], None),
        ],
    )
    def test_two_terminals_are_one_turn_event(self, ends, code) -> None:
        made = Stage().feed(begin, *ends)[1:]
        assert [getattr(m, "error_code", None) for m in made] == [code]

    @pytest.mark.rule("U-41")
    def test_a_complete_turn_never_says_error(self) -> None:
        stage = Stage()
        for n, end in enumerate([failed(), failed(ERROR), failed(None, "x"), ResponseError(ERROR)]):
            stage.feed(begin, text(), more("a"), end, turn=f"t{n}")
        assert not [m for m in stage.seen if isinstance(m, TurnComplete)]
        assert len([m for m in stage.seen if isinstance(m, TurnError)]) == 4

    @pytest.mark.rule("U-42")
    def test_nothing_happens_after_the_terminal(self) -> None:
        stage = Stage([1])
        stage.feed(begin, text(), call(), ResponseDone("completed"))
        late = [more("a b c"), said("x"), text("n"), more("a b c", "n"), called({}), output(), failed(), call("c2")]
        assert stage.feed(*late, ItemError("m", ERROR), ItemCancelled("m"), ResponseError(ERROR)) == []
        assert stage.wait(60) == []

    @pytest.mark.rule("U-43")
    def test_a_new_response_starts_clean(self) -> None:
        stage = Stage()
        stage.feed(begin, call(), text(), ItemCancelled("m"), ResponseDone("completed"))
        made = stage.feed(
            ResponseStart("model-2", "provider-2"), output(), text(), said("hello"), mused("hm"), turn="t2"
        )
        assert made[0] == TurnStarted("t2", "s", "model-2", "provider-2")
        assert [(m.item_id, m.status) for m in made[1:]] == [("m", "complete"), ("r", "complete")]

    @pytest.mark.rule("U-43")
    def test_a_new_response_forgets_the_previous_provider(self) -> None:
        stage = Stage([1])
        stage.feed(begin, ResponseDone("completed"))
        stage.feed(ResponseStart("m", "provider-2"), thought(), turn="t2")
        assert [m.provider_id for m in stage.feed(more("a b c", "r"), turn="t2")] == ["provider-2"]

    @pytest.mark.rule("U-44")
    def test_turns_of_entities_that_interleave_all_terminate(self) -> None:
        stage = Stage([2])
        for session in ("s1", "s2"):
            stage.feed(begin, text(), session=session)
        stage.feed(more("one "), session="s1")
        assert stage.feed(more("a b "), session="s2") == []
        assert contents(stage.feed(more("two three"), session="s1")) == ["one two three"]
        assert stage.feed(ResponseDone("cancelled"), session="s1") == [TurnComplete("t", "s1", "cancelled")]
        assert contents(stage.feed(more("c"), session="s2")) == ["a b c"]
        assert stage.feed(ResponseDone("cancelled"), session="s2") == [TurnComplete("t", "s2", "cancelled")]

    @pytest.mark.rule("U-44")
    def test_a_call_is_not_answered_by_another_entitys_output(self) -> None:
        stage = Stage()
        stage.feed(call(), session="s1")
        assert stage.feed(output("b"), session="s2") == []
        (own,) = stage.feed(output("a"), session="s1")
        assert (own.tool_name, own.tool_output) == ("search", "a")

    @pytest.mark.rule("U-44")
    def test_a_turn_that_begins_ends_the_one_before(self) -> None:
        stage = Stage()
        stage.feed(begin, text(), more("hello"))
        made = stage.feed(begin, turn="t2")
        assert [(m.type, m.turn_id) for m in made] == [("message", "t"), ("turn_complete", "t"), ("turn_started", "t2")]

    @pytest.mark.rule("U-59")
    def test_a_turn_starts_once_although_its_crystal_is_asked_again(self) -> None:
        assert len(Stage().feed(begin, begin, begin)) == 1

    def test_ended_turns_are_forgotten(self) -> None:
        stage = Stage()
        for n in range(10):
            stage.feed(begin, ResponseDone("completed"), turn=f"t{n}", session=f"s{n}")
        assert not stage.processor._turns


class TestCancelErrorDestroy:
    @pytest.mark.rule("U-45")
    def test_a_cancelled_item_emits_nothing_more(self) -> None:
        stage = Stage([1])
        assert stage.feed(text(), more("data"), ItemCancelled("m", "user_cancel")) == []
        assert stage.feed(more("a b c d"), said("a b c d"), ItemError("m", ERROR)) == []

    @pytest.mark.rule("U-45")
    def test_other_items_continue_after_a_cancelled_item(self) -> None:
        stage = Stage([1])
        stage.feed(text("a"), text("b"), ItemCancelled("a"))
        assert contents(stage.feed(more("x y", "b"))) == ["x y"]

    @pytest.mark.rule("U-45")
    def test_the_same_id_may_start_again(self) -> None:
        stage = Stage([1])
        stage.feed(text(), more("old old"), ItemCancelled("m"))
        made = stage.feed(text(), more("new new"), said("new new"))
        assert [(m.status, m.content) for m in made] == [("create", "new new"), ("complete", "new new")]

    @pytest.mark.rule("U-45")
    def test_a_cancelled_call_may_start_again(self) -> None:
        made = Stage().feed(call(), ItemCancelled("c"), call(), output())
        assert statuses(made) == ["create", "create", "complete"]

    @pytest.mark.rule("U-46")
    def test_a_cancelled_turn_completes_as_cancelled(self) -> None:
        made = Stage().feed(begin, text(), call(), ItemCancelled("m"), ItemCancelled("c"), ResponseDone("cancelled"))
        assert made[-1] == TurnComplete("t", "s", "cancelled")
        assert statuses(made) == ["create"]

    @pytest.mark.rule("U-46")
    def test_a_cancelled_item_that_showed_nothing_emits_nothing(self) -> None:
        made = Stage().feed(begin, text(), ItemCancelled("m"), ResponseDone("cancelled"))
        assert [m.type for m in made] == ["turn_started", "turn_complete"]

    @pytest.mark.rule("U-47")
    def test_an_items_error_has_its_text_and_its_code(self) -> None:
        (made,) = Stage().feed(text(), more("half a sen"), ItemError("m", ERROR))
        assert (made.status, made.content) == ("error", "half a sen")
        assert (made.error_code, made.error_message) == ("RATE_LIMIT", "too many requests")

    @pytest.mark.rule("U-47")
    def test_an_items_error_is_final(self) -> None:
        stage = Stage([1])
        stage.feed(text(), more("half"), ItemError("m", ERROR))
        assert stage.feed(more("a b c"), said("whole"), ItemError("m", ERROR)) == []

    @pytest.mark.rule("U-47")
    def test_an_error_of_an_unknown_item_emits_nothing(self) -> None:
        assert Stage().feed(ItemError("x", ERROR), begin, ItemError("x", ERROR))[1:] == []

    @pytest.mark.rule("U-48")
    def test_a_tools_error_is_a_tool_call_upsert(self) -> None:
        stage = Stage()
        stage.feed(call(), called({"q": 1}), output_begins())
        (made,) = stage.feed(ItemError("c", ERROR))
        assert isinstance(made, ToolCallUpsert)
        assert (made.status, made.item_id, made.tool_arguments) == ("error", "c", {"q": 1})
        assert (made.error_code, made.error_message) == ("RATE_LIMIT", "too many requests")
        assert stage.feed(output(item="o2")) == []

    @pytest.mark.rule("U-48", "U-49")
    def test_a_crash_ends_open_items_as_errors_with_the_reason(self) -> None:
        stage = Stage()
        stage.feed(begin, text(), more("partial data"), call())
        *items, turn = stage.crash(CRASH)
        assert [(m.type, m.status) for m in items] == [("message", "error"), ("tool_call", "error")]
        assert items[0].content == "partial data"
        assert {(m.error_code, m.error_message) for m in items} == {("PROCESS_CRASH", "it is gone")}
        assert turn == TurnError("t", "s", "PROCESS_CRASH", "it is gone")

    @pytest.mark.rule("U-49")
    def test_a_second_crash_emits_nothing_more(self) -> None:
        stage = Stage()
        stage.feed(begin, text(), more("partial data"))
        assert len(stage.crash(CRASH)) == 2
        assert stage.crash(CRASH) == []

    @pytest.mark.rule("U-49", "U-50")
    def test_only_a_new_response_is_processed_after_a_crash(self) -> None:
        stage = Stage([1])
        stage.feed(begin, text(), more("hello"))
        stage.crash()
        assert stage.feed(more("a b c"), said("x"), text("n"), ResponseDone("completed")) == []
        assert [m.type for m in stage.feed(begin, said("x"))] == ["turn_started", "message"]


class TestProvenance:
    @pytest.mark.rule("U-51")
    def test_an_upsert_carries_the_timestamp_of_its_last_source_event(self) -> None:
        stage = Stage([2])
        at = lambda seconds: format_instant(MORNING + seconds)  # noqa: E731
        stage.feed(text())
        stage.wait(0.1)
        (by_delta,) = stage.feed(more("a b c "))
        assert by_delta.source_timestamp == at(0.1)
        stage.wait(0.1)
        stage.feed(more("d"))
        (by_time,) = stage.wait(1.5)
        assert (by_time.source_timestamp, by_time.emitted_at) == (at(0.2), at(1.2))
        stage.feed(more(" e"))
        stage.wait(0.1)
        flushed, complete = stage.feed(said("a b c d e"))
        assert (flushed.source_timestamp, complete.source_timestamp) == (at(1.7), at(1.8))

    @pytest.mark.rule("U-51")
    def test_an_initial_content_has_the_time_of_its_start(self) -> None:
        stage = Stage()
        stage.feed(text(initial="hello"))
        assert stage.wait(1)[0].source_timestamp == format_instant(MORNING)

    @pytest.mark.rule("U-51")
    def test_errors_have_the_time_of_the_error(self) -> None:
        stage = Stage()
        stage.feed(text("a", "x"), text("b", "y"), call())
        stage.wait(0.5)
        assert stage.feed(ItemError("a", ERROR))[0].source_timestamp == format_instant(MORNING + 0.5)

    @pytest.mark.rule("U-51")
    def test_calls_have_the_times_of_their_own_events(self) -> None:
        stage = Stage()
        (created,) = stage.feed(call())
        stage.wait(1)
        stage.feed(called({}))
        stage.wait(1)
        (complete,) = stage.feed(output())
        assert (created.source_timestamp, complete.source_timestamp) == (
            format_instant(MORNING),
            format_instant(MORNING + 2),
        )

    @pytest.mark.rule("U-52")
    def test_emission_times_come_from_the_injected_clock(self) -> None:
        stage = Stage([1])
        stage.wait(12.345)
        made = stage.feed(begin, text(), more("a b"), said("a b"), ResponseDone("completed"))
        assert {m.emitted_at for m in upserts(made)} == {"2026-01-01T00:00:12.345Z"}
        assert stage.clock_reads == 2

    @pytest.mark.rule("U-52")
    def test_emission_times_never_decrease(self) -> None:
        times, source = iter([MORNING + 5, MORNING + 3, MORNING + 6]), Source()
        processor = Processor(lambda: next(times))
        events = [event for n in range(3) for event in source.read(said("x", f"m{n}"))]
        made = [processor.process(event, 0.0)[0].emitted_at for event in events]
        assert made == [format_instant(MORNING + seconds) for seconds in (5, 5, 6)]

    @pytest.mark.rule("U-53")
    def test_every_output_has_the_turns_id(self) -> None:
        stage = Stage([1])
        stage.feed(
            begin, text(), more("a b"), said("x"), thought(), call(), output(), failed(), turn="t7", session="s9"
        )
        assert {(m.turn_id, m.session_id) for m in stage.seen} == {("t7", "s9")}

    @pytest.mark.rule("U-54")
    def test_upserts_have_only_the_fields_of_the_contract(self) -> None:
        common = {"type", "status", "turnId", "sessionId", "itemId", "sourceTimestamp", "emittedAt"}
        stage = Stage([1])
        stage.feed(text(), more("a b"), said("x"), thought(), mused("y"), call(), called({}), output())
        stage.feed(text("e"), ItemError("e", ERROR))
        shapes = {(m.type, m.status): set(as_wire(m)) - common for m in upserts(stage.seen)}
        assert shapes == {
            ("message", "create"): {"content", "origin"},
            ("message", "complete"): {"content", "origin"},
            ("message", "error"): {"content", "origin", "errorCode", "errorMessage"},
            ("thinking", "complete"): {"content", "providerId"},
            ("tool_call", "create"): {"toolName", "toolArguments", "callId"},
            ("tool_call", "complete"): {"toolName", "toolArguments", "callId", "toolOutput", "toolOutputIsError"},
        }

    @pytest.mark.rule("U-61")
    def test_turn_events_name_the_parent(self) -> None:
        stage = Stage()
        start = StepStartEvent("child", MORNING, "t", "p:m", parent_entity="root", parent_turn="turn-3")
        stage.see([start])
        stage.feed(said("x"), ResponseDone("cancelled"), session="child")
        parent = Parent("root", "turn-3")
        started, message, ended = stage.seen
        assert started.parent == ended.parent == parent
        assert isinstance(message, MessageUpsert)
        assert "parent" not in as_wire(message)


def test_events_of_the_wrong_item_kind_crash_nothing() -> None:
    stage = Stage([1])
    stage.feed(call("x", "1"), said("a message after all", "x"), output("late", "o", "1"))
    stage.feed(text("y"), ItemDone("y", FinalFunctionCallOutput("9", "out", is_error=False)), said("done", "y"))
    stage.feed(ItemStart("z", "function_call"), ResponseDone("completed"))
    assert isinstance(stage.seen[-1], TurnComplete)
