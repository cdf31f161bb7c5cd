"""An authorization server on a socket of its own: it registers clients, lets everyone log in, and signs tokens."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import anyio
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from cantrip_actors.http import ServiceSettings
from cantrip_actors.http.server import listen, run_hypercorn


@dataclass
class LoginServer:
    """An authorization server that answers. `resources` are those for which clients wanted tokens."""

    url: str = ""
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    key_id: str = "first"
    lasts: int = 3600
    claims: dict[str, Any] = field(default_factory=dict)
    """Further claims of the tokens that people get."""
    resources: list[str] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)
    """What clients wanted."""
    fetches: int = 0
    """How often the keys were fetched."""

    def sign(self, *, algorithm: str = "ES256", key: Any = None, key_id: str | None = None, **claims: Any) -> str:
        """Return a token with these claims; one of None is left out."""
        usual = {"iss": self.url, "sub": "alice", "client_id": "editor", "exp": int(time.time()) + self.lasts}
        whole = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        secret: Any = None if algorithm == "none" else key or self.key
        return jwt.encode(whole, secret, algorithm, headers={"kid": key_id or self.key_id, "typ": "at+jwt"})

    def renew_key(self) -> None:
        """Use another key from now on, and publish only that one."""
        self.key, self.key_id = ec.generate_private_key(ec.SECP256R1()), "second"


@asynccontextmanager
async def login_server() -> AsyncIterator[LoginServer]:
    """Serve an authorization server on a free port."""
    server = LoginServer()

    async def metadata(_: Request) -> Response:
        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "registration_endpoint": "register"}
        return JSONResponse(
            {
                "issuer": server.url,
                **{name: f"{server.url}/{path}" for name, path in names.items()},
                "jwks_uri": f"{server.url}/keys",
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            }
        )

    async def keys(_: Request) -> Response:
        server.fetches += 1
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(server.key.public_key()))
        return JSONResponse({"keys": [{**public, "kid": server.key_id, "use": "sig"}]})

    async def register(request: Request) -> Response:
        return JSONResponse({**await request.json(), "client_id": "editor"}, 201)

    async def authorize(request: Request) -> Response:
        query = request.query_params
        server.resources.append(query.get("resource", ""))
        server.scopes.append(query.get("scope", ""))
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode({'code': 'a-code', 'state': query['state']})}")

    async def token(request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        signed = server.sign(aud=form["resource"], scope=server.scopes[-1], **server.claims)
        return JSONResponse({"access_token": signed, "token_type": "Bearer", "expires_in": server.lasts})

    app = Starlette(
        routes=[
            Route("/.well-known/oauth-authorization-server", metadata),
            Route("/keys", keys),
            Route("/register", register, methods=["POST"]),
            Route("/authorize", authorize),
            Route("/token", token, methods=["POST"]),
        ]
    )
    stop, is_up = anyio.Event(), anyio.Event()
    listener, server.url = listen(ServiceSettings("memory:", bind="127.0.0.1:0"))

    async def started() -> None:
        is_up.set()
        await stop.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_hypercorn, app, listener, started)
        await is_up.wait()
        try:
            yield server
        finally:
            stop.set()
