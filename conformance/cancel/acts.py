"""What is cancelled: a call of the public face, what comes before it, and what its caller does after a cancellation.

A caller that was cancelled may call again, with the same key. Once a call has returned, or a cancelled `cast` or `fork`
has raised, the episode is over, and the act says so in the journal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress

from cantrip_actors import AlreadyDecided, Entity, Episode, Runtime
from conformance.cancel.world import PLANS, SUBJECT, World

__all__ = ["ACTS", "Act"]


class Act(ABC):
    """A call that is cancelled. `plan` is what the subject's episode does."""

    plans: tuple[str, ...] = PLANS
    waits = False
    """Whether the example lets time pass between `prepare` and `perform`."""
    closes = False
    """Whether the runtime takes no more work afterwards."""

    def __init__(self, world: World, runtime: Runtime, plan: str) -> None:
        self.world = world
        self.runtime = runtime
        self.plan = plan
        self.cantrip = world.get_cantrip(plan)
        self.intent = f"{plan} {SUBJECT}"

    async def prepare(self) -> None:  # noqa: B027  # most need none
        """Do what is not cancelled."""

    @abstractmethod
    async def perform(self) -> None:
        """Make the call that is cancelled."""

    async def settle(self, *, was_cancelled: bool) -> None:  # noqa: B027  # likewise
        """Do what the caller does afterwards."""

    def note_end(self) -> None:
        """Note that the caller knows the subject's episode to be over."""
        self.world.journal.note("end", SUBJECT)


def _check(episode: Episode) -> None:
    assert episode.result == "ok", f"expected the episode to end with 'ok', got {episode.summary or episode}"


class Cast(Act):
    """A one-shot entity."""

    async def perform(self) -> None:
        _check(await self.runtime.cast(self.cantrip, self.intent))

    async def settle(self, *, was_cancelled: bool) -> None:  # noqa: ARG002  # the entity is over in either case
        self.note_end()


class Fork(Cast):
    """A fork of a one-shot entity."""

    async def prepare(self) -> None:
        episode = await self.runtime.cast(self.cantrip, "quick base")
        self._turn = episode.thread[-1].id

    async def perform(self) -> None:
        _check(await self.runtime.fork(self._turn, intent=self.intent, cantrip=self.cantrip))


class _OnEntity(Act):
    """A call about a long-lived entity that may be in the middle of its first episode."""

    waits = True

    async def prepare(self) -> None:
        self.entity: Entity = await self.runtime.invoke(self.cantrip, self.intent, name="desk", key="begin")


class Send(_OnEntity):
    """A further intent for a long-lived entity."""

    waits = False

    async def prepare(self) -> None:
        self.entity = await self.runtime.invoke(self.cantrip, "quick base", name="desk", key="begin")

    async def perform(self) -> None:
        _check(await self.entity.send(self.intent, key="again"))

    async def settle(self, *, was_cancelled: bool) -> None:
        if was_cancelled:
            await self.perform()
        self.note_end()


class Interrupt(_OnEntity):
    """An interrupt of the episode under way."""

    async def perform(self) -> None:
        await self.entity.interrupt("enough", now=True, key="enough")

    async def settle(self, *, was_cancelled: bool) -> None:
        if was_cancelled:
            await self.perform()
        self.note_end()
        await self.entity.episode()


class Stop(_OnEntity):
    """The end of an entity."""

    async def perform(self) -> None:
        await self.entity.stop("enough")

    async def settle(self, *, was_cancelled: bool) -> None:
        if was_cancelled:
            await self.perform()
        self.note_end()


class Decide(Act):
    """A decision about a call that a person has to allow."""

    plans = ("ask",)

    async def prepare(self) -> None:
        self._entity = await self.runtime.start(self.cantrip, self.intent)
        async with self.runtime.requests(follow=True) as feed:
            async for request in feed:
                self._request = request.id
                break

    async def perform(self) -> None:
        await self.runtime.decide(self._request, "allow", by="anna", key="yes")

    async def settle(self, *, was_cancelled: bool) -> None:
        if was_cancelled:
            with suppress(AlreadyDecided):
                await self.perform()
        _check(await self._entity.episode())
        self.note_end()


class Drain(_OnEntity):
    """The first half of a shutdown."""

    closes = True

    async def perform(self) -> None:
        await self.runtime.drain(grace=4.0)


ACTS: dict[str, type[Act]] = {
    "cast": Cast,
    "fork": Fork,
    "send": Send,
    "interrupt": Interrupt,
    "stop": Stop,
    "decide": Decide,
    "drain": Drain,
}
"""The calls; `close` and `aclose`, which the campaign has beside them, are about the runtime itself."""
