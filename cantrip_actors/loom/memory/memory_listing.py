"""The listing of a loom in memory: its entities by the time at which they began, in all and for each condition."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from cantrip_actors.loom.stores.rules import EntityRow
from cantrip_actors.loom.stores.selection import ListedEntity, Selection, find_kind
from cantrip_actors.machine.project import EntityStanding, Status

_CHUNK = 256
"""Entities that are read at once; another thread may change the list between two chunks."""


class _Position(NamedTuple):
    """The position of an entity in listings."""

    at: str
    no: int
    id: str


class EntityListing:
    """Finds the newest entities of a selection."""

    def __init__(self) -> None:
        self._rows: dict[str, EntityRow] = {}
        self._lists: dict[tuple[str, str], list[_Position]] = {}
        """For each condition, such as ("state", "active"), its entities in order; ("", "") has all of them."""

    def add(self, row: EntityRow) -> None:
        """Add an entity that begins."""
        self._rows[row.id] = row
        position = _locate(row)
        for key in _list_keys(row):
            insort(self._lists.setdefault(key, []), position)

    def move(self, entity: str, standing: EntityStanding) -> None:
        """Set how an entity stands."""
        life, state, cantrip = standing
        self._replace(self._rows[entity]._replace(life=life, state=state, cantrip=cantrip))

    def clear_origin(self, entity: str) -> None:
        """Remove the name and the tenant of an entity that is forgotten: its header has none any more."""
        self._replace(self._rows[entity]._replace(name=None, tenant=""))

    def _replace(self, row: EntityRow) -> None:
        position, old, new = _locate(row), _list_keys(self._rows[row.id]), _list_keys(row)
        self._rows[row.id] = row
        for key in old - new:
            positions = self._lists[key]
            del positions[bisect_left(positions, position)]
            if not positions:
                del self._lists[key]
        for key in new - old:
            insort(self._lists.setdefault(key, []), position)

    def count_states(self, tenant: str | None) -> dict[Status, int]:
        """Return how many entities of all tenants, or of one, are in each state."""
        if tenant is None:
            lists = list(self._lists.items())
            return {cast("Status", name): len(positions) for (field, name), positions in lists if field == "state"}
        counts: dict[Status, int] = {}
        for position in list(self._lists.get(("tenant", tenant), ())):
            state = cast("Status", self._rows[position.id].state)
            counts[state] = counts.get(state, 0) + 1
        return counts

    def select(self, selection: Selection, cursor: str | None, limit: int, *, oldest_first: bool) -> list[ListedEntity]:
        """Return the newest or the oldest entities of a selection, or those that follow `cursor`, at most `limit`."""
        if cursor is not None and cursor not in self._rows:
            return []
        keys = [("", ""), *_list_conditions(selection)]
        candidates: Sequence[_Position] = min((self._lists.get(key, []) for key in keys), key=len)
        start = None if cursor is None else _locate(self._rows[cursor])
        if oldest_first:
            since = None if selection.since is None else _Position(selection.since, -1, "")
            start = max(filter(None, (start, since)), default=None)
        positions = _read_chunks(candidates, start, oldest_first=oldest_first)
        listed: list[ListedEntity] = []
        for position in positions:
            if len(listed) == limit or (selection.since is not None and position.at < selection.since):
                break
            row = self._rows[position.id]
            if _is_selected(row, selection):
                listed.append(_show(row))
        return listed


def _read_chunks(positions: Sequence[_Position], start: _Position | None, *, oldest_first: bool) -> Iterator[_Position]:
    """Yield positions in one of the two orders, from the one that follows `start`."""
    while True:
        if oldest_first:
            first = 0 if start is None else bisect_right(positions, start)
            chunk = positions[first : first + _CHUNK]
        else:
            last = len(positions) if start is None else bisect_left(positions, start)
            chunk = positions[max(0, last - _CHUNK) : last][::-1]
        if not chunk:
            return
        yield from chunk
        start = chunk[-1]


def _locate(row: EntityRow) -> _Position:
    return _Position(row.at, row.no, row.id)


def _list_keys(row: EntityRow) -> set[tuple[str, str]]:
    keys = {("", ""), ("state", row.state), ("tenant", row.tenant), ("kind", _find_origin(row))}
    if row.lasting:
        keys.add(("kind", "lasting"))
    if row.cantrip is not None:
        keys.add(("cantrip", row.cantrip))
    if row.parent_entity is not None:
        keys.add(("parent", row.parent_entity))
    if row.name is not None:
        keys |= {("named", ""), ("name", row.name)}
    return keys


def _list_conditions(selection: Selection) -> Iterator[tuple[str, str]]:
    """Yield the keys of the lists that have all entities of a selection."""
    for field in ("state", "kind", "cantrip", "tenant", "parent", "name"):
        value = getattr(selection, field)
        if value is not None:
            yield field, value
    if selection.prefix is not None:
        yield "named", ""


def _is_selected(row: EntityRow, selection: Selection) -> bool:
    if selection.prefix is not None and not (row.name or "").startswith(selection.prefix):
        return False
    return _list_keys(row).issuperset(_list_conditions(selection))


def _find_origin(row: EntityRow) -> str:
    return find_kind(row.parent_entity, forked=row.forked, lasting=False)


def _show(row: EntityRow) -> ListedEntity:
    kind = find_kind(row.parent_entity, forked=row.forked, lasting=row.lasting)
    state = cast("Status", row.state)
    return ListedEntity(row.id, row.name, row.tenant, row.cantrip, state, kind, row.parent_entity, row.at)
