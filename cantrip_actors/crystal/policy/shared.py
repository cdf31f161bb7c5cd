"""Limits that all processes of a loom share: one account, from which each process draws slices.

The account is a row of the loom: the levels of the two buckets, the end of a pause, and how many requests each process
has in flight. A process draws what its next requests need, up to a second's worth, and returns with its next draw what
it did not use within a second. So the account alone decides: over any minute all processes together stay within the
limit plus one full bucket. If a process dies, the amount that it had drawn stays unused.

A pause that a provider asks of one process applies to all. After it one request tries, and the others a second later.
Places for concurrent requests are held for `HOLD` seconds and renewed, so those of a dead process become free.

This file has no clock: `now` is the loom's time, in seconds.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from cantrip_actors.crystal.policy.limits import MINUTE, NEARLY, AttemptQueue, Limits, Slice

FRESH: Final = 1.0
"""Seconds for which a slice may be used."""

HOLD: Final = 10.0
"""Seconds for which a process keeps its places without renewing them."""

TRIES: Final = 1.0
"""Seconds after a pause in which one request tries alone."""

LOOK: Final = 0.2
"""Seconds until a process asks again for a place that another process holds."""


class AccountRequest(NamedTuple):
    """A process's request to an account, with the amounts that it returns.

    `least` is the tokens of its first request, `tokens` those of all requests that it wants to begin; `returned` may be
    below zero, if requests used more than was estimated. `running` is the number of requests in flight.
    """

    holder: str
    requests: int = 0
    tokens: float = 0.0
    least: float = 0.0
    running: int = 0
    returned_requests: float = 0.0
    returned_tokens: float = 0.0
    pause: float = 0.0


class Grant(NamedTuple):
    """The grant to a process for `FRESH` seconds: `places` is for all of its requests in flight.

    If it got nothing, it asks again in `wait` seconds; `paused` is how many seconds no request may begin.
    """

    requests: int = 0
    tokens: float = 0.0
    places: int | None = None
    wait: float = 0.0
    paused: float = 0.0


def make_ask(queue: AttemptQueue, holder: str, now: float, since: float) -> AccountRequest | None:
    """Return a queue's request to its account, None if it needs nothing; `since` is the time of its last grant."""
    limits, waiting = queue.limits, queue.waiting
    is_old = now > since + FRESH
    left = [bucket.left if bucket.rate is not None else 0.0 for bucket in (queue.requests, queue.tokens)]
    ask = AccountRequest(
        holder, running=queue.running, returned_requests=left[0], returned_tokens=left[1], pause=queue.heard
    )
    is_limited = limits.concurrency is not None and queue.places is not None
    if waiting and now >= queue.paused_until and (queue.window is None or queue.running < queue.window):
        first = waiting[0].tokens
        lacks = (is_limited and queue.running >= (queue.places or 0)) or max(
            queue.requests.find_ready_time(1, now), queue.tokens.find_ready_time(first, now)
        ) > now
        if not lacks:
            return None
        rate = limits.requests_per_minute
        many = len(waiting) if rate is None else min(len(waiting), max(1, int(rate / MINUTE)))
        rate = limits.tokens_per_minute
        most = max(first, 0.0 if rate is None else rate / MINUTE)
        tokens = first
        for attempt in waiting[1:many]:
            tokens += attempt.tokens if tokens + attempt.tokens <= most else 0.0
        return ask._replace(requests=many, tokens=tokens, least=first)
    has_more = any(left) or (is_limited and (queue.places or 0) > queue.running)
    is_held = is_limited and queue.running > 0 and now > since + HOLD / 3
    return ask if queue.heard or is_held or (has_more and is_old) else None


