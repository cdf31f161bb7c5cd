"""Who lives: the cells of this runtime, and what is left to do when one of them ends.

The registry actor watches every cell. When one has ended for good it writes down what its entity could not (that it
crashed), answers everybody who still waits for it, and forgets it: an entity that is over or asleep costs nothing here,
its log is all there is of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import structlog

from cantrip_actors.model.errors import LoomError
from cantrip_actors.model.recovery import outcome_of
from cantrip_actors.model.turn import Ended
from cantrip_actors.runtime.cell import Cell, Services
from supervisors import Actor, Crash, Down, ExitReason, Killed, RestartedWith, Shutdown

__all__ = ["Living", "RegistryActor"]

_log = structlog.get_logger("cantrip_actors.runtime")


class Living:
    """The cells that were started and have not ended, by their entities' ids and names."""

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}
        self._names: dict[str, str] = {}

    def add(self, cell: Cell) -> None:
        """A cell is about to be started."""
        self._cells[cell.entity_id] = cell
        if cell.plan.name is not None:
            self._names[cell.plan.name] = cell.entity_id

    def remove(self, cell: Cell) -> None:
        """A cell has ended, or could not be started."""
        if self._cells.get(cell.entity_id) is cell:
            del self._cells[cell.entity_id]
            if cell.plan.name is not None:
                self._names.pop(cell.plan.name, None)

    def get(self, entity_id: str) -> Cell | None:
        """The cell of an entity, if it lives."""
        return self._cells.get(entity_id)

    def named(self, name: str) -> Cell | None:
        """The cell of the entity of that name, if it lives."""
        entity_id = self._names.get(name)
        return None if entity_id is None else self._cells[entity_id]

    def __iter__(self) -> Iterator[Cell]:
        return iter(list(self._cells.values()))

    def __len__(self) -> int:
        return len(self._cells)


class RegistryActor(Actor):
    """Watches the cells that it is cast."""

    def __init__(self, living: Living, services: Services) -> None:
        self._living = living
        self._services = services

    async def init(self) -> None:
        """Watch those that live already: this may be a restart. Children come first, as where they end.

        A parent that is resumed must not find a child that has ended among the living.
        """
        for cell in reversed(list(self._living)):
            self._watch(cell)

    async def handle_cast(self, message: Cell) -> None:
        """Watch one more cell."""
        self._watch(message)

    async def handle_info(self, message: Any) -> None:
        """A cell is gone."""
        cell = self._living.get(message.ref.id) if isinstance(message, Down) else None
        if cell is not None and cell.supervisor is message.ref:  # else it has been buried: it was watched twice
            await self._bury(cell)

    def _watch(self, cell: Cell) -> None:
        self.monitor(cell.supervisor, final=True)

    async def _bury(self, cell: Cell) -> None:
        if not cell.is_over and _is_cut_off(cell.entity.last_exit):
            await self._write_end(cell)
        self._services.leave(cell)
        cell.settle()

    async def _write_end(self, cell: Cell) -> None:
        """Its end, where its log does not say it already: it may have been cut off between that and telling it."""
        services, entity, why = self._services, cell.entity_id, cell.entity.last_exit
        try:
            await services.append(())
            loom = services.loom()
            if not (cell.begun or loom.has(entity)):  # there is no log to end
                return
            if loom.is_over(entity):
                cell.is_over = True
                cell.outcome = outcome_of(loom.records(entity), loom.usage_below(entity))
            elif isinstance(why, Crash):
                said = f"{type(why.exception).__name__}: {why.exception}"
                await services.append([Ended(entity, "crashed", services.moment().at, said)])
        except LoomError as error:
            _log.error("an entity's end could not be recorded", entity=entity, error=str(error))


def _is_cut_off(why: ExitReason | None) -> bool:
    """Whether that is no end that an entity brings about or is asked for."""
    return isinstance(why, (Crash, Killed)) or (isinstance(why, Shutdown) and isinstance(why.detail, RestartedWith))
