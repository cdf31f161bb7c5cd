"""The children of a host: the task group in which they run, a record of each, and the rules for independent ones.

A host opens its group in its own task (`incarnation.py`); each child is a task in it. Starting a child, its exit and
its restart are each one synchronous change of the records, made in the task that asks or ends: a group's tasks may be
started by any task of the loop, and are started in the host's own context.

`Children` are independent of each other and have no ids: OTP's `simple_one_for_one`, and the children of any actor with
`has_children`. Their refs identify them, and each is restarted alone. So a slow `init` delays only the task that
started that child. The ordered children of a static supervisor are in `supervisor.py`.

| the host                 | its children get                                                     |
|--------------------------|----------------------------------------------------------------------|
| is asked to stop         | the same reason, after its `terminate`                               |
| ends or crashes by itself | `Shutdown(ParentEnded(reason))`, after its `terminate`              |
| is killed                | a kill, at once                                                      |

They are stopped last started first, each gone before the next is asked, or all at once.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

import anyio.lowlevel

from supervisors.actor import Actor
from supervisors.errors import ChildNotFound, NameTaken, ShuttingDown, SpecError, StartFailed
from supervisors.events import Exited, GaveUpEvent, Restarting, Started, StartFailedEvent
from supervisors.incarnation import TORN_DOWN, Incarnation, LifePhase, create_actor
from supervisors.policy import RestartWindow, should_restart
from supervisors.reasons import (
    NORMAL,
    SHUTDOWN,
    Crash,
    ExitReason,
    GaveUp,
    Killed,
    Normal,
    ParentEnded,
    Shutdown,
    check_reason,
    is_abnormal,
)
from supervisors.ref import CANCELLED, ActorRef, Outcome, SupervisorRef, identify, run_to_end
from supervisors.spec import DEFAULT_SHUTDOWN, ChildSpec, ChildType, check_child
from supervisors.spec import Shutdown as ShutdownTime

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from supervisors.supervisor import DynamicSupervisor, Supervisor
    from supervisors.system import ActorSystem
    from supervisors.waiting import ScheduledCall

A = TypeVar("A", bound=Actor)

State = Literal["running", "restarting", "stopped"]


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """One entry of `which_children`. `stopped` is OTP's `undefined`."""

    id: Hashable
    ref: ActorRef | None
    state: State
    type: ChildType
    spec: ChildSpec[Any]


@dataclass(frozen=True, slots=True)
class ChildCounts:
    """The result of `count_children`: known specs, running children, and how many of each type."""

    specs: int
    active: int
    supervisors: int
    workers: int


