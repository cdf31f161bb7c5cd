"""What was said, in spans and events: nothing of it by default, and never a secret (OTEL-11)."""

import json
from collections import Counter
from typing import Any

import jsonschema
import pytest
from opentelemetry._logs import SeverityNumber
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from cantrip_actors import Call, Cantrip, Circle, ProviderError, Runtime, gate, scripted
from cantrip_actors.observe import Telemetry
from cantrip_actors.observe.content import QueryMessages, parse_mode
from cantrip_actors.terms.messages import Message
from cantrip_actors.wards import max_turns
from tests.observe.spans import Sdk
from tests.runtime.spells import cantrip, done, say

pytestmark = pytest.mark.rule("OTEL-11")

SECRET = "sk-live-0123456789abcdefghij"
MARKS = ("USER-SAID", "MODEL-SAID", "GATE-SAID", "SYSTEM-SAID", "THOUGHT", "ARGUMENT")


@gate
async def look(what: str) -> str:
    """Look at something with sk-live-0123456789abcdefghij."""
    return f"GATE-SAID {what} {SECRET}"


def spell() -> Cantrip:
    script = [
        {**say("look", what="ARGUMENT"), "thinking": "THOUGHT", "content": "MODEL-SAID"},
        {"tool_calls": [{"gate": "MODEL-SAID", "args": {"x": "ARGUMENT"}}]},
        done("MODEL-SAID"),
    ]
    call = Call("SYSTEM-SAID")
    return Cantrip(scripted(script), call=call, circle=Circle(["done", look], [max_turns(5)]))


async def run(sdk: Sdk, **options: Any) -> str:
    async with Runtime.open(telemetry=sdk.telemetry(**options), secrets=[SECRET]) as runtime:
        await runtime.cast(spell(), "USER-SAID", context={"more": "USER-SAID"})
    return sdk.exported


async def test_no_content_leaves_the_process_by_default() -> None:
    text = await run(Sdk())
    assert [mark for mark in (*MARKS, SECRET) if mark in text] == []


@pytest.mark.parametrize("content", ["span", "event", "both"])
@pytest.mark.parametrize("inputs", ["new", "all"])
async def test_each_mode_has_the_content_in_its_place_and_no_secret(content: str, inputs: str) -> None:
    sdk = Sdk()
    text = await run(sdk, content=content, inputs=inputs)
    assert [mark for mark in MARKS if mark not in text] == []
    assert SECRET not in text
    logs = sdk.log_exporter.get_finished_logs()
    assert bool(logs) == (content != "span")
    chats = sdk.named("chat scripted")
    assert all(("gen_ai.output.messages" in chat.attributes) == (content != "event") for chat in chats)
    assert {one.log_record.event_name for one in logs} <= {"gen_ai.client.inference.operation.details"}
    assert {one.log_record.span_id for one in logs} <= {chat.context.span_id for chat in chats}


@pytest.mark.parametrize(
    ("variable", "mode"),
    [
        ("NO_CONTENT", "none"),
        ("SPAN_ONLY", "span"),
        ("true", "span"),
        ("EVENT_ONLY", "event"),
        ("SPAN_AND_EVENT", "both"),
        ("what?", "none"),
        (None, "none"),
    ],
)
def test_the_environment_says_where_content_goes(variable: str | None, mode: str) -> None:
    assert parse_mode(variable) == mode


async def test_the_environment_variable_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    assert "USER-SAID" in await run(Sdk())


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="content: expected one of"):
        Telemetry(content="all")


PART = {
    "type": "object",
    "required": ["type"],
    "oneOf": [
        {
            "properties": {"type": {"enum": ["text", "reasoning"]}, "content": {"type": "string"}},
            "required": ["content"],
        },
        {
            "properties": {"type": {"const": "tool_call"}, "id": {"type": "string"}, "name": {"type": "string"}},
            "required": ["id", "name", "arguments"],
        },
        {
            "properties": {"type": {"const": "tool_call_response"}, "id": {"type": "string"}},
            "required": ["id", "result"],
        },
    ],
}
MESSAGES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["role", "parts"],
        "properties": {
            "role": {"enum": ["user", "assistant", "tool"]},
            "parts": {"type": "array", "items": PART},
            "finish_reason": {"type": "string"},
        },
    },
}


