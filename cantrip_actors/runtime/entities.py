"""The handle of an entity: what `start`, `invoke` and `entity` return.

A handle is a name for an entity and holds nothing of it. The entity lives in the runtime's tree, whatever becomes of
the handle; one that lasts may be asleep, as its log alone, and a `send` wakes it.
"""

from __future__ import annotations

from typing import Any

import anyio

from cantrip_actors.model.cantrip import Cantrip
from cantrip_actors.model.errors import EntityEnded, RuntimeClosed
from cantrip_actors.model.image import Said, said
from cantrip_actors.model.recovery import outcome_of
from cantrip_actors.runtime.cell import Cell, Nudge, Ticket
from cantrip_actors.runtime.episode import Episode, episode_of
from cantrip_actors.runtime.events import Subscription
from cantrip_actors.runtime.house import House, put

__all__ = ["Entity"]


class Entity:
    """An entity, awake or asleep."""

    def __init__(
        self,
        house: House,
        entity_id: str,
        name: str | None = None,
        cell: Cell | None = None,
        first: Ticket | None = None,
        cantrip: Cantrip | None = None,
    ) -> None:
        self._house = house
        self._name = name
        self._id = entity_id
        self._cell = cell
        self._first = first
        self._cantrip = cantrip

    @property
    def id(self) -> str:
        """The entity's id: `runtime.loom.turns(entity.id)`."""
        return self._id

    @property
    def name(self) -> str | None:
        """The name it was invoked under."""
        return self._name

    @property
    def awake(self) -> bool:
        """Whether it runs, or waits for its next intent, in this process."""
        return self._living() is not None

    async def episode(self) -> Episode:
        """Wait for the episode of what it was cast or invoked on.

        Of an entity that lasts and that this handle did not invoke: the episode under way, else the last one.

        Raises as `Runtime.cast` does, and EntityEnded for an entity that does not run here and came to no end.
        """
        cell = self._living() or self._cell
        ticket = self._first or (cell.ticket if cell is not None and cell.plan.lasting else None)
        if ticket is not None:
            await ticket.settled.wait()
            return self._settled(ticket) or self._logged()
        if cell is None or cell.plan.lasting:
            return self._logged()
        await cell.supervisor.exited()
        if cell.outcome is None:
            await cell.buried()
        if cell.outcome is None:
            raise self._located(cell.error or cell.crashed())
        return self._episode(cell)

    async def send(self, intent: Said, *, context: Any = None) -> Episode:
        """Give an entity that lasts a further intent, and wait for its episode; sends are taken in order.

        The intent is a text, or a list of texts and images; images may stand in `context`, too. Cancelling the wait
        does not take the intent back.

        Raises InvalidIntent without an intent, EntityEnded where it lives no more; else as `Runtime.cast`.
        """
        text, data, images = put(intent, context)
        while True:
            ticket = Ticket(text, data, images, around=self._house.around())
            cell = await self._hand_in(ticket)
            await ticket.settled.wait()
            episode = self._settled(ticket)
            if episode is not None:
                return episode
            if not self._house.is_open:
                raise self._located(
                    RuntimeClosed(f"the runtime closed before entity {self._id} took the intent: send it again")
                )
            if cell.is_over:
                raise EntityEnded(f"entity {self._id} ended before it took the intent: {self._how(cell)}")
            # it went with a part of the tree that is restarted

    async def steer(self, text: Said) -> None:
        """Put a message in before its next query, while it works or, if it is idle, ahead of its next intent.

        From then on it is in the loom; what was said shortly before a crash of this process may be lost.

        It is a text, or a list of texts and images. Raises InvalidIntent for one that says nothing.
        """
        message, images = said(text, "steer: expected a text for the entity")
        await self._deliver(Nudge(message, images=images))

    async def interrupt(self, why: str = "interrupted") -> None:
        """End its present episode at the next border between two turns; an idle entity goes on being idle.

        Whoever waits for the episode gets it, truncated, with the reason "interrupted".
        """
        await self._deliver(Nudge(why, interrupts=True))

    async def stop(self, reason: str = "cancelled") -> None:
        """End it and its subtree for good, last started first; returns when all of it has ended.

        One that sleeps, or that a crash cut short, is ended in the loom. Raises Held where another process runs it.
        """
        cell, loom = self._living(), self._house.loom
        if cell is not None:
            await self._house.terminate(cell, reason)
        if loom.has(self._id) and not loom.is_over(self._id):  # it sleeps, or has just fallen asleep
            await self._house.abandon(self._id, reason)

    def events(self) -> Subscription:
        """Its own canonical events from now on, up to its end; observation, never control. None, where it is over."""
        own = self._id
        subscription = self._house.bus.subscribe(lambda event: event.entity_id == own, until=own)
        cell = self._living()
        if self._house.loom.is_over(own) if cell is None else cell.is_over:
            subscription.close()
        return subscription

    async def result(self) -> Episode:
        """As `episode`, but whoever stops waiting for it stops the entity."""
        try:
            return await self.episode()
        except anyio.get_cancelled_exc_class():
            cell = self._living()
            if cell is not None:
                with anyio.CancelScope(shield=True):
                    await self._house.terminate(cell, "cancelled")
            raise

    async def _hand_in(self, ticket: Ticket) -> Cell:
        """Give it a ticket; to whom, is returned."""
        if self._cantrip is None:
            return await self._deliver(ticket)
        async with self._house.turns(self._id):
            await self._house.give_way(self._id, self._cantrip)
            return await self._deliver(ticket)

    async def _deliver(self, mail: Ticket | Nudge) -> Cell:
        made_with = None if self._cell is None else self._cell.plan.cantrip
        return await self._house.deliver(
            self._id, mail, self._cantrip or self._house.cantrips.own(self._id) or made_with
        )

    def _living(self) -> Cell | None:
        return self._house.living.get(self._id)

    def _episode(self, cell: Cell) -> Episode:
        assert cell.outcome is not None
        error = None if cell.error is None else self._located(cell.error)
        return episode_of(self._id, cell.outcome, error, self._house.loom)

    def _settled(self, ticket: Ticket) -> Episode | None:
        if ticket.error is not None:
            raise self._located(ticket.error)
        return None if ticket.outcome is None else episode_of(self._id, ticket.outcome, None, self._house.loom)

    def _logged(self) -> Episode:
        loom = self._house.loom
        outcome = outcome_of(loom.records(self._id), loom.usage_below(self._id))
        if outcome is None:
            raise EntityEnded(f"entity {self._id} does not run here, and its log has no end: resume or abandon it")
        return episode_of(self._id, outcome, None, loom)

    def _located(self, error: Any) -> Any:
        error.entity_id = self._id
        return self._house.guard.error(error)

    def _how(self, cell: Cell) -> str:
        outcome = cell.outcome
        return "it crashed" if outcome is None else outcome.summary or outcome.reason

    def __repr__(self) -> str:
        return f"<Entity {self._name or self._id} {'awake' if self.awake else 'not running here'}>"
