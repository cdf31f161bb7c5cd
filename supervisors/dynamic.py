"""The dynamic supervisor: any number of similar children, started on request, independent of each other.

OTP's `simple_one_for_one` (one template, arguments at each start) and Elixir's `DynamicSupervisor` (a spec at each
start) in one. Children have no order and no ids: their refs identify them; they are restarted one by one, and stopped
all at once (S-36).

Nothing here waits: a start, an exit and a restart are each one synchronous change of the child records, made in the
task that reports it. So a slow `init` delays only the caller that requested that child (in OTP it delays all), and mass
starts cost no switch to the supervisor's task. That task only handles what needs a queue: retries (S-32) and the
requests after them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from supervisors.actor import Actor
from supervisors.base_supervisor import BaseSupervisor
from supervisors.child import Incarnation, Phase
from supervisors.children import Child, ChildCounts, report_end, report_start
from supervisors.errors import ChildNotFound, NotForDynamic, ShuttingDown, SpecError, StartFailed, TooManyChildren
from supervisors.management import get_only_spec
from supervisors.policy import Verdict, decide_after_exit
from supervisors.reasons import NORMAL, ExitReason, Normal, Shutdown
from supervisors.ref import ActorRef
from supervisors.spec import ChildSpec, check_child


class DynamicSupervisor(BaseSupervisor):
    """Starts children on request and restarts each by itself.

    Args:
        template: if given, `start_child(*arguments)` starts a child by calling `template.start(*arguments)`; else each
            `start_child(spec)` takes a spec.
        max_children: how many may exist at once, those being restarted included; `None` for no limit.
        max_restarts: how many restarts, of any children, are allowed within `period`; one more ends the supervisor.
        period: seconds.
        hibernate_after: seconds of idleness after which its task ends; see `Actor`.

    Raises:
        SpecError: before anything is started (S-12, S-13, S-45).
    """

    def __init__(
        self,
        template: ChildSpec[Any] | None = None,
        *,
        max_children: int | None = None,
        max_restarts: int = 1,
        period: float = 5.0,
        hibernate_after: float | None = None,
    ) -> None:
        super().__init__("one_for_one", max_restarts, period, "never", hibernate_after)
        if template is not None:
            check_child(template, "never")
        whole = isinstance(max_children, int) and not isinstance(max_children, bool)
        if max_children is not None and not (whole and max_children >= 0):
            raise SpecError("max_children", f"is a whole number, 0 or more, got {max_children!r}")
        self._template = template
        self._max_children = max_children
        self._children: dict[ActorRef, Child] = {}

    # --- called by children, synchronously ----------------------------------------------------------------------

    def child_started(self, incarnation: Incarnation) -> None:
        """A child's `init` is done."""
        report_start(incarnation)
        child = incarnation.child
        if child.waiting is not None:
            child.waiting.reply(None)

    def child_gone(self, incarnation: Incarnation) -> None:
        """A child has ended: forget it, or restart it."""
        report_end(incarnation)
        child = incarnation.child
        if child.incarnation is not incarnation:
            return
        child.last_exit = incarnation.reason
        if child.waiting is not None:
            child.waiting.reply(None)
        if self._end is not None or incarnation.stopped_by_parent:
            self._forget(child)
        elif not incarnation.was_up:
            self._start_failed(child, NORMAL if incarnation.ignored else incarnation.reason)
        elif decide_after_exit(child.spec.restart, incarnation.reason) is Verdict.RESTART:
            child.incarnation = None
            delay = child.count_restart(incarnation)
            if delay:
                child.restart_later(delay)
            else:
                self._restart_now(child)
        else:
            self._forget(child)

    def _forget(self, child: Child) -> None:
        assert child.ref is not None
        del self._children[child.ref]
        child.retire()
        if self._end is not None and not self._children:
            self.ref._box.notify()  # noqa: SLF001 - its own

    def _start_failed(self, child: Child, failure: ExitReason) -> None:
        """Handle a failed start: report the first one to the caller (S-09).

        A failed restart is tried again, unless the child raised `Ignore` (S-07).
        """
        if child.restarts == 0 or isinstance(failure, Normal):
            self._forget(child)
            return
        child.incarnation = None
        child.last_exit = failure
        child.restart_later(child.count_restart(None))

    def _restart_now(self, child: Child) -> None:
        end = self._count_restart(child)
        if end is not None:
            self._forget(child)
            self._end = end
            self.ref._box.notify()  # noqa: SLF001 - its own
            return
        child.restarts += 1
        begun = child.begin()
        if isinstance(begun, Incarnation):
            begun.start()
        else:
            self._start_failed(child, begun)

    # --- life ------------------------------------------------------------------------------------------------------

    async def _restart(self, child: Child) -> None:
        self._restart_now(child)

    async def _stop_all(self, reason: ExitReason) -> None:
        """Stop all children at once, each within its own grace, so that this takes as long as the slowest (S-36)."""
        for child in list(self._children.values()):
            if child.incarnation is None:
                self._forget(child)
            else:
                child.incarnation.shut_down(reason)
        while self._children:
            await self._wait_for_ends()

    # --- for its ref -----------------------------------------------------------------------------------------------

    @property
    def can_query_directly(self) -> bool:
        """Whether its ref may query it directly now: every step is atomic, so only the order of requests matters."""
        return self._end is None and self._me.stop_reason is None and not self.ref._box.items  # noqa: SLF001

    def count_children(self) -> ChildCounts:
        """`SupervisorRef.count_children`."""
        counts = super().count_children()
        return counts if self._template is None else dataclasses.replace(counts, specs=1)

    async def _restart_child(self, target: object) -> None:
        """Refuse: there are no stopped children (S-42)."""
        raise NotForDynamic(target)

    _delete_child = _restart_child

    async def _reconfigure(self, config: Actor) -> None:
        """Adopt the template and the limits of another supervisor, which was not started (S-51)."""
        adopted = self._adopt(config, DynamicSupervisor)
        self._template = template = adopted._template  # noqa: SLF001 - of this class
        for child in self._children.values():
            start = child.spec.start
            if template is not None and isinstance(start, _TemplateStart):
                child.spec = _fill_template(template, start.arguments, start.keywords)
        self._max_children = adopted._max_children  # noqa: SLF001

    async def start_child(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[ActorRef, Any]:
        """`SupervisorRef.start_child`."""
        spec = self._make_spec(arguments, keywords)
        if self._end is not None or self._me.stop_reason is not None:
            raise ShuttingDown(spec.id)
        if self._max_children is not None and len(self._children) >= self._max_children:
            raise TooManyChildren(spec.id)
        child = Child(self, spec)
        incarnation = child.begin()
        if isinstance(incarnation, Normal):
            return child.ref or ActorRef(spec.id), None
        if not isinstance(incarnation, Incarnation):
            raise StartFailed(spec.id, incarnation)
        ref = incarnation.ref
        self._children[ref] = child
        incarnation.start()
        if incarnation.phase is Phase.STARTING:
            await self._wait_until_started(child, incarnation)
        if not incarnation.was_up and not incarnation.ignored:
            raise StartFailed(spec.id, incarnation.reason)
        return ref, incarnation.take_info()

    async def terminate_child(self, target: object, reason: ExitReason) -> None:
        """`SupervisorRef.terminate_child`."""
        if not isinstance(target, ActorRef):
            raise ChildNotFound(target)
        child = self._children.get(target)
        if child is None:
            if target._outcome is not None:  # noqa: SLF001 - of this package
                return  # it has ended, whose child it was does not matter (S-42)
            raise ChildNotFound(target)
        if child.incarnation is None:
            self._forget(child)  # this cancels its retry (S-33)
            return
        gone = self.system.backend.promise()
        target._watch(gone, gone.reply, final=False)  # noqa: SLF001
        child.incarnation.shut_down(reason)
        await gone.value

    def _make_spec(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ChildSpec[Any]:
        template = self._template
        if template is None:
            spec = get_only_spec(arguments, keywords)
            check_child(spec, "never")
            return spec
        return _fill_template(template, arguments, keywords)

    async def _wait_until_started(self, child: Child, incarnation: Incarnation) -> None:
        """Wait until `init` is done. If the caller is cancelled before, end the child: its ref would be lost."""
        child.waiting = self.system.backend.promise()
        try:
            await child.waiting.value
        except self.system.backend.cancelled:
            incarnation.shut_down(Shutdown("start cancelled"))
            raise
        child.waiting = None


class _TemplateStart:
    """The `start` of a template's child: the template's, with the arguments of this child."""

    __slots__ = ("_start", "arguments", "keywords")

    def __init__(self, start: Callable[..., Actor], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._start = start
        self.arguments = arguments
        self.keywords = keywords

    def __call__(self) -> Actor:
        return self._start(*self.arguments, **self.keywords)


def _fill_template(template: ChildSpec[Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ChildSpec[Any]:
    """Return the spec that a template gives to a child with these arguments."""
    return dataclasses.replace(template, start=_TemplateStart(template.start, arguments, keywords), ref=None)
