"""The runtime: opens a loom, puts up the tree, and casts cantrips into it.

    Runtime         rest_for_one
    ├── loom        the one writer of the store
    ├── crystals    dynamic: an actor a crystal
    └── entities    dynamic: a cell a root entity

A loom that crashes takes everything after it along, since nobody may go on unrecorded; a crystal that crashes is its
own affair. Closing stops the entities first, last started first, each with its reason in its log.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import uuid_utils

from cantrip_actors.loom import Loom, Store, open_store
from cantrip_actors.model.cantrip import Cantrip, Crystal
from cantrip_actors.model.errors import EntityEnded, InvalidCantrip, InvalidIntent, LoomError, RuntimeClosed
from cantrip_actors.model.loop import Moment, Plan, begin
from cantrip_actors.model.recovery import replay
from cantrip_actors.runtime.cell import Cell, Services, cell_spec
from cantrip_actors.runtime.crystals import Crystals
from cantrip_actors.runtime.episode import Episode, episode_of
from cantrip_actors.runtime.events import Bus, EntityEvent, Subscription
from cantrip_actors.runtime.ledger import Ledger
from cantrip_actors.runtime.loom import LoomActor
from supervisors import (
    ActorRef,
    ActorSystem,
    ChildSpec,
    Died,
    DynamicSupervisor,
    NotRunning,
    Shutdown,
    Supervisor,
    SupervisorRef,
)

if TYPE_CHECKING:
    from cantrip_actors.runtime.blocking import BlockingRuntime

__all__ = ["Entity", "Runtime"]

REMEMBERED = 1024
"""Cantrips that a fork can go on with unless it is given one: the last so many that were cast here."""


class Runtime:
    """Where cantrips are cast. `async with Runtime.open("jsonl:loom.jsonl") as runtime: await runtime.cast(…)`.

    It runs inside any anyio, asyncio or trio program, any number of them in one process, each with its own tree.
    Everything that it started has ended when the `async with` is left.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Store | None = None
        self._loom: Loom | None = None
        self._system: ActorSystem | None = None
        self._bus = Bus()
        self._writer = ActorRef()
        self._entities = SupervisorRef()
        self._crystals = Crystals(SupervisorRef())
        self._cantrips: OrderedDict[str, Cantrip] = OrderedDict()
        self._named: dict[str, Entity] = {}
        self._services = Services(self._append, _moment, self._bus, self._crystals, self._prepare)

    @classmethod
    def open(cls, url: str = "memory:") -> Runtime:
        """A runtime on the loom at `url`: `memory:` or `jsonl:path`; enter it with `async with`.

        Entering raises LoomError where the loom cannot be opened.
        """
        return cls(url)

    @staticmethod
    def blocking(url: str = "memory:", *, backend: str = "asyncio") -> AbstractContextManager[BlockingRuntime]:
        """The same for synchronous code: `with Runtime.blocking(…) as runtime: runtime.cast(…)`, from any thread."""
        from cantrip_actors.runtime.blocking import BlockingRuntime

        return BlockingRuntime.open(url, backend=backend)

    async def __aenter__(self) -> Self:
        self._store = open_store(self._url)
        self._loom = Loom(self._store, self._append)
        try:
            self._system = await ActorSystem().__aenter__()
            await self._system.start(ChildSpec("runtime", self._tree, restart="temporary"))
        except BaseException:
            self._store.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        assert self._system is not None
        assert self._store is not None
        try:
            return await self._system.__aexit__(kind, error, where)
        finally:
            self._bus.close()
            self._store.close()

    def _tree(self) -> Supervisor:
        store = self._open_store()
        crystals = self._crystals.supervisor
        return Supervisor(
            [
                ChildSpec("loom", lambda: LoomActor(store), ref=self._writer),
                ChildSpec("crystals", lambda: DynamicSupervisor(max_restarts=100), shutdown=math.inf, ref=crystals),
                ChildSpec("entities", DynamicSupervisor, shutdown=math.inf, ref=self._entities),
            ],
            strategy="rest_for_one",
        )

    def _open_store(self) -> Store:
        if self._store is None:
            raise RuntimeClosed("the runtime is not open: use it inside `async with Runtime.open(…) as runtime`")
        return self._store

    # What users call

    @property
    def loom(self) -> Loom:
        """The loom: every turn of every entity, readable also after the runtime has closed."""
        if self._loom is None:
            raise RuntimeClosed("the runtime is not open: use it inside `async with Runtime.open(…) as runtime`")
        return self._loom

    async def cast(self, cantrip: Cantrip, intent: str, *, context: Any = None) -> Episode:
        """Cast `cantrip` on `intent` and wait for the episode (SPEC 1.4). `context` is data for the entity.

        Cancelling the wait stops the entity and its subtree, with the reason `cancelled` in the loom.

        Raises InvalidIntent without an intent; CrystalError where the crystal breaks its contract or a provider fails
        for good; LoomError where the loom cannot write; EntityCrashed where a bug ended the entity. Each carries
        `entity_id`.
        """
        entity = await self.start(cantrip, intent, context=context)
        return await entity._result()  # noqa: SLF001  # an entity is this module's own

    async def start(self, cantrip: Cantrip, intent: str, *, context: Any = None) -> Entity:
        """Cast without waiting: the entity runs while you go on; `await entity.episode()` waits for its end."""
        return await self._launch(self._prepare(_checked(cantrip), intent, context))

    async def invoke(self, cantrip: Cantrip, intent: str, *, name: str | None = None, context: Any = None) -> Entity:
        """Make an entity that lasts (D-001): it takes further intents with `send`, and remembers.

        `max_turns` counts anew for each intent, budgets over its life. A `name` can be looked up with `entity(name)`.
        """
        if name is not None and name in self._named and self._named[name].alive:
            raise InvalidIntent(f'an entity called "{name}" is there already: runtime.entity("{name}")')
        cell = self._prepare(_checked(cantrip), intent, context, lasting=True, name=name)
        if name is not None:
            self._named[name] = Entity(self, cell)
        return await self._launch(cell)

    def entity(self, name: str) -> Entity | None:
        """The invoked entity of that name, if it lives."""
        found = self._named.get(name)
        return found if found is not None and found.alive else None

    async def fork(
        self,
        turn_id: str,
        *,
        intent: str,
        crystal: Crystal | str | None = None,
        cantrip: Cantrip | None = None,
        context: Any = None,
    ) -> Episode:
        """Go on from a turn of any run with a new entity (LOOM-4); the original thread is untouched.

        The fork has the context of the path to that turn, then `intent`. It is made with `cantrip`, or the one that
        the turn was made with, and with `crystal` instead of that one's if it is given.

        Raises LoomError for an unknown turn, and where its cantrip is not known in this process; else as `cast`.
        """
        records = self.loom.lineage(turn_id)
        header = self.loom.header(records[-1].entity_id)
        made_with = cantrip or self._cantrips.get(header.cantrip_id)
        if made_with is None:
            raise LoomError(f"the cantrip of turn {turn_id} was not cast in this process: give it, fork(…, cantrip=…)")
        if crystal is not None:
            made_with = made_with.with_crystal(crystal)
        cell = self._prepare(made_with, intent, context, parent_turn=turn_id, forked=True)
        cell.state = replay(cell.plan, records, _moment())
        return await (await self._launch(cell))._result()  # noqa: SLF001

    def events(self, wanted: Callable[[EntityEvent], bool] | None = None) -> Subscription:
        """Every entity's events from now on (SPEC 7.2), or those that `wanted` says yes to. Observation, never
        control.
        """
        return self._bus.subscribe(wanted)

    # What entities call

    async def _append(self, records: Any) -> None:
        await self._writer.call(records)

    def _prepare(
        self,
        cantrip: Cantrip,
        intent: object,
        context: Any,
        *,
        parent: Cell | None = None,
        parent_turn: str | None = None,
        forked: bool = False,
        lasting: bool = False,
        name: str | None = None,
    ) -> Cell:
        """The cell of an entity that is about to begin; its crystal is bound here, in the order of the requests."""
        if not isinstance(intent, str) or not intent.strip():
            raise InvalidIntent(f"intent is required: expected a text that says what to achieve, got {intent!r}")
        if cantrip.circle.medium != "tools":
            raise InvalidCantrip(
                f'medium "{cantrip.circle.medium}" is not available: this installation has the medium "tools"'
            )
        used = self._crystals.find(cantrip.crystal)
        window = getattr(used.crystal, "context_window", None)
        moment = _moment()
        plan = Plan.of(
            cantrip,
            new_id(),
            window=window if isinstance(window, int) else None,
            lasting=lasting,
            parent_entity=None if parent is None else parent.entity_id,
            parent_turn=parent_turn,
            forked=forked,
            name=name,
        )
        bind = getattr(used.crystal, "bind", None)
        ledger = Ledger(plan.wards, None if parent is None else parent.ledger)
        return Cell(
            plan,
            begin(plan, moment),
            intent,
            context,
            used.crystal if bind is None else bind(),
            used,
            ledger,
            self._services,
        )

    async def _launch(self, cell: Cell) -> Entity:
        if self._system is None:
            raise RuntimeClosed("the runtime is not open: use it inside `async with Runtime.open(…) as runtime`")
        cantrip = cell.plan.cantrip
        self._cantrips[cantrip.id] = cantrip
        self._cantrips.move_to_end(cantrip.id)
        if len(self._cantrips) > REMEMBERED:
            self._cantrips.popitem(last=False)
        try:
            await self._entities.start_child(cell_spec(cell))
        except NotRunning as gone:
            raise RuntimeClosed(
                "the runtime has closed, or its tree has given up: see the reports of its supervisors"
            ) from gone
        return Entity(self, cell)


