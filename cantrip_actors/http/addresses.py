"""Addresses to listen at, as HOST:PORT."""

from __future__ import annotations

from urllib.parse import urlsplit

from cantrip_actors import CantripError


class CannotServe(CantripError, ValueError):
    """The settings would admit every client, or the address cannot be used."""


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT. Raises CannotServe."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise CannotServe(f"{text}: expected HOST:PORT, with a port from 0 to 65535")
    return host.strip("[]"), int(port)


def parse_origin(text: str) -> str:
    """Return an origin as browsers send it. Raises CannotServe for a text that no browser would send."""
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    rest = parts._replace(scheme="", netloc="").geturl()
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc or rest not in ("", "/"):
        raise CannotServe(f'{text}: expected the origin of a page, without a path, as in "https://app.example"')
    return f"{parts.scheme}://{parts.netloc.lower()}"


def add_brackets(host: str) -> str:
    """Return a host as URLs have it."""
    return f"[{host}]" if ":" in host else host
