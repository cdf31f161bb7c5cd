"""What a crystal learns from a refusal, for an hour: values, levels and parameters; and refusals that it ignores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cantrip_actors import Call, Cantrip, Circle, CrystalError, ProviderError, Runtime
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.crystal.families.anthropic import AnthropicDecoder
from cantrip_actors.crystal.families.chat import ChatDecoder
from cantrip_actors.crystal.families.google import GoogleDecoder
from cantrip_actors.crystal.families.responses import ResponsesDecoder
from cantrip_actors.crystal.lessons import LASTS, LEVELS, Lessons, find_nearest_level
from cantrip_actors.crystal.sse import ServerSentEvent
from cantrip_actors.crystal.testing import FaultyServer, Reply, failing
from cantrip_actors.crystals import Query, anthropic, ask, google, openai
from cantrip_actors.loom.export.thread import build_turn_fields
from cantrip_actors.terms.messages import Invocation, Message, ToolDefinition
from cantrip_actors.terms.retry import Retry
from cantrip_actors.wards import max_turns
from tests.crystal.streams import Said, framed

GO = [Message("user", "go")]
TOOLS = [ToolDefinition("done", "", {"type": "object", "properties": {}})]
CLOCK = [0.0]


def refused(message: str, **more: str) -> Reply:
    return failing(400, {"error": {"message": message, "type": "invalid_request_error", **more}})


def server_of(family: str, refuses: Callable[[dict[str, Any]], str | None], says: str = "ok") -> Callable[[Any], Reply]:
    """A provider that answers, but for what `refuses` returns a message for."""

    def reply(asked: Any) -> Reply:
        message = refuses(asked.json)
        return Reply(framed(family, Said("", says))) if message is None else refused(message)

    return reply


@pytest.mark.real_time
@pytest.mark.rule("R-01")
class TestLessons:
    async def test_a_refused_level_is_replaced_by_the_nearest_one_that_the_refusal_names(self) -> None:
        def refuses(body: dict[str, Any]) -> str | None:
            effort = body.get("output_config", {}).get("effort")
            return (
                f"output_config.effort: '{effort}' is not supported. Supported levels: high, low, max, medium"
                if effort == "xhigh"
                else None
            )

        async with FaultyServer(server_of("anthropic", refuses)) as server:
            crystal = anthropic("claude-opus-4-6", base_url=server.url, api_key="k")
            for _ in range(2):
                response = await crystal.invoke(GO, options={"effort": "xhigh"})
                assert response.metadata["adjusted"] == {"effort": {"asked": "xhigh", "sent": "high"}}
                assert server.requests[-1].json["thinking"]
            assert len(server.requests) == 3
            other = await crystal.invoke(GO, options={"effort": "low"})
            assert "adjusted" not in other.metadata
            assert server.requests[-1].json["output_config"]["effort"] == "low"

    @pytest.mark.parametrize(
        ("family", "message", "sent"),
        [
            (
                "openai",
                (
                    "Unsupported value: 'none' is not supported with the 'gpt-5' model. "
                    "Supported values are: 'minimal', 'low', 'medium', and 'high'. (reasoning.effort)"
                ),
                "minimal",
            ),
            ("google", "Budget 0 is invalid. This model only works in thinking mode.", "minimal"),
        ],
    )
    async def test_effort_none_is_replaced_for_a_model_that_always_thinks(
        self, family: str, message: str, sent: str
    ) -> None:
        def refuses(body: dict[str, Any]) -> str | None:
            if family == "openai":
                return message if body.get("reasoning", {}).get("effort") == "none" else None
            thinking = body.get("generationConfig", {}).get("thinkingConfig", {})
            return message if thinking.get("thinkingBudget") == 0 else None

        make, model = (openai, "gpt-5") if family == "openai" else (google, "gemini-2.5-pro")
        async with FaultyServer(server_of(family, refuses)) as server:
            crystal = make(model, base_url=server.url, api_key="k")
            for _ in range(2):
                response = await crystal.invoke(GO, options={"effort": "none"})
                assert response.metadata["adjusted"] == {"effort": {"asked": "none", "sent": sent}}
            assert "adjusted" not in (await crystal.invoke(GO, options={"effort": "high"})).metadata

    @pytest.mark.parametrize(
        ("make", "model", "asked", "sent"),
        [
            (anthropic, "claude-opus-4-6", "minimal", "low"),
            (google, "gemini-3-pro-preview", "none", "minimal"),
            (google, "gemini-2.5-pro", "max", "high"),
        ],
    )
    async def test_a_level_that_a_family_does_not_have_is_reported_as_adjusted(
        self, make: Any, model: str, asked: str, sent: str
    ) -> None:
        family = "anthropic" if make is anthropic else "google"
        async with FaultyServer(server_of(family, lambda _: None)) as server:
            crystal = make(model, base_url=server.url, api_key="k")
            for _ in range(2):
                response = await crystal.invoke(GO, options={"effort": asked})
                assert response.metadata["adjusted"] == {"effort": {"asked": asked, "sent": sent}}

    @pytest.mark.parametrize(("make", "model"), [(anthropic, "claude-sonnet-4-5"), (google, "gemini-2.5-pro")])
    async def test_an_unknown_level_is_an_error_for_families_with_budgets(self, make: Any, model: str) -> None:
        async with FaultyServer([]) as server:
            with pytest.raises(CrystalError, match=r"effort: expected one of .*, got 'banana'"):
                await make(model, base_url=server.url, api_key="k").invoke(GO, options={"effort": "banana"})
            assert server.requests == []

    @pytest.mark.unpublished
    async def test_an_unknown_level_is_an_error_and_no_lesson(self) -> None:
        def refuses(body: dict[str, Any]) -> str | None:
            level = body["reasoning"]["effort"]
            told = f"Invalid value: '{level}'. Supported values are: 'low'. (reasoning.effort)"
            return told if level != "low" else None

        async with FaultyServer(server_of("openai", refuses)) as server:
            crystal = openai("gpt-5", base_url=server.url, api_key="k")
            with pytest.raises(ProviderError, match="banana"):
                await crystal.invoke(GO, options={"effort": "banana"})
            response = await crystal.invoke(GO, options={"effort": "low"})
            assert "left_out" not in response.metadata
            assert server.requests[-1].json["reasoning"]["effort"] == "low"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"temperature": -1}, "temperature: Input should be greater than or equal to 0"),
            ({"temperature": 5}, "Invalid 'temperature': must be between 0 and 2"),
            ({"top_p": 7}, "top_p: out of range"),
            ({"max_tokens": 10**9}, "max_tokens: 1000000000 exceeds the maximum of 64000"),
        ],
    )
    async def test_a_mistake_of_the_caller_is_an_error_and_no_lesson(
        self, options: dict[str, Any], message: str
    ) -> None:
        async with FaultyServer([refused(message), Reply(framed("openai-chat", Said("", "ok")))]) as server:
            crystal = openai("m", chat=True, base_url=server.url, api_key="k")
            with pytest.raises(ProviderError) as wrong:
                await crystal.invoke(GO, options=options)
            assert wrong.value.status == 400
            response = await crystal.invoke(GO, options={"temperature": 0.5, "top_p": 0.5, "max_tokens": 9})
            assert "left_out" not in response.metadata
            assert server.requests[-1].json["temperature"] == 0.5

    async def test_an_error_about_a_tool_does_not_turn_off_the_answer_schema(self) -> None:
        def refuses(body: dict[str, Any]) -> str | None:
            return "tools.0.custom.input_schema: JSON schema is invalid" if "tools" in body else None

        schema = {"type": "string"}
        async with FaultyServer(server_of("anthropic", refuses, says='"ok"')) as server:
            crystal = anthropic("claude-sonnet-4-5", base_url=server.url, api_key="k")
            with pytest.raises(ProviderError, match="input_schema"):
                await crystal.invoke(GO, TOOLS, options={"output_schema": schema})
            response = await crystal.invoke(GO, options={"output_schema": schema})
            assert "left_out" not in response.metadata
            assert server.requests[-1].json["output_config"]["format"]["type"] == "json_schema"

    async def test_a_value_is_left_out_in_that_combination_only_and_each_response_says_so(self) -> None:
        def refuses(body: dict[str, Any]) -> str | None:
            return "`temperature` may only be set to 1" if body.get("temperature") == 0.2 and "top_p" in body else None

        async with FaultyServer(server_of("openai-chat", refuses)) as server:
            crystal = openai("m", chat=True, base_url=server.url, api_key="k")
            for _ in range(2):
                response = await crystal.invoke(GO, options={"temperature": 0.2, "top_p": 0.9})
                assert response.metadata["left_out"] == ("temperature",)
            assert len(server.requests) == 3
            for options in ({"temperature": 0.2}, {"temperature": 0.3, "top_p": 0.9}):
                assert "left_out" not in (await crystal.invoke(GO, options=options)).metadata
                assert server.requests[-1].json["temperature"] == options["temperature"]

    async def test_the_temperature_is_left_out_while_thinking_and_the_response_says_so(self) -> None:
        async with FaultyServer(server_of("anthropic", lambda _: None)) as server:
            crystal = anthropic("claude-sonnet-4-5", base_url=server.url, api_key="k")
            response = await crystal.invoke(GO, options={"effort": "low", "temperature": 0.2})
            assert response.metadata["left_out"] == ("temperature",)
            assert "temperature" not in server.requests[0].json
            assert "left_out" not in (await crystal.invoke(GO, options={"temperature": 0.2})).metadata

    async def test_a_turn_and_its_export_report_left_out_and_adjusted_settings(self) -> None:
        async with FaultyServer(server_of("anthropic", lambda _: None)) as server, Runtime.open("memory:") as runtime:
            crystal = anthropic("claude-opus-4-6", base_url=server.url, api_key="k")
            call = Call(temperature=0.2, seed=7, options={"effort": "minimal"})
            cantrip = Cantrip(crystal, call, Circle(gates=["done"], wards=[max_turns(2)]))
            (turn,) = (await runtime.cast(cantrip, "go")).thread
        line = build_turn_fields(turn)
        assert set(turn.left_out) == {"temperature", "seed"} == set(line["left_out"])
        assert turn.adjusted == {"effort": {"asked": "minimal", "sent": "low"}} == line["adjusted"]

    async def test_a_refused_setting_is_tried_again_after_an_hour(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with FaultyServer(
            [refused("Unsupported parameter: 'temperature'"), *[Reply(framed("openai-chat", Said("", "ok")))] * 3]
        ) as server:
            crystal = openai("m", chat=True, base_url=server.url, api_key="k")
            monkeypatch.setattr(crystal.family.lessons_learnt, "clock", lambda: CLOCK[0])
            CLOCK[0] = 0.0
            for _ in range(2):
                assert (await crystal.invoke(GO, options={"temperature": 0.1})).metadata["left_out"] == ("temperature",)
            CLOCK[0] = LASTS + 1
            assert "left_out" not in (await crystal.invoke(GO, options={"temperature": 0.1})).metadata
            assert server.requests[-1].json["temperature"] == 0.1


@pytest.mark.rule("R-01")
@pytest.mark.parametrize("refused_level", LEVELS)
@pytest.mark.parametrize("left", [{"low", "high"}, {"minimal", "low", "medium"}, {"none", "max"}, {"medium", "xhigh"}])
def test_the_nearest_level_is_one_that_is_supported(refused_level: str, left: set[str]) -> None:
    found = find_nearest_level(refused_level, f"supported levels: {', '.join(sorted(left))}", {refused_level})
    rest = left - {refused_level}
    assert found in rest
    distance = {level: abs(LEVELS.index(level) - LEVELS.index(refused_level)) for level in rest}
    assert distance[found] == min(distance.values())


@pytest.mark.rule("R-01")
def test_two_levels_whose_refusals_name_each_other_lead_to_the_next_lower_level() -> None:
    lessons = Lessons(lambda: 0.0)
    assert lessons.note_level("high", "supported levels: low, medium") == "medium"
    assert lessons.note_level("medium", "supported levels: high, low") == "low"
    assert lessons.find_level("high") == "low"
    assert lessons.find_level("banana") == "banana"


@pytest.mark.real_time
@pytest.mark.rule("R-03")
@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
@pytest.mark.parametrize("most", [None, 500, 2000, 4096, 32_000, 64_000])
async def test_the_thinking_budget_does_not_shorten_the_answer(effort: str, most: int | None) -> None:
    async with FaultyServer(server_of("anthropic", lambda _: None)) as server:
        crystal = anthropic("claude-sonnet-4-5", base_url=server.url, api_key="k")
        options = {"effort": effort} | ({} if most is None else {"max_tokens": most})
        response = await crystal.invoke(GO, options=options)
    body, limit = server.requests[0].json, crystal.family.known.max_output
    budget = body.get("thinking", {}).get("budget_tokens", 0)
    assert body["max_tokens"] <= limit
    assert body["max_tokens"] - budget >= (most or limit // 2)
    assert budget == 0 or budget >= 1024
    if not budget:  # there is no room for it, and the response says so
        assert most == limit
        assert response.metadata["left_out"] == ("thinking",)


def decoded(decoder: Any, events: list[dict[str, Any]]) -> Any:
    import orjson

    for one in events:
        decoder.feed(ServerSentEvent(name=str(one.get("type", "")), data=orjson.dumps(one)))
    return decoder.finish()


def message(id: str) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": "t1", "name": "delete", "input": {}}
    return [
        {"type": "message_start", "message": {"id": id, "model": "m", "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": call},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": '{"path": "/"}'},
        },
    ]


END = [
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]


@pytest.mark.rule("R-04")
@pytest.mark.parametrize("events", [[*message("msg_1"), *message("msg_1")[:2], *END], [*message("msg_1"), *END]])
def test_a_message_that_is_sent_twice_counts_once(events: list[dict[str, Any]]) -> None:
    response = decoded(AnthropicDecoder("m"), events)
    assert [(call.gate, call.args) for call in response.tool_calls] == [("delete", {"path": "/"})]


@pytest.mark.real_time
@pytest.mark.rule("R-05")
@pytest.mark.parametrize("wants", ["max_tokens", "max_completion_tokens"])
async def test_max_tokens_is_renamed_and_never_left_out(wants: str) -> None:
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[wants]

    def refuses(body: dict[str, Any]) -> str | None:
        text = f"Unsupported parameter: '{other}' is not supported with this model. Use '{wants}' instead."
        return text if other in body else None

    async with FaultyServer(server_of("openai-chat", refuses)) as server:
        crystal = openai("m", chat=True, base_url=server.url, api_key="k")
        crystal.family.most = other
        for _ in range(2):
            response = await crystal.invoke(GO, options={"max_tokens": 77})
            assert server.requests[-1].json[wants] == 77
            assert "left_out" not in response.metadata


@pytest.mark.rule("R-06")
def test_calls_of_the_providers_own_tools_are_not_gate_calls() -> None:
    phantom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "", "name": "web_search", "input": "news"}
    also = {"type": "function_call", "id": "fc_1", "call_id": "", "name": "browse", "arguments": "{}"}
    ours = {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "done", "arguments": "{}"}
    items = [phantom, also, ours]
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "r", "model": "m"}}]
    for n, item in enumerate(items):
        events.append({"type": "response.output_item.added", "output_index": n, "item": item})
        events.append({"type": "response.output_item.done", "output_index": n, "item": item})
    end = {"id": "r", "status": "completed", "output": items, "usage": {"input_tokens": 1, "output_tokens": 1}}
    events.append({"type": "response.completed", "response": end})
    response = decoded(ResponsesDecoder("m", tools=frozenset({"done"})), events)
    assert [call.gate for call in response.tool_calls] == ["done"]


@pytest.mark.real_time
@pytest.mark.rule("R-07")
@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        ({"message": "Failed to call a function.", "code": "tool_use_failed", "failed_generation": "<f>"}, True),
        ({"message": "Tool choice is required, but model did not call a tool"}, True),
        ({"message": "tools.0: bad", "code": "invalid_tools"}, False),
        ({"message": "messages: too long", "code": "context_length_exceeded"}, False),
        ({"message": "Invalid API key", "code": "invalid_api_key"}, False),
    ],
)
async def test_an_error_of_sampling_is_retryable_and_a_mistake_is_not(error: dict[str, str], retryable: bool) -> None:
    async with FaultyServer([failing(400, {"error": error}), Reply(framed("openai-chat", Said("", "ok")))]) as server:
        crystal = openai("m", chat=True, base_url=server.url, api_key="k")
        with pytest.raises(ProviderError) as failed:
            await crystal.invoke(GO, TOOLS, "required")
        assert bool(failed.value.retryable) is retryable
        await crystal.invoke(GO, TOOLS, "required")
        assert server.requests[-1].json["tool_choice"] == "required"  # nothing was learnt


@pytest.mark.real_time
@pytest.mark.rule("R-07")
@pytest.mark.parametrize(
    ("code", "tools", "told"),
    [("tool_use_failed", TOOLS, "could not be read as a tool call"), ("json_validate_failed", [], "not valid JSON")],
)
async def test_the_next_attempt_quotes_the_unreadable_output(code: str, tools: list[ToolDefinition], told: str) -> None:
    said = '<function=done{"answer": 1'
    error = {"message": "See 'failed_generation'.", "type": "invalid_request_error", "code": code}
    script = [
        failing(400, {"error": {**error, "failed_generation": said}}),
        failing(503, headers={"retry-after": "0"}),
        Reply(framed("openai-chat", Said("", "ok"))),
    ]
    async with FaultyServer(script) as server:
        crystal = openai("m", chat=True, base_url=server.url, api_key="k")
        response = await ask(crystal, Query(Invocation(GO, tools)), retry=Retry(base_delay=0.0))
        first, *later = [one.json["messages"] for one in server.requests]
    assert response.content == "ok"
    assert first == [{"role": "user", "content": "go"}]
    for messages in later:
        assert messages[:2] == [*first, {"role": "assistant", "content": said}]
        assert told in messages[2]["content"]
        assert len(messages) == 3


@pytest.mark.rule("R-07")
async def test_unreadable_output_is_quoted_up_to_a_limit_and_other_errors_are_not_quoted() -> None:
    asked: list[list[Message]] = []
    errors = [{"code": "tool_use_failed", "failed_generation": "x" * 100_000}, {"message": "Invalid API key"}]

    class Failing:
        async def invoke(self, messages: Any) -> Any:
            asked.append(list(messages))
            raise make_failure("groq", 400, {"error": errors[len(asked) - 1]})

    with pytest.raises(ProviderError):
        await ask(Failing(), Query(Invocation(GO, TOOLS)), retry=Retry())
    assert [len(messages) for messages in asked] == [1, 3]
    assert len(asked[1][1].content or "") == 4001
    assert make_failure("groq", 400, {"error": {"code": "invalid_tools", "failed_generation": "x"}}).generated is None


@pytest.mark.rule("R-11")
@pytest.mark.parametrize("empty", [None, {}, {"name": ""}, {"name": "", "args": {}}])
def test_an_empty_call_of_gemini_beside_a_text_hides_nothing(empty: Any) -> None:
    parts = [{"text": "the answer", "functionCall": empty}, {"functionCall": empty}]
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
    response = decoded(GoogleDecoder("m"), [{"candidates": [candidate], "usageMetadata": {"promptTokenCount": 1}}])
    assert (response.content, response.tool_calls, response.blocks) == ("the answer", (), ())


@pytest.mark.rule("R-11")
@pytest.mark.parametrize(
    "empty", [{"function_call": {"name": ""}}, {"function_call": {"name": "", "arguments": ""}}, {}]
)
def test_null_fields_are_not_calls(empty: dict[str, Any]) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "done", "arguments": ""}, "custom": {"name": "", "input": ""}}
    rest = {"index": 0, "function": {"arguments": '{"answer": 1}'}, "custom": {"name": ""}}
    chunks = [
        {"id": "x", "model": "m", "choices": [{"index": 0, "delta": {"tool_calls": [call], **empty}}]},
        {"id": "x", "model": "m", "choices": [{"index": 0, "delta": {"tool_calls": [rest], **empty}}]},
        {"id": "x", "model": "m", "choices": [{"index": 0, "delta": {**empty}, "finish_reason": "tool_calls"}]},
    ]
    response = decoded(ChatDecoder("m"), chunks)
    assert [(one.gate, one.args) for one in response.tool_calls] == [("done", {"answer": 1})]
