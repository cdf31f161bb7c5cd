"""References to actors, the package's record of each, and the values that report an actor's end.

An `ActorRef` is an identity: it owns the mailbox, survives restarts, and is the object that other code holds.
`actor.py` has the actor behind it, `incarnation.py` one incarnation of that actor. The parts of an identity that only
this package may use are in its `ActorIdentity`.

| ref is  | since                                   | cast              | call                            |
|---------|-----------------------------------------|-------------------|---------------------------------|
| new     | `ActorRef()`                            | kept              | `NotRunning`                    |
| open    | first start; stays so between restarts  | kept              | answered by this incarnation or the next |
| ended   | its supervisor will not restart it      | dead letter       | `NotRunning`                    |

An incarnation that ends answers the calls it has taken with `Died`; calls still in the mailbox wait for the next
incarnation, and get `NotRunning` if there will be none. The message that was being handled is not handled again.

A call with `grace` owns the work that it has started: when its caller leaves, the callee's work on it is cancelled, and
the caller waits for the end of that work (`BoundedWork`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

import anyio

from supervisors.errors import (
    CallError,
    CallTimeout,
    ChildNotFound,
    Failed,
    MailboxFull,
    NotRunning,
    SelfCall,
    ShuttingDown,
    StartFailed,
    check_seconds,
    is_hashable,
)
from supervisors.mailbox import CAST, INFO, UNBOUNDED, Caller, Mailbox
from supervisors.reasons import SHUTDOWN, ExitReason, Normal, Shutdown, check_reason
from supervisors.waiting import wait_uninterrupted

if TYPE_CHECKING:
    from supervisors.actor import Actor
    from supervisors.children import ChildCounts, ChildInfo
    from supervisors.incarnation import Incarnation
    from supervisors.spec import ChildSpec
    from supervisors.supervisor import DynamicSupervisor, Supervisor
    from supervisors.system import ActorSystem

A = TypeVar("A")
SomeActor = TypeVar("SomeActor", bound="Actor")
A_contra = TypeVar("A_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
if TYPE_CHECKING:  # an `ActorRef` without an argument is one of any actor
    from typing_extensions import TypeVar as TypeVarWithDefault

    A_co = TypeVarWithDefault("A_co", covariant=True, default=Any)
else:
    A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Down:
    """A message to a monitoring actor: the actor `ref` ended. `final`: it will not be restarted."""

    ref: ActorRef
    reason: ExitReason
    final: bool


@dataclass(frozen=True, slots=True)
class Exit:
    """A message to an actor with `trap_exit`: a linked actor ended, or (`ref` is `None`) `exit` was called on it."""

    ref: ActorRef | None
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final exit reason of an actor, and the result of its last `run`."""

    reason: ExitReason
    value: Any = None

    def unwrap(self) -> Any:
        """Return the value of a normal end.

        Raises:
            Failed: with the crash's exception as its cause, if it ended otherwise.
        """
        if isinstance(self.reason, Normal):
            return self.value
        raise Failed(self.reason) from getattr(self.reason, "exception", None)


class MessageTo(Generic[A_contra, R_co]):
    """The base of a message that declares its actor and its reply: `class Join(MessageTo["Room", int])`.

    `await room.call(Join(...))` then has the type `int`. An actor whose `handle_call` is annotated with its messages
    refuses all others in type checkers.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # else the type parameters would be unused

        def _is_handled_by(self, actor: A_contra) -> R_co: ...


class AcceptsAnyCall(Protocol):
    """An actor whose `handle_call` is not annotated with its messages."""

    async def handle_call(self, message: object, caller: Caller, /) -> Any: ...  # noqa: D102


class AcceptsAnyCast(Protocol):
    """An actor whose `handle_cast` is not annotated with its messages."""

    async def handle_cast(self, message: object, /) -> None: ...  # noqa: D102


class BoundedWork:
    """The callee's work on a bounded call. The callee notes its scope here; a caller that leaves cancels that scope."""

    __slots__ = ("_ended", "_is_cancelled", "_on_overdue", "_scope")

    def __init__(self) -> None:
        self._is_cancelled = False
        self._scope: anyio.CancelScope | None = None
        self._on_overdue: Callable[[], object]
        self._ended: anyio.Event | None = None

    def begin(self, scope: anyio.CancelScope, on_overdue: Callable[[], object]) -> None:
        """Note that the work begins, or continues, in `scope`; `on_overdue` is called if it does not end within the
        grace.
        """
        self._scope, self._on_overdue = scope, on_overdue
        if self._is_cancelled:
            scope.cancel()

    def end(self, scope: anyio.CancelScope) -> None:
        """Note that the work in `scope` has ended; ignored if another scope has taken it over."""
        if scope is self._scope:
            self._scope = None
            if self._ended is not None:
                self._ended.set()

    async def cancel(self, system: ActorSystem, grace: float) -> None:
        """Cancel the work, and wait for its end, `grace` seconds at most; work that begins later ends at once."""
        self._is_cancelled = True
        if self._scope is None:
            return
        self._scope.cancel()
        timer = system.timers.call_after(grace, self._give_up)
        self._ended = anyio.Event()
        cancelled = await wait_uninterrupted(system.loop, lambda: self._scope is None, self._ended.wait)
        timer.cancel()
        if cancelled is not None:
            raise cancelled

    def _give_up(self) -> None:
        if self._scope is not None:
            self._on_overdue()
            self.end(self._scope)


