"""Listings in SQL: the query of a `Selection`, and the entities in its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from cantrip_actors.loom.stores.selection import ListedEntity, Selection, find_kind, find_prefix_end
from cantrip_actors.loom.tables.schema import IS_OF_KIND
from cantrip_actors.loom.tables.table_rows import decode_optional_text, decode_text
from cantrip_actors.machine.project import Status

_COLUMNS = {"state": "state", "cantrip": "cantrip", "tenant": "tenant", "parent": "parent_entity", "name": "name"}
"""The conditions that compare a column with a value."""
_POSITION = "select at, no from entities where id = ?"
_LISTED = "id, name, tenant, cantrip, state, parent_entity, forked, lasting, at"


def write_selection(selection: Selection, cursor: str | None, *, oldest_first: bool = False) -> tuple[str, list[Any]]:
    """Return the query of the newest entities of a selection, and its values; a limit follows as the last one."""
    follows, order = (">", "at, no") if oldest_first else ("<", "at desc, no desc")
    compared = {column: getattr(selection, field) for field, column in _COLUMNS.items()}
    conditions = [(f"{column} = ?", value) for column, value in compared.items() if value is not None]
    if selection.prefix:
        conditions += [("name >= ?", selection.prefix), ("name < ?", find_prefix_end(selection.prefix))]
    elif selection.prefix is not None:
        conditions.append(("name >= ?", ""))
    if selection.since is not None:
        conditions.append(("at >= ?", selection.since))
    if cursor is not None:
        conditions.append((f"(at, no) {follows} ({_POSITION})", cursor))
    conditions = [(words, value) for words, value in conditions if value is not None]  # no text follows the last ones
    words = [condition for condition, _ in conditions]
    if selection.kind is not None:
        words.append(IS_OF_KIND[selection.kind])
    where = f"where {' and '.join(words)} " if words else ""
    query = f"select {_LISTED} from entities {where}order by {order} limit ?"  # noqa: S608  # our own words
    return query, [value for _, value in conditions]


def decode_listed(row: Sequence[Any]) -> ListedEntity:
    """Return the entity of a row of `write_selection`."""
    id, name, tenant, cantrip, state, parent, forked, lasting, at = row
    parent = decode_optional_text(parent)
    return ListedEntity(
        decode_text(id),
        decode_optional_text(name),
        decode_text(tenant),
        decode_optional_text(cantrip),
        cast("Status", decode_text(state)),
        find_kind(parent, forked=bool(forked), lasting=bool(lasting)),
        parent,
        decode_text(at),
    )
