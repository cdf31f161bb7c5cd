"""Which failed attempts of a crystal or a gate are retried, and after how long (SPEC 7.3, PROD-2)."""

from __future__ import annotations

from dataclasses import dataclass

from cantrip_actors.terms.arguments import check, check_whole, is_list, is_number, is_whole
from cantrip_actors.terms.errors import InvalidCantrip

_NEVER_RETRIED = (400, 401, 403, 404)
_CODES = (429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Retry:
    """How failed attempts of a crystal, or of a gate, are retried inside one turn (SPEC 7.3, D-006).

    `max_retries` counts the attempts after the first; `attempts`, if given, counts all of them. Delays double from
    `base_delay` to `max_delay` seconds, with jitter; a provider's Retry-After takes precedence. A gate retries only the
    exceptions `on`. A crystal retries only `retryable_status_codes` and missing answers. With the default codes, each
    family also retries the statuses that its provider uses for a passing failure (408, 409, 425, 529 and others); with
    other codes, only these. Some errors are not recognised by their status: a spent quota is never retried, and a call
    that the model wrote wrongly always is.
    """

    max_retries: int = 5
    retryable_status_codes: tuple[int, ...] = _CODES
    base_delay: float = 1.0
    max_delay: float = 60.0
    on: tuple[type[Exception], ...] = ()
    attempts: int | None = None

    def __post_init__(self) -> None:
        check_whole("retry: attempts", self.attempts, 1, error=InvalidCantrip, or_none=True)
        if self.attempts is not None:
            object.__setattr__(self, "max_retries", self.attempts - 1)
        kinds = tuple(self.on) if is_list(self.on) else (self.on,)
        fits = all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds)
        check(fits, "retry: on", "classes of exceptions", self.on, InvalidCantrip)
        object.__setattr__(self, "on", kinds)
        check_whole("retry: max_retries", self.max_retries, 0, error=InvalidCantrip)
        delays = (self.base_delay, self.max_delay)
        fits = all(map(is_number, delays)) and 0 <= self.base_delay <= self.max_delay
        check(fits, "retry", "0 <= base_delay <= max_delay", delays, InvalidCantrip)
        statuses = self.retryable_status_codes
        check(is_list(statuses), "retry: retryable_status_codes", "a list of HTTP statuses", statuses, InvalidCantrip)
        for status in (codes := tuple(statuses)):
            if not is_whole(status, 0) or status in _NEVER_RETRIED:
                raise InvalidCantrip(f"retry: retryable_status_codes: {status!r} cannot be retried (SPEC 7.3)")
        object.__setattr__(self, "retryable_status_codes", codes)

    @property
    def has_own_codes(self) -> bool:
        """Whether the status codes are not the default ones."""
        return self.retryable_status_codes != _CODES

    def delay(self, attempt: int, status: int | None, retry_after: float | None, chance: float) -> float | None:
        """Return the seconds to wait after failed attempt number `attempt` (from 1), or None to give up.

        `chance`, from 0 to 1, is the jitter's dice: half of each delay is fixed, half is random.
        """
        if attempt > self.max_retries or (status is not None and status not in self.retryable_status_codes):
            return None
        ceiling = min(self.max_delay, self.base_delay * 2.0 ** min(attempt - 1, 62))
        backoff = ceiling * (0.5 + 0.5 * chance)
        return backoff if retry_after is None else min(max(backoff, retry_after), self.max_delay)
