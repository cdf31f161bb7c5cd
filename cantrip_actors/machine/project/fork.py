"""The state that a fork begins with (SPEC 6.5)."""

from __future__ import annotations

from collections.abc import Iterable

from cantrip_actors.machine.evolve import close_turn
from cantrip_actors.machine.project.record import as_forgotten, get_committed_turn
from cantrip_actors.machine.project.undone import fold_log
from cantrip_actors.machine.state import Episode, Phase, Sandbox, Shape, State
from cantrip_actors.records.records import Record
from cantrip_actors.terms.messages import NO_USAGE


def make_fork_state(shape: Shape, lineage: Iterable[Record]) -> State:
    """Return the state with which a fork begins: the fold of `lineage`, the records of a path of turns (LOOM-4).

    The call comes from `shape`; the first intent stays first (INTENT-3), later ones keep their positions. An utterance
    without a committed turn is left out.
    """
    records = list(lineage)
    while records and get_committed_turn(records[-1]) is None and as_forgotten(records[-1]) is None:
        records.pop()
    state = fold_log(shape, records)
    close_turn(state)
    state.phase = Phase.NEW
    if state.medium not in (None, shape.medium):  # the fork's sandbox cannot run the programs of another language
        state.sandbox = Sandbox(data=state.sandbox.data)
    state.has_header, state.medium = False, None
    state.inherited = state.sequence
    state.parent_id = shape.parent_turn
    state.episode = Episode(trace=state.episode.trace)
    state.usage, state.spawned, state.gates = NO_USAGE, 0, {}
    state.background = {}  # they are children of the other entity
    state.remembered = {}  # a person decided for the other entity
    return state
