"""An empty answer is asked again, in all families alike, and the tokens of every failed answer are booked."""

import pytest

from cantrip_actors import Cantrip, Circle, Retry, Runtime
from cantrip_actors.crystal.clouds import bedrock
from cantrip_actors.crystal.constructors import anthropic, cohere, google, local, mistral, ollama, openai
from cantrip_actors.crystal.testing import events
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.wards import max_turns
from tests.crystal.streams import STREAMS, Said, framed
from tests.provider_rules import StrictProvider

MAKERS = {
    "anthropic": lambda client: anthropic("claude-sonnet-4-5", client=client, api_key="k"),
    "openai": lambda client: openai("gpt-5", client=client, api_key="k"),
    "openai-chat": lambda client: local("http://127.0.0.1:9/v1", "m", client=client),
    "google": lambda client: google("gemini-2.5-pro", client=client, api_key="k"),
    "mistral": lambda client: mistral("mistral-large-latest", client=client, api_key="k"),
    "cohere": lambda client: cohere("command-a-03-2025", client=client, api_key="k"),
    "ollama": lambda client: ollama("qwen3", client=client),
    "bedrock": lambda client: bedrock("us.anthropic.claude-sonnet-4-5", region="us-east-1", client=client, api_key="k"),
}
EMPTY = [Said(), Said("Let me think.")]


def cantrip(crystal, retries):
    return Cantrip(crystal, circle=Circle(["done"], [max_turns(3)]), retry=Retry(max_retries=retries))


@pytest.mark.rule("V-06", "V-33")
@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("empty", EMPTY, ids=["nothing", "only thinking"])
async def test_an_answer_with_nothing_in_it_is_asked_again_and_paid_for(family, empty) -> None:
    provider = StrictProvider(family, framed(family, empty), framed(family, empty), framed(family, Said("", "fine")))
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip(MAKERS[family](provider.client), 2), "go")
    assert (episode.result, len(provider.requests)) == ("fine", 3)
    assert (episode.usage.prompt_tokens, episode.usage.completion_tokens) == (30, 21)


@pytest.mark.rule("V-06", "V-33")
@pytest.mark.parametrize("family", MAKERS)
async def test_an_entity_gives_up_after_its_retries_and_its_error_has_the_tokens(family) -> None:
    provider = StrictProvider(family, framed(family, Said()))
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(CrystalError, match="neither content nor tool_calls") as caught:
            await runtime.cast(cantrip(MAKERS[family](provider.client), 1), "go")
    assert len(provider.requests) == 2
    assert (caught.value.usage.prompt_tokens, caught.value.usage.completion_tokens) == (20, 14)


def fail(family):
    """A stream that names its tokens and then fails."""
    said = STREAMS[family](Said("", "par"))
    usage = {"input_tokens": 10, "output_tokens": 7}
    error = {"code": "server_error", "message": "sorry"}
    if family == "openai":
        return events(said[0], {"type": "response.failed", "response": {"error": error, "usage": usage}})
    if family == "openai-chat":
        usage = {"prompt_tokens": 10, "completion_tokens": 7}
        return events(said[0], {"error": error, "usage": usage})
    if family == "google":
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 7}
        return events({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": usage})
    return events(*[event for event in said if event["type"] != "message_stop"])


@pytest.mark.rule("V-33")
@pytest.mark.parametrize("family", ["anthropic", "openai", "openai-chat", "google"])
async def test_the_tokens_of_an_answer_that_fails_after_it_named_them_are_booked(family) -> None:
    provider = StrictProvider(family, fail(family))
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(CrystalError) as caught:
            await runtime.cast(cantrip(MAKERS[family](provider.client), 0), "go")
        (root,) = runtime.loom.entities()
        assert runtime.loom.usage(root).total_tokens == 17
    assert (caught.value.usage.prompt_tokens, caught.value.usage.completion_tokens) == (10, 7)
