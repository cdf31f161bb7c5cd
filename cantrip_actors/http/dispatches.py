"""Dispatches over HTTP, as `cantrip dispatch`: list, read and create them, approve, reject and unblock them.

A decision is an entry of the dispatch's log, in the capacity of a human, by the token's name. Dispatches belong to no
tenant: a token with one sees none. Their files are read and written in threads.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import Any, Final

from anyio import to_thread

from cantrip_actors import InvalidDecision, Request
from cantrip_actors.dispatch import (
    Contract,
    Dispatches,
    Event,
    InvalidContract,
    Record,
    StatusChanged,
    UnreadableContract,
    draft,
    from_markdown,
    summary_of,
)
from cantrip_actors.dispatch.events import encode_entry
from cantrip_actors.dispatch.log import find_written, read_trusted_records
from cantrip_actors.dispatch.record import make_approval, make_unblocking
from cantrip_actors.dispatch.requests import DispatchRequests
from cantrip_actors.http import models
from cantrip_actors.http.calls import REPLAYED, HttpCall, JsonAnswer
from cantrip_actors.http.entities import check_cursor
from cantrip_actors.http.problems import Problem
from cantrip_actors.loom.selection import Page

PREFIX: Final = "dispatch:"
"""The prefix of the ids of dispatches' requests."""


# Look


async def list_dispatches(call: HttpCall) -> JsonAnswer:
    """List the dispatches, and the reason why each waits."""
    log, wanted = _log(call), call.query.status
    if not call.token.sees_all:
        return JsonAnswer({"items": []})
    records = await to_thread.run_sync(read_trusted_records, log)
    summaries = [summary_of(record)._asdict() for record in records if wanted in (None, record.status)]
    return JsonAnswer({"items": call.redact_for_token(summaries)})


async def get_dispatch(call: HttpCall) -> JsonAnswer:
    """Return a dispatch: its contract, how it stands, and every entry of its log."""
    shape = await to_thread.run_sync(_build_shape, _log_of(call), call.path["id"])
    return JsonAnswer(call.redact_for_token(shape))


def _build_shape(log: Dispatches, dispatch_id: str) -> dict[str, Any]:
    record = log.read(dispatch_id)
    return {
        **summary_of(record)._asdict(),
        "contract": record.contract.as_json(),
        "contract_hash": record.contract.hash,
        "unmet": record.unmet,
        "closed": record.closed,
        "entries": [json.loads(encode_entry(entry)) for entry in record.entries],
    }


# Create and decide


async def create_dispatch(call: HttpCall) -> JsonAnswer:
    """Dispatch a contract: from then on it is frozen."""
    log, contract = _log(call), call.body.contract
    if not call.token.sees_all:
        raise Problem(403, "tenant", "dispatches belong to no tenant and no cantrip: use a token without them")
    async with _reserve_key(call) as key:
        record, is_replay = await to_thread.run_sync(partial(_create, call, log, contract, key))
    headers = {"location": f"/api/v1/dispatches/{record.id}", **(REPLAYED if is_replay else {})}
    return JsonAnswer(_build_summary(call, record), 201, headers)


def _create(call: HttpCall, log: Dispatches, contract: dict[str, Any] | str, key: str) -> tuple[Record, bool]:
    """Create a dispatch, unless this request has done so before; return its record, and whether it has."""
    written = find_written(log, key) if key else None
    if written is not None:
        return written, True
    by = call.token
    return log.create(_parse_contract(contract), author=by.name, by="human", door=by.sender, key=key), False


def _parse_contract(contract: dict[str, Any] | str) -> Contract:
    """Return a contract. Raises InvalidContract and UnreadableContract, with all mistakes."""
    if isinstance(contract, str):
        read = from_markdown(contract)
        if not isinstance(read, Contract):
            raise UnreadableContract("the text", read)
        return read
    drafted = draft(contract)
    if not isinstance(drafted, Contract):
        raise InvalidContract(drafted)
    return drafted


async def approve_dispatch(call: HttpCall) -> JsonAnswer:
    """Approve what waits for it: a dispatch before it starts, a phase, or what is blocked, which is queued again."""
    body: models.ApproveDispatch = call.body
    return await _decide(call, lambda record: make_approval(record, body.note))


