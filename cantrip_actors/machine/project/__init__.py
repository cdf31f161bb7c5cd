"""Projections: every question that records answer, apart from the state itself (`evolve.py`).

Only this package and `evolve.py` look at the kinds of records (`tools/record_kinds.py` checks it). The files of this
package answer one group of questions each: what one record says to a store, where an entity stands, how its episode
ended, which turns it made, what it talked about, what observers see, and numbers about all of it.
"""

from __future__ import annotations

from cantrip_actors.machine.project.entity import (
    CantripRef,
    Status,
    asked_in,
    cantrip_in,
    children_in,
    episode_in,
    first_intent,
    has_taken,
    header_in_force,
    header_of,
    intents_in,
    is_over,
    last_metadata,
    outcome_of,
    refusal_of,
    state_of,
    status_of,
    turns_quoting,
    usage_of,
)
from cantrip_actors.machine.project.fork import fork_of
from cantrip_actors.machine.project.outcome import is_end_recorded, is_of_life, outcome_at
from cantrip_actors.machine.project.record import (
    NOTED,
    Life,
    as_forgotten,
    as_header,
    committed_turn,
    life_after,
    named_turn,
    needs_lease,
    sender_of,
    time_of,
    turn_number,
)
from cantrip_actors.machine.project.requests import Verdict, decision_in, request_in, waited_in
from cantrip_actors.machine.project.story import Began, Story, StoryEvent, StoryKind
from cantrip_actors.machine.project.turns import Entry, TurnReader, entries_of, rewards_of, turns_of

__all__ = [
    "NOTED",
    "Began",
    "CantripRef",
    "Entry",
    "Life",
    "Status",
    "Story",
    "StoryEvent",
    "StoryKind",
    "TurnReader",
    "Verdict",
    "as_forgotten",
    "as_header",
    "asked_in",
    "cantrip_in",
    "children_in",
    "committed_turn",
    "decision_in",
    "entries_of",
    "episode_in",
    "first_intent",
    "fork_of",
    "has_taken",
    "header_in_force",
    "header_of",
    "intents_in",
    "is_end_recorded",
    "is_of_life",
    "is_over",
    "last_metadata",
    "life_after",
    "named_turn",
    "needs_lease",
    "outcome_at",
    "outcome_of",
    "refusal_of",
    "request_in",
    "rewards_of",
    "sender_of",
    "state_of",
    "status_of",
    "time_of",
    "turn_number",
    "turns_of",
    "turns_quoting",
    "usage_of",
    "waited_in",
]
