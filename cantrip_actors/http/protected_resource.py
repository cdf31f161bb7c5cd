"""Where clients log in: the metadata of a protected resource (RFC 9728), and the challenge of a 401 that names it.

A connector that is given only the URL of `/mcp` gets 401, reads the metadata, logs in at the authorization server that
is named there, and comes back with a token for this resource.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cantrip_actors.http.endpoint import Endpoint
from cantrip_actors.http.prefix import service_url, strip_prefix
from cantrip_actors.http.service import Service

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
MCP: Final = "/mcp"


def metadata_routes(service: Service) -> list[Route]:
    """Return the routes of the metadata: of the whole service, and of `/mcp`."""
    return [_make_route(service, ""), _make_route(service, MCP)]


def _make_route(service: Service, path: str) -> Route:
    async def metadata(request: Request) -> Response:
        return JSONResponse(describe_resource(service, request, path))

    return Route(WELL_KNOWN + path, Endpoint(service, WELL_KNOWN + path, metadata), methods=["GET"])


def describe_resource(service: Service, request: Request, path: str) -> dict[str, Any]:
    """Return the metadata of the resource at a path of this service."""
    issuers = [] if service.tokens is None else list(service.tokens.issuers)
    scopes = (
        {scope for issuer in issuers for scope in issuer.rights.scopes} if issuers else set(service.scopes) - {"admin"}
    )
    metadata: dict[str, Any] = {
        "resource": find_base(service, request) + path,
        "resource_name": "cantrip",
        "scopes_supported": [scope for scope in service.scopes if scope in scopes],
        "bearer_methods_supported": ["header"],
    }
    if issuers:
        metadata["authorization_servers"] = [issuer.url for issuer in issuers]
    return metadata


def find_base(service: Service, request: Request) -> str:
    """Return the URL of the service: the configured one, or that of the request, whose Host was checked."""
    for issuer in () if service.tokens is None else service.tokens.issuers:
        return issuer.resource
    return service_url(request)


def make_challenge(service: Service, request: Request, error: str = "") -> dict[str, str]:
    """Return the header of a 401: it names the error, and the place to log in at `/mcp` and at routes for people."""
    facts = {"error": error}
    is_mcp = strip_prefix(request) == MCP
    if is_mcp or (service.tokens is not None and list(service.tokens.issuers)):
        facts["resource_metadata"] = find_base(service, request) + WELL_KNOWN + (MCP if is_mcp else "")
    shown = ", ".join(f'{name}="{value}"' for name, value in facts.items() if value)
    return {"www-authenticate": f"Bearer {shown}".rstrip()}
