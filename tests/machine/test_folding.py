"""Folding and ephemeral results: views of a context that is whole underneath (D-007, D-010)."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.machine.events import Begin, Failed, Steer, Steering
from cantrip_actors.records.records import Folded, GateFinished, Observation
from cantrip_actors.terms.call import Call
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.folding import Folding
from cantrip_actors.terms.messages import Response, Usage
from cantrip_actors.terms.ward import max_turns
from tests.machine.driver import Drive, call, cantrip, done, say, texts


def steps(count: int, *, usage: Usage | None = None) -> list[Response]:
    """That many utterances that call echo, then one that calls done."""
    more: dict[str, Any] = {} if usage is None else {"usage": usage}
    return [*(say(call("echo", text=str(n)), **more) for n in range(1, count + 1)), say(done())]


class TestDue:
    @pytest.mark.rule("D-007")
    @pytest.mark.parametrize(
        ("folding", "unfolded", "due", "remaining"),
        [
            (Folding(3), 3, False, 0),
            (Folding(3), 4, True, 1),
            (Folding(1), 2, True, 1),
            (Folding(40), 41, True, 20),
            (Folding(3, keep_turns=5), 5, False, 0),
            (Folding(3, keep_turns=5), 6, True, 5),
            (Folding(12, keep_turns=10), 13, True, 10),
            (Folding(), 1000, False, 0),
        ],
    )
    def test_a_fold_is_due_by_turns(self, folding: Folding, unfolded: int, due: bool, remaining: int) -> None:
        assert folding.due(unfolded, 10**9, None) is due
        if due:
            assert folding.remaining(unfolded) == remaining

    @pytest.mark.rule("D-007", "PROD-4")
    @pytest.mark.parametrize(
        ("unfolded", "tokens", "due"), [(10, 800, False), (10, 801, True), (2, 801, True), (1, 801, False)]
    )
    def test_a_fold_is_due_by_a_share_of_the_window_80_percent_by_default(
        self, unfolded: int, tokens: int, due: bool
    ) -> None:
        assert Folding().due(unfolded, tokens, 1000) is due

    @pytest.mark.rule("D-007")
    def test_a_fold_is_due_by_turns_or_by_the_window(self) -> None:
        both = Folding(3, trigger_at=0.5)
        assert both.due(4, 0, 1000)
        assert both.due(2, 501, 1000)
        assert not both.due(3, 500, 1000)

    @given(
        st.builds(Folding, st.none() | st.integers(1, 9), st.just(0.5), st.none() | st.integers(1, 9)),
        st.integers(0, 30),
        st.integers(0, 1000),
    )
    def test_a_fold_that_is_due_folds_something_and_never_the_newest_turn(
        self, folding: Folding, unfolded: int, tokens: int
    ) -> None:
        if folding.due(unfolded, tokens, 1000):
            assert 1 <= folding.remaining(unfolded) < unfolded

    @pytest.mark.parametrize(
        "fields",
        [
            {"trigger_after_turns": 0},
            {"trigger_after_turns": True},
            {"keep_turns": 0},
            {"keep_turns": 1.5},
            {"trigger_at": 0},
            {"trigger_at": 1.1},
            {"trigger_at": "80%"},
        ],
    )
    def test_an_invalid_folding_is_refused(self, fields: dict[str, Any]) -> None:
        (name,) = fields
        with pytest.raises(InvalidCantrip, match=f"folding: {name}"):
            Folding(**fields)


class TestView:
    @pytest.mark.rule("D-007", "LOOM-5", "LOOM-6", "CALL-5")
    def test_a_marker_after_call_and_intent_replaces_older_turns(self) -> None:
        drive = Drive(cantrip(call=Call("Never forget this"), folding=Folding(3)), *steps(5))
        drive.go("the task")
        assert texts(drive.queries[3])[-1] == "tool 3"
        assert texts(drive.queries[4]) == [
            "system Never forget this",
            "user the task",
            "user [folded: turns 1-3]",
            'assistant echo({"text":"4"})',
            "tool 4",
        ]
        assert len(drive.queries[5]) == len(drive.queries[4]) + 2

    @pytest.mark.rule("CALL-5", "LOOM-6", "INTENT-3", "CIRCLE-4", "CALL-2")
    def test_through_30_turns_every_query_has_the_call_the_intent_and_the_newest_observation(self) -> None:
        drive = Drive(cantrip(max_turns(40), call=Call("prompt"), folding=Folding(3)), *steps(30))
        drive.go("the task")
        for n, query in enumerate(drive.queries):
            assert texts(query[:2]) == ["system prompt", "user the task"]
            if n:
                assert query[-1].content == str(n)
            assert len(query) <= 3 + 2 * 3
        assert all(ask.tools == drive.plan.tools for ask in drive.asks)

    @pytest.mark.rule("LOOM-5")
    def test_the_loom_keeps_every_turn_whole(self) -> None:
        drive = Drive(cantrip(folding=Folding(2)), *steps(9))
        drive.go()
        assert [turn.observation for turn in drive.turns] == [*map(str, range(1, 10)), "ok"]

    @pytest.mark.rule("LOOM-5", "LOOM-1")
    def test_each_fold_is_recorded_before_the_query_that_shows_it(self) -> None:
        drive = Drive(cantrip(folding=Folding(2)), *steps(5))
        drive.go()
        folds = [step for step in drive.transitions if any(isinstance(one, Folded) for one in step.records)]
        assert [(one.records[-1].first, one.records[-1].last) for one in folds] == [(1, 2), (1, 4)]
        for step in folds:
            record = step.records[-1]
            assert isinstance(record, Folded)
            assert record.marker == f"[folded: turns 1-{record.last}]"
            assert record.marker in [message.content for message in step.action.messages]

    @pytest.mark.rule("PROD-4", "D-007")
    def test_a_fold_is_due_by_the_crystals_window_without_any_setting(self) -> None:
        replies = [
            say(call("echo", text="big"), usage=Usage(300, 1)),
            say(call("echo", text="bigger"), usage=Usage(900, 1)),
            say(done()),
        ]
        drive = Drive(cantrip(), *replies, window=1000)
        drive.go()
        assert [one for query in drive.queries for one in texts(query) if "folded" in one] == [
            "user [folded: turns 1-1]"
        ]
        assert drive.queries[2][-1].content == "bigger"

    def test_without_a_window_nothing_is_folded_by_tokens(self) -> None:
        drive = Drive(cantrip(), *steps(9, usage=Usage(10**9, 1)))
        drive.go()
        assert not any(isinstance(record, Folded) for record in drive.records)

    @pytest.mark.rule("D-007")
    def test_a_failed_query_does_not_fold_again(self) -> None:
        full = [say(call("echo", text=str(n)), usage=Usage(10 * n, 1)) for n in range(1, 8)]
        drive = Drive(
            cantrip(folding=Folding(keep_turns=6)), *full, Failed("down"), say(done()), lasting=True, window=90
        )
        drive.go("one")
        drive.go("two")
        assert sum(isinstance(record, Folded) for record in drive.records) == 1
        assert texts(drive.queries[-1])[-1] == "user two"

    @pytest.mark.rule("LOOM-8", "LOOM-5")
    def test_a_continuation_is_folded_with_its_utterance(self) -> None:
        delegate = say(call("echo", text="a"), call("call_agent", intent="sub"))
        drive = Drive(cantrip(folding=Folding(1)), delegate, say(call("look")), say(done()))
        drive.go()
        assert texts(drive.queries[2])[1:] == ["user [folded: turns 1-2]", "assistant look({})", "tool seen"]

    @pytest.mark.rule("INTENT-3", "D-007")
    def test_the_newest_intent_and_its_data_stay_in_sight(self) -> None:
        drive = Drive(cantrip(folding=Folding(1)), say("one"), *steps(3), lasting=True)
        drive.go("first")
        drive.go(Begin("second", {"n": 2}))
        assert texts(drive.queries[-1]) == [
            "user first",
            "assistant one",
            "user [folded: turns 1-3]",
            "user second",
            'user context:\n{"n":2}',
            'assistant echo({"text":"3"})',
            "tool 3",
        ]

    @pytest.mark.rule("D-007")
    def test_an_intent_after_a_fold_is_shown_at_its_position(self) -> None:
        drive = Drive(cantrip(folding=Folding(1)), say("one"), say("two"), say("three"), lasting=True)
        for intent in ("first", "second", "third"):
            drive.go(intent)
        assert texts(drive.queries[-1]) == [
            "user first",
            "assistant one",
            "user [folded: turns 1-1]",
            "user second",
            "assistant two",
            "user third",
        ]

    def test_the_cost_of_a_query_does_not_grow(self) -> None:
        drive = Drive(cantrip(max_turns(3000), folding=Folding(10)), *steps(2000))
        drive.go()
        assert max(len(query) for query in drive.queries) <= 2 + 2 * 10
        assert max(len(step.after.conversation.context) for step in drive.transitions) <= 2 + 2 * 10 + 1


def answers(query: list[Any]) -> dict[str, list[str]]:
    """The answers that follow each intent in sight; an answer without an intent follows ""."""
    intent, found = "", dict[str, list[str]]()
    for message in query:
        if message.role == "user" and (message.content or "").startswith("intent"):
            intent = message.content
            found.setdefault(intent, [])
        elif message.role == "assistant" and message.content:
            found.setdefault(intent, []).append(message.content)
    return found


@pytest.mark.rule("Y-31")
class TestConversation:
    """What a fold keeps reads as a conversation."""

    @given(
        st.lists(st.integers(0, 3), min_size=2, max_size=9),
        st.builds(Folding, st.integers(1, 4), st.just(0.8), st.none() | st.integers(1, 4)),
    )
    def test_no_intent_is_without_its_answer_and_no_answer_without_its_intent(
        self, episodes: list[int], folding: Folding
    ) -> None:
        replies = [
            reply
            for n, calls in enumerate(episodes)
            for reply in [*([say(call("echo", text="x"))] * calls), say(f"answer {n}")]
        ]
        drive = Drive(cantrip(max_turns(9), folding=folding), *replies, lasting=True)
        for n in range(len(episodes)):
            drive.go(f"intent {n}")
            shown = answers(drive.queries[-1])
            assert shown.pop(f"intent {n}") == []
            assert shown == {intent: [f"answer {intent.split()[1]}"] for intent in shown}
            assert "intent 0" in shown or n == 0
        for query in drive.queries:
            called = [one.id for message in query for one in message.tool_calls]
            assert called == [message.tool_call_id for message in query if message.role == "tool"]

    def test_pinned_messages_survive_folds(self) -> None:
        def steer(text: str, *, pinned: bool) -> Steer:
            return Steer((Steering(text, pinned=pinned),))

        replies = [
            steer("only dry goods", pinned=True),
            steer("hurry", pinned=False),
            *steps(3)[:-1],
            steer("from Oslo", pinned=True),
            *steps(6),
        ]
        drive = Drive(cantrip(folding=Folding(2)), *replies)
        drive.go("the task")
        assert texts(drive.queries[-1])[:4] == [
            "user the task",
            "user [folded: turns 1-8]",
            "user only dry goods",
            "user from Oslo",
        ]


@pytest.mark.rule("V-39")
class TestSelective:
    """A selective fold takes out results, and keeps what the entity said."""

    @staticmethod
    def think(n: int, **usage: Any) -> Response:
        return say(f"thought {n}", call("echo", text="x" * 50), **usage)

    def test_results_of_older_turns_are_replaced_and_reasoning_stays(self) -> None:
        drive = Drive(cantrip(folding=Folding(2, selective=True)), *map(self.think, range(1, 6)), say(done()))
        drive.go("the task")
        query = drive.queries[-1]
        assert [message.content for message in query if message.role == "assistant"] == [
            f"thought {n}" for n in range(1, 6)
        ]
        results = [message.content for message in query if message.role == "tool"]
        assert results == ["[folded:echo]"] * 4 + ["x" * 50]
        folds = [record for record in drive.records if isinstance(record, Folded)]
        assert [(fold.first, fold.last, fold.selective) for fold in folds] == [(1, 2, True), (3, 4, True)]
        assert folds[0].marker == "[folded: results of turns 1-2]"
        drive.check_fold()
        assert [turn.observation for turn in drive.turns][:5] == ["x" * 50] * 5  # the loom keeps all

    def test_turns_are_folded_only_if_that_is_not_enough_for_the_window(self) -> None:
        sizes = [100, 900, 900, 900, 300]
        replies = [self.think(n, usage=Usage(size, 1)) for n, size in enumerate(sizes, 1)]
        drive = Drive(cantrip(folding=Folding(selective=True)), *replies, say(done()), window=1000)
        drive.go("the task")
        folds = [record for record in drive.records if isinstance(record, Folded)]
        assert [fold.selective for fold in folds] == [True, True, True]

    def test_a_context_that_still_overflows_loses_turns(self) -> None:
        refusal = Failed("too long", overflows=True)
        replies = [self.think(1), self.think(2), refusal, self.think(3), refusal, self.think(4), say(done())]
        drive = Drive(cantrip(folding=Folding(selective=True)), *replies)
        drive.go("the task")
        folds = [record for record in drive.records if isinstance(record, Folded)]
        assert [fold.selective for fold in folds] == [True, True]

    def test_reasoning_alone_can_fill_the_window(self) -> None:
        replies = [self.think(n, usage=Usage(900, 1)) for n in range(1, 5)]
        drive = Drive(cantrip(folding=Folding(selective=True, keep_turns=1)), *replies, say(done()), window=1000)
        drive.go("the task")
        assert len(drive.queries[-1]) < 10

    def test_it_is_part_of_the_content_id(self) -> None:
        assert cantrip(folding=Folding(2, selective=True)).id != cantrip(folding=Folding(2)).id

    @given(st.integers(1, 5), st.none() | st.integers(1, 5), st.integers(0, 12))
    def test_every_result_but_the_newest_is_folded_once_and_the_calls_stay(
        self, after: int, keep: int | None, turns: int
    ) -> None:
        folding = Folding(after, keep_turns=keep, selective=True)
        drive = Drive(cantrip(folding=folding), *map(self.think, range(turns)), say(done()))
        drive.go("the task")
        drive.check_fold()
        ranges = [(one.first, one.last) for one in drive.records if isinstance(one, Folded)]
        assert all(first == before + 1 for (_, before), (first, _) in pairwise([(0, 0), *ranges]))
        for query in drive.queries[1:]:
            assert query[-1].content != "[folded:echo]"


class TestEphemeral:
    @pytest.mark.rule("D-010", "PROD-5")
    def test_a_placeholder_replaces_an_ephemeral_result_in_the_next_query(self) -> None:
        drive = Drive(cantrip(), say(call("page", path="big.txt")), say(done()))
        drive.go()
        assert texts(drive.queries[1])[-1] == "tool [ephemeral:page]"
        assert "the whole of big.txt" not in str(drive.queries[1])

    @pytest.mark.rule("PROD-5", "D-010")
    def test_the_loom_keeps_an_ephemeral_result_whole(self) -> None:
        drive = Drive(cantrip(), say(call("page", path="big.txt")), say(done()))
        drive.go()
        assert drive.turns[0].observation == "the whole of big.txt"
        (first, _) = (record for record in drive.records if isinstance(record, GateFinished))
        assert first.observation.result == "the whole of big.txt"

    @pytest.mark.rule("D-010")
    def test_a_result_with_visible_for_is_shown_in_that_many_queries(self) -> None:
        drive = Drive(cantrip(), say(call("glance", path="x")), say(call("look")), say(call("look")), say(done()))
        drive.go()
        assert [texts(query)[2] for query in drive.queries[1:]] == [
            "tool a look at x",
            "tool [ephemeral:glance]",
            "tool [ephemeral:glance]",
        ]

    @pytest.mark.rule("D-010")
    def test_a_query_that_was_made_does_not_change_later(self) -> None:
        drive = Drive(cantrip(), say(call("glance", path="x")), say(call("look")), say(done()))
        drive.go()
        assert texts(drive.asks[1].messages)[-1] == "tool a look at x"

    @pytest.mark.rule("D-010")
    def test_a_cached_encoding_stays_valid_until_a_result_fades(self) -> None:
        drive = Drive(cantrip(), say(call("glance", path="x")), *steps(3))
        drive.go()
        prefixes: list[Any] = [ask.messages.prefix for ask in drive.asks]
        assert [a == b for a, b in pairwise(prefixes)] == [True, False, True, True]

    @pytest.mark.rule("CIRCLE-5")
    @pytest.mark.parametrize("gate", ["page", "glance"])
    def test_the_error_of_an_ephemeral_gate_is_shown(self, gate: str) -> None:
        failing = cantrip(gates=["done", *(one for one in cantrip().circle.gates if one.name == gate)])
        drive = Drive(failing, say(call(gate, path="x")), say(done()))
        drive.run_gate = lambda action: Observation(gate, None, "no such file", True, action.call.id, True)
        drive.go()
        assert texts(drive.queries[1])[-1] == "tool no such file"
        assert drive.queries[1][-1].is_error

    def test_a_delegation_gate_can_be_ephemeral(self) -> None:
        gates = [one.with_(ephemeral=True) if one.name == "call_agent" else one for one in cantrip().circle.gates]
        drive = Drive(cantrip(gates=gates), say(call("call_agent", intent="sub")), say(done()))
        drive.go()
        assert texts(drive.queries[1])[-1] == "tool [ephemeral:call_agent]"
        assert drive.turns[1].observation == "SUB"
