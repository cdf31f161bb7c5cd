"""Dispatches in a few words each: what an orchestrator sees of its children, and people of a folder (F-47).

A summary is a function of the record and kept nowhere, so that it cannot differ from what the log says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cantrip_actors.dispatch.record import Record

__all__ = ["Summary", "overview", "summary_of"]

LONGEST = 200
"""Characters of the newest progress that a summary shows."""


class Summary(NamedTuple):
    """A dispatch in a few words. `waits_for` says what it cannot go on without, empty if nothing."""

    id: str
    title: str
    status: str
    priority: str
    role: str
    attempt: int
    proven: int
    acceptance: int
    waits_for: str
    outcome: str
    newest: str
    at: str


def summary_of(record: Record) -> Summary:
    """The summary of one record."""
    contract = record.contract
    progress = record.progress()
    return Summary(
        record.id,
        contract.title,
        record.status,
        contract.priority,
        contract.role,
        record.attempt,
        len(contract.acceptance) - len(record.unproven),
        len(contract.acceptance),
        _waits_for(record),
        (record.result or record.reason) if record.terminal else "",
        short(progress[-1][1].text) if progress else "",
        record.entries[-1].ts,
    )


def _waits_for(record: Record) -> str:
    if record.status == "blocked":
        return record.blocker
    if record.status == "queued" and record.contract.needs_approval and not record.approved:
        return f"approval: {record.contract.decision_needed}"
    return ""


def short(text: str, longest: int = LONGEST) -> str:
    """`text` on one line, cut where it is longer."""
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def overview(records: Iterable[Record]) -> str:
    """The summaries as lines of text, one a dispatch and one more for what it waits for; empty without any."""
    lines = []
    for record in records:
        one = summary_of(record)
        lines.append(f"- {one.id} [{one.status}] {short(one.title)} ({one.proven}/{one.acceptance} accepted)")
        for name, said in (("waits for", one.waits_for), ("outcome", one.outcome), ("newest", one.newest)):
            if said:
                lines.append(f"  {name}: {short(said)}")
    return "\n".join(lines)
