"""Dispatches: long-lived work under a frozen contract, with append-only progress and a guarded status.

A `Contract` says what is to be done, and never changes. Its log (`Dispatches`) takes events, one line each; the rules
are asked before a line is written, and a line is never changed. A `Record` is what a log adds up to.
"""

from cantrip_actors.dispatch.contract import Contract, InvalidContract, draft
from cantrip_actors.dispatch.desk import Desk
from cantrip_actors.dispatch.errors import (
    DispatchError,
    DispatchExists,
    EventRefused,
    Refusal,
    TamperedRecord,
    UnknownDispatch,
)
from cantrip_actors.dispatch.events import (
    Approved,
    Closed,
    Decided,
    Dispatched,
    DoneRefused,
    Entry,
    Event,
    Folded,
    OutputWritten,
    PhaseApproved,
    PhaseFailed,
    PhasePassed,
    Progressed,
    Recovered,
    ReviewReturned,
    StatusChanged,
    StepAdvanced,
    StepReturned,
    StepSkipped,
    Unblocked,
)
from cantrip_actors.dispatch.log import Dispatches
from cantrip_actors.dispatch.orders import disjoint_outputs
from cantrip_actors.dispatch.phases import Phases
from cantrip_actors.dispatch.plan import Plan, Step
from cantrip_actors.dispatch.record import Record, apply, folded, refusal, superseding
from cantrip_actors.dispatch.status import STATUSES, TERMINAL, Capacity, Status, legal_next
from cantrip_actors.dispatch.terms import PlannedStep, Rule, Source, Violation

__all__ = [
    "STATUSES",
    "TERMINAL",
    "Approved",
    "Capacity",
    "Closed",
    "Contract",
    "Decided",
    "Desk",
    "DispatchError",
    "DispatchExists",
    "Dispatched",
    "Dispatches",
    "DoneRefused",
    "Entry",
    "Event",
    "EventRefused",
    "Folded",
    "InvalidContract",
    "OutputWritten",
    "PhaseApproved",
    "PhaseFailed",
    "PhasePassed",
    "Phases",
    "Plan",
    "PlannedStep",
    "Progressed",
    "Record",
    "Recovered",
    "Refusal",
    "ReviewReturned",
    "Rule",
    "Source",
    "Status",
    "StatusChanged",
    "Step",
    "StepAdvanced",
    "StepReturned",
    "StepSkipped",
    "TamperedRecord",
    "Unblocked",
    "UnknownDispatch",
    "Violation",
    "apply",
    "disjoint_outputs",
    "draft",
    "folded",
    "legal_next",
    "refusal",
    "superseding",
]
