"""The query that a turn answers: the records before it, and the turns that a fold had taken out of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cantrip_actors.machine.project.undone import drop_undone
from cantrip_actors.machine.state import State
from cantrip_actors.records.records import Committed, Record, Utterance


def list_records_before_query(records: Sequence[Record], turn_id: str) -> list[Record] | None:
    """Return the records of an entity before the answer that a turn has, or continues; None if it has none."""
    turns = (record for record in records if isinstance(record, Committed))
    committed = next((turn for turn in turns if turn.turn_id == turn_id), None)
    if committed is None:
        return None
    for at, record in enumerate(records):
        if isinstance(record, Utterance) and record.turn_id == committed.utterance_id:
            return list(records[:at])
    return None


def list_folded_turns(state: State, records: Iterable[Record]) -> tuple[str, ...]:
    """Return the ids of the turns that folds took out of the context of a state; `records` led to it."""
    conversation = state.conversation
    if not conversation.folded:
        return ()
    first_shown = min((number for _, number in conversation.starts), default=state.sequence + 1)
    turns = (record for record in drop_undone(records) if isinstance(record, Committed))
    return tuple(turn.turn_id for turn in turns if turn.sequence < first_shown)
