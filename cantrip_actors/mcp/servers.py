"""Servers of tools as values: a program or a URL, and options. Nothing here connects.

The SDK takes a second to import, so it is imported when a server is connected (`client.py`), in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypedDict, Unpack
from urllib.parse import urlsplit

from anyio import CapacityLimiter, to_thread

from cantrip_actors.mcp.oauth import Login
from cantrip_actors.terms.arguments import check, check_choice, check_kind, is_text, is_texts_by_name
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.risk import Risk
from cantrip_actors.terms.tool_server import Connection, Elicit, Host, ToolServer

if TYPE_CHECKING:
    from cantrip_actors.mcp.client import ConnectTarget

LOGIN: Final = 600.0
"""Seconds that a person has to log in."""


@dataclass(frozen=True, kw_only=True)
class McpServer(ToolServer):
    """A server that speaks MCP. `elicit` answers its questions to a person; without it, such questions are requests."""

    elicit: Elicit | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if find_spec("mcp") is None:  # looked up, not imported: see above
            raise InvalidCantrip(f"server {self.name}: needs the SDK of MCP: pip install 'cantrip-actors[mcp]'")

    async def hold(self, ready: Callable[[Connection], object], host: Host) -> None:
        """Connect, call `ready` with the connection, and return when it is lost. Raises ToolServerError."""
        hold = await to_thread.run_sync(_import_hold, limiter=CapacityLimiter(1))  # those of anyio may all wait for us
        own = host if self.elicit is None else host._replace(elicit=self.elicit)
        await hold(self.name, self._reach(), own, ready, self.told_roots, self.sampling_name, **self._modes())

    def _reach(self) -> ConnectTarget:
        """Return what the SDK's client connects to."""
        raise NotImplementedError

    def _modes(self) -> dict[str, Any]:
        """Return further options of `hold`."""
        return {}

    def behind(self) -> tuple[Hashable, ...]:
        """Return the part of the connection that `identity` leaves out."""
        return (self.elicit,)


class ServerOptions(TypedDict, total=False):
    """The options of every server; `stdio` and `ToolServer` explain them."""

    only: Iterable[str] | None
    ask: Iterable[str] | Literal["all"]
    pin: str | None
    timeout: float | None
    max_shown: int | None
    trust_hints: bool
    risks: Iterable[Risk]
    roots: Iterable[str | Path] | None
    sampling: Crystal | str | None
    elicit: Elicit | None


@dataclass(frozen=True, kw_only=True)
class StdioServer(McpServer):
    """A program that speaks MCP over its standard input and output."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    cwd: str | None = None
    transport: ClassVar[Literal["pipe", "tcp", "inproc"]] = "pipe"

    def _reach(self) -> ConnectTarget:
        from cantrip_actors.mcp.client import program

        return program(self.command, self.args, dict(self.env), self.cwd)

    def describe_address(self) -> dict[str, Any]:
        """Return the program and its arguments, and the names of its environment variables."""
        description: dict[str, Any] = {"command": self.command, "args": list(self.args)}
        description |= {"env": [name for name, _ in self.env]} if self.env else {}
        return description | ({} if self.cwd is None else {"cwd": self.cwd})

    def behind(self) -> tuple[Hashable, ...]:
        """Return the values of its environment variables too."""
        return (*super().behind(), *self.env)


@dataclass(frozen=True, kw_only=True)
class HttpServer(McpServer):
    """A server behind a URL. `headers` go with every request.

    `auth` is a bearer token, `oauth()`, or an authentication of httpx2.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    auth: Any = field(default=None, repr=False)
    risks: frozenset[Risk] = frozenset({"untrusted_content", "way_out"})
    transport: ClassVar[Literal["pipe", "tcp", "inproc"]] = "tcp"

    def _reach(self) -> ConnectTarget:
        from cantrip_actors.mcp.client import endpoint

        return endpoint(self.url, dict(self.headers), self.auth)

    def _modes(self) -> dict[str, Any]:
        return {"patience": LOGIN} if isinstance(self.auth, Login) else {}

    def describe_address(self) -> dict[str, Any]:
        """Return the URL, and the names of the headers."""
        return {"url": self.url} | ({"headers": [name for name, _ in self.headers]} if self.headers else {})

    def behind(self) -> tuple[Hashable, ...]:
        """Return the values of its headers, and its authentication."""
        return (*super().behind(), *self.headers, self.auth)


