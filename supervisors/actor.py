"""Actors and the references to them.

An `Actor` is one incarnation: its state begins with `init` and ends with the incarnation. An `ActorRef` is the
identity: it owns the mailbox, survives restarts, and is what others hold. Nobody but its task touches an actor's
state.

What this is not: starting, stopping and the capture of what leaves an actor is `child.py`; who restarts it is a
supervisor.

| ref is  | since                                   | cast              | call                            |
|---------|-----------------------------------------|-------------------|---------------------------------|
| new     | `ActorRef()`                            | kept              | `NotRunning`                    |
| open    | first start; stays so between restarts  | kept              | answered by this incarnation or the next |
| ended   | its supervisor will not restart it      | dead letter       | `NotRunning`                    |

An incarnation that ends answers the calls it has taken with `Died`; those still in the mailbox wait for the next one,
and get `NotRunning` if there will be none. The message that was being handled is not handled again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import anyio

from supervisors.caller import NO_REPLY, Caller
from supervisors.errors import Failed, MailboxFull, NotRunning
from supervisors.events import DeadLetter
from supervisors.mailbox import UNBOUNDED, Mailbox
from supervisors.reasons import SHUTDOWN, ExitReason, Normal, Stop

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from supervisors.caller import Promise
    from supervisors.child import Incarnation
    from supervisors.system import ActorSystem

#: The kinds of items in a mailbox that are no calls: `(kind, message)`.
CAST, INFO = 0, 1

#: Messages handled in a row before others get their turn. A checkpoint costs as much as a short handler.
BATCH = 32


@dataclass(frozen=True, slots=True)
class Down:
    """To the watcher: what it monitored ended. `final`: it will not be restarted."""

    ref: ActorRef
    reason: ExitReason
    final: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an actor ended for good, and what its last `run` returned."""

    reason: ExitReason
    value: Any = None

    def unwrap(self) -> Any:
        """The value of a normal end.

        Raises:
            Failed: with the crash's exception as its cause, if it ended otherwise.
        """
        if isinstance(self.reason, Normal):
            return self.value
        raise Failed(self.reason) from getattr(self.reason, "exception", None)


