"""Outages of the loom: which errors they are, and work that is repeated through them.

A server may be down for hours, and some work is repeated twice a second. So a log has a line when it begins to fail,
and one when it succeeds again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeGuard, TypeVar

import anyio

from cantrip_actors.loom import Unsure
from cantrip_actors.loom.stores.store import Locked
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError

T = TypeVar("T")

LOOK: Final = 0.5
"""Seconds between two attempts of `repeat_through_outages`."""

_log = get_logger("cantrip_actors.runtime")


def is_outage(error: BaseException | None) -> TypeGuard[LoomError]:
    """Return whether an error says that the store could not be reached, or did not answer."""
    return type(error) in (LoomError, Unsure, Locked)


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


async def repeat_through_outages(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work`, which only reads and waits; it is repeated while the loom cannot be reached."""
    while True:
        try:
            return await work()
        except LoomError as error:
            if not is_outage(error):
                raise
        await anyio.sleep(LOOK)


async def write_through_outages(work: Callable[[], Awaitable[T]], is_wanted: Callable[[], bool] = lambda: True) -> T:
    """Return the result of `work`, which ends with a write; it is repeated while it is wanted and has written nothing.

    Raises Unsure if the loom may have the write.
    """
    has_waited = False
    while True:
        try:
            return await work()
        except LoomError as error:
            if not is_outage(error) or isinstance(error, Unsure) or not is_wanted():
                raise
            if not has_waited:
                _log.warning("an intent waits until the loom answers", error=str(error))
            has_waited = True
        await anyio.sleep(LOOK)
