"""The meaning of a provider's error: its status, whether a retry can help, and how long to wait first.

Errors come as HTTP statuses, as JSON bodies of four shapes, as plain text, and as events of a stream that began with
status 200. `make_failure` reads all of them into one `ProviderError`. The tables below have these rules:

| | retried | not retried |
| --- | --- | --- |
| by status | 408, 409, 424, 425, 429, 500 and above | all others |
| by name | overload, rate limits, time-outs, internal errors, malformed calls | spent quotas and credit, daily limits |

An error's name takes precedence over its status: a spent quota has status 429. Pure: the present time, for a date in
`retry-after`, is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from math import isfinite
from typing import Any, Final

import orjson

from cantrip_actors.crystal.draft import join_surrogates
from cantrip_actors.crystal.overflow import find_window, is_overflow
from cantrip_actors.crystal.shapes import mapping, objects
from cantrip_actors.terms.errors import ProviderError

STATUS: Final[Mapping[str, int]] = {
    # Anthropic
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    # OpenAI
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "internal_server_error": 500,
    "timeout": 504,
    "overloaded": 503,
    "vector_store_timeout": 504,
    "invalid_api_key": 401,
    "model_not_found": 404,
    # Google
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNKNOWN": 500,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    # Amazon, within a stream
    "validationException": 400,
    "modelTimeoutException": 408,
    "modelStreamErrorException": 424,
    "throttlingException": 429,
    "internalServerException": 500,
    "serviceUnavailableException": 503,
}
"""The statuses of errors by name, inside a stream or a body with status 200."""

CREDIT: Final = frozenset(
    (
        "insufficient_quota",
        "credit_balance_exhausted",
        "billing_hard_limit_reached",
        "billing_error",
        "enforced_spend_limit_reached",
        "spend_limit_reached",
    )
)
"""Most have the status of a rate limit, but waiting does not help."""

FLUKES: Final = frozenset(("tool_use_failed", "json_validate_failed"))
"""Errors with status 400 that depend on sampling: the same query may succeed."""
_FLUKE: Final = re.compile(
    r"model did not call a tool|failed to (?:call a function|(?:generate|validate) JSON)", re.IGNORECASE
)
_AGAIN: Final = frozenset((408, 409, 424, 425, 429))
_NEVER: Final = frozenset((501, 505))
_SPENT: Final = re.compile(r"spend limit|credit balance is too low")
_LONGEST: Final = 600
"""Characters of a provider's message that are passed on."""
_LONGEST_CODE: Final = 100
"""Characters of a code of an error."""


def make_failure(
    provider: str, status: int | None, body: Any, headers: Mapping[str, str] | None = None, now: float = 0.0
) -> ProviderError:
    """Return the error of an answer. `status` is None, or 200, for an error inside an answer.

    `body` is the parsed JSON, or text. `headers` are looked up in lower case; `now` is in seconds since the epoch.
    """
    details = _find_details(body)
    names = tuple(_list_codes(details))
    if status is None or status < 400:
        status = _find_status(names, is_text=isinstance(mapping(body).get("error"), str))
    message = _find_message(details, body) or "no message"
    kind = next((name for name in names if not name.isdecimal()), "")
    if kind in CREDIT:
        message, kind = f"refuses for want of credit ({kind}): {message}; check the account", ""
    wait = find_retry_after(headers or {}, now)
    overflows = is_overflow(status, names, message)
    is_retryable, is_by_status = _decide_retry(status, names, details, message, (headers or {}).get("x-should-retry"))
    is_retryable = is_retryable and not overflows
    generated = details.get("failed_generation")
    text = f"{provider}: {message}" if not kind or kind in message else f"{provider}: {message} ({kind})"
    failure = ProviderError(
        join_surrogates(text),
        status=status,
        retry_after=_find_hint(details, now) if wait is None else wait,
        retryable=is_retryable,
        generated=join_surrogates(generated)
        if is_retryable and isinstance(generated, str) and generated.strip()
        else None,
    )
    failure.is_by_status = is_by_status and not overflows
    if overflows:
        failure.overflows, failure.window = True, find_window(details, message)
    return failure


def _find_details(body: Any) -> Mapping[str, Any]:
    """Return the object that describes the error, wherever it is in the body."""
    while isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, Mapping):
        return {}
    inner = body.get("error")
    if isinstance(inner, Mapping):
        return inner
    if isinstance(inner, str):
        return {"message": inner, "type": body.get("error_type")}  # the latter is Hugging Face's
    return body


def _list_codes(details: Mapping[str, Any]) -> Iterator[str]:
    """Yield the codes of an error, the most specific first."""
    code = mapping(details.get("details")).get("error_code")  # Anthropic's
    if code:
        yield str(code)[:_LONGEST_CODE]
    for name in ("code", "type", "status"):
        value = details.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value not in {"", "error"}:
            yield str(value)[:_LONGEST_CODE]


