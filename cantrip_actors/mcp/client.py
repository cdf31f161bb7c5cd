"""One connection to an MCP server, for the actor that holds it.

The whole connection lives in the task that runs `hold`; calls come from other tasks. Errors of the SDK and its
transports become `ToolServerError` before the connection is established, and `LostServer` after it; a caller gets no
others. Anything else crashes the actor, whose supervisor starts a new one.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import anyio
import httpx2
from anyio.abc import TaskGroup
from mcp.client import Client, ClientRequestContext, ClientSession
from mcp.client.auth import OAuthFlowError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    Implementation,
    InputRequiredResult,
    JSONRPCResponse,
    ListRootsRequest,
    ListRootsResult,
    PaginatedRequestParams,
    ReadResourceResult,
    Root,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import FileUrl, ValidationError

from cantrip_actors.mcp.changes import Changes
from cantrip_actors.mcp.http_client import LOGIN_REFUSED, NEVER_TAKEN, SESSION, SessionClient, tells_of_no_session
from cantrip_actors.mcp.oauth import Login, OAuth
from cantrip_actors.mcp.oauth_flow import authentication
from cantrip_actors.mcp.pipe import LONGEST, Pipe
from cantrip_actors.mcp.resources import FIRST, LISTED, READ, REQUESTS, RESOURCES, ResourcePosition, entry_of
from cantrip_actors.mcp.results import (
    complete_schemas,
    conversation,
    convert_result,
    leave_out_invalid,
    messages_of,
    prompt_of,
    read,
    tool_of,
)
from cantrip_actors.mcp.rounds import ServerQuestions
from cantrip_actors.mcp.server_tasks import StartedTask, TasksExtension, call_as_task, finish_task
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import InvalidIntent
from cantrip_actors.terms.server_prompt import EmbeddedText, Prompt, PromptMessage
from cantrip_actors.terms.tool_server import (
    Connection,
    Elicited,
    Host,
    LostServer,
    NeverTaken,
    ReportProgress,
    SampleRequest,
    SamplingRefused,
    ServerSession,
    Tool,
    ToolResult,
    ToolServerError,
)
from cantrip_actors.terms.wrapper import GateCall

CONNECT: Final = 30.0
"""Seconds in which a connection has to be established."""

PAGES: Final = 100
"""Pages of tools or prompts that a server may list."""

TOOLS: Final = 1_000
"""Tools or prompts that a server may list: each schema of a tool is checked, which takes milliseconds."""

MESSAGES: Final = 100
CHARACTERS: Final = 1_000_000
"""Messages, and characters in them, that a prompt may have."""

ROUNDS: Final = 10
"""How often a server may ask for something during one call."""

BREATH: Final = 0.1
"""Seconds between two reports of progress, at least."""

LINGER: Final = 5.0
"""Seconds that running calls have to end once the server has ended the session."""

LOSSES: Final = ("Connection closed", "SSE stream ")
"""How the SDK's own errors of a lost connection begin. Servers use their code, -32000, for errors of any kind."""

LAST_WORDS: Final = 3
"""Lines of a program's standard error that the error message has if it ends."""

INFO: Final = Implementation(name="cantrip-actors", version="1")

_log = get_logger("cantrip_actors.mcp")


class _Near(NamedTuple):
    """The surroundings of a connection: the server's name, its standard error, its exit stack and its task group.

    `is_connected` says whether the connection is established.
    """

    name: str
    standard_error: _StandardError
    stack: contextlib.AsyncExitStack
    tasks: TaskGroup
    connection: _Connection
    is_connected: Callable[[], bool]


T = TypeVar("T")

ConnectTarget = Callable[[_Near], Awaitable[Any]]
"""Returns the target that the SDK's client connects to."""


