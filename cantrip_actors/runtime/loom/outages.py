"""The work that an outage of the loom has interrupted, until the loom answers again.

Nothing continues unrecorded. So an entity stops when the loom cannot be reached, and its log has all that it needs to
continue: here is the list of those that stopped, or could not be loaded. A write that failed, or whose answer was lost,
may also have left mail and timers in the loom of which no actor was notified: they have to be searched for.

All kinds of stores have this one list, and nodes have it too. The mail actor carries it out, and tries again until that
succeeds. A probe would not do: only what an entity writes next shows whether its loom can be written again. Each
attempt may cost a query, so the delay doubles if the entity has stopped again before it recorded anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import CantripError

FIRST: Final = 0.5
"""Seconds until the first attempt."""

LONGEST: Final = 60.0
"""The most seconds between two attempts for one entity."""

PATIENCE: Final = 30.0
"""Seconds for which callers on a node wait for an entity that an outage has stopped. Others get the error of the first
attempt that began after their sends.
"""

_log = get_logger("cantrip_actors.runtime")


class _Suspended(NamedTuple):
    since: float
    """When it stopped first, since it recorded something."""
    failures: int
    """How often it has stopped again since then."""
    tried: float
    """When the last attempt to load it began; when it stopped first, before that."""
    due: float
    """When it is loaded next; infinity while it runs, or is being loaded."""


class DueWork(NamedTuple):
    """The work that is due: a search for mail and timers, and entities to load."""

    has_search: bool
    entities: list[str]


class Outages:
    """The work that outages have interrupted. Times are those of the event loop, in seconds.

    `notify` is called when `next` has become earlier.
    """

    def __init__(self, notify: Callable[[], object]) -> None:
        self._notify = notify
        self.next = math.inf
        """When the next work is due."""
        self._search_at = math.inf
        self._entities: dict[str, _Suspended] = {}

    def note(self, now: float) -> None:
        """Have mail and timers searched for soon, because the loom did not answer."""
        if self._search_at == math.inf:
            self._search_at = now + FIRST
            self._expect(self._search_at)

    def suspend(self, entity_id: str, error: CantripError, now: float, *, has_recorded: bool = False) -> None:
        """Have an entity loaded again that has stopped. `has_recorded` says whether it had recorded anything.

        One that has run for `LONGEST` seconds without a record, for example idle, was stopped by another outage.
        """
        before = self._entities.get(entity_id)
        if before is not None and before.due < math.inf:
            return
        if before is None or has_recorded or now >= before.tried + LONGEST:
            _log.warning("an entity waits until the loom answers", entity=entity_id, error=str(error))
            after = _Suspended(now, 0, now, now + FIRST)
        else:
            failures = before.failures + 1
            delay = min(FIRST * 2.0 ** min(failures, 30), LONGEST)
            after = _Suspended(before.since, failures, before.tried, now + delay)
        self._entities[entity_id] = after
        self._expect(after.due)

    def forget(self, entity_id: str) -> None:
        """Forget an entity that has stopped for another reason, or that this process need not load."""
        self._entities.pop(entity_id, None)

    def is_suspended(self, entity_id: str) -> bool:
        """Return whether an entity will be loaded again later."""
        suspended = self._entities.get(entity_id)
        return suspended is not None and suspended.due < math.inf

    def keeps_waiting(
        self, entity_id: str, began: float, now: float, patience: float, *, attempt: float | None = None
    ) -> bool:
        """Return whether a caller that began to wait at a time continues after a failed attempt.

        For `patience` seconds every caller does. A caller that came during the attempt waits for the next one: the loom
        may have been mended in between. `attempt` is when the attempt began; left out, it is the last one of this list.
        """
        suspended = self._entities.get(entity_id)
        if suspended is None or suspended.due == math.inf:
            return False
        if attempt is None:
            attempt = suspended.tried if suspended.failures else math.inf
        return now < suspended.since + patience or began >= attempt

    def take_due(self, now: float) -> DueWork:
        """Return the work that is due. The parts that fail are noted again."""
        due = [entity_id for entity_id, suspended in self._entities.items() if suspended.due <= now]
        self._entities |= {entity_id: self._entities[entity_id]._replace(due=math.inf, tried=now) for entity_id in due}
        has_search = self._search_at <= now
        if has_search:
            self._search_at = math.inf
        self.next = min((self._search_at, *(entity.due for entity in self._entities.values())))
        return DueWork(has_search, due)

    def _expect(self, at: float) -> None:
        if at < self.next:
            self.next = at
            self._notify()
