"""Records which children started and ended, in order.

    system.sinks.append(recorder := Recorder())
    ...
    assert recorder.take() == ["+a", "+b", "-b shutdown"]

Sinks are called at once, so the log is complete before the line after an `await` runs.
"""

from __future__ import annotations

from supervisors.events import Event, Exited, Started, StartFailed
from supervisors.reasons import Crash, ExitReason, Killed, Normal


class Recorder:
    """A sink. `events` has all events; `log` has an entry per child event: `+id`, `-id reason`, `!id` (a failed start),
    `~id` (an ignored start).
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.log: list[str] = []

    def __call__(self, event: Event) -> None:
        """Record an event."""
        self.events.append(event)
        match event:
            case Started():
                self.log.append(f"+{event.spec.id}")
            case StartFailed():
                self.log.append(f"{'~' if event.reason is None else '!'}{event.spec.id}")
            case Exited():
                self.log.append(f"-{event.spec.id} {_name_reason(event.reason)}")
            case _:
                pass

    def take(self) -> list[str]:
        """Return the log so far, and clear it."""
        log, self.log = self.log, []
        return log

    def of(self, kind: type[Event]) -> list[Event]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def _name_reason(reason: ExitReason) -> str:
    match reason:
        case Normal():
            return "normal"
        case Killed():
            return "killed"
        case Crash():
            return "crash"
        case _:
            return "shutdown"
