"""What an editor can do with an entity: prompts, permissions, cancelling, going back, choices, files."""

import contextlib
import json
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, LoomError, Runtime, ask_first, gate, scripted
from cantrip_actors.acp.editor import Capabilities, Editor
from cantrip_actors.acp.jsonrpc import NOT_FOUND, RequestError
from cantrip_actors.gates import write
from cantrip_actors.loom import Unsure
from cantrip_actors.observe import Telemetry
from cantrip_actors.stream.wire import FinalFunctionCall, ItemDone, ItemStart
from cantrip_actors.wards import max_turns
from tests.acp.editors import ALL, Refused, call, edited, helper, pay
from tests.mcp.test_servers import served
from tests.pictures import data_url, png
from tests.runtime.test_outages import failing

ROOT = Path(__file__).parent.parent.parent


async def new(editor: Any, **params: Any) -> str:
    return (await editor.ask("session/new", cwd=str(Path.cwd()), mcpServers=[], **params))["sessionId"]


# Prompts


@pytest.mark.rule("ACP-01", "ACP-05")
async def test_a_prompt_is_an_intent_and_its_answer_is_shown() -> None:
    async with edited(helper()) as editor:
        session = (await editor.ask("session/new"))["sessionId"]  # {} is enough (PROD-6)
        assert await editor.prompt(session, "one") == "end_turn"
        assert editor.text() == "one is number 1"
        assert await editor.prompt(session, [{"type": "text", "text": "two"}]) == "end_turn"
        answered = await editor.ask("session/prompt", sessionId=session, content="three")
        assert answered == {"stopReason": "end_turn"}
        assert editor.updates[-2]["content"]["text"].startswith("three")


@pytest.mark.rule("METRIC-02")
async def test_an_editor_is_a_reader_while_its_prompt_runs() -> None:
    telemetry, seen = Telemetry(otel=False), []

    @gate
    async def peek() -> str:
        """Look at the metrics."""
        await anyio.sleep(1)
        seen.append(telemetry.counters.read_values("cantrip.streams")["acp",])
        return "x"

    says: Any = [{"tool_calls": [{"gate": "peek", "args": {}}]}, {"content": "so"}]
    recipe = Cantrip(scripted(says), circle=Circle(["done", peek], [max_turns(5)]))
    async with edited(recipe, telemetry=telemetry) as editor:
        await editor.prompt(await new(editor), "go")
        assert seen == [1]
        assert telemetry.counters.read_values("cantrip.streams")["acp",] == 0


@pytest.mark.rule("ACP-02")
async def test_a_session_remembers_earlier_prompts() -> None:
    async with edited(helper()) as editor:
        session = await new(editor)
        for number in (1, 2, 3):
            await editor.prompt(session, f"m{number}")
        assert "m3 is number 3" in editor.text()


@pytest.mark.rule("ACP-05", "A-03")
async def test_a_number_past_64_bits_is_shown_and_the_connection_lives() -> None:
    amount = 10**30

    @gate
    async def double(amount: int) -> int:
        """Double an amount."""
        return 2 * amount

    says: Any = [{"tool_calls": [{"gate": "double", "args": {"amount": amount}}]}, {"content": "so"}]
    async with edited(Cantrip(scripted(says), circle=Circle(["done", double], [max_turns(5)]))) as editor:
        assert await editor.prompt(await new(editor), "go") == "end_turn"
        calls = [one for one in editor.updates if one["sessionUpdate"].startswith("tool_call")]
        assert [one["rawInput"] for one in calls if "rawInput" in one][-1] == {"amount": amount}


@pytest.mark.rule("ACP-05")
async def test_calls_of_gates_are_shown_with_their_results() -> None:
    async with edited(helper()) as editor:
        session = await new(editor)
        await editor.prompt(session, "look")
        calls = [one for one in editor.updates if one["sessionUpdate"].startswith("tool_call")]
        assert [one["status"] for one in calls] == ["pending", "completed"]
        assert len({one["toolCallId"] for one in calls}) == 1
        assert calls[-1]["rawOutput"] == {"output": "seen"}
        usage = [one for one in editor.updates if one["sessionUpdate"] == "usage_update"]
        assert usage[-1]["size"] == 1000


@pytest.mark.rule("ACP-20")
async def test_images_and_resources_of_a_prompt_reach_the_entity() -> None:
    picture = png(1200, 1100) + b"\0" * 5_000_000
    data = data_url(picture, "").partition(",")[2]
    async with edited(helper()) as editor:
        session = await new(editor)
        blocks = [{"type": "text", "text": "image"}, {"type": "image", "mimeType": "image/png", "data": data}]
        await editor.prompt(session, blocks)
        assert editor.text() == f"1 images, {len(picture):,} bytes"
        link = {"type": "resource_link", "uri": "file:///a.py", "name": "a.py"}
        text = {"type": "resource", "resource": {"uri": "file:///b.py", "text": "x = 1"}}
        await editor.prompt(session, [{"type": "text", "text": "Explain."}, link, text])
        assert "[a.py](file:///a.py)" in editor.text()
        for strange in ([], [{"type": "audio", "data": ""}], [{"type": "image", "data": "?"}], 3, [{"type": "text"}]):
            with pytest.raises(Refused) as refused:
                await editor.prompt(session, strange)
            assert refused.value.code == -32602


@pytest.mark.rule("ACP-19")
async def test_two_sessions_work_at_once() -> None:
    async with edited(helper()) as editor:
        sessions = [await new(editor) for _ in range(2)]
        slow = await editor.begin("session/prompt", {"sessionId": sessions[0], "prompt": 'nap {"seconds": 5}'})
        assert await editor.prompt(sessions[1], "quick") == "end_turn"
        await editor.end(slow)
        for session, said in zip(sessions, ("slept", "quick"), strict=True):
            assert said in json.dumps(editor.of(session))
        assert "quick" not in json.dumps(editor.of(sessions[0]))


