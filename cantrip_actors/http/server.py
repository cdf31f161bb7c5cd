"""`cantrip serve`: hypercorn around the application, signals, health, and a shutdown in good order.

The first SIGTERM or SIGINT drains: `/health/ready` fails, new work is refused, the episodes under way get `grace`
seconds, every event stream ends with `drain`, and only then hypercorn stops (open streams would delay it). The runtime
closes within `CLOSING` seconds. The second signal exits at once, which the loom survives. SIGHUP reads the tokens
again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import current_token
from hypercorn.config import Config
from starlette.types import ASGIApp

from cantrip_actors import Cantrip, Runtime
from cantrip_actors.http.addresses import CannotServe, add_brackets, parse_address
from cantrip_actors.http.app import make_app
from cantrip_actors.http.closing import bound_closing, ignore_signal
from cantrip_actors.http.extension import ServiceExtension, list_scopes
from cantrip_actors.http.health import STALL, TICK, Pulse, health_server
from cantrip_actors.http.limits import ServiceLimits
from cantrip_actors.http.operations import dump_at_signal
from cantrip_actors.http.service import Service
from cantrip_actors.http.slow_clients import protect_asyncio, protect_trio
from cantrip_actors.http.token import SCOPES, Token
from cantrip_actors.http.tokens import InvalidTokens, Tokens, digest_of, new_token
from cantrip_actors.observe import Telemetry
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.secure_url import is_loopback

GRACE: Final = 30.0
LINGER: Final = 2.0
"""Seconds that hypercorn gives unfinished answers when it stops."""
KEEP_ALIVE: Final = 60.0
BACKLOG: Final = 512

_log = get_logger("cantrip_actors.http")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How a service runs. `grace` is in seconds; `bind` and `health` are HOST:PORT, port 0 for any free one."""

    loom: str
    cantrips: tuple[Cantrip, ...] = ()
    bind: str = "127.0.0.1:8000"
    health: str | None = None
    tokens: Path | None = None
    no_auth: bool = False
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    page: bool = True
    only_mcp: bool = False
    """True if only `/mcp` is served."""
    system_messages: Literal["data", "refuse"] = "data"
    grace: float = GRACE
    stall: float = STALL
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    max_cost_per_day: float | None = None
    """The allowance of all callers together, in US dollars."""
    runtime: dict[str, Any] = field(default_factory=dict)
    """Further options of `Runtime.open`."""
    extensions: tuple[ServiceExtension, ...] = ()
    """The additions of packages to the service."""
    crash_dir: Path | None = None
    """The folder for crash reports."""
    access_log: bool = False
    """True if each request is logged."""
    debug_dump: bool = False
    """True if SIGUSR2 writes the tree of actors and the tasks to standard error."""
    telemetry: Telemetry | None = None
    """Metrics and traces; the default counts, and traces if OpenTelemetry is loaded."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A running service: its URL, that of its health checks, and the token made for this run."""

    url: str
    health: str | None
    token: str | None


async def serve(settings: ServiceSettings, on_ready: Callable[[Ready], object]) -> None:
    """Serve until a signal comes. `on_ready` is called once requests are answered.

    Raises CannotServe, InvalidTokens, LoomError.
    """
    async with AsyncExitStack() as stack:
        # until the service obeys signals: it reads the tokens after this
        stack.callback(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, ignore_signal))
        tokens, token = _tokens(settings)
        closing = stack.enter_context(ExitStack())  # the first to be entered: it bounds how long all others take to end
        listener, url = listen(settings)
        stack.callback(listener.close)
        # a program that has loaded OpenTelemetry, as `opentelemetry-instrument` does, wants traces
        telemetry = settings.telemetry or Telemetry(otel="opentelemetry" in sys.modules, crash_dir=settings.crash_dir)
        opened = Runtime.open(settings.loom, cantrips=settings.cantrips, telemetry=telemetry, **settings.runtime)
        runtime = await stack.enter_async_context(opened)
        runtime.set_allowance(settings.max_cost_per_day)
        service = Service(
            runtime,
            tokens=tokens,
            limits=settings.limits,
            hosts=[*_list_own_names(settings.bind), *settings.hosts],
            origins=settings.origins,
            page=settings.page,
            system_messages=settings.system_messages,
            telemetry=telemetry,
            access_log=settings.access_log,
        )
        pulse, health = Pulse(settings.stall), None
        if settings.health is not None:
            health = stack.enter_context(health_server(pulse, settings.health, telemetry.prometheus))
        if settings.debug_dump:
            stack.enter_context(dump_at_signal(runtime))
        await stack.enter_async_context(service.open())
        stop = anyio.Event()

        async def started() -> None:
            on_ready(Ready(url, health, token))
            await stop.wait()

        async with anyio.create_task_group() as tasks:
            await tasks.start(_obey_signals, service, pulse, settings.grace, stop)
            tasks.start_soon(pulse.beat, runtime, TICK, partial(telemetry.counters.observe, "cantrip.loop.lag", ()))
            # in a task of its own: on asyncio hypercorn leaves the task that it runs in marked as cancelled
            app = make_app(service, ()) if settings.only_mcp else make_app(service, extensions=settings.extensions)
            async with anyio.create_task_group() as servers:
                servers.start_soon(run_hypercorn, app, listener, started)
            tasks.cancel_scope.cancel()
        closing.enter_context(bound_closing())


