"""Actors: the class that users subclass, and the loop that passes it its messages.

An `Actor` is one incarnation: its state begins with `init` and ends with the incarnation. Only its task touches that
state; others hold its identity, an `ActorRef` (`ref.py`).

`child.py` starts and stops actors and catches their exceptions; supervisors restart them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import anyio

from supervisors.caller import NO_REPLY, Caller
from supervisors.checks import check_callbacks, check_seconds
from supervisors.errors import NotRunning
from supervisors.reasons import SHUTDOWN, Crash, ExitReason, Stop
from supervisors.ref import CAST, INFO, ActorRef, Down
from supervisors.sending import Sending

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from supervisors.backend import Timer
    from supervisors.child import Incarnation

#: What `_take` returns without a message.
_NO_MESSAGE = object()

#: Messages handled in a row before a checkpoint, which costs as much as a short handler.
BATCH = 32


class Actor:
    """One incarnation of an actor. Subclass it and override what you need.

    Attributes:
        ref: its identity; set before `init`.
        has_tasks: gives it a task group of its own as `tasks`, at some cost. The group ends with the incarnation; an
            exception in the group crashes the actor.
        trap_exit: when a linked actor ends, deliver an `Exit` to `handle_info` instead of ending this actor too.
        mailbox_limit: messages that may wait for it, 1 or more; sending one more raises `MailboxFull`. `None` for no
            limit. System messages (`Down`, `Exit`) are always accepted.
        hibernate_after: seconds without a message after which its task ends, as OTP's option of that name frees the
            stack; the next message starts a new task. `None` for never. Its state is kept, except context variables
            that its handlers have set. It has no effect on an actor with `has_tasks`, or with its own `run`, which
            returns `HIBERNATE` when it needs no task.
    """

    has_tasks: ClassVar[bool] = False
    mailbox_limit: ClassVar[int | None] = None
    trap_exit: ClassVar[bool] = False
    hibernate_after: float | None = None

    ref: ActorRef
    tasks: TaskGroup
    _me: Incarnation

    #: The class of references to such an actor.
    ref_class: ClassVar[type[ActorRef]] = ActorRef
    is_supervisor: ClassVar[bool] = False
    #: Whether it uses `serve`. Computed once per class, since each start and stop needs it.
    has_default_run: ClassVar[bool] = True
    #: Whether `terminate` has anything to do. An actor whose `run` has cleaned up sets it to False.
    has_terminate: bool = False
    starts_at_once: ClassVar[bool] = True
    has_snapshot: ClassVar[bool] = False
    #: Whether it needs no task while it has nothing to do.
    rests: ClassVar[bool] = True
    #: Whether it has no cleanup, so that it needs no task to end.
    ends_at_rest: ClassVar[bool] = True

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.mailbox_limit is not None and cls.mailbox_limit < 1:  # no message would ever reach it
            raise ValueError(f"{cls.__name__}.mailbox_limit: expected at least 1, or None, got {cls.mailbox_limit!r}")
        check_callbacks(cls.__name__, vars(cls))
        cls.has_default_run = cls.run is Actor.run
        cls.has_terminate = cls.terminate is not Actor.terminate
        cls.starts_at_once = cls.init is Actor.init and cls.restore is Actor.restore and not cls.has_tasks
        cls.rests = (cls.has_default_run or cls.is_supervisor) and not cls.has_tasks
        cls.has_snapshot = cls.snapshot is not Actor.snapshot
        cls.ends_at_rest = cls.has_default_run and not (cls.has_terminate or cls.has_snapshot)

    async def init(self) -> Any:
        """Initialise. The supervisor continues only when this returns (S-01).

        Raising makes the start fail; raising `Ignore` says that the actor is not needed now (S-06). `start_child_info`
        returns its result to the caller (S-08).
        """

    async def handle_call(self, message: Any, caller: Caller) -> Any:
        """Answer a call: return the reply, or return `NO_REPLY` and call `caller.reply` later."""
        raise NotImplementedError(f"{type(self).__name__} was called with {message!r} and has no handle_call")

    async def handle_cast(self, message: Any) -> None:
        """Handle the message of a `cast`."""
        raise NotImplementedError(f"{type(self).__name__} was cast {message!r} and has no handle_cast")

    async def handle_info(self, message: Any) -> None:
        """Handle a fact: `Down`, `Exit`, a timer, a message of `ref.send`. Ignored unless overridden."""

    async def terminate(self, reason: ExitReason) -> None:
        """Clean up. Called if `init` has succeeded, however the incarnation ends except by a kill.

        Shielded from cancellation for the child's `shutdown` time (5 s for `"kill"`), then cancelled.
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
        outcome. If it returns `HIBERNATE`, it is called again when there is mail, and needs no task until then.
        """
        await serve(self._me)

    # --- for actors with a loop of their own -----------------------------------------------------------------------

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
        me, box = self._me, self.ref._box  # noqa: SLF001 - the mailbox is this actor's
        backend, timer, deadline = me.system.backend, None, None
        if timeout is not None:
            check_seconds("timeout", timeout)
        while (message := _take(me, match)) is _NO_MESSAGE:
            if timeout is not None:
                now = backend.now()
                if deadline is None:
                    deadline = now + timeout
                elif now >= deadline:
                    raise TimeoutError(f"no message came within {timeout:g} s")
                timer = backend.call_at(deadline, box.notify)
            me.receives = True
            try:
                await backend.wait(box)
            finally:
                me.receives = False
                if timer is not None:
                    timer.cancel()
            if me.stop_reason is not None and me.scope is not None:
                me.scope.cancel()
                await backend.checkpoint()
        return message

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
        me = self._me
        if me.stashed is None:
            me.stashed = []
        if isinstance(message, Caller):
            me.forget_call(message)  # it counts as being in the mailbox again
            me.stashed.append(message)
        else:
            me.stashed.append((CAST, message))

    def unstash(self) -> None:
        """Put all stashed messages back at the front of the mailbox, in their order."""
        self._me.unstash()

    # --- time
    # ----------------------------------------------------------------------------------------------------------

    def send_after(self, seconds: float, message: Any) -> Timer:
        """Deliver `message` to `handle_info` after `seconds`.

        It is not delivered if the timer is cancelled, or this incarnation ends, before that.
        """
        check_seconds("send_after", seconds)
        return Sending(self._me, seconds, message, every=False)

    def send_every(self, seconds: float, message: Any) -> Timer:
        """Deliver `message` to `handle_info` every `seconds`; missed ticks are not made up for."""
        check_seconds("send_every", seconds)
        if not seconds > 0:
            raise ValueError(f"a period is more than 0 seconds, got {seconds!r}")
        return Sending(self._me, seconds, message, every=True)

    # --- watching others
    # -----------------------------------------------------------------------------------------------

    def monitor(self, ref: ActorRef, *, final: bool = False) -> None:
        """Deliver a `Down` to `handle_info` when `ref` ends, at once if it has ended; one `Down` for each call.

        Args:
            ref: the actor to monitor.
            final: deliver it when `ref` will not be restarted, instead of at the end of its incarnation as OTP does.
        """
        ended = ref._outcome is not None  # noqa: SLF001
        if ended or (ref._incarnation is None and not final):  # noqa: SLF001
            self._deliver_down(Down(ref, ref._reason or SHUTDOWN, ended))  # noqa: SLF001
            return
        me = self._me
        if me.on_down is None:
            me.on_down = self._deliver_down
        ref._watch(me, me.on_down, final=final)  # noqa: SLF001
        me.remember_monitor(ref)

    def demonitor(self, ref: ActorRef) -> None:
        """Stop monitoring `ref`: no more `Down` for it."""
        ref._unwatch(self._me)  # noqa: SLF001
        self._me.forget_monitor(ref)

    def _deliver_down(self, down: Down) -> None:
        self._me.forget_monitor(down.ref)
        self.ref._box.put_urgent((INFO, down))  # noqa: SLF001

    def link(self, ref: ActorRef) -> None:
        """Link to the current incarnation of `ref`: if one ends, except with `Normal`, the other ends with its reason.

        With `trap_exit`, an `Exit` is delivered instead, also for `Normal`. An actor that is not running counts as
        ended.
        """
        me, other = self._me, ref._incarnation  # noqa: SLF001
        if other is None:
            me.signal(ref, Crash(NotRunning(ref, ref.last_exit)))
        elif other is not me:
            for one, partner in ((me, other), (other, me)):
                if one.links is None:
                    one.links = {}
                one.links[partner] = None

    def unlink(self, ref: ActorRef) -> None:
        """Remove the link to `ref`."""
        me, other = self._me, ref._incarnation  # noqa: SLF001
        if other is not None and me.links is not None and other.links is not None:
            me.links.pop(other, None)
            other.links.pop(me, None)

    @property
    def stop_reason(self) -> ExitReason | None:
        """The reason of a request to end, `None` without a request. For a `run` that is cancelled and needs the reason.

        `terminate` receives the reason anyway.
        """
        return self._me.stop_reason

    async def let_go(self) -> None:
        """Stop the children of a supervisor whose `init` failed. Does nothing for other actors."""

    def stop(self, reason: ExitReason) -> NoReturn:
        """End this incarnation: raises `Stop(reason)`."""
        raise Stop(reason)


def _take(me: Incarnation, match: Callable[[Any], bool] | None) -> Any:
    """Take the next message that `match` accepts out of the mailbox; return `_NO_MESSAGE` without one."""
    if me.is_over:
        raise NotRunning(me.ref, me.reason)  # by now the mailbox belongs to the next incarnation
    box = me.ref._box  # noqa: SLF001
    for lane in (box.urgent, box.items):
        for at, item in enumerate(lane or ()):
            caller = item if isinstance(item, Caller) else None
            message = item[1] if caller is None else caller
            if match is None or match(message):
                assert lane is not None
                del lane[at]
                if caller is not None:
                    me.took_at = me.system.backend.now()
                    me.remember_call(caller)
                return message
    return _NO_MESSAGE


async def serve(me: Incarnation) -> None:  # noqa: C901, PLR0912 - inlined for speed
    """Receive and handle messages until the actor is stopped or rests, or a handler raises; the default `run`.

    It handles up to `BATCH` messages and then makes one checkpoint, so a full mailbox starves no other task.
    """
    actor = me.actor
    box = actor.ref._box  # noqa: SLF001 - the mailbox is this actor's
    wait, checkpoint, now = me.system.backend.wait, me.system.backend.checkpoint, me.system.backend.now
    hibernate_after = actor.hibernate_after if actor.rests else None
    handle_call, handle_cast, handle_info = actor.handle_call, actor.handle_cast, actor.handle_info
    left = BATCH
    while True:
        if (
            me.stop_reason is not None
        ):  # leave waiting messages to the next incarnation: a handler started now would be cancelled
            return
        if box.urgent:
            await handle_info(box.urgent.popleft()[1])
        elif box.items:
            item = box.items.popleft()
            if item.__class__ is tuple:
                if item[0] == CAST:
                    await handle_cast(item[1])
                else:
                    await handle_info(item[1])
            else:  # also if the caller has left, as in OTP, because the call may be a command that must be carried out
                me.current, me.took_at = item, now()
                reply = await handle_call(item.message, item)
                me.current = None
                if reply is not NO_REPLY:
                    item.reply(reply)
                elif not (item.answered or item.abandoned or me.is_stashed(item)):
                    me.remember_call(item)
        else:
            if box.producers:
                box.admit()
            if hibernate_after is not None and me.should_rest(hibernate_after):
                me.hibernate()
                return
            await wait(box)
            left = BATCH
            continue
        left -= 1
        if not left:
            if box.producers:
                box.admit()
            await checkpoint()
            left = BATCH
