"""The child records of a supervisor: one `Child` for each known child, and the information about it for others.

`policy.py` makes the decisions; `supervisor.py` and `dynamic.py` carry them out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from supervisors.actor import Actor
from supervisors.child import TORN_DOWN, Incarnation, Phase, create_actor
from supervisors.errors import NameTaken, SpecError
from supervisors.events import Exited, Restarting, Started, StartFailed
from supervisors.reasons import NORMAL, Crash, ExitReason, Killed, Normal, Shutdown, is_abnormal
from supervisors.ref import ActorRef
from supervisors.spec import DEFAULT_SHUTDOWN, ChildSpec, ChildType
from supervisors.spec import Shutdown as ShutdownTime

if TYPE_CHECKING:
    from supervisors.backend import Timer
    from supervisors.child import Parent

State = Literal["running", "restarting", "stopped"]


@dataclasses.dataclass(frozen=True, slots=True)
class ChildInfo:
    """One entry of `which_children`. `stopped` is OTP's `undefined`."""

    id: Hashable
    ref: ActorRef | None
    state: State
    type: ChildType
    spec: ChildSpec[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ChildCounts:
    """The result of `count_children`: known specs, running children, and how many of each type (S-43)."""

    specs: int
    active: int
    supervisors: int
    workers: int


class Retry:
    """A supervisor's message to itself: try to start this child again, after the waiting requests (S-32).

    Only the child's latest retry is valid: stopping the child, or starting it by hand, makes it void.
    """

    __slots__ = ("child", "timer")

    def __init__(self, child: Child) -> None:
        self.child = child
        self.timer: Timer | None = None  # set if it is delayed

    @property
    def is_due(self) -> bool:
        """Whether this retry is still valid."""
        return self.child.retry is self


class Child:
    """A supervisor's record of one child."""

    __slots__ = (
        "__dict__",  # takes no memory until one of the attributes below is set
        "incarnation",
        "is_supervisor",
        "parent",
        "ref",
        "spec",
    )

    # Rarely used attributes
    retry: Retry | None = None  # it has ended and will be restarted
    restarts: int = 0
    attempt: int = 0  # restarts since it last ran long enough
    last_exit: ExitReason | None = None
    waiting: Any = None  # callers to notify when it is up or gone (dynamic supervisors)

    def __init__(self, parent: Parent, spec: ChildSpec[Any]) -> None:
        self.parent = parent
        self.spec = spec
        self.ref: ActorRef | None = spec.ref
        self.incarnation: Incarnation | None = None
        self.is_supervisor = spec.type == "supervisor"

    @property
    def state(self) -> State:
        """Its state as in `which_children`."""
        if self.incarnation is not None:
            return "restarting" if self.restarts and self.incarnation.phase is Phase.STARTING else "running"
        return "restarting" if self.retry is not None else "stopped"

    @property
    def has_been_up(self) -> bool:
        """Whether its first start has succeeded."""
        return self.restarts > 0 or self.incarnation is None or self.incarnation.was_up

    @property
    def shutdown(self) -> ShutdownTime:
        """Its shutdown time: the spec's, or the default of its type (S-11)."""
        if self.spec.shutdown is not None:
            return self.spec.shutdown
        return math.inf if self.is_supervisor else DEFAULT_SHUTDOWN

    def get_info(self) -> ChildInfo:
        """Return its entry of `which_children`."""
        return ChildInfo(
            self.spec.id, self.ref, self.state, "supervisor" if self.is_supervisor else "worker", self.spec
        )

    def retire(self) -> None:
        """Mark its ref as ended: there will be no further incarnation."""
        self.cancel_restart()
        if self.ref is not None:
            value = None if self.incarnation is None else self.incarnation.value
            self.ref._retire(value)  # noqa: SLF001 - the supervisor decides this
        self.incarnation = None

    def restart_later(self, delay: float) -> None:
        """Put a retry into the parent's mailbox after `delay` seconds."""
        self.cancel_restart()
        self.retry = retry = Retry(self)
        system, box = self.parent.system, self.parent.ref._box  # noqa: SLF001 - of this package
        now = system.backend.now()
        if system.sinks and self.ref is not None:
            system.emit(Restarting(now, self.ref, self.spec, self.last_exit or NORMAL, delay))
        if delay:
            retry.timer = system.backend.call_at(now + delay, box.put, retry)
        else:
            box.put(retry)

    def cancel_restart(self) -> None:
        """Make a pending retry void."""
        if self.retry is not None:
            if self.retry.timer is not None:
                self.retry.timer.cancel()
            self.retry = None

    def count_restart(self, ended: Incarnation | None) -> float:
        """Count a restart and return the seconds to wait before it.

        Args:
            ended: the incarnation that has just ended; `None` if it did not start.
        """
        backoff = self.spec.backoff
        if backoff is None:
            return 0.0
        system = self.parent.system
        ran = 0.0 if ended is None else system.backend.now() - ended.since
        self.attempt = 1 + backoff.next_attempt(self.attempt - 1, ran)
        return backoff.delay(self.attempt - 1, system.chance())

    def begin(self) -> Incarnation | ExitReason:
        """Create an incarnation that the supervisor then records and starts.

        Returns:
            the incarnation, or the reason why the start failed: `Normal()` if `start` raised `Ignore`.
        """
        system = self.parent.system
        if system.backend.is_torn_down:
            return TORN_DOWN
        failure: ExitReason
        actor = create_actor(self.spec)
        if isinstance(actor, Actor):
            ref = self._identify(actor)
            if isinstance(ref, ActorRef):
                self.incarnation = Incarnation(system, self, ref, actor, system.backend.now())
                self.cancel_restart()
                return self.incarnation
            failure = ref
        else:
            failure = actor
        reason = None if isinstance(failure, Normal) else failure
        if reason is not None or system.sinks:
            system.emit(StartFailed(system.backend.now(), self.ref or ActorRef(self.spec.id), self.spec, reason))
        return failure

    def _identify(self, actor: Actor) -> ActorRef | Crash:
        """Give the new actor its ref, path and name; return the ref, or a `Crash` if it cannot have them."""
        self.is_supervisor = actor.is_supervisor
        ref = self.ref or self.spec.ref
        if ref is None:
            ref = actor.ref_class()
        elif not isinstance(ref, actor.ref_class):
            self.ref = None
            return Crash(SpecError("ref", f"{type(actor).__name__} needs a {actor.ref_class.__name__}, not {ref!r}"))
        elif not self.restarts and ref._is_open:  # noqa: SLF001 - of this package
            self.ref = None  # so that the end of this child does not end the other ref
            return Crash(SpecError("ref", f"{ref!r} is another child's already"))
        self.ref = ref
        ref.id = self.spec.id
        ref.parent = self.parent.ref
        if self.spec.name is not None:
            try:
                self.parent.system.registry.reserve(self.spec.name, ref)
            except NameTaken as taken:
                return Crash(taken)
        return ref


def _refuse_start() -> NoReturn:
    raise AssertionError("a temporary child is not started twice")


def is_expected(incarnation: Incarnation) -> bool:
    """Return whether the supervisor asked for this end or the restart type allows it: no error report (S-37, S-52)."""
    reason, spec = incarnation.reason, incarnation.child.spec
    permanent = spec.restart == "permanent"
    if incarnation.stopped_by_parent:
        if isinstance(reason, Normal):
            return not permanent
        return isinstance(reason, Shutdown) or (isinstance(reason, Killed) and spec.shutdown == "kill")
    return not permanent and not is_abnormal(reason)


def report_start(incarnation: Incarnation) -> None:
    """Note that it is up, and emit `Started`.

    A temporary child will not be started again, so its `start` is released (S-18).
    """
    child, system = incarnation.child, incarnation.system
    if child.spec.restart == "temporary":
        spec = child.spec
        child.spec = ChildSpec(
            spec.id,
            _refuse_start,
            spec.restart,
            spec.shutdown,
            spec.significant,
            spec.ref,
            spec.backoff,
            spec.name,
            spec.type,
        )
    if system.sinks:
        system.emit(Started(system.backend.now(), incarnation.ref, child.spec, child.restarts))


def report_end(incarnation: Incarnation) -> None:
    """Emit the event that it has ended, or that its start failed."""
    system = incarnation.system
    if system.is_silent:
        return
    wanted = incarnation.was_up or incarnation.stopped_by_parent
    expected = incarnation.ignored or (wanted and is_expected(incarnation))
    if expected and not system.sinks:
        return
    now, ref, spec = system.backend.now(), incarnation.ref, incarnation.child.spec
    if incarnation.was_up:
        kind, restarts = type(incarnation.actor).__name__, incarnation.child.restarts
        recent = incarnation.child.parent.recent_restarts(now)
        call, reason = incarnation.last_call, incarnation.reason
        system.emit(Exited(now, ref, spec, reason, expected, call, kind, restarts, recent))
    else:
        system.emit(StartFailed(now, ref, spec, None if incarnation.ignored else incarnation.reason, expected))
