"""The time of day, for everything that waits for one, counts by days, or is dated.

It is the clock of the loom (`Store.clock`): that of its server, or this machine's. In virtual time
(`supervisors.testing`) it runs ahead of that clock by as much as the event loop's clock does, so a test can sleep for a
week and see the schedules, the budgets and the records of that week.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from anyio.lowlevel import RunVar

from supervisors.waiting import find_event_loop

_behind: RunVar[float] = RunVar("cantrip_actors.runtime.time.clock")
"""By how many seconds the event loop's clock was behind the monotonic one when it was first asked."""


def make_ahead() -> Callable[[], float]:
    """Return a function for `Store.ahead` that any thread may call. Call this in the event loop of the runtime."""
    now = find_event_loop().now
    try:
        at_first = _behind.get()
    except LookupError:
        _behind.set(at_first := time.monotonic() - now())
    return lambda: at_first - (time.monotonic() - now())
