"""Settings that two families share: typed, in each family's words, and said where a family lacks them (R-26)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from cantrip_actors import Call, Cantrip, Circle, InvalidCantrip, Runtime, gate, scripted
from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.crystal.testing import FaultyServer, Reply, failing
from cantrip_actors.crystals import anthropic, bedrock, google, local, openai, openrouter, xai
from cantrip_actors.terms.call import TYPED
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.messages import Message
from cantrip_actors.wards import max_turns
from tests.crystal.asking import TOOLS
from tests.crystal.streams import Said, fed, framed

pytestmark = pytest.mark.rule("R-26")
GO = [Message("user", "go")]
ALL: dict[str, Any] = {
    "parallel_tool_calls": False,
    "service_tier": "auto",
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "logprobs": 2,
    "seed": 7,
    "verbosity": "low",
    "reasoning_summary": "detailed",
}
MAKE = {
    "anthropic": lambda **more: anthropic("claude-opus-4-6", api_key="k", **more),
    "openai": lambda **more: openai("gpt-5", api_key="k", **more),
    "openai-chat": lambda **more: openai("gpt-4o", chat=True, api_key="k", **more),
    "google": lambda **more: google("gemini-3-pro-preview", api_key="k", **more),
    "openrouter": lambda **more: openrouter("meta/llama", api_key="k", **more),
    "xai": lambda **more: xai("grok-4", api_key="k", **more),
    "bedrock": lambda **more: bedrock("anthropic.claude-opus-4-6-v1", region="eu-north-1", api_key="k", **more),
}
LACKS = {
    "anthropic": {"frequency_penalty", "presence_penalty", "logprobs", "seed", "verbosity"},
    "openai": {"frequency_penalty", "presence_penalty", "seed", "stop"},
    "xai": {"frequency_penalty", "presence_penalty", "seed", "stop"},
    "openai-chat": {"reasoning_summary"},
    "google": {"parallel_tool_calls", "verbosity"},
    "openrouter": set(),
    "bedrock": set(TYPED) - {"service_tier"},
}


def asked(family: str, tools: Any = TOOLS, choice: str | None = None, **options: Any) -> tuple[Any, set[str]]:
    made = MAKE[family]().family.make_request(ProviderQuery(GO, tools, choice, SamplingSettings.of(options)))
    return orjson.loads(made.body), set(made.left_out)


class TestRequests:
    """One call for all families."""

    @pytest.mark.parametrize("family", MAKE)
    def test_settings_that_a_family_lacks_are_left_out_and_reported(self, family: str) -> None:
        call = Call(stop=["END"], options={"effort": "high"}, **ALL)
        _, left_out = asked(family, **call.sampling())
        assert left_out == LACKS[family]

    def test_anthropic(self) -> None:
        body, _ = asked("anthropic", effort="high", **ALL)
        assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
        assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
        assert body["service_tier"] == "auto"
        import anthropic.types as anthropic_types  # here, because each worker of `make test` imports this module

        TypeAdapter(anthropic_types.ToolChoiceParam).validate_python(body["tool_choice"])
        TypeAdapter(anthropic_types.ThinkingConfigParam).validate_python(body["thinking"])
        forced, _ = asked("anthropic", choice="required", parallel_tool_calls=False)
        assert forced["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
        kept, _ = asked("anthropic", choice="none", parallel_tool_calls=False)
        assert kept["tool_choice"] == {"type": "none"}
        assert "thinking" not in asked("anthropic", reasoning_summary="none")[0]

    def test_openai(self) -> None:
        body, _ = asked("openai", effort="high", **ALL)
        assert (body["parallel_tool_calls"], body["service_tier"], body["top_logprobs"]) == (False, "auto", 2)
        assert body["text"] == {"verbosity": "low"}
        assert body["reasoning"] == {"effort": "high", "summary": "detailed"}
        assert set(body["include"]) == {"reasoning.encrypted_content", "message.output_text.logprobs"}
        import openai.types.responses as openai_types

        TypeAdapter(openai_types.response_create_params.ResponseCreateParamsStreaming).validate_python(body)
        assert asked("openai", effort="low", reasoning_summary="none")[0]["reasoning"]["summary"] is None

    def test_chat(self) -> None:
        body, _ = asked("openai-chat", **ALL)
        names = ("parallel_tool_calls", "service_tier", "frequency_penalty", "presence_penalty", "seed", "verbosity")
        assert {name: body[name] for name in names} == {name: ALL[name] for name in names}
        assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
        import openai.types.chat as chat_types

        TypeAdapter(chat_types.completion_create_params.CompletionCreateParamsStreaming).validate_python(body)
        router, _ = asked("openrouter", effort="high", reasoning_summary="none")
        assert router["reasoning"] == {"effort": "high", "exclude": True}

    def test_google(self) -> None:
        body, _ = asked("google", effort="high", **ALL)
        config = body["generationConfig"]
        assert (config["frequencyPenalty"], config["presencePenalty"], config["seed"]) == (0.5, -0.5, 7)
        assert (config["responseLogprobs"], config["logprobs"], body["serviceTier"]) == (True, 2, "auto")
        from google.genai import types as google_types

        google_types.GenerationConfig.model_validate(config)
        hidden, _ = asked("google", effort="high", reasoning_summary="none")
        assert hidden["generationConfig"]["thinkingConfig"]["includeThoughts"] is False

    @pytest.mark.parametrize("family", MAKE)
    def test_no_tool_setting_is_sent_without_tools(self, family: str) -> None:
        body, _ = asked(family, tools=(), parallel_tool_calls=False)
        assert not {"tool_choice", "parallel_tool_calls"} & body.keys()

    @pytest.mark.parametrize(
        ("family", "sent"),
        [
            ("anthropic", {"tool_choice": {"type": "tool", "name": "read"}}),
            ("openai", {"tool_choice": {"type": "function", "name": "read"}}),
            ("xai", {"tool_choice": {"type": "function", "name": "read"}}),
            ("openai-chat", {"tool_choice": {"type": "function", "function": {"name": "read"}}}),
            ("openrouter", {"tool_choice": {"type": "function", "function": {"name": "read"}}}),
            (
                "google",
                {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["read"]}}},
            ),
            ("bedrock", {"toolChoice": {"tool": {"name": "read"}}}),
        ],
    )
    def test_one_gate_can_be_forced(self, family: str, sent: Any) -> None:
        body, left_out = asked(family, choice="gate:read")
        assert (body["toolConfig"] if family == "bedrock" else body).items() >= sent.items()
        assert "tool_choice" not in left_out

    def test_bedrock_offers_no_tools_under_tool_choice_none(self) -> None:
        body, _ = asked("bedrock", choice="none", service_tier="flex")
        assert "toolConfig" not in body
        assert body["serviceTier"] == {"type": "flex"}

    @pytest.mark.parametrize("choice", ["required", "gate:read"])
    @pytest.mark.parametrize(
        "crystal",
        [
            anthropic("claude-sonnet-4-5", api_key="k"),
            bedrock("anthropic.claude-sonnet-4-5-20250929-v1:0", region="eu-north-1", api_key="k"),
            openrouter("meta/llama", api_key="k"),
        ],
        ids=lambda crystal: crystal.family.provider,
    )
    def test_a_call_that_cannot_be_forced_while_thinking_is_reported_as_left_out(
        self, crystal: Any, choice: str
    ) -> None:
        for effort, left_out in (("high", {"tool_choice"}), (None, set())):
            made = crystal.family.make_request(
                ProviderQuery(GO, TOOLS, choice, SamplingSettings.of({"effort": effort}))
            )
            assert set(made.left_out) == left_out
            assert (b"oolChoice" in made.body or b"tool_choice" in made.body) is (effort is None)


class TestCalls:
    """What a call accepts."""

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("parallel_tool_calls", "no", "expected true or false"),
            ("service_tier", "", "expected text"),
            ("frequency_penalty", 3, "from -2 to 2"),
            ("presence_penalty", True, "from -2 to 2"),
            ("logprobs", 21, "from 0 to 20"),
            ("seed", -1, "from 0"),
            ("verbosity", "loud", "'low', 'medium', 'high', None"),
            ("reasoning_summary", "long", "'none', 'auto'"),
        ],
    )
    def test_an_invalid_value_is_refused(self, name: str, value: Any, message: str) -> None:
        with pytest.raises(InvalidCantrip, match=message):
            Call(**{name: value})

    @given(st.sets(st.sampled_from(TYPED)))
    def test_a_setting_reaches_the_encoder_under_its_name(self, names: set[str]) -> None:
        settings = {name: ALL[name] for name in names}
        assert Call(**settings).as_json() == settings
        assert SamplingSettings.of(Call(**settings).sampling()).typed == settings

    def test_an_unknown_gate_cannot_be_forced(self) -> None:
        circle = Circle(gates=["done", look], wards=[max_turns(2)])
        with pytest.raises(InvalidCantrip, match=r'"gate:loko": no such gate: .*look'):
            Cantrip("anthropic:m", Call(tool_choice="gate:loko"), circle)
        program = Circle(gates=["done"], wards=[max_turns(2)], medium="python")
        with pytest.raises(InvalidCantrip, match="a program calls the gates"):
            Cantrip("anthropic:m", Call(tool_choice="gate:done"), program)


@gate
async def look() -> str:
    """Look."""
    return "seen"


async def test_a_call_of_another_gate_than_the_forced_one_is_not_accepted() -> None:
    crystal = scripted(
        [
            {"tool_calls": [{"gate": "look", "args": {}}]},
            "words",
            {"tool_calls": [{"gate": "done", "args": {"answer": "yes"}}]},
        ]
    )
    circle = Circle(gates=["done", look], wards=[max_turns(2)])
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(crystal, Call(tool_choice="gate:done"), circle), "go")
    assert (episode.result, len(episode.thread), episode.thread[0].gate_calls[0].gate) == ("yes", 1, "done")
    assert "a call of done is required" in str(crystal.invocations[1][-1].content)


async def test_a_child_without_the_forced_gate_of_its_parent_is_not_forced() -> None:
    crystal = scripted(
        [
            {"tool_calls": [{"gate": "call_agent", "args": {"intent": "look", "gates": ["done"]}}]},
            {"tool_calls": [{"gate": "call_agent", "args": {"intent": "again", "gates": ["done"]}}]},
        ]
    )
    child = scripted(["found", "found"])
    circle = Circle(gates=["done", "call_agent"], wards=[max_turns(2)])
    cantrip = Cantrip(crystal, Call(tool_choice="gate:call_agent"), circle, child_crystal=child)
    async with Runtime.open() as runtime:
        await runtime.cast(cantrip, "go")
    assert [one.tool_choice for one in child.invocations] == [None, None]


@pytest.mark.real_time
class TestRefusals:
    """What a model refuses of them."""

    async def test_a_setting_that_a_model_does_not_have_is_left_out_from_then_on(self) -> None:
        def reply(sent: Any) -> Reply:
            if "verbosity" in sent.json:
                return failing(400, {"error": {"message": "Unsupported parameter: 'verbosity'"}})
            return Reply(framed("openai-chat", Said("", "ok")))

        async with FaultyServer(reply) as server:
            crystal = MAKE["openai-chat"](base_url=server.url)
            for _ in range(2):
                response = await crystal.invoke(GO, options={"verbosity": "low", "seed": 1})
                assert response.metadata["left_out"] == ("verbosity",)
            assert len(server.requests) == 3
            assert server.requests[-1].json["seed"] == 1

    async def test_a_refused_value_does_not_remove_other_values(self) -> None:
        def reply(sent: Any) -> Reply:
            if sent.json.get("service_tier") == "flex":
                return failing(400, {"error": {"message": "Flex is not available: invalid service_tier argument"}})
            return Reply(framed("openai", Said("", "ok")))

        async with FaultyServer(reply) as server:
            crystal = MAKE["openai"](base_url=server.url)
            first = await crystal.invoke(GO, options={"service_tier": "flex"})
            second = await crystal.invoke(GO, options={"service_tier": "priority"})
            assert (first.metadata["left_out"], "left_out" in second.metadata) == (("service_tier",), False)
            assert server.requests[-1].json["service_tier"] == "priority"

    async def test_a_number_out_of_its_range_is_an_error_and_not_left_out(self) -> None:
        refused = failing(400, {"error": {"message": "presence_penalty must be between -1 and 1"}})
        async with FaultyServer([refused]) as server:
            with pytest.raises(ProviderError):
                await local(server.url, "m").invoke(GO, options={"presence_penalty": 2})


def test_log_probabilities_have_one_shape_for_all_families() -> None:
    told = [["Hi", -0.1, [["Hi", -0.1], ["Ho", -2.0]]]]
    top = [{"token": "Hi", "logprob": -0.1}, {"token": "Ho", "logprob": -2.0}]
    one = [{"token": "Hi", "logprob": -0.1, "top_logprobs": top}]
    choice = {"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": one}, "finish_reason": "stop"}
    assert fed("openai-chat", {"choices": [choice]}).metadata["logprobs"] == told
    message = {"type": "message", "content": [{"type": "output_text", "text": "Hi", "logprobs": one}]}
    body = {"object": "response", "status": "completed", "output": [message]}
    assert fed("openai", body).metadata["logprobs"] == told
    tops = [{"candidates": [{"token": "Hi", "logProbability": -0.1}, {"token": "Ho", "logProbability": -2.0}]}]
    result = {"topCandidates": tops, "chosenCandidates": [{"token": "Hi", "logProbability": -0.1}]}
    candidate = {"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP", "logprobsResult": result}
    assert fed("google", {"candidates": [candidate]}).metadata["logprobs"] == told
