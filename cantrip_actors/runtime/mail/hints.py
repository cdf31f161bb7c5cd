"""Hints between the processes of a loom: "poll now". Only latency depends on them.

A process that posts mail, or that ends an episode for which no caller waits here, notifies the others, which then poll
the loom at once. A hint has no content, is never part of a transaction, and may be lost.

Two threads, because connections to the server block: one listens, one notifies, at most once each `GAP` seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import anyio
from anyio.from_thread import run_sync
from anyio.lowlevel import EventLoopToken, current_token

from cantrip_actors.loom import Store
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.user_code.threads import run_to_end

GAP: Final = 0.005
"""The least seconds between two hints that are sent, and between two that are handled."""

RECONNECT: Final = 1.0
"""Seconds until a lost connection is made again."""

_log = get_logger("cantrip_actors.runtime")


class Hints:
    """Sends and receives hints, from `start` to `stop`. It calls `on_hint` in the event loop for each received hint."""

    def __init__(self, store: Store, on_hint: Callable[[], object]) -> None:
        self._store = store
        self._on_hint = on_hint
        self._stopped = threading.Event()
        self._wanted = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def has_started(self) -> bool:
        """Whether it sends and receives hints."""
        return bool(self._threads)

    def start(self) -> None:
        """Start the threads; hints are handled in the running event loop."""
        token = current_token()
        for name, work in (("listen", lambda: self._listen(token)), ("tell", self._send_hints)):
            self._threads.append(threading.Thread(target=work, name=f"cantrip-{name}", daemon=True))
            self._threads[-1].start()

    def send(self) -> None:
        """Send a hint to the other processes soon."""
        self._wanted.set()

    async def stop(self) -> None:
        """End the threads."""
        self._stopped.set()
        self._wanted.set()
        for thread in self._threads:
            with anyio.CancelScope(shield=True):
                await run_to_end(thread.join, anyio.CapacityLimiter(1))

    def _send_hints(self) -> None:
        while True:
            self._wanted.wait()
            if self._stopped.is_set():
                return
            self._wanted.clear()
            try:
                self._store.hint()
            except LoomError as error:
                _log.warning("the hint to other processes could not be sent", error=str(error))
            self._stopped.wait(GAP)

    def _listen(self, token: EventLoopToken) -> None:
        def receive() -> None:
            if not self._stopped.is_set():
                run_sync(self._on_hint, token=token)
                self._stopped.wait(GAP)

        while not self._stopped.is_set():
            try:
                self._store.listen(receive, self._stopped)
            except LoomError as error:
                _log.warning("hints from other processes are not received for a while", error=str(error))
                self._stopped.wait(RECONNECT)
            except anyio.RunFinishedError:
                return
