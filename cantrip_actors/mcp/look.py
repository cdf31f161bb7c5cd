"""Use a server without a runtime: connect, do one thing, and disconnect."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePath
from typing import Any, TypeVar

import anyio

from cantrip_actors.mcp.oauth import Login, OAuth
from cantrip_actors.mcp.servers import McpServer, http, make_server_name, stdio
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.tool_server import (
    Connection,
    Elicited,
    Host,
    LostServer,
    NeverTaken,
    ToolResult,
    ToolServerError,
)
from cantrip_actors.terms.wrapper import GateCall

T = TypeVar("T")


def server_at(target: str, auth: str | OAuth | Login | None = None) -> McpServer:
    """Return the server for a URL, or for a command with its arguments, with a name. Raises InvalidCantrip."""
    if target.startswith(("http://", "https://")):
        return http(make_server_name(target.partition("//")[2].rpartition("@")[2]), target, auth=auth)
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise InvalidCantrip(f"expected a command with its arguments, got {target!r}: {error}") from error
    if not words:
        raise InvalidCantrip("expected a URL, or a command with its arguments")
    return stdio(make_server_name(PurePath(words[0]).name), words[0], *words[1:])


def call_once(tool: str, args: Mapping[str, Any]) -> Callable[[Connection], Awaitable[ToolResult]]:
    """Return the work that calls a tool by its name, for `with_connection`. It raises ToolServerError."""

    async def work(connection: Connection) -> ToolResult:
        tools = await connection.tools()
        wanted = next((offered for offered in tools if offered.name == tool), None)
        if wanted is None:
            raise ToolServerError(
                f"it has no tool {tool!r}: {suggest_nearest(tool, [offered.name for offered in tools])}"
            )
        return await connection.call(wanted, args, GateCall(tool, args, "", ""), lambda _: None)

    return work


async def _decline(_: Elicited) -> None:
    """Answer nothing: there is no person to ask."""


async def with_connection(server: McpServer, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Return the result of `work` with a connection to a server. Raises ToolServerError."""
    results: list[T] = []
    problems: list[Exception] = []

    async with anyio.create_task_group() as tasks:

        async def run(connection: Connection) -> None:
            try:
                results.append(await work(connection))
            except (ToolServerError, LostServer, NeverTaken) as problem:
                problems.append(problem)
            tasks.cancel_scope.cancel()

        try:
            await server.hold(lambda connection: tasks.start_soon(run, connection), Host(_decline))
        except ToolServerError as problem:
            problems.append(problem)
    if results:
        return results[0]
    why = problems[0] if problems else "its connection ended"
    lost = "" if isinstance(why, ToolServerError) else "it was lost: "
    raise ToolServerError(f"server {server.name}: {lost}{why}")
