"""The usage of an entity and of everything it spawned, by intents, days or months (PROD-3)."""

from __future__ import annotations

from functools import partial

from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.machine.project import list_usage_by_intent, list_usage_by_time
from cantrip_actors.terms.arguments import check_choice
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.period import PERIODS, Period, PeriodUsage, find_zone, name_period


def read_spending(loom: Loom, entity_id: str, per: Period = "day", zone: str = "UTC") -> list[PeriodUsage]:
    """Return the usage of an entity and of everything it spawned in each period with any, oldest first.

    An answer counts for the time of the next record that has one: that of its turn's commit. Raises LoomError.
    """
    check_choice("per", per, PERIODS, LoomError)
    find_zone(zone, LoomError)
    spent: dict[str, Usage] = {}
    if per == "intent":
        for number, usage in list_usage_by_intent(loom.records(entity_id), partial(sum_usage_under, loom)):
            spent[str(number)] = spent.get(str(number), NO_USAGE) + usage
        return [PeriodUsage(number, usage) for number, usage in spent.items()]
    for member in loom.subtree(entity_id):
        for at, usage in list_usage_by_time(loom.records(member), loom.last_time(member)):
            name = name_period(at, per, zone)
            spent[name] = spent.get(name, NO_USAGE) + usage
    return [PeriodUsage(name, spent[name]) for name in sorted(spent)]


def sum_usage_under(loom: Loom, child: str) -> Usage:
    """Return the usage of a child's subtree; zero for a child that has not begun."""
    return loom.subtree_usage(child) if loom.has(child) else NO_USAGE
