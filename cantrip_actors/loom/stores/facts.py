"""The facts that a process needs about an entity before it may run it: one read, and in Postgres one statement.

Which node loads an entity, with which cantrip, and from which state follows from these facts alone. They are as of one
moment. So a process reads them once to decide, and again when it holds the lease, because another process may have
written meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from cantrip_actors.loom.stores.checkpoints import StoredCheckpoint
from cantrip_actors.loom.stores.lease import Held
from cantrip_actors.machine.project import Life, find_first_intent
from cantrip_actors.records.records import Header, Record

WithRecords = Literal["always", "unless_held", "never"]
"""Whether a checkpoint and records are read: they may be long, and only a process that runs the entity needs them."""


class EntityFacts(NamedTuple):
    """The facts about one entity, from the loom."""

    header: Header
    life: Life
    held: Held | None
    """The error of a claim now, if a lease on its tree is valid that was not claimed through this store object."""
    checkpoint: StoredCheckpoint | None
    records: Sequence[Record]
    """The records after the checkpoint, or all records without one; empty if they were not requested."""

    @property
    def entity_id(self) -> str:
        """The entity's id."""
        return self.header.entity_id

    @property
    def is_held(self) -> bool:
        """Whether another holder runs it."""
        return self.held is not None

    @property
    def has_begun(self) -> bool:
        """Whether its first intent is recorded, or it needs none. A checkpoint is the state after a later record."""
        is_known = self.header.waits or self.checkpoint is not None
        return is_known or find_first_intent(self.records) is not None