async def test_a_prompt_while_another_one_runs_comes_after_it() -> None:
    async with edited(helper()) as editor:
        session = await new(editor)
        first = await editor.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 5}'})
        second = await editor.begin("session/prompt", {"sessionId": session, "prompt": "then"})
        assert (await editor.end(first), await editor.end(second)) == ({"stopReason": "end_turn"},) * 2
        assert editor.text().index("slept") < editor.text().index("then is number 2")


# Cancelling


@pytest.mark.rule("ACP-11")
async def test_a_hanging_gate_is_cancelled_at_once() -> None:
    async with edited(helper()) as editor:
        session = await new(editor)
        prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 1000}'})
        await editor.until(lambda: [one for one in editor.updates if one["sessionUpdate"] == "tool_call"])
        at = anyio.current_time()
        await editor.tell("session/cancel", sessionId=session)
        await editor.tell("session/cancel", sessionId=session)  # twice is harmless
        assert await editor.end(prompt) == {"stopReason": "cancelled"}
        assert anyio.current_time() - at < 1
        assert editor.messages[-1].get("id") == prompt  # after every update
        assert [one["status"] for one in editor.updates if "status" in one] == ["in_progress", "failed"]
        assert await editor.prompt(session, "go on") == "end_turn"


@pytest.mark.rule("ACP-11")
async def test_a_prompt_is_cancelled_before_its_first_word_and_by_its_id() -> None:
    async with edited(helper()) as editor:
        session = await new(editor)
        first = await editor.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 1000}'})
        await editor.tell("session/cancel", sessionId=session)
        assert await editor.end(first) == {"stopReason": "cancelled"}
        second = await editor.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 1000}'})
        await editor.tell("$/cancel_request", requestId=second)
        assert await editor.end(second) == {"stopReason": "cancelled"}
        assert await editor.prompt(session, "go on") == "end_turn"


@pytest.mark.rule("ACP-11")
async def test_a_prompt_without_output_so_far_is_cancelled_at_once() -> None:
    asked = anyio.Event()

    async def think(_: Any) -> Any:
        asked.set()
        await anyio.sleep_forever()

    slow = Cantrip(scripted(think), circle=Circle(["done"], [max_turns(3)]), name="slow")
    async with edited(slow) as editor:
        session = await new(editor)
        prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": "hello"})
        await asked.wait()
        at = anyio.current_time()
        await editor.tell("session/cancel", sessionId=session)
        assert await editor.end(prompt) == {"stopReason": "cancelled"}
        assert anyio.current_time() - at < 1


@pytest.mark.rule("ACP-11", "C-19")
async def test_a_prompt_that_waits_behind_another_sender_is_cancelled_at_once() -> None:
    recipe = helper()
    async with Runtime.open() as runtime, edited(recipe, runtime=runtime) as editor:
        session = await new(editor)
        assert await editor.prompt(session, "begin") == "end_turn"
        other = await runtime.get_entity(session).post('nap {"seconds": 100}')
        await anyio.sleep(1)
        prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": "unwanted"})
        await anyio.sleep(1)
        assert "this one waits for its end." in str(editor.updates[-1]["content"]), "the editor shows that it waits"
        at = anyio.current_time()
        await editor.tell("session/cancel", sessionId=session)
        assert await editor.end(prompt) == {"stopReason": "cancelled"}
        assert anyio.current_time() - at < 1
        assert (await other.episode()).terminated
        assert await editor.prompt(session, "go on") == "end_turn"
        assert "unwanted" not in str(list(runtime.loom.records(session)))
        assert str(editor.updates).count("this one waits for its end.") == 1


@pytest.mark.rule("ACP-12")
async def test_closing_a_session_cancels_it() -> None:
    async with edited(helper()) as editor:
        session = await new(editor)
        prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 1000}'})
        await editor.until(lambda: [one for one in editor.updates if one["sessionUpdate"] == "tool_call"])
        assert await editor.ask("session/close", sessionId=session) == {}
        assert await editor.end(prompt) == {"stopReason": "cancelled"}
        with pytest.raises(Refused) as refused:
            await editor.prompt(session, "more")
        assert refused.value.code == -32002


# Permission


def chooses(option: str | None) -> Any:
    outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
    return {"session/request_permission": lambda _: {"outcome": outcome}}


@pytest.mark.rule("ACP-16")
@pytest.mark.parametrize(
    ("option", "said", "asks"), [("allow", "paid 3", 2), ("always", "paid 3", 1), ("reject", "denied", 2)]
)
async def test_the_users_decision_counts(option: str, said: str, asks: int) -> None:
    async with edited(helper(), answers=chooses(option)) as editor:
        session = await new(editor)
        for _ in range(2):
            assert await editor.prompt(session, 'pay {"amount": 3}') == "end_turn"
        assert said in editor.text()
        assert editor.asked == ["session/request_permission"] * asks


@pytest.mark.rule("Z-01")
async def test_a_permission_names_the_gate_and_its_arguments_as_values() -> None:
    asked: list[Any] = []
    forged = "lunch\n```\n**pay**\u202e\n│ amount: 5"

    def think(context: Any) -> Any:
        if context[-1].role == "tool":
            return call("done", answer="paid")
        return call("move", to="mallory", note=forged)

    @gate
    async def move(to: str, note: str) -> str:
        """Move money."""
        return f"paid {to} {note}"

    def allow(params: Any) -> Any:
        asked.append(params["toolCall"])
        return {"outcome": {"outcome": "selected", "optionId": "allow"}}

    why = "amounts are large\n```\nforged"
    circle = Circle(["done", ask_first(move, when=lambda _: why)], [max_turns(4)])
    recipe = Cantrip(scripted(think), circle=circle, name="helper")
    async with edited(recipe, answers={"session/request_permission": allow}) as editor:
        assert await editor.prompt(await new(editor), "pay") == "end_turn"
    (tool,) = asked
    assert tool["title"].startswith('move(to: "mallory", note: "lunch\\n```')
    (block,) = tool["content"]
    first, *lines, last = block["content"]["text"].splitlines()
    assert (first, last) == ("```text", "```")
    assert lines[-2:] == ['│ to: "mallory"', '│ note: "lunch\\n```\\n**pay**\\u202e\\n│ amount: 5"']
    assert not [line for line in lines if line.startswith("```")]


