"""The two supervisors.

The *static* one has an ordered list of children, started one at a time, and a strategy for failures. It carries out the
decisions of `policy.py` in the manner of `supervisor.erl`: one loop handles exits, retries and requests in turn and
completes each. Everything else relies on these order invariants:

- a child is started only when the one before it is up, and stopped only when the one after it has ended;
- exits and requests are in one queue, as in a process' mailbox: a child that is to be terminated, and ends before that,
  is not restarted;
- an exit belongs to the incarnation that ended; the exit of one that was stopped on purpose, or replaced since, is
  ignored;
- a failed start is tried again after the waiting requests, never in place.

The loop waits only for its own mailbox: to stop a supervisor, the reason is stored in its incarnation and it is woken.
Unlike OTP's, it can be interrupted: if it is asked to stop while a child's `init` hangs, it stops that child too.

The *dynamic* one has any number of similar children, started on request and independent of each other: OTP's
`simple_one_for_one` (one template, arguments at each start) and Elixir's `DynamicSupervisor` (a spec at each start) in
one. It is an actor with `children` (`children.py`) that stops them all at once, limits their number, and answers
requests from their records: every step is one change of these, so a request needs no queue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from types import CoroutineType
from typing import Any, NamedTuple

import anyio.lowlevel

from supervisors.actor import Actor
from supervisors.children import ChildCounts, ChildGroup, ChildRecord
from supervisors.errors import (
    AlreadyPresent,
    AlreadyStarted,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    NotForDynamic,
    ShuttingDown,
    SpecError,
    StartFailed,
    SupervisorsError,
    TooManyChildren,
    is_hashable,
)
from supervisors.incarnation import Incarnation, LifePhase
from supervisors.mailbox import Caller
from supervisors.policy import AutoShutdown, Strategy, plan, should_end_supervisor, should_restart
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
from supervisors.ref import ActorRef, SupervisorRef
from supervisors.spec import ChildSpec, check_child, check_children, check_flags
from supervisors.waiting import ScheduledCall

StartResult = tuple[ActorRef | None, Any]  # the ref of a child, and the result of its `init`


class ManagementRequest(NamedTuple):
    """A message to a supervisor: call this method of it, or of its children."""

    method: str
    arguments: tuple[Any, ...] = ()

    def refuse(self) -> ShuttingDown:
        """Return the error for a supervisor that is ending."""
        arguments = self.arguments[0] if self.method == "start_child" else self.arguments
        about = arguments[0] if arguments else None
        return ShuttingDown(None if isinstance(about, Actor) else about.id if isinstance(about, ChildSpec) else about)


class DueRetry(NamedTuple):
    """A message of a supervisor to itself: restart a child, unless that restart was cancelled or replaced."""

    record: ChildRecord
    retry: ScheduledCall | None


class OrderedChildren(ChildGroup):
    """The children of a static supervisor, by their ids. Their ends and retries go to its mailbox."""

    def note_start(self, child: Incarnation) -> None:
        """Report that a child is up, and let the loop continue with the next."""
        super().note_start(child)
        self._me.identity.box.notify()

    def note_end(self, child: Incarnation) -> None:
        """A child has ended. The loop checks whether the exit is current."""
        super().note_end(child)
        box = self._me.identity.box
        if child.was_up and self.is_open:
            box.put(child)  # after the requests that came before
        else:
            box.notify()

    def retry(self, record: ChildRecord) -> None:
        """It is time to restart a child."""
        self._me.identity.box.put(DueRetry(record, record.retry))

    def close(self) -> None:
        """Start and restart no more children, and refuse the requests that wait."""
        super().close()
        for item in self._me.identity.box.drain():
            if isinstance(item, Caller):
                request = item.message
                item.fail(request.refuse() if isinstance(request, ManagementRequest) else ShuttingDown())
            elif not isinstance(item, Incarnation | DueRetry):
                self.system.report_dead_letter(self._me.ref, item[1])


class Supervisor(Actor):
    """Starts, monitors, restarts and stops a fixed list of children, which management calls may change.

    Args:
        children: their specs, in start order.
        strategy: `one_for_one`, `one_for_all` or `rest_for_one`.
        max_restarts: how many restarts are allowed within `period`; one more ends the supervisor.
        period: seconds.
        auto_shutdown: whether the end of significant children ends it: `never`, `any_significant`, `all_significant`.

    Raises:
        SpecError: before anything is started.
    """

    has_children = True
    is_supervisor = True
    ref_class = SupervisorRef
    children_class = OrderedChildren
    ref: SupervisorRef
    children: OrderedChildren  # type: ignore[assignment]  # its own kind

    def __init__(
        self,
        children: Iterable[ChildSpec[Any]] = (),
        *,
        strategy: Strategy = "one_for_one",
        max_restarts: float = 1,
        period: float = 5.0,
        auto_shutdown: AutoShutdown = "never",
    ) -> None:
        check_flags(strategy, max_restarts, period, auto_shutdown)
        self.specs: list[ChildSpec[Any]] = check_children(children, auto_shutdown)
        self.strategy: Strategy = strategy
        self.auto_shutdown: AutoShutdown = auto_shutdown
        self.max_restarts = max_restarts
        self.period = period

    async def init(self) -> None:
        """Start the children in their order; if one fails, the others are stopped again and the start fails."""
        for spec in self.specs:
            self.children.records[spec.id] = ChildRecord(self.children, spec)
        for record in list(self.children.records.values()):
            failure = await self._start(record)
            if isinstance(failure, Normal):
                self._retire(record)
            elif failure is not None:
                raise Stop(Shutdown(FailedToStart(record.spec.id, failure)))

    async def serve(self) -> None:
        """Handle exits, retries and requests in turn until it ends."""
        box = self._me.identity.box
        while True:
            self._check()
            if box.urgent:
                self.system.report_dead_letter(self.ref, box.urgent.popleft()[1])
            elif box.items:
                await self._take(box.items.popleft())
            else:
                await self._wait()

    async def _wait(self) -> None:
        await self.system.loop.wait(self._me.identity.box)

    def _check(self) -> None:
        """Raise `Stop` if the supervisor has to end."""
        if self._me.stop_reason is not None:
            raise Stop(self._me.stop_reason)

    async def _take(self, item: Any) -> None:
        if isinstance(item, Incarnation):
            await self._handle_exit(item)
        elif isinstance(item, DueRetry):
            if item.record.retry is item.retry:
                await self._restart(item.record)
        elif isinstance(item, Caller):
            if not item.abandoned:
                await self._answer(item, item.message)
        else:
            self.system.report_dead_letter(self.ref, item[1])  # it understands no messages

    async def _answer(self, caller: Caller, request: Any) -> None:
        self._me.take_call(caller)
        try:
            if not isinstance(request, ManagementRequest):
                raise SupervisorsError(f"{self.ref!r} is a supervisor, and was asked {request!r}")
            method = getattr(self, request.method, None) or getattr(self.children, request.method)
            answer = method(*request.arguments)
            caller.reply(await answer if isinstance(answer, CoroutineType) else answer)
        except SupervisorsError as refusal:
            caller.fail(refusal)
        except Stop:
            caller.fail(request.refuse())
            raise

    async def _start(self, record: ChildRecord) -> ExitReason | None:
        """Start it and wait until it is up; return `None`, or the reason why not: `Normal()` if it raised `Ignore`."""
        self._check()
        incarnation = record.begin()
        if not isinstance(incarnation, Incarnation):
            return incarnation
        incarnation.start()
        while incarnation.phase is LifePhase.STARTING:
            await self._wait()
            self._check()
        if incarnation.was_up:
            return None
        record.incarnation = None
        return NORMAL if incarnation.was_ignored else incarnation.reason

    def _retire(self, record: ChildRecord) -> None:
        """Note that there will be no further incarnation; forget a temporary child."""
        record.retire()
        if record.spec.restart == "temporary":
            del self.children.records[record.spec.id]

    async def _stop(self, record: ChildRecord, reason: ExitReason) -> None:
        """Stop the child, if it runs, and wait until it has ended or is given up."""
        incarnation = record.incarnation
        record.cancel_restart()
        if incarnation is not None:
            incarnation.shut_down(reason)
            while not incarnation.is_over:
                await self._wait()
            record.last_exit = incarnation.reason

    async def _handle_exit(self, incarnation: Incarnation) -> None:
        """Handle the end of a child that ended by itself."""
        record = incarnation.child
        if record.incarnation is not incarnation:
            return
        record.last_exit = reason = incarnation.reason
        if should_restart(record.spec.restart, reason):
            record.incarnation = None
            delay = record.count_restart(incarnation)
            if delay:
                record.restart_later(delay, self.children.retry)
            else:
                await self._restart(record)
            return
        self._retire(record)
        others = any(
            other.spec.significant and other.state != "stopped"
            for other in self.children.records.values()
            if other is not record
        )
        if should_end_supervisor(self.auto_shutdown, significant=record.spec.significant, others_active=others):
            raise Stop(Shutdown(SignificantEnded(record.spec.id, reason)))

    async def _restart(self, record: ChildRecord) -> None:
        end = self.children.count_restart(record)
        if end is not None:
            raise Stop(end)
        reason, records = record.last_exit or NORMAL, self.children.records
        todo = plan(self.strategy, list(records), record.spec.id)
        for id in todo.stop:
            await self._stop(records[id], Shutdown(RestartedWith(record.spec.id, reason)))
            if records[id].spec.restart == "temporary":
                self._retire(records[id])
            else:
                records[id].incarnation = None
        for id in todo.start:
            sibling = records.get(id)
            if sibling is None:  # a temporary child, which was forgotten
                continue
            sibling.restarts += 1
            failure = await self._start(sibling)
            if isinstance(failure, Normal):
                self._retire(sibling)
            elif failure is not None:
                sibling.last_exit = failure
                sibling.restart_later(sibling.count_restart(None), self.children.retry)
                return

    async def manage(self, method: str, *arguments: Any) -> Any:
        """Put a request into the mailbox and wait for the answer."""
        request = ManagementRequest(method, arguments)
        if not self.children.is_open:
            raise request.refuse()
        return await self.ref.call(request)

    async def start_child(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> StartResult:
        """Start a child that is not known yet."""
        spec, records = _get_only_spec(arguments, keywords), self.children.records
        check_child(spec, self.auto_shutdown)
        known = records.get(spec.id)
        if known is not None:
            if known.incarnation is not None and known.ref is not None:
                raise AlreadyStarted(spec.id, known.ref)
            raise AlreadyPresent(spec.id)
        records[spec.id] = record = ChildRecord(self.children, spec)
        try:
            return await self._start_on_request(record)
        except StartFailed:
            del records[spec.id]
            raise

    async def restart_child(self, target: object) -> StartResult:
        """Start a stopped child."""
        return await self._start_on_request(self._find_stopped(target))

    async def _start_on_request(self, record: ChildRecord) -> StartResult:
        """Start a child for a caller. A failure is raised there, and does not count as a restart."""
        failure = await self._start(record)
        if failure is None:
            assert record.incarnation is not None
            return record.ref, record.incarnation.take_info()
        if isinstance(failure, Normal):
            self._retire(record)
            return record.ref or ActorRef(record.spec.id), None
        record.retire()
        raise StartFailed(record.spec.id, failure)

    async def terminate_child(self, target: object, reason: ExitReason) -> None:
        """Stop a child, and keep its spec unless it is temporary."""
        record = self._find(target)
        await self._stop(record, reason)
        self._retire(record)

    def delete_child(self, target: object) -> None:
        """Forget a stopped child."""
        del self.children.records[self._find_stopped(target).spec.id]

    def reconfigure(self, config: Actor) -> None:
        """Adopt the children and the flags of another supervisor, which was not started."""
        if not isinstance(config, Supervisor):
            raise SpecError("config", f"{self.ref!r} is a Supervisor, and so has to be its configuration: {config!r}")
        group = self.children
        group.limit(config.max_restarts, config.period)
        self.strategy, self.auto_shutdown = config.strategy, config.auto_shutdown
        old, group.records = group.records, {}
        for spec in config.specs:
            group.records[spec.id] = record = old.pop(spec.id, None) or ChildRecord(group, spec)
            record.spec = spec
        group.records |= old

    def _find(self, target: object) -> ChildRecord:
        id: Hashable = target.id if isinstance(target, ActorRef) else target
        record = self.children.records.get(id) if is_hashable(id) else None
        if record is None or (isinstance(target, ActorRef) and record.ref is not target):
            raise ChildNotFound(target)
        return record

    def _find_stopped(self, target: object) -> ChildRecord:
        record = self._find(target)
        if record.incarnation is not None:
            raise ChildRunning(target)
        if record.retry is not None:
            raise ChildRestarting(target)
        return record


def _get_only_spec(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ChildSpec[Any]:
    """Return the one argument of `start_child` without a template."""
    if len(arguments) != 1 or keywords:
        raise SpecError("template", "without one, start_child takes a ChildSpec and nothing else")
    return arguments[0]  # type: ignore[no-any-return]


# --- dynamic ----------------------------------------------------------------------------------------------------------


class DynamicSupervisor(Actor):
    """Starts children on request and restarts each by itself.

    Args:
        template: if given, `start_child(*arguments)` starts a child by calling `template.start(*arguments)`; else each
            `start_child(spec)` takes a spec.
        max_children: how many may exist at once, those being restarted included; `None` for no limit.
        max_restarts: how many restarts, of any children, are allowed within `period`; one more ends the supervisor.
        period: seconds.

    Raises:
        SpecError: before anything is started.
    """

    has_children = True
    stops_children_at_once = True
    is_supervisor = True
    ref_class = SupervisorRef
    ref: SupervisorRef

    def __init__(
        self,
        template: ChildSpec[Any] | None = None,
        *,
        max_children: int | None = None,
        max_restarts: float = 1,
        period: float = 5.0,
    ) -> None:
        check_flags("one_for_one", max_restarts, period, "never")
        if template is not None:
            check_child(template, "never")
        whole = isinstance(max_children, int) and not isinstance(max_children, bool)
        if max_children is not None and not (whole and max_children >= 0):
            raise SpecError("max_children", f"expected a whole number, 0 or more, got {max_children!r}")
        self.template = template
        self.max_children = max_children
        self.max_restarts = max_restarts
        self.period = period

    async def handle_call(self, message: Any, caller: Caller) -> Any:
        """Refuse a call: it understands no messages."""
        caller.fail(SupervisorsError(f"{self.ref!r} is a supervisor, and was asked {message!r}"))

    async def handle_info(self, message: Any) -> None:
        """Report a message that it does not understand."""
        self.system.report_dead_letter(self.ref, message)

    handle_cast = handle_info

    async def manage(self, method: str, *arguments: Any) -> Any:
        """Carry out a request; if the request itself never waits, let other tasks run first."""
        if method in ("start_child", "terminate_child"):
            return await getattr(self, method)(*arguments)
        await anyio.lowlevel.checkpoint()
        if not self.children.is_open:
            raise ShuttingDown
        return (getattr(self, method, None) or getattr(self.children, method))(*arguments)

    async def start_child(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> StartResult:
        """Start a child."""
        if self.template is None:
            spec = _get_only_spec(arguments, keywords)
            check_child(spec, "never")
        else:
            spec = _fill_template(self.template, arguments, keywords)
        await self.children.wait_until_open()
        if self.max_children is not None and len(self.children) >= self.max_children:
            raise TooManyChildren(spec.id)
        return await self.children.start_info(spec)

    async def terminate_child(self, target: object, reason: ExitReason) -> None:
        """Stop a child."""
        if not isinstance(target, ActorRef):
            raise ChildNotFound(target)
        await self.children.stop(target, reason)

    def restart_child(self, target: object) -> None:
        """Refuse: there are no stopped children."""
        raise NotForDynamic(target)

    delete_child = restart_child

    def count_children(self) -> ChildCounts:
        """Return the numbers of its children; a template counts as one spec."""
        counts = self.children.count_children()
        return counts if self.template is None else replace(counts, specs=1)

    def reconfigure(self, config: Actor) -> None:
        """Adopt the template and the limits of another supervisor, which was not started."""
        if not isinstance(config, DynamicSupervisor):
            wrong = f"{self.ref!r} is a DynamicSupervisor, and so has to be its configuration: {config!r}"
            raise SpecError("config", wrong)
        self.children.limit(config.max_restarts, config.period)
        self.template = template = config.template
        self.max_children = config.max_children
        for record in self.children.records.values():
            start = record.spec.start
            if template is not None and isinstance(start, TemplateStart):
                record.spec = _fill_template(template, start.arguments, start.keywords)


@dataclass(slots=True)
class TemplateStart:
    """The `start` of a template's child: the template's, with the arguments of this child."""

    start: Callable[..., Actor]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def __call__(self) -> Actor:
        """Return a new actor."""
        return self.start(*self.arguments, **self.keywords)


def _fill_template(template: ChildSpec[Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ChildSpec[Any]:
    """Return the spec that a template gives to a child with these arguments."""
    return replace(template, start=TemplateStart(template.start, arguments, keywords), ref=None)
