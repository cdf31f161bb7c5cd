"""Times as records have them."""

from __future__ import annotations

from datetime import UTC, datetime


def format_instant(seconds: float) -> str:
    """Return seconds since 1970 as records have them: ISO 8601, UTC, milliseconds, Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
