"""What one record says to a store: whether it begins or ends an entity, and which turns it makes or names.

Stores ask this once for each record that they append, so the answers compare classes by identity.
"""

from __future__ import annotations

from enum import IntEnum

from cantrip_actors.machine.evolve import is_entity_end
from cantrip_actors.records.records import (
    Committed,
    Ended,
    Header,
    IntentGiven,
    MailRefused,
    Record,
    Rewarded,
    Steered,
)

__all__ = ["NOTED", "Life", "as_header", "committed_turn", "life_after", "named_turn", "needs_lease"]

NOTED: frozenset[type] = frozenset({Header, Committed, Rewarded, IntentGiven, Ended, Steered, MailRefused})
"""The kinds that a store checks or takes note of; the others it only keeps."""


class Life(IntEnum):
    """Where an entity stands in its life; a store needs it to find the unfinished ones, and keeps the number."""

    BUSY = 0
    """An episode is under way, or was when its process died."""
    IDLE = 1
    """Between two intents; only a long-lived entity ever is."""
    OVER = 2
    """It takes nothing any more."""


def life_after(record: Record, before: Life, *, lasting: bool) -> Life:
    """Return where an entity stands after `record`. It begins, with its header, as BUSY."""
    if type(record) is IntentGiven:
        return Life.BUSY
    if type(record) is Ended:
        return Life.OVER if is_entity_end(record, lasting=lasting) else Life.IDLE
    if lasting and type(record) is Committed and (record.terminated or record.truncated):
        return Life.IDLE
    return before


def as_header(record: Record) -> Header | None:
    """Return the record if an entity begins with it, else None."""
    return record if type(record) is Header else None


def committed_turn(record: Record) -> str | None:
    """Return the turn that the record completes, or None."""
    return record.turn_id if type(record) is Committed else None


def named_turn(record: Record) -> str | None:
    """Return the turn that has to be in the loom before the record (LOOM-2), or None."""
    if type(record) is Committed:
        return record.parent_id
    if type(record) is Header:
        return record.parent_turn
    return record.turn_id if type(record) is Rewarded else None


def needs_lease(record: Record) -> bool:
    """Return whether only the holder of the lease may append the record; a reward may come from anyone (LOOM-3)."""
    return type(record) is not Rewarded
