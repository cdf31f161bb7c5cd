"""The answers of one family's model are sent to every other family in the shape that its provider accepts."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cantrip_actors.crystal.clouds import azure, bedrock, vertex
from cantrip_actors.crystal.constructors import (
    anthropic,
    cohere,
    google,
    local,
    mistral,
    ollama,
    openai,
    openrouter,
    xai,
)
from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.crystal.testing import FaultyServer, Reply, failing
from cantrip_actors.terms.messages import Message
from tests.crystal.asking import TOOLS, result, said
from tests.crystal.streams import FAMILIES, Said, framed, make_answers, names
from tests.crystal.streams import decode as decoded
from tests.exhaustive import FULL
from tests.pictures import images
from tests.provider_rules import list_refusals
from tests.published import fault, versions

CRYSTALS = {
    "anthropic": anthropic("claude-sonnet-4-5", api_key="k"),
    "openai": openai("gpt-5", api_key="k"),
    "openai-chat": openai("gpt-5", chat=True, api_key="k"),
    "google": google("gemini-3-pro-preview", api_key="k"),
    "google, older": google("gemini-2.0-flash", api_key="k"),
    "openrouter": openrouter("anthropic/claude-sonnet-4.5", api_key="k"),
    "local": local("http://127.0.0.1:1/v1", "deepseek-v3.2"),
    "xai": xai("grok-4", api_key="k"),
    "mistral": mistral("mistral-large-latest", api_key="k"),
    "cohere": cohere("command-a-03-2025", api_key="k"),
    "ollama": ollama("qwen3", context_window=8192),
    "bedrock": bedrock("us.anthropic.claude-sonnet-4-5", region="us-east-1", api_key="k"),
    "vertex": vertex("claude-sonnet-4-5@20250929", project="p", api_key="k"),
    "azure": azure("my-gpt", endpoint="https://a.example", api_key="k"),
}
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "bedrock": "us.anthropic.claude-sonnet-4-5",
    "openai": "gpt-5",
    "openai-chat": "gpt-5",
    "google": "gemini-3-pro-preview",
    "mistral": "mistral-large-latest",
    "cohere": "command-a-03-2025",
    "ollama": "qwen3",
}


def turn_of(family: str, what: Said, shown) -> list[Message]:
    """An utterance as the decoder of a family makes it, and the results of its calls."""
    if family == "google":  # it sends calls without a name beside texts, which are ignored; alone, they are no answer
        what = what._replace(calls=tuple(call for call in what.calls if call[0]))
        what = what if what.text or what.calls else what._replace(text="yes")
    response, _ = decoded(family, [framed(family, what)], model=MODELS[family])
    utterance = Message(
        "assistant", response.content, response.tool_calls, thinking=response.thinking, blocks=response.blocks
    )
    results = [
        Message("tool", "found", (), call.id, call.gate, is_error=n % 2 == 1, images=tuple(shown[:1]))
        for n, call in enumerate(response.tool_calls)
    ]
    return [utterance, *results]


histories = st.lists(
    st.tuples(st.sampled_from(FAMILIES), make_answers(names), st.lists(images, max_size=1)), max_size=4
)


@pytest.mark.rule("R-08", "R-30", "V-01")
@pytest.mark.parametrize("reader", CRYSTALS)
@settings(max_examples=40 if FULL else 10)
@example(history=[(family, Said(calls=(("", {}),)), []) for family in FAMILIES], shown=[])
@given(history=histories, shown=st.lists(images, max_size=2))
def test_the_history_of_any_family_is_sent_to_another_in_its_published_shape(reader, history, shown) -> None:
    messages = [Message("system", "Be terse."), Message("user", "go", images=tuple(shown))]
    for family, what, pictures in history:
        messages += [*turn_of(family, what, pictures), Message("user", "and then?")]
    crystal = CRYSTALS[reader]
    asked = ProviderQuery(messages, TOOLS, None, SamplingSettings.of({"max_tokens": 100}))
    request = crystal.family.make_request(asked)
    assert fault(crystal.family.provider, request.path, request.body) is None
    assert list_refusals(crystal.family.provider, request.path, request.body) == []


@pytest.mark.rule("R-30")
def test_a_request_with_an_invalid_shape_is_found() -> None:
    asked = ProviderQuery([Message("user", "go")], (), None, SamplingSettings.of({"max_tokens": 100, "made_up": 1}))
    for reader, crystal in CRYSTALS.items():
        request = crystal.family.make_request(asked)
        assert "made_up" in str(fault(crystal.family.provider, request.path, request.body)), reader
    assert set(versions()) == {"openai", "anthropic", "google-genai", "botocore", "mistralai", "cohere", "ollama"}


@pytest.mark.rule("R-08", "R-12")
def test_models_that_need_their_reasoning_get_an_empty_one_for_answers_of_another_model() -> None:
    crystal = CRYSTALS["local"]
    field = {"provider": "local", "model": "deepseek-v3.2", "content": {"reasoning_content": ""}}
    messages = [
        Message("user", "go"),
        said("by another model", ("c1", "read", {"path": "a"})),
        result("c1", "A"),
        said("by itself", thinking="why not", blocks=[field]),
        Message("user", "more"),
    ]
    body = crystal.family.make_request(ProviderQuery(messages, TOOLS, None, SamplingSettings.of({}))).body.decode()
    assert '"reasoning_content":""' in body
    assert '"reasoning_content":"why not"' in body
    plain = (
        CRYSTALS["openai-chat"]
        .family.make_request(ProviderQuery(messages, TOOLS, None, SamplingSettings.of({})))
        .body.decode()
    )
    assert "reasoning_content" not in plain


@pytest.mark.real_time
@pytest.mark.rule("R-08")
async def test_a_server_that_asks_for_the_reasoning_gets_it_from_then_on() -> None:
    refusal = "Missing `reasoning_content` field in the assistant message at message index 1"
    replies = [failing(400, {"error": {"message": refusal}}), *[Reply(framed("openai-chat", Said("", "ok")))] * 2]
    messages = [Message("user", "go"), said("by another model"), Message("user", "more")]
    async with FaultyServer(replies) as server:
        crystal = openai("m", chat=True, base_url=server.url, api_key="k")
        assert (await crystal.invoke(messages)).content == "ok"
        await crystal.invoke(messages)
        sent = [request.json["messages"][1].get("reasoning_content") for request in server.requests]
        assert sent == [None, "", ""]
