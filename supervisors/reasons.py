"""Exit reasons: a closed union of values, and the function that makes a reason of an exception.

Pure: no clock, no I/O, no event loop. `incarnation.py` catches the exceptions; `policy.py` decides what follows from a
reason.

| reason        | when                                                        | abnormal |
|---------------|-------------------------------------------------------------|----------|
| `Normal()`    | `run` returned, or the actor raised `Stop()`                | no       |
| `Shutdown(d)` | it was asked to end, by its supervisor or a link; `d` says why | no    |
| `Killed()`    | it was killed, at once or after its grace                   | yes      |
| `Crash(exc)`  | any other exception left it                                 | yes      |

An abnormal end restarts a transient child and is reported as an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class Normal:
    """The actor ended normally."""

    def __str__(self) -> str:
        return "normal"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The actor was asked to end, and did.

    Args:
        detail: why, in the terms of the caller: a string, or one of the values below. `None` if no detail was given.
    """

    detail: object = None

    def __str__(self) -> str:
        return "shutdown" if self.detail is None else f"shutdown: {self.detail}"


@dataclass(frozen=True, slots=True)
class Killed:
    """The actor was killed, at once or after its grace."""

    def __str__(self) -> str:
        return "killed"


def render_exception(exception: BaseException) -> str:
    """Return the text of an exception, and of one whose own `__str__` raises that it has none: a report needs it."""
    try:
        return str(exception)
    except Exception:  # user code, in the middle of a report
        return "<its text cannot be read>"


@dataclass(frozen=True, slots=True)
class Crash:
    """An exception left the actor.

    Args:
        exception: the exception; of an exception group its first leaf, whose `__cause__` is the group.
        others: the other leaves of the group.
    """

    exception: BaseException
    others: tuple[BaseException, ...] = ()

    def __str__(self) -> str:
        text = f"crash: {type(self.exception).__name__}: {render_exception(self.exception)}".rstrip(": ")
        return f"{text} (and {len(self.others)} more)" if self.others else text


ExitReason: TypeAlias = Normal | Shutdown | Killed | Crash

NORMAL = Normal()
SHUTDOWN = Shutdown()
KILLED = Killed()


# --- details that supervisors give --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _BecauseOf:
    """Something ended because of a child, whose last exit had this reason."""

    text: ClassVar[str]

    child: object
    reason: ExitReason

    def __str__(self) -> str:
        return self.text.format(repr(self.child), self.reason)


class FailedToStart(_BecauseOf):
    """A supervisor ended because a child did not start when it began."""

    text = "child {} failed to start: {}"


class GaveUp(_BecauseOf):
    """A supervisor ended because restarts were too frequent. `reason` is that of the child's last exit."""

    text = "too many restarts, the last of child {}: {}"


class SignificantEnded(_BecauseOf):
    """A supervisor ended because its significant child did. `reason` is that of the child."""

    text = "significant child {} ended: {}"


class RestartedWith(_BecauseOf):
    """A child was stopped because the strategy restarts it with a sibling that ended for `reason`."""

    text = "restarted with child {}: {}"


@dataclass(frozen=True, slots=True)
class ParentEnded:
    """A child was stopped because its parent ended by itself, for `reason`."""

    reason: ExitReason

    def __str__(self) -> str:
        return f"parent ended: {self.reason}"


# --- from exceptions ----------------------------------------------------------------------------------------------


def check_reason(reason: object) -> None:
    """Refuse a value that is not an exit reason: no supervisor could decide what follows from it.

    Raises:
        TypeError: `reason` is something else.
    """
    if not isinstance(reason, ExitReason):
        raise TypeError(
            f"reason: expected Normal(), Shutdown(detail), Killed() or Crash(exception), got {reason!r}: "
            "pass your own value as the detail of a Shutdown"
        )


class Stop(Exception):
    """Raise it in an actor to end it with a reason.

    Args:
        reason: `Normal()` by default.

    Raises:
        TypeError: `reason` is not an exit reason.
    """

    def __init__(self, reason: ExitReason = NORMAL) -> None:
        check_reason(reason)
        super().__init__(reason)
        self.reason: ExitReason = reason


class Ignore(Exception):
    """Raise it in `init` if the actor is not needed now; this is not a failure."""


def is_abnormal(reason: ExitReason) -> bool:
    """Return whether a transient child is restarted after this reason."""
    return isinstance(reason, Crash | Killed)


def list_leaves(exception: BaseException) -> list[BaseException]:
    """Return the exceptions in a group, at any depth, in order; the exception itself if it is not a group."""
    if not isinstance(exception, BaseExceptionGroup):
        return [exception]
    return [leaf for part in exception.exceptions for leaf in list_leaves(part)]


def find_fatal(exception: BaseException) -> BaseException | None:
    """Return the `KeyboardInterrupt` or `SystemExit` in an exception, which never counts as a crash; else `None`."""
    if isinstance(exception, Exception) and not isinstance(exception, ExceptionGroup):
        return None  # the common case, without a group
    for leaf in list_leaves(exception):
        if isinstance(leaf, KeyboardInterrupt | SystemExit):
            return leaf
    return None


def make_reason(exception: BaseException) -> ExitReason:
    """Return the exit reason of an exception: that of a `Stop`, a crash for anything else."""
    if not isinstance(exception, BaseExceptionGroup):
        return exception.reason if isinstance(exception, Stop) else Crash(exception)
    first, *others = list_leaves(exception)
    if isinstance(first, Stop) and not others:
        return first.reason
    if first is not exception and first.__cause__ is None:
        first.__cause__ = exception
    return Crash(first, tuple(others))
