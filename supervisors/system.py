"""An actor system: it hosts a tree of actors inside any anyio, asyncio or trio program.

`async with ActorSystem()` opens a task group in the task that enters it. Two tasks are in that group: the timers, and
the top supervisor, inside which all other actors have theirs (`incarnation.py`). A cancellation of the program reaches
the `async with` block and not the actors; leaving the block, for whatever reason, ends them in their order, last
started first, each within its grace. No task outlives the block. The task that entered the block leaves it; on asyncio
another task may do so once the first has ended, as in a fixture of pytest-asyncio.

From another thread, use `system.portal`. To end with the process, wait for `system.terminated()` in the block.

Several systems may live in one process, also on one loop; they share nothing.
"""

from __future__ import annotations

import contextlib
import math
import random
import signal
from collections.abc import Callable, Coroutine, Hashable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, TypeVar, TypeVarTuple, Unpack, overload

import anyio
import anyio.from_thread
import anyio.lowlevel
from anyio import TaskHandle

from supervisors.actor import Actor
from supervisors.children import ChildGroup, ChildRecord
from supervisors.errors import (
    MailboxFull,
    NameTaken,
    NotRunning,
    SpecError,
    SupervisorsError,
    SystemDown,
    WrongTask,
    is_number,
)
from supervisors.events import DeadLetter, Event, EventStream, Reports, Sink
from supervisors.incarnation import Incarnation, LifePhase
from supervisors.interrupts import IN_SYSTEM, close_guard, open_guard
from supervisors.policy import Strategy
from supervisors.reasons import ExitReason, Shutdown
from supervisors.ref import ActorRef, SupervisorRef, identify
from supervisors.spec import ChildSpec, check_flags, check_shutdown
from supervisors.supervisor import DynamicSupervisor, Supervisor
from supervisors.waiting import EventLoop, TimerQueue, find_event_loop, wait_uninterrupted

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

A = TypeVar("A", bound=Actor)
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_Watch: TypeAlias = Callable[..., None]


def _do_nothing() -> None:
    """Do nothing at the end of a system."""


def _DEFAULT(_: Event) -> None:  # noqa: N802 - a constant: "no argument was given"
    raise AssertionError


