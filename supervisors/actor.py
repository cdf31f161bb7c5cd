"""Actors: the class that users subclass, the loop that passes it its messages, and one-off tasks.

An `Actor` is one incarnation: its state begins with `init` and ends with the incarnation. Only its task touches that
state; others hold its identity, an `ActorRef` (`ref.py`).

`incarnation.py` starts and stops actors and catches their exceptions; supervisors restart them. An actor that has
children is a host: its children run in a task group inside its own task (`children.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVarTuple

import anyio
import anyio.lowlevel

from supervisors.errors import NotRunning, SpecError, check_seconds
from supervisors.mailbox import CAST, INFO, NO_REPLY, Caller, NoReply
from supervisors.policy import Restart
from supervisors.reasons import SHUTDOWN, Crash, ExitReason, Stop
from supervisors.ref import ActorRef, identify
from supervisors.spec import ChildSpec, check_intensity
from supervisors.spec import Shutdown as ShutdownTime

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from supervisors.children import ChildGroup, Children
    from supervisors.incarnation import Incarnation
    from supervisors.system import ActorSystem
    from supervisors.waiting import Alarm

Arguments = TypeVarTuple("Arguments")

#: The result of `_take` if there is no message.
_NO_MESSAGE = object()

#: Messages handled in a row before a checkpoint, which costs as much as a short handler.
BATCH = 32


class Actor:
    """One incarnation of an actor. Subclass it and override what you need.

    Attributes:
        ref: its identity; set before `init`.
        has_tasks: gives it a task group of its own as `tasks`, at some cost. The group ends with the incarnation; an
            exception in the group crashes the actor.
        has_children: lets it have children of its own, which run inside its task: `children`.
        max_restarts: restarts of its children, of any of them, that are allowed within `period`; one more ends it with
            `Shutdown(GaveUp(...))`. `math.inf` for no limit.
        period: seconds.
        stops_children_at_once: at its end, stop all its children at once, instead of one after the other, last started
            first.
        trap_exit: when a linked actor ends, deliver an `Exit` to `handle_info` instead of ending this actor too.
        mailbox_limit: messages that may wait for it, 1 or more; sending one more raises `MailboxFull`. `None` for no
            limit. System messages (`Down`, `Exit`) are always accepted.
    """

    has_tasks: ClassVar[bool] = False
    has_children: ClassVar[bool] = False
    stops_children_at_once: ClassVar[bool] = False
    mailbox_limit: ClassVar[int | None] = None
    trap_exit: ClassVar[bool] = False
    max_restarts: float = 1
    period: float = 5.0

    ref: ActorRef
    tasks: TaskGroup
    children: Children
    _me: Incarnation

    #: The class of references to such an actor, and of its children.
    ref_class: ClassVar[type[ActorRef]] = ActorRef
    children_class: ClassVar[type[ChildGroup] | None] = None
    is_supervisor: ClassVar[bool] = False
    #: Whether `terminate` has to be called. An actor whose `run` has cleaned up sets it to False.
    has_terminate: bool = False
    starts_at_once: ClassVar[bool] = True
    has_snapshot: ClassVar[bool] = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.mailbox_limit is not None and cls.mailbox_limit < 1:  # no message would ever reach it
            raise ValueError(f"{cls.__name__}.mailbox_limit: expected at least 1, or None, got {cls.mailbox_limit!r}")
        if cls.has_children:
            check_intensity(cls.max_restarts, cls.period)
        _check_callbacks(cls.__name__, vars(cls))
        cls.has_terminate = cls.terminate is not Actor.terminate
        cls.starts_at_once = (
            cls.init is Actor.init and cls.restore is Actor.restore and not (cls.has_tasks or cls.has_children)
        )
        cls.has_snapshot = cls.snapshot is not Actor.snapshot

    async def init(self) -> Any:
        """Initialise. The supervisor continues only when this returns.

        An exception makes the start fail; `Ignore` means that the actor is not needed now. `start_child_info` returns
        its result to the caller.
        """

    async def handle_call(self, message: Any, caller: Caller) -> Any:
        """Answer a call: return the reply, or return `NO_REPLY` and call `caller.reply` later.

        With `has_tasks`, `return self.answer(caller, function, *arguments)` answers in a task.
        """
        raise NotImplementedError(f"{type(self).__name__} was called with {message!r} and has no handle_call")

    async def handle_cast(self, message: Any) -> None:
        """Handle the message of a `cast`."""
        raise NotImplementedError(f"{type(self).__name__} was cast {message!r} and has no handle_cast")

    async def handle_info(self, message: Any) -> None:
        """Handle a fact: `Down`, `Exit`, a timer, a message of `ref.send`. Ignored unless overridden."""

    async def terminate(self, reason: ExitReason) -> None:
        """Clean up. Called if `init` has succeeded, however the incarnation ends except by a kill.

        Its children still run; those left are stopped afterwards. Shielded from cancellation for the child's
        `shutdown` time (5 s for `"kill"`), then cancelled.
        """

    def snapshot(self) -> Any:
        """Return the state to pass to the next incarnation, or `None`.

        Called when an incarnation has ended, unless it was killed. Leave out state that may have caused the crash.
        """
        return None

    def restore(self, state: Any) -> None:
        """Receive the result of the last incarnation's `snapshot`. Called before `init`, unless it was `None`."""

    async def run(self) -> Any:
        """Run the actor. The default handles messages until it is stopped.

        Override it for an actor with a loop of its own (with `receive`) or for a one-off task, whose result is the
        outcome.
        """
        await self.serve()

    async def receive(self, match: Callable[[Any], bool] | None = None, *, timeout: float | None = None) -> Any:
        """Wait for the next message and return it: a `Caller` for a call, else the bare message.

        System messages come first.

        Args:
            match: take the first message that it accepts, and leave the others in the mailbox (selective receive).
            timeout: seconds to wait, as OTP's `receive … after`; `None` for no limit.

        Raises:
            TimeoutError: no message in time.
            NotRunning: this incarnation was given up as a zombie.
        """
        me = self._me
        if timeout is not None:
            check_seconds("timeout", timeout)
        with anyio.move_on_after(timeout):
            while (message := _take(me, match)) is _NO_MESSAGE:
                try:
                    await me.system.loop.wait(me.identity.box)
                finally:
                    me.identity.box.leave()
                if me.stop_reason is not None:
                    me.scope.cancel()
                    await anyio.lowlevel.checkpoint()
            return message
        raise TimeoutError(f"no message came within {timeout:g} s")

    def receive_nowait(self, match: Callable[[Any], bool] | None = None) -> Any:
        """Like `receive`, but without waiting.

        Raises:
            WouldBlock: of anyio: there is no such message.
            NotRunning: this incarnation was given up as a zombie.
        """
        message = _take(self._me, match)
        if message is _NO_MESSAGE:
            raise anyio.WouldBlock
        return message

    def stash(self, message: Any) -> None:
        """Set a message aside that cannot be handled yet: a cast's, or a call's `Caller` (and return `NO_REPLY`).

        It survives a restart, which puts it back into the mailbox.
        """
        self._me.stash(message if isinstance(message, Caller) else (CAST, message))

    def unstash(self) -> None:
        """Put all stashed messages back at the front of the mailbox, in their order."""
        self._me.unstash()

    def answer(
        self, caller: Caller, function: Callable[[*Arguments], Awaitable[Any]], *arguments: *Arguments
    ) -> NoReply:
        """Answer a call in a task of its own, so that the actor handles other messages meanwhile.

        Args:
            caller: the call. If it is abandoned, the task is cancelled.
            function: its result is the reply, and an exception that leaves it is raised in the caller.
            arguments: the arguments of `function`.

        Returns:
            `NO_REPLY`, for `handle_call` to return.

        Raises:
            TypeError: the actor has no tasks.
        """
        if not self.has_tasks:
            raise TypeError(f"{type(self).__name__}.answer starts a task: set `has_tasks = True`")
        self.tasks.start_soon(self._me.answer_in_scope, caller, self._me.open_scope(caller), function, arguments)
        return NO_REPLY

    def send_after(self, seconds: float, message: Any) -> Alarm:
        """Deliver `message` to `handle_info` after `seconds`.

        It is not delivered if the alarm is cancelled, or this incarnation ends, before that.
        """
        check_seconds("send_after", seconds)
        return _ScheduledMessage(self._me, seconds, message, every=False)

    def send_every(self, seconds: float, message: Any) -> Alarm:
        """Deliver `message` to `handle_info` every `seconds`; missed ticks are not made up for."""
        check_seconds("send_every", seconds)
        if not seconds > 0:
            raise ValueError(f"a period is more than 0 seconds, got {seconds!r}")
        return _ScheduledMessage(self._me, seconds, message, every=True)

    def monitor(self, ref: ActorRef, *, final: bool = False) -> None:
        """Deliver a `Down` to `handle_info` when `ref` ends, at once if it has ended; one `Down` for each call.

        Args:
            ref: the actor to monitor.
            final: deliver it when `ref` will not be restarted, instead of at the end of its incarnation as OTP does.
        """
        other, me = identify(ref), self._me
        if other.outcome is not None or (other.incarnation is None and not final):
            me.deliver_down(ref, other.reason or SHUTDOWN, other.outcome is not None)
        else:
            other.watch(me, partial(me.deliver_down, ref), final=final)
            me.monitored[ref] = None

    def demonitor(self, ref: ActorRef) -> None:
        """Stop monitoring `ref`: no more `Down` for it."""
        identify(ref).unwatch(self._me)
        self._me.forget_monitor(ref)

    def link(self, ref: ActorRef) -> None:
        """Link to the current incarnation of `ref`: if one ends, except with `Normal`, the other ends with its reason.

        With `trap_exit`, an `Exit` is delivered instead, also for `Normal`. An actor that is not running counts as
        ended.
        """
        other = identify(ref).incarnation
        if other is None:
            self._me.signal(ref, Crash(NotRunning(ref, ref.last_exit)))
        elif other is not self._me:
            self._me.links[other] = other.links[self._me] = None

    def unlink(self, ref: ActorRef) -> None:
        """Remove the link to `ref`."""
        other = identify(ref).incarnation
        if other is not None:
            self._me.links.pop(other, None)
            other.links.pop(self._me, None)

    @property
    def system(self) -> ActorSystem:
        """The system that it runs in."""
        return self._me.system

    def whereis(self, name: Hashable) -> ActorRef | None:
        """Return the actor of this system with that name, or `None`."""
        return self._me.system.registry.whereis(name)

    @property
    def stop_reason(self) -> ExitReason | None:
        """The reason of a request to end, `None` without a request. For a `run` that is cancelled and needs the reason.

        `terminate` receives the reason anyway.
        """
        return self._me.stop_reason

    def stop(self, reason: ExitReason) -> NoReturn:
        """End this incarnation: raises `Stop(reason)`."""
        raise Stop(reason)

    async def serve(self) -> None:
        """Receive and handle messages until the actor is stopped, or a handler raises: the default `run`.

        It handles up to `BATCH` messages and then makes one checkpoint, so a full mailbox starves no other task.
        """
        me = self._me
        box, wait = me.identity.box, me.system.loop.wait
        left = BATCH
        while me.stop_reason is None:  # waiting messages are for the next incarnation: a handler would be cancelled now
            if box.urgent:
                await self.handle_info(box.urgent.popleft()[1])
            elif box.items:
                item = box.items.popleft()
                if item.__class__ is not tuple:
                    await me.handle_call(item)
                elif item[0] == CAST:
                    await self.handle_cast(item[1])
                else:
                    await self.handle_info(item[1])
            else:
                box.admit()
                await wait(box)
                left = BATCH
                continue
            left -= 1
            if not left:
                box.admit()
                await anyio.lowlevel.checkpoint()
                left = BATCH


