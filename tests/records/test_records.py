"""Turns as users see them, assembled from the records of a log; and going on from a log."""

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.machine.actions import Spawn
from cantrip_actors.machine.context import LEFT_OUT, SKIPPED
from cantrip_actors.machine.events import Begin, Moment
from cantrip_actors.machine.project import read_turns
from cantrip_actors.machine.state import Phase
from cantrip_actors.records.records import (
    ChildStarted,
    Committed,
    GateFinished,
    Observation,
    Record,
    Rewarded,
    Utterance,
)
from cantrip_actors.terms.call import Call
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.ward import max_turns
from tests.machine.driver import USAGE, Drive, call, cantrip, done, say, texts


def run(*replies: Any, **plan: Any) -> Drive:
    """An entity, driven to its end."""
    drive = Drive(cantrip(), *replies, **plan)
    drive.go()
    return drive


def upto(drive: Drive, turn: int) -> list[Any]:
    """Its records up to the end of that turn, counted from 1."""
    end = [n for n, record in enumerate(drive.records) if isinstance(record, Committed)][turn - 1]
    return drive.records[: end + 1]


class TestTurns:
    @pytest.mark.rule("LOOM-2", "LOOM-9", "D-005")
    def test_a_turn_has_all_that_the_spec_names(self) -> None:
        turn = run(say("let me see", call("echo", text="hi"), call("fail")), say(done())).turns[0]
        assert turn.utterance == 'let me see\necho({"text":"hi"})\nfail({})'
        assert turn.observation == "hi\nsomething went wrong"
        assert turn.observations == turn.gate_calls
        assert [(one.gate, one.args, one.result, one.is_error, one.tool_call_id) for one in turn.gate_calls] == [
            ("echo", {"text": "hi"}, "hi", False, "call_1_1"),
            ("fail", {}, "something went wrong", True, "call_1_2"),
        ]
        assert (turn.metadata.tokens_prompt, turn.metadata.tokens_completion, turn.metadata.tokens_cached) == (10, 5, 2)
        assert turn.metadata.duration_ms > 0
        assert (turn.usage, turn.metadata.cost, turn.reward) == (USAGE, 0.25, None)

    @pytest.mark.rule("LOOM-3")
    def test_a_turn_cannot_be_changed(self) -> None:
        turn = run(say(done())).turns[0]
        with pytest.raises(FrozenInstanceError):
            turn.reward = 1.0

    @pytest.mark.rule("LOOM-3")
    def test_the_latest_reward_counts_at_any_time(self) -> None:
        drive = run(say(call("look")), say(done()))
        first, second = drive.turns
        rewards: list[Record] = [Rewarded("e1", first.id, value, "later") for value in (0.0, 1.0)]
        assert [turn.reward for turn in read_turns([*drive.records, *rewards])] == [1.0, None]
        assert first.reward is None
        assert second.reward is None

    @pytest.mark.rule("LOOM-1")
    def test_an_utterance_whose_turn_was_interrupted_is_not_a_turn(self) -> None:
        drive = run(say(call("look")), say(call("look")), say(done()))
        for cut in range(len(drive.records) + 1):
            turns = list(read_turns(drive.records[:cut]))
            assert turns == drive.turns[: len(turns)]
            assert len(turns) == sum(isinstance(record, Committed) for record in drive.records[:cut])

    @pytest.mark.rule("COMP-5", "LOOM-8")
    def test_children_belong_to_the_turn_that_spawned_them(self) -> None:
        drive = run(say(call("call_agent", intent="a"), call("look")), say(done()))
        records = list(drive.records)
        first = drive.turns[0]
        at = next(n for n, record in enumerate(records) if isinstance(record, Committed)) + 1
        records[at:at] = [ChildStarted("e1", first.id, "call_1_1", f"child{n}", n) for n in range(2)]
        assert [turn.children for turn in read_turns(records)] == [("child0", "child1"), (), ()]

    @pytest.mark.rule("LOOM-8", "LOOM-9")
    def test_a_continuation_repeats_the_utterance_but_not_its_usage(self) -> None:
        first, second = run(say("both", call("call_agent", intent="a"), done())).turns
        assert (first.continues, second.continues) == (False, True)
        assert (first.usage, second.usage) == (USAGE, NO_USAGE)
        assert first.tool_calls == second.tool_calls
        assert [one.args for one in second.gate_calls] == [{"intent": "a"}, {"answer": "ok"}]

    def test_a_log_repeats_no_arguments(self) -> None:
        drive = run(say(call("echo", text="hi"), call("echo"), call("call_agent", intent="a"), done()))
        noted = [record.observation.args for record in drive.records if isinstance(record, GateFinished)]
        assert noted == [None] * 4

    @pytest.mark.parametrize(
        ("result", "text"), [("as it is", "as it is"), ({"a": [1, None]}, '{"a":[1,null]}'), (None, "null"), (42, "42")]
    )
    @pytest.mark.rule("D-005")
    def test_an_observation_is_a_value_and_its_text(self, result: Any, text: str) -> None:
        assert Observation("g", None, result).content == text


