"""Selects the events that a webhook gets, and makes the messages about them. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from cantrip_actors.loom import QuarantineRow
from cantrip_actors.records.instant import format_instant
from cantrip_actors.stream.events import (
    DecidedEvent,
    EntityEndedEvent,
    EntityEvent,
    EpisodeEndedEvent,
    RequestedEvent,
)
from cantrip_actors.terms.webhook import WebhookKind
from cantrip_actors.terms.work_id import make_work_id

_BUDGETS: Final = frozenset({"budget", "max_tokens", "max_cost"})
"""The wards of a spent budget."""

LONGEST: Final = 16_000
"""Characters of a result or an error that is sent; the loom has all of it."""


def find_kind(event: EntityEvent, wanted: Collection[WebhookKind]) -> WebhookKind | None:
    """Return the kind under which a webhook gets an event: the most specific of the wanted ones, None if none fits."""
    return next((kind for kind in _list_kinds(event) if kind in wanted), None)


def _list_kinds(event: EntityEvent) -> list[WebhookKind]:
    match event:
        case RequestedEvent():
            return ["request.opened"]
        case DecidedEvent():
            return ["request.decided"]
        case EpisodeEndedEvent() | EntityEndedEvent():
            is_crash = event.reason == "crashed"
            ward = None if event.outcome is None else event.outcome.ward
            is_budget = event.reason in _BUDGETS or ward in _BUDGETS
            ended: WebhookKind = "episode.ended" if isinstance(event, EpisodeEndedEvent) else "entity.ended"
            specific: list[WebhookKind] = ["entity.crashed"] if is_crash else ["budget.exceeded"] if is_budget else []
            return [*specific, ended]
        case _:
            return []


def build_payload(kind: WebhookKind, event: EntityEvent) -> dict[str, Any]:
    """Return the body of a webhook's message, as the Standard Webhooks scheme recommends it."""
    data = {"entity_id": event.entity_id, **_build_data(event)}
    return {"type": kind, "timestamp": format_instant(event.at), "data": data}


def build_quarantine_payload(kind: WebhookKind, row: QuarantineRow, at: float) -> dict[str, Any]:
    """Return the body of a message about a quarantine that began or ended."""
    until = None if row.until is None else format_instant(row.until)
    data = {"entity_id": row.entity_id, "why": row.why[:LONGEST], "until": until}
    return {"type": kind, "timestamp": format_instant(at), "data": data}


def _build_data(event: EntityEvent) -> dict[str, Any]:
    match event:
        case RequestedEvent():
            return {
                "request_id": event.request_id,
                "kind": event.kind,
                "turn_id": event.turn_id,
                "gate": event.gate,
                "args": dict(event.args or {}),
                "text": event.text,
                "expires_at": event.expires_at,
            }
        case DecidedEvent():
            return {name: getattr(event, name) for name in ("request_id", "turn_id", "decision", "by", "note")}
        case EpisodeEndedEvent() | EntityEndedEvent():
            return _build_end(event)
        case _:
            raise AssertionError(f"a webhook is not sent a {type(event).__name__}")


def _build_end(event: EpisodeEndedEvent | EntityEndedEvent) -> dict[str, Any]:
    outcome = event.outcome
    if outcome is None:
        return {"reason": event.reason, "by": event.by}
    is_short = len(str(outcome.result)) <= LONGEST
    return {
        "reason": event.reason,
        "by": event.by,
        "work_id": make_work_id(event.entity_id, outcome.key),
        "ward": outcome.ward,
        "cut_off": outcome.cut_off,
        "result": outcome.result if is_short else None,
        "is_result_left_out": not is_short,
        "detail": None if event.detail is None else event.detail[:LONGEST],
        "tokens": outcome.subtree_usage.total_tokens,
        "cost": outcome.subtree_usage.cost or 0.0,
    }
