"""Chats of front ends: what the published clients cannot show (tests/clients tries those)."""

import json
import threading
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, ask_first, gate, scripted
from cantrip_actors.http import chats
from cantrip_actors.http.ag_ui import AgUiEvents
from cantrip_actors.http.front_ends import FrontEndEncoder
from cantrip_actors.http.ui_messages import UiMessages
from cantrip_actors.stream.events import EpisodeEndedEvent
from cantrip_actors.stream.reading import EventLog
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


@pytest.mark.rule("W-41")
async def test_a_new_message_to_a_chat_that_waits_for_a_person_is_refused_at_once() -> None:
    @gate
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    def answer(context: Any) -> Any:
        last = context[-1]
        asks = last.role == "user" and last.content == "pay"
        return {"tool_calls": [{"gate": "pay", "args": {"amount": 3}}]} if asks else {"content": f"so: {last.content}"}

    cantrip = Cantrip(scripted(answer), circle=Circle(["done", ask_first(pay)], [max_turns(5)]), name="echo")
    async with in_process([cantrip]) as on:
        asked = await parts_of(on, say("pay"))
        (request,) = on.runtime.requests()
        refused = (await on.ask("POST", "chat/echo", 409, json=say("never mind", id="m2"))).json()
        assert refused["type"] == "urn:cantrip:waits-for-person"
        assert f"decide the request {request.id} before the next message" in refused["detail"]
        run = {"threadId": "bob", "runId": "r", "messages": [{"id": "m3", "role": "user", "content": "never mind"}]}
        assert (await on.ask("POST", "ag-ui/echo", 409, json=run)).json()["type"] == refused["type"]
        assert await parts_of(on, say("pay")) == asked  # the same message follows its own work
        await on.runtime.decide(request.id, "deny")
        deltas = [
            part["delta"] for part in await parts_of(on, say("and now?", id="m4")) if part["type"] == "text-delta"
        ]
        assert deltas == ["so: and now?"]


@pytest.mark.rule("W-41")
async def test_the_log_of_a_chat_is_read_beside_the_event_loop_when_an_answer_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []

    class Log(EventLog):
        """Notes the thread in which a log is read."""

        def add_all(self, records: Any) -> Any:
            threads.append(threading.current_thread())
            return super().add_all(records)

    async with in_process([echo()]) as on:
        await parts_of(on, say("hello"))
        monkeypatch.setattr(chats, "EventLog", Log)
        output = {"type": "tool-pay", "toolCallId": "c1", "state": "output-available", "output": 1}
        body = {"id": "bob", "messages": [{"id": "a1", "role": "assistant", "parts": [output]}]}
        await on.ask("POST", "chat/echo", 422, json=body)
        result = {"id": "m2", "role": "tool", "toolCallId": "c1", "content": "1"}
        await on.ask("POST", "ag-ui/echo", 422, json={"threadId": "bob", "runId": "r", "messages": [result]})
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_an_edited_message_of_a_chat_is_refused_with_what_to_do() -> None:
    async with in_process([echo()]) as on:
        await parts_of(on, say("hello"))
        refused = (await on.ask("POST", "chat/echo", 409, json=say("hallo"))).json()
        assert "the message m1 was sent before with other content" in refused["detail"]
        keyed = {"headers": {"idempotency-key": "k"}}
        await on.ask("POST", "chat/echo", 200, json=say("one", id="m2"), **keyed)
        again = await on.ask("POST", "chat/echo", 422, json=say("two", id="m3"), **keyed)
        assert again.json()["type"] == "urn:cantrip:idempotency-key-reused"


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
        again = (await on.ask("POST", "chat/echo", 409, json=answer)).json()
        assert again["type"] == "urn:cantrip:already-decided"
        assert "allow; the first decision counts" in again["detail"]
        nothing = {"id": "bob", "messages": [{"id": "a1", "role": "assistant", "parts": []}]}
        await on.ask("POST", "chat/echo", 422, json=nothing)


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