def add(queue: AttemptQueue, ask: AccountRequest, grant: Grant, now: float) -> float | None:
    """Give a queue the grant of its account; return as `AttemptQueue.admit`."""
    for bucket, returned, granted in (
        (queue.requests, ask.returned_requests, grant.requests),
        (queue.tokens, ask.returned_tokens, grant.tokens),
    ):
        if isinstance(bucket, Slice) and bucket.rate is not None:
            bucket.left += granted - returned
            bucket.until = now + FRESH
    if grant.places is not None:
        queue.places = grant.places
    queue.heard = 0.0 if queue.heard <= ask.pause else queue.heard
    if grant.paused:
        queue.paused_until = max(queue.paused_until, now + grant.paused)
    return queue.admit(now)


class _SharedAccount(NamedTuple):
    requests: float | None = None
    """The requests left; None for a full bucket."""
    tokens: float | None = None
    at: float = 0.0
    paused_until: float = 0.0
    is_tried: bool = True
    """Whether a request has tried since the last pause."""
    places: dict[str, list[float]] = {}  # noqa: RUF012  # never changed
    """For each holder: how many requests it may have on the way, and until when."""


def draw(text: str | None, limits: Limits, ask: AccountRequest, now: float) -> tuple[str, Grant]:
    """Return the account and the grant after an `ask`. The account is a text, None for a new one."""
    stored: dict[str, Any] = json.loads(text) if text else {}
    account = _SharedAccount(**stored)
    requests = _refill(account.requests, limits.requests_per_minute, ask.returned_requests, account.at, now)
    tokens = _refill(account.tokens, limits.tokens_per_minute, ask.returned_tokens, account.at, now)
    places = {
        holder: [n, until] for holder, (n, until) in account.places.items() if until > now and holder != ask.holder
    }
    paused_until, is_tried = account.paused_until, account.is_tried
    if paused_until > now + limits.longest_pause:  # the machine was started anew, and its clock with it
        paused_until = now
    if ask.pause:
        paused_until, is_tried = max(paused_until, now + min(ask.pause, limits.longest_pause)), False
    most = limits.concurrency
    free = None if most is None else max(0, most - int(sum(n for n, _ in places.values())))
    grant = Grant(places=None if free is None else min(ask.running, free))
    if paused_until > now:
        grant = grant._replace(wait=paused_until - now, paused=paused_until - now)
    elif ask.requests:
        wanted = ask if is_tried else ask._replace(requests=1, tokens=ask.least)
        grant = _grant(wanted, limits, requests, tokens, free)
        requests -= grant.requests
        tokens -= grant.tokens
        if grant.requests and not is_tried:
            paused_until, is_tried = now + TRIES, True
    if grant.places:
        places[ask.holder] = [grant.places, now + HOLD]
    changed = _SharedAccount(requests, tokens, now, paused_until, is_tried, places)
    return json.dumps(changed._asdict()), grant


def _refill(left: float | None, rate: float | None, returned: float, at: float, now: float) -> float:
    if rate is None:
        return 0.0
    size = max(1.0, rate)
    if left is None:
        return size
    return min(size, left + returned + max(0.0, now - at) * rate / MINUTE)


def _grant(ask: AccountRequest, limits: Limits, requests: float, tokens: float, free: int | None) -> Grant:
    wanted, wait = ask.requests, 0.0
    places = None if free is None else min(ask.running + wanted, free)
    if places is not None:
        wanted = min(wanted, places - ask.running)
        if wanted <= 0:
            return Grant(places=min(ask.running, places), wait=LOOK)
    rate = limits.requests_per_minute
    if rate is not None:
        if requests < 1 - NEARLY:
            wait = (1 - requests) * MINUTE / rate
        wanted = min(wanted, max(1, int(requests + NEARLY)))
    rate, granted = limits.tokens_per_minute, ask.tokens
    if rate is not None:
        needed = min(ask.least, max(1.0, rate))  # a request larger than the bucket waits for a full one
        if tokens < needed * (1 - NEARLY):
            wait = max(wait, (needed - tokens) * MINUTE / rate)
        granted = max(ask.least, min(ask.tokens, tokens))
    if wait:
        return Grant(places=None if places is None else min(ask.running, places), wait=wait)
    return Grant(wanted, granted, places)
