"""The servers of tools of a runtime, and their actors: one connection for all entities that have the same server.

    servers               dynamic: a supervisor for each server that entities use
    └── NAME              one_for_one, temporary
        └── connection    permanent, restarts with backoff

The connection lives in one task of its actor from beginning to end, and every call of a tool is a message to that
actor. The first entity that has the server starts it, and the last one that unloads or ends stops it. If a connection
ends, the calls under way come to nothing that anybody knows, which their entities are told, and the actor restarts. If
it restarts too often, its supervisor gives up, and calls say so; one that comes `PERIOD` seconds later tries again.

A server is asked for its tools when an entity is made. An entity that is loaded has the tools that its log says.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

import anyio

from cantrip_actors.circle.gate_call import GateError, InputNeeded
from cantrip_actors.loom import Loom
from cantrip_actors.machine.project import header_in_force
from cantrip_actors.runtime.context_variables import ContextVariables, bound_variables, capture_variables
from cantrip_actors.runtime.instrument import Fact, SessionEnded
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.tool_server import (
    Answered,
    Connection,
    Elicit,
    Listed,
    LostServer,
    Tool,
    ToolServer,
    ToolServerError,
    read_listed,
)
from cantrip_actors.terms.wrapper import GateCall
from supervisors import (
    NO_REPLY,
    Actor,
    ActorRef,
    Backoff,
    Caller,
    CallError,
    ChildNotFound,
    ChildSpec,
    DynamicSupervisor,
    Supervisor,
    SupervisorRef,
)

__all__ = ["ServerInUse", "ToolServers"]

CONNECT: Final = 30.0
"""Seconds that a call waits for the connection."""

TRIES: Final = 3
"""How many incarnations of a server's actor a call waits for."""

RESTARTS: Final = 5
PERIOD: Final = 60.0
"""A server whose connection ends more than `RESTARTS` times within so many seconds is given up."""

Work = Callable[[Connection], Awaitable[Any]]
"""What is done with a connection."""


class Message(NamedTuple):
    """Work for a connection, with the context variables of whoever wants it: the span that it belongs to."""

    work: Work
    variables: ContextVariables


class ServerActor(Actor):
    """Holds the connection to one server, and does what callers want with it, all at once."""

    has_tasks: ClassVar[bool] = True

    def __init__(self, used: ServerInUse) -> None:
        self._used = used
        self._connection: Connection | None = None
        self._since: float | None = None
        """When it was connected."""
        self._connected = anyio.Event()

    async def init(self) -> None:
        """Begin to connect; callers wait until that is done."""
        self.tasks.start_soon(self._hold)

    async def _hold(self) -> None:
        used = self._used
        try:
            await used.server.hold(self._connect, used.pool.elicit)
            used.problem = "its connection ended"
        except ToolServerError as problem:
            used.problem = str(problem)
            raise
        finally:
            if self._since is not None:
                used.pool.note(SessionEnded(anyio.current_time() - self._since))
        raise LostServer(f"server {used.server.name}: {used.problem}")

    def _connect(self, connection: Connection) -> None:
        self._connection, self._used.problem = connection, ""
        self._since = anyio.current_time()
        self._connected.set()

    async def handle_call(self, message: Message, caller: Caller) -> Any:
        """Do something with the connection, once there is one, and reply with what it returns."""
        self.tasks.start_soon(self._carry_out, message, caller)
        return NO_REPLY

    async def _carry_out(self, message: Message, caller: Caller) -> None:
        with anyio.CancelScope() as scope:
            caller.on_abandoned(scope.cancel)
            with anyio.move_on_after(CONNECT):
                await self._connected.wait()
            if self._connection is None:
                caller.fail(ToolServerError(f"server {self._used.server.name} has not answered within {CONNECT:g} s"))
                return
            if self._connection.is_lost:
                await anyio.sleep_forever()  # this incarnation is about to end, and the next one is asked
            try:
                with bound_variables(message.variables):
                    caller.reply(await message.work(self._connection))
            except (
                LostServer,
                ToolServerError,
                InputNeeded,
            ) as problem:  # values for the caller; anything else is a crash
                caller.fail(problem)


@dataclass(eq=False)
class ServerInUse:
    """A server, the actor that holds its connection, and how many entities have it."""

    server: ToolServer
    pool: ToolServers
    asks: ActorRef = field(default_factory=ActorRef)
    supervisor: SupervisorRef = field(default_factory=SupervisorRef)
    users: int = 0
    started_at: float | None = None
    """When its supervisor was started, on the event loop's clock; None if it was not, or was stopped."""
    problem: str = ""
    """Why the last connection ended, or did not come about."""
    starting: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def has_given_up(self) -> bool:
        """Whether its supervisor has ended, because the connection was lost too often."""
        return self.started_at is not None and not self.supervisor.alive

    async def hold(self) -> None:
        """Count one more that uses the server, and start its actor if it does not run."""
        self.users += 1
        self.pool.known[self.server.connection] = self
        await self.start()

    async def release(self) -> None:
        """Count one less; stop the actor if nobody uses the server."""
        self.users -= 1
        async with self.starting:
            if self.users or self.started_at is None:
                return
            self.started_at = None
            self.pool.known.pop(self.server.connection, None)
            with contextlib.suppress(ChildNotFound, CallError):
                await self.pool.supervisor.terminate_child(self.supervisor)

    async def start(self) -> None:
        """Start its actor if it does not run: one that was given up, after `PERIOD`."""
        with anyio.CancelScope(shield=True):  # the actor is shared
            async with self.starting:
                since = self.started_at
                if since is None or (self.has_given_up and anyio.current_time() > since + PERIOD):
                    self.asks, self.supervisor = ActorRef(), SupervisorRef()
                    name = f"{self.server.name} {next(self.pool.numbers)}"
                    spec = ChildSpec(name, self._supervise, restart="temporary", ref=self.supervisor)
                    await self.pool.supervisor.start_child(spec)
                    self.started_at = anyio.current_time()

    def _supervise(self) -> Supervisor:
        """Return a new incarnation of the supervisor of its actor."""
        backoff = Backoff(first=0.5, maximum=10.0)
        child = ChildSpec("connection", partial(ServerActor, self), ref=self.asks, backoff=backoff)
        return Supervisor([child], max_restarts=RESTARTS, period=PERIOD)