def _take(me: Incarnation, match: Callable[[Any], bool] | None) -> Any:
    """Take the next message that `match` accepts out of the mailbox; return `_NO_MESSAGE` without one."""
    if me.is_over:
        raise NotRunning(me.ref, me.reason)  # by now the mailbox belongs to the next incarnation
    box = me.identity.box
    for lane in (box.urgent, box.items):
        for at, item in enumerate(lane or ()):
            caller = item if isinstance(item, Caller) else None
            message = item[1] if caller is None else caller
            if match is None or match(message):
                assert lane is not None
                del lane[at]
                box.admit()
                if caller is not None:
                    me.take_call(caller)
                return message
    return _NO_MESSAGE


class _ScheduledMessage:
    """A message of an actor to itself, after `seconds`, again and again if `every`. It ends with the incarnation."""

    __slots__ = ("_every", "_me", "_message", "_seconds", "_timer")

    def __init__(self, me: Incarnation, seconds: float, message: Any, *, every: bool) -> None:
        self._me = me
        self._seconds = seconds
        self._message = message
        self._every = every
        self._timer = me.system.timers.call_after(seconds, self._fire)
        me.scheduled[self] = None

    def _fire(self) -> None:
        if self._me.is_over:  # a zombie's: the mailbox belongs to the next incarnation
            return
        self._me.identity.box.put_urgent((INFO, self._message))
        if self._every:
            self._timer = self._me.system.timers.call_after(self._seconds, self._fire)
        else:
            self.cancel()

    def cancel(self) -> None:
        """Cancel it. A message that is already in the mailbox stays there."""
        self._me.scheduled.pop(self, None)
        self._timer.cancel()


