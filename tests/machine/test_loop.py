"""The loop of an entity, one behaviour per test: its turns, its queries and its ends."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from cantrip_actors.machine.accept import HANDLERS
from cantrip_actors.machine.actions import Ask, Await, Compute, Consult, Finish, Run, Spawn
from cantrip_actors.machine.context import LEFT_OUT, NO_GATE, SKIPPED
from cantrip_actors.machine.events import (
    Begin,
    Called,
    ChildOutcome,
    Compact,
    Computed,
    Decide,
    Event,
    Failed,
    Interrupt,
    Moment,
    Observed,
    Posted,
    Replied,
    Returned,
    Steer,
    Steering,
    Stopped,
)
from cantrip_actors.machine.evolve import fold
from cantrip_actors.machine.state import Identity, Phase, Plan
from cantrip_actors.records.records import (
    Committed,
    Ended,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Observation,
    Record,
    Requested,
    Utterance,
)
from cantrip_actors.terms.call import Call
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.errors import InvalidIntent
from cantrip_actors.terms.folding import Folding
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.messages import NO_USAGE, Response, ToolCall, Usage
from cantrip_actors.terms.own_gates import ASK, POST
from cantrip_actors.terms.ward import (
    Ward,
    max_cost,
    max_depth,
    max_gate_calls,
    max_tokens,
    max_turns,
    remove_gate,
    require_done_tool,
)
from cantrip_actors.terms.wrapping import wrap
from tests.machine.driver import (
    ASKING,
    GATES,
    INQUIRIES,
    INQUIRING,
    SPENT,
    USAGE,
    Drive,
    Loop,
    call,
    cantrip,
    done,
    echo,
    fields_of,
    look,
    page,
    say,
    texts,
)
from tools import diagram


class TestIntent:
    @pytest.mark.rule("INTENT-1")
    @pytest.mark.parametrize("intent", [None, "", " \n", 3])
    def test_an_episode_does_not_begin_without_an_intent(self, intent: Any) -> None:
        drive = Drive(cantrip())
        with pytest.raises(InvalidIntent, match="intent is required"):
            drive.feed(Begin(intent))
        assert drive.state.phase is Phase.NEW
        assert len(drive.state.conversation.context) == 0

    @pytest.mark.rule("INTENT-1")
    def test_a_send_without_an_intent_changes_nothing(self) -> None:
        drive = Drive(cantrip(), say(done()), lasting=True)
        drive.go()
        before = drive.state
        with pytest.raises(InvalidIntent, match="intent is required"):
            drive.feed(Begin(""))
        assert drive.state is before

    @pytest.mark.rule("INTENT-2", "CALL-2")
    def test_the_intent_is_the_first_user_message_after_the_system_prompt(self) -> None:
        drive = Drive(cantrip(call=Call("You are helpful")), say(done()))
        drive.go("my task")
        assert texts(drive.queries[0]) == ["system You are helpful", "user my task"]

    @pytest.mark.rule("INTENT-2", "LOOP-5")
    @pytest.mark.parametrize("prompt", [None, ""])
    def test_the_intent_is_the_only_message_without_a_system_prompt(self, prompt: str | None) -> None:
        drive = Drive(cantrip(call=Call(prompt)), say(done()))
        drive.go("my task")
        assert texts(drive.queries[0]) == ["user my task"]

    def test_the_capability_text_follows_the_system_prompt(self) -> None:
        drive = Drive(cantrip(call=Call("You are helpful")), say(done()), capability="You write Python.")
        drive.go()
        assert texts(drive.queries[0]) == ["system You are helpful", "system You write Python.", "user go"]

    def test_data_for_the_entity_follows_the_intent(self) -> None:
        drive = Drive(cantrip(), say(done()))
        drive.go(Begin("sum", {"numbers": [1, 2]}))
        assert texts(drive.queries[0]) == ["user sum", 'user context:\n{"numbers":[1,2]}']
        assert drive.records[1] == IntentGiven("e1", "sum", drive.records[1].at, {"numbers": [1, 2]})

    @pytest.mark.rule("INTENT-3")
    def test_every_query_has_the_intent_unchanged(self) -> None:
        drive = Drive(cantrip(), *[say(call("echo", text=str(n))) for n in range(5)], say(done()))
        drive.go("one thing")
        assert {query[0].content for query in drive.queries} == {"one thing"}

    @pytest.mark.rule("INTENT-3", "D-001")
    def test_a_further_intent_is_placed_after_the_first(self) -> None:
        drive = Drive(cantrip(), say("first answer"), say("second answer"), lasting=True)
        assert drive.go("first").result == "first answer"
        assert drive.go("second").result == "second answer"
        assert texts(drive.queries[1]) == ["user first", "assistant first answer", "user second"]


class TestTurnCycle:
    @pytest.mark.rule("LOOP-1", "CIRCLE-4")
    def test_utterances_and_observations_alternate(self) -> None:
        drive = Drive(cantrip(), say(call("echo", text="a")), say(call("echo", text="b"), done()))
        drive.go()
        assert texts(drive.context) == [
            "user go",
            'assistant echo({"text":"a"})',
            "tool a",
            'assistant echo({"text":"b"}) done({"answer":"ok"})',
            "tool b",
            "tool ok",
        ]

    @pytest.mark.rule("LOOP-5", "ENTITY-3")
    def test_every_query_has_all_earlier_messages(self) -> None:
        drive = Drive(cantrip(), *[say(call("echo", text=str(n))) for n in range(4)], say(done()))
        drive.go()
        assert [len(query) for query in drive.queries] == [1, 3, 5, 7, 9]
        for earlier, later in pairwise(drive.queries):
            assert later[: len(earlier)] == earlier

    @pytest.mark.rule("LOOM-1")
    def test_the_records_of_a_turn_are_in_order(self) -> None:
        drive = Drive(cantrip(), say(call("echo", text="a")), say(done()))
        drive.go()
        kinds = [[type(record) for record in step.records] for step in drive.transitions]
        assert kinds == [
            [Header, IntentGiven],
            [Utterance, GateStarted],
            [GateFinished, Committed],
            [Utterance, GateFinished, Committed, Ended],
        ]

    def test_an_idempotent_gate_has_no_start_record(self) -> None:
        drive = Drive(cantrip(), say(call("look")), say(done()))
        drive.go()
        assert not any(isinstance(record, GateStarted) for record in drive.records)

    @pytest.mark.rule("LOOM-2", "D-008", "LOOM-1")
    def test_turns_are_numbered_and_name_their_parent(self) -> None:
        drive = Drive(cantrip(), *[say(call("echo", text=str(n))) for n in range(3)], say(done()))
        drive.go()
        turns = drive.turns
        assert [turn.sequence for turn in turns] == [1, 2, 3, 4]
        assert [turn.parent_id for turn in turns] == [None, *(turn.id for turn in turns[:-1])]
        assert len({turn.id for turn in turns}) == 4

    @pytest.mark.rule("CALL-4", "ENTITY-2")
    def test_the_log_begins_with_the_call_and_the_given_id(self) -> None:
        made = cantrip(call=Call("Be kind", temperature=0.5))
        drive = Drive(made, say(done()), entity_id="someone")
        drive.go()
        header = drive.records[0]
        assert isinstance(header, Header)
        assert (header.entity_id, header.cantrip_id) == ("someone", made.id)
        assert header.call == {"system_prompt": "Be kind", "temperature": 0.5}
        assert {record.entity_id for record in drive.records} == {"someone"}

    @pytest.mark.rule("CALL-3")
    def test_every_query_carries_the_gates_and_the_tool_choice(self) -> None:
        made = cantrip(max_turns(9), remove_gate("page"), gates=["done", echo, page], call=Call(tool_choice="required"))
        drive = Drive(made, say(call("echo", text="a")), say(done()))
        drive.go()
        assert [[tool.name for tool in ask.tools] for ask in drive.asks] == [["done", "echo"]] * 2
        assert {ask.tool_choice for ask in drive.asks} == {"required"}

    @pytest.mark.rule("CANTRIP-2")
    def test_a_cantrip_can_be_cast_again(self) -> None:
        made = cantrip()
        first, second = Drive(made, say(done(1))), Drive(made, say(done(2)), entity_id="e2")
        assert (first.go("one").result, second.go("two").result) == (1, 2)
        assert texts(second.queries[0]) == ["user two"]

    @pytest.mark.rule("PROD-3", "LOOM-9")
    def test_tokens_and_time_are_counted_per_turn_and_in_all(self) -> None:
        drive = Drive(
            cantrip(), say(call("echo", text="1"), usage=Usage(100, 50)), say(done(), usage=Usage(200, 30, 7))
        )
        outcome = drive.go()
        assert [turn.usage for turn in drive.turns] == [Usage(100, 50), Usage(200, 30, 7)]
        assert outcome.usage == Usage(300, 80, 7)
        assert outcome.usage.total_tokens == 380
        assert [turn.metadata.duration_ms for turn in drive.turns] == [1000, 500]
        assert drive.turns[0].metadata.timestamp == "2023-11-14T22:13:22.000Z"

    def test_code_in_a_response_with_text_is_recorded_and_shown(self) -> None:
        drive = Drive(cantrip(), Response("I would run:", code="x = 1"))
        assert drive.go().result == "I would run:\nx = 1"
        assert (drive.turns[0].content, drive.turns[0].code) == ("I would run:", "x = 1")
        assert drive.turns[0].utterance == "I would run:\nx = 1"


class TestCalls:
    @pytest.mark.rule("CIRCLE-7")
    def test_calls_run_in_the_order_of_the_utterance(self) -> None:
        drive = Drive(cantrip(), say(call("echo", text="first"), call("echo", text="second"), done()))
        drive.go()
        assert [(seen.gate, seen.result) for seen in drive.turns[0].gate_calls] == [
            ("echo", "first"),
            ("echo", "second"),
            ("done", "ok"),
        ]

    @pytest.mark.rule("LOOP-3", "D-003", "CIRCLE-8")
    def test_done_ends_the_loop_and_skips_the_rest(self) -> None:
        drive = Drive(
            cantrip(), say(call("echo", text="before"), done("finished"), call("echo", text="after"), done(2))
        )
        outcome = drive.go()
        assert (outcome.result, outcome.terminated, outcome.truncated) == ("finished", True, False)
        assert drive.ran == [("echo", {"text": "before"})]
        assert [seen.gate for seen in drive.turns[0].gate_calls] == ["echo", "done"]

    @pytest.mark.rule("LOOP-3", "LOOP-1")
    def test_calls_skipped_by_done_have_a_result(self) -> None:
        drive = Drive(cantrip(), say(done(), call("echo", text="after")), lasting=True)
        drive.go()
        assert texts(drive.context)[-1] == f"tool {SKIPPED}"
        assert drive.context[-1].tool_call_id == drive.context[1].tool_calls[1].id

    @pytest.mark.rule("LOOP-3")
    def test_a_malformed_done_is_an_error_and_the_loop_continues(self) -> None:
        drive = Drive(cantrip(), say(call("done"), call("echo", text="next")), say(done("right")))
        assert drive.go().result == "right"
        first, second = drive.turns[0].gate_calls
        assert first.is_error
        assert "missing required" in first.content
        assert second.result == "next"

    @pytest.mark.rule("CIRCLE-5", "D-011", "D-005")
    def test_a_gate_that_fails_is_an_observation(self) -> None:
        drive = Drive(cantrip(), say(call("fail")), say(done("recovered")))
        assert drive.go().result == "recovered"
        (seen,) = drive.turns[0].gate_calls
        assert seen == Observation("fail", {}, "something went wrong", True, "call_1_1")
        assert drive.queries[1][-1].is_error

    @pytest.mark.rule("CIRCLE-6", "CIRCLE-5")
    def test_a_call_of_a_removed_gate_is_an_error_observation(self) -> None:
        drive = Drive(cantrip(max_turns(9), remove_gate("echo")), say(call("echo", text="x")), say(done()))
        drive.go()
        (seen,) = drive.turns[0].gate_calls
        assert seen.is_error
        assert seen.content.startswith("gate not available: echo")
        assert drive.ran == []

    @pytest.mark.rule("CIRCLE-5")
    @pytest.mark.parametrize(
        ("made", "why"),
        [
            (call("nothing"), "gate not available: nothing"),
            (call("echo"), 'missing required argument "text"'),
            (call("echo", text="a", loud=True), 'unexpected argument "loud"'),
            (ToolCall("", "echo", None, "{oops"), "arguments are not a JSON object"),
        ],
    )
    def test_an_invalid_call_is_an_error_observation_without_an_action(self, made: ToolCall, why: str) -> None:
        drive = Drive(cantrip(), say(made), say(done()))
        drive.go()
        assert drive.phases == [Phase.ASKING, Phase.ASKING, Phase.OVER]
        assert why in drive.turns[0].gate_calls[0].content
        assert drive.turns[0].gate_calls[0].args == made.args

    @pytest.mark.rule("D-005")
    def test_calls_without_ids_get_ids_that_no_other_call_of_the_thread_has(self) -> None:
        drive = Drive(
            cantrip(), *[say(call("echo", text="a"), call("echo", text="b")) for _ in range(3)], say(done(), done())
        )
        drive.go()
        ids = [one.id for message in drive.context for one in message.tool_calls]
        assert len(ids) == len(set(ids)) == 8
        assert [message.tool_call_id for message in drive.context if message.role == "tool"] == ids

    def test_a_crystal_may_use_its_ids_again_in_a_later_utterance(self) -> None:
        again = Response(None, (ToolCall("a", "echo", {"text": "x"}), ToolCall("b", "echo", {"text": "y"})))
        drive = Drive(cantrip(), again, again, say(done()))
        drive.go()
        assert [seen.result for turn in drive.turns for seen in turn.gate_calls] == ["x", "y", "x", "y", "ok"]

    def test_a_result_for_another_call_raises(self) -> None:
        drive = Drive(cantrip(), say(call("echo", text="x")))
        drive.go(upto=Run)
        with pytest.raises(AssertionError, match="tool result without matching tool call"):
            drive.feed(Observed(Observation("echo", {}, "x", False, "another")))


class TestTextOnly:
    @pytest.mark.rule("D-004", "LOOP-2")
    def test_text_alone_ends_the_episode_when_done_is_not_required(self) -> None:
        drive = Drive(cantrip(), say("The answer is 42"))
        outcome = drive.go()
        assert (outcome.result, outcome.terminated) == ("The answer is 42", True)
        (turn,) = drive.turns
        assert (turn.terminated, turn.gate_calls, turn.observation) == (True, (), "")

    @pytest.mark.rule("D-004", "LOOP-1", "D-002")
    @pytest.mark.parametrize(
        "made",
        [
            cantrip(call=Call(require_done_tool=True)),
            cantrip(require_done_tool=True),
            cantrip(max_turns(9), require_done_tool()),
        ],
        ids=["call", "cantrip", "ward"],
    )
    def test_the_loop_continues_until_done_when_done_is_required(self, made: Any) -> None:
        drive = Drive(made, say("thinking..."), say("still thinking..."), say(done("42")))
        assert drive.go().result == "42"
        assert [turn.gate_calls for turn in drive.turns[:2]] == [(), ()]
        assert texts(drive.queries[2]) == [
            "user go",
            "assistant thinking...",
            f"user {NO_GATE}",
            "assistant still thinking...",
            f"user {NO_GATE}",
        ]


class TestWards:
    @pytest.mark.rule("LOOP-4", "LOOM-7")
    def test_the_last_turn_that_a_ward_allows_is_truncated_and_its_gates_run(self) -> None:
        drive = Drive(cantrip(max_turns(2)), say(call("echo", text="1")), say(call("echo", text="2"), call("fail")))
        outcome = drive.go()
        assert (outcome.truncated, outcome.terminated, outcome.reason, outcome.ward) == (
            True,
            False,
            "truncated",
            "max_turns",
        )
        assert [(turn.truncated, turn.terminated, turn.ward) for turn in drive.turns] == [
            (False, False, None),
            (True, False, "max_turns(2)"),
        ]
        assert len(drive.ran) == 3

    @pytest.mark.rule("LOOP-4")
    def test_a_truncated_outcome_summarises_the_work_done(self) -> None:
        drive = Drive(
            cantrip(max_turns(2)),
            say("first a look", call("echo", text="1"), call("echo", text="2")),
            say("now this", call("fail")),
        )
        summary = drive.go().summary
        assert summary == (
            "truncated by max_turns(2) after 2 turns; gates run: echo x2; gates failed: fail; last words: now this"
        )
        assert drive.records[-1] == Ended("e1", "truncated", drive.records[-1].at, summary)

    @pytest.mark.rule("LOOM-7", "LOOP-3")
    def test_done_in_the_last_turn_terminates(self) -> None:
        drive = Drive(cantrip(max_turns(1)), say(done("just in time")))
        assert drive.go().terminated
        assert (drive.turns[0].terminated, drive.turns[0].truncated) == (True, False)

    @pytest.mark.rule("LOOP-2", "CIRCLE-2", "V-35")
    @pytest.mark.parametrize(
        ("wards", "usage", "ends"),
        [
            ([max_tokens(1_000)], Usage(), "max_tokens"),
            ([max_cost(1.0)], Usage(), "max_cost"),
            ([max_tokens(1_000), max_cost(1.0)], Usage(), "max_tokens"),
            ([max_tokens(1_000), max_turns(120)], Usage(), "max_turns"),
            ([max_tokens(1_000)], Usage(5, 5), "max_tokens"),
            ([max_cost(1.0)], Usage(5, 5, cost=0.001), "max_cost"),
        ],
    )
    def test_a_budget_ends_an_episode_also_if_its_crystal_reports_no_usage(
        self, wards: list[Ward], usage: Usage, ends: str
    ) -> None:
        drive = Drive(cantrip(*wards), *[say(call("echo", text="x"), usage=usage)] * 1_001)
        outcome = drive.go()
        assert (outcome.truncated, outcome.ward) == (True, ends)
        expected = {Usage(): 120 if ends == "max_turns" else 100, Usage(5, 5): 100}.get(usage, 1_000)
        assert len(drive.turns) == expected

    @pytest.mark.rule("LOOP-4", "PROD-3")
    def test_a_spent_budget_truncates_the_turn_that_spent_it(self) -> None:
        drive = Drive(cantrip(max_tokens(15)), say(call("echo", text="1")))
        outcome = drive.go()
        assert (outcome.truncated, outcome.ward) == (True, "max_tokens")
        assert (drive.turns[0].truncated, drive.turns[0].ward) == (True, "max_tokens(15)")
        assert drive.ran == [("echo", {"text": "1"})]

    @pytest.mark.rule("LOOP-4")
    def test_a_budget_that_children_spent_truncates_the_parent(self) -> None:
        drive = Drive(cantrip(max_tokens(30)), say(call("call_agent", intent="sub"), call("echo", text="1")))
        drive.go(upto=Spawn)
        outcome = drive.go(Returned((ChildOutcome("x", None, Usage(9, 9)),)))
        assert (outcome.ward, outcome.usage, outcome.subtree_usage) == ("max_tokens", USAGE, USAGE + Usage(9, 9))
        assert [turn.truncated for turn in drive.turns] == [False, True]

    @pytest.mark.rule("LOOP-4")
    def test_a_budget_that_was_spent_before_children_ran_stays_spent(self) -> None:
        drive = Drive(cantrip(max_tokens(15)), say(call("call_agent", intent="sub")))
        assert drive.go().ward == "max_tokens"

    @pytest.mark.rule("LOOP-4")
    def test_the_summary_excludes_work_for_other_intents(self) -> None:
        drive = Drive(cantrip(max_turns(1)), say("Wait.", call("echo", text="x")), say(call("look")), lasting=True)
        assert drive.go().summary == "truncated by max_turns(1) after 1 turn; gates run: echo; last words: Wait."
        assert drive.go().summary == "truncated by max_turns(1) after 1 turn; gates run: look"

    @pytest.mark.rule("LOOP-4")
    def test_the_summary_excludes_calls_skipped_by_done(self) -> None:
        drive = Drive(cantrip(max_turns(1)), say(done(), call("echo", text="x")), lasting=True)
        drive.go()
        assert drive.go(Stopped("cancelled", "enough")).summary == "stopped (enough) after 1 turn; gates run: done"

    @pytest.mark.rule("LOOP-4")
    def test_an_entity_whose_budget_is_used_up_ends_before_its_first_query(self) -> None:
        drive = Drive(cantrip(max_tokens(7)), lasting=True)
        drive.spent = SPENT
        outcome = drive.go()
        assert (outcome.truncated, outcome.reason, outcome.ward) == (True, "budget", "max_tokens")
        assert drive.state.phase is Phase.OVER
        assert [type(record) for record in drive.records] == [Header, IntentGiven, Ended]
        assert outcome.last_turn is None

    @pytest.mark.rule("CIRCLE-6", "CIRCLE-7")
    def test_each_call_beyond_max_gate_calls_is_refused(self) -> None:
        three = say(call("echo", text="a"), call("echo", text="b"), call("echo", text="c"))
        run = Drive(cantrip(max_turns(9), max_gate_calls(2)), three, say(done()))
        assert run.go().result == "ok"
        assert [(seen.result, seen.is_error) for seen in run.turns[0].gate_calls] == [
            ("a", False),
            ("b", False),
            ("not run: one turn may make 2 gate calls (max_gate_calls), and this is number 3", True),
        ]

    @pytest.mark.rule("CIRCLE-6", "LOOP-3")
    def test_done_counts_towards_max_gate_calls(self) -> None:
        run = Drive(cantrip(max_turns(2), max_gate_calls(1)), say(call("echo", text="a"), done()), say(done("now")))
        assert run.go().result == "now"
        assert not run.turns[0].terminated


class TestLasting:
    """An invoked entity: IDLE between its intents."""

    @pytest.mark.rule("D-001")
    def test_max_turns_counts_anew_for_each_send(self) -> None:
        drive = Drive(cantrip(max_turns(3)), *([say(call("look"))] * 2 + [say(done())]) * 20, lasting=True)
        for n in range(20):
            assert drive.go(f"send {n}").terminated
        assert [turn.sequence for turn in drive.turns] == list(range(1, 61))

    @pytest.mark.parametrize(
        ("reply", "how"),
        [
            (say("text"), "terminated"),
            (say(done()), "terminated"),
            (say(done(), call("look")), "terminated"),
            (say(call("look")), "truncated"),
            (Failed("HTTP 500"), "failed"),
        ],
        ids=["text", "done", "done and more", "truncated", "failed"],
    )
    def test_a_long_lived_entity_accepts_another_intent_afterwards(self, reply: Any, how: str) -> None:
        drive = Drive(cantrip(max_turns(1)), reply, say(done("again")), lasting=True)
        assert drive.go("one").reason == how
        assert drive.state.phase is Phase.IDLE
        before = drive.context
        assert drive.go("two").result == "again"
        assert drive.queries[-1][: len(before)] == before
        assert drive.queries[-1][-1].content == "two"
        ended = [record.reason for record in drive.records if isinstance(record, Ended)]
        assert ended == (["failed"] if how == "failed" else [])  # of a failure no turn tells

    def test_usage_adds_up_over_an_entitys_life(self) -> None:
        drive = Drive(cantrip(), say(done()), say(done()), lasting=True)
        drive.go()
        assert drive.go().usage == USAGE + USAGE

    def test_a_spent_budget_ends_a_long_lived_entity_for_good(self) -> None:
        drive = Drive(cantrip(max_turns(1), max_cost(0.25)), say(call("look")), lasting=True)
        assert drive.go().ward == "max_cost"
        assert drive.state.phase is Phase.OVER

    def test_the_turn_after_a_failure_gets_the_reserved_number(self) -> None:
        drive = Drive(cantrip(), Failed("down"), say(done()), lasting=True)
        failed = drive.go("one")
        assert (failed.error, failed.terminated, failed.truncated, failed.last_turn) == ("down", False, False, None)
        drive.go("two")
        (turn,) = drive.turns
        assert (turn.sequence, turn.parent_id) == (1, None)
        assert turn.metadata.duration_ms == 500


class TestChildren:
    """call_agent: the turn is cut in two where children run (LOOM-8, reading 2)."""

    @pytest.mark.rule("LOOM-8", "COMP-5", "COMP-2")
    def test_the_part_before_a_child_is_committed_before_the_child_runs(self) -> None:
        drive = Drive(cantrip(), say(call("echo", text="a"), call("call_agent", intent="sub"), done("end")))
        spawn: Any = drive.go(upto=Spawn)
        (first,) = drive.turns
        assert [seen.gate for seen in first.gate_calls] == ["echo"]
        assert (spawn.turn_id, [child.request.intent for child in spawn.children]) == (first.id, ["sub"])
        drive.go(Returned((ChildOutcome("answer"),)))
        first, second = drive.turns
        assert [(seen.gate, seen.result) for seen in second.gate_calls] == [("call_agent", "answer"), ("done", "end")]
        assert (second.parent_id, second.utterance_id, second.sequence) == (first.id, first.id, 2)
        assert second.continues
        assert (first.terminated, second.terminated) == (False, True)

    @pytest.mark.rule("LOOM-8", "LOOM-9")
    def test_the_continuation_has_no_second_usage(self) -> None:
        drive = Drive(cantrip(), say(call("call_agent", intent="sub"), done()))
        outcome = drive.go()
        assert [turn.usage for turn in drive.turns] == [USAGE, NO_USAGE]
        assert (outcome.usage, outcome.subtree_usage) == (USAGE, USAGE + Usage(3, 1))

    @pytest.mark.rule("LOOP-1", "COMP-4")
    def test_the_context_shows_a_split_turn_as_one_utterance(self) -> None:
        drive = Drive(cantrip(), say(call("echo", text="a"), call("call_agent", intent="sub")), say(done()))
        drive.go()
        assert texts(drive.queries[1]) == [
            "user go",
            'assistant echo({"text":"a"}) call_agent({"intent":"sub"})',
            "tool a",
            "tool SUB",
        ]

    @pytest.mark.rule("LOOM-8")
    def test_two_children_in_a_row_belong_to_two_turns(self) -> None:
        ask = [call("call_agent", intent="a"), call("call_agent", intent="b"), done()]
        drive = Drive(cantrip(), say(*ask))
        drive.go()
        first, second, third = drive.turns
        assert [spawn.turn_id for spawn in drive.spawned] == [first.id, second.id]
        assert [[seen.gate for seen in turn.gate_calls] for turn in drive.turns] == [
            [],
            ["call_agent"],
            ["call_agent", "done"],
        ]
        assert {turn.utterance_id for turn in drive.turns} == {first.id}
        assert third.parent_id == second.id

    @pytest.mark.rule("LOOP-4")
    def test_a_continuation_does_not_count_as_an_utterance(self) -> None:
        delegate = say(call("call_agent", intent="a"))
        drive = Drive(cantrip(max_turns(2)), delegate, delegate)
        assert drive.go().ward == "max_turns"
        assert [turn.truncated for turn in drive.turns] == [False, False, False, True]

    @pytest.mark.rule("LOOM-8")
    def test_a_refused_delegation_does_not_cut_the_turn(self) -> None:
        drive = Drive(cantrip(max_turns(9), max_depth(0)), say(call("call_agent", intent="a"), call("look"), done()))
        drive.go()
        (turn,) = drive.turns
        assert [seen.is_error for seen in turn.gate_calls] == [True, False, False]

    @pytest.mark.rule("COMP-3")
    def test_a_batch_answers_in_the_order_of_the_requests(self) -> None:
        drive = Drive(cantrip(), say(call("call_agent_batch", intents=["a", {"intent": "b"}, "c"]), done()))
        drive.go()
        assert len(drive.spawned) == 1
        assert drive.turns[1].gate_calls[0].result == ["A", "B", "C"]

    @pytest.mark.rule("COMP-8", "D-011")
    def test_a_child_that_fails_is_an_observation(self) -> None:
        drive = Drive(
            cantrip(),
            say(call("call_agent", intent="a")),
            say(done("steered around")),
            children=lambda _: ChildOutcome(None, "child exploded"),
        )
        assert drive.go().result == "steered around"
        assert drive.turns[1].gate_calls[0] == Observation(
            "call_agent", {"intent": "a"}, "child exploded", True, "call_1_1"
        )

    @pytest.mark.rule("COMP-8")
    @pytest.mark.parametrize(("failing", "is_error"), [({"a"}, False), ({"a", "b"}, True)])
    def test_each_child_of_a_batch_has_its_own_outcome(self, failing: set[str], is_error: bool) -> None:
        def outcome(child: Any) -> ChildOutcome:
            intent = child.request.intent
            return ChildOutcome(None, f"{intent} fell") if intent in failing else ChildOutcome(intent)

        drive = Drive(cantrip(), say(call("call_agent_batch", intents=["a", "b"])), say(done()), children=outcome)
        drive.go()
        seen = drive.turns[1].gate_calls[0]
        assert seen.is_error is is_error
        assert seen.result[0] == {"is_error": True, "error": "a fell"}

    @pytest.mark.rule("COMP-6")
    def test_call_agent_at_depth_0_is_an_error_that_names_the_limit(self) -> None:
        drive = Drive(cantrip(max_turns(9), max_depth(0)), say(call("call_agent", intent="a")), say(done()))
        drive.go()
        assert [tool.name for tool in drive.asks[0].tools if "agent" in tool.name] == []
        seen = drive.turns[0].gate_calls[0]
        assert seen.is_error
        assert seen.content.startswith("gate not available: call_agent")
        assert "max_depth is 0" in seen.content

    @pytest.mark.rule("COMP-1")
    @pytest.mark.parametrize(
        ("asked", "why"),
        [
            (call("call_agent", intent="a", gates=["fetch"]), 'cannot grant gate "fetch"'),
            (call("call_agent_batch", intents=["a", {"intent": "b", "gates": ["fetch"]}]), '"fetch"'),
            (call("call_agent_batch", intents=["a", {"intent": "b", "gates": ["fetch"]}]), "(request 2)"),
            (call("call_agent", intent="a", colour="red"), 'unexpected argument "colour"'),
            (call("call_agent"), 'missing required argument "intent"'),
            (call("call_agent", intent="  "), "intent is required"),
            (call("call_agent_batch", intents=["a", " "]), "intent is required (request 2)"),
            (call("call_agent_batch", intents=[]), "intents"),
            (call("call_agent", intent="a", crystal="big"), 'unknown crystal "big"'),
            (call("call_agent", intent="a", max_turns=0), "max_turns"),
        ],
    )
    def test_a_refused_delegation_is_an_error_observation(self, asked: ToolCall, why: str) -> None:
        drive = Drive(cantrip(), say(asked), say(done()))
        drive.go()
        seen = drive.turns[0].gate_calls[0]
        assert seen.is_error
        assert why in seen.content
        assert drive.spawned == []

    @pytest.mark.rule("COMP-1")
    def test_a_delegation_gate_with_other_parameters_still_validates_its_requests(self) -> None:
        own = Gate.of(None, name="call_agent", parameters={"type": "object"}, description="mine")
        drive = Drive(
            cantrip(gates=["done", own]), say(call("call_agent")), say(call("call_agent", intent="x"), done())
        )
        drive.go()
        assert "missing required" in drive.turns[0].gate_calls[0].content
        assert drive.turns[2].gate_calls[0].result == "X"

    @pytest.mark.rule("COMP-7", "COMP-1")
    def test_the_child_is_carved_from_its_parent(self) -> None:
        drive = Drive(
            cantrip(),
            say(call("call_agent", intent="a", gates=["echo"], max_turns=3, system_prompt="Be brief"), done()),
        )
        drive.go()
        ((child,),) = (spawn.children for spawn in drive.spawned)
        assert [*child.cantrip.circle.open_gates] == ["echo", "done"]
        assert child.cantrip.circle.resolved.max_turns == 3
        assert child.cantrip.call.system_prompt == "Be brief"


class TestFailed:
    def test_a_failed_crystal_ends_the_cast_and_records_the_error(self) -> None:
        drive = Drive(cantrip(), say(call("echo", text="kept")), Failed("HTTP 500 after 6 attempts"))
        outcome = drive.go()
        assert (outcome.reason, outcome.error) == ("failed", "HTTP 500 after 6 attempts")
        assert not outcome.terminated
        assert not outcome.truncated
        assert drive.records[-1] == Ended("e1", "failed", drive.records[-1].at, "HTTP 500 after 6 attempts")
        assert drive.turns[0].observation == "kept"
        assert outcome.last_turn == drive.turns[0].id


class TestStopped:
    """From outside, in each phase: nothing that happened is lost, every call has a result."""

    @pytest.mark.rule("LOOM-7", "ENTITY-4")
    def test_stopping_during_a_query_records_no_turn(self) -> None:
        drive = Drive(cantrip(), say(call("echo", text="1")), Stopped("cancelled", "by the caller"))
        outcome = drive.go()
        assert (outcome.truncated, outcome.reason, outcome.ward) == (True, "cancelled", None)
        assert [turn.truncated for turn in drive.turns] == [False]
        ended = drive.records[-1]
        assert isinstance(ended, Ended)
        assert ended.reason == "cancelled"
        assert outcome.summary == "stopped (by the caller) after 1 turn; gates run: echo"

    @pytest.mark.rule("LOOM-7", "LOOP-1", "LOOP-4")
    def test_a_turn_stopped_during_a_gate_is_committed_with_known_results(self) -> None:
        drive = Drive(cantrip(), say(call("echo", text="1"), call("look"), call("echo", text="2"), done()))
        drive.go(upto=Run)
        drive.feed(drive.event_for(drive.transitions[-1].action))
        outcome = drive.go(Stopped("timeout", "timeout(5)"))
        (turn,) = drive.turns
        assert [(seen.is_error, seen.content) for seen in turn.gate_calls] == [
            (False, "1"),
            (True, "outcome unknown: the entity was stopped (timeout(5))"),
            (True, "not run: the entity was stopped (timeout(5))"),
            (True, "not run: the entity was stopped (timeout(5))"),
        ]
        assert (turn.truncated, turn.ward, outcome.ward) == (True, "timeout", "timeout")
        assert outcome.summary == "stopped (timeout(5)) after 1 turn; gates run: echo"

    @pytest.mark.rule("LOOM-8", "LOOM-7")
    def test_stopping_while_children_run_commits_the_continuation(self) -> None:
        drive = Drive(cantrip(), say(call("call_agent", intent="a"), done()))
        drive.go(upto=Spawn)
        outcome = drive.go(Stopped("parent_ended", "the parent ended"))
        first, second = drive.turns
        assert (first.truncated, second.truncated, second.utterance_id) == (False, True, first.id)
        assert [seen.content.split(":")[0] for seen in second.gate_calls] == ["outcome unknown", "not run"]
        assert (outcome.reason, outcome.last_turn) == ("parent_ended", second.id)

    def test_stopping_an_idle_entity_records_only_its_end(self) -> None:
        drive = Drive(cantrip(), say(done()), lasting=True)
        drive.go()
        drive.go(Stopped("cancelled", "enough"))
        assert [type(record) for record in drive.transitions[-1].records] == [Ended]
        assert drive.state.phase is Phase.OVER

    def test_stopping_ends_a_long_lived_entity(self) -> None:
        drive = Drive(cantrip(), Stopped("budget", "max_cost(1)"), lasting=True)
        assert drive.go().ward == "budget"
        assert drive.state.phase is Phase.OVER


# The table at the head of the module is the truth


MESSAGING = (*GATES, POST, ASK, *ASKING)


def let_pass(*_: Any) -> None:
    """A step around a gate that has no objection."""


def programs(turns: int, *gates: Any, **parts: Any) -> Cantrip:
    """A cantrip with a code circle."""
    own = [look, echo, "call_agent", POST, ASK, *ASKING]
    circle = Circle(["done", *own, *gates], [max_turns(turns)], medium="python")
    return Cantrip("local:model", circle=circle, **parts)


def budgeted_programs(*wards: Ward) -> Cantrip:
    """A cantrip with a code circle and these wards."""
    return Cantrip("local:model", circle=Circle(["done"], wards, medium="python"))


def every_drive(*, lasting: bool) -> Iterator[Drive]:
    """Entities that are driven through each of the loop's ways."""
    look, delegate = call("look"), call("call_agent", intent="a")
    post, ask = (call(name, to="b", message="hello") for name in ("post", "ask"))
    stop, interrupt = Stopped("cancelled", "c"), Interrupt("enough")
    late = Stopped("timeout", "timeout(5)")
    ask_person, paying = call("question", text="Which city?"), call("pay", amount=300)
    sign = call("sign", by="anna")

    def drive(made: Cantrip, *replies: Any, upto: type | None = None, then: Any = None, **parts: Any) -> Drive:
        one = Drive(made, *replies, lasting=lasting, **parts)
        one.go(upto=upto)
        if then is not None:
            one.go(then)
        return one

    scripts: list[tuple[int, list[Any]]] = [
        (20, [say(look, look), say(done())]),
        (20, [say(delegate, delegate), say(delegate, look), say(delegate, done())]),
        (20, [say(look, delegate, look), say(look, done())]),
        (20, [say(post), say(look, post, ask), say(ask, delegate, post), say(ask, done())]),
        (20, [say(sign, delegate, sign), say(sign, sign, post), say(ask_person, paying, delegate), say(sign, done())]),
        (20, [say(ask_person, delegate, sign), say(sign, sign, delegate), say(sign, done())]),
        (1, [say(sign)]),
        (20, [say(call("echo")), say("text")]),
        (20, [Posted({"id": 1}), say(done())]),
        (20, [Steer((Steering("and this"),)), say(done())]),
        (1, [say(look)]),
        (1, [say(delegate)]),
        (1, [Failed("x")]),
        (1, [stop]),
        (1, [interrupt]),
        (1, [late]),
    ]
    for turns, replies in scripts:
        one = drive(cantrip(max_turns(turns), gates=MESSAGING), *replies)
        if one.state.phase is Phase.IDLE:
            one.replies = [say("more")]
            one.go()
            one.spent = SPENT if turns == 1 else None
            one.go("again" if turns == 1 else stop)
        yield one
    for then in (stop, interrupt, late):
        yield drive(cantrip(gates=MESSAGING), say(paying), upto=Consult, then=then)
        yield drive(cantrip(), say(look), upto=Run, then=then)
        yield drive(cantrip(), say(delegate), upto=Spawn, then=then)
    wrapped = cantrip(
        gates=["done", wrap("call_agent", pre=[let_pass], post=[let_pass]), wrap("post", post=[let_pass])]
    )
    yield drive(wrapped, say(delegate, post), say(delegate, delegate), say(delegate, done()))
    looked = wrap("call_agent", post=[let_pass])
    yield drive(cantrip(gates=["done", *ASKING, looked]), say(delegate, sign), say(done()))
    after = ["done", POST, "call_agent_batch", wrap("call_agent", post=[let_pass])]
    batch = call("call_agent_batch", intents=["a"])
    yield drive(cantrip(gates=after), say(delegate, post), say(delegate, batch), say(delegate, done()))
    recalling = cantrip(gates=after, folding=Folding(1, summary=True))
    yield drive(recalling, say(delegate), say(delegate), say(delegate), say(done()))

    book, find = call("book", day="Monday"), call("find", day="Monday")
    inquiring = ["done", *INQUIRING, "call_agent"]
    yield drive(cantrip(gates=inquiring), say(book, find, delegate), say(find, done()))
    for then in (stop, interrupt, late):
        yield drive(cantrip(gates=inquiring), say(book), upto=Consult, then=then)

    code, end = Response(code="x"), [Called("submit_answer", {"answer": 1}), Computed()]
    delegating, looking = Called("call_agent", {"intent": "a"}), Called("look", {})
    posting, asking = (Called(name, {"to": "b", "message": "hello"}) for name in ("post", "ask"))
    yield drive(programs(20), code, looking, Called("echo", {"text": "x"}), delegating, posting, asking, *end)
    yield drive(programs(20), code, Called("nowhere", {}), Called("done", {"answer": 1}), Computed())
    yield drive(programs(1), code, Computed(error="e"))
    yield drive(programs(20), code, Computed("v"), code, *end)
    for then in (stop, interrupt, late):
        yield drive(programs(20), code, upto=Compute, then=then)
    wrapping = programs(20, *(wrap(name, pre=[let_pass], post=[let_pass]) for name in ("call_agent", "post", "ask")))
    yield drive(wrapping, code, delegating, posting, asking, *end)
    for called, waits in ((Called("echo", {"text": "x"}), Run), (asking, Await), (delegating, Spawn)):
        one = drive(programs(20), code, called, upto=waits)
        one.replies = [called, *end]
        one.carry_on(one.restart())
        yield one
    asking_person, payment = Called("question", {"text": "Which city?"}), Called("pay", {"amount": 300})
    yield drive(programs(20), code, asking_person, payment, delegating, payment, payment, *end)
    booking, finding = (Called(name, {"day": "Monday"}) for name in ("book", "find"))
    yield drive(programs(20, *INQUIRING), code, booking, finding, *end)
    one = drive(programs(20, *INQUIRING), code, booking, upto=Consult)
    one.restart()
    one.replies = [booking, *end]
    one.carry_on(one.feed(one.decide(one.state.turn.requested)))
    assert [record.question for record in one.records if isinstance(record, Requested)] == [*INQUIRIES]
    yield one
    one = drive(programs(20), code, payment, upto=Consult)
    one.restart()
    one.replies = [payment, *end]
    one.carry_on(one.feed(one.decide(one.state.turn.requested)))
    yield one
    one = drive(programs(20), code, delegating, upto=Spawn)
    del one.records[-1]  # killed between the start of the delegation and the commit that goes with it
    one.replies = [delegating, *end]
    one.carry_on(one.restart())
    yield one

    one = Drive(cantrip(), lasting=lasting)
    one.spent = SPENT
    one.go()
    yield one
    one = Drive(cantrip(), say(look), lasting=lasting)
    one.go(upto=Run)
    one.replies = [say(look)]
    one.carry_on(one.feed(one.event_for(one.transitions[-1].action)), upto=Run)
    one.spent = SPENT
    one.carry_on(one.feed(one.event_for(one.transitions[-1].action)))
    yield one

    recalls = Folding(1, summary=True)
    talks = cantrip(max_turns(20), require_done_tool(), gates=MESSAGING, folding=recalls)
    yield drive(cantrip(gates=MESSAGING, folding=recalls), say(sign), say(sign), say(sign), say(done()))
    yield drive(talks, say("a"), say("b"), say(look), say(delegate), say("c"), say(look), say(done()))
    yield drive(programs(20, folding=recalls), code, Computed(), code, Computed(), code, *end)
    one = Drive(cantrip(folding=recalls), say(look), say(look), say(done()), lasting=lasting)
    one.spends_on_summary = True
    one.go()
    yield one
    if lasting:
        one = drive(cantrip(folding=recalls), say(look), say(done()))
        one.replies = [say(done())]
        one.go("more")
        yield one
    for folding in (Folding(), Folding(summary=True)):
        yield drive(cantrip(folding=folding), say(look), say(look), Failed("too long", overflows=True), say(done()))
        yield drive(cantrip(folding=folding), say(look), say(look), Compact("Keep all."), say(done()))
        yield drive(cantrip(folding=folding), say(look), say(look), Compact(), say(done()))
        if lasting:
            one = drive(cantrip(folding=folding), say(look), say(done()))
            one.carry_on(one.feed(Compact()))
            yield one
    yield from every_drive_with_a_budget(lasting=lasting)
    long = Steer((Steering("x" * 2000),))
    yield drive(cantrip(folding=Folding(summary=True)), say(look), say(look), long, say(done()), window=400)


