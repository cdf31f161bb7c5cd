"""The record of a dispatch: the fold of its log. Pure; `rules.py` says which entry may come next, `log.py` writes it.

apply           (record, entry) -> the record with it
make_follow_up  (record)        -> the event that the runtime itself has to write next, or None
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar

from cantrip_actors.dispatch import events as e
from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.events import Entry, Event
from cantrip_actors.dispatch.phases import Phases, apply_to_phases, make_phases
from cantrip_actors.dispatch.plan import Plan, apply_to_plan, make_plan
from cantrip_actors.dispatch.status import TERMINAL, Status
from cantrip_actors.loom import KeyUsed
from cantrip_actors.terms.value import Value

RECENT = 32
"""The number of newest entries that `has` searches for one that was written before a crash."""

E = TypeVar("E")
Decision: TypeAlias = Literal["approve", "unblock", "reject"]


class Record(Value, frozen=True):
    """The state of a dispatch. `entries` is the whole log; everything else follows from it.

    `attempt` counts from 1 and grows with each recovery. `started` is the number of the entry that last made it
    active, 0 before the first. `progress_since_start` counts the worker's entries since it began or was unblocked, and
    `refusals` the refused `done`s; a recovery is no new beginning.
    `token` is the newest fencing token. `evidence` are pairs of an acceptance item, from 1, and its newest evidence.
    """

    contract: Contract
    entries: tuple[Entry, ...]
    status: Status = "queued"
    attempt: int = 1
    started: int = 0
    progress_since_start: int = 0
    refusals: int = 0
    approved: bool = False
    released: bool = False
    closed: bool = False
    blocker: str = ""
    result: str = ""
    reason: str = ""
    token: int | None = None
    plan: Plan | None = None
    phases: Phases | None = None
    evidence: tuple[tuple[int, str], ...] = ()

    @property
    def id(self) -> str:
        """The dispatch's id."""
        return self.contract.dispatch_id

    @property
    def seq(self) -> int:
        """The number of the newest entry."""
        return self.entries[-1].seq

    @property
    def runner(self) -> str:
        """The entity that last made it active; before the first start the author of the contract."""
        return self.entries[max(0, self.started - 1)].author

    @property
    def queued(self) -> Entry:
        """The entry that last queued it, other than a recovery: the contract, or the end of a blocker."""
        return next(
            entry
            for entry in reversed(self.entries)
            if isinstance(entry.event, e.Dispatched)
            or (isinstance(entry.event, e.StatusChanged) and entry.event.status == "queued")
        )

    @property
    def terminal(self) -> bool:
        """Whether it is completed, failed or rejected."""
        return self.status in TERMINAL

    @property
    def next_token(self) -> int:
        """The fencing token of the next start or recovery: it refuses every earlier writer."""
        return (self.token or 0) + 1

    @property
    def waits_for(self) -> str:
        """The blocker or the approval that a person has to see to; empty if the dispatch does not wait for a person."""
        if self.status == "blocked" and not self.released:
            return self.blocker
        if self.status == "queued" and self.contract.needs_approval and not self.approved:
            return f"approval: {self.contract.decision_needed}"
        return ""

    @property
    def unproven(self) -> tuple[int, ...]:
        """The acceptance items, counted from 1, without evidence."""
        proven = dict(self.evidence)
        return tuple(item for item in range(1, len(self.contract.acceptance) + 1) if item not in proven)

    @property
    def open_phases(self) -> tuple[str, ...]:
        """The phases that the contract's depth names and that were not left, in order."""
        if self.phases is None or self.phases.phase is None:
            return ()
        return self.phases.order[len(self.phases.history) :]

    @property
    def unmet(self) -> tuple[str, ...]:
        """The criteria, steps and phases that are not met, in words."""
        unmet = [f"acceptance {item}: {self.contract.acceptance[item - 1]}" for item in self.unproven]
        if self.plan is not None and self.plan.current is not None:
            steps = enumerate(self.plan.steps, 1)
            unmet += [f"step {at}: {step.planned.purpose}" for at, step in steps if step.mark in ("current", "next")]
        unmet += [f"phase {phase}" for phase in self.open_phases]
        return tuple(unmet)

    def of(self, kind: type[E]) -> tuple[tuple[Entry, E], ...]:
        """Return the entries with events of one kind, each with its event; oldest first."""
        return tuple((entry, entry.event) for entry in self.entries if isinstance(entry.event, kind))

    def progress(self, *kinds: str) -> tuple[tuple[Entry, e.Progressed], ...]:
        """Return the progress entries of these kinds, or all; oldest first."""
        return tuple((entry, event) for entry, event in self.of(e.Progressed) if not kinds or event.progress in kinds)

    def has(self, event: Event, turn_id: str | None) -> bool:
        """Return whether a turn has recently written that event."""
        newest = self.entries[: -1 - RECENT : -1]
        return any(entry.turn_id == turn_id and entry.event == event for entry in newest)

    def written_with(self, key: str) -> Record | None:
        """Return the record as the request with this key (see `Entry`) left it; None if none had the key.

        Raises KeyUsed if another request had it.
        """
        name = key.rpartition(" ")[0]
        entries = [entry for entry in self.entries if entry.key and entry.key.rpartition(" ")[0] == name]
        if any(entry.key != key for entry in entries):
            raise KeyUsed(f"key {name!r} was used for dispatch {self.id} with other content: use another key")
        return folded(self.entries[: entries[-1].seq]) if entries else None

    @property
    def corrected(self) -> frozenset[int]:
        """The numbers of the entries that a later one corrects."""
        return frozenset(event.corrects for _, event in self.progress() if event.corrects is not None)