class Entity:
    """An entity that runs: what `start` and `invoke` return. It lives in the runtime, whatever becomes of this
    handle.
    """

    def __init__(self, runtime: Runtime, cell: Cell) -> None:
        self._runtime = runtime
        self._cell = cell

    @property
    def id(self) -> str:
        """The entity's id: `runtime.loom.turns(entity.id)`."""
        return self._cell.entity_id

    @property
    def name(self) -> str | None:
        """The name it was invoked under."""
        return self._cell.plan.name

    @property
    def alive(self) -> bool:
        """Whether it still runs, or waits for its next intent."""
        return self._cell.entity.alive

    async def episode(self) -> Episode:
        """Wait for its end: the episode of a cast, the last one of an entity that lasts. Raises as `Runtime.cast`
        does.
        """
        await self._cell.supervisor.exited()
        cell = self._cell
        if cell.outcome is None:
            raise cell.crashed()
        return episode_of(self.id, cell.outcome, cell.error, self._runtime.loom)

    async def send(self, intent: str, *, context: Any = None) -> Episode:
        """Give an entity that lasts a further intent, and wait for its episode; sends are taken in order.

        Raises InvalidIntent without an intent, EntityEnded where it lives no more; else as `Runtime.cast`.
        """
        if not self._cell.plan.lasting:
            raise InvalidIntent("send: this entity was cast and ends with its first intent; make one with invoke")
        try:
            outcome, error = await self._cell.entity.call((intent, context))
        except NotRunning:
            raise EntityEnded(f"entity {self.id} has ended: {self._ended_how()}") from None
        except Died:
            if self._cell.outcome is None:
                raise self._cell.crashed() from None
            raise EntityEnded(f"entity {self.id} ended before it was done: {self._ended_how()}") from None
        return episode_of(self.id, outcome, error, self._runtime.loom)

    async def stop(self, reason: str = "cancelled") -> None:
        """End it and its subtree, last started first; returns when all of it has ended. Fine if it has already."""
        await self._runtime._entities.terminate_child(self._cell.supervisor, Shutdown(reason))  # noqa: SLF001

    def events(self) -> Subscription:
        """Its own canonical events from now on, up to its end; observation, never control."""
        own = self.id
        return self._runtime._bus.subscribe(lambda event: event.entity_id == own, until=own)  # noqa: SLF001

    def _ended_how(self) -> str:
        outcome = self._cell.outcome
        return "it crashed" if outcome is None else outcome.summary or outcome.reason

    async def _result(self) -> Episode:
        """The episode of a cast; whoever stops waiting for it stops the entity."""
        try:
            return await self.episode()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    def __repr__(self) -> str:
        return f"<Entity {self.name or self.id} {'running' if self.alive else 'ended'}>"


def new_id() -> str:
    """An id that nobody has and that sorts by time (reading 20)."""
    return str(uuid_utils.uuid7())


def _moment() -> Moment:
    return Moment(time.monotonic(), time.time(), new_id())


def _checked(cantrip: Cantrip) -> Cantrip:
    if not isinstance(cantrip, Cantrip):
        raise InvalidCantrip(f"cast: expected a Cantrip, got {type(cantrip).__name__}")
    return cantrip
