"""The launcher: it loads entities, starts their actors in the supervision tree, and removes them when they have ended.

    entities                dynamic: a child for each loaded root entity
    └── ENTITY              an `EntityActor`, with a nursery of its own
        ├── circle          the actor of its gates and programs, once it is needed
        └── ENTITY          a child of `call_agent`: the same again

An entity restarts where it stands, with growing delays. `machine/life.py` says when it is not tried again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import anyio

from cantrip_actors.crystal.images import find_refused_file
from cantrip_actors.loom import EntityFacts, Held, Quarantined
from cantrip_actors.machine.life import Cause, Occasion, find_causes
from cantrip_actors.machine.project import Life
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import Ended, Header
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.circles.tool_servers import ToolServers, read_recorded_circle
from cantrip_actors.runtime.entity.cell import Cell, Dismissed
from cantrip_actors.runtime.entity.cells import Cells
from cantrip_actors.runtime.entity.driver import EntityActor
from cantrip_actors.runtime.entity.ends import leave_tree, outlasts_callers
from cantrip_actors.runtime.entity.environment import Environment
from cantrip_actors.runtime.entity.performer import MAIL
from cantrip_actors.runtime.loom.loom_writer import Release, WriterTask
from cantrip_actors.runtime.loom.outage_log import is_outage
from cantrip_actors.runtime.nodes.placing import may_load_here
from cantrip_actors.terms.cantrip import Cantrip, is_interchangeable
from cantrip_actors.terms.errors import (
    CantripError,
    CantripUnknown,
    DependenciesUnknown,
    EntityEnded,
    InvalidFile,
    InvalidIntent,
    LoomError,
    RuntimeClosed,
)
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import select_files
from cantrip_actors.terms.json_schema import load
from cantrip_actors.user_code.threads import run_apart
from supervisors import (
    Backoff,
    Children,
    ChildSpec,
    NotRunning,
    Shutdown,
    ShuttingDown,
    StartFailed,
    SupervisorRef,
)
from supervisors.reasons import render_exception

RESTARTS: Final = Backoff(first=1.0, factor=4.0)
"""The delays before the restarts of an entity: none, 1 s, 4 s, with jitter."""

STOP_GRACE: Final = 60.0
"""Seconds that an entity has to end its work and to record its end. It is killed after them: it is resumed later."""

ONE_SHOT: Final = "this entity was cast and ends with its first intent: only a long-lived one takes more"

_log = get_logger("cantrip_actors.runtime")


class Launcher:
    """Starts and removes the entities of one runtime. `entities` is their supervisor."""

    def __init__(
        self,
        environment: Environment,
        cells: Cells,
        servers: ToolServers,
        entities: SupervisorRef,
    ) -> None:
        self._environment = environment
        self._core = environment.core
        self._cells = cells
        self._servers = servers
        self._entities = entities
        self.get_child_cell = cells.get_child_cell
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def lock(self, what: str) -> anyio.Lock:
        """Return the lock that lets one caller at a time make an entity, load it, or give it another cantrip."""
        return self._locks.setdefault(what, anyio.Lock(fast_acquire=True))

    # Start

    async def launch(self, cell: Cell, *, lift: bool = False) -> None:
        """Start a root entity.

        Raises RuntimeClosed; Held if another process runs it; without `lift`, Quarantined.
        """
        core, living, inboxes = self._core, self._core.living, self._environment.inboxes
        core.check_accepting()
        core.cantrips.add(cell.plan.cantrip.bare)
        living.add(cell)  # before the first await: all later callers must find this cell
        self._environment.queues.note(cell)
        if cell.plan.lasting or cell.start is None:  # a one-shot entity that is loaded may have mail
            inboxes.attach(cell)
        try:
            leaving = living.leaving.get(cell.entity_id)
            if leaving is not None:
                await leaving.ending.wait()
            try:
                living.tokens[cell.entity_id] = await core.claim(cell.entity_id, lift=lift)
                living.quarantined.discard(cell.entity_id)
            except anyio.get_cancelled_exc_class():  # the claim may still be granted, and would not be released
                core.writer.cast(Release(cell.entity_id))
                raise
        except BaseException as error:
            cell.error = error if isinstance(error, LoomError) else None
            living.remove(cell)
            inboxes.detach(cell)
            cell.end()  # other callers may have found the cell, and wait
            raise
        core.registry.cast(cell)
        try:
            await self._entities.start_child(self._make_spec(cell))
        except (NotRunning, ShuttingDown) as gone:
            self.remove(cell)
            raise RuntimeClosed(
                "the runtime closes, restarts after a crash of its loom actor, or has given up: the reports of its "
                "supervisors say why"
            ) from gone
        except anyio.get_cancelled_exc_class():  # the start was cancelled, so wait until the cell has ended
            with anyio.CancelScope(shield=True):
                await cell.ending.wait()
            await core.finish_writing()  # the loom actor may still write how it begins: `stop` must find that
            raise
        except StartFailed:
            await cell.ending.wait()
            if cell.outcome is None:  # otherwise the entity ended before its start was reported
                raise core.guard.redact_error(cell.error or cell.make_crash_error()) from None

    def _make_spec(self, cell: Cell) -> ChildSpec[EntityActor]:
        start = partial(EntityActor, cell, self._environment, self)
        return ChildSpec(
            cell.entity_id, start, restart="transient", shutdown=STOP_GRACE, ref=cell.actor, backoff=RESTARTS
        )

    async def restore(
        self,
        entity_id: str,
        cantrip: Cantrip | None = None,
        *,
        lift: bool = False,
        facts: EntityFacts | None = None,
        by: str = "",
        intent: Mail | None = None,
    ) -> Cell:
        """Load a root entity that is not loaded, with the tools that it had, and return its cell.

        `facts` are the facts of the entity, if they were just read. Without `cantrip`, the entity continues with the
        known cantrip of the same content. `by` is the person who resumes it, for the record. `intent` is its next one,
        if it is idle. One caller at a time loads an entity, so that no caller gets a cell whose claim still fails.

        Raises as `launch`; LoomError, EntityEnded; ToolServerError if it moves to a cantrip with a server of tools that
        cannot be used.
        """
        core, lock = self._core, self.lock(f"load {entity_id}")
        if lock.locked():
            facts = None  # the caller before this one may change them
        async with lock:
            cell = core.living.get(entity_id)
            if cell is not None:
                return cell
            if facts is None:
                facts = await core.in_store(partial(core.loom.facts, entity_id))
            if facts.header.parent_entity is not None and facts.life < Life.OVER:
                root = await core.look_up_root(entity_id)
                raise LoomError(
                    f"entity {entity_id} is a child of {facts.header.parent_entity}: resume the root {root}"
                )
            if facts.held is not None and facts.life < Life.OVER:
                raise facts.held
            cantrip, adoption = self._cells.choose_cantrip(facts, cantrip, intent)
            if cantrip.additions:
                await run_apart(load)  # for the checks of its calls
            recorded = None
            if not cantrip.circle.is_complete:
                recorded = await core.in_store(partial(read_recorded_circle, cantrip, core.loom, entity_id))
            async with self._servers.complete(cantrip, recorded) as cantrip:
                cell = await self._cells.load_cell(facts, cantrip, adoption)
                cell.caller.resumed_by = by
                await self.launch(cell, lift=lift)
        return cell

    async def load_for_mail(self, entity_id: str, *, is_placed: bool = False) -> bool:
        """Load an entity for which mail waits, and return whether this call did.

        Its mail waits if another process runs it, if its cantrip or its dependencies are not known here, and if another
        node should load it, unless `is_placed`: this node was chosen then. Raises LoomError if the loom does not
        answer.
        """
        core, inboxes = self._core, self._environment.inboxes
        try:
            async with self.quarantine_crashes(entity_id):
                return await self._load_if_possible(entity_id, is_placed=is_placed)
        except (Held, RuntimeClosed, CantripUnknown, DependenciesUnknown):  # it began elsewhere meanwhile, or we close
            return False
        except CantripError as error:
            if is_outage(error):
                raise
            log = _log.warning
            if isinstance(error, Quarantined):
                log = _log.info
                core.registry.send(error)  # it loads the entity when that is over
            log("an entity with mail could not be loaded", entity=entity_id, error=str(error))
            inboxes.fail_waiters(entity_id, error)
            return False

    async def _load_if_possible(self, entity_id: str, *, is_placed: bool) -> bool:
        core = self._core
        if core.living.get(entity_id) is not None:
            return False
        facts = await core.in_store(partial(core.loom.facts, entity_id, "always" if is_placed else "unless_held"))
        if facts.life >= Life.OVER:
            await self._environment.inboxes.settle_from_log(entity_id)
            return False
        if facts.header.parent_entity is not None:  # a caller waits for a child, which runs with its parent
            return await self.load_for_mail(await core.look_up_root(entity_id), is_placed=is_placed)
        if facts.is_held or not facts.has_begun:
            return False
        intent = await core.in_store(partial(core.find_next_intent, facts))
        sent = None if intent is None else core.cantrips.get_sent(entity_id, intent.key)
        is_known = sent is not None or await core.in_store(partial(core.is_clear, facts, intent))
        if not is_known:
            sent = await core.in_store(partial(core.find_ensured, facts))
            is_known = sent is not None
        if not is_known and intent is not None and intent.dependencies is not None:
            hand_over = WriterTask(lambda writer: writer.hand_over(entity_id, core.living.has))
            core.writer.cast(hand_over)  # another process may have its dependencies
        if not is_known or not (is_placed or may_load_here(core, facts)):
            return False
        await self.restore(entity_id, sent, facts=facts, intent=intent)
        return True

    @contextlib.asynccontextmanager
    async def quarantine_crashes(self, entity_id: str) -> AsyncIterator[None]:
        """Quarantine the root of an entity if the block, which loads it for no caller, raises an unexpected exception.

        So it is with an entity whose actor crashes, and this one has no actor yet. Raises Quarantined, caused by the
        exception; Held if the entity is loaded meanwhile, here or elsewhere.
        """
        try:
            yield
        except CantripError:
            raise
        except Exception as crash:
            core = self._core
            text = f"{type(crash).__name__}: {render_exception(crash)}"
            _log.error("an entity is quarantined: it crashed while it was loaded", entity=entity_id, exc_info=crash)
            root = await core.look_up_root(entity_id)
            async with self.lock(f"load {root}"):
                self._check_not_loaded(root)
                await core.claim(root)  # raises if another process runs it
                raise await core.quarantine(root, text, is_repeated=True) from crash

    # Children

    async def start_child(self, cell: Cell, children: Children) -> None:
        """Start a child among the children of its parent's actor. A child that fails to start has an outcome, too."""
        core = self._core
        leaving = core.living.leaving.get(cell.entity_id)
        if leaving is not None:
            await leaving.ending.wait()
        core.cantrips.add_carved(cell.plan.cantrip)
        core.living.add(cell)
        core.registry.cast(cell)
        with contextlib.suppress(StartFailed):
            await children.start(self._make_spec(cell))

    # End

    def remove(self, cell: Cell) -> None:
        """Remove an entity that has stopped permanently, and notify all tasks that wait for its end."""
        living = self._core.living
        living.remove(cell)
        if living.leaving.get(cell.entity_id) is cell:
            del living.leaving[cell.entity_id]
        if cell.parent is None:
            self._forget_root(cell)
        self._environment.inboxes.detach(cell)
        cell.end()
        if cell.parent is not None:
            living.note_standing(cell.parent)
        else:
            living.wake_waiters()

    def _forget_root(self, cell: Cell) -> None:
        """Release the leases of a root entity, and remember its cantrip if it can be loaded again.

        It is loaded by itself after an outage, unless it works for a caller alone, who gets that error.
        """
        core, inboxes = self._core, self._environment.inboxes
        is_owned = cell.callers > 0 and core.membership is None and not outlasts_callers(cell.plan, core)
        if is_outage(cell.error) and not cell.is_over and not is_owned:
            inboxes.suspend(cell.entity_id, cell.error, has_recorded=cell.recorded > 0)
        else:
            inboxes.outages.forget(cell.entity_id)
        if cell.plan.lasting or cell.is_suspended:
            if cell.is_over or cell.is_for_episode:
                core.cantrips.forget(cell.entity_id)
            else:
                core.cantrips.note_unloaded(cell.entity_id, cell.plan.cantrip.unprovided)
        if core.store.shared:
            core.writer.cast(Release(cell.entity_id))

    async def adopt(self, entity_id: str, cantrip: Cantrip) -> None:
        """Give a long-lived entity another cantrip: unload it once it is idle, and load it with this one.

        If another process runs it, it continues there with the cantrip of that process: its mail reaches it there, and
        this process continues with this cantrip what it loads later. Raises LoomError, EntityEnded, and InvalidIntent
        for a one-shot entity.
        """
        async with self.lock(entity_id):
            cell = self._core.living.get(entity_id)
            if cell is not None and cell.plan.lasting:
                own = cell.plan.cantrip.unprovided
                if is_interchangeable(own, cantrip) and own.name == cantrip.name:
                    return
                self._core.check_open()
                unload_when_idle(cell)
                await cell.ending.wait()
            if self._core.living.get(entity_id) is None:
                if not (await self._core.in_store(partial(self._core.loom.header, entity_id))).lasting:
                    raise InvalidIntent(ONE_SHOT)
                try:
                    await self.restore(entity_id, cantrip)
                except Held:
                    self._core.cantrips.add(cantrip)

    async def unload_waiting(self, cell: Cell) -> None:
        """Unload a root entity that waits for people or results, and its tree; others stay loaded."""
        causes = find_causes(self._core.living.describe(cell))
        if causes == {Cause.PERSON} and not cell.ending.is_set:
            leave_tree(self._core, cell)
            await cell.ending.wait()

    async def suspend(self, cell: Cell) -> None:
        """Suspend a root entity, once its whole tree is between two turns, and wait until it is unloaded."""
        living = self._core.living
        await living.wait_until(lambda: living.may(Occasion.HAND_OVER, cell))
        if not cell.ending.is_set:
            leave_tree(self._core, cell)
            await cell.ending.wait()

    async def terminate(self, cell: Cell, reason: str, sender: str = "") -> None:
        """End an entity, and wait until its end is recorded. `sender` says who ends it, for the record."""
        core, inboxes = self._core, self._environment.inboxes
        if cell.actor.alive:
            cell.actor.exit(Shutdown(Dismissed(reason, sender)))
        elif not cell.ending.is_set and await core.in_store(partial(core.loom.has, cell.entity_id)):
            with contextlib.suppress(EntityEnded):  # it is about to start, or to restart, and will read its mail
                root = cell.root.entity_id
                mail = inboxes.make_mail(cell.entity_id, "stop", {"reason": reason}, sender=sender, root=root)
                await inboxes.post(mail)
        await cell.ending.wait()

    async def abandon(self, entity_id: str, why: str = "nobody will continue it", sender: str = "") -> None:
        """End an entity whose tree no process runs, and its children, in the loom. Raises RuntimeClosed, Held.

        It claims the root of the tree. Ending the root lifts a quarantine; ending a child raises Quarantined.
        """
        core, loom = self._core, self._core.loom
        core.check_not_closed()
        root = await core.look_up_root(entity_id)

        def find_unfinished() -> list[str]:
            return [member for member in loom.subtree(entity_id) if not loom.is_over(member)]

        async with self.lock(f"load {root}"):
            self._check_not_loaded(root)  # before the claim, which would end the lease that this process has
            try:
                await core.claim(root, lift=root == entity_id)
                self._check_not_loaded(root)
                unfinished, at = await core.in_store(find_unfinished), core.make_moment().at
                await core.append([Ended(member, "abandoned", at, why, sender=sender or None) for member in unfinished])
                for member in unfinished:
                    await self._environment.inboxes.settle_from_log(member)
            finally:
                if core.living.get(root) is None:
                    core.writer.cast(Release(root))

    def _check_not_loaded(self, root: str) -> None:
        if self._core.living.get(root) is not None:
            raise Held(f"entity {root} is loaded here: stop it instead")

    # Checks

    async def check_sendable(self, entity_id: str, cantrip: Cantrip | None, key: str | None, *, waits: bool) -> None:
        """Raise EntityEnded, InvalidIntent or LoomError if an entity that is not loaded here could not take an intent.

        `cantrip` is that of the caller's handle. An intent with a `key` may be a repeated one.
        """
        core = self._core
        facts = await core.in_store(partial(core.loom.facts, entity_id, "unless_held" if waits else "never"))
        if not facts.header.lasting:
            raise InvalidIntent(ONE_SHOT)
        if facts.life >= Life.OVER:
            if key is None:
                how = await core.in_store(partial(core.loom.state, entity_id))
                raise EntityEnded(f"entity {entity_id} has ended ({how})")
            return
        if cantrip is not None:
            core.cantrips.note_named(entity_id, cantrip)
        if waits and not facts.is_held:
            try:
                cantrip, _ = core.find_cantrip(facts)
                await core.in_store(partial(core.check_dependencies, facts, cantrip))
            except LoomError:
                if not await core.in_store(partial(core.is_served, facts)):  # else that process takes the mail
                    raise

    def check_files(self, cantrip: Cantrip, files: Iterable[File]) -> None:
        """Raise InvalidFile if the crystal of a cantrip does not accept one of its entity's files."""
        if files := select_files(files):
            why = find_refused_file(self._environment.crystals.find(cantrip.crystal).crystal, files)
            if why is not None:
                raise InvalidFile(why)

    def find_interrupted(self) -> Iterable[Header]:
        """Yield the headers of root entities that were running and that no process runs now; not of waiting ones."""
        return filter(None, map(self.find_if_interrupted, self._core.loom.unfinished(idle=False)))

    def find_if_interrupted(self, entity_id: str) -> Header | None:
        """Return the header of a root entity if it was running and no process runs it now; not of one that waits."""
        core = self._core
        if core.living.get(entity_id) is not None or core.is_held(entity_id):  # read first: it is over when it is free
            return None
        if core.store.life(entity_id) is not Life.BUSY or core.is_run_or_waiting(entity_id):
            return None
        header = core.loom.header(entity_id)
        return header if header.parent_entity is None else None


def unload_when_idle(cell: Cell) -> None:
    """Unload a long-lived entity once it is idle; its next intent loads it again."""
    cell.leaves_when_idle = True
    cell.actor.send(MAIL)
