"""OTP supervision trees on anyio: actors, mailboxes, supervisors, for asyncio and trio alike. Useful alone.

    class Counter(Actor):
        async def init(self):
            self.n = 0

        async def handle_call(self, message, caller):
            self.n += message
            return self.n

    async with ActorSystem() as system:  # in any anyio, asyncio or trio program
        counter = await system.start(ChildSpec("counter", Counter))
        assert await counter.call(2, timeout=1) == 2

**Actor**: subclass it; one object is one incarnation. `init` (start handshake: raise to fail, raise `Ignore` to say
"not needed"), `handle_call(message, caller)` (returns the reply; or returns `NO_REPLY` and calls `caller.reply(v)` or
`caller.fail(exc)` later; `caller.on_abandoned(callback)`, `caller.abandoned`), `handle_cast`, `handle_info` (`Down`,
`ref.send`, timers), `terminate(reason)` (shielded, within the grace), `run` (override it for your own loop with
`self.receive(match=None)` or `self.receive_nowait()`, where a call arrives as its `Caller`; or for a one-off task,
whose result is the outcome). `has_tasks = True` gives it the task group `self.tasks`; `mailbox_limit = n` bounds its
mailbox. It ends itself with `raise Stop(reason)` or `self.stop(reason)`; any other exception is a crash. With
`hibernate_after`, or a `run` that returns `HIBERNATE`, it needs no task while it waits for mail. `self.monitor(ref)`
delivers a `Down` when `ref` ends.

**ActorRef**: the identity, across restarts; owns the mailbox. `await ref.call(message, timeout=None)`,
`ref.cast(message)`, `ref.send(message)` (to `handle_info`), `await ref.exited()` (the reason, once it will not be
restarted), `await ref.outcome()` (`Outcome(reason, value)`; `.unwrap()`), `ref.alive`, `ref.path`, `ref.last_exit`,
`ref.exit(reason)`, `ref.kill()`. `ActorRef()` or `SupervisorRef()` can be made beforehand and put into a spec:
`ChildSpec(..., ref=ref)`. Before the actor's start, casts are kept and calls raise `NotRunning`. Not thread-safe.

**ChildSpec**(id, start, restart="permanent", shutdown=None, significant=False, ref=None, backoff=None, name=None,
type=None): `start` is a zero-argument callable that returns an `Actor`, `Supervisor` or `DynamicSupervisor`; it is
called for each incarnation and must not block. `shutdown`: seconds, `math.inf`, `"kill"`; `None` is 5 s for workers
and `math.inf` for supervisors.

**Supervisor**(children, strategy=, max_restarts=1, period=5.0, auto_shutdown="never"),
**DynamicSupervisor**(template=None, max_children=None, max_restarts=1, period=5.0). Their refs are `SupervisorRef`s:
`await start_child(spec)` (dynamic with a template: `start_child(*arguments)`), `await terminate_child(id_or_ref,
reason=Shutdown())` (a dynamic one takes refs), `restart_child`, `delete_child`, `which_children`, `count_children`,
and, without sending a message, `child(id)`: the ref of a static child. `start_child` returns when the child is up; for
a supervisor, when all its children are up.

**Reasons**: `Normal()`, `Shutdown(detail)`, `Killed()`, `Crash(exception)`. The reason given to `terminate_child`
reaches the child's `terminate`, and through a supervisor those of its children. A supervisor that gives up ends with
`Shutdown(GaveUp(child, reason))`, by `auto_shutdown` with `Shutdown(SignificantEnded(child, reason))`, a failed start
with `Shutdown(FailedToStart(child, reason))`. A child that is stopped because a sibling is restarted ends with
`Shutdown(RestartedWith(sibling, reason))`.

**Errors**: all are `SupervisorsError`. Calls: `NotRunning`, `Died` (it ended while it worked on the call),
`CallTimeout` (also a `TimeoutError`), `SelfCall`, `MailboxFull`. Management: `StartFailed(child, reason)`,
`AlreadyStarted`, `ChildNotFound` ... Specs: `SpecError`.

**ActorSystem**(name="root", strategy=, max_restarts=, period=, kill_grace=5.0): `await system.start(spec)`,
`system.root` (the top supervisor's ref), `system.registry`, `system.sinks` (callables that get the events of
`supervisors.events`). Leaving the block stops everything, last started first. If the top supervisor gives up, the
block is cancelled and raises `SystemDown`. Leave it in the task that entered it, if that still runs.
"""

from supervisors.actor import Actor
from supervisors.caller import NO_REPLY, Caller
from supervisors.children import ChildCounts, ChildInfo
from supervisors.dynamic import DynamicSupervisor
from supervisors.errors import (
    AlreadyPresent,
    AlreadyStarted,
    CallError,
    CallTimeout,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    Died,
    Failed,
    MailboxFull,
    ManagementError,
    NameTaken,
    NotForDynamic,
    NotRunning,
    SelfCall,
    ShuttingDown,
    SpecError,
    StartFailed,
    SupervisorsError,
    SystemDown,
    TooManyChildren,
    WrongTask,
)
from supervisors.management import SupervisorRef
from supervisors.policy import Backoff
from supervisors.reasons import (
    Crash,
    ExitReason,
    FailedToStart,
    GaveUp,
    Ignore,
    Killed,
    Normal,
    RestartedWith,
    Shutdown,
    SignificantEnded,
    Stop,
)
from supervisors.ref import ActorRef, Down, Exit, Outcome
from supervisors.registry import Registry
from supervisors.rest import HIBERNATE
from supervisors.spec import ChildSpec
from supervisors.supervisor import Supervisor
from supervisors.system import ActorSystem
from supervisors.tasks import Task, task

__all__ = [
    "HIBERNATE",
    "NO_REPLY",
    "Actor",
    "ActorRef",
    "ActorSystem",
    "AlreadyPresent",
    "AlreadyStarted",
    "Backoff",
    "CallError",
    "CallTimeout",
    "Caller",
    "ChildCounts",
    "ChildInfo",
    "ChildNotFound",
    "ChildRestarting",
    "ChildRunning",
    "ChildSpec",
    "Crash",
    "Died",
    "Down",
    "DynamicSupervisor",
    "Exit",
    "ExitReason",
    "Failed",
    "FailedToStart",
    "GaveUp",
    "Ignore",
    "Killed",
    "MailboxFull",
    "ManagementError",
    "NameTaken",
    "Normal",
    "NotForDynamic",
    "NotRunning",
    "Outcome",
    "Registry",
    "RestartedWith",
    "SelfCall",
    "Shutdown",
    "ShuttingDown",
    "SignificantEnded",
    "SpecError",
    "StartFailed",
    "Stop",
    "Supervisor",
    "SupervisorRef",
    "SupervisorsError",
    "SystemDown",
    "Task",
    "TooManyChildren",
    "WrongTask",
    "task",
]