class ActorRef:
    """Who an actor is. Make one beforehand and put it into a `ChildSpec`, or take it from whoever started the actor.

    Not thread-safe: from another thread, go through `ActorSystem.portal`.
    """

    __slots__ = (
        "__weakref__",
        "_box",
        "_incarnation",
        "_open",
        "_outcome",
        "_promises",
        "_reason",
        "_system",
        "_watchers",
        "id",
        "parent",
    )

    def __init__(self, id: Any = None) -> None:
        self.id = id
        self.parent: ActorRef | None = None
        self._box = Mailbox()
        self._system: ActorSystem | None = None
        self._incarnation: Incarnation | None = None
        self._open = False
        self._reason: ExitReason | None = None
        self._outcome: Outcome | None = None
        self._promises: list[Promise] | None = None
        self._watchers: list[tuple[object, bool, Callable[[Down], object]]] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    @property
    def path(self) -> str:
        """Its place in the tree: the ids from the top down, with `/` between them."""
        ids: list[str] = []
        ref: ActorRef | None = self
        while ref is not None:
            ids.append("?" if ref.id is None else str(ref.id))
            ref = ref.parent
        return "/".join(reversed(ids))

    # --- messages --------------------------------------------------------------------------------------------------

    def cast(self, message: Any) -> None:
        """Send a message for `handle_cast` and do not wait. Mail to an actor that has ended becomes a dead letter.

        Raises:
            MailboxFull: if its mailbox is bounded and full.
        """
        box = self._box
        items = box.items
        if items is None:
            self._put_first((CAST, message))
            return
        if len(items) >= box.limit:
            raise MailboxFull(self, box.limit)
        items.append((CAST, message))
        waiter = box.waiter
        if waiter is not None:
            box.waiter = None
            box.wake(waiter)

    def send(self, message: Any) -> None:
        """Like `cast`, for `handle_info`: what is neither a request nor a command but a fact, such as a timer's."""
        box = self._box
        if box.items is None:
            self._put_first((INFO, message))
        elif len(box.items) >= box.limit:
            raise MailboxFull(self, box.limit)
        else:
            box.put((INFO, message))

    def call(self, message: Any, timeout: float | None = None) -> Coroutine[Any, Any, Any]:
        """Ask and wait for the reply.

        Args:
            message: for `handle_call`.
            timeout: seconds to wait, `None` for as long as it takes.

        Returns:
            what `handle_call` returned, or the callee gave to `caller.reply`.

        Raises:
            NotRunning: it was not started, or ended before it took the call.
            Died: it ended while it worked on the call.
            CallTimeout: no reply in time.
            SelfCall: an actor called itself.
            MailboxFull: its mailbox is bounded and full.
            Exception: what the callee gave to `caller.fail`.
        """
        if self._system is None:
            return self._not_started()
        return self._system.backend.ask(self, message, timeout)

    async def _not_started(self) -> NoReturn:
        raise NotRunning(self, None)

    def _put_first(self, item: tuple[int, Any]) -> None:
        if self._reason is not None and not self._open:
            self._dead_letter(item[1])
        else:
            self._box.put(item)

    def _dead_letter(self, message: Any) -> None:
        if self._system is not None:
            self._system.emit(DeadLetter(self._system.backend.now(), self, message))

    # --- life ------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether an incarnation is there and up: not before its `init` is done, not between restarts."""
        return self._incarnation is not None and self._incarnation.is_up

    @property
    def last_exit(self) -> ExitReason | None:
        """Why its last incarnation ended; `None` if none did."""
        return self._reason

    async def exited(self) -> ExitReason:
        """Wait until it has ended for good, restarts included. At once if it has.

        Returns:
            why its last incarnation ended.
        """
        return (await self.outcome()).reason

    async def outcome(self) -> Outcome:
        """Wait until it has ended for good, restarts included, for the reason and what its `run` returned."""
        if self._outcome is None:
            if self._system is None:
                raise NotRunning(self, None)
            promise = self._system.backend.promise()
            if self._promises is None:
                self._promises = []
            self._promises.append(promise)
            return await promise.wait()  # type: ignore[no-any-return]
        return self._outcome

    def exit(self, reason: ExitReason = SHUTDOWN) -> None:
        """Make its incarnation end, as `exit(Pid, Reason)` does.

        What its supervisor makes of that depends on the reason.
        """
        if self._incarnation is not None:
            self._incarnation.ask_to_stop(reason)

    def kill(self) -> None:
        """End its incarnation without asking: no `terminate`. A permanent or transient child is restarted."""
        if self._incarnation is not None:
            self._incarnation.kill()

    # --- for the rest of the package -------------------------------------------------------------------------------

    def _begin(self, system: ActorSystem, incarnation: Incarnation, limit: int | None) -> None:
        if self._system is not system:
            self._system = system
            self._box.wake = system.backend.wake
        self._box.limit = UNBOUNDED if limit is None else limit
        self._incarnation = incarnation
        self._open = True
        self._outcome = None

    def _incarnation_ended(self, reason: ExitReason) -> None:
        """The task is through; whether another comes is not known yet."""
        self._incarnation = None
        self._box.waiter = None
        self._reason = reason
        self._tell_watchers(reason, final=False)

    def _retire(self, value: Any = None) -> None:
        """No incarnation will come: answer who waits, and let the mail go."""
        if not self._open:
            return
        assert self._reason is not None
        self._open = False
        self._outcome = Outcome(self._reason, value)
        for item in self._box.drain():
            if isinstance(item, Caller):
                item.fail(NotRunning(self, self._reason))
            else:
                self._dead_letter(item[1])
        promises, self._promises = self._promises, None
        for promise in promises or ():
            promise.reply(self._outcome)
        self._tell_watchers(self._reason, final=True)

    def _tell_watchers(self, reason: ExitReason, *, final: bool) -> None:
        if self._watchers is None:
            return
        told = [watch for watch in self._watchers if watch[1] is final]
        self._watchers = [watch for watch in self._watchers if watch[1] is not final] or None
        for _, _, tell in told:
            tell(Down(self, reason, final))

    def _watch(self, who: object, tell: Callable[[Down], object], *, final: bool) -> None:
        if self._watchers is None:
            self._watchers = []
        self._watchers.append((who, final, tell))

    def _unwatch(self, who: object) -> None:
        if self._watchers is not None:
            self._watchers = [watch for watch in self._watchers if watch[0] is not who] or None


