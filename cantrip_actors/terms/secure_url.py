"""Hosts of this machine, and URLs to which credentials may be sent."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?(?:[/?#][!-~]*)?",
    re.ASCII | re.IGNORECASE,
)
_OWN: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORTS: Final = 1 << 16


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_secure_url(url: str) -> bool:
    """Return whether a URL names a server by https, or one on this machine, and has no login in it.

    >>> is_secure_url("https://login.example/tenant"), is_secure_url("http://localhost.evil.example")
    (True, False)
    """
    parts = _URL.fullmatch(url)
    if parts is None or int(parts["port"] or 0) >= _PORTS:
        return False
    return parts["scheme"].lower() == "https" or parts["host"].lower() in _OWN
