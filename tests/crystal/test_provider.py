"""One answer from several requests: refused parameters, forced calls, and costs."""

import json

import pytest

from cantrip_actors.crystal.constructors import anthropic, google, local, openai, openrouter
from cantrip_actors.crystal.prices import Model, Prices
from cantrip_actors.crystal.query import Query, ask
from cantrip_actors.crystal.resolve import resolve
from cantrip_actors.crystal.testing import FaultyServer, Reply, events, failing
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.messages import Invocation, Message, ToolCall
from cantrip_actors.terms.retry import Retry
from tests.crystal.asking import CONTEXT, DONE, TOOLS
from tests.crystal.streams import STREAMS, Said, framed

GO = [Message("user", "go")]


def refusing(parameter, message, family="openai-chat"):
    """A server that takes no such parameter."""

    def reply(asked):
        if parameter in asked.body.decode():
            return failing(400, {"error": {"message": message, "type": "invalid_request_error"}})
        return Reply(framed(family, Said("", "ok")))

    return reply


@pytest.mark.real_time
class TestRefusedParameters:
    """What a model refuses is left out, and the crystal remembers it."""

    @pytest.mark.parametrize(
        ("parameter", "message", "options"),
        [
            ("temperature", "Unsupported parameter: 'temperature'", {"temperature": 0.1}),
            ("top_p", "top_p may not be given", {"top_p": 0.1}),
            ("max_completion_tokens", "unknown field max_completion_tokens", {"max_tokens": 5}),
            ("stream_options", "stream_options is not supported", {}),
            ("reasoning_effort", "reasoning_effort: unknown", {"effort": "high"}),
        ],
    )
    async def test_a_refused_parameter_is_left_out(self, parameter, message, options):
        async with FaultyServer(refusing(parameter, message)) as server:
            crystal = openai("m", chat=True, base_url=server.url, api_key="k")
            response = await crystal.invoke(GO, options=options)
            assert response.content == "ok"
            again = await crystal.invoke(GO, options=options)
            assert len(server.requests) == 3
            if parameter == "max_completion_tokens":  # it has another name there
                assert server.requests[-1].json["max_tokens"] == 5
                assert "left_out" not in response.metadata
            elif parameter == "stream_options":  # nobody asked for it
                assert response.metadata["left_out"] == ("stream_options",)
            else:
                assert len(response.metadata["left_out"]) == 1
                assert again.metadata["left_out"] == response.metadata["left_out"]

    async def test_several_refused_parameters_are_left_out_one_after_the_other(self):
        async def answer(crystal):
            return await crystal.invoke(GO, options={"temperature": 0.1, "top_p": 0.2})

        def reply(asked):
            for name in ("temperature", "top_p"):
                if name in asked.json:
                    return failing(400, {"error": {"message": f"no {name}"}})
            return Reply(framed("openai-chat", Said("", "ok")))

        async with FaultyServer(reply) as server:
            response = await answer(openai("m", chat=True, base_url=server.url, api_key="k"))
        assert response.metadata["left_out"] == ("temperature", "top_p")

    async def test_a_text_is_sent_with_every_call_after_the_server_asked_for_one(self):
        message = "messages.2.content: none is not an allowed value"
        async with FaultyServer(refusing('"content":null', message)) as server:
            crystal = openai("m", chat=True, base_url=server.url, api_key="k")
            assert (await crystal.invoke(CONTEXT)).content == "ok"

    async def test_an_error_that_is_not_about_a_parameter_is_raised(self):
        async with FaultyServer([failing(400, {"error": {"message": "temperature of the sun"}})]) as server:
            with pytest.raises(ProviderError, match="temperature of the sun"):
                await openai("m", chat=True, base_url=server.url, api_key="k").invoke(GO)

    async def test_blocks_that_are_refused_are_left_out_of_this_context(self):
        thinking = {"type": "thinking", "thinking": "hm", "signature": "c3RhbGU="}
        block = {"provider": "anthropic", "model": "claude-x", "content": [thinking, {"type": "text", "text": "a"}]}
        context = [*GO, Message("assistant", "a", blocks=(block,)), Message("user", "on")]
        message = "messages.1.content.0: Invalid `signature` in `thinking` block"
        async with FaultyServer(refusing("c3RhbGU", message, family="anthropic")) as server:
            crystal = anthropic("claude-x", base_url=server.url, api_key="k")
            response = await crystal.invoke(context)
            assert (response.content, response.metadata["left_out"]) == ("ok", ("blocks",))
            assert "c3RhbGU" in server.requests[0].body.decode()


