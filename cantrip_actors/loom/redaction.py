"""Redaction of a loom: of one record, before it is kept, or of everything that is read.

By default a loom keeps what was said, and whatever leaves it goes through here: `redacted_loom(loom, redactor)`
is a loom in which turns, threads, exports, search and the page show no secret, since none of them gets to see one. With
`redact="at_rest"` records are redacted before they are appended (`redacted_record`), so that the secret is nowhere. The
price of that: what an entity is told again after a crash is redacted too, and a gate that is run again gets its
arguments so.

Ids, times and numbers of turns stay what they are: they link records, and the runtime makes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from cantrip_actors.loom.lease import NO_LEASES, Lease
from cantrip_actors.loom.store import Store
from cantrip_actors.loom.tree import Loom
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.redact import Redactor
from cantrip_actors.model.snapshot import Image
from cantrip_actors.model.turn import Header, Record

__all__ = ["RedactedStore", "redacted_loom", "redacted_record"]

R = TypeVar("R", bound=Record)

_KEPT = frozenset(
    (
        *(
            "entity_id",
            "turn_id",
            "parent_id",
            "parent_entity",
            "parent_turn",
            "utterance_id",
            "child_id",
            "cantrip_id",
        ),
        *("at", "reason", "ward"),
        "snapshot",
    )
)
"""Fields that link records or say when and how; nothing that somebody said is in them. (What a snapshot names may hold
anything: none is made where secrets must not be at rest.)"""


def redacted_record(record: R, redactor: Redactor) -> R:
    """The record without secrets; the same object where it has none."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        if field.name not in _KEPT:
            value = getattr(record, field.name)
            kept = redactor.value(value)
            if kept is not value:
                changed[field.name] = kept
    return dataclasses.replace(record, **changed) if changed else record


def redacted_loom(loom: Loom, redactor: Redactor) -> Loom:
    """The loom as others may see it: for reading only, and it takes no rewards."""

    async def refuse(records: Sequence[Record]) -> None:
        store.append(records)

    store = RedactedStore(loom._store, redactor)  # noqa: SLF001  # a loom is its store, seen as a tree
    return Loom(store, refuse)


class RedactedStore(Store):
    """A store as others may see it, for reading only."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor
        self.blocking = store.blocking

    def records(self, entity_id: str) -> Sequence[Record]:
        """Everything recorded of an entity, redacted."""
        return [redacted_record(record, self._redactor) for record in self._store.records(entity_id)]

    def lines(self) -> NoReturn:
        """Refused: lines are what copies are made of and hashes are taken of, and these would be others."""
        raise LoomError("a redacted loom has no lines to copy or verify: use the loom itself")

    def image(self, digest: str) -> Image | None:  # noqa: ARG002
        """None: what a program has seen is in there as it was."""
        return None

    def images(self) -> Iterator[str]:
        """None."""
        return iter(())

    def header(self, entity_id: str) -> Header | None:
        """How an entity began, redacted."""
        header = self._store.header(entity_id)
        return None if header is None else redacted_record(header, self._redactor)

    def headers(self) -> Iterator[Header]:
        """Every entity's header, redacted."""
        return (redacted_record(header, self._redactor) for header in self._store.headers())

    def owner(self, turn_id: str) -> str | None:
        """As the store has it."""
        return self._store.owner(turn_id)

    def children(self, turn_id: str) -> Sequence[str]:
        """As the store has it."""
        return self._store.children(turn_id)

    def forks(self, turn_id: str) -> Sequence[str]:
        """As the store has it."""
        return self._store.forks(turn_id)

    def below(self, entity_id: str) -> Sequence[str]:
        """As the store has it."""
        return self._store.below(entity_id)

    def named(self, name: str) -> str | None:
        """As the store has it."""
        return self._store.named(name)

    def unfinished(self, *, idle: bool = True) -> Sequence[str]:
        """As the store has it."""
        return self._store.unfinished(idle=idle)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def append(self, records: Sequence[Record], leases: Mapping[str, int] = NO_LEASES) -> NoReturn:  # noqa: ARG002
        """Refused: what is shown redacted is there to be read."""
        raise LoomError(f"a redacted loom is for reading: {len(records)} records were to be appended to it")

    def claim(self, entity_id: str, owner: str, ttl: float) -> Lease:  # noqa: ARG002
        """Refused."""
        raise LoomError(f"a redacted loom is for reading: nobody runs entity {entity_id} from it")

    def renew(self, owner: str, ttl: float) -> None:
        """Nothing is held through it."""

    def release(self, *leases: Lease) -> None:
        """Nothing is held through it."""

    def __repr__(self) -> str:
        return f"<RedactedStore of {self._store!r}>"
