"""Hedged queries: start a second attempt when the first is silent for too long, and take the first one that speaks.

An attempt speaks when it sends the first piece of its answer or, for a crystal that does not stream, the whole answer.
So observers never see two answers. The losing attempt closes its connection at once. Its reserved tokens stay reserved
(`limits.py`), because no provider reports how many it used. If both attempts answered in the meantime, both were paid
for and both count.

Each attempt waits for its own admission. The delay before the second attempt counts from the first one's admission.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import anyio

from cantrip_actors.crystal.answer_contract import NotAsAsked
from cantrip_actors.crystal.policy.limited import Hedge
from cantrip_actors.crystal.query import Query, Through
from cantrip_actors.stream.wire import Emitted, ItemStart, ResponseStart
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.terms.messages import NO_USAGE, Response

REMEMBERED: Final = 100
"""How many of the crystal's last answers tell what is slow."""


async def run_hedged(
    hedge: Hedge,
    waits: deque[float],
    through: Through,
    query: Query,
    attempt: Callable[[Query], Awaitable[Response]],
) -> Response:
    """Make one attempt or two, each `through` the crystal's limits. Raises the error of the attempt that counts.

    `waits` are the seconds that the crystal's last answers took to begin.
    """
    race = _Race(query, waits, through, attempt)
    try:
        await race.run_both(hedge)
    except anyio.get_cancelled_exc_class():
        race.report_unanswered()
        raise
    return race.get_result()


class _Race:
    """Up to two attempts at one answer."""

    def __init__(
        self, query: Query, waits: deque[float], through: Through, attempt: Callable[[Query], Awaitable[Response]]
    ) -> None:
        self.begun, self.sign, self.over = anyio.Event(), anyio.Event(), anyio.Event()
        self._query, self._waits, self._through, self._attempt = query, waits, through, attempt
        self._scopes: list[anyio.CancelScope] = []
        self._running = 0
        self._winner: int | None = None
        self._ends: dict[int, Response | CrystalError] = {}
        """The response or the error of each attempt that has ended, by its number."""

    async def run_both(self, hedge: Hedge) -> None:
        """Run an attempt, and another one if it shows no sign for long, until one of them has ended the race."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.run, 0)
            await self.begun.wait()
            after = hedge.threshold(self._waits)
            if after is not None and not self.over.is_set():
                with anyio.move_on_after(after):
                    await self.sign.wait()
                if not self.sign.is_set():
                    tasks.start_soon(self.run, 1)
            await self.over.wait()
            tasks.cancel_scope.cancel()

    async def run(self, number: int) -> None:
        """Run one attempt, from the queue to its end."""
        if self._winner is not None:  # the first attempt has spoken since this one was planned
            return
        since = 0.0

        async def attempt(query: Query) -> Response:
            nonlocal since
            since = anyio.current_time()
            self.begun.set()
            try:
                response = await self._attempt(query)
            except NotAsAsked:
                self._note_sign(number, since)
                raise
            # before its place is free again, or the other attempt would get the place
            self._note_sign(number, since)
            return response

        def emit(payload: Emitted) -> None:
            if isinstance(payload, ItemStart):
                self._note_sign(number, since)
            # the start of a response is emitted once, and is not yet a piece of the answer
            heard = number == 0 if isinstance(payload, ResponseStart) else number == self._winner
            if heard and self._query.emit is not None:
                self._query.emit(payload)

        self._running += 1
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                self._ends[number] = await self._through(self._query._replace(emit=emit), attempt)
            except CrystalError as error:
                self._ends[number] = error
        self._running -= 1
        # without a winner the other attempt may still succeed
        if self._winner == number or (self._winner is None and not self._running):
            self.begun.set()
            self.sign.set()
            self.over.set()

    def get_result(self) -> Response:
        """Return the response of the attempt that counts, or raise its error; with the usage of both attempts."""
        # without a winner both have failed, and the first error counts
        reply = next(iter(self._ends.values())) if self._winner is None else self._ends[self._winner]
        usage = sum((end.usage for end in self._ends.values() if end is not reply), reply.usage)
        if not isinstance(reply, Response):
            reply.usage = usage
            raise reply
        if len(self._scopes) == 1:
            return reply
        metadata = {**reply.metadata, "hedged": 1 + (self._winner or 0)}
        return replace(reply, metadata=metadata, usage=usage)

    def report_unanswered(self) -> None:
        """Charge the attempts that have ended, because the query is cancelled; one under way charges itself."""
        self._query.report_unanswered(sum((end.usage for end in self._ends.values()), NO_USAGE))

    def _note_sign(self, number: int, since: float) -> None:
        if self._winner is not None:
            return
        self._winner = number
        self._waits.append(anyio.current_time() - since)
        self.sign.set()
        for other, scope in enumerate(self._scopes):
            if other != number:
                scope.cancel()