class ActorSystem:
    """`async with ActorSystem() as system: ...`

    Args:
        name: the id of the top supervisor, and so the first part of all paths.
        strategy: the strategy of the top supervisor, for the children that `start` starts.
        max_restarts: likewise; beyond it the whole system ends, and the block is cancelled and raises `SystemDown`.
        period: likewise, in seconds.
        stop_within: seconds for the whole system to end when the block is left; then the remaining actors are killed.
            By default only the children's own graces apply.
        reports: the sink for reports of failures; `Reports()` by default, `None` for no reports.
        kill_grace: seconds that a killed child has to end, before it is given up as a zombie.
        on_end: called once when all actors have ended, also if the event loop is torn down. It must not raise.

    Raises:
        SpecError: an argument is wrong; `what` names it.
    """

    def __init__(
        self,
        name: str = "root",
        *,
        strategy: Strategy = "one_for_one",
        max_restarts: float = 1,
        period: float = 5.0,
        kill_grace: float = 5.0,
        stop_within: float = math.inf,
        reports: Sink | None = _DEFAULT,
        on_end: Callable[[], object] = _do_nothing,
    ) -> None:
        check_flags(strategy, max_restarts, period, "never")
        check_shutdown(stop_within)
        if not (is_number(kill_grace) and kill_grace >= 0):
            raise SpecError("kill_grace", f"expected seconds, 0 or more, got {kill_grace!r}")
        if reports is not None and not callable(reports):
            raise SpecError("reports", f"expected a function of an event, or None for no reports, got {reports!r}")
        self.kill_grace = kill_grace
        self.registry: Registry = Registry(self.report_dead_letter)
        self.sinks: list[Sink] = []
        self.on_end = on_end
        self.chance: Callable[[], float] = random.random
        self.portal: SystemPortal
        self.loop: EventLoop
        self.timers: TimerQueue
        self.now: Callable[[], float]  # the event loop's clock, in seconds
        self.root: SupervisorRef = SupervisorRef(name)
        spec = ChildSpec(
            name,
            lambda: Supervisor(strategy=strategy, max_restarts=max_restarts, period=period),
            restart="temporary",
            shutdown=stop_within,
            ref=self.root,
        )
        self._above = _Top(self, None)
        self.top: ChildRecord = ChildRecord(self._above, spec)  # the top supervisor's entry, for `inspect`
        self._reports = Reports() if reports is _DEFAULT else reports
        self._top: Incarnation | None = None
        self._fatal: BaseException | None = None
        self._down: ExitReason | None = None
        self._is_entered = False
        self._is_leaving = False
        self._has_reported_teardown = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error that says why an attribute is missing: the event loop that enters the system sets these
            attributes.
            """
            if name in ("portal", "loop", "timers", "now"):
                raise SupervisorsError(f"{name}: this ActorSystem is not entered: use it inside `async with` it")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise SupervisorsError("an ActorSystem is entered once: make a new one for each `async with`")
        self._is_entered = True
        with contextlib.ExitStack() as failed:
            open_guard()
            failed.callback(close_guard)
            await self._enter()
            failed.pop_all()  # `__aexit__` closes it
        return self

    async def _enter(self) -> None:
        self.loop = find_event_loop()
        self.now = self.loop.now
        self.timers = TimerQueue(self.loop)
        self.portal = SystemPortal()
        self._opener = self.loop.current_task()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._above.open(self._group)
        self._ticking = self._above.start(self.timers.run(), f"{self.root.id} (timers)")
        top = self.top.begin()
        assert isinstance(top, Incarnation)
        self._top = top
        top.start()
        cancelled = await wait_uninterrupted(
            self.loop, lambda: top.phase is not LifePhase.STARTING, partial(top.reach, LifePhase.UP)
        )
        if cancelled is not None:  # natively: nothing else would close the group
            await self._leave(type(cancelled), cancelled, cancelled.__traceback__)
            raise cancelled

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await self._leave(exc_type, exc, tb)
        finally:
            close_guard()

    async def _leave(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._is_leaving = True
        if self.top.incarnation is not None:
            self.top.incarnation.shut_down(Shutdown("system"))
        cancelled = None
        for task in (self._above.task, self._ticking):
            again = await wait_uninterrupted(self.loop, partial(_has_finished, task), task.wait)
            cancelled = cancelled or again
        for sink in tuple(self.sinks):
            if isinstance(sink, EventStream):
                sink.close()
        if isinstance(self._reports, Reports):
            _write_report(self._reports.close)
        has_failed = self._fatal is not None or self._down is not None
        if self.loop.current_task() is self._opener:
            # Without a failure the group is empty; passing it the exception would only wrap the exception.
            await self._group.__aexit__(*((exc_type, exc, tb) if has_failed else (None, None, None)))
        elif not self.loop.has_ended(self._opener):
            raise WrongTask
        # else: the group's scope has ended with the task that entered it
        if self._fatal is not None:
            raise self._fatal
        if self._down is not None:
            raise SystemDown(self._down) from getattr(self._down, "exception", None)
        if cancelled is not None:
            raise cancelled

    def note_top_end(self, reason: ExitReason) -> None:
        """Handle the end of the top supervisor: the block is left, or it gave up."""
        self.top.retire()
        if not self._is_leaving and self._fatal is None:
            self._down = reason
            self._group.cancel_scope.cancel()

    @overload
    async def start(self, spec: ChildSpec[Supervisor] | ChildSpec[DynamicSupervisor]) -> SupervisorRef: ...
    @overload
    async def start(self, spec: ChildSpec[A]) -> ActorRef[A]: ...
    async def start(self, spec: ChildSpec[Any]) -> ActorRef:
        """Start a child of the top supervisor and wait until it is up; see `SupervisorRef.start_child`."""
        ref: ActorRef = await self.root.start_child(spec)
        return ref

    def events(self, buffer: int = 1000) -> EventStream:
        """Return a stream of events from now on, also before the system is entered.

        At most `buffer` events are kept for a slow reader, until the system ends or the stream is closed.
        """
        stream = EventStream(buffer, self.sinks)
        self.sinks.append(stream)
        return stream

    async def terminated(self, *signals: signal.Signals) -> signal.Signals:
        """Wait until the process is asked to end: by SIGTERM or SIGINT, or by `signals`.

        The last line of a service's block; leaving the block then ends the tree, within `stop_within`.

        Returns:
            the signal that arrived.
        """
        with anyio.open_signal_receiver(*(signals or (signal.SIGTERM, signal.SIGINT))) as received:
            async for number in received:
                return number
        raise AssertionError("the receiver of signals ended")

    @property
    def is_torn_down(self) -> bool:
        """Whether the event loop is being torn down with its tasks: `asyncio.run` cancels all that are left."""
        return self._top is not None and self.loop.is_tearing_down(self._top.task)

    def emit(self, event: Event) -> None:
        """Pass an event to all sinks. The teardown of the event loop is reported once, and nothing after it.

        Exceptions of sinks are ignored, because this is called in the middle of restarts.
        """
        for sink in tuple(self.sinks):
            _write_report(partial(sink, event))
        if self._reports is not None and not self.is_torn_down:
            _write_report(partial(self._reports, event))
        elif isinstance(self._reports, Reports) and not self._has_reported_teardown:
            self._has_reported_teardown = True
            _write_report(self._reports.report_torn_down)

    def report_dead_letter(self, ref: ActorRef, message: object) -> None:
        """Report a message to an actor that no actor handles."""
        self.emit(DeadLetter(self.now(), ref, message))

    def abort(self, exception: BaseException) -> None:
        """End the system because a `KeyboardInterrupt` or `SystemExit` left an actor.

        All actors end in order, and the exception is raised where the system was opened.
        """
        if self._fatal is None:
            self._fatal = exception
            if self.top.incarnation is not None:
                self.top.incarnation.ask_to_stop(Shutdown("interrupted"))
            self._group.cancel_scope.cancel()


class _Top(ChildGroup):
    """The parent of the top supervisor: the task group of the system."""

    task: TaskHandle[None]

    def open(self, group: TaskGroup) -> None:
        super().open(group)
        self._context.run(IN_SYSTEM.set, True)

    def spawn(self, body: Callable[[Incarnation], Coroutine[Any, Any, None]], child: Incarnation) -> None:
        async def run() -> None:
            try:
                await body(child)
            finally:
                self.system.timers.stop()
                self.system.on_end()

        self.task = self.start(run(), str(child.child.spec.id))

    def start(self, body: Coroutine[Any, Any, None], name: str) -> TaskHandle[None]:
        """Start a task in the group."""
        assert self._group is not None
        return self._group.create_task(body, name=name, context=self._context.copy())

    def note_start(self, child: Incarnation) -> None:
        """Report nothing: no caller has started it."""

    def note_end(self, child: Incarnation) -> None:
        self.system.note_top_end(child.reason)


def _has_finished(task: TaskHandle[Any]) -> bool:
    return task.status not in (TaskHandle.Status.PENDING, TaskHandle.Status.CANCELLING)


def _write_report(report: Callable[[], object]) -> None:
    """Write a report. A failure, such as a closed file or a full disk, must not end the actor."""
    with contextlib.suppress(Exception):
        report()


# --- names ------------------------------------------------------------------------------------------------------------


class Registry:
    """The names of one system: `system.registry`."""

    def __init__(self, report_dead_letter: Callable[[ActorRef, object], object]) -> None:
        self._report_dead_letter = report_dead_letter
        # Beside each ref: the callback that watches its end, by which it is no longer watched.
        self._names: dict[Hashable, tuple[ActorRef, _Watch]] = {}
        self._groups: dict[Hashable, dict[ActorRef, _Watch]] = {}  # in the order of joining

    def register(self, name: Hashable, ref: ActorRef) -> None:
        """Give `ref` a name, until it ends and will not be restarted.

        Raises:
            NameTaken: another actor has the name.
            NotRunning: `ref` has ended and will not be restarted.
        """
        if identify(ref).outcome is not None:
            raise NotRunning(ref, ref.last_exit)
        self.reserve(name, ref)

    def reserve(self, name: Hashable, ref: ActorRef) -> None:
        """Like `register`, for the supervisor that is about to start the actor.

        Raises:
            NameTaken: another actor has the name.
        """
        holder = self.whereis(name)
        if holder is ref:
            return
        if holder is not None:
            raise NameTaken(name, holder)

        def free(*_: object) -> None:
            self.unregister(name)

        self._names[name] = ref, free
        identify(ref).watch(free, free, final=True)

    def join(self, group: Hashable, ref: ActorRef) -> None:
        """Add `ref` to a group, until it ends or leaves. Does nothing if it is a member, or has ended for good."""
        if ref in self._groups.get(group, ()) or identify(ref).outcome is not None:
            return

        def leave(*_: object) -> None:
            self.leave(group, ref)

        self._groups.setdefault(group, {})[ref] = leave
        identify(ref).watch(leave, leave, final=True)

    def leave(self, group: Hashable, ref: ActorRef) -> None:
        """Remove `ref` from a group. Does nothing if it is not a member."""
        members = self._groups.get(group, {})
        if ref in members:
            identify(ref).unwatch(members.pop(ref))
            if not members:
                del self._groups[group]

    def members(self, group: Hashable) -> list[ActorRef]:
        """Return the members of a group, in the order of joining."""
        return list(self._groups.get(group, ()))

    def broadcast(self, group: Hashable, message: Any) -> int:
        """Cast `message` to all members of a group, skipping those whose mailbox is full.

        Returns:
            how many members received it.
        """
        count = 0
        for ref in self.members(group):
            try:
                ref.cast(message)
            except MailboxFull:
                self._report_dead_letter(ref, message)
            else:
                count += 1
        return count

    def unregister(self, name: Hashable) -> None:
        """Free a name. Does nothing if no actor has it."""
        if name in self._names:
            ref, free = self._names.pop(name)
            identify(ref).unwatch(free)

    def whereis(self, name: Hashable) -> ActorRef | None:
        """Return the actor with this name, or `None`."""
        return self._names[name][0] if name in self._names else None

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._names))

    def __len__(self) -> int:
        return len(self._names)


# --- threads ----------------------------------------------------------------------------------------------------------


class SystemPortal:
    """`system.portal`. Made in the loop; used in any other thread while the system is open."""

    def __init__(self) -> None:
        self._token = anyio.lowlevel.current_token()

    def call(self, ref: ActorRef, message: Any, timeout: float | None = None) -> Any:
        """Make a blocking `ref.call`; it returns and raises the same."""
        return self.run(ref.call, message, timeout)

    def cast(self, ref: ActorRef, message: Any) -> None:
        """Make a `ref.cast`. Raises `MailboxFull`."""
        anyio.from_thread.run_sync(ref.cast, message, token=self._token)

    def run(self, function: Callable[[Unpack[Arguments]], Coroutine[Any, Any, T]], *arguments: *Arguments) -> T:
        """Await `function(*arguments)` in the loop, to start or stop a child or to wait for an outcome.

        Raises:
            RuntimeError: in the loop's own thread, which would block for ever, and when the loop has ended.
        """
        return anyio.from_thread.run(function, *arguments, token=self._token)
