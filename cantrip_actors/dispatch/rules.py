"""Which entry may come next in the log of a dispatch, and why others may not. Pure; checked before each write.

- The contract is the first entry, and no other entry is one.
- A worker writes only while the dispatch is active, and under its lease: once a token was seen, an entry without one,
  or with a lower one, comes from a late writer. Orchestrators and humans need no lease, but an ended one
  is refused from them too.
- Only humans approve. Only the supervisor, which is the runtime, recovers, fails and notes a refused `done`.
- A terminal dispatch takes only `Closed`, a closed one takes nothing.
- A phase that waits for a human blocks the dispatch at once.

The exit contract, `make_exit`, refuses `done` for the same reasons for which the status cannot be completed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cantrip_actors.dispatch import events as e
from cantrip_actors.dispatch.errors import Refusal
from cantrip_actors.dispatch.events import PROGRESS_KINDS, Entry
from cantrip_actors.dispatch.phases import refuse_phase
from cantrip_actors.dispatch.plan import refuse_step
from cantrip_actors.dispatch.record import Record
from cantrip_actors.dispatch.status import (
    ABOVE,
    ANYBODY,
    HUMAN,
    INSIDE,
    RUNTIME,
    STATUSES,
    TABLE,
    TERMINAL,
    Capacity,
    Status,
    legal_next,
)
from cantrip_actors.dispatch.terms import is_placeholder

REFUSALS = 2
"""How often `done` is refused before it is accepted as blocked."""

UNMET = "exit contract unmet"


class Permission(NamedTuple):
    """The capacities that may write an event, whether only while the dispatch is active, and the non-blank fields."""

    by: frozenset[Capacity]
    while_active: bool = False
    never_blank: tuple[str, ...] = ()


MAY_WRITE: Mapping[type[Any], Permission] = {
    e.Dispatched: Permission(ABOVE),
    e.StatusChanged: Permission(ANYBODY),  # the status machine is stricter
    e.Recovered: Permission(RUNTIME),
    e.Progressed: Permission(ANYBODY, never_blank=("text",)),
    e.OutputWritten: Permission(INSIDE, while_active=True, never_blank=("path",)),
    e.Decided: Permission(ANYBODY, never_blank=("decided", "why", "rejected", "implications")),
    e.Approved: Permission(HUMAN),
    e.Unblocked: Permission(ABOVE, never_blank=("note",)),
    e.Folded: Permission(INSIDE, while_active=True),
    e.DoneRefused: Permission(RUNTIME, while_active=True, never_blank=("text",)),
    e.StepAdvanced: Permission(INSIDE, while_active=True),
    e.StepSkipped: Permission(ANYBODY),
    e.StepReturned: Permission(ANYBODY),
    e.PhasePassed: Permission(INSIDE, while_active=True),
    e.PhaseFailed: Permission(INSIDE, while_active=True),
    e.PhaseApproved: Permission(HUMAN),
    e.ReviewReturned: Permission(INSIDE, while_active=True),
    e.Closed: Permission(ABOVE | RUNTIME),
}


def refusal(record: Record | None, entry: Entry) -> Refusal | None:
    """Return why `entry` may not come next in `record` (None: an empty log), or None if it may."""
    event = entry.event
    if record is None or isinstance(event, e.Dispatched):
        return _refuse_beginning(record, entry)
    if record.closed:
        return Refusal(f"{record.id} is closed: it takes no entries any more", "closing")
    if record.terminal and not isinstance(event, e.Closed):
        return Refusal(f"{record.id} is {record.status}, which is the end: it takes no entries any more", "transition")
    permission = MAY_WRITE[type(event)]
    if (wrong := _refuse_author(entry, permission)) is not None:
        return wrong
    by_worker = entry.by == "worker" and not isinstance(event, e.StatusChanged)
    if record.status != "active" and (by_worker or permission.while_active):
        return Refusal(f"{record.id} is {record.status}: this ({entry.kind}) is for while it is active", "active")
    if (late := _refuse_fenced(record, entry)) is not None:
        return late
    for name in permission.never_blank:
        if not getattr(event, name).strip():
            return Refusal(f"{name} is empty: it has to say something", "progress")
    return _refuse_unfit(record, entry)


def _refuse_beginning(record: Record | None, entry: Entry) -> Refusal | None:
    if record is not None:
        return Refusal(
            "a contract is written once, as the first entry: dispatch a new one that supersedes it", "frozen"
        )
    if not isinstance(entry.event, e.Dispatched):
        return Refusal("a log begins with its contract", "frozen")
    return _refuse_author(entry, MAY_WRITE[e.Dispatched])


def _refuse_author(entry: Entry, permission: Permission) -> Refusal | None:
    if entry.by not in permission.by:
        may = " or ".join(sorted(permission.by))
        return Refusal(f"only {may} may write this ({entry.kind}), not {entry.by}", "author")
    if entry.by == "human" and not entry.author.strip():
        return Refusal("author is empty: expected the name of the person who writes this", "author")
    return None


def _refuse_fenced(record: Record, entry: Entry) -> Refusal | None:
    if record.token is None:
        return None
    if entry.token is None:
        if entry.by not in INSIDE:
            return None
        return Refusal(f"{record.id} runs under lease {record.token}: only its holder may write", "lease")
    if entry.token < record.token:
        text = f"lease {entry.token} is over, {record.token} has come since: stop running {record.id} here"
        return Refusal(text, "lease")
    return None


def _refuse_unfit(record: Record, entry: Entry) -> Refusal | None:  # noqa: PLR0911  # one row an event
    event = entry.event
    match event:
        case e.StatusChanged():
            return refuse_status(record, entry, event)
        case e.Recovered():
            if record.status != "active":
                return Refusal(f"{record.id} is {record.status}: only what is active can be recovered", "recovery")
            return refuse_status(record, entry, event)
        case e.Progressed():
            return _refuse_progress(record, event)
        case e.Approved():
            return _refuse_approval(record)
        case e.Unblocked():
            return _refuse_unblocking(record)
        case e.StepAdvanced() | e.StepSkipped() | e.StepReturned():
            return refuse_step(record.plan, event)
        case e.PhasePassed() | e.PhaseFailed() | e.PhaseApproved() | e.ReviewReturned():
            return refuse_phase(record.phases, event)
        case e.Closed(override):
            return _refuse_closing(record, override)
        case _:
            return None


def refuse_status(record: Record, entry: Entry, event: e.StatusChanged | e.Recovered) -> Refusal | None:
    """Return why the status may not change in this way, or None. A recovery queues an active dispatch."""
    before, by = record.status, entry.by
    to: Status = "queued" if isinstance(event, e.Recovered) else event.status
    legal = legal_next(before)
    if to not in STATUSES:
        return Refusal(f'"{to}" is not a status; {_list_legal(before, legal)}', "status", legal)
    who = TABLE.get((before, to))
    if who is None:
        return Refusal(f"{before} cannot become {to}; {_list_legal(before, legal)}", "transition", legal)
    if by not in who:
        own = legal_next(before, by)
        text = f"only {' or '.join(sorted(who))} may make {before} {to}, not {by}; {_list_legal(before, own)} for {by}"
        return Refusal(text, "transition", own)
    unmet = next((need for need in _list_needs(record, entry, event) if not need.is_met), None)
    return None if unmet is None else Refusal(f"{before} cannot become {to} yet: {unmet.text}", unmet.rule, legal)


def _list_legal(before: Status, legal: tuple[Status, ...]) -> str:
    if legal:
        return f"from {before} it may become {', '.join(legal)}"
    return f"{before} is the end" if before in TERMINAL else f"from {before} it may become nothing"


class Need(NamedTuple):
    """A requirement of a legal change of status: whether it is met, what to do if not, and its rule."""

    is_met: bool
    text: str
    rule: str


def _list_needs(record: Record, entry: Entry, event: e.StatusChanged | e.Recovered) -> tuple[Need, ...]:
    if isinstance(event, e.Recovered):
        return (Need(bool(event.reason.strip()), "say what happened (reason)", "recovery"),)
    progress, *proofs = _list_proofs(record)
    reason = Need(bool(event.reason.strip()), f"say why it is {event.status} (reason)", "transition")
    is_approved = record.approved or not record.contract.needs_approval
    by_status: Mapping[Status, tuple[Need, ...]] = {
        "active": (
            Need(is_approved, "its contract needs approval, and it has no approval", "approval"),
            Need(entry.token is not None, "it takes the lease of its entity; claim it first", "active"),
        ),
        "blocked": (
            Need(not is_placeholder(event.blocker), "say what blocks it (blocker)", "evidence"),
            progress._replace(is_met=progress.is_met or entry.by != "worker"),
        ),
        "completed": (
            Need(not is_placeholder(event.result), "say what came out (result)", "evidence"),
            progress,
            *proofs,
        ),
        "queued": (
            Need(record.status == "blocked", "a crash or an expired lease is written as a recovery", "recovery"),
            Need(record.released, "approve or unblock it first", "transition"),
        ),
        "failed": (reason,),
        "rejected": (reason,),
    }
    return by_status[event.status]


def _list_proofs(record: Record) -> list[Need]:
    """Return what a dispatch needs besides its result to be completed: progress, evidence, and no open phase."""
    unproven = ", ".join(f"{item} ({record.contract.acceptance[item - 1]})" for item in record.unproven)
    evidence = f"write a verification as evidence for each acceptance item; unproven: {unproven}"
    phases = f"pass its phases first, with evidence (phase_passed); open: {', '.join(record.open_phases)}"
    return [
        Need(record.progress_since_start > 0, "write progress first; there is none since it became active", "evidence"),
        Need(not unproven, evidence, "evidence"),
        Need(not record.open_phases, phases, "phase"),
    ]


def make_exit(record: Record, cap: int = REFUSALS) -> e.DoneRefused | e.StatusChanged | None:
    """Return the entry that a `done` writes: a refusal, after `cap` of them since the start a blocker; None if it ends.

    It ends the entity of a dispatch that is over or blocked. A restart or a fold gives no new refusals, so that the
    loop always ends (LOOP-2).
    """
    if record.terminal or record.status == "blocked":
        return None
    if record.refusals >= cap:
        return e.StatusChanged("blocked", blocker=UNMET)
    missing = [need.text for need in _list_proofs(record) if not need.is_met]
    left = cap - record.refusals - 1
    then = f"{left} more of these and it" if left else "Next time it"
    return e.DoneRefused(
        f"done is refused, {UNMET}: {'; '.join([*missing, 'set the status to completed, with the result'])}. "
        f"Or set the status to blocked, and say by what. {then} ends as blocked"
    )


def _refuse_progress(record: Record, event: e.Progressed) -> Refusal | None:
    if event.progress not in PROGRESS_KINDS:
        return Refusal(f"unknown kind of progress: {event.progress!r}; known: {', '.join(PROGRESS_KINDS)}", "progress")
    if event.item is not None:
        count = len(record.contract.acceptance)
        if event.progress != "verification":
            return Refusal("only a verification is evidence for an acceptance item", "evidence")
        if not 1 <= event.item <= count:
            return Refusal(f"there is no acceptance item {event.item}: they are 1 to {count}", "evidence")
    if event.progress == "verification" and is_placeholder(event.text):
        return Refusal(f"{event.text!r} is not evidence: say what was run, and what came out", "placeholder")
    if event.corrects is not None and not any(entry.seq == event.corrects for entry, _ in record.progress()):
        return Refusal(f"entry {event.corrects} is not a progress entry that can be corrected", "correction")
    return None


def _refuse_approval(record: Record) -> Refusal | None:
    if record.phases is not None and record.phases.waiting:
        return Refusal(f"{record.phases.blocker}: approve the phase", "rounds")
    if record.status == "blocked":
        return None
    if not record.contract.needs_approval:
        return Refusal(f"{record.id} needs no approval", "approval")
    if record.approved:
        return Refusal(f"{record.id} is approved already", "approval")
    if record.status != "queued":
        return Refusal(f"{record.id} is {record.status}: it waits for no approval", "approval")
    return None


def _refuse_unblocking(record: Record) -> Refusal | None:
    if record.status != "blocked":
        return Refusal(f"{record.id} is {record.status}: nothing blocks it", "transition")
    if record.phases is not None and record.phases.waiting:
        return Refusal(f"{record.phases.blocker}: a human approves or rejects it", "rounds")
    return None


def _refuse_closing(record: Record, override: str) -> Refusal | None:
    if not record.terminal:
        return Refusal(f"{record.id} is {record.status}: only what has ended can be closed", "closing")
    if record.unmet and is_placeholder(override):
        return Refusal(f"unmet: {'; '.join(record.unmet)}. Closing it anyway needs a reason (override)", "closing")
    return None
