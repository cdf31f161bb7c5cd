"""Decides when the next request may begin: by concurrency, requests and tokens per minute, and the order of waiting
queries.

Theory of operation. One queue, first come, first served: no query overtakes another, so none starves. A retried query
keeps its place: a refusal does not send it to the end of the queue. The query in front begins when all of these allow
it:

- *concurrency*: fewer queries run than the limit allows;
- two *buckets*, requests and tokens. A bucket holds a minute's worth, is full at first and refills evenly, which is how
  providers meter (so in the minute after an idle one, up to twice the rate may pass). A request takes one from the
  first bucket and its estimate from the second; when it ends, the second is settled with its real usage, which may
  leave a debt. A request larger than the bucket waits for a full one;
- no *pause*: if a provider says how long to wait, all queries wait, not only the refused one. The others would get the
  same refusal, and would count against the limit. After the pause, queries start slowly;
- the *window*: how many may run after a refusal: one if the refusal had a wait hint, else half of those that ran. Each
  answer admits one more, so the window doubles each round (as in TCP's slow start), until no query waits for it.
  Results of requests that were in flight when the refusal came do not change the window.

| method of `AttemptQueue` | what it does |
| --- | --- |
| `ask` | an attempt joins the queue, at its query's place |
| `leave` | the attempt leaves the queue, because its caller is gone |
| `clear` | all attempts leave the queue, and none of them begins |
| `end` | frees the attempt's place and settles; a refusal pauses or narrows the window, an answer widens it |
| `admit` | starts the attempts that may begin; the other methods do that as well, as their last step |

Each returns the time at which to call `admit`, None if that depends on a running attempt. This file has no clock: `now`
is an argument, in seconds of any clock that does not run backwards. The crystal's actor applies the decisions.
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from cantrip_actors.terms.arguments import check, check_whole, is_finite, is_positive, is_text
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError

MINUTE: Final = 60.0
NEARLY: Final = 1e-9
"""The share of a request that a bucket may lack: a wake-up at the exact moment may be early by a rounding error."""

_AN_INSTANT: Final = 1e-6
"""Seconds that do not count as a wait: a timer may be early by that much."""

_REFUSING: Final = frozenset((429, 503, 529))


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that all entities together may send to one crystal. None means no limit.

    `concurrency` requests at once, `requests_per_minute`, `tokens_per_minute` (prompt and completion together). A pause
    that a provider asks for lasts at most `longest_pause` seconds; then one request tries whether it is over.

    With `shared`, a name, the limits apply to all crystals of that name together: in all processes that run entities of
    one loom, and within this process.
    """

    concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    longest_pause: float = 60.0
    shared: str | None = None

    def __post_init__(self) -> None:
        check_whole("limits: concurrency", self.concurrency, 1, error=InvalidCantrip, or_none=True)
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            expected = "a number > 0, or None for no limit"
            check(value is None or is_positive(value), f"limits: {name}", expected, value, InvalidCantrip)
        pause = self.longest_pause
        check(is_finite(pause, 0), "limits: longest_pause", "seconds >= 0", pause, InvalidCantrip)
        fits = self.shared is None or is_text(self.shared)
        check(fits, "limits: shared", "a name, or None", self.shared, InvalidCantrip)


UNLIMITED: Final = Limits()


AttemptOutcome = Literal["answered", "failed", "unknown"]
"""The provider's health by the outcome of an attempt: `unknown` if it was cancelled or refused."""


class AttemptEnd(NamedTuple):
    """How an attempt has ended.

    `used` is its usage in tokens, None if that is unknown: then the estimate stands. `refused` says that the provider
    refused it for its rate, and `pause` how many seconds to wait, if the provider said so. `why` is the failure.
    """

    outcome: AttemptOutcome
    used: float | None = None
    refused: bool = False
    pause: float | None = None
    why: str = ""


def classify_end(error: CrystalError) -> AttemptEnd:
    """Return how an attempt that raised `error` has ended. An attempt that the provider refused used no tokens."""
    if not isinstance(error, ProviderError):  # an answer, though one that breaks the contract
        return AttemptEnd("answered")
    status, refused = error.status, is_refusal(error)
    used = 0 if status is not None and status >= 400 else None
    outcome: AttemptOutcome = "answered"
    if refused and (status is None or status < 500):
        outcome = "unknown"
    elif status is None or status >= 500 or status == 408:
        outcome = "failed"
    return AttemptEnd(outcome, used, refused, error.retry_after if refused else None, str(error))


