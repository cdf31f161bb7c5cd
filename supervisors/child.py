r"""One incarnation: its scope, the start handshake, the capture of its exit, and how it is stopped.

This is the only place that catches everything (`except BaseException` below): an exception that leaves an actor becomes
an exit reason here. Three exceptions are not an actor's failure and never cause a restart: `KeyboardInterrupt` and
`SystemExit` end the system, and `GeneratorExit` means that Python discards the task.

The life of an incarnation:

    STARTING --init done--> UP --run ended / asked to stop--> ENDING --terminate done--> GONE
        \------------------ init raised / stopped ------------------------------------/
    any --neither obeys nor dies--> ZOMBIE   (given up by its supervisor; the task may still end)

How it is stopped: when it is *asked*, its scope is cancelled, or, if its receive loop is idle, the loop just returns;
`terminate` runs after that, shielded. When the grace is over it is *killed*: `terminate` is cancelled too. Python
cannot end a task that refuses to end; after another `kill_grace` it is reported as a zombie and abandoned: what it does
after that does not affect the next incarnation. Timers of the loop do all this, so a supervisor only waits for the end;
an incarnation with an idle loop and no user code to run needs no timers.

A bare `CancelledError`, from a library that cancels tasks natively, is a crash: our own cancellation is caught by the
scope. Only if all tasks are cancelled natively, because the event loop is torn down, it is not a crash, and there is no
restart.

An incarnation that waits for mail needs no task: it *rests* (`rest.py`). Writing to its mailbox, or ending it, starts a
task.
"""

from __future__ import annotations

import enum
import math
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from supervisors.actor import Actor, serve
from supervisors.caller import Caller
from supervisors.errors import Died
from supervisors.events import Zombie
from supervisors.reasons import KILLED, NORMAL, Crash, ExitReason, Ignore, Normal, find_fatal, list_leaves, make_reason
from supervisors.reasons import Shutdown as SystemShutdown
from supervisors.ref import INFO, Exit
from supervisors.rest import HIBERNATE, Idling
from supervisors.sending import Sending
from supervisors.spec import DEFAULT_SHUTDOWN, ChildSpec

if TYPE_CHECKING:
    from supervisors.backend import Scope, Timer
    from supervisors.children import Child
    from supervisors.ref import ActorRef, Down
    from supervisors.system import ActorSystem


#: The exit reason of an actor whose task is cancelled with all others because the event loop is torn down.
TORN_DOWN = SystemShutdown("event loop closed")


class Phase(enum.IntEnum):
    """The phase of an incarnation's life."""

    STARTING = 0
    UP = 1
    ENDING = 2
    GONE = 3
    ZOMBIE = 4


class Parent(Protocol):
    """A supervisor, as its children see it. They call both methods synchronously, and these must not raise."""

    @property
    def system(self) -> ActorSystem:
        """The system it is part of."""

    @property
    def ref(self) -> ActorRef:
        """Its identity."""

    def recent_restarts(self, now: float) -> int:
        """Return the number of restarts within its period."""

    def child_started(self, child: Incarnation) -> None:
        """A child's `init` is done."""

    def child_gone(self, child: Incarnation) -> None:
        """A child has ended: `phase` is `GONE` or `ZOMBIE`; `reason` says why, `was_up` whether it had started."""


#: The scope of a supervisor: it waits only for its own mailbox, so it is woken instead of cancelled.
_NO_SCOPE = nullcontext()


