"""The registry actor: it watches every cell, and cleans up when one has stopped permanently.

The actor records a crash, which the crashed entity could not record itself. It then removes the cell and notifies the
callers that wait for its end. An entity that is over or unloaded uses no memory in the runtime: only its log remains.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cantrip_actors.loom import Loom
from cantrip_actors.records.records import Ended
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.outcome import Outcome
from supervisors import Actor, Crash, Down, ExitReason, Killed, RestartedWith, Shutdown

_log = get_logger("cantrip_actors.runtime")


class RegistryActor(Actor):
    """Watches the cells that it receives in casts."""

    def __init__(self, core: Core, leave: Callable[[Cell], None]) -> None:
        self._core = core
        self._leave = leave

    async def init(self) -> None:
        """Watch the cells that exist already, if this is a restart. Children come before their parents.

        A resumed parent must not find an ended child among the loaded entities.
        """
        living = self._core.living
        for cell in reversed([*living.leaving.values(), *living]):
            self._watch(cell)

    async def handle_cast(self, message: Cell) -> None:
        """Watch a cell."""
        self._watch(message)

    async def handle_info(self, message: Any) -> None:
        """Clean up after a cell that has ended."""
        if not isinstance(message, Down):
            return
        living, entity_id = self._core.living, message.ref.id
        for cell in (living.get(entity_id), living.leaving.get(entity_id)):
            if cell is not None and cell.supervisor is message.ref:  # otherwise the cell was watched twice
                if not cell.is_over and _is_cut_off(cell.entity.last_exit):
                    await self._record_end(cell)
                self._leave(cell)
                await cell.crystal.release()  # an actor that was killed while it hibernated had no chance to

    def _watch(self, cell: Cell) -> None:
        self.monitor(cell.supervisor, final=True)

    async def _record_end(self, cell: Cell) -> None:
        """Record the end of an entity that crashed or was killed, unless its log has an end already."""
        core, entity, why = self._core, cell.entity_id, cell.entity.last_exit
        try:
            await core.append(())
            has_log, is_over, outcome = await core.in_store(partial(_read_end, core.loom, entity))
            if not has_log:
                return
            if is_over:
                cell.is_over, cell.outcome = True, outcome
            elif isinstance(why, Crash):
                text = f"{type(why.exception).__name__}: {why.exception}"
                await core.append([Ended(entity, "crashed", core.make_moment().at, text)])
                cell.is_over = True
        except LoomError as error:
            _log.error("an entity's end could not be recorded", entity=entity, error=str(error))


def _read_end(loom: Loom, entity: str) -> tuple[bool, bool, Outcome | None]:
    """Return whether an entity has a log, whether it is over, and its outcome if it is."""
    if not loom.has(entity):
        return False, False, None
    if not loom.is_over(entity):
        return True, False, None
    return True, True, loom.outcome(entity)


def _is_cut_off(why: ExitReason | None) -> bool:
    """Return whether the entity stopped without ending itself and without a request to end."""
    return isinstance(why, (Crash, Killed)) or (isinstance(why, Shutdown) and isinstance(why.detail, RestartedWith))
