"""The events of a system, as a typed stream: for tests, dashboards and the log.

Events are for observation only: a sink is called synchronously, after the fact, and its exceptions are ignored.
`EventStream` is a sink to iterate over. `Reports`, the default sink of a system, writes one record for each failure,
with the child's name, path and spec: to structlog if the program has configured it, or else to `logging`. Expected
ends (a child that was asked to end, a temporary one that is done) are not recorded; progress (`Started`) is recorded
only on request.

So that a storm of restarts does not spend its time on logging, records beyond `burst` within a second are dropped and
counted, with a note when dropping begins and one when it ends. OTP's logger does the same, with the same figures
(`burst_limit_max_count`, `burst_limit_window_time`). That a supervisor gave up, or a child does not end, is never
dropped.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import anyio

from supervisors.reasons import Crash, ExitReason

if TYPE_CHECKING:
    from supervisors.ref import ActorRef
    from supervisors.spec import ChildSpec


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """Something happened to a child. `time` is in seconds of the event loop's clock."""

    time: float
    ref: ActorRef
    spec: ChildSpec[Any]


@dataclass(frozen=True, slots=True)
class Started(ChildEvent):
    """A child is up: its `init` is done."""

    restarts: int  # restarts of this identity so far


@dataclass(frozen=True, slots=True)
class StartFailedEvent(ChildEvent):
    """A child's start failed, or raised `Ignore` (`reason` is then `None`).

    `expected`: its supervisor stopped it before its start was complete.
    """

    reason: ExitReason | None
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Exited(ChildEvent):
    """An incarnation ended. `expected`: its supervisor asked for it, or its restart type allows it.

    `call` is the type of the message of a call that it had in hand, if any; `kind` is the class of the actor, and
    `restarts` how often this identity had been restarted. `recent_restarts` is how many restarts of any child its
    supervisor had made within its `period`.
    """

    reason: ExitReason
    expected: bool
    call: str | None = None
    kind: str = ""
    restarts: int = 0
    recent_restarts: int = 0


@dataclass(frozen=True, slots=True)
class Restarting(ChildEvent):
    """A child will be restarted, `delay` seconds from now."""

    reason: ExitReason
    delay: float


@dataclass(frozen=True, slots=True)
class GaveUpEvent(ChildEvent):
    """Restarts were too frequent: the supervisor `ref` ends. `spec` and `reason` are those of the last child."""

    reason: ExitReason


@dataclass(frozen=True, slots=True)
class Zombie(ChildEvent):
    """A child could not be stopped or killed. Its task still runs, but it has lost its mailbox and its name."""


@dataclass(frozen=True, slots=True)
class Overrun(ChildEvent):
    """A task that answers a call did not end within the call's grace. It still runs; its reply reaches no caller.

    `call` is the type of the call's message.
    """

    call: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that will never be handled: `ref` had ended, or ended with the message in its mailbox."""

    time: float
    ref: ActorRef
    message: object


Event: TypeAlias = Started | StartFailedEvent | Exited | Restarting | GaveUpEvent | Zombie | Overrun | DeadLetter
Sink: TypeAlias = Callable[[Event], object]


class EventStream:
    """The events of a system from now on: `async for event in system.events(): ...`. The stream ends with the system.

    A slow reader does not delay the system: beyond `buffer` events the oldest are dropped, and `dropped` counts them. A
    reader that stops before the system does calls `close`.
    """

    def __init__(self, buffer: int, sinks: list[Sink]) -> None:
        self._events: deque[Event] = deque(maxlen=buffer)
        self._has_changed = anyio.Event()
        self._sinks = sinks
        self._is_closed = False
        self.dropped = 0

    def __call__(self, event: Event) -> None:
        """Add an event; a stream is a sink."""
        if len(self._events) == self._events.maxlen:
            self.dropped += 1
        self._events.append(event)
        self._has_changed.set()

    def close(self) -> None:
        """End the stream: it takes no more events, and the reader gets the remaining ones, then the end."""
        self._is_closed = True
        if self in self._sinks:
            self._sinks.remove(self)
        self._has_changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._is_closed:
                raise StopAsyncIteration
            self._has_changed = anyio.Event()
            await self._has_changed.wait()
        return self._events.popleft()


# --- reports ----------------------------------------------------------------------------------------------------------

#: Records within `WINDOW` seconds before the rest is dropped; OTP's own numbers.
BURST = 500
WINDOW = 1.0

#: The modules that a traceback passes through before it reaches the user's code.
_HERE = str(Path(__file__).parent) + os.sep


class Reports:
    """Writes events to a logger, as structlog's: a method for each level, which takes an event and its fields.

    Args:
        logger: if left out, structlog's logger `supervisors` if the program has configured structlog, or else that of
            `logging`: structlog's own default is standard output, which belongs to the program.
        progress: also log successful starts, at level `info`.
        burst: how many records a second are written; the rest are counted. `None` for no limit.
    """

    def __init__(self, logger: Any = None, *, progress: bool = False, burst: int | None = BURST) -> None:
        self._given = logger
        self._progress = progress
        self._burst = burst
        self._since = 0.0  # when the current window began, in seconds of the events' clock
        self._written = 0  # records in the current window
        self._dropped = 0

    @property
    def _logger(self) -> Any:
        """The logger for the next record: the program may configure structlog at any time."""
        if self._given is not None:
            return self._given
        structlog = sys.modules.get("structlog")  # a program that has configured it has imported it
        if structlog is None or not structlog.is_configured():
            return _PlainLogger()
        return structlog.get_logger("supervisors")

    def __call__(self, event: Event) -> None:
        """Log an event; this makes it a sink."""
        match event:
            case GaveUpEvent():
                self._report_error("too many restarts", event, event.reason)
            case Zombie():
                self._logger.error("child does not end", **_describe_place(event))
            case Overrun():
                self._logger.error("task does not end", **_describe_place(event), call=event.call)
            case Exited(expected=False) if self._is_admitted(event):
                self._report_error("child terminated", event, event.reason)
            case StartFailedEvent(expected=False, reason=reason) if reason is not None and self._is_admitted(event):
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


class _PlainLogger:
    """Writes to `logging` what `Reports` writes to structlog."""

    def _log(self, level: int, event: str, **fields: Any) -> None:
        text = " ".join(f"{key}={value!r}" for key, value in fields.items() if key != "exception")
        trace = fields.get("exception")
        logging.getLogger("supervisors").log(level, "%s  %s%s", event, text, f"\n{trace}" if trace else "")

    debug = partialmethod(_log, logging.DEBUG)
    info = partialmethod(_log, logging.INFO)
    warning = partialmethod(_log, logging.WARNING)
    error = partialmethod(_log, logging.ERROR)


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
