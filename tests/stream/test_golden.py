"""Upserts and turn events have the wire form of earlier versions, with which `golden/wire.json` was recorded.

`python -m tests.stream.test_golden` writes the file again; do that only to add values.
"""

import json
from pathlib import Path

import pytest

from cantrip_actors.observe import (
    FinalResponse,
    MessageUpsert,
    Parent,
    ThinkingUpsert,
    ToolCallUpsert,
    TurnComplete,
    TurnError,
    TurnStarted,
    as_message,
    history,
)
from cantrip_actors.stream.wire import StreamUsage

GOLDEN = Path(__file__).parent / "golden" / "wire.json"
ARGUMENTS = {"query": "ü", "none": None, "deep": {"n": [1, None, 2.5, True], "empty": {}}}

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
    return {"outputs": [as_message(output) for output in OUTPUTS], "history": [history("s", OUTPUTS)]}


@pytest.mark.rule("U-01")
@pytest.mark.parametrize("kind", ["outputs", "history"])
def test_values_have_the_wire_form_of_earlier_versions(kind) -> None:
    assert wire_forms()[kind] == json.loads(GOLDEN.read_text(encoding="utf-8"))[kind]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(wire_forms(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
