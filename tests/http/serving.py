"""A service on a real socket, in the test's own event loop; and one in a process of its own that can be killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import h11
import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

from cantrip_actors import Cantrip, Circle, Runtime, ask_first, gate, scripted
from cantrip_actors.dispatch.routes import make_extension
from cantrip_actors.http import Service, ServiceExtension, ServiceLimits, ServiceSettings, Token, Tokens, make_app
from cantrip_actors.http.server import listen, run_hypercorn
from cantrip_actors.http.token import SCOPES
from cantrip_actors.http.tokens import digest_of
from cantrip_actors.wards import max_turns
from tests.forked import COMMAND, Forked

ADMIN = "admin-token"
IN_PROCESS = "http://localhost"
DISPATCHING = make_extension(None)
"""What `cantrip serve` offers of dispatches without a folder of them."""
ROOT = Path(__file__).parent.parent.parent


@gate
async def nap(seconds: float) -> str:
    """Sleep."""
    await anyio.sleep(seconds)
    return "slept"


@gate
async def shield(seconds: float) -> str:
    """Sleep, and refuse to be cancelled."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep(seconds)
    return "slept"


@gate(deferred=True)
async def build(target: str) -> Any:
    """Build."""


@gate(idempotent=True)  # so a kill at any point has one result
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def answer(context: Any) -> dict[str, Any]:
    """Do what the last message says: nap 1, pay 3, secret, call N (so many turns), or repeat it."""
    last = str(context[-1].content)
    if context[-1].role != "user":
        intent = next(str(one.content) for one in reversed(context) if one.role == "user")
        naps = sum(one.role == "tool" for one in context)
        if intent.startswith("turns ") and naps < int(intent.split()[1]):
            return call("nap", seconds=float(intent.split()[2]))
        return {"content": f"it said: {last}"}
    word, _, rest = last.partition(" ")
    if word in ("nap", "shield"):
        return call(word, seconds=float(rest))
    if word == "turns":
        return call("nap", seconds=float(rest.split()[1]))
    if word == "build":
        return call("build", target=rest)
    if word == "pay":
        return call("pay", amount=int(rest))
    return {"content": f"you said: {last}", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"content": f"I call {name}", "tool_calls": [{"gate": name, "args": args}]}


def echo(name: str = "echo", crystal: Any = None) -> Cantrip:
    circle = Circle(["done", nap, shield, ask_first(pay), build], [max_turns(50)])
    return Cantrip(crystal or scripted(answer), circle=circle, name=name)


def token(name: str, *scopes: str, tenant: str | None = None, **more: Any) -> Token:
    return Token(name, digest_of(f"{name}-token"), frozenset(scopes), tenant, **more)


