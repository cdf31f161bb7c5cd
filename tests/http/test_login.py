"""People and connectors that log in at an authorization server: what finds it, which tokens count, and for how long."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx
import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

from cantrip_actors.http import InvalidTokens, Tokens
from cantrip_actors.http.tokens import digest_of
from tests.http.login import LoginServer, login_server
from tests.http.serving import ADMIN, Served, open_stream, served
from tests.mcp_server.clients import ERAS, helper

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.rule("W-32"),
    # the SDK's client leaves the streams of a session to the garbage collector, of which trio warns
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

SCOPES = '["read", "cast", "send"]'


def write(path: Path, issuer: str, resource: str, more: str = "", scopes: str = SCOPES) -> Path:
    """Write a file of tokens with an authorization server, and an administrator's token."""
    path.write_text(
        f'[[token]]\nname = "admin"\nsha256 = "{digest_of(ADMIN)}"\nscopes = ["admin"]\n\n'
        f'[[issuer]]\nname = "login"\nurl = "{issuer}"\nresource = "{resource}"\nscopes = {scopes}\n{more}\n'
    )
    return path


@asynccontextmanager
async def served_with_login(tmp_path: Path, more: str = "") -> AsyncIterator[tuple[Served, LoginServer, Path]]:
    async with login_server() as login, served([helper("helper")]) as on:
        path = write(tmp_path / "tokens.toml", login.url, on.url, more)
        on.service.tokens = Tokens.of_file(path)
        yield on, login, path


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


class Storage:
    """Keeps what a client got, for as long as the test."""

    tokens: Any = None
    client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


def make_login(url: str) -> OAuthClientProvider:
    """Return a login of the SDK whose person agrees to everything at once."""
    redirect = "http://127.0.0.1:1/callback"
    seen: list[str] = []

    async def open_browser(link: str) -> None:
        async with httpx.AsyncClient() as browser:
            seen.append((await browser.get(link)).headers["location"])

    async def wait_for_code() -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(seen[-1]).query)
        return AuthorizationCodeResult(code=query["code"][0], state=query["state"][0])

    metadata = OAuthClientMetadata.model_validate({"redirect_uris": [redirect], "client_name": "a connector"})
    return OAuthClientProvider(url, metadata, Storage(), open_browser, wait_for_code)


@pytest.mark.parametrize("era", ERAS)
async def test_a_connector_that_knows_only_the_url_logs_in_and_calls_a_tool(era: str, tmp_path: Path) -> None:
    async with served_with_login(tmp_path) as (on, login, _):
        url = f"{on.url}/mcp"
        async with (
            httpx2.AsyncClient(auth=make_login(url), timeout=30) as http,
            Client(streamable_http_client(url, http_client=http), mode=era) as client,
        ):
            assert [tool.name for tool in (await client.list_tools()).tools] == [
                "helper",
                "helper_send",
                "helper_fork",
                "continue",
            ]
            result = await client.call_tool("helper", {"intent": "hi"})
        assert result.structured_content is not None
        assert result.structured_content["result"] == "intent 1: hi"
        assert (login.resources, login.scopes) == ([url], ["read cast send"])
        assert on.runtime.loom.entities()


async def test_a_renewed_token_continues_the_session_of_a_connector(tmp_path: Path) -> None:
    async with served_with_login(tmp_path) as (on, login, _):

        async def post(message: dict[str, Any], session: str = "", **claims: Any) -> httpx.Response:
            renewed = bearer(login.sign(aud=f"{on.url}/mcp", scope="read cast", jti=message["id"], **claims))
            renewed |= {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
            headers = renewed | ({"mcp-session-id": session} if session else {})
            return await on.ask("POST", "/mcp", json={"jsonrpc": "2.0", **message}, headers=headers)

        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}}
        begun = await post({"id": "1", "method": "initialize", "params": hello})
        session = begun.headers["mcp-session-id"]
        listed = {"id": "2", "method": "tools/list"}
        for claims, status in (({}, 200), ({"sub": "bob"}, 404), ({"client_id": "other"}, 404)):
            assert (await post(listed, session, **claims)).status_code == status


async def test_records_name_the_person_who_logged_in(tmp_path: Path) -> None:
    async with served_with_login(tmp_path) as (on, login, _):
        headers = bearer(login.sign(aud=on.url, scope="read cast send"))
        intent = {"cantrip": "helper", "intent": "hi", "name": "notes", "wait": 9}
        begun = await on.post("entities", intent, 200, headers=headers)
        await on.post(f"entities/{begun['entity_id']}/send", {"intent": "again", "wait": 9}, 200, headers=headers)
        story = await on.get(f"entities/{begun['entity_id']}/story", headers=headers)
        assert "token:login:alice" in [event["data"].get("by") for event in story["items"]]


