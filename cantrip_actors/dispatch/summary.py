"""Dispatches in a few words each, for orchestrators and people.

A summary is a function of the record and not stored, so that it cannot differ from the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from cantrip_actors.dispatch.events import encode_entry
from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.status import Status

LONGEST = 200
"""Characters of the newest progress that a summary shows."""


class DispatchSummary(BaseModel, frozen=True):
    """A dispatch in a few words; `proven` of its `acceptance` criteria have evidence.

    `waits_for` says what it waits for, empty if it does not wait.
    """

    id: str
    title: str
    status: Status
    priority: str
    role: str
    attempt: int
    proven: int
    acceptance: int
    waits_for: str
    outcome: str
    newest: str
    at: str


class DispatchJson(DispatchSummary, frozen=True):
    """A dispatch with its contract and every entry of its log, oldest first."""

    contract: dict[str, Any]
    contract_hash: str
    unmet: list[str]
    closed: bool
    entries: list[dict[str, Any]]


def summary_of(record: Record) -> DispatchSummary:
    """Return the summary of one record."""
    contract = record.contract
    progress = record.progress()
    return DispatchSummary(
        id=record.id,
        title=contract.title,
        status=record.status,
        priority=contract.priority,
        role=contract.role,
        attempt=record.attempt,
        proven=len(contract.acceptance) - len(record.unproven),
        acceptance=len(contract.acceptance),
        waits_for=record.waits_for,
        outcome=(record.result or record.reason) if record.terminal else "",
        newest=shorten(progress[-1][1].text) if progress else "",
        at=record.entries[-1].ts,
    )


def json_of(record: Record) -> DispatchJson:
    """Return a whole record for JSON: its summary, its contract, and every entry."""
    return DispatchJson(
        **dict(summary_of(record)),
        contract=record.contract.as_json(),
        contract_hash=record.contract.hash,
        unmet=list(record.unmet),
        closed=record.closed,
        entries=build_entries_fields(record),
    )


def build_entries_fields(record: Record) -> list[dict[str, Any]]:
    """Return the entries of a record as JSON data, oldest first."""
    return [json.loads(encode_entry(entry)) for entry in record.entries]


def shorten(text: str, longest: int = LONGEST) -> str:
    """Return `text` on one line of at most `longest` characters."""
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def overview(records: Iterable[Record]) -> str:
    """Return the summaries as text: a line for each dispatch, and one for what it waits for."""
    lines = []
    for record in records:
        summary = summary_of(record)
        accepted = f"{summary.proven}/{summary.acceptance} accepted"
        lines.append(f"- {summary.id} [{summary.status}] {shorten(summary.title)} ({accepted})")
        for name, text in (("waits for", summary.waits_for), ("outcome", summary.outcome), ("newest", summary.newest)):
            if text:
                lines.append(f"  {name}: {shorten(text)}")
    return "\n".join(lines)
