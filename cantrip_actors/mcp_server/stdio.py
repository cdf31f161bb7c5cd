"""`cantrip mcp` on standard input and output: one client, which started the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server

from cantrip_actors import Cantrip, Runtime
from cantrip_actors.mcp_server.callers import McpCaller
from cantrip_actors.mcp_server.server import make_server
from cantrip_actors.own_files.login import get_login
from cantrip_actors.runtime.nodes.node import cancel_at_signal
from cantrip_actors.terms.half_characters import replace_half_characters


def find_local(runtime: Runtime, cantrips: Mapping[str, Cantrip], context: ServerRequestContext[Any, Any]) -> McpCaller:
    """Return the client that started this process: it has the rights of its user, and sees no secrets."""
    client = context.session.client_params
    name = "" if client is None else " ".join(client.client_info.name.split())[:60]
    return McpCaller(
        runtime,
        cantrips,
        by=f"mcp:{name}" if name else "mcp",
        door=f"mcp:{get_login()}",
        allows=lambda scope: scope != "secrets",
    )


class _Output:
    """The output of the SDK, as the file that it wants."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write

    async def write(self, text: str) -> None:
        """Write a line."""
        await self._write(text.encode())

    async def flush(self) -> None:
        """Do nothing: a line is written whole."""


async def serve_stdio(
    runtime: Runtime,
    cantrips: Mapping[str, Cantrip],
    messages: AsyncIterator[bytes],
    write: Callable[[bytes], Awaitable[None]],
) -> None:
    """Serve one client, whose messages are lines, until they end or a signal comes; `write` gets the answers.

    The signals are SIGTERM, SIGINT and SIGHUP.

    Raises InvalidCantrip if two cantrips would make tools of one name.
    """
    # the SDK answers no line that has half a character
    lines = (replace_half_characters(line) async for line in messages)
    server = make_server(cantrips, lambda context: find_local(runtime, cantrips, context), runtime)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_at_signal, tasks.cancel_scope)
        # the SDK only iterates over its input, and only writes and flushes its output
        async with stdio_server(lines, _Output(write)) as (received, sent):  # type: ignore[arg-type]
            await server.run(received, sent, server.create_initialization_options())
        tasks.cancel_scope.cancel()
