"""The dynamic supervisor: any number of like children, started on request, independent of each other.

OTP's `simple_one_for_one` (one template, arguments at each start) and Elixir's `DynamicSupervisor` (a spec at each
start) in one. Children have no order and no ids: they are named by their refs, restarted one by one, and stopped all
at once (S-36).

Nothing here has to wait for anything: a start, an exit, a restart are each one synchronous step on the books, made in
the task of whoever brings the news. So a slow `init` delays nobody but who asked for that child (in OTP it delays
all), and mass starts cost no switch to the supervisor's task. That task only holds what needs a queue: retries (S-32)
and the questions that come behind them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from supervisors.actor import Actor
from supervisors.caller import Caller
from supervisors.child import Incarnation, Phase
from supervisors.children import (
    Child,
    ChildCounts,
    ChildInfo,
    Retry,
    count,
    forget_own_mail,
    report_end,
    report_start,
)
from supervisors.errors import (
    ChildNotFound,
    NotForDynamic,
    ShuttingDown,
    SpecError,
    StartFailed,
    SupervisorsError,
    TooManyChildren,
)
from supervisors.events import GaveUp
from supervisors.management import (
    CountChildren,
    DeleteChild,
    Reconfigure,
    RestartChild,
    SupervisorRef,
    WhichChildren,
    only_spec,
)
from supervisors.policy import RestartWindow, Verdict, after_exit, quiet
from supervisors.reasons import NORMAL, SHUTDOWN, ExitReason, Normal, Shutdown, Stop
from supervisors.reasons import GaveUp as GaveUpDetail
from supervisors.ref import ActorRef
from supervisors.spec import ChildSpec, check_child, check_flags, check_hibernate_after


class DynamicSupervisor(Actor):
    """Starts children on request and restarts each by itself.

    Args:
        template: if given, `start_child(*arguments)` starts a child by calling `template.start(*arguments)`; else
            `start_child(spec)` takes a spec each time.
        max_children: as many at once, those being restarted included; `None` for no limit.
        max_restarts: so many restarts of any children within `period` are fine; the next one ends the supervisor.
        period: seconds.
        hibernate_after: seconds of idleness after which it gives its task back; see `Actor`.

    Raises:
        SpecError: before anything is started (S-12, S-13, S-45).
    """

    is_supervisor = True
    ref_class: ClassVar[type[ActorRef]] = SupervisorRef
    ref: SupervisorRef

    def __init__(
        self,
        template: ChildSpec[Any] | None = None,
        *,
        max_children: int | None = None,
        max_restarts: int = 1,
        period: float = 5.0,
        hibernate_after: float | None = None,
    ) -> None:
        check_flags("one_for_one", max_restarts, period, "never")
        check_hibernate_after(hibernate_after)
        self.hibernate_after = hibernate_after
        if template is not None:
            check_child(template, "never")
        if max_children is not None and (isinstance(max_children, bool) or max_children < 0):
            raise SpecError("max_children", f"is a whole number, 0 or more, got {max_children!r}")
        self._template = template
        self._max_children = max_children
        self._window = quiet(max_restarts, period)
        self._children: dict[ActorRef, Child] = {}
        self._end: ExitReason | None = None  # it is ending, and why

    # --- what children tell it, synchronously ----------------------------------------------------------------------

    def child_started(self, incarnation: Incarnation) -> None:
        """A child's `init` is done."""
        child = self._children.get(incarnation.ref)
        if child is None:
            return
        child.forget_start()
        report_start(child)
        if child.waiting is not None:
            child.waiting.reply(None)

    def child_gone(self, incarnation: Incarnation) -> None:
        """A child is over: forget it, or start it again."""
        report_end(incarnation)
        child = self._children.get(incarnation.ref)
        if child is None or child.incarnation is not incarnation:
            return
        child.last_exit = incarnation.reason
        if child.waiting is not None:
            child.waiting.reply(None)
        if self._end is not None or incarnation.stopped_by_parent:
            self._forget(child)
        elif not incarnation.was_up:
            self._start_failed(child, NORMAL if incarnation.ignored else incarnation.reason)
        elif after_exit(child.spec.restart, incarnation.reason) is Verdict.RESTART:
            child.incarnation = None
            delay = child.next_delay(self._me.system, incarnation)
            if delay:
                child.restart_later(self._me.system, self.ref._box, delay)  # noqa: SLF001 - its own
            else:
                self._restart(child)
        else:
            self._forget(child)

    def _forget(self, child: Child) -> None:
        assert child.ref is not None
        del self._children[child.ref]
        child.retire()
        if self._end is not None and not self._children:
            self.ref._box.notify()  # noqa: SLF001 - its own

    def _start_failed(self, child: Child, failure: ExitReason) -> None:
        """At the first start that is the caller's affair (S-09).

        Later it is tried again, unless it said `Ignore` (S-07).
        """
        if child.restarts == 0 or isinstance(failure, Normal):
            self._forget(child)
            return
        child.incarnation = None
        child.last_exit = failure
        system = self._me.system
        child.restart_later(system, self.ref._box, child.next_delay(system, None))  # noqa: SLF001

    def _restart(self, child: Child) -> None:
        """One attempt, which counts whether it works or not (S-28)."""
        system, reason = self._me.system, child.last_exit or NORMAL
        self._window = self._window.add(system.backend.now())
        if self._window.exceeded:
            system.emit(GaveUp(system.backend.now(), self.ref, child.spec, reason))
            self._forget(child)
            self._begin_end(Shutdown(GaveUpDetail(child.spec.id, reason)))
            return
        child.restarts += 1
        failure = child.begin(system, self, self.ref, child.spec)
        if failure is None:
            assert child.incarnation is not None
            child.incarnation.start()
        else:
            self._start_failed(child, failure)

    # --- life ------------------------------------------------------------------------------------------------------

    def _begin_end(self, reason: ExitReason) -> None:
        """Ask all at once; each has its own grace, so the whole takes as long as the slowest (S-36)."""
        if self._end is not None:
            return
        self._end = reason
        for child in list(self._children.values()):
            if child.incarnation is None:
                self._forget(child)
            else:
                child.incarnation.shut_down(reason, child.shutdown)
        self.ref._box.notify()  # noqa: SLF001

    async def let_go(self) -> None:
        """The `init` of a subclass failed, and it has started children."""
        self._begin_end(SHUTDOWN)
        await self._serve()
        forget_own_mail((), self.ref._box)  # noqa: SLF001

    async def run(self) -> None:
        """Retry and answer until it ends; then wait until all are gone."""
        try:
            await self._serve()
        finally:
            # Only if this code itself is broken, or the loop thrown away, is somebody left here.
            if not self._me.rests:
                self._end = self._end or SHUTDOWN
                forget_own_mail(self._children.values(), self.ref._box)  # noqa: SLF001
                self._kill_all()
        if self._me.rests:
            return
        assert self._end is not None
        raise Stop(self._end)

    def _kill_all(self) -> None:
        for child in list(self._children.values()):
            if child.incarnation is not None:
                child.incarnation.kill()

    async def _serve(self) -> None:
        box, backend, me = self.ref._box, self._me.system.backend, self._me  # noqa: SLF001
        killed = False
        while self._end is None or self._children:
            if me.stop_reason is not None:
                self._begin_end(me.stop_reason)
            if me.killed and not killed:
                killed = True
                self._kill_all()
            if box.urgent:
                self.ref._dead_letter(box.urgent.popleft()[1])  # noqa: SLF001
            elif box.items:
                self._take(box.items.popleft())
                if box.items:  # a retry that fails at once queues itself again: others must get their turn
                    await backend.checkpoint()
            elif self._end is None and self.hibernate_after is not None and me.idles(self.hibernate_after):
                me.rest()
                return
            elif self._end is None or self._children:
                await backend.wait(box)

    def _take(self, item: Any) -> None:
        if isinstance(item, Retry):
            if self._end is None and item.is_due:
                self._restart(item.child)
        elif isinstance(item, Caller):
            if self._end is not None:
                item.fail(ShuttingDown(item.message))
                return
            match item.message:
                case WhichChildren():
                    item.reply(self.which_children())
                case CountChildren():
                    item.reply(self.count_children())
                case Reconfigure(config) if isinstance(config, DynamicSupervisor):
                    self._template = config._template  # noqa: SLF001 - of this class
                    self._max_children = config._max_children  # noqa: SLF001
                    window = config._window  # noqa: SLF001
                    self._window = RestartWindow(window.max_restarts, window.period, self._window.times)
                    item.reply(None)
                case Reconfigure(config):
                    item.fail(
                        SpecError("config", f"{self.ref!r} is a DynamicSupervisor, its configuration is {config!r}")
                    )
                case RestartChild(target) | DeleteChild(target):
                    item.fail(NotForDynamic(target))
                case request:
                    item.fail(SupervisorsError(f"{self.ref!r} is a supervisor, and was asked {request!r}"))
        else:
            self.ref._dead_letter(item[1])  # noqa: SLF001 - not for a supervisor (S-39)

    # --- for its ref and for who looks inside
    # -------------------------------------------------------------------------

    @property
    def has_open_books(self) -> bool:
        """Whether it would answer a question at once: no step is ever half done here, so only a queue is to be kept."""
        return self._end is None and self._me.stop_reason is None and not self.ref._box.items  # noqa: SLF001

    def which_children(self) -> list[ChildInfo]:
        """`SupervisorRef.which_children`."""
        return [child.info() for child in self._children.values() if child.has_been_up]

    def count_children(self) -> ChildCounts:
        """`SupervisorRef.count_children`."""
        counts = count(child for child in self._children.values() if child.has_been_up)
        return counts if self._template is None else dataclasses.replace(counts, specs=1)

    def children(self) -> list[Child]:
        """Its books. Not to be changed."""
        return list(self._children.values())

    def ref_of(self, id: object) -> ActorRef | None:  # noqa: ARG002
        """Children have no ids here."""
        return None

    async def start_child(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[ActorRef, Any]:
        """`SupervisorRef.start_child`."""
        spec = self._spec(arguments, keywords)
        if self._end is not None or self._me.stop_reason is not None:
            raise ShuttingDown(spec.id)
        if self._max_children is not None and len(self._children) >= self._max_children:
            raise TooManyChildren(spec.id)
        child = Child(spec)
        failure = child.begin(self._me.system, self, self.ref, spec)
        if isinstance(failure, Normal):
            return child.ref or ActorRef(spec.id), None
        if failure is not None:
            raise StartFailed(spec.id, failure)
        incarnation, ref = child.incarnation, child.ref
        assert incarnation is not None
        assert ref is not None
        self._children[ref] = child
        incarnation.start()
        if incarnation.phase is Phase.STARTING:
            await self._until_started(child, incarnation)
        if not incarnation.was_up and not incarnation.ignored:
            raise StartFailed(spec.id, incarnation.reason)
        return ref, incarnation.handed_on()

    async def terminate_child(self, target: object, reason: ExitReason) -> None:
        """`SupervisorRef.terminate_child`."""
        child = self._children.get(target) if isinstance(target, ActorRef) else None
        if child is None:
            if isinstance(target, ActorRef) and target.parent is self.ref and not target.alive:
                return  # it was one, and is gone already (S-42)
            raise ChildNotFound(target)
        if child.incarnation is None:
            self._forget(child)  # which cancels its retry (S-33)
            return
        child.incarnation.shut_down(reason, child.shutdown)
        if not child.incarnation.is_over:
            await child.incarnation.gone()

    def _spec(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ChildSpec[Any]:
        template = self._template
        if template is None:
            spec = only_spec(arguments, keywords)
            check_child(spec, "never")
            return spec
        start = template.start
        return dataclasses.replace(template, start=lambda: start(*arguments, **keywords), ref=None)

    async def _until_started(self, child: Child, incarnation: Incarnation) -> None:
        """Wait for the end of its `init`. Who leaves before gets no ref, so nobody would have the child.

        It is ended.
        """
        child.waiting = promise = self._me.system.backend.promise()
        promise.on_abandoned(lambda: incarnation.shut_down(Shutdown("start cancelled"), child.shutdown))
        await promise.wait()
        child.waiting = None
