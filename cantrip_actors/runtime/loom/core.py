"""The state that all parts of a runtime share: the loom and its writer, the loaded entities, and the known cantrips.

`tree.py` connects the parts.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio
import uuid_utils
from anyio.lowlevel import EventLoopToken, current_token

from cantrip_actors.crystal.policy.limits import Limits as Shared
from cantrip_actors.crystal.policy.shared import AccountRequest, Grant, draw
from cantrip_actors.loom import EntityFacts, Loom, Quarantined, Retention, Store
from cantrip_actors.loom.maintenance.forget import find_root
from cantrip_actors.loom.maintenance.retention import find_tenant
from cantrip_actors.loom.reading.view import fold_entity
from cantrip_actors.loom.stores.lease import QUARANTINE_FOR
from cantrip_actors.machine.budget import NO_BUDGET, Budget
from cantrip_actors.machine.events import Moment
from cantrip_actors.machine.project import Life, find_dependencies
from cantrip_actors.machine.state import CantripRef, Phase
from cantrip_actors.records.mail import CONTROL, Mail
from cantrip_actors.records.records import OnClose, Record
from cantrip_actors.records.timers import Timer
from cantrip_actors.runtime.entity.known_cantrips import KnownCantrips
from cantrip_actors.runtime.entity.living import LoadedCells
from cantrip_actors.runtime.entity.loading import find_cantrip_in_force, find_dependencies_in_force
from cantrip_actors.runtime.entity.upgrades import Move, Upgrade, Upgrades
from cantrip_actors.runtime.events.context_variables import ContextVariables, capture_variables
from cantrip_actors.runtime.events.instrument import Drawn, Fact, Instrument, StoreFailed
from cantrip_actors.runtime.loom.guard import Guard
from cantrip_actors.runtime.loom.loom_writer import Append, Claim, LoomWriter, WriterTask
from cantrip_actors.runtime.loom.store_access import StoreAccess
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.episode_scope import Provide
from cantrip_actors.terms.errors import CantripUnknown, LoomError, RuntimeClosed
from cantrip_actors.terms.wrapper import Unattended
from supervisors import ActorRef, NotRunning

if TYPE_CHECKING:
    from cantrip_actors.runtime.nodes.membership import Membership

T = TypeVar("T")

_UNSTORABLE = dict.fromkeys([0, *range(0xD800, 0xE000)], "\N{REPLACEMENT CHARACTER}")
"""Characters that no text in a database has."""

NOT_OPEN = "the runtime is not open: use it inside `async with Runtime.open(…) as runtime`"

OTHER_EVENT_LOOP = (
    "the runtime was opened in another event loop: open one in each, or have a thread call it there, with "
    "anyio.from_thread, asyncio.run_coroutine_threadsafe or Runtime.blocking"
)


class Limits(NamedTuple):
    """Settings of `Runtime.open`: seconds, how much mail and how many submissions wait, people, retention, closing."""

    passivate_after: float = 300.0
    max_waiting: int = 1000
    keep_keys: float = 604_800.0
    unattended: Unattended = "wait"
    retention: Retention = MappingProxyType({})
    stranded_after: float = 60.0
    max_submitted: int = 100_000
    quarantine_for: float | None = QUARANTINE_FOR
    on_close: OnClose = "end"


class _Opened(NamedTuple):
    """The parts of an opened runtime: its loom, node and event loop, and the context of the task that opened it."""

    store: Store
    access: StoreAccess
    loom: Loom
    membership: Membership | None
    event_loop: EventLoopToken
    opener_context: Context


class Core:
    """The state that all parts of one runtime share."""

    def __init__(
        self,
        cantrips: Sequence[Cantrip],
        limits: Limits,
        guard: Guard,
        upgrade: Upgrade,
        instrument: Instrument | None = None,
        *,
        dependencies: Provide | None = None,
    ) -> None:
        self.registry: ActorRef[Any] = ActorRef()
        self.living = LoadedCells(limits.passivate_after, self.registry)
        self.instrument = instrument
        self.limits = limits
        self.guard = guard
        self.is_open = False
        self.is_draining = False
        """Whether the runtime refuses new casts and sends."""
        self.writer: ActorRef[Any] = ActorRef()
        self.loom_actor: LoomWriter | None = None
        """The present incarnation of `writer`."""
        self.cantrips = KnownCantrips(cantrips, dependencies)
        self.upgrades = Upgrades(cantrips, upgrade)
        self.is_handing_over = False
        """Whether this node hands its entities over to other nodes, so that no query begins."""
        self._opened: _Opened | None = None

    # Opening

    @property
    def was_opened(self) -> bool:
        """Whether the runtime was ever opened."""
        return self._opened is not None

    @property
    def membership(self) -> Membership | None:
        """The membership of a runtime that has joined a cluster; None for any other runtime."""
        return None if self._opened is None else self._opened.membership

    def attach(self, store: Store, access: StoreAccess, membership: Membership | None) -> None:
        """Use this store by this way, in this event loop, as this member of a cluster."""
        self._opened = _Opened(
            store,
            access,
            Loom(store, self.append_remarks, in_store=self.in_store),
            membership,
            current_token(),
            copy_context(),
        )

    def capture_variables(self) -> ContextVariables:
        """Return the caller's context variables whose values differ from the runtime's."""
        variables = capture_variables(Context() if self._opened is None else self._opened.opener_context)
        return variables if self.instrument is None else self.instrument.captured(variables)

    def check_not_closed(self) -> None:
        """Raise RuntimeClosed if the runtime is not open. Any thread may call it."""
        if not self.is_open:
            raise RuntimeClosed(NOT_OPEN)

    def check_open(self) -> None:
        """Raise RuntimeClosed if the runtime is not open, or was opened in another event loop."""
        self.check_not_closed()
        if self._opened is None or current_token() != self._opened.event_loop:
            raise RuntimeClosed(OTHER_EVENT_LOOP)

    def check_accepting(self) -> None:
        """Raise RuntimeClosed if the runtime is not open in this event loop, or refuses new casts and sends."""
        self.check_open()
        if self.is_draining:
            raise RuntimeClosed("the runtime drains: it accepts no new casts and sends")

    async def draw(self, limits: Shared, ask: AccountRequest) -> Grant:
        """Draw a slice of limits that all processes of the loom share. Raises LoomError."""
        name = limits.shared
        assert name is not None, "crystals without a shared limit draw nothing"

        def change(account: str | None, now: float) -> tuple[str, Grant]:
            return draw(account, limits, ask, now)

        work = partial(self.store.change_account, name, change, anyio.current_time())
        try:
            grant = await self.in_store(work)
        except LoomError:
            self.report(StoreFailed())
            raise
        self.report(Drawn(name, is_refused=bool(ask.requests and not grant.requests)))
        return grant

    def report(self, fact: Fact) -> None:
        """Report a fact that no record contains to the instrument, if there is one."""
        if self.instrument is not None:
            self.instrument.noted(fact)

    # The loom

    @property
    def store(self) -> Store:
        """The store of the loom. Raises RuntimeClosed before it is opened."""
        return self._get_opened().store

    @property
    def loom(self) -> Loom:
        """The loom. Raises RuntimeClosed before it is opened."""
        return self._get_opened().loom

    @property
    def access(self) -> StoreAccess:
        """The way to the store. Raises RuntimeClosed before it is opened."""
        return self._get_opened().access

    def _get_opened(self) -> _Opened:
        if self._opened is None:
            raise RuntimeClosed(NOT_OPEN)
        return self._opened

    async def in_store(self, work: Callable[[], T], /) -> T:
        """Return the result of `work`, which reads the store and makes at most one change, as its last use of it."""
        return await self.access.run(work)

    def make_moment(self, budget: Budget = NO_BUDGET) -> Moment:
        """Return the present moment, with a fresh unique id that sorts by time (reading 20)."""
        return Moment(time.monotonic(), self.store.clock(), str(uuid_utils.uuid7()), budget)

    def read_time_of_day(self) -> float:
        """Return the seconds since 1970 by the loom's clock."""
        return self.store.clock()

    def check_loom_runs(self) -> None:
        """Raise LoomError if the loom actor has crashed.

        It restarts when the actors below it in the tree have ended: an actor that ends must not wait for it.
        """
        if not self.writer.alive:
            raise LoomError("the loom restarts after a crash, and its entities with it")

    async def finish_writing(self) -> None:
        """Wait until the loom actor has written what it was sent, even if the caller is cancelled meanwhile."""
        if self.writer.alive:
            with anyio.CancelScope(shield=True):
                await self.append(())

    async def append_remarks(self, records: Sequence[Record]) -> None:
        """Write records that a caller adds to a log, such as rewards. Raises RuntimeClosed, LoomError."""
        self.check_not_closed()
        await self.append(records)

    async def append(
        self, records: Sequence[Record], taken: Sequence[tuple[int, int]] = (), outgoing: Sequence[Mail | Timer] = ()
    ) -> None:
        """Have the loom actor write records, take mail, post mail and set timers: all or none of it.

        All of it is durable when this returns. Raises LoomError if it cannot be written.
        """
        guard = self.guard
        if guard.at_rest:
            records = guard.redact_records(records)
            outgoing = [
                guard.redact_timer(item) if isinstance(item, Timer) else guard.redact_mail(item) for item in outgoing
            ]
        if self.loom_actor is not None and self.loom_actor.write_now(records, taken, outgoing):
            return
        await self._call_writer(Append(records, taken, outgoing))

    async def in_writer(self, work: Callable[[LoomWriter], Awaitable[T]]) -> T:
        """Return the result of `work`, which the loom actor does between two writes. Raises RuntimeClosed."""
        result: T = await self._call_writer(WriterTask(work))
        return result

    async def _call_writer(self, message: Any) -> Any:
        try:
            return await self.writer.call(message)
        except NotRunning as gone:
            raise RuntimeClosed(NOT_OPEN) from gone

    async def claim(self, what: str, *, lift: bool = False) -> int:
        """Let no other process run an entity, or make one with that name (`name:…`); return the token of the lease.

        Raises Held, Quarantined.
        """
        if not self.store.shared and what not in self.store.quarantined():
            return 0
        token: int = await self._call_writer(Claim(what, lift))
        return token

    async def quarantine(self, entity_id: str, why: str, *, is_repeated: bool) -> Quarantined:
        """Let no process run a root entity for a time, because it would crash again; return the error for its callers.

        `why` is the first crash. `is_repeated` says that nothing was recorded since its last quarantine.
        """
        text = self.guard.redactor.text(why.translate(_UNSTORABLE))
        row = await self.in_writer(lambda writer: writer.quarantine(entity_id, text, is_repeated=is_repeated))
        return Quarantined(*row)

    def is_held(self, entity_id: str) -> bool:
        """Return whether another process runs an entity."""
        return self.store.shared and self.living.get(entity_id) is None and self.store.is_held(entity_id)

    def has_living_node(self) -> bool:
        """Return whether a node of a cluster lives, to run the entities that no process runs.

        A runtime that is a node counts as living, also while its row has expired: it renews the row when the server is
        back.
        """
        return self.membership is not None or any(node.is_living for node in self.store.nodes())

    def is_served(self, facts: EntityFacts) -> bool:
        """Return whether another living process may run an entity: a node, or one that offers its cantrip."""
        now = find_cantrip_in_force(self.loom, facts)
        own = None if self.membership is None else self.membership.owner
        has_node = any(node.is_living and node.owner != own for node in self.store.nodes())
        return has_node or not {now.id, now.name}.isdisjoint(self.store.served())

    # Entities

    def is_left_behind(self, facts: EntityFacts) -> bool:
        """Return whether an episode is under way, or waits for a person, with a cantrip that no living process has."""
        if facts.life not in (Life.BUSY, Life.WAITING):
            return False
        try:
            self.find_cantrip(facts)
        except CantripUnknown as unknown:
            return not self.has_living_node() and unknown.cantrip_id not in self.store.served()
        return False

    def find_ensured(self, facts: EntityFacts) -> Cantrip | None:
        """Return the cantrip of `ensure` for an entity that waits for a person and is left behind; None for others."""
        cantrip = self.cantrips.get_ensured(facts.entity_id)
        is_wanted = cantrip is not None and self.is_waiting(facts.entity_id, facts.life) and self.is_left_behind(facts)
        return cantrip if is_wanted else None

    def is_run_or_waiting(self, entity_id: str) -> bool:
        """Return whether a process runs an entity, or it waits for a person.

        An entity that waits is loaded when a person answers, and unloaded when it waits again. So whether it is held is
        read before and after its log.
        """
        is_loaded = self.living.get(entity_id) is not None
        return is_loaded or self.is_held(entity_id) or self.is_waiting(entity_id) or self.is_held(entity_id)

    def is_waiting(self, entity_id: str, life: Life | None = None) -> bool:
        """Return whether an entity waits for a person according to its log: itself, or all of its running children and
        it does nothing else.

        `life` is its phase, if that was just read.
        """
        store = self.store
        life = life if life is not None else store.life(entity_id)
        if life is not Life.BUSY:
            return life is Life.WAITING
        below = {member for member in store.below(entity_id) if (store.life(member) or Life.BUSY) < Life.OVER}
        if not below or not all(map(self.is_waiting, below)):
            return False
        state = fold_entity(self.loom, entity_id)  # a background child may wait while its parent is at work
        return state.phase is Phase.WAITING or (state.phase is Phase.IDLE and below.issuperset(state.background))

    def find_cantrip(self, facts: EntityFacts) -> tuple[Cantrip, Move | None]:
        """Return the cantrip that an entity continues with, and its move if that is not its present cantrip.

        Raises CantripUnknown, LoomError.
        """
        now, move = self._find_next_move(facts)
        wanted = now if move is None else CantripRef(move.cantrip.id, now.name)
        return self.cantrips.find_cantrip(facts.entity_id, wanted), move

    async def find_cantrip_at(self, turn_id: str, crystal: Crystal | str | None = None) -> Cantrip:
        """Return the cantrip in force at a turn; with `crystal`, that one is its crystal.

        Raises CantripUnknown, DependenciesUnknown, LoomError.
        """
        header = await self.in_store(partial(self.loom.header_at, turn_id))
        living = self.living.get(header.entity_id)
        if living is not None and living.plan.cantrip.id == header.cantrip_id:
            cantrip = living.plan.cantrip.unprovided
        else:
            then = CantripRef(header.cantrip_id, header.cantrip_name)
            self.cantrips.learn(header.entity_id, then, lambda: header)
            cantrip = self.cantrips.find_cantrip(header.entity_id, then, any_crystal=crystal is not None)
        if self.cantrips.has_marks and cantrip.circle.has_injected:
            mark = find_dependencies(await self.in_store(partial(self.loom.lineage, turn_id)))
            self.cantrips.check_dependencies(header.entity_id, cantrip, mark)
        return cantrip if crystal is None else cantrip.with_crystal(crystal)

    def is_clear(self, facts: EntityFacts, intent: Mail | None = None) -> bool:
        """Return whether exactly one cantrip known here can continue this entity, with `intent` if that is next."""
        now, move = self._find_next_move(facts)
        wanted = now if move is None else CantripRef(move.cantrip.id, now.name)
        if not self.cantrips.is_clear(facts.entity_id, wanted):
            return False
        if not self.cantrips.has_marks:
            return True
        cantrip = self.cantrips.find_cantrip(facts.entity_id, wanted)
        return self.cantrips.has_dependencies(cantrip, self._find_mark(facts, cantrip, intent))

    def check_dependencies(self, facts: EntityFacts, cantrip: Cantrip, intent: Mail | None = None) -> None:
        """Raise DependenciesUnknown if a cantrip has other dependencies than those that an entity needs next.

        They are those of its last intent, or of `intent` if that is the next one and came with some.
        """
        if self.cantrips.has_marks:
            self.cantrips.check_dependencies(facts.entity_id, cantrip, self._find_mark(facts, cantrip, intent))

    def _find_mark(self, facts: EntityFacts, cantrip: Cantrip, intent: Mail | None) -> str | None:
        if not cantrip.circle.has_injected:
            return None
        if intent is not None and intent.dependencies is not None:
            return intent.dependencies
        return find_dependencies_in_force(self.loom, facts)

    def find_next_intent(self, facts: EntityFacts) -> Mail | None:
        """Return the next intent of an idle entity: it may come with dependencies, or with additions to its cantrip."""
        if facts.life is not Life.IDLE:
            return None
        waiting = self.store.pending(facts.entity_id, self.limits.max_waiting + 1)
        return next((pending.mail for pending in waiting if pending.mail.lane != CONTROL), None)

    def find_missing_mark(self, facts: EntityFacts) -> str | None:
        """Return the mark of the dependencies that an entity needs next; None if this process has them."""
        if not self.cantrips.has_marks:
            return None
        intent = self.find_next_intent(facts)
        if intent is not None and self.cantrips.get_sent(facts.entity_id, intent.key) is not None:
            return None
        try:
            cantrip, _ = self.find_cantrip(facts)
        except LoomError:
            return None
        mark = self._find_mark(facts, cantrip, intent)
        return None if self.cantrips.has_dependencies(cantrip, mark) else mark

    def _find_next_move(self, facts: EntityFacts) -> tuple[CantripRef, Move | None]:
        """Return an entity's present cantrip, and the move that it makes when it is loaded for its next intent.

        An entity that was loaded here before with its present cantrip stays with that one.
        """
        now = self.find_cantrip_in_force(facts)
        if self._is_staying(facts.entity_id, now.id) or not self.may_move_now(facts, now):
            return now, None
        return now, self.upgrades.find_move(facts.header, now, is_idle=True)

    def find_cantrip_in_force(self, facts: EntityFacts) -> CantripRef:
        """Return an entity's present cantrip. One with the additions of a client is known from then on."""
        now = find_cantrip_in_force(self.loom, facts)
        self.cantrips.learn(facts.entity_id, now, lambda: self.loom.header_in_force(facts.entity_id))
        return now

    def may_move_now(self, facts: EntityFacts, now: CantripRef) -> bool:
        """Return whether an entity may move from its present cantrip, `now`: no episode of it is under way.

        One that rests while background children work waits for their ends, as long as a living process has its cantrip.
        """
        if facts.life is not Life.BUSY or not facts.header.lasting:
            return facts.life is Life.IDLE
        is_left_behind = (
            self.cantrips.find_content(facts.entity_id, now.id) is None and now.id not in self.store.served()
        )
        return is_left_behind and fold_entity(self.loom, facts.entity_id).phase is Phase.IDLE

    def list_moves(self) -> list[Move]:
        """Return the moves that entities make with their next intents. Raises LoomError."""
        stays = {cell.entity_id for cell in self.living if cell.adoption in (None, "at_once")}
        return [
            move
            for move in self.upgrades.find_moves(self.loom)
            if move.entity_id not in stays and not self._is_staying(move.entity_id, move.from_id)
        ]

    def _is_staying(self, entity_id: str, cantrip_id: str) -> bool:
        """Return whether an entity was loaded here before with its present cantrip."""
        own = self.cantrips.get_unloaded(entity_id)
        return own is not None and own.id == cantrip_id

    def will_move(self, facts: EntityFacts, cantrip: Cantrip) -> bool:
        """Return whether an entity moves to another cantrip after its running episode, which ends with `cantrip`."""
        now, is_under_way = find_cantrip_in_force(self.loom, facts), facts.life in (Life.BUSY, Life.WAITING)
        return (
            is_under_way
            and cantrip.id == now.id
            and self.upgrades.find_move(facts.header, now, is_idle=False) is not None
        )

    def find_root(self, entity_id: str) -> str:
        """Return the root entity of the tree that an entity belongs to. Raises LoomError."""
        cell = self.living.get(entity_id)
        return find_root(self.store, entity_id) if cell is None else cell.root.entity_id

    async def look_up_root(self, entity_id: str) -> str:
        """Return what `find_root` returns, without blocking the event loop."""
        is_loaded = self.living.get(entity_id) is not None
        return self.find_root(entity_id) if is_loaded else await self.in_store(partial(self.find_root, entity_id))

    def belongs_to_tenant(self, entity_id: str, tenant: str | None) -> bool:
        """Return whether an entity belongs to a tenant; True for any entity if `tenant` is None."""
        if tenant is None:
            return True
        cell = self.living.get(entity_id)
        if cell is not None:
            return cell.plan.tenant == tenant
        return find_tenant(self.store, entity_id) == tenant

    def find_name(self, entity_id: str) -> str | None:
        """Return the name under which an entity was invoked, if there is one."""
        cell = self.living.get(entity_id)
        if cell is not None:
            return cell.plan.name
        return self.loom.header(entity_id).name if self.loom.has(entity_id) else None
