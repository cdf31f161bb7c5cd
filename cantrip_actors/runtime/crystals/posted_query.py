"""A query that a crystal accepted and answers later, as a batch; its entity soon waits without a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from cantrip_actors.crystal.query import PostingCrystal, Query
from cantrip_actors.machine.events import Failed, Posted, Replied
from cantrip_actors.runtime.crystals.crystal_actor import Watched
from cantrip_actors.runtime.crystals.querying import query_crystal
from cantrip_actors.runtime.entity.awaited import Awaited
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.entity.one_shot_event import OneShotEvent
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.terms.messages import Response
from cantrip_actors.terms.outcome import EndReason


class PostedQuery(Awaited):
    """The answer to a posted query. `replied` makes an event of a reply."""

    __slots__ = ("_cell", "_query", "_replied", "_watched")
    kind: ClassVar[Literal["", "children", "crystal"]] = "crystal"

    def __init__(
        self,
        cell: Cell,
        query: Query,
        replied: Callable[[Response | CrystalError], Replied | Posted | Failed],
    ) -> None:
        self._cell = cell
        self._query = query
        self._replied = replied
        self._watched: Watched | None = None

    async def wait_for_event(
        self,
        why_stopping: Callable[[], EndReason | None],  # noqa: ARG002  # as Delegation
        patience: float,
    ) -> Replied | Posted | Failed | None:
        """Return the answer; None if it takes longer than `patience` seconds: call again then.

        If the crystal cannot announce answers, it is queried for this one, and a task waits for it.
        """
        if isinstance(self._cell.crystal.crystal, PostingCrystal):
            if self._watched is None:
                self._watched = Watched(self._query.handle)
                self._cell.crystal.uses.asks.cast(self._watched)
            if not await self._wait(patience):
                return None
        return self._replied(await query_crystal(self._cell, self._cell.crystal, self._query))

    @property
    def ready(self) -> OneShotEvent:
        """Set when the answer can be collected."""
        assert self._watched is not None, "the wait has begun"
        return self._watched.ready

    def leave(self) -> None:
        """Stop waiting."""
        if self._watched is not None:
            self._watched.is_left = True
