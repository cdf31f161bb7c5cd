"""How an entity stands: what lists and pages show of it, all read at one moment."""

from __future__ import annotations

from typing import NamedTuple

from cantrip_actors.loom.reading.view import Loom, State, fold_entity
from cantrip_actors.machine.project import get_outcome, get_status
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.outcome import Outcome


class EntityOverview(NamedTuple):
    """The state of an entity, its own turns, gates, errors of gates and usage, and how its last episode ended."""

    state: State
    turns: int
    gates: tuple[str, ...]
    errors: int
    usage: Usage
    subtree_usage: Usage
    outcome: Outcome | None


def read_overview(loom: Loom, entity_id: str, *, below: bool = True) -> EntityOverview:
    """Return how an entity stands; without `below` its outcome and `subtree_usage` leave out its children."""
    header, state = loom.header(entity_id), fold_entity(loom, entity_id)
    used_below = loom.usage_below(entity_id) if below else NO_USAGE
    return EntityOverview(
        "forgotten" if loom.is_forgotten(entity_id) else get_status(state, lasting=header.lasting),
        state.sequence - state.inherited,
        tuple(sorted(state.gates)),
        sum(state.gates.values()),
        state.usage,
        state.usage + used_below,
        get_outcome(state, used_below),
    )
