"""The log of an entity whose intents were undone: the fold leaves out what came after them, and counts what it cost.

An undo is a fork in place. The log keeps the old branch; the state is the fold of the records before the undone intent,
then of those after the undo. Moves to another cantrip stay in force. Turns keep their numbers, so new turns get higher
ones, and budgets include what the old branch has used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

from cantrip_actors.machine.evolve import add_grant, evolve
from cantrip_actors.machine.project.record import sum_usage
from cantrip_actors.machine.state import Phase, Shape, State
from cantrip_actors.records.records import (
    Adopted,
    ChildStarted,
    Committed,
    Decided,
    GateFinished,
    Header,
    IntentGiven,
    Record,
    Requested,
    Steered,
    Undone,
)


class UndoneBranch:
    """The records of an intent that was undone, in their place in the log."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records

    def apply(self, state: State) -> None:
        """Count the usage of the branch, and what people have granted beyond the budgets of days and months, for which
        it counts; nothing else of it stays in the state. Answers that came in during the branch do not come in again.
        """
        state.sequence += sum(type(record) is Committed for record in self.records)
        state.spawned += sum(type(record) is ChildStarted for record in self.records)
        state.usage = state.usage + sum_usage(self.records)
        state.undone += 1
        for record in self.records:
            for child in list_answered(record):
                state.background.pop(child, None)
        requests = {record.tool_call_id: record for record in self.records if _is_about_period(record)}
        for record in self.records:
            if isinstance(record, Decided) and record.tool_call_id in requests:
                add_grant(state, requests[record.tool_call_id], record)


def _is_about_period(record: Record) -> TypeGuard[Requested]:
    """Return whether a record asks a person for more of the budget of a day or a month, and not of an intent."""
    if not isinstance(record, Requested) or record.question is None or record.round:
        return False
    return "-" in (record.args or {}).get("period", "")  # that of an intent is its number


def list_answered(record: Record) -> tuple[str, ...]:
    """Return the background children whose answers come in with a record."""
    if isinstance(record, Steered):
        return () if record.child is None else (record.child,)
    return record.children if isinstance(record, GateFinished) else ()


def has_undone(records: Iterable[Record]) -> bool:
    """Return whether some of these records undo an intent, so that they cannot be folded onto an earlier state."""
    return any(type(record) is Undone for record in records)


def split_branches(records: Iterable[Record]) -> list[Record | UndoneBranch]:
    """Return the records that are in force, and in between the branches that were undone."""
    parts: list[Record | UndoneBranch] = []
    for record in records:
        if type(record) is not Undone:
            parts.append(record)
            continue
        begin = _find_last_intent(parts)
        undone, parts = parts[begin:], parts[:begin]
        parts += [part for part in undone if isinstance(part, (Adopted, UndoneBranch))]
        parts.append(UndoneBranch([part for part in undone if not isinstance(part, UndoneBranch)]))
    return parts


def _find_last_intent(parts: Sequence[Record | UndoneBranch]) -> int:
    """Return the index of the last intent of the entity itself: a fork cannot undo what it has inherited."""
    for at in range(len(parts) - 1, -1, -1):
        if isinstance(parts[at], IntentGiven):
            return at
        if isinstance(parts[at], Header):
            return at + 1
    return 0


def drop_undone(records: Iterable[Record]) -> list[Record]:
    """Return the records that are in force."""
    return [part for part in split_branches(records) if not isinstance(part, UndoneBranch)]


def cut_intents(records: Sequence[Record], count: int) -> Sequence[Record]:
    """Return the records from the `count` newest intents in force on; all of them if there are fewer intents."""
    positions: list[int] = []
    for at, record in enumerate(records):
        if isinstance(record, IntentGiven):
            positions.append(at)
        elif isinstance(record, Undone) and positions:
            positions.pop()
    return records if len(positions) < count else records[positions[-count] :]


def fold_log(shape: Shape, records: Iterable[Record], state: State | None = None) -> State:
    """Return the state after a whole log, or after a lineage; `state` is the state before the first record."""
    state = State(shape.parent_turn) if state is None else state
    for part in split_branches(records):
        apply_part(shape, state, part)
    return state


def apply_part(shape: Shape, state: State, part: Record | UndoneBranch) -> None:
    """Apply a record that is in force, or a branch that was undone, to a state."""
    if not isinstance(part, UndoneBranch):
        evolve(shape, state, part)
        return
    part.apply(state)
    if state.phase is Phase.NEW:
        state.phase = Phase.IDLE  # the first intent was undone: as if it had been made without one
