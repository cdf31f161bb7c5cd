"""Redaction of a loom: of each record before it is stored, or of everything that is read.

By default a loom keeps the original text, and every way out of it is redacted: `redacted_loom(loom, redactor)` is a
loom whose turns, threads, exports, search and page contain no secret. With `redact="at_rest"` records are redacted
before they are appended (`redact_record`), so that no secret is stored. That has a price: after a crash an entity
continues with the redacted text, and a gate that is run again gets redacted arguments.

Ids, times and numbers of turns stay unchanged: they link records, and the runtime makes them.

The bytes of an image are not text, so they are not searched for secrets. A redacted loom for reading shows
images unchanged (`show_images=False` leaves them out). Records that are redacted at rest lose the bytes of their
images, so that the promise holds. Addresses of images are texts, and redacted.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NoReturn, TypeVar

from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.loom.stores.facts import EntityFacts, WithRecords
from cantrip_actors.loom.stores.lease import QuarantineRow
from cantrip_actors.loom.stores.selection import EVERYTHING, ListedEntity, Page, Selection
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Header, IntentGiven, Record, get_images, replace_images
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.file import File
from cantrip_actors.terms.outcome import Outcome

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
        *("id", "trace"),  # of events
        "snapshot",
    )
)
"""Fields that link records or say when and how; they contain no text of an entity or a user. (A snapshot may contain
anything: none is made if secrets must not be at rest.)"""


def redact_record(record: R, redactor: Redactor, *, show_images: bool = True) -> R:
    """Return the record without secrets, or the same object if it has none.

    Images keep their bytes only with `show_images`.
    """
    images = get_images(record)
    if images:
        shown = tuple(_redact_image(image, redactor, show=show_images) for image in images)
        if any(new is not old for new, old in zip(shown, images, strict=True)):
            record = replace_images(record, shown)
    return redact_fields(record, redactor)


def redact_mail(mail: Mail, redactor: Redactor) -> Mail:
    """Return mail without secrets in its text, and without the bytes of its images."""
    images = tuple(_redact_image(image, redactor, show=False) for image in mail.images)
    return dataclasses.replace(mail, body=redactor.value(mail.body), images=images)


def redact_outcome(outcome: Outcome, redactor: Redactor) -> Outcome | None:
    """Return the outcome of an episode without secrets; None if its text may have been cut within one.

    Then the records have to be redacted before the outcome is made of them.
    """
    if outcome.summary is not None:
        return None
    images = tuple([_redact_image(image, redactor, show=True) for image in outcome.images])
    error = None if outcome.error is None else redactor.text(outcome.error)
    return replace(outcome, result=redactor.value(outcome.result), error=error, images=images)


def redact_fields(fact: V, redactor: Redactor) -> V:
    """Return a record, or an event made of one, without secrets in its text; the same object if it has none."""
    changed: dict[str, Any] = {}
    for name in _list_redacted_fields(fact.__class__):
        value = getattr(fact, name)
        shown = redactor.value(value)
        if shown is not value:
            changed[name] = shown
    return dataclasses.replace(fact, **changed) if changed else fact


@cache
def _list_redacted_fields(kind: Any) -> tuple[str, ...]:
    return tuple([field.name for field in dataclasses.fields(kind) if field.name not in _KEPT])


def _redact_image(image: File, redactor: Redactor, *, show: bool) -> File:
    if image.filename is not None and (name := redactor.text(image.filename)) is not image.filename:
        image = image.with_name(name)
    if image.url is not None:
        url = redactor.text(image.url)
        return image if url is image.url else image.behind(url)
    return image if show else image.bare()


def redacted_loom(loom: Loom, redactor: Redactor, *, show_images: bool = True) -> Loom:
    """Return the loom with its secrets redacted, for reading only.

    Without `show_images` the bytes of images are left out: redaction cannot inspect them.
    """
    return RedactedLoom(loom, redactor, show_images=show_images)


class RedactedLoom(Loom):
    """A loom that redacts each record, header and quarantine that it reads; it derives the rest from these."""

    def __init__(self, loom: Loom, redactor: Redactor, *, show_images: bool = True) -> None:
        store, checks = loom._store, loom._checks  # noqa: SLF001  # one loom, shown differently
        super().__init__(store, _refuse, tenant=loom.tenant, checks=checks)
        self._loom = loom
        self._redactor = redactor
        self._show_images = show_images

    def headers(self) -> Iterator[Header]:
        """Yield the redacted header of each entity."""
        return (redact_record(header, self._redactor) for header in self._loom.headers())

    def header(self, entity_id: str) -> Header:
        """Return the redacted header of an entity."""
        return redact_record(self._loom.header(entity_id), self._redactor)

    def header_in_force(self, entity_id: str) -> Header:
        """Return the redacted header of an entity with its current cantrip, call, circle and crystal."""
        return redact_record(self._loom.header_in_force(entity_id), self._redactor)

    def page(
        self,
        selection: Selection = EVERYTHING,
        *,
        cursor: str | None = None,
        limit: int = 50,
        oldest_first: bool = False,
    ) -> Page[ListedEntity]:
        """Return a page of entities with their names and cantrips redacted. Conditions compare the unredacted ones."""
        page = self._loom.page(selection, cursor=cursor, limit=limit, oldest_first=oldest_first)
        show = self._redactor.text
        return Page(
            [
                replace(
                    entity,
                    name=None if entity.name is None else show(entity.name),
                    cantrip=None if entity.cantrip is None else show(entity.cantrip),
                )
                for entity in page.items
            ],
            page.next,
        )

    def read_since(
        self, number: int, limit: int = 500, *, settled: bool = False
    ) -> tuple[list[tuple[int, Record]], int]:
        """Return the next records of all entities after a number, redacted."""
        records, last = self._loom.read_since(number, limit, settled=settled)
        return [(number, redact_record(record, self._redactor)) for number, record in records], last

    def waiting_intents(self, entity_id: str) -> list[IntentGiven]:
        """Return the redacted intents that wait in an entity's inbox."""
        return [
            redact_record(intent, self._redactor, show_images=self._show_images)
            for intent in self._loom.waiting_intents(entity_id)
        ]

    def _read(self, entity_id: str, *, after: int = -1, limit: int = sys.maxsize) -> Sequence[Record]:
        return self._redact(self._loom._read(entity_id, after=after, limit=limit))  # noqa: SLF001  # likewise

    def _read_newest(self, entity_id: str, limit: int) -> Sequence[Record]:
        return self._redact(self._loom._read_newest(entity_id, limit))  # noqa: SLF001  # likewise

    def _redact(self, records: Sequence[Record]) -> Sequence[Record]:
        return [redact_record(record, self._redactor, show_images=self._show_images) for record in records]

    def facts(self, entity_id: str, with_records: WithRecords = "always") -> EntityFacts:
        """Return the redacted facts of an entity, with all of its records if any are wanted."""
        facts = self._loom.facts(entity_id, with_records)
        records = self._read(entity_id) if facts.records or facts.checkpoint else ()
        return facts._replace(header=redact_record(facts.header, self._redactor), checkpoint=None, records=records)

    def quarantines(self) -> dict[str, QuarantineRow]:
        """Return the quarantines of root entities, redacted."""
        rows = self._loom.quarantines().items()
        return {entity_id: row._replace(why=self._redactor.text(row.why)) for entity_id, row in rows}

    def checkpoint(self, entity_id: str) -> None:  # checkpoints are not shown
        """Return None: a checkpoint contains the unredacted state."""

    def attach(self, image: File) -> File:
        """Return an image with its bytes, if images are shown."""
        return self._loom.attach(image) if self._show_images else image.bare()

    def __repr__(self) -> str:
        return f"<RedactedLoom of {self._loom!r}>"


async def _refuse(records: Sequence[Record]) -> NoReturn:
    raise LoomError(f"a redacted loom is for reading: {len(records)} records were to be appended to it")