async def hold(
    name: str,
    target: ConnectTarget,
    host: Host,
    ready: Callable[[Connection], object],
    roots: Sequence[str],
    sampling: str,
    *,
    handshake: bool = False,
    patience: float = CONNECT,
) -> None:
    """Connect to a server, call `ready` with the connection, and return when it is lost. Raises ToolServerError."""
    connection, changes = _Connection(name, host, roots, sampling), Changes(name, host.changed)
    standard_error, why = _StandardError(name), None
    connecting = anyio.CancelScope(deadline=anyio.current_time() + patience)
    try:
        with contextlib.closing(standard_error), connecting:
            async with contextlib.AsyncExitStack() as stack, anyio.create_task_group() as tasks:
                tasks.start_soon(standard_error.read)
                near = _Near(name, standard_error, stack, tasks, connection, lambda: connecting.deadline == math.inf)
                client = Client(
                    await target(near),
                    mode="legacy" if handshake else "auto",
                    client_info=INFO,
                    elicitation_callback=connection.answer_elicitation,
                    sampling_callback=connection.answer_sampling if sampling else None,
                    list_roots_callback=connection.list_roots if roots else None,
                    message_handler=changes.note,
                    extensions=[TasksExtension()],
                    cache=None,
                )
                async with client, anyio.create_task_group() as within:  # what uses the client ends before it
                    connection.session, connection.version = client.session, client.session.protocol_version
                    await connection.own_tools()
                    connecting.deadline = math.inf
                    ready(connection)
                    within.start_soon(changes.run)
                    within.start_soon(changes.subscribe, client)
                    within.start_soon(connection.leave_when_over)
                    await connection.lost.wait()
                    within.cancel_scope.cancel()
                tasks.cancel_scope.cancel()
    except* (MCPError, OSError, httpx2.HTTPError, OAuthFlowError, ValidationError, ToolServerError) as problems:
        why = _explain(problems)
    if why is not None:  # raised in `except*`, it would be in a group with Python 3.11.3 and older
        raise ToolServerError(f"{why}{standard_error.last_words}")
    if connecting.cancelled_caught:
        raise ToolServerError(f"it did not answer within {patience:g} s{standard_error.last_words}")


def program(command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None) -> ConnectTarget:
    """Return a program as a target."""

    async def start(near: _Near) -> Any:
        errors = near.standard_error.file
        pipe = await Pipe.start(near.name, [command, *args], env, cwd, errors, near.stack, near.tasks)
        return _watch(pipe, near.connection)

    return start


def endpoint(url: str, headers: Mapping[str, str], auth: Any) -> ConnectTarget:
    """Return a URL as a target."""

    async def reach(near: _Near) -> Any:
        token = {"Authorization": f"Bearer {auth}"} if isinstance(auth, str) else {}
        login = auth
        if isinstance(auth, (OAuth, Login)):
            login = await authentication(auth, url, near.tasks)
        timeout = httpx2.Timeout(CONNECT, read=None)  # a call may take long, and its gate has a timeout

        async def note(response: httpx2.Response) -> None:
            if SESSION in response.headers:
                near.connection.session_id = response.headers[SESSION]

        http = await near.stack.enter_async_context(
            SessionClient(
                is_connected=near.is_connected,
                headers={**headers, **token},
                auth=None if token else login,
                timeout=timeout,
                event_hooks={"response": [note]},
            )
        )
        transport = streamable_http_client(url, http_client=http, max_sse_event_size=LONGEST)
        return _watch(transport, near.connection)

    return reach


def inside(server: Any) -> ConnectTarget:
    """Return a server object as a target."""

    async def find(_: _Near) -> Any:
        return server

    return find


class _Unsettled(Exception):
    """A request has no result that this client takes."""


_Send = Callable[[Any, str | None], Awaitable[Any]]
"""Sends a request with the responses to the server's earlier questions, and the server's state."""


