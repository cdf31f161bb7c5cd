"""Projections: facts that are computed from records, apart from the state itself (`evolve.py`).

Only this package and `evolve.py` distinguish the kinds of records (`tools/record_kinds.py` checks it). Each file
computes one group of facts: about a single record, an entity's status, the outcome of an episode, the turns, the
conversation, the events for observers, and statistics.
"""

from __future__ import annotations

from cantrip_actors.machine.project.entity import (
    CantripRef,
    Status,
    find_cantrip,
    find_episode,
    find_first_intent,
    find_header_in_force,
    find_last_metadata,
    find_outcome,
    find_refusal,
    find_settled_at,
    find_status,
    fold_state,
    get_header,
    has_taken,
    is_over,
    list_children,
    list_intents,
    list_turns_quoting,
    sum_usage,
)
from cantrip_actors.machine.project.fork import make_fork_state
from cantrip_actors.machine.project.outcome import get_outcome, is_end_recorded, is_of_life
from cantrip_actors.machine.project.record import (
    ASIDES,
    NOTED,
    Life,
    as_forgotten,
    as_header,
    compute_life,
    get_committed_turn,
    get_named_turn,
    get_sender,
    get_time,
    get_turn_number,
    is_for_lease_holder,
)
from cantrip_actors.machine.project.requests import Verdict, find_decision, find_open_request, measure_waited
from cantrip_actors.machine.project.story import Began, Story, StoryEvent, StoryKind
from cantrip_actors.machine.project.turns import (
    Entry,
    TurnReader,
    begins_inside,
    collect_rewards,
    list_finished_calls,
    list_started_calls,
    read_entries,
    read_turns,
)

__all__ = [
    "ASIDES",
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
    "begins_inside",
    "collect_rewards",
    "compute_life",
    "find_cantrip",
    "find_decision",
    "find_episode",
    "find_first_intent",
    "find_header_in_force",
    "find_last_metadata",
    "find_open_request",
    "find_outcome",
    "find_refusal",
    "find_settled_at",
    "find_status",
    "fold_state",
    "get_committed_turn",
    "get_header",
    "get_named_turn",
    "get_outcome",
    "get_sender",
    "get_time",
    "get_turn_number",
    "has_taken",
    "is_end_recorded",
    "is_for_lease_holder",
    "is_of_life",
    "is_over",
    "list_children",
    "list_finished_calls",
    "list_intents",
    "list_started_calls",
    "list_turns_quoting",
    "make_fork_state",
    "measure_waited",
    "read_entries",
    "read_turns",
    "sum_usage",
]
