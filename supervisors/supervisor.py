"""The static supervisor: children in an order, one at a time, and a strategy for failures.

It carries out what `policy.py` decides, in the manner of `supervisor.erl`: one loop that takes exits and requests in
turn and does each to its end. Order invariants, on which everything else rests:

- a child is started only when the one before it is up (S-01), and stopped only when the one after it is gone (S-34);
- exits and requests stand in one queue, as in a process' mailbox: a child that is to be terminated, and dies before its
  turn comes, is not restarted;
- an exit belongs to the incarnation that ended; one that was stopped on purpose, or replaced since, is not news
  (S-37, S-38);
- a failed start is tried again behind the requests that wait, never in place (S-32).

Unlike OTP's it can be interrupted: asked to stop while a child's `init` hangs, it stops that child too, instead of
waiting.

The loop waits for nothing but its own mailbox, so it needs no cancel scope: who stops it writes that into its
incarnation and wakes it. Children run in the system's flat group (`backend.py`); no task here awaits another.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, ClassVar, NoReturn

from supervisors.actor import BATCH, Actor
from supervisors.caller import Caller
from supervisors.child import Incarnation, Phase
from supervisors.children import Child, Retry, count, forget_own_mail, report_end, report_start
from supervisors.errors import (
    AlreadyPresent,
    AlreadyStarted,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    ShuttingDown,
    SpecError,
    StartFailed,
    SupervisorsError,
)
from supervisors.events import GaveUp
from supervisors.management import (
    CountChildren,
    DeleteChild,
    Reconfigure,
    RestartChild,
    StartChild,
    SupervisorRef,
    TerminateChild,
    WhichChildren,
    only_spec,
)
from supervisors.policy import (
    AutoShutdown,
    Plan,
    RestartWindow,
    Strategy,
    Verdict,
    after_exit,
    ends_supervisor,
    plan,
    quiet,
)
from supervisors.reasons import (
    NORMAL,
    SHUTDOWN,
    ExitReason,
    FailedToStart,
    Normal,
    RestartedWith,
    Shutdown,
    SignificantEnded,
    Stop,
)
from supervisors.reasons import GaveUp as GaveUpDetail
from supervisors.ref import ActorRef
from supervisors.spec import ChildSpec, check_child, check_children, check_flags, check_hibernate_after


class _Ending(BaseException):
    """Raised inside the loop to leave it: with a reason of its own, or because somebody asked (`None`)."""

    def __init__(self, reason: ExitReason | None = None) -> None:
        super().__init__()
        self.reason = reason


class Supervisor(Actor):
    """Starts, watches, restarts and stops a fixed list of children, which management calls may change.

    Args:
        children: their specs, in start order.
        strategy: `one_for_one`, `one_for_all` or `rest_for_one`.
        max_restarts: so many restarts within `period` are fine; the next one ends the supervisor.
        period: seconds.
        auto_shutdown: whether the end of significant children ends it: `never`, `any_significant`, `all_significant`.
        hibernate_after: seconds of idleness after which it gives its task back; see `Actor`.

    Raises:
        SpecError: before anything is started (S-12).
    """

    is_supervisor = True
    ref_class: ClassVar[type[ActorRef]] = SupervisorRef
    ref: SupervisorRef

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
        specs = list(children)
        check_flags(strategy, max_restarts, period, auto_shutdown)
        check_hibernate_after(hibernate_after)
        self.hibernate_after = hibernate_after
        check_children(specs, auto_shutdown)
        self._strategy: Strategy = strategy
        self._auto_shutdown: AutoShutdown = auto_shutdown
        self._window = quiet(max_restarts, period)
        self._children: dict[Hashable, Child] = {spec.id: Child(spec) for spec in specs}
        self._is_ending = False

    # --- what children tell it, synchronously ----------------------------------------------------------------------

    def child_started(self, incarnation: Incarnation) -> None:
        """A child's `init` is done."""
        child = self._children.get(incarnation.spec.id)
        if child is not None:
            child.forget_start()
            report_start(child)
        self.ref._box.notify()  # noqa: SLF001 - its own

    def child_gone(self, incarnation: Incarnation) -> None:
        """A child is over. Whether that is news, the loop will see."""
        report_end(incarnation)
        if incarnation.was_up:
            self.ref._box.put(incarnation)  # noqa: SLF001 - behind the requests that came before
        else:
            self.ref._box.notify()  # noqa: SLF001

    # --- life ------------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Start the children in their order; if one fails, stop the others again and fail (S-03)."""
        try:
            for child in list(self._children.values()):
                failure = await self._start(child)
                if isinstance(failure, Normal):
                    self._ignored(child)
                elif failure is not None:
                    raise _Ending(Shutdown(FailedToStart(child.spec.id, failure)))
        except _Ending as ending:
            await self._finish(ending)

    async def let_go(self) -> None:
        """`init` failed: its own has stopped everybody, but that of a subclass may have failed after it."""
        self._is_ending = True
        for child in reversed(self._children.values()):
            await self._stop(child, SHUTDOWN)
            child.retire()
        forget_own_mail(self._children.values(), self.ref._box)  # noqa: SLF001

    async def run(self) -> None:
        """Take exits and requests in turn until it ends, or has nothing to do for long."""
        try:
            await self._serve()
        except _Ending as ending:
            await self._finish(ending)
        finally:
            if not self._me.rests:
                forget_own_mail(self._children.values(), self.ref._box)  # noqa: SLF001
                # Only if this code itself is broken is somebody left here.
                for child in self._children.values():
                    if child.incarnation is not None:
                        child.incarnation.kill()

    async def _serve(self) -> None:
        box, left, me = self.ref._box, BATCH, self._me  # noqa: SLF001
        while True:
            self._check()
            if box.urgent:
                self._stranger(box.urgent.popleft()[1])
            elif box.items:
                await self._take(box.items.popleft())
            elif self.hibernate_after is not None and me.idles(self.hibernate_after):
                me.rest()
                return
            else:
                await self._wait()
                left = BATCH
            left -= 1
            if not left:  # a restart loop whose starts fail at once would starve the others
                await self._me.system.backend.checkpoint()
                left = BATCH

    async def _wait(self) -> None:
        await self._me.system.backend.wait(self.ref._box)  # noqa: SLF001

    def _check(self) -> None:
        if self._me.stop_reason is not None and not self._is_ending:
            raise _Ending

    async def _finish(self, ending: _Ending) -> NoReturn:
        """Stop everybody, last started first, and end."""
        self._is_ending = True
        reason = ending.reason or self._me.stop_reason or SHUTDOWN
        for child in reversed(self._children.values()):
            await self._stop(child, reason)
        for child in self._children.values():
            child.retire()
        raise Stop(reason)

    # --- one child -------------------------------------------------------------------------------------------------

    async def _start(self, child: Child) -> ExitReason | None:
        """Start it and wait until it is up.

        Returns:
            `None` if it is; else why not: `Normal()` if it said `Ignore`.
        """
        failure = child.begin(self._me.system, self, self.ref, child.spec)
        if failure is not None:
            return failure
        incarnation = child.incarnation
        assert incarnation is not None
        incarnation.start()
        while incarnation.phase is Phase.STARTING:
            await self._wait()
            self._check()
        if incarnation.was_up:
            return None
        child.incarnation = None
        return NORMAL if incarnation.ignored else incarnation.reason

    def _ignored(self, child: Child) -> None:
        """It is not needed now (S-06)."""
        child.retire()
        if child.spec.restart == "temporary":
            del self._children[child.spec.id]

    async def _stop(self, child: Child, reason: ExitReason) -> None:
        """Stop it, if it runs, and wait until it is gone or given up (S-35)."""
        incarnation = child.incarnation
        child.restart_no_more()
        if incarnation is None:
            return
        if not incarnation.is_over:
            if self._me.killed:
                self._kill_all()
            else:
                incarnation.shut_down(reason, child.shutdown)
            while not incarnation.is_over:
                await self._wait()
                self._refuse()
                if self._me.killed:
                    self._kill_all()
        child.last_exit = incarnation.reason

    def _kill_all(self) -> None:
        """Killed itself, it takes them along at once (S-50)."""
        for child in self._children.values():
            if child.incarnation is not None and not child.incarnation.killed:
                child.incarnation.kill()

    # --- exits -----------------------------------------------------------------------------------------------------

    async def _exit(self, incarnation: Incarnation) -> None:
        """A child ended by itself."""
        child = self._children.get(incarnation.spec.id)
        if child is None or child.incarnation is not incarnation:
            return
        child.last_exit = reason = incarnation.reason
        verdict = after_exit(child.spec.restart, reason)
        if verdict is Verdict.RESTART:
            await self._restart_later_or_now(child, incarnation)
            return
        child.retire()
        if verdict is Verdict.DROP:
            del self._children[child.spec.id]
        others = any(
            other.spec.significant and other.state != "stopped"
            for other in self._children.values()
            if other is not child
        )
        if ends_supervisor(self._auto_shutdown, significant=child.spec.significant, others_active=others):
            raise _Ending(Shutdown(SignificantEnded(child.spec.id, reason)))

    async def _restart_later_or_now(self, child: Child, incarnation: Incarnation) -> None:
        child.incarnation = None
        delay = child.next_delay(self._me.system, incarnation)
        if delay:
            child.restart_later(self._me.system, self.ref._box, delay)  # noqa: SLF001 - its own
        else:
            await self._restart(child)

    async def _restart(self, child: Child) -> None:
        """One attempt, which counts whether it works or not (S-28)."""
        system = self._me.system
        reason = child.last_exit or NORMAL
        self._window = self._window.add(system.backend.now())
        if self._window.exceeded:
            if child.ref is not None:
                system.emit(GaveUp(system.backend.now(), self.ref, child.spec, reason))
            raise _Ending(Shutdown(GaveUpDetail(child.spec.id, reason)))
        todo = plan(self._strategy, list(self._children), child.spec.id)
        await self._stop_for_restart(todo, Shutdown(RestartedWith(child.spec.id, reason)))
        for id in todo.start:
            sibling = self._children.get(id)
            if sibling is None:  # a temporary one, which vanished (S-17)
                continue
            sibling.restarts += 1
            failure = await self._start(sibling)
            if isinstance(failure, Normal):
                self._ignored(sibling)
            elif failure is not None:
                sibling.last_exit = failure
                sibling.restart_later(system, self.ref._box, sibling.next_delay(system, None))  # noqa: SLF001
                return

    async def _stop_for_restart(self, todo: Plan, reason: ExitReason) -> None:
        for id in todo.stop:
            child = self._children[id]
            await self._stop(child, reason)
            if child.spec.restart == "temporary":
                child.retire()
                del self._children[id]
            child.incarnation = None

    # --- requests --------------------------------------------------------------------------------------------------

    async def _take(self, item: Any) -> None:
        if isinstance(item, Incarnation):
            await self._exit(item)
        elif isinstance(item, Retry):
            if item.is_due:
                await self._restart(item.child)
        elif isinstance(item, Caller):
            if item.abandoned:
                return
            self._me.current = item
            try:
                item.reply(await self._answer(item.message))
            except SupervisorsError as refusal:
                item.fail(refusal)
            except _Ending:
                item.fail(ShuttingDown(getattr(item.message, "spec", item.message)))
                raise
            self._me.current = None
        else:
            self._stranger(item[1])

    def _stranger(self, message: object) -> None:
        """Not for a supervisor: reported and ignored (S-39)."""
        self.ref._dead_letter(message)  # noqa: SLF001

    def _refuse(self) -> None:
        """While it ends, nobody shall wait for it: a child that asks in its `terminate` would for ever."""
        box = self.ref._box  # noqa: SLF001
        if not self._is_ending or not box.items:
            return
        items, box.items = box.items, None
        for item in items:
            if isinstance(item, Caller):
                item.fail(ShuttingDown(getattr(item.message, "spec", item.message)))
            elif isinstance(item, tuple):
                self._stranger(item[1])

    async def _answer(self, request: object) -> Any:
        match request:
            case StartChild(spec):
                return await self._start_new(spec)
            case TerminateChild(target, reason):
                return await self._terminate(self._find(target), reason)
            case RestartChild(target):
                return await self._start_again(self._find_stopped(target))
            case DeleteChild(target):
                del self._children[self._find_stopped(target).spec.id]
                return None
            case Reconfigure(config):
                return self._reconfigure(config)
            case WhichChildren():
                return [child.info() for child in self._children.values()]
            case CountChildren():
                return count(self._children.values())
            case _:
                raise SupervisorsError(f"{self.ref!r} is a supervisor, and was asked {request!r}")

    async def _start_new(self, spec: ChildSpec[Any]) -> tuple[ActorRef | None, Any]:
        known = self._children.get(spec.id)
        if known is not None:
            if known.incarnation is not None and known.ref is not None:
                raise AlreadyStarted(spec.id, known.ref)
            raise AlreadyPresent(spec.id)
        self._children[spec.id] = child = Child(spec)
        return await self._start_on_request(child)

    async def _start_again(self, child: Child) -> tuple[ActorRef | None, Any]:
        return await self._start_on_request(child, keep=True)

    async def _start_on_request(self, child: Child, *, keep: bool = False) -> tuple[ActorRef | None, Any]:
        """A first start, or one by hand: a failure is the caller's and costs no intensity (S-09, S-29, S-41)."""
        failure = await self._start(child)
        if failure is None:
            incarnation = child.incarnation
            assert incarnation is not None
            info = incarnation.handed_on()
            return child.ref, info
        if isinstance(failure, Normal):
            self._ignored(child)
            return child.ref or ActorRef(child.spec.id), None
        child.retire()
        if not keep:
            del self._children[child.spec.id]
        raise StartFailed(child.spec.id, failure)

    def _reconfigure(self, config: Actor) -> None:
        if not isinstance(config, Supervisor):
            raise SpecError("config", f"{self.ref!r} is a Supervisor, and so has to be its configuration: {config!r}")
        old, self._children = self._children, {}
        for id, new in config._children.items():  # noqa: SLF001 - of this class
            child = old.pop(id, None)
            if child is not None:
                child.spec = new.spec
            self._children[id] = child or new
        self._children |= old
        self._strategy = config._strategy  # noqa: SLF001
        self._auto_shutdown = config._auto_shutdown  # noqa: SLF001
        window = config._window  # noqa: SLF001
        self._window = RestartWindow(window.max_restarts, window.period, self._window.times)

    async def _terminate(self, child: Child, reason: ExitReason) -> None:
        await self._stop(child, reason)
        child.retire()
        if child.spec.restart == "temporary":
            del self._children[child.spec.id]

    def _find(self, target: object) -> Child:
        if isinstance(target, ActorRef):
            child = self._children.get(target.id)
            if child is not None and child.ref is target:
                return child
        elif isinstance(target, Hashable) and (child := self._children.get(target)) is not None:
            return child
        raise ChildNotFound(target)

    def _find_stopped(self, target: object) -> Child:
        child = self._find(target)
        if child.incarnation is not None:
            raise ChildRunning(target)
        if child.retry is not None:
            raise ChildRestarting(target)
        return child

    # --- for its ref and for who looks inside
    # -------------------------------------------------------------------------

    def children(self) -> list[Child]:
        """Its books, in start order. Not to be changed."""
        return list(self._children.values())

    def ref_of(self, id: Hashable) -> ActorRef | None:
        """The ref of a child, if it has one yet."""
        child = self._children.get(id)
        return None if child is None else child.ref

    async def start_child(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[ActorRef, Any]:
        """`SupervisorRef.start_child`."""
        spec = only_spec(arguments, keywords)
        check_child(spec, self._auto_shutdown)
        return await self.ref.call(StartChild(spec))  # type: ignore[no-any-return]

    async def terminate_child(self, target: object, reason: ExitReason) -> None:
        """`SupervisorRef.terminate_child`."""
        await self.ref.call(TerminateChild(target, reason))
