"""An actor system: the ground that a tree of actors stands on, inside any anyio, asyncio or trio program.

It owns the keeper: a task under one shield that hosts the flat group of all actors' tasks (`backend.py`), with a
supervisor at the top. A cancellation of the program reaches the `async with` block and not the actors; leaving the
block, for whatever reason, ends them in their order, last started first, each within its grace.

Several systems may live in one process, also on one loop; they share nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, overload

import anyio
import sniffio

from supervisors.actor import Actor, ActorRef
from supervisors.backend import Backend
from supervisors.child import Incarnation
from supervisors.children import Child
from supervisors.errors import SystemDown
from supervisors.events import Event, Sink
from supervisors.policy import Strategy
from supervisors.reasons import ExitReason, Shutdown
from supervisors.registry import Registry
from supervisors.spec import ChildSpec
from supervisors.supervisor import Supervisor, SupervisorRef


class ActorSystem:
    """`async with ActorSystem() as system: ...`

    Args:
        name: the id of the top supervisor, and so the first part of all paths.
        strategy: of the top supervisor, for what `start` starts.
        max_restarts: likewise; beyond it the whole system goes down, and the block is cancelled and raises
        `SystemDown`.
        period: likewise, in seconds.
        kill_grace: seconds that a killed child has to end, before it is given up as a zombie.
    """

    def __init__(
        self,
        name: str = "root",
        *,
        strategy: Strategy = "one_for_one",
        max_restarts: int = 1,
        period: float = 5.0,
        kill_grace: float = 5.0,
    ) -> None:
        self.kill_grace = kill_grace
        self.registry = Registry()
        self.sinks: list[Sink] = []
        self.root = SupervisorRef(name)
        self.backend: Backend
        self.chance: Callable[[], float] = random.random
        self._spec = ChildSpec(
            name,
            lambda: Supervisor(strategy=strategy, max_restarts=max_restarts, period=period),
            restart="temporary",
            ref=self.root,
        )
        self._top = Child(self._spec)
        self._fatal: BaseException | None = None
        self._down: ExitReason | None = None
        self._is_leaving = False

    # --- the block -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.backend = _backend()
        self._done = self.backend.promise()
        self._up = self.backend.promise()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._keep, name=f"{self.root.id} (keeper)")
        await self._up.wait()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        self._is_leaving = True
        with anyio.CancelScope(shield=True):
            if self._top.incarnation is not None:
                self._top.incarnation.shut_down(Shutdown("system"), self._top.shutdown)
            await self._done.wait()
        if self._fatal is None and self._down is None:
            # The group is empty by now; handing it the exception would only wrap that.
            await self._group.__aexit__(None, None, None)
            return False
        await self._group.__aexit__(exc_type, exc, tb)
        if self._fatal is not None:
            raise self._fatal
        assert self._down is not None
        raise SystemDown(self._down) from getattr(self._down, "exception", None)

    async def _keep(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.backend.hold(self._begin)
        self._done.reply(None)

    async def _begin(self) -> None:
        self._top.begin(self, self, self.root, self._spec)
        self.root.parent = None
        assert self._top.incarnation is not None
        self._top.incarnation.start()
        self._up.reply(None)

    # --- what the top supervisor tells it --------------------------------------------------------------------------

    def child_started(self, child: Incarnation) -> None:
        """The top is up."""

    def child_gone(self, child: Incarnation) -> None:
        """The top is over: because the block is left, or because it gave up."""
        self._top.retire()
        if not self._is_leaving and self._fatal is None:
            self._down = child.reason
            self._group.cancel_scope.cancel()

    # --- for its user ----------------------------------------------------------------------------------------------

    @overload
    async def start(self, spec: ChildSpec[Supervisor]) -> SupervisorRef: ...
    @overload
    async def start(self, spec: ChildSpec[Actor]) -> ActorRef: ...
    async def start(self, spec: ChildSpec[Any]) -> ActorRef:
        """Start a child of the top supervisor and wait until it is up; see `SupervisorRef.start_child`."""
        ref: ActorRef = await self.root.start_child(spec)
        return ref

    # --- for the rest of the package -------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Tell all sinks."""
        for sink in self.sinks:
            sink(event)

    def abort(self, exception: BaseException) -> None:
        """A `KeyboardInterrupt` or `SystemExit` left an actor.

        End all in order, and raise it where the system was opened.
        """
        if self._fatal is None:
            self._fatal = exception
            if self._top.incarnation is not None:
                self._top.incarnation.ask_to_stop(Shutdown("interrupted"))
            self._group.cancel_scope.cancel()


def _backend() -> Backend:
    if sniffio.current_async_library() == "trio":
        from supervisors.on_trio import TrioBackend

        return TrioBackend()
    from supervisors.on_asyncio import AsyncioBackend

    return AsyncioBackend()
