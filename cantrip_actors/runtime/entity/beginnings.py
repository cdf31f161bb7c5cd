"""How entities begin: `cast`, `start`, `invoke` and `fork`, with and without a key. There is no other way (ENTITY-1).

A beginning with a key happens once. The entity's id is derived from the key, so a repeated call finds the same entity,
in this process or another, before or after a crash. The entity's log says whether it began with the same content.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import anyio

from cantrip_actors.loom import Held, KeyUsed, Loom, name_lease
from cantrip_actors.loom.reading.view import fold_entity, make_checked
from cantrip_actors.machine.events import Begin
from cantrip_actors.machine.project import find_first_intent
from cantrip_actors.machine.state import Identity, Phase, Plan
from cantrip_actors.records.records import Header, IntentGiven, OnClose
from cantrip_actors.records.submissions import SubmissionRow, make_submission_key
from cantrip_actors.records.tenant import scope_name
from cantrip_actors.records.timers import Timer
from cantrip_actors.runtime.entity.cell import Cell, Start
from cantrip_actors.runtime.entity.cells import find_forked, make_begin
from cantrip_actors.runtime.entity.one_shot_event import OneShotEvent
from cantrip_actors.runtime.face.entity import Entity
from cantrip_actors.runtime.loom.loom_writer import Release
from cantrip_actors.runtime.mail.inbox import Waiter
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.terms.arguments import check_choice, check_kind, check_name, check_texts
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import (
    CantripError,
    CantripUnknown,
    EntityCrashed,
    EntityEnded,
    InvalidCantrip,
    LoomError,
    NameTaken,
    Withdrawn,
)
from cantrip_actors.terms.history import History
from cantrip_actors.terms.image import Said
from supervisors.reasons import render_exception

if TYPE_CHECKING:
    from cantrip_actors.runtime.tree import Tree

NAMESPACE: Final = uuid.UUID("5f1d5c1e-6f2b-5c39-9d0e-3c8f2c1a7b44")
"""The namespace of the ids that are derived from keys."""

_SAME_HEADER: Final = ("lasting", "name", "parent_turn", "queue")
_SAME_INTENT: Final = ("intent", "context", "images", "history", "note")
"""The fields that a repeated beginning must have in common with the first one."""
_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {"lasting": "whether it is long-lived", "parent_turn": "the turn that it forks"}
)


class Beginning(NamedTuple):
    """A new entity: its cantrip, its first intent, and its identity."""

    cantrip: Cantrip
    begin: Begin
    identity: Identity
    is_wanted: Callable[[], Awaitable[bool]] | None = None
    """Returns whether the submission or the schedule that casts it is still there."""


class Launched(NamedTuple):
    """A new entity whose actor was started, its cell, and its start, which the cell forgets once it is recorded."""

    entity: Entity
    cell: Cell
    start: Start


class Beginnings:
    """Makes the entities of one runtime."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @staticmethod
    def make_id(key: str, tenant: str = "") -> str:
        """Return the id of a tenant's entity that begins with a key."""
        return str(uuid.uuid5(NAMESPACE, f"\0{scope_name(tenant, key)}"))

    def make_identity(self, key: str | None, tenant: str, **facts: Any) -> Identity:
        """Return the identity of a new entity, with a unique id (ENTITY-2): a fresh one, or one made from the key."""
        entity_id = self._tree.make_moment().fresh if key is None else self.make_id(key, tenant)
        return Identity(entity_id, key=key, tenant=tenant, **facts)

    def make(
        self,
        what: str,
        cantrip: Cantrip,
        intent: Said,
        context: Any,
        key: str | None,
        by: str,
        on_close: OnClose | None,
        *,
        history: History = (),
        note: Any = None,
        **facts: Any,
    ) -> Beginning:
        """Return a new entity; `facts` are fields of its identity. Raises as `cast`."""
        tree = self._tree
        check_cantrip(what, cantrip)  # before the intent, for a caller that swaps the two
        check_texts(by=by)
        if on_close is not None:
            check_choice("on_close", on_close, get_args(OnClose))
        always_stays = key is not None or facts.get("lasting", False)
        if on_close == "end" and always_stays:
            raise ValueError(
                'on_close: expected "keep" or nothing, got "end": a long-lived entity and one that begins with a key '
                "stay in the loom when the runtime closes"
            )
        begin = make_begin(intent, context, sender=by or None, history=history, note=note)
        tree.launcher.check_files(cantrip, begin.images)
        if key is not None:
            check_name("key", key)
        if on_close is None and not always_stays and tree.limits.on_close == "keep":
            on_close = "keep"  # also for a later process that was opened without it
        facts = {"on_close": None if always_stays else on_close, **facts}
        return Beginning(cantrip, begin, self.make_identity(key, **facts))

    async def fork(
        self,
        loom: Loom,
        turn_id: str,
        intent: Said,
        crystal: Crystal | str | None,
        cantrip: Cantrip | None,
        context: Any,
        key: str | None,
        by: str,
        on_close: OnClose | None,
        *,
        history: History = (),
        note: Any = None,
        lasting: bool = False,
    ) -> Entity:
        """Begin an entity that continues from a turn in `loom`. Raises as `Runtime.fork`."""
        tenant = await self._tree.in_store(lambda: loom.header(find_forked(loom, turn_id)).tenant)
        if cantrip is None:
            cantrip = await self._tree.find_cantrip_at(turn_id, crystal)
        elif crystal is not None:
            cantrip = cantrip.with_crystal(crystal)
        facts = {"tenant": tenant, "parent_turn": turn_id, "forked": True, "lasting": lasting}
        fork = self.make("fork", cantrip, intent, context, key, by, on_close, history=history, note=note, **facts)
        return await self.begin(fork, waits=True)

    async def fire(self, cantrip: Cantrip, timer: Timer, key: str) -> None:
        """Cast an entity for a schedule, unless the entity with this key has begun.

        Raises Withdrawn if the schedule was removed before the entity could begin, else as `begin`.
        """
        schedule, scheduler = timer.schedule, self._tree.scheduler
        assert schedule is not None, "only schedules cast"

        async def is_wanted() -> bool:
            return await scheduler.find(timer.id) is not None

        begin = Begin(schedule.intent)
        await self._begin_once(Beginning(cantrip, begin, self.make_identity(key, schedule.tenant), is_wanted))

    async def begin_submission(self, cantrip: Cantrip, row: SubmissionRow) -> None:
        """Cast the entity of a submission, unless it has begun. Raises Withdrawn if it was withdrawn, or as `begin`."""
        scheduler = self._tree.scheduler

        async def is_wanted() -> bool:
            return await scheduler.find_submission(row.id) == row

        identity = self.make_identity(make_submission_key(row.key), row.tenant, queue=row.queue)
        begin = Begin(row.intent, sender=row.sender or None, trace=row.trace)
        await self._begin_once(Beginning(cantrip, begin, identity, is_wanted))

    async def ensure(self, name: str, cantrip: Cantrip, tenant: str) -> Entity:
        """Return the long-lived entity of that name; make one that waits for its first intent if there is none.

        The lease on the name lets one process at a time make it. Raises InvalidIntent, LoomError, RuntimeClosed.
        """
        tree, lease = self._tree, name_lease(scope_name(tenant, check_name("name", name)))
        tree.check_accepting()
        find, made_id = partial(self.find_named, name, tenant), None
        async with tree.launcher.lock(lease):
            await self._wait_for_named(name, tenant)
            while (entity_id := await tree.in_store(find)) is None:
                try:
                    with anyio.CancelScope(shield=True):
                        made_id = await self._make_idle(name, cantrip, tenant, lease)
                except Held:  # another process makes it just now
                    await anyio.sleep(POLL_INTERVAL)
        is_offered = cantrip.name is not None and tree.cantrips.find_offered(cantrip.name) is not None
        is_left_behind = await tree.in_store(partial(self._is_left_behind, entity_id))
        tree.cantrips.note_ensured(entity_id, cantrip)
        if is_left_behind:
            tree.inboxes.load(entity_id)  # it may have a decision already
        needs_cantrip = is_left_behind or not is_offered
        if needs_cantrip:
            tree.cantrips.note_named(entity_id, cantrip)  # so that mail by other handles is taken, too
        entity = Entity(tree, entity_id, name, cantrip=cantrip if needs_cantrip else None, begun_with=cantrip)
        entity.is_new = entity_id == made_id
        return entity

    def _is_left_behind(self, entity_id: str) -> bool:
        """Return whether an episode is under way, or waits for a person, with a cantrip that no living process has."""
        tree = self._tree
        if tree.living.has(entity_id) or tree.store.is_held(entity_id):  # read first, as in `find_if_interrupted`
            return False
        return tree.is_left_behind(tree.loom.facts(entity_id))

    async def _make_idle(self, name: str, cantrip: Cantrip, tenant: str, lease: str) -> str | None:
        """Record an entity that waits for its first intent, and return its id; None if one has the name.

        Raises Held if another process makes it just now.
        """
        tree = self._tree
        try:
            await tree.claim(lease)
            if await tree.in_store(partial(self.find_named, name, tenant)) is not None:
                return None
            async with tree.tool_servers.complete(cantrip) as complete:
                identity = self.make_identity(None, tenant, lasting=True, name=name, waits=True)
                await tree.append([Plan.of(complete, identity).make_header(tree.make_moment().at)])
            tree.scheduler.note_name()
            return identity.entity_id
        finally:
            tree.writer.cast(Release(lease))

    async def _begin_once(self, beginning: Beginning) -> None:
        """Begin an entity for no caller. Raises EntityCrashed for an unexpected exception before it has an actor."""
        entity_id = beginning.identity.entity_id
        try:
            if not await self._has_begun(entity_id):
                await self.begin(beginning, waits=True)
        except CantripError:
            raise
        except Exception as crash:
            text = f"{type(crash).__name__}: {render_exception(crash)}"
            raise EntityCrashed(f"entity {entity_id} crashed before it began ({text})") from crash

    async def withdraw(self, entity_id: str, id: str) -> bool:
        """Remove a submission whose entity has not begun; return False if it has begun, or begins now.

        The lease of the entity's id decides. A process that holds it to begin the entity finds the submission there,
        and one that claims it later finds it gone.
        """
        tree = self._tree
        async with tree.launcher.lock(entity_id):
            with anyio.CancelScope(shield=True):
                is_withdrawn = await self._claim_and_withdraw(entity_id, id)
            return is_withdrawn  # noqa: RET504  # mypy: a cancel scope may swallow an exception

    async def _claim_and_withdraw(self, entity_id: str, id: str) -> bool:
        tree = self._tree
        try:
            await tree.claim(entity_id)
            row = None if await self._has_begun(entity_id) else await tree.scheduler.find_submission(id)
            return row is not None and await tree.scheduler.drop_submission(row)
        except Held:
            return False
        finally:
            if tree.living.get(entity_id) is None:
                tree.writer.cast(Release(entity_id))

    async def _has_begun(self, entity_id: str) -> bool:
        return await self._tree.in_store(partial(self._tree.loom.has_begun, entity_id))

    async def stop(self, entity_id: str, why: str) -> None:
        """End an entity, and wait until it has ended."""
        await Entity(self._tree, entity_id).stop(why)

    async def begin(self, beginning: Beginning, *, waits: bool = False) -> Entity:
        """Begin an entity; with a key, return the one that began with it. Raises KeyUsed for other content.

        With `waits` this returns when the beginning is in the loom. The first query is made after that, so a caller
        that subscribes to the entity's events at once sees all of them.
        """
        tree, identity = self._tree, beginning.identity
        entity_id, name = identity.entity_id, identity.name
        waits = waits or name is not None
        if name is not None:
            await self._wait_for_named(name, identity.tenant)
        if identity.key is None:
            return await self._finish(await self._launch(beginning, waits=waits))
        tree.check_accepting()
        async with tree.launcher.lock(entity_id):
            while not await self._has_begun(entity_id):
                cell = tree.living.get(entity_id)
                if cell is not None:
                    await cell.wait_until_begun()
                    continue
                with anyio.CancelScope(shield=True):  # the entity belongs to its key, not to this caller
                    launched = await self._claim_and_launch(beginning, waits=waits)
                if launched is not None:
                    return await self._finish(launched)
                await anyio.sleep(POLL_INTERVAL)
            self._check_same(beginning, *await tree.in_store(partial(self._read_beginning, identity)))
            with anyio.CancelScope(shield=True):
                handle = await self._make_handle(beginning)
            return handle  # noqa: RET504  # mypy: a cancel scope may swallow an exception

    async def _claim_and_launch(self, beginning: Beginning, *, waits: bool) -> Launched | None:
        """Begin an entity with a key; return None if another process has begun it, or begins it just now."""
        tree, entity_id = self._tree, beginning.identity.entity_id
        try:
            await tree.claim(entity_id)
            if await self._has_begun(entity_id):
                return None
            if beginning.is_wanted is not None and not await beginning.is_wanted():
                key = beginning.identity.key or ""
                raise Withdrawn(entity_id, key, "", "its submission or schedule was removed")
            return await self._launch(beginning, waits=waits)
        except Held:
            return None
        finally:
            if tree.living.get(entity_id) is None:
                tree.writer.cast(Release(entity_id))

    def _read_beginning(self, identity: Identity) -> tuple[IntentGiven, Header]:
        """Return the first intent and the header of an entity. Raises KeyUsed if it is forgotten."""
        loom, entity_id = self._tree.loom, identity.entity_id
        if loom.is_forgotten(entity_id):
            raise KeyUsed(f"key {identity.key!r} was used for an entity that is forgotten: use another key")
        intent = find_first_intent(make_checked(loom).records(entity_id))
        assert intent is not None, "it has begun"
        return intent, loom.header(entity_id)

    def _check_same(self, beginning: Beginning, recorded: IntentGiven, header: Header) -> None:
        """Raise KeyUsed if the entity began as something else.

        The error names neither the entity nor its cantrip: who may not use that cantrip may have the same key.

        The content of its cantrip does not count: a program that begins its entities when it starts finds them after a
        deploy with another prompt, and the upgrade policy decides which cantrip they work with.
        """
        entity_id, (cantrip, begin, identity, _) = header.entity_id, beginning
        expected, intent = self._tree.guard.redact_records(
            [
                Plan.of(cantrip, identity).make_header(header.at),
                IntentGiven(entity_id, begin.intent, "", *begin[1:]),
            ]
        )
        pairs = [(name, getattr(header, name), getattr(expected, name)) for name in _SAME_HEADER]
        pairs += [(name, getattr(recorded, name), getattr(intent, name)) for name in _SAME_INTENT]
        differing = [_LABELS.get(name, name) for name, before, now in pairs if before != now]
        if None not in (header.cantrip_name, cantrip.name) and header.cantrip_name != cantrip.name:
            differing.append("the name of its cantrip")
        if differing:
            raise KeyUsed(
                f"key {identity.key!r} was used to begin something else; what differs is {' and '.join(differing)}: "
                "use another key for another beginning"
            )

    async def _make_handle(self, beginning: Beginning) -> Entity:
        """Return a handle to an entity that has begun; resume the entity if a crash interrupted it."""
        tree, entity_id = self._tree, beginning.identity.entity_id
        cell = tree.living.get(entity_id)
        if cell is None and await tree.in_store(partial(self._is_under_way, entity_id)):
            with suppress(Held, EntityEnded):  # another process runs it, or has just ended it
                cell = await tree.launcher.restore(entity_id, beginning.cantrip)
        identity = beginning.identity
        return Entity(tree, entity_id, identity.name, cell, is_beginning=identity.lasting, begun_with=beginning.cantrip)

    async def resume_if_left(self, entity_id: str) -> None:
        """Resume a submitted entity that no process runs any more, if this process knows its cantrip.

        It leaves the entity to the nodes if one lives.
        """
        tree = self._tree
        if await tree.in_store(partial(self._is_left, entity_id)):
            with suppress(Held, CantripUnknown, EntityEnded):
                await tree.launcher.restore(entity_id)

    def _is_left(self, entity_id: str) -> bool:
        return self._tree.launcher.find_if_interrupted(entity_id) is not None and not self._tree.has_living_node()

    def _is_under_way(self, entity_id: str) -> bool:
        return fold_entity(self._tree.loom, entity_id).phase not in (Phase.IDLE, Phase.OVER)

    async def _launch(self, beginning: Beginning, *, waits: bool) -> Launched:
        """Start the actor of a new entity, which records its beginning; with `waits` it then waits for `_finish`."""
        tree, name, tenant = self._tree, beginning.identity.name, beginning.identity.tenant
        if tree.allowances.is_used and beginning.is_wanted is None:  # a submission was checked when it was made
            await tree.allowances.check(tenant, beginning.begin.sender or "")
        if name is None:
            return await self._launch_with_tools(beginning, waits=waits)
        lease = name_lease(scope_name(tenant, check_name("name", name)))
        async with tree.launcher.lock(lease):
            if tree.living.find_named(scope_name(tenant, name)) is not None:  # it may hold the lease still
                raise _make_taken_error(name)
            with ExitStack() as held:
                held.callback(tree.writer.cast, Release(lease))
                await self._claim_name(name, tenant, lease)
                launched = await self._launch_with_tools(beginning, waits=waits)
                launched.start.recorded.listen(held.pop_all().close)  # its log has the name then, or it has ended
        return launched

    async def _launch_with_tools(self, beginning: Beginning, *, waits: bool) -> Launched:
        if beginning.cantrip.circle.is_complete:
            return await self._launch_complete(beginning, waits=waits)
        async with self._tree.tool_servers.complete(beginning.cantrip) as cantrip:
            launched = await self._launch_complete(beginning._replace(cantrip=cantrip), waits=waits)
        return launched  # noqa: RET504  # mypy: a context manager may swallow an exception

    async def _launch_complete(self, beginning: Beginning, *, waits: bool) -> Launched:
        tree, (cantrip, begin, identity, _) = self._tree, beginning
        if identity.parent_turn is None:
            cell = tree.cells.make_cell(cantrip, identity, begin)
        else:
            cell = await tree.cells.fork(identity.parent_turn, cantrip, identity, begin)
        start = cell.start
        assert start is not None, "it is new"
        if waits:
            start.released = OneShotEvent()
        first = self._expect_first(cell)
        entity = Entity(tree, cell.entity_id, identity.name, cell, first, is_beginning=identity.lasting)
        try:
            await tree.launcher.launch(cell)
        except anyio.get_cancelled_exc_class():
            await self._leave(entity, cell)
            raise
        if identity.name is not None:
            tree.scheduler.note_name()
        return Launched(entity, cell, start)

    async def _finish(self, launched: Launched) -> Entity:
        """If its caller waits, wait until the beginning of an entity is recorded. Return the entity."""
        entity, cell, start = launched
        if start.released is None:
            return entity
        try:
            await start.recorded.wait()
            if cell.error is not None and not await self._has_log(cell.entity_id):
                raise self._tree.guard.redact_error(cell.error)
        except anyio.get_cancelled_exc_class():
            await self._leave(entity, cell)
            raise
        finally:
            start.released.set()
        return entity

    @staticmethod
    async def _leave(entity: Entity, cell: Cell) -> None:
        """Stop an entity whose caller is cancelled and gets no handle. One with a key belongs to its key, and stays."""
        if cell.plan.key is None:
            with anyio.CancelScope(shield=True):
                await entity.stop()

    async def _wait_for_named(self, name: str, tenant: str) -> None:
        """Wait until the entity of that name has begun, if it begins just now in this process."""
        cell = self._tree.living.find_named(scope_name(tenant, check_name("name", name)))
        if cell is not None:
            await cell.wait_until_begun()

    async def _has_log(self, entity_id: str) -> bool:
        """Return whether an entity has a log; False if the loom cannot be read: the error of its writer says more."""
        try:
            return await self._tree.in_store(partial(self._tree.loom.has, entity_id))
        except LoomError:
            return False

    def _expect_first(self, cell: Cell) -> Waiter | None:
        """Return a waiter for the first episode of a long-lived entity: a handle may ask for it much later."""
        if not cell.plan.lasting:
            return None
        # the first intent is not mail, so no later incarnation takes it
        first = Waiter(cell.context_variables, callers=0, is_recorded=True)
        return self._tree.inboxes.attach(cell).expect("", first)

    async def _claim_name(self, name: str, tenant: str, lease: str) -> None:
        """Claim a name, so that no other process can use it before this entity has begun. Raises NameTaken."""
        holder: Held | None = None
        try:
            await self._tree.claim(lease)
        except Held as error:
            holder = error
        if await self._tree.in_store(partial(self.find_named, name, tenant)) is not None:
            raise _make_taken_error(name)
        if holder is not None:
            raise NameTaken(f'another process is about to make an entity called "{name}"') from holder

    def find_named(self, name: str, tenant: str = "") -> str | None:
        """Return the id of a tenant's long-lived entity with that name; None if it does not exist or has ended."""
        tree = self._tree
        living = tree.living.find_named(scope_name(tenant, name))
        if living is not None:
            return living.entity_id
        entity_id = tree.store.named(scope_name(tenant, name))
        return None if entity_id is None or tree.loom.is_over(entity_id) else entity_id


def _make_taken_error(name: str) -> NameTaken:
    return NameTaken(f'an entity called "{name}" is there already: send to it, or give another name')


def check_cantrip(what: str, cantrip: Cantrip) -> Cantrip:
    """Return the cantrip. Raises InvalidCantrip for anything else."""
    check_kind(what, cantrip, Cantrip, "a Cantrip", InvalidCantrip)
    return cantrip
