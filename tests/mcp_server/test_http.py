"""`/mcp` of a service: tokens, tenants, hosts, sessions, cancellation by hanging up, and the end of the service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, types
from mcp.client import advertise
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.http.serving import ADMIN, Served, served, token
from tests.mcp_server.clients import ERAS, helper
from tests.mcp_server.test_requests import user
from tests.mcp_server.test_tasks import MODERN, TASKS, ask, begin

pytestmark = [
    pytest.mark.real_time,
    # the SDK's client leaves the streams of a session to the garbage collector, of which trio warns
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]
BOTH = pytest.mark.parametrize("era", ERAS)


@asynccontextmanager
async def client_of(on: Served, era: str, name: str = "admin", **options: Any) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {name}-token"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(f"{on.url}/mcp", http_client=http), mode=era, **options) as client,
    ):
        yield client


async def until(holds: Any) -> None:
    with anyio.fail_after(30):
        while not holds():
            await anyio.sleep(0.02)


@pytest.mark.rule("MCP-13", "HTTP-02")
@BOTH
async def test_a_tool_is_called_over_http_with_progress_and_an_approval(era: str) -> None:
    told: list[float] = []

    async def hear(progress: float, _total: float | None, _message: str | None) -> None:
        told.append(progress)

    async with served([helper()]) as on:
        async with client_of(on, era, elicitation_callback=user({"decision": "allow"})) as client:
            result = await client.call_tool("helper", {"intent": "pay 3"}, progress_callback=hear)
            assert result.structured_content is not None
            assert result.structured_content["result"] == "it said: paid 3"
        (turn, *_) = on.runtime.loom.turns(result.structured_content["entity_id"])
        assert turn.decisions[0].door == "token:admin"
        assert told


@pytest.mark.rule("MCP-16")
@BOTH
async def test_a_cancelled_request_stops_the_entity(era: str) -> None:
    async with served([helper()]) as on, client_of(on, era) as client:
        loom = on.runtime.loom
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "helper", {"intent": "nap 60"})
            await until(lambda: [one for one in loom.headers() if loom.state(one.entity_id) == "active"])
            tasks.cancel_scope.cancel()
        (header,) = loom.headers()
        await until(lambda: loom.is_over(header.entity_id))


async def test_cantrips_whose_tools_clash_are_an_error_and_not_a_crash() -> None:
    async with served([helper("a"), helper("a_send")]) as on:
        for _ in range(2):
            answered = await on.ask("POST", "/mcp", json={})
            assert (answered.status_code, answered.json()["type"]) == (422, "urn:cantrip:invalid-cantrip")
        assert (await on.get("cantrips"))["items"]


@pytest.mark.rule("HTTP-11", "HTTP-12")
@BOTH
async def test_tokens_and_tenants_hold_for_tools_and_resources(era: str) -> None:
    tokens = [
        token("reader", "read", tenant="a"),
        token("a", "cast", "send", "read", tenant="a"),
        token("b", "cast", "send", "read", tenant="b"),
        token("narrow", "cast", tenant="a", cantrips=frozenset({"other"})),
    ]
    async with served([helper(), helper("other")], tokens=tokens) as on:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            async with httpx2.AsyncClient() as bare:
                assert (await bare.post(f"{on.url}/mcp", json={}, headers=headers)).status_code == 401
        async with client_of(on, era, "a") as client:
            result = await client.call_tool("helper_send", {"intent": "hello"})
            assert result.structured_content is not None
            entity = result.structured_content["entity_id"]
        async with client_of(on, era, "b") as client:
            assert (await client.call_tool("helper_send", {"intent": "x", "entity_id": entity})).is_error
            assert not (await client.list_resources()).resources
            with pytest.raises(MCPError, match="not found"):
                await client.read_resource(f"cantrip://entities/{entity}")
        async with client_of(on, era, "reader") as client:
            assert not (await client.list_tools()).tools
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool("helper", {"intent": "x"})
            assert (await client.read_resource(f"cantrip://entities/{entity}")).contents
        async with client_of(on, era, "narrow") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["other", "other_fork", "continue"]


@pytest.mark.rule("HTTP-19", "W-41")
@BOTH
async def test_a_token_that_may_not_approve_is_not_asked(era: str) -> None:
    async with served([helper()], tokens=[token("caster", "cast", tenant="a")]) as on:
        options = {"elicitation_callback": user({"decision": "allow"})}
        async with client_of(on, era, "caster", **options) as client:
            waiting = await client.call_tool("helper", {"intent": "pay 3"})
            waits = waiting.structured_content["waits"]
            (request,) = on.runtime.requests()
            assert [one["id"] for one in waits["requests"]] == [request.id]
            assert waits["link"] == f"{on.url}/#/e/{request.entity}"
            await on.runtime.decide(request.id, "deny", by="anna")
            done = await client.call_tool("continue", {"id": waits["id"]})
            assert "denied" in done.content[0].text


async def test_a_request_about_a_task_has_to_name_it_in_its_header() -> None:
    async with served([helper()]) as on:
        options: Any = {"extensions": [advertise(TASKS)]}
        async with client_of(on, MODERN, **options) as client:
            entity = (await begin(client, "hello"))["structuredContent"]["entity_id"]
            assert (await ask(client, "tasks/get", taskId=entity))["status"] == "completed"
            with pytest.raises(MCPError) as refused:
                await ask(client, "tasks/get", kind=types.Request[dict[str, Any], str], taskId=entity)
            assert refused.value.code == -32020


@pytest.mark.rule("HTTP-13")
async def test_other_hosts_and_sites_are_refused() -> None:
    async with served([helper()]) as on, httpx2.AsyncClient() as bare:
        headers = {"authorization": f"Bearer {ADMIN}"}
        for more, status in (({"host": "evil.example"}, 421), ({"origin": "https://evil.example"}, 403)):
            assert (await bare.post(f"{on.url}/mcp", json={}, headers=headers | more)).status_code == status


async def test_a_session_belongs_to_the_token_that_began_it() -> None:
    async with served([helper()], tokens=[token("other", "cast")]) as on, httpx2.AsyncClient() as bare:
        headers = {
            "authorization": f"Bearer {ADMIN}",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2025-11-25",
        }
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        begun = await bare.post(f"{on.url}/mcp", json=message, headers=headers)
        assert begun.status_code == 200
        headers["mcp-session-id"] = begun.headers["mcp-session-id"]
        listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        stolen = headers | {"authorization": "Bearer other-token"}
        assert (await bare.post(f"{on.url}/mcp", json=listed, headers=stolen)).status_code == 404
        assert (await bare.post(f"{on.url}/mcp", json=listed, headers=headers)).status_code == 200


@pytest.mark.rule("HTTP-13")
async def test_pages_of_an_allowed_site_may_send_the_headers_of_the_protocol() -> None:
    site = "https://inspector.example"
    async with served([helper()], origins=[site]) as on, httpx2.AsyncClient() as page:
        asked = {"origin": site, "access-control-request-method": "POST"}
        allowed = (await page.options(f"{on.url}/mcp", headers=asked)).headers["access-control-allow-headers"]
        assert {"MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name"} <= set(allowed.split(", "))
        headers = {"origin": site, "authorization": f"Bearer {ADMIN}"}
        answered = await page.post(f"{on.url}/mcp", json={}, headers=headers)
        assert "Mcp-Session-Id" in answered.headers["access-control-expose-headers"]
