"""An answer that the provider interrupts is one answer: its parts are joined, and all of it goes back."""

import pytest

from cantrip_actors.crystal.constructors import anthropic, google
from cantrip_actors.crystal.provider import PAUSES
from cantrip_actors.crystal.replay import recordings, replay
from cantrip_actors.crystal.testing import FaultyServer, Reply, events
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.messages import Message
from tests.crystal.asking import TOOLS, request
from tests.crystal.streams import Said, fed, framed

pytestmark = pytest.mark.real_time
GO = [Message("user", "go")]


def hop(*parts, reason="CONTINUATION", token="dG9rZW4x", **more):
    """One of Gemini's chunks, with the reason that ends it."""
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": reason}
    if token is not None:
        candidate["continuationToken"] = token
    return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 4}, **more}


THOUGHT = {"text": "First th", "thought": True}
REST = [{"text": "is.", "thought": True}, {"text": "One, tw"}]
LAST = [{"text": "o, three."}, {"functionCall": {"name": "read", "args": {"path": "a"}}, "thoughtSignature": "c2ln"}]
SCRIPT = [
    Reply(events(hop(THOUGHT))),
    Reply(events(hop(*REST, token="dG9rZW4y"))),
    Reply(events(hop(*LAST, reason="STOP", token=None))),
]


class TestGemini:
    """`CONTINUATION`: the same is asked again, with the token that came."""

    @pytest.mark.rule("CRYSTAL-1", "CRYSTAL-6")
    async def test_continuation_repeats_the_query_with_the_token(self):
        seen = []
        async with FaultyServer(SCRIPT) as server:
            crystal = google("gemini-3-pro-preview", base_url=server.url, api_key="k")
            response = await crystal.invoke(GO, TOOLS, "auto", {"generationConfig": {"seed": 1}}, seen.append)
            first, *others = [asked.json for asked in server.requests]
        assert [other.pop("continuationToken") for other in others] == ["dG9rZW4x", "dG9rZW4y"]
        assert others == [first, first]
        assert (response.content, response.thinking) == ("One, two, three.", "First this.")
        assert [call.gate for call in response.tool_calls] == ["read"]
        assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (30, 12)
        assert (response.metadata["stop_reason"], response.metadata.get("continuation")) == ("STOP", None)
        begun = [payload.item_id for payload in seen if payload.type == "item_start"]
        assert begun == ["0", "1", "2", "3", "4"]

    async def test_all_parts_of_an_interrupted_answer_go_back_in_the_next_turn(self):
        async with FaultyServer(SCRIPT) as server:
            crystal = google("gemini-3-pro-preview", base_url=server.url, api_key="k")
            response = await crystal.invoke(GO, TOOLS)
        said = Message("assistant", response.content, response.tool_calls, blocks=response.blocks)
        contents = request(crystal, [*GO, said])["contents"]
        assert contents[1]["parts"] == [THOUGHT, *REST, *LAST]

    async def test_the_last_part_may_be_plain_text(self):
        signed = {"text": "One, ", "thoughtSignature": "c2ln"}
        plain = {"text": "two."}
        script = [Reply(events(hop(signed))), Reply(events(hop(plain, reason="STOP", token=None)))]
        async with FaultyServer(script) as server:
            crystal = google("gemini-3-pro-preview", base_url=server.url, api_key="k")
            response = await crystal.invoke(GO)
        assert response.content == "One, two."
        assert response.blocks[0]["content"] == [signed, plain]

    async def test_a_part_may_be_empty(self):
        script = [Reply(events(hop())), Reply(framed("google", Said("", "Done.")))]
        async with FaultyServer(script) as server:
            response = await google("gemini-3-pro-preview", base_url=server.url, api_key="k").invoke(GO)
        assert response.content == "Done."

    def test_an_answer_without_a_token_is_complete(self):
        assert fed("google", hop({"text": "half"}, token=None)).metadata["stop_reason"] == "CONTINUATION"
        with pytest.raises(ProviderError, match="CONTINUATION"):
            fed("google", hop(token=None))

    async def test_a_token_of_a_finished_answer_is_ignored(self):
        async with FaultyServer([Reply(events(hop({"text": "all"}, reason="STOP")))]) as server:
            response = await google("gemini-3-pro-preview", base_url=server.url, api_key="k").invoke(GO)
            assert len(server.requests) == 1
        assert "continuation" not in response.metadata

    async def test_continuations_are_bounded(self):
        async with FaultyServer([Reply(events(hop({"text": "again "})))]) as server:
            with pytest.raises(ProviderError, match=f"interrupted more than {PAUSES} times") as caught:
                await google("gemini-3-pro-preview", base_url=server.url, api_key="k").invoke(GO)
            assert len(server.requests) == PAUSES + 1
        assert caught.value.retryable is False

    async def test_an_answer_by_schema_may_be_interrupted(self):
        pieces = ('{"tool": "read", "argum', 'ents": {"path": "a"}}')
        script = [
            Reply(events(hop({"text": pieces[0]}))),
            Reply(events(hop({"text": pieces[1]}, reason="STOP", token=None))),
        ]
        async with FaultyServer(script) as server:
            crystal = google("gemini-3-pro-preview", base_url=server.url, api_key="k", tools="schema")
            response = await crystal.invoke(GO, TOOLS, "required")
        assert [(call.gate, call.args) for call in response.tool_calls] == [("read", {"path": "a"})]


class TestReplay:
    """A recording of such an answer is one answer."""

    async def test_an_interrupted_answer_is_replayed_from_its_recording(self, tmp_path):
        file = tmp_path / "one.chunks.txt"
        async with FaultyServer([*SCRIPT, Reply(framed("google", Said("", "Next.")))]) as server:
            crystal = google("gemini-3-pro-preview", base_url=server.url, api_key="k", record=file)
            first = await crystal.invoke(GO, TOOLS)
            await crystal.invoke(GO, TOOLS)
        assert len(recordings(file)) == 4
        again, seen = replay(file), []
        heard = await again.invoke(GO, TOOLS, emit=seen.append)
        assert (heard.content, heard.thinking, heard.tool_calls) == (first.content, first.thinking, first.tool_calls)
        assert heard.usage.total_tokens == first.usage.total_tokens
        assert [payload.item_id for payload in seen if payload.type == "item_start"] == ["0", "1", "2", "3", "4"]
        assert (await again.invoke([*GO, Message("assistant", "x")])).content == "Next."


@pytest.mark.rule("CRYSTAL-1")
async def test_the_parts_before_and_after_a_pause_go_back_whole():
    tool = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}
    paused = [
        {"type": "message_start", "message": {"model": "claude-x", "usage": {"input_tokens": 5}}},
        {"type": "content_block_start", "index": 0, "content_block": tool},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    async with FaultyServer([Reply(events(*paused)), Reply(framed("anthropic", Said("", "Found.")))]) as server:
        crystal = anthropic("claude-x", base_url=server.url, api_key="k")
        response = await crystal.invoke(GO)
    said = Message("assistant", response.content, blocks=response.blocks)
    assert request(crystal, [*GO, said], ())["messages"][1]["content"] == [tool, {"type": "text", "text": "Found."}]