@dataclass(slots=True, eq=False)
class ChildRecord:
    """A host's record of one child."""

    parent: ChildGroup
    spec: ChildSpec[Any]
    ref: ActorRef | None = field(init=False)  # once it has one
    incarnation: Incarnation | None = None  # of a child that has just ended, until its end is handled
    is_supervisor: bool = False
    is_host: bool = False
    retry: ScheduledCall | None = None  # if it has ended and will be restarted
    restarts: int = 0  # of this identity so far
    last_exit: ExitReason | None = None  # why its last incarnation ended, or did not start
    _attempt: int = 0  # restarts since it last ran long enough

    def __post_init__(self) -> None:
        self.ref = self.spec.ref
        self.is_supervisor = self.is_host = self.spec.type == "supervisor"

    @property
    def state(self) -> State:
        """Its state as in `which_children`."""
        if self.incarnation is not None:
            return "restarting" if self.restarts and self.incarnation.phase is LifePhase.STARTING else "running"
        return "restarting" if self.retry is not None else "stopped"

    @property
    def has_been_up(self) -> bool:
        """Whether its first start has succeeded."""
        return self.restarts > 0 or self.incarnation is None or self.incarnation.was_up

    @property
    def shutdown(self) -> ShutdownTime:
        """Its shutdown time: the spec's, or the default."""
        if self.spec.shutdown is not None:
            return self.spec.shutdown
        return math.inf if self.is_host else DEFAULT_SHUTDOWN

    def get_info(self) -> ChildInfo:
        """Return its entry of `which_children`."""
        kind: ChildType = "supervisor" if self.is_supervisor else "worker"
        return ChildInfo(self.spec.id, self.ref, self.state, kind, self.spec)

    def retire(self) -> None:
        """Mark its ref as ended: there will be no further incarnation."""
        self.cancel_restart()
        if self.ref is not None:
            identify(self.ref).retire(self.ref, None if self.incarnation is None else self.incarnation.value)
        self.incarnation = None

    def cancel_restart(self) -> None:
        """Cancel a pending restart."""
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None

    def restart_later(self, delay: float, retry: Callable[[ChildRecord], object]) -> None:
        """Call `retry` after `delay` seconds, never at once: waiting requests go first."""
        self.cancel_restart()
        system = self.parent.system
        if self.ref is not None:
            system.emit(Restarting(system.now(), self.ref, self.spec, self.last_exit or NORMAL, delay))
        self.retry = system.timers.call_after(delay, partial(retry, self))

    def count_restart(self, ended: Incarnation | None) -> float:
        """Count a restart and return the seconds to wait before it.

        Args:
            ended: the incarnation that has just ended; `None` if it did not start.
        """
        backoff = self.spec.backoff
        if backoff is None:
            return 0.0
        system = self.parent.system
        ran = 0.0 if ended is None else system.now() - ended.since
        self._attempt = 1 + backoff.next_attempt(self._attempt - 1, ran)
        return backoff.delay(self._attempt - 1, system.chance())

    def begin(self) -> Incarnation | ExitReason:
        """Create an incarnation that the host then records and starts.

        Returns:
            the incarnation, or the reason why the start failed: `Normal()` if `start` raised `Ignore`.
        """
        system = self.parent.system
        if system.is_torn_down:
            return TORN_DOWN
        actor = create_actor(self.spec, system)
        try:
            if isinstance(actor, Actor):
                self.incarnation = incarnation = Incarnation(system, self, self._identify(actor), actor)
                if actor.has_children:
                    children: Any = (actor.children_class or Children)(system, incarnation)
                    incarnation.children = actor.children = children
                self.cancel_restart()
                return incarnation
            failure = actor
        except (SpecError, NameTaken) as refusal:
            failure = Crash(refusal)
        reason = None if isinstance(failure, Normal) else failure
        system.emit(StartFailedEvent(system.now(), self.ref or ActorRef(self.spec.id), self.spec, reason))
        return failure

    def _identify(self, actor: Actor) -> ActorRef:
        """Give the new actor its ref, path and name, and return the ref; raise an error if it cannot have them."""
        self.is_supervisor, self.is_host = actor.is_supervisor, actor.has_children
        ref = self.ref or self.spec.ref
        if ref is None:
            ref = actor.ref_class()
        elif not isinstance(ref, actor.ref_class):
            self.ref = None
            raise SpecError("ref", f"{type(actor).__name__} needs a {actor.ref_class.__name__}, not {ref!r}")
        elif not self.restarts and identify(ref).is_open:
            self.ref = None  # so that the end of this child does not end the other ref
            raise SpecError("ref", f"{ref!r} is another child's already")
        self.ref = ref
        identity = identify(ref)
        identity.id, identity.parent = self.spec.id, self.parent.ref
        if self.spec.name is not None:
            self.parent.system.registry.reserve(self.spec.name, ref)
        return ref


