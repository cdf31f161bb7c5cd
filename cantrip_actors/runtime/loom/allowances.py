"""Allowances: the cost that a caller, a tenant or all together may spend before their new work is refused.

They bound who begins work, and wards what one entity does: an episode under way is never cut. Work that waits already,
children, schedules and mail between entities are not refused; a repeated call with its key is not new work.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import anyio

from cantrip_actors.runtime.loom.spending import Spending
from cantrip_actors.terms.errors import AllowanceSpent

if TYPE_CHECKING:
    from cantrip_actors.runtime.loom.core import Core

AllowancePeriod = Literal["day", "month"]


class _Place(NamedTuple):
    """Whose costs an allowance bounds; None is all of them."""

    tenant: str | None
    by: str | None
    per: AllowancePeriod


class Allowances:
    """The allowances of one runtime."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._amounts: dict[_Place, float] = {}
        self._spending: Spending | None = None
        self._reading = anyio.Lock(fast_acquire=True)

    def set(self, most: float | None, tenant: str | None, by: str | None, per: AllowancePeriod) -> None:
        """Set an allowance, in US dollars; None removes it."""
        place = _Place(tenant, by, per)
        self._amounts.pop(place, None)
        if most is not None:
            self._amounts[place] = most

    @property
    def is_used(self) -> bool:
        """Whether there are any."""
        return bool(self._amounts)

    async def check(self, tenant: str, by: str) -> None:
        """Raise AllowanceSpent if new work of a caller exceeds an allowance."""
        own = [place for place in self._amounts if place.tenant in (None, tenant) and place.by in (None, by)]
        for place in own:
            async with self._reading:
                self._spending = self._spending or Spending(self._core.loom)
                work = partial(self._spending.sum, *place, self._core.read_time_of_day())
                spent = await self._core.access.run_in_thread(work)
            if spent >= self._amounts.get(place, spent + 1):
                raise AllowanceSpent(place.by, place.tenant, self._amounts[place], place.per, self._seconds_left(place))

    def _seconds_left(self, place: _Place) -> float:
        now = datetime.fromtimestamp(self._core.read_time_of_day(), UTC)
        days = 1 if place.per == "day" else monthrange(now.year, now.month)[1] - now.day + 1
        end = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=days)
        return max(1.0, (end - now).total_seconds())
