"""The common part of static and dynamic supervisors: child records, the loop over retries and requests, shutdown.

The loop waits only for its own mailbox, so it needs no cancel scope: to stop a supervisor, the reason is stored in its
incarnation and the supervisor is woken. Children run in the system's flat group (`backend.py`); no task here awaits
another.

`supervisor.py` and `dynamic.py` implement the differences: how a child is restarted, and in which order all are
stopped.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Hashable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from supervisors.actor import Actor
from supervisors.caller import Caller
from supervisors.checks import is_hashable
from supervisors.child import Incarnation
from supervisors.children import Child, ChildCounts, ChildInfo, Retry
from supervisors.errors import ShuttingDown, SpecError, SupervisorsError
from supervisors.events import GaveUp
from supervisors.management import Request, SupervisorRef
from supervisors.policy import AutoShutdown, RestartWindow, Strategy, get_quiet_window
from supervisors.reasons import NORMAL, SHUTDOWN, ExitReason, Shutdown, Stop
from supervisors.reasons import GaveUp as GaveUpDetail
from supervisors.ref import ActorRef
from supervisors.spec import ChildSpec, check_flags

if TYPE_CHECKING:
    from supervisors.system import ActorSystem


class Ending(BaseException):
    """Raised inside a supervisor's loop to end it."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__()
        self.reason = reason