async def test_a_refused_client_is_told_where_to_log_in(tmp_path: Path) -> None:
    place = ".well-known/oauth-protected-resource"
    async with served() as on:  # with a file of tokens only
        refused = await on.ask("POST", "/mcp", 401, json={}, headers={"authorization": ""})
        assert refused.headers["www-authenticate"] == f'Bearer resource_metadata="{on.url}/{place}/mcp"'
        described = (await on.ask("GET", f"/{place}/mcp", 200, headers={"authorization": ""})).json()
        assert described["resource"] == f"{on.url}/mcp"
        assert described["bearer_methods_supported"] == ["header"]
        assert "authorization_servers" not in described
    async with served_with_login(tmp_path) as (on, login, _):
        for path, resource in (("/mcp", "/mcp"), ("/api/v1/cantrips", ""), ("/v1/models", "")):
            for headers, error in (({"authorization": ""}, ""), (bearer("a.b.c"), 'error="invalid_token", ')):
                refused = await on.ask("GET", path, 401, headers=headers)
                where = f'resource_metadata="{on.url}/{place}{resource}"'
                assert refused.headers["www-authenticate"] == f"Bearer {error}{where}", (path, headers)
            described = (await on.ask("GET", f"/{place}{resource}", 200, headers={"authorization": ""})).json()
            assert described["resource"] == on.url + resource
            assert described["authorization_servers"] == [login.url]
            assert described["scopes_supported"] == ["read", "cast", "send"]


