"""Mistral's own interface: short ids of calls, thoughts that go back, documents, and where a user may speak."""

import pytest

from cantrip_actors import File
from cantrip_actors.crystal.constructors import mistral
from cantrip_actors.crystal.testing import FaultyServer, Reply, events
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.messages import Message
from tests.crystal.asking import TOOLS, request, result, said
from tests.crystal.streams import Said, decode, framed
from tests.crystal.streams import mistral as stream

CRYSTAL = mistral("mistral-medium-latest", api_key="k")
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "why not"}]}
pytestmark = pytest.mark.rule("CRYSTAL-6")


def sent(*messages: Message, crystal=CRYSTAL, **options):
    return request(crystal, [Message("user", "go"), *messages], **options)


def test_ids_of_calls_have_nine_letters_and_digits() -> None:
    call, answer = sent(said(None, ("call_1_1", "read", {"path": "a"})), result("call_1_1", "A"))["messages"][1:3]
    (given,) = [one["id"] for one in call["tool_calls"]]
    assert len(given) == 9
    assert given.isalnum()
    assert answer["tool_call_id"] == given


def test_an_id_that_mistral_made_goes_back_unchanged() -> None:
    call = sent(said(None, ("gSIMJiOkT", "read", {"path": "a"})), result("gSIMJiOkT", "A"))["messages"][1]
    assert call["tool_calls"][0]["id"] == "gSIMJiOkT"


def test_a_users_message_after_a_result_follows_an_utterance() -> None:
    messages = sent(said(None, ("c1", "read", {"path": "a"})), result("c1", "A"), Message("user", "more"))["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant", "user"]


def test_thoughts_go_back_to_their_model() -> None:
    block = {"provider": "mistral", "model": "mistral-medium-latest", "content": {"content": [THOUGHT]}}
    utterance = sent(said("four", blocks=[block]), Message("user", "more"))["messages"][1]
    assert utterance["content"] == [THOUGHT, {"type": "text", "text": "four"}]


def test_a_result_has_its_document_with_it() -> None:
    file = File(b"%PDF-1.4 x", media_type="application/pdf", filename="a.pdf")
    answer = Message("tool", "see", (), "c1", "read", images=(file,))
    told = sent(said(None, ("c1", "read", {"path": "a"})), answer)["messages"][2]["content"]
    assert [part["type"] for part in told] == ["text", "document_url"]
    assert told[1]["document_name"] == "a.pdf"


@pytest.mark.parametrize(
    ("model", "effort", "fields"),
    [
        ("mistral-medium-latest", "high", {"reasoning_effort": "high"}),
        ("magistral-medium-latest", "high", {"prompt_mode": "reasoning"}),
    ],
)
def test_thinking_has_the_word_of_the_model(model, effort, fields) -> None:
    body = sent(crystal=mistral(model, api_key="k"), effort=effort)
    assert {name: body.get(name) for name in fields} == fields


@pytest.mark.real_time
async def test_a_query_is_answered_over_http() -> None:
    async with FaultyServer([Reply(framed("mistral", Said("two and two", "", (("read", {"path": "a"}),))))]) as server:
        crystal = mistral("mistral-medium-latest", base_url=server.url, api_key="k")
        response = await crystal.invoke([Message("user", "go")], TOOLS, "required", {"max_tokens": 9, "seed": 3})
        body = server.requests[0].json
    assert response.thinking == "two and two"
    assert [call.args for call in response.tool_calls] == [{"path": "a"}]
    assert "left_out" not in response.metadata
    assert "stream_options" not in body
    assert (body["max_tokens"], body["random_seed"], body["tool_choice"]) == (9, 3, "required")
    assert server.requests[0].headers["authorization"] == "Bearer k"


def test_half_of_a_stream_is_no_answer() -> None:
    with pytest.raises(ProviderError, match="ended before"):
        decode("mistral", [events(*stream(Said("", "four"))[:2])])
