"""Dispatches: long-lived work under a frozen contract, with append-only progress and a guarded status.

A `Contract` states a task, and never changes. Its log (`Dispatches`) takes events, one line each; the rules are checked
before a line is written, and a line is never changed. A `Record` is the fold of a log.
"""

from cantrip_actors.dispatch.checkpoints import Checkpoint
from cantrip_actors.dispatch.contract import Contract, InvalidContract, draft
from cantrip_actors.dispatch.dispatcher import Dispatcher
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
from cantrip_actors.dispatch.exit_contract import Accept, AcceptAsBlocked, Exit, Refuse, exit_of
from cantrip_actors.dispatch.log import Dispatches
from cantrip_actors.dispatch.mistakes import Mistake, UnreadableContract, status_of
from cantrip_actors.dispatch.orchestrator_gates import disjoint_outputs
from cantrip_actors.dispatch.overlap import Overlap, overlaps, startable
from cantrip_actors.dispatch.parse import from_markdown, from_yaml, load_contract
from cantrip_actors.dispatch.phases import Phases
from cantrip_actors.dispatch.plan import Plan, Step
from cantrip_actors.dispatch.record import Record, apply, folded, superseding
from cantrip_actors.dispatch.rehydrate import rehydration
from cantrip_actors.dispatch.rules import refusal
from cantrip_actors.dispatch.status import STATUSES, TERMINAL, Capacity, Status, legal_next
from cantrip_actors.dispatch.summary import Summary, overview, summary_of
from cantrip_actors.dispatch.template import contract_template
from cantrip_actors.dispatch.terms import PlannedStep, Rule, Source, Violation
from cantrip_actors.dispatch.view import markdown

__all__ = [
    "STATUSES",
    "TERMINAL",
    "Accept",
    "AcceptAsBlocked",
    "Approved",
    "Capacity",
    "Checkpoint",
    "Closed",
    "Contract",
    "Decided",
    "DispatchError",
    "DispatchExists",
    "Dispatched",
    "Dispatcher",
    "Dispatches",
    "DoneRefused",
    "Entry",
    "Event",
    "EventRefused",
    "Exit",
    "Folded",
    "InvalidContract",
    "Mistake",
    "OutputWritten",
    "Overlap",
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
    "Refuse",
    "ReviewReturned",
    "Rule",
    "Source",
    "Status",
    "StatusChanged",
    "Step",
    "StepAdvanced",
    "StepReturned",
    "StepSkipped",
    "Summary",
    "TamperedRecord",
    "Unblocked",
    "UnknownDispatch",
    "UnreadableContract",
    "Violation",
    "apply",
    "contract_template",
    "disjoint_outputs",
    "draft",
    "exit_of",
    "folded",
    "from_markdown",
    "from_yaml",
    "legal_next",
    "load_contract",
    "markdown",
    "overlaps",
    "overview",
    "refusal",
    "rehydration",
    "startable",
    "status_of",
    "summary_of",
    "superseding",
]