async def test_only_a_token_that_the_server_signed_for_this_service_counts(tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    async with served_with_login(tmp_path, 'blocked = ["mallory"]') as (on, login, _):
        usual: dict[str, Any] = {"aud": on.url, "scope": "read"}
        good = login.sign(**usual)
        head, body, signature = good.split(".")
        refused: dict[str, str] = {
            "for another service": login.sign(**usual | {"aud": "https://other.example"}),
            "for nobody": login.sign(**usual | {"aud": None}),
            "for two texts in one": login.sign(**usual | {"aud": f"{on.url} x"}),
            "expired": login.sign(**usual, exp=int(time.time()) - 1),
            "without an end": login.sign(**usual, exp=None),
            "not yet valid": login.sign(**usual, nbf=int(time.time()) + 600),
            "from the future": login.sign(**usual, iat=int(time.time()) + 600),
            "without a subject": login.sign(**usual, sub=None),
            "of a subject with a newline": login.sign(**usual, sub="a\nb"),
            "of a blocked subject": login.sign(**usual, sub="mallory"),
            "of another issuer": login.sign(**usual, iss="https://login.example"),
            "with another key": login.sign(**usual, key=other),
            "with an unknown key": login.sign(**usual, key=other, key_id="third"),
            "unsigned": login.sign(**usual, algorithm="none"),
            "with a shared secret": login.sign(**usual, algorithm="HS256", key="first" * 10),
            "without a signature": f"{head}.{body}.",
            "with changed claims": f"{head}.{login.sign(**usual | {'scope': 'admin'}).split('.')[1]}.{signature}",
            "of nested lists": f"{head}.{'W1tb' * 3000}.{signature}",
            "very long": f"{head}.{body * 100}.{signature}",
            "of three dots": "...",
        }
        for kind, text in refused.items():
            answer = await on.ask("GET", "cantrips", headers=bearer(text))
            assert answer.status_code == 401, kind
        for accepted in (on.url, f"{on.url}/", f"{on.url}/mcp", ["https://other.example", on.url]):
            await on.get("cantrips", headers=bearer(login.sign(**usual | {"aud": accepted})))
        assert login.fetches == 1  # unknown keys are looked for at most every ten seconds


async def test_a_token_allows_the_scopes_that_both_its_server_and_the_file_allow(tmp_path: Path) -> None:
    async with served_with_login(tmp_path) as (on, login, _):
        for scopes in ({"scope": "read admin stop"}, {"scp": ["read", "admin"]}, {"scp": "read secrets"}):
            headers = bearer(login.sign(aud=on.url, **scopes))
            await on.get("cantrips", headers=headers)
            refused = await on.ask("POST", "casts", 403, json={"cantrip": "helper", "intent": "hi"}, headers=headers)
            assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
        await on.ask("GET", "cantrips", 403, headers=bearer(login.sign(aud=on.url, scope="openid")))


async def test_people_of_a_tenant_see_its_entities_and_have_limits_of_their_own(tmp_path: Path) -> None:
    more = 'tenant_claim = "org"\nrequests_per_minute = 4'
    async with served_with_login(tmp_path, more) as (on, login, _):

        def headers(person: str, org: Any) -> dict[str, str]:
            return bearer(login.sign(aud=on.url, scope="read cast", sub=person, org=org))

        begun = {"cantrip": "helper", "intent": "hi", "name": "notes"}
        entity = (await on.post("entities", begun, 201, headers=headers("ann", "acme")))["entity_id"]
        await on.get(f"entities/{entity}", headers=headers("bob", "acme"))
        await on.ask("GET", f"entities/{entity}", 404, headers=headers("eve", "other"))
        for org in (None, "", 7, "a\nb"):
            await on.ask("GET", "cantrips", 401, headers=headers("eve", org))
        for status in (200, 200, 200, 429):
            await on.ask("GET", "cantrips", status, headers=headers("ann", "acme"))
        await on.get("cantrips", headers=headers("bob", "acme"))


@pytest.mark.rule("W-30")
async def test_a_session_ends_with_its_time_its_server_its_scopes_and_its_person(tmp_path: Path) -> None:
    reached: dict[str, float] = {}

    async def read_to_end(on: Served, name: str, text: str) -> None:
        async with open_stream(on.url, "/api/v1/events", bearer(text)) as reader:
            assert reader.status == 200
            while await reader.next() is not None:
                pass
        reached[name] = anyio.current_time()

    async with served_with_login(tmp_path) as (on, login, path), anyio.create_task_group() as tasks:
        tokens = on.service.tokens
        assert tokens is not None
        usual: dict[str, Any] = {"aud": on.url, "scope": "read cast"}
        people = {name: login.sign(**usual, sub=name) for name in ("stays", "blocked")}
        people["expires"] = login.sign(**usual, exp=int(time.time()) + 3)
        people["scope"] = login.sign(**usual | {"scope": "read send"}, sub="scope")
        for name, text in people.items():
            tasks.start_soon(read_to_end, on, name, text)

        async def wait_for(name: str, since: float, changed: str) -> None:
            with anyio.fail_after(30):
                while name not in reached:
                    await anyio.sleep(0.02)
            assert reached[name] - since < 2 + 3, changed  # and what a busy machine takes

        while on.service.readers < len(people):
            await anyio.sleep(0.02)
        await wait_for("expires", anyio.current_time() + 3, "the time is over")
        for name, more, scopes in (
            ("blocked", 'blocked = ["blocked"]', SCOPES),
            ("scope", "", '["read", "cast"]'),
        ):
            write(path, login.url, on.url, more, scopes)
            tokens.reload()
            await wait_for(name, anyio.current_time(), name)
        assert "stays" not in reached
        write(path, "https://elsewhere.example", on.url)
        tokens.reload()
        await wait_for("stays", anyio.current_time(), "another server is named")


async def test_tokens_of_a_server_that_cannot_be_reached_can_be_sent_again_later(tmp_path: Path) -> None:
    async with login_server() as login, served() as on:
        text = login.sign(iss="http://127.0.0.1:1", aud=on.url, scope="read")
        on.service.tokens = Tokens.of_file(write(tmp_path / "tokens.toml", "http://127.0.0.1:1", on.url))
        refused = await on.ask("GET", "cantrips", 503, headers=bearer(text))
        assert refused.headers["retry-after"] == "10"
        await on.get("cantrips")  # tokens of the file count meanwhile


async def test_a_renewed_key_of_the_server_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cantrip_actors.http.issuers.PAUSE", 0.0)
    async with served_with_login(tmp_path) as (on, login, _):
        usual: dict[str, Any] = {"aud": on.url, "scope": "read"}
        old = login.sign(**usual)
        await on.get("cantrips", headers=bearer(old))
        login.renew_key()
        await on.get("cantrips", headers=bearer(login.sign(**usual)))
        await on.ask("GET", "cantrips", 401, headers=bearer(old))


@pytest.mark.parametrize(
    ("issuer", "resource", "more", "scopes", "message"),
    [
        ("http://login.example", "https://s.example", "", SCOPES, "url: expected an https URL"),
        ("http://localhost.evil.example", "https://s.example", "", SCOPES, "url: expected an https URL"),
        ("https://login.example", "http://s.example", "", SCOPES, "resource: expected an https URL"),
        ("https://login.example", "https://s.example/mcp", "", SCOPES, "without a path"),
        ("https://login.example", "https://s.example", 'jwks_url = "http://x.example"', SCOPES, "jwks_url"),
        ("https://login.example", "https://s.example", "", "[]", "at least one scope"),
        ("https://login.example", "https://s.example", "", '["raed"]', "unknown scope"),
        ("https://login.example", "https://s.example", 'tenant_claim = "o"', '["admin"]', "admin sees all tenants"),
        ("https://login.example", "https://s.example", "max_streams = 0", SCOPES, "max_streams"),
    ],
)
def test_a_wrong_authorization_server_is_refused(
    tmp_path: Path, issuer: str, resource: str, more: str, scopes: str, message: str
) -> None:
    with pytest.raises(InvalidTokens, match=message):
        Tokens.of_file(write(tmp_path / "tokens.toml", issuer, resource, more, scopes))


def test_a_server_without_tenants_is_refused_beside_tokens_with_one(tmp_path: Path) -> None:
    file = write(tmp_path / "tokens.toml", "https://login.example", "https://s.example")
    row = f'[[token]]\nname = "a"\nsha256 = "{digest_of("a")}"\nscopes = ["read"]\ntenant = "acme"\n'
    file.write_text(file.read_text() + row)
    with pytest.raises(InvalidTokens, match="would see all tenants"):
        Tokens.of_file(file)
