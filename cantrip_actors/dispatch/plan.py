"""The plan of a loop: steps that are done one after the other.

    next      not its turn yet
    current   the one step that may be worked on; there is exactly one, until all are done or skipped
    done      with its actual output, which may not be empty
    skipped   with the reason

A step is advanced or skipped only while it is the current one, and then the next becomes current. A return (a test
failed, a review rejected) makes an earlier step current; it and all later steps must be done again. Each return begins
a round, and there are at most `max_iterations` of them. A plan is a value, made of a contract and the events of its
log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from cantrip_actors.dispatch.contract import Contract
from cantrip_actors.dispatch.errors import Refusal
from cantrip_actors.dispatch.events import StepAdvanced, StepReturned, StepSkipped
from cantrip_actors.dispatch.terms import PlannedStep, is_placeholder

PlanEvent: TypeAlias = StepAdvanced | StepSkipped | StepReturned


@dataclass(frozen=True, slots=True)
class Step:
    """The state of a step. `outcome` is its actual output, or why it was skipped."""

    planned: PlannedStep
    mark: Literal["next", "current", "done", "skipped"] = "next"
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps, and their round. `current` is the number of the current step, from 1; None at the end."""

    steps: tuple[Step, ...]
    current: int | None
    rounds: int
    round: int = 1


def make_plan(contract: Contract) -> Plan | None:
    """Return the first plan of a contract: its steps, or the tasks of a loop, or None."""
    steps = contract.steps
    if not steps and contract.role == "loop":
        steps = tuple(map(PlannedStep, contract.tasks))
    if not steps:
        return None
    marked = tuple(Step(step, "next" if at else "current") for at, step in enumerate(steps))
    return Plan(marked, 1, contract.max_iterations)


def refuse_step(plan: Plan | None, event: PlanEvent) -> Refusal | None:
    """Return why the plan cannot take `event`, or None."""
    if plan is None:
        return Refusal("this dispatch has no plan: only a loop has steps to advance", "step")
    number = event.step
    if isinstance(event, StepReturned):
        last = plan.current or len(plan.steps) + 1
        if not 1 <= number < last:
            return Refusal(f"step {number} is not an earlier step: one before {last} can be returned to", "step")
        if plan.round >= plan.rounds:
            return Refusal(f"all {plan.rounds} rounds are used up: set the status to blocked, and stop", "rounds")
        return _require(event.reason, "say why it has to be done again (reason)")
    if plan.current is None:
        return Refusal("every step is done or skipped", "step")
    if number != plan.current:
        return Refusal(f"step {number} is not the current one: only step {plan.current} may be worked on", "step")
    if isinstance(event, StepSkipped):
        return _require(event.reason, "say why it is skipped (reason)")
    return _require(event.output, "say what actually came out (output)")


def _require(text: str, ask: str) -> Refusal | None:
    return Refusal(f"{ask}; got {text!r}", "step") if is_placeholder(text) else None


def apply_to_plan(plan: Plan, event: PlanEvent) -> Plan:
    """Return the plan after an event that `refuse_step` permits."""
    steps = list(plan.steps)
    at = event.step - 1
    if isinstance(event, StepReturned):
        steps[at:] = [Step(step.planned) for step in steps[at:]]
        steps[at] = replace(steps[at], mark="current")
        return replace(plan, steps=tuple(steps), current=event.step, round=plan.round + 1)
    if isinstance(event, StepSkipped):
        steps[at] = replace(steps[at], mark="skipped", outcome=event.reason)
    else:
        steps[at] = replace(steps[at], mark="done", outcome=event.output)
    following = event.step + 1 if event.step < len(steps) else None
    if following:
        steps[at + 1] = replace(steps[at + 1], mark="current")
    return replace(plan, steps=tuple(steps), current=following)
