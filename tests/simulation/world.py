"""Virtual time for processes that block: every task is a greenlet, and one seed decides what runs next.

A task runs until it sleeps or waits. So code that is written for threads, as that of a store, runs as it is, one task
at a time, and a test that failed does the same again with its seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

__all__ = ["Gone", "Mutex", "Process", "Task", "World"]


class Gone(BaseException):
    """The process of this task was killed."""


class Process:
    """What runs tasks, has a wall clock of its own, and can be killed, frozen, cut off or slow."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.tasks: dict[Task, None] = {}
        self.is_dead = False
        self.is_cut = False
        self.thaws_at = 0.0
        self.slowness = 1.0
        self.skew = 0.0
        """By how many seconds its wall clock is wrong."""
        self.unsure = 0.0
        """How likely the answer to a commit is lost."""

    @property
    def is_frozen(self) -> bool:
        """Whether none of its tasks runs now."""
        return self.thaws_at > self.world.now

    def spawn(self, work: Callable[..., object], *values: Any) -> Task:
        """Start a task."""
        task = Task(self, work, values)
        self.tasks[task] = None
        self.world.wake(task)
        return task

    def kill(self) -> None:
        """End all tasks, as SIGKILL does."""
        self.is_dead = True
        for task in list(self.tasks):
            self.tasks.pop(task, None)
            if task.is_started and not task.greenlet.dead:
                task.greenlet.parent = getcurrent()
                task.greenlet.throw(Gone)


class Task:
    """A greenlet of a process."""

    def __init__(self, process: Process, work: Callable[..., object], values: tuple[Any, ...]) -> None:
        self.process = process
        self.turns = 0
        """How often it has run; what was to wake it before is void."""
        self.is_started = False
        self._work, self._values = work, values
        self.greenlet = greenlet(self._run)
        self.greenlet.task = self

    def _run(self) -> None:
        try:
            self._work(*self._values)
        except Gone:
            pass
        except BaseException as error:
            self.process.world.errors.append(error)
        finally:
            self.process.tasks.pop(self, None)


class World:
    """The clock, the queue of what happens next, and the seed."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now = 1_800_000_000.0
        """Seconds since 1970, by the server's clock."""
        self.errors: list[BaseException] = []
        self._queue: list[tuple[float, float, int, Task, int]] = []
        self._count = 0
        self._hub = getcurrent()

    def wake(self, task: Task, delay: float = 0.0) -> None:
        """Let a task continue after so many seconds, unless something wakes it before."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self.chance.random(), self._count, task, task.turns))

    def pause(self, timeout: float | None = None) -> None:
        """Wait in a task until `wake`, at most so long."""
        task = self.current
        if task.process.is_dead:
            raise Gone
        if timeout is not None:
            self.wake(task, timeout)
        self._hub.switch()

    def sleep(self, seconds: float) -> None:
        """Wait in a task."""
        self.pause(seconds)

    @property
    def current(self) -> Task:
        """The task that runs."""
        task: Task = getcurrent().task
        return task

    def run(self, until: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Run all tasks until that time, or until one has failed, or it `is_done`."""
        while self._queue and not self.errors and not is_done():
            at, _, _, task, turns = self._queue[0]
            if at > until:
                break
            heapq.heappop(self._queue)
            if task.turns != turns or task.process.is_dead:
                continue
            self.now = max(self.now, at)
            if task.process.is_frozen:
                self.wake(task, task.process.thaws_at - self.now)
                continue
            task.turns += 1
            task.is_started = True
            task.greenlet.parent = self._hub
            task.greenlet.switch()

    def close(self) -> None:
        """Forget all tasks."""
        tasks = {entry[3] for entry in self._queue}
        for process in {task.process for task in tasks}:
            process.kill()


class Mutex:
    """A lock between tasks, in the place of a lock between threads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_held = False
        self._waiting: list[Task] = []

    def __enter__(self) -> None:
        while self._is_held:
            self._waiting.append(self._world.current)
            self._world.pause()
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._world.wake(task)