#: The reason of a child whose `run` is cancelled.
CANCELLED = Shutdown("cancelled")

#: Called at an actor's end with the reason, and whether it will not be restarted.
NotifyExit = Callable[[ExitReason, bool], object]


@dataclass(slots=True, eq=False)
class ActorIdentity:
    """This package's record of an actor, from its first start to its last end."""

    id: Any  # among its siblings
    parent: ActorRef | None = None  # its supervisor
    box: Mailbox = field(default_factory=Mailbox)
    system: ActorSystem | None = None  # in which it was started
    incarnation: Incarnation | None = None  # the running one
    reason: ExitReason | None = None  # why its last incarnation ended
    outcome: Outcome | None = None  # once it will not be restarted
    state: Any = None  # the result of the last incarnation's `snapshot`, for the next one
    _watchers: list[tuple[object, bool, NotifyExit]] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether it is a supervisor's child: from its first start until it will not be restarted."""
        return self.system is not None and self.outcome is None

    def begin(self, system: ActorSystem, incarnation: Incarnation, limit: int | None) -> None:
        """Note that an incarnation begins."""
        self.system = system
        self.box.wake = system.loop.wake
        self.box.limit = UNBOUNDED if limit is None else limit
        self.incarnation = incarnation
        self.outcome = None

    def end_incarnation(self, reason: ExitReason, *, was_ignored: bool) -> None:
        """Note the end of an incarnation; it is not known yet whether there will be another.

        A start that was ignored does not hide the reason of an end before it.
        """
        self.incarnation = None
        self.box.waiter = None
        self.box.urgent = None  # its monitors and waits do not pass to the next incarnation
        if not was_ignored or self.reason is None:
            self.reason = reason
        self._notify(reason, final=False)

    def retire(self, ref: ActorRef, value: Any) -> None:
        """Note that there will be no further incarnation: answer waiting callers and release the mail."""
        if self.system is None or self.outcome is not None:
            return
        assert self.reason is not None
        self.state = None
        self.outcome = Outcome(self.reason, value)
        for item in self.box.drain():
            if isinstance(item, Caller):
                item.fail(NotRunning(ref, self.reason))
            else:
                self.system.report_dead_letter(ref, item[1])
        self.box.admit()
        self._notify(self.reason, final=True)

    def _notify(self, reason: ExitReason, *, final: bool) -> None:
        due = [watcher for watcher in self._watchers if watcher[1] is final]
        self._watchers = [watcher for watcher in self._watchers if watcher[1] is not final]
        for _, _, notify in due:
            notify(reason, final)

    def watch(self, watcher: object, notify: NotifyExit, *, final: bool) -> None:
        """Call `notify` once, at the end of an incarnation, or with `final` when there will be no other."""
        self._watchers.append((watcher, final, notify))

    def unwatch(self, watcher: object) -> None:
        """Forget the monitors and waits of `watcher`."""
        self._watchers = [entry for entry in self._watchers if entry[0] is not watcher]

    def count_watches(self, watcher: object = None) -> int:
        """Return how many ends `watcher` waits for, or all watchers."""
        return sum(watcher is None or entry[0] is watcher for entry in self._watchers)


