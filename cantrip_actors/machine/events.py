"""Events of a loop, as values; and the moment of an event."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from cantrip_actors.machine.budget import NO_BUDGET, Budget
from cantrip_actors.records.blob import Snapshot
from cantrip_actors.records.records import Decision, Observation
from cantrip_actors.terms.file import File
from cantrip_actors.terms.history import PastMessage
from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.messages import NO_USAGE, Response, Usage
from cantrip_actors.terms.outcome import EndReason
from cantrip_actors.terms.value import Value


@lru_cache(maxsize=8)
def _format_second(seconds: int) -> str:
    """Return a second of the epoch as ISO 8601 in UTC; cached, because the clock is read many times a second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Moment(Value, frozen=True, gc=False):
    """The circumstances of an event: the time, an unused id, and the budgets.

    `now` is a monotonic clock and `wall` the time since the epoch, both in seconds.
    """

    now: float
    wall: float
    fresh: str
    budget: Budget = NO_BUDGET

    def measure_since(self, mark: float) -> float:
        """Return the milliseconds since a `now`, rounded to microseconds to keep logs small."""
        return round((self.now - mark) * 1e6) / 1e3

    @property
    def at(self) -> str:
        """The time of day, ISO 8601 in UTC, to the millisecond."""
        return self.format_later(0.0)

    def format_later(self, seconds: float) -> str:
        """Return the time of day in so many seconds, in the same form."""
        whole, rest = divmod(round((self.wall + seconds) * 1e6), 1_000_000)
        return f"{_format_second(whole)}.{rest // 1000:03d}Z"


class Begin(NamedTuple):
    """An intent, data for it, and its history; `key` and `sender` are those of its mail; the other fields are for its
    record, which has all of them in this order.
    """

    intent: str
    context: Any = None
    images: tuple[File, ...] = NO_IMAGES
    key: str | None = None
    sender: str | None = None
    trace: str | None = None
    dependencies: str | None = None
    history: tuple[PastMessage, ...] = ()
    note: Any = None


class Replied(Value, frozen=True, gc=False):
    """The crystal's response."""

    response: Response


class Posted(NamedTuple):
    """The crystal took the query and will answer later; `handle`, a JSON value, identifies the query."""

    handle: Any


class Elapsed(NamedTuple):
    """The entity has waited for the next period of a budget, or for a part of the time."""


class Failed(NamedTuple):
    """The crystal broke its contract, or failed after its retries; `error` is the text of the error.

    `usage` is what its answers used; `overflows` is true if the context was too long for it.
    """

    error: str
    usage: Usage = NO_USAGE
    overflows: bool = False


class Observed(Value, frozen=True, gc=False):
    """The observation of the gate call that was carried out; `snapshot` is the gate's resource as the call left it."""

    observation: Observation
    snapshot: Snapshot | None = None


class Questioned(NamedTuple):
    """The message of an `ask` is accepted: the call waits for the episode of the intent with this key."""

    to: str
    key: str


class Inquired(NamedTuple):
    """The gate that runs asks a person, and continues with `state` and the answer: its call is over until then."""

    text: str
    schema: Mapping[str, Any] | None
    state: Any


class Decide(NamedTuple):
    """The open request is decided, by the person `by`; the fields are those of `Decided`."""

    decision: Decision
    by: str = ""
    note: str = ""
    args: Mapping[str, Any] | None = None
    answer: Any = None
    remember: bool = False
    key: str | None = None
    sender: str | None = None
    door: str = ""
    images: tuple[File, ...] = NO_IMAGES
    later: Mapping[str, Any] | None = None
    memo: Any = None


class ChildOutcome(NamedTuple):
    """How a child ended: its result or its error, the usage of its subtree, and the images that the result names."""

    result: Any
    error: str | None = None
    usage: Usage = NO_USAGE
    images: tuple[File, ...] = NO_IMAGES


class Returned(NamedTuple):
    """The children of one call have ended; `outcomes` are in the order of the request (COMP-3)."""

    outcomes: tuple[ChildOutcome, ...]


class Remembered(NamedTuple):
    """The text that replaces the turns to be folded; with None only a marker replaces them."""

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

    `snapshot` is the sandbox as it is now, if it is worth keeping. It computed for so many `seconds`, without its
    gates, and has `memory` bytes now, where the medium counts them; no record has these two.
    """

    value: Any = None
    output: str = ""
    error: str | None = None
    limit: str | None = None
    snapshot: Snapshot | None = None
    seconds: float = 0.0
    memory: int | None = None


class Steering(NamedTuple):
    """One message for the entity, with the key and the sender of its mail. A `pinned` one survives folds.

    `child` is the background child whose answer it is.
    """

    text: str
    images: tuple[File, ...] = NO_IMAGES
    key: str | None = None
    sender: str | None = None
    pinned: bool = False
    child: str | None = None


class Steer(NamedTuple):
    """Messages to insert before the next query."""

    messages: tuple[Steering, ...]


class Interrupt(NamedTuple):
    """The episode is ended from outside; a long-lived entity then waits for its next intent."""

    detail: str
    key: str | None = None
    sender: str | None = None


class Compact(NamedTuple):
    """The context is to be folded now; `instructions` say what the summary keeps."""

    instructions: str | None = None
    key: str | None = None
    sender: str | None = None


class Undo(NamedTuple):
    """An idle entity goes back to before its last intent."""

    key: str | None = None
    sender: str | None = None


Event = (
    Begin
    | Replied
    | Posted
    | Failed
    | Elapsed
    | Remembered
    | Observed
    | Questioned
    | Inquired
    | Decide
    | Returned
    | Called
    | Computed
    | Stopped
    | Steer
    | Interrupt
    | Compact
    | Undo
)
