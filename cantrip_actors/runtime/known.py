"""Which cantrip an entity goes on with that nobody runs just now: after a sleep, after a crash, in a fork.

What is somebody's own is never guessed (decision V-0001). An entity that fell asleep here goes on with what it had; any
other with the cantrip of its content that is known in this process, as long as that is one: of several, whose crystals
or dependencies are not the same, whoever asks has to say which.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from cantrip_actors.model.cantrip import Cantrip, interchangeable, same_but_for_crystal
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.turn import Header

__all__ = ["KnownCantrips"]

REMEMBERED = 1024
"""Contents that a fork or a wake-up can go on with unless it is given a cantrip: the last so many."""

ASLEEP = 4096
"""Entities whose own cantrip is remembered while they sleep."""


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
        """Those of the entities that fell asleep here last, by their ids."""
        for cantrip in cantrips:
            self.add(cantrip)

    def add(self, cantrip: Cantrip) -> None:
        """One that a root entity goes on with."""
        _remember(cantrip, self._used)

    def add_carved(self, cantrip: Cantrip) -> None:
        """One that a child goes on with."""
        _remember(cantrip, self._carved)

    def falls_asleep(self, entity_id: str, cantrip: Cantrip) -> None:
        """An entity that lasts sleeps from now on, and goes on with this."""
        self._own[entity_id] = cantrip
        self._own.move_to_end(entity_id)
        if len(self._own) > ASLEEP:
            self._own.popitem(last=False)

    def is_over(self, entity_id: str) -> None:
        """An entity goes on with nothing any more."""
        self._own.pop(entity_id, None)

    def own(self, entity_id: str) -> Cantrip | None:
        """What an entity that fell asleep here goes on with, as far as that is remembered."""
        return self._own.get(entity_id)

    def is_clear(self, header: Header) -> bool:
        """Whether an entity could be gone on with unasked."""
        known = self._used.get(header.cantrip_id)
        return header.entity_id in self._own or (known is not None and known.cantrip is not None and known.one_crystal)

    def of(self, header: Header, *, any_crystal: bool = False) -> Cantrip:
        """What an entity goes on with; `any_crystal` where it is given another one. Raises LoomError."""
        own = self._own.get(header.entity_id)
        if own is not None:
            return own
        known = self._used.get(header.cantrip_id) or self._carved.get(header.cantrip_id)
        if known is None:
            raise LoomError(
                f"the cantrip of entity {header.entity_id} ({header.cantrip_id}) is not known in this process, or has "
                "changed since: give the one that it was made with to Runtime.open(…, cantrips=[…]), or another one to "
                "runtime.resume(entity_id, cantrip=…), for a fork to runtime.fork(…, cantrip=…)"
            )
        if known.cantrip is None or not (known.one_crystal or any_crystal):
            raise LoomError(
                f"the cantrip of entity {header.entity_id} ({header.cantrip_id}) was used in this process with several "
                "crystals or dependencies: say with which to go on, cantrip=…"
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
