"""The facts of one record that a store needs: how it changes the standing of an entity, and its turns.

Stores call these functions for each record that they append, so they compare classes by identity, which is fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from cantrip_actors.machine.evolve import is_entity_end
from cantrip_actors.machine.project.outcome import Status, show_status
from cantrip_actors.records.records import (
    Adopted,
    Committed,
    Decided,
    Ended,
    Folded,
    ForgottenRecord,
    Header,
    IntentGiven,
    MailRefused,
    Record,
    Requested,
    Resumed,
    Rewarded,
    Sampled,
    Steered,
    Undone,
    Utterance,
)
from cantrip_actors.terms.messages import NO_USAGE, Usage

COUNTED: Final = frozenset({Utterance, Folded, Sampled, Ended})
"""The kinds of records that count tokens."""

ASIDES: frozenset[type] = frozenset({Rewarded, Adopted, Undone})
"""The kinds of records about turns that are far from them in the log: a store has an index of these records."""

NOTED: frozenset[type] = (
    frozenset({Header, Committed, IntentGiven, Ended, Steered, MailRefused, Requested, Decided, ForgottenRecord})
    | ASIDES
)
"""The kinds of records that a store checks or indexes; it only stores the other kinds."""


class Life(IntEnum):
    """Whether an entity waits, is busy, idle or over. A store saves the number to find unfinished entities."""

    WAITING = -1
    """In its episode the entity waits for a person."""
    BUSY = 0
    """An episode is under way, or a background child of an entity that rests; or was when its process died."""
    IDLE = 1
    """The entity waits for its next intent; only a long-lived entity can be idle."""
    OVER = 2
    """The entity has ended, and takes no more intents."""
    FORGOTTEN = 3
    """The entity has ended, and the content of its records is gone."""


def compute_life(record: Record, before: Life, *, lasting: bool) -> Life:
    """Return where an entity stands after `record`, which is not its header."""
    kind = type(record)
    if kind is IntentGiven or kind is Decided:
        return Life.BUSY
    if kind is ForgottenRecord:
        return Life.FORGOTTEN
    if kind is Ended and is_entity_end(record, lasting=lasting):  # type: ignore[arg-type]  # its type
        return Life.OVER
    if ends_episode(record, lasting=lasting) or kind is Undone:
        return Life.BUSY if record.children else Life.IDLE  # type: ignore[union-attr]  # each of them has it
    return Life.WAITING if kind is Requested else before


def ends_episode(record: Record, *, lasting: bool) -> bool:
    """Return whether a long-lived entity rests after `record`, which is not its header."""
    kind = type(record)
    if kind is Ended:
        return not is_entity_end(record, lasting=lasting)  # type: ignore[arg-type]  # its type
    return lasting and kind is Committed and (record.terminated or record.truncated)  # type: ignore[union-attr]  # its


def _compute_status(record: Record, before: Status) -> Status:
    """Return the status of an entity that is not idle after `record`, as users see it (LOOM-7)."""
    kind = type(record)
    if kind is Committed:
        return "terminated" if record.terminated else "truncated" if record.truncated else "active"  # type: ignore[union-attr]  # its type
    if kind is IntentGiven or kind is Decided:
        return "active"
    if kind is Ended:
        return show_status(record.reason)  # type: ignore[union-attr, arg-type]  # its type
    if kind is ForgottenRecord:
        return "forgotten"
    return "waiting" if kind is Requested else before


class EntityStanding(NamedTuple):
    """How an entity stands after its records so far: what a store writes beside them, to list and find entities."""

    life: Life
    status: Status
    cantrip: str | None
    """The name of its current cantrip."""


def advance(record: Record, before: EntityStanding, *, lasting: bool) -> EntityStanding:
    """Return how an entity stands after a record that is not its header."""
    kind = type(record)
    if kind is Adopted:
        return before._replace(cantrip=record.cantrip_name)  # type: ignore[union-attr]  # its type
    life = compute_life(record, before.life, lasting=lasting)
    is_resting = life is Life.IDLE or type(record) is Undone or ends_episode(record, lasting=lasting)
    status = "idle" if is_resting else _compute_status(record, before.status)
    if life is before.life and status == before.status:
        return before
    return EntityStanding(life, status, None if kind is ForgottenRecord else before.cantrip)


def begin_standing(header: Header) -> EntityStanding:
    """Return how an entity stands after its header."""
    if header.waits:
        return EntityStanding(Life.IDLE, "idle", header.cantrip_name)
    return EntityStanding(Life.BUSY, "active", header.cantrip_name)


def as_header(record: Record) -> Header | None:
    """Return the record if an entity begins with it, else None."""
    return record if type(record) is Header else None


def get_committed_turn(record: Record) -> str | None:
    """Return the turn that the record completes, or None."""
    return record.turn_id if type(record) is Committed else None


def get_turn_number(record: Record) -> int | None:
    """Return the number, among those of its entity, of the turn that the record completes, or None."""
    return record.sequence if type(record) is Committed else None


def get_named_turn(record: Record) -> str | None:
    """Return the turn that has to be in the loom before the record (LOOM-2), or None."""
    if type(record) is Committed:
        return record.parent_id
    if type(record) is Header:
        return record.parent_turn
    return record.turn_id if type(record) is Rewarded else None


def as_forgotten(record: Record) -> ForgottenRecord | None:
    """Return the record if the content of all records before it is gone, else None."""
    return record if type(record) is ForgottenRecord else None


def as_intent(record: Record) -> IntentGiven | None:
    """Return the record if it gives an intent, else None."""
    return record if type(record) is IntentGiven else None


def as_steered(record: Record) -> Steered | None:
    """Return the record if it is a message between two turns, else None."""
    return record if type(record) is Steered else None


def is_for_lease_holder(record: Record) -> bool:
    """Return whether only the holder of the lease may append the record.

    Any process may append a reward (LOOM-3), and withdraw mail: these records change no state.
    """
    kind = type(record)
    return kind is not Rewarded and not (kind is MailRefused and record.is_withdrawn)  # type: ignore[union-attr]  # its type


def get_sender(record: Record) -> str:
    """Return the sender of the mail that a record takes, or who withdrew it, gave a reward or resumed; or ""."""
    if isinstance(record, (Rewarded, Resumed)):
        return record.by
    if isinstance(record, (IntentGiven, Steered, MailRefused, Decided, Ended, Folded, Undone)):
        return record.sender or ""
    return ""


def sum_usage(records: Iterable[Record]) -> Usage:
    """Return the tokens that records count (PROD-3): utterances, summaries, answers for servers, invalid answers."""
    total = NO_USAGE
    for record in records:
        if type(record) in COUNTED:
            total = total + record.usage  # type: ignore[union-attr]  # its type says so
    return total


def get_time(record: Record) -> str:
    """Return when a record was made, ISO 8601 in UTC; "" for a kind that does not say so."""
    return getattr(record, "at", "")
