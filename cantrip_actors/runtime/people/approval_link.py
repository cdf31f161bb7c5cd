"""Tokens of approval links: with one, a person may decide one request, until it expires. Pure.

A token is the time at which it expires and the id of the request, signed with a key of the loom. Nothing is stored: a
request is decided once in any case, so a link is used up with its request.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

PURPOSE: Final = "approval links"
"""The purpose of the key (`Runtime.derive_key`)."""

PATH: Final = "/approve/"


class LinkExpired(Exception):
    """The token is genuine, and its time is over."""


def make_link_token(key: bytes, request_id: str, expires: int) -> str:
    """Return the token for a request; `expires` is in seconds since 1970."""
    content = f"{expires} {request_id}".encode()
    return f"{_encode(content)}.{_encode(_sign(key, content))}"


def read_link_token(key: bytes, token: str, now: float) -> str | None:
    """Return the id of the request that a token is for; None for a forged one. Raises LinkExpired."""
    content, _, signature = token.partition(".")
    try:
        signed, given = _decode(content), _decode(signature)
    except (binascii.Error, ValueError):
        return None
    if not hmac.compare_digest(_sign(key, signed), given):
        return None
    expires, _, request_id = signed.decode().partition(" ")
    if now >= int(expires):
        raise LinkExpired
    return request_id


def _sign(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
