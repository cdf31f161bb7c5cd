"""Cohere's own interface: a plan before calls, one gate forced, a budget for thinking, citations."""

import json

import pytest

from cantrip_actors.crystal.constructors import cohere
from cantrip_actors.crystal.query import Invocation, Query, ask
from cantrip_actors.crystal.testing import FaultyServer, Reply, events
from cantrip_actors.terms.messages import Message
from cantrip_actors.terms.retry import Retry
from tests.crystal.asking import TOOLS, request, result, said
from tests.crystal.streams import Said, fed, framed
from tests.crystal.streams import cohere as stream

CRYSTAL = cohere("command-a-03-2025", api_key="k")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
GO = [Message("user", "go")]
pytestmark = pytest.mark.rule("CRYSTAL-6")


def test_a_text_beside_calls_goes_back_as_their_plan() -> None:
    messages = [*GO, said("I read it.", ("c1", "read", {"path": "a"})), result("c1", "A")]
    utterance = request(CRYSTAL, messages)["messages"][1]
    assert utterance["tool_plan"] == "I read it."
    assert "content" not in utterance
    assert request(CRYSTAL, [*GO, said("four"), Message("user", "more")])["messages"][1]["content"] == "four"


def test_thoughts_go_back_with_their_calls() -> None:
    block = {"provider": "cohere", "model": "command-a-03-2025", "content": {"thinking": "why not"}}
    messages = [*GO, said(None, ("c1", "read", {"path": "a"}), blocks=[block]), result("c1", "A")]
    assert request(CRYSTAL, messages)["messages"][1]["content"] == [{"type": "thinking", "thinking": "why not"}]


def test_one_gate_is_forced_by_offering_no_other() -> None:
    body = request(CRYSTAL, GO, TOOLS, "gate:read")
    assert [tool["function"]["name"] for tool in body["tools"]] == ["read"]
    assert body["tool_choice"] == "REQUIRED"
    assert len(request(CRYSTAL, GO, TOOLS)["tools"]) == len(TOOLS)


@pytest.mark.rule("R-03")
def test_the_thinking_budget_comes_on_top_of_max_tokens() -> None:
    body = request(CRYSTAL, GO, max_tokens=500, effort="low")
    assert body["thinking"] == {"type": "enabled", "token_budget": 1024}
    assert body["max_tokens"] == 1524
    assert request(CRYSTAL, GO, max_tokens=500, effort="none")["thinking"] == {"type": "disabled"}


@pytest.mark.real_time
@pytest.mark.rule("R-02")
async def test_a_schema_is_sent_without_gates_and_told_in_words_beside_them() -> None:
    answer = Reply(framed("cohere", Said("", json.dumps({"n": 4}))))
    async with FaultyServer([answer, answer]) as server:
        crystal = cohere("command-a-03-2025", base_url=server.url, api_key="k")
        alone = await crystal.invoke(GO, options={"output_schema": SCHEMA})
        beside = await crystal.invoke(GO, TOOLS, options={"output_schema": SCHEMA})
        first, second = [one.json for one in server.requests]
    assert first["response_format"] == {"type": "json_object", "json_schema": SCHEMA}
    assert "left_out" not in alone.metadata
    assert "response_format" not in second
    assert "JSON Schema" in second["messages"][-1]["content"]
    assert beside.metadata["left_out"] == ("schema",)


def test_citations_name_their_source() -> None:
    document = {"title": "France", "url": "https://example.org/france"}
    cited = {"text": "Paris", "sources": [{"type": "document", "id": "doc:0", "document": document}]}
    begin, *rest = stream(Said("", "Paris."))
    response = fed("cohere", begin, {"type": "citation-start", "delta": {"message": {"citations": cited}}}, *rest)
    assert response.metadata["citations"] == [{"text": "Paris", **document}]


@pytest.mark.real_time
async def test_a_failure_at_the_end_of_a_stream_is_tried_again() -> None:
    failed = [*stream(Said("", "It"))[:-1], {"type": "message-end", "delta": {"finish_reason": "ERROR"}}]
    async with FaultyServer([Reply(events(*failed)), Reply(framed("cohere", Said("", "four")))]) as server:
        crystal = cohere("command-a-03-2025", base_url=server.url, api_key="k")
        response = await ask(crystal, Query(Invocation(GO)), retry=Retry(base_delay=0.0))
    assert response.content == "four"
