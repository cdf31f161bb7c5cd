"""Where an entity stands in its life, by the few records that say so: what a store has to know to find the unfinished.

    BUSY    an episode is under way, or was when its process died
    IDLE    between two intents; only an entity that lasts ever is
    OVER    it takes nothing any more

A cast entity is over with its first `Ended`. One that lasts lives on after an episode that failed or was interrupted:
such an `Ended` is the episode's own, and every other is the entity's.
"""

from __future__ import annotations

from enum import IntEnum

from cantrip_actors.model.turn import Committed, Ended, IntentGiven, Record

__all__ = ["Life", "life_after"]

EPISODE_ENDS = frozenset({"failed", "interrupted"})
"""How an episode of a lasting entity may end without ending the entity."""


class Life(IntEnum):
    """Where an entity stands. Stores keep the number."""

    BUSY = 0
    IDLE = 1
    OVER = 2


def life_after(record: Record, before: Life, *, lasting: bool) -> Life:
    """Where an entity stands once `record` is there. It begins, with its header, as BUSY."""
    if isinstance(record, IntentGiven):
        return Life.BUSY
    if isinstance(record, Ended):
        return Life.IDLE if lasting and record.reason in EPISODE_ENDS else Life.OVER
    if isinstance(record, Committed) and lasting and (record.terminated or record.truncated):
        return Life.IDLE
    return before
