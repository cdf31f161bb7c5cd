"""Addresses to listen at, as HOST:PORT."""

from __future__ import annotations

import ipaddress

from cantrip_actors import CantripError


class CannotServe(CantripError, ValueError):
    """The settings would admit every client, or the address cannot be used."""


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT. Raises CannotServe."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise CannotServe(f"{text}: expected HOST:PORT, with a port from 0 to 65535")
    return host.strip("[]"), int(port)


def add_brackets(host: str) -> str:
    """Return a host as URLs have it."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
