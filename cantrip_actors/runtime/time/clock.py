"""The time of day, for everything that waits for one, counts by days, or is dated.

It is the clock of the loom (`Store.clock`): that of its server, or this machine's. In virtual time
(`supervisors.testing`) it runs ahead of that clock by as much as the event loop's clock does, so a test can sleep for a
week and see the schedules, the budgets and the records of that week.
"""

from __future__ import annotations

import time

from anyio.lowlevel import RunVar

from cantrip_actors.loom.stores.store import LoopClock
from supervisors.waiting import find_event_loop

_behind: RunVar[float] = RunVar("cantrip_actors.runtime.time.clock")
"""By how many seconds the event loop's clock was behind the monotonic one when it was first asked."""


def find_loop_clock() -> LoopClock | None:
    """Return the clock of the running event loop, for that of a store; None if its time is the machine's.

    Call it in the event loop of the runtime.
    """
    loop = find_event_loop()
    if loop.has_machine_time:
        return None
    try:
        behind = _behind.get()
    except LookupError:
        _behind.set(behind := time.monotonic() - loop.now())
    return LoopClock(loop.now, behind)
