"""When the next request may begin: how many at once, how many and how many tokens a minute, and who goes first.

Theory of operation. One queue, first come, first served: nobody overtakes, so nobody starves. A query that is tried
again keeps its place: who was refused is not sent to the end for it. The one in front begins when all of these let
it:

- *concurrency*: fewer run than may;
- two *buckets*, requests and tokens. A bucket holds a minute's worth, is full at first and fills evenly: this is how
  providers meter (so for a minute after an idle one, up to twice the rate may pass). A request takes one from the
  first and an estimate from the second; once it is over, the second is settled with what it really took, which may
  leave a debt. One that is larger than the bucket waits for a full one;
- no *pause*: where a provider says how long to wait, that holds for everybody and not just for the one that heard it.
  The others would only hear the same, and be counted as asking too much. After the pause it starts slowly;
- the *window*: how many may run after a refusal. With a hint one, without one half of those that ran; each answer that
  comes lets one more in, so it doubles with each round (this is how TCP starts), until nobody waits for it any more. Of
  the requests that were on their way when a refusal came, further ones say nothing new, and their answers neither.

| method of `Queue` | what it does |
| --- | --- |
| `ask` | an attempt joins the queue, at its query's place |
| `leave` | it leaves the queue: who asked is gone |
| `clear` | all leave it: nobody is to begin any more |
| `end` | frees its place and settles; a refusal pauses or narrows, an answer widens |
| `admit` | lets begin who may; the others do that as well, as their last step |

Each returns the time at which `admit` is to be called, None where that hangs on one that runs. There is no clock here:
`now` is given, in seconds of any clock that does not run backwards. What carries it out is the crystal's actor.
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError

__all__ = ["UNLIMITED", "Attempt", "Ended", "Limits", "Outcome", "Queue", "Slice", "end_of", "is_refusal"]

_MINUTE: Final = 60.0
_NEARLY: Final = 1e-9
"""What a bucket may lack, as a share of what is wanted: a wake-up at the very moment is a rounding too early."""

_AN_INSTANT: Final = 1e-6
"""Seconds that are no wait: a timer may be that much early."""

_REFUSING: Final = frozenset((429, 503, 529))


@dataclass(frozen=True, slots=True)
class Limits:
    """What may go to one crystal, of all its entities together. None: any number.

    `concurrency` requests at once, `requests_per_minute`, `tokens_per_minute` (prompt and completion together). A pause
    that a provider asks for is kept up to `longest_pause` seconds; then one request tries whether it is over.

    With `shared`, a name, they hold for all crystals of that name together: in all processes that run entities of one
    loom, and in this one.
    """

    concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    longest_pause: float = 60.0
    shared: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("requests_per_minute", 0), ("tokens_per_minute", 0)):
            value = getattr(self, name)
            whole = isinstance(value, int) or (isinstance(value, float) and name != "concurrency")
            if value is not None and (isinstance(value, bool) or not whole or not least <= value < inf or not value):
                expected = "a whole number >= 1" if least else "a number > 0"
                raise InvalidCantrip(f"limits: {name}: expected {expected}, or None for no limit, got {value!r}")
        pause = self.longest_pause
        if isinstance(pause, bool) or not isinstance(pause, (int, float)) or not 0 <= pause < inf:
            raise InvalidCantrip(f"limits: longest_pause: expected seconds >= 0, got {pause!r}")
        if self.shared is not None and not (isinstance(self.shared, str) and self.shared.strip()):
            raise InvalidCantrip(f"limits: shared: expected a name, or None, got {self.shared!r}")


UNLIMITED: Final = Limits()


Outcome = Literal["answered", "failed", "unknown"]
"""What an attempt says of the provider's health: nothing (`unknown`) where it was cancelled or refused."""


class Ended(NamedTuple):
    """How an attempt has ended.

    `used` is what it took, in tokens, None where that is unknown: then the estimate stands. `refused` says that the
    provider had it wait, `pause` for how many seconds, if it said so. `why` is the failure.
    """

    outcome: Outcome
    used: float | None = None
    refused: bool = False
    pause: float | None = None
    why: str = ""


def end_of(error: CrystalError) -> Ended:
    """Return how an attempt that raised `error` has ended. What the provider would not hear took no tokens."""
    if not isinstance(error, ProviderError):  # an answer, though one that breaks the contract
        return Ended("answered")
    status, refused = error.status, is_refusal(error)
    used = 0 if status is not None and status >= 400 else None
    outcome: Outcome = "answered"
    if refused and (status is None or status < 500):
        outcome = "unknown"
    elif status is None or status >= 500 or status == 408:
        outcome = "failed"
    return Ended(outcome, used, refused, error.retry_after if refused else None, str(error))


