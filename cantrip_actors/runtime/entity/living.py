"""The entities that are loaded in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyio

from cantrip_actors.runtime.entity.cell import Cell


class LoadedCells:
    """The cells that were started and have not ended, by the ids, names and parents of their entities.

    A cell whose entity is unloading moves to `leaving` until it has ended.
    """

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}
        self._names: dict[str, str] = {}
        self._below: dict[str, list[str]] = {}
        self.leaving: dict[str, Cell] = {}
        self.is_handing_over = False
        """Whether this node hands its entities over to other nodes, so that no query begins."""
        self.ends_here: Callable[[Cell], bool] = lambda _: False
        """Whether the episode of a root entity ends here all the same, because no other node can continue it."""
        self.tokens: dict[str, int] = {}
        """For each root entity, the token of the lease under which this process runs its tree."""
        self.on_add: Callable[[Cell], object] = lambda _: None
        """Called with each cell that is about to be started."""
        self._rest: anyio.Event | None = None

    def add(self, cell: Cell) -> None:
        """Add a cell that is about to be started."""
        self._cells[cell.entity_id] = cell
        name = cell.plan.scoped_name
        if name is not None:
            self._names[name] = cell.entity_id
        if cell.parent is not None:
            self._below.setdefault(cell.parent.entity_id, []).append(cell.entity_id)
        self.on_add(cell)

    def remove(self, cell: Cell) -> None:
        """Remove a cell that has ended, could not be started, or is unloading."""
        if self._cells.get(cell.entity_id) is not cell:
            return
        del self._cells[cell.entity_id]
        self.tokens.pop(cell.entity_id, None)
        name = cell.plan.scoped_name
        if name is not None:
            self._names.pop(name, None)
        if cell.parent is not None:
            siblings = self._below[cell.parent.entity_id]
            siblings.remove(cell.entity_id)
            if not siblings:
                del self._below[cell.parent.entity_id]

    def get(self, entity_id: str) -> Cell | None:
        """Return the cell of an entity, if it is loaded."""
        return self._cells.get(entity_id)

    def find_named(self, name: str) -> Cell | None:
        """Return the cell of the entity of that name, scoped, if it is loaded."""
        entity_id = self._names.get(name)
        return None if entity_id is None else self._cells[entity_id]

    def list_below(self, entity_id: str) -> list[str]:
        """Return the children of an entity that are loaded."""
        return self._below.get(entity_id, [])

    def list_children(self, cell: Cell) -> list[Cell]:
        """Return the cells of the children of an entity that are loaded."""
        return [self._cells[one] for one in self.list_below(cell.entity_id)]

    def wake_waiters(self) -> None:
        """Wake the callers of `wait_until`, which test their conditions again."""
        if self._rest is not None:
            self._rest.set()
            self._rest = None

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is tested again after each `wake_waiters`."""
        while not is_true():
            if self._rest is None:
                self._rest = anyio.Event()
            await self._rest.wait()

    def __iter__(self) -> Iterator[Cell]:
        return iter(list(self._cells.values()))

    def __len__(self) -> int:
        return len(self._cells)
