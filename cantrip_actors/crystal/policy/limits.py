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

| event | what it does |
| --- | --- |
| `Asks` | joins the queue, at its query's place |
| `Leaves` | leaves it: who asked is gone |
| `Clears` | all leave it: nobody is to begin any more |
| `Ends` | frees its place and settles; a refusal pauses or narrows, an answer widens |
| `Ticks` | nothing: it is `Step.wake_at` |

Whatever happens, `advance` then lets begin who may, and says when it wants to be asked again. Pure: `now` is given, in
seconds of any clock that does not run backwards. What carries it out is the crystal's actor; one state belongs to one
of these.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from math import inf
from typing import Final, NamedTuple

from cantrip_actors.terms.errors import InvalidCantrip, ProviderError

__all__ = ["UNLIMITED", "Asks", "Clears", "Ends", "Event", "Grant", "Leaves", "Limits", "State", "Step", "Ticks"]
__all__ += ["advance", "is_refusal"]

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
    """

    concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    longest_pause: float = 60.0

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


UNLIMITED: Final = Limits()


class Waiting(NamedTuple):
    """One in the queue: who, since when, and how many tokens are reserved for it when it begins."""

    ticket: int
    tokens: float
    since: int


class Grant(NamedTuple):
    """One that may begin. It is handed back when that has ended."""

    ticket: int
    tokens: float
    epoch: int
    """The number of refusals that had been heard when it began."""


@dataclass(frozen=True, slots=True)
class State:
    """What is known of one crystal's traffic.

    `requests` and `tokens` are what is left in the buckets at `at` (None: full). `window` is how many may run, None
    where no refusal has to be got over; `epoch` counts those.
    """

    waiting: tuple[Waiting, ...] = ()
    running: int = 0
    requests: float | None = None
    tokens: float | None = None
    at: float = -inf
    paused_until: float = -inf
    window: int | None = None
    epoch: int = 0

    @property
    def is_open(self) -> bool:
        """Whether there is nothing to wait for but the limits themselves."""
        return self.window is None and not self.waiting

    def taken_up(self, running: int) -> State:
        """This state, where so many run that it was not told of."""
        return replace(self, running=running)

    def restarted(self) -> State:
        """The same traffic with nobody on the way: what is left of it when its actor is restarted."""
        return replace(self, waiting=(), running=0)


class Asks(NamedTuple):
    """A request wants to begin. `ticket` is its own; `tokens` is what it may take, by estimate.

    `since` is the number of its query, in the order in which queries came: that is where it stands in the queue.
    """

    ticket: int
    tokens: float
    since: int


class Leaves(NamedTuple):
    """It does not want to begin any more."""

    ticket: int


class Clears(NamedTuple):
    """Nobody who waits is to begin."""


class Ends(NamedTuple):
    """A request has ended.

    `used` is what it took, in tokens, None where that is unknown: then the estimate stands. `refused` says that the
    provider had it wait, `pause` for how many seconds, if it said so; `answered` that it let it pass.
    """

    grant: Grant
    used: float | None = None
    refused: bool = False
    pause: float | None = None
    answered: bool = False


class Ticks(NamedTuple):
    """Time has passed."""


Event = Asks | Leaves | Clears | Ends | Ticks


class Step(NamedTuple):
    """What comes of an event: the next state, who begins now, and when to be asked again where nobody tells earlier."""

    state: State
    granted: tuple[Grant, ...] = ()
    wake_at: float | None = None


def is_refusal(error: ProviderError) -> bool:
    """Whether a provider says that it is asked too much, so that everybody has to wait.

    A spent quota comes with the same status, and no wait mends that.
    """
    return error.retryable is not False and (error.status in _REFUSING or error.retry_after is not None)


def advance(limits: Limits, state: State, event: Event, now: float) -> Step:
    """The one transition; the table in the head of this file says which."""
    state = _filled(limits, state, now)
    match event:
        case Asks(ticket, tokens, since):
            state = replace(state, waiting=_queued(state.waiting, Waiting(ticket, tokens, since)))
        case Leaves(ticket):
            state = replace(state, waiting=tuple(one for one in state.waiting if one.ticket != ticket))
        case Clears():
            state = replace(state, waiting=())
        case Ends():
            state = _ended(limits, state, event, now)
        case Ticks():
            pass
    granted: list[Grant] = []
    begun, wake_at = 0, None
    for ticket, tokens, _ in state.waiting:
        wake_at = _earliest(limits, state, tokens, now)
        if wake_at is None or wake_at > now:
            break
        granted.append(Grant(ticket, tokens, state.epoch))
        begun, wake_at = begun + 1, None
        state = replace(state, running=state.running + 1, requests=_less(state.requests, 1))
        state = replace(state, tokens=_less(state.tokens, tokens))
    if begun:
        state = replace(state, waiting=state.waiting[begun:])
    if state.window is not None and isinstance(event, Ends) and event.answered and _is_wide(limits, state):
        state = replace(state, window=None)
    return Step(state, tuple(granted), wake_at)


def _queued(waiting: tuple[Waiting, ...], one: Waiting) -> tuple[Waiting, ...]:
    if not waiting or waiting[-1].since <= one.since:
        return (*waiting, one)
    at = bisect_right(waiting, one.since, key=lambda other: other.since)
    return (*waiting[:at], one, *waiting[at:])


def _filled(limits: Limits, state: State, now: float) -> State:
    """The buckets as they are now."""
    if limits.requests_per_minute is None and limits.tokens_per_minute is None:
        return state
    passed = max(0.0, now - state.at)
    return replace(
        state,
        at=max(now, state.at),
        requests=_bucket(limits.requests_per_minute, state.requests, passed),
        tokens=_bucket(limits.tokens_per_minute, state.tokens, passed),
    )


def _bucket(rate: float | None, left: float | None, passed: float) -> float | None:
    if rate is None:
        return None
    # a rate below one a minute still has to let one through, in its time
    size = max(1.0, rate)
    return size if left is None or passed == inf else min(size, left + passed * rate / _MINUTE)


def _less(left: float | None, taken: float) -> float | None:
    return None if left is None else left - taken


def _earliest(limits: Limits, state: State, tokens: float, now: float) -> float | None:
    """When the one in front may begin; None where that hangs on one that runs."""
    most = min(inf if limits.concurrency is None else limits.concurrency, inf if state.window is None else state.window)
    if state.running >= most:
        return None
    at = now if state.paused_until <= now + _AN_INSTANT else state.paused_until
    for rate, left, wanted in (
        (limits.requests_per_minute, state.requests, 1.0),
        (limits.tokens_per_minute, state.tokens, tokens),
    ):
        if rate is None or left is None:
            continue
        wanted = min(wanted, max(1.0, rate))
        if left < wanted * (1 - _NEARLY):
            at = max(at, now + (wanted - left) * _MINUTE / rate)
    return at


def _ended(limits: Limits, state: State, event: Ends, now: float) -> State:
    grant, ran = event.grant, state.running
    state = replace(state, running=ran - 1)
    if state.tokens is not None and event.used is not None:
        assert limits.tokens_per_minute is not None
        back = state.tokens + grant.tokens - event.used
        state = replace(state, tokens=min(max(1.0, limits.tokens_per_minute), back))
    is_news = grant.epoch == state.epoch
    if event.refused:
        if event.pause is not None:
            until = now + min(event.pause, limits.longest_pause)
            state = replace(state, paused_until=max(state.paused_until, until))
        if is_news:
            narrow = 1 if event.pause is not None else max(1, ran // 2)
            state = replace(state, epoch=state.epoch + 1, window=narrow)
    elif event.answered and is_news and state.window is not None:
        state = replace(state, window=state.window + 1)
    return state


def _is_wide(limits: Limits, state: State) -> bool:
    """Whether the window keeps nobody out any more, and the refusal is got over."""
    assert state.window is not None
    if limits.concurrency is not None and state.window >= limits.concurrency:
        return True
    return not state.waiting and state.running < state.window
