"""Dispatches over HTTP, as `cantrip dispatch`: list, read and create them, approve, reject and unblock them.

A decision is an entry of the dispatch's log, in the capacity of a human, by the token's name. Dispatches belong to no
tenant: a token with a tenant, or one that is limited to some cantrips, sees none. Their files are read and written in
threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from cantrip_actors import CantripError
from cantrip_actors.dispatch.contract import InvalidContract, draft, require_contract
from cantrip_actors.dispatch.errors import DispatchError, DispatchExists, EventRefused, UnknownDispatch
from cantrip_actors.dispatch.events import make_entry_key
from cantrip_actors.dispatch.log import Dispatches, find_written, read_trusted_records
from cantrip_actors.dispatch.parse import from_markdown
from cantrip_actors.dispatch.record import Decision, Record, make_decision
from cantrip_actors.dispatch.requests import DispatchRequests
from cantrip_actors.dispatch.status import Status
from cantrip_actors.dispatch.summary import DispatchJson, DispatchSummary, json_of, summary_of
from cantrip_actors.http import ApiRoute, HttpCall, JsonAnswer, Problem, ServiceExtension
from cantrip_actors.http.bodies import Strict
from cantrip_actors.http.calls import REPLAYED
from cantrip_actors.http.models import Text
from cantrip_actors.http.prefix import strip_prefix
from cantrip_actors.http.problems import report
from cantrip_actors.user_code.threads import run_for_client


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


class DispatchList(BaseModel):
    """Dispatches, by id."""

    items: list[DispatchSummary]


def make_extension(dispatches: Dispatches | None) -> ServiceExtension:
    """Return what serves dispatches: `make_app(service, extensions=[make_extension(Dispatches("work"))])`.

    Without dispatches, the routes say how to name their folder.
    """
    on = _Routes(dispatches)
    summary = {200: DispatchSummary}
    return ServiceExtension(
        "dispatch",
        (
            ApiRoute("GET", "/dispatches", "read", on.list_dispatches, {200: DispatchList}, query=DispatchesQuery),
            ApiRoute("POST", "/dispatches", "dispatch", on.create_dispatch, {201: DispatchSummary}, NewDispatch),
            ApiRoute("GET", "/dispatches/{id}", "read", on.get_dispatch, {200: DispatchJson}),
            ApiRoute("POST", "/dispatches/{id}/approve", "approve", on.approve_dispatch, summary, ApproveDispatch),
            ApiRoute("POST", "/dispatches/{id}/reject", "approve", on.reject_dispatch, summary, RejectDispatch),
            ApiRoute("POST", "/dispatches/{id}/unblock", "dispatch", on.unblock_dispatch, summary, UnblockDispatch),
        ),
        _describe_error,
        None if dispatches is None else DispatchRequests.of(dispatches),
    )


def open_extension(folder: Path | None, seal_key: Path | None) -> ServiceExtension:
    """Return what `cantrip serve --dir FOLDER` serves (the entry point `cantrip_actors.routes`)."""
    return make_extension(None if folder is None else Dispatches(folder, seal_key=seal_key))


class _Routes:
    """The handlers of the routes."""

    def __init__(self, dispatches: Dispatches | None) -> None:
        self._dispatches = dispatches

    async def list_dispatches(self, call: HttpCall) -> JsonAnswer:
        """List the dispatches, and the reason why each waits."""
        log, wanted = self._log(), call.query.status
        if not call.token.sees_all:
            return JsonAnswer({"items": []})
        records = await run_for_client(read_trusted_records, log)
        summaries = [summary_of(record).model_dump() for record in records if wanted in (None, record.status)]
        return JsonAnswer({"items": call.redact_for_token(summaries)})

    async def get_dispatch(self, call: HttpCall) -> JsonAnswer:
        """Return a dispatch: its contract, how it stands, and every entry of its log."""
        log, dispatch_id = self._log_for(call), call.path["id"]
        details = await run_for_client(lambda: json_of(log.read(dispatch_id)).model_dump())
        return JsonAnswer(call.redact_for_token(details))

    async def create_dispatch(self, call: HttpCall) -> JsonAnswer:
        """Dispatch a contract: from then on it is frozen."""
        log, contract = self._log(), call.body.contract
        if not call.token.sees_all:
            raise Problem(403, "tenant", "dispatches belong to no tenant and no cantrip: use a token without them")
        async with _reserve_key(call) as key:
            record, is_replay = await run_for_client(partial(_create, call, log, contract, key))
        headers = {"location": call.locate(f"/dispatches/{record.id}"), **(REPLAYED if is_replay else {})}
        return JsonAnswer(_build_summary(call, record), 201, headers)

    async def approve_dispatch(self, call: HttpCall) -> JsonAnswer:
        """Approve what waits: a dispatch before it starts, a phase, or what is blocked, which is queued again."""
        body: ApproveDispatch = call.body
        return await self._decide(call, "approve", body.note)

    async def reject_dispatch(self, call: HttpCall) -> JsonAnswer:
        """Reject a queued or blocked dispatch for good."""
        body: RejectDispatch = call.body
        return await self._decide(call, "reject", body.reason)

    async def unblock_dispatch(self, call: HttpCall) -> JsonAnswer:
        """Say what removes a blocker: the dispatch is queued again."""
        body: UnblockDispatch = call.body
        return await self._decide(call, "unblock", body.note)

    async def _decide(self, call: HttpCall, decision: Decision, text: str) -> JsonAnswer:
        """Write the events of a human's decision, unless this request has done so before."""
        log, dispatch_id, by = self._log_for(call), call.path["id"], call.token
        async with _reserve_key(call) as key:
            record = await log.read_soon(dispatch_id)
            written = record.written_with(key) if key else None
            if written is not None:
                return JsonAnswer(_build_summary(call, written), headers=REPLAYED)
            events = make_decision(decision, text)
            record = await log.append_soon(dispatch_id, events, by="human", author=by.name, door=by.sender, key=key)
        return JsonAnswer(_build_summary(call, record))

    def _log(self) -> Dispatches:
        """Return the logs of the service. Raises Problem 404."""
        if self._dispatches is None:
            detail = (
                "this service has no dispatches: `cantrip serve --dir DIR`, or CANTRIP_DISPATCHES, names their folder"
            )
            raise Problem(404, "no-dispatches", detail)
        return self._dispatches

    def _log_for(self, call: HttpCall) -> Dispatches:
        """Return the logs, for a request that names a dispatch. Raises Problem 404, also to a token with a tenant."""
        log = self._log()
        if not call.token.sees_all:
            raise Problem(404, "unknown-dispatch", "no dispatch has this id")
        return log


