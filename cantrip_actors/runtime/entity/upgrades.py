"""Upgrades: which offered cantrip a long-lived entity moves to, and when.

`Runtime.open(cantrips=[…])` offers cantrips. A long-lived entity whose cantrip has the name of an offered one, but
other content, moves to the offered cantrip when it takes its next intent. The entity's actor records the move
(`Adopted`) in the transaction that records the intent. An episode under way and a one-shot entity never move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from cantrip_actors.crystal.signature import is_async
from cantrip_actors.loom import Loom
from cantrip_actors.machine.project import CantripRef, Life
from cantrip_actors.records.records import Header
from cantrip_actors.runtime.entity.loading import find_cantrip_in_force
from cantrip_actors.terms.arguments import check
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.errors import InvalidCantrip, LoomError
from cantrip_actors.user_code.attempt import Failure, attempt_now, text_of


class Move(NamedTuple):
    """A long-lived entity's move to another content of its cantrip, with its next intent."""

    entity_id: str
    entity_name: str | None
    """The name that it was invoked under."""
    cantrip_name: str
    """The name that both cantrips have."""
    from_id: str
    """The content id of the cantrip that the entity works with now."""
    cantrip: Cantrip
    """The offered cantrip; its content id is `cantrip.id`."""
    is_idle: bool = True
    """False during an episode: the entity finishes that episode with its current cantrip."""


Upgrade = Literal["idle", "never"] | Callable[[Move], bool]
"""Which entities move: all that can ("idle"), none ("never"), or those for which a function returns True."""


class Upgrades:
    """Decides which entities move to the cantrips that a process offers.

    Raises InvalidCantrip if two of `cantrips` have one name, ValueError if `upgrade` is not a known policy.
    """

    def __init__(self, cantrips: Iterable[Cantrip], upgrade: Upgrade) -> None:
        fits = callable(upgrade) or upgrade in ("idle", "never")
        check(fits, "upgrade", "'idle', 'never' or a function of a Move", upgrade)
        if callable(upgrade) and is_async(upgrade):  # its coroutine would count as True
            raise ValueError(f"upgrade: expected a function that returns True or False at once, got async {upgrade!r}")
        self._upgrade = upgrade
        self.is_for_all = upgrade == "idle"
        """Whether every entity moves that can."""
        self.may_move = upgrade != "never"
        """Whether any entity may move."""
        self._offered: dict[str, Cantrip] = {}
        for cantrip in cantrips:
            if cantrip.name is not None and self._offered.setdefault(cantrip.name, cantrip) is not cantrip:
                raise InvalidCantrip(
                    f'cantrips: two cantrips are called "{cantrip.name}": give each its own name, because entities '
                    "find their next cantrip by its name"
                )

    def find_move(self, header: Header, now: CantripRef, *, is_idle: bool) -> Move | None:
        """Return the move that an entity makes at its next intent; None if it stays with its cantrip, `now`.

        Raises LoomError if the user's function raises.
        """
        offered = None if now.name is None or not header.lasting else self._offered.get(now.name)
        if offered is None or offered.id == now.id or not self.may_move:
            return None
        move = Move(header.entity_id, header.name, offered.name or "", now.id, offered, is_idle)
        return move if self._is_allowed(move) else None

    def _is_allowed(self, move: Move) -> bool:
        upgrade = self._upgrade
        if not callable(upgrade):
            return True
        answer = attempt_now(lambda: bool(upgrade(move)))
        if isinstance(answer, Failure):
            error = answer.exception
            raise LoomError(
                f"upgrade: expected the function to return True or False for entity {move.entity_id}, but it raised "
                f"{type(error).__name__}: {text_of(error)}"
            ) from error
        return answer

    def find_moves(self, loom: Loom) -> list[Move]:
        """Return the moves of all entities in a loom that have not ended, oldest entity first. Raises LoomError."""
        moves = (
            self.find_move(facts.header, find_cantrip_in_force(loom, facts), is_idle=facts.life is Life.IDLE)
            for entity_id in loom.unfinished()
            if (facts := loom.facts(entity_id)).header.lasting
        )
        return [move for move in moves if move is not None]
