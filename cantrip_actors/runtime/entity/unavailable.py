"""Call code beside an entity, and wait while its service is away: it raises `Unavailable`, which is no crash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.events.context_variables import Asker
from cantrip_actors.terms.errors import Unavailable

T = TypeVar("T")

_log = get_logger("cantrip_actors.runtime")


async def call_until_available(work: Callable[[], Awaitable[T]], entity_id: str) -> T:
    """Return the result of `work()`; while it raises Unavailable, wait as long as it says, and call it again."""
    while True:
        try:
            with Asker(entity_id):
                return await work()
        except Unavailable as error:
            seconds = error.retry_after
            _log.warning("an entity waits for a service", entity=entity_id, seconds=seconds, why=str(error))
        await anyio.sleep(seconds)