async def reject_dispatch(call: HttpCall) -> JsonAnswer:
    """Reject a queued or blocked dispatch for good."""
    body: models.RejectDispatch = call.body
    return await _decide(call, lambda _: [StatusChanged("rejected", reason=body.reason)])


async def unblock_dispatch(call: HttpCall) -> JsonAnswer:
    """Say what removes a blocker: the dispatch is queued again."""
    body: models.UnblockDispatch = call.body
    return await _decide(call, lambda record: make_unblocking(record, body.note))


async def _decide(call: HttpCall, decide: Callable[[Record], Iterable[Event]]) -> JsonAnswer:
    """Write the events of a human's decision, unless this request has done so before."""
    log, dispatch_id, by = _log_of(call), call.path["id"], call.token
    async with _reserve_key(call) as key:
        record = await log.read_soon(dispatch_id)
        written = record.written_with(key) if key else None
        if written is not None:
            return JsonAnswer(_build_summary(call, written), headers=REPLAYED)
        events = decide(record)
        record = await log.append_soon(dispatch_id, *events, by="human", author=by.name, door=by.sender, key=key)
    return JsonAnswer(_build_summary(call, record))


# Requests


async def read_request_page(call: HttpCall, cursor: str | None, limit: int) -> Page[Request]:
    """Return a page of the open requests, the oldest first; the first page has those of the dispatches, too."""
    await call.read(lambda: check_cursor(call.runtime.loom, cursor))
    page = await call.runtime.list_requests(after=cursor, limit=limit)
    if call.token.cantrips is not None:
        listed = page
        seen = await call.read(lambda: [request for request in listed if call.sees(request.entity or "")])
        page = Page(seen, listed.next)
    log = call.service.dispatches
    if log is None or not call.token.sees_all or cursor is not None:
        return page
    of_dispatches = await to_thread.run_sync(DispatchRequests(log.folder, log).open)
    by_id = {request.id: request for request in (*page, *of_dispatches)}
    return Page(sorted(by_id.values(), key=lambda request: request.asked_at), page.next)


def is_of_dispatch(call: HttpCall, request_id: str) -> bool:
    """Return whether the id of a request is one of the service's dispatches, for this token."""
    return call.service.dispatches is not None and call.token.sees_all and request_id.startswith(PREFIX)


async def decide_dispatch(call: HttpCall, request_id: str) -> JsonAnswer:
    """Decide the request of a dispatch: "allow" approves it, "deny" rejects it."""
    body: models.DecideBody = call.body
    if body.decision is None or body.answer is not None or body.args is not None or body.remember != "once":
        raise InvalidDecision(f'request {request_id}: expected "allow" or "deny", a note, and nothing else')
    log, by = _log_of(call), call.token
    async with _reserve_key(call) as key:
        record = await log.read_soon(request_id.removeprefix(PREFIX))
        is_repeated = any(entry.key == key for entry in record.entries) if key else False
        await DispatchRequests(log.folder, log).decide(
            request_id, body.decision, by=by.name, note=body.note, door=by.sender, key=key
        )
    content = {"id": request_id, "decision": body.decision, "by": by.name}
    return JsonAnswer(content, headers=REPLAYED if is_repeated else None)


# Shared


def _log(call: HttpCall) -> Dispatches:
    """Return the logs of the service. Raises Problem 404."""
    log = call.service.dispatches
    if log is None:
        detail = "this service has no dispatches: `cantrip serve --dir DIR`, or CANTRIP_DISPATCHES, names their folder"
        raise Problem(404, "no-dispatches", detail)
    return log


def _log_of(call: HttpCall) -> Dispatches:
    """Return the logs of the service, for what names a dispatch. Raises Problem 404, also to a token with a tenant."""
    log = _log(call)
    if not call.token.sees_all:
        raise Problem(404, "unknown-dispatch", "no dispatch has this id")
    return log


@asynccontextmanager
async def _reserve_key(call: HttpCall) -> AsyncIterator[str]:
    """Yield the key of a request for its entries, empty without one; requests with one key run one at a time."""
    if call.key is None:
        yield ""
        return
    content = [call.token.name, call.request.url.path, call.body.model_dump()]
    digest = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    async with call.service.key_lock(f"dispatches\0{call.key}"):
        yield f"{call.key} {digest}"


def _build_summary(call: HttpCall, record: Record) -> Any:
    return call.redact_for_token(summary_of(record)._asdict())
