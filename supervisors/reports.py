"""Reports to structlog: one record for each thing that went wrong, with the child's name, place and spec (S-52).

The sink that every system has unless it is told otherwise. What was expected (a child that was asked to end, a
temporary one that is done) is no record; progress (`Started`) is one only on request.
"""

from __future__ import annotations

import traceback
from typing import Any

import structlog

from supervisors.events import DeadLetter, Event, Exited, GaveUp, Restarting, Started, StartFailed, Zombie
from supervisors.reasons import Crash, ExitReason


class Reports:
    """Writes events to a structlog logger.

    Args:
        logger: the logger `supervisors` if left out.
        progress: also what goes well, at level `info`.
    """

    def __init__(self, logger: Any = None, *, progress: bool = False) -> None:
        self._logger = structlog.get_logger("supervisors") if logger is None else logger
        self._progress = progress

    def __call__(self, event: Event) -> None:
        """Take an event: it is a sink."""
        match event:
            case Exited(expected=False):
                self._error("child terminated", event, event.reason)
            case StartFailed(reason=reason) if reason is not None:
                self._error("child failed to start", event, reason)
            case GaveUp():
                self._error("too many restarts", event, event.reason)
            case Zombie():
                self._logger.error("child does not end", **_place(event))
            case DeadLetter():
                self._logger.debug("dead letter", to=event.ref.path, message=repr(event.message)[:200])
            case Restarting() if event.delay:
                self._logger.warning("restart delayed", **_place(event), delay=round(event.delay, 3))
            case Started() if self._progress:
                self._logger.info("child started", **_place(event), restarts=event.restarts)
            case _:
                pass

    def _error(self, what: str, event: Exited | StartFailed | GaveUp, reason: ExitReason) -> None:
        more: dict[str, Any] = {"reason": str(reason)}
        if isinstance(reason, Crash):
            # as text: a renderer that is given the exception itself may take seconds over its frames and their locals,
            # and this is the event loop
            more["exception"] = "".join(traceback.format_exception(reason.exception))
        self._logger.error(what, **_place(event), **more)


def _place(event: Exited | StartFailed | GaveUp | Zombie | Restarting | Started) -> dict[str, Any]:
    spec = event.spec
    return {"child": str(spec.id), "path": event.ref.path, "restart": spec.restart, "shutdown": spec.shutdown}