class Incarnation:
    """One run of an actor; see the module's docstring. A supervisor makes one for each start."""

    __slots__ = (
        "__dict__",  # takes no memory until one of the attributes below is set
        "_idling",
        "_timer",
        "actor",
        "child",
        "current",
        "killed",
        "phase",
        "reason",
        "receives",
        "ref",
        "rests",
        "scope",
        "since",
        "stop_reason",
        "stopped_by_parent",
        "system",
        "task",
        "took_at",
        "was_up",
    )

    # Rarely used attributes
    ignored: bool = False
    info: Any = None  # what `init` returned, until the supervisor has passed it on
    value: Any = None  # what `run` returned
    on_down: Callable[[Down], object] | None = None  # the callback for all monitored actors
    _unanswered: dict[weakref.ref[Caller], float] | None = None  # calls not answered at once, and when they were taken
    _drop_unanswered: Callable[[weakref.ref[Caller]], object]  # forgets a call that its caller has forgotten
    last_call: str | None = None  # once it has ended: the type of a call that it had in hand
    _guard: Scope | None = None  # around `terminate`
    links: dict[Incarnation, None] | None = None  # in their order, in which partners are notified
    stashed: list[Any] | None = None
    timers: dict[Sending, None] | None = None
    _watched: dict[ActorRef, None] | None = None  # not a set: a large set takes five times as much memory

    def __init__(self, system: ActorSystem, child: Child, ref: ActorRef, actor: Actor, since: float) -> None:
        self.system = system
        self.child = child  # its record at its supervisor
        self.ref = ref
        self.actor = actor
        self.since = since  # seconds of the loop's clock
        self.took_at = since  # when it took its newest call
        self.scope: Scope | None = None
        self.phase = Phase.STARTING
        self.was_up = False
        self.stop_reason: ExitReason | None = None  # asked to stop, and why
        self.killed = False
        self.receives = False  # it waits in `receive`, not in its receive loop
        self.stopped_by_parent = False
        self.reason: ExitReason = NORMAL
        self.task: object = None
        self.rests = False  # it has no task
        self._idling: Idling | None = None
        self.current: Caller | None = None  # the call that `handle_call` is handling
        self._timer: Timer | None = None
        actor.ref = ref
        actor._me = self  # noqa: SLF001 - this is its incarnation

    def __repr__(self) -> str:
        return f"<Incarnation of {self.ref.path} {self.phase.name}>"

    # --- for its supervisor ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start. `parent.child_started` or `parent.child_gone` will be called.

        They are called at once if there is no `init` to wait for.
        """
        actor, box = self.actor, self.ref._box  # noqa: SLF001
        self.ref._begin(self.system, self, actor.mailbox_limit)  # noqa: SLF001
        if actor.rests and actor.starts_at_once and not box:
            self.hibernate()
        else:
            self.set_result(None)
        if actor.starts_at_once:
            self._mark_up()

    def hibernate(self) -> None:
        """End the task until the actor has work again. A caller in that task has to return at once."""
        self.rests = True
        self._idling = None
        self.task = None
        self.scope = None
        box = self.ref._box  # noqa: SLF001
        box.items = box.urgent = None  # they are empty
        box.waiter = self

    def hibernate_if_idle(self) -> bool:
        """Hibernate after `run` has returned `HIBERNATE`, if there is no work; return whether it does."""
        if self.stop_reason is None and not len(self.ref._box):  # noqa: SLF001
            self.hibernate()
        return self.rests

    def done(self) -> bool:
        """Whether it has been woken. A resting incarnation is its mailbox's waiter, and imitates asyncio's futures."""
        return False

    def set_result(self, _: None) -> None:
        """Wake up: start a task, because there is something to do."""
        self.rests = False
        backend = self.system.backend
        if not self.actor.is_supervisor:
            self.scope = backend.scope()
        self.task = backend.spawn(run_incarnation, self, str(self.child.spec.id))

    def should_rest(self, hibernate_after: float) -> bool:
        """Return whether it has been idle long enough to rest instead of waiting for mail in its task."""
        if self._idling is None:
            self._idling = Idling(self)
        elif self._idling.has_idled_long_enough:
            return True
        self._idling.begin(hibernate_after)
        return False

    def take_info(self) -> Any:
        """Return what `init` returned, once, for the caller that requested the start."""
        info = self.info
        if info is not None:
            self.info = None
        return info

    @property
    def is_up(self) -> bool:
        """Whether it accepts messages."""
        return self.phase is Phase.UP

    @property
    def is_over(self) -> bool:
        """Whether its supervisor need no longer wait for it."""
        return self.phase >= Phase.GONE

    def shut_down(self, reason: ExitReason) -> None:
        """Ask it to end, and kill it when its time is over (S-35)."""
        self.stopped_by_parent = True
        shutdown = self.child.shutdown
        if shutdown == "kill":
            self.kill()
            return
        ends = self.ask_to_stop(reason)
        if not ends and shutdown != math.inf and not self.is_over:
            self._call_at(self.system.backend.now() + shutdown, self.kill)

    def ask_to_stop(self, reason: ExitReason) -> bool:
        """Make it end with `reason`. Does nothing if it is already ending.

        Returns:
            whether it is sure to end, so that no deadline is needed.
        """
        if self.stop_reason is None and self.phase <= Phase.UP:
            self.stop_reason = reason
            return self._interrupt() and not self.actor.has_terminate
        return False

    def kill(self) -> None:
        """End it without asking.

        When it does not end within the system's `kill_grace`, it is given up as a zombie.
        """
        if self.is_over:
            return
        self.killed = True
        self.stop_reason = KILLED
        ends = self._interrupt()
        if self._guard is not None:
            self._guard.cancel()
        if not (ends or self.actor.is_supervisor):  # a supervisor ends when its own children have ended or are given up
            self._call_at(self.system.backend.now() + self.system.kill_grace, self._give_up)

    def _interrupt(self) -> bool:
        """Wake it so that it ends.

        Returns:
            whether only its `terminate` can delay the end: it was idle, and no other user code runs in it.
        """
        box, actor = self.ref._box, self.actor  # noqa: SLF001
        if self.rests and (actor.ends_at_rest or (self.killed and not actor.is_supervisor)):
            if box.waiter is not None:  # else it is already ending
                box.waiter = None
                self.system.backend.call_soon(self._leave)
            return True
        if box.waiter is not None and actor.has_default_run:
            box.notify()  # the receive loop is idle and returns by itself: a tenth of the cost of a cancellation
            return not (self.receives or actor.has_tasks)
        if self.rests or actor.is_supervisor:
            box.notify()
        if self.scope is not None:
            self.scope.cancel()
        return False

    def _leave(self) -> None:
        self.rests = False
        assert self.stop_reason is not None
        self._end(Phase.GONE, self.stop_reason)

    def _call_at(self, deadline: float, callback: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.system.backend.call_at(deadline, callback)

    def limit_terminate(self) -> None:
        """Bound `terminate` by the same grace when it ends by itself; its exit reason stays the same."""
        shutdown = self.child.spec.shutdown
        if self._timer is None and shutdown != math.inf:
            grace = shutdown if isinstance(shutdown, int | float) else DEFAULT_SHUTDOWN
            self._call_at(self.system.backend.now() + grace, self._cut_terminate)

    def _cut_terminate(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
        self._call_at(self.system.backend.now() + self.system.kill_grace, self._give_up)

    def _give_up(self) -> None:
        if not self.is_over:
            system = self.system
            system.emit(Zombie(system.backend.now(), self.ref, self.child.spec))
            self._end(Phase.ZOMBIE, KILLED)

    # --- for its actor ---------------------------------------------------------------------------------------------

    def remember_call(self, caller: Caller) -> None:
        """Remember a call that was taken and is not answered yet."""
        if self._unanswered is None:
            debts = self._unanswered = {}
            self._drop_unanswered = lambda reference: debts.pop(
                reference, None
            )  # referring to the incarnation would keep it
        self._unanswered[weakref.ref(caller, self._drop_unanswered)] = self.took_at

    @property
    def in_hand(self) -> int:
        """The number of calls that it has taken and not answered."""
        return (self.current is not None) + sum(not caller.answered for caller in self._list_unanswered())

    @property
    def call_in_hand(self) -> str | None:
        """The type of the message of an unanswered call: of the call that it handles now, else of the oldest."""
        callers = [self.current] if self.current is not None else self._list_unanswered()
        return next((type(caller.message).__name__ for caller in callers if not caller.answered), None)

    @property
    def call_taken_at(self) -> float | None:
        """When it took the call of `call_in_hand`; None without one."""
        if self.current is not None:
            return None if self.current.answered else self.took_at
        for reference, taken in list((self._unanswered or {}).items()):
            caller = reference()
            if caller is not None and not caller.answered:
                return taken
        return None

    def forget_call(self, caller: Caller) -> None:
        """Forget a call that is to be handled again."""
        if self._unanswered is not None:
            self._unanswered.pop(weakref.ref(caller), None)

    def _list_unanswered(self) -> list[Caller]:
        return [caller for reference in list(self._unanswered or ()) if (caller := reference()) is not None]

    def remember_monitor(self, ref: ActorRef) -> None:
        """Remember a monitor, so that it ends with this incarnation."""
        if self._watched is None:
            self._watched = {}
        self._watched[ref] = None

    def forget_monitor(self, ref: ActorRef) -> None:
        """Forget a monitor that has fired or was removed, so that a long-lived actor does not accumulate them."""
        if self._watched is not None and not ref._is_watched_by(self):  # noqa: SLF001
            self._watched.pop(ref, None)

    def signal(self, ref: ActorRef | None, reason: ExitReason) -> None:
        """Handle an exit signal: an `exit` call, or the end of a linked actor.

        A supervisor reports and ignores the end of a linked actor (S-39).
        """
        if self.actor.trap_exit or (self.actor.is_supervisor and ref is not None):
            self.ref._box.put_urgent((INFO, Exit(ref, reason)))  # noqa: SLF001
        elif ref is None or not isinstance(reason, Normal):
            self.ask_to_stop(reason)

    def is_stashed(self, caller: Caller) -> bool:
        """Return whether the call is stashed."""
        return self.stashed is not None and caller in self.stashed

    def unstash(self) -> None:
        """Put all stashed messages back at the front of the mailbox."""
        stash, self.stashed = self.stashed, None
        if stash:
            box = self.ref._box  # noqa: SLF001
            if box.items is None:
                box.items = deque()
            box.items.extendleft(reversed(stash))

    # --- its course ------------------------------------------------------------------------------------------------

    def _mark_up(self) -> None:
        self.phase = Phase.UP
        self.was_up = True
        self.child.parent.child_started(self)

    def _end(self, phase: Phase, reason: ExitReason) -> None:  # noqa: C901, PLR0912 - each asks whether there is one
        """End the incarnation, and notify in this order: waiting callers, monitors and links, the supervisor."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._idling is not None:
            self._idling.end()
            self._idling = None
        self.phase = phase
        self.reason = reason
        if self.stashed:
            self.unstash()
        if self.timers:
            for sending in list(self.timers):
                sending.cancel()
        if self.current is not None or self._unanswered:
            self.last_call = self.call_in_hand
        if self.current is not None:
            self.current.fail(Died(self.ref, reason))
            self.current = None
        if self._unanswered:
            for caller in self._list_unanswered():
                caller.fail(Died(self.ref, reason))
        if self.on_down is not None:
            self.on_down = None  # it refers to the actor
        if self._watched:
            for ref in self._watched:
                ref._unwatch(self)  # noqa: SLF001
        links = self.links
        if links:
            self.links = None
        self.ref._note_incarnation_end(reason)  # noqa: SLF001
        if links:
            for partner in links:
                if partner.links is not None:
                    partner.links.pop(self, None)
                partner.signal(self.ref, reason)
        self.child.parent.child_gone(self)
        self.actor = _NOBODY  # break the reference cycle now instead of leaving it to the garbage collector


