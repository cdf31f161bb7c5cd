"""The spending of each caller: a fold of the loom, so that it survives restarts and includes other processes.

An episode is paid by the sender of its intent, with everything below it. Days and months are those of UTC. Each look
reads only the records since the last one, of all entities in the order of their numbers. A look may miss the last few
seconds of a server that has given up a transaction (`loom/stores/settled.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from cantrip_actors.loom import Loom
from cantrip_actors.machine.project import Life, as_header, as_intent, compute_life, get_time, sum_usage
from cantrip_actors.records.records import Record


@dataclass(slots=True)
class _Spender:
    """An entity that may spend more. `payer` is the sender of the intent that its root works on."""

    tenant: str
    lasting: bool
    root: _Spender | None
    life: Life = Life.BUSY
    payer: str = ""
    undated: float = 0.0
    """The spending since the last record that has a time."""

    @property
    def owner(self) -> tuple[str, str]:
        """The tenant, and the caller who pays."""
        return self.tenant, (self.root or self).payer


class Spending:
    """The costs since the beginning of this month, by day, tenant and sender of the intents.

    One thread at a time may use it.
    """

    def __init__(self, loom: Loom) -> None:
        self._loom = loom
        self._number = 0
        """The number of the last record that was read."""
        self._spenders: dict[str, _Spender] = {}
        self._costs: dict[tuple[str, tuple[str, str]], float] = {}
        self._month = ""

    def sum(self, tenant: str | None, sender: str | None, per: Literal["day", "month"], now: float) -> float:
        """Return the spending of this day or month, in US dollars; None for a tenant or a sender is all of them.

        `now` is in seconds since 1970. May read a disk or a network: call it in a thread.
        """
        today = datetime.fromtimestamp(now, UTC).date().isoformat()
        if today[:7] > self._month:
            self._month = today[:7]
            self._costs = {place: cost for place, cost in self._costs.items() if place[0] >= self._month}
        self._read_all()
        period = today if per == "day" else today[:7]
        dated = [(owner, cost) for (day, owner), cost in self._costs.items() if day.startswith(period)]
        undated = [(spender.owner, spender.undated) for spender in self._spenders.values() if spender.undated]
        return sum(
            cost
            for (of_tenant, payer), cost in (*dated, *undated)
            if tenant in (None, of_tenant) and sender in (None, payer)
        )

    def _read_all(self) -> None:
        has_more = True
        while has_more:
            numbered, last = self._loom.read_since(self._number, settled=True)
            for _, record in numbered:
                self._add(record)
            has_more, self._number = last != self._number, last

    def _add(self, record: Record) -> None:
        header, entity_id = as_header(record), record.entity_id
        if header is not None:
            parent = self._spenders.get(header.parent_entity or "")
            self._spenders[entity_id] = _Spender(header.tenant, header.lasting, parent and (parent.root or parent))
        spender = self._spenders.get(entity_id)
        if spender is None:
            return  # it is over: a reward, for example
        spender.undated += sum_usage([record]).cost or 0.0
        at, intent = get_time(record), as_intent(record)
        if at:
            self._date(spender, at)
        if intent is not None:
            spender.payer = intent.sender or ""
        if header is None:
            spender.life = compute_life(record, spender.life, lasting=spender.lasting)
        if spender.life >= Life.OVER:
            del self._spenders[entity_id]

    def _date(self, spender: _Spender, at: str) -> None:
        cost, spender.undated = spender.undated, 0.0
        if cost and at[:7] >= self._month:
            place = at[:10], spender.owner
            self._costs[place] = self._costs.get(place, 0.0) + cost
