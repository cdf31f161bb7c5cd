"""The text for the entity of a dispatch after a fold or a crash, made from its record and nothing else.

Every role reads its contract, its steps with the current one in full, its phase, all discoveries and failures, however
old, and its newest progress, in the sections of the record's page (`view.py`). An orchestrator also reads a summary of
each child that is not at its end. Without a dispatch there is no text.

Newest progress is cut, in number and in length; the log has all of it, for `read_dispatch`. The text is the circle's
state, not a part of the call (CALL-1), and the same record always makes the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.summary import overview, shorten
from cantrip_actors.dispatch.view import render_contract, render_state, render_title

NEWEST = 8
"""The most progress entries that are shown."""

LONGEST = 600
"""The most characters of each entry that are shown."""


def rehydration(record: Record, children: Iterable[Record] = (), *, newest: int = NEWEST) -> str:
    """Return the text for the entity of `record`.

    `children` are the records that an orchestrator dispatched, `newest` is the maximum of progress entries.
    """
    lines = [_render_head(record), "", render_title(record), "", *render_contract(record), *render_state(record)]
    lines += _render_progress(record, newest)
    if record.contract.role == "orchestrator":
        running = [child for child in children if not child.terminal]
        lines += ["## Your dispatches under way", "", overview(running) or "none", ""]
    return "\n".join([*lines, _render_next(record)])


def _render_head(record: Record) -> str:
    attempt = f", attempt {record.attempt}" if record.attempt > 1 else ""
    why = f" ({shorten(record.reason)})" if record.attempt > 1 and record.reason else ""
    return f"[dispatch {record.id}: {record.status}{attempt}{why}; contract {record.entries[0].contract_hash[:12]}]"


def _render_progress(record: Record, newest: int) -> Iterator[str]:
    corrected = record.corrected
    shown = [
        (entry, event)
        for entry, event in record.progress()
        if event.progress not in ("discovery", "what_failed") and entry.seq not in corrected
    ]
    cut = shown[max(0, len(shown) - newest) :]
    if cut:
        older = f" ({len(shown) - len(cut)} older ones in the record)" if len(cut) < len(shown) else ""
        yield from (f"## Newest progress{older}", "")
        yield from (f"- {entry.ts} {event.progress}: {shorten(event.text, LONGEST)}" for entry, event in cut)
        yield ""


def _render_next(record: Record) -> str:
    if record.status == "blocked":
        return f"It is blocked: {record.blocker}"
    if record.terminal:
        return f"It is {record.status}: {shorten(record.result or record.reason)}"
    refused = f" `done` was refused {record.refusals} times since the start." if record.refusals else ""
    return f"Go on with what is not done yet; nobody has to confirm that you read this.{refused}"
