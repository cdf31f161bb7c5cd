"""The cantrips that this process can continue an entity with: after it was unloaded, after a crash, or in a fork.

The runtime never guesses crystals or dependencies (decision V-0001). An entity that was unloaded here continues with
its own cantrip. Any other entity continues with the known cantrip of the same content, if there is exactly one. If
several have different crystals or dependencies, the caller has to name one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from cantrip_actors.terms.cantrip import Cantrip, interchangeable, same_but_for_crystal
from cantrip_actors.terms.errors import LoomError

__all__ = ["KnownCantrips"]

REMEMBERED = 1024
"""Cantrip contents that are remembered, newest first, for forks and loads without a given cantrip."""

UNLOADED = 4096
"""Entities whose own cantrip is remembered while they are not loaded."""


class _Known(NamedTuple):
    """The cantrip of one content; None if several with different dependencies were used."""

    cantrip: Cantrip | None
    one_crystal: bool = True
    """Whether all cantrips of this content have the same crystal, too."""


class KnownCantrips:
    """The cantrips that a runtime can continue entities with. `cantrips` were given to `Runtime.open`."""

    def __init__(self, cantrips: Iterable[Cantrip]) -> None:
        self._used: OrderedDict[str, _Known] = OrderedDict()
        self._carved: OrderedDict[str, _Known] = OrderedDict()
        """Cantrips of children, separate because there may be many."""
        self._offered: dict[str, Cantrip] = {}
        self._own: OrderedDict[str, Cantrip] = OrderedDict()
        """The cantrips of recently unloaded entities, by entity id."""
        for cantrip in cantrips:
            self.add(cantrip)
            self.offer(cantrip)

    def add(self, cantrip: Cantrip) -> None:
        """Remember the cantrip of a root entity."""
        _remember(cantrip, self._used)

    def offer(self, cantrip: Cantrip) -> None:
        """Use this cantrip for schedules that cast the cantrip with its name, if it has one."""
        if cantrip.name is not None:
            self._offered[cantrip.name] = cantrip

    def offered(self, name: str) -> Cantrip | None:
        """Return the cantrip that is offered under a name."""
        return self._offered.get(name)

    @property
    def names(self) -> list[str]:
        """The names of the cantrips that are offered."""
        return list(self._offered)

    def add_carved(self, cantrip: Cantrip) -> None:
        """Remember the cantrip of a child."""
        _remember(cantrip, self._carved)

    def note_unloaded(self, entity_id: str, cantrip: Cantrip) -> None:
        """Remember the cantrip of a long-lived entity that is unloaded."""
        self._own[entity_id] = cantrip
        self._own.move_to_end(entity_id)
        if len(self._own) > UNLOADED:
            self._own.popitem(last=False)

    def forget(self, entity_id: str) -> None:
        """Forget an entity that has ended."""
        self._own.pop(entity_id, None)

    def own(self, entity_id: str) -> Cantrip | None:
        """Return the cantrip of an entity that was unloaded here; None if it is not remembered."""
        return self._own.get(entity_id)

    def is_clear(self, entity_id: str, cantrip_id: str) -> bool:
        """Return whether the cantrip of an entity is unambiguous, so that it can be loaded without a given one."""
        known = self._used.get(cantrip_id)
        return entity_id in self._own or (known is not None and known.cantrip is not None and known.one_crystal)

    def of(self, entity_id: str, cantrip_id: str, *, any_crystal: bool = False) -> Cantrip:
        """Return the cantrip that an entity continues with; `any_crystal` if the caller replaces its crystal.

        Raises LoomError for an unknown or ambiguous cantrip.
        """
        own = self._own.get(entity_id)
        if own is not None:
            return own
        known = self._used.get(cantrip_id) or self._carved.get(cantrip_id)
        if known is None:
            raise LoomError(
                f"the cantrip of entity {entity_id} ({cantrip_id}) is not known in this process, or has "
                "changed since: give the one that it was made with to Runtime.open(…, cantrips=[…]), or another one to "
                "runtime.resume(entity_id, cantrip=…), for a fork to runtime.fork(…, cantrip=…)"
            )
        if known.cantrip is None or not (known.one_crystal or any_crystal):
            raise LoomError(
                f"the cantrip of entity {entity_id} ({cantrip_id}) was used in this process with several "
                "crystals or dependencies: say with which it continues, cantrip=…"
            )
        return known.cantrip


def _remember(cantrip: Cantrip, among: OrderedDict[str, _Known]) -> None:
    """Remember a cantrip, or that its content is ambiguous: used with different crystals or dependencies."""
    known = among.get(cantrip.id)
    if known is None:
        known = _Known(cantrip)
    elif known.cantrip is not None and not same_but_for_crystal(known.cantrip, cantrip):
        known = _Known(None)
    elif known.cantrip is not None and not interchangeable(known.cantrip, cantrip):
        known = known._replace(one_crystal=False)
    among[cantrip.id] = known
    among.move_to_end(cantrip.id)
    if len(among) > REMEMBERED:
        among.popitem(last=False)
