"""The changes that a server announces of its lists of tools, prompts and resources.

An older server announces them by itself; a current one to a subscription, which is opened anew if it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio
from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ServerCapabilities,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.tool_server import Changed

PAUSE: Final = 1.0
"""Seconds between two reports, at least: a server may flood."""

AGAIN: Final = 5.0
LONGEST: Final = 600.0
"""A subscription that has ended is opened anew after some seconds, and later if it ends again and again."""

_KINDS: Final[dict[type, Changed]] = {
    ToolListChangedNotification: "tools",
    PromptListChangedNotification: "prompts",
    ResourceListChangedNotification: "resources",
}

_log = get_logger("cantrip_actors.mcp")


class Changes:
    """The changes of one connection; `report` is called with each kind, at most once in `PAUSE` seconds."""

    def __init__(self, server: str, report: Callable[[Changed], object]) -> None:
        self._server = server
        self._report = report
        self._new: set[Changed] = set()
        self._arrived = anyio.Event()

    async def note(self, message: Any) -> None:
        """Note a notification, if it is about a list. Entities keep the tools that they began with (CALL-3)."""
        kind = _KINDS.get(type(message))
        if kind is not None:
            self._new.add(kind)
            self._arrived.set()

    async def run(self) -> None:
        """Report changes until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived = anyio.Event()
            kinds, self._new = self._new, set()
            for kind in sorted(kinds):
                _log.info("a server has changed", server=self._server, what=kind)
                self._report(kind)
            await anyio.sleep(PAUSE)

    async def subscribe(self, client: Client) -> None:
        """Keep a subscription to the changes that a current server offers; its events come to `note`."""
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        offered, pause = _read_offers(client.server_capabilities), AGAIN
        while any(offered.values()):
            began = anyio.current_time()
            try:
                async with client.listen(
                    tools_list_changed=offered["tools"],
                    prompts_list_changed=offered["prompts"],
                    resources_list_changed=offered["resources"],
                ) as events:
                    async for _ in events:
                        pass
            except (MCPError, SubscriptionLost) as problem:
                _log.debug("a subscription to a server's changes has ended", server=self._server, why=str(problem))
                if isinstance(problem, MCPError) and problem.error.code == METHOD_NOT_FOUND:
                    return
            pause = AGAIN if anyio.current_time() > began + LONGEST else min(2 * pause, LONGEST)
            await anyio.sleep(pause)


def _read_offers(can: ServerCapabilities) -> dict[str, bool]:
    lists = {"tools": can.tools, "prompts": can.prompts, "resources": can.resources}
    return {name: bool(listing is not None and listing.list_changed) for name, listing in lists.items()}
