"""The time of day, for everything that waits for one.

It is the system's clock, so it is right after the machine was suspended or its clock was set. In virtual time
(`supervisors.testing`) it runs ahead of the system's clock by as much as the event loop's clock does, so a test can
sleep for a week and see the schedules of that week.
"""

from __future__ import annotations

import time

import anyio
from anyio.lowlevel import RunVar

__all__ = ["time_of_day"]

_behind: RunVar[float] = RunVar("cantrip_actors.runtime.clock")
"""By how many seconds the event loop's clock was behind the monotonic one when it was first asked."""


def time_of_day() -> float:
    """Return the seconds since 1970. Call it in an event loop."""
    behind = time.monotonic() - anyio.current_time()
    try:
        at_first = _behind.get()
    except LookupError:
        _behind.set(at_first := behind)
    return time.time() + at_first - behind
