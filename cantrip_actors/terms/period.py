"""Budgets for a period: an amount for each intent, day or month, and the rule that applies once it is used up.

A day and a month are those of a zone, so they are not equally long, and they begin at its midnight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, cast, get_args
from zoneinfo import ZoneInfo

from cantrip_actors.terms.arguments import MakeError, check, check_choice, check_whole, is_finite, is_positive
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.messages import Usage

Period = Literal["intent", "day", "month"]
WhenSpent = Literal["end", "wait", "ask"]

PERIODS: Final = get_args(Period)
STRICTEST_FIRST: Final = get_args(WhenSpent)


def find_zone(name: object, error: MakeError) -> ZoneInfo:
    """Return the zone of a name in the IANA database. Raises `error` for anything else."""
    try:
        if isinstance(name, str):
            return ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # a key with a bad form, a folder, an unknown zone
        pass
    raise error(
        f"zone: expected a name of the IANA database, as in 'Europe/Oslo', got {name!r}; "
        "on a system without the database, install tzdata"
    )


class Periodic:
    """A limit that begins anew with each intent, or with each day or month of a zone."""

    __slots__ = ()

    per: Period
    zone: str

    def find_start(self, wall: float) -> float:
        """Return when the period at a time began, both in seconds since 1970; minus infinity for an intent."""
        return -math.inf if self.per == "intent" else _find_midnight(wall, self.per, self.zone).timestamp()

    def find_end(self, wall: float) -> float:
        """Return when the period at a time ends, both in seconds since 1970; infinity for an intent."""
        if self.per == "intent":
            return math.inf
        later = _find_midnight(wall, self.per, self.zone) + timedelta(days=1 if self.per == "day" else 32)
        return (later.replace(day=1) if self.per == "month" else later).timestamp()


def read_period(what: str, per: object, zone: object) -> tuple[Period, str]:
    """Return the period and the zone of a limit that is read from a mapping. Raises InvalidCantrip."""
    check_choice(f"{what}: per", per, PERIODS, InvalidCantrip)
    if zone is not None and per == "intent":
        raise InvalidCantrip(f'{what}: zone: expected with per="day" or per="month" only; leave it out')
    return cast("Period", per), find_zone("UTC" if zone is None else zone, InvalidCantrip).key


@dataclass(frozen=True, slots=True)
class PeriodBudget(Periodic):
    """The amount that an entity and its subtree may use in each period.

    Attributes:
        ward: "max_tokens" or "max_cost".
        most: tokens, or US dollars.
        per: "intent" is one episode; "day" and "month" are those of `zone`.
        zone: a name of the IANA database.
        when_spent: "end" ends the entity, or only the episode if the budget is `per="intent"`; "wait" has it wait for
            the next period; "ask" asks a person, who may grant more.
    """

    ward: str
    most: float
    per: Period
    zone: str = "UTC"
    when_spent: WhenSpent = "wait"

    @classmethod
    def read(cls, ward: str, stated: Mapping[str, Any]) -> PeriodBudget:
        """Return the budget of a mapping such as `{"most": 2.0, "per": "day"}`. Raises InvalidCantrip."""
        names = [field.name for field in fields(cls)[1:]]
        unknown = [name for name in stated if name not in names]
        if unknown or "most" not in stated or "per" not in stated:
            raise InvalidCantrip(
                f"{ward}: expected a number, or an object with most and per, and perhaps zone and when_spent, "
                f"got {dict(stated)!r}"
            )
        most = stated["most"]
        per, zone = read_period(ward, stated["per"], stated.get("zone"))
        if ward == "max_tokens":
            check_whole(ward, most, 1, error=InvalidCantrip)
        else:
            check(is_positive(most), ward, "a number > 0", most, InvalidCantrip)
        when_spent: WhenSpent | None = stated.get("when_spent")
        if when_spent is None:
            when_spent = "end" if per == "intent" else "wait"
        check_choice(f"{ward}: when_spent", when_spent, STRICTEST_FIRST, InvalidCantrip)
        if per == "intent" and when_spent == "wait":
            raise InvalidCantrip(
                f'{ward}: when_spent: expected "end" or "ask" with per="intent", because no time brings a new '
                'intent; got "wait"'
            )
        return cls(ward, most, per, zone, when_spent)

    def __str__(self) -> str:
        most = f"{self.most:g}" if isinstance(self.most, float) else f"{self.most}"
        return f"{self.ward}({most} per {self.per})"

    @property
    def label(self) -> str:
        """A name of the budget without its amount, which a grant is recorded with."""
        return f"{self.ward} per {self.per} in {self.zone}"

    def as_json(self) -> dict[str, Any]:
        """Return the budget as the loom's header and the capability text show it."""
        return asdict(self)

    def measure(self, usage: Usage) -> float:
        """Return the amount of a usage that the budget counts: tokens, or US dollars."""
        return usage.total_tokens if self.ward == "max_tokens" else usage.cost

    def name_period(self, wall: float) -> str:
        """Return the name of the period at a time in seconds since 1970: "2026-11-29", "2026-11"."""
        return name_period(wall, self.per, self.zone)

    def join(self, other: PeriodBudget) -> PeriodBudget:
        """Return the stricter of two budgets with the same label: the lesser amount, and the stricter end."""
        when_spent = min(self.when_spent, other.when_spent, key=STRICTEST_FIRST.index)
        return PeriodBudget(self.ward, min(self.most, other.most), self.per, self.zone, when_spent)


class PeriodUsage(NamedTuple):
    """The usage of a period: a day ("2026-11-29"), a month ("2026-11"), or an intent, by its number ("1")."""

    period: str
    usage: Usage


def name_period(wall: float, per: Period, zone: str) -> str:
    """Return the name of the day or month in a zone at a time in seconds since 1970: "2026-11-29", "2026-11"."""
    return _read_time(wall, zone).strftime("%Y-%m-%d" if per == "day" else "%Y-%m")


def is_granted(answer: object) -> bool:
    """Return whether an answer grants more: a number above zero."""
    return is_finite(answer) and answer > 0


def _read_time(wall: float, zone: str) -> datetime:
    return datetime.fromtimestamp(wall, UTC).astimezone(ZoneInfo(zone))


def _find_midnight(wall: float, per: Period, zone: str) -> datetime:
    """Return the local midnight with which the day or month at a time began."""
    midnight = _read_time(wall, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    return midnight.replace(day=1) if per == "month" else midnight
