"""Reports to structlog: one record for each failure, with the child's name, path and spec (S-52).

This is the default sink of a system. Expected ends (a child that was asked to end, a temporary one that is done) are
not recorded; progress (`Started`) is recorded only on request.

So that a storm of restarts does not spend its time on logging, records beyond `burst` within a second are dropped and
counted, with a note when dropping begins and one when it ends. OTP's logger does the same, with the same figures
(`burst_limit_max_count`, `burst_limit_window_time`). That a supervisor gave up, or a child does not end, is never
dropped.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

from supervisors.events import ChildEvent, DeadLetter, Event, Exited, GaveUp, Restarting, Started, StartFailed, Zombie
from supervisors.reasons import Crash, ExitReason

#: Records within `WINDOW` seconds before the rest is dropped; OTP's own numbers.
BURST = 500
WINDOW = 1.0

#: The modules that a traceback passes through before it reaches the user's code.
_HERE = str(Path(__file__).parent) + os.sep


class Reports:
    """Writes events to a structlog logger.

    Args:
        logger: the logger `supervisors` if left out.
        progress: also log successful starts, at level `info`.
        burst: how many records a second are written; the rest are counted. `None` for no limit.
    """

    def __init__(self, logger: Any = None, *, progress: bool = False, burst: int | None = BURST) -> None:
        self._logger = structlog.get_logger("supervisors") if logger is None else logger
        self._progress = progress
        self._burst = burst
        self._since = 0.0  # when the current window began, in seconds of the events' clock
        self._written = 0  # records in the current window
        self._dropped = 0

    def __call__(self, event: Event) -> None:
        """Log an event; this makes it a sink."""
        match event:
            case GaveUp():
                self._report_error("too many restarts", event, event.reason)
            case Zombie():
                self._logger.error("child does not end", **_describe_place(event))
            case Exited(expected=False) if self._is_admitted(event):
                self._report_error("child terminated", event, event.reason)
            case StartFailed(expected=False, reason=reason) if reason is not None and self._is_admitted(event):
                self._report_error("child failed to start", event, reason)
            case Restarting() if event.delay > 0 and self._is_admitted(event):
                self._logger.warning("restart delayed", **_describe_place(event), delay=round(event.delay, 3))
            case Started() if self._progress and self._is_admitted(event):
                self._logger.info("child started", **_describe_place(event), restarts=event.restarts)
            case DeadLetter() if self._is_admitted(event):
                self._logger.debug("dead letter", to=event.ref.path, message=type(event.message).__name__)
            case _:
                pass

    def report_torn_down(self) -> None:
        """Log that the event loop was closed under the actors. No more reports follow."""
        self._logger.warning("the event loop was closed before the actors were stopped: they end where they stood")

    def close(self) -> None:
        """End the reports: log how many were dropped, if that was not logged yet."""
        if self._dropped:
            self._logger.warning("reports were dropped", count=self._dropped)
            self._dropped = 0

    def _is_admitted(self, event: Event) -> bool:
        """Count a record, and return whether to write it."""
        if self._burst is None:
            return True
        if not 0.0 <= event.time - self._since < WINDOW:  # also if it is of another system, with another clock
            self.close()
            self._since, self._written = event.time, 0
        self._written += 1
        if self._written <= self._burst:
            return True
        if not self._dropped:
            self._logger.warning("too many reports, dropping them", limit=self._burst, seconds=WINDOW)
        self._dropped += 1
        return False

    def _report_error(self, what: str, event: ChildEvent, reason: ExitReason) -> None:
        more: dict[str, Any] = {"reason": str(reason)}
        if isinstance(reason, Crash):
            # as text: a renderer that gets the exception itself may take seconds to render its frames and locals, and
            # would block the event loop
            exception = reason.exception
            own = strip_own_frames(exception.__traceback__)
            more["exception"] = "".join(traceback.format_exception(type(exception), exception, own))
        self._logger.error(what, **_describe_place(event), **more)


def strip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback in the user's code: this package's own frames help no reader and take time to
    print.

    If the exception was raised in this package, return all of it.
    """
    own = trace
    while own is not None and own.tb_frame.f_code.co_filename.startswith(_HERE):
        own = own.tb_next
    return own or trace


def _describe_place(event: ChildEvent) -> dict[str, Any]:
    spec = event.spec
    return {"child": str(spec.id), "path": event.ref.path, "restart": spec.restart, "shutdown": spec.shutdown}
