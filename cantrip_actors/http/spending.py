"""The spending of each token today: a fold of the loom, so that it survives restarts and includes other servers.

An episode is paid by the token that gave its intent, with everything below it. A day is one of UTC. Each look reads
only the records since the last one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cantrip_actors.loom import Loom
from cantrip_actors.stream.events import (
    EntityEndedEvent,
    EntityStartedEvent,
    FoldedEvent,
    StepCompleteEvent,
    UsageEvent,
)
from cantrip_actors.stream.reading import format_instant, read_events

DAY: Final = 86_400.0


@dataclass
class _Spender:
    """An entity that may spend more: where its log was read to, and who gave its intents, and when."""

    parent: str | None
    position: int = -1
    undated: float = 0.0
    """The spending since the last record that has a time."""
    payers: list[tuple[str, str]] = field(default_factory=list)


class Spending:
    """The cost of today, by the sender of the intents. `clock` is seconds since the epoch."""

    def __init__(self, loom: Loom, clock: Callable[[], float] = time.time) -> None:
        self._loom = loom
        self._clock = clock
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._accounts: dict[str, _Spender] = {}
        self._day = ""
        self._spent: dict[str, float] = {}

    def today(self, sender: str) -> float:
        """Return the spending of a sender today, in US dollars. May read a disk or a network: call it in a thread."""
        with self._lock:
            day = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
            if day != self._day:
                self._day, self._spent = day, {}
            for header in self._loom.headers():
                if header.entity_id not in self._known:
                    self._known.add(header.entity_id)
                    self._accounts[header.entity_id] = _Spender(header.parent_entity)
            ended = [account for account in self._accounts if self._loom.is_over(account)]
            for entity_id, account in self._accounts.items():
                self._read(entity_id, account)
            for entity_id in ended:
                del self._accounts[entity_id]
            undated = sum(account.undated for account in self._accounts.values() if self._payer(account) == sender)
            return self._spent.get(sender, 0.0) + undated

    def seconds_left(self) -> int:
        """Return the seconds until the next day begins, at least 1."""
        return max(1, math.ceil(DAY - self._clock() % DAY))

    def _read(self, entity_id: str, account: _Spender) -> None:
        records, account.position = self._loom.records_since(entity_id, account.position)
        for event in read_events(records):
            match event:
                case EntityStartedEvent():
                    account.payers.append((format_instant(event.at), event.by))
                case UsageEvent():
                    account.undated += event.usage.cost
                case FoldedEvent() | EntityEndedEvent():
                    account.undated += event.usage.cost
                    self._date(account, format_instant(event.at))
                case StepCompleteEvent():
                    self._date(account, format_instant(event.at))
                case _:
                    pass

    def _date(self, account: _Spender, at: str) -> None:
        cost, account.undated = account.undated, 0.0
        if cost and at[:10] == self._day:
            payer = self._payer(account, at)
            self._spent[payer] = self._spent.get(payer, 0.0) + cost

    def _payer(self, account: _Spender, at: str | None = None) -> str:
        """Return who gave the intent that an entity works on; for a child, the root's at that time."""
        root = account
        while root.parent is not None and root.parent in self._accounts:
            root = self._accounts[root.parent]
        until = "~" if root is account or at is None else at  # its own log is read in order
        return next((sender for when, sender in reversed(root.payers) if when <= until), "")
