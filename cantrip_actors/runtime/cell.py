"""A cell: everything that one entity is made of while it lives, and how it stands in the tree.

    cell            rest_for_one, ends when its entity ends
    ├── circle      where the gates run
    ├── children    the cells of its children; only there if it may delegate
    └── entity      drives the loop

The value `Cell` is what the runtime and the entity's actors share of it: where messages go, and what came of it all.
It is written by the entity's actor alone. A root entity's cell stands under the runtime's `entities`, a child's under
the `children` of its parent.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cantrip_actors.model.cantrip import Crystal
from cantrip_actors.model.errors import CantripError, EntityCrashed
from cantrip_actors.model.gate import DELEGATION
from cantrip_actors.model.loop import Moment, Outcome, Plan, State
from cantrip_actors.model.turn import Record
from cantrip_actors.runtime.circle import CircleActor
from cantrip_actors.runtime.crystals import Crystals, InUse
from cantrip_actors.runtime.events import Bus
from cantrip_actors.runtime.ledger import Ledger
from supervisors import ActorRef, ChildSpec, Crash, DynamicSupervisor, Supervisor, SupervisorRef

__all__ = ["Cell", "Services", "cell_spec"]


@dataclass(frozen=True, slots=True)
class Services:
    """What an entity needs of the runtime around it."""

    append: Callable[[Sequence[Record]], Awaitable[None]]
    moment: Callable[[], Moment]
    bus: Bus
    crystals: Crystals
    prepare: Callable[..., Cell]
    """Makes the cell of a child; see `Runtime._prepare`."""


@dataclass(slots=True, eq=False)
class Cell:
    """One entity: its plan, its surroundings, and what came of it."""

    plan: Plan
    state: State
    """Where it begins: nowhere, or where a fork goes on from."""
    intent: str
    context: Any
    crystal: Crystal
    """The crystal as bound for this entity."""
    uses: InUse
    """Its crystal's entry among the runtime's, with the actor that it is asked through."""
    ledger: Ledger
    services: Services
    circle: ActorRef = field(default_factory=ActorRef)
    children: SupervisorRef | None = None
    entity: ActorRef = field(default_factory=ActorRef)
    supervisor: SupervisorRef = field(default_factory=SupervisorRef)
    outcome: Outcome | None = None
    """Of the last episode; None while the first one runs, or where the entity crashed."""
    error: CantripError | None = None
    """What the crystal failed with, where that ended the episode."""

    @property
    def entity_id(self) -> str:
        """The entity's id."""
        return self.plan.entity_id

    def crashed(self) -> EntityCrashed:
        """The error for an entity that ended without an outcome."""
        reason = self.entity.last_exit
        cause = reason.exception if isinstance(reason, Crash) else None
        said = f"{type(cause).__name__}: {cause}" if cause is not None else str(reason)
        error = EntityCrashed(f"entity {self.entity_id} crashed ({said}); its turns up to there are in the loom")
        error.entity_id = self.entity_id
        error.__cause__ = cause
        return error


def cell_spec(cell: Cell) -> ChildSpec[Supervisor]:
    """The spec of a cell: temporary, since what restarts an entity is its own supervisor, inside."""
    return ChildSpec(cell.entity_id, lambda: _cell(cell), restart="temporary", shutdown=math.inf, ref=cell.supervisor)


def _cell(cell: Cell) -> Supervisor:
    from cantrip_actors.runtime.entity import EntityActor  # the entity knows its cell, so not the other way round

    children: list[ChildSpec[Any]] = [ChildSpec("circle", CircleActor, ref=cell.circle)]
    if not DELEGATION.isdisjoint(cell.plan.gates):
        cell.children = SupervisorRef()
        children.append(ChildSpec("children", DynamicSupervisor, shutdown=math.inf, ref=cell.children))
    children.append(
        ChildSpec("entity", lambda: EntityActor(cell), restart="transient", significant=True, ref=cell.entity)
    )
    return Supervisor(children, strategy="rest_for_one", max_restarts=0, auto_shutdown="any_significant")
