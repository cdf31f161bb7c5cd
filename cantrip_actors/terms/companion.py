"""A companion: an object that accompanies one entity and is called when its episodes begin, fold and end.

A system that keeps records about entities outside the loom (such as `dispatch/`) uses a companion to learn what to
record, and to add text when older turns are folded. It is not for rules about gates: wrap those around the gates
(`wrapping.py`), where they are enforced before anything happens.

The entity waits for its companion. What ends an episode at once, an interrupt with `now` or a `timeout` ward, cancels
its hooks but for `ends`, which has five seconds if the episode was ended from outside. A hook that cannot reach its
service raises `Unavailable(retry_after=…)`: the entity waits so many seconds, and calls the hook again. Any other
exception in a hook crashes the entity, and its supervisor decides: an entity whose records are broken must not run.
Children have no companion unless their own circle has a companion.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final, NamedTuple

from cantrip_actors.terms.errors import InvalidCantrip

if TYPE_CHECKING:
    from cantrip_actors.terms.gate import Gate
    from cantrip_actors.terms.outcome import Outcome


class Here(NamedTuple):
    """The entity that a hook is called for. `restored` is True if its episode is resumed after a crash."""

    entity_id: str
    name: str | None
    restored: bool = False


class Pinned(str):
    """A text for the entity that stays in its context when the turns around it are folded."""

    __slots__ = ()


class Companion:
    """The hooks of one entity: pass it to the entity's circle, `Circle(…, companion=…)`. By default the hooks do
    nothing.
    """

    async def begins(self, here: Here) -> str | None:
        """Called when an episode has begun and its intent is recorded, or is resumed. The entity reads the returned
        text; a `Pinned` one survives folds.
        """

    async def recalls(self, here: Here, last: int) -> str | None:
        """Called before turns 1 to `last` are folded. Return text to show in their place, besides a summary."""

    async def ends(self, here: Here, outcome: Outcome) -> None:
        """Called when the end of an episode is recorded; not called for an episode that ended in a crash."""

    def lend(self, gate: Gate) -> Gate | None:
        """Return one of the entity's gates as children may have it; None if it is for this entity alone.

        It is called for each gate when a child is about to be made, and must not wait. By default children get gates as
        the entity has them. Return another form for a gate whose steps write to the entity's own records.
        """
        return gate


_AWAITED: Final = ("begins", "recalls", "ends")


def check_hooks(companion: Companion) -> None:
    """Raise InvalidCantrip for a hook that the event loop cannot wait for, before an entity crashes because of it."""
    for name in _AWAITED:
        if not inspect.iscoroutinefunction(inspect.unwrap(getattr(companion, name))):
            kind = type(companion).__name__
            raise InvalidCantrip(
                f"circle: companion: expected `async def {name}` in {kind}, got {getattr(companion, name)!r:.200}; "
                "code that waits for disks or networks belongs into anyio.to_thread.run_sync"
            )
