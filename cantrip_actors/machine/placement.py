"""Places entities without an owner on nodes: pure decisions, without clocks, tables or randomness.

Every node has the same facts: the living nodes, their load and their cantrips, and the entities that have work and no
owner. So no node has to ask another. For each entity all nodes compute the same order of the nodes that can run it,
more likely those with more room first. The first one takes it; if it is still without an owner at the next poll, the
second one may, and so on. If two nodes take the same entity, the lease decides between them.

That one rule spreads the entities of a dead node, keeps to capacities, prefers nodes with room,
needs no coordinator, and leaves an entity that no node serves where it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

NONE_SEEN: Mapping[str, int] = MappingProxyType({})

OVERLOADED = 1.25
"""A node whose load is more than this multiple of the mean unloads idle entities, so that other nodes load
them."""

NOISE = 0.05
"""A difference to the mean of less than this part of a capacity is chance, and nothing is unloaded for it: where two
entities work here and one elsewhere, the idle ones would be unloaded and loaded again at each poll."""


class Member(NamedTuple):
    """A living node, as every other node sees it."""

    owner: str
    capacity: int
    busy: int = 0
    is_draining: bool = False
    serves: Mapping[str, str | None] = MappingProxyType({})
    """The names of the cantrips that it offers, by their content ids."""
    release_no: int = 0
    unclear: Mapping[str, Collection[str | None]] = MappingProxyType({})
    """Which of these contents it knows with several crystals or dependencies, each with the names under which it knows
    it with only one: it continues an entity with them if its cantrip has one of these names."""
    aliases: Mapping[str, str] = MappingProxyType({})
    """The content ids of the cantrips that it offers under further names, by these names."""
    dependencies: Mapping[str, Collection[str]] = MappingProxyType({})
    """The marks of the dependencies with which it offers a content; it provides any for a content that is not here."""

    @property
    def room(self) -> int:
        """How many more entities it may run."""
        return 0 if self.is_draining else max(0, self.capacity - self.busy)


class Candidate(NamedTuple):
    """An entity that has work and no owner."""

    entity_id: str
    cantrip_id: str
    name: str | None = None
    """The name of its cantrip."""
    may_move: bool = False
    """Whether it continues with any cantrip of that name: it is long-lived and idle, and all such entities move."""
    moves_to: str | None = None
    """The content id of the cantrip that it would move to at this node."""
    is_clear: bool = False
    """Whether its crystal and dependencies are known also where its content is unclear: it begins, or ran here."""
    missing: str | None = None
    """The mark of the dependencies that it needs, if this node does not have them."""


class State(NamedTuple):
    """The memory of a node between two polls: how often it saw each entity without an owner."""

    owner: str
    seen: Mapping[str, int] = NONE_SEEN


class PollResult(NamedTuple):
    """The result of one poll of a node."""

    members: Sequence[Member]
    unowned: Sequence[Candidate]
    idle: int = 0
    """The number of idle entities here."""


class Take(NamedTuple):
    """Claim an entity, and load it."""

    entity_id: str


class UnloadIdle(NamedTuple):
    """Unload at most `many` idle entities: this node has a higher load than others."""

    many: int


def advance(state: State, event: PollResult) -> tuple[State, list[Take | UnloadIdle]]:
    """Return the actions of a node after a poll, and its memory for the next one."""
    me = next((member for member in event.members if member.owner == state.owner), None)
    seen = {candidate.entity_id: state.seen.get(candidate.entity_id, -1) + 1 for candidate in event.unowned}
    if me is None:
        return State(state.owner, seen), []
    room = me.room
    taken: list[Take | UnloadIdle] = []
    for candidate in event.unowned:
        if len(taken) >= room:
            break
        if rank(me, candidate, event.members) <= seen[candidate.entity_id]:
            taken.append(Take(candidate.entity_id))
    excess = compute_excess(me, event.members)
    if event.idle and excess:
        taken.append(UnloadIdle(excess))
    return State(state.owner, seen), taken


def can_run(member: Member, candidate: Candidate, members: Iterable[Member]) -> bool:
    """Return whether a node serves the cantrip with which an entity continues.

    An entity that may move goes to the newest release that offers its cantrip's name, so that it does not move back
    and forth while two releases are deployed.
    """
    return _can_run(member, candidate, _find_newest_release(candidate, members))


def can_any_run(candidate: Candidate, members: Sequence[Member]) -> bool:
    """Return whether one of these nodes serves the cantrip with which an entity continues."""
    newest = _find_newest_release(candidate, members)
    return any(_can_run(member, candidate, newest) for member in members)


def should_end_here(me: str, candidate: Candidate, members: Iterable[Member]) -> bool:
    """Return whether a draining node ends an episode itself, because the nodes that stay cannot continue it (0103).

    If no node stays, it does not: the process that is started next may serve the cantrip.
    """
    staying = [other for other in members if other.owner != me and not other.is_draining]
    return bool(staying) and not can_any_run(candidate, staying)


def is_unclear(member: Member, candidate: Candidate) -> bool:
    """Return whether a node knows the cantrip of an entity with several crystals or dependencies under its name."""
    return candidate.name not in member.unclear.get(candidate.cantrip_id, (candidate.name,))


def rank(me: Member, candidate: Candidate, members: Sequence[Member]) -> float:
    """Return how many nodes come before this one for an entity; infinity if it cannot run it now."""
    newest = _find_newest_release(candidate, members)
    if not (me.room and _can_run(me, candidate, newest)):
        return math.inf
    own = _score(me, candidate.entity_id)
    return sum(
        _score(other, candidate.entity_id) > own
        for other in members
        if other.owner != me.owner and other.room and _can_run(other, candidate, newest)
    )


def order_among(owners: Iterable[str], me: str, key: str) -> int:
    """Return how many nodes come before this one for a key, where all are equal; 0 for a node that is not listed."""
    places = {owner: blake2b(f"{owner}\0{key}".encode(), digest_size=8).digest() for owner in owners}
    return sum(place < places[me] for place in places.values()) if me in places else 0


def may_load(me: Member, candidate: Candidate, members: Sequence[Member]) -> bool:
    """Return whether a node loads an entity with mail at once, and does not leave it to a node with more room.

    A node below half of its capacity loads every such entity; a fuller one only an entity that is placed on it first.
    """
    place = rank(me, candidate, members)
    return place == 0 or (place < len(members) and me.busy * 2 < me.capacity)


def may_cast(me: Member, candidate: Candidate, members: Sequence[Member]) -> bool:
    """Return whether a firing is placed on a node, by the rule for entities."""
    return rank(me, candidate, members) == 0


def compute_excess(me: Member, members: Sequence[Member]) -> int:
    """Return how many more entities are at work on a node than at the mean load; 0 unless it is overloaded.

    That many idle entities are unloaded. If all were unloaded, a node that was overloaded for a moment would have to
    load them again for their next mail, which costs more than the load that it saves.
    """
    loads = [member.busy / member.capacity for member in members if not member.is_draining]
    mean = sum(loads) / len(loads) if loads else 0.0
    load = me.busy / me.capacity
    is_overloaded = len(loads) > 1 and me.busy > 1 and load > OVERLOADED * mean and load > mean + NOISE
    return math.ceil(me.busy - mean * me.capacity) if is_overloaded else 0


def _score(member: Member, entity_id: str) -> float:
    """Return the rank of a node for an entity: weighted rendezvous hashing, with free capacity as the weight."""
    digest = blake2b(f"{member.owner}\0{entity_id}".encode(), digest_size=8).digest()
    return -member.room / math.log((int.from_bytes(digest) + 1) / (2**64 + 2))


def _find_newest_release(candidate: Candidate, members: Iterable[Member]) -> int | None:
    """Return the newest release that offers the name of an entity's cantrip; None if the entity keeps its content."""
    if not candidate.may_move or candidate.name is None:
        return None
    offering = (member.release_no for member in members if not member.is_draining and _offers_name(member, candidate))
    return max(offering, default=None)


def _can_run(member: Member, candidate: Candidate, newest: int | None) -> bool:
    if newest is not None:
        return member.release_no == newest and _offers_name(member, candidate)
    served = _get_served(member, candidate)
    return candidate.cantrip_id in served or candidate.moves_to in served


def _offers_name(member: Member, candidate: Candidate) -> bool:
    served = _get_served(member, candidate)
    return candidate.name in served.values() or member.aliases.get(candidate.name or "") in served


def _get_served(member: Member, candidate: Candidate) -> Mapping[str, str | None]:
    """Return the contents that a node can continue an entity with; dependencies are never guessed (V-0001)."""
    if candidate.missing is None and (candidate.is_clear or not member.unclear):
        return member.serves
    mark = candidate.missing
    return {
        id: name
        for id, name in member.serves.items()
        if (candidate.is_clear or candidate.name in member.unclear.get(id, (candidate.name,)))
        and (mark is None or mark in member.dependencies.get(id, (mark,)))
    }
