"""Which cantrip an entity that is not loaded continues with: after it was unloaded, after a crash, in a fork.

What is somebody's own is never guessed (decision V-0001). An entity that was unloaded here continues with what it had;
any other with the cantrip of its content that is known in this process, as long as that is one: of several, whose
crystals or dependencies are not the same, the caller has to say which.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from cantrip_actors.terms.cantrip import Cantrip, interchangeable, same_but_for_crystal
from cantrip_actors.terms.errors import LoomError

__all__ = ["KnownCantrips"]

REMEMBERED = 1024
"""Contents that a fork or a load can use unless it is given a cantrip: the last so many."""

UNLOADED = 4096
"""Entities whose own cantrip is remembered while they are not loaded."""


class _Known(NamedTuple):
    """What is known of the cantrips of one content; None where there is not the same behind them."""

    cantrip: Cantrip | None
    one_crystal: bool = True
    """Whether they have the same crystal, too."""


class KnownCantrips:
    """The cantrips of a runtime. `cantrips` are those that it was opened with."""

    def __init__(self, cantrips: Iterable[Cantrip]) -> None:
        self._used: OrderedDict[str, _Known] = OrderedDict()
        self._carved: OrderedDict[str, _Known] = OrderedDict()
        """The same of those of children, apart: there may be many."""
        self._own: OrderedDict[str, Cantrip] = OrderedDict()
        """Those of the entities that were unloaded here last, by their ids."""
        for cantrip in cantrips:
            self.add(cantrip)

    def add(self, cantrip: Cantrip) -> None:
        """Note one that a root entity works with."""
        _remember(cantrip, self._used)

    def add_carved(self, cantrip: Cantrip) -> None:
        """Note one that a child works with."""
        _remember(cantrip, self._carved)

    def note_unloaded(self, entity_id: str, cantrip: Cantrip) -> None:
        """Note what a long-lived entity that is not loaded works with."""
        self._own[entity_id] = cantrip
        self._own.move_to_end(entity_id)
        if len(self._own) > UNLOADED:
            self._own.popitem(last=False)

    def forget(self, entity_id: str) -> None:
        """Forget an entity that has ended."""
        self._own.pop(entity_id, None)

    def own(self, entity_id: str) -> Cantrip | None:
        """Return what an entity that was unloaded here works with, as far as that is remembered."""
        return self._own.get(entity_id)

    def is_clear(self, entity_id: str, cantrip_id: str) -> bool:
        """Return whether an entity that works with the cantrip of that id can be continued without being told how."""
        known = self._used.get(cantrip_id)
        return entity_id in self._own or (known is not None and known.cantrip is not None and known.one_crystal)

    def of(self, entity_id: str, cantrip_id: str, *, any_crystal: bool = False) -> Cantrip:
        """Return what an entity continues with; with `any_crystal` it is given another one. Raises LoomError."""
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
    """Remember it; or, of several of one content behind which there is not the same, that nobody can choose."""
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
