"""Tools that a provider runs itself, in addition to the gates: one vocabulary for every family.

`Call(server_tools=[web_search(max_uses=3), code_execution()])` offers them. They are frozen data:
`crystal/server_tools.py` encodes them for each family, and `TAKEN` here lists what each family supports, so that a
cantrip whose crystal lacks a tool, or cannot enforce one of its bounds, is refused when it is made.

A turn has the provider's calls and citations: `Turn.server_calls` and `Turn.citations`. They are not gate calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from cantrip_actors.terms.arguments import check, check_whole, is_list, is_text, read_texts
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest


@dataclass(frozen=True)
class ServerTool:
    """One tool of a provider. Make one with `web_search`, `code_execution`, `file_search`, `url_context` …"""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def as_json(self) -> dict[str, Any]:
        """Return the tool as the loom and recipes write it: its `type`, and the settings that were given."""
        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in self.settings.items()}
        return {"type": self.kind, **lists}


def web_search(
    *,
    max_uses: int | None = None,
    allowed_domains: Sequence[str] = (),
    blocked_domains: Sequence[str] = (),
    country: str | None = None,
) -> ServerTool:
    """Let the provider search the web.

    `max_uses` bounds the searches of one query; `allowed_domains` or `blocked_domains` say where results may come from;
    `country` (two letters) where the user is.

    Raises InvalidCantrip for values of a wrong type, and for both lists of domains.
    """
    return _make_tool(
        "web_search",
        max_uses=max_uses,
        country=country,
        allowed_domains=allowed_domains,
        blocked_domains=blocked_domains,
    )


def url_context(
    *, max_uses: int | None = None, allowed_domains: Sequence[str] = (), blocked_domains: Sequence[str] = ()
) -> ServerTool:
    """Let the provider fetch pages whose addresses are in the context. Raises InvalidCantrip as `web_search` does."""
    domains = {"allowed_domains": allowed_domains, "blocked_domains": blocked_domains}
    return _make_tool("url_context", max_uses=max_uses, **domains)


def code_execution() -> ServerTool:
    """Let the provider run code in a sandbox of its own. It reaches none of the circle's gates."""
    return _make_tool("code_execution")


def file_search(stores: Sequence[str] | str, *, max_results: int | None = None) -> ServerTool:
    """Let the provider search in files that you uploaded to it.

    `stores` are the ids of its stores: vector stores of OpenAI, collections of xAI, file search stores of Google.
    Raises InvalidCantrip if there are none.
    """
    tool = _make_tool("file_search", stores=stores, max_results=max_results)
    if "stores" not in tool.settings:
        raise InvalidCantrip("file_search: stores: expected at least one id")
    return tool


def mcp_connector(
    name: str,
    url: str | None = None,
    *,
    connector_id: str | None = None,
    token_variable: str | None = None,
    allowed_tools: Sequence[str] = (),
    ask_first: bool = False,
    approved_tools: Sequence[str] = (),
) -> ServerTool:
    """Let the provider call the tools of an MCP server, which it connects to itself.

    `url` is the server's address; `connector_id` names one of the provider's own connectors instead. `token_variable`
    names the environment variable with the server's token; the token itself is never in a loom. The provider may call
    only `allowed_tools`; by default, all tools. With `ask_first` a person decides about each call before the provider
    makes it, except calls of `approved_tools`.

    Raises InvalidCantrip for an invalid name or address.
    """
    fits = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
    check(fits, "mcp_connector: name", "letters, digits, - and _", name, InvalidCantrip)
    if connector_id is None and (not isinstance(url, str) or not url.startswith("https://")):
        raise InvalidCantrip('mcp_connector: url: expected "https://…", without a token in it')
    if connector_id is not None and url is not None:
        raise InvalidCantrip("mcp_connector: give url or connector_id, not both")
    check(isinstance(ask_first, bool), "mcp_connector: ask_first", "True or False", ask_first, InvalidCantrip)
    tool = _make_tool(
        "mcp_connector",
        name=name,
        url=url,
        connector_id=connector_id,
        token_variable=token_variable,
        allowed_tools=allowed_tools,
        ask_first=ask_first or None,
        approved_tools=approved_tools,
    )
    if "approved_tools" in tool.settings and not ask_first:
        raise InvalidCantrip("mcp_connector: approved_tools: expected ask_first=True too: no call needs an approval")
    return tool


def _make_tool(kind: str, **settings: Any) -> ServerTool:
    read = ((name, _READ[name](f"{kind}: {name}", value)) for name, value in settings.items() if value is not None)
    chosen = {name: value for name, value in read if value != ()}
    if "allowed_domains" in chosen and "blocked_domains" in chosen:
        raise InvalidCantrip(f"{kind}: give allowed_domains or blocked_domains, not both")
    return ServerTool(kind, MappingProxyType(chosen))


def _read_whole(what: str, value: Any) -> Any:
    check_whole(what, value, 1, error=InvalidCantrip)
    return value


def _read_text(what: str, value: Any) -> Any:
    check(is_text(value), what, "text", value, InvalidCantrip)
    return value


def _read_texts(what: str, value: object) -> tuple[str, ...]:
    return read_texts(what, (value,) if isinstance(value, str) else value, "a list of texts", InvalidCantrip)


_READ: Final[Mapping[str, Callable[[str, object], Any]]] = {
    **dict.fromkeys(("max_uses", "max_results"), _read_whole),
    **dict.fromkeys(("country", "name", "url", "connector_id", "token_variable"), _read_text),
    **dict.fromkeys(("allowed_domains", "blocked_domains", "stores", "allowed_tools", "approved_tools"), _read_texts),
    "ask_first": lambda _what, value: value,
}
"""How each setting is read."""

