"""Calls that a server runs as tasks, in both eras of the protocol: begin one, wait for it, and cancel it.

A server of 2025-11-25 runs a tool as a task if the call says so, which some tools require. A server of the extension
`io.modelcontextprotocol/tasks` (2026-07-28) decides itself, if the client has the extension.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn

import anyio
from mcp.client import ClientSession
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    CancelTaskRequest,
    CancelTaskRequestParams,
    EmptyResult,
    GetTaskPayloadRequest,
    GetTaskPayloadRequestParams,
    GetTaskRequest,
    GetTaskRequestParams,
    InputRequest,
    Request,
    RequestParams,
    Result,
    Task,
    TaskMetadata,
)

EXTENSION: Final = "io.modelcontextprotocol/tasks"

SOONEST: Final = 0.1
LATEST: Final = 60.0
"""The shortest and the longest seconds between two questions about a task."""

LAST: Final = 5.0
"""Seconds that a server has to take the cancellation of a task."""

ENDED: Final = frozenset(("completed", "failed", "cancelled"))


class StartedTask(Result):
    """The answer of a current server that runs a call as a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    poll_interval_ms: float | None = None


class CurrentTask(StartedTask):
    """The state of a task of a current server, with its open questions, its result or its error."""

    result_type: Literal["complete"] = "complete"  # type: ignore[assignment]  # of another method
    status: str
    status_message: str | None = None
    input_requests: dict[str, InputRequest] | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class TaskIdParams(RequestParams):
    """Names a task."""

    task_id: str


class TaskAnswerParams(TaskIdParams):
    """The answers to the questions of a task."""

    input_responses: dict[str, Any]


class GetTask(Request[TaskIdParams, Literal["tasks/get"]]):
    """Asks a current server for a task."""

    name_param = "taskId"
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskIdParams


class UpdateTask(Request[TaskAnswerParams, Literal["tasks/update"]]):
    """Answers the questions of a task."""

    name_param = "taskId"
    method: Literal["tasks/update"] = "tasks/update"
    params: TaskAnswerParams


class CancelTask(Request[TaskIdParams, Literal["tasks/cancel"]]):
    """Cancels a task of a current server."""

    name_param = "taskId"
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskIdParams


async def _refuse(_started: StartedTask, _context: object) -> NoReturn:
    raise MCPError(INTERNAL_ERROR, "the connection waits for tasks itself")


class TasksExtension(ClientExtension):
    """Says to current servers that this client takes tasks."""

    identifier = EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Return the claim on results that are tasks."""
        return (ResultClaim(result_type="task", model=StartedTask, resolve=_refuse),)


async def finish_task(
    session: ClientSession, started: StartedTask, answer: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
) -> CallToolResult:
    """Return the result of a current server's task; `answer` answers its questions.

    Leaving it before the end cancels the task: by a cancellation, or since a question has no answer. Raises MCPError if
    the task fails or is cancelled.
    """
    params, interval = TaskIdParams(task_id=started.task_id), started.poll_interval_ms
    answered: set[str] = set()
    has_ended = False
    try:
        while True:
            task = await session.send_request(GetTask(params=params), CurrentTask)
            has_ended = task.status in ENDED
            if has_ended:
                return _read_end(task)
            requests = {key: request for key, request in (task.input_requests or {}).items() if key not in answered}
            if task.status == "input_required" and requests:
                responses = await answer(requests)
                answered |= responses.keys()
                update = TaskAnswerParams(task_id=started.task_id, input_responses=responses)
                await session.send_request(UpdateTask(params=update), EmptyResult)
                continue
            await _wait(interval if task.poll_interval_ms is None else task.poll_interval_ms)
    finally:
        if not has_ended:
            await _cancel(session, CancelTask(params=params))


def _read_end(task: CurrentTask) -> CallToolResult:
    if task.status == "completed" and task.result is not None:
        return CallToolResult.model_validate(task.result, by_name=False)
    why = (task.error or {}).get("message") or task.status_message
    raise MCPError(INTERNAL_ERROR, f"its task {task.status}: {why}" if why else f"its task {task.status}")


async def call_as_task(session: ClientSession, name: str, arguments: dict[str, Any]) -> CallToolResult:
    """Return the result of a tool that a server of 2025-11-25 runs as a task only.

    The server asks its questions meanwhile, as during any other call. Being cancelled cancels the task. Raises
    MCPError.
    """
    params = CallToolRequestParams(name=name, arguments=arguments, task=TaskMetadata())
    request = CallToolRequest(params=params).model_dump(by_alias=True, mode="json", exclude_none=True)
    # the SDK would hold the answer against the form of a result
    raw = await session._dispatcher.send_raw_request(request["method"], request["params"], {})  # noqa: SLF001
    if "task" not in raw:
        return CallToolResult.model_validate(raw, by_name=False)
    task = Task.model_validate(raw["task"], by_name=False)
    try:
        while task.status == "working":
            await _wait(task.poll_interval)
            task = await session.send_request(GetTaskRequest(params=GetTaskRequestParams(task_id=task.task_id)), Task)
        result = GetTaskPayloadRequest(params=GetTaskPayloadRequestParams(task_id=task.task_id))
        return await session.send_request(result, CallToolResult)
    except anyio.get_cancelled_exc_class():
        await _cancel(session, CancelTaskRequest(params=CancelTaskRequestParams(task_id=task.task_id)))
        raise


async def _wait(milliseconds: float | None) -> None:
    await anyio.sleep(1.0 if milliseconds is None else min(max(milliseconds / 1000, SOONEST), LATEST))


async def _cancel(session: ClientSession, request: Any) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(LAST), contextlib.suppress(MCPError):
        await session.send_request(request, EmptyResult)
