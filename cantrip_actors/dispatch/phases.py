"""The phase loop: phases with exit criteria, counted attempts, and approvals by humans.

    minimal    debug, tests, plan, implement, code-review, verify
    standard   and then uat, docs
    full       likewise, with architecture between plan and implement

    in a phase        what happens                        then
    ----------------  ----------------------------------  -----------------------------------------------------------
    any               its criteria are met by evidence    the next phase; architecture and verify wait for a human
    any               they are not                        one attempt more; past the cap it is stalled, and waits
    code-review       it found something                  fix-feedback; at the cap of reviews it waits for a human
    fix-feedback      its criteria are met                code-review again, never further
    any that waits    a human approves                    the next phase. It never waits for the same twice

Each phase enters the history once, when it is left for good. A phase that waits takes only the approval. A dispatch is
not completed while a phase is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.errors import Refusal
from cantrip_actors.dispatch.events import PhaseApproved, PhaseFailed, PhasePassed, ReviewReturned
from cantrip_actors.dispatch.terms import Depth, is_placeholder

PhaseEvent: TypeAlias = PhasePassed | PhaseFailed | PhaseApproved | ReviewReturned

REVIEW, FIXING = "code-review", "fix-feedback"
MINIMAL = ("debug", "tests", "plan", "implement", REVIEW, "verify")
STANDARD = (*MINIMAL, "uat", "docs")
FULL = (*STANDARD[:3], "architecture", *STANDARD[3:])
ORDERS: Mapping[Depth, tuple[str, ...]] = {"minimal": MINIMAL, "standard": STANDARD, "full": FULL}
CHECKPOINTS = frozenset({"architecture", "verify"})
"""The phases that a human has to approve before the next begins."""


class Criterion(NamedTuple):
    """A criterion for leaving a phase: evidence of at least this many characters."""

    name: str
    what: str
    at_least: int = 1


_TESTS = Criterion("tests", "the tests as they stand in their file", 50)
CRITERIA: Mapping[str, tuple[Criterion, ...]] = {
    "debug": (Criterion("root_cause", "the root cause"),),
    "tests": (_TESTS,),
    "plan": (Criterion("plan", "the plan"),),
    "architecture": (Criterion("architecture", "the design, and what it touches"),),
    "implement": (Criterion("changes", "what was changed"), _TESTS),
    REVIEW: (Criterion("review", "what the review looked at, and its verdict"),),
    FIXING: (Criterion("fixes", "what was done about each finding"),),
    "verify": (Criterion("verification", "what was run, and its real output"),),
    "uat": (Criterion("acceptance", "what a user tried, and saw"),),
    "docs": (Criterion("docs", "which pages say it now"),),
}
"""The exit criteria of each phase. No phase passes by itself."""


class Left(NamedTuple):
    """A completed phase: the number of attempts, and whether a human approved it."""

    phase: str
    attempts: int
    approved: bool


@dataclass(frozen=True, slots=True)
class Phases:
    """The state of the loop. `phase` is None at the end; `waiting` says why it waits for a human, if it does."""

    order: tuple[str, ...]
    phase: str | None
    max_iterations: int
    review_cap: int
    iteration: int = 1
    reviews: int = 0
    waiting: Literal["", "approval", "stalled", "review cap"] = ""
    history: tuple[Left, ...] = ()

    @property
    def blocker(self) -> str:
        """The blocker of the dispatch, empty if it is not blocked."""
        match self.waiting:
            case "approval":
                return f"phase {self.phase} is done and waits for a human's approval"
            case "stalled":
                return f"phase {self.phase} is stalled: {self.max_iterations} attempts did not meet its criteria"
            case "review cap":
                return f"{self.reviews} reviews found something: a human has to look at it"
            case _:
                return ""


def make_phases(contract: Contract) -> Phases | None:
    """Return the first state of a contract's loop, None for a contract without a depth."""
    if contract.depth is None:
        return None
    order = ORDERS[contract.depth]
    return Phases(order, order[0], contract.max_iterations, contract.review_cap)


def find_unmet_criteria(phase: str, evidence: Mapping[str, str]) -> tuple[str, ...]:
    """Return the criteria of `phase` that `evidence` does not meet. A placeholder meets none."""
    unmet = []
    for name, what, at_least in CRITERIA[phase]:
        words = evidence.get(name, "")
        if is_placeholder(words):
            unmet.append(f"{name} ({what}) is missing")
        elif len(words.strip()) < at_least:
            unmet.append(f"{name} ({what}) needs at least {at_least} characters, got {len(words.strip())}")
    return tuple(unmet)


def refuse_phase(phases: Phases | None, event: PhaseEvent) -> Refusal | None:
    """Return why the loop cannot take `event`, or None."""
    if phases is None:
        return Refusal("this dispatch has no phases: its contract names no depth", "phase")
    name = REVIEW if isinstance(event, ReviewReturned) else event.phase
    if name not in CRITERIA:
        return Refusal(f"unknown phase {name!r}; this loop has {', '.join(phases.order)}", "phase")
    if name != phases.phase:
        return Refusal(f"{name} is not the current phase: {phases.phase or 'every phase is done'}", "phase")
    if isinstance(event, PhaseApproved):
        return None if phases.waiting else Refusal(f"phase {name} does not wait for an approval", "rounds")
    if phases.waiting:
        return Refusal(f"{phases.blocker}; nothing but that approval is taken", "rounds")
    missing = _name_missing(name, event)
    return Refusal(missing, "placeholder") if missing else None


def _name_missing(phase: str, event: PhasePassed | PhaseFailed | ReviewReturned) -> str:
    match event:
        case ReviewReturned(findings):
            return "say what the review found (findings)" if is_placeholder(findings) else ""
        case PhaseFailed(_, unmet):
            nothing = not unmet or any(map(is_placeholder, unmet))
            return "say which criteria are unmet (unmet)" if nothing else ""
        case PhasePassed(_, evidence):
            lacking = find_unmet_criteria(phase, dict(evidence))
            return f"phase {phase} cannot be left yet: {'; '.join(lacking)}" if lacking else ""


def apply_to_phases(phases: Phases, event: PhaseEvent) -> Phases:
    """Return the loop after an event that `refuse_phase` permits."""
    match event:
        case PhaseFailed():
            stalled = phases.iteration >= phases.max_iterations
            return replace(phases, iteration=phases.iteration + 1, waiting="stalled" if stalled else "")
        case ReviewReturned():
            reviews = phases.reviews + 1
            if reviews >= phases.review_cap:
                return replace(phases, reviews=reviews, waiting="review cap")
            return replace(phases, reviews=reviews, phase=FIXING, iteration=1)
        case PhasePassed() if phases.phase == FIXING:
            return replace(phases, phase=REVIEW, iteration=1)
        case PhasePassed() if phases.phase in CHECKPOINTS:
            return replace(phases, waiting="approval")
        case _:
            return _advance(phases, approved=isinstance(event, PhaseApproved))


def _advance(phases: Phases, *, approved: bool) -> Phases:
    """Return the loop in the next phase; after fix-feedback that is the phase after the approved review."""
    assert phases.phase is not None
    here = REVIEW if phases.phase == FIXING else phases.phase
    at = phases.order.index(here) + 1
    following = phases.order[at] if at < len(phases.order) else None
    left = Left(here, phases.iteration, approved)
    return replace(phases, phase=following, iteration=1, waiting="", history=(*phases.history, left))
