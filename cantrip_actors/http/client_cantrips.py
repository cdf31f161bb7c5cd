"""The cantrip of a long-lived entity with a client's additions for its next intent: tools, a form of answer.

The entity keeps the additions until a request comes without them. Then it goes back to the offered cantrip.
"""

from __future__ import annotations

from cantrip_actors import Cantrip, Entity
from cantrip_actors.http.calls import HttpCall
from cantrip_actors.http.client_rounds import find_tools
from cantrip_actors.http.problems import Problem
from cantrip_actors.records.records import Header


def find_offered(call: HttpCall, entity_id: str) -> Cantrip | None:
    """Return the offered cantrip of an entity's name; None if none is offered by it. Reads the loom."""
    return call.service.cantrips.get(call.runtime.loom.header(entity_id).cantrip_name or "")


def with_cantrip(call: HttpCall, entity: Entity, changed: Cantrip | None) -> Entity:
    """Return an entity whose next intent is worked on with a changed cantrip; without, with the offered one again.

    Reads the loom. Raises Problem 409 if the cantrip is changed, and the entity works on another intent, or another
    process has loaded it with other additions.
    """
    cantrip = find_offered(call, entity.id) if changed is None else changed
    header = call.runtime.loom.header_in_force(entity.id)
    if cantrip is None or header.cantrip_id == cantrip.id:
        return entity
    if changed is None and not _has_additions(call, header, cantrip):
        return entity
    is_idle = call.runtime.loom.state(entity.id) not in ("active", "waiting")
    text = "the entity works on another intent: it takes tools and forms of answers of a client when it is idle"
    if is_idle and (entity.loaded or not entity.held or _has_gates_of(header, cantrip, find_offered(call, entity.id))):
        return call.runtime.get_entity(entity.id, cantrip=cantrip)
    if is_idle:
        text = (
            "another process has loaded the entity, without these tools or this form of answer: send the request "
            "there, or again when the entity is unloaded"
        )
    if changed is not None:
        raise Problem(409, "conflict", text, entity_id=entity.id)
    return entity


def _has_gates_of(header: Header, changed: Cantrip, offered: Cantrip | None) -> bool:
    """Return whether an entity has the gates that a client has added to the offered cantrip, or changed in it."""
    own = {} if offered is None else {gate.name: gate.parameters for gate in offered.circle.gates}
    in_force = {gate["name"]: gate["parameters"] for gate in header.circle["gates"]}
    gates = [gate for gate in changed.circle.gates if own.get(gate.name) != gate.parameters]
    return all(in_force.get(gate.name) == gate.parameters for gate in gates)


def _has_additions(call: HttpCall, header: Header, offered: Cantrip) -> bool:
    """Return whether a cantrip has the gates of the offered one, but for those that a client added."""
    added = find_tools(call, header.entity_id)
    names = [gate["name"] for gate in header.circle["gates"] if gate["name"] not in added]
    return names == [gate.name for gate in offered.circle.gates]
