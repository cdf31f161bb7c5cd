"""`open_store`: from a URL to the store that it names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args
from urllib.parse import parse_qsl, quote, unquote, urlencode

from cantrip_actors.loom.store import Durability, Store
from cantrip_actors.terms.errors import LoomError, nearest

__all__ = ["open_store"]


def open_store(url: str | os.PathLike[str], *, read_only: bool = False) -> Store:
    """The store that `url` names.

    - `memory:`
    - `sqlite:relative/path`, `sqlite:///absolute/path`, or a path ending in .db or .sqlite
    - `jsonl:relative/path`, `jsonl:///absolute/path`, or a path ending in .jsonl
    - `postgresql://user@host/database`, with whatever libpq takes, and `?schema=name` (left out: cantrip)

    All but memory take `?durability=process|power|none`; `%` escapes in them are resolved. A file and its folders are
    made where they are missing. With `read_only` nothing is made, locked or mended, and a writer may be at work
    meanwhile. Raises LoomError.
    """
    text = os.fspath(url)
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme or (text.endswith(_ENDINGS) and scheme not in _SCHEMES):
        return _open_path(text, read_only=read_only)
    rest, _, query = rest.partition("?")
    if scheme == "memory":
        from cantrip_actors.loom.memory import MemoryStore

        if read_only:
            raise LoomError("memory: cannot be opened read-only: it is always empty when it is opened")
        if rest.strip("/") or query:
            raise LoomError(f'"{text}": memory: takes neither a path nor options')
        return MemoryStore()
    if scheme in _FILES:
        path, durability = _file(text, scheme, rest, query)
        return _open_file(scheme, path, durability, read_only=read_only)
    if scheme in _SERVERS:
        return _open_server(text, query, read_only=read_only)
    raise LoomError(f'"{text}": unknown kind of loom "{scheme}": {nearest(scheme, _SCHEMES)}')


_SERVERS = ("postgresql", "postgres")
_FILES = {"sqlite": "loom.db", "jsonl": "loom.jsonl"}
_SCHEMES = ("memory", *_FILES, *_SERVERS)
_ENDINGS = (".jsonl", ".db", ".sqlite")


def _open_path(text: str, *, read_only: bool) -> Store:
    if text.endswith(_ENDINGS):
        scheme = "jsonl" if text.endswith(".jsonl") else "sqlite"
        return _open_file(scheme, Path(text), "process", read_only=read_only)
    raise LoomError(
        f'"{text}" names no loom: expected a path ending in .db or .jsonl, sqlite:path, jsonl:path or memory:'
    )


def _open_file(scheme: str, path: Path, durability: Durability, *, read_only: bool) -> Store:
    if scheme == "jsonl":
        from cantrip_actors.loom.jsonl import JsonlStore

        return JsonlStore(path, durability=durability, read_only=read_only)
    from cantrip_actors.loom.sqlite import SqliteStore

    return SqliteStore(path, durability=durability, read_only=read_only)


def _open_server(text: str, query: str, *, read_only: bool) -> Store:
    try:
        from cantrip_actors.loom.postgres import PostgresStore
    except ImportError as error:
        raise LoomError(f"a Postgres loom needs psycopg: install cantrip-actors[postgres] ({error})") from error
    options = parse_qsl(query, keep_blank_values=True)
    ours = {name: value for name, value in options if name in {"schema", "durability"}}
    rest = urlencode([(name, value) for name, value in options if name not in ours], quote_via=quote)
    durability = _durability(text.partition("?")[0], ours.get("durability", "process"))
    url = text.partition("?")[0] + (f"?{rest}" if rest else "")
    return PostgresStore(url, schema=ours.get("schema") or "cantrip", durability=durability, read_only=read_only)


def _file(text: str, scheme: str, rest: str, query: str) -> tuple[Path, Durability]:
    durability: Durability = "process"
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "durability":
            raise LoomError(f'"{text}": unknown option "{name}": {nearest(name, ["durability"])}')
        durability = _durability(text, value)
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise LoomError(f'"{text}" names a host: write {scheme}:{rest[2:]} or {scheme}:///{rest[2:]} for a file')
        rest = rest[2:]
    if not rest.strip("/"):
        raise LoomError(f'"{text}" names no file: expected for example {scheme}:{_FILES[scheme]}')
    return Path(unquote(rest)).expanduser(), durability


def _durability(text: str, value: str) -> Durability:
    for known in get_args(Durability):
        if value == known:
            return value  # type: ignore[return-value]  # mypy does not narrow a str by comparison
    raise LoomError(f'"{text}": unknown durability "{value}": {nearest(value, get_args(Durability))}')
