"""Entities, episodes, requests and turns as JSON values in the shapes of `models.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from cantrip_actors import Cantrip, Episode, Loom, Request
from cantrip_actors.loom import QuarantineRow
from cantrip_actors.loom.export.shapes import listed_shape, outcome_shape, usage_shape
from cantrip_actors.loom.reading.overview import read_overview
from cantrip_actors.records.records import Header


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
    """Return the outcome of an episode."""
    return {
        "entity_id": episode.entity_id,
        "result": episode.raw_result,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "reason": episode.reason,
        "ward": episode.ward,
        "cut_off": episode.cut_off,
        "summary": episode.summary,
        "error": None,
        "last_turn": episode.last_turn,
        "usage": usage_shape(episode.usage),
        "subtree_usage": usage_shape(episode.subtree_usage),
    }


def request_shape(request: Request) -> dict[str, Any]:
    """Return a request to a person."""
    shape = {field.name: getattr(request, field.name) for field in fields(request)}
    return {**shape, "args": dict(request.args)}


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
    overview = read_overview(loom, entity_id, below=requests is not None)
    shape = {
        **listed_shape(loom, header, overview),
        "interrupted": is_interrupted or quarantine is not None,
        "quarantine": None if quarantine is None else {"why": quarantine.why, "until": quarantine.until},
    }
    if requests is None:
        return shape
    first, outcome = loom.first_intent(entity_id), overview.outcome
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
