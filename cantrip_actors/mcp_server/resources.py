"""The loom as resources: `cantrip://entities/{id}` and `cantrip://turns/{id}`, in JSON, without secrets."""

from __future__ import annotations

from typing import Any, Final

from mcp import types
from mcp.shared.exceptions import MCPError

from cantrip_actors.loom.export.thread import build_turn_fields
from cantrip_actors.mcp_server.callers import McpCaller
from cantrip_actors.records.codec import dump_json

ENTITIES: Final = "cantrip://entities/"
TURNS: Final = "cantrip://turns/"
JSON: Final = "application/json"
PAGE: Final = 50
"""The entities on one page of `resources/list`."""

TEMPLATES: Final = (
    types.ResourceTemplate(
        name="entity",
        uri_template=f"{ENTITIES}{{id}}",
        description="An entity: its state, its first intent, its turns, what it used, its last result.",
        mime_type=JSON,
    ),
    types.ResourceTemplate(
        name="turn",
        uri_template=f"{TURNS}{{id}}",
        description="A turn: what the entity said, the gates that it called, and what they returned.",
        mime_type=JSON,
    ),
)


def list_resources(caller: McpCaller, cursor: str | None) -> types.ListResourcesResult:
    """Return entities, newest first, a page at a time. Raises Refused."""
    caller.check("read")
    loom = caller.loom
    if cursor is not None and not loom.has(cursor):
        return types.ListResourcesResult(resources=[])
    page = loom.page(cursor=cursor, limit=PAGE)
    resources = [
        types.Resource(
            name=listed.cantrip or listed.id,
            uri=f"{ENTITIES}{listed.id}",
            description=f"{listed.state}, began {listed.began}",
            mime_type=JSON,
        )
        for listed in page
        if caller.sees(listed.id)
    ]
    return types.ListResourcesResult(resources=resources, next_cursor=page.next)


def read_resource(caller: McpCaller, uri: str) -> types.ReadResourceResult:
    """Return a resource. Raises MCPError for an unknown one; Refused."""
    caller.check("read")
    loom = caller.loom
    value: Any = None
    if uri.startswith(ENTITIES) and caller.sees(entity_id := uri.removeprefix(ENTITIES)):
        value = _find_entity(caller, entity_id)
    elif uri.startswith(TURNS) and (turn_id := uri.removeprefix(TURNS)) in loom and caller.sees(loom.owner(turn_id)):
        value = build_turn_fields(loom.turn(turn_id))
    if value is None:
        raise MCPError(types.INVALID_PARAMS, f"Resource not found: {uri[:200]}", {"uri": uri[:200]})
    text = dump_json(caller.redact(value), mark=False).decode()
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=JSON, text=text)])


def _find_entity(caller: McpCaller, entity_id: str) -> dict[str, Any]:
    loom = caller.loom
    header, first = loom.header(entity_id), loom.first_intent(entity_id)
    usage, outcome = loom.subtree_usage(entity_id), loom.outcome(entity_id)
    return {
        "id": entity_id,
        "cantrip": header.cantrip_name,
        "state": loom.state(entity_id),
        "began": header.at,
        "intent": None if first is None else first.intent,
        "result": None if outcome is None else outcome.result,
        "turns": [turn.id for turn in loom.turns(entity_id)],
        "tokens": usage.total_tokens,
        "cost": usage.cost or 0.0,
    }
