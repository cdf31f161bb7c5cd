"""Authentication: a bearer token, or the page's cookie, which holds the same token.

A browser sends the cookie with requests from any page, so with a cookie every unsafe method has to come from our page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from cantrip_actors.http.guard import host_name, is_same_origin
from cantrip_actors.http.issuers import IssuerUnreachable
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.protected_resource import make_challenge
from cantrip_actors.http.service import Service
from cantrip_actors.http.token import ANYONE, Token

SECURE: Final = "__Host-cantrip"
PLAIN: Final = "cantrip"
"""The cookie on plain-http loopback, where browsers keep no `__Host-` cookie."""

API_KEY: Final = "x-api-key"
"""The header in which Anthropic's clients send their token. A page cannot make a browser send it, as with
`Authorization`."""

_PORT: Final = re.compile(r":([0-9]+)$")

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


async def authenticate(service: Service, request: Request) -> Token:
    """Return the token of a request.

    Raises Problem 401, 403 for a cookie that another page made a browser send, and 503 if a token cannot be checked.
    """
    header = request.headers.get("authorization")
    if service.logins is not None:
        login = await service.logins.identify(request)
        if login is None:
            headers = make_challenge(service, request)
            raise Problem(401, "token", "expected a login, got a request without one", headers=headers)
        if not header and request.cookies and request.method not in SAFE:
            _check_own_page(request)
        return login
    if service.tokens is None:
        return ANYONE
    text: str | None
    if header is not None:
        kind, _, value = header.partition(" ")
        text = value.strip() if kind.lower() == "bearer" else None
    elif API_KEY in request.headers:
        text = header = request.headers[API_KEY].strip()
    else:
        text = request.cookies.get(_name_cookie(request, SECURE))
        if not text and _is_plain(request):
            text = request.cookies.get(_name_cookie(request, PLAIN))
    try:
        token = None if text is None else await service.tokens.identify(text)
    except IssuerUnreachable as error:
        raise Problem(503, "issuer", str(error), headers={"retry-after": "10"}) from error
    if token is None:
        error_code = "invalid_token" if text is not None and list(service.tokens.issuers) else ""
        headers = make_challenge(service, request, error_code)
        came = "none" if text is None else "one that is unknown, has expired or was revoked"
        raise Problem(
            401, "token", f"expected authorization: Bearer TOKEN with a valid token, got {came}", headers=headers
        )
    if header is None and request.method not in SAFE:
        _check_own_page(request)
    return token


def check_scope(token: Token, scope: str | None) -> None:
    """Raise Problem 403 if a token lacks a scope, or may not use it: `observe` shows all tenants."""
    if scope is not None and not token.allows(scope):
        headers = {"www-authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'}
        raise Problem(403, "scope", f"this token lacks the scope {scope}", headers=headers, scope=scope)
    if scope == "observe" and token.tenant is not None:
        raise Problem(403, "tenant", "this request is about all tenants: use a token without a tenant")


def _check_own_page(request: Request) -> None:
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    if not (site == "same-origin" if site is not None else is_same_origin(origin, request.headers.get("host", ""))):
        raise Problem(403, "cross-site", "a cookie counts for requests of the service's own page only")


def _is_plain(request: Request) -> bool:
    """Return whether the request uses plain http to a loopback address."""
    return request.url.scheme == "http" and host_name(request.headers.get("host", "")) in LOOPBACK


def session_shape(token: Token, scopes: Sequence[str]) -> dict[str, object]:
    """Return the name, scopes and tenant of the page's token; the page shows only allowed actions."""
    return {
        "name": token.name,
        "scopes": [scope for scope in scopes if token.allows(scope)],
        "tenant": token.tenant,
    }


def start_session(request: Request) -> Response:
    """Return the answer that stores the bearer token of a request as the page's cookie."""
    text = request.headers.get("authorization", "").partition(" ")[2].strip()
    answer = Response(status_code=204)
    plain = _is_plain(request)
    name = _name_cookie(request, PLAIN if plain else SECURE)
    answer.set_cookie(name, text, path="/", secure=not plain, httponly=True, samesite="strict")
    return answer


def _name_cookie(request: Request, name: str) -> str:
    """Return the name of the page's cookie, which has the port and the prefix of the service: a browser sends a cookie
    to all ports of a host, and a `__Host-` cookie to all paths.
    """
    port = _PORT.search(request.headers.get("host", ""))
    parts = (name, port and port[1], quote(request.scope.get("root_path", ""), safe=""))
    return "-".join(part for part in parts if part)
