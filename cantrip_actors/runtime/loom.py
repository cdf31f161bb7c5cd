"""The loom actor: the one writer of a store, and the holder of its leases.

What several entities hand in during one tick is written as one group; each is answered when its records are as durable
as the store promises. A store that cannot write answers everybody in the group with its error: no entity goes on
unrecorded.

Where other processes may write too, an entity's tree is claimed before it is run, and the claim renewed as long as it
lives. One that another process runs is refused, and a writer that was frozen past its lease learns so from its next
append (`loom/lease.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import anyio
import structlog

from cantrip_actors.loom import Lease, Store, Unsure, no_more, this_process
from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.turn import Record
from supervisors import NO_REPLY, Actor, Caller, ExitReason

__all__ = ["Claim", "LoomActor", "Release"]

T = TypeVar("T")

GROUP = 512
"""Appends that are written together at most: enough to share a commit, few enough to answer soon."""

LEASE = 30.0
"""Seconds that a claim lasts without being renewed: how long a machine that is gone keeps its entities from others."""

_RENEW = object()

_log = structlog.get_logger("cantrip_actors.runtime")


class Claim(NamedTuple):
    """Claim the tree of a root entity. The reply is None, or the LoomError is raised: somebody else runs it."""

    entity_id: str


class Release(NamedTuple):
    """Let go of the tree of a root entity."""

    entity_id: str


class LoomActor(Actor):
    """Appends what it is called with, a sequence of records; the reply is None, or the LoomError is raised.

    Whoever calls it with none waits for what was handed in before. `tell` is called with what has been written, so that
    those who watch are told of all of it and in its order, whatever has become of who handed it in.
    """

    def __init__(self, store: Store, tell: Callable[[Sequence[Record]], None]) -> None:
        self._store = store
        self._tell = tell
        self._group: list[Caller] = []
        self._owner = this_process()
        self._leases: dict[str, Lease] = {}
        self._tokens: dict[str, int] = {}
        self._ended: list[str] = []  # whose trees are to be let go
        self._kept = False  # a lease that it let go of may still be there

    async def init(self) -> None:
        """Renew leases from time to time."""
        if self._store.shared:
            self.send_every(LEASE / 3, _RENEW)

    async def terminate(self, reason: ExitReason) -> None:  # noqa: ARG002  # whatever it is
        """Leave no lease behind that would keep the next holder waiting, also where the store cannot be told."""
        with suppress(anyio.WouldBlock):
            while True:  # what they ask for is done by this
                self.receive_nowait(_is_release)
        leases, self._leases = list(self._leases.values()), {}
        try:
            await self._let_go(leases)
        finally:
            if leases or self._kept:
                no_more(self._owner)

    async def handle_call(self, message: Sequence[Record] | Claim, caller: Caller) -> Any:
        """Take one append into the group, and write the group when nothing else has arrived."""
        if isinstance(message, Claim):
            if message.entity_id in self._ended:  # it is woken before it was let go
                await self._settle()
            await self._claim(message.entity_id, caller)
        else:
            self._group.append(caller)
        if not self.ref.mailbox_depth or len(self._group) >= GROUP:
            await self._settle()
        return NO_REPLY

    async def handle_cast(self, message: Release) -> None:
        """Let go of a lease, once what its holder has handed in is written; of many at once where many have ended."""
        self._ended.append(message.entity_id)
        if not self.ref.mailbox_depth or len(self._ended) >= GROUP:
            await self._settle()

    async def _settle(self) -> None:
        await self._write_group()
        if self._ended:
            ended, self._ended = self._ended, []
            await self._let_go([lease for one in ended if (lease := self._leases.pop(one, None)) is not None])
            for one in ended:
                self._tokens.pop(one, None)

    async def _let_go(self, leases: Sequence[Lease]) -> None:
        if leases and not await self._attempt("leases could not be released", partial(self._store.release, *leases)):
            self._kept = True

    async def handle_info(self, message: Any) -> None:
        """The time to renew has come."""
        if message is _RENEW and self._leases:
            renew = partial(self._store.renew, self._owner, LEASE)
            await self._attempt("leases could not be renewed", renew)

    async def _attempt(self, what: str, work: Callable[[], None]) -> bool:
        try:
            await self._in_store(work)
        except LoomError as error:  # leases run out, or are fenced, by themselves
            _log.warning(what, error=str(error))
            return False
        return True

    async def _claim(self, entity_id: str, caller: Caller) -> None:
        try:
            lease = await self._in_store(partial(self._store.claim, entity_id, self._owner, LEASE))
        except LoomError as error:
            caller.fail(error)
            return
        self._leases[entity_id] = lease
        self._tokens[entity_id] = lease.token
        caller.reply(None)

    async def _write_group(self) -> None:
        if self._group:
            group, self._group = self._group, []
            await self._write(group)

    async def _write(self, group: list[Caller]) -> None:
        records: list[Record] = []
        for caller in group:
            records.extend(caller.message)
        try:
            if records:
                await self._in_store(partial(self._store.append, records, self._tokens))
        except Unsure as error:  # whoever wrote it once more might write it twice
            for caller in group:
                told = Unsure(str(error))  # each its own: it is going to say whose entity it was
                told.__cause__ = error
                caller.fail(told)
        except LoomError as error:
            if len(group) > 1:  # one entity's mistake is no other's
                for caller in group:
                    await self._write([caller])
            else:
                group[0].fail(error)
        else:
            self._tell(records)
            for caller in group:
                caller.reply(None)

    async def _in_store(self, work: Callable[[], T]) -> T:
        if not self._store.blocking:
            return work()
        scope = anyio.CancelScope(shield=True)  # what a thread has begun to write is written: its callers have to know
        with scope:
            done = await anyio.to_thread.run_sync(work)
        return done  # noqa: RET504  # a scope may end without its return, for all that types can tell


def _is_release(message: object) -> bool:
    return isinstance(message, Release)
