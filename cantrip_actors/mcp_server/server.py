"""The server: its answer to each method, in both eras of the protocol. A transport runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from mcp import types
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from cantrip_actors import Cantrip, CantripError, Runtime
from cantrip_actors.mcp_server.callers import CallerRefused, McpCaller
from cantrip_actors.mcp_server.calls import ToolCallRun, work_of_state
from cantrip_actors.mcp_server.resources import TEMPLATES, list_resources, read_resource
from cantrip_actors.mcp_server.tasks import RequestContext, has_tasks, serve_tasks
from cantrip_actors.mcp_server.tools import (
    CONTINUE,
    CONTINUE_TOOL,
    ContinueArguments,
    Offer,
    make_prompt,
    offers_of,
    prompts_of,
)
from cantrip_actors.mcp_server.work import ToolWork, UnknownWork, error_result
from cantrip_actors.runtime.events.instrument import Instrument, Served
from cantrip_actors.runtime.loom.outage_log import write_through_outages
from cantrip_actors.terms.problems import describe
from cantrip_actors.user_code.threads import run_for_client

FRESH: Final = 60_000
"""Milliseconds for which a client may cache the list of tools."""
PATIENCE: Final = 7 * 86_400.0
"""Seconds for which a person may think about a request before the call's state expires; the entity waits longer."""

INSTRUCTIONS: Final = (
    "Each tool has an agent work on an intent; it may take minutes. A result names the entity that worked: "
    "NAME_send gives a long-lived entity a further intent, NAME_fork continues from an earlier turn, and "
    "cantrip://entities/ID and cantrip://turns/ID are what happened. A call that waits for a person returns at once; "
    "once it is decided, the tool `continue` returns its result."
)

METHODS: Final = frozenset(
    {"initialize", "ping", "server/discover", "tools/list", "tools/call", "prompts/list", "prompts/get"}
    | {"resources/list", "resources/templates/list", "resources/read", "tasks/get", "tasks/update", "tasks/cancel"}
)
"""Methods that are counted by their names; a client may send any text."""


def make_server(
    cantrips: Mapping[str, Cantrip], find: Callable[[RequestContext], McpCaller], runtime: Runtime
) -> Server[Any]:
    """Return a server that offers cantrips by their names; `find` returns the client of a request.

    Clients return the state of a waiting call. It is sealed with a key of the runtime's loom, so the next process that
    opens this loom can continue the call.

    Raises InvalidCantrip if two cantrips would make tools of one name.
    """
    handlers = _Handlers(offers_of(cantrips), find)
    server: Server[Any] = Server(
        "cantrip",
        version=version("cantrip-actors"),
        instructions=INSTRUCTIONS,
        cache_hints={"tools/list": CacheHint(ttl_ms=FRESH, scope="private")},
        get_tool_input_schema=handlers.input_schema,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
    )
    serve_tasks(server, find)
    security = RequestStateSecurity(
        keys=[runtime.derive_key("MCP requestState")], ttl=PATIENCE, bind_principal=lambda context: find(context).by
    )
    server.middleware += [RequestStateBoundary(security, default_audience="cantrip"), _convert_errors(find)]
    if runtime.telemetry is not None:
        server.middleware.insert(0, _measure(runtime.telemetry, {*handlers.offers, CONTINUE}))
    return server


