"""How `Store.prepare_forget` erases one entity, and which blobs a line refers to. No I/O; every store uses it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from cantrip_actors.machine.project import Life
from cantrip_actors.records.codec import decode
from cantrip_actors.records.mail import decode_mail
from cantrip_actors.records.records import ForgottenRecord, get_images, get_snapshot
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.records.timers import Timer
from cantrip_actors.records.tombstone import TombstoneSum, make_tombstone
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


def erase(
    entity: str, lines: Iterable[bytes], wanted: Erasure, *, is_padded: bool = False
) -> tuple[list[bytes], ForgottenRecord]:
    """Return the tombstones for an entity's lines, and the record that follows them."""
    tombstones: list[bytes] = []
    whole, size = TombstoneSum(), 0
    for line in lines:
        tombstone = make_tombstone(line, is_padded=is_padded)
        tombstones.append(tombstone)
        whole.add(tombstone)
        size += len(line)
    record = ForgottenRecord(
        entity_id=entity,
        at=wanted.at,
        records=whole.count,
        bytes=size,
        sum=whole.compute_hexdigest(),
        by=wanted.by,
        why=wanted.why,
    )
    return tombstones, record


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
        record = decode(line)
        found = [image.digest for image in get_images(record)]
        if (snapshot := get_snapshot(record)) is not None:
            found.append(snapshot.digest)
        yield from (digest for digest in found if digest in known)


def find_blobs_in_mail(line: bytes, known: AbstractSet[str]) -> Iterator[str]:
    """Yield the digests in `known` of a mail's images, given its line."""
    if _has_mention(line, known):
        yield from (image.digest for image in decode_mail(line).images if image.digest in known)


def _has_mention(line: bytes, known: AbstractSet[str]) -> bool:
    return any(found.decode() in known for found in _DIGEST.findall(line))
