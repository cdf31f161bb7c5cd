"""Limits of the calls of one gate: for an episode, a day or a month (`max_calls`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cantrip_actors.terms.arguments import check, check_whole, is_text
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.messages import ALIASES
from cantrip_actors.terms.period import Period, Periodic, read_period


@dataclass(frozen=True, slots=True)
class CallLimit(Periodic):
    """The most calls of a gate that an entity and its subtree may begin in each period.

    `per` is "intent" for one episode, or a "day" or "month" of `zone`.
    """

    gate: str
    most: int
    per: Period = "intent"
    zone: str = "UTC"

    @classmethod
    def read(cls, stated: Mapping[str, Any]) -> CallLimit:
        """Return the limit of a mapping such as `{"gate": "pay", "most": 1, "per": "day"}`. Raises InvalidCantrip."""
        names = [field.name for field in fields(cls)]
        unknown = [name for name in stated if name not in names]
        if unknown or not {"gate", "most"} <= stated.keys():
            raise InvalidCantrip(
                f"max_calls: expected a gate and a number, and perhaps per and zone, got {dict(stated)!r}"
            )
        gate, most = stated["gate"], stated["most"]
        per = "intent" if stated.get("per") is None else stated["per"]
        check(is_text(gate), "max_calls: gate", "a gate's name", gate, InvalidCantrip)
        check_whole("max_calls", most, 0, error=InvalidCantrip)
        return cls(ALIASES.get(gate, gate), most, *read_period("max_calls", per, stated.get("zone")))

    def __str__(self) -> str:
        return f"max_calls({self.gate}, {self.most} {'for each intent' if self.per == 'intent' else f'per {self.per}'})"

    @property
    def label(self) -> tuple[str, Period, str]:
        """Two limits with the same label differ in the number only."""
        return self.gate, self.per, self.zone

    def as_json(self) -> dict[str, Any]:
        """Return the limit as the loom's header and the capability text show it."""
        return asdict(self)
