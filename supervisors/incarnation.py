r"""One incarnation: its task, the start handshake, the capture of its exit, and how it is stopped.

This is the only place that catches everything (`except BaseException` below): an exception that leaves an actor becomes
an exit reason here. Three exceptions are not an actor's failure and never cause a restart: `KeyboardInterrupt` and
`SystemExit` end the system, and a `GeneratorExit` that Python throws into a task that it discards. One that an actor's
own code raises is a crash like any other.

The life of an incarnation:

    STARTING --init done--> UP --run ended / asked to stop--> ENDING --terminate done, children gone--> GONE
        \------------------ init raised / stopped ------------------------------------------------------/
    any --neither obeys nor dies--> ZOMBIE   (given up by its supervisor; the task may still end)

It is a task in the task group of its supervisor. A *host*, an actor with children, opens a task group of its own in
that task, under a shield: no outer scope cancels its children; code stops them one after the other (`children.py`).
`scope` is around the actor's own code only.

    worker:  with scope: init, run                                           terminate  report the end
    host:    with CancelScope(shield=True), group: (with scope: init, run)   terminate  stop children  report the end

How it is stopped: when it is *asked*, its scope is cancelled, or, if it waits for its mailbox, it is woken and returns;
`terminate` runs after that, shielded. When the grace is over it is *killed*: `terminate` is cancelled too. Python
cannot end a task that refuses to end; after another `kill_grace` it is reported as a zombie and abandoned: its further
actions do not affect the next incarnation. Timers do all this, so a supervisor only waits for the end. A host that is
killed kills its children with it.

A bare `CancelledError`, from a library that cancels tasks natively, is a crash: our own cancellation is caught by the
scope. Only if all tasks are cancelled natively, because the event loop is torn down, it is not a crash, and there is no
restart.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from supervisors.actor import Actor
from supervisors.errors import Died, ShuttingDown
from supervisors.events import Overrun, Zombie
from supervisors.mailbox import INFO, NO_REPLY, Caller
from supervisors.reasons import KILLED, NORMAL, Crash, ExitReason, Ignore, Normal, find_fatal, list_leaves, make_reason
from supervisors.reasons import Shutdown as SystemShutdown
from supervisors.ref import ActorIdentity, ActorRef, Down, Exit, identify
from supervisors.spec import DEFAULT_SHUTDOWN, ChildSpec

if TYPE_CHECKING:
    from supervisors.children import ChildGroup, ChildRecord
    from supervisors.system import ActorSystem
    from supervisors.waiting import ScheduledCall

#: The exit reason of an actor whose task is cancelled with all others because the event loop is torn down.
TORN_DOWN = SystemShutdown("event loop closed")


class LifePhase(enum.IntEnum):
    """The phase of an incarnation's life."""

    STARTING = 0
    UP = 1
    ENDING = 2
    GONE = 3
    ZOMBIE = 4


