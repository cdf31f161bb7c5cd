"""The usage of an entity in a period, from its records. An answer counts for the next record that has a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from cantrip_actors.machine.project.record import get_time, sum_usage
from cantrip_actors.records.records import ChildStarted, GateStarted, IntentGiven, Record, Requested
from cantrip_actors.terms.call_limit import CallLimit
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.period import PeriodBudget


def list_records_of_period(records: Sequence[Record], budget: PeriodBudget | CallLimit, now: float) -> Sequence[Record]:
    """Return the records of the present period of a budget or limit; `now` is in seconds since 1970."""
    start = budget.find_start(now)
    for index in range(len(records) - 1, -1, -1):
        record = records[index]
        if budget.per == "intent" and isinstance(record, IntentGiven):
            return records[index:]
        at = get_time(record)
        if at and datetime.fromisoformat(at).timestamp() < start:
            return records[index + 1 :]
    return records


def list_started_gates(records: Iterable[Record]) -> list[str]:
    """Return the gate of each call whose beginning is recorded."""
    return [
        record.gate
        for record in records
        if type(record) is GateStarted or (type(record) is Requested and record.deferred)
    ]


def list_usage_by_time(records: Sequence[Record], last: str) -> Iterator[tuple[float, Usage]]:
    """Yield each usage that the records count, newest first, with its time in seconds since 1970.

    `last` is the time of the last record that has one.
    """
    at = last
    for record in reversed(records):
        at = get_time(record) or at
        usage = sum_usage([record])
        if usage is not NO_USAGE:
            yield datetime.fromisoformat(at).timestamp(), usage


def list_usage_by_intent(
    records: Sequence[Record], sum_usage_under: Callable[[str], Usage]
) -> Iterator[tuple[int, Usage]]:
    """Yield each usage that the records count, and that of each child's subtree, with the number of its intent."""
    number = 0
    for record in records:
        if isinstance(record, IntentGiven):
            number += 1
        usage = sum_usage_under(record.child_id) if isinstance(record, ChildStarted) else sum_usage([record])
        if usage != NO_USAGE:
            yield number, usage
