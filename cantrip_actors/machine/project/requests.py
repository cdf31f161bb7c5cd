"""Requests to people, from the records of the entities that wait: which is open, and how one was decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from cantrip_actors.machine.project.record import get_time
from cantrip_actors.records.records import Committed, Decided, Ended, GateFinished, IntentGiven, Record, Requested


class Verdict(NamedTuple):
    """How a request was decided: "allow", "deny", "answer", "error" or "expired"; by whom, when (ISO 8601), and why."""

    decision: str
    by: str
    at: str
    note: str


def find_open_request(newest: Sequence[Record]) -> Requested | None:
    """Return the open request of an entity that waits for a person, from the newest records of its log."""
    return next((record for record in reversed(newest) if isinstance(record, Requested)), None)


def find_decision(records: Iterable[Record], request_id: str) -> Requested | Verdict | None:
    """Return the decision about a request; the request if it is open; None if there is no such request."""
    request: Requested | None = None
    for record in records:
        if request is None:
            request = record if isinstance(record, Requested) and record.id == request_id else None
        elif isinstance(record, Decided):
            return Verdict(record.decision, record.by, record.at, record.note)
        elif isinstance(record, GateFinished | Ended):  # the episode was ended from outside; Ended: between two calls
            return Verdict("expired", "", get_time(record), "the episode was ended first")
    return request


def read_last_reply(records: Iterable[Record]) -> str | None:
    """Return the id of the last request in the present episode that was replied to, if any."""
    last: str | None = None
    open_request: Requested | None = None
    for record in records:
        match record:
            case IntentGiven():
                last = None
            case Requested():
                open_request = record
            case Decided(decision="answer") if open_request is not None and open_request.is_utterance:
                last = open_request.id
            case _:
                pass
    return last


def as_answer(record: Record) -> Decided | None:
    """Return the record if it is the answer to a request, else None."""
    return record if isinstance(record, Decided) and record.decision == "answer" else None


def find_delivery(records: Iterable[Record], call_id: str) -> str:
    """Return the id of the request for the result of a call; `call_id` itself if there is no such request."""
    requests = (record for record in records if isinstance(record, Requested) and record.deferred)
    return next((request.id for request in requests if call_id in (request.id, request.call_id)), call_id)


def find_last_beginning(records: Sequence[Record]) -> str | None:
    """Return when the last episode of an entity began; None if it has none."""
    return next((record.at for record in reversed(records) if isinstance(record, IntentGiven)), None)


def measure_waited(records: Iterable[Record], now: float, after: float) -> float:
    """Return how many seconds an entity has waited for people, for requests that were made from `after` until `now`;
    both are in seconds since the epoch.
    """
    waited, since = 0.0, None
    for record in records:
        if isinstance(record, Requested):
            at = datetime.fromisoformat(record.at).timestamp()
            since = at if at >= after else None
        elif isinstance(record, (Decided, Committed, Ended)) and since is not None:
            waited, since = waited + datetime.fromisoformat(record.at).timestamp() - since, None
    return waited if since is None else waited + now - since
