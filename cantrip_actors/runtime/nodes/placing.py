"""The facts about entities and nodes that placement needs, and the entities that no living node can run."""

from __future__ import annotations

from itertools import chain

from cantrip_actors.loom import EntityFacts
from cantrip_actors.loom.nodes import NodeRow
from cantrip_actors.machine.placement import Candidate, Member, can_run
from cantrip_actors.machine.project import Life
from cantrip_actors.records.mail import CONTROL
from cantrip_actors.runtime.entity.loading import find_cantrip_in_force
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.terms.errors import LoomError, Stranded

_UNCLEAR = (
    ", but know that content with several crystals or dependencies and cannot tell which are its own: say with which "
    "it continues, runtime.entity(name, cantrip=…)"
)


def make_candidate(core: Core, facts: EntityFacts) -> Candidate:
    """Return an entity as placement sees it. Raises LoomError."""
    now = find_cantrip_in_force(core.loom, facts)
    is_idle = facts.header.lasting and facts.life is Life.IDLE
    move = core.upgrades.find_move(facts.header, now, is_idle=True) if is_idle else None
    moves_to = None if move is None else move.cantrip.id
    ran_here = core.cantrips.get_unloaded(facts.entity_id) is not None
    return Candidate(facts.entity_id, now.id, now.name, is_idle and core.upgrades.is_for_all, moves_to, ran_here)


def make_member(row: NodeRow) -> Member:
    """Return a node as placement sees it."""
    info = row.info
    return Member(
        row.owner, info.capacity, row.busy, row.is_draining, info.serves, row.release_no, info.unclear, info.aliases
    )


def is_waiting_for_answer(core: Core, facts: EntityFacts) -> bool:
    """Return whether a root entity waits for a person who has not answered, and no other control mail waits for it."""
    if not core.is_waiting(facts.entity_id, facts.life):
        return False
    return all(one.mail.lane != CONTROL or not one.mail.loads for one in core.store.pending(facts.entity_id))


def find_stranding(core: Core, entity_id: str) -> LoomError | None:
    """Return why no node runs an entity of a cluster, now or soon; None if one does or may.

    It blocks while it reads the loom.
    """
    store = core.store
    if core.living.get(entity_id) is not None or store.is_held(entity_id):
        return None
    members = [make_member(row) for row in store.nodes() if row.is_living]
    if not members:
        return None
    if entity_id in store.quarantined():
        return LoomError(
            f"entity {entity_id} is in quarantine, because the nodes that ran it died; `cantrip cluster free` lifts it"
        )
    facts = core.loom.facts(entity_id)
    one = make_candidate(core, facts)
    if is_waiting_for_answer(core, facts) or any(can_run(member, one, members) for member in members):
        return None
    why = _UNCLEAR if any(one.cantrip_id in member.unclear for member in members) else ""
    offered = chain.from_iterable(
        (*((name, id) for id, name in member.serves.items()), *member.aliases.items()) for member in members
    )
    served = sorted({*offered}, key=str)
    shown = ", ".join(name or id for name, id in served) or "nothing"
    return Stranded(
        f"no living node serves the cantrip of entity {entity_id}, {one.name or one.cantrip_id} ({one.cantrip_id}), or "
        f"has the labels that it needs; they serve {shown}{why}. Nothing is lost: it continues when such a node "
        "joins",
        entity_id=entity_id,
        cantrip_id=one.cantrip_id,
        cantrip_name=one.name,
        offered=served,
    )
