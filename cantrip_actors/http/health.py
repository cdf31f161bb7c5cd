"""Health, answered by a thread of its own on a port of its own: it answers while the event loop is blocked.

`/health/live` fails if the process has to be restarted: its loop has not ticked within `stall` seconds. `/health/ready`
fails if it should get no work: its loop has not ticked within `READY` seconds, the loom's writer does not answer, or it
is draining.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import anyio

from cantrip_actors import LoomError, Runtime, RuntimeClosed
from cantrip_actors.http.addresses import CannotServe, add_brackets, parse_address

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of metrics, as Prometheus reads them."""
READY: Final = 5.0
STALL: Final = 60.0
TICK: Final = 1.0
SLOW: Final = 5.0
"""Seconds in which a client has to send its request."""


class Pulse:
    """The last state of the event loop: the loop writes it, and the health thread reads it."""

    def __init__(self, stall: float = STALL, ready: float = READY, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall, self._ready, self._clock = stall, ready, clock
        self._ticked = clock()
        self._wrote = True
        self.is_draining = False

    async def beat(
        self, runtime: Runtime, every: float = TICK, late: Callable[[float], object] = lambda _: None
    ) -> None:
        """Tick forever, and check whether the loom's writer answers. `late` is called with each tick's lateness."""
        while True:
            self._ticked = self._clock()
            with anyio.move_on_after(self._ready) as scope:
                try:
                    await runtime.check_writer()
                    self._wrote = True
                except (LoomError, RuntimeClosed):
                    self._wrote = False
            if scope.cancelled_caught:
                self._wrote = False
            before = self._clock()
            await anyio.sleep(every)
            late(max(0.0, self._clock() - before - every))

    def live(self) -> tuple[bool, dict[str, object]]:
        """Return whether the process is alive, and the checks."""
        since = self._clock() - self._ticked
        return since < self._stall, {"loop": since < self._stall, "seconds_since_tick": round(since, 3)}

    def ready(self) -> tuple[bool, dict[str, object]]:
        """Return whether the service takes work, and the checks."""
        since = self._clock() - self._ticked
        checks: dict[str, object] = {"loop": since < self._ready, "loom": self._wrote, "draining": self.is_draining}
        is_ready = since < self._ready and self._wrote and not self.is_draining
        return is_ready, {**checks, "seconds_since_tick": round(since, 3)}


@contextmanager
def health_server(pulse: Pulse, address: str, metrics: Callable[[], str] | None = None) -> Iterator[str]:
    """Answer health checks at HOST:PORT in a thread while the block runs; yield the URL. Raises CannotServe.

    `metrics` returns the page for `/metrics`.
    """
    host, port = parse_address(address)

    class Handler(BaseHTTPRequestHandler):
        timeout = SLOW
        server_version = "cantrip"
        sys_version = ""

        def do_GET(self) -> None:  # the base class's name
            """Answer a check."""
            path = self.path.partition("?")[0]
            if path == "/metrics" and metrics is not None:
                self._answer(200, CONTENT_TYPE, metrics().encode())
                return
            checks = {"/health/live": pulse.live, "/health/ready": pulse.ready}.get(path)
            is_well, results = (False, {}) if checks is None else checks()
            body = json.dumps({"checks": results}).encode()
            self._answer(404 if checks is None else 200 if is_well else 503, "application/json", body)

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("cache-control", "no-store")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Log nothing: checks come every few seconds."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    try:
        listening = Server((host, port), Handler)
    except OSError as error:
        raise CannotServe(f"{address}: cannot listen there: {error.strerror}") from error
    with listening as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="cantrip-health", daemon=True)
        thread.start()
        try:
            yield f"http://{add_brackets(host)}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