@dataclass
class Served:
    """A service that answers."""

    service: Service
    runtime: Runtime
    url: str
    client: httpx.AsyncClient
    first: Any = None
    """What `first` returned, which had the runtime before it was served."""
    app: Any = None
    """The application, if it is served in this process."""

    async def ask(self, method: str, path: str, expect: int | None = None, **more: Any) -> httpx.Response:
        answered = await self.client.request(method, path if path.startswith("/") else f"/api/v1/{path}", **more)
        if expect is not None:
            assert answered.status_code == expect, f"{method} {path}: {answered.status_code} {answered.text}"
        return answered

    async def get(self, path: str, expect: int = 200, **more: Any) -> Any:
        return (await self.ask("GET", path, expect, **more)).json()

    async def post(self, path: str, body: Any = None, expect: int | None = None, **more: Any) -> Any:
        answered = await self.ask("POST", path, expect, json=body, **more)
        return answered.json() if answered.content else None

    def as_token(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {name}-token"}

    @asynccontextmanager
    async def stream(
        self, path: str, after: str | None = None, headers: dict[str, str] | None = None
    ) -> AsyncIterator["Reader"]:
        """Open an event stream; leaving the block hangs up."""
        given = {"authorization": f"Bearer {ADMIN}", **(headers or {})}
        if after is not None:
            given["last-event-id"] = after
        async with open_stream(self.url, f"/api/v1/{path}", given) as reader:
            yield reader

    async def events(
        self,
        path: str,
        after: str | None = None,
        until: Callable[[dict[str, Any]], bool] | None = None,
        headers: dict[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Read a stream to its end, or to the event for which `until` is true."""
        found = []
        async with self.stream(path, after, headers) as reader:
            assert reader.status == 200
            while (event := await reader.next()) is not None:
                found.append(event)
                if until is not None and until(event):
                    break
        return found


@dataclass
class Reader:
    """An event stream over a socket of its own, read as slowly as the test likes."""

    socket: anyio.abc.SocketStream
    http: h11.Connection
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""

    async def receive(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            try:
                self.http.receive_data(await self.socket.receive())
            except anyio.EndOfStream:
                self.http.receive_data(b"")
        return event

    async def next(self) -> dict[str, Any] | None:
        """Return the next event; None at the end of the stream."""
        while True:
            block, found, rest = self.text.partition("\n\n")
            if found:
                self.text = rest
                lines = [line.partition(": ") for line in block.split("\n") if not line.startswith(":")]
                event = {name: json.loads(value) if name == "data" else value for name, _, value in lines}
                if "event" in event:
                    return event
                continue
            part = await self.receive()
            if not isinstance(part, h11.Data):
                return None
            self.text += part.data.decode()


@asynccontextmanager
async def open_stream(url: str, path: str, headers: dict[str, str]) -> AsyncIterator[Reader]:
    host, _, port = url.partition("//")[2].partition(":")
    async with await anyio.connect_tcp(host, int(port)) as socket:
        reader = Reader(socket, h11.Connection(h11.CLIENT))
        sent = {"host": f"{host}:{port}", **headers}
        request = h11.Request(method="GET", target=path, headers=list(sent.items()))
        await socket.send((reader.http.send(request) or b"") + (reader.http.send(h11.EndOfMessage()) or b""))
        answer = await reader.receive()
        reader.status = answer.status_code
        reader.headers = {name.decode(): value.decode() for name, value in answer.headers}
        yield reader


@asynccontextmanager
async def served(
    cantrips: Iterable[Cantrip] = (),
    url: str = "memory:",
    *,
    tokens: Iterable[Token] | None = None,
    limits: ServiceLimits | None = None,
    options: dict[str, Any] | None = None,
    first: Callable[[Runtime], Awaitable[Any]] | None = None,
    extensions: Iterable[ServiceExtension] = (DISPATCHING,),
    prefix: str = "",
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve on a free port, with a token that may do everything; with a prefix, below that of another application."""
    cantrips = [*cantrips] or [echo()]
    known = [token("admin", *SCOPES), *(tokens or ())]
    limits = limits or ServiceLimits(rate=10_000, burst=10_000)
    async with Runtime.open(url, cantrips=cantrips, **(options or {})) as runtime:
        done = None if first is None else await first(runtime)
        checked = None if "authentication" in settings else Tokens(known)
        service = Service(runtime, tokens=checked, limits=limits, **settings)
        listener, address = listen(ServiceSettings("memory:", bind="127.0.0.1:0", limits=limits))
        stop, is_up = anyio.Event(), anyio.Event()

        async def started() -> None:
            is_up.set()
            await stop.wait()

        async with service.open(), anyio.create_task_group() as tasks:
            app = make_app(service, extensions=extensions)
            app = Starlette(routes=[Mount(prefix, app)]) if prefix else app
            tasks.start_soon(run_hypercorn, app, listener, started)
            await is_up.wait()
            address += prefix
            headers = {"authorization": f"Bearer {ADMIN}"}
            async with httpx.AsyncClient(base_url=address, headers=headers, timeout=20) as client:
                try:
                    yield Served(service, runtime, address, client, done)
                finally:
                    service.end_streams()
                    stop.set()


@asynccontextmanager
async def in_process(
    cantrips: Iterable[Cantrip],
    *tokens: Token,
    url: str = "memory:",
    passivate_after: float = 300,
    extensions: Iterable[ServiceExtension] = (),
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve without a socket, in virtual time: the client calls the application. Streams come whole."""
    cantrips = [*cantrips]
    limits = ServiceLimits(rate=10_000, burst=10_000)
    async with Runtime.open(url, cantrips=cantrips, passivate_after=passivate_after) as runtime:
        known = Tokens([token("admin", *SCOPES), *tokens])
        service = Service(runtime, tokens=known, limits=limits, **settings)
        async with service.open():
            application = make_app(service, extensions=extensions)
            transport = httpx.ASGITransport(app=application)
            headers = {"authorization": f"Bearer {ADMIN}"}
            async with httpx.AsyncClient(transport=transport, base_url=IN_PROCESS, headers=headers) as client:
                yield Served(service, runtime, IN_PROCESS, client, app=application)


@dataclass
class Process:
    """`cantrip serve` in a process of its own."""

    child: "subprocess.Popen[str]"
    url: str
    health: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit code and what was logged."""
        self.child.send_signal(number)
        _, logged = self.child.communicate(timeout=30)
        return self.child.returncode, logged


@contextmanager
def process(
    folder: Path, backend: str, *more: str, serves: str = "tests.http.serving:ECHO", path: Path = ROOT
) -> Iterator[Process]:
    """Run `cantrip serve` on `loom.db` in a folder until the block ends, with the packages that lie at `path`."""
    arguments = ["serve", serves, "--loom", f"sqlite:{folder / 'loom.db'}", "--backend", backend]
    arguments += ["--bind", "127.0.0.1:0", "--health", "127.0.0.1:0", *more]
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "cwd": folder}
    options["env"] = {**os.environ, "PYTHONPATH": str(path), "NO_COLOR": "1"}
    if path == ROOT:
        child = Forked(COMMAND, *arguments, **options)
    else:
        child = subprocess.Popen([sys.executable, "-m", "cantrip_actors.cli.main", *arguments], **options)
    try:
        assert child.stderr is not None
        said: list[str] = []
        while not (said and "health checks" in said[-1]):
            line = child.stderr.readline()
            assert line, "".join(said)
            said.append(line)
        told = "".join(said)
        url = told.split("serving at ")[1].split("/api/v1")[0]
        health = told.split("health checks at ")[1].split("/health")[0]
        yield Process(child, url, health, told.partition("Bearer ")[2].partition("\n")[0])
    finally:
        child.kill()
        child.communicate()


ECHO = echo()
