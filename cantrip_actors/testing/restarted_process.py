"""A process that a test starts, lets crash and starts again, step by step: what `EntityMachine` drives.

The runtime lives in a task of an event loop that runs only during a step. That task is a `Process` of `crashes.py`, so
it can die at any of its writes and waits, and the next one finds the same loom. A step whose process dies is done
again, as by a client that gives keys: so each step has happened exactly once when it returns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, Generic, TypeVar

import anyio

from cantrip_actors.loom import MemoryStore
from cantrip_actors.runtime.events.context_variables import WORKING
from cantrip_actors.runtime.face.runtime import Runtime
from cantrip_actors.testing.crashes import COUNTED_WRITES, Crash, Process
from cantrip_actors.testing.entity_laws import LawChecker
from cantrip_actors.testing.stepped_loop import SteppedLoop
from cantrip_actors.user_code.attempt import WATCH, CodeKind

T = TypeVar("T")


class RestartedProcess:
    """A process with one runtime on a loom in memory, and its lives.

    Args:
        backend: "asyncio" or "trio".
        make_runtime: returns a runtime that is not open yet, for each life.
        prepare: is awaited in each life when its runtime is open.
        laws: notes which gates run, and the ends of lives.
    """

    def __init__(
        self,
        backend: str,
        make_runtime: Callable[[], Runtime],
        prepare: Callable[[Runtime], Awaitable[None]],
        laws: LawChecker,
    ) -> None:
        self.crashes = 0
        """How often it has crashed."""
        self._make_runtime, self._prepare, self._laws = make_runtime, prepare, laws
        self._memories: list[MemoryStore] = []
        self._loop = SteppedLoop(backend)
        self._life = self._loop.run(self._begin_life)

    @property
    def store(self) -> MemoryStore:
        """The loom, which outlives the lives."""
        return self._memories[0]

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Call an async function in the process, and return its result; in the next life again, if it crashes."""
        while True:
            life = self.revive()
            command = _ProcessCall(partial(function, *args), life)
            self._loop.run(partial(life.do, command))
            if not command.is_lost:
                return command.take()

    def crash(self, points: int, within: float = 0.0) -> None:
        """Let the process die when it has passed so many more points where it can; with 0 now.

        It waits for that so many seconds; afterwards, too, the process dies when it comes to that point.
        """
        life = self.revive()
        if points:
            life.points_left = points
            self._loop.run(partial(life.wait_for_end, within))
        else:
            life.die()
        self.revive()

    def cancel_crash(self) -> None:
        """Let the process live."""
        self.revive().points_left = None

    def restart(self) -> None:
        """Close the runtime in order, and open it again."""
        life = self.revive()
        self._loop.run(life.finish)
        if not life.has_crashed:  # on the way
            self._laws.note_process_end(self.store)
            self._life = self._loop.run(self._begin_life)
        self.revive()

    def revive(self) -> _Life:
        """Start the process again if it has crashed; return its life."""
        while self._life.has_crashed:
            self._loop.run(self._life.is_over.wait)
            self.crashes += 1
            self._laws.note_process_end(self.store)
            self._life = self._loop.run(self._begin_life)
        return self._life

    def close(self) -> None:
        """End the process, as it is."""
        self._loop.close()

    async def _begin_life(self) -> _Life:
        life = _Life(self._laws)
        self._loop.spawn(partial(self._live, life))
        await life.is_ready.wait()
        return life

    async def _live(self, life: _Life) -> None:
        try:
            await life._live(partial(self._serve, life), self._memories)  # noqa: SLF001  # of this package
        finally:
            life.is_over.set()
            life.is_ready.set()

    async def _serve(self, life: _Life, _process: Process) -> None:
        async with life.attach(self._make_runtime()) as runtime, anyio.create_task_group() as life.group:
            await self._prepare(runtime)
            life.is_ready.set()
            await life.finishes.wait()


class _ProcessCall(Generic[T]):
    """A function that a step calls in the process."""

    def __init__(self, function: Callable[[], Awaitable[T]], life: _Life) -> None:
        self.is_done = anyio.Event()
        self._function, self._life = function, life
        self._values: list[T] = []
        self._error: Exception | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the process died before it was done."""
        return self._life.has_crashed and not self._values

    async def do(self) -> None:
        WATCH.set(self._life._do)  # noqa: SLF001  # of this module; what this task calls belongs to the process
        try:
            self._values.append(await self._function())
        except Exception as error:
            self._error = error
        finally:
            self.is_done.set()

    def take(self) -> T:
        """Return its result, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._values[0]


class _Life(Process):
    """One life: it does commands until it ends in order, or dies."""

    def __init__(self, laws: LawChecker) -> None:
        super().__init__()
        self.points_left: int | None = None
        """How many more points it passes, of those where a process can crash; None for a life without a crash."""
        self.is_ready = anyio.Event()
        self.is_over = anyio.Event()
        self.finishes = anyio.Event()
        """Set when it should end in order."""
        self.group: anyio.abc.TaskGroup
        """The tasks of its commands."""
        self._laws = laws

    def die(self) -> None:
        """Crash now."""
        self._fall()

    async def do(self, command: _ProcessCall[Any]) -> None:
        """Do a command in a task of this process, and wait until it is done or this life is over."""
        if not self.has_crashed:
            self.group.start_soon(command.do)
        async with anyio.create_task_group() as group:
            for event in (command.is_done, self.is_over):
                group.start_soon(_cancel_after, event, group.cancel_scope)

    async def finish(self) -> None:
        """End in order, and wait for the end."""
        self.finishes.set()
        await self.is_over.wait()

    async def wait_for_end(self, seconds: float) -> None:
        """Wait until it is over, at most so long."""
        with anyio.move_on_after(seconds):
            await self.is_over.wait()

    def _reaches_end(self) -> bool:
        """Count a point, and return whether it is the one to die at."""
        if self.points_left is None:
            return False
        self.points_left -= 1
        return self.points_left == 0

    def _guard(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        guarded = super()._guard(name, write)

        @wraps(write)
        def counted(*args: Any, **named: Any) -> Any:
            for recorded in (False, True):
                if self._reaches_end():
                    self._crash = Crash(self.writes + 1, recorded)
            return guarded(*args, **named)

        return counted if name in COUNTED_WRITES else guarded

    def _note(self, point: Crash) -> None:
        if self._reaches_end():
            self._crash = point
        super()._note(point)

    async def _do(self, kind: CodeKind, name: str, call: Callable[[], Awaitable[T]]) -> T:
        working = WORKING.get()
        if kind == "query" or working is None:
            return await super()._do(kind, name, call)
        with self._laws.note_gate(working.entity_id, name):
            return await super()._do(kind, name, call)


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