class ActorRef(Generic[A_co]):
    """The identity of an actor. Make one beforehand and put it into a `ChildSpec`, or use the one that a start returns.

    Not thread-safe: from another thread, use `ActorSystem.portal`.
    """

    __slots__ = ("__weakref__", "_identity")

    def __init__(self, id: Any = None) -> None:
        self._identity = ActorIdentity(id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    @property
    def id(self) -> Any:
        """Its id among its siblings; `None` before its first start."""
        return self._identity.id

    @property
    def parent(self) -> ActorRef | None:
        """The ref of its supervisor; `None` before its first start."""
        return self._identity.parent

    @property
    def path(self) -> str:
        """Its path in the tree: the ids from the top down, with `/` between them."""
        ids: list[str] = []
        ref: ActorRef | None = self
        while ref is not None:
            ids.append("?" if ref.id is None else str(ref.id))
            ref = ref.parent
        return "/".join(reversed(ids))

    @overload
    def cast(self: ActorRef[A], message: MessageTo[A, Any]) -> None: ...
    @overload
    def cast(self: ActorRef[AcceptsAnyCast], message: object) -> None: ...
    def cast(self, message: Any) -> None:
        """Send a message for `handle_cast`, and return at once. Messages to an actor that has ended are dead letters.

        (`Runtime.cast` of cantrip-actors is another thing: it waits for an episode.)

        Raises:
            MailboxFull: if its mailbox is bounded and full.
        """
        self._put((CAST, message))

    def send(self, message: Any) -> None:
        """Like `cast`, but for `handle_info`: for facts, such as a timer that fired, instead of commands."""
        self._put((INFO, message))

    def _put(self, item: Any) -> None:
        identity = self._identity
        box = identity.box
        items = box.items
        if items is not None:
            if len(items) >= box.limit:
                raise MailboxFull(self, box.limit)
            items.append(item)
            waiter = box.waiter
            if waiter is not None:
                box.waiter = None
                box.wake(waiter)
        elif identity.outcome is None:
            box.put(item)
        elif identity.system is not None:
            identity.system.report_dead_letter(self, item[1])

    async def offer(self, message: Any) -> None:
        """Like `cast`, but wait while the mailbox is full. For producers that are not actors: two actors that wait for
        room in each other's mailbox wait for ever.

        Raises:
            NotRunning: it was not started, or has ended and will not be restarted.
        """
        identity, box = self._identity, self._identity.box
        while True:
            if identity.system is None or identity.outcome is not None:
                raise NotRunning(self, identity.reason)
            if len(box.items or ()) < box.limit:
                self.cast(message)
                return
            if box.has_room is None:
                box.has_room = anyio.Event()
            await box.has_room.wait()

    @overload
    async def call(
        self: ActorRef[A],
        message: MessageTo[A, R],
        timeout: float | None = None,
        *,
        grace: float | None = None,
        on_late_reply: Callable[[R], object] | None = None,
    ) -> R: ...
    @overload
    async def call(
        self: ActorRef[AcceptsAnyCall],
        message: object,
        timeout: float | None = None,
        *,
        grace: float | None = None,
        on_late_reply: Callable[[Any], object] | None = None,
    ) -> Any: ...
    async def call(
        self,
        message: Any,
        timeout: float | None = None,
        *,
        grace: float | None = None,
        on_late_reply: Callable[[Any], object] | None = None,
    ) -> Any:
        """Send a message for `handle_call` and wait for the reply.

        Args:
            message: the message for `handle_call`.
            timeout: seconds to wait; `None` for no limit.
            grace: if given, the call owns the work that it starts: if it is cancelled or times out, the callee's work
                on it is cancelled, and the call returns when that work has ended, at most `grace` seconds later. A
                handler that has not ended by then: its actor is given up as a zombie, or, if it answers with
                `Actor.answer`, an `Overrun` is reported.
            on_late_reply: called with the reply if this call does not return it, because it was cancelled or timed out
                before, or in the same moment. Synchronous, must not raise.

        Returns:
            the reply: the result of `handle_call`, or the value that the callee passed to `caller.reply`.

        Raises:
            NotRunning: it was not started, or ended before it handled the call.
            Died: it ended while it handled the call.
            CallTimeout: no reply in time.
            SelfCall: an actor called itself.
            MailboxFull: its mailbox is bounded and full.
            Exception: what the callee passed to `caller.fail`.
        """
        identity = self._identity
        system, box = identity.system, identity.box
        if timeout is not None:
            check_seconds("timeout", timeout)
        if system is None or identity.outcome is not None:
            raise NotRunning(self, identity.reason)
        loop, incarnation = system.loop, identity.incarnation
        if box.waiter is None and incarnation is not None and incarnation.task is loop.current_task():
            raise SelfCall(self)  # an actor that waits for mail is not the running task
        caller = loop.make_caller(message)
        caller.on_late_reply = on_late_reply
        if grace is not None:
            check_seconds("grace", grace)
            caller.work = BoundedWork()
        self._put(caller)
        try:
            if timeout is None:
                return await caller.wait()
            with anyio.move_on_after(timeout):
                return await caller.wait()
            raise CallTimeout(self, timeout)
        finally:
            if grace is not None and caller.abandoned:
                await self._end_work(system, caller, grace)

    async def _end_work(self, system: ActorSystem, caller: Caller, grace: float) -> None:
        """End the callee's work on a bounded call that its caller has left."""
        incarnation = self._identity.incarnation
        for waiting in (self._identity.box.items, None if incarnation is None else incarnation.stashed):
            if waiting and caller in waiting:
                waiting.remove(caller)
                return
        assert caller.work is not None
        await caller.work.cancel(system, grace)

    @property
    def alive(self) -> bool:
        """Whether an incarnation is up: False before its `init` is done and between restarts."""
        incarnation = self._identity.incarnation
        return incarnation is not None and incarnation.is_up

    @property
    def last_exit(self) -> ExitReason | None:
        """The reason why its last incarnation ended; `None` if no incarnation has ended."""
        return self._identity.reason

    @property
    def mailbox_depth(self) -> int:
        """The number of messages in its mailbox."""
        return len(self._identity.box)

    async def exited(self) -> ExitReason:
        """Wait until it has ended and will not be restarted; return at once if it has.

        Returns:
            the reason why its last incarnation ended.
        """
        return (await self.outcome()).reason

    async def outcome(self) -> Outcome:
        """Wait until it has ended and will not be restarted; return the reason and the result of its `run`."""
        identity = self._identity
        if identity.outcome is not None:
            return identity.outcome
        if identity.system is None:
            raise NotRunning(self, None)
        promise = identity.system.loop.make_caller()
        identity.watch(promise, lambda *_: promise.reply(identity.outcome), final=True)
        try:
            return await promise.wait()  # type: ignore[no-any-return]
        finally:
            identity.unwatch(promise)

    def exit(self, reason: ExitReason = SHUTDOWN) -> None:
        """End its incarnation, as OTP's `exit(Pid, Reason)` does. The reason decides whether it is restarted.

        An actor with `trap_exit` receives an `Exit` message instead.

        Raises:
            TypeError: `reason` is not an exit reason.
        """
        check_reason(reason)
        if self._identity.incarnation is not None:
            self._identity.incarnation.signal(None, reason)

    def kill(self) -> None:
        """Kill its incarnation and its children, without `terminate`. A permanent or transient child is restarted."""
        if self._identity.incarnation is not None:
            self._identity.incarnation.kill()


def identify(ref: ActorRef) -> ActorIdentity:
    """Return this package's record of an actor; the only function that goes from a ref to it."""
    return ref._identity  # noqa: SLF001


# --- supervisors ------------------------------------------------------------------------------------------------------


class SupervisorRef(ActorRef[Any]):
    """A reference to a supervisor, with its management calls.

    They raise `ManagementError`s and the errors of `call`.
    """

    __slots__ = ()

    @overload
    async def start_child(self, spec: ChildSpec[Supervisor] | ChildSpec[DynamicSupervisor], /) -> SupervisorRef: ...
    @overload
    async def start_child(self, spec: ChildSpec[SomeActor], /) -> ActorRef[SomeActor]: ...
    @overload
    async def start_child(self, /, *arguments: Any, **keywords: Any) -> Any: ...
    async def start_child(self, /, *arguments: Any, **keywords: Any) -> Any:
        """Start a child and wait until it is up. If this is cancelled, a dynamic supervisor ends the child again.

        Args:
            arguments: a `ChildSpec`; for a dynamic supervisor with a template, the arguments of the template's `start`.
            keywords: likewise.

        Returns:
            its ref: an `ActorRef`, or a `SupervisorRef` for a supervisor. Not `alive` if the child raised `Ignore`
           .

        Raises:
            StartFailed: its start failed, and the child was removed again.
            AlreadyStarted: a child with this id runs.
            AlreadyPresent: a child with this id is known.
            SpecError: the spec does not fit.
            TooManyChildren: the dynamic supervisor has `max_children`.
            ShuttingDown: the supervisor is ending.
        """
        return (await self._manage("start_child", arguments, keywords))[0]

    async def start_child_info(self, /, *arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        """Like `start_child`, but also return what `init` returned, which is not stored."""
        return await self._manage("start_child", arguments, keywords)  # type: ignore[no-any-return]

    async def terminate_child(self, target: object, reason: ExitReason = SHUTDOWN) -> None:
        """Stop a child and wait until it has ended. Its spec is kept, unless it is temporary.

        Args:
            target: its id or its ref; a dynamic supervisor accepts only refs.
            reason: the reason that its `terminate` receives; a supervisor passes it to its children.

        Raises:
            ChildNotFound: no such child here.
            TypeError: `reason` is not an exit reason.
        """
        check_reason(reason)
        await self._manage("terminate_child", target, reason)

    async def restart_child(self, target: object) -> Any:
        """Start a stopped child, with its spec, and return its ref.

        Raises:
            StartFailed: its start failed; it stays stopped.
            ChildRunning: it runs.
            ChildRestarting: it is being restarted.
            ChildNotFound: no such child here.
        """
        return (await self.restart_child_info(target))[0]

    async def restart_child_info(self, target: object) -> tuple[Any, Any]:
        """Like `restart_child`, but also return what `init` returned."""
        return await self._manage("restart_child", target)  # type: ignore[no-any-return]

    async def delete_child(self, target: object) -> None:
        """Delete the spec of a stopped child. Raises the errors of `restart_child`."""
        await self._manage("delete_child", target)

    async def which_children(self) -> list[ChildInfo]:
        """Return all known children, in start order. OTP lists static ones newest first."""
        return await self._manage("which_children")  # type: ignore[no-any-return]

    async def count_children(self) -> ChildCounts:
        """Return the numbers of children; those being restarted count, but not as active."""
        return await self._manage("count_children")  # type: ignore[no-any-return]

    async def reconfigure(self, config: Actor) -> None:
        """Change the children and the flags of the running supervisor, without stopping any child.

        Children with a known id continue, and their new spec applies from their next start; new ones are added but not
        started (`restart_child` does that); missing ones stay. A wrong configuration raises where it is created, and
        changes nothing.

        Args:
            config: a new, unstarted supervisor of the same kind with the wanted configuration.

        Raises:
            SpecError: `config` is of another kind.
        """
        await self._manage("reconfigure", config)

    async def run_child(self, spec: ChildSpec[Any], *, cancelled: ExitReason = CANCELLED) -> Outcome:
        """Start a child and wait for its outcome; see `Children.run`."""
        return await run_to_end(self.start_child, self.terminate_child, spec, cancelled)

    def child(self, id: Hashable) -> Any:
        """Return the ref of a static child as currently recorded, without sending a message.

        Raises:
            ChildNotFound: there is no such child, or the supervisor was never started.
        """
        children: Any = self._get_incarnation().children
        record = children.records.get(id) if is_hashable(id) else None
        if record is None or record.ref is None:
            raise ChildNotFound(id)
        return record.ref

    def _get_incarnation(self) -> Incarnation:
        if self._identity.incarnation is None:
            raise NotRunning(self, self._identity.reason)
        return self._identity.incarnation

    async def _manage(self, method: str, *arguments: Any) -> Any:
        supervisor: Any = self._get_incarnation().actor
        return await supervisor.manage(method, *arguments)


async def run_to_end(
    start: Callable[[ChildSpec[Any]], Awaitable[ActorRef]],
    stop: Callable[[ActorRef, ExitReason], Awaitable[None]],
    spec: ChildSpec[Any],
    cancelled: ExitReason,
) -> Outcome:
    """Start a child, wait for its outcome and return it; stop the child if this is cancelled meanwhile."""
    check_reason(cancelled)
    try:
        ref = await start(spec)
    except StartFailed as failure:
        return Outcome(failure.reason)
    try:
        return await ref.outcome()
    finally:
        if identify(ref).outcome is None:
            with anyio.CancelScope(shield=True):
                with suppress(CallError, ShuttingDown):  # its supervisor ends, and ends it
                    await stop(ref, cancelled)
                await ref.outcome()
