"""The hosts that a browser may reach: patterns such as `docs.python.org`, `*.example.com` and `localhost:8000`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from cantrip_actors.terms.arguments import read_texts
from cantrip_actors.terms.errors import InvalidCantrip

_PATTERN: Final = re.compile(
    r"(?P<any>\*\.)?(?P<host>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?"
)
_EXPECTED: Final = 'a list of hosts, as in ["docs.python.org", "*.example.com", "localhost:8000"], or ["*"]'

PORTS: Final = (80, 443)
"""The ports that are allowed for a host without a port."""


class AllowedHost(NamedTuple):
    """A host, or with `subdomains` all hosts below it; without a `port`, on the ports of the web. "" is any host."""

    name: str
    subdomains: bool = False
    port: int | None = None

    def matches(self, host: str, port: int) -> bool:
        """Return whether it allows a port of a host, whose name is in lower case."""
        if port not in (PORTS if self.port is None else (self.port,)):
            return False
        if not self.name:
            return True
        return host.endswith(f".{self.name}") if self.subdomains else host == self.name

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"{'*.' if self.subdomains else ''}{self.name or '*'}{port}"


def read_hosts(allow: Iterable[str]) -> tuple[AllowedHost, ...]:
    """Return the hosts of these patterns. Raises InvalidCantrip."""
    texts: Iterable[str] = read_texts("browser: allow", allow, _EXPECTED, InvalidCantrip)
    return tuple(map(_read_host, texts))


def _read_host(text: str) -> AllowedHost:
    if text == "*":
        return AllowedHost("")
    parts = _PATTERN.fullmatch(text.lower())
    if parts is None or not 0 < int(parts["port"] or 80) < 65_536:
        raise InvalidCantrip(f"browser: allow: expected {_EXPECTED}, got {text!r}")
    port = parts["port"]
    return AllowedHost(parts["host"].strip("[]"), bool(parts["any"]), None if port is None else int(port))
