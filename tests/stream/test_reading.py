"""From records to events, and the ids that a log gives them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import (
    AdoptedEvent,
    DecidedEvent,
    DelegatedEvent,
    EntityEndedEvent,
    EntityStartedEvent,
    FoldedEvent,
    ForgottenEvent,
    RequestedEvent,
    ResumedEvent,
    RewardedEvent,
    SampledEvent,
    SteeredEvent,
    StepCompleteEvent,
    TextEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    ToolStartEvent,
    UndoneEvent,
    UsageEvent,
)
from cantrip_actors.records.instant import format_instant
from cantrip_actors.records.records import (
    Adopted,
    ChildStarted,
    Committed,
    Decided,
    Ended,
    Folded,
    ForgottenRecord,
    GateFinished,
    GateStarted,
    IntentGiven,
    Requested,
    Resumed,
    Rewarded,
    Sampled,
    Steered,
    Undone,
    Utterance,
)
from cantrip_actors.stream.events import build_event_fields
from cantrip_actors.stream.reading import END_OF_RECORD, EventId, EventLog, parse_time, read_events
from cantrip_actors.terms.messages import ToolCall, Usage
from tests.machine.driver import Drive, call, cantrip, done, say

AT = "2026-01-01T00:00:00.123Z"
SECONDS = 1_767_225_600.123


def read(*records):
    return list(read_events(records))


@pytest.mark.rule("K-42")
def test_each_record_is_its_event() -> None:
    assert read(
        IntentGiven("e", "go", AT, sender="anna", key="k"),
        Steered("e", "mind the gap", AT, sender="anna"),
        GateStarted("e", "t", "c", "echo"),
        GateFinished(entity_id="e", turn_id="t", gate="echo", tool_call_id="c", result=1, duration_ms=2000.0),
        ChildStarted("e", "t", "c", "child", trace="x"),
        Requested(entity_id="e", turn_id="t", tool_call_id="c", gate="pay", at=AT, args={"n": 1}, why="much"),
        Decided(
            entity_id="e", turn_id="t", tool_call_id="c", decision="allow", at=AT, by="anna", note="ok", door="mcp:anna"
        ),
        Adopted("e", "c2", "c1", AT, "x:y", {}, {}, "brewer"),
        Folded("e", 1, 2, "[folded]", AT, Usage(1)),
        Sampled(entity_id="e", turn_id="t", tool_call_id="c", server="s", crystal="x:y", asked="?", answer="!", at=AT),
        Rewarded("e", "t", 0.5, AT, "anna"),
        Resumed("e", AT, "anna"),
        Undone("e", 1, 2, AT, sender="anna"),
        Committed(entity_id="e", turn_id="t", sequence=1, at=AT, duration_ms=3000.0),
        Ended("e", "cancelled", AT, "by hand", sender="anna"),
        ForgottenRecord(entity_id="e", at=AT, records=1, bytes=1, sum="", by="anna", why="asked"),
    ) == [
        EntityStartedEvent("e", SECONDS, "go", is_further=True, key="k", by="anna"),
        SteeredEvent("e", SECONDS, "mind the gap", "anna"),
        ToolStartEvent("e", SECONDS, "t", "c", "echo"),
        ToolResultEvent("e", SECONDS, "t", "c", "echo", 1, is_error=False, seconds=2.0),
        DelegatedEvent("e", SECONDS, "t", "c", "child", "x"),
        RequestedEvent("e", SECONDS, "t", "e:t:c", "pay", {"n": 1}, "much", None, "c"),
        DecidedEvent("e", SECONDS, "t", "e:t:c", "allow", "anna", "ok", "mcp:anna"),
        AdoptedEvent("e", SECONDS, "c2", "brewer"),
        FoldedEvent("e", SECONDS, 1, 2, "[folded]", Usage(1)),
        SampledEvent("e", SECONDS, "t", "c", "x:y", Usage()),
        RewardedEvent("e", SECONDS, "t", 0.5, "anna"),
        ResumedEvent("e", SECONDS, "anna"),
        UndoneEvent("e", SECONDS, 1, 2, "anna"),
        StepCompleteEvent("e", SECONDS, "t", 1, terminated=False, truncated=False, seconds=3.0),
        EntityEndedEvent("e", SECONDS, "cancelled", "by hand", by="anna"),
        ForgottenEvent("e", SECONDS, "anna", "asked"),
    ]


def test_an_utterance_is_its_parts_and_then_its_usage() -> None:
    calls = (ToolCall("c", "echo", {"text": "x"}),)
    spoken = Utterance(
        entity_id="e",
        turn_id="t",
        content="hi",
        tool_calls=calls,
        code="x = 1",
        thinking="hm",
        usage=Usage(3),
        duration_ms=1500.0,
    )
    assert read(spoken) == [
        ThinkingEvent("e", 0.0, "t", "hm"),
        TextEvent("e", 0.0, "t", "hi"),
        TextEvent("e", 0.0, "t", "x = 1", is_code=True),
        ToolCallEvent("e", 0.0, "t", "c", "echo", {"text": "x"}),
        UsageEvent("e", 0.0, "t", Usage(3), seconds=1.5),
    ]


def test_the_call_of_a_program_is_an_event_when_its_gate_starts() -> None:
    assert read(GateStarted("e", "t", "c", "echo", {"text": "x"})) == [
        ToolCallEvent("e", 0.0, "t", "c", "echo", {"text": "x"}),
        ToolStartEvent("e", 0.0, "t", "c", "echo"),
    ]


def test_an_event_without_a_time_has_that_of_the_record_before() -> None:
    steered, started = read(Steered("e", "x", AT), GateStarted("e", "t", "c", "echo"))
    assert (steered.at, started.at) == (SECONDS, SECONDS)


def test_a_tombstone_has_the_time_of_the_record_before() -> None:
    assert parse_time("") is None
    assert [event.at for event in read(Steered("e", "x", AT), Steered("e", "", ""))] == [SECONDS, SECONDS]


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_survives_as_seconds(milliseconds: int) -> None:
    text = format_instant(milliseconds / 1000)
    assert format_instant(parse_time(text)) == text


@pytest.mark.rule("HTTP-03")
@given(st.lists(st.integers(1, 4), max_size=5))
def test_a_log_gives_the_same_events_however_it_is_read(cuts: list[int]) -> None:
    drive = Drive(cantrip(), say("a", call("echo", text="x"), call("nope")), say("b", done("ok")))
    drive.go()
    whole = list(EventLog().add_all(drive.records))
    log, pieces, start = EventLog(), [], 0
    for cut in [*cuts, len(drive.records)]:
        pieces += log.add_all(drive.records[start : start + cut])
        start += cut
    assert pieces == whole
    ids = [EventId.parse(event.id) for event in whole]
    assert ids == sorted(set(ids))
    assert log.is_over
    assert log.number == len(drive.records)


def test_a_log_knows_the_turn_that_its_last_record_committed() -> None:
    drive = Drive(cantrip(), say("a", call("echo", text="x")), say("b", done("ok")))
    drive.go()
    log, turns = EventLog(), []
    for event in log.add_all(drive.records):
        if isinstance(event, StepCompleteEvent):
            turns.append(log.turn)
        else:
            assert log.turn is None or event.id != str(log.number)
    assert [turn.id for turn in turns] == [turn.id for turn in drive.turns]


def test_ids_sort_in_the_order_of_the_log() -> None:
    assert EventId(7) < EventId(7, 1) < EventId(7, 10) < EventId(7, END_OF_RECORD) < EventId(8)


def test_events_have_a_form_for_programs() -> None:
    fields = build_event_fields(TextEvent("e", 1.0, "t", "hi", id="4.1"))
    assert fields == {
        "type": "TextEvent",
        "entity_id": "e",
        "at": 1.0,
        "turn_id": "t",
        "text": "hi",
        "is_code": False,
        "id": "4.1",
    }
