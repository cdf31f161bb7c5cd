"""How often a growing text is shown again: the gradient, and the times after which it is shown regardless.

Theory of operation. A *token* is a run of characters that are no white space; a model's own tokens are not known here.
A text is shown when more than so many tokens are new, by a gradient that begins low, so that the beginning is seen at
once, and climbs, so that a long text is not sent whole for every word. Showing n tokens climbs as many steps as n uses
up. Three times bound the wait: `max_latency` until anything is shown at all; `timeout` without news, after which the
rest is shown; `max_wait` from the oldest thing not shown, since at a steady drip `timeout` would never come (X1).

Counting and adding cost what is new, not what is there (X9). Nothing here reads a clock: `now` is given, in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["DEFAULT_GRADIENT", "Batching", "Growing"]

DEFAULT_GRADIENT = (10, 20, 40, 80, 120)


@dataclass(frozen=True, slots=True)
class Batching:
    """When a growing text is shown. Times are in seconds; None for a bound there is not to be.

    `gradient` is how many new tokens have to be exceeded, step by step; the last value repeats for ever, and an empty
    gradient means the default one.
    """

    gradient: tuple[int, ...] = DEFAULT_GRADIENT
    timeout: float = 1.0
    max_latency: float | None = 0.2
    max_wait: float | None = 2.0

    def __post_init__(self) -> None:
        gradient = tuple(self.gradient) or DEFAULT_GRADIENT
        if any(isinstance(step, bool) or not isinstance(step, int) or step < 1 for step in gradient):
            raise ValueError(f"gradient: expected whole numbers >= 1, got {self.gradient!r}")
        object.__setattr__(self, "gradient", gradient)
        for name in ("timeout", "max_latency", "max_wait"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds >= 0:
                raise ValueError(f"{name}: expected seconds >= 0, got {seconds!r}")


class Growing:
    """A text that comes in pieces, and how much of it was shown. One owner: the processor of its turn."""

    __slots__ = (
        "_batching",
        "_in_word",
        "_parts",
        "_shown_tokens",
        "_since",
        "_step",
        "_unshown",
        "armed",
        "due",
        "shown",
        "tokens",
    )

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self._parts: list[str] = []
        self._in_word = False
        self._step = 0
        self._shown_tokens = 0
        self._unshown = False
        self._since: float | None = None
        self.tokens = 0
        self.shown = False
        self.due = math.inf
        """When it has to be shown if nothing happens until then."""
        self.armed = math.inf
        """When its owner will look at it next; the owner's to set."""

    def add(self, text: str, now: float) -> bool:
        """Take in a piece. Whether the gradient says to show it now; else `due` says when."""
        if text:
            self._parts.append(text)
            self._unshown = True
            words = len(text.split())
            if words:
                self.tokens += words - (self._in_word and not text[0].isspace())
            self._in_word = not text[-1].isspace()
        batching = self._batching
        if self.tokens - self._shown_tokens > batching.gradient[self._step]:
            return True
        self.due = now + batching.timeout
        if self.news:
            if self._since is None:
                self._since = now
            bound = batching.max_wait if self.shown else batching.max_latency
            if bound is not None and self._since + bound < self.due:
                self.due = self._since + bound
        return False

    @property
    def news(self) -> bool:
        """Whether there is anything to show: any character, or, the first time, any token (X2)."""
        return self._unshown and (self.shown or self.tokens > 0)

    @property
    def new_tokens(self) -> bool:
        """Whether there are tokens that were not shown."""
        return self.tokens > self._shown_tokens

    def text(self) -> str:
        """All of it."""
        if len(self._parts) != 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0]

    def show(self) -> str:
        """All of it, which from now on counts as shown."""
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
        return self.text()
