"""A token that is limited to some cantrips reaches no entity of another one, at any route."""

import json
from typing import Any

import anyio
import pytest
from mcp.client import advertise
from mcp.shared.exceptions import MCPError

from cantrip_actors.http.openai import OPENAI_ROUTES
from cantrip_actors.http.table import OPERATIONS, ROUTES
from cantrip_actors.http.token import SCOPES
from tests.http.serving import DISPATCHING, Served, echo, in_process, served, token
from tests.mcp_server.test_http import client_of
from tests.mcp_server.test_tasks import MODERN, TASKS, ask

pytestmark = [pytest.mark.rule("Z-21"), pytest.mark.real_time]

HIDDEN = "the-hidden-words"
LIMITED = token("limited", *(scope for scope in SCOPES if scope != "admin"), cantrips=frozenset({"mine"}))

BODIES: dict[str, Any] = {
    "/casts": {"cantrip": "other", "intent": "hi"},
    "/submissions": {"cantrip": "other", "intent": "hi"},
    "/entities": {"cantrip": "other", "intent": "hi", "name": "new"},
    "/entities/{name}": {"cantrip": "mine"},
    "/entities/{id}/send": {"intent": "hi"},
    "/entities/{id}/steer": {"text": "hi"},
    "/entities/{id}/interrupt": {},
    "/entities/{id}/undo": {},
    "/entities/{id}/compact": {},
    "/entities/{id}/resume": {},
    "/entities/{id}/abandon": {},
    "/requests/{id:path}": {"decision": "allow"},
    "/dispatches": {"contract": "# hi"},
    "/dispatches/{id}/approve": {},
    "/dispatches/{id}/reject": {"reason": "no"},
    "/dispatches/{id}/unblock": {"note": "go on"},
    "/turns/{id}/fork": {"intent": "hi", "cantrip": "mine"},
    "/turns/{id}/rewards": {"reward": 1.0},
    "/v1/chat/completions": {"model": "entity/theirs", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"model": "entity/theirs", "input": "hi"},
    "/v1/responses/{id}/cancel": {},
}
"""The body of each route that takes one."""

OWN = {"/api/v1/cantrips", "/api/v1/entities", "/api/v1/requests", "/api/v1/events", "/api/v1/loom/search"}
OWN |= {"/v1/models"}
"""The lists that have what the token may see; every other route refuses."""


async def _begin(on: Served) -> dict[str, str]:
    """Begin entities of the other cantrip, and return the values for the parameters of routes."""
    other = on.service.cantrips["other"]
    entity = await on.runtime.invoke(other, HIDDEN, name="theirs")
    await entity.episode()
    waiting = await on.runtime.invoke(other, "pay 3", name="waiting")
    while not (requests := on.runtime.requests()):
        await anyio.sleep(0.01)
    await (await on.runtime.submit("other", HIDDEN, key="submitted")).episode()
    receipt = await entity.post(HIDDEN, key="posted")
    await receipt.episode()
    turn = on.runtime.loom.turns(entity.id)[0].id
    assert requests[0].entity == waiting.id
    return {"entity": entity.id, "turn": turn, "request": requests[0].id, "response": f"resp_{entity.id}.posted"}


def _fill(path: str, ids: dict[str, str]) -> str:
    if "/requests/" in path:
        chosen = ids["request"]
    elif "/turns/{id}" in path:
        chosen = ids["turn"]
    elif "/v1/responses" in path and "/api" not in path:
        chosen = ids["response"]
    elif "/v1/models" in path:
        chosen = "entity/theirs"
    else:
        chosen = ids["entity"]
    key = "submitted" if "/submissions/" in path else "posted"
    filled = path.replace("{id:path}", chosen).replace("{id}", chosen).replace("{key:path}", key)
    return filled.replace("{name}", "theirs").replace("{path:path}", "root")


