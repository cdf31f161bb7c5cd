"""The tool servers of a runtime, and their actors: one connection for all entities with the same server.

    servers               dynamic: a supervisor for each server that entities use
    └── NAME              one_for_one, temporary
        └── connection    permanent, restarts with backoff

The connection lives in one task of its actor from beginning to end, and every call of a tool is a message to that
actor. The first entity that uses the server starts it, and the last one that unloads or ends stops it. If a connection
ends, the entities of running calls observe an unknown outcome, and the actor restarts. If it restarts too often,
its supervisor gives up, and calls fail with that reason; a call `PERIOD` seconds later tries again.

A server is asked for its tools when an entity is made. A loaded entity has the tools that its log lists.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple
from weakref import WeakValueDictionary

import anyio

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.loom import Loom
from cantrip_actors.machine.project import find_header_in_force
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.events.context_variables import ContextVariables, bind_variables, capture_variables
from cantrip_actors.runtime.events.instrument import Fact, SessionEnded
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.errors import RuntimeClosed
from cantrip_actors.terms.json_schema import load
from cantrip_actors.terms.server_prompt import Prompt, PromptMessage
from cantrip_actors.terms.tool_server import (
    Changed,
    Connection,
    Elicit,
    Host,
    ListedTools,
    LostServer,
    NeverTaken,
    Sample,
    SampleAnswer,
    SampleRequest,
    SamplingRefused,
    ServerSession,
    Tool,
    ToolResult,
    ToolServer,
    ToolServerError,
    read_listed,
)
from cantrip_actors.terms.wrapper import GateCall
from cantrip_actors.user_code.threads import run_apart
from supervisors import (
    Actor,
    ActorRef,
    Backoff,
    Caller,
    CallError,
    ChildNotFound,
    ChildSpec,
    DynamicSupervisor,
    NotRunning,
    Shutdown,
    ShuttingDown,
    StartFailed,
    Stop,
    Supervisor,
    SupervisorRef,
)

GRACE: Final = 5.0
"""Seconds that a cancelled call has to end."""

TRIES: Final = 3
"""The most incarnations of a server's actor that a call waits for."""

SESSIONS: Final = 3
"""Sessions that some work is offered to, if the server ends each of them before it takes the work."""

RESTARTS: Final = 5
PERIOD: Final = 60.0
"""A server whose connection ends more than `RESTARTS` times within so many seconds is given up."""

_log = get_logger("cantrip_actors.runtime")

ServerWork = Callable[[Connection], Awaitable[Any]]
"""The work that a caller wants done with a connection."""


class Message(NamedTuple):
    """Work for a connection, with the caller's context variables: the span that it belongs to."""

    work: ServerWork
    variables: ContextVariables


class ServerActor(Actor):
    """Holds the connection to one server, and does all callers' work with it concurrently."""

    has_tasks: ClassVar[bool] = True

    def __init__(self, used: ServerInUse) -> None:
        self._used = used
        self._connection: Connection | None = None
        self._since: float | None = None
        """When it was connected."""
        self._connected = anyio.Event()
        self._ended = anyio.Event()
        """Set when the present connection has ended."""

    async def init(self) -> None:
        """Start connecting; callers wait until that is done."""
        self.tasks.start_soon(self._hold)

    async def _hold(self) -> None:
        used, is_over = self._used, True
        while is_over:  # a session that the server ends is no crash: another one begins
            try:
                await used.server.hold(self._connect, Host(used.pool.elicit, used.note_change, used.sample))
                used.problem = "its connection ended"
            except ToolServerError as problem:
                used.problem = str(problem)
                raise Stop(Shutdown(f"server {used.server.name}: {used.problem}")) from problem
            finally:
                if self._since is not None:
                    used.pool.note(SessionEnded(anyio.current_time() - self._since))
                    self._since = None
            connection, self._connection = self._connection, None
            is_over = _is_over(connection)
            ended, self._connected, self._ended = self._ended, anyio.Event(), anyio.Event()
            ended.set()
        raise Stop(Shutdown(f"server {used.server.name}: {used.problem}"))

    def _connect(self, connection: Connection) -> None:
        self._connection, self._used.problem = connection, ""
        self._used.connection = connection
        self._used.note_news()
        self._since = anyio.current_time()
        self._connected.set()

    async def handle_call(self, message: Message, caller: Caller) -> Any:
        """Do a caller's work once the connection is open, and reply with its result."""
        return self.answer(caller, self._carry_out, message)

    async def _carry_out(self, message: Message) -> Any:
        while self._connection is None or _is_over(self._connection):
            await (self._connected if self._connection is None else self._ended).wait()
        if self._connection.is_lost:
            await anyio.sleep_forever()  # this incarnation is about to end, and the next one is asked
        with bind_variables(message.variables):
            return await message.work(self._connection)


