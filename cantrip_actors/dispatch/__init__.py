"""Dispatches: long-lived work under a frozen contract, with append-only progress and a guarded status.

A `Contract` states a task, and never changes. Its log (`Dispatches`) takes events, one line each; the rules are checked
before a line is written, and a line is never changed. A `Record` is the fold of a log.
"""

from typing import TYPE_CHECKING

from cantrip_actors.lazy_exports import export_lazily

if TYPE_CHECKING:
    from cantrip_actors.dispatch.contract import Contract as Contract
    from cantrip_actors.dispatch.contract import InvalidContract as InvalidContract
    from cantrip_actors.dispatch.contract import draft as draft
    from cantrip_actors.dispatch.dispatcher import Dispatcher as Dispatcher
    from cantrip_actors.dispatch.errors import DispatchError as DispatchError
    from cantrip_actors.dispatch.errors import DispatchExists as DispatchExists
    from cantrip_actors.dispatch.errors import EventRefused as EventRefused
    from cantrip_actors.dispatch.errors import Refusal as Refusal
    from cantrip_actors.dispatch.errors import TamperedRecord as TamperedRecord
    from cantrip_actors.dispatch.errors import UnknownDispatch as UnknownDispatch
    from cantrip_actors.dispatch.events import Approved as Approved
    from cantrip_actors.dispatch.events import Closed as Closed
    from cantrip_actors.dispatch.events import Decided as Decided
    from cantrip_actors.dispatch.events import Dispatched as Dispatched
    from cantrip_actors.dispatch.events import DoneRefused as DoneRefused
    from cantrip_actors.dispatch.events import Entry as Entry
    from cantrip_actors.dispatch.events import Event as Event
    from cantrip_actors.dispatch.events import Folded as Folded
    from cantrip_actors.dispatch.events import OutputWritten as OutputWritten
    from cantrip_actors.dispatch.events import PhaseApproved as PhaseApproved
    from cantrip_actors.dispatch.events import PhaseFailed as PhaseFailed
    from cantrip_actors.dispatch.events import PhasePassed as PhasePassed
    from cantrip_actors.dispatch.events import Progressed as Progressed
    from cantrip_actors.dispatch.events import Recovered as Recovered
    from cantrip_actors.dispatch.events import ReviewReturned as ReviewReturned
    from cantrip_actors.dispatch.events import StatusChanged as StatusChanged
    from cantrip_actors.dispatch.events import StepAdvanced as StepAdvanced
    from cantrip_actors.dispatch.events import StepReturned as StepReturned
    from cantrip_actors.dispatch.events import StepSkipped as StepSkipped
    from cantrip_actors.dispatch.events import Unblocked as Unblocked
    from cantrip_actors.dispatch.log import Dispatches as Dispatches
    from cantrip_actors.dispatch.orchestrator_gates import disjoint_outputs as disjoint_outputs
    from cantrip_actors.dispatch.parse import from_markdown as from_markdown
    from cantrip_actors.dispatch.parse import from_yaml as from_yaml
    from cantrip_actors.dispatch.parse import load_contract as load_contract
    from cantrip_actors.dispatch.parse_markdown import contract_template as contract_template
    from cantrip_actors.dispatch.record import Record as Record
    from cantrip_actors.dispatch.record import superseding as superseding
    from cantrip_actors.dispatch.status import Capacity as Capacity
    from cantrip_actors.dispatch.status import Status as Status
    from cantrip_actors.dispatch.terms import PlannedStep as PlannedStep
    from cantrip_actors.dispatch.terms import Rule as Rule
    from cantrip_actors.dispatch.terms import Source as Source
    from cantrip_actors.dispatch.terms import Violation as Violation
    from cantrip_actors.dispatch.view import markdown as markdown
else:
    __getattr__, __dir__ = export_lazily(__name__)
