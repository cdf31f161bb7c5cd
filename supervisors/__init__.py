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

**Actor**: subclass it; one object is one incarnation, and a task. `init`, `handle_call(message, caller)` (returns the
reply; or `NO_REPLY` and calls `caller.reply` later; or `self.answer(caller, function, ...)`), `handle_cast`,
`handle_info`, `terminate(reason)`; `run` for a loop of your own with `self.receive()`, or for a one-off task.
`has_tasks` gives it a task group, `has_children` gives it `self.children`, which run inside its task. Any exception but
`Stop` is a crash.

**ActorRef**: the identity, across restarts; owns the mailbox. `call`, `cast`, `send`, `exited`, `outcome`, `exit`,
`kill`. A call with `grace` owns the work that it starts. `MessageTo["Room", int]` is the base of messages with types.

**Supervisor**, **DynamicSupervisor**: children of **ChildSpec**s, restarted as those and the strategy say. Their refs,
`SupervisorRef`s, have the management calls: `start_child`, `terminate_child`, `which_children`, ...

**Reasons**: `Normal()`, `Shutdown(detail)`, `Killed()`, `Crash(exception)`. Details that a supervisor or host gives are
`GaveUp`, `SignificantEnded`, `FailedToStart`, `RestartedWith` and `ParentEnded`. **Errors** are `SupervisorsError`s.

**ActorSystem**: leaving its block stops everything, last started first. If its top supervisor gives up, the block is
cancelled and raises `SystemDown`.
"""

from supervisors.actor import Actor, Task, task
from supervisors.children import ChildCounts, ChildInfo, Children
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
from supervisors.mailbox import NO_REPLY, Caller
from supervisors.policy import Backoff
from supervisors.reasons import (
    Crash,
    ExitReason,
    FailedToStart,
    GaveUp,
    Ignore,
    Killed,
    Normal,
    ParentEnded,
    RestartedWith,
    Shutdown,
    SignificantEnded,
    Stop,
)
from supervisors.ref import ActorRef, Down, Exit, MessageTo, Outcome, SupervisorRef
from supervisors.spec import ChildSpec
from supervisors.supervisor import DynamicSupervisor, Supervisor
from supervisors.system import ActorSystem, Registry
from supervisors.waiting import Alarm

# fmt: off
__all__ = [
    "NO_REPLY", "Actor", "ActorRef", "ActorSystem", "Alarm", "AlreadyPresent", "AlreadyStarted", "Backoff",
    "CallError", "CallTimeout", "Caller", "ChildCounts", "ChildInfo", "ChildNotFound", "ChildRestarting",
    "ChildRunning", "ChildSpec", "Children", "Crash", "Died", "Down", "DynamicSupervisor", "Exit", "ExitReason",
    "Failed", "FailedToStart", "GaveUp", "Ignore", "Killed", "MailboxFull", "ManagementError", "MessageTo",
    "NameTaken", "Normal", "NotForDynamic", "NotRunning", "Outcome", "ParentEnded", "Registry", "RestartedWith",
    "SelfCall", "Shutdown", "ShuttingDown", "SignificantEnded", "SpecError", "StartFailed", "Stop", "Supervisor",
    "SupervisorRef", "SupervisorsError", "SystemDown", "Task", "TooManyChildren", "WrongTask", "task",
]
# fmt: on
