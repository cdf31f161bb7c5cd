"""The parts of a runtime that each of its entities gets: the loom, their mail, crystals, people, and the bus of
events.
"""

from __future__ import annotations

from dataclasses import dataclass

from cantrip_actors.runtime.circles.snapshots import Snapshots
from cantrip_actors.runtime.crystals.crystal_pool import Crystals
from cantrip_actors.runtime.events.events import Bus
from cantrip_actors.runtime.events.instrument import Instrument
from cantrip_actors.runtime.loom.core import Core
from cantrip_actors.runtime.mail.inboxes import Inboxes
from cantrip_actors.runtime.mail.questions import Questions
from cantrip_actors.runtime.people.requests import Requests
from cantrip_actors.runtime.time.queues import Queues


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The parts of a runtime that its entities use."""

    core: Core
    bus: Bus
    crystals: Crystals
    inboxes: Inboxes
    questions: Questions
    requests: Requests
    queues: Queues
    snapshots: Snapshots | None
    """The snapshots of sandboxes; None if no snapshot may be stored."""

    @property
    def instrument(self) -> Instrument | None:
        """The instrument of the runtime's telemetry, if it has one."""
        return self.core.instrument
