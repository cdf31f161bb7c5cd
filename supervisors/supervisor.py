"""The static supervisor: an ordered list of children, started one at a time, and a strategy for failures.

It carries out the decisions of `policy.py` in the manner of `supervisor.erl`: one loop handles exits and requests in
turn and completes each. Everything else relies on these order invariants:

- a child is started only when the one before it is up (S-01), and stopped only when the one after it has ended (S-34);
- exits and requests are in one queue, as in a process' mailbox: a child that is to be terminated, and ends before that,
  is not restarted;
- an exit belongs to the incarnation that ended; the exit of one that was stopped on purpose, or replaced since, is
  ignored (S-37, S-38);
- a failed start is tried again after the waiting requests, never in place (S-32).

Unlike OTP's, it can be interrupted: if it is asked to stop while a child's `init` hangs, it stops that child too,
instead of waiting.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from supervisors.actor import Actor
from supervisors.base_supervisor import BaseSupervisor, Ending
from supervisors.checks import is_hashable
from supervisors.child import Incarnation, Phase
from supervisors.children import Child, report_end, report_start
from supervisors.errors import (
    AlreadyPresent,
    AlreadyStarted,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    StartFailed,
)
from supervisors.management import Request, get_only_spec
from supervisors.policy import AutoShutdown, Strategy, Verdict, decide_after_exit, plan, should_end_supervisor
from supervisors.reasons import (
    NORMAL,
    ExitReason,
    FailedToStart,
    Normal,
    RestartedWith,
    Shutdown,
    SignificantEnded,
    Stop,
)
from supervisors.ref import ActorRef
from supervisors.spec import ChildSpec, check_child, check_children


class Supervisor(BaseSupervisor):
    """Starts, monitors, restarts and stops a fixed list of children, which management calls may change.

    Args:
        children: their specs, in start order.
        strategy: `one_for_one`, `one_for_all` or `rest_for_one`.
        max_restarts: how many restarts are allowed within `period`; one more ends the supervisor.
        period: seconds.
        auto_shutdown: whether the end of significant children ends it: `never`, `any_significant`, `all_significant`.
        hibernate_after: seconds of idleness after which its task ends; see `Actor`.

    Raises:
        SpecError: before anything is started (S-12).
    """

    def __init__(
        self,
        children: Iterable[ChildSpec[Any]] = (),
        *,
        strategy: Strategy = "one_for_one",
        max_restarts: int = 1,
        period: float = 5.0,
        auto_shutdown: AutoShutdown = "never",
        hibernate_after: float | None = None,
    ) -> None:
        super().__init__(strategy, max_restarts, period, auto_shutdown, hibernate_after)
        specs = check_children(children, auto_shutdown)
        self._strategy: Strategy = strategy
        self._auto_shutdown: AutoShutdown = auto_shutdown
        self._children: dict[Hashable, Child] = {spec.id: Child(self, spec) for spec in specs}

    # --- called by children, synchronously ----------------------------------------------------------------------

    def child_started(self, incarnation: Incarnation) -> None:
        """A child's `init` is done."""
        report_start(incarnation)
        self.ref._box.notify()  # noqa: SLF001 - its own

    def child_gone(self, incarnation: Incarnation) -> None:
        """A child has ended. The loop checks whether the exit is current."""
        report_end(incarnation)
        if incarnation.was_up:
            self.ref._box.put(incarnation)  # noqa: SLF001 - after the requests that came before
        else:
            self.ref._box.notify()  # noqa: SLF001

    # --- life ------------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Start the children in their order; if one fails, stop the others again and raise (S-03)."""
        try:
            for child in list(self._children.values()):
                failure = await self._start(child)
                if isinstance(failure, Normal):
                    self._retire(child)
                elif failure is not None:
                    raise Ending(Shutdown(FailedToStart(child.spec.id, failure)))
        except Ending as ending:
            await self._finish(ending.reason)
            raise Stop(ending.reason) from None

    async def _stop_all(self, reason: ExitReason) -> None:
        """Stop all children, last started first."""
        for child in reversed(self._children.values()):
            await self._stop(child, reason)
            child.retire()  # at once: a sibling that calls it in its `terminate` gets an error, and does not wait

    # --- one child -------------------------------------------------------------------------------------------------

    async def _start(self, child: Child) -> ExitReason | None:
        """Start it and wait until it is up.

        Returns:
            `None` if it is up, else the reason why not: `Normal()` if it raised `Ignore`.
        """
        incarnation = child.begin()
        if not isinstance(incarnation, Incarnation):
            return incarnation
        incarnation.start()
        while incarnation.phase is Phase.STARTING:
            await self._wait()
            self._check()
        if incarnation.was_up:
            return None
        child.incarnation = None
        return NORMAL if incarnation.ignored else incarnation.reason

    def _retire(self, child: Child) -> None:
        """Note that there will be no further incarnation; forget a temporary child (S-06, S-16, S-17, S-40)."""
        child.retire()
        if child.spec.restart == "temporary":
            del self._children[child.spec.id]

    async def _stop(self, child: Child, reason: ExitReason) -> None:
        """Stop the child, if it runs, and wait until it has ended or is given up (S-35)."""
        incarnation = child.incarnation
        child.cancel_restart()
        if incarnation is None:
            return
        if not (incarnation.is_over or self._me.killed):
            incarnation.shut_down(reason)
        while not incarnation.is_over:
            await self._wait_for_ends()
        child.last_exit = incarnation.reason

    # --- exits -----------------------------------------------------------------------------------------------------

    async def _take(self, item: Any) -> None:
        if isinstance(item, Incarnation):
            await self._exit(item)
        else:
            await super()._take(item)

    async def _exit(self, incarnation: Incarnation) -> None:
        """Handle the end of a child that ended by itself."""
        child = incarnation.child
        if child.incarnation is not incarnation:
            return
        child.last_exit = reason = incarnation.reason
        if decide_after_exit(child.spec.restart, reason) is Verdict.RESTART:
            child.incarnation = None
            delay = child.count_restart(incarnation)
            if delay:
                child.restart_later(delay)
            else:
                await self._restart(child)
            return
        self._retire(child)
        others = any(
            other.spec.significant and other.state != "stopped"
            for other in self._children.values()
            if other is not child
        )
        if should_end_supervisor(self._auto_shutdown, significant=child.spec.significant, others_active=others):
            raise Ending(Shutdown(SignificantEnded(child.spec.id, reason)))

    async def _restart(self, child: Child) -> None:
        end = self._count_restart(child)
        if end is not None:
            raise Ending(end)
        reason = child.last_exit or NORMAL
        todo = plan(self._strategy, list(self._children), child.spec.id)
        for id in todo.stop:
            await self._stop(self._children[id], Shutdown(RestartedWith(child.spec.id, reason)))
            if self._children[id].spec.restart == "temporary":
                self._retire(self._children[id])
            else:
                self._children[id].incarnation = None
        for id in todo.start:
            sibling = self._children.get(id)
            if sibling is None:  # a temporary child, which was forgotten (S-17)
                continue
            sibling.restarts += 1
            failure = await self._start(sibling)
            if isinstance(failure, Normal):
                self._retire(sibling)
            elif failure is not None:
                sibling.last_exit = failure
                sibling.restart_later(sibling.count_restart(None))
                return

    # --- requests --------------------------------------------------------------------------------------------------

    async def _add_child(self, spec: ChildSpec[Any]) -> tuple[ActorRef | None, Any]:
        """Start a child that is not known yet."""
        known = self._children.get(spec.id)
        if known is not None:
            if known.incarnation is not None and known.ref is not None:
                raise AlreadyStarted(spec.id, known.ref)
            raise AlreadyPresent(spec.id)
        self._children[spec.id] = child = Child(self, spec)
        try:
            return await self._start_on_request(child)
        except StartFailed:
            del self._children[spec.id]
            raise

    async def _restart_child(self, target: object) -> tuple[ActorRef | None, Any]:
        """Start a stopped child."""
        return await self._start_on_request(self._find_stopped(target))

    async def _start_on_request(self, child: Child) -> tuple[ActorRef | None, Any]:
        """Start a child for a caller. A failure is raised there, and does not count as a restart (S-09, S-29, S-41)."""
        failure = await self._start(child)
        if failure is None:
            assert child.incarnation is not None
            return child.ref, child.incarnation.take_info()
        if isinstance(failure, Normal):
            self._retire(child)
            return child.ref or ActorRef(child.spec.id), None
        child.retire()
        raise StartFailed(child.spec.id, failure)

    async def _stop_child(self, target: object, reason: ExitReason) -> None:
        """Stop a child, and keep its spec unless it is temporary."""
        child = self._find(target)
        await self._stop(child, reason)
        self._retire(child)

    async def _delete_child(self, target: object) -> None:
        """Forget a stopped child."""
        del self._children[self._find_stopped(target).spec.id]

    async def _reconfigure(self, config: Actor) -> None:
        """Adopt the children and the flags of another supervisor, which was not started (S-51)."""
        adopted = self._adopt(config, Supervisor)
        self._strategy = adopted._strategy  # noqa: SLF001 - of this class
        self._auto_shutdown = adopted._auto_shutdown  # noqa: SLF001
        old, self._children = self._children, {}
        for id, new in adopted._children.items():  # noqa: SLF001
            self._children[id] = child = old.pop(id, None) or Child(self, new.spec)
            child.spec = new.spec
        self._children |= old

    def _find(self, target: object) -> Child:
        if isinstance(target, ActorRef):
            child = self._children.get(target.id)
            if child is not None and child.ref is target:
                return child
        elif is_hashable(target) and (child := self._children.get(target)) is not None:
            return child
        raise ChildNotFound(target)

    def _find_stopped(self, target: object) -> Child:
        child = self._find(target)
        if child.incarnation is not None:
            raise ChildRunning(target)
        if child.retry is not None:
            raise ChildRestarting(target)
        return child

    # --- for its ref -----------------------------------------------------------------------------------------------

    async def start_child(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[ActorRef, Any]:
        """`SupervisorRef.start_child`."""
        spec = get_only_spec(arguments, keywords)
        check_child(spec, self._auto_shutdown)
        return await self.ref.call(Request("_add_child", (spec,)))  # type: ignore[no-any-return]

    async def terminate_child(self, target: object, reason: ExitReason) -> None:
        """`SupervisorRef.terminate_child`."""
        await self.ref.call(Request("_stop_child", (target, reason)))
