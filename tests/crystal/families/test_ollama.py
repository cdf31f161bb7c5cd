"""Ollama's own interface: the context's length, thinking, images, and calls that cannot be forced."""

import base64
import json

import pytest

from cantrip_actors import Image
from cantrip_actors.crystal.constructors import ollama
from cantrip_actors.crystal.resolve import resolve
from cantrip_actors.crystal.testing import FaultyServer, Reply, failing
from cantrip_actors.terms.messages import Message
from tests.crystal.asking import TOOLS, request, result, said
from tests.crystal.streams import Said, framed
from tests.pictures import png

GO = [Message("user", "go")]
pytestmark = pytest.mark.rule("CRYSTAL-6")


def test_the_length_of_the_context_is_asked_for() -> None:
    assert request(ollama("qwen3", context_window=32_768), GO)["options"] == {"num_ctx": 32_768}
    assert "options" not in request(ollama("qwen3"), GO)


def test_options_of_the_users_own_join_ours() -> None:
    body = request(ollama("qwen3", context_window=8192), GO, temperature=0.5, options={"num_gpu": 1}, keep_alive="1h")
    assert body["options"] == {"num_ctx": 8192, "temperature": 0.5, "num_gpu": 1}
    assert body["keep_alive"] == "1h"


def test_arguments_of_calls_are_objects_and_results_name_their_gate() -> None:
    messages = [*GO, said(None, ("c1", "read", {"path": "a"})), result("c1", "A")]
    _, utterance, answer = request(ollama("qwen3"), messages)["messages"]
    assert utterance["tool_calls"] == [{"function": {"name": "read", "arguments": {"path": "a"}}}]
    assert answer == {"role": "tool", "tool_name": "read", "content": "A"}


def test_images_stand_beside_the_text() -> None:
    (message,) = request(ollama("llava"), [Message("user", "what is it?", images=(Image(png()),))])["messages"]
    assert message == {"role": "user", "content": "what is it?", "images": [base64.b64encode(png()).decode()]}


@pytest.mark.parametrize(
    ("model", "effort", "think"),
    [("qwen3", "high", True), ("qwen3", "none", False), ("gpt-oss:20b", "max", "high"), ("gpt-oss:20b", "none", False)],
)
def test_models_with_levels_get_a_level(model, effort, think) -> None:
    assert request(ollama(model), GO, effort=effort)["think"] == think


@pytest.mark.real_time
@pytest.mark.rule("R-01")
async def test_a_model_that_cannot_think_is_asked_again_without() -> None:
    refusal = failing(400, {"error": '"llama3.2" does not support thinking'})
    async with FaultyServer([refusal, Reply(framed("ollama", Said("", "four")))]) as server:
        response = await ollama("llama3.2", base_url=server.url).invoke(GO, options={"effort": "medium"})
        assert [one.json.get("think") for one in server.requests] == [True, None]
    assert response.metadata["left_out"] == ("effort",)


@pytest.mark.real_time
@pytest.mark.rule("CRYSTAL-5")
async def test_a_call_that_has_to_come_is_asked_for_by_schema() -> None:
    answer = {"tool": "read", "arguments": {"path": "a"}}
    async with FaultyServer([Reply(framed("ollama", Said("", json.dumps(answer))))]) as server:
        response = await ollama("qwen3", base_url=server.url).invoke(GO, TOOLS, "required")
        (body,) = [one.json for one in server.requests]
    assert [(call.gate, call.args) for call in response.tool_calls] == [("read", {"path": "a"})]
    assert len(body["format"]["anyOf"]) == len(TOOLS)


def test_its_name_has_an_address() -> None:
    crystal = resolve("ollama:qwen3@http://10.0.0.7:11434")
    assert (crystal.name, crystal.address) == ("ollama:qwen3", "http://10.0.0.7:11434")
    assert resolve("ollama:qwen3").address == "http://localhost:11434"
