"""Single faults of the decoders and the client, which recordings of other projects showed (R-12)."""

import pytest

from cantrip_actors.crystal.constructors import anthropic, google, openai
from cantrip_actors.crystal.testing import FaultyServer, Reply, events, failing
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.messages import Message
from tests.crystal.streams import Said, chat, fed, framed

pytestmark = pytest.mark.rule("R-12")

GO = [Message("user", "go")]


def chunk(*parts, finish=None, **usage):
    return {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": finish}],
        "usageMetadata": usage,
    }


def test_the_last_prompt_count_of_gemini_is_used() -> None:
    sent = [
        chunk({"text": "a"}, promptTokenCount=90),
        chunk(finish="STOP", promptTokenCount=12, candidatesTokenCount=1),
    ]
    assert fed("google", *sent).usage.prompt_tokens == 12


def test_moonshots_cached_tokens_are_counted() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, "cached_tokens": 80}
    whole = [*chat(Said("", "ok"))[:-1], {"choices": [], "usage": usage}]
    assert fed("openai-chat", *whole, done=True).usage.cached_tokens == 80


@pytest.mark.real_time
async def test_a_stream_that_ends_before_its_usage_has_an_estimate_and_says_so() -> None:
    async with FaultyServer([Reply(events(*chat(Said("", "an answer of some words"))[:-1]))]) as server:
        response = await openai("m", chat=True, base_url=server.url, api_key="k").invoke(GO)
        assert response.content == "an answer of some words"
        assert response.usage.estimated_tokens == response.usage.total_tokens > 0


def half_call(reason):
    begun = {"functionCall": {"name": "read", "willContinue": True}}
    piece = {"jsonPath": "$.path", "stringValue": "/", "willContinue": True}
    return [chunk(begun), chunk({"functionCall": {"partialArgs": [piece], "willContinue": True}}), chunk(finish=reason)]


def test_an_argument_of_gemini_that_never_ends_is_a_broken_stream() -> None:
    with pytest.raises(ProviderError, match=r"in the middle of its argument \$\.path"):
        fed("google", *half_call("STOP"))


def test_arguments_that_max_tokens_cut_off_are_refused_by_the_gate() -> None:
    (call,) = fed("google", *half_call("MAX_TOKENS")).tool_calls
    assert call.args is None


@pytest.mark.real_time
@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize(("make", "family"), [(anthropic, "anthropic"), (openai, "openai"), (google, "google")])
async def test_a_redirect_within_the_host_is_followed(make, family, status) -> None:
    moved = failing(status, {}, {"location": "/moved/here?x=1"})
    async with FaultyServer([moved, Reply(framed(family, Said("", "ok")))]) as server:
        response = await make("m", base_url=server.url, api_key="k-secret").invoke(GO)
        assert response.content == "ok"
        first, second = server.requests
        assert second.path == "/moved/here?x=1"
        assert second.body == first.body


@pytest.mark.real_time
@pytest.mark.parametrize("where", ["https://elsewhere.example/v1", "http://localhost:1/v1", "//elsewhere.example"])
async def test_a_redirect_to_another_host_is_not_followed(where) -> None:
    async with FaultyServer([failing(307, {}, {"location": where})]) as server:
        with pytest.raises(ProviderError, match="sends us to"):
            await openai("m", base_url=server.url, api_key="k").invoke(GO)
        assert len(server.requests) == 1


@pytest.mark.real_time
async def test_endless_redirects_are_an_error() -> None:
    async with FaultyServer(lambda asked: failing(308, {}, {"location": f"{asked.path}/on"})) as server:
        with pytest.raises(ProviderError, match="on and on"):
            await openai("m", base_url=server.url, api_key="k").invoke(GO)
        assert len(server.requests) == 4
