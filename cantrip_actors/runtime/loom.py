"""The loom actor: the one writer of a store.

What several entities hand in during one tick is written as one group; each is answered when its records are as durable
as the store promises. A store that cannot write answers everybody in the group with its error: no entity goes on
unrecorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio

from cantrip_actors.loom import Store
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.turn import Record
from supervisors import NO_REPLY, Actor, Caller

__all__ = ["LoomActor"]

GROUP = 512
"""Appends that are written together at most: enough to share a commit, few enough to answer soon."""


class LoomActor(Actor):
    """Appends what it is called with, a sequence of records; the reply is None, or the LoomError is raised."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._group: list[Caller] = []

    async def handle_call(self, message: Sequence[Record], caller: Caller) -> Any:  # noqa: ARG002  # the caller has it
        """Take one append into the group, and write the group when nothing else has arrived."""
        self._group.append(caller)
        if not self.ref.mailbox_depth or len(self._group) >= GROUP:
            group, self._group = self._group, []
            await self._write(group)
        return NO_REPLY

    async def _write(self, group: list[Caller]) -> None:
        records: list[Record] = []
        for caller in group:
            records.extend(caller.message)
        try:
            await self._append(records)
        except LoomError as error:
            if len(group) > 1:  # one entity's mistake is no other's
                for caller in group:
                    await self._write([caller])
            else:
                group[0].fail(error)
        else:
            for caller in group:
                caller.reply(None)

    async def _append(self, records: Sequence[Record]) -> None:
        if self._store.blocking:
            # shielded: what a thread has begun to write is written, and its callers have to know
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(partial(self._store.append, records))
        else:
            self._store.append(records)