@pytest.mark.real_time
@pytest.mark.rule("CRYSTAL-5")
class TestForcing:
    """A call that has to come, from servers that cannot be made to call."""

    CALL = '{"tool": "done", "arguments": {"answer": 42}}'

    async def test_a_required_call_is_asked_for_by_schema_when_the_server_ignores_tool_choice(self):
        seen = []
        script = [Reply(framed("openai-chat", Said("", "I talk."))), Reply(framed("openai-chat", Said("", self.CALL)))]
        async with FaultyServer(script) as server:
            crystal = local(server.url, "m")
            response = await crystal.invoke(GO, TOOLS, "required", emit=seen.append)
            assert response.tool_calls == (ToolCall("call_1_1", "done", {"answer": 42}),)
            assert response.usage.prompt_tokens == 20
            body = server.requests[1].json
            assert body["response_format"]["json_schema"]["schema"]["anyOf"][1]["properties"]["tool"]["enum"] == [
                "done"
            ]
            assert "has to be called now" in body["messages"][-1]["content"]
            await crystal.invoke(GO, TOOLS, "required")  # it remembers
            assert "response_format" in server.requests[2].json
            assert len(server.requests) == 3
        kinds = [(payload.type, getattr(payload, "item_id", None)) for payload in seen]
        assert ("item_error", "0") in kinds
        assert ("item_start", "1") in kinds

    async def test_a_required_call_is_asked_for_by_schema_when_the_server_refuses_tool_choice(self):
        def reply(asked):
            if "tool_choice" in asked.json and asked.json["tool_choice"] == "required":
                return failing(400, {"error": {"message": "tool_choice 'required' is not supported"}})
            text = self.CALL if "response_format" in asked.json else "I talk."
            return Reply(framed("openai-chat", Said("", text)))

        async with FaultyServer(reply) as server:
            response = await local(server.url, "m").invoke(GO, TOOLS, "required")
        assert response.tool_calls[0].gate == "done"

    async def test_a_model_without_tool_support_is_asked_by_schema(self):
        async with FaultyServer([Reply(framed("openai-chat", Said("", self.CALL)))]) as server:
            crystal = local(server.url, "m", tools="schema")
            response = await crystal.invoke(CONTEXT, TOOLS)
            body = server.requests[0].json
        assert response.tool_calls[0].args == {"answer": 42}
        assert "tools" not in body
        assert {one["role"] for one in body["messages"]} == {"system", "user", "assistant"}
        assert '{"tool":"read","arguments":{"path":"a"}}' in body["messages"][2]["content"]
        assert "[error of read]\nno such file" in str([one["content"] for one in body["messages"]]).replace("\\n", "\n")
        assert len(body["response_format"]["json_schema"]["schema"]["anyOf"]) == 3

    @pytest.mark.parametrize(
        ("text", "content", "gates"),
        [
            ('{"say": "hello"}', "hello", []),
            ('```json\n{"tool": "done", "arguments": {}}\n```', None, ["done"]),
            ('{"tool": "unheard_of", "arguments": {}}', '{"tool": "unheard_of", "arguments": {}}', []),
            ("not JSON at all", "not JSON at all", []),
            ("[1]", "[1]", []),
        ],
    )
    async def test_schema_answers_become_content_or_calls(self, text, content, gates):
        seen = []
        async with FaultyServer([Reply(framed("openai-chat", Said("", text)))]) as server:
            response = await local(server.url, "m", tools="schema").invoke(GO, TOOLS, emit=seen.append)
        assert (response.content, [call.gate for call in response.tool_calls]) == (content, gates)
        assert [payload.type for payload in seen][:1] == ["item_start"]

    async def test_a_required_call_is_asked_for_in_words_when_schemas_are_not_supported(self):
        def reply(asked):
            if "response_format" in asked.json:
                return failing(400, {"error": {"message": "response_format is not supported"}})
            said = Said("", "", (("done", {}),)) if "is required here" in asked.body.decode() else Said("", "I talk.")
            return Reply(framed("openai-chat", said))

        async with FaultyServer(reply) as server:
            query = Query(Invocation(GO, TOOLS, "required"))
            response = await ask(local(server.url, "m"), query, retry=Retry())
        assert response.tool_calls[0].gate == "done"

    async def test_openrouter_sends_no_forced_call_together_with_reasoning(self):
        async with FaultyServer([Reply(framed("openai-chat", Said("", "", (("done", {}),))))]) as server:
            crystal = openrouter("x/y", base_url=server.url, api_key="k")
            await crystal.invoke(GO, TOOLS, "required", {"effort": "high"})
            assert "tool_choice" not in server.requests[0].json
            await crystal.invoke(GO, TOOLS, "required")
            assert server.requests[1].json["tool_choice"] == "required"


