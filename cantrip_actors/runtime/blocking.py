"""The blocking face: the runtime for code that is not async.

The runtime runs in an event loop of its own, in a thread of its own; each call here crosses over and waits. Any
thread may call, several at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from cantrip_actors.loom import Loom
from cantrip_actors.model.cantrip import Cantrip, Crystal
from cantrip_actors.model.image import Said
from cantrip_actors.model.turn import Header
from cantrip_actors.runtime.entities import Entity
from cantrip_actors.runtime.episode import Episode
from cantrip_actors.runtime.runtime import Runtime

__all__ = ["BlockingEntity", "BlockingRuntime"]


class BlockingRuntime:
    """`Runtime` without `await`: `with Runtime.blocking("memory:") as runtime: episode = runtime.cast(cantrip,
    intent)`.
    """

    def __init__(self, runtime: Runtime, portal: BlockingPortal) -> None:
        self._runtime = runtime
        self._portal = portal

    @classmethod
    @contextmanager
    def open(
        cls, url: str | os.PathLike[str] = "memory:", *, backend: str = "asyncio", **options: Any
    ) -> Iterator[BlockingRuntime]:
        """A runtime on the loom at `url`, in a thread of its own; `backend` is "asyncio" or "trio", `options` as
        `Runtime.open`.
        """
        with (
            start_blocking_portal(backend=backend) as portal,
            portal.wrap_async_context_manager(Runtime.open(url, **options)) as runtime,
        ):
            yield cls(runtime, portal)

    @property
    def loom(self) -> Loom:
        """The loom, for reading."""
        return self._runtime.loom

    def cast(self, cantrip: Cantrip, intent: Said, *, context: Any = None) -> Episode:
        """As `Runtime.cast`."""
        return self._portal.call(partial(self._runtime.cast, cantrip, intent, context=context))

    def start(self, cantrip: Cantrip, intent: Said, *, context: Any = None) -> BlockingEntity:
        """As `Runtime.start`."""
        return self._entity(self._portal.call(partial(self._runtime.start, cantrip, intent, context=context)))

    def invoke(self, cantrip: Cantrip, intent: Said, *, name: str | None = None, context: Any = None) -> BlockingEntity:
        """As `Runtime.invoke`."""
        return self._entity(
            self._portal.call(partial(self._runtime.invoke, cantrip, intent, name=name, context=context))
        )

    def entity(self, name: str, *, cantrip: Cantrip | None = None) -> BlockingEntity | None:
        """As `Runtime.entity`."""
        found = self._portal.call(partial(self._runtime.entity, name, cantrip=cantrip))
        return None if found is None else self._entity(found)

    def find(self, entity_id: str) -> BlockingEntity:
        """As `Runtime.find`."""
        return self._entity(self._portal.call(self._runtime.find, entity_id))

    def interrupted(self) -> list[Header]:
        """As `Runtime.interrupted`."""
        return self._portal.call(self._runtime.interrupted)

    def resume(self, entity_id: str, *, cantrip: Cantrip | None = None) -> BlockingEntity:
        """As `Runtime.resume`."""
        return self._entity(self._portal.call(partial(self._runtime.resume, entity_id, cantrip=cantrip)))

    def abandon(self, entity_id: str) -> None:
        """As `Runtime.abandon`."""
        self._portal.call(self._runtime.abandon, entity_id)

    def fork(
        self,
        turn_id: str,
        *,
        intent: Said,
        crystal: Crystal | str | None = None,
        cantrip: Cantrip | None = None,
        context: Any = None,
    ) -> Episode:
        """As `Runtime.fork`."""
        forked = partial(self._runtime.fork, turn_id, intent=intent, crystal=crystal, cantrip=cantrip, context=context)
        return self._portal.call(forked)

    def reward(self, turn_id: str, value: float) -> None:
        """As `runtime.loom.reward`."""
        self._portal.call(self._runtime.loom.reward, turn_id, value)

    def _entity(self, entity: Entity) -> BlockingEntity:
        return BlockingEntity(entity, self._portal)


class BlockingEntity:
    """`Entity` without `await`."""

    def __init__(self, entity: Entity, portal: BlockingPortal) -> None:
        self._entity = entity
        self._portal = portal

    @property
    def id(self) -> str:
        """The entity's id."""
        return self._entity.id

    @property
    def name(self) -> str | None:
        """The name it was invoked under."""
        return self._entity.name

    def episode(self) -> Episode:
        """As `Entity.episode`."""
        return self._portal.call(self._entity.episode)

    def send(self, intent: Said, *, context: Any = None) -> Episode:
        """As `Entity.send`."""
        return self._portal.call(partial(self._entity.send, intent, context=context))

    def steer(self, text: Said) -> None:
        """As `Entity.steer`."""
        self._portal.call(self._entity.steer, text)

    def interrupt(self, why: str = "interrupted") -> None:
        """As `Entity.interrupt`."""
        self._portal.call(self._entity.interrupt, why)

    def stop(self, reason: str = "cancelled") -> None:
        """As `Entity.stop`."""
        self._portal.call(self._entity.stop, reason)
