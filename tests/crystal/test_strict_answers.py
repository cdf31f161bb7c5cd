"""Providers that can hold a model to the schema of a tool are made to, for the `done` of a typed answer."""

from typing import Any

import pytest
from pydantic import BaseModel

from cantrip_actors import Cantrip, Runtime
from cantrip_actors.crystal.testing import FaultyServer, Reply, failing
from cantrip_actors.crystals import anthropic, cohere, google, local, mistral, ollama, openai, openrouter, xai
from tests.crystal.streams import Said, framed

pytestmark = [pytest.mark.rule("Y-11"), pytest.mark.real_time]


class Bill(BaseModel):
    total: int
    items: list[str] = []


MAKERS: dict[str, tuple[Any, str]] = {
    "anthropic": (lambda url: anthropic("claude-sonnet-4-5", base_url=url, api_key="k"), "anthropic"),
    "openai": (lambda url: openai("gpt-5", base_url=url, api_key="k"), "openai"),
    "openai-chat": (lambda url: openai("gpt-5", chat=True, base_url=url, api_key="k"), "openai-chat"),
    "mistral": (lambda url: mistral("mistral-large-latest", base_url=url, api_key="k"), "mistral"),
    "xai": (lambda url: xai("grok-4", base_url=url, api_key="k"), "openai"),
    "openrouter": (lambda url: openrouter("openai/gpt-5", base_url=url, api_key="k"), "openai-chat"),
    "local": (lambda url: local(url, "m"), "openai-chat"),
    "google": (lambda url: google("gemini-2.5-pro", base_url=url, api_key="k"), "google"),
    "cohere": (lambda url: cohere("command-a-03-2025", base_url=url, api_key="k"), "cohere"),
    "ollama": (lambda url: ollama("m", base_url=url), "ollama"),
}
STRICT = ("anthropic", "openai", "openai-chat", "mistral")
CALL = Said(calls=(("done", {"answer": {"total": 3, "items": None}}),))
"""Strict modes require all members: a null stands for one that is left out."""


def find_done(body: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of `done` in a request to a family with functions."""
    definitions = [tool.get("function", tool) for tool in body["tools"]]
    return next(definition for definition in definitions if definition.get("name") == "done")


@pytest.mark.parametrize("family", MAKERS)
async def test_a_typed_done_is_strict_where_the_provider_can_be_and_answers_are_typed(family: str) -> None:
    make, stream = MAKERS[family]
    said = CALL if family in STRICT else Said(calls=(("done", {"answer": {"total": 3}}),))
    async with FaultyServer(lambda _: Reply(framed(stream, said))) as server, Runtime.open() as runtime:
        cantrip = Cantrip(make(server.url), gates=["echo"], answer=Bill, max_turns=1)
        assert (await runtime.cast(cantrip, "go")).result == Bill(total=3)
        body = server.requests[0].json
    if family in STRICT:
        done = find_done(body)
        assert done["strict"] is True
        schema = done.get("input_schema") or done["parameters"]
        assert schema["additionalProperties"] is False
        assert [tool.get("function", tool).get("strict", False) for tool in body["tools"]].count(True) == 1
    else:
        assert '"strict": true' not in str(body).replace("'", '"').replace("True", "true")


@pytest.mark.parametrize("family", STRICT)
async def test_a_model_that_cannot_be_held_to_a_schema_is_asked_without_it(family: str) -> None:
    make, stream = MAKERS[family]

    def reply(request: Any) -> Reply:
        if find_done(request.json).get("strict"):
            return failing(400, {"error": {"message": "tools.0.strict: not supported by this model"}})
        return Reply(framed(stream, Said(calls=(("done", {"answer": {"total": 3}}),))))

    async with FaultyServer(reply) as server, Runtime.open() as runtime:
        cantrip = Cantrip(make(server.url), answer=Bill, max_turns=1)
        for _ in range(2):
            episode = await runtime.cast(cantrip, "go")
            assert episode.result == Bill(total=3)
            assert "strict" in episode.thread[0].left_out
        assert len(server.requests) == 3


async def test_a_type_that_a_strict_mode_cannot_express_is_sent_as_it_is() -> None:
    reply = Reply(framed("openai", Said(calls=(("done", {"answer": {"a": 1}}),))))
    async with FaultyServer(lambda _: reply) as server, Runtime.open() as runtime:
        cantrip = Cantrip(openai("gpt-5", base_url=server.url, api_key="k"), answer=dict[str, int], max_turns=1)
        assert (await runtime.cast(cantrip, "go")).result == {"a": 1}
        done = find_done(server.requests[0].json)
        assert (done["strict"], done["parameters"]) == (False, cantrip.circle.definitions[0].parameters)
