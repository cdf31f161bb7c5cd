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
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from cantrip_actors.loom.view import Loom
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Header, Record, images_of, with_images
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.file import File

__all__ = ["RedactedLoom", "redacted_fields", "redacted_loom", "redacted_mail", "redacted_record"]

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
            "cantrip_name",
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


def _redacted(image: File, redactor: Redactor, *, show: bool) -> File:
    if image.filename is not None and (name := redactor.text(image.filename)) is not image.filename:
        image = image.called(name)
    if image.url is not None:
        url = redactor.text(image.url)
        return image if url is image.url else image.behind(url)
    return image if show else image.bare()


def redacted_loom(loom: Loom, redactor: Redactor, *, show_images: bool = True) -> Loom:
    """The loom as others may see it: for reading only, and it takes no rewards.

    Without `show_images` the bytes of images are left out: redaction cannot look into them.
    """
    return RedactedLoom(loom, redactor, show_images=show_images)


class RedactedLoom(Loom):
    """A loom that redacts each record and header that it reads; everything else of a loom is derived from those."""

    def __init__(self, loom: Loom, redactor: Redactor, *, show_images: bool = True) -> None:
        super().__init__(loom._store, _refuse, tenant=loom.tenant)  # noqa: SLF001  # one loom, shown differently
        self._loom = loom
        self._redactor = redactor
        self._show_images = show_images

    def headers(self) -> Iterator[Header]:
        """How each entity began, redacted."""
        return (redacted_record(header, self._redactor) for header in self._loom.headers())

    def header(self, entity_id: str) -> Header:
        """How an entity began, redacted."""
        return redacted_record(self._loom.header(entity_id), self._redactor)

    def _read(self, entity_id: str, *, after: int = -1, limit: int = sys.maxsize) -> Sequence[Record]:
        records = self._loom._read(entity_id, after=after, limit=limit)  # noqa: SLF001  # likewise
        return [redacted_record(record, self._redactor, show_images=self._show_images) for record in records]

    def checkpoint(self, entity_id: str) -> None:  # none is shown
        """None: what an entity has seen is in its state as it was."""

    def attach(self, image: File) -> File:
        """Return an image with its bytes, where images are shown."""
        return self._loom.attach(image) if self._show_images else image.bare()

    def __repr__(self) -> str:
        return f"<RedactedLoom of {self._loom!r}>"


async def _refuse(records: Sequence[Record]) -> NoReturn:
    raise LoomError(f"a redacted loom is for reading: {len(records)} records were to be appended to it")
