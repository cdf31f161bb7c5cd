"""A server of tools in a recipe: `{mcp: {name: files, command: [mcp-server-files, /data]}}` among the gates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cantrip_actors.mcp import OAuth, http, oauth, stdio
from cantrip_actors.recipes.reader import describe, find_path
from cantrip_actors.terms.arguments import is_texts_by_name, read_texts
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.tool_server import ToolServer

_OPTIONS: Final = ("only", "ask", "pin", "timeout", "max_shown", "trust_hints", "risks", "sampling")
_KEYS: Final = ("name", "command", "url", "env", "cwd", "headers", "token_env", "oauth", "roots", *_OPTIONS)
_LOGIN: Final = ("client_id", "client_secret_env", "issuer", "scopes")


def tool_server(settings: Any, folder: Path) -> ToolServer:
    """Return the server that `mcp:` describes; programs start in the recipe's folder. Raises InvalidCantrip."""
    if not isinstance(settings, Mapping):
        raise InvalidCantrip(f"mcp: expected name and command, or name and url, got {describe(settings)}")
    for key in settings:
        if key not in _KEYS:
            raise InvalidCantrip(f'mcp: unknown key "{key}": {suggest_nearest(str(key), _KEYS)}')
    settings = {key: value for key, value in settings.items() if value is not None}
    name, command, url = settings.get("name"), settings.get("command"), settings.get("url")
    if not isinstance(name, str) or (command is None) == (url is None):
        raise InvalidCantrip("mcp: expected a name, and either a command or a url")
    options = {key: settings[key] for key in _OPTIONS if key in settings}
    if "roots" in settings:
        options["roots"] = _read_folders(settings["roots"], folder)
    if url is not None:
        return http(
            name, url, headers=_read_texts("headers", settings.get("headers")), auth=_read_token(settings), **options
        )
    words = [command] if isinstance(command, str) else command
    words = read_texts("mcp: command", words or None, "a program, or a list of it and its arguments", InvalidCantrip)
    cwd = str(find_path(folder, str(settings.get("cwd", "."))))
    return stdio(name, words[0], *words[1:], env=_read_environment(settings.get("env")), cwd=cwd, **options)


def _read_folders(value: Any, folder: Path) -> list[Path]:
    return [find_path(folder, path) for path in read_texts("mcp: roots", value, "a list of folders", InvalidCantrip)]


def _read_environment(value: Any) -> dict[str, str]:
    """Return variables: a mapping as it is, and the present values of those that a list names."""
    if isinstance(value, list):
        return {name: _read_variable("env", name) for name in value}
    return _read_texts("env", value)


def _read_token(settings: Mapping[str, Any]) -> str | OAuth | None:
    """Return the bearer token or the login: `token_env: NAME`, `oauth: true`, `oauth: {client_id: …, …}`."""
    name, login = settings.get("token_env"), settings.get("oauth")
    if name is not None and login is not None:
        raise InvalidCantrip("mcp: expected token_env or oauth, and not both")
    if name is not None:
        return _read_variable("token_env", name)
    if login in (None, False):
        return None
    if login is True:
        return oauth()
    if not isinstance(login, Mapping):
        raise InvalidCantrip(f"mcp: oauth: expected true, or {' and '.join(_LOGIN)}, got {describe(login)}")
    for key in login:
        if key not in _LOGIN:
            raise InvalidCantrip(f'mcp: oauth: unknown key "{key}": {suggest_nearest(str(key), _LOGIN)}')
    secret = login.get("client_secret_env")
    return oauth(
        **_read_texts("oauth", {key: login[key] for key in ("client_id", "issuer") if key in login}),
        client_secret=None if secret is None else _read_variable("oauth: client_secret_env", secret),
        scopes=login.get("scopes", ()),
    )


def _read_variable(what: str, name: object) -> str:
    value = os.environ.get(name) if isinstance(name, str) and name.isprintable() else None
    if value is None:
        raise InvalidCantrip(f"mcp: {what}: the environment has no variable {name!r}: set it")
    return value


def _read_texts(what: str, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not is_texts_by_name(value):  # the error shows no value: it may be a secret
        raise InvalidCantrip(f"mcp: {what}: expected names and texts, got {describe(value)}")
    return dict(value)
