"""The static supervisor: children in an order, one at a time, and a strategy for failures.

It carries out what `policy.py` decides, in the manner of `supervisor.erl`: one loop that takes exits and requests in
turn and does each to its end. Order invariants, on which everything else rests:

- a child is started only when the one before it is up (S-01), and stopped only when the one after it is gone (S-34);
- an exit belongs to the incarnation that ended; one that was stopped on purpose, or replaced since, is not news
  (S-37, S-38);
- a failed start is tried again behind the requests that wait, never in place (S-32).

Unlike OTP's it can be interrupted: asked to stop while a child's `init` hangs, it stops that child too, instead of
waiting.

The loop waits for nothing but its own mailbox, so it needs no cancel scope: who stops it writes that into its
incarnation and wakes it. Children run in the system's flat group (`backend.py`); no task here awaits another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, overload

from supervisors.actor import BATCH, Actor, ActorRef
from supervisors.caller import Caller
from supervisors.child import Incarnation, Phase
from supervisors.children import Child, ChildCounts, ChildInfo, report_end, report_start, without_start
from supervisors.errors import (
    AlreadyPresent,
    AlreadyStarted,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    NotRunning,
    ShuttingDown,
    SpecError,
    StartFailed,
    SupervisorsError,
)
from supervisors.events import GaveUp, Restarting
from supervisors.policy import (
    AutoShutdown,
    Plan,
    RestartWindow,
    Strategy,
    Verdict,
    after_exit,
    ends_supervisor,
    plan,
)
from supervisors.reasons import NORMAL, SHUTDOWN, ExitReason, FailedToStart, Normal, Shutdown, SignificantEnded, Stop
from supervisors.reasons import GaveUp as GaveUpDetail
from supervisors.spec import ChildSpec, check_child, check_children, check_flags

# --- requests ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start a child that is not known yet."""

    spec: ChildSpec[Any]


@dataclass(frozen=True, slots=True)
class TerminateChild:
    """Stop a child, and keep its spec unless it is temporary."""

    target: object
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class RestartChild:
    """Start a child that was stopped."""

    target: object


@dataclass(frozen=True, slots=True)
class DeleteChild:
    """Forget a child that was stopped."""

    target: object


@dataclass(frozen=True, slots=True)
class WhichChildren:
    """The children, in start order."""


@dataclass(frozen=True, slots=True)
class CountChildren:
    """How many there are."""


@dataclass(frozen=True, slots=True)
class _Retry:
    """To itself: try to restart this child again."""

    child: Child