def _is_over(connection: Connection | None) -> bool:
    return getattr(connection, "is_over", False)


@dataclass(eq=False)
class ServerInUse:
    """A server, the actor that holds its connection, and the number of entities that use it."""

    server: ToolServer
    pool: ToolServers
    asks: ActorRef[Any] = field(default_factory=ActorRef)
    supervisor: SupervisorRef = field(default_factory=SupervisorRef)
    users: int = 0
    started_at: float | None = None
    """When its supervisor was started, on the event loop's clock; None if it is stopped or was never started."""
    problem: str = ""
    """Why the last connection ended, or could not be made."""
    starting: anyio.Lock = field(default_factory=anyio.Lock)
    version: int = 0
    """Grows with each connection, and with each list that the server says to have changed."""
    news: anyio.Event = field(default_factory=anyio.Event)
    """Set when `version` grows; then there is a new one."""

    connection: Connection | None = None
    """The newest connection; it may be lost."""

    samples: dict[str, Sample] = field(default_factory=dict)
    """The functions that let a crystal answer the server during a call, by the id of the calling entity."""

    async def sample(self, request: SampleRequest) -> SampleAnswer:
        """Return the answer of the calling entity's crystal to the server. Raises SamplingRefused."""
        sample = None if request.call is None else self.samples.get(request.call.entity_id)
        if sample is None:
            raise SamplingRefused("no entity calls")
        return await sample(request)

    @property
    def session(self) -> ServerSession:
        """The session that the newest connection and its server agreed on."""
        session: ServerSession = getattr(self.connection, "negotiated", ServerSession())
        return session

    def note_news(self) -> None:
        """Wake the programs that wait for news of the server."""
        self.version += 1
        self.news.set()
        self.news = anyio.Event()

    def note_change(self, what: Changed) -> None:
        """Notify observers and the programs that wait: one of the server's lists has changed."""
        self.note_news()
        self.pool.report_change(self, what)

    @property
    def has_given_up(self) -> bool:
        """Whether its supervisor has ended, because the connection was lost too often."""
        return self.started_at is not None and not self.supervisor.alive

    async def hold(self) -> None:
        """Count one more user of the server, and start its actor if it does not run."""
        self.users += 1
        await self.start()

    async def release(self) -> None:
        """Count one user less; stop the actor after the last one."""
        self.users -= 1
        with anyio.CancelScope(shield=True):  # the next user starts another actor
            async with self.starting:
                if self.users or self.started_at is None:
                    return
                self.started_at = None
                with contextlib.suppress(ChildNotFound, CallError):
                    await self.pool.supervisor.terminate_child(self.supervisor)

    async def start(self) -> None:
        """Start its actor if it does not run; one that was given up, only after `PERIOD`. Raises RuntimeClosed."""
        with anyio.CancelScope(shield=True):  # the actor is shared
            async with self.starting:
                since = self.started_at
                if since is None or (self.has_given_up and anyio.current_time() > since + PERIOD):
                    self.asks, self.supervisor = ActorRef(), SupervisorRef()
                    name = f"{self.server.name} {next(self.pool.numbers)}"
                    spec = ChildSpec(name, self._supervise, restart="temporary", ref=self.supervisor)
                    try:
                        await self.pool.supervisor.start_child(spec)
                    except (NotRunning, ShuttingDown, StartFailed) as gone:
                        raise RuntimeClosed("the runtime closes: it starts no server of tools") from gone
                    self.started_at = anyio.current_time()

    def _supervise(self) -> Supervisor:
        backoff = Backoff(first=0.5, maximum=10.0)
        child = ChildSpec("connection", partial(ServerActor, self), ref=self.asks, backoff=backoff)
        return Supervisor([child], max_restarts=RESTARTS, period=PERIOD)


