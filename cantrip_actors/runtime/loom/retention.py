"""Prune a loom in use: in small batches, through the loom actor, and without blocking the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio

from cantrip_actors.loom import Forgotten, Held, Pruned, Retention, Store, Wanted, find_expired
from cantrip_actors.loom.maintenance.retention import NONE_PRUNED, OLDER, PRUNE, list_subtree
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.loom.store_access import StoreAccess
from cantrip_actors.terms.errors import LoomError, RuntimeClosed
from supervisors import Actor

FIRST: Final = 60.0
"""Seconds from the opening of a runtime to its first search for expired entities."""
POLL_INTERVAL: Final = 3600.0
"""Seconds between two searches."""

_LOOK = object()

_log = get_logger("cantrip_actors.runtime")


async def prune(
    store: Store,
    access: StoreAccess,
    retention: Retention,
    forget: Callable[[Wanted], Awaitable[Forgotten]],
    *,
    dry_run: bool = False,
    tenant: str | None = None,
) -> Pruned:
    """Forget expired entities, of all tenants or of one; with `dry_run` only list them."""

    def find(after: str | None) -> tuple[list[str], str | None]:
        expired, last = find_expired(store, retention, now, after, tenant)
        return [one for entity in expired for one in list_subtree(store, entity)] if dry_run else expired, last

    pruned, after, now = NONE_PRUNED, None, store.clock()
    while True:
        expired, last = await access.run(partial(find, after))
        await anyio.lowlevel.checkpoint()
        if dry_run:
            pruned = pruned.plus(Forgotten(tuple(expired)))
        elif expired:
            try:
                pruned = pruned.plus(await forget(Wanted(expired, PRUNE, OLDER, scrubs=False)))
            except Held:  # another process has just claimed one of them, to prune it, too: the next look leaves it out
                continue
        after = last
        if after is None:
            return pruned


class RetentionActor(Actor):
    """Prunes from time to time. It does not rewrite the loom: `Runtime.prune` and `compact` do that."""

    def __init__(
        self,
        store: Store,
        access: StoreAccess,
        retention: Retention,
        forget: Callable[[Wanted], Awaitable[Forgotten]],
    ) -> None:
        self._store = store
        self._access = access
        self._retention = retention
        self._forget = forget

    async def init(self) -> None:
        """Start the timers."""
        self.send_after(FIRST, _LOOK)
        self.send_every(POLL_INTERVAL, _LOOK)

    async def handle_info(self, message: Any) -> None:
        """Forget the entities that `retention` no longer keeps."""
        if message is not _LOOK:
            return
        try:
            pruned = await prune(self._store, self._access, self._retention, self._forget)
        except (LoomError, RuntimeClosed) as error:  # the next poll tries again
            _log.warning("the loom could not be pruned", error=str(error))
            return
        if pruned.entities:
            _log.info("entities were forgotten", entities=len(pruned.entities), records=pruned.records)
