"""Entities as subscribers see them: the records of the loop as events through the processor, beside their turns."""

import pytest

from cantrip_actors.machine.actions import Ask, Finish, Run, Spawn
from cantrip_actors.machine.context import SKIPPED
from cantrip_actors.machine.events import Failed, Interrupt, Stopped
from cantrip_actors.observe import (
    FinalResponse,
    MessageUpsert,
    Output,
    Parent,
    Processor,
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
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.stream.events import EntityEvent, StepCompleteEvent, StepFailedEvent, StepStartEvent
from cantrip_actors.stream.reading import EpisodeEnd, read_events
from cantrip_actors.stream.wire import (
    AttemptFailed,
    FinalFunctionCall,
    FinalMessage,
    FinalReasoning,
    ItemDelta,
    ItemDone,
    ItemStart,
    ResponseDone,
    ResponseError,
    ResponseStart,
    StreamError,
    StreamUsage,
)
from cantrip_actors.terms.messages import Response, ToolCall, Usage
from tests.machine.driver import Drive, call, cantrip, done, say
from tests.observe.stage import MORNING, Plain, Stage, begin, said, statuses, upserts


class Watched(Drive):
    """A driven loop whose records and answers are events, processed as they happen."""

    def __init__(self, *replies, session: str = "e1", processor: Processor | None = None, **parts) -> None:
        self.now = MORNING
        self.processor = Processor(lambda: self.now) if processor is None else processor
        self.events: list[EntityEvent] = []
        self.seen: list[Output] = []
        super().__init__(cantrip(), *replies, entity_id=session, **parts)

    def feed(self, event):
        action = super().feed(event)
        last = self.transitions[-1]
        self.publish(*read_events(last.records, self.now, lambda _: self.find_end(last.action)))
        if isinstance(action, Ask):
            self.start_turn()
        return action

    def find_end(self, action) -> EpisodeEnd | None:
        return EpisodeEnd(action.outcome, self.plan.lasting, True) if isinstance(action, Finish) else None

    def start_turn(self, utterance: Response | None = None, crystal: str = "test:model") -> None:
        turn = self.loop.state.turn.utterance_id if utterance is not None else self.loop.turn_id
        self.answer = Plain(self.plan.entity_id, turn, lambda: self.now, lambda: Redactor(()))
        above = self.plan.parent_entity, self.plan.parent_turn
        self.publish(StepStartEvent(self.plan.entity_id, self.now, turn, crystal, *above, utterance))

    def publish(self, *events: EntityEvent) -> None:
        for event in events:
            self.now += 0.001
            self.events.append(event)
            self.seen += self.processor.process(event, self.now)

    def say(self, *payloads) -> None:
        """What the crystal streams before it answers."""
        for payload in payloads:
            event = self.answer.read(payload)
            if event is not None:
                self.publish(event)

    def crash(self) -> None:
        self.publish(StepFailedEvent(self.plan.entity_id, self.now, self.loop.state.turn.utterance_id))

    def make_child(self, *replies) -> "Watched":
        """A child that is spawned now; its outputs come from the same processor."""
        spawned_in = self.transitions[-1].action.turn_id
        return Watched(
            *replies,
            session="child",
            processor=self.processor,
            parent_entity=self.plan.entity_id,
            parent_turn=spawned_in,
        )

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
    watched.say(
        AttemptFailed(StreamError("RETRY", "dropped")),
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
        Response("first", (ToolCall("c1", "echo", {"text": "x"}),), Usage(7, 3)),
        Response("last", usage=Usage(9, 4096), metadata={"stop_reason": "max_tokens"}),
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
    )
    watched.feed(watched.event_for(watched.transitions[-1].action))
    assert isinstance(watched.transitions[-1].action, Run)
    watched.feed(watched.event_for(watched.transitions[-1].action))
    watched.say(
        ItemStart("0", "message"),
        ItemDone("0", FinalMessage("last", "agent")),
    )
    watched.feed(watched.event_for(watched.transitions[-1].action))
    ends = [made for made in watched.seen if isinstance(made, TurnComplete | TurnError)]
    assert [(end.status, end.usage) for end in ends] == [
        ("completed", StreamUsage(7, 3)),
        ("completed", StreamUsage(9, 4096)),
    ]
    assert statuses(watched.seen) == ["create", "complete", "create", "update", "complete", "complete"]


@pytest.mark.rule("U-61")
def test_a_childs_turn_events_are_its_own_and_name_the_parent() -> None:
    watched = Watched(say("go", call("call_agent", intent="below")), say(done("ok")))
    spawn = watched.go(upto=Spawn)
    child = watched.make_child(say(done("from below")))
    child.go()
    watched.go(watched.event_for(spawn))
    turn_events = [made for made in child.seen if not upserts([made])]
    assert {made.session_id for made in child.seen} == {"child"}
    assert {made.parent for made in turn_events} == {Parent("e1", watched.turns[0].id)}
    assert {made.parent for made in watched.seen if not upserts([made])} == {None}


@pytest.mark.rule("U-61")
def test_the_parent_of_a_later_delegation_is_the_turn_as_the_stream_names_it() -> None:
    watched = Watched(say(call("call_agent", intent="a"), call("call_agent", intent="b")), say(done("ok")))
    watched.go(upto=Spawn)
    watched.feed(watched.event_for(watched.transitions[-1].action))
    child = watched.make_child(say(done("from below")))
    child.go()
    started = child.seen[0]
    assert child.plan.parent_turn == watched.turns[1].id
    assert started.parent == Parent("e1", watched.turns[0].id)


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
    steps = [event for event in watched.events if isinstance(event, StepCompleteEvent)]
    assert [(step.sequence, step.continues) for step in steps] == [(1, None), (2, watched.turns[0].id), (3, None)]


@pytest.mark.rule("U-46", "U-61")
def test_cancelling_an_entity_cancels_a_turn_of_each_descendant() -> None:
    watched = Watched(say(call("call_agent", intent="below")))
    watched.go(upto=Spawn)
    child = watched.make_child(say(call("echo", text="x"), call("look")))
    child.go(upto=Run)
    child.feed(Stopped("parent_ended", "parent_ended"))
    watched.feed(Stopped("cancelled", "cancelled"))
    for entity in (child, watched):
        assert isinstance(entity.seen[-1], TurnComplete)
        assert entity.seen[-1].status == "cancelled"


@pytest.mark.rule("U-46", "U-60")
def test_a_call_that_was_cut_off_has_the_output_that_the_loom_has() -> None:
    watched = Watched(say(call("echo", text="x"), call("look")))
    watched.go(upto=Run)
    watched.feed(Stopped("timeout", "timeout(3)"))
    calls = [upsert for upsert in fold(watched.seen).values() if isinstance(upsert, ToolCallUpsert)]
    assert [(one.status, one.tool_output_is_error) for one in calls] == [("complete", True)] * 2
    (turn,) = watched.turns
    assert [one.tool_output for one in calls] == [seen.content for seen in turn.gate_calls]
    assert watched.seen[-1].status == "cancelled"


@pytest.mark.rule("U-46")
@pytest.mark.parametrize("event", [Stopped("timeout", "timeout(3)"), Interrupt("by hand")])
def test_an_entity_stopped_during_a_query_has_a_cancelled_turn(event) -> None:
    watched = Watched(lasting=True)
    watched.go(upto=Ask)
    watched.say(ItemStart("0", "message"), ItemDelta("0", "half a sentence"))
    watched.feed(event)
    assert [m.type for m in watched.seen if not upserts([m])] == ["turn_started", "turn_complete"]
    assert watched.seen[-1].status == "cancelled"


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
    utterance = say("hm", call("echo", text="x"))
    watched = Watched(utterance)
    watched.go(upto=Run)
    watched.crash()
    assert [(m.type, getattr(m, "error_code", None)) for m in watched.seen[-2:]] == [
        ("tool_call", "PROCESS_CRASH"),
        ("turn_error", "PROCESS_CRASH"),
    ]
    before = len(watched.seen)
    watched.start_turn(utterance.with_ids(1))
    watched.replies = [say(done("ok"))]
    watched.go(watched.event_for(watched.transitions[-1].action))
    after = watched.seen[before:]
    assert [m.type for m in after][:4] == ["turn_started", "message", "tool_call", "tool_call"]
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
    spoken = Utterance(entity_id="e1", turn_id=turn, duration_ms=1.0, code="echo('x')")
    started = GateStarted("e1", turn, "k1", "echo", {"text": "x"})
    finished = GateFinished.of("e1", turn, Observation("echo", {"text": "x"}, "x", False, "k1"))
    for records in ([spoken, started], [finished]):
        watched.publish(*read_events(records))
    assert statuses(watched.seen) == ["complete", "create", "complete"]
    assert watched.seen[-1].tool_arguments == {"text": "x"}


def test_a_crash_outside_a_turn_emits_nothing() -> None:
    watched = Watched(say("hi"), lasting=True)
    watched.go()
    seen = len(watched.seen)
    watched.crash()
    watched.feed(Stopped("cancelled", "cancelled"))
    assert len(watched.seen) == seen