@pytest.mark.rule("ACP-16")
async def test_a_prompt_that_is_cancelled_while_it_asks_ends() -> None:
    async def never(_: Any) -> Any:
        await anyio.sleep_forever()

    async with edited(helper(), answers={"session/request_permission": never}) as editor:
        session = await new(editor)
        prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": 'pay {"amount": 3}'})
        await editor.until(lambda: editor.asked)
        await editor.tell("session/cancel", sessionId=session)
        assert await editor.end(prompt) == {"stopReason": "cancelled"}


@pytest.mark.rule("ACP-16")
async def test_an_editor_that_answers_cancelled_cancels_the_prompt() -> None:
    async with edited(helper(), answers=chooses(None)) as editor:
        session = await new(editor)
        assert await editor.prompt(session, 'pay {"amount": 3}') == "cancelled"
        assert await editor.prompt(session, "go on") == "end_turn"


@pytest.mark.rule("ACP-16")
async def test_a_late_answer_to_a_request_does_not_cancel_the_next_prompt() -> None:
    async def late(_: Any) -> Any:
        await anyio.sleep(10)
        return {"outcome": {"outcome": "cancelled"}}

    async with edited(helper(), answers={"session/request_permission": late}) as editor:
        session = await new(editor)
        prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": 'pay {"amount": 3}'})
        await editor.until(lambda: editor.asked)
        await editor.tell("session/cancel", sessionId=session)
        assert await editor.end(prompt) == {"stopReason": "cancelled"}
        assert await editor.prompt(session, 'nap {"seconds": 30}') == "end_turn"


@pytest.mark.rule("ACP-16", "ACP-10")
async def test_a_request_to_a_closed_editor_is_sent_again_at_load() -> None:
    recipe = helper()
    async with Runtime.open("memory:", cantrips=[recipe]) as runtime:
        async with edited(recipe, runtime=runtime, answers={"session/request_permission": lambda _: None}) as editor:
            session = await new(editor)
            await editor.begin("session/prompt", {"sessionId": session, "prompt": 'pay {"amount": 3}'})
            await editor.until(lambda: editor.asked)
        (request,) = runtime.requests()
        async with edited(recipe, runtime=runtime, answers=chooses("allow")) as editor:
            await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
            await editor.until(lambda: editor.asked)
            while runtime.requests():
                await anyio.sleep(0.1)
            assert await editor.prompt(session, "and now?") == "end_turn"
            assert "and now? is number 2" in editor.text()
        turns = runtime.loom.turns(session)
        assert [one.result for turn in turns for one in turn.gate_calls] == ["paid 3"]
        assert request.gate == "pay"


@pytest.mark.rule("W-42")
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_work_after_a_permission_is_shown_to_the_editor_that_opened_the_session(
    method: str, is_restarted: bool, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = f"sqlite:{tmp_path / 'loom.db'}"
        recipe = helper()
        runtime = await stack.enter_async_context(Runtime.open(url, cantrips=[recipe]))
        async with edited(recipe, runtime=runtime, answers={"session/request_permission": lambda _: None}) as editor:
            session = await new(editor)
            await editor.prompt(session, "hello")
            await editor.begin("session/prompt", {"sessionId": session, "prompt": 'pay {"amount": 3}'})
            await editor.until(lambda: editor.asked)
        if is_restarted:
            await stack.aclose()
            runtime = await stack.enter_async_context(Runtime.open(url, cantrips=[recipe], recover="resume"))
        async with edited(recipe, runtime=runtime, answers=chooses("allow")) as editor:
            await editor.ask(method, sessionId=session, cwd="/", mcpServers=[])
            await editor.until(lambda: "paid 3" in editor.text())
            assert editor.text().count("it said: paid 3") == 1
            assert editor.text().count("hello is number 1") == (method == "session/load")
            calls = [one for one in editor.of(session) if one["sessionUpdate"].startswith("tool_call")]
            assert calls[-1]["status"] == "completed"
            assert calls[-1]["rawOutput"] == {"output": "paid 3"}
            assert len({one["toolCallId"] for one in calls}) == 1
            assert await editor.prompt(session, "and now?") == "end_turn"
            assert editor.text().count("it said: paid 3") == 1


@pytest.mark.rule("ACP-10", "ACP-16")
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_an_editor_that_opens_a_session_twice_sees_its_work_once(method: str) -> None:
    answers: list[Any] = [None, {"outcome": {"outcome": "selected", "optionId": "allow"}}]
    async with edited(helper(), answers={"session/request_permission": lambda _: answers.pop(0)}) as editor:
        session = await new(editor)
        prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": 'pay {"amount": 3}'})
        await editor.until(lambda: editor.asked)
        await editor.ask(method, sessionId=session, cwd="/", mcpServers=[])
        assert await editor.end(prompt) == {"stopReason": "end_turn"}
        await anyio.sleep(1)
        assert editor.text() == "it said: paid 3"
        sent = [message["method"] for message in editor.messages if "method" in message]
        assert sent.count("session/request_permission") == 2
        assert sent.count("$/cancel_request") == 1


@pytest.mark.rule("W-42", "ACP-11")
async def test_work_that_began_before_the_session_was_loaded_is_cancelled_as_a_prompt() -> None:
    recipe = helper()
    async with Runtime.open("memory:", cantrips=[recipe]) as runtime:
        async with edited(recipe, runtime=runtime) as editor:
            session = await new(editor)
            await editor.begin("session/prompt", {"sessionId": session, "prompt": 'nap {"seconds": 1000}'})
            await editor.until(lambda: [one for one in editor.updates if one.get("status") == "in_progress"])
        async with edited(recipe, runtime=runtime) as editor:
            await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
            await editor.tell("session/cancel", sessionId=session)
            assert await editor.prompt(session, "and now?") == "end_turn"


@pytest.mark.rule("W-42")
@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"outcome": {"outcome": "selected", "optionId": "allow_once"}}, "paid 3"),
        ({"outcome": "selected", "optionId": "allow"}, "paid 3"),
        ({"outcome": {"outcome": "selected", "optionId": "reject_always"}}, "denied"),
        ({"outcome": {"outcome": "selected", "optionId": "proceed"}}, "'proceed', which is none of its options"),
        ({"outcome": {"outcome": "selected"}}, "'no option', which is none"),
        ({}, "'no option', which is none"),
    ],
)
async def test_another_form_of_answer_to_a_permission_is_understood_or_refused_aloud(answer: Any, result: str) -> None:
    async with edited(helper(), answers={"session/request_permission": lambda _: answer}) as editor:
        assert await editor.prompt(await new(editor), 'pay {"amount": 3}') == "end_turn"
        assert result in editor.text()


