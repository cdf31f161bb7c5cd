"""Entities, episodes, requests and turns as JSON values in the shapes of `models.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from cantrip_actors import Cantrip, Episode, Loom, Request, Runtime
from cantrip_actors.loom import QuarantineRow
from cantrip_actors.loom.export.shapes import listed_shape, outcome_shape, usage_shape
from cantrip_actors.loom.reading.overview import EntityOverview, read_overview


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


def entity_shapes(runtime: Runtime, entity_ids: Iterable[str]) -> list[dict[str, Any]]:
    """Return entities for a list."""
    quarantines = runtime.loom.quarantines()
    return [
        _listed_shape(runtime, entity_id, read_overview(runtime.loom, entity_id, below=False), quarantines)
        for entity_id in entity_ids
    ]


def entity_shape(runtime: Runtime, entity_id: str) -> dict[str, Any]:
    """Return an entity with its open requests."""
    loom = runtime.loom
    overview, first = read_overview(loom, entity_id), loom.first_intent(entity_id)
    return {
        **_listed_shape(runtime, entity_id, overview, loom.quarantines()),
        "by": None if first is None else first.sender,
        "requests": [request_shape(request) for request in runtime.requests(entity=entity_id)],
        "subtree_usage": usage_shape(overview.subtree_usage),
        "episode": None if overview.outcome is None else outcome_shape(entity_id, overview.outcome),
    }


def _listed_shape(
    runtime: Runtime, entity_id: str, overview: EntityOverview, quarantines: Mapping[str, QuarantineRow]
) -> dict[str, Any]:
    """Return an entity for a list. It is interrupted if its process died, it crashed, or it does not run for a time."""
    loom, quarantine = runtime.loom, quarantines.get(entity_id)
    return {
        **listed_shape(loom, loom.header(entity_id), overview),
        "interrupted": quarantine is not None or runtime.is_interrupted(entity_id),
        "quarantine": None if quarantine is None else {"why": quarantine.why, "until": quarantine.until},
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
