"""The spending of each caller: a fold of the loom, so that it survives restarts and includes other processes.

An episode is paid by the sender of its intent, with everything below it. Days and months are those of UTC. Each look
reads only the records since the last one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from cantrip_actors.loom import Loom
from cantrip_actors.stream.events import (
    EntityEndedEvent,
    EntityStartedEvent,
    FoldedEvent,
    StepCompleteEvent,
    UsageEvent,
)
from cantrip_actors.stream.reading import format_instant, read_events


@dataclass
class _Spender:
    """An entity that may spend more: where its log was read to, and who gave its intents, and when."""

    parent: str | None
    tenant: str
    position: int = -1
    undated: float = 0.0
    """The spending since the last record that has a time."""
    payers: list[tuple[str, str]] = field(default_factory=list)


class Spending:
    """The costs of this month, by day, tenant and sender of the intents."""

    def __init__(self, loom: Loom) -> None:
        self._loom = loom
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._accounts: dict[str, _Spender] = {}
        self._costs: dict[tuple[str, str, str], float] = {}
        self._month = ""

    def sum(self, tenant: str | None, sender: str | None, per: Literal["day", "month"], now: float) -> float:
        """Return the spending of this day or month, in US dollars; None for a tenant or a sender is all of them.

        `now` is in seconds since 1970. May read a disk or a network: call it in a thread.
        """
        with self._lock:
            today = datetime.fromtimestamp(now, UTC).date().isoformat()
            if today[:7] != self._month:
                self._month, self._costs = today[:7], {}
            self._read_all()
            period = today if per == "day" else today[:7]
            total = sum(
                cost
                for (day, of_tenant, payer), cost in self._costs.items()
                if day.startswith(period) and tenant in (None, of_tenant) and sender in (None, payer)
            )
            return total + sum(
                account.undated
                for account in self._accounts.values()
                if account.undated and tenant in (None, account.tenant) and sender in (None, self._payer(account))
            )

    def _read_all(self) -> None:
        for header in self._loom.headers():
            if header.entity_id not in self._known:
                self._known.add(header.entity_id)
                self._accounts[header.entity_id] = _Spender(header.parent_entity, header.tenant)
        ended = [account for account in self._accounts if self._loom.is_over(account)]
        for entity_id, account in self._accounts.items():
            self._read(entity_id, account)
        for entity_id in ended:
            del self._accounts[entity_id]

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
        if cost and at.startswith(self._month):
            place = at[:10], account.tenant, self._payer(account, at)
            self._costs[place] = self._costs.get(place, 0.0) + cost

    def _payer(self, account: _Spender, at: str | None = None) -> str:
        """Return who gave the intent that an entity works on; for a child, the root's at that time."""
        root = account
        while root.parent is not None and root.parent in self._accounts:
            root = self._accounts[root.parent]
        until = "~" if root is account or at is None else at  # its own log is read in order
        return next((sender for when, sender in reversed(root.payers) if when <= until), "")
