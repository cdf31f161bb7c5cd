"""`open_store` returns the store that a URL names."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qsl, quote, unquote, urlencode

from cantrip_actors.loom.seal.seal_key import GivenKey, SealKey, read_secret
from cantrip_actors.loom.stores.damage import DamagedLoom
from cantrip_actors.loom.stores.store import Durability, Store
from cantrip_actors.loom.tables.migration import Migrate
from cantrip_actors.own_files.claims import HOME
from cantrip_actors.redact.urls import render_url
from cantrip_actors.terms.arguments import check_kind
from cantrip_actors.terms.errors import LoomError, suggest_nearest

if TYPE_CHECKING:
    from cantrip_actors.loom.integrity.repair import Repaired


def open_store(
    url: str | os.PathLike[str],
    *,
    read_only: bool = False,
    repair: bool = False,
    seal_key: GivenKey = None,
    create: bool = False,
) -> Store:
    """Return the store that `url` names.

    - `memory:`
    - `sqlite:relative/path`, `sqlite:///absolute/path`, or a path ending in .db or .sqlite
    - `jsonl:relative/path`, `jsonl:///absolute/path`, or a path ending in .jsonl
    - `postgresql://user@host/database`, with any parameter of libpq, and `?schema=name` (default: cantrip)

    A path whose beginning looks like a misspelt scheme (`sqllite:loom.db`) is refused; `./sqllite:loom.db` is a path.

    All but memory take `?durability=process|power|none`; `%` escapes in them are resolved. A missing file is made. Its
    folder must exist, so that a mistyped path makes no empty loom; with `create` missing folders are made, too. A
    missing `.cantrip` is always made. With `read_only` nothing is made, locked or repaired, and a writer may be at work
    meanwhile.

    SQLite and Postgres take `?migrate=upgrade|refuse`: whether tables of an earlier version are upgraded when they are
    opened for writing (the default), or refused.

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
        return open_store(text, seal_key=seal_key, create=create)
    if seal_key is False and not read_only:
        raise LoomError("seal_key=False is for reading: give the key of the loom to write to it")
    scheme, rest, query = _split(text)
    if scheme == "memory":
        from cantrip_actors.loom.memory.memory import MemoryStore

        if read_only:
            raise LoomError("memory: cannot be opened read-only: it is always empty when it is opened")
        if rest.strip("/") or query:
            raise LoomError(f'"{render_url(text)}": memory: takes neither a path nor options')
        return MemoryStore(seal_key=seal_key)
    options, more = _parse_options(text, scheme, query or "")
    if scheme in _FILES:
        path = _parse_path(text, scheme, rest, query)
        if not (read_only or create):
            _check_folder(text, path.absolute().parent)
        if scheme == "jsonl":
            from cantrip_actors.loom.memory.jsonl import JsonlStore

            return JsonlStore(path, read_only=read_only, seal_key=seal_key, **options)
        from cantrip_actors.loom.sqlite.sqlite import SqliteStore

        return SqliteStore(path, read_only=read_only, seal_key=seal_key, **options)
    try:
        from cantrip_actors.loom.postgres.postgres import PostgresStore
    except ImportError as error:
        raise LoomError(f"a Postgres loom needs psycopg: install cantrip-actors[postgres] ({error})") from error
    address = f"{scheme}:{rest}" + (f"?{urlencode(more, quote_via=quote)}" if more else "")
    return PostgresStore(address, read_only=read_only, seal_key=seal_key, **options)


def check_url(url: str) -> None:
    """Raise LoomError for a URL that cannot be that of a loom; nothing is opened."""
    scheme, rest, query = _split(url)
    _parse_options(url, scheme, query or "")
    if scheme in _FILES:
        _parse_path(url, scheme, rest, query)


def _check_folder(text: str, folder: Path) -> None:
    """Raise LoomError for a new loom whose folder does not exist, unless it is the `.cantrip` of one that does."""
    if folder.exists() or (folder.name == HOME and folder.parent.exists()):
        return
    raise LoomError(
        f'"{render_url(text)}": there is no folder {folder}: check the path, make the folder, or open the loom with '
        "create=True"
    )


