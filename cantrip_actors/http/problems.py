"""Errors as RFC 9457 problems: client errors, missing things, and temporary failures.

A problem has a `type` (`urn:cantrip:held`), a `title`, a `status` and a `detail`; some have more. An error without a
row here is a bug: its problem has only an `error_id`, which the log has with the traceback.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from cantrip_actors.loom import Held, InboxFull, KeyUsed, Quarantined, QueueFull
from cantrip_actors.records.codec import dump_json
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.face.work import NoAnswer
from cantrip_actors.terms.errors import (
    AllowanceSpent,
    AlreadyDecided,
    AnswerMisfit,
    AskCycle,
    CantripError,
    CantripUnknown,
    CrystalError,
    DependenciesUnknown,
    EntityEnded,
    EntityInterrupted,
    InvalidCantrip,
    InvalidDecision,
    InvalidFile,
    InvalidImage,
    InvalidIntent,
    InvalidSchedule,
    LoomError,
    NameTaken,
    ProviderError,
    RuntimeClosed,
    Stranded,
    Truncated,
    UnfinishedWork,
    UnknownEntity,
    UnknownRequest,
    Withdrawn,
)

SOON: Final = {"retry-after": "1"}
DAY: Final = 86_400
"""The most seconds after which a client is told to try again."""

_log = get_logger("cantrip_actors.http")


class Problem(Exception):  # the RFC's word
    """A problem as the answer to a request. `more` are further members of the problem."""

    def __init__(
        self, status: int, kind: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = more

    def response(self, redact: Callable[[Any], Any] = lambda value: value) -> Response:
        """Return the answer; `redact` takes secrets out of a JSON value."""
        members = {
            "type": f"urn:cantrip:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }
        body = dump_json(redact(members), mark=False)
        return Response(body, self.status, self.headers, media_type="application/problem+json")


class _ErrorRow(NamedTuple):
    error: type[CantripError]
    status: int
    kind: str
    later: bool = False
    """True if the same request may succeed later."""
    detail: str = ""
    """The text for clients, if the error's own text is for programs in Python."""


_ROWS: Final = (
    _ErrorRow(NameTaken, 409, "name-taken"),
    _ErrorRow(InvalidIntent, 422, "invalid-intent"),
    _ErrorRow(InvalidImage, 422, "invalid-image"),
    _ErrorRow(InvalidFile, 422, "invalid-file"),
    _ErrorRow(InvalidCantrip, 422, "invalid-cantrip"),
    _ErrorRow(InvalidSchedule, 422, "invalid-schedule"),
    _ErrorRow(InvalidDecision, 422, "invalid-decision"),
    _ErrorRow(KeyUsed, 422, "idempotency-key-reused"),
    _ErrorRow(Held, 409, "held"),
    _ErrorRow(Quarantined, 409, "quarantined"),
    _ErrorRow(NoAnswer, 504, "no-answer", later=True),
    _ErrorRow(Stranded, 503, "stranded", later=True),
    _ErrorRow(
        CantripUnknown,
        409,
        "cantrip-unknown",
        detail="this service offers no cantrip with which it can continue: the person who runs the service continues "
        "it with another version by `cantrip resume`, or serves the one that it began with",
    ),
    _ErrorRow(
        DependenciesUnknown,
        503,
        "dependencies-unknown",
        later=True,
        detail="this service cannot say which dependencies the gates of this entity have: another process may continue "
        "it, or the person who runs the service gives them",
    ),
    _ErrorRow(EntityEnded, 409, "ended"),
    _ErrorRow(EntityInterrupted, 409, "interrupted"),
    _ErrorRow(AlreadyDecided, 409, "already-decided"),
    _ErrorRow(AskCycle, 409, "ask-cycle"),
    _ErrorRow(Withdrawn, 409, "withdrawn"),
    _ErrorRow(UnfinishedWork, 409, "unfinished"),
    _ErrorRow(UnknownEntity, 404, "unknown-entity", detail="no entity has this id or name"),
    _ErrorRow(UnknownRequest, 404, "unknown-request", detail="no request has this id: GET /api/v1/requests lists them"),
    _ErrorRow(InboxFull, 429, "inbox-full", later=True),
    _ErrorRow(QueueFull, 429, "queue-full", later=True),
    _ErrorRow(
        RuntimeClosed, 503, "closing", later=True, detail="the service shuts down, or its loom restarts: try again"
    ),
    _ErrorRow(Truncated, 502, "truncated"),
    _ErrorRow(ProviderError, 502, "provider"),
    _ErrorRow(CrystalError, 502, "crystal"),
    _ErrorRow(AnswerMisfit, 500, "answer-misfit"),
)
"""The rows; the first one whose class matches an error is used."""


