"""The scheduler of a simulation: on both event loops it decides which task runs next, and what time it is.

Theory of operation. An event loop keeps a queue of the tasks that can run. Here that queue is replaced: when all
callbacks have run, one task is chosen of all that can run, and it runs until it waits. When no task can run, the clock
is set to the next deadline. Tasks have numbers, in the order in which they began. At each moment the seed ranks the
numbers in another way, and the task with the lowest rank is chosen. So the choice does not depend on the order in which
a loop wakes tasks, nor on how often: asyncio wakes a task to be cancelled where trio does not, and such a step has no
effect on others. That is why both event loops take the same course.

A task belongs to the process that its parent belongs to. The tasks of a process that is stopped or dead are not chosen.

For asyncio this is an event loop of our own, which never asks its selector: nothing in a simulation waits for a socket.
For trio it is a clock, and a queue in the place of that of the runner.

If no task can run and none has a deadline, nothing will ever happen again. That is an error, which says where each task
waits.
"""

from __future__ import annotations

# ruff: noqa: SLF001  # asyncio's loop has no public face for what a loop of one's own has to replace
import asyncio
import heapq
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from anyio._backends import _asyncio

if TYPE_CHECKING:
    import trio

__all__ = ["AllTasksWait", "TaskOwner", "TaskScheduler", "make_backend_options"]

SHOWN: Final = 50
"""The most tasks of which an error says where they wait."""


class AllTasksWait(AssertionError):
    """No task can run, and none has a deadline: the program has locked itself up."""


class TaskOwner(Protocol):
    """A process, as the scheduler sees it."""

    @property
    def name(self) -> str:
        """Its name in errors."""

    @property
    def is_running(self) -> bool:
        """Whether its tasks may run now."""


class _TaskPlace:
    """The number of a task, and the process that it belongs to."""

    __slots__ = ("number", "owner")

    def __init__(self, number: int, owner: TaskOwner | None) -> None:
        self.number = number
        self.owner = owner


class TaskScheduler:
    """The clock, and the choice of the next task.

    Args:
        seed: decides among the tasks that can run; None for the task that began first.
    """

    def __init__(self, seed: int | None) -> None:
        self.now = 0.0
        """Seconds since the simulation began."""
        self.steps = 0
        """How often a task was chosen."""
        self._seed = seed
        self._places: WeakKeyDictionary[Any, _TaskPlace] = WeakKeyDictionary()
        self._count = 0
        self._spawns_for: TaskOwner | None = None
        self._inherits = True
        self.lock_up: AllTasksWait | None = None
        """The error, once all tasks wait for good."""
        self.find_current_task: Callable[[], Any] = lambda: None
        """Returns the task that runs; None outside of tasks."""

    def add(self, task: Any, parent: Any) -> None:
        """Take note of a new task."""
        self._count += 1
        owner = self.find_owner(parent) if self._inherits else self._spawns_for
        self._places[task] = _TaskPlace(self._count, owner)

    @contextmanager
    def spawn_for(self, owner: TaskOwner | None) -> Iterator[None]:
        """Make the tasks that are started in a `with` block, which does not wait, part of this process or of none."""
        self._inherits, self._spawns_for = False, owner
        try:
            yield
        finally:
            self._inherits, self._spawns_for = True, None

    def has(self, task: Any) -> bool:
        """Return whether a task is one of the simulation's, and not of the event loop itself."""
        return task in self._places

    def find_owner(self, task: Any) -> Any:
        """Return the process of a task; None if it belongs to none."""
        place = None if task is None else self._places.get(task)
        return None if place is None else place.owner

    def can_run(self, task: Any) -> bool:
        """Return whether the process of a task may run."""
        owner = self.find_owner(task)
        return owner is None or owner.is_running

    def choose(self, tasks: list[Any]) -> int | None:
        """Return the index of the task that runs next; None if none of them may run."""
        able = [(self._rank(task), index) for index, task in enumerate(tasks) if self.can_run(task)]
        if not able:
            return None
        self.steps += 1
        return min(able)[1]

    def describe_waits(self) -> str:
        """Return where each task waits that has not ended, a line for each."""
        waiting = [(place.number, place.owner, task) for task, place in self._places.items() if not _has_ended(task)]
        waiting.sort(key=lambda one: one[0])
        lines = [f"  {'' if owner is None else f'{owner.name}: '}{_trace(task)}" for _, owner, task in waiting]
        more = [f"  … and {len(lines) - SHOWN} more tasks"] if len(lines) > SHOWN else []
        return "\n".join([*lines[:SHOWN], *more])

    def note_lock_up(self) -> AllTasksWait:
        """Return the error that all tasks wait for good: the first one, if the loop goes on to end its tasks."""
        if self.lock_up is None:
            self.lock_up = AllTasksWait(f"all tasks wait, and nothing will wake them:\n{self.describe_waits()}")
        return self.lock_up

    def _rank(self, task: Any) -> int:
        """Return what decides among tasks that can run at the same time."""
        number = self._places[task].number
        return number if self._seed is None else hash((self._seed, self.now, number))


def _has_ended(task: Any) -> bool:
    return task.done() if isinstance(task, asyncio.Task) else task.coro.cr_frame is None


