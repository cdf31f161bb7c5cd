"""A supervisor's books: one `Child` for each child it knows, and what it tells others about them.

What this is not: decisions (`policy.py`) or the doing (`supervisor.py`, `dynamic.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from supervisors.actor import Actor
from supervisors.child import TORN_DOWN, Incarnation, Phase, hatch
from supervisors.errors import NameTaken, SpecError
from supervisors.events import Exited, Restarting, Started, StartFailed
from supervisors.reasons import NORMAL, Crash, ExitReason, Killed, Normal, Shutdown, is_abnormal
from supervisors.ref import ActorRef
from supervisors.spec import DEFAULT_SHUTDOWN, ChildSpec, ChildType
from supervisors.spec import Shutdown as ShutdownTime

if TYPE_CHECKING:
    from supervisors.backend import Timer
    from supervisors.child import Parent
    from supervisors.mailbox import Mailbox
    from supervisors.system import ActorSystem

State = Literal["running", "restarting", "stopped"]


@dataclasses.dataclass(frozen=True, slots=True)
class ChildInfo:
    """One line of `which_children`. `stopped` is what OTP calls `undefined`."""

    id: Hashable
    ref: ActorRef | None
    state: State
    type: ChildType
    spec: ChildSpec[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ChildCounts:
    """`count_children`: specs known, children with a running process, and of which type (S-43)."""

    specs: int
    active: int
    supervisors: int
    workers: int


class Retry:
    """In a supervisor's mailbox, from itself: try to start this child again, behind the requests that wait (S-32).

    It is good only while it is the child's latest: who stops the child, or starts it by hand, makes it void.
    """

    __slots__ = ("child", "timer")

    def __init__(self, child: Child) -> None:
        self.child = child
        self.timer: Timer | None = None  # if it is to come later

    @property
    def is_due(self) -> bool:
        """Whether the child is still to be started for this."""
        return self.child.retry is self


class Child:
    """What a supervisor knows about one child."""

    __slots__ = (
        "__dict__",  # which takes nothing until one of the attributes below is set
        "incarnation",
        "is_supervisor",
        "ref",
        "spec",
    )

    # What few have
    retry: Retry | None = None  # it ended, and will be started again
    restarts: int = 0
    attempt: int = 0  # restarts since it last ran for long
    last_exit: ExitReason | None = None
    waiting: Any = None  # whom to tell that it is up, or gone (dynamic supervisors)

    def __init__(self, spec: ChildSpec[Any]) -> None:
        self.spec = spec
        self.ref: ActorRef | None = spec.ref
        self.incarnation: Incarnation | None = None
        self.is_supervisor = spec.type == "supervisor"

    @property
    def state(self) -> State:
        """As `which_children` names it."""
        if self.incarnation is not None:
            return "restarting" if self.restarts and self.incarnation.phase is Phase.STARTING else "running"
        return "restarting" if self.retry is not None else "stopped"

    @property
    def has_been_up(self) -> bool:
        """Whether its first start is done."""
        return self.restarts > 0 or self.incarnation is None or self.incarnation.was_up

    @property
    def shutdown(self) -> ShutdownTime:
        """How it is stopped: what its spec says, or the default of its type (S-11)."""
        if self.spec.shutdown is not None:
            return self.spec.shutdown
        return math.inf if self.is_supervisor else DEFAULT_SHUTDOWN

    def info(self) -> ChildInfo:
        """Its line of `which_children`."""
        return ChildInfo(
            self.spec.id, self.ref, self.state, "supervisor" if self.is_supervisor else "worker", self.spec
        )

    def retire(self) -> None:
        """No incarnation will come; say so to who holds the ref."""
        self.restart_no_more()
        if self.ref is not None:
            value = None if self.incarnation is None else self.incarnation.value
            self.ref._retire(value)  # noqa: SLF001 - the supervisor decides this
        self.incarnation = None

    def restart_later(self, system: ActorSystem, box: Mailbox, delay: float) -> None:
        """Put a retry into its supervisor's mailbox, `delay` seconds from now."""
        self.restart_no_more()
        self.retry = retry = Retry(self)
        now = system.backend.now()
        if system.sinks and self.ref is not None:
            system.emit(Restarting(now, self.ref, self.spec, self.last_exit or NORMAL, delay))
        if delay:
            retry.timer = system.backend.call_at(now + delay, box.put, retry)
        else:
            box.put(retry)

    def restart_no_more(self) -> None:
        """A retry that is under way, or waits, shall do nothing."""
        if self.retry is not None:
            if self.retry.timer is not None:
                self.retry.timer.cancel()
            self.retry = None

    def next_delay(self, system: ActorSystem, ended: Incarnation | None) -> float:
        """Seconds to wait before its next restart; counts it.

        Args:
            system: for the clock and for chance.
            ended: the incarnation that has just ended; `None` if it did not even start.
        """
        backoff = self.spec.backoff
        if backoff is None:
            return 0.0
        ran = 0.0 if ended is None else system.backend.now() - ended.since
        self.attempt = 1 + backoff.next_attempt(self.attempt - 1, ran)
        return backoff.delay(self.attempt - 1, system.chance())

    def forget_start(self) -> None:
        """It runs. If it is temporary it will not be started again, and what its `start` holds can go (S-18)."""
        if self.spec.restart == "temporary" and self.incarnation is not None:
            self.spec = self.incarnation.spec = dataclasses.replace(self.spec, start=_forgotten)

    def begin(
        self, system: ActorSystem, parent: Parent, parent_ref: ActorRef, spec: ChildSpec[Any]
    ) -> ExitReason | None:
        """Make an incarnation of `spec`; it is in `incarnation`, to be put into the books and started.

        Returns:
            why there is none: `Normal()` if `start` said `Ignore`; `None` if there is one.
        """
        if system.backend.is_torn_down:
            return TORN_DOWN
        actor = hatch(spec)
        now = system.backend.now()
        if not isinstance(actor, Actor):
            if system.sinks or not isinstance(actor, Normal):
                ref = self.ref or ActorRef(spec.id)
                system.emit(StartFailed(now, ref, self.spec, None if isinstance(actor, Normal) else actor))
            return actor
        self.is_supervisor = actor.is_supervisor
        ref = self.ref or self.spec.ref or actor.ref_class()
        if not isinstance(ref, actor.ref_class):
            wrong = f"{type(actor).__name__} needs a {actor.ref_class.__name__}, not {ref!r}"
            return self._refused(system, Crash(SpecError("ref", wrong)))
        if ref._open and not self.restarts:  # noqa: SLF001 - of this package
            self.ref = None  # so that the end of this child is not that one's
            return self._refused(system, Crash(SpecError("ref", f"{ref!r} is another child's already")))
        self.ref = ref
        self.ref.id = self.spec.id
        self.ref.parent = parent_ref
        if self.spec.name is not None:
            try:
                system.registry.register(self.spec.name, self.ref)
            except NameTaken as taken:
                return self._refused(system, Crash(taken))
        self.incarnation = Incarnation(system, parent, self.spec, self.ref, actor, now)
        self.restart_no_more()
        return None

    def _refused(self, system: ActorSystem, reason: ExitReason) -> ExitReason:
        system.emit(StartFailed(system.backend.now(), self.ref or ActorRef(self.spec.id), self.spec, reason))
        return reason


