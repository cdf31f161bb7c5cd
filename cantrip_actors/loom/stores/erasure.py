"""How `Store.prepare_forget` erases one entity, and which blobs a line refers to. No I/O; every store uses it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from cantrip_actors.machine.project import Life
from cantrip_actors.records.codec import decode
from cantrip_actors.records.mail import decode_mail
from cantrip_actors.records.records import ForgottenRecord, Record, get_images, get_snapshot
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.records.timers import Timer, decode_timer
from cantrip_actors.records.tombstone import TombstoneSum, make_tombstone, read_length
from cantrip_actors.terms.errors import LoomError

_DIGEST = re.compile(rb'"(?:digest|snapshot)":"([0-9a-f]{40}|[0-9a-f]{64})"')


class Erasure(NamedTuple):
    """The entities to forget, and the text of their `ForgottenRecord`. Forgotten entities do not change."""

    entities: Sequence[str]
    forks: Sequence[str]
    at: str
    by: str = ""
    why: str = ""
    scrubs: bool = True


def check_ended(entity: str, life: Life) -> None:
    """Raise LoomError for an entity that has not ended."""
    if life < Life.OVER:
        raise LoomError(
            f"entity {entity} has not ended, and is not forgotten: stop it first (`entity.stop()`), or abandon it if "
            "its process died (`runtime.abandon(id)`)"
        )


class ErasedLog:
    """The log of an entity while its lines are replaced by tombstones, in order."""

    def __init__(self, entity: str) -> None:
        self._entity = entity
        self._whole = TombstoneSum()
        self._size = 0
        self.digests: set[str] = set()
        """The blobs that the lines refer to."""

    def add(self, line: bytes) -> bytes:
        """Add the next line, and return its tombstone."""
        tombstone = make_tombstone(line)
        if tombstone is line:
            self._size += read_length(line)
        else:
            self._size += len(line)
            self.digests.update(_list_blobs(decode(line)) if _DIGEST.search(line) else ())
        self._whole.add(tombstone)
        return tombstone

    @property
    def count(self) -> int:
        """The number of lines so far."""
        return self._whole.count

    def make_record(self, wanted: Erasure) -> ForgottenRecord:
        """Return the record that follows the tombstones."""
        return ForgottenRecord(
            entity_id=self._entity,
            at=wanted.at,
            records=self._whole.count,
            bytes=self._size,
            sum=self._whole.compute_hexdigest(),
            by=wanted.by,
            why=wanted.why,
        )


def is_schedule_for(timer: Timer, entities: Container[str], names: Container[str]) -> bool:
    """Return whether a timer is a schedule that gives intents to one of these entities.

    `names` are the names, scoped, that led to one of them.
    """
    schedule = timer.schedule
    if schedule is None or schedule.to != "entity":
        return False
    return schedule.name in entities or scope_name(schedule.tenant, schedule.name) in names


def make_blank_key(no: int) -> str:
    """Return the key that replaces a forgotten mail's key, which is content; a number is never reused."""
    return f"forgotten-{no}"


def find_blobs_in_line(line: bytes, known: AbstractSet[str]) -> Iterator[str]:
    """Yield the digests in `known` of the blobs that a record refers to, given its line."""
    if _has_mention(line, known):
        yield from (digest for digest in _list_blobs(decode(line)) if digest in known)


def find_blobs_in_mail(line: bytes, known: AbstractSet[str]) -> Iterator[str]:
    """Yield the digests in `known` of a mail's images, given its line."""
    if _has_mention(line, known):
        yield from (image.digest for image in decode_mail(line).images if image.digest in known)


def find_blobs_in_timer(line: bytes, digests: AbstractSet[str]) -> Iterator[str]:
    """Yield those of `digests` that are of the images of a timer's mail, given its line."""
    if _has_mention(line, digests) and (mail := decode_timer(line).mail) is not None:
        yield from (image.digest for image in mail.images if image.digest in digests)


def _list_blobs(record: Record) -> list[str]:
    digests = [image.digest for image in get_images(record) if image.digest]
    if (snapshot := get_snapshot(record)) is not None:
        digests.append(snapshot.digest)
    return digests


def _has_mention(line: bytes, known: AbstractSet[str]) -> bool:
    return any(found.decode() in known for found in _DIGEST.findall(line))
