"""The limits of a browser."""

from __future__ import annotations

from dataclasses import dataclass

from cantrip_actors.circle.browser.hosts import AllowedHost


@dataclass(frozen=True, slots=True)
class BrowserSettings:
    """The hosts that its pages may reach, and the limits of one entity.

    `tabs` are open at once. `max_bytes` is what the pages may receive for one call, `memory` the mebibytes of the
    objects of a page's scripts, `timeout` the seconds of one call. `downloads` says whether a call may download a file.
    """

    hosts: tuple[AllowedHost, ...]
    allow_private: bool = False
    tabs: int = 5
    max_bytes: int = 50_000_000
    memory: int = 512
    timeout: float = 20.0
    executable: str | None = None
    sandbox: bool = True
    downloads: bool = False
