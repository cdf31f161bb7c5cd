"""Which mail an inbox accepts, and which records may take it. No I/O; every store uses it.

Mail has a number that is never reused. Its key is unique for each entity, as long as the mail is kept: a repetition
with the same content finds the first one. A lane of an inbox holds a limited number of waiting mails. Mail is taken
once, by a record that carries its key. The record that ends a root entity for good takes all mail that still waits.

A `MailPlan` follows one transaction mail by mail, asks `Known` what the store already holds, and changes only the plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from cantrip_actors.loom.stores.blobs import add_images
from cantrip_actors.loom.stores.rules import Known, Plan, Tree, Waiting
from cantrip_actors.machine.project import Life, compute_life, find_settled_at
from cantrip_actors.records.mail import CONTROL, INTENTS, Mail, MailRow, encode_mail, get_key
from cantrip_actors.records.records import Record
from cantrip_actors.terms.errors import EntityEnded, LoomError, UnknownEntity

Refusal = LoomError | EntityEnded
"""The errors that explain why mail is not accepted."""


class KeyUsed(LoomError):
    """The key was used before with other content: send other content with another key."""


class InboxFull(LoomError):
    """The entity's inbox is full: send the mail again later."""

    @classmethod
    def at(cls, most: int, entity: str) -> InboxFull:
        """Return the error for an entity with `most` waiting mails."""
        return cls(f"{most} mails wait for entity {entity}: no more are accepted, send it again later")


class QueueFull(LoomError):
    """The node's queue of submissions is full: submit it again later."""


class Taken(LoomError):
    """The mail was already taken, here or by another process: nothing of the batch is recorded."""


URGENT: Final = 100
"""Mails above the limit that the control lane accepts if they are no steering messages.

Steering messages wait as long as the entity waits for a person, or for a query that hangs: if they have filled the
lane, a person still has to be able to decide, and to end the episode.
"""


def compute_lane_limit(mail: Mail, most: int) -> int:
    """Return how much mail may wait in the lane of this mail, if `most` is the limit of each lane."""
    return most + URGENT if mail.lane == CONTROL and mail.kind != "steer" else most


A_FEW = 64
"""The number of records that most episodes do not exceed."""


class TakenMail(NamedTuple):
    """Mail that the record with the number `taken` took."""

    no: int
    entity_id: str
    lane: int
    taken: int


def select_settled(old: Sequence[TakenMail], before: str, read: Callable[..., Sequence[Record]]) -> list[TakenMail]:
    """Return which of this mail, all of it taken before that time, was settled before it, too.

    An entity works on one intent at a time, so only the last one may still be under way. `read` is `Store.records`.
    """
    newest: dict[str, int] = {}
    for row in old:
        if row.lane == INTENTS:
            newest[row.entity_id] = max(row.taken, newest.get(row.entity_id, 0))

    def is_settled(intent: TakenMail) -> bool:
        for limit in (A_FEW, sys.maxsize):
            at = find_settled_at(read(intent.entity_id, after=intent.taken - 1, limit=limit))
            if at is not None:
                return at < before
        return False

    return [row for row in old if row.lane != INTENTS or row.taken < newest[row.entity_id] or is_settled(row)]


