"""Failures that a process survives: a full or broken disk, half a write, a failed fsync, a lost connection.

One process works until the fault has stopped its entities (each with an error that describes the fault). Then the fault
is repaired, and the same runtime continues to the end. Acknowledged records must be there, all other work is repeated,
and the story is that of an undisturbed run.

    full    write fails with ENOSPC             bad     write fails with EIO
    half    half is written, then ENOSPC        stuck   the same, and it cannot be cut back until it is mended
    sync    fsync fails with EIO (`power`)      size    the system lets no file grow beyond so many KiB (EFBIG)
    lost    a server ends all connections in the middle of an append

The first five are put into a JSONL store's `Disk`. `size` is the system's own limit, for SQLite, whose system
calls cannot be replaced.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from cantrip_actors import LoomError, Runtime
from conformance.crash.borders import watch
from conformance.crash.compare import Story, compare_histories
from conformance.crash.fate import Fate
from conformance.crash.history import FORK, PATIENCE, History, HistoryResult, alone
from conformance.crash.ledger import Ledger, lines
from conformance.crash.life import Life, work
from conformance.crash.places import remove, url_of
from conformance.crash.programs import CANTRIPS
from conformance.crash.workload import SMALL, world

__all__ = ["Fault", "faults", "suffer"]

LEAST = 64
"""KiB that every file may have: more than the ledger ever needs, because the ledger must always be written."""


@dataclass(frozen=True)
class Fault:
    """A kind of failure, the call at which it begins (for `size`: the KiB), and how often it repeats."""

    kind: str
    store: str
    durability: str
    at: int
    times: float = math.inf

    def __str__(self) -> str:
        often = "" if self.times == math.inf else f" x{self.times:g}"
        return f"{self.kind} at {self.at}{often}"


DISK_KINDS = (("full", "process"), ("bad", "process"), ("half", "process"), ("stuck", "process"), ("sync", "power"))
"""The failures of a JSONL store's disk, each with the durability at which it shows."""


def faults(step: int = 1, server: str | None = None, *, is_whole: bool = True) -> Iterator[Fault]:
    """Yield each kind of fault at every `step`-th call; the workload makes about ninety appends.

    Unless `is_whole`, half of the disk's failures are left out: each call has some, and each failure both lasts and
    passes.
    """
    for n, at in enumerate(range(1, 90, step)):
        times = (math.inf, 1)[n % 2]
        for k, (kind, durability) in enumerate(DISK_KINDS):
            if is_whole or (n + n // 2 + k) % 2:
                yield Fault(kind, "jsonl", durability, at, times)
        yield Fault("size", "sqlite", ("process", "power")[n % 2], LEAST + 20 * at)
        if server is not None:
            yield Fault("lost", "postgres", "process", at, 1)


def suffer(fault: Fault, expected: Story, server: str | None = None) -> HistoryResult:
    """Run a workload with a fault, in a separate process, and compare."""
    began = time.perf_counter()
    result = HistoryResult(History(fault.store, fault.durability, (), str(fault)))
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    url = url_of(fault.store, fault.durability, folder, server)
    life = Life(0, url, folder / "ledger", SMALL)
    try:
        process = FORK.Process(target=alone, args=(partial(_live, fault=fault, server=server), life, folder / "log"))
        process.start()
        process.join(PATIENCE)
        hangs = process.exitcode is None
        process.kill()
        process.join()
        ledger = lines(folder / "ledger")
        if hangs or process.exitcode:
            output = (folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:]
            result.wrong = [f"{'hangs' if hangs else process.exitcode}: {output}"]
        else:
            result.wrong, result.unknown = compare_histories(url, ledger, (), expected, troubled=True)
        refused = [line.data["came"] for line in ledger if line.what == "refused"]
        result.refused = len(refused)
        result.wrong += [f"an error that says nothing: {text}" for text in refused if len(text) < 20]
        result.wrong += [
            f"refused after it was mended: {line.key}" for line in ledger if line.life and line.what == "refused"
        ]
    finally:
        remove(url, folder)
    result.seconds = time.perf_counter() - began
    return result


def _live(life: Life, *, fault: Fault, server: str | None) -> None:
    world.ledger = ledger = Ledger(life.ledger, 0, Fate())
    weather = _Weather(fault, server, life.url)
    watch(ledger, Fate(), weather.install)
    anyio.run(_both_times, life, ledger, weather)


async def _both_times(life: Life, ledger: Ledger, weather: _Weather) -> None:
    world.opened = anyio.Event()
    try:
        async with Runtime.open(life.url, cantrips=CANTRIPS) as runtime:
            await work(runtime, life.roots, ledger)
            weather.mend()
            ledger.life = 1
            await work(runtime, life.roots, ledger)
    except LoomError as error:  # the loom could not be opened: try again
        ledger.write("refused", "open", came=str(error))
        weather.mend()
        ledger.life = 1
        async with Runtime.open(life.url, cantrips=CANTRIPS) as runtime:
            await work(runtime, life.roots, ledger)
    ledger.write("closed", points=0)


class _Weather:
    """The current failure of the disk."""

    def __init__(self, fault: Fault, server: str | None, url: str) -> None:
        self.fault = fault
        self.calls = 0
        self.left = fault.times
        self.server = server
        self.url = url

    def install(self, store: Any) -> None:
        """Install the failure in a store."""
        kind = self.fault.kind
        if kind == "size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.fault.at << 10, resource.RLIM_INFINITY))
        elif kind == "lost":
            self._lose_connections(store)
        else:
            parts: dict[str, dict[str, Any]] = {
                "sync": {"sync": self._sync},
                "stuck": {"write": self._write, "truncate": self._truncate},
            }
            file = store._file  # noqa: SLF001  # see borders
            file.disk = replace(file.disk, **parts.get(kind, {"write": self._write}))

    def mend(self) -> None:
        """End the failure."""
        self.left = 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def _fails(self) -> bool:
        self.calls += 1
        if self.calls < self.fault.at or self.left <= 0:
            return False
        self.left -= 1
        return True

    def _write(self, fd: int, data: bytes) -> int:
        if not self._fails():
            return os.write(fd, data)
        if self.fault.kind in {"half", "stuck"}:
            os.write(fd, bytes(data)[: len(data) // 2])
        code = errno.EIO if self.fault.kind == "bad" else errno.ENOSPC
        raise OSError(code, os.strerror(code))

    def _truncate(self, fd: int, length: int) -> None:
        if self.calls >= self.fault.at and self.left > 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.ftruncate(fd, length)

    def _sync(self, fd: int) -> None:
        if self._fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(fd)

    def _lose_connections(self, store: Any) -> None:
        append = store.append

        def lose(records: Any, *leases: Any, **mail: Any) -> None:
            if self._fails():
                threading.Thread(target=_end_connections, args=(self.server, self.url), daemon=True).start()
            append(records, *leases, **mail)

        store.append = lose


def _end_connections(server: str | None, url: str) -> None:
    """End all connections of one loom: their application name is its schema."""
    import psycopg

    assert server is not None
    name = url.rpartition("=")[2]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s", (name,)
        )
