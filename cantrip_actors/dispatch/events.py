"""What a dispatch's log is made of: events, each a fact that was written down once, and how a line says one.

An `Event` is what happened; an `Entry` is an event with its place in the log: number, time, who wrote it and in which
capacity, in which turn, under which lease. Which event may come when is `record.py`'s, and where lines are kept
`log.py`'s. Nothing here changes or removes an entry: a correction is a new one that names the old one's number (F-11).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import orjson

from cantrip_actors.dispatch.contract import Contract, draft
from cantrip_actors.dispatch.status import Capacity, Status
from cantrip_actors.loom.record import dumps

__all__ = [
    "KINDS",
    "PROGRESS_KINDS",
    "Approved",
    "Closed",
    "Decided",
    "Dispatched",
    "DoneRefused",
    "Entry",
    "Event",
    "Folded",
    "OutputWritten",
    "PhaseApproved",
    "PhaseFailed",
    "PhasePassed",
    "ProgressKind",
    "Progressed",
    "Recovered",
    "ReviewReturned",
    "StatusChanged",
    "StepAdvanced",
    "StepReturned",
    "StepSkipped",
    "Unblocked",
    "decoded",
    "encoded",
]

ProgressKind: TypeAlias = Literal[
    "milestone", "checkpoint", "step", "discovery", "what_failed", "blocker", "verification"
]
PROGRESS_KINDS: tuple[str, ...] = get_args(ProgressKind)


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The first entry of every log: the contract. With it the dispatch is queued."""

    contract: Contract


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """A step of the status machine. `result` goes with completed, `blocker` with blocked, `reason` with the rest."""

    status: Status
    result: str = ""
    blocker: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A crash or an expired lease sent the dispatch back to queued, one attempt on (F-23). The supervisor says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Progressed:
    """Progress, in words. A `verification` with `item` is evidence for that acceptance item, counted from 1.

    `corrects` is the number of an earlier progress entry that this one replaces; the earlier one stays (F-11).
    """

    progress: ProgressKind
    text: str
    item: int | None = None
    corrects: int | None = None


@dataclass(frozen=True, slots=True)
class OutputWritten:
    """A file that was modified or made, and what it is."""

    path: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision: what was decided, why, what was rejected, and what follows from it. All four are needed."""

    decided: str
    why: str
    rejected: str
    implications: str


@dataclass(frozen=True, slots=True)
class Approved:
    """A human's approval, of what needs it before it starts, or of what is blocked (F-16)."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Unblocked:
    """What removes the blocker."""

    note: str


@dataclass(frozen=True, slots=True)
class Folded:
    """The entity's context was folded: turns `first` to `last` are out of its sight (F-29)."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DoneRefused:
    """`done` was refused, because the exit contract was not met (F-21)."""

    text: str


@dataclass(frozen=True, slots=True)
class StepAdvanced:
    """Step `step` of the plan, the current one, is done, with what actually came out (F-35)."""

    step: int
    output: str


@dataclass(frozen=True, slots=True)
class StepSkipped:
    """The current step is skipped, with the reason (F-35)."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepReturned:
    """Back to an earlier step: a test failed, a review said no. What comes after it is to be done again."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class PhasePassed:
    """The current phase's exit criteria are met by this evidence: pairs of a criterion's name and words (F-38).

    A mapping will do too.
    """

    phase: str
    evidence: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        pairs = self.evidence.items() if isinstance(self.evidence, Mapping) else self.evidence
        object.__setattr__(self, "evidence", tuple((name, words) for name, words in pairs))


@dataclass(frozen=True, slots=True)
class PhaseFailed:
    """The current phase was tried and its criteria are not met: one iteration more (F-36)."""

    phase: str
    unmet: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PhaseApproved:
    """A human approves the phase that waits for it; that advances it (F-36)."""

    phase: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReviewReturned:
    """The review found something: to fix-feedback, and from there to the review again (F-37)."""

    findings: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The record is archived: nothing comes after it. `override` says why, where criteria are unmet (F-39)."""

    override: str = ""


Event: TypeAlias = (
    Dispatched
    | StatusChanged
    | Recovered
    | Progressed
    | OutputWritten
    | Decided
    | Approved
    | Unblocked
    | Folded
    | DoneRefused
    | StepAdvanced
    | StepSkipped
    | StepReturned
    | PhasePassed
    | PhaseFailed
    | PhaseApproved
    | ReviewReturned
    | Closed
)

KINDS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "contract": Dispatched,
        "status": StatusChanged,
        "recovery": Recovered,
        "progress": Progressed,
        "output": OutputWritten,
        "decision": Decided,
        "approval": Approved,
        "unblock": Unblocked,
        "fold": Folded,
        "done_refused": DoneRefused,
        "step_advanced": StepAdvanced,
        "step_skipped": StepSkipped,
        "step_returned": StepReturned,
        "phase_passed": PhasePassed,
        "phase_failed": PhaseFailed,
        "phase_approved": PhaseApproved,
        "review_returned": ReviewReturned,
        "close": Closed,
    }
)
_NAMES = {made: name for name, made in KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An event in its place. `seq` counts from 1, `ts` is RFC 3339 in UTC.

    `author` is who wrote it, `by` in which capacity: what may be written depends on that. `token` is the fencing token
    of the lease under which it was written, None without one; `contract_hash` names the contract that it belongs to.
    """

    seq: int
    ts: str
    by: Capacity
    author: str
    event: Event
    contract_hash: str
    turn_id: str | None = None
    token: int | None = None

    @property
    def kind(self) -> str:
        """The event's name in the log."""
        return _NAMES[type(self.event)]


def encoded(entry: Entry) -> bytes:
    """An entry as one line of JSON, without newline: only what is set. Raises LoomError for what JSON cannot say."""
    said: dict[str, Any] = {
        "seq": entry.seq,
        "ts": entry.ts,
        "kind": entry.kind,
        "by": entry.by,
        "author": entry.author,
    }
    if entry.turn_id is not None:
        said["turn_id"] = entry.turn_id
    if entry.token is not None:
        said["token"] = entry.token
    event = entry.event
    if isinstance(event, Dispatched):
        said["contract"] = event.contract.as_json()
    else:
        for field in fields(event):
            value = getattr(event, field.name)
            if field.default is MISSING or value != field.default:
                said[field.name] = value
    said["contract_hash"] = entry.contract_hash
    return dumps(said)


def decoded(line: bytes) -> Entry:
    """The entry of one line. Raises ValueError for a line that is none; a later version may have kinds of its own."""
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        said = json.loads(line)
    if not isinstance(said, dict) or said.get("kind") not in KINDS:
        raise ValueError("it is no entry of a dispatch that this version knows")
    said.pop("wide", None)
    try:
        made = KINDS[said.pop("kind")]
        placed = {name: said.pop(name) for name in ("seq", "ts", "by", "author", "contract_hash")}
        placed |= {name: said.pop(name) for name in ("turn_id", "token") if name in said}
        return Entry(event=_contract(said) if made is Dispatched else _event(made, said), **placed)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no whole entry of a dispatch: {error}") from error


def _contract(said: dict[str, Any]) -> Dispatched:
    contract = draft(said["contract"])
    if not isinstance(contract, Contract):
        raise ValueError(f"its contract is invalid: {contract[0]}")  # noqa: TRY004  # what is wrong is the line
    return Dispatched(contract)


def _event(made: type[Any], said: dict[str, Any]) -> Event:
    event: Event = made(**{name: tuple(value) if isinstance(value, list) else value for name, value in said.items()})
    return event