@pytest.mark.rule("ACP-15", "ACP-16")
async def test_a_question_needs_an_editor_with_forms() -> None:
    ask = {"text": "Which one?", "schema": {"type": "string"}}
    async with edited(helper()) as editor:
        session = await new(editor)
        await editor.prompt(session, f"question {json.dumps(ask)}")
        assert editor.asked == []
        assert "no form" in editor.text()
    accept = {"elicitation/create": lambda _: {"action": "accept", "content": {"answer": "the red one"}}}
    async with edited(helper(), capabilities=ALL, answers=accept) as editor:
        session = await new(editor)
        await editor.prompt(session, f"question {json.dumps(ask)}")
        assert "the red one" in editor.text()


def _refuse_to_ask(_: Any) -> Any:
    raise Refused({"message": "no dialogs here", "code": -32601})


@pytest.mark.rule("W-41", "W-42")
@pytest.mark.parametrize(
    ("method", "answer", "why"),
    [
        ("session/request_permission", _refuse_to_ask, "the editor did not ask you: no dialogs here"),
        ("elicitation/create", _refuse_to_ask, "the editor did not ask you: no dialogs here"),
        ("elicitation/create", lambda _: {"action": "cancel"}, "the editor sent no answer"),
        ("elicitation/create", lambda _: [], "the editor sent no answer"),
        ("elicitation/create", lambda _: {"action": "accept"}, "the editor sent no answer"),
        (
            "elicitation/create",
            lambda _: {"action": "accept", "content": {"answer": "many"}},
            "your decision was not recorded: answer: argument: 'many' is not of type 'integer'",
        ),
    ],
)
async def test_a_request_that_an_editor_does_not_answer_is_decided_elsewhere_and_the_prompt_says_so(
    method: str, answer: Callable[[Any], Any], why: str
) -> None:
    asks = json.dumps({"text": "How many?", "schema": {"type": "integer"}})
    prompt = 'pay {"amount": 3}' if method.startswith("session") else f"question {asks}"
    recipe = helper()
    async with (
        Runtime.open("memory:", cantrips=[recipe]) as runtime,
        edited(recipe, runtime=runtime, capabilities=ALL, answers={method: answer}) as editor,
    ):
        session = await new(editor)
        under_way = await editor.begin("session/prompt", {"sessionId": session, "prompt": prompt})
        await editor.until(lambda: "Decide with" in editor.text())
        (request,) = runtime.requests()
        assert f"still waits for a person ({why}" in editor.text()
        assert f"`cantrip requests {request.id}`" in editor.text()
        decided: Any = {"decision": "allow"} if method.startswith("session") else {"answer": 5}
        await runtime.decide(request.id, **decided)
        assert await editor.end(under_way) == {"stopReason": "end_turn"}


@pytest.mark.rule("ACP-16")
async def test_a_form_with_a_mistake_is_shown_again_with_the_mistake() -> None:
    messages: list[str] = []

    def fill(params: Any) -> Any:
        messages.append(params["message"])
        return {"action": "accept", "content": {"answer": "many" if len(messages) == 1 else 5}}

    ask = json.dumps({"text": "How many?", "schema": {"type": "integer"}})
    async with edited(helper(), capabilities=ALL, answers={"elicitation/create": fill}) as editor:
        assert await editor.prompt(await new(editor), f"question {ask}") == "end_turn"
        assert "5" in editor.text()
    assert "'many' is not of type 'integer'" in messages[1]
    assert messages[1].endswith(messages[0])


# Sessions that continue


@pytest.mark.rule("ACP-09")
async def test_load_replays_everything_before_its_response_and_resume_nothing() -> None:
    recipe = helper()
    async with Runtime.open("memory:", cantrips=[recipe]) as runtime:
        async with edited(recipe, runtime=runtime) as editor:
            session = await new(editor)
            await editor.prompt(session, "one")
            await editor.prompt(session, "look")
        async with edited(recipe, runtime=runtime) as editor:
            assert await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
            kinds = [one["sessionUpdate"] for one in editor.updates]
            assert kinds[:2] == ["user_message_chunk", "agent_message_chunk"]
            assert editor.text("user_message_chunk") == "onelook"
            assert "it said: seen" in editor.text()
            assert [one["status"] for one in editor.updates if one["sessionUpdate"] == "tool_call_update"] == [
                "completed"
            ]
            await anyio.sleep(1)
            assert "result" in editor.messages[-1]
            await editor.prompt(session, "two")
            assert "two is number 3" in editor.text()
        async with edited(recipe, runtime=runtime) as editor:
            assert await editor.ask("session/resume", sessionId=session, cwd="/", mcpServers=[])
            assert not editor.text() + editor.text("user_message_chunk")
            await editor.prompt(session, "three")
            assert editor.text() == "three is number 4"
            for method in ("session/load", "session/resume", "session/prompt"):
                with pytest.raises(Refused) as refused:
                    await editor.ask(method, sessionId=str(uuid.uuid4()), cwd="/", mcpServers=[], prompt="x")
                assert refused.value.code == -32002


