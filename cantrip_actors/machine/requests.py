"""Requests to people: the key under which a decision is posted, so that the first decision counts."""

from __future__ import annotations

__all__ = ["decision_key"]


def decision_key(request_id: str) -> str:
    """Return the key of the mail that decides a request."""
    return f"decision:{request_id}"
