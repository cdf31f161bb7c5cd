"""An overview of the entities of a loom, for `cantrip top`, made from a service or from the loom itself.

The cost of a look depends on the new records and the shown rows, not on the size of the loom: it counts the states in
the index, lists the newest entities, and reads the records since the last look. The first look begins with the first
record of the day.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from cantrip_actors.loom import Loom
from cantrip_actors.loom.stores.selection import ListedEntity, Selection
from cantrip_actors.records.instant import format_instant
from cantrip_actors.records.records import Record
from cantrip_actors.stream.events import (
    EntityEndedEvent,
    EntityEvent,
    FoldedEvent,
    SampledEvent,
    StepCompleteEvent,
    UsageEvent,
)
from cantrip_actors.stream.reading import read_events
from cantrip_actors.terms.messages import NO_USAGE, Usage

NEWEST: Final = 200
"""The most entities in a list: the newest of all, of those at work, and of those that wait for a person."""

MINUTE: Final = 60.0
GRACE: Final = 10.0
"""Seconds in which a record may appear before one that was read already, in a loom with several writers."""
BATCH: Final = 500
"""Records that are read at once."""


class Overview:
    """Reads one loom repeatedly. `clock` is in seconds since the epoch.

    Names and texts are read from `shown`, such as a redacted loom; left out: from `loom`.
    """

    def __init__(self, loom: Loom, clock: Callable[[], float] = time.time, shown: Loom | None = None) -> None:
        self._loom = loom
        self._shown = loom if shown is None else shown
        self._clock = clock
        self._lock = threading.Lock()
        self._grace = 0.0 if loom.numbers_in_order else GRACE
        self._position: int | None = None
        """The number up to which all records are read; None before the first look."""
        self._early: dict[int, float] = {}
        """The records after it that are read too, and when they were."""
        self._undated: dict[str, Usage] = {}
        """The tokens of entities since their last record that has a time."""
        self._recent: deque[tuple[float, int, bool]] = deque()
        """The spending of the last minute: when, tokens, and whether it ended a turn."""
        self._today = ""
        self._cost = 0.0
        self._turns = 0
        """The cost and the turns of today."""
        self._rows: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {}
        """The rows of the entities that are shown, with their open requests, while their logs have no more records."""

    def look(self) -> dict[str, Any]:
        """Return the current overview as a JSON value. May read a disk or a network: call it in a thread."""
        with self._lock:
            return self._look()

    def _look(self) -> dict[str, Any]:
        now, loom = self._clock(), self._loom
        today = datetime.fromtimestamp(now, UTC).date().isoformat()
        if self._today != today:
            self._today, self._cost, self._turns = today, 0.0, 0
        if self._position is None:
            self._position = loom.find_number(today)
        for event in read_events(self._read_new(now)):
            self._take(event)
        while self._recent and self._recent[0][0] <= now - MINUTE:
            self._recent.popleft()
        states = loom.count_states()
        self._rows = {listed.id: self._rows.get(listed.id) or self._build(listed) for listed in self._select()}
        quarantines = loom.quarantines()
        counts: dict[str, int] = dict(states.items())
        for entity_id in quarantines:
            state = loom.state(entity_id)
            counts[state] = counts.get(state, 0) - 1
        if quarantines:
            counts["quarantined"] = len(quarantines)
        return {
            "at": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "totals": {
                "entities": sum(counts.values()),
                "states": {state: count for state, count in counts.items() if count > 0},
                "turns_today": self._turns,
                "turns_per_minute": sum(is_turn for _, _, is_turn in self._recent),
                "tokens_per_minute": sum(count for _, count, _ in self._recent),
                "cost_today": round(self._cost, 6),
            },
            "entities": [
                {**row, "state": "quarantined"} if row["id"] in quarantines else row for row, _ in self._rows.values()
            ],
            "requests": [request for _, request in self._rows.values() if request is not None],
        }

    def _read_new(self, now: float) -> Iterator[Record]:
        """Yield the records since the last look, and drop the rows of their entities."""
        position = self._position or 0
        while True:
            records, last = self._loom.read_since(position, BATCH)
            for number, record in records:
                if number not in self._early:
                    self._early[number] = now
                    self._rows.pop(record.entity_id, None)
                    yield record
            if last == position:
                break
            position = last
        settled = [number for number, read_at in self._early.items() if read_at <= now - self._grace]
        self._position = max([self._position or 0, *settled]) if self._grace else position
        for number in settled:
            del self._early[number]

    def _take(self, event: EntityEvent) -> None:
        match event:
            case UsageEvent():
                self._undated[event.entity_id] = self._undated.get(event.entity_id, NO_USAGE) + event.usage
            case FoldedEvent() | SampledEvent() | EntityEndedEvent():
                self._spend(event, event.usage, is_turn=False)
            case StepCompleteEvent():
                self._spend(event, NO_USAGE, is_turn=True)
            case _:
                pass

    def _spend(self, event: EntityEvent, usage: Usage, *, is_turn: bool) -> None:
        usage = self._undated.pop(event.entity_id, NO_USAGE) + usage
        if format_instant(event.at)[:10] == self._today:
            self._cost += usage.cost
            self._turns += is_turn
        self._recent.append((event.at, usage.total_tokens, is_turn))

    def _select(self) -> list[ListedEntity]:
        """Return the entities to show, those that began first come first."""
        pages = [self._shown.page(Selection(state=state), limit=NEWEST) for state in (None, "active", "waiting")]
        newest = {listed.id: listed for listed in reversed(pages[0].items)}
        older = {listed.id: listed for page in pages[1:] for listed in page if listed.id not in newest}
        return [*sorted(older.values(), key=lambda listed: listed.began), *newest.values()]

    def _build(self, listed: ListedEntity) -> tuple[dict[str, Any], dict[str, Any] | None]:
        loom = self._loom
        header, usage = self._shown.header(listed.id), loom.usage(listed.id)
        row = {
            "id": listed.id,
            "name": listed.name,
            "cantrip": listed.cantrip,
            "crystal": header.crystal,
            "parent": listed.parent,
            "depth": header.depth,
            "state": listed.state,
            "began": listed.began,
            "last": loom.last_time(listed.id) or listed.began,
            "turns": loom.count_turns(listed.id),
            "tokens": usage.total_tokens,
            "cost": round(usage.cost, 6),
        }
        return row, self._find_request(row)

    def _find_request(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        requested = self._shown.open_request(row["id"]) if row["state"] == "waiting" else None
        if requested is None:  # the entity does not wait, or the request was decided meanwhile
            return None
        text = requested.why if requested.question is None else requested.question
        return {
            "id": requested.id,
            "entity": row["id"],
            "gate": requested.gate,
            "text": text,
            "asked_at": requested.at,
        }
