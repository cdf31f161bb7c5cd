"""A companion: somebody who goes along with an entity and is told where its life turns.

It is how a system that keeps books about entities beside the loom (`dispatch/` is one) hears of what it has to write
down, and has its say when older turns are folded away. It is not for rules about gates: those are wrapped around them
(`wrapping.py`), where they hold before anything happens.

The entity waits for its companion. What a hook raises crashes the entity, and its supervisor decides: an entity whose
books are broken must not run. Children have no companion unless their circle gets one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cantrip_actors.terms.outcome import Outcome

__all__ = ["Companion", "Here"]


class Here(NamedTuple):
    """Which entity it is about. `restored` is true if the episode is resumed after a crash, from the log alone."""

    entity_id: str
    name: str | None
    restored: bool = False


class Companion:
    """Goes along with one entity: give it to its circle, `Circle(…, companion=…)`. No hook does anything by itself."""

    async def begins(self, here: Here) -> str | None:
        """An episode has begun and its intent is recorded, or it is resumed after a crash. A text is for the entity."""

    async def recalls(self, here: Here, last: int) -> str | None:
        """Turns 1 to `last` are about to be folded away: what is shown in their place, besides a crystal's summary."""

    async def ends(self, here: Here, outcome: Outcome) -> None:
        """An episode has ended, and the loom says so. It is not told of one that ended in a crash."""