class SupervisorRef(ActorRef):
    """A reference to a supervisor, with its management calls.

    They raise `ManagementError`s and what `call` raises.
    """

    __slots__ = ()

    @overload
    async def start_child(self, spec: ChildSpec[Supervisor], /) -> SupervisorRef: ...
    @overload
    async def start_child(self, spec: ChildSpec[Actor], /) -> ActorRef: ...
    @overload
    async def start_child(self, /, *arguments: Any, **keywords: Any) -> Any: ...
    async def start_child(self, /, *arguments: Any, **keywords: Any) -> Any:
        """Start a child and wait until it is up. Cancelled while it waits, it ends a dynamic supervisor's child
        again.

        Args:
            arguments: a `ChildSpec`; for a dynamic supervisor with a template, the arguments of the template's
            `start`.
            keywords: likewise.

        Returns:
            its ref: an `ActorRef`, or a `SupervisorRef` for a supervisor. Not `alive` if it said `Ignore` (S-06).

        Raises:
            StartFailed: its start failed; nothing is left of it (S-09).
            AlreadyStarted: a child with this id runs (S-10).
            AlreadyPresent: a child with this id is known (S-10).
            SpecError: the spec does not fit (S-12, S-45).
            TooManyChildren: the dynamic supervisor has as many as it may.
            ShuttingDown: the supervisor is ending.
        """
        return (await self._actor().start_child(arguments, keywords))[0]

    async def start_child_info(self, /, *arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        """Like `start_child`; returns also what `init` returned, which is kept nowhere (S-08)."""
        return await self._actor().start_child(arguments, keywords)  # type: ignore[no-any-return]

    async def terminate_child(self, target: object, reason: ExitReason = SHUTDOWN) -> None:
        """Stop a child and wait until it is gone. Its spec stays, unless it is temporary (S-40).

        Args:
            target: its id or its ref; a dynamic supervisor takes refs only.
            reason: what its `terminate` gets; a supervisor hands it on to its children.

        Raises:
            ChildNotFound: no such child here.
        """
        await self._actor().terminate_child(target, reason)

    async def restart_child(self, target: object) -> Any:
        """Start a child that was stopped, with the spec it had (S-41).

        Returns:
            its ref.

        Raises:
            StartFailed: its start failed; it stays stopped.
            ChildRunning: it runs.
            ChildRestarting: it is being restarted.
            ChildNotFound: no such child here.
        """
        return (await self.call(RestartChild(target)))[0]

    async def restart_child_info(self, target: object) -> tuple[Any, Any]:
        """Like `restart_child`; returns also what `init` returned (S-08)."""
        return await self.call(RestartChild(target))  # type: ignore[no-any-return]

    async def delete_child(self, target: object) -> None:
        """Forget the spec of a child that was stopped (S-42).

        Raises:
            ChildRunning: it runs.
            ChildRestarting: it is being restarted.
            ChildNotFound: no such child here.
        """
        await self.call(DeleteChild(target))

    async def which_children(self) -> list[ChildInfo]:
        """All children it knows, in start order (S-43). (OTP gives static ones newest first.)"""
        return await self.call(WhichChildren())  # type: ignore[no-any-return]

    async def count_children(self) -> ChildCounts:
        """How many there are; those being restarted count, but not as active (S-43)."""
        return await self.call(CountChildren())  # type: ignore[no-any-return]

    def child(self, id: Hashable) -> Any:
        """The ref of a static child, without asking: as the books are right now.

        Raises:
            ChildNotFound: it knows no such child, or was never started.
        """
        found = self._actor().ref_of(id)
        if found is None:
            raise ChildNotFound(id)
        return found

    def _actor(self) -> Any:
        if self._incarnation is None:
            raise NotRunning(self, self._reason)
        return self._incarnation.actor


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
    ) -> None:
        specs = list(children)
        check_flags(strategy, max_restarts, period, auto_shutdown)
        check_children(specs, auto_shutdown)
        self._strategy: Strategy = strategy
        self._auto_shutdown: AutoShutdown = auto_shutdown
        self._window = RestartWindow(max_restarts, period)
        self._children: dict[Hashable, Child] = {spec.id: Child(spec) for spec in specs}
        self._exits: deque[Incarnation] = deque()
        self._is_ending = False

    # --- what children tell it, synchronously ----------------------------------------------------------------------

    def child_started(self, incarnation: Incarnation) -> None:
        """A child's `init` is done."""
        child = self._children.get(incarnation.spec.id)
        if child is not None:
            report_start(child)
        self.ref._box.notify()  # noqa: SLF001 - its own

    def child_gone(self, incarnation: Incarnation) -> None:
        """A child is over. Whether that is news, the loop will see."""
        report_end(incarnation)
        if incarnation.was_up:
            self._exits.append(incarnation)
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

    async def run(self) -> None:
        """Take exits and requests in turn until it ends."""
        try:
            await self._serve()
        except _Ending as ending:
            await self._finish(ending)
        finally:
            # Only if this code itself is broken is somebody left here.
            for child in self._children.values():
                if child.incarnation is not None:
                    child.incarnation.kill()

    async def _serve(self) -> NoReturn:
        box, left = self.ref._box, BATCH  # noqa: SLF001
        while True:
            self._check()
            if self._exits:
                await self._exit(self._exits.popleft())
            elif box.urgent:
                self._stranger(box.urgent.popleft()[1])
            elif box.items:
                await self._take(box.items.popleft())
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
            if child.spec.restart == "temporary":
                child.spec = without_start(child.spec)
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
        child.restarting = False
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
            self._retry(child, delay)
        else:
            await self._restart(child)

    async def _restart(self, child: Child) -> None:
        """One attempt, which counts whether it works or not (S-28)."""
        system = self._me.system
        reason = child.last_exit or NORMAL
        self._window = self._window.add(system.backend.now())
        if self._window.exceeded:
            if system.sinks and child.ref is not None:
                system.emit(GaveUp(system.backend.now(), self.ref, child.spec, reason))
            raise _Ending(Shutdown(GaveUpDetail(child.spec.id, reason)))
        todo = plan(self._strategy, list(self._children), child.spec.id)
        await self._stop_for_restart(todo)
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
                self._retry(sibling, sibling.next_delay(system, None))
                return

    async def _stop_for_restart(self, todo: Plan) -> None:
        for id in todo.stop:
            child = self._children[id]
            await self._stop(child, Shutdown("restart"))
            if child.spec.restart == "temporary":
                child.retire()
                del self._children[id]
            child.incarnation = None

    def _retry(self, child: Child, delay: float) -> None:
        """Try again, behind what waits (S-32), after `delay` seconds."""
        system, box = self._me.system, self.ref._box  # noqa: SLF001
        child.restarting = True
        if system.sinks and child.ref is not None:
            reason = child.last_exit or NORMAL
            system.emit(Restarting(system.backend.now(), child.ref, child.spec, reason, delay))
        if delay:
            system.backend.call_at(system.backend.now() + delay, box.put, _Retry(child))
        else:
            box.put(_Retry(child))

    # --- requests --------------------------------------------------------------------------------------------------

    async def _take(self, item: Any) -> None:
        if isinstance(item, _Retry):
            if item.child.restarting and self._children.get(item.child.spec.id) is item.child:
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
        for item in box.items:
            if isinstance(item, Caller):
                item.fail(ShuttingDown(getattr(item.message, "spec", item.message)))
        box.items.clear()

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
            info, incarnation.info = incarnation.info, None
            return child.ref, info
        if isinstance(failure, Normal):
            self._ignored(child)
            return child.ref or ActorRef(child.spec.id), None
        child.retire()
        if not keep:
            del self._children[child.spec.id]
        raise StartFailed(child.spec.id, failure)

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
        if child.restarting:
            raise ChildRestarting(target)
        return child

    # --- for its ref -----------------------------------------------------------------------------------------------

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


def only_spec(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ChildSpec[Any]:
    """The one argument of `start_child` where there is no template.

    Raises:
        SpecError: `template`, if there are others.
    """
    if len(arguments) != 1 or keywords:
        raise SpecError("template", "without one, start_child takes a ChildSpec and nothing else")
    return arguments[0]  # type: ignore[no-any-return]


def count(children: Iterable[Child]) -> ChildCounts:
    """`count_children` of these."""
    everybody = list(children)
    supervisors = sum(child.is_supervisor for child in everybody)
    active = sum(child.incarnation is not None for child in everybody)
    return ChildCounts(len(everybody), active, supervisors, len(everybody) - supervisors)
