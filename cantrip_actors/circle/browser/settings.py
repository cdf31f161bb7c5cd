"""The limits of a browser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cantrip_actors.circle.browser.hosts import AllowedHost


class Launch(NamedTuple):
    """The settings that need a browser process of their own."""

    executable: str | None
    memory: int
    """Mebibytes of the objects of one page's scripts."""
    sandbox: bool


@dataclass(frozen=True, slots=True)
class BrowserSettings:
    """The hosts that its pages may reach, and the limits of one entity.

    `tabs` are open at once. `max_bytes` is what the pages may receive for one call, `timeout` the seconds of one call.
    `downloads` says whether a call may download a file.
    """

    hosts: tuple[AllowedHost, ...]
    launch: Launch
    allow_private: bool
    tabs: int
    max_bytes: int
    timeout: float
    downloads: bool
