"""JSON that an editor sends is read as answers of models are read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from cantrip_actors.acp.jsonrpc import RpcConnection

pytestmark = pytest.mark.rule("V-02")


class EchoHandler:
    """Answers each request with its parameters."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def answer(self, method: str, params: Any) -> Any:
        self.seen.append(params)
        return params

    async def notice(self, method: str, params: Any) -> None:
        self.seen.append(params)

    def cancel(self, method: str, params: Any) -> bool:
        return False


@pytest.mark.parametrize(
    ("params", "value"),
    [
        (f'{{"a": 1, "a": {10**30}}}', {"a": 10**30}),
        (r'{"a": "\ud83d", "b": "\ud83d\ude00", "c": "\\ud83d"}', {"a": "\ufffd", "b": "😀", "c": r"\ud83d"}),
        (f'{{"a": {10**30}, "b": "\\ud83d"}}', {"a": 10**30, "b": "\ufffd"}),
        ("null", None),
    ],
)
async def test_parameters_are_those_that_an_editor_wrote(params: str, value: Any) -> None:
    handler, lines = EchoHandler(), list[bytes]()
    await serve(handler, lines, f'{{"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {params}}}')
    assert handler.seen == [value]
    assert json.loads(lines[0])["result"] == value


async def test_a_line_that_is_refused_says_what_is_wrong() -> None:
    handler, lines = EchoHandler(), list[bytes]()
    await serve(handler, lines, '{"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"a": 1e400}}')
    assert handler.seen == []
    error = {"code": -32700, "message": "expected a line of JSON: expected a number that a float can hold, got 1e400"}
    assert json.loads(lines[0])["error"] == error


async def serve(handler: EchoHandler, lines: list[bytes], line: str) -> None:
    """Serve one line of an editor, until the answer to it is among `lines`."""

    async def write(answer: bytes) -> None:
        lines.append(answer)

    async def read() -> AsyncIterator[bytes]:
        yield line.encode()
        await anyio.sleep(1)

    async def end() -> None:
        pass

    await RpcConnection(handler, write).serve(read(), end)
