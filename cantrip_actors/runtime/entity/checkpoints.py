"""Checkpoints of an entity: its state, stored from time to time so that loading it does not fold its whole log."""

from __future__ import annotations

from functools import partial
from typing import Final

from cantrip_actors.machine.checkpoint import encode_checkpoint
from cantrip_actors.machine.state import Phase, State
from cantrip_actors.runtime.entity.cell import Cell
from cantrip_actors.runtime.entity.environment import Environment
from cantrip_actors.runtime.entity.loading import load_state

CHECKPOINT_EVERY: Final = 1_000
"""Records after which a checkpoint is written while the entity works."""

RECORDS_PER_MESSAGE: Final = 4
"""Records per message of the context after which a checkpoint is written, if this product is larger than
`CHECKPOINT_EVERY`: a checkpoint takes time in proportion to the context, and the cost of a turn must not grow."""


class Checkpoints:
    """The checkpoints of one incarnation of an entity."""

    def __init__(self, cell: Cell, environment: Environment) -> None:
        self._cell = cell
        self._environment = environment
        self._covered = cell.recorded
        """The number of records that the last checkpoint, or the log as it was loaded, covers."""

    def is_due(self, state: State) -> bool:
        """Return whether a working entity should write a checkpoint now."""
        since = self._cell.recorded - self._covered
        return since >= CHECKPOINT_EVERY and since >= RECORDS_PER_MESSAGE * len(state.conversation.context)

    async def write(self, state: State) -> None:
        """Write the state, if records were added since the last checkpoint.

        A checkpoint counts the usage of the children before it, so while children run none is written.
        """
        cell, core = self._cell, self._environment.core
        is_useful = cell.recorded > self._covered and state.phase is not Phase.WAITING  # for its children
        if not (is_useful and cell.plan.is_adopted(state)):
            return
        below, self._covered = cell.ledger.below, cell.recorded
        if core.guard.at_rest:  # the loom is redacted, and a restart must fold to the same state
            load = partial(load_state, core.loom, cell.plan, core.read_time_of_day())
            state, usage = await core.in_store(load)
            below = usage.below
        data = encode_checkpoint(cell.plan, state, below)
        if data is not None:
            await core.in_writer(lambda writer: writer.keep_checkpoint(cell.entity_id, data))
