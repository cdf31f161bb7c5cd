"""Chats of front ends: what the published clients cannot show (tests/clients tries those)."""

import json
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, gate, scripted
from cantrip_actors.http.ag_ui import AgUiEvents
from cantrip_actors.http.front_ends import FrontEndEncoder
from cantrip_actors.http.ui_messages import UiMessages
from cantrip_actors.stream.events import EpisodeEndedEvent
from cantrip_actors.wards import max_turns
from tests.http.serving import Served, echo, in_process, served, token

pytestmark = [pytest.mark.real_time, pytest.mark.rule("W-24")]


def say(text: str, chat: str = "bob", id: str = "m1") -> dict[str, Any]:
    message = {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": chat, "trigger": "submit-message", "messages": [message]}


async def parts_of(on: Served, body: Any, **more: Any) -> list[dict[str, Any]]:
    answer = await on.ask("POST", "chat/echo", 200, json=body, **more)
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_repeated_message_of_a_chat_is_answered_once() -> None:
    async with served() as on:
        first, second = await parts_of(on, say("hello")), await parts_of(on, say("hello"))
        assert first == second
        assert first[0]["messageId"].endswith(".chat:m1")
        (entity,) = on.runtime.loom.entities()
        assert len(on.runtime.loom.turns(entity)) == 1
        assert (await on.ask("GET", "chat/echo/bob/stream")).status_code == 204
        assert (await on.ask("GET", "chat/echo/nobody/stream")).status_code == 204


async def test_an_answer_is_not_taken_back_for_a_caller_that_may_not_have_another_one() -> None:
    dear = scripted(lambda context: {"content": f"{len(context)} messages", "usage": {"cost": 1.0}})
    cantrip = Cantrip(dear, circle=Circle(["done"], [max_turns(3)]), name="echo")
    poor = token("poor", "read", "cast", "send", max_cost_per_day=0.5)
    async with in_process([cantrip], poor) as on:
        headers = on.as_token("poor")
        await on.ask("POST", "chat/echo", 200, json=say("hello"), headers=headers)
        again = {**say("hello"), "trigger": "regenerate-message"}
        await on.ask("POST", "chat/echo", 429, json=again, headers=headers)
        entity = on.runtime.entity("bob")
        assert entity is not None
        assert await entity.undo()  # it is still there


async def test_a_chat_is_refused_actions_without_the_scope_of_its_token() -> None:
    tokens = [token("reader", "read"), token("talker", "read", "cast", "send")]
    async with served([echo(), echo("other")], tokens=tokens) as on:
        await on.ask("POST", "chat/echo", 403, json=say("hello"), headers=on.as_token("reader"))
        assert not on.runtime.loom.entities()
        asked = await parts_of(on, say("pay 3"), headers=on.as_token("talker"))
        request = next(part for part in asked if part["type"] == "tool-approval-request")
        approval = {"id": request["approvalId"], "approved": True}
        part = {"toolCallId": request["toolCallId"], "state": "approval-responded", "approval": approval}
        answer = {"id": "bob", "messages": [{"id": "a1", "role": "assistant", "parts": [part]}]}
        await on.ask("POST", "chat/echo", 403, json=answer, headers=on.as_token("talker"))
        assert len(on.runtime.requests()) == 1
        await on.ask("POST", "chat/other", 409, json=say("hello", id="m2"))
        await on.ask("POST", "chat/nobody", 404, json=say("hello", id="m2"))
        rest = await parts_of(on, answer)
        assert {"type": "tool-output-available", "toolCallId": request["toolCallId"], "output": "paid 3"} in rest
        await on.ask("POST", "chat/echo", 422, json=answer)


async def test_an_episode_is_the_same_parts_live_and_from_the_loom() -> None:
    @gate
    async def broken() -> str:
        """Fail."""
        raise ValueError("it broke")

    script: Any = [
        {"content": "I try.", "thinking": "hm", "tool_calls": [{"gate": "broken", "args": {}}]},
        {"content": "So.", "tool_calls": [{"gate": "done", "args": {"answer": {"n": 3}}}]},
    ]
    cantrip = Cantrip(scripted(script), circle=Circle(["done", broken], [max_turns(5)]), name="echo")
    async with served([cantrip]) as on:
        live = await parts_of(on, say("go"))
        (entity,) = on.runtime.loom.entities()
        for dialect in (UiMessages(live[0]["messageId"]), AgUiEvents("bob", "r1", "w")):
            encoder = FrontEndEncoder(dialect)
            parts = list(encoder.begin())
            async for event in on.runtime.get_entity(entity).events("0"):
                parts += encoder.add(event)
                if isinstance(event, EpisodeEndedEvent):
                    break
            kinds = [part["type"] for part in parts]
            assert parts == live or kinds[0] == "RUN_STARTED"
            assert kinds[-1] in ("finish", "RUN_FINISHED")
            assert len(kinds) > 12
        texts = [part["delta"] for part in live if part["type"] == "text-delta"]
        assert texts == ["I try.", "So.", '{"n":3}']
        (failure,) = (part for part in live if part["type"] == "tool-output-error")
        assert "it broke" in failure["errorText"]
        assert [part["type"] for part in live].count("start-step") == 2
