"""The errors of calls and management requests: one hierarchy, so that `except SupervisorsError` catches all.

An actor's own failure is not one of these: it is a `Crash` reason, which goes to its supervisor. At the end are the
checks of plain values that users pass.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

if TYPE_CHECKING:
    from supervisors.reasons import ExitReason
    from supervisors.ref import ActorRef


E = TypeVar("E", bound=BaseException)


class SupervisorsError(Exception):
    """The root of the errors that this package raises.

    In another process, and in a copy, an error has its text and its attributes, without the `ref` of an actor.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            _make_again,
            (type(self), self.args),
            {name: self.__dict__[name] for name in self.__dict__ if name != "ref"},
        )


def _make_again(kind: type[E], args: tuple[object, ...]) -> E:
    """Return an error with these `args`, without the constructor of its class, which takes others."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


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
    """The actor ended while it handled the call. It may be running again: the caller decides whether to call again.

    Its `__cause__` is the exception of a crash.
    """

    def __init__(self, ref: ActorRef, reason: ExitReason) -> None:
        super().__init__(ref, f"ended during the call ({reason})")
        self.reason = reason
        self.__cause__ = getattr(reason, "exception", None)


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


class SpecError(SupervisorsError, ValueError):
    """A child spec or a supervisor's flag is wrong. `what` is the name of the field."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what}: {text}")
        self.what = what


class ManagementError(SupervisorsError):
    """A supervisor refused a request. `child` is the id or the ref in the request."""

    text = "refused"

    def __init_subclass__(cls, text: str = "") -> None:
        cls.text = text

    def __init__(self, child: object) -> None:
        super().__init__(f"child {child!r} {self.text}")
        self.child = child


class StartFailed(ManagementError):
    """The child's start failed, and the child was removed again."""

    def __init__(self, child: object, reason: ExitReason) -> None:
        self.text = f"failed to start: {reason}"
        super().__init__(child)
        self.reason = reason


class AlreadyStarted(ManagementError, text="runs already"):
    """A child with this id is running: `ref`."""

    def __init__(self, child: object, ref: ActorRef) -> None:
        super().__init__(child)
        self.ref = ref


class AlreadyPresent(ManagementError, text="is there already, not running"):
    """A child with this id is stopped or being restarted."""


class ChildNotFound(ManagementError, text="was not found among the children of this supervisor"):
    """No child has this id or ref."""


class ChildRunning(ManagementError, text="is running"):
    """Not possible while the child runs."""


class ChildRestarting(ManagementError, text="is being restarted"):
    """Not possible while the child is being restarted."""


class NotForDynamic(ManagementError, text="belongs to a dynamic supervisor, which keeps no stopped children"):
    """A dynamic supervisor keeps no spec to restart or delete."""


class TooManyChildren(ManagementError, text="is one too many: max_children is reached"):
    """`max_children` is reached."""


class ShuttingDown(ManagementError):
    """The supervisor is ending, and takes no more requests. `child` is `None` if the request was not about one."""

    def __init__(self, child: object = None) -> None:
        about = "" if child is None else f"child {child!r}: "
        SupervisorsError.__init__(self, f"{about}the supervisor is shutting down and takes no more requests")
        self.child = child


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


# --- checks -------------------------------------------------------------------------------------------------------


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is an int or a float; a bool is neither here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_hashable(key: object) -> TypeGuard[Hashable]:
    """Return whether `key` can be the key of a dict. A tuple with a list in it is a `Hashable` and cannot."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


def check_seconds(what: str, seconds: object) -> None:
    """Refuse a time that is not a number: a timer without a due time would never fire, or delay all others.

    Raises:
        ValueError: naming `what`.
    """
    if not is_number(seconds) or math.isnan(seconds):
        raise ValueError(f"{what}: expected seconds, got {seconds!r}")
