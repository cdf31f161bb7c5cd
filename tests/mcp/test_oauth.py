"""Logins with OAuth at servers behind a URL."""

import os
import stat
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread

from cantrip_actors import InvalidCantrip, Runtime
from cantrip_actors.mcp import ToolServerError, http, oauth
from cantrip_actors.mcp.look import with_connection
from cantrip_actors.mcp.oauth import Login, OAuth
from cantrip_actors.mcp.oauth_flow import _Tokens
from cantrip_actors.recipes.tool_servers import tool_server
from tests.forked import COMMAND, Forked
from tests.mcp.authorization import Guarded, guarded
from tests.mcp.test_gates import seen, spell
from tests.runtime.spells import done, say

pytestmark = [pytest.mark.real_time, pytest.mark.rule("MCP-01")]


async def log_in(at: Guarded, given: OAuth, *, wrong: bool = False, before: Sequence[bytes] = ()) -> int:
    """Log in as a person with a browser does; return how many tools there are.

    The browser sends the bytes `before` on connections of their own first, and closes these without reading.
    """
    found: list[Any] = []
    async with anyio.create_task_group() as tasks:

        async def browse(link: str) -> None:
            for request in before:
                port = httpx.URL(httpx.URL(link).params["redirect_uri"]).port
                async with await anyio.connect_tcp("127.0.0.1", port or 0) as stream:
                    await stream.send(request)
            async with httpx.AsyncClient(follow_redirects=True) as browser:
                if wrong:
                    back = httpx.URL(link).params["redirect_uri"]
                    refused = await browser.get(back, params={"code": "stolen", "state": "guessed"})
                    assert refused.status_code == 404
                assert (await browser.get(link)).status_code == 200

        server = http("t", at.url, auth=Login(given, lambda link: tasks.start_soon(browse, link)))
        try:
            found += await with_connection(server, lambda connection: connection.tools())
        except ToolServerError as problem:
            found.append(problem)
    if isinstance(found[0], ToolServerError):
        raise found[0]
    return len(found)


async def add(at: Guarded, given: OAuth) -> Any:
    async with Runtime.open() as runtime:
        cantrip = spell(say("t__add", a=1, b=2), done("ok"), server=http("t", at.url, auth=given))
        return seen(await runtime.cast(cantrip, "go"))[0]


async def test_a_person_logs_in_once_and_entities_use_and_refresh_the_tokens(tmp_path: Path) -> None:
    given = oauth(folder=str(tmp_path / "tokens"))
    async with guarded(lasts=1) as at:
        with pytest.raises(ToolServerError, match=r"no user is logged in there: run `cantrip mcp login http"):
            await add(at, given)
        assert await log_in(at, given, wrong=True)
        assert await add(at, given) == ({"result": 3}, False)
        assert at.grants[0] == "authorization_code"
        assert set(at.grants[1:]) == {"refresh_token"}
        assert at.registered == 1
    (file,) = (tmp_path / "tokens").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_a_login_that_ended_says_to_log_in_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = oauth(folder=str(tmp_path))
    async with guarded() as at:
        await log_in(at, given)
        at.good.clear()
        with pytest.raises(ToolServerError, match=r"no user is logged in there"):
            await add(at, given)
    assert not caplog.records


@pytest.mark.rule("V-13")
async def test_tokens_that_are_revoked_are_an_observation_and_a_new_login_is_used_at_once(tmp_path: Path) -> None:
    given = oauth(folder=str(tmp_path))
    async with guarded() as at, Runtime.open() as runtime:
        await log_in(at, given)
        crystal = [part for _ in range(3) for part in (say("t__add", a=1, b=2), done("ok"))]
        entity = await runtime.invoke(spell(*crystal, server=http("t", at.url, auth=given)), "go")
        assert seen(await entity.episode())[0] == ({"result": 3}, False)
        at.good.clear()
        result, is_error = seen(await entity.send("again"))[-2]
        assert is_error
        assert "no user is logged in there: run `cantrip mcp login http" in str(result)
        await log_in(at, given)
        assert seen(await entity.send("once more"))[-2] == ({"result": 3}, False)


@pytest.mark.rule("V-13")
async def test_a_program_whose_token_was_revoked_gets_another_one(tmp_path: Path) -> None:
    async with guarded() as at, Runtime.open() as runtime:
        issuer = at.url.removesuffix("/mcp")
        given = oauth(client_id="robot", client_secret="hunter2", issuer=issuer, folder=str(tmp_path))
        crystal = [part for _ in range(2) for part in (say("t__add", a=1, b=2), done("ok"))]
        entity = await runtime.invoke(spell(*crystal, server=http("t", at.url, auth=given)), "go")
        assert seen(await entity.episode())[0] == ({"result": 3}, False)
        at.good.clear()
        assert seen(await entity.send("again"))[-2] == ({"result": 3}, False)
        assert at.grants == ["client_credentials"] * 2


