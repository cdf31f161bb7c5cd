"""How long the content of ended entities is kept: durations, rules, and `prune_loom`, which forgets older content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from cantrip_actors.loom.maintenance.forget import Forgotten, Wanted, find_forks, forget_entities
from cantrip_actors.loom.stores.lease import Held
from cantrip_actors.loom.stores.store import Store
from cantrip_actors.machine.project import Life, get_time, is_for_lease_holder
from cantrip_actors.records.instant import format_instant
from cantrip_actors.terms.arguments import check, check_choice, check_kind, is_number, show
from cantrip_actors.terms.errors import LoomError

Duration = str | float | timedelta
"""A duration like "90d", "12h", "30m" or "45s", seconds, or a timedelta."""
EntityKind = Literal["one-shot", "long-lived"]
Retention = Mapping[EntityKind, float | None]
"""For each kind of entity the seconds for which it is kept after its end; None keeps it for good."""

BATCH = 20
"""Entities that are forgotten in one step."""

PRUNE, OLDER = "prune", "it ended longer ago than it is kept"
"""The author and reason in the record of a pruned entity."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*")


@dataclass(frozen=True, slots=True)
class Pruned:
    """The entities that `prune_loom` forgot, or would forget, with all below them, and the counts of their lines."""

    entities: tuple[str, ...]
    records: int = 0
    bytes: int = 0
    blobs: int = 0

    def plus(self, made: Forgotten) -> Pruned:
        """Return the sum of this and another result."""
        return Pruned(
            self.entities + made.entities, self.records + made.records, self.bytes + made.bytes, self.blobs + made.blobs
        )


NONE_PRUNED = Pruned(())


def parse_seconds(duration: Duration) -> float:
    """Return a duration in seconds. Raises ValueError if it is not a duration, or is negative."""
    seconds: object = duration
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str) and (found := _TEXT.fullmatch(duration)):
        seconds = float(found[1]) * _UNITS[found[2]]
    if not is_number(seconds) or seconds < 0:
        expected = 'a duration like "90d", "12h", "30m" or "45s", seconds, or a timedelta, not negative'
        raise ValueError(f"expected {expected}, got {show(duration)}")
    return float(seconds)


def parse_retention(given: Mapping[str, Duration | None] | None) -> Retention:
    """Return the rules in a user's setting. Raises ValueError for an unknown kind of entity or a wrong duration."""
    fits = isinstance(given, Mapping | None)
    check(fits, "retention", 'durations by kind, as in {"one-shot": "90d"}', given)
    rules: dict[Any, float | None] = {}
    for kind, duration in (given or {}).items():
        check_choice("retention: kinds of entities", kind, get_args(EntityKind))
        rules[kind] = None if duration is None else parse_seconds(duration)
    return rules


def find_expired(
    store: Store, retention: Retention, now: float, after: str | None = None, tenant: str | None = None
) -> tuple[list[str], str | None]:
    """Return the expired ones of the next `BATCH` ended root entities; `now` is seconds since 1970.

    With a `tenant` only its entities. Also returns the entity to continue `after`, or None at the end. An entity with a
    fork that has not ended is kept, because the fork's context begins with it.
    """
    found = store.ended_roots(after, BATCH)
    own = [member for member in found if tenant is None or find_tenant(store, member) == tenant]
    return [member for member in own if _is_expired(store, member, retention, now)], found[-1] if found else None


def _is_expired(store: Store, entity: str, retention: Retention, now: float) -> bool:
    header = store.header(entity)
    kept_for = None if header is None else retention.get("long-lived" if header.lasting else "one-shot")
    if kept_for is None or store.is_held(entity):
        return False
    if _ended_at(store, entity) >= format_instant(max(0.0, now - kept_for)):
        return False
    return all((store.life(fork) or Life.BUSY) >= Life.OVER for fork in find_forks(store, list_subtree(store, entity)))


def _ended_at(store: Store, entity: str) -> str:
    """Return when an entity ended; rewards may follow its end."""
    limit = 4
    while True:
        for record in reversed(store.newest(entity, limit)):
            if is_for_lease_holder(record):
                return get_time(record)
        limit *= 4


def prune_loom(
    store: Store, older_than: Duration, *, now: float, dry_run: bool = False, tenant: str | None = None
) -> Pruned:
    """Forget the entities that ended longer ago than a duration; `now` is seconds since 1970.

    With `dry_run` nothing is changed, and with a `tenant` only its entities are forgotten. Entities that another
    process holds are left for another time. Raises ValueError for a wrong duration, LoomError if the loom cannot be
    written.
    """
    check_kind("store", store, Store, "a store, as of open_store(…)", LoomError)
    check_kind("dry_run", dry_run, bool, "True or False")
    rules = keep_for(older_than)
    pruned, after = NONE_PRUNED, None
    while True:
        expired, last = find_expired(store, rules, now, after, tenant)
        if dry_run:
            pruned = pruned.plus(
                Forgotten(tuple(member for entity in expired for member in list_subtree(store, entity)))
            )
        elif expired:
            try:
                pruned = pruned.plus(forget_entities(store, Wanted(expired, PRUNE, OLDER, scrubs=False)))
            except Held:  # another process has just claimed one of them, to prune it, too: the next look leaves it out
                continue
        after = last
        if after is None:
            break
    if pruned.entities and not dry_run:
        store.scrub()
    return pruned


def find_tenant(store: Store, entity: str) -> str | None:
    """Return the tenant of an entity; None for one that is not in the loom."""
    header = store.header(entity)
    return None if header is None else header.tenant


def keep_for(older_than: Duration) -> Retention:
    """Return the rules that keep entities of both kinds for that time. Raises ValueError."""
    return dict.fromkeys(get_args(EntityKind), parse_seconds(older_than))


def list_subtree(store: Store, entity: str) -> list[str]:
    """Return an entity and everything that it spawned."""
    found = [entity]
    for member in found:
        found.extend(store.below(member))
    return found
