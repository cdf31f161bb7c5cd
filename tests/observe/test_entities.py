"""Entities as subscribers see them: the steps of the loop through stream and processor, beside what the loom holds."""

from itertools import count

import pytest

from cantrip_actors.machine.actions import Ask, Finish, Run, Spawn, Step
from cantrip_actors.machine.context import SKIPPED
from cantrip_actors.machine.events import Failed, Interrupt, Stopped
from cantrip_actors.observe import (
    FinalResponse,
    MessageUpsert,
    Output,
    Processor,
    SpecView,
    ThinkingUpsert,
    ToolCallUpsert,
    TurnComplete,
    TurnError,
    TurnStarted,
    Upsert,
    fold,
    standing,
)
from cantrip_actors.records.records import GateFinished, GateStarted, Observation, Utterance
from cantrip_actors.records.turn import Turn
from cantrip_actors.runtime.events.events import (
    FinalResponseEvent,
    StepCompleteEvent,
    StepStartEvent,
    TextEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from cantrip_actors.stream.entity import EntityStream
from cantrip_actors.stream.wire import (
    AttemptFailed,
    Envelope,
    FinalFunctionCall,
    FinalMessage,
    FinalReasoning,
    ItemDelta,
    ItemDone,
    ItemStart,
    Parent,
    ResponseDone,
    ResponseError,
    ResponseStart,
    StreamError,
    StreamUsage,
)
from cantrip_actors.terms.messages import Response, ToolCall
from tests.machine.driver import Drive, call, cantrip, done, say
from tests.observe.stage import MORNING, Stage, begin, said, statuses, upserts


class Watched(Drive):
    """A driven loop whose steps are streamed and processed as they happen."""

    def __init__(self, *replies, session: str = "e1", parent: Parent | None = None, **parts) -> None:
        self.now = MORNING
        numbers = count(1)
        self.stream = EntityStream(session, "test:model", lambda: f"{next(numbers)}", lambda: self.now, parent=parent)
        self.processor = Processor(lambda: self.now)
        self.envelopes: list[Envelope] = []
        self.seen: list[Output] = []
        super().__init__(cantrip(), *replies, entity_id=session, **parts)

    def feed(self, event):
        action = super().feed(event)
        last = self.transitions[-1]
        self.publish(self.stream.step(Step(last.records, last.action), last.turn_id))
        return action

    def publish(self, envelopes: list[Envelope]) -> None:
        for envelope in envelopes:
            self.now += 0.001
            self.envelopes.append(envelope)
            self.seen += self.processor.process(envelope, self.now)

    def say(self, *payloads) -> None:
        """What the crystal streams before it answers."""
        for payload in payloads:
            self.publish(self.stream.pass_on(payload))

    @property
    def kinds(self) -> list[str]:
        return [made.type for made in self.seen]


def texts_of(turn: Turn) -> list[str]:
    return [text for text in (turn.content, turn.code) if text]


def calls_of(turn: Turn) -> list[tuple[object, ...]]:
    outputs = {seen.tool_call_id: (seen.content, seen.is_error) for seen in turn.gate_calls}
    return [(c.id, c.gate, c.args, *outputs.get(c.id, (SKIPPED, False))) for c in turn.tool_calls]


@pytest.mark.rule("U-53", "U-58")
def test_gate_results_come_before_the_end_of_their_turn() -> None:
    watched = Watched(say("let me see", call("echo", text="hi")), say(done("bye")))
    watched.go()
    assert watched.kinds == [
        "turn_started",
        "message",
        "tool_call",
        "tool_call",
        "turn_complete",
        "turn_started",
        "tool_call",
        "tool_call",
        "turn_complete",
        "final_response",
    ]
    assert list(dict.fromkeys(made.turn_id for made in watched.seen)) == [turn.id for turn in watched.turns]
    assert watched.seen[-1] == FinalResponse(watched.turns[-1].id, "e1", "bye")
    assert watched.seen[4] == TurnComplete(watched.turns[0].id, "e1", "completed", StreamUsage(10, 5, 2))


@pytest.mark.rule("U-53")
def test_the_turn_id_is_published_before_the_crystal_answers() -> None:
    watched = Watched(say("hi"))
    watched.go(upto=Ask)
    (started,) = watched.seen
    assert started == TurnStarted(watched.loop.turn_id, "e1", "model", "test")
    watched.feed(watched.event_for(watched.transitions[-1].action))
    assert watched.turns[0].id == started.turn_id


@pytest.mark.rule("U-60")
def test_the_upserts_fold_to_the_turns_of_the_loom() -> None:
    watched = Watched(
        say("thinking aloud", "and more", call("echo", text="é"), call("fail"), call("nope"), call("page", path="x")),
        Response("text", (call("look"),), thinking="hm"),
        say("now", done({"n": 1}), call("look")),
    )
    watched.go()
    by_turn: dict[str, list[Upsert]] = {}
    for upsert in fold(watched.seen).values():
        by_turn.setdefault(upsert.turn_id, []).append(upsert)
    assert len(watched.turns) == 3
    for turn in watched.turns:
        known = by_turn.pop(turn.id)
        assert {upsert.status for upsert in known} == {"complete"}
        assert [u.content for u in known if isinstance(u, MessageUpsert)] == texts_of(turn)
        assert [u.content for u in known if isinstance(u, ThinkingUpsert)] == [turn.thinking] * bool(turn.thinking)
        calls = [u for u in known if isinstance(u, ToolCallUpsert)]
        shown = [(u.call_id, u.tool_name, u.tool_arguments, u.tool_output, u.tool_output_is_error) for u in calls]
        assert shown == calls_of(turn)
    assert not by_turn


@pytest.mark.rule("U-59")
def test_a_retried_provider_is_one_turn() -> None:
    watched = Watched(say(done("ok")))
    watched.go(upto=Ask)
    watched.say(ResponseStart("m", "p"), ItemStart("0", "message"), ItemDelta("0", "one two " * 20))
    watched.publish(watched.stream.retry())
    watched.say(
        ResponseStart("m", "p"),
        ItemStart("0", "function_call", name="done", call_id="call_1_1"),
        ItemDone("0", FinalFunctionCall("done", "call_1_1", {"answer": "ok"})),
        ResponseDone("completed"),
    )
    watched.feed(watched.event_for(watched.transitions[-1].action))
    assert watched.kinds == [
        "turn_started",
        "message",
        "message",
        "tool_call",
        "tool_call",
        "turn_complete",
        "final_response",
    ]
    failed, final = fold(watched.seen).values()
    assert (failed.item_id, failed.status, failed.error_code) == (f"{failed.turn_id}:1:0", "error", "RETRY")
    assert (final.item_id, final.status) == (f"{failed.turn_id}:2:0", "complete")
    assert len(watched.turns) == 1


@pytest.mark.rule("U-59", "U-60")
def test_items_of_a_failed_attempt_do_not_belong_to_the_turn() -> None:
    watched = Watched(Response("whole", (done("ok"),), thinking="again"))
    watched.go(upto=Ask)
    watched.say(
        ItemStart("0", "reasoning"),
        ItemDone("0", FinalReasoning("hm", "p")),
        ItemStart("1", "message"),
        ItemDelta("1", "half"),
        AttemptFailed(StreamError("RETRY", "dropped")),
        ItemStart("0", "reasoning"),
        ItemDone("0", FinalReasoning("again", "p")),
        ItemStart("1", "message"),
        ItemDone("1", FinalMessage("whole", "agent")),
    )
    watched.feed(watched.event_for(watched.transitions[-1].action))
    (turn,) = watched.turns
    thinking, message, ended = standing(watched.seen)
    assert (thinking.content, message.content, ended.tool_output) == (turn.thinking, turn.content, "ok")
    known = list(fold(watched.seen).values())
    assert [(m.status, m.content) for m in known[:2]] == [("complete", "hm"), ("error", "half")]
    assert [m.item_id for m in upserts(watched.seen) if m.terminal and ":1:" in m.item_id] == [
        f"{turn.id}:1:0",
        f"{turn.id}:1:1",
    ]


def test_foreign_item_ids_have_no_attempts() -> None:
    stage = Stage()
    stage.feed(begin, said("a", "m1"), said("b", "m2"))
    assert [m.content for m in standing(stage.seen)] == ["a", "b"]


@pytest.mark.rule("U-63")
def test_a_run_of_several_messages_is_proper_turns() -> None:
    watched = Watched(
        Response("first", (ToolCall("c1", "echo", {"text": "x"}),)), Response("last", metadata={"stop_reason": "x"})
    )
    watched.go(upto=Ask)
    watched.say(
        ItemStart("0", "message"),
        ItemDelta("0", "fir"),
        ItemDelta("0", "st"),
        ItemDone("0", FinalMessage("first", "agent")),
        ItemStart("1", "function_call", name="echo", call_id="c1"),
        ItemDelta("1", '{"text"'),
        ItemDone("1", FinalFunctionCall("echo", "c1", {"text": "x"})),
        ResponseDone("completed", "tool_use", usage=StreamUsage(7, 3)),
    )
    watched.feed(watched.event_for(watched.transitions[-1].action))
    assert isinstance(watched.transitions[-1].action, Run)
    watched.feed(watched.event_for(watched.transitions[-1].action))
    watched.say(
        ItemStart("0", "message"),
        ItemDone("0", FinalMessage("last", "agent")),
        ResponseDone("completed", "max_tokens", usage=StreamUsage(9, 4096)),
    )
    watched.feed(watched.event_for(watched.transitions[-1].action))
    ends = [made for made in watched.seen if isinstance(made, TurnComplete | TurnError)]
    assert [(end.status, end.usage) for end in ends] == [
        ("completed", StreamUsage(7, 3)),
        ("completed", StreamUsage(9, 4096)),
    ]
    assert statuses(watched.seen) == ["create", "complete", "create", "complete", "complete"]
    assert [e.payload.finish_reason for e in watched.envelopes if isinstance(e.payload, ResponseDone)] == [
        "tool_use",
        "max_tokens",
    ]


@pytest.mark.rule("U-61")
def test_a_childs_events_are_its_own_and_name_the_parent() -> None:
    watched = Watched(say("go", call("call_agent", intent="below")), say(done("ok")))
    spawn = watched.go(upto=Spawn)
    child = Watched(say(done("from below")), session="child", parent=watched.stream.as_parent)
    child.go()
    watched.go(watched.event_for(spawn))
    assert {(e.session_id, e.parent) for e in child.envelopes} == {("child", Parent("e1", watched.turns[0].id))}
    assert {e.parent for e in watched.envelopes} == {None}
    turn_events = [made for made in child.seen if not upserts([made])]
    assert {made.parent for made in turn_events} == {Parent("e1", watched.turns[0].id)}


@pytest.mark.rule("U-60", "U-61")
def test_a_delegation_is_one_turn_of_the_stream_with_its_result_in_it() -> None:
    watched = Watched(
        say("go", call("look"), call("call_agent", intent="below"), call("echo", text="after")), say(done("ok"))
    )
    watched.go()
    assert [turn.utterance_id for turn in watched.turns[:2]] == [watched.turns[0].id] * 2
    first = [m for m in fold(watched.seen).values() if m.turn_id == watched.turns[0].id]
    assert [getattr(m, "tool_output", None) for m in first] == [None, "seen", "BELOW", "after"]
    assert len([made for made in watched.seen if isinstance(made, TurnComplete)]) == 2
    steps = [e.payload.step for e in watched.envelopes if isinstance(e.payload, ResponseDone)]
    assert [step.sequence for step in steps] == [2, 3]


@pytest.mark.rule("U-46", "U-61")
def test_cancelling_an_entity_cancels_a_turn_of_each_descendant() -> None:
    watched = Watched(say(call("call_agent", intent="below")))
    watched.go(upto=Spawn)
    child = Watched(say(call("echo", text="x")), session="child", parent=watched.stream.as_parent)
    child.go(upto=Run)
    child.feed(Stopped("parent_ended", "parent_ended"))
    watched.feed(Stopped("cancelled", "cancelled"))
    for one in (child, watched):
        assert isinstance(one.seen[-1], TurnComplete)
        assert one.seen[-1].status == "cancelled"
        assert not {"complete", "error"} & set(statuses(one.seen))
        assert {e.payload.reason for e in one.envelopes if e.type == "item_cancelled"} == {"user_cancel"}


@pytest.mark.rule("U-46")
@pytest.mark.parametrize("event", [Stopped("timeout", "timeout(3)"), Interrupt("by hand")])
def test_an_entity_stopped_during_a_query_has_a_cancelled_turn(event) -> None:
    watched = Watched(lasting=True)
    watched.go(upto=Ask)
    watched.say(ItemStart("0", "message"), ItemDelta("0", "half a sentence"))
    watched.feed(event)
    assert [m.type for m in watched.seen if not upserts([m])] == ["turn_started", "turn_complete"]
    assert watched.seen[-1].status == "cancelled"
    assert "item_cancelled" in [e.type for e in watched.envelopes]


@pytest.mark.rule("U-37", "U-39")
def test_a_crystal_that_fails_for_good_fails_the_turn() -> None:
    watched = Watched()
    watched.go(upto=Ask)
    watched.say(
        ItemStart("0", "message"), ItemDelta("0", "half"), ResponseError(StreamError("RATE_LIMIT", "slow down"))
    )
    watched.feed(Failed("crystal gave up after 3 attempts"))
    *_, item, turn = watched.seen
    assert (item.status, item.content, item.error_code) == ("error", "half", "RATE_LIMIT")
    assert turn == TurnError(turn.turn_id, "e1", "RATE_LIMIT", "crystal gave up after 3 attempts")


@pytest.mark.rule("U-39")
def test_a_failure_without_a_provider_error_has_the_code_crystal_error() -> None:
    watched = Watched(Failed("no answer"))
    watched.go()
    assert watched.seen[-1].error_code == "CRYSTAL_ERROR"


@pytest.mark.rule("U-50")
def test_a_crash_ends_the_turn_and_the_restart_begins_a_new_one() -> None:
    watched = Watched(say("hm", call("echo", text="x")))
    watched.go(upto=Run)
    watched.publish(watched.stream.crash())
    assert [(m.type, getattr(m, "error_code", None)) for m in watched.seen[-2:]] == [
        ("tool_call", "PROCESS_CRASH"),
        ("turn_error", "PROCESS_CRASH"),
    ]
    before = len(watched.seen)
    watched.stream = EntityStream("e1", "test:model", lambda: "e", lambda: watched.now)
    watched.replies = [say(done("ok"))]
    watched.go(watched.event_for(watched.transitions[-1].action))
    after = watched.seen[before:]
    assert [m.type for m in after][:3] == ["turn_started", "tool_call", "tool_call"]
    assert [m.type for m in after if not upserts([m])] == [
        "turn_started",
        "turn_complete",
        "turn_started",
        "turn_complete",
        "final_response",
    ]


@pytest.mark.rule("U-58")
def test_calls_of_a_code_circle_are_shown_as_they_run() -> None:
    watched = Watched(Response(code="echo('x')"))
    watched.go(upto=Ask)
    turn = watched.loop.turn_id
    said = Utterance(
        entity_id="e1",
        turn_id=turn,
        content=None,
        tool_calls=(),
        usage=watched.replies[0].usage,
        duration_ms=1.0,
        code="echo('x')",
    )
    started = GateStarted("e1", turn, "k1", "echo", {"text": "x"})
    finished = GateFinished.of("e1", turn, Observation("echo", {"text": "x"}, "x", False, "k1"))
    for records in ([said, started], [finished]):
        watched.publish(watched.stream.step(Step(records, Run(None, None, {}, "")), turn))
    assert statuses(watched.seen) == ["complete", "create", "complete"]
    assert watched.seen[-1].tool_arguments == {"text": "x"}


def test_a_crash_outside_a_turn_emits_nothing() -> None:
    watched = Watched(say("hi"), lasting=True)
    watched.go()
    assert watched.stream.crash() == watched.stream.retry() == watched.stream.pass_on(ItemStart("0", "message")) == []
    seen = len(watched.seen)
    watched.feed(Stopped("cancelled", "cancelled"))
    assert len(watched.seen) == seen
    fresh = EntityStream("e2", "scripted", lambda: "e", lambda: 0.0)
    assert fresh.crash() == fresh.retry() == fresh.pass_on(ItemStart("0", "message")) == []
    assert fresh.as_parent == Parent("e2")


def test_the_specs_events_are_a_view_of_the_same_stream() -> None:
    watched = Watched(
        Response("let me see", (call("echo", text="hi"), call("fail")), say().usage, "hm"), say(done({"n": 1}))
    )
    watched.go()
    view = SpecView()
    seen = [event for envelope in watched.envelopes for event in view.events(envelope)]
    assert [type(event) for event in seen] == [
        StepStartEvent,
        ThinkingEvent,
        TextEvent,
        ToolCallEvent,
        ToolCallEvent,
        ToolResultEvent,
        ToolResultEvent,
        UsageEvent,
        StepCompleteEvent,
        StepStartEvent,
        ToolCallEvent,
        ToolResultEvent,
        UsageEvent,
        StepCompleteEvent,
        FinalResponseEvent,
    ]
    assert {event.entity_id for event in seen} == {"e1"}
    assert [(e.gate, e.result, e.is_error) for e in seen if isinstance(e, ToolResultEvent)] == [
        ("echo", "hi", False),
        ("fail", "something went wrong", True),
        ("done", '{"n":1}', False),
    ]
    assert [(e.turn_id, e.sequence, e.terminated) for e in seen if isinstance(e, StepCompleteEvent)] == [
        (turn.id, turn.sequence, turn.terminated) for turn in watched.turns
    ]
    assert [e.usage.total_tokens for e in seen if isinstance(e, UsageEvent)] == [15, 15]
    assert seen[-1].result == {"n": 1}
    assert seen[0].at == pytest.approx(MORNING, abs=1)


def test_the_view_forgets_the_calls_of_turns_that_failed() -> None:
    watched = Watched(say(call("echo", text="hi")))
    watched.go(upto=Run)
    watched.publish(watched.stream.crash())
    view = SpecView()
    for envelope in watched.envelopes:
        list(view.events(envelope))
    assert view._gates == {}
    assert not isinstance(watched.transitions[-1].action, Finish)
