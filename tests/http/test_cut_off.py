"""An answer that its provider cut off, at every door: the caller can see that it is not whole."""

import json
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.gates import ask
from cantrip_actors.wards import max_depth, max_turns
from tests.acp.editors import edited
from tests.http.serving import Served, in_process

pytestmark = pytest.mark.rule("W-25")

REASONS = pytest.mark.parametrize(
    ("reason", "kind"), [("length", "length"), ("max_tokens", "length"), ("MAX_TOKENS", "length"), ("SAFETY", "filter")]
)


def half(reason: str = "length", name: str = "half") -> Cantrip:
    """Return a cantrip whose provider stops each answer for that reason."""
    answer = {"content": "It is", "metadata": {"stop_reason": reason}}
    return Cantrip(scripted(lambda _: answer), circle=Circle(["done"], [max_turns(5)]), name=name)


def chat_body(**more: Any) -> dict[str, Any]:
    return {"model": "half", "messages": [{"role": "user", "content": "What is it?"}], **more}


async def read_stream(on: Served, path: str, body: Any) -> list[dict[str, Any]]:
    answered = await on.ask("POST", path, 200, json=body)
    return [json.loads(line[6:]) for line in answered.text.splitlines() if line.startswith("data: {")]


class TestPython:
    @REASONS
    async def test_an_episode_says_why_its_text_is_cut_off(self, reason: str, kind: str) -> None:
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(half(reason), "go")
            assert (episode.completed, episode.result, episode.cut_off) == (True, "It is", kind)
            outcome = runtime.loom.outcome(episode.entity_id)
            assert outcome is not None
            assert outcome.cut_off == kind

    async def test_the_mark_is_read_from_a_loom_by_another_process(self, tmp_path: Any) -> None:
        url = f"sqlite:{tmp_path}/loom.db"
        async with Runtime.open(url, cantrips=[half()]) as runtime:
            work = await (await runtime.ensure("n", half())).post("go")
            await work.result()
        async with Runtime.open(url) as runtime:
            found = runtime.work(work.id)
            assert found is not None
            assert (await found.result()).cut_off == "length"

    async def test_an_answer_that_the_model_ended_has_no_mark(self) -> None:
        async with Runtime.open("memory:") as runtime:
            assert (await runtime.cast(half("stop"), "go")).cut_off is None

    async def test_an_answer_by_done_is_whole_whatever_an_earlier_turn_was(self) -> None:
        script: Any = [
            {"content": "I", "metadata": {"stop_reason": "length"}},
            {"tool_calls": [{"gate": "done", "args": {"answer": "3"}}], "metadata": {"stop_reason": "length"}},
        ]
        cantrip = Cantrip(scripted(script), circle=Circle(["done"], [max_turns(5)]), name="half")
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip, "go")
            assert (await entity.episode()).cut_off == "length"
            episode = await entity.send("again")
            assert (episode.result, episode.cut_off) == ("3", None)

    async def test_a_call_whose_arguments_are_cut_off_is_not_run_and_the_model_can_repeat_it(self) -> None:
        script: Any = [
            {"content": "I", "tool_calls": [{"gate": "done", "args": '{"ans'}], "metadata": {"stop_reason": "length"}},
            lambda context: {"content": context[-1].content},
        ]

        def answer(context: Any) -> Any:
            step = script[sum(message.role == "assistant" for message in context)]
            return step(context) if callable(step) else step

        cantrip = Cantrip(scripted(answer), circle=Circle(["done"], [max_turns(5)]))
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(cantrip, "go")
            assert "expected" in episode.result
            assert episode.cut_off is None

    async def test_a_parent_reads_that_the_answer_of_its_child_is_cut_off(self) -> None:
        def parent(context: Any) -> Any:
            last = context[-1]
            return {"content": last.content} if last.role == "tool" else call("call_agent", intent="look")

        child = {"content": "It is", "metadata": {"stop_reason": "length"}}
        circle = Circle(["done", "call_agent"], [max_turns(5), max_depth(1)])
        cantrip = Cantrip(scripted(parent), circle=circle, child_crystal=scripted(lambda _: child))
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(cantrip, "go")
            assert episode.result == "It is\n[the answer is cut off: it reached the limit on its length]"

    async def test_an_asker_reads_that_the_answer_is_cut_off(self) -> None:
        def asker(context: Any) -> Any:
            last = context[-1]
            return {"content": last.content} if last.role == "tool" else call("ask", to="n", message="What is it?")

        cantrip = Cantrip(scripted(asker), circle=Circle(["done", ask.with_(to=["n"])], [max_turns(5)]), name="asker")
        async with Runtime.open("memory:", cantrips=[half(), cantrip]) as runtime:
            await runtime.ensure("n", half())
            assert "[the answer is cut off:" in (await runtime.cast(cantrip, "go")).result


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": name, "args": args}]}


