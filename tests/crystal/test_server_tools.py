"""Tools that a provider runs itself, beside the gates: what is sent, what comes back, what it costs (R-21)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import TypeAdapter

from cantrip_actors import Call, Cantrip, Circle, InvalidCantrip, ItemEndEvent, Retry, Runtime, gate, scripted
from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.families.xai import XaiDecoder
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.crystal.sse import ServerSentEvent
from cantrip_actors.crystal.testing import FaultyServer, Reply, events
from cantrip_actors.crystals import anthropic, fallback, google, limited, local, openai, openrouter, xai
from cantrip_actors.recipes import load_recipe
from cantrip_actors.server_tools import code_execution, file_search, mcp_connector, url_context, web_search
from cantrip_actors.stream.wire import FinalFunctionCall, FinalFunctionCallOutput
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import Message
from cantrip_actors.wards import max_turns
from tests.crystal.asking import TOOLS, request
from tests.crystal.streams import fed

GO = [Message("user", "What is new?")]
SEARCH = web_search(max_uses=3, allowed_domains=["example.org"])
pytestmark = pytest.mark.rule("R-21")


def sent(crystal: Any, *tools: Any, **options: Any) -> dict[str, Any]:
    body: dict[str, Any] = request(crystal, GO, server_tools=[one.as_json() for one in tools], **options)
    return body


def with_options(crystal: Any, **options: Any) -> Any:
    return orjson.loads(crystal.family.make_request(ProviderQuery(GO, TOOLS, None, SamplingSettings.of(options))).body)


class TestRequests:
    """What each family sends: gates first, then the provider's tools, in shapes that its published types take."""

    def test_anthropic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOCS_TOKEN", "a-secret-token")
        docs = mcp_connector("docs", "https://mcp.example.org/", token_variable="DOCS_TOKEN", allowed_tools=["find"])
        body = sent(anthropic("claude-sonnet-4-5", api_key="k"), SEARCH, url_context(), code_execution(), docs)
        assert [tool.get("name", tool.get("type")) for tool in body["tools"]] == [
            "read",
            "done",
            "web_search",
            "web_fetch",
            "code_execution",
            "mcp_toolset",
        ]
        assert body["tools"][2]["max_uses"] == 3
        assert body["tools"][2]["allowed_domains"] == ["example.org"]
        assert body["tools"][5]["configs"] == {"find": {"enabled": True}}
        assert body["mcp_servers"][0]["authorization_token"] == "a-secret-token"
        import anthropic.types.beta as anthropic_types  # takes two seconds: only in the process that runs this

        for tool in body["tools"]:
            strict(anthropic_types.BetaToolUnionParam, tool)
        strict(anthropic_types.BetaRequestMCPServerURLDefinitionParam, body["mcp_servers"][0])

    @pytest.mark.parametrize("make", [openai, xai])
    def test_openai_and_xai(self, make: Any) -> None:
        docs = mcp_connector("docs", "https://mcp.example.org/", allowed_tools=["find"])
        tools = (
            web_search(allowed_domains=["example.org"]),
            code_execution(),
            file_search("vs_1", max_results=4),
            docs,
        )
        body = sent(make("gpt-5", api_key="k"), *tools)
        kinds = [tool["type"] for tool in body["tools"]]
        assert kinds == ["function", "function", "web_search", "code_interpreter", "file_search", "mcp"]
        assert body["tools"][2]["filters"] == {"allowed_domains": ["example.org"]}
        assert {"reasoning.encrypted_content", "web_search_call.action.sources"} <= set(body["include"])
        if make is openai:
            import openai.types.responses as openai_types

            for tool in body["tools"]:
                strict(openai_types.ToolParam, tool)

    def test_openai_accepts_max_uses_for_a_single_tool_only(self) -> None:
        assert sent(openai("gpt-4o", api_key="k"), SEARCH)["max_tool_calls"] == 3

    def test_google(self) -> None:
        stores = file_search(["fileSearchStores/a"], max_results=2)
        body = sent(google("gemini-3-pro-preview", api_key="k"), web_search(), url_context(), code_execution(), stores)
        assert [next(iter(tool)) for tool in body["tools"]] == [
            "functionDeclarations",
            "googleSearch",
            "urlContext",
            "codeExecution",
            "fileSearch",
        ]
        assert body["toolConfig"] == {"includeServerSideToolInvocations": True}
        from google.genai import types as google_types

        for tool in body["tools"][1:]:
            google_types.Tool.model_validate(tool)
        google_types.ToolConfig.model_validate(body["toolConfig"])

    def test_openrouter(self) -> None:
        body = sent(openrouter("meta/llama", api_key="k"), web_search(blocked_domains=["bad.example"]))
        assert body["tools"][-1] == {
            "type": "openrouter:web_search",
            "parameters": {"excluded_domains": ["bad.example"]},
        }
        assert len(body["tools"]) == 3

    @pytest.mark.parametrize("make", [openai, anthropic, google, openrouter])
    def test_tools_in_the_options_are_added_to_the_gates(self, make: Any) -> None:
        body = with_options(make("m", api_key="k"), tools=[{"type": "something"}])
        assert len(body["tools"]) > 1
        assert body["tools"][-1] == {"type": "something"}

    def test_tools_in_the_options_that_are_not_a_list_are_refused(self) -> None:
        with pytest.raises(CrystalError, match="options: tools: expected a list"):
            with_options(openai("gpt-5", api_key="k"), tools="web_search")