async def test_messages_have_the_shapes_of_the_conventions() -> None:
    sdk = Sdk()
    await run(sdk, content="span")
    for chat in sdk.named("chat scripted"):
        for name in ("gen_ai.input.messages", "gen_ai.output.messages"):
            jsonschema.validate(json.loads(chat.attributes[name]), MESSAGES)
    first = sdk.named("chat scripted")[0].attributes
    jsonschema.validate(json.loads(first["gen_ai.system_instructions"]), {"type": "array", "items": PART})
    assert [one["name"] for one in json.loads(first["gen_ai.tool.definitions"])] == ["done", "look"]
    tool = sdk.one("execute_tool look").attributes
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"what": "ARGUMENT"}
    assert json.loads(tool["gen_ai.tool.call.result"]).startswith("GATE-SAID ARGUMENT")


async def test_a_thousand_turns_cost_linear_time_and_bytes_with_new_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk, whole, converted = Sdk(), QueryMessages._build_message, []

    def counted(self: QueryMessages, message: Message) -> Any:
        converted.append(message.role)
        return whole(self, message)

    monkeypatch.setattr(QueryMessages, "_build_message", counted)
    spell = cantrip([*[say("echo", text="x" * 50)] * 1_000, done(1)], wards=(max_turns(1_001),))
    async with Runtime.open(telemetry=sdk.telemetry(content="span")) as runtime:
        await runtime.cast(spell, "go")
    sizes = [len(chat.attributes["gen_ai.input.messages"]) for chat in sdk.named("chat scripted")]
    assert len(sizes) == 1_001
    assert max(sizes) < 600
    assert Counter(converted) == {"user": 1, "assistant": 1_000, "tool": 1_000}  # each message once


async def test_the_users_function_gets_the_content_of_spans_that_are_not_sampled() -> None:
    got: list[Any] = []
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    telemetry = Telemetry(tracer_provider=provider, on_content=lambda span, *parts: got.append((span, parts)))
    async with Runtime.open(telemetry=telemetry, secrets=[SECRET]) as runtime:
        await runtime.cast(spell(), "USER-SAID")
    assert [mark for mark in MARKS if mark not in str(got)] == []
    assert not [span for span, _ in got if span.is_recording()]


class Failing:
    """A crystal whose provider quotes the prompt."""

    name = "anthropic:claude-sonnet-4-5"

    async def invoke(self, _: object) -> object:
        raise ProviderError(f"USER-SAID is not allowed, {SECRET}", status=400)


@pytest.mark.parametrize(("content", "events"), [(None, 0), ("span", 0), ("event", 1), ("both", 1)])
async def test_the_error_of_a_query_is_an_event_of_its_span_where_content_is(content: Any, events: int) -> None:
    sdk = Sdk()
    async with Runtime.open(telemetry=sdk.telemetry(content=content), secrets=[SECRET]) as runtime:
        with pytest.raises(ProviderError):
            await runtime.cast(cantrip(Failing()), "go")
    assert SECRET not in sdk.exported
    assert ("USER-SAID" in sdk.exported) == bool(events)
    logs = [one.log_record for one in sdk.log_exporter.get_finished_logs()]
    found = [one for one in logs if one.event_name == "gen_ai.client.operation.exception"]
    assert len(found) == events
    for one in found:
        told = dict(one.attributes or {})
        assert "USER-SAID is not allowed, [redacted" in told.pop("exception.message")
        assert told == {"gen_ai.operation.name": "chat", "exception.type": "ProviderError"}
        assert one.severity_number is SeverityNumber.WARN
        assert one.span_id == sdk.one("chat claude-sonnet-4-5").context.span_id


async def test_the_users_function_gets_the_content_without_secrets() -> None:
    got: list[Any] = []
    await run(Sdk(), on_content=lambda span, *parts: got.append(parts))
    text = json.dumps(got)
    assert [mark for mark in MARKS if mark not in text] == []
    assert SECRET not in text