def spend(*replies: Response) -> list[Response]:
    """The replies, each of which uses tokens."""
    return [replace(reply, usage=Usage(1, 1)) for reply in replies]


def every_drive_with_a_budget(*, lasting: bool) -> Iterator[Drive]:
    """A budget for each day is used up at each place, and a person is asked, or the next day is waited for."""

    def drive(made: Cantrip, *replies: Any, upto: type | None = None, then: Any = None) -> Drive:
        one = Drive(made, *replies, lasting=lasting)
        one.cost = Usage(1, 1)
        one.go(upto=upto)
        if then is not None:
            one.carry_on(one.feed(then))
        return one

    look, delegate, sign = call("look"), call("call_agent", intent="a"), call("sign", by="anna")
    noted = ["done", wrap("call_agent", post=[let_pass])]
    for when_spent in ("wait", "ask"):
        wards = (max_tokens(1, per="day", when_spent=when_spent), max_turns(20))
        talks = spend(say("text"), say(look), say(sign), say(delegate), say(done()))
        made = cantrip(*wards, require_done_tool(), gates=MESSAGING)
        one = drive(made, *talks[:3], Decide("deny", "anna"), *talks[3:])
        if lasting:
            one.replies = spend(say(done()))
            one.go("more")
        yield one
        one = Drive(made, *spend(say(done())), lasting=lasting)
        one.ledger.make_budget(lambda: 0.0)
        one.ledger.below = Usage(1, 1)
        one.go()
        yield one
        yield drive(cantrip(*wards, gates=noted), *spend(say(delegate), say(done())))
        folded = cantrip(*wards, folding=Folding(1, summary=True))
        yield drive(folded, *spend(say(look), say(look), say(look), say(done())))
        yield drive(budgeted_programs(*wards), *spend(Response(code="x")), Computed(), *spend(say("text")))
    asked = [Decide("deny", "anna"), Decide("answer", "anna", answer=0)]
    for per in ("intent", "day"):
        made = cantrip(max_tokens(1, per=per, when_spent="ask"), max_turns(20))
        for decided in asked:
            yield drive(made, *spend(say(look)), decided)
    steer = Steer((Steering("and this"),))
    one = drive(made, *spend(say(look), say(done())), upto=Consult, then=steer)
    yield one