class _Connection:
    """An established connection."""

    session: ClientSession

    def __init__(self, name: str, host: Host, roots: Sequence[str], sampling: str) -> None:
        self._name = name
        self._host = host
        self._roots = roots
        self._sampling = sampling
        """The name of the crystal that answers the server; empty if there is none."""
        self._calls: dict[anyio.Event, GateCall] = {}
        """The running calls, each with the event that is set when it ends."""
        self.lost = anyio.Event()
        self._over = anyio.Event()
        """Set when the server has ended the session."""
        self.version: str | None = None
        """The version of the protocol, once it is agreed."""
        self.session_id: str | None = None
        """The id that the server gives the session."""
        self._left_out: set[str] = set()
        """The names of the entries that were left out of the server's lists."""

    @property
    def negotiated(self) -> ServerSession:
        """The version of the protocol, and the server's id of the session."""
        return ServerSession(self.version, self.session_id)

    def correct(self, result: dict[str, Any]) -> None:
        """Complete the tools in a result before the SDK checks it, and leave invalid entries out of a list."""
        complete_schemas(result)
        faults = leave_out_invalid(result, self.version) if self.version is not None else {}
        if faults.keys() - self._left_out:
            self._left_out |= faults.keys()
            _log.warning("invalid entries of a server's lists are left out", server=self._name, faults=faults)

    @property
    def is_lost(self) -> bool:
        """True once the connection has ended."""
        return self.lost.is_set()

    @property
    def is_over(self) -> bool:
        """True once the server has ended the session."""
        return self._over.is_set()

    async def leave_when_over(self) -> None:
        """End the connection once the server has ended the session, and the running calls have ended."""
        await self._over.wait()
        with anyio.move_on_after(LINGER):
            for is_over in list(self._calls):
                await is_over.wait()
        self.lost.set()

    @contextlib.contextmanager
    def _noting_loss(self) -> Iterator[None]:
        """Make the SDK's error of a closed connection a LostServer, and that of a session that is over a NeverTaken."""
        try:
            yield
        except MCPError as problem:
            code, message = problem.error.code, problem.error.message
            if code == CONNECTION_CLOSED and message.startswith(LOSSES):
                raise LostServer("its connection was closed") from problem
            is_of_session = self.session_id is not None and message.startswith("Session")
            has_no_session = is_of_session and tells_of_no_session(message)
            if code in (NEVER_TAKEN, LOGIN_REFUSED) or has_no_session:
                self._over.set()
            if code == LOGIN_REFUSED:
                raise ToolServerError(message) from problem
            if code == NEVER_TAKEN or has_no_session:
                raise NeverTaken(message) from problem
            raise

    async def tools(self) -> Sequence[Tool]:
        """Return all current tools of the server, with those for its resources if it has any.

        Raises ToolServerError, LostServer, NeverTaken.
        """
        tools = await self.own_tools()
        return [*tools, RESOURCES, READ] if await self._has_resources() else tools

    async def own_tools(self) -> Sequence[Tool]:
        """Return all current tools of the server. Raises ToolServerError, LostServer, NeverTaken."""
        can = self.session.server_capabilities
        may_lack = can is not None and can.tools is None
        pages = self._read_pages("tools", self.session.list_tools, lambda page: map(tool_of, page.tools), may_lack)
        tools, is_all = await pages
        if len(tools) > TOOLS:
            raise ToolServerError(f"it lists more than {TOOLS} tools")
        if not is_all:
            raise ToolServerError(f"it lists more than {PAGES} pages of tools")
        return tools

    async def prompts(self) -> Sequence[Prompt]:
        """Return the current prompts of the server, at most `TOOLS`. Raises ToolServerError, LostServer, NeverTaken."""
        pages = self._read_pages("prompts", self.session.list_prompts, lambda page: map(prompt_of, page.prompts), True)
        return (await pages)[0][:TOOLS]

    async def _read_pages(
        self, what: str, ask: Callable[..., Awaitable[Any]], read: Callable[[Any], Iterable[T]], may_lack: bool
    ) -> tuple[list[T], bool]:
        """Return the entries of at most `PAGES` pages, until there are more than `TOOLS`, and whether that is all.

        A server that may lack the list does not need to know the method.
        """
        entries: list[T] = []
        cursor: str | None = None
        for _ in range(PAGES):
            try:
                with self._noting_loss():
                    page = await ask(params=PaginatedRequestParams(cursor=cursor))
            except MCPError as problem:
                if problem.error.code == METHOD_NOT_FOUND and may_lack:
                    return [], True
                raise ToolServerError(f"it refuses to list its {what}: {problem.error.message}") from problem
            except ValidationError as problem:
                raise ToolServerError(f"it lists its {what} wrongly: {_describe_fault(problem)}") from None
            entries += read(page)
            cursor = page.next_cursor or None  # some servers end a list with an empty one
            if cursor is None or len(entries) > TOOLS:
                break
        return entries, cursor is None

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> Sequence[PromptMessage]:
        """Return the messages of a prompt. Raises ToolServerError, LostServer, NeverTaken."""

        async def send(responses: Any, state: str | None) -> Any:
            return await self.session.get_prompt(
                name, dict(arguments), input_responses=responses, request_state=state, allow_input_required=True
            )

        prefix = f"prompt {name}"
        try:
            with self._noting_loss():
                messages = messages_of(await self._settle(send, None))
        except MCPError as problem:
            raise ToolServerError(f"{prefix}: {problem.error.message}") from problem
        except ValidationError as problem:
            raise ToolServerError(
                f"{prefix}: the server's answer is not a prompt: {_describe_fault(problem)}"
            ) from None
        except _Unsettled as problem:
            raise ToolServerError(f"{prefix}: {problem}") from None
        if len(messages) > MESSAGES or sum(map(_count_characters, messages)) > CHARACTERS:
            raise ToolServerError(f"{prefix}: it has more than {MESSAGES} messages or {CHARACTERS:,} characters")
        return messages

    async def _has_resources(self) -> bool:
        """Return whether the server lists any resource; one that lists them wrongly has none."""
        can = self.session.server_capabilities
        if can is None or can.resources is None:
            return False
        try:
            with self._noting_loss():
                listed, _ = await self._resources(FIRST)
        except MCPError as problem:
            _log.warning("a server refuses to list its resources", server=self._name, error=problem.error.message)
            return False
        except ValidationError as problem:
            _log.warning("a server lists its resources wrongly", server=self._name, error=_describe_fault(problem))
            return False
        return bool(listed)

    async def _resources(self, start: ResourcePosition) -> tuple[list[dict[str, Any]], ResourcePosition | None]:
        """Return the resources from a place on, a bounded number of them, and the place after those."""
        resources: list[dict[str, Any]] = []
        place: ResourcePosition | None = start
        for _ in range(REQUESTS):
            if place is None or len(resources) == LISTED:
                break
            params = PaginatedRequestParams(cursor=place.cursor or None)
            try:
                page = await (
                    self.session.list_resources(params=params)
                    if place.kind == "resource"
                    else self.session.list_resource_templates(params=params)
                )
            except MCPError as problem:
                if place.kind == "resource" or problem.error.code != METHOD_NOT_FOUND:
                    raise
                return resources, None  # it has no templates
            listed, place = place.take(page, LISTED - len(resources))
            resources += map(entry_of, listed)
        return resources, place

    async def _list(self, args: Mapping[str, Any], call: GateCall) -> ToolResult:
        start = ResourcePosition.read(str(args["cursor"])) if args.get("cursor") else FIRST
        if start is None:
            return ToolResult(f"{call.gate}: cursor: expected `next` of the result before", is_error=True)
        resources, place = await self._resources(start)
        return ToolResult({"resources": resources} | ({} if place is None else {"next": str(place)}))

    async def call(self, tool: Tool, args: Mapping[str, Any], call: GateCall, report: ReportProgress) -> ToolResult:
        """Call a tool; `report` gets its progress. Cancelling it cancels the request. Raises LostServer, NeverTaken."""
        is_over = anyio.Event()
        self._calls[is_over] = call
        try:
            with self._noting_loss():
                if tool.kind == "resources":
                    return await self._list(args, call)
                return await self._call(tool, args, call, _Progress(report))
        except MCPError as problem:
            return ToolResult(f"{call.gate}: {problem.error.message}", is_error=True)
        except ValidationError as problem:
            message = f"{call.gate}: the server ran the call, but its answer is invalid: {_describe_fault(problem)}"
            return ToolResult(message, is_error=True)
        except RuntimeError as mismatch:  # the SDK also checks structured content, against the current list of tools
            return ToolResult(f"{call.gate}: {mismatch}", is_error=True)
        finally:
            del self._calls[is_over]
            is_over.set()

    async def _call(self, tool: Tool, args: Mapping[str, Any], call: GateCall, progress: _Progress) -> ToolResult:
        questions = None if call.inquiry is None else ServerQuestions.read(call.inquiry)
        is_modern = self.session.protocol_version in MODERN_PROTOCOL_VERSIONS
        try:
            if tool.needs_task and not is_modern:
                return convert_result(await call_as_task(self.session, tool.name, dict(args)), tool)
            result = await self._settle(partial(self._request, tool, args, progress), call, questions)
            if isinstance(result, StartedTask):
                result = await finish_task(self.session, result, partial(self._answer_task, call))
        except _Unsettled as problem:
            return ToolResult(f"{call.gate}: {problem}", is_error=True)
        return read(result) if isinstance(result, ReadResourceResult) else convert_result(result, tool)

    async def _answer_task(self, call: GateCall, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Return the responses to the questions of a task."""
        return {
            name: (await self._input(request, call, None)).model_dump(by_alias=True, mode="json", exclude_none=True)
            for name, request in requests.items()
        }

    async def _settle(self, send: _Send, call: GateCall | None, questions: ServerQuestions | None = None) -> Any:
        """Return the result of a request, once the server's own requests before it are answered. Raises _Unsettled."""
        while questions is None or questions.rounds <= ROUNDS:
            if questions is None:
                result = await send(None, None)
            else:
                for name, request in questions.open:
                    questions.responses[name] = await self._input(request, call, questions.resume(name))
                result = await send(questions.responses, questions.state)
            if not isinstance(result, InputRequiredResult):
                if result.result_type != "complete" and not isinstance(result, StartedTask):
                    mismatch = f"the server answers with a result of the type {result.result_type}"
                    raise _Unsettled(f"{mismatch}, which this client does not take")
                return result
            questions = ServerQuestions.after(questions, result)
        raise _Unsettled(f"the server asked for something more than {ROUNDS} times")

    async def _request(
        self, tool: Tool, args: Mapping[str, Any], progress: _Progress, responses: Any, state: str | None
    ) -> Any:
        if tool.kind == "read":
            return await self.session.read_resource(
                str(args.get("uri", "")), input_responses=responses, request_state=state, allow_input_required=True
            )
        for is_listed in (False, True):
            try:
                return await self.session.call_tool(
                    tool.name,
                    dict(args),
                    progress_callback=progress,
                    input_responses=responses,
                    request_state=state,
                    allow_input_required=True,
                    allow_claimed=True,
                )
            except MCPError as problem:
                if problem.error.code != HEADER_MISMATCH or is_listed:
                    raise
                await self.own_tools()  # the headers of a request depend on the list of tools
        raise AssertionError("the second attempt returns or raises")

    async def _input(self, request: Any, call: GateCall | None, resume: Mapping[str, Any] | None) -> Any:
        """Return the answer to a server's request; questions to a person are answered during calls only."""
        if isinstance(request, ListRootsRequest) and self._roots:
            return await self.list_roots()
        if isinstance(request, CreateMessageRequest) and self._sampling:
            sampled = await self._sample(request.params, call)
            if isinstance(sampled, ErrorData):
                raise MCPError.from_error_data(sampled)
            return sampled
        if not isinstance(request, ElicitRequest):
            raise MCPError(METHOD_NOT_FOUND, f"this client answers no {request.method}")
        return await self._ask(request.params, call, resume)

    async def answer_elicitation(self, context: ClientRequestContext, params: Any) -> ElicitResult:  # noqa: ARG002  # the SDK's
        """Answer a question that names no call: if only one call is running, it belongs to that."""
        if len(self._calls) != 1:
            return await self._ask(params, None)
        ((is_over, call),) = self._calls.items()
        answer = await _run_until(is_over, partial(self._ask, params, call))  # a question does not outlive its call
        return answer or ElicitResult(action="cancel")

    async def answer_sampling(
        self,
        context: ClientRequestContext,  # noqa: ARG002  # the SDK's
        params: CreateMessageRequestParams,
    ) -> CreateMessageResult | ErrorData:
        """Answer a request to a model that names no call: if only one call is running, it belongs to that."""
        if len(self._calls) != 1:
            reason = f"{len(self._calls)} calls are running: it is not known which of them pays"
            return ErrorData(code=INVALID_REQUEST, message=reason)
        ((is_over, call),) = self._calls.items()
        answer = await _run_until(is_over, partial(self._sample, params, call))
        return answer or ErrorData(code=INVALID_REQUEST, message="its call has ended")

    async def _sample(
        self, params: CreateMessageRequestParams, call: GateCall | None
    ) -> CreateMessageResult | ErrorData:
        """Return the crystal's answer to the server, or the reason why it gets no answer."""
        if params.tools:
            return ErrorData(code=INVALID_REQUEST, message="a model that answers servers has no tools")
        try:
            request = SampleRequest(self._name, conversation(params), params.max_tokens, call, self._sampling)
            answer = await self._host.sample(request)
        except (SamplingRefused, InvalidIntent) as problem:
            return ErrorData(code=INVALID_REQUEST, message=f"this client does not answer: {problem}")
        reason = "maxTokens" if answer.is_cut else "endTurn"
        content = TextContent(type="text", text=answer.text)
        return CreateMessageResult(role="assistant", content=content, model=answer.crystal, stop_reason=reason)

    async def list_roots(self, context: ClientRequestContext | None = None) -> ListRootsResult:  # noqa: ARG002  # the SDK's
        """Return the folders that the server may use."""
        folders = map(Path, self._roots)
        return ListRootsResult(roots=[Root(uri=FileUrl(folder.as_uri()), name=folder.name) for folder in folders])

    async def _ask(self, params: Any, call: GateCall | None, resume: Mapping[str, Any] | None = None) -> ElicitResult:
        to_open = isinstance(params, ElicitRequestURLParams)
        question = Elicited(
            self._name,
            params.message,
            None if to_open else params.requested_schema,
            params.url if to_open else None,
            call,
            resume,
        )
        answer = await self._host.elicit(question)
        if answer is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=None if to_open else dict(answer))