class ToolServers:
    """The servers of one runtime. `supervisor` is the dynamic supervisor of their supervisors."""

    def __init__(
        self,
        report: Callable[[GateCall, str], object],
        elicit: Elicit,
        report_change: Callable[[ServerInUse, Changed], object],
        note: Callable[[Fact], object] = lambda _: None,
    ) -> None:
        self.supervisor = SupervisorRef()
        self._report = report
        """Reports a tool's progress to watchers."""
        self.report_change = report_change
        """Notifies observers that one of a server's lists has changed."""
        self.elicit = elicit
        """Puts a server's questions to people."""
        self.note = note
        """Handles the facts that no record contains: how long connections lasted."""
        self._known: WeakValueDictionary[Hashable, ServerInUse] = WeakValueDictionary()
        """The servers that anything refers to, so that all entities with a server have one connection."""
        self.numbers = itertools.count()
        self._warned: set[str] = set()
        """The ids of cantrips whose risks were logged."""

    def supervise(self) -> DynamicSupervisor:
        """Return a new incarnation of that supervisor, without children."""
        for used in self._known.values():
            used.started_at = None
        return DynamicSupervisor(max_restarts=100)

    # Circles

    @contextlib.asynccontextmanager
    async def complete(self, cantrip: Cantrip, recorded: Mapping[str, Any] | None = None) -> AsyncGenerator[Cantrip]:
        """Return a cantrip with the tools of its servers; keep the servers until the context ends.

        Raises ToolServerError, RuntimeClosed.

        The tools are those in the circle `recorded`, and for servers that it lacks, the ones that the server lists now.
        """
        if cantrip.circle.is_complete:
            yield cantrip
            return
        servers: list[ServerInUse] = []
        try:
            recorded_tools: dict[str, ListedTools] = {}
            new_tools: dict[str, Sequence[Tool]] = {}
            for server in cantrip.circle.servers:
                listed = None if recorded is None else read_listed(recorded, server)
                if listed is not None:
                    recorded_tools[server.name] = listed
                    continue
                used = self._find(server)
                servers.append(used)
                await used.hold()
                new_tools[server.name] = await self._list_tools(used)
            # a server may have thousands of tools, and the first check of a schema takes milliseconds
            completed = await run_apart(partial(self._complete, cantrip, recorded_tools, new_tools))
            self._report_risks(cantrip, completed)
            yield completed
        finally:
            for used in servers:
                await used.release()

    def _complete(
        self, cantrip: Cantrip, recorded: Mapping[str, ListedTools], listed: Mapping[str, Sequence[Tool]]
    ) -> Cantrip:
        """Return a cantrip with the recorded tools of its servers, or with those that they list now."""
        load()  # the event loop checks the arguments of their calls
        servers = cantrip.circle.servers
        new = {server.name: ListedTools.of(server, listed[server.name]) for server in servers if server.name in listed}
        for name, tools in new.items():
            self._report_left_out(name, tools)
        return self.complete_cantrip(cantrip, {**recorded, **new})

    def _report_left_out(self, server: str, listed: ListedTools) -> None:
        """Log once the tools of a server whose schema is invalid."""
        if listed.left_out and listed.digest not in self._warned:
            self._warned.add(listed.digest)
            faults = dict(listed.left_out)
            _log.warning("tools of a server are left out: their JSON Schema is invalid", server=server, faults=faults)

    def _report_risks(self, cantrip: Cantrip, completed: Cantrip) -> None:
        """Log once that a cantrip has the lethal trifecta because of its servers' hints about their tools."""
        if cantrip.circle.has_lethal_trifecta or not completed.circle.has_lethal_trifecta or cantrip.id in self._warned:
            return
        self._warned.add(cantrip.id)
        risks = {risk: list(gates) for risk, gates in completed.circle.risks.items()}
        _log.warning("the tools of servers give a cantrip the lethal trifecta", cantrip=cantrip.id, **risks)

    async def _list_tools(self, used: ServerInUse) -> Sequence[Tool]:
        try:
            tools: Sequence[Tool] = await self.call(used, lambda connection: connection.tools())
        except LostServer as lost:
            raise ToolServerError(f"server {used.server.name} was lost while it listed its tools: {lost}") from lost
        return tools

    def complete_cantrip(self, cantrip: Cantrip, listed: Mapping[str, ListedTools]) -> Cantrip:
        """Return a cantrip with these tools of its servers, called through this runtime."""
        circle = cantrip.circle.bare
        calls = {server.name: partial(self._answer, server) for server in circle.servers}
        return cantrip.bare.with_circle(circle.with_tools(listed, calls))

    def list_servers(self, circle: Circle) -> list[ServerInUse]:
        """Return the servers that the gates of a circle call."""
        servers = dict.fromkeys(gate.server for gate in circle.gates if isinstance(gate.server, ToolServer))
        return list(dict.fromkeys(map(self._find, servers)))

    def _find(self, server: ToolServer) -> ServerInUse:
        return self._known.setdefault(server.connection, ServerInUse(server, self))

    @contextlib.asynccontextmanager
    async def use(self, server: ToolServer) -> AsyncGenerator[HeldServer]:
        """Keep a server's connection open while the context is open, without an entity. Raises RuntimeClosed."""
        used = self._find(server)
        try:
            await used.hold()
            yield HeldServer(used)
        finally:
            await used.release()

    # Calls

    async def call(self, used: ServerInUse, work: ServerWork, tries: int = 1) -> Any:
        """Return the result of some work, offered to up to `tries` incarnations of the actor until one begins it.

        Work that a session never took is offered to the next one.

        Raises ToolServerError; LostServer if the connection was lost during the work.
        """
        problem = ""
        for _ in range(SESSIONS):
            try:
                return await self._offer(used, work, tries)
            except NeverTaken as never:
                problem = str(never)
        raise ToolServerError(f"server {used.server.name} took nothing in {SESSIONS} sessions: {problem}")

    async def _offer(self, used: ServerInUse, work: ServerWork, tries: int) -> Any:
        is_sent = False

        async def send(connection: Connection) -> Any:
            nonlocal is_sent
            is_sent = True
            try:
                return await work(connection)
            except ToolServerError as problem:
                raise ToolServerError(f"server {used.server.name}: {problem}") from problem

        await used.start()
        try:
            return await used.asks.call(Message(send, capture_variables()), grace=GRACE)
        except CallError as gone:
            if is_sent:
                raise LostServer(used.problem or "its actor ended") from gone
            if tries > 1 and not used.has_given_up:
                return await self._offer(used, work, tries - 1)
            state = "is not running" if used.has_given_up else "cannot be used"
            raise ToolServerError(f"server {used.server.name} {state}: {used.problem or 'it ends'}") from gone

    async def _answer(self, server: ToolServer, tool: Tool, args: Mapping[str, Any], call: GateCall) -> Any:
        """Call a tool for a gate, once more if the connection is lost and the tool may be called twice."""
        used, may_repeat = self._find(server), tool.read_only or tool.idempotent
        report = partial(self._report, call)
        while True:
            try:
                answered: ToolResult = await self.call(
                    used, lambda connection: connection.call(tool, args, call, report), TRIES
                )
            except LostServer as lost:
                if may_repeat:
                    may_repeat = False
                    continue
                raise GateError(
                    f"{call.gate}: outcome unknown: the server {server.name} was lost during the call ({lost}). It may "
                    "or may not have done what it was asked to: look before you try again"
                ) from lost
            except ToolServerError as problem:
                raise GateError(f"{call.gate}: {problem}") from problem
            if answered.is_error:
                raise GateError(str(answered.value))
            return answered.value


