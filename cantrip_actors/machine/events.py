"""What happens to a loop, as values; and the moment at which it happens."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from cantrip_actors.machine.budget import NO_BUDGET, Budget
from cantrip_actors.records.blob import Snapshot
from cantrip_actors.records.records import Observation
from cantrip_actors.terms.image import NO_IMAGES, Image
from cantrip_actors.terms.messages import NO_USAGE, Response, Usage
from cantrip_actors.terms.outcome import EndReason

__all__ = [
    "Begin",
    "Called",
    "ChildOutcome",
    "Computed",
    "Event",
    "Failed",
    "Interrupt",
    "Moment",
    "Observed",
    "Posted",
    "Questioned",
    "Remembered",
    "Replied",
    "Returned",
    "Steer",
    "Steering",
    "Stopped",
]


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    """Return that second of the epoch, ISO 8601 in UTC: the clock is read many times in each."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Moment(NamedTuple):
    """What the runtime knows when an event happens: the time, an unused id, and what is left of the budgets.

    `now` is a monotonic clock and `wall` the time since the epoch, both in seconds.
    """

    now: float
    wall: float
    fresh: str
    budget: Budget = NO_BUDGET

    def since(self, mark: float) -> float:
        """Return the milliseconds since a `now`, to the microsecond: finer figures are noise that every log keeps."""
        return round((self.now - mark) * 1e6) / 1e3

    @property
    def at(self) -> str:
        """The time of day, ISO 8601 in UTC, to the millisecond."""
        seconds, rest = divmod(round(self.wall * 1e6), 1_000_000)
        return f"{_second(seconds)}.{rest // 1000:03d}Z"


class Begin(NamedTuple):
    """An intent, and data for it; `key` and `sender` are those of the mail that brought it."""

    intent: str
    context: Any = None
    images: tuple[Image, ...] = NO_IMAGES
    key: str | None = None
    sender: str | None = None


class Replied(NamedTuple):
    """The crystal's response."""

    response: Response


class Posted(NamedTuple):
    """The crystal took the query and will answer later; `handle`, a JSON value, is what it is asked with then."""

    handle: Any


class Failed(NamedTuple):
    """The crystal broke its contract, or failed after its retries: the text of the error.

    `usage` is what its answers cost; `overflows` says that the context was too long for it.
    """

    error: str
    usage: Usage = NO_USAGE
    overflows: bool = False


class Observed(NamedTuple):
    """The observation of the gate call that was carried out."""

    observation: Observation


class Questioned(NamedTuple):
    """The message of an `ask` is accepted: the call waits for the episode of the intent with this key."""

    to: str
    key: str


class ChildOutcome(NamedTuple):
    """How a child ended: its result, or why there is none; what its subtree used; the images that the result names."""

    result: Any
    error: str | None = None
    usage: Usage = NO_USAGE
    images: tuple[Image, ...] = NO_IMAGES


class Returned(NamedTuple):
    """The children of one call have ended: an outcome each, in the order of the request (COMP-3)."""

    outcomes: tuple[ChildOutcome, ...]


class Remembered(NamedTuple):
    """What stays in sight of the turns that are about to be folded; None: only that there were some."""

    text: str | None = None
    usage: Usage = NO_USAGE


class Stopped(NamedTuple):
    """The entity is ended from outside: by its deadline, a budget, its parent, a caller."""

    reason: EndReason
    detail: str
    key: str | None = None
    sender: str | None = None


class Called(NamedTuple):
    """The program of a code circle calls a gate and waits; `output` is what it printed since the last event.

    `snapshot` is the program as it waits, if it is worth keeping.
    """

    gate: str
    args: Mapping[str, Any] | None
    output: str = ""
    snapshot: Snapshot | None = None


class Computed(NamedTuple):
    """The program has ended: with a value, with an error, or over a limit, which undid the turn's work.

    `snapshot` is the sandbox as it is now, if it is worth keeping.
    """

    value: Any = None
    output: str = ""
    error: str | None = None
    limit: str | None = None
    snapshot: Snapshot | None = None


class Steering(NamedTuple):
    """One message for the entity, and the mail that brought it."""

    text: str
    images: tuple[Image, ...] = NO_IMAGES
    key: str | None = None
    sender: str | None = None


class Steer(NamedTuple):
    """Messages to put in before the next query."""

    messages: tuple[Steering, ...]


class Interrupt(NamedTuple):
    """The episode is ended from outside; a long-lived entity then waits for its next intent."""

    detail: str
    key: str | None = None
    sender: str | None = None


Event = (
    Begin
    | Replied
    | Posted
    | Failed
    | Remembered
    | Observed
    | Questioned
    | Returned
    | Called
    | Computed
    | Stopped
    | Steer
    | Interrupt
)