@dataclass(frozen=True, kw_only=True)
class InprocServer(McpServer):
    """A server object of the SDK in this process: for tests, in virtual time and without sockets."""

    server: Any = field(repr=False)
    era: Literal["modern", "handshake"] = "modern"

    def _reach(self) -> ConnectTarget:
        from cantrip_actors.mcp.client import inside

        return inside(self.server)

    def _modes(self) -> dict[str, Any]:
        return {"handshake": self.era == "handshake"}

    def behind(self) -> tuple[Hashable, ...]:
        """Return the server object."""
        return (*super().behind(), id(self.server), self.era)


def stdio(
    name: str,
    command: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    **options: Unpack[ServerOptions],
) -> StdioServer:
    """Return a server that is a program: its tools become the gates `NAME__TOOL` of a circle.

    The program gets `env` and, of this process's environment, no more than PATH, HOME, LANG and TERM. Its standard
    error goes to the log, at debug. The options `only`, `ask`, `pin`, `timeout`, `max_shown`, `trust_hints` and `risks`
    are those of `ToolServer`. `roots` are the folders listed to a server that asks for its roots; by default those of
    the circle's file gates. The crystal `sampling` answers the server's questions to a model during a call, and the
    calling entity pays. `elicit` answers the server's questions to a person; without it, each is a request of kind
    "question", or declined if no feed follows requests. The question of a server before 2026-07-28 ends with its call.

    Raises InvalidCantrip for an invalid option.
    """
    fits = is_text(command) and all(isinstance(arg, str) for arg in args)
    check(fits, f"server {name}", "a command and its arguments as texts", command, InvalidCantrip)
    check_kind(f"server {name}: cwd", cwd, str | None, "the path of a folder as a text", InvalidCantrip)
    return StdioServer(
        name=name,
        command=command,
        args=args,
        env=_read_pairs(f"server {name}: env", env),
        cwd=cwd,
        **_list_fields(options),
    )


def http(
    name: str,
    url: str,
    *,
    auth: Any = None,
    headers: Mapping[str, str] | None = None,
    **options: Unpack[ServerOptions],
) -> HttpServer:
    """Return a server behind a URL: its tools become the gates `NAME__TOOL` of a circle.

    `auth` is a bearer token, a login with `oauth()`, or an authentication of httpx2. Only the folders of `roots` are
    listed to the server. `risks` are "untrusted_content" and "way_out" by default. The other options are as for
    `stdio`. Raises InvalidCantrip for an invalid one.
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
    except ValueError:  # brackets without an IPv6 address
        parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidCantrip(f"server {name}: expected an http or https URL, got {url!r}")
    if parts.username or parts.password:
        raise InvalidCantrip(f"server {name}: the URL has a password: give it as auth= or headers=")
    return HttpServer(
        name=name,
        url=url,
        headers=_read_pairs(f"server {name}: headers", headers),
        auth=auth,
        **_list_fields(options),
    )


def inproc(
    name: str, server: Any, *, era: Literal["modern", "handshake"] = "modern", **options: Unpack[ServerOptions]
) -> InprocServer:
    """Return a server object of the MCP SDK as a server of tools, for tests: no process, no socket, virtual time.

    `era` is the era of the protocol to use. The other options are as for `stdio`.
    """
    check_choice(f"server {name}: era", era, ("modern", "handshake"), InvalidCantrip)
    return InprocServer(name=name, server=server, era=era, **_list_fields(options))


def _import_hold() -> Callable[..., Awaitable[None]]:
    from cantrip_actors.mcp.client import hold

    return hold


def make_server_name(text: str) -> str:
    """Return a name for a server, as a prefix of gate names, that is like the given text."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)[:32]
    return name if name[:1].isalpha() else f"s{name}"[:32]


def _read_pairs(what: str, mapping: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    pairs = {} if mapping is None else mapping
    if not is_texts_by_name(pairs):  # the error shows no value: it may be a secret
        raise InvalidCantrip(f"{what}: expected a mapping from names to texts, got {type(mapping).__name__}")
    return tuple(pairs.items())


def _list_fields(options: ServerOptions) -> dict[str, Any]:
    """Return options as the fields of a server, which checks them."""
    elicit = options.get("elicit")
    check(elicit is None or callable(elicit), "elicit", "a function of a question", elicit, InvalidCantrip)
    return {**options, "ask": options.get("ask") or ()}