_FILES = {"sqlite": "loom.db", "jsonl": "loom.jsonl"}
_ENDINGS = {".jsonl": "jsonl", ".db": "sqlite", ".sqlite": "sqlite"}
_TABLES = ("durability", "migrate")
_OPTIONS = {
    "memory": (),
    "sqlite": _TABLES,
    "jsonl": ("durability",),
    "postgresql": ("schema", *_TABLES),
    "postgres": ("schema", *_TABLES),
}
"""The options of each kind of loom."""
_CHOICES = {"durability": ("durability", Durability), "migrate": ("way to migrate", Migrate)}


def _split(text: str) -> tuple[str, str, str | None]:
    """Return the kind of loom in a URL, its address, and its options; None for a path, which has neither."""
    kind = next((kind for ending, kind in _ENDINGS.items() if text.endswith(ending)), None)
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme or (kind and not difflib.get_close_matches(scheme, _OPTIONS)):  # `odd:name.db`
        if kind is None:
            raise LoomError(
                f'"{render_url(text)}" names no loom: '
                "expected a path ending in .db or .jsonl, sqlite:path, jsonl:path or memory:"
            )
        return kind, text, None
    if scheme not in _OPTIONS:
        raise LoomError(f'"{render_url(text)}": unknown kind of loom "{scheme}": {suggest_nearest(scheme, _OPTIONS)}')
    rest, _, query = rest.partition("?")
    return scheme, rest, query


def _parse_options(text: str, scheme: str, query: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return our options in a query, and those for the server."""
    ours, more = {}, []
    for name, value in parse_qsl(query, keep_blank_values=True):
        what, choice = _CHOICES.get(name, ("", None))
        if name not in _OPTIONS[scheme]:
            if scheme in _FILES:
                known = suggest_nearest(name, _OPTIONS[scheme])
                raise LoomError(f'"{render_url(text)}": unknown option "{name}": {known}')
            more.append((name, value))
        elif choice is not None and value not in get_args(choice):
            raise LoomError(
                f'"{render_url(text)}": unknown {what} "{value}": {suggest_nearest(value, get_args(choice))}'
            )
        elif value:
            ours[name] = value
    return ours, more


def _parse_path(text: str, scheme: str, rest: str, query: str | None) -> Path:
    """Return the path in the address of a file's URL; without a `query` the address is a path as it is."""
    if query is not None:
        if rest.startswith("//"):
            if not rest.startswith("///"):
                shown = render_url(rest)[2:]
                raise LoomError(
                    f'"{render_url(text)}" names a host: write {scheme}:{shown} or {scheme}:///{shown} for a file'
                )
            rest = rest[2:]
        if not rest.strip("/"):
            raise LoomError(f'"{render_url(text)}" names no file: expected for example {scheme}:{_FILES[scheme]}')
        rest = unquote(rest)
    if rest.strip("/") == ":memory:":  # SQLite's own name for a database in memory, which would be a file here
        raise LoomError(f'"{render_url(text)}" names no file: write memory: for a loom in memory')
    if "\0" in rest:
        raise LoomError(f'"{render_url(text)}" names no file: expected a path without NUL characters (%00)')
    return Path(rest) if query is None else Path(rest).expanduser()


def _is_damaged(text: str, key: GivenKey) -> bool:
    """Return whether an existing loom cannot be read, or does not verify; a missing blob is not damage."""
    from cantrip_actors.loom.integrity.verify import verify_trees

    try:
        with open_store(text, read_only=True, seal_key=key) as store:
            return any(fault.blob is None for fault in verify_trees(store)[0].faults)
    except DamagedLoom:
        return True
    except LoomError:  # it does not exist yet, or is not a loom: opening it reports that
        return False


def repair_loom(url: str | os.PathLike[str], *, seal_key: SealKey | None = None) -> Repaired:
    """Rewrite a damaged file without its damaged parts, after making a copy (`repair.py`).

    Raises LoomError for a loom that is not a file or has no readable part, WrongSealKey.
    """
    from cantrip_actors.loom.integrity.repair import repair_file

    text = os.fspath(url)
    scheme, rest, query = _split(text)
    if scheme not in _FILES:
        raise LoomError(f'"{render_url(text)}" is not a file: restore a Postgres loom from a backup of its server')
    path = _parse_path(text, scheme, rest, query)
    return repair_file(path.absolute(), is_jsonl=scheme == "jsonl", seal_key=seal_key)
