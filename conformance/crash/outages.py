"""A Postgres server that is killed in the middle of an append, and started again; sometimes its client dies with it.

SIGKILL goes to the parent process of the server, within two milliseconds of the beginning of an append: before it,
during it, or after it. The connections of its clients end, and new connections are refused until the server has
replayed its log. A surviving runtime stops the entities that it cannot record, and resumes them once the server answers
again. If the runtime was killed together with the server, another one follows.

Acknowledged records must be there. Records that were being committed may be there or not, and only missing ones are
written again. (The durability `none` promises less: a killed server may lose records of its last half second.)
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from cantrip_actors import LoomError, Runtime
from conformance.crash.borders import AWAY, watch
from conformance.crash.compare import Story, compare_histories
from conformance.crash.fate import Fate, die
from conformance.crash.history import FORK, PATIENCE, History, HistoryResult, alone
from conformance.crash.ledger import Ledger, lines
from conformance.crash.life import Life, work
from conformance.crash.places import remove, url_of
from conformance.crash.programs import CANTRIPS
from conformance.crash.workload import SMALL, world

if TYPE_CHECKING:
    from conformance.postgres import Server

__all__ = ["Outage", "outages", "survive"]

ROUNDS = 20
"""The most repetitions of a refused request, because a restarted server may be killed again."""


@dataclass(frozen=True)
class Outage:
    """The append of the first life at which the server is killed, the durability, and whether the client dies, too."""

    at: int
    durability: str
    both: bool = False

    def __str__(self) -> str:
        return f"server{' and client' if self.both else ''} at {self.at}"


def outages(step: int = 1) -> Iterator[Outage]:
    """Yield an outage at every `step`-th append; the workload makes about ninety."""
    for n, at in enumerate(range(1, 90, step)):
        yield Outage(at, ("process", "power")[n % 2], both=n % 3 == 2)


def survive(outage: Outage, expected: Story, server: Server) -> HistoryResult:
    """Run a workload with an outage, in separate processes, and compare."""
    began = time.perf_counter()
    result = HistoryResult(History("postgres", outage.durability, (), str(outage)))
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    url = url_of("postgres", outage.durability, folder, server.url)
    try:
        life = Life(0, url, folder / "ledger", SMALL)
        code = _run_life(life, outage, server, folder)
        if outage.both and code == -signal.SIGKILL:
            result.at_points += 1
            code = _run_life(replace(life, number=1), None, server, folder)
        ledger = lines(folder / "ledger")
        result.refused = sum(line.what == "refused" for line in ledger)
        if code:
            output = (folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:]
            result.wrong = [f"a life {'hangs' if code is None else f'ended with {code}'}: {output}"]
        else:
            result.wrong, result.unknown = compare_histories(url, ledger, (), expected, troubled=True)
    finally:
        remove(url, folder)
    result.seconds = time.perf_counter() - began
    return result


def _run_life(life: Life, outage: Outage | None, server: Server, folder: Path) -> int | None:
    """Return the exit code of a life, or None if it hangs. Restart the server whenever it was killed."""
    process = FORK.Process(target=alone, args=(partial(_live, outage=outage, server=server.pid), life, folder / "log"))
    process.start()
    until = time.monotonic() + PATIENCE
    while process.exitcode is None and time.monotonic() < until:
        process.join(0.02)
        if server.was_killed:
            server.start()
    code = process.exitcode
    process.kill()
    process.join()
    server.start()  # it may have been killed just now
    return code


def _live(life: Life, *, outage: Outage | None, server: int) -> None:
    world.ledger = ledger = Ledger(life.ledger, life.number, Fate())
    watch(ledger, Fate(), partial(_doom, outage=outage, server=server) if outage is not None else None)
    anyio.run(_run_until_accepted, life, ledger)


async def _run_until_accepted(life: Life, ledger: Ledger) -> None:
    """Run the workload again until no request is refused."""
    for _ in range(ROUNDS):
        world.opened = anyio.Event()
        try:
            async with Runtime.open(life.url, cantrips=CANTRIPS) as runtime:
                for _ in range(ROUNDS):
                    before = _count_refused(life)
                    await work(runtime, life.roots, ledger)
                    if _count_refused(life) == before:
                        ledger.write("closed", points=0)
                        return
                    await _await_server(life.url)
                    ledger.life += 100  # queries whose answer could not be recorded are paid again
        except LoomError as error:
            ledger.write("refused", "open", came=str(error))
            await _await_server(life.url)
    raise AssertionError(f"still refused after {ROUNDS} times")


def _count_refused(life: Life) -> int:
    return sum(line.what == "refused" for line in lines(life.ledger))


async def _await_server(url: str) -> None:
    """Wait until the server takes connections."""
    import psycopg

    until = time.monotonic() + PATIENCE / 2
    while True:
        try:
            psycopg.connect(url.partition("&schema=")[0]).close()
        except psycopg.OperationalError:
            assert time.monotonic() < until, "the server does not come back"
            await anyio.sleep(0.05)
        else:
            return


def _doom(store: Any, *, outage: Outage, server: int) -> None:
    append, left = store.append, outage.at

    def fail_append(records: Any, *leases: Any, **mail: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            threading.Thread(target=_fall, args=(server, outage.both), daemon=True).start()
        append(records, *leases, **mail)

    store.append = fail_append


def _fall(server: int, both: bool) -> None:
    time.sleep(random.random() * AWAY)
    os.kill(server, signal.SIGKILL)
    if both:
        die()
