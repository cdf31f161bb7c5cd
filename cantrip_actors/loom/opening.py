"""`open_store` returns the store that a URL names."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args
from urllib.parse import parse_qsl, quote, unquote, urlencode

from cantrip_actors.loom.damage import DamagedLoom
from cantrip_actors.loom.migration import Migrate
from cantrip_actors.loom.seal_key import GivenKey, SealKey, read_secret
from cantrip_actors.loom.store import Durability, Store
from cantrip_actors.redact.urls import render_url
from cantrip_actors.terms.arguments import check_kind
from cantrip_actors.terms.errors import LoomError, suggest_nearest

if TYPE_CHECKING:
    from cantrip_actors.loom.repair import Repaired


def open_store(
    url: str | os.PathLike[str], *, read_only: bool = False, repair: bool = False, seal_key: GivenKey = None
) -> Store:
    """Return the store that `url` names.

    - `memory:`
    - `sqlite:relative/path`, `sqlite:///absolute/path`, or a path ending in .db or .sqlite
    - `jsonl:relative/path`, `jsonl:///absolute/path`, or a path ending in .jsonl
    - `postgresql://user@host/database`, with any parameter of libpq, and `?schema=name` (default: cantrip)

    A path whose beginning looks like a misspelt scheme (`sqllite:loom.db`) is refused; `./sqllite:loom.db` is a path.

    All but memory take `?durability=process|power|none`; `%` escapes in them are resolved. A missing file and its
    folders are made. With `read_only` nothing is made, locked or repaired, and a writer may be at work meanwhile.

    SQLite and Postgres take `?migrate=copy|in_place|refuse`: whether tables of an earlier version are copied before
    they are upgraded (the default), upgraded in place, or refused for writing.

    A damaged file is refused for writing. With `repair` a copy of it is made, and it is rewritten without the damaged
    parts.

    With `seal_key` a loom without records is sealed: without the key, its content cannot be changed unnoticed
    (`seal_key.py`). The key is at least 16 secret bytes, or a text of them, or the `Path` of a file of mode 0600. A
    sealed loom needs its key to be opened; False opens it for reading without the key, and then its links are not
    checked.

    Raises LoomError, DamagedLoom for a damaged file, and WrongSealKey if a key is missing, wrong or not accepted.
    """
    check_kind("url", url, str | os.PathLike, "the URL of a loom, as in sqlite:loom.db, or a path", LoomError)
    text = os.fspath(url)
    check_kind("url", text, str, "the URL of a loom, as in sqlite:loom.db, or a path", LoomError)
    if seal_key is not None and seal_key is not False:
        seal_key = read_secret(seal_key)  # before a file is made
    if repair and not read_only and seal_key is not False:
        if _is_damaged(text, seal_key):
            repair_loom(text, seal_key=seal_key)
        return open_store(text, seal_key=seal_key)
    if seal_key is False and not read_only:
        raise LoomError("seal_key=False is for reading: give the key of the loom to write to it")
    scheme, colon, rest = text.partition(":")
    is_path = text.endswith(_ENDINGS) and not difflib.get_close_matches(scheme, _SCHEMES)  # `odd:name.db` is a path
    if not colon or "/" in scheme or is_path:
        return _open_path(text, seal_key, read_only=read_only)
    rest, _, query = rest.partition("?")
    if scheme == "memory":
        from cantrip_actors.loom.memory import MemoryStore

        if read_only:
            raise LoomError("memory: cannot be opened read-only: it is always empty when it is opened")
        if rest.strip("/") or query:
            raise LoomError(f'"{render_url(text)}": memory: takes neither a path nor options')
        return MemoryStore(seal_key=seal_key)
    if scheme in _FILES:
        path, options = _parse_file(text, scheme, rest, query)
        return _open_file(scheme, path, options, seal_key, read_only=read_only)
    if scheme in _SERVERS:
        return _open_server(text, query, seal_key, read_only=read_only)
    raise LoomError(f'"{render_url(text)}": unknown kind of loom "{scheme}": {suggest_nearest(scheme, _SCHEMES)}')


_SERVERS = ("postgresql", "postgres")
_FILES = {"sqlite": "loom.db", "jsonl": "loom.jsonl"}
_SCHEMES = ("memory", *_FILES, *_SERVERS)
_ENDINGS = (".jsonl", ".db", ".sqlite")


def _open_path(text: str, key: GivenKey, *, read_only: bool) -> Store:
    if text.endswith(_ENDINGS):
        scheme = "jsonl" if text.endswith(".jsonl") else "sqlite"
        return _open_file(scheme, _parse_path(text, text), _Options(), key, read_only=read_only)
    raise LoomError(
        f'"{render_url(text)}" names no loom: '
        "expected a path ending in .db or .jsonl, sqlite:path, jsonl:path or memory:"
    )


def _open_file(scheme: str, path: Path, options: _Options, key: GivenKey, *, read_only: bool) -> Store:
    if scheme == "jsonl":
        from cantrip_actors.loom.jsonl import JsonlStore

        return JsonlStore(path, durability=options.durability, read_only=read_only, seal_key=key)
    from cantrip_actors.loom.sqlite import SqliteStore

    return SqliteStore(path, durability=options.durability, read_only=read_only, migrate=options.migrate, seal_key=key)


def _open_server(text: str, query: str, key: GivenKey, *, read_only: bool) -> Store:
    try:
        from cantrip_actors.loom.postgres import PostgresStore
    except ImportError as error:
        raise LoomError(f"a Postgres loom needs psycopg: install cantrip-actors[postgres] ({error})") from error
    options = parse_qsl(query, keep_blank_values=True)
    ours = {name: value for name, value in options if name in {"schema", "durability", "migrate"}}
    rest = urlencode([(name, value) for name, value in options if name not in ours], quote_via=quote)
    where = text.partition("?")[0]
    durability = _parse_durability(where, ours.get("durability", "process"))
    migrate = _migrate(where, ours.get("migrate", "copy"))
    url = text.partition("?")[0] + (f"?{rest}" if rest else "")
    schema = ours.get("schema") or "cantrip"
    return PostgresStore(url, schema=schema, durability=durability, read_only=read_only, migrate=migrate, seal_key=key)


def _is_damaged(text: str, key: GivenKey) -> bool:
    """Return whether an existing loom cannot be read, or does not verify; a missing blob is not damage."""
    from cantrip_actors.loom.verify import verify_loom

    try:
        with open_store(text, read_only=True, seal_key=key) as store:
            return any(fault.blob is None for fault in verify_loom(store).faults)
    except DamagedLoom:
        return True
    except LoomError:  # it does not exist yet, or is not a loom: opening it reports that
        return False


def repair_loom(url: str | os.PathLike[str], *, seal_key: SealKey | None = None) -> Repaired:
    """Rewrite a damaged file without its damaged parts, after making a copy (`repair.py`).

    Raises LoomError for a loom that is not a file or has no readable part, WrongSealKey.
    """
    from cantrip_actors.loom.repair import repair_file

    text = os.fspath(url)
    scheme, colon, rest = text.partition(":")
    if colon and scheme in _FILES:
        rest, _, query = rest.partition("?")
        path, _ = _parse_file(text, scheme, rest, query)
    elif text.endswith(_ENDINGS) and scheme not in _SCHEMES:
        path, scheme = Path(text), "jsonl" if text.endswith(".jsonl") else "sqlite"
    else:
        raise LoomError(f'"{render_url(text)}" is not a file: restore a Postgres loom from a backup of its server')
    return repair_file(path.absolute(), is_jsonl=scheme == "jsonl", seal_key=seal_key)


class _Options(NamedTuple):
    """The options after the `?` of a file's URL."""

    durability: Durability = "process"
    migrate: Migrate = "copy"