async def _run_until(is_over: anyio.Event, work: Callable[[], Awaitable[T]]) -> T | None:
    """Return what `work` returns; None if `is_over` is set first, which cancels it."""
    results: list[T] = []
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            results.append(await work())
            tasks.cancel_scope.cancel()

        tasks.start_soon(run)
        await is_over.wait()
        tasks.cancel_scope.cancel()
    return results[0] if results else None


def _count_characters(message: PromptMessage) -> int:
    content = message.content.text if isinstance(message.content, EmbeddedText) else message.content
    return len(content) if isinstance(content, str) else 0


class _Progress:
    """Reports the progress of a call, ten times a second at most: a server may flood."""

    def __init__(self, report: ReportProgress) -> None:
        self._report = report
        self._next = 0.0

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = anyio.current_time()
        if now >= self._next:
            self._next = now + BREATH
            share = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
            self._report(f"{share}: {message[:500]}" if message else share)


@contextlib.asynccontextmanager
async def _watch(transport: Any, connection: _Connection) -> AsyncIterator[Any]:
    """Set `lost` at the end of a transport of the SDK; a client alone notices the end at its next request."""
    async with transport as (read, write):
        yield _WatchedStream(read, connection), write


class _WatchedStream:
    """The messages that a transport reads, corrected for the SDK, which leaves it at its end: that sets `lost`."""

    def __init__(self, stream: Any, connection: _Connection) -> None:
        self._stream = stream
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for message in self._stream:
            if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
                self._connection.correct(message.message.result)
            yield message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._connection.lost.set()
        await self._stream.aclose()


