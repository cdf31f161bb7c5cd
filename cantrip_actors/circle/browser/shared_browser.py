"""The browser of a circle. Its gates are imported at the first use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cantrip_actors.circle.browser.hosts import read_hosts
from cantrip_actors.circle.browser.settings import BrowserSettings, Launch
from cantrip_actors.terms.arguments import check, check_whole, is_positive
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import Gate
from cantrip_actors.terms.resource import BoundResource, Resource

GRACE: Final = 15.0
"""Seconds that the gates wait beyond the limit of a call, for a browser that has to be started."""


@dataclass(frozen=True, slots=True)
class SharedBrowser(Resource):
    """The browser of a circle: its entities share a process, and each has tabs of its own."""

    settings: BrowserSettings
    form: str = "browser 1"

    def bind(self, snapshot: bytes | None) -> BoundResource:
        """Return the browser of one entity. Nothing is started before its first call."""
        from cantrip_actors.circle.browser.entity_browser import EntityBrowser

        return EntityBrowser(self.settings, snapshot)


def browser(
    allow: Iterable[str],
    *,
    secrets: Mapping[str, str] | Any = None,
    downloads: str | os.PathLike[str] | Any = None,
    allow_private: bool = False,
    tabs: int = 5,
    timeout: float = 20.0,
    max_bytes: int = 50_000_000,
    memory: int = 512,
    executable: str | None = None,
    sandbox: bool = True,
) -> list[Gate]:
    """Return the gates of a browser: `goto`, `look`, `click`, `fill`, `press`, `select`, `back`, `tabs`, `screenshot`,
    and `download` with a folder for it.

    Each entity has tabs and cookies of its own, in a Chromium that it shares with others. Its pages, and everything in
    them, reach the hosts of `allow` alone, on the public internet: `["docs.python.org", "*.example.com"]` on the ports
    of the web, `"example.com:8080"` on another one, `"*"` for all hosts.

    Args:
        allow: the hosts.
        secrets: passwords by name, which `fill(target, secret=name)` writes; no text that the entity gets has them.
        downloads: the folder in which `download` saves files; left out, a download is refused.
        allow_private: if True, allowed hosts may have addresses of private networks and of this machine.
        tabs: how many may be open at once.
        timeout: seconds of one call.
        max_bytes: what pages may receive during one call.
        memory: mebibytes of the objects of a page's scripts; a page that needs more crashes, and is closed.
        executable: the path of a Chromium; left out, one on PATH or the one that Playwright has downloaded.
        sandbox: if False, Chromium runs without its own sandbox, as it always does for the user root.

    Raises InvalidCantrip for a wrong host or limit.
    """
    check_whole("browser: tabs", tabs, 1, error=InvalidCantrip)
    check_whole("browser: max_bytes", max_bytes, 1, error=InvalidCantrip)
    check_whole("browser: memory", memory, 16, error=InvalidCantrip)
    check(is_positive(timeout), "browser: timeout", "seconds > 0", timeout, InvalidCantrip)
    launch = Launch(executable, memory, sandbox)
    settings = BrowserSettings(
        read_hosts(allow), launch, allow_private, tabs, max_bytes, timeout, downloads=downloads is not None
    )
    from cantrip_actors.circle.browser.gates import GATES, download

    gates = list(GATES) if downloads is None else [*GATES, download.with_(root=downloads)]
    shared = SharedBrowser(settings)
    injected = {} if secrets is None else {"secrets": secrets}
    return [gate.with_(browser=shared, timeout=timeout + GRACE, **injected) for gate in gates]
