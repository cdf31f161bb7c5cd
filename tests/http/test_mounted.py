"""A service below the prefix of an application that mounts it."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from cantrip_actors import Runtime
from cantrip_actors.http import Service, make_app
from cantrip_actors.http.live_page import assets
from cantrip_actors.http.token import SCOPES
from tests.http.serving import ADMIN, ECHO, IN_PROCESS, in_process, token

PREFIX = "/our agents, 100%25 ours"
SENT = "/our%20agents%2C%20100%2525%20ours"


def mount_in_starlette(*apps: Any, prefixes: Sequence[str] = (PREFIX,)) -> Any:
    return Starlette(routes=[Mount(prefix, app) for prefix, app in zip(prefixes, apps, strict=True)])


def mount_in_fastapi(app: Any) -> Any:
    host = FastAPI()
    host.mount(PREFIX, app)
    return host


async def test_a_mounted_service_that_its_application_did_not_open_says_how_to_open_it() -> None:
    async with Runtime.open("memory:", cantrips=[ECHO]) as runtime:
        transport = httpx.ASGITransport(mount_in_starlette(make_app(Service(runtime, tokens=None))))
        async with httpx.AsyncClient(transport=transport, base_url=IN_PROCESS) as client:
            for path in ("/", "/api/v1/entities", "/api/v1/events"):
                refused = await client.get(SENT + path)
                assert (refused.status_code, "service.open()" in refused.json()["detail"]) == (503, True)


@pytest.mark.rule("HTTP-13")
@pytest.mark.parametrize("mount", [mount_in_starlette, mount_in_fastapi])
async def test_every_address_that_a_mounted_service_returns_leads_back_to_it(mount: Any) -> None:
    async with in_process([ECHO]) as on:
        headers = {"authorization": f"Bearer {ADMIN}"}
        transport = httpx.ASGITransport(mount(on.app))
        async with httpx.AsyncClient(transport=transport, base_url=IN_PROCESS, headers=headers) as client:
            page = await client.get(f"{SENT}/")
            assert (page.status_code, page.text) == (200, assets()["/"])
            for path in assets():
                assert path == "/" or path[1:] in page.text or not path.endswith(("app.js", "page.css"))
                assert (await client.get(SENT + path)).text == assets()[path]

            begun = await client.post(f"{SENT}/api/v1/entities", json={"cantrip": "echo", "intent": "hi", "name": "a"})
            posted = await client.post(f"{SENT}/api/v1/entities/a/send", json={"intent": "again"})
            submitted = await client.post(f"{SENT}/api/v1/submissions", json={"cantrip": "echo", "intent": "hi"})
            for answered in (begun, posted, submitted):
                assert answered.headers["location"].startswith(f"{SENT}/api/v1/entities/")
            for answered in (begun, posted):
                assert (await client.get(answered.headers["location"])).status_code == 200

            body = {"model": "echo", "messages": [{"role": "user", "content": "pay 3"}]}
            waiting = (await client.post(f"{SENT}/v1/chat/completions", json=body)).json()
            link = waiting["metadata"]["link"]
            assert link.startswith(f"{IN_PROCESS}{SENT}/#/e/")

            assert (await client.get(f"{SENT}/api/v1/openapi.json")).json()["servers"] == [{"url": SENT}]
            assert "error" in (await client.get(f"{SENT}/v1/nothing")).json()
            refused = await client.post(f"{SENT}/mcp", headers={"authorization": "Bearer wrong"})
            assert refused.status_code == 401
            place = refused.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]
            assert (await client.get(place)).json()["resource"] == f"{IN_PROCESS}{SENT}/mcp"


@pytest.mark.rule("HTTP-13")
@pytest.mark.parametrize("address", ["http://localhost:8000", "https://localhost"])
async def test_services_of_one_host_have_a_login_each(address: str) -> None:
    tokens = [token(name, *SCOPES) for name in ("outer", "inner")]
    async with in_process([ECHO], tokens[0]) as outer, in_process([ECHO], tokens[1]) as inner:
        app = mount_in_starlette(inner.app, outer.app, prefixes=["/a/b", "/a"])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=address) as page:
            for prefix, name in (("/a", "outer"), ("/a/b", "inner")):
                await page.post(f"{prefix}/session", headers={"authorization": f"Bearer {name}-token"})
            for prefix, name in (("/a", "outer"), ("/a/b", "inner")):
                session = await page.get(f"{prefix}/session")
                assert (session.status_code, session.json()["name"]) == (200, name)


@pytest.mark.rule("HTTP-13")
async def test_services_at_two_ports_of_one_host_have_a_login_each() -> None:
    async with in_process([ECHO], token("a", *SCOPES)) as one, in_process([ECHO], token("b", *SCOPES)) as two:
        cookies = httpx.Cookies()
        for on, port, name in ((one, 8000, "a"), (two, 8001, "b")):
            transport, url = httpx.ASGITransport(on.app), f"http://localhost:{port}"
            async with httpx.AsyncClient(transport=transport, base_url=url) as page:
                await page.post("/session", headers={"authorization": f"Bearer {name}-token"})
                cookies.update(page.cookies)
        for on, port, name in ((one, 8000, "a"), (two, 8001, "b")):
            transport, url = httpx.ASGITransport(on.app), f"http://localhost:{port}"
            async with httpx.AsyncClient(transport=transport, base_url=url, cookies=cookies) as page:
                assert (await page.get("/session")).json()["name"] == name