#: The methods that an actor may override.
_CALLBACKS = ("init", "handle_call", "handle_cast", "handle_info", "terminate", "run", "snapshot", "restore")


def _check_callbacks(name: str, members: Mapping[str, Any]) -> None:
    """Refuse a class of actors with a callback that is `def` and should be `async def`, or the other way round.

    The actor would crash with its first message, or lose its state. A decorated function is not examined, because
    its result may be awaitable.

    Raises:
        TypeError: naming the class and the callback.
    """
    for callback in _CALLBACKS:
        function, is_awaited = members.get(callback), inspect.iscoroutinefunction(getattr(Actor, callback))
        if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
            continue
        if inspect.iscoroutinefunction(function) is not is_awaited:
            expected = "async def" if is_awaited else "def"
            raise TypeError(f"{name}.{callback}: expected `{expected} {callback}`, got {_describe_function(function)}")


def _describe_function(function: Any) -> str:
    if inspect.isasyncgenfunction(function):
        return "an async generator: remove its `yield`"
    return "`async def`" if inspect.iscoroutinefunction(function) else "`def`"


# --- tasks ------------------------------------------------------------------------------------------------------------


class Task(Actor):
    """An actor that runs `function(*arguments)` and ends; the result is the value of its outcome."""

    def __init__(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments

    async def run(self) -> Any:
        """Run the function. Raises TypeError if it is not an async one."""
        awaitable: object = self._function(*self._arguments)
        if not isinstance(awaitable, Awaitable):
            raise TypeError(
                f"task {self.ref.id}: expected an async function, which returns an awaitable, got {self._function!r}, "
                f"which returned a {type(awaitable).__name__}"
            )
        return await awaitable


def task(
    id: Hashable,
    function: Callable[..., Awaitable[Any]],
    *arguments: Any,
    restart: Restart = "temporary",
    shutdown: ShutdownTime | None = None,
) -> ChildSpec[Task]:
    """Return the spec of a task: Elixir's `Task`, a child whose outcome is a value.

    Like any child it has a supervisor, a ref and a path in the tree; its crash is reported there, and is a value for
    the task that waits, as with `Task.Supervisor.async_nolink`.

    Args:
        id: its id.
        function: called with `arguments` in each incarnation, and awaited.
        arguments: the arguments of `function`.
        restart: `temporary`: run once; `transient`: until it succeeds.
        shutdown: see `ChildSpec`.

    Raises:
        SpecError: a field is wrong; `what` names it.
    """
    if not callable(function):
        raise SpecError("function", f"expected an async function, got {function!r}")
    return ChildSpec(id, lambda: Task(function, *arguments), restart=restart, shutdown=shutdown)