class TestForks:
    """A fork continues from the records of a thread (LOOM-4, reading 7)."""

    @pytest.mark.rule("LOOM-4", "INTENT-2", "INTENT-3")
    def test_a_fork_begins_with_the_path_and_then_the_new_intent(self) -> None:
        original = run(say(call("echo", text="A")), say(call("echo", text="B")), say(done("original")))
        fork = Drive(cantrip(), say(done("forked")), lineage=upto(original, 1), entity_id="e2", forked=True)
        assert fork.go("continue").result == "forked"
        assert texts(fork.queries[0]) == ["user go", 'assistant echo({"text":"A"})', "tool A", "user continue"]

    @pytest.mark.rule("LOOM-4", "LOOM-2", "CALL-4")
    def test_the_turns_of_a_fork_follow_the_turn_that_it_was_forked_from(self) -> None:
        original = run(say(call("look")), say(call("look")), say(done()))
        at = original.turns[1].id
        fork = Drive(
            cantrip(), say(call("look")), say(done()), lineage=upto(original, 2), entity_id="e2", parent_turn=at
        )
        outcome = fork.go("more")
        header = fork.records[0]
        assert (header.entity_id, header.parent_turn) == ("e2", at)
        assert [(turn.sequence, turn.parent_id) for turn in fork.turns] == [(1, at), (2, fork.turns[0].id)]
        assert outcome.last_turn == fork.turns[1].id

    @pytest.mark.rule("LOOM-4", "PROD-3")
    def test_a_forks_usage_and_turns_exclude_inherited_ones(self) -> None:
        original = run(say(call("look")), say(call("look")), say(done()))
        fork = Drive(cantrip(max_turns(1)), say(done(), usage=Usage(1, 1)), lineage=upto(original, 2), entity_id="e2")
        outcome = fork.go("more")
        assert (outcome.usage, outcome.terminated) == (Usage(1, 1), True)

    @pytest.mark.rule("LOOM-4", "LOOP-1")
    def test_a_fork_from_the_first_part_of_a_split_turn_answers_the_later_calls_as_left_out(self) -> None:
        original = run(say(call("echo", text="A"), call("call_agent", intent="x"), call("look")), say(done()))
        fork = Drive(cantrip(), say(done()), lineage=upto(original, 1), entity_id="e2")
        fork.go("another way")
        assert texts(fork.queries[0])[2:] == ["tool A", f"tool {LEFT_OUT}", f"tool {LEFT_OUT}", "user another way"]

    @pytest.mark.rule("LOOM-4")
    def test_a_fork_from_the_last_part_of_a_split_turn_shows_one_utterance(self) -> None:
        original = run(say(call("echo", text="A"), call("call_agent", intent="x"), call("look")), say(done()))
        fork = Drive(cantrip(), say(done()), lineage=upto(original, 2), entity_id="e2")
        fork.go("on")
        assert texts(fork.queries[0])[2:] == ["tool A", "tool X", "tool seen", "user on"]

    @pytest.mark.rule("LOOM-4", "LOOP-3")
    def test_calls_that_done_skipped_stay_skipped_in_a_fork(self) -> None:
        original = run(say(done("first"), call("look")))
        fork = Drive(cantrip(), say(done("second")), lineage=upto(original, 1), entity_id="e2")
        assert fork.go("again").result == "second"
        assert texts(fork.queries[0])[2:] == ["tool first", f"tool {SKIPPED}", "user again"]

    @pytest.mark.rule("LOOM-4", "D-001")
    def test_a_fork_of_a_long_lived_entity_has_later_intents_at_their_position(self) -> None:
        original = Drive(cantrip(), say("one"), say("two"), say("three"), lasting=True)
        for intent in ("first", "second", "third"):
            original.go(intent)
        fork = Drive(cantrip(), say(done()), lineage=upto(original, 2), entity_id="e2")
        fork.go(Begin("fourth", [1]))
        assert texts(fork.queries[0]) == [
            "user first",
            "assistant one",
            "user second",
            "assistant two",
            "user fourth",
            "user context:\n[1]",
        ]

    @pytest.mark.rule("LOOM-4")
    def test_a_fork_of_a_fork_has_both_paths(self) -> None:
        one = run(say(call("echo", text="A")), say(done()))
        two = Drive(
            cantrip(), say(call("echo", text="B")), say(done()), lineage=upto(one, 1), entity_id="e2", parent_turn="t3"
        )
        two.go("second")
        three = Drive(cantrip(), say(done()), lineage=[*upto(one, 1), *upto(two, 1)], entity_id="e3")
        three.go("third")
        shown = texts(three.queries[0])
        assert [one for one in shown if one.startswith(("user", "tool"))] == [
            "user go",
            "tool A",
            "user second",
            "tool B",
            "user third",
        ]
        ids = [one.id for message in three.context for one in message.tool_calls]
        assert len(ids) == len(set(ids))

    @pytest.mark.rule("LOOM-4", "LOOP-1")
    def test_a_fork_of_a_fork_from_a_split_turn_has_the_calls_left_out_before_the_intent(self) -> None:
        one = run(say(call("call_agent", intent="x"), call("look")), say(done()))
        two = Drive(cantrip(), say(call("look")), say(done()), lineage=upto(one, 1), entity_id="e2")
        two.go("second")
        three = Drive(cantrip(), say(done()), lineage=[*upto(one, 1), *upto(two, 1)], entity_id="e3")
        three.go("third")
        assert three.queries[0] == [*two.queries[1], three.context[-3]]
        assert texts(three.queries[0])[2:5] == [f"tool {LEFT_OUT}", f"tool {LEFT_OUT}", "user second"]

    @pytest.mark.rule("LOOM-4", "CALL-2")
    def test_a_fork_has_its_own_call(self) -> None:
        original = Drive(cantrip(call=Call("You are terse")), say(call("look")), say(done()))
        original.go()
        fork = Drive(cantrip(call=Call("You are kind")), say(done()), lineage=upto(original, 1), entity_id="e2")
        fork.go("on")
        assert texts(fork.queries[0])[:2] == ["system You are kind", "user go"]

    @pytest.mark.rule("LOOM-4")
    def test_a_fork_leaves_out_an_utterance_whose_turn_was_interrupted(self) -> None:
        original = run(say(call("look")), say(call("look")), say(done()))
        end = max(n for n, record in enumerate(original.records) if isinstance(record, Utterance))
        fork = Drive(cantrip(), say(done()), lineage=original.records[: end + 1], entity_id="e2")
        assert fork.state.sequence == 2
        fork.go("on")
        assert texts(fork.queries[0])[-2:] == ["tool seen", "user on"]

    def test_folding_a_lineage_starts_no_action(self) -> None:
        original = run(say(call("look")), say(done()))
        fork = Drive(cantrip(), lineage=upto(original, 1), entity_id="e2")
        assert (fork.state.phase, fork.state.inherited, fork.records) == (Phase.NEW, 1, [])

    @pytest.mark.rule("LOOM-4")
    def test_the_original_continues_unchanged_after_a_fork(self) -> None:
        original = Drive(cantrip(), say(call("call_agent", intent="x"), call("look")), say(done("mine")))
        original.go(upto=Spawn)
        fork = Drive(cantrip(), say(done()), lineage=list(original.records), entity_id="e2")
        fork.go("other")
        action = original.transitions[-1].action
        assert isinstance(action, Spawn)
        assert original.go(original.event_for(action)).result == "mine"
        assert "user other" not in texts(original.context)


@given(st.integers(0, 4_000_000_000_000))
def test_times_have_milliseconds(milliseconds: int) -> None:
    seconds = datetime.fromtimestamp(milliseconds // 1000, UTC)
    told = Moment(0.0, milliseconds / 1000, "").at
    assert told == f"{seconds:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"
