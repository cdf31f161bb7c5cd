"""Tools for tests of supervised programs: virtual time on both backends, a recorder of events, scripted children.

    anyio.run(main, backend="asyncio", backend_options=virtual("asyncio")[1])

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(request):
        return virtual(request.param)

In virtual time hours of backoff pass in milliseconds, with the same figures on every run. `docs/supervisors.md` shows
how to use it.

Theory of operation. The clock stands still while tasks run. When every task waits and no I/O is ready, it jumps to the
next deadline; so code that sleeps, times out and backs off is tested as written, and `anyio.current_time()` returns
exact sums of the sleeps.

Worker threads (`anyio.to_thread`, `trio.to_thread`, `loop.run_in_executor`) live in real time. While one of them works,
the clock never jumps: it runs at the speed of the real one instead, so a real 50 ms of work fits under a virtual
timeout of one second and breaks one of 10 ms. A thread that itself waits for the loop (`anyio.from_thread`) does not
count as working; before a jump it gets a moment of real time, because it may have its answer and not have run since.
With a `thread_rate` below 1 the clock runs slower than the real one meanwhile: a test of exact times beside threads
that use a database then says the same on a machine that is busy.

A run in which nothing can happen any more (no timer, no event, no working thread) fails with `Stuck` instead of
hanging. The clock cannot see that a socket or a subprocess is working. For a test that uses one, set `patience`: the
real seconds of silence to wait for before each jump.

The two implementations share the rule but no code: for asyncio, a selector that jumps instead of waiting (a public
interface); for trio, its own test clock with the rule about threads added.
"""

from __future__ import annotations

import asyncio
import dataclasses
import faulthandler
import functools
import math
import re
import selectors
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import anyio

from supervisors.actor import Actor
from supervisors.events import Event, Exited, Started, StartFailedEvent
from supervisors.mailbox import Caller
from supervisors.reasons import ExitReason, Ignore, Stop
from supervisors.spec import ChildSpec

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import trio.testing

__all__ = ["Boom", "Leave", "Recorder", "Script", "Stuck", "virtual"]

# --- virtual time -----------------------------------------------------------------------------------------------------

#: Real seconds between two looks at a thread that has something to do. Its result wakes the loop at once; this only
#: bounds how late the clock notices that the thread waits for the loop. Most threads are done before the first look,
#: which costs a millisecond.
_LOOK_AGAIN = 0.005

#: Real seconds of silence after which a thread that waits for the loop has had the time to take its answer.
_SETTLED = 0.05

#: A line of the stack of a thread that waits for the event loop.
_WAITS = re.compile(r'anyio[/\\]from_thread\.py"|in _send_message_to_trio$', re.MULTILINE)

_STUCK = "every task waits, nothing is scheduled and no thread works: nothing happened for {} s"


class Stuck(RuntimeError):
    """Every task waits, and nothing can wake one.

    Raised in the main task on trio, out of the run on asyncio.
    """


def virtual(
    backend: str, *, patience: float = 0.0, stuck_after: float = 30.0, thread_rate: float = 1.0
) -> tuple[str, dict[str, Any]]:
    """Return the backend and its options for virtual time.

    Pass the pair to `anyio.run(main, backend=..., backend_options=...)`, or return it from the `anyio_backend` fixture
    of anyio's pytest plugin. On trio, make a new pair for each run that should begin at time 0; on asyncio each run
    does.

    Args:
        backend: `"asyncio"` or `"trio"`.
        patience: real seconds without any event to wait for before each jump. 0 suits everything but sockets and
            subprocesses.
        stuck_after: real seconds of silence, with no timer to jump to and no thread at work, after which the run fails
            with `Stuck`. `math.inf` to wait for ever.
        thread_rate: virtual seconds that pass in each real second in which a worker thread is at work. More than 0.

    Returns:
        `(backend, backend_options)`.

    Raises:
        ValueError: if there is no such backend, or `thread_rate` is not above 0.
    """
    if not thread_rate > 0:
        raise ValueError(f"expected a thread_rate above 0, got {thread_rate!r}: virtual seconds in each real one")
    if backend == "asyncio":
        options = {"patience": patience, "stuck_after": stuck_after, "thread_rate": thread_rate}
        return backend, {"loop_factory": functools.partial(VirtualLoop, **options)}
    if backend == "trio":
        return backend, {"clock": _make_trio_clock(patience, stuck_after, thread_rate)}
    raise ValueError(f"no backend {backend!r}: it is either 'asyncio' or 'trio'")


