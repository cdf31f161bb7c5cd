"""The routes of the service, as one table: the application and the OpenAPI document are both made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from pydantic import BaseModel
from starlette.responses import Response

from cantrip_actors.http import entities, health, history, models, operations, people, streams
from cantrip_actors.http.calls import BASE, HttpCall, JsonAnswer

AnswerModels = Mapping[int, type[BaseModel] | str | None]


class ApiRoute(NamedTuple):
    """One route. `answers` maps each status of success to its model; None has no body, a text is a content type."""

    method: str
    path: str
    scope: str | None
    work: Callable[[HttpCall], Awaitable[JsonAnswer | Response]]
    answers: AnswerModels
    body: type[BaseModel] | None = None
    query: type[BaseModel] = models.NoQuery
    style: str = "problem"
    """The form of errors: "problem" (RFC 9457), "openai" or "anthropic"."""

    @property
    def needs_body(self) -> bool:
        """Whether a request without a body is refused."""
        return self.body is not None and any(field.is_required() for field in self.body.model_fields.values())

    @property
    def summary(self) -> str:
        """The route's description: the first line of its function's docstring."""
        return (self.work.__doc__ or "").partition("\n")[0]


_NEW: AnswerModels = {201: models.StartedJson, 200: models.EpisodeJson, 202: models.StartedJson}
_DONE: AnswerModels = {200: models.DoneJson, 202: None}
_SSE = "text/event-stream"

_NATIVE: tuple[ApiRoute, ...] = (
    ApiRoute("GET", "/cantrips", "read", entities.list_cantrips, {200: models.Items}),
    ApiRoute("POST", "/casts", "cast", entities.cast, _NEW, models.CastBody),
    ApiRoute(
        "POST",
        "/submissions",
        "cast",
        entities.submit,
        {202: models.SubmissionJson, 200: models.EpisodeJson},
        models.SubmitBody,
    ),
    ApiRoute("GET", "/submissions/{key:path}", "read", entities.get_submission, {200: models.SubmissionJson}),
    ApiRoute("DELETE", "/submissions/{key:path}", "stop", entities.withdraw_submission, {200: models.SubmissionJson}),
    ApiRoute("POST", "/entities", "cast", entities.begin_entity, _NEW, models.BeginBody),
    ApiRoute("GET", "/entities", "read", entities.list_entities, {200: models.EntityPage}, query=models.EntitiesQuery),
    ApiRoute(
        "PUT",
        "/entities/{name}",
        "cast",
        entities.ensure,
        {200: models.EntityJson, 201: models.EntityJson},
        models.EnsureBody,
    ),
    ApiRoute("GET", "/entities/{id}", "read", entities.get_entity, {200: models.EntityJson}),
    ApiRoute(
        "POST",
        "/entities/{id}/send",
        "send",
        entities.send,
        {202: models.ReceiptJson, 200: models.EpisodeJson},
        models.SendBody,
    ),
    ApiRoute("GET", "/entities/{id}/receipts/{key:path}", "read", entities.get_receipt, {200: models.ReceiptJson}),
    ApiRoute(
        "DELETE",
        "/entities/{id}/receipts/{key:path}",
        "steer",
        entities.withdraw,
        {200: models.ReceiptJson},
        query=models.WithdrawQuery,
    ),
    ApiRoute("POST", "/entities/{id}/steer", "steer", entities.steer, {202: None}, models.SteerBody),
    ApiRoute("POST", "/entities/{id}/interrupt", "steer", entities.interrupt, {202: None}, models.InterruptBody),
    ApiRoute("POST", "/entities/{id}/undo", "steer", entities.undo, _DONE, models.NoBody),
    ApiRoute("POST", "/entities/{id}/compact", "steer", entities.compact, _DONE, models.CompactBody),
    ApiRoute("DELETE", "/entities/{id}", "stop", entities.stop, {204: None}, query=models.StopQuery),
    ApiRoute("POST", "/entities/{id}/resume", "stop", entities.resume, {202: models.StartedJson}, models.NoBody),
    ApiRoute("POST", "/entities/{id}/abandon", "stop", entities.abandon, {204: None}, models.NoBody),
    ApiRoute("GET", "/requests", "read", people.list_requests, {200: models.RequestPage}, query=models.RequestsQuery),
    ApiRoute("POST", "/requests/{id:path}", "approve", people.decide, {200: models.DecidedJson}, models.DecideBody),
    ApiRoute("POST", "/turns/{id}/fork", "cast", entities.fork, _NEW, models.ForkBody),
    ApiRoute("GET", "/turns/{id}", "read", history.get_turn, {200: models.TurnJson}),
    ApiRoute("GET", "/turns/{id}/input", "inputs", history.get_input, {200: models.ModelInputJson}),
    ApiRoute("GET", "/turns/{id}/thread", "read", history.get_thread, {200: models.Items}),
    ApiRoute("POST", "/turns/{id}/rewards", "reward", history.reward, {201: models.RewardedJson}, models.RewardBody),
    ApiRoute("GET", "/entities/{id}/turns", "read", history.get_turns, {200: models.Items}, query=models.TurnsQuery),
    ApiRoute(
        "GET", "/entities/{id}/story", "read", history.get_story, {200: models.StoryPage}, query=models.StoryQuery
    ),
    ApiRoute(
        "GET",
        "/entities/{id}/spending",
        "read",
        history.get_spending,
        {200: models.SpendingJson},
        query=models.SpendingQuery,
    ),
    ApiRoute("GET", "/entities/{id}/tree", "read", history.get_tree, {200: models.TreeJson}),
    ApiRoute("GET", "/loom/search", "read", history.search_loom, {200: models.Items}, query=models.SearchQuery),
    ApiRoute("GET", "/loom/stats", "read", history.stats, {200: models.StatsJson}, query=models.StatsQuery),
    ApiRoute("GET", "/loom/export", "read", history.export, {200: "application/x-ndjson"}, query=models.ExportQuery),
    ApiRoute(
        "GET", "/entities/{id}/events", "read", streams.entity_events, {200: _SSE, 204: None}, query=models.EventsQuery
    ),
    ApiRoute("GET", "/system", "observe", operations.get_system, {200: models.SystemJson}),
    ApiRoute("GET", "/system/actors/{path:path}", "observe", operations.get_actor, {200: models.ActorJson}),
    ApiRoute("GET", "/events", "read", streams.all_events, {200: _SSE}, query=models.FirehoseQuery),
)

ROUTES: Final = tuple(row._replace(path=BASE + row.path) for row in _NATIVE)
"""The native API."""

OPERATIONS: tuple[ApiRoute, ...] = (
    ApiRoute("GET", "/metrics", "observe", operations.get_metrics, {200: health.CONTENT_TYPE}),
    ApiRoute("GET", f"{BASE}/overview", "read", operations.get_overview, {200: models.OverviewJson}),
    ApiRoute("GET", f"{BASE}/crashes", "observe", operations.list_crashes, {200: models.Items}),
    ApiRoute("GET", f"{BASE}/crashes/{{id}}", "observe", operations.get_crash, {200: models.CrashReportJson}),
)
"""The routes for operators."""
