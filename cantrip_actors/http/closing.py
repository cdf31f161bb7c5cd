"""Bound the time in which a drained service closes: a gate may refuse to be cancelled, and Python waits for it.

After the drain nothing that is left can be acknowledged any more, and the loom survives any end. So the process ends
after `CLOSING` seconds, also if the event loop does not run, or at once at another signal.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from cantrip_actors.redact.logs import get_logger

CLOSING: Final = 10.0
"""Seconds: a cancelled gate that runs in a thread has four."""

_log = get_logger("cantrip_actors.http")


@contextmanager
def bound_closing(seconds: float = CLOSING) -> Iterator[None]:
    """End the process if the block takes longer than `seconds`, or at a signal. For the main thread.

    The exit code is 1, or 128 and the number of the signal.
    """
    timer = threading.Timer(seconds, _give_up, (seconds,))
    timer.daemon = True
    handlers = {signal.SIGTERM: _leave, signal.SIGINT: _leave, signal.SIGHUP: ignore_signal}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _give_up(seconds: float) -> None:
    hint = "a gate may shield itself from its cancellation; what was recorded is kept, and the next process resumes it"
    _log.error("the service ends although something in it does not", seconds=seconds, hint=hint)
    os._exit(1)


def ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. Unlike SIG_IGN, a program that is started does not inherit it."""


def _leave(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