def every_transition() -> set[tuple[str, str, str, str]]:
    """What the loop does, driven through each of its ways."""
    return {
        (step.before.phase.name, type(step.event).__name__, step.after.phase.name, type(step.action).__name__)
        for lasting in (False, True)
        for drive in every_drive(lasting=lasting)
        for step in drive.transitions
    }


class TestTable:
    def test_the_table_lists_exactly_the_events_that_handlers_accept(self) -> None:
        stated = {(row.phase, row.event) for row in diagram.table()}
        noted = {("IDLE", "Steer"), ("IDLE", "Undo")}  # a message that comes while it waits for an intent is no step
        assert stated | noted == {(phase.name, event.__name__) for phase, event in HANDLERS}

    def test_the_table_lists_exactly_the_transitions_that_occur(self) -> None:
        stated = {(row.phase, row.event, row.after, row.action) for row in diagram.table()}
        assert stated == every_transition()

    def test_every_event_that_the_table_does_not_list_raises(self) -> None:
        plan = Plan.of(cantrip(), Identity("e1"))
        events: list[Event] = [
            Begin("x"),
            Replied(say("x")),
            Failed("x"),
            Observed(Observation("look", None, 1)),
            Returned(()),
            Stopped("cancelled", "x"),
        ]
        allowed = {(row.phase, row.event) for row in diagram.table()}
        loop = Loop(plan, Moment(0, 0, "t"))
        for phase in Phase:
            loop.state.phase = phase
            for event in events:
                if (phase.name, type(event).__name__) not in allowed:
                    with pytest.raises(AssertionError, match=f"cannot happen to an entity that is {phase.value}"):
                        loop.advance(Moment(0, 0, "t"), event)

    def test_the_diagram_in_the_docs_is_up_to_date(self) -> None:
        assert diagram.main(["--check"]) == 0

    def test_the_diagram_has_an_arrow_for_each_row(self) -> None:
        arrows = set(re.findall(r"(\w+) --> (\w+): ", diagram.render()))
        assert arrows == {(row.phase, row.after) for row in diagram.table()}

    def test_the_phases_in_the_docs_have_an_arrow_for_each_change_of_phase(self) -> None:
        page = diagram.RECOVERY.read_text(encoding="utf-8")
        arrows = set(re.findall(r"(\w+) --> (\w+): ", page))
        assert arrows == {(row.phase, row.after) for row in diagram.table() if row.phase != row.after}


def test_a_copy_of_a_state_does_not_change_with_the_original() -> None:
    drive = Drive(cantrip(), say(call("page", path="x")), say(call("call_agent", intent="a"), call("look"), done()))
    drive.go()
    log: list[Record] = []
    for step in drive.transitions:
        assert fields_of(fold(drive.plan.shape, log)) == fields_of(step.before)
        log += step.records


def test_finish_has_the_last_turn() -> None:
    drive = Drive(cantrip(), say(call("look")), say(done()))
    assert drive.go().last_turn == drive.turns[-1].id
    assert isinstance(drive.transitions[-1].action, Finish)
    assert isinstance(drive.transitions[0].action, Ask)
    assert LEFT_OUT not in texts(drive.context)
