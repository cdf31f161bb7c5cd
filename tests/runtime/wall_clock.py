"""The time of day in a test: in virtual time it runs ahead of the machine's."""

import time

from cantrip_actors.runtime.time.clock import find_loop_clock


def read_wall_clock() -> float:
    """Return the seconds since 1970, as the runtimes of this test read them."""
    loop = find_loop_clock()
    return time.time() if loop is None else time.time() + loop.behind - (time.monotonic() - loop.now())
