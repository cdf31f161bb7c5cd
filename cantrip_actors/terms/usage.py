"""The tokens that a crystal used, and the errors of crystals, which carry the tokens that were spent on them."""

from __future__ import annotations

import sys
from typing import Any, Final, TypeVar

from cantrip_actors.terms.value import Value, is_mapping

E = TypeVar("E", bound=BaseException)


class CantripError(Exception):
    """Root of every error that the public API raises on purpose.

    `entity_id` names the entity that the error ended, if there was one: its turns are in the loom.
    """

    entity_id: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a copy, and another process, make the same error of: its text and its attributes."""
        return make_error_again, (type(self), self.args), dict(self.__dict__)


def make_error_again(kind: type[E], args: tuple[object, ...]) -> E:
    """Return an error with these `args`, without the constructor of its class, which takes others."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


_MOST: Final = sys.float_info.max
"""The largest count or cost that a record keeps: JSON readers take a larger whole number for infinity."""

_FREE: Final = 0.0
"""The zero usage that records leave out: msgspec compares a field with its default by identity."""


class Usage(Value, frozen=True, gc=False):
    """The tokens of one crystal invocation, or a sum of such (LOOM-9, PROD-3).

    `prompt_tokens` includes `cached_tokens`, those served from the provider's cache. `cost` is in US dollars, 0 if the
    prices are unknown. `estimated_tokens` are the part that was estimated, for answers that reported no tokens.
    `reasoning_tokens` are the part of `completion_tokens` that the model used to think, where its provider counts them.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: float = _FREE
    estimated_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        if self is NO_USAGE:
            return other
        if other is NO_USAGE:
            return self
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            (self.cost + other.cost) or _FREE,
            self.estimated_tokens + other.estimated_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens - other.prompt_tokens,
            self.completion_tokens - other.completion_tokens,
            self.cached_tokens - other.cached_tokens,
            (self.cost - other.cost) or _FREE,
            self.estimated_tokens - other.estimated_tokens,
            self.reasoning_tokens - other.reasoning_tokens,
        )

    @classmethod
    def of(cls, value: object) -> Usage:
        """Return the `Usage` that a crystal reported.

        Raises CrystalError for counts that are negative, infinite, fractional or not numbers.
        """
        if value is None:
            return NO_USAGE
        if not is_mapping(value):
            if not isinstance(value, Usage):
                kind = type(value).__name__
                raise CrystalError(f"crystal reported usage of type {kind}: expected a mapping of counts")
            if value.is_sound():
                return value
            value = {name: getattr(value, name) for name in cls.__struct_fields__}
        counts: dict[str, Any] = {}
        for name, amount in value.items():
            if not amount or name not in _COUNTS:
                continue
            if amount.__class__ is int and 0 < amount <= _MOST:
                counts[name] = amount
                continue
            if amount.__class__ is bool or not isinstance(amount, (int, float)):
                raise CrystalError(f"crystal reported usage {name}={amount!r}: expected a number >= 0")
            if not 0 <= amount <= _MOST:
                shown = f"{amount!r}" if -_MOST <= amount <= 0 else "a number that is too large"
                raise CrystalError(f"crystal reported usage {name}={shown}: expected a number >= 0")
            if name != "cost" and amount.__class__ is not int:
                if amount != int(amount):
                    raise CrystalError(f"crystal reported usage {name}={amount!r}: expected a whole number of tokens")
                amount = int(amount)
            counts[name] = amount
        return cls(**counts)

    def is_sound(self) -> bool:
        """True if a record keeps these counts: a user's crystal may have made this without `of`."""
        parts = (self.cached_tokens, self.estimated_tokens, self.reasoning_tokens)
        counts = (self.prompt_tokens, self.completion_tokens, *parts)
        whole = all(type(count) is int and 0 <= count <= _MOST for count in counts)
        return whole and isinstance(self.cost, (int, float)) and 0 <= self.cost <= _MOST


NO_USAGE = Usage()
_COUNTS: Final = frozenset(Usage.__struct_fields__)


class CrystalError(CantripError):
    """The crystal broke its contract (CRYSTAL-3, CRYSTAL-4) or failed in a way that no retry can fix.

    `usage` has the tokens of all attempts at the query: they were paid for, although there was no response.
    `overflows` says that the context was too long: an entity folds its context, or shows less of it, and asks again.
    `window` is then the size of the model's context in tokens, if the refusal named it.
    """

    usage: Usage = NO_USAGE
    overflows: bool = False
    window: int | None = None

    def __init__(self, *args: object, usage: Usage = NO_USAGE) -> None:
        super().__init__(*args)
        self.usage = usage


class ProviderError(CrystalError):
    """A provider answered with an error, or could not be reached.

    `status` is its HTTP status, None if there was no answer at all; `retry_after` is the wait that it asked for, in
    seconds; `attempts` counts the attempts before giving up. `retryable` overrides what the status implies: an
    exhausted quota has status 429, but no retry helps. `generated` is the model's output, if the provider sends it with
    the error because it could not parse it: the next attempt includes it. `is_by_status` says that `retryable` only
    follows from the status, so that the status codes that a user has set in `Retry` decide instead.
    """

    is_by_status: bool = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        attempts: int = 1,
        retryable: bool | None = None,
        usage: Usage = NO_USAGE,
        generated: str | None = None,
    ) -> None:
        super().__init__(message, usage=usage)
        self.status = status
        self.retry_after = retry_after
        self.attempts = attempts
        self.retryable = retryable
        self.generated = generated