def _list_own_names(bind: str) -> list[str]:
    """Return the names by which a bound address is reached."""
    host, _ = parse_address(bind)
    return ["localhost", "127.0.0.1", "::1"] if is_loopback(host) else [host]


async def run_hypercorn(app: ASGIApp, listener: socket.socket, started: Callable[[], Awaitable[None]]) -> None:
    """Serve on a socket, and close it, until `started`, which hypercorn calls when it listens, returns."""
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.accesslog = None  # it would show the queries of URLs
    config.errorlog = logging.getLogger("hypercorn.error")
    config.graceful_timeout = LINGER
    config.keep_alive_timeout = KEEP_ALIVE
    config.include_server_header = False
    if type(current_token().native_token).__module__.startswith("trio"):
        from hypercorn.trio import serve as serve_on_trio

        protect_trio()
        await serve_on_trio(app, config, shutdown_trigger=started, mode="asgi")  # type: ignore[arg-type]  # its own types
    else:
        from hypercorn.asyncio import serve as serve_on_asyncio

        protect_asyncio()
        _drop_cut_connections(asyncio.get_running_loop())
        await serve_on_asyncio(app, config, shutdown_trigger=started, mode="asgi")  # type: ignore[arg-type]  # likewise


def _drop_cut_connections(loop: asyncio.AbstractEventLoop) -> None:
    """Report no connection that the kernel closed because its client read nothing, or that a shutdown cut off.

    hypercorn lets the first error out; the second comes from `asyncio.streams` of Python 3.11.
    """
    report = loop.get_exception_handler() or type(loop).default_exception_handler

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), TimeoutError | asyncio.CancelledError):
            report(loop, context)

    loop.set_exception_handler(handle)


async def _obey_signals(
    service: Service,
    pulse: Pulse,
    grace: float,
    stop: anyio.Event,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Drain at the first SIGTERM or SIGINT, exit at the second, read the tokens again at SIGHUP."""
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    _reload(service.tokens)
                elif pulse.is_draining:
                    os._exit(128 + number)
                else:
                    pulse.is_draining = True
                    tasks.start_soon(_drain, service, grace, stop)


async def _drain(service: Service, grace: float, stop: anyio.Event) -> None:
    _log.info("the service drains", seconds=grace)
    if not await service.runtime.drain(grace):
        _log.warning("not all episodes ended in time: the others are stopped, or resumed by the next process")
    service.end_streams()
    with anyio.move_on_after(LINGER):
        await service.has_no_readers.wait()
    service.cut_answers()
    stop.set()


def _reload(tokens: Tokens | None) -> None:
    if tokens is not None:
        try:
            tokens.reload()
        except InvalidTokens as error:
            _log.error("the tokens stay as they were", why=str(error))
        else:
            _log.info("the tokens were read again")


def _tokens(settings: ServiceSettings) -> tuple[Tokens | None, str | None]:
    """Return the tokens of a service, and the token made for this run. Raises CannotServe, InvalidTokens."""
    host, _ = parse_address(settings.bind)
    if settings.tokens is not None:
        if settings.no_auth:
            raise CannotServe("give either --tokens or --no-auth")
        return Tokens.of_file(settings.tokens, list_scopes(settings.extensions)), None
    if not is_loopback(host):
        raise CannotServe(
            f"{settings.bind} can be reached from other machines: give --tokens FILE (cantrip serve token NAME makes "
            "one), or bind 127.0.0.1"
        )
    if settings.no_auth:
        return None, None
    text = new_token()
    return Tokens([Token("this-run", digest_of(text), frozenset(SCOPES))]), text


def listen(settings: ServiceSettings) -> tuple[socket.socket, str]:
    """Return a listening socket and its URL. Raises CannotServe."""
    host, port = parse_address(settings.bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: the kernel closes a connection that is unread for so long
            patience = int(settings.limits.patience * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotServe(f"{settings.bind}: cannot listen there: {error.strerror}") from error
    return listener, f"http://{add_brackets(host)}:{listener.getsockname()[1]}"
