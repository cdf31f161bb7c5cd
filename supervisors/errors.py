"""The errors of calls and management requests: one hierarchy, so that `except SupervisorsError` catches all.

An actor's own failure is not one of these: it is a `Crash` reason, which goes to its supervisor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisors.reasons import ExitReason
    from supervisors.ref import ActorRef


class SupervisorsError(Exception):
    """The root of the errors that this package raises."""


# --- calls --------------------------------------------------------------------------------------------------------


class CallError(SupervisorsError):
    """A call got no reply. `ref` is the actor that was called."""

    def __init__(self, ref: ActorRef, text: str) -> None:
        super().__init__(f"{ref!r} {text}")
        self.ref = ref


class NotRunning(CallError):
    """The actor was not started yet, or ended before it handled the call.

    `reason` is its last exit, if there was one.
    """

    def __init__(self, ref: ActorRef, reason: ExitReason | None) -> None:
        super().__init__(ref, "is not running" + ("" if reason is None else f" ({reason})"))
        self.reason = reason


class Died(CallError):
    """The actor ended while it handled the call. It may be running again: the caller decides whether to call again."""

    def __init__(self, ref: ActorRef, reason: ExitReason) -> None:
        super().__init__(ref, f"ended during the call ({reason})")
        self.reason = reason


class CallTimeout(CallError, TimeoutError):
    """No reply within `timeout` seconds. A late one is dropped."""

    def __init__(self, ref: ActorRef, timeout: float) -> None:
        super().__init__(ref, f"did not reply within {timeout:g} s")
        self.timeout = timeout


class SelfCall(CallError):
    """An actor called itself, and would wait for ever."""

    def __init__(self, ref: ActorRef) -> None:
        super().__init__(ref, "called itself")


class MailboxFull(CallError):
    """The mailbox is full: it holds `mailbox_limit` messages."""

    def __init__(self, ref: ActorRef, limit: int) -> None:
        super().__init__(ref, f"has {limit} messages waiting, and its mailbox takes no more")
        self.limit = limit


class Failed(SupervisorsError):
    """Raised by `Outcome.unwrap` if the actor did not end normally; the exception of a crash is the cause."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


# --- specs --------------------------------------------------------------------------------------------------------


class SpecError(SupervisorsError, ValueError):
    """A child spec or a supervisor's flag is wrong. `what` is the name of the field (S-12)."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what}: {text}")
        self.what = what


# --- management ---------------------------------------------------------------------------------------------------


class ManagementError(SupervisorsError):
    """A supervisor refused a request. `child` is the id or the ref in the request."""

    text = "refused"

    def __init__(self, child: object) -> None:
        super().__init__(f"child {child!r} {self.text}")
        self.child = child


class StartFailed(ManagementError):
    """The child's start failed, and the child was removed again (S-09, S-41)."""

    def __init__(self, child: object, reason: ExitReason) -> None:
        self.text = f"failed to start: {reason}"
        super().__init__(child)
        self.reason = reason


class AlreadyStarted(ManagementError):
    """A child with this id is running: `ref` (S-10)."""

    text = "runs already"

    def __init__(self, child: object, ref: ActorRef) -> None:
        super().__init__(child)
        self.ref = ref


class AlreadyPresent(ManagementError):
    """A child with this id is stopped or being restarted (S-10)."""

    text = "is there already, not running"


class ChildNotFound(ManagementError):
    """No child has this id or ref (S-40 ... S-42)."""

    text = "is not known here"


class ChildRunning(ManagementError):
    """Not possible while the child runs (S-41, S-42)."""

    text = "is running"


class ChildRestarting(ManagementError):
    """Not possible while the child is being restarted (S-41, S-42)."""

    text = "is being restarted"


class NotForDynamic(ManagementError):
    """A dynamic supervisor keeps no spec to restart or delete (S-42)."""

    text = "belongs to a dynamic supervisor, which keeps no stopped children"


class TooManyChildren(ManagementError):
    """`max_children` is reached."""

    text = "is one too many: max_children is reached"


class ShuttingDown(ManagementError):
    """The supervisor is ending: it starts no more children and takes no more requests.

    `child` is `None` if the request was not about one child.
    """

    def __init__(self, child: object = None) -> None:
        about = "" if child is None else f"child {child!r}: "
        SupervisorsError.__init__(self, f"{about}the supervisor is shutting down and takes no more requests")
        self.child = child


# --- names and systems --------------------------------------------------------------------------------------------


class NameTaken(SupervisorsError):
    """Another actor has this name: `ref`."""

    def __init__(self, name: object, ref: ActorRef) -> None:
        super().__init__(f"the name {name!r} belongs to {ref!r}")
        self.name = name
        self.ref = ref


class SystemDown(SupervisorsError):
    """The system's top supervisor ended by itself. `reason` says why."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(f"the actor system is down: {reason}")
        self.reason = reason


class WrongTask(SupervisorsError, RuntimeError):
    """The block of a system was left in another task than the one that entered it, which still runs.

    All actors have ended, but the task group in the first task stays open.
    """

    def __init__(self) -> None:
        super().__init__("`async with` was left in another task than the one that entered it: leave it in that task")
