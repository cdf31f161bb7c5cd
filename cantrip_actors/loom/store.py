"""The store interface: what keeps a loom's records, and `open_store`, which makes one from a URL.

A store appends and reads; there is no call that changes or removes (LOOM-3). It knows records and which turn belongs
to whom, not what they mean: that is `tree`. Readers read without awaiting, while another thread may be appending.

A memory loom and a JSONL file have one writer. An SQLite file may have several, in several processes, and a Postgres
database as many as there are machines: which of them may write for an entity is what leases decide (`lease`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args
from urllib.parse import parse_qsl, quote, unquote, urlencode

from cantrip_actors.loom.lease import NO_LEASES, Lease
from cantrip_actors.loom.pictures import Picture
from cantrip_actors.model.errors import LoomError, nearest
from cantrip_actors.model.snapshot import SandboxImage
from cantrip_actors.model.turn import Header, Record

__all__ = ["Durability", "Store", "Unsure", "open_store"]

Durability = Literal["process", "power", "none"]
"""What an acknowledged record survives: a kill of the process, a power cut, or nothing for sure."""


class Unsure(LoomError):
    """The answer to an append was lost: all of it is recorded, or nothing. Read again before you append the same."""


class Store(ABC):
    """An append-only log of records, in order for each entity.

    `blocking` says whether `append` waits for a disk or a network, and so belongs into a thread. Where it is False, an
    append only reaches memory or the page cache and may be called from the event loop.
    """

    blocking: bool = False
    shared: bool = True
    """Whether other processes may write to it meanwhile, so that who runs an entity has to claim it (`lease`)."""
    sealed: bool = True
    """Whether its lines have the links of a hash chain (`chain`)."""

    @abstractmethod
    def append(self, records: Sequence[Record], leases: Mapping[str, int] = NO_LEASES) -> None:
        """Keep `records`, all of them in this order or none; they are as durable as the store says when this returns.

        `leases` maps root entities to the tokens under which the caller runs them, and may hold more than it takes.
        Images that records bring with them, of sandboxes (`Snapshot.image`) and of messages and results (`pictures`),
        are kept before those records, each once.

        A process that is killed before that may leave the first few of them behind, never a gap and never half of one.
        Raises LoomError where they cannot be kept (a full disk) or may not come next (a turn that is there already),
        Fenced where somebody else runs one of the entities, and Unsure where it cannot know whether they are kept.
        """

    @abstractmethod
    def claim(self, entity_id: str, owner: str, ttl: float) -> Lease:
        """The right to write for a root entity and all that it spawns, for `ttl` seconds; it may be about to begin.

        `owner` is a name from `this_process`, one a runtime. Claiming again what one holds gives a new token, and the
        old one is over. Raises Held while somebody else has it.
        """

    @abstractmethod
    def renew(self, owner: str, ttl: float) -> None:
        """Let all that `owner` holds last until `ttl` seconds from now. What it has lost stays lost."""

    @abstractmethod
    def release(self, *leases: Lease) -> None:
        """Let go of leases, of all in one go; fine where one is over already."""

    @abstractmethod
    def records(self, entity_id: str) -> Sequence[Record]:
        """Everything recorded of an entity, in order; empty for an entity that is not here.

        The bytes of their images are read when somebody wants them.
        """

    @abstractmethod
    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every record as its number and its line, in the order in which they were recorded, up to the call."""

    @abstractmethod
    def image(self, digest: str) -> SandboxImage | None:
        """The sandbox's image of that digest, as it lies there: look at its seal before loading. None: it is not."""

    @abstractmethod
    def images(self) -> Iterator[str]:
        """The digests of all images of sandboxes."""

    @abstractmethod
    def picture(self, digest: str) -> Picture | None:
        """The bytes of an image of messages or results, by its digest, as they lie there; None where they do not."""

    @abstractmethod
    def pictures(self) -> Iterator[str]:
        """The digests of all pictures."""

    def key(self) -> bytes | None:
        """The key that images of this store are sealed with, made now if need be; None where it has none of its own.

        It lies beside the store, and works where it was made (`images`).
        """
        return None

    def heads(self) -> Mapping[str, bytes] | None:
        """The last link of each root's tree, where a store keeps them beside its lines (`verify`)."""
        return None

    def faults(self) -> Iterator[str]:
        """What is wrong with how records are kept, as far as the lines do not tell (`verify`)."""
        yield from ()

    @abstractmethod
    def header(self, entity_id: str) -> Header | None:
        """How an entity began; None for one that is not here."""

    @abstractmethod
    def headers(self) -> Iterator[Header]:
        """Every entity's header, in order of creation."""

    @abstractmethod
    def owner(self, turn_id: str) -> str | None:
        """The entity that a committed turn belongs to; None for a turn that is not here."""

    @abstractmethod
    def children(self, turn_id: str) -> Sequence[str]:
        """The entities that a turn spawned, in order of creation."""

    @abstractmethod
    def forks(self, turn_id: str) -> Sequence[str]:
        """The entities that were forked from a turn, in order of creation."""

    @abstractmethod
    def below(self, entity_id: str) -> Sequence[str]:
        """The entities that an entity spawned, at whichever turn, in order of creation."""

    @abstractmethod
    def named(self, name: str) -> str | None:
        """The latest lasting entity with that name in its header, over or not; None where there is none."""

    @abstractmethod
    def unfinished(self, *, idle: bool = True) -> Sequence[str]:
        """The entities whose logs do not say that they are over, in order of creation.

        Without `idle` only those in the middle of an episode, not the lasting ones that wait for their next intent.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up what the store holds (its file, its lock). Closing twice is fine; appending afterwards is a
        LoomError.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


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
