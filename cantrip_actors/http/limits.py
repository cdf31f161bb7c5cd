"""Limits of each token: requests a minute, casts at a time, open streams, the size of a body.

The runtime bounds the spending of a token (`Runtime.set_allowance`).

The service has limits for all tokens; a token's own limits replace them. Each 429 names the limit, and the seconds
after which to try again.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

import anyio

from cantrip_actors.http.problems import Problem
from cantrip_actors.http.token import Token

MIB: Final = 1 << 20
"""The unit of sizes of bodies in the command line and in files of tokens."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """The limits of one token, and of one request.

    `body` is in bytes. `rate` requests a second are allowed on average, `burst` at once. At most `casts` entities that
    a token began may be active, which those that wait for a person or a client are not, and at most `streams` streams
    open: of events, of OpenAI's API, of MCP sessions, and exports. A client may leave a stream unread, or a body
    unsent, for `patience` seconds. `longest_wait` is the largest `wait`, in seconds, and how long undo and compact wait
    for their entity.
    """

    body: int = 1 << 20
    rate: float = 50.0
    burst: float = 100.0
    casts: int = 16
    streams: int = 32
    patience: float = 30.0
    longest_wait: float = 300.0

    def with_requests_per_minute(self, requests: float) -> ServiceLimits:
        """Return these limits with another rate: so many requests a minute, all of them at once if need be."""
        return replace(self, rate=requests / 60, burst=max(1.0, requests))

    def of(self, token: Token) -> ServiceLimits:
        """Return the limits of a token: its own ones, and these for the others."""
        limits = self
        if token.requests_per_minute is not None:
            limits = limits.with_requests_per_minute(token.requests_per_minute)
        return replace(
            limits,
            body=limits.body if token.max_body is None else int(token.max_body * MIB),
            casts=token.max_concurrent or limits.casts,
            streams=token.max_streams or limits.streams,
        )


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

    def __init__(self, limits: ServiceLimits, find_busy: Callable[[Iterable[str]], Awaitable[frozenset[str]]]) -> None:
        self.limits = limits
        self._find_busy = find_busy
        self._uses: dict[str, _Use] = {}

    def _of(self, token: Token) -> _Use:
        use = self._uses.get(token.name)
        if use is None:
            use = self._uses[token.name] = _Use(math.inf, anyio.current_time())
        return use

    def count_request(self, token: Token) -> None:
        """Count a request. Raises Problem 429."""
        use, limits, now = self._of(token), self.limits.of(token), anyio.current_time()
        use.left = min(limits.burst, use.left + (now - use.at) * limits.rate)
        use.at = now
        if use.left < 1:
            per_minute = f"{limits.rate * 60:g} requests a minute"
            _refuse("rate", per_minute, math.ceil((1 - use.left) / limits.rate))
        use.left -= 1

    @asynccontextmanager
    async def reserve_start(self, token: Token) -> AsyncIterator[Callable[[str], None]]:
        """Reserve a place for an entity that the block begins; yield a function that counts it.

        Raises Problem 429 if this token has its maximum of active entities.
        """
        use, most = self._of(token), self.limits.of(token).casts
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
        """Count an open stream while the block runs. Raises Problem 429."""
        use, most = self._of(token), self.limits.of(token).streams
        if use.streams >= most:
            _refuse("event_streams", f"{most} open streams", 5)
        use.streams += 1
        try:
            yield
        finally:
            use.streams -= 1


def _refuse(limit: str, what: str, after: int) -> NoReturn:
    headers = {"retry-after": str(max(1, after))}
    raise Problem(429, "too-many", f"this token may have {what}", headers=headers, limit=limit)
