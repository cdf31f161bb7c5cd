"""Which work this runtime does, and which other nodes do; the entities that no living node can run.

A runtime that has not joined a cluster does all work that it finds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple

from cantrip_actors.loom import EntityFacts, Quarantined, Store
from cantrip_actors.loom.stores.nodes import NodeRow
from cantrip_actors.machine.placement import (
    Candidate,
    Member,
    can_any_run,
    is_unclear,
    may_cast,
    may_load,
    order_among,
    should_end_here,
)
from cantrip_actors.records.mail import CONTROL
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.entity.known_cantrips import make_dependencies_unknown
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import CantripError, EntityInterrupted, Stranded

_UNCLEAR = (
    ", but know that content with several crystals or dependencies and cannot tell which are its own: say with which "
    "it continues, runtime.entity(name, cantrip=…)"
)


def make_candidate(core: Core, facts: EntityFacts) -> Candidate:
    """Return an entity as placement sees it. Raises LoomError."""
    now = core.find_cantrip_in_force(facts)
    is_idle = facts.header.lasting and core.may_move_now(facts, now)
    move = core.upgrades.find_move(facts.header, now, is_idle=True) if is_idle else None
    moves_to = None if move is None else move.cantrip.id
    ran_here = core.cantrips.get_unloaded(facts.entity_id) is not None
    known = core.cantrips.find_content(facts.entity_id, now.id)
    served = now.id if known is None else known.offered.id  # nodes add a client's additions to it
    may_move, missing = is_idle and core.upgrades.is_for_all, core.find_missing_mark(facts)
    return Candidate(facts.entity_id, served, now.name, may_move, moves_to, ran_here, missing)


def make_member(row: NodeRow) -> Member:
    """Return a node as placement sees it."""
    info = row.info
    load = (row.owner, info.capacity, row.busy, row.is_draining)
    return Member(*load, info.serves, row.release_no, info.unclear, info.aliases, info.dependencies)


def may_load_here(core: Core, facts: EntityFacts) -> bool:
    """Return whether a wanted entity may be loaded here at once, and not by a node with more room."""
    membership = core.membership
    if membership is None:
        return True
    me = membership.own
    if me is None:  # it has not polled yet
        return not membership.is_draining
    is_admitted = may_load(me, make_candidate(core, facts), membership.members)
    membership.busy += is_admitted  # until the next count
    return is_admitted


def may_cast_here(core: Core, firing: str, cantrip: Cantrip) -> bool:
    """Return whether a firing, given by its id, may cast this cantrip here."""
    membership = core.membership
    if membership is None:
        return True
    me = membership.own
    if me is None or not membership.is_ready:
        return False
    candidate = Candidate(firing, cantrip.id, cantrip.name, may_move=True, is_clear=True)
    is_admitted = may_cast(me, candidate, membership.members)
    membership.busy += is_admitted
    return is_admitted


def count_nodes_before(core: Core, timer_id: str) -> int:
    """Return how many nodes carry out a timer before this one.

    If each waits a poll longer than the one before it, nodes share simultaneous timers, and a timer whose first node is
    frozen waits only briefly.
    """
    membership = core.membership
    if membership is None:
        return 0
    owners = [member.owner for member in membership.members if not member.is_draining]
    return order_among(owners, membership.owner, timer_id)


def has_room_here(core: Core) -> bool:
    """Return whether this node may begin another cast at all."""
    membership = core.membership
    return membership is None or membership.busy < membership.node.capacity


def ends_here(core: Core, root: Cell) -> bool:
    """Return whether this node, which drains, ends the episode of a root entity itself: no other can continue it."""
    membership = core.membership
    if membership is None or not membership.is_draining:
        return False
    cantrip = root.plan.cantrip
    candidate = Candidate(root.entity_id, cantrip.offered.id, cantrip.name)
    return should_end_here(membership.owner, candidate, membership.members)


def is_waiting_for_answer(core: Core, facts: EntityFacts) -> bool:
    """Return whether a root entity waits for a person who has not answered, and no other control mail waits for it."""
    if not core.is_waiting(facts.entity_id, facts.life):
        return False
    return all(one.mail.lane != CONTROL or not one.mail.loads for one in core.store.pending(facts.entity_id))


class Services(NamedTuple):
    """What the living processes of a loom can run, read once for several entities."""

    members: Sequence[Member]
    """The living nodes."""
    served: Collection[str]
    """The names and content ids of the cantrips that other living processes serve without being nodes."""


def read_services(store: Store) -> Services:
    """Return what the living processes can run. It blocks while it reads the loom."""
    return Services([make_member(row) for row in store.nodes() if row.is_living], store.served())


def find_stranding(core: Core, entity_id: str, services: Services) -> CantripError | None:
    """Return why no process runs a root entity, now or soon; None if one does or may.

    Without nodes, a process loads an entity for mail, or for a caller of its own. It blocks while it reads the loom.
    """
    store, (members, served) = core.store, services
    if core.living.get(entity_id) is not None or store.is_held(entity_id):
        return None
    quarantine = next((row for row in store.quarantines() if row.entity_id == entity_id), None)
    if quarantine is not None:
        return Quarantined(*quarantine)
    facts = core.loom.facts(entity_id)
    one = make_candidate(core, facts)
    if can_any_run(one, members):
        return None
    if one.missing is not None:
        return make_dependencies_unknown(entity_id)
    may_load_itself = core.membership is None and core.is_clear(facts)
    if facts.is_held or may_load_itself or is_waiting_for_answer(core, facts):
        return None
    if not store.count_mail(entity_id).loads:
        if not members:
            return EntityInterrupted(entity_id)
    elif one.cantrip_id in served or one.name in served:
        return None
    why = _UNCLEAR if any(is_unclear(member, one) for member in members) else ""
    offered = chain.from_iterable(
        (*((name, id) for id, name in member.serves.items()), *member.aliases.items()) for member in members
    )
    by_nodes = sorted({*offered}, key=str)
    shown = ", ".join(sorted({*served, *(name or id for name, id in by_nodes)})) or "nothing"
    return Stranded(
        f"no living process serves the cantrip of entity {entity_id}, {one.name or one.cantrip_id} ({one.cantrip_id}), "
        f"or has the labels that it needs; they serve {shown}{why}. Nothing is lost: it continues when one that does "
        "is opened",
        entity_id=entity_id,
        cantrip_id=one.cantrip_id,
        cantrip_name=one.name,
        offered=by_nodes,
    )
