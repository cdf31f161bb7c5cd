"""The time of day, for everything that waits for one.

It is the clock of the loom (`Store.clock`): that of its server, or this machine's. In virtual time
(`supervisors.testing`) it runs ahead of that clock by as much as the event loop's clock does, so a test can sleep for a
week and see the schedules of that week.
"""

from __future__ import annotations

import time

import anyio
from anyio.lowlevel import RunVar

_behind: RunVar[float] = RunVar("cantrip_actors.runtime.time.clock")
"""By how many seconds the event loop's clock was behind the monotonic one when it was first asked."""


def compute_time_of_day(wall: float) -> float:
    """Return the seconds since 1970 by the loom's clock, whose present value is `wall`. Call it in an event loop."""
    behind = time.monotonic() - anyio.current_time()
    try:
        at_first = _behind.get()
    except LookupError:
        _behind.set(at_first := behind)
    return wall + at_first - behind