def _parse_file(text: str, scheme: str, rest: str, query: str) -> tuple[Path, _Options]:
    options = _Options()
    known = ["durability", "migrate"] if scheme == "sqlite" else ["durability"]
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise LoomError(f'"{render_url(text)}": unknown option "{name}": {suggest_nearest(name, known)}')
        if name == "durability":
            options = options._replace(durability=_parse_durability(text, value))
        else:
            options = options._replace(migrate=_migrate(text, value))
    if rest.startswith("//"):
        if not rest.startswith("///"):
            shown = render_url(rest)[2:]
            raise LoomError(
                f'"{render_url(text)}" names a host: write {scheme}:{shown} or {scheme}:///{shown} for a file'
            )
        rest = rest[2:]
    if not rest.strip("/"):
        raise LoomError(f'"{render_url(text)}" names no file: expected for example {scheme}:{_FILES[scheme]}')
    return _parse_path(text, unquote(rest)).expanduser(), options


def _parse_path(text: str, rest: str) -> Path:
    if "\0" in rest:
        raise LoomError(f'"{render_url(text)}" names no file: expected a path without NUL characters (%00)')
    return Path(rest)


def _migrate(text: str, value: str) -> Migrate:
    for known in get_args(Migrate):
        if value == known:
            return value  # type: ignore[return-value]  # as below
    raise LoomError(
        f'"{render_url(text)}": unknown way to migrate "{value}": {suggest_nearest(value, get_args(Migrate))}'
    )


def _parse_durability(text: str, value: str) -> Durability:
    for known in get_args(Durability):
        if value == known:
            return value  # type: ignore[return-value]  # mypy does not narrow a str by comparison
    raise LoomError(
        f'"{render_url(text)}": unknown durability "{value}": {suggest_nearest(value, get_args(Durability))}'
    )
