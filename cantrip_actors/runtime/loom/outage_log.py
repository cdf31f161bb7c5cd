"""Log lines about work on the loom that is repeated: one when it begins to fail, and one when it succeeds again.

A server may be down for hours, and some work is repeated twice a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError

_log = get_logger("cantrip_actors.runtime")


class OutageLog:
    """Logs `failing` when an attempt raises LoomError, and `working` when one succeeds again."""

    def __init__(self, failing: str, working: str) -> None:
        self._failing = failing
        self._working = working
        self._error: str | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the last attempt failed."""
        return self._error is not None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch one attempt. A LoomError does not leave it: the next attempt follows soon."""
        try:
            yield
        except LoomError as error:
            if str(error) != self._error:
                _log.warning(self._failing, error=str(error))
            self._error = str(error)
        else:
            if self.has_failed:
                _log.info(self._working)
            self._error = None
