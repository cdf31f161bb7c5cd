"""Load the state of an entity from its newest checkpoint and the records after it.

Without a usable checkpoint, the whole log is folded: the result is the same.
"""

from __future__ import annotations

from cantrip_actors.loom import EntityFacts, Loom
from cantrip_actors.loom.export.spending import sum_usage_under
from cantrip_actors.loom.reading.view import make_checked
from cantrip_actors.machine.budget import LoadedUsage
from cantrip_actors.machine.checkpoint import (
    decode_checkpoint,
    read_summary,
)
from cantrip_actors.machine.evolve import renew_call
from cantrip_actors.machine.project import (
    find_cantrip,
    find_dependencies,
    fold_log,
    has_undone,
    list_children,
    list_records_of_period,
    list_started_gates,
    make_fork_state,
    sum_usage,
)
from cantrip_actors.machine.state import CantripRef, Plan, State
from cantrip_actors.terms.call_limit import CallLimit
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.period import PeriodBudget


def find_cantrip_in_force(loom: Loom, facts: EntityFacts) -> CantripRef:
    """Return an entity's current cantrip: the one in its header, unless it has adopted another."""
    header, checkpoint = facts.header, facts.checkpoint
    first = CantripRef(header.cantrip_id, header.cantrip_name)
    if checkpoint is None:
        return find_cantrip(facts.records, first)
    summary = read_summary(checkpoint.data)
    if summary is None:
        return find_cantrip(loom.records(header.entity_id), first)
    return find_cantrip(facts.records, summary.adopted)


def find_dependencies_in_force(loom: Loom, facts: EntityFacts) -> str | None:
    """Return the mark of the dependencies that the gates of an entity's last episode had."""
    checkpoint = facts.checkpoint
    if checkpoint is None:
        return find_dependencies(facts.records)
    summary = read_summary(checkpoint.data)
    if summary is None:
        return find_dependencies(loom.records(facts.entity_id))
    return find_dependencies(facts.records, summary.dependencies)


def find_last_time(loom: Loom, entity_id: str) -> str:
    """Return when the last of an entity's records that have a time was made, in ISO 8601."""
    records = loom.records(entity_id)
    times = (getattr(record, "at", None) for record in reversed(records))
    return next(at for at in times if isinstance(at, str))


def load_state(loom: Loom, plan: Plan, now: float) -> tuple[State, LoadedUsage]:
    """Return the state after the last record of an entity's log, and the usage that its log does not count itself."""
    shape, entity_id = plan.shape, plan.entity_id
    facts = loom.facts(entity_id)
    stored = facts.checkpoint
    checkpoint = None if stored is None else decode_checkpoint(stored.data, loom.attach)
    if plan.parent_entity is None or plan.forked:
        loom.check_chain(entity_id, after=-1 if stored is None else stored.position)
    is_usable = checkpoint is not None and checkpoint.is_for(plan) and not has_undone(facts.records)
    if stored is not None and checkpoint is not None and is_usable:
        state, below, records = checkpoint.state, checkpoint.below, facts.records
        renew_call(shape, state)
    else:
        below, records = NO_USAGE, facts.records if stored is None else loom.records(entity_id)
        is_fork = plan.forked and plan.parent_turn is not None
        lineage = make_checked(loom).lineage(plan.parent_turn or "") if is_fork else ()
        state = make_fork_state(shape, lineage) if is_fork else State(shape.parent_turn)
    for child in list_children(records):
        below = below + sum_usage_under(loom, child)
    in_period = {budget: _sum_usage_of_period(loom, entity_id, budget, now) for budget in plan.wards.budgets}
    calls = {limit: _count_calls_of_period(loom, entity_id, limit, now) for limit in plan.wards.calls}
    return fold_log(shape, records, state), LoadedUsage(below, in_period, now, calls)


def _count_calls_of_period(loom: Loom, entity_id: str, limit: CallLimit, now: float) -> int:
    """Return the calls of a gate that an entity and its subtree have begun in the present period of a limit."""
    newest = loom.newest_records(entity_id, lambda records: list_records_of_period(records, limit, now))
    if limit.per != "intent":
        members = [member for member in loom.subtree(entity_id) if member != entity_id]
        below = [
            loom.newest_records(member, lambda records: list_records_of_period(records, limit, now))
            for member in members
        ]
    else:
        members = [member for child in list_children(newest) if loom.has(child) for member in loom.subtree(child)]
        below = [loom.records(member) for member in members]
    return sum(list_started_gates(records).count(limit.gate) for records in (newest, *below))


def _sum_usage_of_period(loom: Loom, entity_id: str, budget: PeriodBudget, now: float) -> Usage:
    """Return the usage of an entity, and of the children that it began, in the present period of a budget."""
    newest = loom.newest_records(entity_id, lambda records: list_records_of_period(records, budget, now))
    total = sum_usage(newest)
    for child in list_children(newest):
        total = total + sum_usage_under(loom, child)
    return total