#: The actor of an incarnation that has ended.
_NOBODY = Actor()


async def run_incarnation(me: Incarnation) -> None:  # noqa: C901, PLR0912 - one frame an actor: a second is memory in each
    """Run an incarnation: the body of its task."""
    actor = me.actor
    if me.task is None:
        me.task = me.system.backend.current_task()
    task = me.task
    try:
        try:
            with me.scope or _NO_SCOPE:
                if actor.has_tasks:
                    async with anyio.create_task_group() as tasks:
                        actor.tasks = tasks
                        await _begin(me)
                        if me.was_up:
                            me.value = await actor.run()
                            if me.value is HIBERNATE:
                                raise TypeError(f"{type(actor).__name__}.run returned HIBERNATE, and `has_tasks`")
                        tasks.cancel_scope.cancel()
                else:
                    if me.phase is Phase.STARTING:
                        await _begin(me)
                    if me.was_up:
                        value = await (serve(me) if actor.has_default_run else actor.run())
                        while value is HIBERNATE and not me.hibernate_if_idle():
                            await me.system.backend.checkpoint()
                            value = await actor.run()
                        if me.rests:
                            return
                        if value is not None:
                            me.value = value
            reason = NORMAL if me.stop_reason is None else me.stop_reason
        except GeneratorExit:
            raise
        except BaseException as exception:
            reason = _find_reason(me, exception)
        if actor.is_supervisor and not me.was_up:
            await actor.let_go()
        if me.was_up and not me.killed:
            if actor.has_terminate:
                reason = await _terminate(me, reason)
            if actor.has_snapshot and not (me.killed or me.is_over):
                reason = _take_snapshot(me, reason)
        if me.phase is not Phase.ZOMBIE:  # else it was given up earlier
            me._end(Phase.GONE, KILLED if me.killed else reason)  # noqa: SLF001 - the rest of this object
    finally:
        me.system.backend.note_last_step(task)


