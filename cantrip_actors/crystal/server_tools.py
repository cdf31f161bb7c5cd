"""Tools that a provider runs itself, in the form of each family: a pure translation of `terms/server_tools.py`.

`check_server_tools` refuses a tool that a family lacks, so that the translation is total. The token of an MCP server is
read here, for each request, and is only in the request.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cantrip_actors.crystal.encode import merge
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.terms.server_tools import ServerTool


class Translated(NamedTuple):
    """The server tools of a request."""

    tools: Sequence[Mapping[str, Any]] = ()
    fields: Mapping[str, Any] = {}
    """Other fields of the request than its list of tools; lists are appended to existing ones."""
    headers: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()


NOTHING: Final = Translated()
_ANTHROPIC: Final[Mapping[str, tuple[str, str]]] = {
    "web_search": ("web_search_20250305", "web_search"),
    "url_context": ("web_fetch_20250910", "web_fetch"),
    "code_execution": ("code_execution_20250825", "code_execution"),
}

KINDS: Final[Mapping[str, str]] = {
    "web_search": "web_search",
    "web_fetch": "url_context",
    "code_execution": "code_execution",
    "bash_code_execution": "code_execution",
    "text_editor_code_execution": "code_execution",
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "code_interpreter_call": "code_execution",
    "mcp_call": "mcp_connector",
    "GOOGLE_SEARCH_WEB": "web_search",
    "URL_CONTEXT": "url_context",
    "FILE_SEARCH": "file_search",
}
"""The providers' names of tools, and ours; other names are unchanged."""

FEES: Final[Mapping[str, Mapping[str, float]]] = {
    "anthropic": {"web_search": 0.01},
    "openai": {"web_search": 0.01, "file_search": 0.0025},
    "xai": {"web_search": 0.005, "code_execution": 0.005, "file_search": 0.0025},
    "google": {"web_search": 0.014},
}
"""US dollars for each use of a tool, in addition to its tokens; as of 2026-11-23, from the providers' published
prices."""


def _read_token(tool: ServerTool) -> str | None:
    variable = tool.settings.get("token_variable")
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise CrystalError(f"mcp_connector {tool.settings['name']}: no token: set {variable}")
    return token


def _write_location(tool: ServerTool) -> dict[str, Any]:
    country = tool.settings.get("country")
    return {} if country is None else {"user_location": {"type": "approximate", "country": country}}


def _rename(tool: ServerTool, **names: str) -> dict[str, Any]:
    """Return the given settings of a tool, by the names of its provider."""
    settings = tool.as_json()
    return {theirs: settings[ours] for ours, theirs in names.items() if ours in settings}


def _translate_for_anthropic(tools: Sequence[ServerTool]) -> Translated:
    translated: list[Mapping[str, Any]] = []
    servers: list[Mapping[str, Any]] = []
    secrets: list[str] = []
    betas: list[str] = []
    for tool in tools:
        if tool.kind == "mcp_connector":
            name, token = tool.settings["name"], _read_token(tool)
            server = {"type": "url", "url": tool.settings["url"], "name": name}
            if token is not None:
                server["authorization_token"] = token
                secrets.append(token)
            servers.append(server)
            toolset: dict[str, Any] = {"type": "mcp_toolset", "mcp_server_name": name}
            if "allowed_tools" in tool.settings:
                toolset["default_config"] = {"enabled": False}
                toolset["configs"] = {tool_name: {"enabled": True} for tool_name in tool.settings["allowed_tools"]}
            translated.append(toolset)
            betas.append("mcp-client-2025-11-20")
            continue
        kind, name = _ANTHROPIC[tool.kind]
        entry: dict[str, Any] = {"type": kind, "name": name, **_write_location(tool)}
        entry |= _rename(
            tool, max_uses="max_uses", allowed_domains="allowed_domains", blocked_domains="blocked_domains"
        )
        if tool.kind == "url_context":
            entry["citations"] = {"enabled": True}
        translated.append(entry)
    fields = {"mcp_servers": servers} if servers else {}
    headers = {"anthropic-beta": ",".join(dict.fromkeys(betas))} if betas else {}
    return Translated(translated, fields, headers, tuple(secrets))


