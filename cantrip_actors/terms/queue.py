"""`Queue`: the bounds of a named queue of submissions."""

from __future__ import annotations

from dataclasses import dataclass

from cantrip_actors.terms.arguments import check_short_name, check_whole


@dataclass(frozen=True)
class Queue:
    """A queue of submissions: `Runtime.open(…, queues=[Queue("reports", max_running=10, per_node=2)])`.

    At most `max_running` of its entities are unfinished at once, on all nodes together, and each node begins one only
    while fewer than `per_node` run there. `submit` raises QueueFull where `max_waiting` submissions of the same or a
    higher priority wait. None means no bound; for `max_waiting`, it means the bound of `Runtime.open(max_submitted=…)`.

    Raises ValueError for an invalid value.
    """

    name: str
    max_running: int | None = None
    per_node: int | None = None
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        check_short_name("Queue", self.name)
        for what in ("max_running", "per_node", "max_waiting"):
            check_whole(f'Queue "{self.name}": {what}', getattr(self, what), 1, or_none=True)
