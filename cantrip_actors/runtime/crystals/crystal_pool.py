"""The crystals of a runtime and their actors: an actor starts when its crystal is first used.

A crystal given by name has one actor as long as the runtime lives. A crystal given as an object is identified by the
object. If no entity uses it, its actor stays only while it is among the newest `IDLE` unused ones, so a program that
makes a crystal for every cast does not fill the tree with actors.

A crystal with fallbacks uses the actors of its member crystals. Each member has one actor for all of its users, so its
limits hold for all of them together. So a crystal has one entry as long as anything refers to it: an entity, a crystal
with fallbacks, or the list of unused ones.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio

from cantrip_actors.crystal import Query, resolve
from cantrip_actors.crystal.policy.estimate import find_estimator
from cantrip_actors.crystal.policy.fallback import Fallback
from cantrip_actors.crystal.policy.limited import read_terms
from cantrip_actors.crystal.policy.traffic import CrystalStatus
from cantrip_actors.crystal.query import PostingCrystal
from cantrip_actors.crystal.stand_ins import find_stand_in
from cantrip_actors.runtime.crystals.crystal_actor import (
    GRACE,
    CrystalActor,
    CrystalRequest,
    Draw,
    FallbackActor,
    Watched,
)
from cantrip_actors.runtime.events.context_variables import capture_variables
from cantrip_actors.terms.crystal import Crystal, get_crystal_name
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip
from cantrip_actors.terms.messages import Response
from cantrip_actors.terms.retry import Retry
from cantrip_actors.user_code import Failure, attempt_now, text_of
from supervisors import Actor, ActorRef, CallError, ChildNotFound, ChildSpec, DynamicSupervisor, SupervisorRef

T = TypeVar("T")

IDLE = 64


def read_crystal(crystal: Crystal, read: Callable[[Crystal], T]) -> T:
    """Return what `read` returns for a crystal. Its attributes are user code: raises InvalidCantrip if one raises."""
    value = attempt_now(partial(read, crystal))
    if isinstance(value, Failure):
        error = value.exception
        raise InvalidCantrip(
            f"crystal: expected a {type(crystal).__name__} whose attributes can be read, but one of them raised "
            f"{type(error).__name__}: {text_of(error)}"
        ) from error
    return value


def find_window(crystal: Crystal) -> int | None:
    """Return the context window of a crystal in tokens; None if it names none. Raises InvalidCantrip."""
    window = read_crystal(crystal, lambda readable: getattr(readable, "context_window", None))
    return window if isinstance(window, int) else None


@dataclass(slots=True, weakref_slot=True, eq=False)
class InUse:
    """A crystal, and the actor that queries it."""

    crystal: Crystal
    key: str | int
    asks: ActorRef[Any]
    below: tuple[InUse, ...] = ()
    """The member crystals of a crystal with fallbacks, in order."""
    users: int = 0
    started: bool = False
    watched: list[Watched] = field(default_factory=list)
    """The posted queries that entities wait for."""
    starting: anyio.Lock = field(default_factory=partial(anyio.Lock, fast_acquire=True))
    draw: Draw | None = None
    """Draws slices of limits that other processes share."""
    incarnation: CrystalActor | FallbackActor | None = None
    """The newest incarnation of its actor, so that its status can be read without asking it."""

    def make_actor(self) -> Actor:
        """Return a new incarnation of the crystal's actor."""
        crystal = self.crystal
        if self.below:
            self.incarnation = FallbackActor(get_crystal_name(crystal), [one.asks for one in self.below])
        else:
            name = self.key if isinstance(self.key, str) else get_crystal_name(crystal)
            posting = crystal if isinstance(crystal, PostingCrystal) else None
            self.incarnation = CrystalActor(
                name, read_terms(crystal), find_estimator(crystal), posting, self.watched, self.draw
            )
        return self.incarnation


class Crystals:
    """The crystals of one runtime. `supervisor` is the dynamic supervisor of their actors."""

    def __init__(self, supervisor: SupervisorRef, draw: Draw | None = None) -> None:
        self.supervisor = supervisor
        self._draw = draw
        self._known: WeakValueDictionary[str | int, InUse] = WeakValueDictionary()
        self._named: list[InUse] = []
        self._idle: OrderedDict[int, InUse] = OrderedDict()

    def supervise(self) -> DynamicSupervisor:
        """Return a new incarnation of that supervisor, without children."""
        for used in self._known.values():
            used.started = False
        return DynamicSupervisor(max_restarts=100)

    def find(self, crystal: Crystal | str) -> InUse:
        """Return the entry of `crystal`, and add one if it is new. Raises InvalidCantrip for an unknown name."""
        crystal = find_stand_in(crystal)
        key = crystal if isinstance(crystal, str) else id(crystal)
        found = self._known.get(key)
        if found is None:
            resolved = resolve(crystal)
            below = tuple(map(self.find, resolved.given)) if isinstance(resolved, Fallback) else ()
            found = self._known[key] = InUse(resolved, key, ActorRef(), below, draw=self._draw)
            if isinstance(key, int):
                self._idle[key] = found
            else:
                self._named.append(found)
        return found

    async def hold(self, used: InUse) -> None:
        """Count one more entity that uses the crystal, and start its actor if it does not run.

        A caller that is cancelled meanwhile holds the crystal too, and has to release it: the actor is shared.
        """
        self._count(used)
        if used.below or not used.started:
            with anyio.CancelScope(shield=True):
                await self._start(used)

    def _count(self, used: InUse) -> None:
        for one in used.below:
            self._count(one)
        used.users += 1
        if isinstance(used.key, int):
            self._idle.pop(used.key, None)

    async def _start(self, used: InUse) -> None:
        for one in used.below:
            await self._start(one)
        if used.started:
            return
        async with used.starting:
            if not used.started:
                if used.asks.parent is not None:  # an earlier actor may still have to end
                    with contextlib.suppress(ChildNotFound):
                        await self.supervisor.terminate_child(used.asks)
                await self.supervisor.start_child(ChildSpec(used.key, used.make_actor, ref=used.asks))
                used.started = True

    async def release(self, used: InUse) -> None:
        """Count one entity less; stop the actors of the oldest unused crystals."""
        for one in used.below:
            await self.release(one)
        used.users -= 1
        if used.users or isinstance(used.key, str):
            return
        self._idle[used.key] = used
        while len(self._idle) > IDLE:
            _, oldest = self._idle.popitem(last=False)
            if oldest.started:
                oldest.started = False
                with anyio.CancelScope(shield=True):
                    await self.supervisor.terminate_child(oldest.asks)

    async def ask(self, used: InUse, query: Query, retry: Retry) -> Response:
        """Send one query that belongs to no entity. Raises CrystalError if the query fails, or its actor ends."""
        try:
            await self.hold(used)
            bind = getattr(used.crystal, "bind", None)
            bound = used.crystal if bind is None else bind()
            request = CrystalRequest(bound, query, retry, capture_variables())
            reply: Response | CrystalError = await used.asks.call(request, grace=GRACE)
        except CallError as error:
            raise CrystalError(f"the actor of the crystal ended during the query: {error}") from error
        finally:
            await self.release(used)
        if isinstance(reply, Response):
            return reply
        raise reply

    def get_status(self, now: float) -> list[CrystalStatus]:
        """Return the status of each crystal whose actor runs, in the order of first use: from any thread.

        `now` is the time of the event loop.
        """
        entries = (entry() for entry in self._known.valuerefs())
        incarnations = [used.incarnation for used in entries if used is not None and used.asks.alive]
        return [incarnation.get_status(now) for incarnation in incarnations if incarnation is not None]