class TestDoors:
    @pytest.mark.parametrize(("reason", "shown"), [("length", "length"), ("refusal", "content_filter")])
    async def test_a_chat_completion_has_the_reason_as_its_finish_reason(self, reason: str, shown: str) -> None:
        async with in_process([half(reason)]) as on:
            whole = await on.post("/v1/chat/completions", chat_body(), 200)
            assert whole["choices"][0]["finish_reason"] == shown
            chunks = await read_stream(on, "/v1/chat/completions", chat_body(stream=True))
            assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == shown

    @pytest.mark.parametrize(("reason", "shown"), [("length", "max_output_tokens"), ("refusal", "content_filter")])
    async def test_a_response_is_incomplete_with_the_reason(self, reason: str, shown: str) -> None:
        async with in_process([half(reason)]) as on:
            whole = await on.post("/v1/responses", {"model": "half", "input": "go"}, 200)
            assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": shown})
            assert whole["output"][0]["content"][0]["text"] == "It is"
            again = await on.get(f"/v1/responses/{whole['id']}")
            assert (again["status"], again["incomplete_details"]) == ("incomplete", {"reason": shown})
            events = await read_stream(on, "/v1/responses", {"model": "half", "input": "go", "stream": True})
            assert events[-1]["type"] == "response.incomplete"
            assert events[-1]["response"]["incomplete_details"] == {"reason": shown}

    @pytest.mark.parametrize(("reason", "shown"), [("length", "max_tokens"), ("SAFETY", "refusal")])
    async def test_a_message_of_anthropics_api_has_the_reason_as_its_stop_reason(self, reason: str, shown: str) -> None:
        async with in_process([half(reason)]) as on:
            assert (await on.post("/v1/messages", chat_body(max_tokens=9), 200))["stop_reason"] == shown
            events = await read_stream(on, "/v1/messages", chat_body(max_tokens=9, stream=True))
            deltas = [event["delta"] for event in events if event["type"] == "message_delta"]
            assert [delta["stop_reason"] for delta in deltas] == [shown]

    @pytest.mark.parametrize(("reason", "shown"), [("length", "length"), ("SAFETY", "content-filter")])
    async def test_chats_of_front_ends_end_with_the_reason(self, reason: str, shown: str) -> None:
        async with in_process([half(reason)]) as on:
            message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "go"}]}
            parts = await read_stream(on, "chat/half", {"id": "bob", "messages": [message]})
            assert parts[-1] == {"type": "finish", "finishReason": shown}
            run = {"threadId": "ann", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "go"}]}
            events = await read_stream(on, "ag-ui/half", run)
            assert events[-2] == {"type": "CUSTOM", "name": "finish_reason", "value": shown}
            assert events[-1]["type"] == "RUN_FINISHED"

    async def test_the_own_api_has_it_in_the_episode_and_its_event(self) -> None:
        async with in_process([half()]) as on:
            body = {"cantrip": "half", "intent": "go", "name": "bob", "wait": 5}
            assert (await on.post("entities", body))["cut_off"] == "length"
            await on.post("entities/bob/send", {"intent": "more", "wait": 5})
            story = await on.get("entities/bob/story")
            assert '"cut_off":"length"' in json.dumps(story, separators=(",", ":"))

    @pytest.mark.parametrize(("reason", "shown"), [("length", "max_tokens"), ("refusal", "refusal")])
    async def test_an_editor_gets_it_as_the_stop_reason(self, reason: str, shown: str) -> None:
        async with edited(half(reason)) as editor:
            session = (await editor.ask("session/new", cwd="/", mcpServers=[]))["sessionId"]
            assert await editor.prompt(session, "go") == shown
