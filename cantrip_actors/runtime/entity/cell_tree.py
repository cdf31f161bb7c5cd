"""The supervision tree of one loaded entity.

    cell            rest_for_one, ends when its entity ends or unloads
    ├── children    the cells of its children, if it may delegate
    ├── circle      runs the gates; if it crashes, the entity restarts after it
    └── entity      drives the loop; if it crashes, it restarts from its log

The cell of a root entity stands under the runtime's `entities`, that of a child under the `children` of its parent.
Children come first, so they survive a crash of the circle or the entity. A parent that is stopped stops them itself.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from cantrip_actors.runtime.circles.gates_actor import GatesActor
from cantrip_actors.runtime.circles.program_actor import CircleActor
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.entity.entity_actor import EntityActor
from cantrip_actors.terms.own_gates import DELEGATION
from cantrip_actors.terms.wrapping import Fence
from supervisors import ChildSpec, DynamicSupervisor, Supervisor, SupervisorRef

RESTARTS = 3
"""Restarts within `PERIOD` seconds after which the supervisor gives up: each restart would crash at the same record."""
PERIOD = 60.0


def make_cell_spec(cell: Cell) -> ChildSpec[Supervisor]:
    """Return the spec of a cell's supervisor: temporary, since the restarts of an entity happen inside."""
    return ChildSpec(
        cell.entity_id, partial(_make_supervisor, cell), restart="temporary", shutdown=math.inf, ref=cell.supervisor
    )


def _make_supervisor(cell: Cell) -> Supervisor:
    children: list[ChildSpec[Any]] = []
    if not DELEGATION.isdisjoint(cell.plan.gates):
        cell.children = SupervisorRef()
        children.append(ChildSpec("children", DynamicSupervisor, shutdown=math.inf, ref=cell.children))
    children.append(ChildSpec("circle", partial(_make_circle, cell), ref=cell.circle))
    children.append(
        ChildSpec("entity", partial(EntityActor, cell), restart="transient", significant=True, ref=cell.entity)
    )
    return Supervisor(
        children,
        strategy="rest_for_one",
        max_restarts=RESTARTS,
        period=PERIOD,
        auto_shutdown="any_significant",
        hibernate_after=GatesActor.hibernate_after,
    )


def _make_circle(cell: Cell) -> GatesActor:
    def fence() -> Fence:
        root = cell.root.entity_id
        return Fence(root, cell.services.living.tokens.get(root, 0))  # without a lease it is older than every token

    who, variables, report = cell.entity_id, lambda: cell.context_variables, cell.services.guard.report_failure
    if cell.plan.circle.medium == "tools":
        return GatesActor(who, variables, report, cell.working, fence)
    return CircleActor(cell.plan.circle, cell.services.snapshots, who, variables, report, cell.working, fence)
