"""`GET /turns/{id}/input` and the page show what a model was given, to those with the scope for it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from cantrip_actors import Call, Cantrip, Circle, scripted
from cantrip_actors.http.token import SCOPES
from cantrip_actors.wards import max_turns
from tests.http.serving import served, token
from tests.runtime.test_model_input import PIXEL

pytestmark = [pytest.mark.real_time, pytest.mark.rule("W-33")]

KEY = "sk-ant-api03-" + "A1b2C3d4" * 11 + "-AA"


def answer(context: Any) -> Any:
    return f"you said: {context[-1].content}"


def secretive() -> Cantrip:
    """A cantrip with a secret in its system prompt."""
    return Cantrip(
        scripted(answer), Call(system_prompt=f"Key: {KEY}"), Circle(["done"], [max_turns(9)]), name="secretive"
    )


async def test_only_a_token_with_the_scope_reads_inputs_of_its_own_entities() -> None:
    others = [scope for scope in SCOPES if scope not in ("inputs", "admin")]
    tokens = [
        token("all", *others, tenant="a"),
        token("reader", "inputs", tenant="a"),
        token("stranger", "inputs", tenant="b"),
        token("narrow", "inputs", tenant="a", cantrips=frozenset({"other"})),
    ]
    async with served([secretive()], tokens=tokens) as on:
        cast = {"cantrip": "secretive", "intent": "hello", "wait": 9}
        begun = await on.post("casts", cast, 200, headers=on.as_token("all"))
        (turn,) = (await on.get(f"entities/{begun['entity_id']}/turns"))["items"]
        path = f"turns/{turn['id']}/input"
        refused = await on.ask("GET", path, 403, headers=on.as_token("all"))
        assert refused.json()["scope"] == "inputs"
        for stranger in ("stranger", "narrow"):
            await on.ask("GET", path, 404, headers=on.as_token(stranger))
        given = await on.get(path, headers=on.as_token("reader"))
        assert [message["role"] for message in given["messages"]] == ["system", "user"]
        assert given["messages"][1]["content"] == "hello"
        assert given["messages"][0]["content"].startswith("Key: ")
        assert KEY not in str(given)
        assert KEY in str(await on.get(path))  # the administrator may see secrets
        await on.ask("GET", "turns/nothing/input", 404, headers=on.as_token("reader"))


async def test_an_input_has_its_images_calls_and_results() -> None:
    image = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    async with served() as on:
        cast = {"cantrip": "echo", "intent": "nap 0", "images": [image], "wait": 9}
        begun = await on.post("casts", cast, 200)
        turns = (await on.get(f"entities/{begun['entity_id']}/turns"))["items"]
        given = await on.get(f"turns/{turns[-1]['id']}/input")
        intent, call, result = given["messages"]
        assert intent["images"][0]["url"] == image
        assert call["tool_calls"][0]["gate"] == "nap"
        assert call["tool_calls"][0]["args"] == {"seconds": 0}
        assert (result["role"], result["gate"], result["content"]) == ("tool", "nap", "slept")
        assert [tool["name"] for tool in given["tools"]] == ["done", "nap", "shield", "build", "pay"]
        assert given["is_exact"] is True


async def test_the_input_of_a_turn_that_was_erased_is_gone() -> None:
    async with served() as on:
        begun = await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 9}, 200)
        (turn,) = (await on.get(f"entities/{begun['entity_id']}/turns"))["items"]
        await on.runtime.forget(begun["entity_id"])
        assert (await on.get(f"turns/{turn['id']}/input", 409))["type"] == "urn:cantrip:forgotten"


@pytest.mark.parametrize("form", ["chat", "pairs", "atif"])
async def test_an_export_with_prompts_needs_the_scope_for_inputs(form: str) -> None:
    tokens = [token("reader", "read", "cast", tenant="a"), token("both", "read", "inputs", tenant="a")]
    async with served([secretive()], tokens=tokens) as on:
        reader, both = on.as_token("reader"), on.as_token("both")
        await on.post("casts", {"cantrip": "secretive", "intent": "hello", "wait": 9}, 200, headers=reader)
        refused = await on.ask("GET", f"loom/export?format={form}", 403, headers=reader)
        assert refused.json()["scope"] == "inputs"
        assert "Key: " not in (await on.ask("GET", "loom/export", 200, headers=reader)).text
        exported = await on.ask("GET", f"loom/export?format={form}", 200, headers=both)
        assert ("Key: " in exported.text) == (form != "pairs")  # one entity makes no pair
