"""The decider: state is the fold of the log. (`driver.py` checks C-01 and C-02 after each step of every test here.)"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors.machine.actions import Answer, Ask, Compute, Consult, Finish, Remember
from cantrip_actors.machine.events import (
    Begin,
    Called,
    Compact,
    Computed,
    Event,
    Failed,
    Interrupt,
    Remembered,
    Replied,
    Steer,
    Steering,
    Stopped,
)
from cantrip_actors.machine.evolve import fold
from cantrip_actors.machine.project import find_outcome, fold_state, is_for_lease_holder, sum_usage
from cantrip_actors.machine.state import Phase
from cantrip_actors.records.codec import decode, encode
from cantrip_actors.records.records import Ended, Folded, MailRefused, Rewarded
from cantrip_actors.terms.call import Call
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.folding import Folding
from cantrip_actors.terms.gate_function import gate
from cantrip_actors.terms.messages import Response, Usage
from cantrip_actors.terms.ward import max_tokens, max_turns
from tests.machine.driver import ASKING, GATES, Drive, call, cantrip, done, echo, fields_of, look, page, say
from tests.machine.test_loop_properties import Script, live, scripts

AT = "2026-11-26T22:00:00.000Z"


@pytest.mark.rule("C-01", "C-02")
@given(scripts, st.booleans())
def test_the_live_state_equals_the_replayed_log(script: Script, summed_up: bool) -> None:
    drive = live(script._replace(folding=Folding(script.folding.trigger_after_turns, 0.5, summary=summed_up)))
    read = [decode(encode(record)) for record in drive.records]
    assert fields_of(fold(drive.plan.shape, read)) == fields_of(drive.state)


@pytest.mark.rule("C-01", "C-19")
@given(scripts, st.lists(st.integers(1, 200), min_size=1, max_size=4), st.booleans())
def test_a_withdrawal_or_a_reward_anywhere_in_a_log_changes_no_state(
    script: Script, places: list[int], withdraws: bool
) -> None:
    """Any process may write them into the log of an entity that another one runs, without its lease."""
    drive = live(script._replace(lasting=True))
    records, entity_id = list(drive.records), drive.plan.entity_id
    note = (
        MailRefused(entity_id, "k", "intent", "withdrawn", AT, why="") if withdraws else Rewarded(entity_id, "t", 1, AT)
    )
    for place in places:
        records.insert(min(place, len(records)), note)
    assert not is_for_lease_holder(note)
    assert fields_of(fold(drive.plan.shape, records)) == fields_of(drive.state)


moves = st.lists(
    st.builds(
        lambda prompt, gates, turns: cantrip(max_turns(turns), gates=gates, call=Call(prompt), name="moved"),
        st.sampled_from([None, "Be brief", "Be kind"]),
        st.sampled_from([GATES, ("done", "call_agent"), ("done", page.with_(visible_for=2))]),
        st.sampled_from([1, 8]),
    ),
    min_size=1,
    max_size=2,
)


@pytest.mark.rule("C-01", "C-02", "C-41")
@given(scripts, moves)
def test_the_live_state_equals_the_replayed_log_with_moves(script: Script, moves: list[Cantrip]) -> None:
    drive = live(script._replace(lasting=True), moves=moves)
    read = [decode(encode(record)) for record in drive.records]
    assert fields_of(fold(drive.plan.shape, read)) == fields_of(drive.state)
    assert drive.plan.is_adopted(drive.state)


@pytest.mark.rule("C-01", "C-41")
@pytest.mark.parametrize("medium", ["tools", "javascript"])
def test_a_move_to_another_medium_keeps_the_conversation_and_drops_the_sandbox(medium: Any) -> None:
    def made(medium: Any) -> Cantrip:
        return Cantrip("local:model", circle=Circle(["done", echo], [max_turns(9)], medium=medium))

    replies = (
        Response(code="x = 1"),
        Computed(1),
        Response(code="done(2)"),
        Called("done", {"answer": 2}),
        Computed(None),
    )
    drive = Drive(made("python"), *replies, lasting=True)
    drive.go("first")
    before = [message for message in drive.context if message.role != "system"]
    assert len(drive.state.sandbox.programs) == 2
    drive.move(made(medium))
    assert [message for message in drive.context if message.role != "system"] == before
    assert len(drive.state.sandbox.programs) == 0


@pytest.mark.rule("C-01")
@given(scripts)
def test_a_log_can_be_replayed_without_its_cantrip(script: Script) -> None:
    drive = live(script)
    if drive.state.phase in (Phase.IDLE, Phase.OVER):
        told = find_outcome(drive.records)
        assert told is not None
        expected = drive.transitions[-1].action.outcome
        assert (told.result, told.reason, told.summary) == (expected.result, expected.reason, expected.summary)
    assert fold_state(drive.records).usage == drive.state.usage == sum_usage(drive.records)


@pytest.mark.rule("C-04")
def test_a_summary_is_paid_for_once_also_after_a_failure_and_a_restart() -> None:
    steps = [say(call("look"), usage=Usage(1, 0)) for _ in range(3)]
    drive = Drive(
        cantrip(folding=Folding(2, keep_turns=1, summary=True)),
        *steps,
        Failed("down"),
        say(done(), usage=Usage(1, 0)),
        lasting=True,
    )
    drive.cost = Usage(100, 50)
    drive.go("one")
    drive.restart()
    drive.go("two")
    assert sum(isinstance(record, Folded) for record in drive.records) == 1
    assert drive.state.usage == Usage(104, 50)  # 154 tokens in all


@pytest.mark.rule("C-62")
def test_the_tokens_of_an_answer_that_breaks_the_contract_count() -> None:
    drive = Drive(cantrip(), Failed("neither content nor calls", Usage(90_000, 10_000)))
    outcome = drive.go()
    assert outcome.usage == Usage(90_000, 10_000)
    (ended,) = (record for record in drive.records if isinstance(record, Ended))
    assert ended.usage == Usage(90_000, 10_000)


class TestFoldingByWindow:
    """Rule C-61: the size of what was appended counts, not only what the last query reported."""

    @pytest.mark.rule("C-61", "PROD-4")
    def test_a_large_result_is_folded_before_the_next_query_overflows(self) -> None:
        steps = [say(call("echo", text="x" * 1200), usage=Usage(40 + 400 * n, 5)) for n in range(2)]
        drive = Drive(cantrip(folding=Folding(keep_turns=1)), *steps, say(done()), window=1000)
        drive.go()
        assert sum(isinstance(record, Folded) for record in drive.records) == 1

    @pytest.mark.rule("C-61", "PROD-4")
    def test_a_crystal_that_reports_no_tokens_folds_by_estimate(self) -> None:
        steps = [say(call("echo", text="x" * 400), usage=Usage()) for _ in range(12)]
        drive = Drive(cantrip(folding=Folding(keep_turns=2)), *steps, say(done()), window=1000)
        drive.go()
        assert max(sum(len(m.content or "") for m in query) for query in drive.queries) < 1000 / 0.3
        assert any(isinstance(record, Folded) for record in drive.records)

    @pytest.mark.rule("C-61")
    @pytest.mark.parametrize("summary", [False, True])
    def test_a_context_that_is_too_long_is_folded_once_and_the_query_repeated(self, summary: bool) -> None:
        steps = [say(call("look")) for _ in range(4)]
        too_long = Failed("context too long", overflows=True)
        drive = Drive(cantrip(folding=Folding(keep_turns=1, summary=summary)), *steps, too_long, say(done("well")))
        assert drive.go().result == "well"
        assert sum(isinstance(record, Folded) for record in drive.records) == 1

    @pytest.mark.rule("C-61")
    def test_a_context_that_is_too_long_after_its_fold_fails(self) -> None:
        steps: list[Any] = [say(call("look")) for _ in range(4)]
        too_long = Failed("context too long", overflows=True)
        assert Drive(cantrip(), *steps, too_long, too_long).go().error == "context too long"

    @pytest.mark.rule("C-61")
    def test_a_context_of_one_turn_cannot_be_folded(self) -> None:
        assert Drive(cantrip(), say(call("look")), Failed("too long", overflows=True)).go().error == "too long"


@pytest.mark.rule("C-01")
@settings(max_examples=30)
@given(st.lists(st.sampled_from(["steer", "look", "child"]), max_size=8))
def test_a_steering_message_between_turns_is_folded_at_its_position(kinds: list[str]) -> None:
    replies: list[Any] = []
    for kind in kinds:
        if kind == "steer":
            replies += [Steer((Steering("hurry", key="k", sender="anna"),))]
        else:
            replies += [say(call("look") if kind == "look" else call("call_agent", intent="a"))]
    drive = Drive(cantrip(), *replies, say(done()))
    drive.go()
    assert fields_of(fold(drive.plan.shape, drive.records)) == fields_of(drive.state)


STEPS_OF_PROGRAMS = (
    Computed(7),
    Called("echo", {"text": "x"}, "printed"),
    Called("look", {}),
    Called("page", {"path": "p"}),
    Called("echo", {"wrong": 1}),
    Called("nothing", {}),
    Called("call_agent", {"intent": "sub"}),
    Called("call_agent_batch", {"intents": ["a", "b"]}),
    Called("pay", {"amount": 100}),
    Called("question", {"text": "Which?"}),
    Called("done", {"answer": 1}),
    Computed(error="ValueError: no", output="half"),
    Computed(limit="steps"),
)


@pytest.mark.rule("C-01")
@settings(max_examples=60)
@given(st.data(), st.booleans())
def test_the_live_state_of_a_code_circle_equals_the_replayed_log(data: st.DataObject, summed_up: bool) -> None:
    """Random worlds of programs, steering, interrupts, failures and folds, and then a fork of each."""
    gates = (*GATES, *ASKING)
    folding = Folding(2, keep_turns=1, summary=summed_up)
    made = Cantrip("local:model", circle=Circle(gates, [max_turns(6)], medium="python"), folding=folding)
    answers = (Response("text"), Response(code="x = 1"), Response(code="y"), Failed("down"))

    def run(drive: Drive, episodes: int) -> None:
        for number in range(episodes):
            action = drive.feed(Begin(f"intent {number}", data.draw(st.sampled_from([None, {"n": number}]))))
            while not isinstance(action, Finish):
                if isinstance(action, Ask):
                    more = (Steer((Steering("hurry", key="k", sender="anna"),)), Interrupt("enough"))
                    drawn = data.draw(st.sampled_from((*answers, *answers, *more)))
                    action = drive.feed(Replied(drawn) if isinstance(drawn, Response) else drawn)
                elif isinstance(action, Compute | Answer):
                    action = drive.feed(data.draw(st.sampled_from(STEPS_OF_PROGRAMS)))
                else:
                    action = drive.feed(drive.event_for(action))
            assert fields_of(fold(drive.plan.shape, drive.records, drive.begun.copy())) == fields_of(drive.state)
            if drive.state.phase is Phase.OVER:
                return

    first = Drive(made, lasting=True)
    run(first, 3)
    fork = Drive(
        made, lineage=first.records, entity_id="e2", parent_turn=first.state.parent_id, forked=True, lasting=True
    )
    run(fork, 2)


@pytest.mark.rule("Y-30")
@pytest.mark.parametrize("event", [Interrupt("stop"), Stopped("timeout", "too late")])
def test_an_entity_whose_episode_ends_while_a_person_is_asked_for_more_budget_rests(event: Event) -> None:
    @gate(name="max_tokens")
    def max_tokens_gate() -> str:
        """A gate with the name of the ward."""
        return "a lot"

    wards = (max_turns(20), max_tokens(10, per="intent", when_spent="ask"))
    drive = Drive(cantrip(*wards, gates=("done", look, max_tokens_gate)), say(call("look")), lasting=True)
    drive.go(upto=Consult)
    assert isinstance(drive.feed(event), Finish)
    assert drive.state.turn.requested is None
    assert drive.restart() is None


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("event", [Stopped("cancelled", "enough"), Interrupt("stop"), Stopped("timeout", "too late")])
def test_an_entity_that_is_ended_while_it_folds_on_request_makes_no_fold_after_its_end(
    event: Event, lasting: bool
) -> None:
    drive = Drive(cantrip(), say(call("look")), say(call("look")), lasting=lasting)
    ask = drive.go(upto=Ask)
    for _ in range(2):
        ask = drive.carry_on(drive.feed(drive.event_for(ask)), upto=Ask)
    assert isinstance(drive.feed(Compact("Keep all.")), Remember)
    action = drive.feed(event)
    if drive.state.phase is not Phase.OVER:  # a long-lived entity is folded when it rests
        action = drive.feed(Remembered("all"))
    assert isinstance(action, Finish)
    assert isinstance(drive.records[-1], Folded if drive.state.phase is Phase.IDLE else Ended)