@dataclass(slots=True, eq=False, repr=False)
class Incarnation:
    """One run of an actor; see the module's docstring. Its host makes one for each start."""

    system: ActorSystem
    child: ChildRecord  # its record at its host
    ref: ActorRef
    actor: Actor
    children: ChildGroup | None = None  # of a host
    identity: ActorIdentity = field(init=False)
    scope: anyio.CancelScope = field(init=False)  # around its own code
    task: object = None
    since: float = 0.0  # seconds of the loop's clock
    phase: LifePhase = LifePhase.STARTING
    was_up: bool = False
    was_ignored: bool = False
    stop_reason: ExitReason | None = None  # asked to stop, and why
    stopped_by_parent: bool = False
    killed: bool = False
    reason: ExitReason = NORMAL
    info: Any = None  # what `init` returned, until the host has passed it on
    value: Any = None  # what `run` returned
    current: Caller | None = None  # the call that `handle_call` is handling
    last_call: str | None = None  # once it has ended: the type of a call that it had in hand
    stashed: list[Any] = field(default_factory=list)
    links: dict[Incarnation, None] = field(default_factory=dict)  # in their order, in which partners are notified
    scheduled: dict[Any, None] = field(default_factory=dict)  # its messages to itself
    monitored: dict[ActorRef, None] = field(default_factory=dict)  # a large set takes five times as much memory
    in_hand: dict[Caller, float] = field(default_factory=dict)  # the calls that it took and has not answered, and when
    _waiting: list[Caller] = field(default_factory=list)  # the callers that wait for its next phase
    has_left: bool = False  # its own code has ended, only its children may still run
    _guard: anyio.CancelScope | None = None  # around `terminate`
    _timer: ScheduledCall | None = None

    def __post_init__(self) -> None:
        self.identity = identify(self.ref)
        self.scope = self.system.loop.make_scope()
        self.since = self.system.now()
        self.actor.ref = self.ref
        self.actor._me = self  # noqa: SLF001 - this is its incarnation

    def __repr__(self) -> str:
        return f"<Incarnation of {self.ref.path} {self.phase.name}>"

    def start(self) -> None:
        """Start its task. The parent's `note_start` or `note_end` will be called.

        `note_start` is called at once if there is no `init` to wait for.
        """
        actor = self.actor
        self.identity.begin(self.system, self, actor.mailbox_limit)
        self.child.parent.spawn(_run_worker if self.children is None else _run_host, self)
        if actor.starts_at_once:
            self._mark_up()

    async def reach(self, phase: LifePhase) -> None:
        """Wait until it is in `phase` or beyond."""
        while self.phase < phase:
            promise = self.system.loop.make_caller()
            self._waiting.append(promise)
            await promise.wait()

    def _enter(self, phase: LifePhase) -> None:
        self.phase = phase
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.reply(None)

    def take_info(self) -> Any:
        """Return what `init` returned, once, for the caller that requested the start."""
        info, self.info = self.info, None
        return info

    @property
    def is_up(self) -> bool:
        """Whether it accepts messages."""
        return self.phase is LifePhase.UP

    @property
    def is_over(self) -> bool:
        """Whether its supervisor need no longer wait for it."""
        return self.phase >= LifePhase.GONE

    def shut_down(self, reason: ExitReason) -> None:
        """Ask it to end, and kill it when its time is over."""
        if self.stopped_by_parent:
            return
        self.stopped_by_parent = True
        if self.killed:  # it is given up if it does not end
            return
        shutdown = self.child.shutdown
        if shutdown == "kill":
            self.kill()
            return
        self.ask_to_stop(reason)
        if shutdown != math.inf and not self.is_over:
            self._call_after(shutdown, self.kill)

    def ask_to_stop(self, reason: ExitReason) -> None:
        """Make it end with `reason`. Does nothing if it is already ending."""
        if self.stop_reason is None and self.phase <= LifePhase.UP:
            self.stop_reason = reason
            self._interrupt()

    def kill(self) -> None:
        """End it and all below it without asking.

        What does not end within the system's `kill_grace` is given up as a zombie.
        """
        for incarnation in [*self._walk()][::-1]:  # children first, so that a host finds them gone
            incarnation._kill_alone()  # noqa: SLF001 - of this class

    def abandon(self) -> None:
        """End it and all below it after a cancellation that it has not obeyed in time: it is given up as a zombie."""
        self.kill()
        self._give_up()

    def _walk(self) -> Iterator[Incarnation]:
        below = [self]
        while below:
            incarnation = below.pop()
            yield incarnation
            if incarnation.children is not None:
                below.extend(incarnation.children.incarnations())

    def _kill_alone(self) -> None:
        if self.is_over or self.killed:
            return
        self.killed = True
        self.stop_reason = KILLED
        self._interrupt()
        self._cut_terminate()

    def _interrupt(self) -> None:
        """End its own code: `serve` and `receive` end by themselves, at a third of the cost of a cancellation."""
        if self.identity.box.waiter is not None:
            self.identity.box.notify()
        else:
            self.scope.cancel()

    def _call_after(self, seconds: float, callback: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.system.timers.call_after(seconds, callback)

    def _cut_terminate(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
        self._call_after(self.system.kill_grace, self._give_up)

    def _give_up(self) -> None:
        if not (self.is_over or self.has_left):  # a host that has left ends when its children have, or are given up
            self.system.emit(Zombie(self.system.now(), self.ref, self.child.spec))
            if self.children is not None:
                self.children.kill_all()
            self.end(LifePhase.ZOMBIE, KILLED)

    def take_call(self, caller: Caller) -> None:
        """Note that it has a call in hand, until the call is answered or its caller leaves."""
        if not caller.answered:
            caller.in_hand = self.in_hand
            self.in_hand[caller] = self.system.now()

    @property
    def call_in_hand(self) -> Caller | None:
        """The unanswered call that it handles, else the oldest that it has taken."""
        return self.current if self.current in self.in_hand else next(iter(self.in_hand), None)

    async def handle_call(self, caller: Caller) -> None:
        """Handle a call, also if the caller has left, as in OTP, because the call may be a command to be carried out.

        A bounded call is handled in a scope, which its caller cancels when it leaves.
        """
        actor, work = self.actor, caller.work
        self.take_call(caller)
        self.current, reply = caller, NO_REPLY
        if work is None:
            reply = await actor.handle_call(caller.message, caller)
        else:
            with self.system.loop.make_scope() as scope:
                work.begin(scope, self.abandon)
                try:
                    reply = await actor.handle_call(caller.message, caller)
                finally:
                    work.end(scope)
        self.current = None
        if reply is not NO_REPLY:
            caller.reply(reply)

    def deliver_down(self, ref: ActorRef, reason: ExitReason, final: bool) -> None:
        """Deliver the end of a monitored actor."""
        self.forget_monitor(ref)
        self.identity.box.put_urgent((INFO, Down(ref, reason, final)))

    def forget_monitor(self, ref: ActorRef) -> None:
        """Forget a monitor that has fired or was removed, so that a long-lived actor does not accumulate them."""
        if not identify(ref).count_watches(self):
            self.monitored.pop(ref, None)

    def signal(self, ref: ActorRef | None, reason: ExitReason) -> None:
        """Handle an exit signal: an `exit` call, or the end of a linked actor.

        A supervisor reports and ignores the end of a linked actor.
        """
        if self.actor.trap_exit or (self.actor.is_supervisor and ref is not None):
            self.identity.box.put_urgent((INFO, Exit(ref, reason)))
        elif ref is None or not isinstance(reason, Normal):
            self.ask_to_stop(reason)

    def stash(self, item: Any) -> None:
        """Set an item of the mailbox aside."""
        if isinstance(item, Caller):
            self.in_hand.pop(item, None)  # it counts as being in the mailbox again
        self.stashed.append(item)

    def unstash(self) -> None:
        """Put all stashed items back at the front of the mailbox."""
        stashed, self.stashed = self.stashed, []
        if stashed:
            self.identity.box.put_back(stashed)

    def open_scope(self, caller: Caller) -> anyio.CancelScope:
        """Return a scope for a task that answers a call: it is cancelled when the caller leaves."""
        scope = anyio.CancelScope()
        if caller.work is None:
            caller.on_abandoned(scope.cancel)
        else:
            what = type(caller.message).__name__
            caller.work.begin(
                scope, lambda: self.system.emit(Overrun(self.system.now(), self.ref, self.child.spec, what))
            )
        return scope

    async def answer_in_scope(
        self, caller: Caller, scope: anyio.CancelScope, function: Callable[..., Awaitable[Any]], arguments: Any
    ) -> None:
        """Answer a call with what a function returns or raises."""
        try:
            with scope:
                try:
                    caller.reply(await function(*arguments))
                except Exception as exception:  # the boundary: the caller gets it
                    caller.fail(exception)
        finally:
            if caller.work is not None:
                caller.work.end(scope)

    async def begin(self) -> None:
        """Initialise the actor; it is up when that is done."""
        if self.stop_reason is None:
            if self.identity.state is not None:
                self.actor.restore(self.identity.state)
            info = await self.actor.init()
            if not self.is_over:  # else it was given up meanwhile, and its ref may have another incarnation
                self.info = info
                self._mark_up()

    def _mark_up(self) -> None:
        self.was_up = True
        self._enter(LifePhase.UP)
        self.child.parent.note_start(self)

    def leave(self) -> None:
        """Note that its own code has ended, but for `terminate`."""
        if self.phase is LifePhase.UP:
            self._enter(LifePhase.ENDING)
        if self.children is not None:
            self.children.close()

    async def terminate(self, reason: ExitReason) -> ExitReason:
        """Run `terminate`, within the grace; return the exit reason: its exception, or the one before, as in OTP."""
        shutdown = self.child.shutdown
        ends_by_itself = self._timer is None and shutdown != math.inf
        if ends_by_itself:
            self._call_after(DEFAULT_SHUTDOWN if shutdown == "kill" else shutdown, self._cut_terminate)
        try:
            with self.system.loop.make_scope(shield=True) as self._guard:
                await self.actor.terminate(reason)
        except BaseException as exception:
            reason = self.find_reason(exception)
        if ends_by_itself and not (self.stopped_by_parent or self.killed or self._timer is None):
            self._timer.cancel()
            self._timer = None
        return reason

    def take_snapshot(self, reason: ExitReason) -> ExitReason:
        """Store the actor's `snapshot` for the next incarnation, and return the exit reason."""
        try:
            self.identity.state = self.actor.snapshot()
        except Exception as exception:  # the boundary: see the module's docstring
            return self.find_reason(exception)
        return reason

    def find_reason(self, exception: BaseException) -> ExitReason:
        """Return the exit reason of an exception that has left the actor; raise it if Python discards the task."""
        if isinstance(exception, GeneratorExit) and not self.system.loop.is_current(self.task):
            raise exception
        if (fatal := find_fatal(exception)) is not None:
            self.system.abort(fatal)
            return Crash(fatal)
        if not self.was_up and any(isinstance(leaf, Ignore) for leaf in list_leaves(exception)):
            self.was_ignored = True
            return NORMAL
        if self.system.is_torn_down and isinstance(exception, self.system.loop.cancelled):
            return TORN_DOWN
        return make_reason(exception)

    def find_refusal(self, exception: BaseException) -> ExitReason | None:
        """Return why the actor stops, if it was refused a child because of that before its cancellation came."""
        is_refused = all(isinstance(leaf, ShuttingDown) for leaf in list_leaves(exception))
        return self.stop_reason if is_refused else None

    def end(self, phase: LifePhase, reason: ExitReason) -> None:
        """End the incarnation, and notify in this order: waiting callers, monitors and links, the supervisor."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.reason = reason
        self._enter(phase)
        self.unstash()
        for scheduled in list(self.scheduled):
            scheduled.cancel()
        self.last_call = get_call_type(self.call_in_hand)
        for caller in list(self.in_hand):
            caller.fail(Died(self.ref, reason))
        self.current = None
        for ref in self.monitored:
            identify(ref).unwatch(self)
        self.identity.end_incarnation(reason, was_ignored=self.was_ignored)
        links, self.links = self.links, {}
        for partner in links:
            partner.links.pop(self, None)
            partner.signal(self.ref, reason)
        self.child.parent.note_end(self)
        self.actor = _NOBODY  # break the reference cycles now instead of leaving them to the garbage collector
        self.children = None


def get_call_type(caller: Caller | None) -> str | None:
    """Return the name of the type of a call's message."""
    return None if caller is None else type(caller.message).__name__


#: The actor of an incarnation that has ended.
_NOBODY = Actor()


async def _run_host(me: Incarnation) -> None:
    """Run a host: the body of its task, inside which its children have theirs."""
    assert me.children is not None
    with me.system.loop.make_scope(shield=True):
        async with anyio.create_task_group() as group:
            me.children.open(group)
            await _run_worker(me)


async def _run_worker(me: Incarnation) -> None:
    """Run an incarnation: the body of its task."""
    actor = me.actor
    me.task = me.system.loop.current_task()
    try:
        with me.scope:
            if actor.has_tasks:
                async with anyio.create_task_group() as tasks:
                    actor.tasks = tasks
                    await me.begin()
                    if me.was_up:
                        me.value = await actor.run()
                    tasks.cancel_scope.cancel()
            else:
                if me.phase is LifePhase.STARTING:
                    await me.begin()
                if me.was_up:
                    me.value = await actor.run()
        reason = NORMAL if me.stop_reason is None else me.stop_reason
    except BaseException as exception:
        reason = me.find_refusal(exception) or me.find_reason(exception)
    me.leave()
    if actor.has_terminate and me.was_up and not me.killed:
        reason = await me.terminate(reason)
    me.has_left = True
    if me.children is not None:
        await me.children.finish(reason)
    if actor.has_snapshot and me.was_up and not (me.killed or me.is_over):
        reason = me.take_snapshot(reason)
    if me.phase is not LifePhase.ZOMBIE:  # else it was given up earlier
        me.end(LifePhase.GONE, KILLED if me.killed else reason)


def create_actor(spec: ChildSpec[Any], system: ActorSystem) -> Actor | ExitReason:
    """Call `spec.start` and return the new actor, or the reason why the start failed."""
    try:
        actor = spec.start()
    except Ignore:
        return NORMAL
    except BaseException as exception:
        if (fatal := find_fatal(exception)) is not None:
            system.abort(fatal)
        return make_reason(exception)
    if not isinstance(actor, Actor):
        return Crash(TypeError(f"start of child {spec.id!r} returned {actor!r}, which is not an Actor"))
    if getattr(actor, "_me", None) is not None:
        text = "which was started before: `start` has to make a new actor for each incarnation"
        return Crash(TypeError(f"start of child {spec.id!r} returned {actor!r}, {text}"))
    return actor
