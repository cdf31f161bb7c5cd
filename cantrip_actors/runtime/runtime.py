"""The runtime as users see it: where cantrips are cast, and entities are found again.

This is a face. What stands behind it, the tree and its cells, is the house (`house.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args
from unicodedata import category

import anyio
import structlog

from cantrip_actors.crystal import Query
from cantrip_actors.loom import Held, Loom
from cantrip_actors.model.cantrip import Cantrip, Crystal, Retry
from cantrip_actors.model.circle import Circle
from cantrip_actors.model.errors import InvalidCantrip, InvalidIntent, LoomError
from cantrip_actors.model.image import Said
from cantrip_actors.model.messages import Response
from cantrip_actors.model.recovery import replay
from cantrip_actors.model.redact import Secrets
from cantrip_actors.model.stream import Envelope
from cantrip_actors.model.turn import Header
from cantrip_actors.runtime.cell import Cell, Ticket
from cantrip_actors.runtime.entities import Entity
from cantrip_actors.runtime.episode import Episode
from cantrip_actors.runtime.events import EntityEvent, Subscription
from cantrip_actors.runtime.house import NEVER_BEGAN, House, moment
from cantrip_actors.runtime.secrets import Guard
from cantrip_actors.runtime.traffic import CrystalStatus

if TYPE_CHECKING:
    from cantrip_actors.runtime.blocking import BlockingRuntime

__all__ = ["Recover", "Redact", "Runtime"]

Recover = Literal["list", "resume", "abandon"]
Redact = Literal["exports", "at_rest"]

SHORTEST_KEY = 16
"""Bytes."""

_log = structlog.get_logger("cantrip_actors.runtime")


class Runtime:
    """Where cantrips are cast. `async with Runtime.open("jsonl:loom.jsonl") as runtime: await runtime.cast(…)`.

    It runs inside any anyio, asyncio or trio program, any number of them in one process, each with its own tree.
    Everything that it started has ended when the `async with` is left.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        cantrips: Iterable[Cantrip] = (),
        recover: Recover = "list",
        passivate_after: float = 300.0,
        secrets: Secrets = (),
        redact: Redact = "exports",
        snapshot_key: bytes | None = None,
    ) -> None:
        if snapshot_key is not None and not (isinstance(snapshot_key, bytes) and len(snapshot_key) >= SHORTEST_KEY):
            raise LoomError(
                f"snapshot_key: expected at least {SHORTEST_KEY} secret bytes, as of secrets.token_bytes(32)"
            )
        _one_of("recover", recover, Recover)
        _one_of("redact", redact, Redact)
        if not isinstance(passivate_after, (int, float)) or math.isnan(passivate_after):
            raise ValueError(f"passivate_after: expected seconds, as a number, got {passivate_after!r}")
        known = [_checked("cantrips", cantrip) for cantrip in cantrips]
        guard = Guard(secrets, at_rest=redact == "at_rest")
        self._house = House(os.fspath(url), known, passivate_after, guard, snapshot_key)
        self._recover: Recover = recover

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str] = "memory:",
        *,
        cantrips: Iterable[Cantrip] = (),
        recover: Recover = "list",
        passivate_after: float = 300.0,
        secrets: Secrets = (),
        redact: Redact = "exports",
        snapshot_key: bytes | None = None,
    ) -> Runtime:
        """A runtime on the loom at `url` (`memory:`, `jsonl:path`, …); enter it with `async with`.

        A loom may hold runs that a crash cut short. `recover` says what becomes of them: "list" leaves them to
        `interrupted()`, `resume` and `abandon`; "resume" goes on with those whose cantrip is among `cantrips`;
        "abandon" ends them. Entities that last sleep until somebody sends to them, and again after `passivate_after`
        seconds without an intent.

        `secrets` (texts, or names with texts), the keys of crystals, and what gates were given under names such as
        `token` never leave in an event, a stream, an error or a log line, and neither does what looks like a common
        key. The loom keeps what was said, unless `redact` is "at_rest": then no secret is in it, and an entity that is
        brought back is told what the loom has.

        Sandboxes of code circles are kept in the loom from time to time, sealed with a key that lies beside it (in
        `<loom>.key`, made when it is first needed). With `snapshot_key`, at least 16 secret bytes, it is that one: for
        a loom in Postgres, which has none of its own, and for one that moves from machine to machine. Where an image
        cannot be trusted or used, programs are run again; with `redact="at_rest"` none are kept.

        Raises ValueError or InvalidCantrip for an option that is none, LoomError for a key that is too short. Entering
        raises LoomError where the loom cannot be opened.
        """
        return cls(
            url,
            cantrips=cantrips,
            recover=recover,
            passivate_after=passivate_after,
            secrets=secrets,
            redact=redact,
            snapshot_key=snapshot_key,
        )

    @staticmethod
    def blocking(
        url: str | os.PathLike[str] = "memory:", *, backend: str = "asyncio", **options: Any
    ) -> AbstractContextManager[BlockingRuntime]:
        """The same for synchronous code: `with Runtime.blocking(…) as runtime: runtime.cast(…)`, from any thread."""
        from cantrip_actors.runtime.blocking import BlockingRuntime

        return BlockingRuntime.open(url, backend=backend, **options)

    async def __aenter__(self) -> Self:
        await self._house.open()
        try:
            await self._take_up()
        except BaseException as error:
            await self._house.close(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._house.close(kind, error, where)

    async def drain(self, grace: float | None = None) -> bool:
        """Take no further cast and no further send, and wait for those under way: the first half of a shutdown.

        `grace` is how many seconds to wait, None as long as it takes. Returns whether all came to their end; leaving
        the `async with` stops those that did not. What works may go on meanwhile as it likes, and have children.

        Raises RuntimeClosed where it is not open, as every cast and send does from then on.
        """
        return await self._house.drain(grace)

    # Casting

    @property
    def loom(self) -> Loom:
        """The loom: every turn of every entity, readable also after the runtime has closed."""
        return self._house.loom

    async def crystals(self) -> list[CrystalStatus]:
        """How things stand with each crystal in use: what runs and what waits, pauses, breakers."""
        return await self._house.services.crystals.status()

    async def ask(self, crystal: Crystal | str, query: Query, retry: Retry | None = None) -> Response:
        """Put one query to a crystal, for code that needs an answer and no entity; nothing of it is in the loom.

        The crystal has the terms that it has for entities, together with them: limits, breaker, deadline. `retry` is as
        in `Cantrip`. Raises CrystalError, ProviderError where the provider failed for good, RuntimeClosed.
        """
        self._house.check_open()
        crystals = self._house.services.crystals
        used = crystals.find(crystal)
        self._house.guard.learn(used.crystal, Circle())
        return await crystals.ask(used, query, retry or Retry())

    async def cast(self, cantrip: Cantrip, intent: Said, *, context: Any = None) -> Episode:
        """Cast `cantrip` on `intent` and wait for the episode (SPEC 1.4). `context` is data for the entity.

        The intent is a text, or a list of texts and images (`["What is on it?", Image.read("a.png")]`).

        Cancelling the wait stops the entity and its subtree, with the reason `cancelled` in the loom.

        Raises InvalidIntent without an intent; CrystalError where the crystal breaks its contract or a provider fails
        for good; LoomError where the loom cannot write; EntityCrashed where a bug ended the entity. Each carries
        `entity_id`.
        """
        return await (await self.start(cantrip, intent, context=context)).result()

    async def start(self, cantrip: Cantrip, intent: Said, *, context: Any = None) -> Entity:
        """Cast without waiting: the entity runs while you go on; `await entity.episode()` waits for its end."""
        return await self._launch(self._house.prepare(_checked("cast", cantrip), intent, context))

    async def invoke(self, cantrip: Cantrip, intent: Said, *, name: str | None = None, context: Any = None) -> Entity:
        """Make an entity that lasts (D-001): it takes further intents with `send`, and remembers.

        `max_turns` counts anew for each intent, budgets over its life. A `name` can be looked up with `entity(name)`,
        in any process that opens the loom. Raises as `cast`, and InvalidIntent where the name is taken or is none.
        """
        cell = self._house.prepare(_checked("invoke", cantrip), intent, context, lasting=True, name=name)
        if name is not None:
            await self._take(name)
        cell.ticket = first = Ticket(cell.intent, cell.context, cell.images, begun=True)
        cell.promise(first)
        entity = Entity(self._house, cell.entity_id, name, cell, first)
        try:
            await self._house.launch(cell)
        except anyio.get_cancelled_exc_class():  # nobody is given it, and nobody shall find its name taken
            with anyio.CancelScope(shield=True):
                await entity.stop()
            raise
        return entity

    async def _take(self, name: str) -> None:
        """See that nobody has a name, nor takes it in another process before the entity has begun."""
        if not isinstance(name, str) or not name.strip() or any(category(sign) in _NO_NAME for sign in name):
            raise InvalidIntent(f"name: expected a text without control characters, got {name!r}")
        taken = InvalidIntent(f'an entity called "{name}" is there already: runtime.entity("{name}")')
        if self.entity(name) is not None:
            raise taken
        try:
            await self._house.claim_name(name)
        except Held as held:
            raise InvalidIntent(f'another process is about to make an entity called "{name}"') from held
        if self.entity(name) is not None:
            raise taken

    def entity(self, name: str, *, cantrip: Cantrip | None = None) -> Entity | None:
        """The entity of that name that lasts, awake or asleep; None where there is none, or it has been stopped.

        What is sent to it is done with `cantrip`, if that is given: one of the same content, with the crystal and the
        dependencies of whoever asks. Without it the entity goes on with what it has, also when it has slept here; one
        of an earlier process with the cantrip of its content that is known in this one, if there is just one: else a
        send raises LoomError.
        """
        living = self._house.living.named(name)
        entity_id = self.loom.named(name) if living is None else living.entity_id
        if entity_id is None or (living is None and self.loom.is_over(entity_id)):
            return None
        return Entity(self._house, entity_id, name, cantrip=cantrip)

    def find(self, entity_id: str) -> Entity:
        """The entity of that id, cast or invoked, whether it runs here, sleeps or is over: to go on where another
        request has begun.

        Raises LoomError for an id that is not in the loom.
        """
        cell = self._house.living.get(entity_id)
        name = self.loom.header(entity_id).name if cell is None else cell.plan.name
        return Entity(self._house, entity_id, name, cell)

    async def fork(
        self,
        turn_id: str,
        *,
        intent: Said,
        crystal: Crystal | str | None = None,
        cantrip: Cantrip | None = None,
        context: Any = None,
    ) -> Episode:
        """Go on from a turn of any run with a new entity (LOOM-4); the original thread is untouched.

        The fork has the context of the path to that turn, then `intent`. It is made with `cantrip`, or the one that the
        turn was made with, and with `crystal` instead of that one's if it is given.

        Raises LoomError for an unknown turn, and where its cantrip is not known in this process, or was used with
        several dependencies; else as `cast`.
        """
        records = self.loom.lineage(turn_id)
        header = self.loom.header(records[-1].entity_id)
        made_with = self._house.known(header, cantrip, crystal)
        cell = self._house.prepare(made_with, intent, context, parent_turn=turn_id, forked=True)
        cell.start = replay(cell.plan, records, moment())
        return await (await self._launch(cell)).result()

    def events(self, wanted: Callable[[EntityEvent], bool] | None = None) -> Subscription:
        """Every entity's events from now on (SPEC 7.2), or those that `wanted` says yes to; for observation only."""
        return self._house.bus.subscribe(wanted)

    def watch(self, publish: Callable[[Sequence[Envelope]], None]) -> Callable[[], None]:
        """Have `publish` called with the canonical stream of every entity, as it comes; returns what ends that.

        It is called in the entities' own tasks: it must not wait. Where it raises, that is logged, and it is not called
        any more. `observe.Upserts` is made for it, and gives any number of subscribers each its own pace:
        `runtime.watch(upserts.publish)`.
        """
        return self._house.watchers.add(publish)

    # Recovery

    def interrupted(self) -> list[Header]:
        """The root entities that nobody runs although their logs say that they were under way: a process died.

        Entities that last and wait for an intent are asleep, not interrupted. Children come back with their parents.
        """
        return list(self._house.cut_short())

    async def resume(self, entity_id: str, *, cantrip: Cantrip | None = None) -> Entity:
        """Go on with an entity that a crash cut short, from its log alone.

        Nothing that is in the log is done again; `model/recovery.py` says what happens to what was under way. The
        cantrip is the given one, or one of the same content that is known in this process. An entity that sleeps is
        woken; with a given cantrip it goes on from now on, also after it has slept in this runtime. That is how one
        that lasts gets another system prompt, other gates or another crystal.

        Raises LoomError for an unknown entity or cantrip, and for one that is awake with another cantrip than the given
        one; EntityEnded for one that is over.
        """
        cell = await self._house.settled(entity_id)
        if cell is None:
            return await self._launch(self._house.restored(entity_id, cantrip))
        if cantrip is not None and cantrip.id != cell.plan.cantrip.id:
            raise LoomError(
                f"entity {entity_id} is awake with another cantrip ({cell.plan.cantrip.id}): it takes a new one while "
                "it sleeps, after `passivate_after` seconds without an intent or as the first thing in a new runtime"
            )
        return Entity(self._house, entity_id, cell.plan.name, cell)

    async def abandon(self, entity_id: str) -> None:
        """End an interrupted entity and what it spawned, in the loom: nobody will go on with it."""
        if self._house.living.get(entity_id) is not None:
            raise LoomError(f"entity {entity_id} runs: stop it instead")
        await self._house.abandon(entity_id)

    async def _take_up(self) -> None:
        """Do with what a crash cut short what `recover` says."""
        for header in self.interrupted():
            if self._recover == "abandon":
                await self.abandon(header.entity_id)
            elif not self._house.store.shared and self._house.begun_with(header.entity_id) is None:
                # nobody was told of it, and nobody can go on with it; where others write it may just be beginning
                await self._house.abandon(header.entity_id, f"it {NEVER_BEGAN}")
            elif self._recover == "resume" and self._house.cantrips.is_clear(header):
                try:
                    await self.resume(header.entity_id)
                except Held as held:
                    _log.info("an entity is run elsewhere", entity=header.entity_id, why=str(held))
            else:
                _log.info("an entity was interrupted", entity=header.entity_id, cantrip=header.cantrip_id)

    async def _launch(self, cell: Cell) -> Entity:
        await self._house.launch(cell)
        return Entity(self._house, cell.entity_id, cell.plan.name, cell)


_NO_NAME = ("Cc", "Cs")
"""Control characters, and halves of characters, which no database keeps."""


def _checked(what: str, cantrip: Cantrip) -> Cantrip:
    if not isinstance(cantrip, Cantrip):
        raise InvalidCantrip(f"{what}: expected a Cantrip, got {type(cantrip).__name__}")
    return cantrip


def _one_of(option: str, value: object, known: object) -> None:
    if value not in get_args(known):
        raise ValueError(f"{option}: expected one of {', '.join(map(repr, get_args(known)))}, got {value!r}")
