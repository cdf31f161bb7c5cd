"""Which entities are loaded, and what is left to do when a cell ends.

The registry actor watches every cell. When one has ended for good it records what its entity could not (that it
crashed), lets go of the cell, and tells everybody who waits for its end: an entity that is over or unloaded costs
nothing here, its log is all there is of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from cantrip_actors.machine.project import outcome_of
from cantrip_actors.records.records import Ended
from cantrip_actors.runtime.cell import Cell
from cantrip_actors.runtime.core import Core
from cantrip_actors.terms.errors import LoomError
from supervisors import Actor, Crash, Down, ExitReason, Killed, RestartedWith, Shutdown

__all__ = ["RegistryActor"]

_log = structlog.get_logger("cantrip_actors.runtime")


class RegistryActor(Actor):
    """Watches the cells that it is cast."""

    def __init__(self, core: Core, leave: Callable[[Cell], None]) -> None:
        self._core = core
        self._leave = leave

    async def init(self) -> None:
        """Watch the cells that are there: this may be a restart. Children come first, as where they end.

        A parent that is resumed must not find a child that has ended among the loaded.
        """
        living = self._core.living
        for cell in reversed([*living.leaving.values(), *living]):
            self._watch(cell)

    async def handle_cast(self, message: Cell) -> None:
        """Watch one more cell."""
        self._watch(message)

    async def handle_info(self, message: Any) -> None:
        """A cell has ended."""
        if not isinstance(message, Down):
            return
        living, entity_id = self._core.living, message.ref.id
        for cell in (living.get(entity_id), living.leaving.get(entity_id)):
            if cell is not None and cell.supervisor is message.ref:  # else it was watched twice
                if not cell.is_over and _is_cut_off(cell.entity.last_exit):
                    await self._record_end(cell)
                self._leave(cell)

    def _watch(self, cell: Cell) -> None:
        self.monitor(cell.supervisor, final=True)

    async def _record_end(self, cell: Cell) -> None:
        """Record the end of an entity that was cut off, maybe between recording its own and telling it."""
        core, entity, why = self._core, cell.entity_id, cell.entity.last_exit
        try:
            await core.append(())
            loom = core.loom
            if not loom.has(entity):  # there is no log to end
                return
            if loom.is_over(entity):
                cell.is_over = True
                cell.outcome = outcome_of(loom.records(entity), loom.usage_below(entity))
            elif isinstance(why, Crash):
                text = f"{type(why.exception).__name__}: {why.exception}"
                await core.append([Ended(entity, "crashed", core.moment().at, text)])
                cell.is_over = True
        except LoomError as error:
            _log.error("an entity's end could not be recorded", entity=entity, error=str(error))


def _is_cut_off(why: ExitReason | None) -> bool:
    """Return whether that is no end that an entity brings about or is asked for."""
    return isinstance(why, (Crash, Killed)) or (isinstance(why, Shutdown) and isinstance(why.detail, RestartedWith))