def strict(kind: Any, value: Any) -> None:
    """Check a value by a published type. Raises ValidationError."""
    TypeAdapter(kind).validate_python(value)


class TestConstruction:
    """What a family cannot do is refused when a cantrip is made."""

    @pytest.mark.parametrize(
        ("crystal", "tool", "message"),
        [
            ("anthropic:claude-x", file_search("a"), "anthropic:claude-x has no file_search; .* openai, xai, google"),
            ("openai:gpt-5", url_context(), "openai:gpt-5 has no url_context"),
            ("google:gemini-3-pro", SEARCH, "web_search: google:gemini-3-pro has no max_uses; leave it out"),
            ("google:gemini-2.5-pro", web_search(), "only without gates"),
            ("local:any", web_search(), "local:any has no web_search"),
            ("xai:grok-4", web_search(max_uses=1), "has no max_uses"),
            (local("http://localhost:1/v1", "any"), web_search(), "local:any has no web_search"),
            (openai("gpt-4o", chat=True, api_key="k"), web_search(), "openai-chat:gpt-4o has no web_search"),
            (limited(openai("gpt-5", api_key="k")), url_context(), "openai:gpt-5 has no url_context"),
            (
                fallback(anthropic("claude-x", api_key="k"), openai("gpt-5", api_key="k")),
                url_context(),
                "openai:gpt-5 has no url_context",
            ),
        ],
    )
    def test_a_server_tool_that_a_family_lacks_is_refused(self, crystal: Any, tool: Any, message: str) -> None:
        with pytest.raises(InvalidCantrip, match=message):
            Cantrip(crystal, Call(server_tools=[tool]), Circle(gates=["done"], wards=[max_turns(2)]))

    def test_the_crystals_of_children_are_checked(self) -> None:
        circle = Circle(gates=["done"], wards=[max_turns(2)])
        with pytest.raises(InvalidCantrip, match="local:small has no web_search"):
            Cantrip("anthropic:claude-x", Call(server_tools=[web_search()]), circle, child_crystal="local:small")

    def test_a_crystal_of_the_user_gets_server_tools_as_data(self) -> None:
        call = Call(server_tools=[SEARCH])
        Cantrip(scripted(["hello"]), call, Circle(gates=["done"], wards=[max_turns(2)]))
        told = {"type": "web_search", "max_uses": 3, "allowed_domains": ["example.org"]}
        assert call.sampling()["server_tools"] == [told]
        assert Call(server_tools=[told]) == call
        assert Call().as_json() == {}

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Call(server_tools="web_search"), "expected a list"),
            (lambda: Call(server_tools=["web_serch"]), "web_search"),
            (lambda: Call(server_tools=[{"type": "web_search", "uses": 3}]), "uses"),
            (lambda: Call(server_tools=[web_search(), web_search()]), "web_search is there twice"),
            (lambda: web_search(max_uses=0), "max_uses: expected a whole number >= 1"),
            (lambda: web_search(allowed_domains=["a"], blocked_domains=["b"]), "not both"),
            (lambda: mcp_connector("docs", "http://mcp.example"), "https"),
            (lambda: file_search([]), "at least one id"),
        ],
    )
    def test_mistakes_are_refused(self, make: Any, message: str) -> None:
        with pytest.raises(InvalidCantrip, match=message):
            make()

    async def test_a_token_that_is_not_set_is_an_error_before_anything_is_sent(self) -> None:
        docs = mcp_connector("docs", "https://mcp.example", token_variable="NO_SUCH_TOKEN")
        with pytest.raises(CrystalError, match="docs: no token: set NO_SUCH_TOKEN"):
            await openai("gpt-5", api_key="k").invoke(GO, options={"server_tools": [docs.as_json()]})