def problem_of(error: CantripError) -> Problem:
    """Return the problem for an error of the runtime."""
    more: dict[str, Any] = {} if error.entity_id is None else {"entity_id": error.entity_id}
    wait = getattr(error, "retry_after", None)
    if isinstance(error, ProviderError) and isinstance(wait, (int, float)):  # a breaker is open, or a limit is met
        seconds = math.ceil(min(DAY, max(1, wait)))  # a crystal may name any number, also NaN
        return Problem(503, "provider-busy", str(error), headers={"retry-after": str(seconds)}, **more)
    if isinstance(error, AllowanceSpent):
        detail = f"{'this token' if error.by else 'the service'} may have a cost of ${error.most:g} a {error.per}"
        later = {"retry-after": str(math.ceil(error.retry_after))}
        return Problem(429, "too-many", detail, headers=later, limit=f"cost_per_{error.per}")
    if isinstance(error, AlreadyDecided):
        more |= {"decision": error.decision, "by": error.by, "at": error.at, "note": error.note}
    if isinstance(error, Truncated):
        more |= {"reason": error.reason, "ward": error.ward}
    if isinstance(error, Held) and error.holder is not None:
        more["holder"] = error.holder
    if isinstance(error, CantripUnknown):
        more |= {"cantrip": error.cantrip_name, "cantrip_id": error.cantrip_id}
    for row in _ROWS:
        if isinstance(error, row.error):
            headers = SOON if row.later else None
            return Problem(row.status, row.kind, row.detail or str(error), headers=headers, **more)
    if isinstance(error, LoomError):  # its text may name a file on the server
        return report(error, 507, "loom", "the loom cannot be read or written", **more)
    return report(error, 500, "failed", "the entity failed", **more)


async def answer_error(_request: Request, error: Exception) -> Response:
    """Answer a request of a service of your own that raised an error: with its problem, as `cantrip serve` answers it.

    It is an exception handler of Starlette and FastAPI, for three kinds of errors: `exception_handlers={CantripError:
    answer_error, TimeoutError: answer_error, Problem: answer_error}`. A TimeoutError is answered with 503: the client
    sends the request again, with the same key. Any other error is a bug: it is logged, and answered with 500.
    """
    if isinstance(error, Problem):
        return error.response()
    if isinstance(error, CantripError):
        return problem_of(error).response()
    if isinstance(error, TimeoutError):
        detail = "the work takes longer than this request waits: send it again, with the same key"
        return Problem(503, "no-answer", detail, headers=SOON).response()
    return report(error).response()


DescribeError = Callable[[CantripError], Problem | None]
"""Returns the problem for an error; None for one that it does not know."""


def describe_no_error(_error: CantripError) -> Problem | None:
    """Return None: the service's own table of errors is used."""
    return None


def make_revoked() -> Problem:
    """Return the problem of a request whose token was revoked, or expired, while it was answered."""
    challenge = {"www-authenticate": 'Bearer error="invalid_token"'}
    return Problem(401, "token", "the token is no longer valid", headers=challenge)


def report(error: Exception, status: int = 500, kind: str = "internal", detail: str = "", **more: Any) -> Problem:
    """Log an error with its traceback, and return a problem that has only its id."""
    error_id = str(uuid.uuid4())
    _log.error("a request failed", error_id=error_id, kind=kind, exc_info=error)
    summary = detail or "the server made a mistake"
    return Problem(status, kind, f"{summary}: its log has more under this error_id", error_id=error_id, **more)