@pytest.mark.parametrize("before", [b"", b"GET /call", b"GET //[ HTTP/1.1\r\n\r\n", b"\xff\r\n\r\n"])
async def test_a_login_waits_on_after_a_connection_without_a_request_for_it(tmp_path: Path, before: bytes) -> None:
    async with guarded() as at:
        assert await log_in(at, oauth(folder=str(tmp_path)), before=[before] * 3)


def test_two_connections_store_the_tokens_of_one_login_at_once(tmp_path: Path) -> None:
    path, failed = tmp_path / "tokens.json", list[Exception]()

    def store(text: bytes) -> None:
        try:
            for _ in range(200):
                _Tokens(path)._write(text)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=store, args=(text,)) for text in (b"short", b"long" * 2_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert path.read_bytes() in (b"short", b"long" * 2_000)
    assert [path] == list(tmp_path.iterdir())


async def test_a_login_that_is_refused_says_so(tmp_path: Path) -> None:
    async with guarded(refuses=True) as at:
        with pytest.raises(ToolServerError, match="the login was refused: access_denied"):
            await log_in(at, oauth(folder=str(tmp_path)))
    assert not list(tmp_path.iterdir())


async def test_a_program_logs_in_with_credentials_of_its_own(tmp_path: Path) -> None:
    async with guarded() as at:
        issuer = at.url.removesuffix("/mcp")
        given = oauth(client_id="robot", client_secret="hunter2", issuer=issuer, folder=str(tmp_path))
        assert await add(at, given) == ({"result": 3}, False)
        assert await add(at, given) == ({"result": 3}, False)
        assert at.grants == ["client_credentials"]
        assert at.registered == 0
        assert "hunter2" not in repr(given)


async def test_credentials_are_sent_to_their_own_issuer_only(tmp_path: Path) -> None:
    given = oauth(client_id="robot", client_secret="hunter2", issuer="https://other.example", folder=str(tmp_path))
    async with guarded() as at:
        with pytest.raises(ToolServerError, match=r"other\.example"):
            await add(at, given)
        assert not at.grants


async def test_the_command_prints_the_link_and_keeps_the_tokens(tmp_path: Path) -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    async with guarded() as at:
        with Forked(COMMAND, "mcp", "login", at.url, env={**os.environ, "HOME": str(tmp_path)}, **pipes) as login:
            assert login.stderr is not None
            assert login.stdout is not None
            printed = [""]
            while not printed[-1].startswith("http"):
                line = await to_thread.run_sync(login.stderr.readline)
                assert line, f"the command printed no link, but: {printed}; it ended with {login.poll()}"
                printed.append(line)
            async with httpx.AsyncClient(follow_redirects=True) as browser:
                assert (await browser.get(printed[-1].strip())).status_code == 200
            out, err = await to_thread.run_sync(login.communicate)
            assert (login.returncode, out.partition("tools: ")[0]) == (0, "connection: ok\n"), err
        assert await add(at, oauth(folder=str(tmp_path / ".cantrip" / "oauth"))) == ({"result": 3}, False)
    assert at.grants == ["authorization_code"]


def test_a_recipe_names_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    def auth(login: Any) -> Any:
        return tool_server({"name": "t", "url": "https://example.org/mcp", "oauth": login}, Path()).auth  # type: ignore[attr-defined]

    monkeypatch.setenv("ROBOT", "hunter2")
    robot = {"client_id": "robot", "client_secret_env": "ROBOT", "issuer": "https://auth.example"}
    assert auth(True) == oauth()
    assert auth(robot) == oauth(client_id="robot", client_secret="hunter2", issuer="https://auth.example")
    for wrong, told in (
        (3, "oauth: expected true"),
        ({"secret": "x"}, 'unknown key "secret"'),
        ({"client_id": "robot", "client_secret_env": "ROBOT"}, "needs client_id and issuer"),
        ({"scopes": "all"}, "scopes: expected a list"),
    ):
        with pytest.raises(InvalidCantrip, match=told):
            auth(wrong)


@pytest.mark.rule("Z-21")
@pytest.mark.parametrize(
    ("issuer", "is_accepted"),
    [
        ("https://auth.example/tenant", True),
        ("http://localhost:8080", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:9", True),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://localhost@evil.example", False),
        ("https://auth.example@evil.example", False),
        ("http://auth.example", False),
        ("https://", False),
        ("https://auth.example:x", False),
        ("http://localhost:99999", False),
    ],
)
def test_an_issuer_is_an_https_url_or_on_this_machine(issuer: str, is_accepted: bool) -> None:
    if is_accepted:
        assert oauth(issuer=issuer).issuer == issuer
    else:
        with pytest.raises(InvalidCantrip, match="issuer: expected an https URL"):
            oauth(issuer=issuer)