def _create(call: HttpCall, log: Dispatches, contract: dict[str, Any] | str, key: str) -> tuple[Record, bool]:
    """Create a dispatch, unless this request has done so before; return its record, and whether it has."""
    written = find_written(log, key) if key else None
    if written is not None:
        return written, True
    drafted = require_contract(from_markdown(contract) if isinstance(contract, str) else draft(contract))
    by = call.token
    return log.create(drafted, author=by.name, by="human", door=by.sender, key=key), False


@asynccontextmanager
async def _reserve_key(call: HttpCall) -> AsyncIterator[str]:
    """Yield the key of a request for its entries, empty without one; requests with one key run one at a time."""
    async with nullcontext() if call.key is None else call.service.key_lock(f"dispatches\0{call.key}"):
        yield make_entry_key(call.key, [call.token.name, strip_prefix(call.request), call.body.model_dump()])


def _build_summary(call: HttpCall, record: Record) -> Any:
    return call.redact_for_token(summary_of(record).model_dump())


def _describe_error(error: CantripError) -> Problem | None:
    """Return the problem for an error of dispatches, without the paths of the server that its text may have."""
    match error:
        case EventRefused(refusal=refusal):
            return Problem(409, "refused", refusal.text, rule=refusal.rule, legal=list(refusal.legal))
        case DispatchExists():
            return Problem(
                409,
                "dispatch-exists",
                "a contract is written once: give this one another dispatch_id, and name the old one in `supersedes`",
            )
        case UnknownDispatch():
            return Problem(404, "unknown-dispatch", "no dispatch has this id")
        case InvalidContract(violations=violations):
            broken = [
                {"path": violation.field, "line": violation.line, "message": violation.text} for violation in violations
            ]
            return Problem(422, "invalid-contract", str(violations[0]), mistakes=broken)
        case DispatchError():
            return report(error, 507, "dispatch", "the log of the dispatch cannot be read or written")
        case _:
            return None