def _count_waiting_for_the_loop() -> int:
    """Return how many threads wait for an event loop to do something for them.

    The stacks come from faulthandler, which reads them in one step: the frame objects of a running thread have crashed
    Python 3.11.
    """
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        stacks = file.read().decode(errors="replace").split("\n\n")
    # the loop's own thread does not wait for the loop
    return sum(1 for stack in stacks if not stack.startswith("Current thread") and _WAITS.search(stack))


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time is virtual. It begins at 0."""

    def __init__(self, *, patience: float, stuck_after: float, thread_rate: float) -> None:
        self.virtual_now = 0.0  # seconds; moved by the selector
        self._in_executors = 0
        super().__init__(_JumpingSelector(self, patience, stuck_after, thread_rate))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.virtual_now

    def advance(self, seconds: float) -> None:
        """Let virtual time pass.

        The loop's resolution grows with its time. asyncio runs what is due within the resolution, and after 194 days
        one billionth of a second is less than two neighbouring floats differ by: no timer would be due any more.
        """
        self.virtual_now += seconds
        self._clock_resolution: float = max(self._clock_resolution, 2 * math.ulp(self.virtual_now))

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` in a worker thread, and count it as at work until it has returned."""
        future = super().run_in_executor(executor, func, *args)
        self._in_executors += 1
        future.add_done_callback(self._note_executor_end)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """Join the threads of the default executor; from Python 3.12 on the loop limits the time that this takes."""
        self._in_executors += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._in_executors -= 1

    def _note_executor_end(self, _: asyncio.Future[Any]) -> None:
        self._in_executors -= 1

    def count_threads(self) -> int:
        """Return how many worker threads of this loop have something to do: they work, or wait for the loop."""
        count = self._in_executors
        if threading.active_count() > 1:
            for thread in threading.enumerate():
                # anyio's worker threads refer to their pool; a thread that is not in the pool is at work. It returns to
                # the pool on the loop, after its result was delivered, so there is no gap between the two.
                pool = getattr(thread, "idle_workers", None)
                if pool is not None and getattr(thread, "loop", None) is self and thread not in pool:
                    count += 1
        return count


class _JumpingSelector(selectors.DefaultSelector):
    """A selector for which time passes at once."""

    def __init__(self, loop: VirtualLoop, patience: float, stuck_after: float, thread_rate: float) -> None:
        super().__init__()
        self._stuck_after = stuck_after
        self._loop = loop
        self._patience = patience
        self._thread_rate = thread_rate

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            return self._select_without_timers()
        patience = self._patience
        if threads := self._loop.count_threads():
            began = time.monotonic()
            events = super().select(min(timeout / self._thread_rate, _LOOK_AGAIN))
            if events or threads > _count_waiting_for_the_loop():
                self._loop.advance(min(timeout, (time.monotonic() - began) * self._thread_rate))
                return events
            patience = max(patience, _SETTLED)
        if patience and (events := super().select(patience)):
            return events
        self._loop.advance(timeout)
        return []

    def _select_without_timers(self) -> Any:
        if self._stuck_after == math.inf:
            return super().select(None)
        if threads := self._loop.count_threads():
            if events := super().select(_LOOK_AGAIN):
                return events
            if threads > _count_waiting_for_the_loop():
                return super().select(None)
        if events := super().select(self._stuck_after):
            return events
        raise Stuck(_STUCK.format(self._stuck_after))