class _Handlers:
    """The answers to all methods except those of tasks."""

    def __init__(self, offers: Mapping[str, Offer], find: Callable[[RequestContext], McpCaller]) -> None:
        self.offers = offers
        self._find = find

    def _list_offered(self, caller: McpCaller) -> dict[str, Offer]:
        return {
            name: offer
            for name, offer in self.offers.items()
            if offer.cantrip in caller.cantrips and caller.allows(offer.scope)
        }

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema of a tool's arguments, for headers that repeat them."""
        return self.offers[name].tool.input_schema if name in self.offers else None

    async def list_tools(self, context: RequestContext, _params: Any) -> types.ListToolsResult:
        """Return the tools that the client may call."""
        tools = [offer.tool for offer in self._list_offered(self._find(context)).values()]
        return types.ListToolsResult(tools=[*tools, CONTINUE_TOOL] if tools else [])

    async def call_tool(self, context: RequestContext, params: types.CallToolRequestParams) -> Any:
        """Have an entity work on an intent, or continue with the state of an earlier call."""
        caller = self._find(context)
        offered = self._list_offered(caller)
        offer = offered.get(params.name)
        if offered and params.name == CONTINUE:
            return await self._continue(context, caller, params)
        if offer is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:200]}")
        if params.request_state is not None:
            work, seen_ids = await work_of_state(caller, params.request_state)
            return await ToolCallRun(caller, context, work, seen_ids).answer(params.input_responses)
        try:
            arguments: Any = offer.arguments.model_validate(params.arguments or {})
            begin = partial(ToolWork.begin, caller, offer, arguments, survives=has_tasks(context))
            work = await write_through_outages(begin)
        except ValidationError as error:
            return _explain_faults(params, offer.arguments, error)
        except CantripError as error:
            return error_result(caller.runtime.redact(str(error)))
        return await ToolCallRun(caller, context, work).answer(None)

    async def _continue(self, context: RequestContext, caller: McpCaller, params: types.CallToolRequestParams) -> Any:
        """Return the result of an earlier call, or the requests that it still waits for."""
        try:
            work_id = ContinueArguments.model_validate(params.arguments or {}).id
        except ValidationError as error:
            return _explain_faults(params, ContinueArguments, error)
        try:
            work = await caller.read(lambda: ToolWork.find(caller, work_id))
        except UnknownWork:
            return error_result(
                f"{CONTINUE}: no call has the id {work_id[:100]!r}: take it from the result of the call"
            )
        return await ToolCallRun(caller, context, work, owns_work=False).answer(None)

    async def list_resources(
        self, context: RequestContext, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Return entities as resources."""
        cursor = None if params is None else params.cursor
        return await run_for_client(list_resources, self._find(context), cursor)

    async def list_prompts(self, context: RequestContext, _params: Any) -> types.ListPromptsResult:
        """Return the prompts that a person may pick."""
        return types.ListPromptsResult(prompts=list(self._list_prompts(context).values()))

    def _list_prompts(self, context: RequestContext) -> dict[str, types.Prompt]:
        return prompts_of(self._list_offered(self._find(context)).values())

    async def get_prompt(self, context: RequestContext, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        """Return the message of a prompt."""
        if params.name not in self._list_prompts(context):
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name[:200]}")
        intent = (params.arguments or {}).get("intent", "")
        if not intent.strip():
            raise MCPError(types.INVALID_PARAMS, f"{params.name[:200]}: the argument intent is missing")
        return make_prompt(params.name, intent)

    async def list_templates(self, _context: RequestContext, _params: Any) -> types.ListResourceTemplatesResult:
        """Return the forms of the URIs."""
        return types.ListResourceTemplatesResult(resource_templates=list(TEMPLATES))

    async def read_resource(
        self, context: RequestContext, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return an entity or a turn."""
        return await run_for_client(read_resource, self._find(context), str(params.uri))


def _measure(telemetry: Instrument, offered: Container[str]) -> ServerMiddleware[Any]:
    """Return what tells those who observe the runtime how long requests took."""

    async def pass_on(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        began, error = time.perf_counter(), ""
        try:
            result = await call_next(ctx)
            if getattr(result, "is_error", False):
                error = "tool_error"
            return result
        except BaseException as problem:
            error = type(problem).__name__
            raise
        finally:
            tool = (ctx.params or {}).get("name", "") if ctx.method == "tools/call" else ""
            shown = tool if isinstance(tool, str) and tool in offered else "_OTHER" if tool else ""
            method = ctx.method if ctx.method in METHODS else "_OTHER"
            telemetry.noted(Served(method, shown, error, time.perf_counter() - began))

    return pass_on


def _explain_faults(
    params: types.CallToolRequestParams, model: type[BaseModel], error: ValidationError
) -> types.CallToolResult:
    faults = describe(error.errors(include_url=False), params.arguments or {})
    names = ", ".join(model.model_fields)
    return error_result(f"{params.name}: {'; '.join(faults)}; expected arguments of {names}")


def _convert_errors(find: Callable[[RequestContext], McpCaller]) -> ServerMiddleware[Any]:
    """Return what turns our errors into errors of the protocol."""

    async def pass_on(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        try:
            return await call_next(ctx)
        except (UnknownWork, CallerRefused) as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
        except CantripError as error:
            raise MCPError(types.INTERNAL_ERROR, find(ctx).runtime.redact(str(error))) from error

    return pass_on