@pytest.mark.real_time
class TestServers:
    """OpenRouter and servers of one's own: section 4.5 of the landscape."""

    async def heard(self, make, *values, **more):
        async with FaultyServer([Reply(b": OPENROUTER PROCESSING\n\n" * 3 + events(*values, done=True))]) as server:
            return await make(server.url).invoke(GO, TOOLS, **more)

    @staticmethod
    def router(url):
        return openrouter("x/y", base_url=url, api_key="k")

    async def test_the_reported_cost_is_used(self):
        sent = STREAMS["openai-chat"](Said("", "hi"))
        sent[-1]["usage"]["cost"] = 0.25
        assert (await self.heard(self.router, *sent)).usage.cost == 0.25

    async def test_reasoning_details_go_back_unmodified(self):
        pieces = [
            {"type": "reasoning.text", "text": "h", "index": 0, "format": "anthropic-claude-v1"},
            {"type": "reasoning.text", "text": "m", "index": 0},
            {"type": "reasoning.text", "signature": "c2ln", "index": 0},
            {"type": "reasoning.encrypted", "data": "eHg=", "index": 1, "id": "e"},
        ]
        sent = [{"choices": [{"delta": {"reasoning_details": [piece]}}]} for piece in pieces]
        response = await self.heard(self.router, *sent, *STREAMS["openai-chat"](Said("", "hi")))
        assert response.thinking == "hm"
        assert response.blocks[0]["content"]["reasoning_details"] == [
            {"type": "reasoning.text", "text": "hm", "index": 0, "format": "anthropic-claude-v1", "signature": "c2ln"},
            {"type": "reasoning.encrypted", "data": "eHg=", "index": 1, "id": "e"},
        ]
        async with FaultyServer([Reply(framed("openai-chat", Said("", "hi")))]) as server:
            utterance = Message("assistant", "hi", blocks=response.blocks)
            await self.router(server.url).invoke([*GO, utterance, *GO])
            details = server.requests[0].json["messages"][1]["reasoning_details"]
        assert details == response.blocks[0]["content"]["reasoning_details"]

    @pytest.mark.parametrize("streamed", [False, True])
    async def test_several_reasoning_details_of_one_type_go_back_as_they_came(self, streamed: bool):
        details = [
            {"type": "reasoning.summary", "summary": "one", "id": "rs_1", "format": "openai-responses-v1"},
            {"type": "reasoning.summary", "summary": "two", "id": "rs_2", "format": "openai-responses-v1"},
        ]
        if streamed:
            sent = [{"choices": [{"delta": {"reasoning_details": [piece]}}]} for piece in details]
            response = await self.heard(self.router, *sent, *STREAMS["openai-chat"](Said("", "hi")))
        else:
            message = {"role": "assistant", "content": "hi", "reasoning_details": details}
            whole = {"id": "x", "object": "chat.completion", "choices": [{"message": message, "finish_reason": "stop"}]}
            async with FaultyServer([Reply(json.dumps(whole).encode())]) as server:
                response = await self.router(server.url).invoke(GO)
        assert response.blocks[0]["content"]["reasoning_details"] == details

    async def test_an_error_in_an_answer_with_status_200_is_raised(self):
        error = {"error": {"code": 402, "message": "no credits"}}
        for body in (json.dumps(error).encode(), events(error)):
            async with FaultyServer([Reply(body)]) as server:
                with pytest.raises(ProviderError, match="no credits") as caught:
                    await self.router(server.url).invoke(GO)
            assert (caught.value.status, caught.value.retryable) == (402, False)

    async def test_a_nested_completion_is_read(self):
        inner = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "model": "m"}
        body = json.dumps({"choices": None, "provider": inner}).encode()
        async with FaultyServer([Reply(body, content_type="application/json")]) as server:
            assert (await self.router(server.url).invoke(GO)).content == "hi"

    async def test_a_model_that_is_still_loading_is_a_retryable_error(self):
        async with FaultyServer([failing(503, {"error": {"message": "Loading model"}})]) as server:
            with pytest.raises(ProviderError, match="Loading model") as caught:
                await local(server.url, "m").invoke(GO)
        assert caught.value.retryable is True

    async def test_a_local_server_needs_no_key(self, monkeypatch):
        monkeypatch.delenv("LOCAL_API_KEY", raising=False)
        async with FaultyServer([Reply(framed("openai-chat", Said("", "hi")))]) as server:
            await local(server.url, "m").invoke(GO)
            assert "authorization" not in server.requests[0].headers