class HeldServer:
    """A server of tools that a program keeps, without an entity; see `Runtime.use_server`."""

    def __init__(self, used: ServerInUse) -> None:
        self._used = used
        self._version = -1

    async def prompts(self) -> Sequence[Prompt]:
        """Return the prompts that the server has now. Raises ToolServerError."""

        async def work(connection: Connection) -> Sequence[Prompt]:
            self._version = self._used.version
            return await connection.prompts()

        self._version = self._used.version
        prompts: Sequence[Prompt] = await self._ask("listed its prompts", work)
        return prompts

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> Sequence[PromptMessage]:
        """Return the messages of a prompt; they are the server's words. Raises ToolServerError."""
        work: ServerWork = lambda connection: connection.prompt(name, arguments)  # noqa: E731  # it is one expression
        messages: Sequence[PromptMessage] = await self._ask(f"made the prompt {name}", work)
        return messages

    async def changed(self) -> None:
        """Wait until the server has changed one of its lists, or was started again, since `prompts` asked for them."""
        while self._used.version == self._version:
            await self._used.news.wait()

    async def _ask(self, what: str, work: ServerWork) -> Any:
        """Return the result of work that may be done twice: it is done again if the connection is lost."""
        server = self._used.server
        try:
            with anyio.fail_after(server.timeout):
                try:
                    return await self._used.pool.call(self._used, work, TRIES)
                except LostServer:
                    return await self._used.pool.call(self._used, work, TRIES)
        except LostServer as lost:
            raise ToolServerError(f"server {server.name} was lost while it {what}: {lost}") from lost
        except TimeoutError:
            raise ToolServerError(f"server {server.name} has not {what} within {server.timeout:g} s") from None


def read_recorded_circle(cantrip: Cantrip, loom: Loom, entity_id: str) -> Mapping[str, Any] | None:
    """Return the circle that an entity's log has for a cantrip, as JSON; None if it never worked with it."""
    header = loom.header(entity_id)
    if cantrip.id == header.cantrip_id:
        return header.circle
    now = find_header_in_force(header, loom.records(entity_id))
    return now.circle if cantrip.id == now.cantrip_id else None