class _StandardError:
    """The standard error of a program; it goes to the log, at debug."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._lines: deque[str] = deque(maxlen=LAST_WORDS)
        self._part = ""
        """The line that has not ended."""
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        self.file = os.fdopen(write, "w", encoding="utf-8")

    def close(self) -> None:
        """Close the pipe, after its last lines were read."""
        self.file.close()
        rest = b""
        with contextlib.suppress(BlockingIOError):
            rest = os.read(self._read, 65_536)
        self._lines += (self._part + rest.decode(errors="replace")).splitlines()
        os.close(self._read)

    @property
    def last_words(self) -> str:
        """The last lines, for an error message."""
        return "".join(f"\n  it wrote: {line[:500]}" for line in self._lines)

    async def read(self) -> None:
        """Read lines for as long as the connection lasts."""
        while True:
            await anyio.wait_readable(self._read)
            chunk = os.read(self._read, 65_536).decode(errors="replace")
            if not chunk:
                return
            *lines, part = (self._part + chunk).split("\n")
            self._part = part[-10_000:]
            for line in lines:
                self._lines.append(line)
                _log.debug("a server wrote to its standard error", server=self._server, line=line)


def _describe_fault(problem: ValidationError) -> str:
    """Return the first fault of a server's message."""
    first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{problem.title}: {'.'.join(map(str, first['loc']))}: {first['msg']}"


def _explain(problems: BaseExceptionGroup[Any]) -> str:
    """Return the problems as one text."""
    return "; ".join(dict.fromkeys(_describe_problem(leaf) for leaf in _list_leaves(problems)))


def _list_leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _list_leaves(error)
        else:
            yield error


def _describe_problem(problem: BaseException) -> str:
    if isinstance(problem, MCPError):
        return problem.error.message
    if isinstance(problem, ToolServerError):
        return str(problem)
    if isinstance(problem, ValidationError):
        return f"it does not speak the protocol: {_describe_fault(problem)}"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return f"{type(problem).__name__}: {problem}"
