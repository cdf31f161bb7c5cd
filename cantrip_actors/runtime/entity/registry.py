"""The registry actor: it unloads the trees that rest, and cleans up after each entity that has stopped permanently.

An entity that is over or unloaded uses no memory in the runtime: only its log remains. After a crash that would repeat,
the actor quarantines a root entity that somebody can come back to, so that it keeps its name, its inbox and its memory,
and has it loaded again when the quarantine is over. Any other entity gets the end that it could not record itself. Then
the actor removes the cell, and notifies the callers that wait for its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import anyio

from cantrip_actors.loom import Loom, Quarantined
from cantrip_actors.machine.life import Change
from cantrip_actors.records.records import Ended
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.entity.ends import end_below, leave_tree
from cantrip_actors.runtime.entity.living import LOOK
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.runtime.mail.inboxes import Inboxes
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.outcome import Outcome
from supervisors import Actor, Alarm, Crash, Down, ExitReason, Killed, RestartedWith, Shutdown

_log = get_logger("cantrip_actors.runtime")


class RegistryActor(Actor):
    """Watches the cells that it receives in casts.

    Args:
        core: the core of the runtime.
        remove: removes a cell.
        inboxes: the inboxes of the runtime.
    """

    def __init__(self, core: Core, remove: Callable[[Cell], None], inboxes: Inboxes) -> None:
        self._core = core
        self._remove = remove
        self._inboxes = inboxes
        self._timer: Alarm | None = None
        self._quarantines: dict[str, Alarm] = {}
        """For each entity that this process found in quarantine: the alarm for its end."""

    async def init(self) -> None:
        """Watch the cells that exist already, if this is a restart. Children come before their parents.

        A resumed parent must not find an ended child among the loaded entities.
        """
        living = self._core.living
        for cell in reversed([*living.leaving.values(), *living]):
            self.monitor(cell.actor, final=True)
        living.begin_cleaning_up()
        self.ref.send(LOOK)

    async def terminate(self, reason: ExitReason) -> None:
        """Let cells end without this actor when the runtime closes: entities still end, and wait for their children.

        After a restart, its next incarnation cleans up after those that have ended meanwhile.
        """
        if isinstance(reason, Shutdown) and not isinstance(reason.detail, RestartedWith):
            self._core.living.stop_cleaning_up()

    async def handle_cast(self, message: Cell) -> None:
        """Watch a cell."""
        self.monitor(message.actor, final=True)

    async def handle_info(self, message: Any) -> None:
        """Unload the trees that have rested for long, or clean up after an entity that has ended."""
        if message is LOOK:
            self._unload_resting()
        elif isinstance(message, Quarantined):
            self._await_end(message)
        elif isinstance(message, _QuarantineOver):
            self._quarantines.pop(message.entity_id, None)
            self._inboxes.load(message.entity_id)
        elif isinstance(message, Down):
            living = self._core.living
            entity_id = message.ref.id
            for cell in (living.get(entity_id), living.leaving.get(entity_id)):
                if cell is not None and cell.actor is message.ref:  # otherwise the cell was watched twice
                    await self._clean_up(cell)

    # Rest

    def _unload_resting(self) -> None:
        """Unload the trees that are due, and look again when the next one is."""
        if self._timer is not None:
            self._timer.cancel()
        now = anyio.current_time()
        due, next_at = self._core.living.take_due(now)
        for cell in due:
            leave_tree(self._core, cell)
        self._timer = None if next_at is None else self.send_after(max(0.0, next_at - now), LOOK)

    # Quarantines

    def _await_end(self, quarantined: Quarantined) -> None:
        """Load an entity when its quarantine is over. It is quarantined again if it crashes then."""
        entity_id, until = quarantined.entity_id, quarantined.until
        assert entity_id is not None, "an entity is quarantined"
        self._core.living.quarantined.add(entity_id)
        alarm = self._quarantines.pop(entity_id, None)
        if alarm is not None:
            alarm.cancel()
        if until is None:
            return
        delay = max(0.0, until - self._core.read_time_of_day()) + _MARGIN
        self._quarantines[entity_id] = self.send_after(delay, _QuarantineOver(entity_id))

    # Ends

    async def _clean_up(self, cell: Cell) -> None:
        try:
            await self._settle_log(cell, cell.actor.last_exit)
        except LoomError as error:
            _log.error("an entity's end could not be recorded", entity=cell.entity_id, error=str(error))
            cell.error = error  # it is tried again after an outage, and then has this end or another one
        self._remove(cell)
        try:
            await self._inboxes.settle_from_log(
                cell.entity_id
            )  # it may have stopped between an end of an episode and its report
        except LoomError as error:
            _log.error("an entity's last outcome could not be read", entity=cell.entity_id, error=str(error))
            self._inboxes.suspend(cell.root.entity_id, error)
        await cell.crystal.release()  # an actor that was killed had no chance to

    async def _settle_log(self, cell: Cell, reason: ExitReason | None) -> None:
        """Record the end of an entity that was given up, or quarantine it; read the end of one that was killed."""
        if cell.life.is_final or not (cell.is_given_up or isinstance(reason, (Crash, Killed))):
            return
        core = self._core
        await core.finish_writing()
        has_log, is_over, outcome = await core.in_store(partial(_read_end, core.loom, cell.entity_id))
        if is_over:
            cell.outcome = outcome
            core.living.change(cell, Change.ENDS)
        if is_over or not has_log:
            return
        marks = cell.crashes.marks
        text = marks[0].error if marks else str(reason)
        if cell.parent is None and (cell.plan.lasting or cell.plan.key is not None):
            _log.error(
                "an entity is quarantined: it would crash again",
                entity=cell.entity_id,
                name=cell.plan.name,
                crashes=[crash.error for crash in marks],
            )
            quarantined = await core.quarantine(cell.entity_id, text, is_repeated=cell.recorded == 0)
            cell.crashes.quarantined = quarantined
            self._await_end(quarantined)
            core.living.change(cell, Change.LEAVES)
        elif cell.is_given_up:
            await end_below(core, cell.entity_id)
            await core.append([Ended(cell.entity_id, "crashed", core.make_moment().at, text)])
            core.living.change(cell, Change.ENDS)


class _QuarantineOver(NamedTuple):
    """The quarantine of this entity is over, unless another process has prolonged or lifted it."""

    entity_id: str


_MARGIN: Final = 0.001
"""Extra seconds of sleep, because clocks are read with rounding errors."""


def _read_end(loom: Loom, entity_id: str) -> tuple[bool, bool, Outcome | None]:
    """Return whether an entity has a log, whether it is over, and its outcome if it is."""
    if not loom.has(entity_id):
        return False, False, None
    if not loom.is_over(entity_id):
        return True, False, None
    return True, True, loom.outcome(entity_id)
