"""The prefix below which an application that mounts the service serves it: ASGI's `root_path`."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request


def strip_prefix(request: Request) -> str:
    """Return the path of a request as the routes of the service have it."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


def add_prefix(request: Request, path: str) -> str:
    """Return a path of the service as its clients have to send it."""
    return quote(request.scope.get("root_path", "")) + path


def service_url(request: Request) -> str:
    """Return the URL of the service by the request's Host, without a slash at its end."""
    return str(request.url.replace(path=add_prefix(request, ""), query=""))
