"""When a growing text is shown again: the gradient, and the times after which it is shown regardless.

Theory of operation. A *token* is a run of characters without white space; a model's own tokens are not known here. A
text is shown when it has more new tokens than the gradient's current step. The gradient begins low, so that the
beginning is seen at once, and climbs, so that a long text is not sent again for every word. Showing n tokens climbs as
many steps as n uses up. Three times bound the wait: `max_latency` until anything is shown; `timeout` without news,
after which the rest is shown; `max_wait` from the oldest token not shown, because a steady drip never reaches
`timeout`. With an `interval` none of this counts: a text is shown at once, and again after each interval.

Counting and adding cost only the new part, not the whole text. Nothing here reads a clock: `now` is in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cantrip_actors.terms.arguments import check, check_seconds, is_list, is_whole

DEFAULT_GRADIENT = (10, 20, 40, 80, 120)

LONGEST_INTERVAL = 0.1
"""The longest interval of a growing text, in seconds, however long the text is."""


@dataclass(frozen=True, slots=True)
class Batching:
    """When a growing text is shown. Times are in seconds; None for no bound.

    `gradient` is the number of new tokens to exceed, step by step; the last value repeats, and an empty gradient means
    the default one.
    """

    gradient: tuple[int, ...] = DEFAULT_GRADIENT
    timeout: float = 1.0
    max_latency: float | None = 0.2
    max_wait: float | None = 2.0
    interval: float | None = None
    """With it a text is shown at once, and again at most once in so many seconds; the settings above do not count."""
    rate: float | None = None
    """With `interval`: about so many characters a second, if whole texts are sent. The interval grows with the text, up
    to `LONGEST_INTERVAL`."""

    def __post_init__(self) -> None:
        gradient = tuple(self.gradient) if is_list(self.gradient) else (None,)
        check(all(is_whole(step, 1) for step in gradient), "gradient", "whole numbers >= 1", self.gradient)
        object.__setattr__(self, "gradient", gradient or DEFAULT_GRADIENT)
        for name in ("timeout", "max_latency", "max_wait", "interval", "rate"):
            seconds = getattr(self, name)
            if seconds is not None:
                check_seconds(name, seconds)


GROWTH = Batching(interval=0.015)
"""For readers that get only what is new of a text: they see each word of a model that says 60 a second."""

WHOLE_TEXTS = Batching(interval=0.02, rate=200_000)
"""For readers that get whole texts, which are sent less often the longer they are."""


@dataclass(slots=True, eq=False)
class GrowingText:
    """A text that arrives in pieces, and its shown part. It belongs to the processor of its turn."""

    _batching: Batching
    _parts: list[str] = field(default_factory=list)
    _in_word: bool = False
    _step: int = 0
    _shown_tokens: int = 0
    _unshown: bool = False
    _since: float | None = None
    tokens: int = 0
    shown: bool = False
    due: float = math.inf
    """When to show it if no further piece arrives."""
    _size: int = 0
    _next: float = -math.inf
    """With an interval: when it may be shown again."""
    armed: float = math.inf
    """When its processor will check it next; the processor sets it."""

    def add(self, text: str, now: float) -> bool:
        """Add a piece. Return whether the gradient shows the text now; otherwise `due` says when."""
        if text:
            self._parts.append(text)
            self._size += len(text)
            self._unshown = True
            words = len(text.split())
            if words:
                self.tokens += words - (self._in_word and not text[0].isspace())
            self._in_word = not text[-1].isspace()
        batching = self._batching
        if batching.interval is not None:
            self.due = max(now, self._next) if self.has_news else math.inf
            return self.due <= now
        if self.tokens - self._shown_tokens > batching.gradient[self._step]:
            return True
        self.due = now + batching.timeout
        if self.has_news:
            if self._since is None:
                self._since = now
            bound = batching.max_wait if self.shown else batching.max_latency
            if bound is not None and self._since + bound < self.due:
                self.due = self._since + bound
        return False

    @property
    def has_news(self) -> bool:
        """Whether there is anything new to show: any character or, the first time, any token."""
        return self._unshown and (self.shown or self.tokens > 0)

    @property
    def has_new_tokens(self) -> bool:
        """Whether some tokens were not shown yet."""
        return self.tokens > self._shown_tokens

    def get_text(self) -> str:
        """Return the whole text."""
        if len(self._parts) != 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0]

    def show(self) -> str:
        """Return the whole text, which counts as shown from now on."""
        interval, rate = self._batching.interval, self._batching.rate
        if interval is not None and self.due < math.inf:
            longest = 0.0 if rate is None else min(LONGEST_INTERVAL, self._size / rate)
            self._next = self.due + max(interval, longest)
        gradient, last = self._batching.gradient, len(self._batching.gradient) - 1
        left = self.tokens - self._shown_tokens
        while self._step < last and left > gradient[self._step]:
            left -= gradient[self._step]
            self._step += 1
        self._shown_tokens = self.tokens
        self._unshown = False
        self._since = None
        self.shown = True
        self.due = math.inf
        return self.get_text()