class ChildGroup:
    """The children of one incarnation of a host, and the task group in which they run."""

    def __init__(self, system: ActorSystem, me: Incarnation | None) -> None:
        self.system = system
        self.ref: ActorRef | None = None if me is None else me.ref  # `None` above the top supervisor
        self.records: dict[Any, ChildRecord] = {}  # in start order
        self._me: Any = me
        self._group: TaskGroup | None = None
        self._context = contextvars.Context()
        self._is_closed = False
        self._window = RestartWindow() if me is None else RestartWindow(me.actor.max_restarts, me.actor.period)

    def open(self, group: TaskGroup) -> None:
        """Note the group, in the task that has opened it."""
        self._group = group
        self._context = contextvars.copy_context()

    async def wait_until_open(self) -> None:
        """Wait for the first step of the host's task."""
        while self._group is None and self.is_open:
            await anyio.lowlevel.checkpoint()

    @property
    def is_open(self) -> bool:
        """Whether children are still started and restarted."""
        return not (self._is_closed or self._me.stop_reason is not None or self._me.is_over)

    def close(self) -> None:
        """Start and restart no more children."""
        self._is_closed = True
        for record in self.records.values():
            record.cancel_restart()

    def incarnations(self) -> list[Incarnation]:
        """Return the running incarnations, in start order."""
        return [record.incarnation for record in self.records.values() if record.incarnation is not None]

    def kill_all(self) -> None:
        """Kill all children."""
        for incarnation in self.incarnations():
            incarnation.kill()

    async def finish(self, reason: ExitReason) -> None:
        """Stop all children for good, because the host ends for `reason`, or has been killed.

        Only a native cancellation can interrupt this: the loop is torn down, and its tasks end by themselves.
        """
        self.close()
        if not isinstance(reason, Shutdown):
            reason = Shutdown(ParentEnded(reason))
        if self._me.killed:
            self.kill_all()
        stop = self._stop_at_once if self._me.actor.stops_children_at_once else self._stop_in_order
        while self.records:
            with suppress(self.system.loop.cancelled):
                await stop(reason)

    async def _stop_in_order(self, reason: ExitReason) -> None:
        """Stop all children, last started first, each gone before the next is asked."""
        while self.records:
            key, record = next(reversed(self.records.items()))
            if record.incarnation is not None:
                record.incarnation.shut_down(reason)
                await record.incarnation.reach(LifePhase.GONE)
            record.retire()  # at once: a sibling that calls it in its `terminate` gets an error, and does not wait
            self.records.pop(key, None)

    async def _stop_at_once(self, reason: ExitReason) -> None:
        """Stop all children at once, each within its own grace: this takes as long as the slowest."""
        for incarnation in self.incarnations():
            incarnation.shut_down(reason)
        await self._stop_in_order(reason)

    def count_restart(self, record: ChildRecord) -> ExitReason | None:
        """Count a restart attempt, successful or not; return a reason to end if there were too many."""
        reason, now = record.last_exit or NORMAL, self.system.now()
        self._window = self._window.add(now)
        if not self._window.exceeded:
            return None
        if record.ref is not None and self.ref is not None:
            self.system.emit(GaveUpEvent(now, self.ref, record.spec, reason))
        return Shutdown(GaveUp(record.spec.id, reason))

    def limit(self, max_restarts: float, period: float) -> None:
        """Change the limit of restarts; those before still count."""
        self._window = RestartWindow(max_restarts, period, self._window.times)

    def which_children(self) -> list[ChildInfo]:
        """`SupervisorRef.which_children`."""
        return [record.get_info() for record in self.records.values() if record.has_been_up]

    def count_children(self) -> ChildCounts:
        """`SupervisorRef.count_children`."""
        known = [record for record in self.records.values() if record.has_been_up]
        supervisors = sum(record.is_supervisor for record in known)
        active = sum(record.state == "running" for record in known)
        return ChildCounts(len(known), active, supervisors, len(known) - supervisors)

    def spawn(self, body: Callable[[Incarnation], Coroutine[Any, Any, None]], child: Incarnation) -> None:
        """Run `body(child)` as a task in the group, in a copy of the host's context."""
        assert self._group is not None
        self._group.create_task(body(child), name=str(child.child.spec.id), context=self._context.copy())

    def note_start(self, child: Incarnation) -> None:
        """Report that a child is up. A temporary one will not be started again, so its `start` is released."""
        record = child.child
        if record.spec.restart == "temporary":
            record.spec = replace(record.spec, start=_refuse_start)
        self.system.emit(Started(self.system.now(), child.ref, record.spec, record.restarts))

    def note_end(self, child: Incarnation) -> None:
        """Report that a child has ended, or that its start failed. A subclass then forgets or restarts it."""
        record, now = child.child, self.system.now()
        is_expected = child.was_ignored or ((child.was_up or child.stopped_by_parent) and _is_expected(child))
        if child.was_up:
            about = (child.last_call, type(child.actor).__name__, record.restarts, self._window.count(now))
            self.system.emit(Exited(now, child.ref, record.spec, child.reason, is_expected, *about))
        else:
            failure = None if child.was_ignored else child.reason
            self.system.emit(StartFailedEvent(now, child.ref, record.spec, failure, is_expected))


