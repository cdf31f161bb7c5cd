"""Redaction of a loom: of one record, before it is kept, or of everything that is read.

By default a loom keeps what was said, and whatever leaves it goes through here: `redacted_loom(loom, redactor)`
is a loom in which turns, threads, exports, search and the page show no secret, since none of them gets to see one. With
`redact="at_rest"` records are redacted before they are appended (`redacted_record`), so that the secret is nowhere. The
price of that: what an entity is told again after a crash is redacted too, and a gate that is run again gets its
arguments so.

Ids, times and numbers of turns stay what they are: they link records, and the runtime makes them.

The bytes of an image are no text: nobody can tell whether a secret is to be seen in it. What is read shows images as
they are (whoever shows a loom to others can leave them out, `show_images=False`). What is kept without secrets is kept
without their bytes, so that the promise holds. Addresses of images are texts, and redacted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from cantrip_actors.loom.lease import NO_LEASES, Lease
from cantrip_actors.loom.pictures import Picture, pictures_in, with_images
from cantrip_actors.loom.store import Store
from cantrip_actors.loom.tree import Loom
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.image import Image
from cantrip_actors.model.redact import Redactor
from cantrip_actors.model.snapshot import SandboxImage
from cantrip_actors.model.turn import Header, Record

__all__ = ["RedactedStore", "redacted_fields", "redacted_loom", "redacted_record"]

R = TypeVar("R", bound=Record)
V = TypeVar("V", bound=Any)
"""A record or an event: a frozen dataclass."""

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


def redacted_record(record: R, redactor: Redactor, *, show_images: bool = True) -> R:
    """The record without secrets; the same object where it has none. Without `show_images` images lose their bytes."""
    images = pictures_in(record)
    if images:
        shown = tuple(_redacted(image, redactor, show=show_images) for image in images)
        if any(new is not old for new, old in zip(shown, images, strict=True)):
            record = with_images(record, shown)
    return redacted_fields(record, redactor)


def redacted_fields(told: V, redactor: Redactor) -> V:
    """A record, or an event made of one, without secrets in what it says; the same object where there are none."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(told):
        if field.name not in _KEPT:
            value = getattr(told, field.name)
            kept = redactor.value(value)
            if kept is not value:
                changed[field.name] = kept
    return dataclasses.replace(told, **changed) if changed else told


def _redacted(image: Image, redactor: Redactor, *, show: bool) -> Image:
    if image.url is not None:
        url = redactor.text(image.url)
        return image if url is image.url else image.behind(url)
    return image if show else image.bare()


def redacted_loom(loom: Loom, redactor: Redactor, *, show_images: bool = True) -> Loom:
    """The loom as others may see it: for reading only, and it takes no rewards.

    Without `show_images` the bytes of images are left out: redaction cannot look into them.
    """

    async def refuse(records: Sequence[Record]) -> None:
        store.append(records)

    store = RedactedStore(loom._store, redactor, show_images=show_images)  # noqa: SLF001  # a loom is its store, seen as a tree
    return Loom(store, refuse)


class RedactedStore(Store):
    """A store as others may see it, for reading only."""

    def __init__(self, store: Store, redactor: Redactor, *, show_images: bool = True) -> None:
        self._store = store
        self._redactor = redactor
        self._show_images = show_images
        self.blocking = store.blocking

    def records(self, entity_id: str) -> Sequence[Record]:
        """Everything recorded of an entity, redacted."""
        records = self._store.records(entity_id)
        return [redacted_record(record, self._redactor, show_images=self._show_images) for record in records]

    def lines(self) -> NoReturn:
        """Refused: lines are what copies are made of and hashes are taken of, and these would be others."""
        raise LoomError("a redacted loom has no lines to copy or verify: use the loom itself")

    def image(self, digest: str) -> SandboxImage | None:  # noqa: ARG002
        """None: what a program has seen is in there as it was."""
        return None

    def images(self) -> Iterator[str]:
        """None."""
        return iter(())

    def picture(self, digest: str) -> Picture | None:
        """As the store has it, where images are shown."""
        return self._store.picture(digest) if self._show_images else None

    def pictures(self) -> Iterator[str]:
        """As the store has them, where images are shown."""
        return self._store.pictures() if self._show_images else iter(())

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
