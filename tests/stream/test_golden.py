"""Events and upserts have the wire form of earlier versions, with which `golden/wire.json` was recorded.

`python -m tests.stream.test_golden` writes the file again; do that only to add values.
"""

import json
from pathlib import Path

import pytest

from cantrip_actors.observe import (
    FinalResponse,
    MessageUpsert,
    ThinkingUpsert,
    ToolCallUpsert,
    TurnComplete,
    TurnError,
    TurnStarted,
    as_message,
    history,
)
from cantrip_actors.stream.wire import (
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
    ResponseDone,
    ResponseError,
    ResponseStart,
    Step,
    StreamError,
    StreamUsage,
)

GOLDEN = Path(__file__).parent / "golden" / "wire.json"
ERROR = StreamError("RATE_LIMIT", "too many requests")
ARGUMENTS = {"query": "ü", "none": None, "deep": {"n": [1, None, 2.5, True], "empty": {}}}

PAYLOADS = [
    ResponseStart("model-1", "anthropic"),
    ItemStart("i", "message", "Hel"),
    ItemStart("i", "reasoning", ""),
    ItemStart("i", "function_call", name="search", call_id="c"),
    ItemStart("i", "function_call_output", call_id="c"),
    ItemDelta("i", "😀\n"),
    ItemDone("i", FinalMessage("Hello", "agent")),
    ItemDone("i", FinalReasoning("", "anthropic")),
    ItemDone("i", FinalFunctionCall("search", "c", ARGUMENTS)),
    ItemDone("i", FinalFunctionCall("search", "c", {})),
    ItemDone("i", FinalFunctionCallOutput("c", "nothing", is_error=False)),
    ItemDone("i", FinalFunctionCallOutput("c", "broken", is_error=True)),
    ItemError("i", ERROR),
    ItemCancelled("i"),
    ItemCancelled("i", "timeout"),
    ResponseDone("completed"),
    ResponseDone("cancelled", "end_turn", usage=StreamUsage(10, 2)),
    ResponseDone("completed", "end_turn", usage=StreamUsage(10.5, 2, 0, 4)),
    ResponseDone("error", error=ERROR),
    ResponseDone("completed", step=Step(3)),
    ResponseDone("completed", step=Step(3, terminated=True, result={"answer": 42, "none": None})),
    ResponseDone("completed", step=Step(3, truncated=True, result="")),
    ResponseError(ERROR),
]
ENVELOPES = [Envelope("e", "2026-02-16T08:00:00.000Z", "t", "s", payload) for payload in PAYLOADS]
ENVELOPES += [
    Envelope("e", "2026-02-16T08:00:00Z", "t", "child", PAYLOADS[0], Parent("root", "turn-3")),
    Envelope("e", "2026-02-16T08:00:00Z", "t", "child", PAYLOADS[0], Parent("root")),
]

ITEM = {"turn_id": "t", "session_id": "s", "item_id": "t:1:0", "source_timestamp": "a", "emitted_at": "b"}
OUTPUTS = [
    MessageUpsert(status="create", content="", **ITEM),
    MessageUpsert(status="complete", content="hi", origin="system", **ITEM),
    ThinkingUpsert(status="error", content="h", provider_id="p", error_code="RETRY", error_message="again", **ITEM),
    ToolCallUpsert(status="create", tool_name="search", tool_arguments={}, call_id="c", **ITEM),
    ToolCallUpsert(
        status="complete",
        tool_name="search",
        tool_arguments=ARGUMENTS,
        call_id="c",
        tool_output="",
        tool_output_is_error=False,
        **ITEM,
    ),
    TurnStarted("t", "s", "m", "p"),
    TurnStarted("t", "s", "m", "p", Parent("root")),
    TurnComplete("t", "s", "completed", StreamUsage(1, 2), Parent("root", "t0")),
    TurnComplete("t", "s", "cancelled"),
    TurnError("t", "s", "X", "y"),
    FinalResponse("t", "s", None),
    FinalResponse("t", "s", ["answer", None]),
]


def wire_forms() -> dict[str, list[object]]:
    return {
        "envelopes": [json.loads(envelope.to_json()) for envelope in ENVELOPES],
        "dictionaries": [envelope.as_wire() for envelope in ENVELOPES],
        "outputs": [as_message(output) for output in OUTPUTS],
        "history": [history("s", OUTPUTS)],
    }


@pytest.mark.rule("U-01")
@pytest.mark.parametrize("kind", ["envelopes", "dictionaries", "outputs", "history"])
def test_values_have_the_wire_form_of_earlier_versions(kind) -> None:
    assert wire_forms()[kind] == json.loads(GOLDEN.read_text(encoding="utf-8"))[kind]


@pytest.mark.rule("U-01")
def test_envelopes_of_earlier_versions_are_read() -> None:
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))["envelopes"]
    assert [Envelope.parse(value) for value in recorded] == ENVELOPES


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(wire_forms(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