@pytest.mark.real_time
async def test_an_interrupted_turn_is_continued():
    tool = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}
    start = {"type": "message_start", "message": {"model": "claude-x", "usage": {"input_tokens": 5}}}
    first = [
        start,
        {"type": "content_block_start", "index": 0, "content_block": tool},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    script = [Reply(events(*first)), Reply(framed("anthropic", Said("", "Found.")))]
    seen = []
    async with FaultyServer(script) as server:
        response = await anthropic("claude-x", base_url=server.url, api_key="k").invoke(GO, emit=seen.append)
        assert [one["role"] for one in server.requests[1].json["messages"]] == ["user", "assistant"]
        assert server.requests[1].json["messages"][1]["content"] == [tool]
    assert (response.content, response.usage.prompt_tokens) == ("Found.", 15)
    assert response.blocks[0]["content"][0] == tool


class TestCosts:
    """Prices are data."""

    def test_model_names_resolve_to_prices_and_windows(self):
        prices = Prices()
        assert prices.model("claude-sonnet-4-5-20250929").window == 200_000
        assert prices.model("gpt-4o-2024-11-20") == prices.model("gpt-4o")
        assert prices.model("models/gemini-2.5-flash").input == 0.3
        assert prices.model(None, "gpt-5-mini").output == 2
        for name in ("gpt-5.9", "gpt-5-nonsense", "claude-sonnet-99", "llama"):
            assert prices.model(name) == Model()

    @pytest.mark.parametrize(
        ("counts", "cost"),
        [
            ({"prompt": 1_000_000}, 3),
            ({"completion": 1_000_000}, 15),
            ({"prompt": 1_000_000, "cached": 1_000_000}, 0.3),
            ({"prompt": 1_000_000, "written": 1_000_000}, 3.75),
            ({"prompt": 1_000_000, "written": 1_000_000, "written_long": 1_000_000}, 6),
        ],
    )
    def test_cost_is_the_sum_of_counts_times_prices(self, counts, cost):
        from cantrip_actors.crystal.draft import Counts

        model = Prices().model("claude-sonnet-4-6")
        assert model.cost(Counts(**counts)) == pytest.approx(cost)

    def test_long_prompts_have_prices_of_their_own(self):
        from cantrip_actors.crystal.draft import Counts

        model = Prices().model("claude-sonnet-4-5")
        assert model.cost(Counts(prompt=200_000)) == pytest.approx(0.6)
        assert model.cost(Counts(prompt=300_000)) == pytest.approx(1.8)

    @pytest.mark.real_time
    async def test_prices_of_the_user_take_precedence(self, tmp_path):
        table = tmp_path / "my.toml"
        table.write_text('"gpt-test" = { input = 1000000, output = 0, window = 7 }\n')
        async with FaultyServer([Reply(framed("openai", Said("", "hi")))]) as server:
            crystal = openai("gpt-test", base_url=server.url, api_key="k", prices=Prices.load(table))
            assert crystal.context_window == 7
            assert (await crystal.invoke(GO)).usage.cost == 10
            free = openai("gpt-test", base_url=server.url, api_key="k", context_window=9)
            assert (free.context_window, (await free.invoke(GO)).usage.cost) == (9, 0)

    @pytest.mark.parametrize(
        ("table", "problem"),
        [
            ({"m": {"inptu": 1}}, 'did you mean "input"'),
            ({"m": {"input": -1}}, "expected a number"),
            ({"m": 1}, "expected a table"),
            ({"m": {"above": {"input": 1}}}, "tokens"),
        ],
    )
    def test_an_unreadable_price_table_is_refused(self, table, problem):
        with pytest.raises(InvalidCantrip, match=problem):
            Prices(table)


class TestNames:
    """What recipes say."""

    @pytest.mark.parametrize(
        ("name", "called"),
        [
            ("anthropic:claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
            ("openai:gpt-5", "openai:gpt-5"),
            ("openai-chat:gpt-5", "openai-chat:gpt-5"),
            ("google:gemini-2.5-pro", "google:gemini-2.5-pro"),
            ("openrouter:meta/llama:free", "openrouter:meta/llama:free"),
            ("local:qwen3:4b", "local:qwen3:4b"),
            ("local:qwen3:4b@http://localhost:8080/v1", "local:qwen3:4b"),
        ],
    )
    def test_a_crystal_resolved_from_a_name_has_that_name(self, name, called):
        assert resolve(name).name == called
        assert repr(resolve(name)) == f"<crystal {called}>"

    def test_a_name_can_have_a_local_address(self):
        assert resolve("local:m@http://localhost:8080/v1")._client.base_url == "http://localhost:8080/v1"
        assert resolve("local:m")._client.base_url == "http://localhost:11434/v1"
        with pytest.raises(InvalidCantrip, match="expected"):
            resolve("local:m@localhost")

    @pytest.mark.parametrize(
        ("make", "problem"),
        [
            (lambda: anthropic(""), "expected a model's name"),
            (lambda: anthropic("m", cache="1d"), "cache"),
            (lambda: openai("m", tols="schema"), 'did you mean "tools"'),
            (lambda: google("m", tools="none"), "tools"),
        ],
    )
    def test_invalid_settings_are_refused(self, make, problem):
        with pytest.raises(InvalidCantrip, match=problem):
            make()

    def test_an_invalid_recording_is_refused(self, tmp_path):
        for name, text in (("gone", None), ("empty.json", ""), ("page.json", "<html>")):
            if text is not None:
                (tmp_path / name).write_text(text)
            with pytest.raises(InvalidCantrip, match="recording"):
                resolve(f"replay:{tmp_path / name}")


@pytest.mark.real_time
async def test_every_family_sends_the_schema_of_an_answer():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    for make, family in (
        (anthropic, "anthropic"),
        (openai, "openai"),
        (google, "google"),
        (openrouter, "openai-chat"),
    ):
        async with FaultyServer([Reply(framed(family, Said("", '{"n": 1}')))]) as server:
            crystal = make("m", base_url=server.url, api_key="k")
            response = await crystal.invoke(GO, [DONE], options={"output_schema": schema})
            assert json.loads(response.content) == {"n": 1}
            nullable = family in ("openai", "openai-chat")  # there every property is required
            sent = '"n":{"type":["integer","null"]}' if nullable else '"n":{"type":"integer"}'
            assert sent in server.requests[0].body.decode()


@pytest.mark.real_time
async def test_a_query_fails_when_the_model_refuses_every_parameter():
    async with FaultyServer([failing(400, {"error": {"message": "temperature top_p max_tokens"}})]) as server:
        crystal = openai("m", chat=True, base_url=server.url, api_key="k")
        with pytest.raises(CrystalError):
            await crystal.invoke(GO, options={"temperature": 1, "top_p": 1, "max_tokens": 5})
        assert len(server.requests) <= 7