def forget_own_mail(children: Iterable[Child], box: Mailbox) -> None:
    """Their supervisor ends, and its mailbox goes on to the next one: which has children of its own, so that exits and
    retries of these are nothing to it.
    """
    for child in children:
        child.restart_no_more()
    if box.items:
        own = (Retry, Incarnation)
        box.items = deque(item for item in box.items if not isinstance(item, own))


def _forgotten() -> NoReturn:
    raise AssertionError("a temporary child is not started twice")


def is_expected(child: Incarnation) -> bool:
    """Whether this end is as its supervisor wanted it or its restart type allows: no error report (S-37, S-52)."""
    reason, permanent = child.reason, child.spec.restart == "permanent"
    if child.stopped_by_parent:
        if isinstance(reason, Normal):
            return not permanent
        return isinstance(reason, Shutdown) or (isinstance(reason, Killed) and child.spec.shutdown == "kill")
    return not permanent and not is_abnormal(reason)


def report_start(child: Child) -> None:
    """Tell the sinks that it is up."""
    incarnation = child.incarnation
    if incarnation is not None and incarnation.system.sinks:
        system = incarnation.system
        system.emit(Started(system.backend.now(), incarnation.ref, child.spec, child.restarts))


def report_end(incarnation: Incarnation) -> None:
    """Tell the sinks that it is over, or never came up."""
    system = incarnation.system
    if system.is_silent:
        return
    wanted = incarnation.was_up or incarnation.stopped_by_parent
    expected = incarnation.ignored or (wanted and is_expected(incarnation))
    if expected and not system.sinks:
        return
    now, ref, spec = system.backend.now(), incarnation.ref, incarnation.spec
    if incarnation.was_up:
        system.emit(Exited(now, ref, spec, incarnation.reason, expected))
    else:
        system.emit(StartFailed(now, ref, spec, None if incarnation.ignored else incarnation.reason, expected))


def count(children: Iterable[Child]) -> ChildCounts:
    """`count_children` of these."""
    everybody = list(children)
    supervisors = sum(child.is_supervisor for child in everybody)
    active = sum(child.state == "running" for child in everybody)
    return ChildCounts(len(everybody), active, supervisors, len(everybody) - supervisors)
