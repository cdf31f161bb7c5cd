"""The extension `io.modelcontextprotocol/tasks`: long work is a task, and the task is the entity.

A task has no state outside the loom: its id is the entity's (or that of one intent of a long-lived entity), and its
status, its result and its open requests are read from the loom. So a task survives the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import anyio
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from cantrip_actors.mcp_server.callers import McpCaller
from cantrip_actors.mcp_server.forms import can_ask, decide, forms_of
from cantrip_actors.mcp_server.work import CANCELLED, ToolWork
from cantrip_actors.runtime.face.work import read_times

EXTENSION: Final = "io.modelcontextprotocol/tasks"
POLL: Final = 1_000
"""The polling interval in milliseconds that clients get."""

RequestContext = ServerRequestContext[Any, Any]
TaskStatus = Literal["working", "input_required", "completed", "cancelled"]


class _TaskParams(types.RequestParams):
    task_id: str


class _UpdateParams(_TaskParams):
    input_responses: types.InputResponses


def has_tasks(context: RequestContext) -> bool:
    """Return whether the client announces tasks with this request; clients of the handshake era never do."""
    is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    return is_modern and context.session.check_client_capability(types.ClientCapabilities(extensions={EXTENSION: {}}))


def create_task_result(work: ToolWork, *, asks: bool) -> dict[str, Any]:
    """Return the answer to a call that becomes a task; `asks` is True for a client that has forms. Reads the loom."""
    return {"resultType": "task", **_build_task(work, asks=asks)}


def _find_status(work: ToolWork, *, asks: bool) -> TaskStatus:
    outcome = work.outcome()
    if outcome is None and work.work.state == "withdrawn":
        return "cancelled"
    if outcome is None:
        return "input_required" if asks and work.work.requests() else "working"
    return "cancelled" if outcome.reason in CANCELLED else "completed"


def _build_task(work: ToolWork, *, asks: bool) -> dict[str, Any]:
    """Return the state of a task. One that waits for a person whom the client cannot ask is "working": the extension
    has "input_required" for requests to the client.
    """
    (began, changed), status = read_times(work.work), _find_status(work, asks=asks)
    waits = status == "working" and work.work.requests()
    return {
        "taskId": work.work.id,
        "status": status,
        "createdAt": began,
        "lastUpdatedAt": changed,
        "ttlMs": None,  # the task lasts as long as the loom has it
        "pollIntervalMs": POLL,
        **({"statusMessage": work.describe_wait()} if waits else {}),
    }


def _read_task(caller: McpCaller, task_id: str, *, asks: bool) -> dict[str, Any]:
    """Return the answer to `tasks/get`. Reads the loom."""
    work = ToolWork.find(caller, task_id)
    task: dict[str, Any] = {"resultType": "complete", **_build_task(work, asks=asks)}
    if task["status"] == "input_required":
        forms = forms_of(caller, work.work.requests())
        task["inputRequests"] = {key: form.model_dump(by_alias=True, mode="json") for key, form in forms.items()}
    elif task["status"] == "completed" and (result := work.result()) is not None:
        task["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return task


def _check_header(context: RequestContext, task_id: str) -> None:
    """Raise MCPError unless the header of an HTTP request names the task: the SDK checks methods of the core only."""
    if context.request is not None and context.request.headers.get(MCP_NAME_HEADER) != task_id:
        raise MCPError(types.HEADER_MISMATCH, f"{MCP_NAME_HEADER}: expected the taskId of the request")


def serve_tasks(server: Server[Any], find: Callable[[RequestContext], McpCaller]) -> None:
    """Let a server answer `tasks/get`, `tasks/update` and `tasks/cancel`. `find` returns the client of a request."""

    def caller_of(context: RequestContext, task_id: str, scope: str) -> McpCaller:
        if not has_tasks(context):
            raise MCPError(
                types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                "Missing required client capability",
                {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        _check_header(context, task_id)
        caller = find(context)
        caller.check(scope)
        return caller

    async def get(context: RequestContext, params: _TaskParams) -> dict[str, Any]:
        caller = caller_of(context, params.task_id, "read")
        asks = can_ask(caller, context.session.client_capabilities)
        return await caller.read(lambda: _read_task(caller, params.task_id, asks=asks))

    async def update(context: RequestContext, params: _UpdateParams) -> dict[str, Any]:
        caller = caller_of(context, params.task_id, "approve")
        work = await caller.read(lambda: ToolWork.find(caller, params.task_id))
        for request in await caller.read(work.work.requests):
            response = params.input_responses.get(request.id)
            if isinstance(response, types.ElicitResult):
                await decide(caller, request, response)
        return {"resultType": "complete"}

    async def cancel(context: RequestContext, params: _TaskParams) -> dict[str, Any]:
        caller = caller_of(context, params.task_id, "stop")
        work = await caller.read(lambda: ToolWork.find(caller, params.task_id))
        with anyio.CancelScope(shield=True):
            await work.cancel("the MCP client cancelled the task")
        return {"resultType": "complete"}

    server.extensions[EXTENSION] = {}
    server.add_request_handler("tasks/get", _TaskParams, get)
    server.add_request_handler("tasks/update", _UpdateParams, update)
    server.add_request_handler("tasks/cancel", _TaskParams, cancel)
