"""The tokens of a context, counted by its provider without a query."""

import pytest

from cantrip_actors.crystal.clouds import bedrock, vertex
from cantrip_actors.crystal.constructors import anthropic, google, openai, xai
from cantrip_actors.crystal.policy.estimate import find_estimator
from cantrip_actors.crystal.testing import FaultyServer, Reply, failing
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import Invocation, Message
from tests.crystal.asking import CONTEXT, TOOLS
from tests.published import fault

pytestmark = [pytest.mark.rule("R-30"), pytest.mark.real_time]

CRYSTALS = {
    "anthropic": (lambda url: anthropic("claude-opus-4-6", base_url=url, api_key="k"), b'{"input_tokens": 321}'),
    "openai": (lambda url: openai("gpt-5", base_url=url, api_key="k"), b'{"input_tokens": 321}'),
    "google": (lambda url: google("gemini-3-pro-preview", base_url=url, api_key="k"), b'{"totalTokens": 321}'),
    "bedrock": (
        lambda url: bedrock("claude", region="us-east-1", base_url=url, api_key="k"),
        b'{"inputTokens": 321}',
    ),
    "vertex, Gemini": (
        lambda url: vertex("gemini-3-pro-preview", project="p", base_url=url, api_key="k"),
        b'{"totalTokens": 321}',
    ),
    "vertex, Claude": (
        lambda url: vertex("claude-sonnet-4-5@20250929", project="p", base_url=url, api_key="k"),
        b'{"input_tokens": 321}',
    ),
}


@pytest.mark.parametrize("family", CRYSTALS)
async def test_the_provider_counts_a_context_with_its_tools(family) -> None:
    make, answer = CRYSTALS[family]
    async with FaultyServer([Reply(answer)]) as server:
        crystal = make(server.url)
        counted = await crystal.count(CONTEXT, TOOLS, {"effort": "high", "max_tokens": 4000})
        (sent,) = server.requests
    assert counted == 321
    assert fault(crystal.family.provider, sent.path.partition("?")[0], sent.body) is None
    assert b"Be terse." in sent.body
    assert b'"read"' in sent.body
    assert b"4000" not in sent.body or family.startswith(("google", "vertex, Gemini"))


async def test_estimates_learn_from_a_count() -> None:
    async with FaultyServer([Reply(b'{"input_tokens": 5000}')]) as server:
        crystal = anthropic("claude-opus-4-6", base_url=server.url, api_key="k")
        invocation = Invocation(CONTEXT, TOOLS)
        before = find_estimator(crystal).estimate_usage(invocation).prompt_tokens
        await crystal.count(CONTEXT, TOOLS)
        assert before < find_estimator(crystal).estimate_usage(invocation).prompt_tokens < 5000


async def test_a_provider_that_does_not_count_says_so() -> None:
    with pytest.raises(CrystalError, match="xai:grok-4: its provider counts tokens only with an answer"):
        await xai("grok-4", api_key="k").count([Message("user", "go")])


@pytest.mark.parametrize("reply", [failing(404, {"error": {"message": "no such model"}}), Reply(b'{"input": 1}')])
async def test_a_count_that_fails_is_a_providers_error(reply) -> None:
    async with FaultyServer([reply]) as server:
        with pytest.raises(ProviderError, match=r"no such model|expected a count of tokens in input_tokens"):
            await anthropic("claude-opus-4-6", base_url=server.url, api_key="k").count([Message("user", "go")])
