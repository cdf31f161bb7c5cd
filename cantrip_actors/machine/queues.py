"""The account of a queue: its bounds, and the entities that have a place in it. Without clocks and tables.

An entity takes its place before it begins, under the id that it will have, and keeps it until it is over: while it
works, sleeps, waits for a person or is stranded, and whichever node runs it. A place belongs to an entity and not to a
node, so a node that dies frees none, and the node that takes the entity over needs none.

A process can die between taking a place and beginning the entity. So each place says which process took it and when. If
its entity has not begun, it is free again once that process is known to be gone, or after `RESERVED` seconds without a
lease on the entity.

The bounds are part of the account, so all processes use the same bounds: those of the runtime that was opened last.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Final, NamedTuple

from cantrip_actors.terms.queue import Queue

PREFIX: Final = "\x1fqueue\x1f"
"""The beginning of the names of these accounts; no other account has it."""

RESERVED: Final = 30.0
"""Seconds for which a place is kept for an entity that has not begun and that no process holds."""


class Place(NamedTuple):
    """A place in a queue: which process took it, and when, by the clock of the account."""

    owner: str
    since: float


class Account(NamedTuple):
    """A queue as all processes of a loom see it. `places` are by the ids of entities."""

    queue: Queue
    places: Mapping[str, Place] = MappingProxyType({})

    def count_room(self, here: int) -> float:
        """Return how many more entities a process may begin that runs `here` of them; infinity without a bound."""
        bounds = ((self.queue.max_running, len(self.places)), (self.queue.per_node, here))
        return min((max(0, most - used) for most, used in bounds if most is not None), default=float("inf"))


def decode_account(text: str) -> Account:
    """Return an account from its text."""
    facts = json.loads(text)
    places = {entity: Place(*place) for entity, place in facts.pop("places").items()}
    return Account(Queue(**facts), places)


def declare(queue: Queue, running: Iterable[str], owner: str, text: str | None, now: float) -> tuple[str, Queue]:
    """Give a queue these bounds; return its account, and the bounds that it had.

    `running` are its unfinished entities, which get places if the account is new: that of a copy of a loom, which has
    none of its accounts.
    """
    if text is None:
        return _encode(Account(queue, {entity: Place(owner, now) for entity in running})), queue
    account = decode_account(text)
    return _encode(account._replace(queue=queue)), account.queue


def take(entities: Sequence[str], owner: str, most: int, text: str | None, now: float) -> tuple[str, list[str]]:
    """Give places to the first of these entities; return the account, and the entities that got one.

    It gives as many as the bound of all processes allows, at most `most`. An entity whose place another process took
    gets none.
    """
    assert text is not None, "the queue was declared"
    account = decode_account(text)
    places, due = dict(account.places), []
    for entity in entities:
        if entity in places:
            if places[entity].owner == owner:  # an earlier answer was lost
                due.append(entity)
        elif len(due) < most and account._replace(places=places).count_room(0) > 0:
            places[entity] = Place(owner, now)
            due.append(entity)
    return _encode(account._replace(places=places)), due


def free(over: Collection[str], absent: Collection[str], text: str | None, now: float) -> tuple[str, int]:
    """Free the places of entities that are over, and of `absent` ones after `RESERVED` seconds; return how many.

    `absent` are entities that have not begun and that no process holds.
    """
    assert text is not None, "the queue was declared"
    account = decode_account(text)
    places = {
        entity: place
        for entity, place in account.places.items()
        if not (entity in over or (entity in absent and now - place.since >= RESERVED))
    }
    return _encode(account._replace(places=places)), len(account.places) - len(places)


def _encode(account: Account) -> str:
    return json.dumps({**asdict(account.queue), "places": account.places}, separators=(",", ":"))
