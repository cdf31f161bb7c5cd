"""An actor system: it hosts a tree of actors inside any anyio, asyncio or trio program.

It owns the keeper: a task under one shield that hosts the flat group of all actors' tasks (`backend.py`), with a
supervisor at the top. A cancellation of the program reaches the `async with` block and not the actors; leaving the
block, for whatever reason, ends them in their order, last started first, each within its grace. The task that entered
the block leaves it; on asyncio another task may do so once the first has ended, as in a fixture of pytest-asyncio.

From another thread, use `system.portal`. To end with the process, wait for `system.terminated()` in the block.

Several systems may live in one process, also on one loop; they share nothing.
"""

from __future__ import annotations

import contextlib
import math
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, overload

import anyio

from supervisors.actor import Actor
from supervisors.backend import Backend
from supervisors.caller import Caller
from supervisors.checks import is_number
from supervisors.child import Incarnation
from supervisors.children import Child
from supervisors.dynamic import DynamicSupervisor
from supervisors.errors import SpecError, SupervisorsError, SystemDown, WrongTask
from supervisors.events import Event, EventStream, Sink
from supervisors.management import SupervisorRef
from supervisors.policy import Strategy
from supervisors.portal import Portal
from supervisors.reasons import ExitReason, Shutdown
from supervisors.ref import ActorRef
from supervisors.registry import Registry
from supervisors.reports import Reports
from supervisors.spec import ChildSpec, check_flags, check_shutdown
from supervisors.supervisor import Supervisor


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
        reports: the sink for reports of failures; structlog by default, `None` for no reports.
        kill_grace: seconds that a killed child has to end, before it is given up as a zombie.

    Raises:
        SpecError: an argument is wrong; `what` names it (S-12).
    """

    def __init__(
        self,
        name: str = "root",
        *,
        strategy: Strategy = "one_for_one",
        max_restarts: int = 1,
        period: float = 5.0,
        kill_grace: float = 5.0,
        stop_within: float = math.inf,
        reports: Sink | None = _DEFAULT,
    ) -> None:
        check_flags(strategy, max_restarts, period, "never", None)
        check_shutdown(stop_within)
        if not (is_number(kill_grace) and kill_grace >= 0):
            raise SpecError("kill_grace", f"is seconds, 0 or more, got {kill_grace!r}")
        if reports is not None and not callable(reports):
            raise SpecError("reports", f"is called with each event, or None for no reports, got {reports!r}")
        self.kill_grace = kill_grace
        self.registry = Registry()
        self.sinks: list[Sink] = []
        #: Called once when all actors have ended, also if the event loop is torn down. It must not raise.
        self.on_end: Callable[[], object] = lambda: None
        self.portal: Portal
        self._reports = Reports() if reports is _DEFAULT else reports
        self._streams: list[EventStream] = []
        self.root = SupervisorRef(name)
        self.backend: Backend
        self.chance: Callable[[], float] = random.random
        spec = ChildSpec(
            name,
            lambda: Supervisor(strategy=strategy, max_restarts=max_restarts, period=period),
            restart="temporary",
            shutdown=stop_within,
            ref=self.root,
        )
        self.system = self  # the attribute that every parent of a child has
        self.ref = self.root
        self.top = Child(self, spec)  # the top supervisor's entry, for `inspect`
        self._fatal: BaseException | None = None
        self._down: ExitReason | None = None
        self._is_entered = False
        self._is_leaving = False
        self._is_torn_down = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say why an attribute is missing: `portal` and `backend` are those of the event loop that entered it."""
            if name in ("portal", "backend"):
                raise SupervisorsError(f"{name}: this ActorSystem is not entered: use it inside `async with` it")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # --- the block -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise SupervisorsError("an ActorSystem is entered once: make a new one for each `async with`")
        self._is_entered = True
        self.backend = _find_backend()
        self._opener = self.backend.current_task()
        self.portal = Portal()
        self._done, self._up = anyio.Event(), anyio.Event()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._keep, name=f"{self.root.id} (keeper)")
        entered = False
        try:
            await _wait_through(self._up)
            entered = True
            return self
        finally:
            if not entered:  # cancelled natively: nothing else would close the group
                await self.__aexit__(*sys.exc_info())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._is_leaving = True
        if self.top.incarnation is not None:
            self.top.incarnation.shut_down(Shutdown("system"))
        await _wait_through(self._done)
        for stream in self._streams:
            stream.close()
        if isinstance(self._reports, Reports):
            _write_report(self._reports.close)
        has_failed = self._fatal is not None or self._down is not None
        if self.backend.current_task() is self._opener:
            # Without a failure the group is empty; passing it the exception would only wrap the exception.
            await self._group.__aexit__(*((exc_type, exc, tb) if has_failed else (None, None, None)))
        elif not self.backend.has_ended(self._opener):
            raise WrongTask
        # else: the group's scope has ended with the task that entered it
        if self._fatal is not None:
            raise self._fatal
        if self._down is not None:
            raise SystemDown(self._down) from getattr(self._down, "exception", None)

    async def _keep(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self.backend.hold(self._begin)
        finally:
            self._done.set()
            self.on_end()

    async def _begin(self) -> None:
        top = self.top.begin()
        self.root.parent = None
        assert isinstance(top, Incarnation)
        top.start()
        self._up.set()

    # --- called by the top supervisor --------------------------------------------------------------------------

    def recent_restarts(self, now: float) -> int:  # noqa: ARG002  # the top supervisor is never restarted
        """Return 0."""
        return 0

    def child_started(self, child: Incarnation) -> None:
        """The top supervisor is up."""

    def child_gone(self, child: Incarnation) -> None:
        """The top supervisor has ended, because the block is left or because it gave up."""
        self.top.retire()
        if not self._is_leaving and self._fatal is None:
            self._down = child.reason
            self._group.cancel_scope.cancel()

    # --- for its user ----------------------------------------------------------------------------------------------

    @overload
    async def start(self, spec: ChildSpec[Supervisor] | ChildSpec[DynamicSupervisor]) -> SupervisorRef: ...
    @overload
    async def start(self, spec: ChildSpec[Actor]) -> ActorRef: ...
    async def start(self, spec: ChildSpec[Any]) -> ActorRef:
        """Start a child of the top supervisor and wait until it is up; see `SupervisorRef.start_child`."""
        ref: ActorRef = await self.root.start_child(spec)
        return ref

    def events(self, buffer: int = 1000) -> EventStream:
        """Return a stream of events from now on, also before the system is entered.

        At most `buffer` events are kept for a slow reader.
        """
        stream = EventStream(self._make_promise, buffer)
        self.sinks.append(stream)
        self._streams.append(stream)
        return stream

    def _make_promise(self) -> Caller:
        return self.backend.promise()

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

    # --- for the rest of the package -------------------------------------------------------------------------------

    @property
    def is_silent(self) -> bool:
        """Whether there are no sinks, so that events need not be created."""
        return self._reports is None and not self.sinks

    def emit(self, event: Event) -> None:
        """Pass an event to all sinks. The teardown of the event loop is reported once, and nothing after it.

        Exceptions of sinks are ignored, because this is called in the middle of restarts.
        """
        for sink in tuple(self.sinks):
            _write_report(partial(sink, event))
        if self._reports is not None and not self.backend.is_torn_down:
            _write_report(partial(self._reports, event))
        elif isinstance(self._reports, Reports) and not self._is_torn_down:
            self._is_torn_down = True
            _write_report(self._reports.report_torn_down)

    def abort(self, exception: BaseException) -> None:
        """End the system because a `KeyboardInterrupt` or `SystemExit` left an actor.

        All actors end in order, and the exception is raised where the system was opened.
        """
        if self._fatal is None:
            self._fatal = exception
            if self.top.incarnation is not None:
                self.top.incarnation.ask_to_stop(Shutdown("interrupted"))
            self._group.cancel_scope.cancel()


async def _wait_through(event: anyio.Event) -> None:
    """Wait for an event without interruption; a cancellation, even a native one, is raised afterwards."""
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not event.is_set():
            try:
                await event.wait()
            except anyio.get_cancelled_exc_class() as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


def _find_backend() -> Backend:
    trio = sys.modules.get("trio")  # a program that runs under trio has imported it
    if trio is not None and trio.lowlevel.in_trio_task():
        from supervisors.on_trio import TrioBackend

        return TrioBackend()
    from supervisors.on_asyncio import AsyncioBackend

    return AsyncioBackend()


def _write_report(report: Callable[[], object]) -> None:
    """Write a report. A failure, such as a closed file or a full disk, must not end the actor."""
    with contextlib.suppress(Exception):
        report()
