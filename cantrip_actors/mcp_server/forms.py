"""Requests to people as forms of the client (MCP elicitation), and its answers as decisions.

A form is flat: an object of texts, numbers, truth values and choices. An approval is a choice; if the answer to a
question does not fit a form, the form asks for JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from mcp import types

from cantrip_actors import AlreadyDecided, EntityEnded, InvalidDecision, Request, UnknownRequest
from cantrip_actors.mcp_server.callers import McpCaller
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.redact.visible import escape
from cantrip_actors.terms.exact_json import parse_exactly

_COLUMNS: Final = 400
_ROWS: Final = 60
"""The size of a request in a form: the client wraps long lines itself."""

_FLAT: Final = frozenset({"string", "number", "integer", "boolean"})

_APPROVAL: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "enum": ["allow", "always", "deny"],
            "title": "Decision",
            "description": "allow: this call; always: this gate of this entity, from now on; deny: not this call",
        },
        "note": {"type": "string", "title": "Note", "description": "why not: the entity reads it"},
    },
    "required": ["decision"],
}

_log = get_logger("cantrip_actors.mcp_server")


def can_ask(caller: McpCaller, capabilities: types.ClientCapabilities | None) -> bool:
    """Return whether a client can show forms to its user and may decide requests."""
    offered = None if capabilities is None else capabilities.elicitation
    has_forms = offered is not None and (offered.form is not None or offered.url is None)  # an empty object means forms
    return has_forms and caller.allows("approve")


def form_of(caller: McpCaller, request: Request) -> types.ElicitRequestFormParams:
    """Return the form of a request, without secrets."""
    redact = caller.runtime.redact
    if request.kind == "question":
        lines = replace(request, schema=None).render(columns=_COLUMNS, rows=_ROWS)
        schema = redact(_schema(request)[0])
        return types.ElicitRequestFormParams(message=redact("\n".join(lines)), requested_schema=schema)
    lines = request.render(columns=_COLUMNS, rows=_ROWS)
    is_cut = lines != request.render(columns=_COLUMNS)
    more = f" (`cantrip requests {escape(request.id)}` shows all of it)" if is_cut else ""
    return types.ElicitRequestFormParams(
        message=redact("\n".join([*lines, f"May this call run?{more}"])), requested_schema=dict(_APPROVAL)
    )


def forms_of(caller: McpCaller, requests: Iterable[Request]) -> types.InputRequests:
    """Return the forms of requests by their ids."""
    return {request.id: types.ElicitRequest(params=form_of(caller, request)) for request in requests}


def _schema(request: Request) -> tuple[dict[str, Any], str]:
    """Return the form of a question, and where its answer is: the "whole" form, its "field" answer, or "json" in it."""
    schema = dict(request.schema or {"type": "string"})
    fields = schema.get("properties")
    if (
        schema.get("type") == "object"
        and isinstance(fields, Mapping)
        and fields
        and all(map(_is_flat, fields.values()))
    ):
        names = ("type", "properties", "required")
        return {name: schema[name] for name in names if name in schema}, "whole"
    is_flat = _is_flat(schema)
    expected = f"a JSON value that fits {json.dumps(schema)}"
    field = schema if is_flat else {"type": "string", "description": expected}
    form = {"type": "object", "properties": {"answer": field}, "required": ["answer"]}
    return form, "field" if is_flat else "json"


def _is_flat(schema: Any) -> bool:
    """Return whether a schema is one that a field of a form may have; its type may also be a list of types."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return isinstance(kind, str) and kind in _FLAT


async def decide(caller: McpCaller, request: Request, answer: types.ElicitResult) -> None:
    """Record the decision of a client's user; a dismissed form or an invalid answer records nothing.

    A request that stays open waits for another answer at this door or another one.
    """
    caller.check("approve")
    runtime, content = caller.runtime, answer.content or {}
    decision: dict[str, Any] | None = None
    if answer.action == "decline":
        decision = {"decision": "deny"}
    elif answer.action == "accept" and request.kind == "question":
        decision = _answer(request, content)
    elif answer.action == "accept":
        decision = _build_approval(content)
    if decision is None:
        _log.info("a request stays open: the client gave no decision", entity=request.entity)
        return
    try:
        await runtime.decide(request.id, by=caller.by, door=caller.door, **decision)
    except (AlreadyDecided, EntityEnded, UnknownRequest):
        pass  # another door decided, or the work was cancelled
    except InvalidDecision:
        _log.info("a request stays open: the client's answer does not fit it", entity=request.entity)


def _build_approval(content: Mapping[str, Any]) -> dict[str, Any] | None:
    note = content.get("note")
    more = {"note": note} if isinstance(note, str) and note else {}
    match content.get("decision"):
        case "allow":
            return {"decision": "allow", **more}
        case "always":
            return {"decision": "allow", "remember": "entity", **more}
        case "deny":
            return {"decision": "deny", **more}
    return None


def _answer(request: Request, content: Mapping[str, Any]) -> dict[str, Any] | None:
    _, where = _schema(request)
    if where == "whole":
        return {"answer": dict(content)}
    value = content.get("answer")
    if where == "json":
        try:
            value = parse_exactly(str(value))
        except ValueError:
            return None
    return {"answer": value}
