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
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from cantrip_actors.loom.checkpoints import Tip
from cantrip_actors.loom.lease import NO_LEASES, Lease
from cantrip_actors.loom.rules import Waiting
from cantrip_actors.loom.store import Store
from cantrip_actors.loom.view import Loom
from cantrip_actors.machine.project import Life
from cantrip_actors.records.blob import Blob
from cantrip_actors.records.mail import Mail, MailRow
from cantrip_actors.records.records import Header, Record, images_of, with_images
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.image import Image

__all__ = ["RedactedStore", "redacted_fields", "redacted_loom", "redacted_mail", "redacted_record"]

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
        *("at", "reason", "ward", "key", "sender", "to", "previous", "mail"),
        "snapshot",
    )
)
"""Fields that link records or say when and how; nothing that somebody said is in them. (What a snapshot names may hold
anything: none is made where secrets must not be at rest.)"""


def redacted_record(record: R, redactor: Redactor, *, show_images: bool = True) -> R:
    """The record without secrets; the same object where it has none. Without `show_images` images lose their bytes."""
    images = images_of(record)
    if images:
        shown = tuple(_redacted(image, redactor, show=show_images) for image in images)
        if any(new is not old for new, old in zip(shown, images, strict=True)):
            record = with_images(record, shown)
    return redacted_fields(record, redactor)


def redacted_mail(mail: Mail, redactor: Redactor) -> Mail:
    """Return mail without secrets in what it says, and without the bytes of its images."""
    images = tuple(_redacted(image, redactor, show=False) for image in mail.images)
    return dataclasses.replace(mail, body=redactor.value(mail.body), images=images)


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

    def records(self, entity_id: str, *, after: int = -1, limit: int = sys.maxsize) -> Sequence[Record]:
        """What is recorded of an entity, redacted."""
        records = self._store.records(entity_id, after=after, limit=limit)
        return [redacted_record(record, self._redactor, show_images=self._show_images) for record in records]

    def tip(self, entity_id: str) -> Tip | None:
        """As the store has it."""
        return self._store.tip(entity_id)

    def life(self, entity_id: str) -> Life | None:
        """As the store has it."""
        return self._store.life(entity_id)

    def _keep_checkpoint(self, entity_id: str, kept: bytes) -> NoReturn:  # noqa: ARG002
        raise LoomError(f"a redacted loom is for reading: nobody runs entity {entity_id} from it")

    def _find_checkpoint(self, entity_id: str) -> None:
        """None: what an entity has seen is in its state as it was."""

    def _link(self, entity_id: str, position: int) -> None:
        """None: a redacted record has another."""

    def lines(self) -> NoReturn:
        """Refused: lines are what copies are made of and hashes are taken of, and these would be others."""
        raise LoomError("a redacted loom has no lines to copy or verify: use the loom itself")

    def blob(self, digest: str) -> Blob | None:
        """An image, where images are shown; never a snapshot: what a program has seen is in there as it was."""
        blob = self._store.blob(digest) if self._show_images else None
        return None if blob is None or blob.is_snapshot else blob

    def blobs(self) -> Iterator[str]:
        """The digests of the images, where images are shown."""
        return (digest for digest in self._store.blobs() if self.blob(digest) is not None)

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

    def append(
        self,
        records: Sequence[Record],
        leases: Mapping[str, int] = NO_LEASES,  # noqa: ARG002  # as everywhere below
        *,
        taken: object = (),  # noqa: ARG002
        post: object = (),  # noqa: ARG002
    ) -> NoReturn:
        """Refused: what is shown redacted is there to be read."""
        raise LoomError(f"a redacted loom is for reading: {len(records)} records were to be appended to it")

    def post(self, mails: Sequence[Mail]) -> NoReturn:
        """Refused."""
        raise LoomError(f"a redacted loom is for reading: {len(mails)} mails were to be posted to it")

    def pending(self, entity_id: str, limit: int = 100) -> NoReturn:  # noqa: ARG002
        """Refused: mail is taken by the runtime that holds an entity, and by nobody else."""
        raise LoomError(f"a redacted loom shows no mail: nobody runs entity {entity_id} from it")

    def waiting(self, *, loads: bool = True) -> list[str]:
        """As the store has it."""
        return self._store.waiting(loads=loads)

    def find_mail(self, entity_id: str, key: str) -> MailRow | None:
        """As the store has it."""
        return self._store.find_mail(entity_id, key)

    def new_mail(self, after: int) -> tuple[int, list[MailRow]]:
        """As the store has it."""
        return self._store.new_mail(after)

    def count_mail(self, entity_id: str) -> Waiting:
        """As the store has it."""
        return self._store.count_mail(entity_id)

    def expire_mail(self, before: str) -> NoReturn:
        """Refused."""
        raise LoomError(f"a redacted loom is for reading: mail of before {before} was to be forgotten in it")

    def claim(self, entity_id: str, owner: str, ttl: float, *, lift: bool = False) -> Lease:  # noqa: ARG002
        """Refused."""
        raise LoomError(f"a redacted loom is for reading: nobody runs entity {entity_id} from it")

    def quarantined(self) -> list[str]:
        """As the store has it."""
        return self._store.quarantined()

    def renew(self, owner: str, ttl: float) -> None:
        """Nothing is held through it."""

    def release(self, *leases: Lease) -> None:
        """Nothing is held through it."""

    def release_if_empty(self, *leases: Lease) -> list[Lease]:  # noqa: ARG002
        """Nothing is held through it."""
        return []

    def is_held(self, entity_id: str) -> bool:
        """As the store has it."""
        return self._store.is_held(entity_id)

    def __repr__(self) -> str:
        return f"<RedactedStore of {self._store!r}>"
