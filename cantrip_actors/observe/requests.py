"""Requests to the HTTP service, as its metrics and spans have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

FinishRequest = Callable[[int, str], object]
"""Called with the status of the answer, and with the error that the request ended with; empty if there is none."""


class HttpRequest(NamedTuple):
    """A request. `route` is a template, without ids; `path` and `scheme` are empty if they are not known."""

    method: str
    route: str
    traceparent: str | None = None
    path: str = ""
    scheme: str = ""


def ignore_end(_status: int, _error: str) -> None:
    """Do nothing at the end of a request."""


def find_error(status: int, error: str) -> str:
    """Return the `error.type` of a request: the class of its error, or the status of a failure of the service.

    A mistake of the client is not an error of the service.
    """
    return error or (str(status) if status >= 500 else "")
