"""What goes back to a provider is what it accepts: names, ids, arguments, blocks. The loom keeps the original."""

import json

import pytest
from hypothesis import given

from cantrip_actors import Cantrip, Circle, Runtime, gate
from cantrip_actors.crystal.constructors import anthropic, google, local, openai
from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.history import HISTORIES, fit_call, fit_name
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.crystal.sse import ServerSentEvent
from cantrip_actors.crystals import Recording, faults
from cantrip_actors.stream.wire import ItemStart
from cantrip_actors.terms.messages import Message, ToolCall, ToolDefinition
from cantrip_actors.wards import max_turns
from tests.crystal.asking import request as make_request
from tests.crystal.asking import result, said
from tests.crystal.streams import STREAMS, Said, fed, framed, names
from tests.crystal.test_histories import CRYSTALS
from tests.provider_rules import PATTERNS, StrictProvider, list_refusals

pytestmark = pytest.mark.rule("V-01")

ODD = ["browser.tabs.open", "$lookup", "", "naïve tool", "x" * 200, "brain</arg_value>"]
MAKERS = {
    "anthropic": lambda client: anthropic("claude-sonnet-4-5", client=client, api_key="k"),
    "openai": lambda client: openai("gpt-5", client=client, api_key="k"),
    "openai-chat": lambda client: local("http://127.0.0.1:9/v1", "m", client=client),
    "google": lambda client: google("gemini-2.5-pro", client=client, api_key="k"),
}
SCHEMA = {"type": "object", "properties": {}}


@given(first=names, second=names)
def test_no_two_names_are_sent_as_one(first, second) -> None:
    for provider, rules in HISTORIES.items():
        sent = [fit_name(name, rules) for name in (first, second)]
        assert all(rules.names.fullmatch(name) for name in sent), provider
        assert (sent[0] == sent[1]) == (first == second), provider


def test_a_name_that_looks_like_a_replacement_is_replaced_itself() -> None:
    rules = HISTORIES["anthropic"]
    replacement = fit_name("browser.tabs.open", rules)
    assert fit_name(replacement, rules) not in (replacement, fit_name(fit_name(replacement, rules), rules))


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("name", ODD)
async def test_a_conversation_continues_after_a_call_with_any_name(family, name) -> None:
    answers = [framed(family, Said("", "", ((name, {}),))), framed(family, Said("", "fine"))]
    provider = StrictProvider(family, *answers)
    async with Runtime.open("memory:") as runtime:
        circle = Circle(["done", "echo"], [max_turns(4)])
        entity = await runtime.invoke(Cantrip(MAKERS[family](provider.client), circle=circle), "go", name="n")
        episode = await entity.episode()
        assert (episode.result, (await entity.send("and now?")).result) == ("fine", "fine")
    assert provider.refused == []
    if family == "google" and not name:
        return  # Gemini writes calls without a name that mean nothing: such an answer is asked for again
    (call,) = episode.thread[0].gate_calls
    assert (call.gate, call.is_error) == (name, True)  # the loom has the name that the model wrote


@pytest.mark.parametrize("family", MAKERS)
async def test_a_gate_with_a_name_that_the_provider_refuses_is_called_under_another(family) -> None:
    seen = []

    def call_the_offered(body):
        offered = next(name for name in _list_names(family, body) if name != "done")
        return framed(family, Said("", "", ((offered, {"zahl": 7}),)))

    @gate
    async def größe(zahl: int) -> int:  # noqa: PLC2401  # users write gates in their own language
        """Measure."""
        seen.append(zahl)
        return zahl

    provider = StrictProvider(family, call_the_offered, framed(family, Said("", "fine")))
    async with Runtime.open("memory:") as runtime:
        circle = Circle(["done", größe], [max_turns(4)])
        episode = await runtime.cast(Cantrip(MAKERS[family](provider.client), circle=circle), "go")
    assert (episode.result, seen, provider.refused) == ("fine", [7], [])
    assert [call.gate for call in episode.thread[0].gate_calls] == ["größe"]


def _list_names(family, body):
    if family == "google":
        return [declared["name"] for tool in body["tools"] for declared in tool["functionDeclarations"]]
    return [tool["function"]["name"] if "function" in tool else tool["name"] for tool in body["tools"]]


