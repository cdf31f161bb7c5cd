"""One `tools/call`: wait for the entity's work, report its turns, and send its requests to the client's user.

A client of the handshake era is asked during the call. A modern one gets `input_required` and calls again with the
answers and the state that names the work; meanwhile the entity waits, as it does for any person. A client with the
tasks extension gets a task once the work takes long or needs a person. Any other client that cannot ask its user gets
the request as the result of the call: a person decides it elsewhere, and the tool `continue` returns the result then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from cantrip_actors import CantripError, Request, RuntimeClosed, StepCompleteEvent
from cantrip_actors.mcp_server.callers import McpCaller
from cantrip_actors.mcp_server.forms import can_ask, decide, form_of, forms_of
from cantrip_actors.mcp_server.tasks import create_task_result, has_tasks
from cantrip_actors.mcp_server.work import ToolWork
from cantrip_actors.observe.readers import count_reader
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.face.run import follow_through_outages

SOON: Final = 5.0
"""Seconds after which a call becomes a task, for a client that has tasks."""

_log = get_logger("cantrip_actors.mcp_server")

ToolAnswer = types.CallToolResult | types.InputRequiredResult | dict[str, Any]


def state_of(work: ToolWork, seen_ids: frozenset[str]) -> str:
    """Return the state of a call: its work, and the requests that its user has seen."""
    return json.dumps({"work": work.work.id, "put": sorted(seen_ids)})


async def work_of_state(caller: McpCaller, state: str) -> tuple[ToolWork, frozenset[str]]:
    """Return the work of a state from a client, and the requests that its user has seen. Raises UnknownWork."""
    parsed = json.loads(state)  # this server wrote it: the SDK has checked its seal
    return await caller.read(lambda: ToolWork.find(caller, parsed["work"])), frozenset(parsed["put"])


class ToolCallRun:
    """A running call. `seen_ids` are those of requests that its user has seen: each is sent once.

    A call that `owns_work` cancels it when it is cancelled, unless the work waits for a person.
    """

    def __init__(
        self,
        caller: McpCaller,
        context: ServerRequestContext[Any, Any],
        work: ToolWork,
        seen_ids: frozenset[str] = frozenset(),
        *,
        owns_work: bool = True,
    ) -> None:
        self._caller = caller
        self._context = context
        self._work = work
        self._put = set(seen_ids)
        self._owns_work = owns_work
        self._is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._asks = can_ask(caller, context.session.client_capabilities)
        self._has_tasks = has_tasks(context)
        self._found: ToolAnswer | None = None
        self._reported = anyio.Event()
        """Set once each turn of the work was reported."""
        self._tasks: TaskGroup

    async def answer(self, responses: Mapping[str, Any] | None) -> ToolAnswer:
        """Record the decisions that came with the call, and wait.

        Cancelling this cancels the work, unless a person has to decide something: a client that runs out of patience
        says the same as one that cancels.
        """
        try:
            await self._decide(responses or {})
            return await self._wait()
        except anyio.get_cancelled_exc_class():
            # the closed runtime has ended the entity, or suspended it for the next process
            with anyio.CancelScope(shield=True), suppress(RuntimeClosed):
                if self._owns_work and not await self._caller.runtime.read(self._work.work.requests):
                    await self._work.cancel("the MCP client cancelled the call")
            raise

    async def _decide(self, responses: Mapping[str, Any]) -> None:
        for request in await self._caller.read(self._work.work.requests):
            response = responses.get(request.id)
            if isinstance(response, types.ElicitResult):
                self._put.add(request.id)
                await decide(self._caller, request, response)

    async def _wait(self) -> ToolAnswer:
        failure: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await tasks.start(self._report)
                await tasks.start(self._follow)
                with anyio.move_on_after(SOON if self._has_tasks else None):
                    self._found = await self._work.wait()
                    if await self._caller.read(self._work.outcome) is not None:  # then the events end, too
                        await self._reported.wait()
                tasks.cancel_scope.cancel()
        except* CantripError as errors:
            failure = errors
            while isinstance(failure, BaseExceptionGroup):  # the client gets the text of the first one
                failure = failure.exceptions[0]
        if failure is not None:  # raised in `except*`, it would be in a group with Python 3.11.3 and older
            raise failure
        if self._found is None:
            return await self._caller.read(lambda: create_task_result(self._work, asks=self._asks))
        return self._found

    async def _report(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Send a progress notification for each turn."""
        events, count = self._work.work.events(), 0
        with count_reader(self._caller.runtime.telemetry, "mcp"):
            task_status.started()
            async for event in follow_through_outages(events):
                if isinstance(event, StepCompleteEvent):
                    count += 1
                    await self._context.session.report_progress(count, message=f"turn {event.sequence}")
        self._reported.set()

    async def _follow(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Send the requests of the entity, and of those below it, to the client's user, or to the client itself."""
        async with self._caller.runtime.requests(follow=True, attend=self._asks) as requests:
            task_status.started()
            async for request in requests:
                if request.id in self._put or not self._work.concerns(request):
                    continue
                if self._asks and not self._is_modern:
                    self._tasks.start_soon(self._ask, request)
                    continue
                if not self._has_tasks:
                    open_requests = await self._caller.read(self._work.work.requests)
                    waiting = [request for request in open_requests if request.id not in self._put]
                    if not waiting:
                        continue  # it was decided meanwhile
                    self._found = await self._caller.read(partial(self._hand_over, waiting))
                self._tasks.cancel_scope.cancel()
                return

    def _hand_over(self, waiting: list[Request]) -> ToolAnswer:
        """Return the answer to a call that waits for a person: the forms for the client's user, or the requests."""
        if not self._asks:
            return self._work.waiting_result(waiting)
        return types.InputRequiredResult(
            input_requests=forms_of(self._caller, waiting),
            request_state=state_of(self._work, frozenset(self._put)),
        )

    async def _ask(self, request: Request) -> None:
        """Ask the client for a decision, while the call waits."""
        self._put.add(request.id)
        form, context = form_of(self._caller, request), self._context
        try:
            answer = await context.session.elicit_form(form.message, form.requested_schema, context.request_id)
        except MCPError as error:
            _log.warning("a request stays open: the client did not ask its user", code=error.error.code)
            return
        await decide(self._caller, request, answer)