async def test_a_limited_token_reaches_no_entity_of_another_cantrip_at_any_route() -> None:
    async with served([echo("mine"), echo("other")], tokens=[LIMITED]) as on:
        ids = await _begin(on)
        before = sum(1 for _ in on.runtime.loom.headers())
        headers, refused = on.as_token("limited"), []
        for row in (*ROUTES, *OPENAI_ROUTES, *OPERATIONS, *DISPATCHING.whole_routes):
            native = row.path.removeprefix("/api/v1")
            path = _fill(row.path, ids)
            if row.path == "/api/v1/events":
                async with on.stream("events", headers=headers) as stream:
                    first = await stream.next()
                    assert first is not None
                    assert first["data"]["entities"] == []
                continue
            if native == "/loom/search":
                path += f"?q={HIDDEN}"
            body = BODIES[native] if row.body is not None else None
            answered = await on.ask(row.method, path, headers=headers, **({} if body is None else {"json": body}))
            text = answered.text
            if row.path in OWN and row.method == "GET":
                assert answered.status_code == 200, (row.path, text)
                assert not any(value in text for value in (*ids.values(), HIDDEN, "theirs")), (row.path, text)
            else:
                refused.append((row.method, row.path, answered.status_code, text))
        assert [answer for answer in refused if answer[2] not in (403, 404)] == []
        await anyio.sleep(0.2)
        assert sum(1 for _ in on.runtime.loom.headers()) == before
        assert [request.id for request in on.runtime.requests()] == [ids["request"]]
        assert len(on.runtime.loom.turns(ids["entity"])) == 2


async def test_a_limited_token_works_with_the_entities_of_its_cantrip() -> None:
    async with served([echo("mine"), echo("other")], tokens=[LIMITED]) as on:
        headers = on.as_token("limited")
        begun = await on.post("entities", {"cantrip": "mine", "intent": "hi", "name": "ours"}, headers=headers)
        entity = begun["entity_id"]
        sent = await on.post(f"entities/{entity}/send", {"intent": "pay 3"}, 202, headers=headers)
        assert sent["key"]
        while not (listed := (await on.get("requests", headers=headers))["items"]):
            await anyio.sleep(0.05)
        await on.post(f"requests/{listed[0]['id']}", {"decision": "allow"}, 200, headers=headers)
        turns = (await on.get(f"entities/{entity}/turns", headers=headers))["items"]
        await on.post(f"turns/{turns[0]['id']}/fork", {"intent": "hi"}, headers=headers)
        assert (await on.get("entities", headers=headers))["items"]
        assert (await on.get(f"loom/search?q=hi&entity={entity}", headers=headers))["items"]
        assert json.dumps(await on.get(f"loom/stats?entity={entity}", headers=headers))


async def test_a_limited_token_reaches_no_entity_of_another_cantrip_as_an_mcp_client() -> None:
    async with served([echo("mine"), echo("other")], tokens=[LIMITED]) as on:
        ids = await _begin(on)
        async with client_of(on, MODERN, "limited", extensions=[advertise(TASKS)]) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            assert tools == ["mine", "mine_send", "mine_fork", "continue"]
            for tool, named in (("mine_send", ids["entity"]), ("mine_fork", ids["entity"]), ("mine_fork", ids["turn"])):
                parameter = "entity_id" if tool == "mine_send" else "turn"
                assert (await client.call_tool(tool, {"intent": "hi", parameter: named})).is_error
            assert not (await client.list_resources()).resources
            for uri in (f"cantrip://entities/{ids['entity']}", f"cantrip://turns/{ids['turn']}"):
                with pytest.raises(MCPError, match="not found"):
                    await client.read_resource(uri)
            for method in ("tasks/get", "tasks/cancel"):
                with pytest.raises(MCPError, match="task not found"):
                    await ask(client, method, taskId=ids["entity"])
        assert len(on.runtime.loom.turns(ids["entity"])) == 2


@pytest.mark.parametrize("path", ["casts", "submissions"])
async def test_a_key_of_a_hidden_entity_is_refused_without_its_id_and_its_cantrip(path: str) -> None:
    hidden, body = echo("hidden-cantrip"), {"cantrip": "mine", "intent": "hi", "wait": 5}
    async with in_process([echo("mine"), hidden], LIMITED) as on:
        headers = {"idempotency-key": "job"}
        first = await on.post(path, {**body, "cantrip": "hidden-cantrip"}, 200, headers=headers)
        refused = await on.ask("POST", path, 422, json=body, headers=headers | on.as_token("limited"))
        assert refused.json()["type"] == "urn:cantrip:idempotency-key-reused"
        assert "cantrip: use another key" in refused.json()["detail"]
        assert first["entity_id"] not in refused.text
        assert "hidden-cantrip" not in refused.text