# ------------------------------------------------------------------------------------------------ answers with searches

FOUND = {"url": "https://example.org/a", "title": "A"}


def claude() -> list[dict[str, Any]]:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    hit = {"type": "web_search_result", **FOUND, "encrypted_content": "abc"}
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [hit]}
    cited = {"type": "web_search_result_location", **FOUND, "encrypted_index": "x", "cited_text": "A is new."}
    usage = {"output_tokens": 7, "server_tool_use": {"web_search_requests": 1}}
    part = {"type": "input_json_delta", "partial_json": '{"query": "news"}'}
    return [
        {"type": "message_start", "message": {"id": "m", "model": "claude-test", "usage": {"input_tokens": 10}}},
        {"type": "content_block_start", "index": 0, "content_block": use},
        {"type": "content_block_delta", "index": 0, "delta": part},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": result},
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "citations_delta", "citation": cited}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "A is new."}},
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]


def gpt() -> list[dict[str, Any]]:
    action = {"type": "search", "query": "news", "sources": [{"type": "url", "url": FOUND["url"]}]}
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
    note = {"type": "url_citation", **FOUND, "start_index": 0, "end_index": 9}
    content = [{"type": "output_text", "text": "A is new.", "annotations": [note]}]
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
    usage = {"input_tokens": 10, "output_tokens": 7}
    over = {"id": "r", "model": "gpt-5", "status": "completed", "output": [searched, said], "usage": usage}
    return [
        {"type": "response.created", "response": {"id": "r", "model": "gpt-5"}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {"type": "web_search_call", "id": "ws_1", "status": "in_progress"},
        },
        {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1"},
        {"type": "response.output_item.done", "output_index": 0, "item": searched},
        {"type": "response.output_item.done", "output_index": 1, "item": said},
        {"type": "response.completed", "response": over},
    ]


def gemini() -> list[dict[str, Any]]:
    grounding = {
        "webSearchQueries": ["news"],
        "groundingChunks": [{"web": {"uri": FOUND["url"], "title": "A"}}],
        "groundingSupports": [{"segment": {"text": "A is new."}, "groundingChunkIndices": [0]}],
    }
    called = {"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"query": "news"}}}
    answered = {"toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"results": [FOUND]}}}
    parts = [{**called, "thoughtSignature": "sig"}, answered, {"text": "A is new."}]
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 7}
    candidate = {"content": {"parts": parts}, "finishReason": "STOP", "groundingMetadata": grounding}
    return [{"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3-pro-preview"}]


def router() -> list[dict[str, Any]]:
    note = {"type": "url_citation", "url_citation": {**FOUND, "content": "A is new."}}
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "cost": 0.02,
        "server_tool_use": {"web_search_requests": 1},
    }
    return [
        {"choices": [{"index": 0, "delta": {"content": "A is new.", "annotations": [note]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage},
    ]


def priced(amount: float) -> Any:
    return pytest.approx(amount, abs=1e-9)


ANSWERS = {
    "anthropic": (lambda url: anthropic("claude-sonnet-4-5", base_url=url, api_key="k"), claude, 0.01 + 135e-6),
    "openai": (lambda url: openai("gpt-5", base_url=url, api_key="k"), gpt, 0.01 + 82.5e-6),
    "xai": (lambda url: xai("grok-any", base_url=url, api_key="k"), gpt, 0.005),
    "google": (lambda url: google("gemini-3-pro-preview", base_url=url, api_key="k"), gemini, 0.014 + 104e-6),
    "openrouter": (lambda url: openrouter("meta/llama", base_url=url, api_key="k"), router, 0.02),
}
"""By family: a crystal, an answer with one search, and what that costs."""


@gate
async def note(text: str) -> str:
    """Keep a text."""
    return f"kept {text}"


@pytest.mark.real_time
class TestAnswers:
    """What the provider did is in the turn, the stream and the bill, and goes back in the provider's own shape."""

    @pytest.mark.parametrize("family", ANSWERS)
    async def test_a_search_is_in_the_turn_and_is_not_a_gate_call(self, family: str) -> None:
        make, answer, cost = ANSWERS[family]
        seen: list[Any] = []
        async with FaultyServer([Reply(events(*answer(), done=family == "openrouter"))]) as server:
            call = Call(server_tools=[web_search()])
            circle = Circle(gates=["done", note], wards=[max_turns(3)])
            cantrip = Cantrip(make(server.url), call, circle, retry=Retry(max_retries=0))
            async with Runtime.open() as runtime:
                runtime.watch(seen.extend)
                episode = await runtime.cast(cantrip, "What is new?")
            (turn,) = episode.thread
        assert (episode.result, turn.gate_calls, turn.tool_calls) == ("A is new.", (), ())
        (search,) = turn.server_calls
        assert (search.tool, search.is_error) == ("web_search", False)
        assert FOUND["url"] in str(search.result)
        (cited,) = turn.citations
        assert (cited.url, cited.title, cited.text) == (FOUND["url"], "A", "A is new.")
        assert episode.usage.cost == priced(cost)
        finals = [event.final for event in seen if isinstance(event, ItemEndEvent)]
        called = [one for one in finals if isinstance(one, FinalFunctionCall)]
        outputs = [one for one in finals if isinstance(one, FinalFunctionCallOutput)]
        assert [one.name for one in called] == ["web_search"]
        assert [one.call_id for one in outputs] == [one.call_id for one in called]
        assert FOUND["url"] in outputs[0].output

    @pytest.mark.parametrize("family", ["anthropic", "openai", "xai", "google"])
    async def test_a_server_tool_call_goes_back_unchanged_in_the_next_query(self, family: str) -> None:
        make, answer, _ = ANSWERS[family]
        options = {"server_tools": [{"type": "web_search"}]}
        async with FaultyServer([Reply(events(*answer()))]) as server:
            crystal = make(server.url)
            response = await crystal.invoke(GO, options=options)
            said = Message("assistant", response.content, (), blocks=response.blocks)
            await crystal.invoke([*GO, said, Message("user", "And?")], options=options)
            again = orjson.dumps(server.requests[-1].json).decode()
        own = {
            "anthropic": ["srvtoolu_1", '"abc"'],
            "openai": ["ws_1"],
            "xai": ["ws_1"],
            "google": ["toolCall", '"sig"'],
        }
        assert all(one in again for one in own[family])

    async def test_a_turn_that_pauses_between_a_call_and_its_result_is_one_turn(self) -> None:
        first = [
            *claude()[:4],
            {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}},
            {"type": "message_stop"},
        ]
        second = [claude()[0], *claude()[4:]]
        async with FaultyServer([Reply(events(*first)), Reply(events(*second))]) as server:
            response = await ANSWERS["anthropic"][0](server.url).invoke(GO, options={"server_tools": ["web_search"]})
        (search,) = response.metadata["server_calls"]
        assert (search["args"], search["result"]) == ({"query": "news"}, [FOUND])

    async def test_a_token_of_an_mcp_server_is_in_no_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOCS_TOKEN", "a-secret-token")
        tool = mcp_connector("docs", "https://mcp.example", token_variable="DOCS_TOKEN")
        refused = Reply(b'{"error": {"message": "bad token a-secret-token"}}', 401, {}, "application/json")
        async with FaultyServer([refused]) as server:
            crystal = anthropic("claude-x", base_url=server.url, api_key="k", headers={"anthropic-beta": "one"})
            with pytest.raises(ProviderError) as wrong:
                await crystal.invoke(GO, options={"server_tools": [tool.as_json()]})
            assert server.requests[0].headers["anthropic-beta"] == "one,mcp-client-2025-11-20"
        assert "a-secret-token" not in str(wrong.value)
        assert "a-secret-token" not in str(Call(server_tools=[tool]).as_json())


def test_code_execution_and_errors_of_server_tools_are_in_the_turn() -> None:
    ran = [
        {"executableCode": {"code": "1/0", "language": "PYTHON"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "ZeroDivisionError"}},
        {"text": "It fails."},
    ]
    response = fed("google", {"candidates": [{"content": {"parts": ran}, "finishReason": "STOP"}]})
    (call,) = response.metadata["server_calls"]
    assert (call["tool"], call["args"]["code"], call["is_error"]) == ("code_execution", "1/0", True)
    error = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    block = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": error}
    told = claude()
    told[4] = {"type": "content_block_start", "index": 1, "content_block": block}
    (call,) = fed("anthropic", *told).metadata["server_calls"]
    assert (call["result"], call["is_error"]) == ("max_uses_exceeded", True)


def test_a_search_by_x_is_not_a_gate_call() -> None:
    from cantrip_actors.crystal.families.xai import XaiDecoder
    from cantrip_actors.crystal.sse import ServerSentEvent

    called = {
        "type": "custom_tool_call",
        "id": "ctc",
        "call_id": "xs_1",
        "name": "x_keyword_search",
        "input": '{"q": 1}',
    }
    output = [called, {"type": "message", "content": [{"type": "output_text", "text": "Found."}]}]
    decoder = XaiDecoder("grok", tools=["done"])
    decoder.feed(ServerSentEvent(orjson.dumps({"object": "response", "status": "completed", "output": output})))
    response = decoder.finish()
    assert response.tool_calls == ()
    assert response.metadata["server_calls"][0]["args"] == {"q": 1}


def test_a_recipe_offers_server_tools(tmp_path: Path) -> None:
    file = tmp_path / "news.yaml"
    file.write_text(
        "crystal: anthropic:claude-x\n"
        "call: {server_tools: [{type: web_search, max_uses: 3, allowed_domains: [example.org]}]}\n"
        "circle: {gates: [done], wards: [{max_turns: 2}]}\n"
    )
    assert load_recipe(file).call.server_tools == (SEARCH,)


@pytest.mark.rule("V-37")
@pytest.mark.parametrize("kind", ["x_search_call", "view_image_call", "custom_tool_call"])
def test_a_call_that_xai_has_run_itself_is_no_gate_call(kind):
    item = {"type": kind, "id": "i1", "call_id": "xs_1", "name": "x_keyword_search", "input": "{}"}
    message = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "found"}]}
    decoder = XaiDecoder("grok-4", tools=["done"])
    body = {"object": "response", "id": "r", "status": "completed", "output": [item, message]}
    decoder.feed(ServerSentEvent(orjson.dumps(body)))
    response = decoder.finish()
    assert (response.content, response.tool_calls) == ("found", ())