class Actor:
    """One incarnation of an actor. Subclass it and override what you need.

    Attributes:
        ref: its identity; there before `init`.
        has_tasks: gives it a task group of its own as `tasks`, at some cost. The group ends with the incarnation;
            what fails in it is a crash of the actor.
        mailbox_limit: messages that may wait for it; who sends one more gets `MailboxFull`. `None` for no limit.
            System messages (`Down`, `Exit`) always get in.
    """

    has_tasks: ClassVar[bool] = False
    mailbox_limit: ClassVar[int | None] = None

    ref: ActorRef
    tasks: TaskGroup
    _me: Incarnation

    #: What a reference to such an actor is.
    ref_class: ClassVar[type[ActorRef]] = ActorRef
    is_supervisor: ClassVar[bool] = False
    #: Whether it lives in `serve`. Seen once a class, since each start and stop asks.
    has_default_run: ClassVar[bool] = True
    stops_when_idle: ClassVar[bool] = True

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.has_default_run = cls.run is Actor.run
        cls.stops_when_idle = cls.has_default_run

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

        Shielded from cancellation, and bounded by the grace that the child's `shutdown` gives when its supervisor
        stops it.
        """

    async def run(self) -> Any:
        """Live. The default handles messages until it is stopped.

        Override it for an actor with a loop of its own (with `receive`) or for a one-off task: what it returns is the
        outcome.
        """
        await serve(self._me)

    # --- for actors with a loop of their own -----------------------------------------------------------------------

    async def receive(self, match: Callable[[Any], bool] | None = None) -> Any:
        """The next message: a `Caller` for a call, the bare message for the rest. System messages come first.

        Args:
            match: take the first message that it accepts, and leave the others where they are (selective receive).
        """
        me, box = self._me, self.ref._box  # noqa: SLF001 - the mailbox is this actor's
        while True:
            try:
                return self.receive_nowait(match)
            except anyio.WouldBlock:
                pass
            await me.system.backend.wait(box)
            if me.stop_reason is not None:
                me.scope.cancel()
                await me.system.backend.checkpoint()

    def receive_nowait(self, match: Callable[[Any], bool] | None = None) -> Any:
        """Like `receive`, but without waiting.

        Raises:
            anyio.WouldBlock: if there is no such message.
        """
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

    # --- watching others -------------------------------------------------------------------------------------------

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
        ref._watch(self._me, self._down, final=final)  # noqa: SLF001
        self._me.watching(ref)

    def demonitor(self, ref: ActorRef) -> None:
        """No `Down` for `ref` any more."""
        ref._unwatch(self._me)  # noqa: SLF001

    def _down(self, down: Down) -> None:
        self.ref._box.put_urgent((INFO, down))  # noqa: SLF001

    def stop(self, reason: ExitReason) -> NoReturn:
        """End this incarnation: raises `Stop(reason)`."""
        raise Stop(reason)


async def serve(me: Incarnation) -> None:  # noqa: PLR0912 - inlined for speed
    """The receive loop of an actor that overrides no `run`: until it is stopped, or a handler raises.

    It drains up to `BATCH` messages and then makes one checkpoint, so a full mailbox starves nobody.
    """
    actor = me.actor
    box = actor.ref._box  # noqa: SLF001 - the mailbox is this actor's
    wait, checkpoint = me.system.backend.wait, me.system.backend.checkpoint
    handle_call, handle_cast, handle_info = actor.handle_call, actor.handle_cast, actor.handle_info
    left = BATCH
    while True:
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
                elif not (item.answered or item.abandoned):
                    me.owe(item)
        else:
            if me.stop_reason is None:
                await wait(box)
            if me.stop_reason is not None:
                return
            left = BATCH
            continue
        left -= 1
        if not left:
            await checkpoint()
            left = BATCH
