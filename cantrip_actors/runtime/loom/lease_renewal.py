"""Renew a runtime's leases in a thread of its own, so that a busy event loop does not lose them.

A gate that blocks the loop for a while, or an append that waits for a slow server, delays no renewal. A
loop that has stopped for good needs no leases: after `STALL` seconds without a tick they expire, and other processes
run its entities.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import anyio

from cantrip_actors.machine.node import may_renew
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.loom.outage_log import OutageLog
from cantrip_actors.user_code.threads import run_to_end

STALL: Final = 60.0
"""Seconds for which the event loop may be blocked without losing its leases."""

_log = get_logger("cantrip_actors.runtime")


class LeaseRenewal:
    """Calls `renew` every `period` seconds, in real time, from `start` to `stop`.

    `tick` says that the event loop is alive. `renew` runs in the thread; a LoomError of it is logged.
    """

    def __init__(self, renew: Callable[[], None], period: float, *, stall: float = STALL) -> None:
        self._renew = renew
        self._period = period
        self._stall = stall
        self._ticked = time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start renewing; does nothing if it has started."""
        self.tick()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cantrip-leases", daemon=True)
            self._thread.start()

    def tick(self) -> None:
        """Report that the event loop is alive."""
        self._ticked = time.monotonic()

    async def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None:
            with anyio.CancelScope(shield=True):
                await run_to_end(self._thread.join, anyio.CapacityLimiter(1))

    def _run(self) -> None:
        was_stalled, outage = False, OutageLog("leases could not be renewed", "leases are renewed again")
        while not self._stopped.wait(self._period):
            is_stalled = not may_renew(self._ticked, time.monotonic(), self._stall)
            if is_stalled and not was_stalled:
                _log.error("the event loop is blocked: its leases are not renewed any more", seconds=self._stall)
            was_stalled = is_stalled
            if not is_stalled:
                with outage.watch():  # a lease expires by itself, and the next attempt is soon
                    self._renew()
