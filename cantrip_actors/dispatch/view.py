"""A record as a Markdown page, made from the log and never parsed. The same record makes the same page.

It follows the layout of dispatch files. Texts are quoted (`> `), indented or in one line, so that no text can
pass for a heading or for another author's entry. `rehydrate.py` makes the text for an entity, of the same sections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields

from cantrip_actors.dispatch import events as e
from cantrip_actors.dispatch.events import Entry, Event
from cantrip_actors.dispatch.phases import CRITERIA
from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.summary import shorten
from cantrip_actors.dispatch.terms import ROWS, find_field
from cantrip_actors.records.door import name_decider


def markdown(record: Record) -> str:
    """Return the whole record as one Markdown page."""
    head = f"<!-- Made from {record.id}.jsonl. Editing this page has no effect. -->"
    return "\n".join(
        [
            head,
            "",
            *_render_metadata(record),
            "",
            *render_contract(record),
            *render_state(record),
            *_render_decisions(record),
            *_render_entries(record),
            "",
        ]
    )


def render_title(record: Record) -> str:
    """Return the title as a heading."""
    return f"# Dispatch: {_join_lines(record.contract.title)}"


def _render_metadata(record: Record) -> Iterator[str]:
    yield from (render_title(record), "", "## Metadata", "", "| Field | Value |", "| --- | --- |")
    for name, value in _list_metadata(record):
        if value:
            yield f"| {name} | {_escape_cell(value)} |"


def render_contract(record: Record) -> Iterator[str]:
    """Yield the sections of the contract, with the evidence for its criteria and the modified files."""
    contract, proven = record.contract, dict(record.evidence)
    yield from ("## Objective", "", *_quote(contract.objective), "", "### Acceptance Criteria", "")
    for item, text in enumerate(contract.acceptance, 1):
        yield f"{item}. [{'x' if item in proven else ' '}] {_join_lines(text)}"
        if item in proven:
            yield from _quote(f"evidence: {shorten(proven[item])}", "   ")
    yield from ("", "### Scope Boundaries", "", *_list(contract.scope))
    yield from ("", "## Background", "", *_quote(contract.background))
    yield from ("", "## Related Files", "", "### Source Files", "")
    yield from (f"- `{_join_lines(source.path)}` — {_join_lines(source.description)}" for source in contract.sources)
    yield from ("", "### Files Modified", "")
    for _, event in record.of(e.OutputWritten):
        yield f"- `{_join_lines(event.path)}` — {_join_lines(event.description) or 'modified'}"
    yield from ("", "## Technical Context", "", *_quote(contract.technical_context), "", "## Tasks", "")
    yield from (f"{at}. {_join_lines(task)}" for at, task in enumerate(contract.tasks, 1))
    yield from ("", "## Verification Gate", "", *_quote(contract.verification))
    for title, texts in (("Outputs", contract.outputs), ("Lessons", contract.lessons)):
        if texts:
            yield from ("", f"## {title}", "", *_list(texts))
    yield ""


def _list_metadata(record: Record) -> Iterator[tuple[str, str]]:
    contract = record.contract
    defaults = {field.name: field.default for field in fields(contract)}
    special = {
        "status": record.status,
        "needs_approval": "yes" if contract.needs_approval else "no",
        "role": contract.role,
        "intent": "" if contract.intent == contract.objective else contract.intent,
        "wards": ", ".join(name if value is True else f"{name}: {value}" for name, value in contract.wards),
        "budget": "" if contract.budget is None else f"${contract.budget!r}",
    }
    for title in ROWS:
        name = find_field(title)
        value = special[name] if name in special else getattr(contract, name)
        yield title, "" if value == defaults.get(name) and name not in special else _render_value(value)
    yield "Attempt", str(record.attempt)
    yield "Result", record.result
    yield "Blocker", record.blocker
    yield "Reason", record.reason
    yield "Closed", "yes" if record.closed else ""
    yield "Contract Hash", record.entries[0].contract_hash


def _render_value(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def render_state(record: Record) -> Iterator[str]:
    """Yield the steps, the phases, and all discoveries and failures that no later entry corrects."""
    yield from _render_steps(record)
    yield from _render_phases(record)
    corrected = record.corrected
    for title, kind in (("Discoveries", "discovery"), ("What Failed", "what_failed")):
        texts = [event.text for entry, event in record.progress(kind) if entry.seq not in corrected]
        if texts:
            yield from (f"## {title}", "", *_list(texts), "")


def _render_steps(record: Record) -> Iterator[str]:
    if record.plan is not None:
        yield from (f"## Steps (round {record.plan.round} of {record.plan.rounds})", "")
        for at, step in enumerate(record.plan.steps, 1):
            yield f"{at}. [{step.mark.upper()}] {_join_lines(step.planned.purpose)}"
            if step.mark == "current":
                for name in ("inputs", "actions", "expected", "verification"):
                    if text := getattr(step.planned, name):
                        yield from _quote(f"{name}: {text}", "   ")
            yield from _quote(step.outcome, "   ")
        yield ""


def _render_phases(record: Record) -> Iterator[str]:
    phases = record.phases
    if phases is not None:
        yield from ("## Phases", "")
        left = {passed.phase: passed for passed in phases.history}
        for phase in phases.order:
            mark = "x" if phase in left else " "
            yield f"- [{mark}] {phase}{', approved' if phase in left and left[phase].approved else ''}"
        if phases.phase is not None:
            waits = f"; {phases.blocker}" if phases.waiting else ""
            criteria = ", ".join(f"{criterion.name} ({criterion.what})" for criterion in CRITERIA[phases.phase])
            yield from ("", f"Now: {phases.phase}, attempt {phases.iteration} of {phases.max_iterations}{waits}")
            yield f"It ends with evidence of {criteria}"
        yield ""


def _render_decisions(record: Record) -> Iterator[str]:
    """Yield the decisions, newest first, as decision logs are kept."""
    if decisions := record.of(e.Decided):
        yield from ("## Decisions", "")
        for entry, decision in reversed(decisions):
            yield from (f"### {entry.ts} — {_join_lines(entry.author)}", "")
            for name in ("decided", "why", "rejected", "implications"):
                yield from (*_quote(f"{name.capitalize()}: {getattr(decision, name)}"), ">")
            yield ""


def _render_entries(record: Record) -> Iterator[str]:
    """Yield each entry: a heading with number, time and kind, its author, and its words in quotes."""
    yield from ("## Progress", "")
    corrected = record.corrected
    for entry in record.entries:
        yield f"### {entry.seq}. {entry.ts} — {name_kind(entry.event)}{_mark_corrected(entry, corrected)}"
        turn = f", turn {entry.turn_id}" if entry.turn_id else ""
        yield from ("", f"{entry.by} {_join_lines(_name_author(entry))}{turn}")
        if words := "\n".join(render_words(entry.event)):
            yield from ("", *_quote(words))
        yield ""


def _name_author(entry: Entry) -> str:
    return name_decider(entry.author, entry.door) if entry.by == "human" else entry.author


def name_kind(event: Event) -> str:
    """Return the name of an event for people."""
    match event:
        case e.StatusChanged(status):
            return status
        case e.Progressed(kind, _, item, corrects):
            of = f", acceptance {item}" if item else ""
            return f"{kind.replace('_', ' ')}{of}{f', corrects {corrects}' if corrects else ''}"
        case _:
            tag = str(event.__struct_config__.tag)
            return _NAMES.get(tag) or tag.replace("_", " ")


_NAMES = {
    "contract": "dispatched",
    "output": "file modified",
    "approval": "approved",
    "unblock": "unblocked",
    "step_advanced": "step done",
    "step_returned": "back to a step",
    "phase_failed": "phase not passed",
    "review_returned": "review found something",
    "close": "closed",
}
"""The names of kinds of events that people know by another one."""


def _mark_corrected(entry: Entry, corrected: Collection[int]) -> str:
    return " (corrected later)" if entry.seq in corrected else ""


def render_words(event: Event) -> Iterator[str]:
    """Yield the words of an event of any kind."""
    if isinstance(event, e.Dispatched):
        return
    for name in event.__dataclass_fields__:
        value = getattr(event, name)
        if name in ("progress", "item", "corrects", "status") or not value:
            continue
        if isinstance(value, tuple):
            pairs = (item if isinstance(item, str) else f"{item[0]}: {item[1]}" for item in value)
            yield from (f"{name}: {pair}" for pair in pairs)
        else:
            yield value if name in ("text", "note") and isinstance(value, str) else f"{name}: {value}"


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _escape_cell(text: str) -> str:
    return _join_lines(text).replace("|", "\\|")


def _list(texts: Iterable[str]) -> Iterator[str]:
    """Yield an item for each text; its later lines are indented, so that no line can pass for a heading."""
    return ("\n  ".join(f"- {text}".splitlines()) for text in texts)


def _quote(text: str, indent: str = "") -> Iterable[str]:
    return (f"{indent}> {line}".rstrip() for line in text.splitlines())
