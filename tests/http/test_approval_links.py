"""Approval links: with one, a person sees one call and decides it once, until the link expires."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx
import pytest

from cantrip_actors import Cantrip, Circle, Webhook, ask_first, gate, scripted
from cantrip_actors.runtime.people.approval_link import PATH, PURPOSE, make_link_token
from cantrip_actors.wards import max_turns
from tests.http.serving import served
from tests.runtime.test_webhooks import SECRET, receiving

pytestmark = [pytest.mark.rule("W-12"), pytest.mark.real_time]


@gate
async def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


def payer() -> Cantrip:
    def answer(context: Any) -> Any:
        last = context[-1]
        return str(last.content) if last.role == "tool" else {"tool_calls": [{"gate": "pay", "args": {"to": "<b>"}}]}

    return Cantrip(scripted(answer), circle=Circle(["done", ask_first(pay)], [max_turns(5)]), name="payer")


@pytest.mark.parametrize(("decision", "result"), [("allow", "paid <b>"), ("deny", "denied")])
async def test_a_link_of_a_message_shows_the_call_and_takes_one_decision(decision: str, result: str) -> None:
    with receiving() as receiver:
        hook = Webhook(receiver.url, SECRET, allow_private=True, links="https://agents.example/")
        async with served([payer()], options={"webhooks": [hook]}) as on, httpx.AsyncClient(base_url=on.url) as person:
            entity = await on.runtime.start(payer(), "pay")
            await receiver.wait_for(1)
            link = receiver.messages[0][1]["data"]["link"]
            assert link.startswith(f"https://agents.example{PATH}")
            path = link.removeprefix("https://agents.example")
            page = await person.get(path)
            assert (page.status_code, "wants to call pay" in page.text, "<b>" in page.text) == (200, True, False)
            assert "script" not in page.headers["content-security-policy"]
            assert (await person.post(path, data={"decision": "maybe"})).status_code == 422
            assert (await person.post(path, data={"decision": decision})).status_code == 200
            assert result in str((await entity.episode()).result)
            assert (await person.get(path)).status_code == 410
            assert (await person.post(path, data={"decision": "allow"})).status_code in (409, 410)


async def test_forged_expired_and_foreign_links_are_refused() -> None:
    async with served([payer()]) as on, httpx.AsyncClient(base_url=on.url) as person:
        entity = await on.runtime.start(payer(), "pay")
        async with on.runtime.requests(follow=True) as requests:
            request = await anext(requests)
        key, later = on.runtime.derive_key(PURPOSE), int(time.time()) + 60
        token = make_link_token(key, request.id, later)
        forged = [make_link_token(b"other", request.id, later), token[:-2], "x", "%00.%00", token.replace(".", "A.", 1)]
        expired = make_link_token(key, request.id, int(time.time()) - 1)
        unknown = make_link_token(key, "none:1", later)
        for path, status in [*((other, 404) for other in forged), (expired, 410), (unknown, 410)]:
            assert (await person.get(PATH + path)).status_code == status, path
            assert (await person.post(PATH + path, data={"decision": "allow"})).status_code == status, path
        assert [waiting.id for waiting in await on.runtime.list_requests()] == [request.id]
        assert re.fullmatch(r"[A-Za-z0-9_.-]+", token)
        assert (await person.post(PATH + token, data={"decision": "allow"})).status_code == 200
        assert (await entity.episode()).result == "paid <b>"


def says() -> Cantrip:
    """A cantrip that says something to a person, and answers with the reply."""

    def answer(context: Any) -> Any:
        last = context[-1]
        if any(message.role == "assistant" for message in context):
            return {"tool_calls": [{"gate": "done", "args": {"answer": last.content}}]}
        return "Which one?"

    return Cantrip(scripted(answer), circle=Circle(["done"], [max_turns(5)], medium="person"), name="interviewer")


def asks() -> Cantrip:
    """A cantrip that asks a person for a number, and answers with it."""

    def answer(context: Any) -> Any:
        last = context[-1]
        args = {"text": "How many?", "schema": {"type": "integer"}}
        call = {"gate": "question", "args": args}
        if last.role == "tool":
            call = {"gate": "done", "args": {"answer": last.content}}
        return {"tool_calls": [call]}

    return Cantrip(scripted(answer), circle=Circle(["done", "question"], [max_turns(5)]), name="asker")


async def test_a_link_takes_the_reply_to_an_utterance() -> None:
    with receiving() as receiver:
        hook = Webhook(receiver.url, SECRET, allow_private=True, links="https://agents.example/")
        async with served([says()], options={"webhooks": [hook]}) as on:
            entity = await on.runtime.start(says(), "ask")
            await receiver.wait_for(1)
            path = receiver.messages[0][1]["data"]["link"].removeprefix("https://agents.example")
            async with httpx.AsyncClient(base_url=on.url) as person:
                page = await person.get(path)
                assert "Which one?" in page.text
                assert "textarea" in page.text
                assert "Allow" not in page.text
                for form in ({"decision": "allow"}, {"reply": " \r\n"}):
                    assert (await person.post(path, data=form)).status_code == 422
                assert (await person.post(path, data={"reply": "the <b>\r\nred one"})).status_code == 200
                assert (await entity.episode()).result == "the <b>\nred one"
                assert (await person.post(path, data={"reply": "again"})).status_code == 410


async def test_a_link_takes_the_answer_to_a_question_that_fits_its_schema() -> None:
    async with served([asks()]) as on, httpx.AsyncClient(base_url=on.url) as person:
        entity = await on.runtime.start(asks(), "ask")
        async with on.runtime.requests(follow=True) as requests:
            request = await anext(requests)
        path = PATH + make_link_token(on.runtime.derive_key(PURPOSE), request.id, int(time.time()) + 60)
        refused = await person.post(path, data={"reply": "many"})
        assert (refused.status_code, "integer" in refused.text) == (422, True)
        assert (await person.post(path, data={"reply": "12"})).status_code == 200
        assert (await entity.episode()).result == "12"
