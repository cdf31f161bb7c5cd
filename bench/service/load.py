"""The clients of a service: each one has a connection, and sends one request after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

__all__ = ["LoadError", "drive"]

BODY = b'{"city": "Oslo"}'
REQUEST = b"POST /ask HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)
END, REPORT = b"0\r\n\r\n", b"event: report"
WARM_UP = 16
"""Clients that send one request before: enough for all workers."""
PATIENCE = 150.0
"""Seconds for one answer to each client."""


class LoadError(Exception):
    """A service that did not answer as expected; the text is the reason."""


@dataclass
class _Tally:
    """The answers so far: the seconds until the first text of each, and until its end, and their events."""

    firsts: list[float] = field(default_factory=list)
    wholes: list[float] = field(default_factory=list)
    events: int = 0


async def drive(port: int, clients: int, seconds: float, read_cpu: Callable[[], float]) -> dict[str, float]:
    """Return requests a second, CPU a request and delays of a service under the load of so many clients.

    A few requests come before. Then each client sends requests for so many seconds, and at least one; the time ends
    with the last answer, so that no request is counted in part. Raises LoadError.
    """
    await _send_requests(port, WARM_UP, 0.0)
    cpu, began = read_cpu(), time.perf_counter()
    tally = await _send_requests(port, clients, seconds)
    spent, took = read_cpu() - cpu, time.perf_counter() - began
    return {
        "cpu_us": spent / len(tally.wholes) * 1e6,
        "requests_s": len(tally.wholes) / took,
        "events": tally.events / len(tally.wholes),
        "first_ms": median(tally.firsts) * 1e3,
        "whole_ms": median(tally.wholes) * 1e3,
    }


async def _send_requests(port: int, clients: int, seconds: float) -> _Tally:
    tally, end = _Tally(), time.perf_counter() + seconds
    try:
        async with asyncio.timeout(PATIENCE + seconds), asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(_ask(port, tally, end))
    except TimeoutError:
        raise LoadError(f"did not answer all clients in {PATIENCE + seconds:.0f} s") from None
    except ExceptionGroup as errors:
        raise LoadError(str(errors.exceptions[0])) from None
    return tally


async def _ask(port: int, tally: _Tally, end: float) -> None:
    """Send one request after the other until this time, at least one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        is_last = False
        while not is_last:
            writer.write(REQUEST)
            began, first, answer = time.perf_counter(), 0.0, bytearray()
            while not answer.endswith(END):
                piece = await reader.read(65536)
                if not piece:
                    raise LoadError(f"closed the connection after {bytes(answer[-200:])!r}")
                answer += piece
                if not first and b"event: text" in answer:
                    first = time.perf_counter() - began
            if REPORT not in answer:
                raise LoadError(f"answered without a report: {bytes(answer[-200:])!r}")
            tally.events += answer.count(b"event: ")
            tally.firsts.append(first)
            tally.wholes.append(time.perf_counter() - began)
            is_last = time.perf_counter() >= end
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