@pytest.mark.rule("ACP-13")
async def test_sessions_are_listed_by_folder_and_by_page(tmp_path: Path) -> None:
    async with edited(helper()) as editor:
        assert (await editor.ask("session/list"))["sessions"] == []
        for number in range(52):
            cwd = str(tmp_path) if number % 26 == 0 else "/"
            session = (await editor.ask("session/new", cwd=cwd, mcpServers=[]))["sessionId"]
            await editor.prompt(session, f"number {number}")
        first = await editor.ask("session/list")
        assert (len(first["sessions"]), first["sessions"][0]["title"]) == (50, "number 51")
        rest = await editor.ask("session/list", cursor=first["nextCursor"])
        assert (len(rest["sessions"]), rest.get("nextCursor")) == (2, None)
        assert len((await editor.ask("session/list", cwd=str(tmp_path)))["sessions"]) == 2
        assert (await editor.ask("session/list", cwd="/nowhere"))["sessions"] == []
        for strange in ("x", "3", 50, "9" * 5000):
            with pytest.raises(Refused) as refused:
                await editor.ask("session/list", cursor=strange)
            assert refused.value.code == -32602


@pytest.mark.rule("ACP-08")
@pytest.mark.parametrize("text", ["/fork " + "9" * 5000, "a text that is cut within an emoji: \ud83d"])
async def test_a_strange_prompt_is_answered(text: str) -> None:
    async with edited(helper()) as editor:
        session = (await editor.ask("session/new", cwd="/", mcpServers=[]))["sessionId"]
        assert await editor.prompt(session, "begin") == "end_turn"
        assert await editor.prompt(session, text) == "end_turn"


@pytest.mark.rule("ACP-08")
@pytest.mark.parametrize(
    "params",
    [
        {"cwd": "/nul\0within", "mcpServers": []},
        {"cwd": "/", "mcpServers": [{"name": "one", "command": "a", "args": [], "env": []}] * 2},
    ],
    ids=["NUL in a path", "two servers with one name"],
)
async def test_a_mistake_in_a_new_session_is_an_error_of_its_params(params: dict[str, Any]) -> None:
    async with edited(helper()) as editor:
        with pytest.raises(Refused) as refused:
            await editor.ask("session/new", **params)
        assert refused.value.code == -32602


@pytest.mark.rule("ACP-14")
async def test_deleting_a_session_twice_is_fine_and_the_loom_keeps_it() -> None:
    recipe = helper()
    async with Runtime.open("memory:", cantrips=[recipe]) as runtime, edited(recipe, runtime=runtime) as editor:
        session = await new(editor)
        await editor.prompt(session, "one")
        for one in (session, session, str(uuid.uuid4())):  # twice, and one that there never was
            assert await editor.ask("session/delete", sessionId=one) == {}
        assert (await editor.ask("session/list"))["sessions"] == []
        with pytest.raises(Refused):
            await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        assert len(runtime.loom.turns(session)) == 1


# Choices


@pytest.mark.rule("ACP-17")
async def test_an_option_change_lists_all_options_and_keeps_the_mode_in_step() -> None:
    second = scripted(lambda _: {"content": "the second model"}, name="second")
    async with edited(helper(crystals={"second": second}), answers=chooses("allow")) as editor:
        made = await editor.ask("session/new", cwd="/", mcpServers=[])
        session = made["sessionId"]
        assert {one["id"]: one["currentValue"] for one in made["configOptions"]} == {
            "mode": "auto", "model": "first", "thought_level": "default"
        }  # fmt: skip
        assert all(one["type"] == "select" for one in made["configOptions"])
        await editor.prompt(session, "model")
        changed = await editor.ask("session/set_config_option", sessionId=session, configId="model", value="second")
        assert len(changed["configOptions"]) == 3
        await editor.prompt(session, "model")
        assert editor.text() == "the first modelthe second model"
        await editor.ask("session/set_config_option", sessionId=session, configId="mode", value="ask")
        assert editor.updates[-1] == {"sessionUpdate": "current_mode_update", "currentModeId": "ask"}
        await editor.ask("session/set_mode", sessionId=session, modeId="read-only")
        told = {one["id"]: one["currentValue"] for one in editor.updates[-1]["configOptions"]}
        assert told["mode"] == "read-only"
        for option, value in (("mode", "wild"), ("shape", "round"), ("model", None)):
            with pytest.raises(Refused) as refused:
                await editor.ask("session/set_config_option", sessionId=session, configId=option, value=value)
            assert refused.value.code == -32602


@pytest.mark.rule("ACP-17")
async def test_the_mode_decides_what_the_entity_may_do() -> None:
    async with edited(helper(), answers=chooses("allow")) as editor:
        session = await new(editor)
        await editor.ask("session/set_mode", sessionId=session, modeId="ask")
        await editor.prompt(session, 'nap {"seconds": 1}')
        await editor.prompt(session, "look")
        assert editor.asked == ["session/request_permission"]
        await editor.ask("session/set_mode", sessionId=session, modeId="read-only")
        await editor.prompt(session, 'nap {"seconds": 1}')
        await editor.prompt(session, "look")
        assert editor.asked == ["session/request_permission"]
        assert "nothing changed" in editor.text()


# Commands


async def test_commands_show_a_session_and_undo_its_prompts() -> None:
    recipe = helper()
    async with Runtime.open("memory:", cantrips=[recipe]) as runtime, edited(recipe, runtime=runtime) as editor:
        session = await new(editor)
        await editor.until(lambda: "undo" in json.dumps(editor.updates))
        await editor.prompt(session, "one")
        await editor.prompt(session, "two")
        await editor.prompt(session, "/tree")
        assert "2. two is number 2" in editor.text()
        await editor.prompt(session, "/cost")
        assert "14 tokens read, 6 written" in editor.text()
        await editor.prompt(session, "/undo")
        await editor.prompt(session, "instead")
        assert "instead is number 2" in editor.text()
        await editor.prompt(session, "more")
        assert "more is number 3" in editor.text()
        await editor.prompt(session, "/fork 1")
        await editor.prompt(session, "again")
        assert "again is number 2" in editor.text()
        await editor.prompt(session, "/compact")
        await editor.prompt(session, "after")
        await editor.prompt(session, "/steer Be brief.")
        await editor.prompt(session, "/fork 99")
        assert "expected the number of a turn from 1 to 3" in editor.text()
        assert await editor.prompt(session, "/unknown is a prompt") == "end_turn"
        async with edited(recipe, runtime=runtime) as later:
            await later.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
            assert later.text("user_message_chunk").startswith("oneagainafter")
            assert [one["sessionId"] for one in (await later.ask("session/list"))["sessions"]] == [session]