class BaseSupervisor(Actor):
    """The base of both supervisors, without the methods that restart and stop children."""

    is_supervisor = True
    ref_class: ClassVar[type[ActorRef]] = SupervisorRef
    ref: SupervisorRef

    def __init__(
        self,
        strategy: Strategy,
        max_restarts: int,
        period: float,
        auto_shutdown: AutoShutdown,
        hibernate_after: float | None,
    ) -> None:
        check_flags(strategy, max_restarts, period, auto_shutdown, hibernate_after)
        self.hibernate_after = hibernate_after
        self._window = get_quiet_window(max_restarts, period)
        self._children: dict[Any, Child] = {}
        self._end: ExitReason | None = None  # the reason, while the supervisor ends

    @property
    def system(self) -> ActorSystem:
        """The system that it runs in."""
        return self._me.system

    def recent_restarts(self, now: float) -> int:
        """Return the number of restarts within the period."""
        return self._window.count(now)

    # --- what each kind does its own way ---------------------------------------------------------------------------

    @abc.abstractmethod
    async def _restart(self, child: Child) -> None:
        """Make one attempt to restart a child."""

    @abc.abstractmethod
    async def _stop_all(self, reason: ExitReason) -> None:
        """Stop all children and wait until they are gone."""

    # --- life ------------------------------------------------------------------------------------------------------

    async def let_go(self) -> None:
        """Stop the remaining children after a failed `init`, also if a subclass failed after they had started."""
        await self._finish(SHUTDOWN)
        self._forget_own_mail()

    async def run(self) -> None:
        """Handle exits, retries and requests in turn until it ends or hibernates."""
        try:
            await self._serve()
        except Ending as ending:
            await self._finish(ending.reason)
            raise Stop(ending.reason) from None
        finally:
            if not self._me.rests:
                self._end = self._end or SHUTDOWN
                self._forget_own_mail()
                self._kill_all()  # children are left here only if this code is broken or the loop was torn down

    async def _serve(self) -> None:
        box, me = self.ref._box, self._me  # noqa: SLF001
        while True:
            self._check()
            if box.urgent:
                self._report_unknown(box.urgent.popleft()[1])
            elif box.items:
                await self._take(box.items.popleft())
            elif self.hibernate_after is not None and me.should_rest(self.hibernate_after):
                me.hibernate()
                return
            else:
                await self._wait()

    async def _wait(self) -> None:
        await self._me.system.backend.wait(self.ref._box)  # noqa: SLF001

    def _check(self) -> None:
        """Raise `Ending` if the supervisor has to end."""
        reason = self._end or self._me.stop_reason
        if reason is not None:
            raise Ending(reason)

    async def _finish(self, reason: ExitReason) -> None:
        self._end = reason
        await self._stop_all(reason)
        self._children.clear()  # break the reference cycles now instead of leaving them to the garbage collector

    async def _wait_for_ends(self) -> None:
        """Wait until children may have ended. If the supervisor is killed, kill all of them at once (S-50)."""
        me, box = self._me, self.ref._box  # noqa: SLF001
        if me.killed:
            self._kill_all()
        await me.system.backend.wait(box)
        if self._end is not None and box.items:
            self._refuse()

    def _kill_all(self) -> None:
        for child in list(self._children.values()):
            if child.incarnation is not None and not child.incarnation.killed:
                child.incarnation.kill()

    def _refuse(self) -> None:
        """Refuse requests during the end, so that a child's call in `terminate` does not wait for ever."""
        box = self.ref._box  # noqa: SLF001
        items, box.items = box.items, None
        for item in items or ():
            if isinstance(item, Caller):
                item.fail(_make_shutting_down(item.message))
            elif isinstance(item, tuple):
                self._report_unknown(item[1])

    def _forget_own_mail(self) -> None:
        """Remove its children's exits and retries from the mailbox: the next incarnation has other children."""
        for child in self._children.values():
            child.cancel_restart()
        box = self.ref._box  # noqa: SLF001
        if box.items:
            own = (Retry, Incarnation)
            box.items = deque(item for item in box.items if not isinstance(item, own))

    def _count_restart(self, child: Child) -> ExitReason | None:
        """Count a restart attempt, successful or not (S-28); return a reason to end if there were too many (S-31)."""
        system, reason = self._me.system, child.last_exit or NORMAL
        now = system.backend.now()
        self._window = self._window.add(now)
        if not self._window.exceeded:
            return None
        if child.ref is not None:
            system.emit(GaveUp(now, self.ref, child.spec, reason))
        return Shutdown(GaveUpDetail(child.spec.id, reason))

    # --- mail ------------------------------------------------------------------------------------------------------

    async def _take(self, item: Any) -> None:
        if isinstance(item, Retry):
            if item.is_due:
                await self._restart(item.child)
                await (
                    self.system.backend.checkpoint()
                )  # a start that fails at once queues itself again: let other tasks run
        elif isinstance(item, Caller):
            if item.abandoned:
                return
            self._me.current, self._me.took_at = item, self.system.backend.now()
            try:
                item.reply(await self._answer(item.message))
            except SupervisorsError as refusal:
                item.fail(refusal)
            except Ending:
                item.fail(_make_shutting_down(item.message))
                raise
            self._me.current = None
        else:
            self._report_unknown(item[1])

    async def _answer(self, request: object) -> Any:
        if not isinstance(request, Request):
            raise SupervisorsError(f"{self.ref!r} is a supervisor, and was asked {request!r}")
        answer = getattr(self, request.method)(*request.arguments)
        return await answer if isinstance(answer, CoroutineType) else answer

    def _report_unknown(self, message: object) -> None:
        """Report and ignore a message that a supervisor does not understand (S-39)."""
        self.ref._report_dead_letter(message)  # noqa: SLF001

    # --- for its ref and for `inspect` ----------------------------------------------------------------------

    @property
    def can_query_directly(self) -> bool:
        """Whether its ref may query it directly now, outside its task."""
        return False

    def children(self) -> list[Child]:
        """Return the records of its children, in start order. Do not change them."""
        return list(self._children.values())

    def ref_of(self, id: Hashable) -> ActorRef | None:
        """Return the ref of a static child, if it has one yet."""
        child = self._children.get(id) if is_hashable(id) else None
        return None if child is None else child.ref

    def which_children(self) -> list[ChildInfo]:
        """`SupervisorRef.which_children`."""
        return [child.get_info() for child in self._children.values() if child.has_been_up]

    def count_children(self) -> ChildCounts:
        """`SupervisorRef.count_children`."""
        known = [child for child in self._children.values() if child.has_been_up]
        supervisors = sum(child.is_supervisor for child in known)
        active = sum(child.state == "running" for child in known)
        return ChildCounts(len(known), active, supervisors, len(known) - supervisors)

    def _adopt(self, config: Actor, kind: type[Self]) -> Self:
        """Take over the limits of a configuration of the same kind, and return it (S-51)."""
        if not isinstance(config, kind):
            wrong = f"{self.ref!r} is a {kind.__name__}, and so has to be its configuration: {config!r}"
            raise SpecError("config", wrong)
        window = config._window  # noqa: SLF001 - of this class
        self._window = RestartWindow(window.max_restarts, window.period, self._window.times)
        return config


def _make_shutting_down(request: object) -> ShuttingDown:
    about = request.arguments[0] if isinstance(request, Request) and request.arguments else None
    if isinstance(about, Actor):  # a configuration
        about = None
    return ShuttingDown(about.id if isinstance(about, ChildSpec) else about)