def is_refusal(error: ProviderError) -> bool:
    """Whether a provider says that it is asked too much, so that everybody has to wait.

    A spent quota comes with the same status, and no wait mends that.
    """
    return error.retryable is not False and (error.status in _REFUSING or error.retry_after is not None)


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt in the queue, and later among those that run.

    `tokens` is what it may take, by estimate. `since` is the number of its query, in the order in which queries came:
    that is where it stands in the queue.
    """

    tokens: float
    since: int
    epoch: int | None = None
    """The number of refusals that had been heard when it began; None until then."""
    wake: Callable[[], object] | None = None
    """What is called when it begins."""


class _Bucket:
    """So much a minute (None: any amount): full at first, filled evenly. `left` below 0 is a debt."""

    __slots__ = ("at", "left", "rate", "size")

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        # a rate below one a minute still has to let one through, in its time
        self.size = self.left = inf if rate is None else max(1.0, rate)
        self.at = -inf

    def ready_at(self, wanted: float, now: float) -> float:
        """When it has as much; a full one has enough for everybody."""
        if self.rate is None:
            return now
        self._fill(now)
        wanted = min(wanted, self.size)
        if self.left >= wanted * (1 - _NEARLY):
            return now
        return now + (wanted - self.left) * _MINUTE / self.rate

    def take(self, amount: float, now: float) -> None:
        """Take an amount out; put it back, where that is below 0."""
        if self.rate is not None:
            self._fill(now)
            self.left = min(self.size, self.left - amount)

    def _fill(self, now: float) -> None:
        if self.rate is not None and now > self.at:
            self.left = min(self.size, self.left + (now - self.at) * self.rate / _MINUTE)
            self.at = now


class Slice:
    """What was drawn of a bucket that others share, for a while. `left` below 0 is a debt."""

    __slots__ = ("left", "rate", "until")

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.left = 0.0
        self.until = -inf

    def ready_at(self, wanted: float, now: float) -> float:
        """Return `now` if it has as much, and infinity if more has to be drawn."""
        is_enough = self.rate is None or (now <= self.until and self.left >= wanted * (1 - _NEARLY))
        return now if is_enough else inf

    def take(self, amount: float, _now: float) -> None:
        """Take an amount out; put it back, where that is below 0."""
        if self.rate is not None:
            self.left -= amount


class Queue:
    """The attempts at one crystal: which wait, how many run, and what holds them up. It belongs to the crystal's actor.

    `window` is how many may run, None where no refusal has to be got over; `epoch` counts refusals. Where limits are
    shared, `requests` and `tokens` are what was drawn, `places` how many may run, and `heard` is the pause that the
    others are to be told of, in seconds.
    """

    __slots__ = (
        "epoch",
        "heard",
        "limits",
        "paused_until",
        "places",
        "requests",
        "running",
        "tokens",
        "waiting",
        "window",
    )

    def __init__(self, limits: Limits = UNLIMITED) -> None:
        self.limits = limits
        self.waiting: list[Attempt] = []
        self.running = 0
        bucket = _Bucket if limits.shared is None else Slice
        self.requests: _Bucket | Slice = bucket(limits.requests_per_minute)
        self.tokens: _Bucket | Slice = bucket(limits.tokens_per_minute)
        self.places = limits.concurrency if limits.shared is None else None if limits.concurrency is None else 0
        self.heard = 0.0
        self.paused_until = -inf
        self.window: int | None = None
        self.epoch = 0

    def restarted(self) -> Queue:
        """Return the same accounts with nobody on the way: what is left when the crystal's actor is restarted."""
        made = Queue(self.limits)
        if self.limits.shared is None:
            made.requests, made.tokens = copy(self.requests), copy(self.tokens)
        made.paused_until, made.window, made.epoch = self.paused_until, self.window, self.epoch
        return made

    def ask(self, attempt: Attempt, now: float) -> float | None:
        """An attempt wants to begin."""
        insort_right(self.waiting, attempt, key=_SINCE)
        return self.admit(now)

    def leave(self, attempt: Attempt, now: float) -> float | None:
        """It does not want to begin any more."""
        if attempt in self.waiting:
            self.waiting.remove(attempt)
        return self.admit(now)

    def clear(self) -> list[Attempt]:
        """Nobody who waits is to begin. Return who waited."""
        cleared, self.waiting = self.waiting, []
        return cleared

    def end(self, attempt: Attempt, ended: Ended, now: float) -> float | None:
        """An attempt that had begun has ended."""
        ran, is_news = self.running, attempt.epoch == self.epoch
        self.running -= 1
        if ended.used is not None:
            self.tokens.take(ended.used - attempt.tokens, now)
        if ended.refused:
            if ended.pause is not None:
                self.paused_until = max(self.paused_until, now + min(ended.pause, self.limits.longest_pause))
                self.heard = max(self.heard, ended.pause)
            if is_news:
                self.epoch += 1
                self.window = 1 if ended.pause is not None else max(1, ran // 2)
        is_answered = ended.outcome == "answered"
        if is_answered and is_news and self.window is not None:
            self.window += 1
        wake_at = self.admit(now)
        if is_answered and self._is_wide():
            self.window = None
        return wake_at

    def admit(self, now: float) -> float | None:
        """Let begin who may, in their order."""
        while self.waiting:
            attempt = self.waiting[0]
            at = self._earliest(attempt, now)
            if at is None or at > now:
                return at
            del self.waiting[0]
            self.running += 1
            self.requests.take(1, now)
            self.tokens.take(attempt.tokens, now)
            attempt.epoch = self.epoch
            if attempt.wake is not None:
                attempt.wake()
        return None

    def _earliest(self, attempt: Attempt, now: float) -> float | None:
        """When the one in front may begin; None where that hangs on one that runs."""
        for most in (self.places, self.window):
            if most is not None and self.running >= most:
                return None
        at = now if self.paused_until <= now + _AN_INSTANT else self.paused_until
        at = max(at, self.requests.ready_at(1, now), self.tokens.ready_at(attempt.tokens, now))
        return None if at == inf else at

    def _is_wide(self) -> bool:
        """Whether the window keeps nobody out any more, and the refusal is got over."""
        if self.window is None or (self.limits.concurrency is not None and self.window >= self.limits.concurrency):
            return True
        return not self.waiting and self.running < self.window


_SINCE: Final = attrgetter("since")
