"""A second attempt where the first says nothing for too long: who speaks first is heard, the other one is ended.

To speak is to send the first piece of an answer or, for a crystal that does not stream, the answer. So nobody hears two
voices, and the one that lost has not been heard at all. It closes its connection at once; what it took stays reserved
(`crystal/limits.py`), since nobody tells how much that was. Where both have answered by then, both were paid for, and
both count.

Each attempt waits for a place of its own; the time until the first speaks is counted from where it got one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio

from cantrip_actors.crystal.contract import NoCall, Query, Through
from cantrip_actors.crystal.terms import Hedge
from cantrip_actors.model.errors import CrystalError
from cantrip_actors.model.messages import NO_USAGE, Response
from cantrip_actors.model.stream import ItemStart, Payload, ResponseStart

__all__ = ["Waits", "hedged"]

_REMEMBERED = 100


class Waits(deque[float]):
    """How long the crystal's last answers took to begin, in seconds."""

    def __init__(self) -> None:
        super().__init__(maxlen=_REMEMBERED)


async def hedged(
    hedge: Hedge,
    waits: Waits,
    through: Through,
    query: Query,
    attempt: Callable[[Query], Awaitable[Response]],
) -> Response:
    """One attempt or two of them, each `through` what limits them. Raises what the one that counts raises."""
    race = _Race(query, waits, through, attempt)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(race.run, 0)
        await race.begun.wait()
        after = hedge.threshold(waits)
        if after is not None and not race.over.is_set():
            with anyio.move_on_after(after):
                await race.sign.wait()
            if not race.sign.is_set():
                tasks.start_soon(race.run, 1)
        await race.over.wait()
        tasks.cancel_scope.cancel()
    return race.result()


class _Race:
    """Up to two attempts at one answer."""

    def __init__(
        self, query: Query, waits: Waits, through: Through, attempt: Callable[[Query], Awaitable[Response]]
    ) -> None:
        self.begun, self.sign, self.over = anyio.Event(), anyio.Event(), anyio.Event()
        self._query, self._waits, self._through, self._attempt = query, waits, through, attempt
        self._scopes: list[anyio.CancelScope] = []
        self._running = 0
        self._winner: int | None = None
        self._response: Response | None = None
        self._errors: list[CrystalError] = []

    async def run(self, number: int) -> None:
        """One attempt, from the queue to its end."""
        since = 0.0

        async def attempt(query: Query) -> Response:
            nonlocal since
            since = anyio.current_time()
            self.begun.set()
            try:
                response = await self._attempt(query)
            except NoCall:
                self._speaks(number, since)
                raise
            # before its place is free again, or the other one would get that
            self._speaks(number, since)
            return response

        def emit(payload: Payload) -> None:
            if isinstance(payload, ItemStart):
                self._speaks(number, since)
            # that an answer will come is told once, and says nothing yet
            heard = number == 0 if isinstance(payload, ResponseStart) else number == self._winner
            if heard and self._query.emit is not None:
                self._query.emit(payload)

        self._running += 1
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                response = await self._through(self._query._replace(emit=emit), attempt)
            except CrystalError as error:
                self._failed(number, error)
            else:
                self._answered(number, response)
        self._running -= 1

    def result(self) -> Response:
        """What came of it."""
        if self._response is None:
            raise self._errors[0]
        if len(self._scopes) == 1:
            return self._response
        return replace(self._response, metadata={**self._response.metadata, "hedged": 1 + (self._winner or 0)})

    def _speaks(self, number: int, since: float) -> None:
        if self._winner is not None:
            return
        self._winner = number
        self._waits.append(anyio.current_time() - since)
        self.sign.set()
        for other, scope in enumerate(self._scopes):
            if other != number:
                scope.cancel()

    def _answered(self, number: int, response: Response) -> None:
        if self._response is None:
            self._response = response
        elif response.usage is not NO_USAGE:
            self._response = replace(self._response, usage=self._response.usage + response.usage)
        if number == self._winner:
            self.over.set()

    def _failed(self, number: int, error: CrystalError) -> None:
        if self._winner is None and self._running > 1:  # the other one may still make it
            self._errors.append(error)
            return
        self._errors.insert(0, error) if number == self._winner else self._errors.append(error)
        if number == self._winner or self._winner is None:
            self.begun.set()
            self.sign.set()
            self.over.set()
