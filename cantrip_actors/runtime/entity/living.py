"""The entities that are loaded in this process: where each stands, and which of them rest.

`change` is the only way to another stage of an entity's life (`machine/life.py`). It also stops the time of `timeout`
wards while a tree waits for people, and notes since when each tree rests, so that it can be unloaded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import anyio

from cantrip_actors.machine.life import (
    Cause,
    Change,
    Occasion,
    Stage,
    Standing,
    WaitKind,
    change_life,
    find_causes,
    may,
)
from cantrip_actors.runtime.entity.cell import Cell
from supervisors import ActorRef
from supervisors.ref import identify

LOOK: Final = object()
"""The message that has the registry actor look for trees to unload."""

_FOR_PEOPLE: Final = frozenset({Cause.PERSON})


class LoadedCells:
    """The cells that were started and have not ended, by the ids, names and parents of their entities.

    A cell whose entity is leaving moves to `leaving` until it has ended. `passivate_after` is the seconds of rest after
    which the actor `registry` unloads a tree.
    """

    def __init__(self, passivate_after: float, registry: ActorRef[Any]) -> None:
        self._passivate_after = passivate_after
        self._registry = registry
        self._cells: dict[str, Cell] = {}
        self._names: dict[str, str] = {}
        self._below: dict[str, list[str]] = {}
        self._background: set[str] = set()
        """The children that work in the background: their parents need not wait for them."""
        self._resting: OrderedDict[str, float] = OrderedDict()
        """The root entities whose trees rest, and when each is unloaded, in event loop time; the first one first."""
        self.leaving: dict[str, Cell] = {}
        self.tokens: dict[str, int] = {}
        """For each root entity, the token of the lease under which this process runs its tree."""
        self.quarantined: set[str] = set()
        """The entities that this process found in quarantine, until it loads them."""
        self._is_cleaned_up = False
        """Whether an actor cleans up after the cells that end."""
        self._news: anyio.Event | None = None

    def begin_cleaning_up(self) -> None:
        """Leave it to the registry actor to notify those that wait for the end of a cell, when it has cleaned up."""
        self._is_cleaned_up = True

    def stop_cleaning_up(self) -> None:
        """Notify those that wait for the end of a cell as soon as its actor has ended.

        The registry actor stops before the entities do, and their ends wait for each other.
        """
        self._is_cleaned_up = False
        for cell in [*self.leaving.values(), *self._cells.values()]:
            self._end_with_actor(cell)

    def _end_with_actor(self, cell: Cell) -> None:
        def end(*_: object) -> None:
            if not self._is_cleaned_up:
                cell.end()

        actor = identify(cell.actor)
        if actor.outcome is not None:
            end()
        else:
            actor.watch(self, end, final=True)

    def add(self, cell: Cell) -> None:
        """Add a cell that is about to be started."""
        self._cells[cell.entity_id] = cell
        name = cell.plan.scoped_name
        if name is not None:
            self._names[name] = cell.entity_id
        if cell.parent is not None:
            self._below.setdefault(cell.parent.entity_id, []).append(cell.entity_id)
        if not self._is_cleaned_up:
            self._end_with_actor(cell)

    def remove(self, cell: Cell) -> None:
        """Remove a cell that has ended, could not be started, or is leaving."""
        if self._cells.get(cell.entity_id) is not cell:
            return
        del self._cells[cell.entity_id]
        self.tokens.pop(cell.entity_id, None)
        self._background.discard(cell.entity_id)
        self._resting.pop(cell.entity_id, None)
        name = cell.plan.scoped_name
        if name is not None and self._names.get(name) == cell.entity_id:  # another entity may have the name by now
            del self._names[name]
        if cell.parent is not None:
            siblings = self._below[cell.parent.entity_id]
            siblings.remove(cell.entity_id)
            if not siblings:
                del self._below[cell.parent.entity_id]

    def get(self, entity_id: str) -> Cell | None:
        """Return the cell of an entity, if it is loaded."""
        return self._cells.get(entity_id)

    def has(self, entity_id: str) -> bool:
        """Return whether an entity is loaded."""
        return entity_id in self._cells

    def find_named(self, name: str) -> Cell | None:
        """Return the cell of the entity of that name, scoped, if it is loaded and has not ended."""
        entity_id = self._names.get(name)
        cell = None if entity_id is None else self._cells[entity_id]
        return None if cell is None or cell.is_over else cell

    def list_below(self, entity_id: str) -> list[str]:
        """Return the children of an entity that are loaded."""
        return self._below.get(entity_id, [])

    def note_background(self, entity_id: str) -> None:
        """Note that a child, which is about to be started, works in the background."""
        self._background.add(entity_id)

    def list_awaited(self, cell: Cell) -> list[str]:
        """Return the entities that an entity waits for: the one that it asks, and its children.

        Children in the background are among them only while it waits for children.
        """
        children = self.list_below(cell.entity_id)
        if cell.life.waits_for != "children":
            children = [entity_id for entity_id in children if entity_id not in self._background]
        return [*children, *([] if cell.asks is None else [cell.asks])]

    def list_children(self, cell: Cell) -> list[Cell]:
        """Return the cells of the children of an entity that are loaded."""
        return [self._cells[entity_id] for entity_id in self.list_below(cell.entity_id)]

    def has_request(self, root: Cell) -> bool:
        """Return whether a person has to decide before an entity of a tree continues."""
        tree = [root]
        for cell in tree:
            tree += self.list_children(cell)
        return any(cell.episode is not None and cell.episode.has_request() for cell in tree)

    def list_roots(self) -> list[Cell]:
        """Return the cells of root entities, in the order of loading."""
        return [cell for cell in self._cells.values() if cell.parent is None]

    # The life of each

    def change(self, cell: Cell, change: Change, waits_for: WaitKind | None = None, *, asks: str | None = None) -> None:
        """Move an entity to another stage of its life. `asks` is the entity whose answer it waits for.

        Raises ValueError for a change that is not possible in its stage.
        """
        before = cell.life
        cell.life = change_life(before, change, waits_for)
        cell.asks = asks
        if cell.life.stage is Stage.LEAVING:
            self.remove(cell)
            self.leaving[cell.entity_id] = cell
        if cell.life.stage is not Stage.WORKING or before.stage is not Stage.LOADING:
            self.note_standing(cell)

    def note_standing(self, cell: Cell) -> None:
        """Note that an entity stands elsewhere: stop or continue deadlines, and unload its tree later if it rests."""
        above: Cell | None = cell
        while above is not None:
            if above.deadline.is_set:
                if find_causes(self.describe(above)) == _FOR_PEOPLE:
                    above.deadline.pause()
                else:
                    above.deadline.resume()
            above = above.parent
        root = cell.root
        causes = find_causes(self.describe(root), follows_answers=False)
        if causes and causes <= _RESTS and self._cells.get(root.entity_id) is root:
            if not self._resting:  # else the actor looks when the first of them is due
                self._registry.send(LOOK)
            self._resting[root.entity_id] = anyio.current_time() + self._passivate_after
            self._resting.move_to_end(root.entity_id)
        else:
            self._resting.pop(root.entity_id, None)
        self.wake_waiters()

    def describe(self, cell: Cell) -> Standing:
        """Return where an entity stands, with the children or the entity that it waits for."""
        standings: dict[str, Standing] = {}
        path = {cell.entity_id: (cell, self._list_related(cell))}
        while path:  # without recursion, because entities that ask each other make long chains
            last, related = next(reversed(path.values()))
            if not related:
                del path[last.entity_id]
                standings[last.entity_id] = self._describe_one(last, standings)
            elif (following := related.pop()).entity_id not in path and following.entity_id not in standings:
                path[following.entity_id] = (following, self._list_related(following))
            # else it was seen: a child in the background may ask an ancestor that rests
        return standings[cell.entity_id]

    def _describe_one(self, cell: Cell, standings: Mapping[str, Standing]) -> Standing:
        """Return where an entity stands, given those that are described; others are on the way to it and left out."""
        life, inbox = cell.life, cell.inbox
        is_resting = life.stage is Stage.IDLE
        children = () if life.stage is Stage.WORKING else self.list_children(cell)
        return Standing(
            life,
            has_mail=inbox is not None and (inbox.has_unrecorded_control or (is_resting and inbox.is_answered)),
            has_callers=cell.callers > 0 or (inbox is not None and bool(inbox.awaited)),
            children=[standings[child.entity_id] for child in children if child.entity_id in standings],
            answerer=None if cell.asks is None else standings.get(cell.asks),
        )

    def _list_related(self, cell: Cell) -> list[Cell]:
        """Return the loaded entities that keep a tree from rest, if one of its entities does: its children, and the one
        whose answer it awaits.
        """
        children = [] if cell.life.stage is Stage.WORKING else self.list_children(cell)
        answerer = None if cell.asks is None else self._cells.get(cell.asks)
        return children if answerer is None else [*children, answerer]

    def may(self, occasion: Occasion, cell: Cell) -> bool:
        """Return whether an entity and its tree may leave on this occasion without losing work under way."""
        return cell.ending.is_set or may(occasion, self.describe(cell))

    def take_due(self, now: float) -> tuple[list[Cell], float | None]:
        """Return the root entities that are to be unloaded now, and when the next one is; None if none rests.

        A tree for which callers wait rests on.
        """
        due: list[Cell] = []
        while self._resting:
            entity_id, at = next(iter(self._resting.items()))
            if at > now:
                return due, at
            cell = self._cells[entity_id]
            if self.may(Occasion.UNLOAD, cell):
                del self._resting[entity_id]
                due.append(cell)
            else:
                self._resting[entity_id] = now + max(self._passivate_after, RETRY)
                self._resting.move_to_end(entity_id)
        return due, None

    # Waiting

    def wake_waiters(self) -> None:
        """Wake the callers of `wait_until`, which test their conditions again."""
        if self._news is not None:
            self._news.set()
            self._news = None

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is tested again after each change of an entity's life."""
        while not is_true():
            if self._news is None:
                self._news = anyio.Event()
            await self._news.wait()

    def __iter__(self) -> Iterator[Cell]:
        return iter(list(self._cells.values()))

    def __len__(self) -> int:
        return len(self._cells)


RETRY: Final = 1.0
"""The least seconds until a tree for which callers wait is looked at again."""

_RESTS: Final = frozenset({Cause.PERSON, Cause.INTENT, Cause.CALLER})
