"""The page of an approval link: it shows one call or question, and takes one decision or reply. The token in its path
is the permission.

The page has no script, and only `POST` decides, so that a program that opens links before people see them cannot
decide.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from html import escape
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from cantrip_actors import AlreadyDecided, EntityEnded, InvalidDecision, Request, UnknownEntity, UnknownRequest
from cantrip_actors.http.bodies import read_body
from cantrip_actors.http.endpoint import Endpoint
from cantrip_actors.http.service import Service
from cantrip_actors.runtime.people.approval_link import PATH, PURPOSE, LinkExpired, read_link_token
from cantrip_actors.runtime.people.request import parse_answer

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-robots-tag": "noindex",
}
_LARGEST: Final = 200_000
"""Bytes of the form: of a reply, in the encoding of forms."""

GONE: Final = "This request was decided already, or its entity has ended."

AUTHOR: Final = "an approval link"
"""The name of the author of a decision."""


def approval_routes(service: Service) -> list[Route]:
    """Return the routes of approval links; they need no other token than that of the link."""
    return [
        Route(f"{PATH}{{token}}", Endpoint(service, f"{PATH}{{token}}", _bind(service, work)), methods=[method])
        for method, work in (("GET", _show), ("POST", _decide))
    ]


def _bind(
    service: Service, work: Callable[[Service, HttpRequest, str], Awaitable[Response]]
) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def answer(request: HttpRequest) -> Response:
        key, now = service.runtime.derive_key(PURPOSE), time.time()
        try:
            request_id = read_link_token(key, request.path_params["token"], now)
        except LinkExpired:
            return _make_page(410, "This link has expired. Ask for a new one, or decide at another place.")
        if request_id is None:
            return _make_page(404, "This link is not valid.")
        return await work(service, request, request_id)

    return answer


async def _show(service: Service, _request: HttpRequest, request_id: str) -> Response:
    found = await _find(service, request_id)
    if found is None:
        return _make_page(410, GONE)
    lines = service.runtime.redact("\n".join(found.render(columns=100)))
    if found.kind == "question":
        title = "An agent waits for your reply."
        fields = '<p><textarea name="reply" rows="8" required></textarea></p><button>Send</button>'
    else:
        title = "An agent asks before it acts."
        fields = "".join(
            f'<button name="decision" value="{value}">{name}</button> '
            for value, name in (("allow", "Allow"), ("deny", "Deny"))
        )
    return _make_page(200, title, f'<pre>{escape(lines)}</pre><form method="post">{fields}</form>')


async def _decide(service: Service, request: HttpRequest, request_id: str) -> Response:
    body = await read_body(request, _LARGEST, service.limiter.limits.patience)
    form = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
    found = await _find(service, request_id)
    if found is None:
        return _make_page(410, GONE)
    if found.kind == "question":
        reply = form.get("reply", "").replace("\r\n", "\n").strip()
        if not reply:
            return _make_page(422, "Expected a reply: go back, and write one.")
        decision: dict[str, Any] = {"answer": parse_answer(reply, found.schema)}
        done = "Your reply is sent."
    elif form.get("decision") in ("allow", "deny"):
        decision = {"decision": form["decision"]}
        done = "The call is allowed." if form["decision"] == "allow" else "The call is denied."
    else:
        return _make_page(422, "Expected one of the two decisions: go back, and choose one.")
    try:
        await service.runtime.decide(request_id, **decision, by=AUTHOR)
    except AlreadyDecided as error:
        return _make_page(409, f"This request was decided already: {error}")
    except (UnknownRequest, EntityEnded):
        return _make_page(410, GONE)
    except InvalidDecision as error:
        return _make_page(422, f"This reply does not fit: {service.runtime.redact(str(error))}")
    return _make_page(200, done)


async def _find(service: Service, request_id: str) -> Request | None:
    entity_id = request_id.partition(":")[0]
    try:
        requests = await service.runtime.read(lambda: service.runtime.requests(entity=entity_id))
    except UnknownEntity:  # it was forgotten
        return None
    return next((open_request for open_request in requests if open_request.id == request_id), None)


def _make_page(status: int, text: str, body: str = "") -> Response:
    style = "body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    style += "pre{overflow:auto}textarea{width:100%}"
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    page = f"{head}<title>An agent waits</title><style>{style}</style><h1>{escape(text)}</h1>{body}</html>"
    return HTMLResponse(page, status, HEADERS)