class Children(ChildGroup):
    """The children of an actor with `has_children`: `self.children`. Independent of each other, known by their refs.

    Iterate over it for the refs, in start order.
    """

    def __iter__(self) -> Iterator[ActorRef]:
        return iter(list(self.records))

    def __len__(self) -> int:
        return len(self.records)

    @overload
    async def start(self, spec: ChildSpec[Supervisor] | ChildSpec[DynamicSupervisor]) -> SupervisorRef: ...
    @overload
    async def start(self, spec: ChildSpec[A]) -> ActorRef[A]: ...
    async def start(self, spec: ChildSpec[Any]) -> ActorRef:
        """Start a child and wait until it is up. If this is cancelled meanwhile, the child is ended again.

        Returns:
            its ref; not `alive` if the child raised `Ignore`.

        Raises:
            StartFailed: its start failed.
            SpecError: the spec does not fit.
            ShuttingDown: the actor is ending.
        """
        return (await self.start_info(spec))[0]

    async def start_info(self, spec: ChildSpec[Any]) -> tuple[ActorRef, Any]:
        """Like `start`, but also return what `init` returned, which is not stored."""
        check_child(spec, "never")
        if not self.is_open:
            raise ShuttingDown(spec.id)
        record = ChildRecord(self, spec)
        incarnation = record.begin()
        if isinstance(incarnation, Normal):
            return record.ref or ActorRef(spec.id), None
        if not isinstance(incarnation, Incarnation):
            raise StartFailed(spec.id, incarnation)
        ref = incarnation.ref
        self.records[ref] = record
        incarnation.start()
        try:
            await incarnation.reach(LifePhase.UP)
        except self.system.loop.cancelled:
            incarnation.shut_down(Shutdown("start cancelled"))  # its ref would be lost
            raise
        if not incarnation.was_up and not incarnation.was_ignored:
            raise StartFailed(spec.id, incarnation.reason)
        return ref, incarnation.take_info()

    async def stop(self, ref: ActorRef, reason: ExitReason = SHUTDOWN) -> None:
        """Stop a child and wait until it has ended; at once if it has ended for good.

        Args:
            ref: the child.
            reason: the reason that its `terminate` receives; a host passes it to its children.

        Raises:
            ChildNotFound: it is no child of this actor.
            TypeError: `reason` is not an exit reason.
        """
        check_reason(reason)
        record = self.records.get(ref) if isinstance(ref, ActorRef) else None
        if record is not None:
            await self._stop(record, reason)
        elif not isinstance(ref, ActorRef) or identify(ref).outcome is None:
            raise ChildNotFound(ref)  # one that has ended is fine, whose child it was does not matter

    async def stop_all(self, reason: ExitReason = SHUTDOWN) -> None:
        """Stop all present children, last started first, each within its grace.

        Raises:
            TypeError: `reason` is not an exit reason.
        """
        check_reason(reason)
        for record in reversed(list(self.records.values())):
            await self._stop(record, reason)

    async def run(self, spec: ChildSpec[Any], *, cancelled: ExitReason = CANCELLED) -> Outcome:
        """Start a child and wait for its outcome, as if it were a call; end the child if this is cancelled meanwhile.

        Args:
            spec: its spec, typically of a temporary child; see `task`.
            cancelled: the reason that it receives if this is cancelled.

        Returns:
            how it ended, or failed to start: failures of the child are never raised.

        Raises:
            TypeError: `cancelled` is not an exit reason.
        """
        return await run_to_end(self.start, self.stop, spec, cancelled)

    def note_end(self, child: Incarnation) -> None:
        """A child has ended: forget it, or restart it."""
        super().note_end(child)
        record = child.child
        if record.incarnation is not child:
            return
        record.last_exit = child.reason
        if not self.is_open or child.stopped_by_parent:
            self._forget(record)
        elif not child.was_up:
            self._handle_failed_start(record, NORMAL if child.was_ignored else child.reason)
        elif should_restart(record.spec.restart, child.reason):
            record.incarnation = None
            delay = record.count_restart(child)
            if delay:
                record.restart_later(delay, self._restart)
            else:
                self._restart(record)
        else:
            self._forget(record)

    def _forget(self, record: ChildRecord) -> None:
        assert record.ref is not None
        self.records.pop(record.ref, None)
        record.retire()

    def _handle_failed_start(self, record: ChildRecord, failure: ExitReason) -> None:
        """Forget a child whose first start failed, or that raised `Ignore`; else try again later."""
        if record.restarts == 0 or isinstance(failure, Normal):
            self._forget(record)
            return
        record.incarnation = None
        record.last_exit = failure
        record.restart_later(record.count_restart(None), self._restart)

    def _restart(self, record: ChildRecord) -> None:
        reason = self.count_restart(record)
        if reason is not None:
            self._forget(record)
            self._me.ask_to_stop(reason)
            return
        record.restarts += 1
        begun = record.begin()
        if isinstance(begun, Incarnation):
            begun.start()
        else:
            self._handle_failed_start(record, begun)

    async def _stop(self, record: ChildRecord, reason: ExitReason) -> None:
        if record.incarnation is None:
            self._forget(record)  # this cancels its restart
        else:
            record.incarnation.shut_down(reason)
            await record.incarnation.reach(LifePhase.GONE)


def _refuse_start() -> NoReturn:
    raise AssertionError("a temporary child is not started twice")


def _is_expected(incarnation: Incarnation) -> bool:
    """Return whether the host asked for this end or the restart type allows it: no error report."""
    reason, spec = incarnation.reason, incarnation.child.spec
    is_permanent = spec.restart == "permanent"
    if incarnation.stopped_by_parent:
        if isinstance(reason, Normal):
            return not is_permanent
        return isinstance(reason, Shutdown) or (isinstance(reason, Killed) and spec.shutdown == "kill")
    return not is_permanent and not is_abnormal(reason)
