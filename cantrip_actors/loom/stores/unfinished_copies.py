"""The marks of copies in a loom: a copy that was not finished has left only a part of its source there."""

from __future__ import annotations

from typing import Final

from cantrip_actors.loom.stores.store import Store

_PREFIX: Final = "\x1fcopy\x1f"


def mark_copy(store: Store, first_entity: str, source: str) -> None:
    """Note that a copy into this store begins, or with `source` "" that it has ended.

    `first_entity` is the first entity of the source, by which a later call for the same source finds the mark.
    """
    store.change_account(_PREFIX + first_entity, lambda _state, _now: (source, None), 0.0)


def list_unfinished_copies(store: Store) -> dict[str, str]:
    """Return the sources of copies into this store that were not finished, by their first entities."""
    marks = store.accounts(_PREFIX).items()
    return {name.removeprefix(_PREFIX): source for name, source in marks if source}
