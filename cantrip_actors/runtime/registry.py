"""Which entities are loaded, and what is left to do when a cell ends.

The registry actor watches every cell. When one has ended for good it records what its entity could not (that it
crashed), lets go of the cell, and tells everybody who waits for its end: an entity that is over or unloaded costs
nothing here, its log is all there is of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import structlog

from cantrip_actors.machine.project import outcome_of
from cantrip_actors.records.records import Ended
from cantrip_actors.runtime.cell import Cell
from cantrip_actors.terms.errors import LoomError
from supervisors import Actor, Crash, Down, ExitReason, Killed, RestartedWith, Shutdown

if TYPE_CHECKING:
    from cantrip_actors.runtime.tree import Tree

__all__ = ["Living", "RegistryActor"]

_log = structlog.get_logger("cantrip_actors.runtime")


class Living:
    """The cells that were started and have not ended, by the ids, names and parents of their entities.

    One whose entity unloads is not among them any more, but `leaving` until it has ended.
    """

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}
        self._names: dict[str, str] = {}
        self._below: dict[str, list[str]] = {}
        self.leaving: dict[str, Cell] = {}

    def add(self, cell: Cell) -> None:
        """Note a cell that is about to be started."""
        self._cells[cell.entity_id] = cell
        if cell.plan.name is not None:
            self._names[cell.plan.name] = cell.entity_id
        if cell.parent is not None:
            self._below.setdefault(cell.parent.entity_id, []).append(cell.entity_id)

    def remove(self, cell: Cell) -> None:
        """Forget a cell that has ended, could not be started, or leaves."""
        if self._cells.get(cell.entity_id) is not cell:
            return
        del self._cells[cell.entity_id]
        if cell.plan.name is not None:
            self._names.pop(cell.plan.name, None)
        if cell.parent is not None:
            siblings = self._below[cell.parent.entity_id]
            siblings.remove(cell.entity_id)
            if not siblings:
                del self._below[cell.parent.entity_id]

    def get(self, entity_id: str) -> Cell | None:
        """Return the cell of an entity, if it is loaded."""
        return self._cells.get(entity_id)

    def named(self, name: str) -> Cell | None:
        """Return the cell of the entity of that name, if it is loaded."""
        entity_id = self._names.get(name)
        return None if entity_id is None else self._cells[entity_id]

    def below(self, entity_id: str) -> list[str]:
        """Return the children of an entity that are loaded."""
        return self._below.get(entity_id, [])

    def __iter__(self) -> Iterator[Cell]:
        return iter(list(self._cells.values()))

    def __len__(self) -> int:
        return len(self._cells)


class RegistryActor(Actor):
    """Watches the cells that it is cast."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    async def init(self) -> None:
        """Watch the cells that are there: this may be a restart. Children come first, as where they end.

        A parent that is resumed must not find a child that has ended among the loaded.
        """
        living = self._tree.living
        for cell in reversed([*living.leaving.values(), *living]):
            self._watch(cell)

    async def handle_cast(self, message: Cell) -> None:
        """Watch one more cell."""
        self._watch(message)

    async def handle_info(self, message: Any) -> None:
        """A cell has ended."""
        if not isinstance(message, Down):
            return
        living, entity_id = self._tree.living, message.ref.id
        for cell in (living.get(entity_id), living.leaving.get(entity_id)):
            if cell is not None and cell.supervisor is message.ref:  # else it was watched twice
                if not cell.is_over and _is_cut_off(cell.entity.last_exit):
                    await self._record_end(cell)
                self._tree.leave(cell)

    def _watch(self, cell: Cell) -> None:
        self.monitor(cell.supervisor, final=True)

    async def _record_end(self, cell: Cell) -> None:
        """Record the end of an entity that was cut off, maybe between recording its own and telling it."""
        tree, entity, why = self._tree, cell.entity_id, cell.entity.last_exit
        try:
            await tree.append(())
            loom = tree.loom
            if not loom.has(entity):  # there is no log to end
                return
            if loom.is_over(entity):
                cell.is_over = True
                cell.outcome = outcome_of(loom.records(entity), loom.usage_below(entity))
            elif isinstance(why, Crash):
                text = f"{type(why.exception).__name__}: {why.exception}"
                await tree.append([Ended(entity, "crashed", tree.services.moment().at, text)])
                cell.is_over = True
        except LoomError as error:
            _log.error("an entity's end could not be recorded", entity=entity, error=str(error))


def _is_cut_off(why: ExitReason | None) -> bool:
    """Return whether that is no end that an entity brings about or is asked for."""
    return isinstance(why, (Crash, Killed)) or (isinstance(why, Shutdown) and isinstance(why.detail, RestartedWith))
