"""The worker process: it computes the steps of Python programs outside of the host's process.

It runs as a program of its own (`python -I -S worker.py`) and reads steps from its standard input until that closes,
which also happens when the host ends. Its environment is empty. Each step has a limit on this process's CPU time and a
limit on its duration. The kernel ends the process at either limit, even while the interpreter's client blocks every
thread of Python.
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

_ADDRESSES: Final = 4 * 2**30
"""Bytes of address space of this process and of the interpreter: a last bound in case memory accounting fails."""

_PACKAGE: Final = "cantrip_actors"

ENDED_BY_TIME: Final = () if sys.platform == "win32" else (-signal.SIGPROF, -signal.SIGALRM)
"""The exit codes of a worker that exceeded a time limit, as `subprocess` reports them."""


def main(binary: str, *folders: str) -> None:
    """Compute steps until the host has ended. `folders` contain the third-party packages."""
    requests, answers, printed = FileIO(os.dup(0), "r"), FileIO(os.dup(1), "w"), FileIO(os.dup(2), "w")
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    sys.excepthook = _fail
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # the interpreter inherits these
        os.dup2(null, number)
    os.close(null)
    sys.path += folders
    _register(_PACKAGE)
    _register(f"{_PACKAGE}.circle")

    from cantrip_actors.circle.python.frames import receive, send
    from cantrip_actors.circle.python.steps import KernelTimers, Steps, make_interpreter

    _confine()
    clock = KernelTimers()
    gc.freeze()  # modules live as long as the process
    with make_interpreter(binary) as interpreter:
        steps = Steps(interpreter, printed, clock)
        while (frame := receive(requests)) is not None:
            result = steps.compute(frame.data, frame.state)
            clock.stop()
            try:
                send(answers, *result)
            except BrokenPipeError:
                return


def _register(name: str) -> None:
    """Register a package as a folder of modules, without running its `__init__`."""
    package = ModuleType(name)
    package.__path__ = [str(Path(__file__).parents[2].joinpath(*name.split(".")[1:]))]
    sys.modules[name] = package


def _fail(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """Write a traceback for the host to read, and exit with code 1 before any stream closes."""
    sys.__excepthook__(kind, error, at)
    sys.stderr.flush()
    os._exit(1)


def _confine() -> None:
    """Set the kernel's limits for this process and for the interpreter, which inherits them."""
    if sys.platform == "win32":
        return
    import resource

    os.nice(5)  # a spinning program must not slow down the host's event loop
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _ADDRESSES if hard == resource.RLIM_INFINITY else min(hard, _ADDRESSES)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main(*sys.argv[1:])
