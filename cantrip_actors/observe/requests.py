"""Requests to the HTTP service, as its metrics and spans have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FinishRequest = Callable[[int, str], object]
"""Called with the status of the answer, and with the error that the request ended with; empty if there is none."""


def ignore_end(_status: int, _error: str) -> None:
    """Do nothing at the end of a request."""


@dataclass(slots=True)
class RequestEnd:
    """How a request ended. `error` is the `error.type`; a mistake of the client is not an error of the service."""

    status: int = 0
    error: str = ""

    def note(self, status: int, error: str = "") -> None:
        """Note the status of the answer, and the class of the error, if any."""
        self.status, self.error = status, error or (str(status) if status >= 500 else "")
