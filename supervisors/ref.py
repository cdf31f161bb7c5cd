"""References to actors, and the values that report an actor's end.

An `ActorRef` is an identity: it owns the mailbox, survives restarts, and is what other code holds. `actor.py` has the
actor behind it, `child.py` one incarnation of that actor.

| ref is  | since                                   | cast              | call                            |
|---------|-----------------------------------------|-------------------|---------------------------------|
| new     | `ActorRef()`                            | kept              | `NotRunning`                    |
| open    | first start; stays so between restarts  | kept              | answered by this incarnation or the next |
| ended   | its supervisor will not restart it      | dead letter       | `NotRunning`                    |

An incarnation that ends answers the calls it has taken with `Died`; calls still in the mailbox wait for the next
incarnation, and get `NotRunning` if there will be none. The message that was being handled is not handled again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisors.caller import Caller
from supervisors.checks import check_seconds
from supervisors.errors import Failed, MailboxFull, NotRunning, SelfCall
from supervisors.events import DeadLetter
from supervisors.mailbox import UNBOUNDED, Mailbox
from supervisors.reasons import SHUTDOWN, ExitReason, Normal, check_reason

if TYPE_CHECKING:
    from supervisors.child import Incarnation
    from supervisors.system import ActorSystem

#: The kinds of mailbox items other than calls: `(kind, message)`.
CAST, INFO = 0, 1


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
    """The final exit reason of an actor, and what its last `run` returned."""

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


class ActorRef:
    """The identity of an actor. Make one beforehand and put it into a `ChildSpec`, or use the one that a start returns.

    Not thread-safe: from another thread, use `ActorSystem.portal`.
    """

    __slots__ = (
        "__weakref__",
        "_box",
        "_incarnation",
        "_outcome",
        "_reason",
        "_state",
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
        self._reason: ExitReason | None = None
        self._outcome: Outcome | None = None
        self._state: Any = None  # the result of the last incarnation's `snapshot`, for the next one
        self._watchers: list[tuple[object, bool, Callable[[Down], object]]] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    @property
    def path(self) -> str:
        """Its path in the tree: the ids from the top down, with `/` between them."""
        ids: list[str] = []
        ref: ActorRef | None = self
        while ref is not None:
            ids.append("?" if ref.id is None else str(ref.id))
            ref = ref.parent
        return "/".join(reversed(ids))

    # --- messages --------------------------------------------------------------------------------------------------

    def cast(self, message: Any) -> None:
        """Send a message for `handle_cast` without waiting. Messages to an actor that has ended become dead letters.

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
        """Like `cast`, but for `handle_info`: for facts, such as a timer that fired, instead of commands."""
        box = self._box
        if box.items is None:
            self._put_first((INFO, message))
        elif len(box.items) >= box.limit:
            raise MailboxFull(self, box.limit)
        else:
            box.put((INFO, message))

    async def offer(self, message: Any) -> None:
        """Like `cast`, but wait while the mailbox is full. For producers that are not actors: two actors that wait for
        room in each other's mailbox wait for ever.

        Raises:
            NotRunning: it was not started, or has ended and will not be restarted.
        """
        while True:
            if self._system is None or self._outcome is not None:
                raise NotRunning(self, self._reason)
            if len(self._box.items or ()) < self._box.limit:
                self.cast(message)
                return
            promise = self._system.backend.promise()
            if self._box.producers is None:
                self._box.producers = []
            self._box.producers.append(promise)
            await promise.value

    async def call(self, message: Any, timeout: float | None = None) -> Any:
        """Send a message for `handle_call` and wait for the reply.

        Args:
            message: the message for `handle_call`.
            timeout: seconds to wait; `None` for no limit.

        Returns:
            what `handle_call` returned, or what the callee passed to `caller.reply`.

        Raises:
            NotRunning: it was not started, or ended before it handled the call.
            Died: it ended while it handled the call.
            CallTimeout: no reply in time.
            SelfCall: an actor called itself.
            MailboxFull: its mailbox is bounded and full.
            Exception: what the callee passed to `caller.fail`.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        system, box = self._system, self._box
        if system is None or self._outcome is not None:
            raise NotRunning(self, self._reason)
        backend, items = system.backend, box.items
        if box.waiter is None and self._incarnation is not None and self._incarnation.task is backend.current_task():
            raise SelfCall(self)  # an actor that waits for mail is not the running task
        if items is not None and len(items) >= box.limit:
            raise MailboxFull(self, box.limit)
        caller = backend.promise(message)
        if items is None:
            box.put(caller)
        else:
            items.append(caller)
            waiter = box.waiter
            if waiter is not None:
                box.waiter = None
                box.wake(waiter)
        timer = None
        if timeout is not None:
            timer = backend.call_at(backend.now() + timeout, caller._expire, self, timeout)  # noqa: SLF001
        try:
            return await caller.value
        except backend.cancelled:
            caller._abandon()  # noqa: SLF001
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _put_first(self, item: tuple[int, Any]) -> None:
        if self._outcome is not None:
            self._report_dead_letter(item[1])
        else:
            self._box.put(item)

    def _report_dead_letter(self, message: Any) -> None:
        if self._system is not None:
            self._system.emit(DeadLetter(self._system.backend.now(), self, message))

    # --- life ------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether an incarnation is up: False before its `init` is done and between restarts."""
        return self._incarnation is not None and self._incarnation.is_up

    @property
    def last_exit(self) -> ExitReason | None:
        """The reason why its last incarnation ended; `None` if no incarnation has ended."""
        return self._reason

    @property
    def mailbox_depth(self) -> int:
        """The number of messages in its mailbox."""
        return len(self._box)

    async def exited(self) -> ExitReason:
        """Wait until it has ended and will not be restarted; return at once if it has.

        Returns:
            the reason why its last incarnation ended.
        """
        return (await self.outcome()).reason

    async def outcome(self) -> Outcome:
        """Wait until it has ended and will not be restarted; return the reason and what its `run` returned."""
        if self._outcome is not None:
            return self._outcome
        if self._system is None:
            raise NotRunning(self, None)
        promise = self._system.backend.promise()
        self._watch(promise, lambda _: promise.reply(self._outcome), final=True)
        try:
            return await promise.value  # type: ignore[no-any-return]
        finally:
            self._unwatch(promise)

    def exit(self, reason: ExitReason = SHUTDOWN) -> None:
        """End its incarnation, as OTP's `exit(Pid, Reason)` does. The reason decides whether it is restarted.

        An actor with `trap_exit` receives an `Exit` message instead.

        Raises:
            TypeError: `reason` is not an exit reason.
        """
        check_reason(reason)
        if self._incarnation is not None:
            self._incarnation.signal(None, reason)

    def kill(self) -> None:
        """Kill its incarnation, without `terminate`. A permanent or transient child is restarted."""
        if self._incarnation is not None:
            self._incarnation.kill()

    # --- for the rest of the package -------------------------------------------------------------------------------

    @property
    def _is_open(self) -> bool:
        """Whether it is a supervisor's child: from its first start until it will not be restarted."""
        return self._system is not None and self._outcome is None

    def _begin(self, system: ActorSystem, incarnation: Incarnation, limit: int | None) -> None:
        if self._system is not system:
            self._system = system
            self._box.wake = system.backend.wake
        self._box.limit = UNBOUNDED if limit is None else limit
        self._incarnation = incarnation
        self._outcome = None

    def _note_incarnation_end(self, reason: ExitReason) -> None:
        """Note the end of an incarnation; it is not known yet whether there will be another."""
        self._incarnation = None
        self._box.waiter = None
        self._box.urgent = None  # its monitors and waits do not pass to the next incarnation
        self._reason = reason
        self._notify_watchers(reason, final=False)

    def _retire(self, value: Any = None) -> None:
        """Note that there will be no further incarnation: answer waiting callers and release the mail."""
        if not self._is_open:
            return
        assert self._reason is not None
        self._state = None
        self._outcome = Outcome(self._reason, value)
        for item in self._box.drain():
            if isinstance(item, Caller):
                item.fail(NotRunning(self, self._reason))
            else:
                self._report_dead_letter(item[1])
        self._box.admit()
        self._notify_watchers(self._reason, final=True)

    def _notify_watchers(self, reason: ExitReason, *, final: bool) -> None:
        if self._watchers is None:
            return
        fired = [watch for watch in self._watchers if watch[1] is final]
        self._watchers = [watch for watch in self._watchers if watch[1] is not final] or None
        for _, _, notify in fired:
            notify(Down(self, reason, final))

    def _watch(self, who: object, notify: Callable[[Down], object], *, final: bool) -> None:
        if self._watchers is None:
            self._watchers = []
        self._watchers.append((who, final, notify))

    def _is_watched_by(self, who: object) -> bool:
        return any(watch[0] is who for watch in self._watchers or ())

    def _unwatch(self, who: object) -> None:
        if self._watchers is not None:
            self._watchers = [watch for watch in self._watchers if watch[0] is not who] or None
