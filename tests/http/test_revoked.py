"""A token that is revoked, expires or loses a right ends its open answers; other tokens keep theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from cantrip_actors.http import history
from cantrip_actors.http.tokens import Tokens, digest_of
from tests.http.serving import ADMIN, Served, open_stream, served

pytestmark = [pytest.mark.real_time, pytest.mark.rule("W-30")]

RIGHTS = '["read", "cast", "send", "observe"]'
LEGACY, MODERN = "2025-11-25", "2026-07-28"
UI_MESSAGE = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "nap 600"}]}
AG_UI_MESSAGE = {"id": "m", "role": "user", "content": "nap 600"}
NAMES = ("stays", "removed", "expires", "poorer", "moved", "narrower")


def write(path: Path, rows: Mapping[str, str]) -> None:
    """Write a file of tokens: their names, and what each has beside its hash."""
    lines = [
        f'[[token]]\nname = "{name}"\nsha256 = "{digest_of(f"{name}-token")}"\n{rest}\n' for name, rest in rows.items()
    ]
    scopes = '["admin"]'
    admin = f'[[token]]\nname = "admin"\nsha256 = "{digest_of(ADMIN)}"\nscopes = {scopes}\n'
    path.write_text("\n".join([admin, *lines]))


async def read_to_end(on: Served, name: str, path: str, ended: dict[str, float]) -> None:
    async with open_stream(on.url, f"/api/v1/{path}", on.as_token(name)) as reader:
        assert reader.status == 200
        while await reader.next() is not None:
            pass
        ended[name] = anyio.current_time()


async def call_tool(on: Served, name: str, era: str, answers: list[Any]) -> None:
    """Have a tool work for long, and note how the answer ends; a session of the older protocol also has a stream."""
    headers = on.as_token(name) | {"accept": "application/json, text/event-stream", "mcp-protocol-version": era}
    client = {"name": "it", "version": "1"}
    info = {
        f"io.modelcontextprotocol/{key}": value for key, value in (("clientInfo", client), ("protocolVersion", era))
    }
    meta = info | {"io.modelcontextprotocol/clientCapabilities": {}}
    async with httpx.AsyncClient(base_url=on.url, headers=headers, timeout=60) as http:

        async def post(method: str, params: Any) -> httpx.Response:
            http.headers.update({"mcp-method": method, "mcp-name": params.get("name", "")})
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return await http.post("/mcp", json=message)

        async def listen() -> None:
            async with http.stream("GET", "/mcp") as stream:
                answers.append((stream.status_code, "".join([part async for part in stream.aiter_text()])))

        arguments = {"name": "echo", "arguments": {"intent": "nap 600"}}
        if era == LEGACY:
            hello = {"protocolVersion": era, "capabilities": {}, "clientInfo": client}
            http.headers["mcp-session-id"] = (await post("initialize", hello)).headers["mcp-session-id"]
        async with anyio.create_task_group() as tasks:
            if era == LEGACY:
                tasks.start_soon(listen)
            else:
                arguments |= {"_meta": meta}
            answer = await post("tools/call", arguments)
            answers.append((answer.status_code, answer.text))


async def test_connections_of_mcp_clients_end_within_two_seconds_of_the_loss(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    usual = f'scopes = {RIGHTS}\ntenant = "a"'
    write(file, {"removed": usual, "stays": usual})
    async with served() as on:
        on.service.tokens = tokens = Tokens.of_file(file)
        answers: list[Any] = []
        kept: list[Any] = []
        async with anyio.create_task_group() as tasks:
            for era in (LEGACY, MODERN):
                tasks.start_soon(call_tool, on, "removed", era, answers)
                tasks.start_soon(call_tool, on, "stays", era, kept)
            while len(on.runtime.loom.unfinished()) < 4:
                await anyio.sleep(0.02)
            await anyio.sleep(0.2)
            lost_at = anyio.current_time()
            write(file, {"stays": usual})
            tokens.reload()
            with anyio.fail_after(20):
                while len(answers) < 3:
                    await anyio.sleep(0.02)
            assert anyio.current_time() - lost_at < 2 + 3  # and what a busy machine takes
            assert not kept
            assert not [text for _, text in answers if "slept" in text]
            assert {status for status, _ in answers} <= {200, 401}
            tasks.cancel_scope.cancel()


async def ask_and_wait(on: Served, path: str, body: Any, answers: list[Any]) -> None:
    async with httpx.AsyncClient(base_url=on.url, headers=on.as_token("removed"), timeout=60) as client:
        async with client.stream("POST", path, json=body) as answer:
            text = "".join([part async for part in answer.aiter_text()])
        answers.append((answer.status_code, text))


async def test_open_streams_end_within_two_seconds_of_the_loss(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    usual = f'scopes = {RIGHTS}\ntenant = "a"'
    soon = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    over = "2020-01-01T00:00:00Z"
    write(file, dict.fromkeys(NAMES, f"{usual}\nexpires = {soon}"))
    ended: dict[str, float] = {}
    answers: list[Any] = []
    async with served() as on:
        on.service.tokens = tokens = Tokens.of_file(file)
        nap = await on.post("/api/v1/casts", {"cantrip": "echo", "intent": "hi"}, headers=on.as_token("stays"))
        assert nap["entity_id"]
        async with anyio.create_task_group() as tasks:
            for name in NAMES:
                tasks.start_soon(read_to_end, on, name, "events", ended)
            chat = {"model": "echo", "messages": [{"role": "user", "content": "nap 600"}]}
            tasks.start_soon(ask_and_wait, on, "/v1/chat/completions", chat, answers)
            tasks.start_soon(ask_and_wait, on, "/v1/chat/completions", {**chat, "stream": True}, answers)
            tasks.start_soon(
                ask_and_wait, on, "/api/v1/casts", {"cantrip": "echo", "intent": "nap 600", "wait": 60}, answers
            )
            while on.service.readers < len(NAMES) or len(on.runtime.loom.unfinished()) < 3:
                await anyio.sleep(0.02)
            lost_at = anyio.current_time()
            write(
                file,
                {
                    "stays": f"{usual}\nmax_concurrent = 3",
                    "expires": f"{usual}\nexpires = {over}",
                    "poorer": 'scopes = ["cast"]\ntenant = "a"',
                    "moved": f'scopes = {RIGHTS}\ntenant = "b"',
                    "narrower": f'{usual}\ncantrips = ["other"]',
                },
            )
            tokens.reload()
            with anyio.fail_after(20):
                while len(ended) < len(NAMES) - 1 or len(answers) < 3:
                    await anyio.sleep(0.02)
            assert "stays" not in ended
            tasks.cancel_scope.cancel()
        assert max(ended.values()) - lost_at < 2 + 3  # and what a busy machine takes
        assert sorted(status for status, _ in answers) == [200, 401, 401]
        assert not [text for _, text in answers if "napped" in text]
        assert not on.runtime.loom.unfinished()


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "nap 600"}]}, '"error":{"message":'),
        ("/v1/messages", {"messages": [{"role": "user", "content": "nap 600"}], "max_tokens": 9}, "event: error\n"),
        ("/v1/responses", {"input": "nap 600"}, "event: response.failed\n"),
        ("/api/v1/chat/echo", {"id": "a", "messages": [UI_MESSAGE]}, '"type":"error"'),
        ("/api/v1/ag-ui/echo", {"threadId": "b", "runId": "r", "messages": [AG_UI_MESSAGE]}, '"type":"RUN_ERROR"'),
    ],
)
async def test_the_stream_of_an_answer_that_a_loss_cuts_off_ends_with_the_error(
    tmp_path: Path, path: str, body: dict[str, Any], error: str
) -> None:
    """Otherwise its client takes the beginning of the answer for the whole one."""
    file = tmp_path / "tokens.toml"
    write(file, {"removed": f"scopes = {RIGHTS}"})
    answers: list[Any] = []
    async with served() as on:
        on.service.tokens = tokens = Tokens.of_file(file)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_and_wait, on, path, {"model": "echo", "stream": True, **body}, answers)
            while not on.runtime.loom.unfinished():
                await anyio.sleep(0.02)
            await anyio.sleep(0.2)
            write(file, {})
            tokens.reload()
        ((status, text),) = answers
        assert status == 200
        assert "the token is no longer valid" in text.partition(error)[2]


async def test_the_export_of_a_loom_that_a_loss_cuts_off_does_not_look_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def export_slowly(_lines: Any) -> AsyncIterator[bytes]:
        yield b"{}\n"
        await anyio.sleep(60)

    monkeypatch.setattr(history, "_read_in_thread", export_slowly)
    file = tmp_path / "tokens.toml"
    write(file, {"removed": f"scopes = {RIGHTS}"})
    async with served() as on:
        on.service.tokens = tokens = Tokens.of_file(file)
        async with on.client.stream("GET", "/api/v1/loom/export", headers=on.as_token("removed")) as answer:
            parts = answer.aiter_bytes()
            assert await anext(parts) == b"{}\n"
            write(file, {})
            tokens.reload()
            with anyio.fail_after(20), pytest.raises(httpx.RemoteProtocolError):
                await anext(parts)
