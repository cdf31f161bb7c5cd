"""A worker of Python programs: the process in which steps are computed, so that the host is not the one that it is.

It runs as a program of its own (`python -I -S worker.py`) and reads steps from its standard input until that ends, as
it does with the host. Its environment is empty. Each step has a time in which this process may compute, by its
processor's clock, and one in which it has to answer at all: the kernel ends the process when one of them is over, even
where the interpreter's client is in the middle of something that takes for ever and lets no other thread run.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from io import FileIO
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final

__all__ = ["ENDED_BY_TIME", "main"]

STALLED: Final = 10.0
"""Seconds past its limit after which a step is given up in which nobody computes."""

_ADDRESSES: Final = 4 * 2**30
"""Bytes of address space, of this process and of the interpreter: the last resort behind the accounting of memory."""

_PACKAGE: Final = "cantrip_actors"

ENDED_BY_TIME: Final = () if sys.platform == "win32" else (-signal.SIGPROF, -signal.SIGALRM)
"""The exit codes of a worker whose time was over, as `subprocess` has them."""


def main(binary: str, *folders: str) -> None:
    """Compute steps until the host has ended. `folders` are where packages are found that are not Python's own."""
    requests, answers, printed = FileIO(os.dup(0), "r"), FileIO(os.dup(1), "w"), FileIO(os.dup(2), "w")
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    sys.excepthook = _fail
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # which the interpreter inherits
        os.dup2(null, number)
    os.close(null)
    sys.path += folders
    _register(_PACKAGE)
    _register(f"{_PACKAGE}.circle")

    from cantrip_actors.circle.python.frames import receive, send
    from cantrip_actors.circle.python.steps import Steps

    _confine()
    clock = _Clock()
    gc.freeze()  # what has been imported stays
    with Steps(binary, printed, clock) as steps:
        while (frame := receive(requests)) is not None:
            made = steps.compute(frame.said, frame.state)
            clock.stop()
            try:
                send(answers, *made)
            except BrokenPipeError:
                return


def _register(name: str) -> None:
    """Make a package known as a folder of modules, without what importing it would load besides."""
    package = ModuleType(name)
    package.__path__ = [str(Path(__file__).parents[2].joinpath(*name.split(".")[1:]))]
    sys.modules[name] = package


def _fail(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """Write a traceback for the host to read, and end before a stream is closed: so the exit code says what it was."""
    sys.__excepthook__(kind, error, at)
    sys.stderr.flush()
    os._exit(1)


def _confine() -> None:
    """Set what the kernel can limit, here and in the interpreter, which inherits it."""
    if sys.platform == "win32":
        return
    import resource

    os.nice(5)  # a program that spins is not to slow down the loop that waits for it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _ADDRESSES if hard == resource.RLIM_INFINITY else min(hard, _ADDRESSES)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


class _Clock:
    """The kernel's timers, which end this process: one for its own computing, one for the time that a step takes."""

    def start(self, seconds: float) -> None:
        """Begin a step that may compute here for so many seconds, and has to be over some seconds later."""
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.setitimer(signal.ITIMER_REAL, seconds + STALLED)

    def shorten(self, seconds: float) -> None:
        """Allow no more than so many seconds of computing from here on."""
        if sys.platform != "win32":
            left, _ = signal.getitimer(signal.ITIMER_PROF)
            if seconds < left:
                signal.setitimer(signal.ITIMER_PROF, seconds)

    def stop(self) -> None:
        """End a step: nobody waits for this process any more."""
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
