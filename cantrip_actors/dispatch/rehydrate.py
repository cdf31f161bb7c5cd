"""The text for the entity of a dispatch after a fold or a crash, made from its record and nothing else.

Every role reads its contract, its steps with the current one in full, its phase, all discoveries and failures, however
old, and its newest progress. An orchestrator also reads a summary of each child that is not at its end. Without
a dispatch there is no text.

Newest progress is cut, in number and in length; the log has all of it, for `read_dispatch`. The text is the circle's
state, not a part of the call (CALL-1), and the same record always makes the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cantrip_actors.dispatch import events as e
from cantrip_actors.dispatch.phases import CRITERIA
from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.summary import overview, shorten

NEWEST = 8
"""The most progress entries that are shown."""

LONGEST = 600
"""The most characters of each entry that are shown."""


def rehydration(record: Record, children: Iterable[Record] = (), *, newest: int = NEWEST) -> str:
    """Return the text for the entity of `record`.

    `children` are the records that an orchestrator dispatched, `newest` is the maximum of progress entries.
    """
    parts = [
        _render_head(record),
        *_render_contract(record),
        *_render_steps(record),
        *_render_learned(record),
        *_render_progress(record, newest),
    ]
    if record.contract.role == "orchestrator":
        running = [child for child in children if not child.terminal]
        parts.append(f"Your dispatches under way:\n{overview(running) or 'none'}")
    parts.append(_render_next(record))
    return "\n\n".join(parts)


def _render_head(record: Record) -> str:
    attempt = f", attempt {record.attempt}" if record.attempt > 1 else ""
    why = f" ({shorten(record.reason)})" if record.attempt > 1 and record.reason else ""
    return f"[dispatch {record.id}: {record.status}{attempt}{why}; contract {record.entries[0].contract_hash[:12]}]"


def _render_contract(record: Record) -> Iterator[str]:
    contract, proven = record.contract, dict(record.evidence)
    yield f"Contract, frozen: {_indent(contract.title)}\nObjective: {_indent(contract.objective)}"
    criteria = (
        f"{item}. {_indent(text)}"
        + (f" [evidence: {shorten(proven[item])}]" if item in proven else " [no evidence yet]")
        for item, text in enumerate(contract.acceptance, 1)
    )
    yield "Acceptance criteria:\n" + "\n".join(criteria)
    yield _render_list("Scope", contract.scope)
    yield f"Background: {_indent(contract.background)}"
    yield _render_list("Sources", (f"{source.path}: {source.description}" for source in contract.sources))
    yield f"Technical context: {_indent(contract.technical_context)}"
    yield "Tasks:\n" + "\n".join(f"{at}. {_indent(task)}" for at, task in enumerate(contract.tasks, 1))
    yield f"Verification: {_indent(contract.verification)}"
    if contract.outputs:
        yield _render_list("Outputs", contract.outputs)


def _render_steps(record: Record) -> Iterator[str]:
    plan, phases = record.plan, record.phases
    if plan is not None:
        steps = (
            f"{at}. [{step.mark.upper()}] {_indent(step.planned.purpose)}" for at, step in enumerate(plan.steps, 1)
        )
        yield f"Steps, round {plan.round} of {plan.rounds}:\n" + "\n".join(steps)
        if plan.current is not None:
            step = plan.steps[plan.current - 1].planned
            facts = {name: getattr(step, name) for name in ("inputs", "actions", "expected", "verification")}
            lines = [f"  {name}: {_indent(fact)}" for name, fact in facts.items() if fact]
            yield "\n".join([f"CURRENT step {plan.current}: {_indent(step.purpose)}", *lines])
    if phases is not None and phases.phase is not None:
        waits = f"; {phases.blocker}" if phases.waiting else ""
        criteria = ", ".join(f"{criterion.name} ({criterion.what})" for criterion in CRITERIA[phases.phase])
        yield (
            f"Phase: {phases.phase}, attempt {phases.iteration} of {phases.max_iterations}{waits}\n"
            f"  it ends with evidence of {criteria}"
        )


def _render_learned(record: Record) -> Iterator[str]:
    """Yield all lessons in full, because a forgotten failure is tried again."""
    if record.contract.lessons:
        yield _render_list("Learned before this dispatch", record.contract.lessons)
    corrected = record.corrected
    for title, kind in (("Discoveries", "discovery"), ("What failed", "what_failed")):
        texts = [event.text for entry, event in record.progress(kind) if entry.seq not in corrected]
        if texts:
            yield _render_list(title, texts)


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
        lines = (f"{entry.ts} {event.progress}: {shorten(event.text, LONGEST)}" for entry, event in cut)
        yield _render_list(f"Newest progress{older}", lines)
    files = dict.fromkeys(event.path for _, event in record.of(e.OutputWritten))
    if files:
        yield _render_list("Files modified", files)


def _render_next(record: Record) -> str:
    if record.status == "blocked":
        return f"It is blocked: {record.blocker}"
    if record.terminal:
        return f"It is {record.status}: {shorten(record.result or record.reason)}"
    refused = f" `done` was refused {record.refusals} times since the start." if record.refusals else ""
    return f"Go on with what is not done yet; nobody has to confirm that you read this.{refused}"


def _render_list(title: str, items: Iterable[str]) -> str:
    return f"{title}:\n" + "\n".join(f"- {_indent(item)}" for item in items)


def _indent(text: str) -> str:
    """Return a text with its later lines indented, so that none of them can pass for a line of the record."""
    return "\n  ".join(text.splitlines())
