"""Ctrl-C under trio: it reaches the task that the program began with, where that waits, and interrupts no actor.

asyncio does so already: the first Ctrl-C cancels the first task. trio raises `KeyboardInterrupt` in whatever code
runs, also between two statements of an actor, of a supervisor, or of a function that opens or closes a system: work is
lost, tasks are left, and the program ends with a group of exceptions. trio can defer the interrupt until the first task
waits, but only within a function whose author says so, and not for tasks.

So while a system is open in a trio program, trio's handler of SIGINT has this one before it. It decides by the code
that Ctrl-C has interrupted, from the innermost frame outwards:

| the code                                                         | where `KeyboardInterrupt` is raised     |
|------------------------------------------------------------------|-----------------------------------------|
| a function under `allow_interrupts`, or code that it calls       | there: it may never wait                |
| code of a package that defers, or that it calls                  | in the first task, where it waits next  |
| the task of an actor, and the tasks that it starts               | likewise                                |
| any other                                                        | where trio raises it                    |

A program with a handler of its own keeps it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

IN_SYSTEM: ContextVar[bool] = ContextVar("supervisors_in_system", default=False)
"""Whether the running task is an actor's, or was started by one."""

_packages = {"supervisors"}
_allowing: set[CodeType] = set()
_guards = 0
_original: Callable[[int, FrameType | None], object] | None = None


def defer_interrupts_in(package: str) -> None:
    """Defer interrupts of all code in a top-level package that is built on systems."""
    _packages.add(package)


def allow_interrupts(function: F) -> F:
    """Let Ctrl-C interrupt the code that this function calls, unless that belongs to a package that defers."""
    _allowing.add(function.__code__)
    return function


def open_guard() -> None:
    """Handle Ctrl-C as above from now on, if this is the main thread, and trio handles it now."""
    global _guards, _original  # noqa: PLW0603 - a process has one handler of SIGINT
    if threading.current_thread() is not threading.main_thread():
        return
    _guards += 1
    handler = signal.getsignal(signal.SIGINT)
    if handler is not _handle and getattr(handler, "__module__", "") == "trio._core._ki":
        assert callable(handler)
        _original = handler
        signal.signal(signal.SIGINT, _handle)


def close_guard() -> None:
    """End this, if no other system is open: each `open_guard` has its `close_guard`."""
    global _guards  # noqa: PLW0603 - as above
    if threading.current_thread() is not threading.main_thread():
        return
    _guards -= 1
    if not _guards and signal.getsignal(signal.SIGINT) is _handle:
        signal.signal(signal.SIGINT, _original)


def _handle(number: int, frame: FrameType | None) -> None:
    assert _original is not None
    _original(number, None if _is_deferred(frame) else frame)  # trio defers an interrupt without a frame


def _is_deferred(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _allowing:
            return False
        if frame.f_globals.get("__name__", "").partition(".")[0] in _packages:
            return True
        frame = frame.f_back
    return IN_SYSTEM.get()
