"""The bodies, queries and answers of the routes of dispatches."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from cantrip_actors.dispatch.status import Status
from cantrip_actors.http.bodies import Strict
from cantrip_actors.http.models import Text


class NewDispatch(Strict):
    """A contract to dispatch."""

    contract: dict[str, Any] | Text = Field(description="Its fields by their names, or a text in Markdown.")


class ApproveDispatch(Strict):
    """Approve a dispatch, a phase of it, or the removal of its blocker."""

    note: str = ""


class RejectDispatch(Strict):
    """End a queued or blocked dispatch for good."""

    reason: Text


class UnblockDispatch(Strict):
    """A note that says how the blocker was removed."""

    note: Text


class DispatchesQuery(Strict):
    """The query of a list of dispatches."""

    status: Status | None = None


class DispatchSummary(BaseModel):
    """A dispatch in a few words; `proven` of its `acceptance` criteria have evidence."""

    id: str
    title: str
    status: Status
    priority: str
    role: str
    attempt: int
    proven: int
    acceptance: int
    waits_for: str
    outcome: str
    newest: str
    at: str


class DispatchJson(DispatchSummary):
    """A dispatch with its contract and every entry of its log, oldest first."""

    contract: dict[str, Any]
    contract_hash: str
    unmet: list[str]
    closed: bool
    entries: list[dict[str, Any]]


class DispatchList(BaseModel):
    """Dispatches, by id."""

    items: list[DispatchSummary]