def _write_approval(tool: ServerTool) -> str | Mapping[str, Any]:
    """Return which calls of an MCP server wait for an approval."""
    if "ask_first" not in tool.settings:
        return "never"
    approved = tool.settings.get("approved_tools")
    return "always" if approved is None else {"never": {"tool_names": list(approved)}}


def _translate_for_responses(tools: Sequence[ServerTool], blocked: str = "blocked_domains") -> Translated:
    translated: list[Mapping[str, Any]] = []
    include: list[str] = []
    secrets: list[str] = []
    fields: dict[str, Any] = {}
    for tool in tools:
        match tool.kind:
            case "web_search":
                filters = _rename(tool, allowed_domains="allowed_domains", blocked_domains=blocked)
                translated.append(
                    {"type": "web_search", **({"filters": filters} if filters else {}), **_write_location(tool)}
                )
                include.append("web_search_call.action.sources")
            case "code_execution":
                translated.append({"type": "code_interpreter", "container": {"type": "auto"}})
                include.append("code_interpreter_call.outputs")
            case "file_search":
                named = _rename(tool, stores="vector_store_ids", max_results="max_num_results")
                translated.append({"type": "file_search", **named})
                include.append("file_search_call.results")
            case _:
                token = _read_token(tool)
                server = _rename(
                    tool,
                    name="server_label",
                    url="server_url",
                    connector_id="connector_id",
                    allowed_tools="allowed_tools",
                )
                if token is not None:
                    server["authorization"] = token
                    secrets.append(token)
                translated.append({"type": "mcp", **server, "require_approval": _write_approval(tool)})
        if "max_uses" in tool.settings:  # the tool is the only one then, so this is the limit for all tools
            fields["max_tool_calls"] = tool.settings["max_uses"]
    if include:
        fields["include"] = include
    return Translated(translated, fields, {}, tuple(secrets))


def _translate_for_xai(tools: Sequence[ServerTool]) -> Translated:
    """Translate for xAI, which has OpenAI's interface with some names of its own."""
    translated = _translate_for_responses(tools, blocked="excluded_domains")
    bare = {"container", "require_approval"}
    bare_tools = [{name: value for name, value in tool.items() if name not in bare} for tool in translated.tools]
    return translated._replace(tools=bare_tools)


def _translate_for_google(tools: Sequence[ServerTool]) -> Translated:
    names = {"web_search": "googleSearch", "url_context": "urlContext", "code_execution": "codeExecution"}
    translated: list[Mapping[str, Any]] = []
    for tool in tools:
        if tool.kind == "file_search":
            translated.append({"fileSearch": _rename(tool, stores="fileSearchStoreNames", max_results="topK")})
        else:
            translated.append({names[tool.kind]: {}})
    return Translated(translated)


def _translate_for_openrouter(tools: Sequence[ServerTool]) -> Translated:
    translated: list[Mapping[str, Any]] = []
    for tool in tools:
        named = _rename(tool, allowed_domains="allowed_domains", blocked_domains="excluded_domains")
        named |= _write_location(tool)
        translated.append({"type": "openrouter:web_search", **({"parameters": named} if named else {})})
    return Translated(translated)


TRANSLATIONS: Final[Mapping[str, Callable[[Sequence[ServerTool]], Translated]]] = {
    "anthropic": _translate_for_anthropic,
    "openai": _translate_for_responses,
    "xai": _translate_for_xai,
    "google": _translate_for_google,
    "openrouter": _translate_for_openrouter,
}
"""The translations, by the rows of `terms.server_tools.TAKEN`."""

LISTS: Final = frozenset({"tools", "mcp_servers", "plugins", "include"})
"""Fields of a request whose lists are extended."""


def add_fields(body: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Merge additions into a body; their lists, such as the tools, come after the lists of the body.

    So `options={"tools": […]}` adds to the gates and does not replace them.
    """
    joined = dict(more)
    for name, added in more.items():
        if name not in LISTS or name not in body:
            continue
        if not isinstance(added, (list, tuple)):
            raise CrystalError(f"options: {name}: expected a list, which is added to the call's own, got {added!r:.80}")
        joined[name] = [*body[name], *(item for item in added if item not in body[name])]
    merge(body, joined)