EventsFor: TypeAlias = Callable[[Record], tuple[Event, ...]]
"""A function that returns the events to write, for the record as it is when they are written."""


def apply(record: Record | None, entry: Entry) -> Record:
    """Return the record with `entry`, which `refusal` permits."""
    event = entry.event
    if isinstance(event, e.Dispatched):
        contract = event.contract
        return Record(contract, (entry,), plan=make_plan(contract), phases=make_phases(contract))
    assert record is not None
    changed: dict[str, Any] = {"entries": (*record.entries, entry)}
    if entry.token is not None:
        changed["token"] = entry.token
    match event:
        case e.StatusChanged():
            changed |= _change_status(entry.seq, event, again=isinstance(record.entries[-1].event, e.Recovered))
        case e.Recovered(reason):
            changed |= {"status": "queued", "attempt": record.attempt + 1, "reason": reason}
        case e.Progressed():
            changed["evidence"] = _collect_evidence(record, event)
            changed["progress_since_start"] = record.progress_since_start + (entry.by == "worker")
        case e.Approved():
            changed |= {"approved": True, "released": True}
        case e.Unblocked():
            changed["released"] = True
        case e.DoneRefused():
            changed["refusals"] = record.refusals + 1
        case e.StepAdvanced() | e.StepSkipped() | e.StepReturned():
            changed["plan"] = record.plan and apply_to_plan(record.plan, event)
        case e.PhasePassed() | e.PhaseFailed() | e.PhaseApproved() | e.ReviewReturned():
            changed["phases"] = record.phases and apply_to_phases(record.phases, event)
            changed["released"] = record.released or isinstance(event, e.PhaseApproved)
        case e.Closed():
            changed["closed"] = True
    return replace(record, **changed)


def _change_status(seq: int, event: e.StatusChanged, *, again: bool) -> dict[str, Any]:
    change = {"status": event.status, "reason": event.reason, "result": event.result, "blocker": event.blocker}
    match event.status:
        case "active" if again:  # a crash keeps progress and refusals
            return {**change, "started": seq}
        case "active":
            return {**change, "started": seq, "progress_since_start": 0, "refusals": 0}
        case "blocked":
            return {**change, "released": False}
        case _:
            return change


def _collect_evidence(record: Record, event: e.Progressed) -> tuple[tuple[int, str], ...]:
    """Return the newest evidence of each item, without corrected verifications."""
    if event.item is None and event.corrects is None:
        return record.evidence
    evidence = dict(record.evidence)
    if event.corrects is not None:
        old = record.entries[event.corrects - 1].event
        if isinstance(old, e.Progressed) and old.item is not None and evidence.get(old.item) == old.text:
            del evidence[old.item]
    if event.item is not None:
        evidence[event.item] = event.text
    return tuple(sorted(evidence.items()))


def make_decision(decision: Decision, text: str = "") -> EventsFor:
    """Return what someone writes to approve, unblock or reject a dispatch, with a note or the reason.

    An approval is for the start, a phase that waits, or a blocked dispatch. A blocked one is queued again.
    """

    def make_events(record: Record) -> tuple[Event, ...]:
        phases = record.phases
        decided: Event = e.Unblocked(text)
        if decision == "reject":
            return (e.StatusChanged("rejected", reason=text),)
        if decision == "approve":
            waits = phases.phase if phases is not None and phases.waiting else None
            decided = e.Approved(text) if waits is None else e.PhaseApproved(waits, text)
        return (decided, e.StatusChanged("queued", reason=text)) if record.status == "blocked" else (decided,)

    return make_events


def make_follow_up(record: Record) -> Event | None:
    """Return the event that the runtime adds in the same append: a waiting phase blocks the dispatch."""
    if record.status == "active" and record.phases is not None and record.phases.waiting:
        return e.StatusChanged("blocked", blocker=record.phases.blocker)
    return None


def folded(entries: Iterable[Entry]) -> Record:
    """Return the record of a whole log, which has at least one entry, without checking the entries again."""
    record: Record | None = None
    for entry in entries:
        record = apply(record, entry)
    assert record is not None, "a log begins with its contract"
    return record


def superseding(record: Record, dispatch_id: str, dispatched_at: str, **changed: Any) -> Contract:
    """Return a contract that supersedes a record's: its terms, with `changed`, and the lessons so far.

    Discoveries and failures become `lessons`, unless they were corrected. Raises InvalidContract.
    """
    corrected = record.corrected
    learned = tuple(
        f"{event.progress.replace('_', ' ')}: {event.text}"
        for entry, event in record.progress("discovery", "what_failed")
        if entry.seq not in corrected
    )
    terms: dict[str, Any] = {name: getattr(record.contract, name) for name in record.contract.__dataclass_fields__}
    terms |= {"entity_id": "", "cantrip_id": "", "spawned_by": "", "supersedes": record.id}
    terms |= {"dispatch_id": dispatch_id, "dispatched_at": dispatched_at}
    if record.contract.intent == record.contract.objective:
        terms["intent"] = ""  # it was left out, and a new objective is the new intent
    terms["lessons"] = tuple(dict.fromkeys((*record.contract.lessons, *learned)))
    return Contract(**(terms | changed))