class ToolServers:
    """The servers of one runtime. `supervisor` is the dynamic supervisor of theirs."""

    def __init__(
        self,
        report: Callable[[GateCall, str], object],
        elicit: Elicit,
        note: Callable[[Fact], object] = lambda _: None,
    ) -> None:
        self.supervisor = SupervisorRef()
        self._report = report
        """Tells watchers what a tool says while it works."""
        self.elicit = elicit
        """Puts to people what a server asks them."""
        self.note = note
        """Is told how long connections lasted."""
        self.known: dict[Hashable, ServerInUse] = {}
        self.numbers = itertools.count()

    def supervise(self) -> DynamicSupervisor:
        """Return a new incarnation of that supervisor, without children."""
        for used in self.known.values():
            used.started_at = None
        return DynamicSupervisor(max_restarts=100)

    # Circles

    @contextlib.asynccontextmanager
    async def complete(self, cantrip: Cantrip, recorded: Mapping[str, Any] | None = None) -> AsyncGenerator[Cantrip]:
        """Give a cantrip the tools of its servers, and keep the servers meanwhile. Raises ToolServerError.

        They are those of the circle `recorded`, as far as it has them, and else what the servers list now.
        """
        if cantrip.circle.is_complete:
            yield cantrip
            return
        held: list[ServerInUse] = []
        try:
            listed: dict[str, Listed] = {}
            for server in cantrip.circle.servers:
                known = None if recorded is None else read_listed(recorded, server)
                if known is None:
                    used = self._find(server)
                    held.append(used)
                    await used.hold()
                    known = Listed.of(server, await self._listed(used))
                listed[server.name] = known
            yield self.completed(cantrip, listed)
        finally:
            with anyio.CancelScope(shield=True):
                for used in held:
                    await used.release()

    async def _listed(self, used: ServerInUse) -> Sequence[Tool]:
        try:
            tools: Sequence[Tool] = await self._call(used, lambda connection: connection.tools())
        except LostServer as lost:
            raise ToolServerError(f"server {used.server.name} was lost while it listed its tools: {lost}") from lost
        return tools

    def completed(self, cantrip: Cantrip, listed: Mapping[str, Listed]) -> Cantrip:
        """Return a cantrip with these tools of its servers, called through this runtime."""
        circle = cantrip.circle.bare
        calls = {server.name: partial(self._answer, server) for server in circle.servers}
        return cantrip.bare.with_circle(circle.with_tools(listed, calls))

    def of(self, circle: Circle) -> list[ServerInUse]:
        """Return the servers that the gates of a circle call."""
        servers = dict.fromkeys(gate.server for gate in circle.gates if isinstance(gate.server, ToolServer))
        return list(dict.fromkeys(map(self._find, servers)))

    def _find(self, server: ToolServer) -> ServerInUse:
        return self.known.setdefault(server.connection, ServerInUse(server, self))

    # Calls

    async def _call(self, used: ServerInUse, work: Work, tries: int = 1) -> Any:
        """Return what came of some work, which is given to so many incarnations of the actor until one has begun it.

        Raises ToolServerError; LostServer if the work was under way.
        """
        is_sent = False

        async def send(connection: Connection) -> Any:
            nonlocal is_sent
            is_sent = True
            return await work(connection)

        await used.start()
        try:
            return await used.asks.call(Message(send, capture_variables()))
        except CallError as gone:
            if is_sent:
                raise LostServer(used.problem or "its actor ended") from gone
            if tries > 1 and not used.has_given_up:
                return await self._call(used, work, tries - 1)
            state = "is not running" if used.has_given_up else "cannot be used"
            raise ToolServerError(f"server {used.server.name} {state}: {used.problem or 'it ends'}") from gone

    async def _answer(self, server: ToolServer, tool: Tool, args: Mapping[str, Any], call: GateCall) -> Any:
        """Call a tool for a gate, once more if the connection is lost and the tool may be called twice."""
        used, may_repeat = self._find(server), tool.read_only or tool.idempotent
        report = partial(self._report, call)
        while True:
            try:
                answered: Answered = await self._call(
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


def recorded_circle(cantrip: Cantrip, loom: Loom, entity_id: str) -> Mapping[str, Any] | None:
    """Return the circle that an entity's log has for a cantrip, as JSON; None if it never worked with it."""
    header = loom.header(entity_id)
    if cantrip.has_id(header.cantrip_id):
        return header.circle
    now = header_in_force(header, loom.records(entity_id))
    return now.circle if cantrip.has_id(now.cantrip_id) else None