_MAKERS: Final[Mapping[str, Callable[..., ServerTool]]] = {
    function.__name__: function for function in (web_search, code_execution, file_search, url_context, mcp_connector)
}


def parse_server_tools(declared: Any) -> tuple[ServerTool, ...]:
    """Return the server tools of a call from `ServerTool`s, names, or mappings with a `type`, as recipes have them.

    Raises InvalidCantrip for an unknown tool, and for unknown settings.
    """
    check(is_list(declared), "server_tools", "a list such as [web_search()]", declared, InvalidCantrip)
    tools = tuple(map(_parse_server_tool, declared))
    kinds = [tool.settings.get("name", tool.kind) for tool in tools]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise InvalidCantrip(f"server_tools: {kind} is there twice")
    return tools


def _parse_server_tool(tool: object) -> ServerTool:
    if isinstance(tool, ServerTool):
        return tool
    settings = {"type": tool} if isinstance(tool, str) else dict(tool) if isinstance(tool, Mapping) else {}
    kind = settings.pop("type", None)
    make = _MAKERS.get(str(kind))
    if make is None:
        raise InvalidCantrip(
            f"server_tools: expected a tool such as web_search(), got {tool!r}: {suggest_nearest(str(kind), _MAKERS)}"
        )
    try:
        return make(**settings)
    except TypeError as error:
        raise InvalidCantrip(f"server_tools: {kind}: {error}") from error


# ---------------------------------------------------------------------------------------------- what each family takes

_DOMAINS: Final = frozenset({"allowed_domains", "blocked_domains"})
_FILES: Final = frozenset({"stores", "max_results"})
_MCP: Final = frozenset({"name", "url", "token_variable", "allowed_tools"})

TAKEN: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "anthropic": {
        "web_search": _DOMAINS | {"max_uses", "country"},
        "url_context": _DOMAINS | {"max_uses"},
        "code_execution": frozenset(),
        "mcp_connector": _MCP,
    },
    "openai": {
        "web_search": frozenset({"max_uses", "allowed_domains", "country"}),
        "code_execution": frozenset(),
        "file_search": _FILES,
        "mcp_connector": _MCP | {"connector_id", "ask_first", "approved_tools"},
    },
    "openai-chat": {},
    "xai": {
        "web_search": _DOMAINS,
        "code_execution": frozenset(),
        "file_search": _FILES,
        "mcp_connector": _MCP,
    },
    "google": {
        "web_search": frozenset(),
        "url_context": frozenset(),
        "code_execution": frozenset(),
        "file_search": _FILES,
    },
    "openrouter": {"web_search": _DOMAINS | {"country"}},
    "local": {},
}
"""The tools of each family, each with the settings that the family can enforce."""

_ALONE: Final = re.compile(r"gemini-[12]\b")
"""Models that accept their provider's tools only without functions; a circle always has a function."""


def check_server_tools(family: str, model: str, tools: Sequence[ServerTool], *, beside: bool = True) -> None:
    """Raise InvalidCantrip if a family's model does not support one of the tools, or one of its settings.

    `beside` says whether gates are offered too. An unknown family supports no tools.
    """
    if not tools:
        return
    accepted = TAKEN.get(family, {})
    who = f"{family}:{model}"
    for tool in tools:
        if tool.kind not in accepted:
            others = ", ".join(name for name, row in TAKEN.items() if tool.kind in row)
            raise InvalidCantrip(f"server_tools: {who} has no {tool.kind}; these families have: {others}")
        for name in tool.settings:
            if name not in accepted[tool.kind]:
                raise InvalidCantrip(f"server_tools: {tool.kind}: {who} has no {name}; leave it out")
    if family == "openai" and len(tools) > 1 and any("max_uses" in tool.settings for tool in tools):
        raise InvalidCantrip(
            "server_tools: openai bounds the calls of all of its tools at once: max_uses needs a tool alone"
        )
    if family == "google" and beside and _ALONE.match(model.removeprefix("models/")):
        raise InvalidCantrip(f"server_tools: {who} takes them only without gates; Gemini 3 and later take both")


# ------------------------------------------------------------------------------------------- what the provider did then


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A call of a provider's tool, made by the provider. `tool` is its kind, `name` the MCP tool that was called."""

    tool: str
    id: str
    args: Mapping[str, Any]
    result: Any = None
    is_error: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class Citation:
    """A source that an answer names: its address or file, its title, and the cited or quoted text."""

    url: str = ""
    title: str = ""
    text: str = ""


def find_server_calls(metadata: Mapping[str, Any]) -> tuple[ServerCall, ...]:
    """Return the calls of the provider's tools that a response's metadata holds."""
    return tuple(
        ServerCall(
            str(call.get("tool") or ""),
            str(call.get("id") or ""),
            call.get("args") or {},
            call.get("result"),
            bool(call.get("is_error")),
            str(call.get("name") or ""),
        )
        for call in _select_mappings(metadata.get("server_calls"))
    )


def find_citations(metadata: Mapping[str, Any]) -> tuple[Citation, ...]:
    """Return the citations that a response's metadata holds."""
    return tuple(
        Citation(*(str(citation.get(name) or "") for name in ("url", "title", "text")))
        for citation in _select_mappings(metadata.get("citations"))
    )


def _select_mappings(items: Any) -> list[Mapping[str, Any]]:
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, (list, tuple)) else []
