"""An overview of the entities of a loom, for `cantrip top`, made from a service or from the loom itself.

It is a fold of records: each reading covers only the records since the last one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from cantrip_actors.loom import Loom
from cantrip_actors.machine.project import find_open_request
from cantrip_actors.records.records import Header
from cantrip_actors.stream.events import (
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    FoldedEvent,
    SampledEvent,
    StepCompleteEvent,
    UsageEvent,
)
from cantrip_actors.stream.reading import format_instant, read_events
from cantrip_actors.terms.messages import NO_USAGE, Usage

NEWEST: Final = 200
"""The most ended entities in a list, the newest ones; all others are always listed."""

MINUTE: Final = 60.0


@dataclass
class _EntityFacts:
    """The facts from one entity's records so far."""

    header: Header
    position: int = -1
    turns: int = 0
    usage: Usage = NO_USAGE
    waiting: Usage = NO_USAGE
    """The part of `usage` that no timed turn covers yet."""
    last: str = ""
    is_over: bool = False
    row: dict[str, Any] = field(default_factory=dict)


class Overview:
    """Reads one loom repeatedly. `clock` is in seconds since the epoch."""

    def __init__(self, loom: Loom, clock: Callable[[], float] = time.time) -> None:
        self._loom = loom
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _EntityFacts] = {}
        self._recent: deque[tuple[float, int]] = deque()
        """The turns of the last minute: their times and tokens."""
        self._cost: tuple[str, float] = ("", 0.0)
        """A day, and the cost of its turns."""

    def look(self) -> dict[str, Any]:
        """Return the current overview as a JSON value. May read a disk or a network: call it in a thread."""
        with self._lock:
            return self._look()

    def _look(self) -> dict[str, Any]:
        now, loom = self._clock(), self._loom
        today = datetime.fromtimestamp(now, UTC).date().isoformat()
        if self._cost[0] != today:
            self._cost = (today, 0.0)
        ids = loom.entities()
        busy, quarantines = set(loom.unfinished()), loom.quarantines()
        for one in ids:
            if one in busy or one not in self._known or not self._known[one].is_over:
                self._read(one, now)
        rows = [self._known[one].row for one in ids if one in self._known]
        rows = [{**row, "state": "quarantined"} if row["id"] in quarantines else row for row in rows]
        while self._recent and self._recent[0][0] < now - MINUTE:
            self._recent.popleft()
        states: dict[str, int] = {}
        for row in rows:
            states[row["state"]] = states.get(row["state"], 0) + 1
        shown = {row["id"] for row in rows[-NEWEST:]} | busy
        return {
            "at": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "totals": {
                "entities": len(rows),
                "states": states,
                "turns": sum(one.turns for one in self._known.values()),
                "turns_per_minute": len(self._recent),
                "tokens_per_minute": sum(count for _, count in self._recent),
                "cost_today": round(self._cost[1], 6),
            },
            "entities": [row for row in rows if row["id"] in shown],
            "requests": [self._request(row) for row in rows if row["state"] == "waiting"],
        }

    def _read(self, entity_id: str, now: float) -> None:
        loom = self._loom
        known = self._known.get(entity_id)
        if known is None:
            known = self._known[entity_id] = _EntityFacts(loom.header(entity_id))
        records, known.position = loom.records_since(entity_id, known.position)
        for event in read_events(records):
            self._take(known, event, now)
        header, usage = known.header, known.usage
        known.is_over = loom.is_over(entity_id)
        known.row = {
            "id": entity_id,
            "name": header.name,
            "cantrip": header.cantrip_name,
            "crystal": header.crystal,
            "parent": header.parent_entity,
            "depth": header.depth,
            "state": loom.state(entity_id),
            "began": header.at,
            "last": known.last or header.at,
            "turns": known.turns,
            "tokens": usage.total_tokens,
            "cost": round(usage.cost, 6),
        }

    def _take(self, known: _EntityFacts, event: EntityEvent, now: float) -> None:
        match event:
            case EntityStartedEvent():
                known.last = format_instant(event.at)
            case UsageEvent():
                known.usage += event.usage
                known.waiting += event.usage
            case FoldedEvent() | SampledEvent() | EntityEndedEvent():
                known.usage += event.usage
                known.waiting += event.usage
                self._spend(known, event.at, now, is_turn=False)
            case StepCompleteEvent():
                known.turns += 1
                self._spend(known, event.at, now, is_turn=True)
            case _:
                pass

    def _spend(self, known: _EntityFacts, at: float, now: float, *, is_turn: bool) -> None:
        spent, known.waiting, known.last = known.waiting, NO_USAGE, format_instant(at)
        if known.last[:10] == self._cost[0]:
            self._cost = (self._cost[0], self._cost[1] + spent.cost)
        if is_turn and at > now - MINUTE:
            self._recent.append((at, spent.total_tokens))

    def _request(self, row: Mapping[str, Any]) -> dict[str, Any]:
        asked = find_open_request(self._loom.records(row["id"]))
        if asked is None:  # it was decided meanwhile
            return {"id": "", "entity": row["id"], "gate": "", "text": "", "asked_at": ""}
        text = asked.why if asked.question is None else asked.question
        return {"id": asked.id, "entity": row["id"], "gate": asked.gate, "text": text, "asked_at": asked.at}
