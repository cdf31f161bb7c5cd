"""The routes of the service, as one table: the application and the OpenAPI document are both made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from pydantic import BaseModel
from starlette.responses import Response

from cantrip_actors.http import dispatches, entities, health, history, models, operations, people, streams
from cantrip_actors.http.calls import Answer, Call

BASE = "/api/v1"

Answers = Mapping[int, type[BaseModel] | str | None]


class Row(NamedTuple):
    """One route. `answers` maps each status of success to its model; None has no body, a text is a content type."""

    method: str
    path: str
    scope: str | None
    work: Callable[[Call], Awaitable[Answer | Response]]
    answers: Answers
    body: type[BaseModel] | None = None
    query: type[BaseModel] = models.NoQuery
    style: str = "problem"
    """The form of errors: "problem" (RFC 9457) or "openai"."""

    @property
    def needs_body(self) -> bool:
        """Whether a request without a body is refused."""
        return self.body is not None and any(field.is_required() for field in self.body.model_fields.values())

    @property
    def summary(self) -> str:
        """The route's description: the first line of its function's docstring."""
        return (self.work.__doc__ or "").partition("\n")[0]


_NEW: Answers = {201: models.Started, 200: models.Episode, 202: models.Started}
_SUMMARY: Answers = {200: models.DispatchSummary}
_SSE = "text/event-stream"

_NATIVE: tuple[Row, ...] = (
    Row("GET", "/cantrips", "read", entities.list_cantrips, {200: models.Items}),
    Row("POST", "/casts", "cast", entities.cast, _NEW, models.Cast),
    Row("POST", "/submissions", "cast", entities.submit, {202: models.Submission, 200: models.Episode}, models.Submit),
    Row("GET", "/submissions/{key:path}", "read", entities.get_submission, {200: models.Submission}),
    Row("DELETE", "/submissions/{key:path}", "stop", entities.withdraw_submission, {200: models.Submission}),
    Row("POST", "/entities", "cast", entities.begin_entity, _NEW, models.Begin),
    Row("GET", "/entities", "read", entities.list_entities, {200: models.EntityPage}, query=models.EntitiesQuery),
    Row("GET", "/entities/{id}", "read", entities.get_entity, {200: models.Entity}),
    Row("POST", "/entities/{id}/send", "send", entities.send, {202: models.Receipt, 200: models.Episode}, models.Send),
    Row("GET", "/entities/{id}/receipts/{key:path}", "read", entities.get_receipt, {200: models.Receipt}),
    Row(
        "DELETE",
        "/entities/{id}/receipts/{key:path}",
        "steer",
        entities.withdraw,
        {200: models.Receipt},
        query=models.WithdrawQuery,
    ),
    Row("POST", "/entities/{id}/steer", "steer", entities.steer, {202: None}, models.Steer),
    Row("POST", "/entities/{id}/interrupt", "steer", entities.interrupt, {202: None}, models.Interrupt),
    Row("DELETE", "/entities/{id}", "stop", entities.stop, {204: None}, query=models.StopQuery),
    Row("POST", "/entities/{id}/resume", "stop", entities.resume, {202: models.Started}, models.NoBody),
    Row("POST", "/entities/{id}/abandon", "stop", entities.abandon, {204: None}, models.NoBody),
    Row("GET", "/requests", "read", people.list_requests, {200: models.Items}, query=models.RequestsQuery),
    Row("POST", "/requests/{id:path}", "approve", people.decide, {200: models.Decided}, models.Decide),
    Row(
        "GET",
        "/dispatches",
        "read",
        dispatches.list_dispatches,
        {200: models.DispatchList},
        query=models.DispatchesQuery,
    ),
    Row(
        "POST", "/dispatches", "dispatch", dispatches.create_dispatch, {201: models.DispatchSummary}, models.NewDispatch
    ),
    Row("GET", "/dispatches/{id}", "read", dispatches.get_dispatch, {200: models.Dispatch}),
    Row("POST", "/dispatches/{id}/approve", "approve", dispatches.approve_dispatch, _SUMMARY, models.ApproveDispatch),
    Row("POST", "/dispatches/{id}/reject", "approve", dispatches.reject_dispatch, _SUMMARY, models.RejectDispatch),
    Row("POST", "/dispatches/{id}/unblock", "dispatch", dispatches.unblock_dispatch, _SUMMARY, models.UnblockDispatch),
    Row("POST", "/turns/{id}/fork", "cast", entities.fork, _NEW, models.Fork),
    Row("GET", "/turns/{id}", "read", history.get_turn, {200: models.Turn}),
    Row("GET", "/turns/{id}/thread", "read", history.get_thread, {200: models.Items}),
    Row("POST", "/turns/{id}/rewards", "reward", history.reward, {201: models.Rewarded}, models.Reward),
    Row("GET", "/entities/{id}/turns", "read", history.get_turns, {200: models.Items}, query=models.TurnsQuery),
    Row("GET", "/entities/{id}/story", "read", history.get_story, {200: models.StoryPage}, query=models.StoryQuery),
    Row("GET", "/entities/{id}/tree", "read", history.get_tree, {200: models.Tree}),
    Row("GET", "/loom/search", "read", history.search_loom, {200: models.Items}, query=models.SearchQuery),
    Row("GET", "/loom/stats", "read", history.stats, {200: models.Stats}, query=models.StatsQuery),
    Row("GET", "/loom/export", "read", history.export, {200: "application/x-ndjson"}, query=models.ExportQuery),
    Row(
        "GET", "/entities/{id}/events", "read", streams.entity_events, {200: _SSE, 204: None}, query=models.EventsQuery
    ),
    Row("GET", "/system", "observe", operations.get_system, {200: models.System}),
    Row("GET", "/system/actors/{path:path}", "observe", operations.get_actor, {200: models.Actor}),
    Row("GET", "/events", "read", streams.all_events, {200: _SSE}, query=models.FirehoseQuery),
)

ROUTES: Final = tuple(row._replace(path=BASE + row.path) for row in _NATIVE)
"""The native API."""

OPERATIONS: tuple[Row, ...] = (
    Row("GET", "/metrics", "observe", operations.get_metrics, {200: health.CONTENT_TYPE}),
    Row("GET", f"{BASE}/overview", "read", operations.get_overview, {200: models.OverviewShape}),
    Row("GET", f"{BASE}/crashes", "observe", operations.list_crashes, {200: models.Items}),
    Row("GET", f"{BASE}/crashes/{{id}}", "observe", operations.get_crash, {200: models.CrashReport}),
)
"""The routes for operators."""
