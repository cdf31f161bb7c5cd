"""Limits of each token: requests a second, casts at a time, open event streams, cost a day.

Each 429 says which one was met.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import anyio
from anyio import to_thread

from cantrip_actors.http.problems import Problem
from cantrip_actors.http.spending import Spending
from cantrip_actors.http.tokens import Token


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """The limits of one token, and of one request.

    `body` is in bytes. `rate` requests a second are allowed on average, `burst` at once. At most `casts` entities that
    a token began may be active, and at most `streams` event streams open. A client may leave an event stream unread,
    or a body unsent, for `patience` seconds. `longest_wait` is the largest `wait`, in seconds.
    """

    body: int = 1 << 20
    rate: float = 50.0
    burst: float = 100.0
    casts: int = 16
    streams: int = 32
    patience: float = 30.0
    longest_wait: float = 300.0


@dataclass(slots=True)
class _Use:
    """The usage of one token."""

    left: float
    at: float
    streams: int = 0
    starting: int = 0
    casts: dict[str, None] = field(default_factory=dict)


class Limiter:
    """Counts the usage of each token."""

    def __init__(
        self, limits: ServiceLimits, find_busy: Callable[[Iterable[str]], Awaitable[frozenset[str]]], spending: Spending
    ) -> None:
        self.limits = limits
        self._find_busy = find_busy
        self._spending = spending
        self._uses: dict[str, _Use] = {}

    def _of(self, token: Token) -> _Use:
        use = self._uses.get(token.name)
        if use is None:
            use = self._uses[token.name] = _Use(self.limits.burst, anyio.current_time())
        return use

    def count_request(self, token: Token) -> None:
        """Count a request. Raises Problem 429."""
        use, now = self._of(token), anyio.current_time()
        use.left = min(self.limits.burst, use.left + (now - use.at) * self.limits.rate)
        use.at = now
        if use.left < 1:
            _refuse("rate", f"{self.limits.rate:g} requests a second", math.ceil((1 - use.left) / self.limits.rate))
        use.left -= 1

    async def check_cost(self, token: Token) -> None:
        """Raise Problem 429 if the token has spent what it may spend today."""
        most = token.max_cost_per_day
        if most is not None and await to_thread.run_sync(self._spending.today, token.sender) >= most:
            _refuse("cost_per_day", f"a cost of ${most:g} a day", self._spending.seconds_left())

    @asynccontextmanager
    async def reserve_start(self, token: Token) -> AsyncIterator[Callable[[str], None]]:
        """Reserve a place for an entity that the block begins; yield a function that counts it.

        Raises Problem 429 if this token has spent what it may spend today, or has its maximum of active entities.
        """
        await self.check_cost(token)
        use, most = self._of(token), token.max_concurrent or self.limits.casts
        if len(use.casts) + use.starting >= most:  # some may be active no more
            ids = list(use.casts)
            busy = await self._find_busy(ids)
            for entity_id in ids:
                if entity_id not in busy:
                    use.casts.pop(entity_id, None)
        if len(use.casts) + use.starting >= most:
            _refuse("concurrent_casts", f"{most} casts at a time", 1)

        def count(entity_id: str) -> None:
            use.casts[entity_id] = None

        use.starting += 1
        try:
            yield count
        finally:
            use.starting -= 1

    @contextmanager
    def stream(self, token: Token) -> Iterator[None]:
        """Count an event stream while the block runs. Raises Problem 429."""
        use = self._of(token)
        if use.streams >= self.limits.streams:
            _refuse("event_streams", f"{self.limits.streams} open event streams", 5)
        use.streams += 1
        try:
            yield
        finally:
            use.streams -= 1


def _refuse(limit: str, what: str, after: int) -> NoReturn:
    headers = {"retry-after": str(max(1, after))}
    raise Problem(429, "too-many", f"this token may have {what}", headers=headers, limit=limit)
