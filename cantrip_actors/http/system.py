"""Handlers for operators: the actors of the service."""

from __future__ import annotations

from cantrip_actors.http.calls import Answer, Call
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.supervision import row_of, rows_of, system_of, traceback_of


def check_may_observe(call: Call) -> None:
    """Raise Problem 403 for a token that may not see the supervision tree: it shows all tenants' entities."""
    if not call.token.allows("observe"):
        raise Problem(403, "scope", "this token lacks the scope observe", scope="observe")
    if call.token.tenant is not None:
        raise Problem(403, "tenant", "the supervision tree shows all tenants: use a token without one")


async def get_actor(call: Call) -> Answer:
    """Return an actor of the supervision tree, with the report of its last exit."""
    check_may_observe(call)
    system, path = call.runtime.inspect(), call.path["path"]
    node = next((one for one in system.tree.walk() if one.path == path), None)
    if node is None:
        raise Problem(404, "unknown-actor", "no actor has this path now")
    report = call.runtime.redact(traceback_of(node.last_exit))
    return Answer({**row_of(node, system.at, call.runtime), "report": report})


async def get_system(call: Call) -> Answer:
    """Return the service as it stands: a row for each actor, parents first; crystals, counters, loom and readers."""
    check_may_observe(call)
    system, service = call.runtime.inspect(), call.service
    shown = {**system_of(call.runtime, system), "items": list(rows_of(call.runtime, system).values())}
    shown["streams"]["http"] = service.readers
    return Answer(shown)
