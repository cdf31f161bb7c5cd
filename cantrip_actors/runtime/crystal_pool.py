"""Which actor stands for which crystal: started when a crystal is first used, kept while it may be used again.

A crystal that was given by name has one actor as long as the runtime lives. One that was given as an object is known by
its identity; of those that no entity uses just now only the newest `IDLE` keep their actor, so that a program that
makes a crystal for every cast does not fill the tree with actors.

One that falls back is used together with those that it falls back to: each of these has the actor that it has for
everybody, so that its limits hold for all of its users together.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import dataclass, field

import anyio

from cantrip_actors.crystal import Query, resolve
from cantrip_actors.crystal.policy.estimate import estimator_of
from cantrip_actors.crystal.policy.fallback import Fallback
from cantrip_actors.crystal.policy.limited import terms_of
from cantrip_actors.crystal.policy.traffic import CrystalStatus
from cantrip_actors.runtime.context_variables import capture_variables
from cantrip_actors.runtime.crystal_actor import STATUS, Asked, CrystalActor, FallbackActor
from cantrip_actors.terms.cantrip import Crystal, Retry, crystal_name
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.terms.messages import Response
from supervisors import Actor, ActorRef, CallError, ChildNotFound, ChildSpec, DynamicSupervisor, SupervisorRef

__all__ = ["Crystals", "InUse"]

IDLE = 64


@dataclass(slots=True, eq=False)
class InUse:
    """A crystal and the actor that it is asked through."""

    crystal: Crystal
    key: str | int
    asks: ActorRef
    below: tuple[InUse, ...] = ()
    """Those that it falls back to, itself the first of them."""
    users: int = 0
    started: bool = False
    starting: anyio.Lock = field(default_factory=anyio.Lock)

    def actor(self) -> Actor:
        """A new incarnation of the actor that stands for it."""
        crystal = self.crystal
        if self.below:
            return FallbackActor(crystal_name(crystal), [one.asks for one in self.below])
        name = self.key if isinstance(self.key, str) else crystal_name(crystal)
        return CrystalActor(name, terms_of(crystal), estimator_of(crystal))


class Crystals:
    """The crystals of one runtime. `supervisor` is the dynamic supervisor below which their actors stand."""

    def __init__(self, supervisor: SupervisorRef) -> None:
        self.supervisor = supervisor
        self._known: dict[str | int, InUse] = {}
        self._idle: OrderedDict[int, InUse] = OrderedDict()

    def supervise(self) -> DynamicSupervisor:
        """A new incarnation of that supervisor. It has no children yet, whatever the last one had."""
        for used in self._known.values():
            used.started = False
        return DynamicSupervisor(max_restarts=100)

    def find(self, crystal: Crystal | str) -> InUse:
        """What stands for `crystal`, whether its actor runs yet or not. Raises InvalidCantrip for an unknown name."""
        key = crystal if isinstance(crystal, str) else id(crystal)
        found = self._known.get(key)
        if found is None:
            resolved = resolve(crystal)
            below = tuple(map(self.find, resolved.given)) if isinstance(resolved, Fallback) else ()
            found = self._known[key] = InUse(resolved, key, ActorRef(), below)
            if isinstance(key, int):
                self._idle[key] = found
        return found

    async def hold(self, used: InUse) -> None:
        """Use it for one more entity; starts its actor if need be.

        Whoever is cancelled meanwhile holds it all the same, and has to release it: its actor is everybody's.
        """
        self._count(used)
        with anyio.CancelScope(shield=True):
            await self._start(used)

    def _count(self, used: InUse) -> None:
        for one in used.below:
            self._count(one)
        used.users += 1
        if isinstance(used.key, int):
            self._known[used.key] = used  # it may have been let go since it was found
            self._idle.pop(used.key, None)

    async def _start(self, used: InUse) -> None:
        for one in used.below:
            await self._start(one)
        if used.started:
            return
        async with used.starting:
            if not used.started:
                if used.asks.parent is not None:  # it was let go, or its start was given up, and may yet have to end
                    with contextlib.suppress(ChildNotFound):
                        await self.supervisor.terminate_child(used.asks)
                await self.supervisor.start_child(ChildSpec(used.key, used.actor, ref=used.asks))
                used.started = True

    async def release(self, used: InUse) -> None:
        """One entity less uses it."""
        for one in used.below:
            await self.release(one)
        used.users -= 1
        if used.users or isinstance(used.key, str):
            return
        self._idle[used.key] = used
        while len(self._idle) > IDLE:
            key, oldest = self._idle.popitem(last=False)
            del self._known[key]
            if oldest.started:
                oldest.started = False
                await self.supervisor.terminate_child(oldest.asks)

    async def ask(self, used: InUse, query: Query, retry: Retry) -> Response:
        """Put one query to it that is no entity's. Raises what the query came to, where that is no response."""
        try:
            await self.hold(used)
            bind = getattr(used.crystal, "bind", None)
            bound = used.crystal if bind is None else bind()
            reply: Response | CrystalError = await used.asks.call(Asked(bound, query, retry, capture_variables()))
        finally:
            with anyio.CancelScope(shield=True):
                await self.release(used)
        if isinstance(reply, Response):
            return reply
        raise reply

    async def status(self) -> list[CrystalStatus]:
        """How things stand with each crystal that has an actor, in the order of their first use."""
        told: list[CrystalStatus] = []
        for used in [one for one in self._known.values() if one.started]:
            with contextlib.suppress(CallError):  # it ends just now, or is being restarted: there is nothing to tell
                told.append(await used.asks.call(STATUS))
        return told