async def test_undo_of_the_first_prompt_begins_anew() -> None:
    async with edited(helper()) as editor:
        session = await new(editor)
        await editor.prompt(session, "/undo")
        await editor.prompt(session, "one")
        await editor.prompt(session, "/undo")
        await editor.prompt(session, "anew")
        assert editor.text().endswith("anew is number 1")


async def test_each_undo_goes_one_prompt_further_back_across_forks() -> None:
    async with edited(helper()) as editor:
        session = await new(editor)
        await editor.prompt(session, "/fork 1")
        assert editor.text() == "No turn yet."
        for text in ("one", "two", "three", "/undo", "/undo", "other", "/undo"):
            await editor.prompt(session, text)
        assert "other is number 2" in editor.text()
        await editor.prompt(session, "last")
        assert editor.text().endswith("last is number 2")
        for _ in range(3):
            await editor.prompt(session, "/undo")
        assert editor.text().endswith("There is nothing to undo.")
        await editor.prompt(session, "anew")
        assert editor.text().endswith("anew is number 1")


@pytest.mark.parametrize(
    ("command", "method", "number"), [("/fork 2", "start_fork", 3), ("/undo", "start_fork", 3), ("/undo", "invoke", 1)]
)
async def test_the_prompt_after_one_that_could_not_go_back_goes_back(
    monkeypatch: pytest.MonkeyPatch, command: str, method: str, number: int
) -> None:
    async def fail(*_args: Any, **_named: Any) -> Any:
        raise Unsure("the answer was lost")

    async with edited(helper()) as editor:
        session = await new(editor)
        prompts = ("one",) if method == "invoke" else ("one", "two", "three")  # to the beginning, or to a turn
        for text in (*prompts, command):
            await editor.prompt(session, text)
        with monkeypatch.context() as patched:
            patched.setattr(Runtime, method, fail)
            with pytest.raises(Refused, match="the answer was lost"):
                await editor.prompt(session, "lost")
        await editor.prompt(session, "again")
        assert editor.text().endswith(f"again is number {number}")


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_requests_that_cannot_be_read_refuse_one_session_and_end_no_other(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    recipe = helper()
    async with Runtime.open("memory:", cantrips=[recipe]) as runtime, edited(recipe, runtime=runtime) as editor:
        session = await new(editor)
        await editor.prompt(session, "one")

        def fail(*_args: Any, **_named: Any) -> Any:
            raise LoomError("the database is away")

        with monkeypatch.context() as patched:
            patched.setattr(Runtime, "requests", fail)
            with pytest.raises(Refused, match="the database is away"):
                await editor.ask(method, sessionId=session, cwd="/", mcpServers=[])
        await editor.prompt(session, "two")
        assert editor.text().endswith("two is number 2")


async def test_an_undo_after_an_undo_by_another_program_goes_one_prompt_further_back() -> None:
    recipe = helper()
    async with Runtime.open("memory:", cantrips=[recipe]) as runtime, edited(recipe, runtime=runtime) as editor:
        session = await new(editor)
        for text in ("one", "two", "three"):
            await editor.prompt(session, text)
        assert await runtime.get_entity(session).undo()
        await editor.prompt(session, "/undo")
        await editor.prompt(session, "other")
        assert editor.text().endswith("other is number 2")


# What the editor lends


@pytest.mark.rule("ACP-15")
async def test_files_are_read_through_the_editor_if_it_offers_them(tmp_path: Path) -> None:
    work, further = tmp_path / "work", tmp_path / "further"
    for folder in (work, further):
        folder.mkdir()
        (folder / "a.txt").write_text(f"on disk in {folder.name}")
    written: dict[str, str] = {}
    answers = {
        "fs/read_text_file": lambda asked: {"content": f"unsaved {Path(asked['path']).parent.name}"},
        "fs/write_text_file": lambda asked: written.update({asked["path"]: asked["content"]}) or {},
    }
    folders = {"cwd": str(work), "additionalDirectories": [str(further)], "mcpServers": []}
    steps = [
        ('read {"path": "a.txt"}', "on disk in work", "unsaved work"),
        (f'read {{"path": "{further}/a.txt"}}', "on disk in further", "unsaved further"),
        ('read {"path": "../further/a.txt"}', "is not allowed", "is not allowed"),
        ('read {"path": "/etc/hostname"}', "outside the root", "outside the root"),
        ('read {"path": "none.txt"}', "no such file", "no such file"),
        ('list {"path": "."}', "a.txt", "a.txt"),
        ('write {"path": "b.txt", "content": "new"}', "wrote", "in the editor"),
    ]
    for capabilities, column in (({}, 1), (ALL, 2)):
        async with edited(helper(tmp_path), capabilities=capabilities, answers=answers) as editor:
            session = (await editor.ask("session/new", **folders))["sessionId"]
            for step in steps:
                before = len(editor.text())
                await editor.prompt(session, step[0])
                assert step[column] in editor.text()[before:], step
            assert bool(editor.asked) == bool(capabilities)
    assert written == {str(work / "b.txt"): "new"}
    assert (work / "b.txt").read_text() == "new"  # by the first editor, which lends nothing


class StreamingCaller:
    """A crystal that streams a call of `look`, and ends its answer once the call is shown."""

    def __init__(self) -> None:
        self.is_shown = anyio.Event()

    async def invoke(self, messages: Any, emit: Callable[[Any], None]) -> Any:
        if messages[-1].role == "tool":
            return "seen"
        emit(ItemStart("call", "function_call", name="pay", call_id="c1"))
        emit(ItemDone("call", FinalFunctionCall("pay", "c1", {"amount": 7})))
        await self.is_shown.wait()
        return {"tool_calls": [{"id": "c1", "gate": "pay", "args": {"amount": 7}}]}


@pytest.mark.rule("W-11")
async def test_an_editor_sees_the_arguments_of_a_call_before_the_answer_has_ended() -> None:
    crystal = StreamingCaller()
    async with edited(Cantrip(crystal, circle=Circle(["done", pay], [max_turns(5)]))) as editor:
        session = await new(editor)
        prompt = await editor.begin(
            "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]}
        )

        def find_shown() -> Any:
            return [update for update in editor.updates if update.get("rawInput") == {"amount": 7}]

        (shown,) = await editor.until(find_shown)
        assert shown["status"] == "in_progress"
        crystal.is_shown.set()
        assert await editor.end(prompt) == {"stopReason": "end_turn"}


@pytest.mark.rule("W-11")
async def test_an_editor_sees_a_write_as_a_difference_with_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    path = str(tmp_path / "a.txt")
    says: Any = [call("write", path="./a.txt", content="new"), {"content": "so"}]
    circle = Circle(["done", ask_first(write.with_(root=tmp_path))], [max_turns(5)])
    asked: list[Any] = []

    def allow(params: Any) -> Any:
        asked.append(params["toolCall"])
        return {"outcome": {"outcome": "selected", "optionId": "allow"}}

    async with edited(Cantrip(scripted(says), circle=circle), answers={"session/request_permission": allow}) as editor:
        session = (await editor.ask("session/new", cwd=str(tmp_path), mcpServers=[]))["sessionId"]
        await editor.prompt(session, [{"type": "text", "text": "go"}])
        shown = next(update for update in editor.updates if update.get("kind") == "edit")
    diff = {"type": "diff", "path": path, "oldText": "old", "newText": "new"}
    assert (shown["locations"], shown["content"]) == ([{"path": path}], [diff])
    assert asked[0]["content"][-1] == diff


async def test_a_difference_that_is_read_after_the_write_is_that_of_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    read_old_text, reads = Editor.read_old_text, list[str]()

    async def read(editor: Editor, name: str) -> str | None:
        reads.append(name)
        if len(reads) == 1:  # the call is shown before the question is asked
            while path.read_text() == "old":
                await anyio.sleep(0.01)
        return await read_old_text(editor, name)

    monkeypatch.setattr(Editor, "read_old_text", read)
    says: Any = [call("write", path="./a.txt", content="new"), {"content": "so"}]
    circle = Circle(["done", ask_first(write.with_(root=tmp_path))], [max_turns(5)])
    allow = {"session/request_permission": lambda _: {"outcome": {"outcome": "selected", "optionId": "allow"}}}
    async with edited(Cantrip(scripted(says), circle=circle), answers=allow) as editor:
        session = (await editor.ask("session/new", cwd=str(tmp_path), mcpServers=[]))["sessionId"]
        await editor.prompt(session, [{"type": "text", "text": "go"}])
        shown = next(update for update in editor.updates if update.get("kind") == "edit")
    assert shown["content"] == [{"type": "diff", "path": str(path), "oldText": "old", "newText": "new"}]


@pytest.mark.rule("ACP-15")
async def test_a_terminal_is_released_also_when_the_prompt_is_cancelled() -> None:
    async def never(_: Any) -> Any:
        await anyio.sleep_forever()

    answers: dict[str, Any] = {
        "terminal/create": lambda _: {"terminalId": "t1"},
        "terminal/wait_for_exit": lambda _: {"exitCode": 0},
        "terminal/output": lambda _: {"output": "hello", "truncated": False},
        "terminal/kill": lambda _: {},
        "terminal/release": lambda _: {},
    }
    run = 'terminal {"command": "make", "args": ["test"]}'
    async with edited(helper(), capabilities=ALL, answers=answers, terminal=True) as editor:
        session = await new(editor)
        await editor.prompt(session, run)
        assert "hello" in editor.text()
        assert editor.asked[-1] == "terminal/release"
    async with edited(
        helper(), capabilities=ALL, answers={**answers, "terminal/wait_for_exit": never}, terminal=True
    ) as editor:
        session = await new(editor)
        prompt = await editor.begin("session/prompt", {"sessionId": session, "prompt": run})
        await editor.until(lambda: "terminal/wait_for_exit" in editor.asked)
        await editor.tell("session/cancel", sessionId=session)
        assert await editor.end(prompt) == {"stopReason": "cancelled"}
        await editor.until(lambda: editor.asked[-2:] == ["terminal/kill", "terminal/release"])
    async with edited(helper(), terminal=True) as editor:  # without the capability there is no such gate
        session = await new(editor)
        await editor.prompt(session, run)
        assert editor.asked == []


class _ForgetfulEditor:
    """An editor that refuses to end a terminal: it has forgotten it. `waits` for the end of the program forever."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits

    async def request(self, method: str, _params: Any) -> Any:
        if method == "terminal/wait_for_exit" and self._waits:
            await anyio.sleep_forever()
        if method in ("terminal/kill", "terminal/release"):
            raise RequestError(NOT_FOUND, "there is no such terminal")
        return {"terminalId": "t1", "exitCode": 0, "output": "hello"}


async def run_in_terminal(*, waits: bool) -> Any:
    connection: Any = _ForgetfulEditor(waits=waits)
    lent = Editor(connection, Capabilities(terminal=True), "session", Path("/"), ()).lend(helper(), terminal=True)
    terminal = lent.circle.gate("terminal")
    assert terminal is not None
    assert terminal.function is not None
    return await terminal.function("make", [])


@pytest.mark.rule("ACP-15")
async def test_a_terminal_that_the_editor_cannot_end_hides_neither_the_result_nor_a_cancellation() -> None:
    assert (await run_in_terminal(waits=False))["output"] == "hello"
    with anyio.move_on_after(1) as scope:
        await run_in_terminal(waits=True)
    assert scope.cancelled_caught


# Servers of tools


def adder(name: str = "my_tools") -> Any:
    says = [
        {"tool_calls": [{"gate": f"{name}__process", "args": {}}]},
        {"tool_calls": [{"gate": f"{name}__add", "args": {"a": 1, "b": 2}}]},
        {"tool_calls": [{"gate": "done", "args": {"answer": "added"}}]},
    ]
    return Cantrip(scripted(says * 3), circle=Circle(["done"], [max_turns(9)]), name="adder")


def given(**more: Any) -> list[dict[str, Any]]:
    arguments = [str(ROOT / "tests" / "mcp" / "plain.py")]
    return [{"name": "my-tools", "command": sys.executable, "args": arguments, "env": []} | more]


async def ended(process: int) -> None:
    with anyio.fail_after(10):
        while Path(f"/proc/{process}").exists():
            await anyio.sleep(0.05)


@pytest.mark.real_time
@pytest.mark.rule("ACP-18")
async def test_a_server_of_a_session_ends_with_the_session() -> None:
    async with edited(adder()) as editor:
        session = (await editor.ask("session/new", cwd=str(ROOT), mcpServers=given()))["sessionId"]
        assert await editor.prompt(session, "go") == "end_turn"
        results = [one["rawOutput"]["output"] for one in editor.updates if one.get("status") == "completed"]
        assert results[1] == '{"result":3}'
        await editor.ask("session/close", sessionId=session)
        await ended(int(results[0]))


@pytest.mark.real_time
@pytest.mark.rule("ACP-18")
async def test_a_server_of_the_session_may_be_behind_a_url() -> None:
    async with served() as url, edited(adder()) as editor:
        servers = [{"type": "http", "name": "my-tools", "url": url, "headers": [{"name": "X-Team", "value": "a"}]}]
        session = (await editor.ask("session/new", cwd=str(ROOT), mcpServers=servers))["sessionId"]
        assert await editor.prompt(session, "go") == "end_turn"
        assert {"output": '{"result":3}'} in [one.get("rawOutput") for one in editor.updates]
        await editor.until(lambda: "my_tools__review" in json.dumps(editor.updates))


@pytest.mark.real_time
@pytest.mark.rule("ACP-18")
async def test_a_loaded_session_has_the_servers_that_it_is_loaded_with() -> None:
    async with edited(adder()) as editor:
        session = (await editor.ask("session/new", cwd=str(ROOT), mcpServers=given()))["sessionId"]
        await editor.prompt(session, "go")
        await editor.ask("session/close", sessionId=session)
        await editor.ask("session/resume", sessionId=session, cwd=str(ROOT), mcpServers=given())
        editor.updates.clear()
        assert await editor.prompt(session, "again") == "end_turn"
        assert {"output": '{"result":3}'} in [one.get("rawOutput") for one in editor.updates]


@pytest.mark.real_time
@pytest.mark.rule("ACP-18")
async def test_in_the_mode_ask_the_user_decides_about_tools_of_servers() -> None:
    async with edited(adder()) as editor:
        session = (await editor.ask("session/new", cwd=str(ROOT), mcpServers=given()))["sessionId"]
        await editor.ask("session/set_mode", sessionId=session, modeId="read-only")
        await editor.prompt(session, "go")
        failed = [one["rawOutput"]["output"] for one in editor.updates if one.get("status") == "failed"]
        assert ["can change something" in str(one) for one in failed] == [True, True]


@pytest.mark.rule("ACP-18")
@pytest.mark.parametrize(
    ("servers", "told"),
    [
        ([{"name": "x", "type": "sse", "url": "http://localhost"}], "expected stdio or http, got 'sse'"),
        ([{"name": "x", "type": "http", "url": "ftp://x", "headers": []}], "expected an http or https URL"),
        ([{"command": "x"}], "each with a name"),
        ([{"name": "x", "command": "x", "env": [{"key": "a"}]}], "expected objects with name and value"),
        ({}, None),
        ("x", "expected a list"),
    ],
)
async def test_a_session_with_invalid_servers_is_refused(servers: Any, told: str | None) -> None:
    async with edited(adder()) as editor:
        if told is None:
            assert (await editor.ask("session/new", cwd="/", mcpServers=servers))["sessionId"]
            return
        with pytest.raises(Refused, match=told):
            await editor.ask("session/new", cwd="/", mcpServers=servers)


@pytest.mark.rule("ACP-18")
async def test_a_server_that_does_not_start_is_an_error_of_the_prompt() -> None:
    async with edited(adder()) as editor:
        servers = given(command="/no/such/program")
        session = (await editor.ask("session/new", cwd=str(ROOT), mcpServers=servers))["sessionId"]
        with pytest.raises(Refused, match="server my_tools cannot be used: it did not start: No such file"):
            await editor.prompt(session, "go")


@pytest.mark.rule("W-02")
async def test_a_prompt_is_refused_once_the_allowance_of_the_runtime_is_spent() -> None:
    recipe = helper()
    async with Runtime.open(cantrips=[recipe]) as runtime, edited(recipe, runtime=runtime) as editor:
        runtime.set_allowance(0.0)
        session = await new(editor)
        with pytest.raises(Refused, match=r"may have a cost of \$0 a day, which is spent"):
            await editor.prompt(session, "go")
        assert runtime.loom.entities() == []


@pytest.mark.rule("ACP-16", "N-71")
async def test_a_request_reaches_the_editor_after_the_loom_was_away_for_a_second(tmp_path: Path) -> None:
    recipe = helper()
    async with (
        Runtime.open(f"sqlite:{tmp_path / 'loom.db'}", cantrips=[recipe]) as runtime,
        edited(recipe, runtime=runtime, answers=chooses("allow")) as editor,
    ):
        session = await new(editor)
        await editor.prompt(session, "hello")
        with failing(runtime._tree.store, "entities_at"):
            await anyio.sleep(1)
        assert await editor.prompt(session, 'pay {"amount": 3}') == "end_turn"
        assert editor.asked == ["session/request_permission"]
        assert "it said: paid 3" in editor.text()