def _trace(task: Any) -> str:
    """Return the functions in which a task waits, outermost first, without those of the event loop."""
    waiting = task.get_coro() if isinstance(task, asyncio.Task) else task.coro
    places = []
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            break
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("anyio", "asyncio", "trio"):
            places.append(f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})")
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return " > ".join(places) or "in the event loop"


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that asks a scheduler."""

    _ready: Any
    _scheduled: list[Any]
    _stopping: bool

    def __init__(self, scheduler: TaskScheduler) -> None:
        self._scheduler = scheduler
        self._steps: list[tuple[Any, Any]] = []
        """The tasks that can run, and the handles that run them."""
        self._deliveries: list[Any] = []
        """The handles with which cancelled scopes cancel their tasks again, until these have ended."""
        self._may_deliver = True
        super().__init__()

    def time(self) -> float:
        """Return the simulated time."""
        return self._scheduler.now

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Make a task, and let the scheduler know."""
        parent = asyncio.current_task(self) if asyncio._get_running_loop() is self else None
        task = super().create_task(coro, **options)
        self._scheduler.add(task, parent)
        return task

    def _run_once(self) -> None:
        self._queue_due_timers()
        self._run_callbacks()
        if self._may_deliver:
            self._may_deliver = False
            deliveries, self._deliveries = self._deliveries, []
            self._ready.extend(deliveries)
            self._run_callbacks(delivers=True)
        if self._stopping or self._run_step():
            self._may_deliver = True
        elif self._scheduled:
            self._scheduler.now = max(self._scheduler.now, self._scheduled[0]._when)
            self._may_deliver = True
        else:
            raise self._scheduler.note_lock_up()  # asyncio then cancels all tasks, also shielded ones

    def _queue_due_timers(self) -> None:
        scheduled = self._scheduled
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= self._scheduler.now):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            self._ready.append(handle)

    def _run_callbacks(self, *, delivers: bool = False) -> None:
        """Run all that is ready and no task; of the handles that cancel tasks, only those that are ready now."""
        ready, many = self._ready, len(self._ready)
        while ready:
            handle = ready.popleft()
            many -= 1
            if handle._cancelled:
                continue
            task = getattr(handle._callback, "__self__", None)
            if isinstance(task, asyncio.Task):
                self._steps.append((task, handle))
            elif getattr(handle._callback, "__func__", None) is _DELIVER and not (delivers and many >= 0):
                self._deliveries.append(handle)
            else:
                handle._run()

    def _run_step(self) -> bool:
        steps = self._steps = [step for step in self._steps if not step[1]._cancelled]
        if len(steps) == 0:
            return False
        index = self._scheduler.choose([task for task, _ in steps])
        if index is None:
            return False
        _, handle = steps.pop(index)
        handle._run()
        return True


_DELIVER = _asyncio.CancelScope._deliver_cancellation  # anyio has no public name for it


def make_backend_options(backend: str, scheduler: TaskScheduler) -> dict[str, Any]:
    """Return the options with which `anyio.run` runs a program under a scheduler."""
    if backend == "asyncio":
        scheduler.find_current_task = _find_asyncio_task
        return {"loop_factory": lambda: SimulatedLoop(scheduler)}
    return _make_trio_options(scheduler)


def _find_asyncio_task() -> Any:
    return asyncio.current_task() if asyncio._get_running_loop() is not None else None


class _RunQueue:
    """The tasks that trio can run. Iterating takes out those that run now."""

    def __init__(self, scheduler: TaskScheduler) -> None:
        self._scheduler = scheduler
        self._tasks: list[Any] = []
        self._system: list[Any] = []
        """Tasks of trio itself: they are no part of the simulation."""

    def append(self, task: Any) -> None:
        (self._tasks if self._scheduler.has(task) else self._system).append(task)

    def clear(self) -> None:
        pass

    def __len__(self) -> int:
        return len(self._system) + sum(map(self._scheduler.can_run, self._tasks))

    def __bool__(self) -> bool:
        return bool(self._system) or any(map(self._scheduler.can_run, self._tasks))

    def __iter__(self) -> Iterator[Any]:
        if self._system:
            tasks, self._system = self._system, []
            return iter(tasks)
        index = self._scheduler.choose(self._tasks)
        return iter([] if index is None else [self._tasks.pop(index)])


def _make_trio_options(scheduler: TaskScheduler) -> dict[str, Any]:
    import trio
    from outcome import Error
    from trio._core._run import GLOBAL_RUN_CONTEXT

    class Clock(trio.abc.Clock):
        """A clock that is at the next deadline as soon as no task can run."""

        def start_clock(self) -> None:
            pass

        def current_time(self) -> float:
            return scheduler.now

        def deadline_to_sleep_time(self, deadline: float) -> float:
            if deadline == math.inf:
                tasks = [task for task in GLOBAL_RUN_CONTEXT.runner.tasks if scheduler.has(task)]
                for task in tasks:
                    if not task.child_nurseries:  # else it waits for others
                        trio.lowlevel.reschedule(task, Error(scheduler.note_lock_up()))
                return 0.0 if tasks else 0.001  # trio ends its own tasks
            scheduler.now = max(scheduler.now, deadline)
            return 0.0

    class Instrument(trio.abc.Instrument):
        """Puts the queue in its place, and reports new tasks."""

        def before_run(self) -> None:
            runner: Any = GLOBAL_RUN_CONTEXT.runner
            runner.runq = _RunQueue(scheduler)

        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            runner, parent = GLOBAL_RUN_CONTEXT.runner, getattr(GLOBAL_RUN_CONTEXT, "task", None)
            if parent is None or (parent is runner.init_task and runner.main_task is not None):
                return
            scheduler.add(task, None if parent is runner.init_task else parent)

    scheduler.find_current_task = lambda: getattr(GLOBAL_RUN_CONTEXT, "task", None)
    return {"clock": Clock(), "instruments": [Instrument()]}
