"""The facts about entities and nodes that placement needs, and the entities that no living node can run."""

from __future__ import annotations

from typing import Any

from cantrip_actors.loom.nodes import NodeRow
from cantrip_actors.machine.placement import Candidate, Member, can_run
from cantrip_actors.machine.project import Life
from cantrip_actors.runtime.core import Core
from cantrip_actors.runtime.loading import cantrip_in_force
from cantrip_actors.terms.errors import LoomError, Stranded


def candidate_of(core: Core, header: Any) -> Candidate:
    """Return the facts about an entity that placement needs. Raises LoomError."""
    now = cantrip_in_force(core.loom, header)
    is_idle = header.lasting and core.store.life(header.entity_id) is Life.IDLE
    move = core.upgrades.move_of(header, now, is_idle=True) if is_idle else None
    moves_to = None if move is None else move.cantrip.id
    return Candidate(header.entity_id, now.id, now.name, is_idle and core.upgrades.is_for_all, moves_to)


def member_of(row: NodeRow) -> Member:
    """Return a node as placement sees it."""
    return Member(row.owner, row.info.capacity, row.busy, row.is_draining, row.info.serves, row.release_no)


def stranding(core: Core, entity_id: str) -> LoomError | None:
    """Return why no node runs an entity of a cluster, now or soon; None if one does or may.

    It blocks while it reads the loom.
    """
    store = core.store
    if core.living.get(entity_id) is not None or store.is_held(entity_id):
        return None
    members = [member_of(row) for row in store.nodes() if row.is_living]
    if not members:
        return None
    if entity_id in store.quarantined():
        return LoomError(
            f"entity {entity_id} is in quarantine, because the nodes that ran it died; `cantrip cluster free` lifts it"
        )
    one = candidate_of(core, core.loom.header(entity_id))
    if core.is_waiting(entity_id) or any(can_run(member, one, members) for member in members):
        return None
    served = sorted({(name, id) for member in members for id, name in member.serves.items()}, key=str)
    shown = ", ".join(name or id for name, id in served) or "nothing"
    return Stranded(
        f"no living node serves the cantrip of entity {entity_id}, {one.name or one.cantrip_id} ({one.cantrip_id}), or "
        f"has the labels that it needs; they serve {shown}. Nothing is lost: it continues when such a node joins",
        entity_id=entity_id,
        cantrip_id=one.cantrip_id,
        cantrip_name=one.name,
        offered=served,
    )
