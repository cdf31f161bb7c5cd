"""Entities, outcomes, messages and tokens as JSON values, as event streams and pages show them."""

from __future__ import annotations

from typing import Any

from cantrip_actors.loom.export.thread import build_image_fields
from cantrip_actors.loom.reading.overview import EntityOverview
from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.records.records import Header
from cantrip_actors.terms.messages import Message, Usage
from cantrip_actors.terms.outcome import Outcome


def usage_shape(usage: Usage) -> dict[str, Any]:
    """Return tokens."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "total_tokens": usage.total_tokens,
        "cost": usage.cost,
    }


def outcome_shape(entity_id: str, outcome: Outcome) -> dict[str, Any]:
    """Return how an episode ended, from its outcome."""
    return {
        "entity_id": entity_id,
        "result": outcome.result,
        "terminated": outcome.terminated,
        "truncated": outcome.truncated,
        "reason": outcome.reason,
        "ward": outcome.ward,
        "cut_off": outcome.cut_off,
        "summary": outcome.summary,
        "error": outcome.error,
        "last_turn": outcome.last_turn,
        "usage": usage_shape(outcome.usage),
        "subtree_usage": usage_shape(outcome.subtree_usage),
    }


def listed_shape(loom: Loom, header: Header, overview: EntityOverview) -> dict[str, Any]:
    """Return an entity for a list: its beginning, and its state."""
    entity_id = header.entity_id
    first = loom.first_intent(entity_id)
    is_fork = header.forked and header.parent_turn is not None and header.parent_turn in loom
    return {
        "id": entity_id,
        "name": header.name,
        "tenant": header.tenant,
        "cantrip": header.cantrip_name,
        "cantrip_id": header.cantrip_id,
        "crystal": header.crystal,
        "lasting": header.lasting,
        "parent": header.parent_entity,
        "parent_turn": header.parent_turn,
        "forked": header.forked,
        "depth": header.depth,
        "began": header.at,
        "state": overview.state,
        "over": loom.is_over(entity_id),
        "origin": loom.owner(header.parent_turn or "") if is_fork else None,
        "intent": None if first is None else first.intent,
        "turns": overview.turns,
        "gates": list(overview.gates),
        "errors": overview.errors,
        "usage": usage_shape(overview.usage),
    }


def message_shape(message: Message) -> dict[str, Any]:
    """Return a message of a context; empty fields are left out."""
    calls = [
        {"id": call.id, "gate": call.gate, "args": call.args if call.args is not None else call.raw}
        for call in message.tool_calls
    ]
    more = {
        "images": list(map(build_image_fields, message.images)),
        "tool_calls": calls,
        "tool_call_id": message.tool_call_id,
        "gate": message.gate,
        "is_error": message.is_error,
        "thinking": message.thinking,
        "is_steering": message.is_steering,
        "is_pinned": message.is_pinned,
    }
    return {"role": message.role, "content": message.content} | {name: value for name, value in more.items() if value}
