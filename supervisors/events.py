"""The events of a system, as a typed stream: for tests, dashboards and the log.

Events are for observation only: a sink is called synchronously, after the fact, and its exceptions are ignored.
`reports.py` is the sink that writes to structlog; `EventStream` is one to iterate over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    from supervisors.caller import Caller
    from supervisors.reasons import ExitReason
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
class StartFailed(ChildEvent):
    """A child's start failed, or raised `Ignore` (`reason` is then `None`).

    `expected`: its supervisor stopped it before its start was complete.
    """

    reason: ExitReason | None
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Exited(ChildEvent):
    """An incarnation ended. `expected`: its supervisor asked for it, or its restart type allows it (S-37, S-52).

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
class GaveUp(ChildEvent):
    """Restarts were too frequent: the supervisor `ref` ends (S-31). `spec` and `reason` are those of the last child."""

    reason: ExitReason


@dataclass(frozen=True, slots=True)
class Zombie(ChildEvent):
    """A child could not be stopped or killed. Its task still runs, but it has lost its mailbox and its name."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that will never be handled: `ref` had ended, or ended with the message in its mailbox."""

    time: float
    ref: ActorRef
    message: object


Event: TypeAlias = Started | StartFailed | Exited | Restarting | GaveUp | Zombie | DeadLetter
Sink: TypeAlias = Callable[[Event], object]


class EventStream:
    """The events of a system from now on: `async for event in system.events(): ...`. The stream ends with the system.

    A slow reader does not delay the system: beyond `buffer` events the oldest are dropped, and `dropped` counts them.
    """

    def __init__(self, promise: Callable[[], Caller], buffer: int) -> None:
        self._events: deque[Event] = deque(maxlen=buffer)
        self._make_promise = promise
        self._waiting: Caller | None = None
        self._is_closed = False
        self.dropped = 0

    def __call__(self, event: Event) -> None:
        """Add an event; a stream is a sink."""
        if len(self._events) == self._events.maxlen:
            self.dropped += 1
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        """End the stream: the reader gets the remaining events, then the end."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.reply(None)
            self._waiting = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._is_closed:
                raise StopAsyncIteration
            self._waiting = self._make_promise()
            await self._waiting.value
        return self._events.popleft()