def is_refusal(error: ProviderError) -> bool:
    """Return whether a provider refused a query for its rate, so that all queries have to wait.

    A spent quota has the same status, but waiting does not help.
    """
    return error.retryable is not False and (error.status in _REFUSING or error.retry_after is not None)


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt, waiting in the queue or running.

    `tokens` is its estimated usage. `since` is the number of its query in order of arrival, and decides its position in
    the queue.
    """

    tokens: float
    since: int
    epoch: int | None = None
    """The number of refusals before it began; None until then."""
    wake: Callable[[], object] | None = None
    """Called when the attempt begins."""


class _Bucket:
    """A rate per minute (None: unlimited) as a bucket: full at first, refilled evenly. `left` below 0 is a debt."""

    __slots__ = ("at", "left", "rate", "size")

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        # a rate below one a minute still has to let one through, in its time
        self.size = self.left = inf if rate is None else max(1.0, rate)
        self.at = -inf

    def find_ready_time(self, wanted: float, now: float) -> float:
        """Return when the bucket will have this amount; a full bucket has enough for any request."""
        if self.rate is None:
            return now
        self._fill(now)
        wanted = min(wanted, self.size)
        if self.left >= wanted * (1 - NEARLY):
            return now
        return now + (wanted - self.left) * MINUTE / self.rate

    def take(self, amount: float, now: float) -> None:
        """Take an amount out; put it back, where that is below 0."""
        if self.rate is not None:
            self._fill(now)
            self.left = min(self.size, self.left - amount)

    def _fill(self, now: float) -> None:
        if self.rate is not None and now > self.at:
            self.left = min(self.size, self.left + (now - self.at) * self.rate / MINUTE)
            self.at = now


class Slice:
    """An amount drawn from a shared bucket, for a while. `left` below 0 is a debt."""

    __slots__ = ("left", "rate", "until")

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.left = 0.0
        self.until = -inf

    def find_ready_time(self, wanted: float, now: float) -> float:
        """Return `now` if the slice has this amount, and infinity if more has to be drawn."""
        is_enough = self.rate is None or (now <= self.until and self.left >= wanted * (1 - NEARLY))
        return now if is_enough else inf

    def take(self, amount: float, _now: float) -> None:
        """Take an amount out; put it back, where that is below 0."""
        if self.rate is not None:
            self.left -= amount


@dataclass(slots=True, eq=False)
class AttemptQueue:
    """The attempts at one crystal: those that wait, the number of those that run, and the limits that delay them. It
    belongs to the crystal's actor.

    `window` is how many may run during the recovery from a refusal, None otherwise; `epoch` counts refusals. If limits
    are shared, `requests` and `tokens` were drawn from the account, `places` is how many may run, and `heard` is the
    pause to report to the account, in seconds.
    """

    limits: Limits = UNLIMITED
    waiting: list[Attempt] = field(default_factory=list)
    running: int = 0
    requests: _Bucket | Slice = field(init=False)
    tokens: _Bucket | Slice = field(init=False)
    places: int | None = field(init=False)
    heard: float = 0.0
    paused_until: float = -inf
    window: int | None = None
    epoch: int = 0

    def __post_init__(self) -> None:
        limits = self.limits
        bucket = _Bucket if limits.shared is None else Slice
        self.requests, self.tokens = bucket(limits.requests_per_minute), bucket(limits.tokens_per_minute)
        self.places = limits.concurrency if limits.shared is None else None if limits.concurrency is None else 0

    def copy_for_restart(self) -> AttemptQueue:
        """Return a queue with the same buckets and nothing in flight, for a restart of the crystal's actor."""
        queue = AttemptQueue(self.limits)
        if self.limits.shared is None:
            queue.requests, queue.tokens = copy(self.requests), copy(self.tokens)
        queue.paused_until, queue.window, queue.epoch = self.paused_until, self.window, self.epoch
        return queue

    def ask(self, attempt: Attempt, now: float) -> float | None:
        """Add an attempt to the queue."""
        insort_right(self.waiting, attempt, key=_SINCE)
        return self.admit(now)

    def leave(self, attempt: Attempt, now: float) -> float | None:
        """Remove an attempt from the queue."""
        if attempt in self.waiting:
            self.waiting.remove(attempt)
        return self.admit(now)

    def clear(self) -> list[Attempt]:
        """Empty the queue, and return the attempts that waited."""
        cleared, self.waiting = self.waiting, []
        return cleared

    def end(self, attempt: Attempt, ended: AttemptEnd, now: float) -> float | None:
        """Settle an attempt that had begun and has ended."""
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
        """Start the attempts that may begin, in order."""
        while self.waiting:
            attempt = self.waiting[0]
            at = self._find_earliest(attempt, now)
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

    def _find_earliest(self, attempt: Attempt, now: float) -> float | None:
        """Return when the first attempt may begin; None if that depends on a running one."""
        for most in (self.places, self.window):
            if most is not None and self.running >= most:
                return None
        at = now if self.paused_until <= now + _AN_INSTANT else self.paused_until
        at = max(at, self.requests.find_ready_time(1, now), self.tokens.find_ready_time(attempt.tokens, now))
        return None if at == inf else at

    def _is_wide(self) -> bool:
        """Return whether the window no longer delays any attempt: the recovery is over."""
        if self.window is None or (self.limits.concurrency is not None and self.window >= self.limits.concurrency):
            return True
        return not self.waiting and self.running < self.window


_SINCE: Final = attrgetter("since")
