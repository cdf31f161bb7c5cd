"""Who started and who ended, in the order in which they did.

    system.sinks.append(recorder := Recorder())
    ...
    assert recorder.take() == ["+a", "+b", "-b shutdown"]

It hears of children that ended before the line after an `await` runs, since sinks are told at once.
"""

from __future__ import annotations

from supervisors.events import Event, Exited, Started, StartFailed
from supervisors.reasons import Crash, ExitReason, Killed, Normal


class Recorder:
    """A sink. `events` are all it was told; `log` says of children: `+id`, `-id reason`, `!id` (a failed start), `~id`
    (an ignored one).
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.log: list[str] = []

    def __call__(self, event: Event) -> None:
        """Take an event."""
        self.events.append(event)
        match event:
            case Started():
                self.log.append(f"+{event.spec.id}")
            case StartFailed():
                self.log.append(f"{'~' if event.reason is None else '!'}{event.spec.id}")
            case Exited():
                self.log.append(f"-{event.spec.id} {_word(event.reason)}")
            case _:
                pass

    def take(self) -> list[str]:
        """The log so far, which begins anew."""
        log, self.log = self.log, []
        return log

    def of(self, kind: type[Event]) -> list[Event]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def _word(reason: ExitReason) -> str:
    match reason:
        case Normal():
            return "normal"
        case Killed():
            return "killed"
        case Crash():
            return "crash"
        case _:
            return "shutdown"