async def _begin(me: Incarnation) -> None:
    if me.stop_reason is None:
        if me.ref._state is not None:  # noqa: SLF001
            me.actor.restore(me.ref._state)  # noqa: SLF001
        info = await me.actor.init()
        if not me.is_over:  # else it was given up meanwhile, and its ref may have another incarnation
            if info is not None:
                me.info = info
            me._mark_up()  # noqa: SLF001


async def _terminate(me: Incarnation, reason: ExitReason) -> ExitReason:
    """Run `terminate` and return the exit reason; an exception in `terminate` replaces the reason, as in OTP."""
    if me.phase is Phase.UP:
        me.phase = Phase.ENDING
    me.limit_terminate()
    try:
        with me.system.backend.scope(shield=True) as guard:
            me._guard = guard  # noqa: SLF001
            await me.actor.terminate(reason)
    except GeneratorExit:
        raise
    except BaseException as exception:
        return _find_reason(me, exception)
    return reason


def _take_snapshot(me: Incarnation, reason: ExitReason) -> ExitReason:
    """Store the actor's `snapshot` for the next incarnation, and return the exit reason."""
    try:
        me.ref._state = me.actor.snapshot()  # noqa: SLF001
    except Exception as exception:  # the boundary: see the module's docstring
        return _find_reason(me, exception)
    return reason


def _find_reason(me: Incarnation, exception: BaseException) -> ExitReason:
    if (end := find_fatal(exception)) is not None:
        me.system.abort(end)
        return Crash(end)
    if not me.was_up and any(isinstance(leaf, Ignore) for leaf in list_leaves(exception)):
        me.ignored = True
        return NORMAL
    if me.system.backend.is_torn_down and isinstance(exception, me.system.backend.cancelled):
        return TORN_DOWN
    return make_reason(exception)


def create_actor(spec: ChildSpec[Any]) -> Actor | ExitReason:
    """Call `spec.start` and return the new actor, or the reason why the start failed."""
    try:
        actor = spec.start()
    except Ignore:
        return NORMAL
    except Exception as exception:
        return make_reason(exception)
    if not isinstance(actor, Actor):
        return Crash(TypeError(f"start of child {spec.id!r} returned {actor!r}, which is not an Actor"))
    if getattr(actor, "_me", None) is not None:
        text = "which was started before: `start` has to make a new actor for each incarnation"
        return Crash(TypeError(f"start of child {spec.id!r} returned {actor!r}, {text}"))
    return actor