class MailPlan:
    """Adds a transaction's changes of mail to the transaction's plan."""

    def __init__(self, plan: Plan, known: Known, most: int, numbers: Iterator[int]) -> None:
        self._made, self._known, self._most, self._numbers = plan, known, most, numbers
        self._posted: dict[tuple[str, str], tuple[MailRow, bytes, int | None]] = {}
        self._taken: dict[int, tuple[MailRow, int]] = {}
        self._emptied: list[tuple[Tree, int]] = []
        self._waiting: dict[Tree, Waiting] = {}
        plan.posted, plan.taken, plan.emptied, plan.waiting = self._posted, self._taken, self._emptied, self._waiting

    def follow(self, *, taken: Iterable[tuple[int, int]], post: Iterable[tuple[int, Mail]]) -> None:
        """Add a batch's changes of mail. Raises Taken, or the error for mail that is not accepted."""
        made = self._made
        for at, no in taken:
            self.take(no, made.records[at], made.places[at].tree, made.numbers[at])
        for at, mail in post:
            result = self.post(mail, made.numbers[at])
            if not isinstance(result, MailRow):
                raise result
        for tree, number in made.over:
            self.end(tree, number)

    def post(self, mail: Mail, number: int | None = None) -> MailRow | Refusal:
        """Post one mail; `number` is that of the record that it is posted with.

        A full inbox also accepts mail that is posted with a record, because its sender has checked for room before.
        """
        made, entity, key = self._made, mail.entity_id, mail.key
        try:
            digest, line = mail.digest, encode_mail(mail)
        except LoomError as error:
            return error
        found = self._find(entity, key)
        if found is not None:
            if found.digest == digest:
                return found
            return KeyUsed(f"key {key!r} was used for entity {entity} with other content: use another key")
        place = self._known.find_place(entity)
        if place is None:
            return UnknownEntity(entity, f"mail was posted to entity {entity}, which is not in this loom")
        if place.tree.root != entity:
            return LoomError(f"mail for entity {entity} goes to its root {place.tree.root}, with child={entity!r}")
        if place.standing.life >= Life.OVER:  # if this transaction ends the entity, its end takes the mail
            return EntityEnded(f"entity {entity} has ended ({place.standing.status}): it takes no mail")
        if number is None and self._waiting.get(place.tree, place.tree.waiting)[mail.lane] >= compute_lane_limit(
            mail, self._most
        ):
            return InboxFull.at(compute_lane_limit(mail, self._most), entity)
        row = MailRow(next(self._numbers), None, entity, key, mail.lane, mail.loads, digest)
        self._posted[entity, key] = row, line, number
        add_images(mail.images, made.blobs)
        self._count(place.tree, row, 1)
        return row._replace(is_new=True)

    def take(self, no: int, record: Record, tree: Tree, number: int) -> None:
        """Mark mail `no` as taken by `record`, which gets `number`. Raises Taken."""
        row = self._known.find_mail_row(no)
        if row is None or row.taken is not None or no in self._taken:
            raise Taken(f"mail {no} for entity {tree.root} was taken already: nothing is recorded, read it again")
        if (row.entity_id, row.key) != (tree.root, get_key(record)):
            raise LoomError(
                f"a {type(record).__name__} of entity {record.entity_id} cannot take mail {row.key!r} of entity "
                f"{row.entity_id}: the record that takes mail belongs to its tree and carries its key"
            )
        self._taken[no] = row, number
        self._count(tree, row, -1)

    def end(self, tree: Tree, number: int) -> None:
        """Take all mail of a root that the record with that number ends."""
        if any(self._waiting.get(tree, tree.waiting)):
            self._emptied.append((tree, number))
            self._waiting[tree] = Waiting()

    def _find(self, entity: str, key: str) -> MailRow | None:
        posted = self._posted.get((entity, key))
        return posted[0] if posted is not None else self._known.find_mail(entity, key)

    def _count(self, tree: Tree, row: MailRow, by: int) -> None:
        counts = list(self._waiting.get(tree, tree.waiting))
        counts[row.lane] += by
        counts[2] += by * row.loads
        self._waiting[tree] = Waiting(*counts)


def mark_fault(no: int, entity: str, key: str, record: Record | None, *, lasting: bool) -> str | None:
    """Return the fault of the mark that `record` took a mail, or None.

    The mark is right if the record carries the mail's key, ends the entity, or forgot the record that took the mail.
    The record is None if it cannot be read, or belongs to another tree.
    """
    if record is None:
        return f"mail {no} of entity {entity} was taken by a record that cannot be read"
    if get_key(record) == key:
        return None
    life = compute_life(record, Life.IDLE, lasting=lasting)
    if life is Life.FORGOTTEN or (life is Life.OVER and record.entity_id == entity):
        return None
    return f"mail {no} of entity {entity} was not taken by the record that its row names"
