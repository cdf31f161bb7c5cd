"""Entities, episodes, requests and turns as JSON values in the shapes of `models.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from cantrip_actors import Cantrip, Episode, Loom, Request, Usage
from cantrip_actors.loom import QuarantineRow, State
from cantrip_actors.loom.overview import read_overview
from cantrip_actors.records.records import Header
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


def cantrip_shape(name: str, cantrip: Cantrip) -> dict[str, Any]:
    """Return the description of an offered cantrip; its system prompt is private."""
    circle = cantrip.circle
    return {
        "name": name,
        "id": cantrip.id,
        "description": cantrip.description or name,
        "gates": list(circle.open_gates),
        "medium": circle.medium_name,
        "wards": [str(ward) for ward in circle.wards],
    }


def episode_shape(episode: Episode) -> dict[str, Any]:
    """Return how an episode ended."""
    return _build_episode(episode.entity_id, episode, None)


def outcome_shape(entity_id: str, outcome: Outcome) -> dict[str, Any]:
    """Return how an episode ended, from its outcome."""
    return _build_episode(entity_id, outcome, outcome.error)


def _build_episode(entity_id: str, end: Episode | Outcome, error: str | None) -> dict[str, Any]:
    return {
        "entity_id": entity_id,
        "result": end.result if isinstance(end, Outcome) else end.raw_result,
        "terminated": end.terminated,
        "truncated": end.truncated,
        "reason": end.reason,
        "ward": end.ward,
        "summary": end.summary,
        "error": error,
        "last_turn": end.last_turn,
        "usage": usage_shape(end.usage),
        "subtree_usage": usage_shape(end.subtree_usage),
    }


def request_shape(request: Request) -> dict[str, Any]:
    """Return a request to a person."""
    shape = {field.name: getattr(request, field.name) for field in fields(request)}
    return {**shape, "args": dict(request.args)}


def _build_header(loom: Loom, header: Header, state: State) -> dict[str, Any]:
    return {
        "id": header.entity_id,
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
        "state": state,
        "over": loom.is_over(header.entity_id),
    }


NO_QUARANTINES: Final[Mapping[str, QuarantineRow]] = MappingProxyType({})


def entity_shape(
    loom: Loom,
    header: Header,
    requests: Iterable[Request] | None = None,
    *,
    is_interrupted: bool = False,
    quarantines: Mapping[str, QuarantineRow] = NO_QUARANTINES,
) -> dict[str, Any]:
    """Return an entity for a list; with its open `requests` in full.

    It is interrupted if its process died or it crashed. `quarantines` are the entities that do not run for a time.
    """
    entity_id = header.entity_id
    quarantine = quarantines.get(entity_id)
    first = loom.first_intent(entity_id)
    overview = read_overview(loom, entity_id, below=requests is not None)
    is_fork = header.forked and header.parent_turn is not None and header.parent_turn in loom
    shape = {
        **_build_header(loom, header, overview.state),
        "origin": loom.owner(header.parent_turn or "") if is_fork else None,
        "intent": None if first is None else first.intent,
        "turns": overview.turns,
        "gates": list(overview.gates),
        "errors": overview.errors,
        "interrupted": is_interrupted or quarantine is not None,
        "quarantine": None if quarantine is None else {"why": quarantine.why, "until": quarantine.until},
        "usage": usage_shape(overview.usage),
    }
    if requests is None:
        return shape
    outcome = overview.outcome
    return {
        **shape,
        "by": None if first is None else first.sender,
        "requests": [request_shape(request) for request in requests],
        "subtree_usage": usage_shape(overview.subtree_usage),
        "episode": None if outcome is None else outcome_shape(entity_id, outcome),
    }


def tree_shape(loom: Loom, entity_id: str) -> dict[str, Any]:
    """Return an entity and everything below it."""
    header = loom.header(entity_id)
    return {
        "id": entity_id,
        "name": header.name,
        "cantrip": header.cantrip_name,
        "state": loom.state(entity_id),
        "turns": loom.count_turns(entity_id),
        "children": [tree_shape(loom, child) for child in loom.below(entity_id)],
        "forks": list(loom.branches(entity_id)),
    }
