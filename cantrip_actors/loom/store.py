"""The store interface: what keeps a loom's records, and `open_store`, which makes one from a URL.

A store appends and reads; there is no call that changes or removes (LOOM-3). It knows records and which turn belongs
to whom, not what they mean: that is `tree`. It has one writer. Readers in the same process read without awaiting,
while another thread may be appending.

Stores with leases and stores that many machines share keep the same face: whether this store may still write for an
entity is a fact about the store that was opened, checked inside its `append`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args
from urllib.parse import parse_qsl, unquote

from cantrip_actors.model.errors import LoomError, nearest
from cantrip_actors.model.turn import Header, Record

__all__ = ["Durability", "Store", "open_store"]

Durability = Literal["process", "power", "none"]
"""What an acknowledged record survives: a kill of the process, a power cut, or nothing for sure."""


class Store(ABC):
    """An append-only log of records, in order for each entity.

    `blocking` says whether `append` waits for a disk or a network, and so belongs into a thread. Where it is False, an
    append only reaches memory or the page cache and may be called from the event loop.
    """

    blocking: bool = False

    @abstractmethod
    def append(self, records: Sequence[Record]) -> None:
        """Keep `records`, all of them in this order or none; they are as durable as the store says when this returns.

        A process that is killed before that may leave the first few of them behind, never a gap and never half of one.
        Raises LoomError where they cannot be kept (a full disk) or may not come next (a turn that is there already).
        """

    @abstractmethod
    def records(self, entity_id: str) -> Sequence[Record]:
        """Everything recorded of an entity, in order; empty for an entity that is not here."""

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
    """The store that `url` names: `memory:`, `jsonl:relative/path`, `jsonl:///absolute/path`, or a path ending in
    .jsonl.

    `jsonl:` URLs take `?durability=process|power|none`; `%` escapes in them are resolved. A file and its folders are
    made where they are missing. With `read_only` nothing is made, locked or mended, and a writer may be at work
    meanwhile. Raises LoomError.
    """
    text = os.fspath(url)
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme or (text.endswith(".jsonl") and scheme not in _SCHEMES):
        return _open_path(text, read_only=read_only)
    rest, _, query = rest.partition("?")
    if scheme == "memory":
        from cantrip_actors.loom.memory import MemoryStore

        if read_only:
            raise LoomError("memory: cannot be opened read-only: it is always empty when it is opened")
        if rest.strip("/") or query:
            raise LoomError(f'"{text}": memory: takes neither a path nor options')
        return MemoryStore()
    if scheme == "jsonl":
        return _open_jsonl(text, rest, query, read_only=read_only)
    if scheme in _LATER:
        raise LoomError(f'"{text}": {scheme}: is not available yet; use jsonl:path or memory:')
    raise LoomError(f'"{text}": unknown kind of loom "{scheme}": {nearest(scheme, _SCHEMES)}')


_LATER = ("sqlite", "postgresql", "postgres")
_SCHEMES = ("memory", "jsonl", *_LATER)


def _open_path(text: str, *, read_only: bool) -> Store:
    from cantrip_actors.loom.jsonl import JsonlStore

    if text.endswith(".jsonl"):
        return JsonlStore(text, read_only=read_only)
    raise LoomError(f'"{text}" names no loom: expected a path ending in .jsonl, jsonl:path, jsonl:///path or memory:')


def _open_jsonl(text: str, rest: str, query: str, *, read_only: bool) -> Store:
    from cantrip_actors.loom.jsonl import JsonlStore

    durability: Durability = "process"
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "durability":
            raise LoomError(f'"{text}": unknown option "{name}": {nearest(name, ["durability"])}')
        durability = _durability(text, value)
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise LoomError(f'"{text}" names a host: write jsonl:{rest[2:]} or jsonl:///{rest[2:]} for a file')
        rest = rest[2:]
    if not rest.strip("/"):
        raise LoomError(f'"{text}" names no file: expected for example jsonl:loom.jsonl')
    return JsonlStore(Path(unquote(rest)).expanduser(), durability=durability, read_only=read_only)


def _durability(text: str, value: str) -> Durability:
    for known in get_args(Durability):
        if value == known:
            return value  # type: ignore[return-value]  # mypy does not narrow a str by comparison
    raise LoomError(f'"{text}": unknown durability "{value}": {nearest(value, get_args(Durability))}')