def _make_trio_clock(patience: float, stuck_after: float, thread_rate: float) -> trio.testing.MockClock:
    import trio.testing
    from trio._core._run import GLOBAL_RUN_CONTEXT

    clock = trio.testing.MockClock(autojump_threshold=patience)
    jump = clock._autojump  # noqa: SLF001 - see the last lines

    class Silence(trio.abc.Instrument):
        """Notices that a task is scheduled, which ends the silence."""

        def task_scheduled(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
            trio.lowlevel.remove_instrument(self)
            clock.autojump_threshold = patience

    def raise_stuck(*_: object) -> NoReturn:
        raise Stuck(_STUCK.format(stuck_after))

    def wait(seconds: float) -> bool:
        # Waits as trio does itself, but here: where trio is a guest, as in anyio's plugin, it would wait in a thread.
        io = GLOBAL_RUN_CONTEXT.runner.io_manager
        events = io.get_events(seconds)
        io.process_events(events)
        return bool(events)

    def jump_unless_a_thread_works() -> None:
        # Called by trio when nothing has happened for `autojump_threshold` real seconds.
        timeout = trio.lowlevel.current_statistics().seconds_to_next_deadline
        threads = trio.testing.active_thread_count()
        if threads:
            began = time.monotonic()
            if wait(min(timeout / thread_rate, _LOOK_AGAIN)) or threads > _count_waiting_for_the_loop():
                clock.jump(min(timeout, (time.monotonic() - began) * thread_rate))
                return
            if wait(max(patience, _SETTLED)):
                return
        if timeout < math.inf:
            jump()
        elif clock.autojump_threshold == stuck_after:
            clock.autojump_threshold = math.inf
            main_task = GLOBAL_RUN_CONTEXT.runner.main_task
            if main_task is not None:
                main_task._attempt_abort(raise_stuck)  # noqa: SLF001 - as trio delivers a KeyboardInterrupt
        elif not threads:
            clock.autojump_threshold = stuck_after
            trio.lowlevel.add_instrument(Silence())

    # The class is final and the hook has no public name (trio#1587), so the instance gets it.
    clock._autojump = jump_unless_a_thread_works  # type: ignore[method-assign]  # noqa: SLF001
    return clock


# --- a recorder of events ---------------------------------------------------------------------------------------------


class Recorder:
    """A sink. `events` has all events; `log` has an entry per child event: `+id`, `-id reason`, `!id` (a failed start),
    `~id` (an ignored start).
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.log: list[str] = []

    def __call__(self, event: Event) -> None:
        """Record an event."""
        self.events.append(event)
        match event:
            case Started():
                self.log.append(f"+{event.spec.id}")
            case StartFailedEvent():
                self.log.append(f"{'~' if event.reason is None else '!'}{event.spec.id}")
            case Exited():
                self.log.append(f"-{event.spec.id} {type(event.reason).__name__.lower()}")
            case _:
                pass

    def take(self) -> list[str]:
        """Return the log so far, and clear it."""
        log, self.log = self.log, []
        return log

    def of(self, kind: type[Event]) -> list[Event]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


# --- scripted children ------------------------------------------------------------------------------------------------


class Boom(Exception):
    """The exception of a scripted crash."""


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    """A message that makes a scripted actor end with a reason."""

    reason: ExitReason


@dataclasses.dataclass
class Script:
    """The script of a child, for all of its incarnations. Use it as the `start` of a `ChildSpec`.

    The actor replies to a call with the message, appends the messages of casts to `seen`, crashes on the message
    `"crash"`, and ends on a `Leave`.

    Args:
        name: the child's id.
        starts: what each start does: `ok`, `error` (raises `Boom` in `init`), `ignore`; the last one applies to all
            further starts.
        slow_start: seconds that `init` takes.
        crash_on: the number of the message that crashes each incarnation, counted from 1.
        hang_on: the number of the message whose handler never returns.
        stop_takes: seconds that `terminate` takes; `math.inf`: until it is killed.
        immortal: it swallows every cancellation, until `release` is called.
    """

    name: str
    starts: Sequence[Literal["ok", "error", "ignore"]] = ("ok",)
    slow_start: float = 0.0
    crash_on: int | None = None
    hang_on: int | None = None
    stop_takes: float = 0.0
    immortal: bool = False

    incarnations: int = 0
    seen: list[Any] = dataclasses.field(default_factory=list)
    ends: list[ExitReason] = dataclasses.field(default_factory=list)
    _released: bool = False

    def __call__(self) -> Actor:
        """Return the next incarnation."""
        self.incarnations += 1
        return _Scripted(self, self.starts[min(self.incarnations, len(self.starts)) - 1])

    def spec(self, **options: Any) -> ChildSpec[Actor]:
        """Return a spec for it; `options` are those of `ChildSpec`."""
        return ChildSpec(self.name, self, **options)

    def release(self) -> None:
        """Let an immortal child end."""
        self._released = True

    async def hang(self) -> None:
        """Never return: the handler of the script's `hang_on` message."""
        if not self.immortal:
            await anyio.sleep_forever()
        while not self._released:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)


class _Scripted(Actor):
    def __init__(self, script: Script, start: str) -> None:
        self._script = script
        self._start = start
        self._count = 0

    async def init(self) -> None:
        if self._script.slow_start:
            await anyio.sleep(self._script.slow_start)
        if self._start == "error":
            raise Boom(f"start {self._script.incarnations} of {self._script.name}")
        if self._start == "ignore":
            raise Ignore

    async def _take(self, message: Any) -> None:
        self._count += 1
        if message == "crash" or self._count == self._script.crash_on:
            raise Boom(self._script.name)
        if message == "hang" or self._count == self._script.hang_on:
            await self._script.hang()
        if isinstance(message, Leave):
            raise Stop(message.reason)

    async def handle_call(self, message: Any, caller: Caller) -> Any:  # noqa: ARG002 - the actor's interface
        await self._take(message)
        return message

    async def handle_cast(self, message: Any) -> None:
        self._script.seen.append(message)
        await self._take(message)

    async def handle_info(self, message: Any) -> None:
        self._script.seen.append(message)

    async def terminate(self, reason: ExitReason) -> None:
        self._script.ends.append(reason)
        if self._script.immortal:
            await self._script.hang()
        elif self._script.stop_takes == math.inf:
            await anyio.sleep_forever()
        elif self._script.stop_takes:
            await anyio.sleep(self._script.stop_takes)
