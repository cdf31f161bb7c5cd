"""Contracts and logs that the tests of dispatches begin with."""

from typing import Any

from cantrip_actors.dispatch import Capacity, Contract, Dispatched, Entry, Event, Record, StatusChanged, draft
from cantrip_actors.dispatch.record import apply, make_follow_up
from cantrip_actors.dispatch.rules import refusal

AT = "2026-02-26T09:00:00.000Z"


def terms(**changed: Any) -> dict[str, Any]:
    """The fields of a valid contract, as people write them; None takes one out."""
    fields: dict[str, Any] = {
        "title": "Mend the search",
        "project": "notes",
        "repo": "/srv/notes",
        "priority": "high",
        "dispatched_at": "2026-02-26",
        "needs_approval": "no",
        "objective": "The search finds notes by their tags.",
        "acceptance": ["a tag finds its notes", "an unknown tag finds none"],
        "scope": ["the user interface"],
        "background": "Tags were added in May, and the index never learned of them.",
        "sources": [{"path": "/srv/notes/search.py", "description": "where the index is built"}],
        "technical_context": "Python 3.11, no new dependency.",
        "tasks": ["index the tags", "test it"],
        "verification": "pytest tests/test_search.py is green",
    }
    return {name: value for name, value in (fields | changed).items() if value is not None}


def contract(**changed: Any) -> Contract:
    """A valid contract."""
    made = draft(terms(**changed))
    assert isinstance(made, Contract), made
    return made


def entry(
    record: Record | None, event: Event, by: Capacity = "worker", token: int | None = 1, author: str = "somebody"
) -> Entry:
    """The entry that `event` would be next."""
    made_for = event.contract if isinstance(event, Dispatched) else record.contract
    return Entry(
        seq=1 if record is None else record.seq + 1,
        ts=AT,
        by=by,
        author=author,
        event=event,
        contract_hash=made_for.hash,
        token=token,
    )


def queued(**changed: Any) -> Record:
    """A record of which nothing is written but the contract."""
    return apply(None, entry(None, Dispatched(contract(**changed)), "orchestrator"))


def then(record: Record, *events: Event, by: Capacity = "worker", token: int | None = 1) -> Record:
    """The record after events that have to be legal, and after what follows from them."""
    token = token if by in ("worker", "supervisor") else None  # people carry none
    for event in events:
        placed = entry(record, event, by, token)
        refused = refusal(record, placed)
        assert refused is None, refused
        record = apply(record, placed)
        while (due := make_follow_up(record)) is not None:
            record = apply(record, entry(record, due, "supervisor", record.token))
    return record


def active(**changed: Any) -> Record:
    """A record whose worker has begun."""
    return then(queued(**changed), StatusChanged("active"))


def refused(record: Record, event: Event, by: Capacity = "worker", token: int | None = 1) -> str:
    """Why an event is refused; it has to be."""
    found = refusal(record, entry(record, event, by, token))
    assert found is not None, "it was not refused"
    return found.text
