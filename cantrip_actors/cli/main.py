"""The program `cantrip`: how it starts, and how ctrl-C ends it at any moment.

It imports almost nothing, so that the signal handler is in place before anything that takes time begins. The commands
are in `app.py`. While an entity runs, `session.py` handles signals and stops it in good order; before and after, the
process just ends. (A signal handler must not raise: the exception could surface inside an import and be caught there.)
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

SETTLING = 0.5
"""Seconds in which a thread ends that the event loop has told to."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `arguments`, or those of the process. Exits with its code."""
    before = signal.signal(signal.SIGINT, _leave)
    _replace_closed_streams()
    try:
        from cantrip_actors.cli.app import app
        from cantrip_actors.cli.terminal import guard_terminals

        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(
                    errors="replace"
                )  # a terminal that lacks a character gets a replacement instead of a crash
        guard_terminals()
        app(args=None if arguments is None else list(arguments), prog_name="cantrip")
    except SystemExit as end:
        if arguments is None:
            _abandon_threads(end.code)
        raise
    except KeyboardInterrupt:  # asyncio restores Python's own handler when a cast is over
        _leave(signal.SIGINT, None)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write("error: the output could not be printed, because its disk is full: the loom has the result\n")
        os._exit(1)  # a normal exit would try to write the buffers once more
    finally:
        if arguments is not None:  # called by a program, which continues
            signal.signal(signal.SIGINT, before)
    raise SystemExit(0)  # not reached: the commands exit with their codes


def _abandon_threads(code: object) -> None:
    """End the process if a thread does not end: it runs a gate that was given up, and Python would wait for it."""
    import threading
    from contextlib import suppress

    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.daemon:
            continue
        thread.join(SETTLING)
        if thread.is_alive():
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            os._exit(code if isinstance(code, int) else code is not None)


def _replace_closed_streams() -> None:
    """Replace closed standard streams (`2>&-`) by /dev/null: no loom may get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115  # as long as we live


def _leave(number: int, _frame: object) -> NoReturn:
    os.write(2, b"\ninterrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
