"""When older turns are folded out of the working context, and how many (SPEC 6.6, PROD-4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cantrip_actors.terms.arguments import check, check_whole, is_positive
from cantrip_actors.terms.crystal import Crystal, check_crystal, get_crystal_name
from cantrip_actors.terms.errors import InvalidCantrip


@dataclass(frozen=True, slots=True)
class Folding:
    """The policy for folding older turns out of the working context (D-007); the loom keeps them (LOOM-5).

    It happens when more than `trigger_after_turns` turns are unfolded, or when the last query used more than
    `trigger_at` (a share) of the crystal's context window, whichever comes first. The newest `keep_turns` (at least 1:
    an entity has to see what its last gates returned) stay unfolded; the default is half of `trigger_after_turns`, or 4
    if only the window triggers. If few turns fill the window, fewer stay.

    With `summary`, a crystal writes the text that replaces the folded turns: the entity's own for True, or the one
    given. Without it, a marker and what the circle's companion recalls replace them.

    A `selective` fold takes out the results of older turns and keeps what the entity said and called. Only
    if that is not enough for the window, a fold takes out turns, too.
    """

    trigger_after_turns: int | None = None
    trigger_at: float = 0.8
    keep_turns: int | None = None
    summary: Crystal | str | bool = False
    selective: bool = False

    def __post_init__(self) -> None:
        for name, value in (("trigger_after_turns", self.trigger_after_turns), ("keep_turns", self.keep_turns)):
            check_whole(f"folding: {name}", value, 1, error=InvalidCantrip, or_none=True)
        fits = is_positive(self.trigger_at) and self.trigger_at <= 1
        check(fits, "folding: trigger_at", "a share from 0 to 1", self.trigger_at, InvalidCantrip)
        check(isinstance(self.selective, bool), "folding: selective", "True or False", self.selective, InvalidCantrip)
        if not isinstance(self.summary, bool):
            check_crystal("folding: summary", self.summary)

    def identity(self) -> list[Any]:
        """Return the parts that enter the content id."""
        parts: list[Any] = [self.trigger_after_turns, self.trigger_at, self.keep_turns]
        if self.selective:
            parts.append("selective")
        if self.summary is False:
            return parts
        return [*parts, self.summary if self.summary is True else get_crystal_name(self.summary)]

    @property
    def keep(self) -> int:
        """The number of newest turns that stay unfolded."""
        if self.keep_turns is not None:
            return self.keep_turns
        return 4 if self.trigger_after_turns is None else max(1, self.trigger_after_turns // 2)

    def due(self, unfolded: int, prompt_tokens: int, window: int | None) -> bool:
        """Return whether to fold before the next query, after `unfolded` turns and a last query of `prompt_tokens`."""
        after = self.trigger_after_turns
        if after is not None and unfolded > max(after, self.keep):
            return True
        return unfolded > 1 and self.is_full(prompt_tokens, window)

    def is_full(self, prompt_tokens: int, window: int | None) -> bool:
        """Return whether a query of `prompt_tokens` uses more of the window than it should."""
        return window is not None and prompt_tokens > self.trigger_at * window

    def first_kept(self, spoken: int, folded: int) -> int:
        """Return the first of `spoken` utterances that the next fold keeps; `folded` of them are folded already."""
        return spoken - self.remaining(spoken - folded)

    def remaining(self, unfolded: int) -> int:
        """Return how many of `unfolded` turns the next fold leaves: always fewer, and at least the newest."""
        return self.keep if unfolded > self.keep else max(1, unfolded // 2)
