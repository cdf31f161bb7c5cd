"""Actors: what a user subclasses, and the loop that hands it its messages.

An `Actor` is one incarnation: its state begins with `init` and ends with the incarnation. Nobody but its task touches
that state; others hold its identity, an `ActorRef` (`ref.py`).

What this is not: starting, stopping and the capture of what leaves an actor is `child.py`; who restarts it is a
supervisor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import anyio

from supervisors.caller import NO_REPLY, Caller
from supervisors.errors import NotRunning
from supervisors.reasons import SHUTDOWN, Crash, ExitReason, Stop
from supervisors.ref import CAST, INFO, ActorRef, Down
from supervisors.sending import Sending

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from supervisors.backend import Timer
    from supervisors.child import Incarnation

#: Messages handled in a row before others get their turn. A checkpoint costs as much as a short handler.
BATCH = 32


class Actor:
    """One incarnation of an actor. Subclass it and override what you need.

    Attributes:
        ref: its identity; there before `init`.
        has_tasks: gives it a task group of its own as `tasks`, at some cost. The group ends with the incarnation;
            what fails in it is a crash of the actor.
        trap_exit: a linked actor that ends brings an `Exit` to `handle_info`, instead of ending this one too.
        mailbox_limit: messages that may wait for it; who sends one more gets `MailboxFull`. `None` for no limit.
            System messages (`Down`, `Exit`) always get in.
        hibernate_after: seconds without a message after which it gives its task back, as OTP's option of that name
            gives the stack back; the next message brings it a new one. `None` for never. Its state stays as it is, but
            for context variables that its handlers have set. Nothing comes of it in an actor with `has_tasks`, or with
            a `run` of its own, which returns `HIBERNATE` where it can do without a task.
    """

    has_tasks: ClassVar[bool] = False
    mailbox_limit: ClassVar[int | None] = None
    trap_exit: ClassVar[bool] = False
    hibernate_after: float | None = None

    ref: ActorRef
    tasks: TaskGroup
    _me: Incarnation

    #: What a reference to such an actor is.
    ref_class: ClassVar[type[ActorRef]] = ActorRef
    is_supervisor: ClassVar[bool] = False
    #: Whether it lives in `serve`. Seen once a class, since each start and stop asks.
    has_default_run: ClassVar[bool] = True
    has_terminate: ClassVar[bool] = False
    starts_at_once: ClassVar[bool] = True
    has_snapshot: ClassVar[bool] = False
    #: Whether it can do without a task while it has nothing to do.
    rests: ClassVar[bool] = True
    #: Whether nothing is to be done at its end, so that it needs no task for that either.
    ends_at_rest: ClassVar[bool] = True

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.has_default_run = cls.run is Actor.run
        cls.has_terminate = cls.terminate is not Actor.terminate
        cls.starts_at_once = cls.init is Actor.init and cls.restore is Actor.restore and not cls.has_tasks
        cls.rests = (cls.has_default_run or cls.is_supervisor) and not cls.has_tasks
        cls.has_snapshot = cls.snapshot is not Actor.snapshot
        cls.ends_at_rest = cls.has_default_run and not (cls.has_terminate or cls.has_snapshot)

    async def init(self) -> Any:
        """Begin. The supervisor goes on only when this returns (S-01).

        Raising makes the start fail; raising `Ignore` says that the actor is not needed now (S-06). What it returns
        is handed to who asks for it with `start_child_info` (S-08).
        """

    async def handle_call(self, message: Any, caller: Caller) -> Any:
        """Answer a call: with what this returns, or with `caller.reply` after returning `NO_REPLY`."""
        raise NotImplementedError(f"{type(self).__name__} was called with {message!r} and has no handle_call")

    async def handle_cast(self, message: Any) -> None:
        """Do what a `cast` says."""
        raise NotImplementedError(f"{type(self).__name__} was cast {message!r} and has no handle_cast")

    async def handle_info(self, message: Any) -> None:
        """Note a fact: `Down`, `Exit`, a timer, what `ref.send` brings. Ignored unless overridden."""

    async def terminate(self, reason: ExitReason) -> None:
        """Clean up. Called after `init` has succeeded, whatever ends the incarnation but a kill.

        Shielded from cancellation, and bounded by the child's `shutdown` (5 s for one that is to be killed): beyond
        that it is cancelled.
        """

    def snapshot(self) -> Any:
        """What the next incarnation shall have of this one's state; `None` for nothing.

        Called when an incarnation ended, unless it was killed. Give only what cannot be what it crashed of.
        """
        return None

    def restore(self, state: Any) -> None:
        """Take what the last incarnation's `snapshot` left. Called before `init`, and only if there is something."""

    async def run(self) -> Any:
        """Live. The default handles messages until it is stopped.

        Override it for an actor with a loop of its own (with `receive`) or for a one-off task: what it returns is the
        outcome. It may return `HIBERNATE`: then it is called again when there is mail, and needs no task until then.
        """
        await serve(self._me)

    # --- for actors with a loop of their own -----------------------------------------------------------------------

    async def receive(self, match: Callable[[Any], bool] | None = None) -> Any:
        """The next message: a `Caller` for a call, the bare message for the rest. System messages come first.

        Args:
            match: take the first message that it accepts, and leave the others where they are (selective receive).

        Raises:
            NotRunning: this incarnation was given up as a zombie.
        """
        me, box = self._me, self.ref._box  # noqa: SLF001 - the mailbox is this actor's
        while True:
            try:
                return self.receive_nowait(match)
            except anyio.WouldBlock:
                pass
            me.receives = True
            try:
                await me.system.backend.wait(box)
            finally:
                me.receives = False
            if me.stop_reason is not None and me.scope is not None:
                me.scope.cancel()
                await me.system.backend.checkpoint()

    def receive_nowait(self, match: Callable[[Any], bool] | None = None) -> Any:
        """Like `receive`, but without waiting.

        Raises:
            anyio.WouldBlock: if there is no such message.
            NotRunning: this incarnation was given up as a zombie.
        """
        if self._me.is_over:
            raise NotRunning(self.ref, self._me.reason)  # the mailbox is the next one's by now
        box = self.ref._box  # noqa: SLF001
        for lane in (box.urgent, box.items):
            for at, item in enumerate(lane or ()):
                caller = item if isinstance(item, Caller) else None
                message = item[1] if caller is None else caller
                if match is None or match(message):
                    assert lane is not None
                    del lane[at]
                    if caller is not None:
                        self._me.owe(caller)
                    return message
        raise anyio.WouldBlock

    def stash(self, message: Any) -> None:
        """Put a message aside that cannot be handled yet: a cast's, or a call's `Caller` (and return `NO_REPLY`).

        It is kept across a restart, which brings it back to the mailbox.
        """
        me = self._me
        if me.stashed is None:
            me.stashed = []
        if isinstance(message, Caller):
            me.owe_no_more(message)  # it is in the mailbox again, as it were
            me.stashed.append(message)
        else:
            me.stashed.append((CAST, message))

    def unstash(self) -> None:
        """Put all that was put aside back to the front of the mailbox, in its order."""
        self._me.unstash()

    # --- time
    # ----------------------------------------------------------------------------------------------------------

    def send_after(self, seconds: float, message: Any) -> Timer:
        """Get `message` in `handle_info` after `seconds`.

        Not if the timer is cancelled before, or this incarnation ends.
        """
        return Sending(self._me, seconds, message, every=False)

    def send_every(self, seconds: float, message: Any) -> Timer:
        """Get `message` in `handle_info` each `seconds`; ticks that were not handled in time are not made up for."""
        if not seconds > 0:
            raise ValueError(f"a period is more than 0 seconds, got {seconds!r}")
        return Sending(self._me, seconds, message, every=True)

    # --- watching others
    # -----------------------------------------------------------------------------------------------

    def monitor(self, ref: ActorRef, *, final: bool = False) -> None:
        """Get a `Down` in `handle_info` when `ref` ends; at once if it has. Once for each call of this.

        Args:
            ref: who.
            final: not at the end of its incarnation, as OTP does, but when it will not be restarted.
        """
        ended = ref._outcome is not None  # noqa: SLF001
        if ended or (ref._incarnation is None and not final):  # noqa: SLF001
            self._down(Down(ref, ref._reason or SHUTDOWN, ended))  # noqa: SLF001
            return
        me = self._me
        if me.tell is None:
            me.tell = self._down
        ref._watch(me, me.tell, final=final)  # noqa: SLF001
        me.watching(ref)

    def demonitor(self, ref: ActorRef) -> None:
        """No `Down` for `ref` any more."""
        ref._unwatch(self._me)  # noqa: SLF001
        self._me.watches_no_more(ref)

    def _down(self, down: Down) -> None:
        self._me.watches_no_more(down.ref)
        self.ref._box.put_urgent((INFO, down))  # noqa: SLF001

    def link(self, ref: ActorRef) -> None:
        """Share the fate of `ref`'s present incarnation: what ends one, `Normal` aside, ends the other with its
        reason.

        With `trap_exit`, an `Exit` comes instead, also for `Normal`. If it does not run, that is an end already.
        """
        me, other = self._me, ref._incarnation  # noqa: SLF001
        if other is None:
            me.signal(ref, Crash(NotRunning(ref, ref.last_exit)))
        elif other is not me:
            for one, partner in ((me, other), (other, me)):
                if one.links is None:
                    one.links = set()
                one.links.add(partner)

    def unlink(self, ref: ActorRef) -> None:
        """Share it no more."""
        me, other = self._me, ref._incarnation  # noqa: SLF001
        if other is not None and me.links is not None and other.links is not None:
            me.links.discard(other)
            other.links.discard(me)

    @property
    def stop_reason(self) -> ExitReason | None:
        """Why it has been asked to end; `None` while it has not been. For a `run` that is cancelled and wants to know.

        `terminate` is told.
        """
        return self._me.stop_reason

    async def let_go(self) -> None:
        """A supervisor whose `init` failed ends the children that it has all the same. Others have none."""

    def stop(self, reason: ExitReason) -> NoReturn:
        """End this incarnation: raises `Stop(reason)`."""
        raise Stop(reason)


async def serve(me: Incarnation) -> None:  # noqa: C901, PLR0912 - inlined for speed
    """The receive loop of an actor that overrides no `run`: until it is stopped, or rests, or a handler raises.

    It drains up to `BATCH` messages and then makes one checkpoint, so a full mailbox starves nobody.
    """
    actor = me.actor
    box = actor.ref._box  # noqa: SLF001 - the mailbox is this actor's
    wait, checkpoint = me.system.backend.wait, me.system.backend.checkpoint
    hibernate_after = actor.hibernate_after if actor.rests else None
    handle_call, handle_cast, handle_info = actor.handle_call, actor.handle_cast, actor.handle_info
    left = BATCH
    while True:
        if me.stop_reason is not None:  # what waits is the next incarnation's: taken now, its handler would be cut off
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
            else:  # also if nobody waits any more, as in OTP: the call may be a command that has to be carried out
                me.current = item
                reply = await handle_call(item.message, item)
                me.current = None
                if reply is not NO_REPLY:
                    item.reply(reply)
                elif not (item.answered or item.abandoned or me.is_stashed(item)):
                    me.owe(item)
        else:
            if box.producers:
                box.admit()
            if hibernate_after is not None and me.idles(hibernate_after):
                me.rest()
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