@pytest.mark.parametrize("reader", CRYSTALS)
def test_every_family_calls_a_gate_by_the_name_that_it_was_offered(reader) -> None:
    family = CRYSTALS[reader].family
    tools = [ToolDefinition(name, "", SCHEMA) for name in ("größe", "read-file", "read_file", "done")]
    request = family.make_request(ProviderQuery([Message("user", "go")], tools, "gate:größe", SamplingSettings.of({})))
    assert list_refusals(family.provider, request.path, request.body) == []
    if "tool_choice" in request.sent:
        assert fit_name("größe", family.rules) in json.dumps(json.loads(request.body))
    decoder = family.make_decoder(request)
    interface = next(name for name in STREAMS if isinstance(decoder, type(_decoder(name))))
    calls = tuple((fit_name(tool.name, family.rules), {}) for tool in tools)
    for event in STREAMS[interface](Said("", "", calls)):
        decoder.feed(ServerSentEvent(json.dumps(event).encode()))
    assert [call.gate for call in decoder.finish().tool_calls] == [tool.name for tool in tools]


def _decoder(interface):
    from tests.crystal.streams import DECODERS

    return DECODERS[interface]()


@pytest.mark.parametrize("family", PATTERNS)
def test_arguments_that_nest_deeper_than_a_provider_reads_are_sent_as_text(family) -> None:
    deep: object = "bottom"
    for _ in range(180):
        deep = {"in": deep}
    rules = HISTORIES[family]
    args = fit_call(ToolCall("c", "read", {"path": deep, "at": [1]}), rules).args
    depth, value = 0, args
    while isinstance(value, dict):
        depth, value = depth + 1, value.get("path", value.get("in"))
    assert depth == rules.depth + 1 or depth == rules.depth
    assert isinstance(value, str)
    assert args["at"] == [1]


def test_a_server_call_that_was_cut_off_before_its_result_does_not_go_back() -> None:
    events = [
        {"type": "message_start", "message": {"id": "m", "model": "claude-sonnet-4-5", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "I search."}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        },
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]
    response = fed("anthropic", *events, model="claude-sonnet-4-5")
    history = [Message("user", "go"), Message("assistant", response.content, blocks=response.blocks)]
    request = CRYSTALS["anthropic"].family.make_request(
        ProviderQuery([*history, Message("user", "more")], (), None, SamplingSettings.of({}))
    )
    assert list_refusals("anthropic", request.path, request.body) == []


def test_citations_go_back_without_the_fields_that_a_request_may_not_have() -> None:
    cited = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": "d", "file_id": None}
    cited |= {"start_char_index": 0, "end_char_index": 1}
    text = {"type": "text", "text": "so", "citations": [cited]}
    block = {"provider": "anthropic", "model": "claude-sonnet-4-5", "content": [text]}
    context = [Message("user", "go"), said("so", blocks=[block]), Message("user", "more")]
    body = make_request(CRYSTALS["anthropic"], context)
    assert "file_id" not in body["messages"][1]["content"][0]["citations"][0]
    assert "start_char_index" in body["messages"][1]["content"][0]["citations"][0]


def test_a_call_and_its_result_have_the_same_id_and_name() -> None:
    context = [Message("user", "go"), said(None, ("a b", "x.y", {})), result("a b", "no", gate="x.y", is_error=True)]
    for reader, crystal in CRYSTALS.items():
        request = crystal.family.make_request(ProviderQuery(context, (), None, SamplingSettings.of({})))
        assert list_refusals(crystal.family.provider, request.path, request.body) == [], reader


@pytest.mark.rule("V-01")
def test_a_stream_shows_a_call_without_a_name_as_unnamed() -> None:
    """The item of a call needs a name, and the loom keeps what the model has answered."""
    pieces = ({"index": 0, "function": {"name": "", "arguments": "{}"}},)
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    data = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    outcome = Recording("openai-chat", (b"{}",)).play([data])
    assert faults(outcome.payloads) == []
    assert [payload.name for payload in outcome.payloads if isinstance(payload, ItemStart)] == ["(unnamed)"]
    assert outcome.response is not None
    assert [call.gate for call in outcome.response.tool_calls] == [""]
