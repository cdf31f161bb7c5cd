"""Which entities a listing wants: `Selection`, and the pages that a listing comes in.

A listing has the newest entities first: those that began last. Entities that began at the same time are in the order
of their creation. A store finds them in an index, so a page costs what it returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, Literal, TypeVar, get_args

from cantrip_actors.machine.project import Status, show_status
from cantrip_actors.terms.arguments import check, check_choice, check_texts, is_whole
from cantrip_actors.terms.errors import LoomError

T = TypeVar("T")

ListedKind = Literal["root", "child", "fork", "lasting"]
"""Whether an entity was cast or invoked, was spawned by another one, was forked from a turn, or is long-lived.

A long-lived entity is a root or a fork, too.
"""

STATES = tuple(state for choice in get_args(Status) for state in get_args(choice) if show_status(state) == state)
"""The states in which entities are listed."""

LARGEST_PAGE = 1000
"""The most entities of one page."""

_LAST = chr(0x10FFFF)
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class Selection:
    """The entities that a listing wants: those to which every condition applies that is not None."""

    state: Status | None = None
    kind: ListedKind | None = None
    cantrip: str | None = None
    """The name of the cantrip that the entity works with now."""
    prefix: str | None = None
    """The beginning of the entity's name."""
    since: str | None = None
    """The earliest time at which the entity began, as in records: ISO 8601, UTC, milliseconds, Z."""
    parent: str | None = None
    """The id of the entity that spawned it."""
    name: str | None = None
    tenant: str | None = None

    def __post_init__(self) -> None:
        texts = {field: getattr(self, field) for field in ("cantrip", "prefix", "since", "parent", "name", "tenant")}
        check_texts(LoomError, **{field: text for field, text in texts.items() if text is not None})
        if self.state is not None:
            check_choice("state", self.state, STATES, LoomError)
        if self.kind is not None:
            check_choice("kind", self.kind, get_args(ListedKind), LoomError)


EVERYTHING = Selection()


def check_page_limit(limit: object) -> None:
    """Raise LoomError unless `limit` is a size of a page."""
    fits = is_whole(limit, 1) and limit <= LARGEST_PAGE
    check(fits, "limit", f"a whole number from 1 to {LARGEST_PAGE}", limit, LoomError)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a listing: iterate it, or read its `items`. `next` is the cursor of the following page, or None."""

    items: Sequence[T]
    next: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class ListedEntity:
    """An entity in a listing, as it is in the index: `runtime.find(listed.id)` returns a handle to it.

    `state` is as of `Loom.state`, `cantrip` the name of the cantrip that it works with now, `parent` the id of the
    entity that spawned it. `began` is ISO 8601 in UTC. `kind` is "lasting" for a long-lived entity, else "root",
    "child" or "fork".
    """

    id: str
    name: str | None
    tenant: str
    cantrip: str | None
    state: Status
    kind: ListedKind
    parent: str | None
    began: str


def format_since(since: str | datetime, name: str = "since") -> str:
    """Return a time as records have it: ISO 8601, UTC, milliseconds, Z. Raises LoomError for one without an offset."""
    time: object = since
    if isinstance(since, str):
        try:
            time = datetime.fromisoformat(since)
        except ValueError:
            time = None
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise LoomError(f'{name}: expected a time with an offset, such as "2026-11-28T09:00:00Z", got {since!r}')
    return time.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def find_kind(parent: str | None, *, forked: bool, lasting: bool) -> ListedKind:
    """Return what an entity is in the first place: long-lived, forked, spawned, or else cast."""
    return "lasting" if lasting else "fork" if forked else "root" if parent is None else "child"


def find_prefix_end(prefix: str) -> str | None:
    """Return the first text after all those that begin with `prefix`; None if there is none, as for "".

    >>> find_prefix_end("notes"), find_prefix_end("")
    ('notet', None)
    """
    rest = prefix.rstrip(_LAST)
    if not rest:
        return None
    following = ord(rest[-1]) + 1
    return rest[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