def _find_status(names: tuple[str, ...], *, is_text: bool) -> int:
    for name in names:
        if name in STATUS:
            return STATUS[name]
        if name.isdecimal() and 400 <= int(name) <= 599:
            return int(name)
    # An error with an unknown name, or with a text only, is not retried. Without either, it is the server's fault.
    return 400 if names or is_text else 500


def _find_message(details: Mapping[str, Any], body: Any) -> str:
    message = details.get("message") or details.get("detail") or details.get("error_description")
    if message is None and isinstance(body, str):
        message = body.strip()
    if message is not None and not isinstance(message, str):
        message = orjson.dumps(message, default=str).decode()
    raw = mapping(details.get("metadata")).get("raw")  # OpenRouter: the error of the provider behind it
    text = f"{message or ''} {raw}".strip() if isinstance(raw, str) and raw else message or ""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _decide_retry(
    status: int, names: tuple[str, ...], details: Mapping[str, Any], message: str, hint: str | None
) -> tuple[bool, bool]:
    """Return whether a failure is retried, and whether a user's own status codes may change that."""
    if CREDIT.intersection(names) or _SPENT.search(message) or _is_daily(details):
        return False, False  # for want of credit, or at the end of a daily quota, waiting does not help
    if FLUKES.intersection(names) or _FLUKE.search(message):
        return True, False
    if hint in ("true", "false"):
        return hint == "true", hint == "true"
    return status in _AGAIN or (status >= 500 and status not in _NEVER), True


def _is_daily(details: Mapping[str, Any]) -> bool:
    """Return whether a daily quota of Google is exhausted."""
    return any(
        "PerDay" in str(violation.get("quotaId"))
        for detail in objects(details.get("details"))
        for violation in objects(detail.get("violations"))
    )


# ------------------------------------------------------------------------------------------------- how long to wait


def find_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the wait in seconds that the headers ask for; None if they do not.

    It is in `retry-after-ms` or `retry-after` (seconds, or a date), or is the time until an exhausted limit is reset.
    `now` is the time in seconds since the epoch.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            from email.utils import parsedate_to_datetime  # few providers send a date

            try:
                seconds = parsedate_to_datetime(value).timestamp() - now
            except (ValueError, OverflowError):
                continue
        if isfinite(seconds):
            return max(0.0, seconds)
    return max(_list_resets(headers, now), default=None)


_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_IN_WORDS: Final = re.compile(r"[Tt]ry again in ([\dhms.]+)")
_YEAR: Final = 31_536_000
"""Seconds: a larger number is a point in time."""
_MILLISECONDS: Final = 1e11
"""A larger point in time is in milliseconds: in seconds it would be in the year 5138."""
_LIMITS: Final = ("requests", "tokens", "input-tokens", "output-tokens")


def _list_resets(headers: Mapping[str, str], now: float) -> Iterator[float]:
    """Return the seconds until exhausted limits are reset: OpenAI sends a duration, Anthropic and OpenRouter a point in
    time.
    """
    for limit in _LIMITS:
        if headers.get(f"x-ratelimit-remaining-{limit}") == "0":
            seconds = _parse_duration(headers.get(f"x-ratelimit-reset-{limit}", ""))
            if seconds is not None:
                yield seconds
        if headers.get(f"anthropic-ratelimit-{limit}-remaining") == "0":
            try:
                instant = datetime.fromisoformat(headers.get(f"anthropic-ratelimit-{limit}-reset", ""))
            except ValueError:
                continue
            if instant.tzinfo is not None:
                yield max(0.0, instant.timestamp() - now)
    reset = headers.get("x-ratelimit-reset", "")
    if headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():  # OpenRouter: an instant; others: seconds
        at = float(reset) / (1000 if float(reset) > _MILLISECONDS else 1)
        yield max(0.0, at - now) if at > _YEAR else at


def _parse_duration(duration: str) -> float | None:
    """Return the seconds of a duration in Go's notation, "6m0s", or of a number."""
    if duration.isdecimal():
        return float(duration)
    match = _DURATION.fullmatch(duration)
    if not match or not any(match.groups()):
        return None
    hours, minutes, seconds, milli = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds + milli / 1000


def _find_hint(details: Mapping[str, Any], now: float) -> float | None:
    """Return the wait that the body asks for: Google's RetryInfo, OpenRouter's copy of headers, OpenAI's text."""
    for detail in objects(details.get("details")):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)s", str(detail.get("retryDelay")))
        if match:
            return float(match[1])
    passed_on = mapping(details.get("metadata")).get("headers")
    if isinstance(passed_on, Mapping):
        return find_retry_after({str(name).lower(): str(value) for name, value in passed_on.items()}, now)
    words = _IN_WORDS.search(str(details.get("message")))  # within a stream there are no headers
    return None if words is None else _parse_duration(words[1].rstrip("."))
