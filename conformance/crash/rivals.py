"""Two processes and one loom: one runs an entity, the other is refused, even after a freeze and a thaw.

The first process is frozen (SIGSTOP) at a point of its work. While its lease is valid, other processes cannot run its
entities. After that, in Postgres, a second process resumes them and runs them to their ends. Then the first process
thaws in the middle of its work: all of its appends are refused, and no record is there twice.

An SQLite loom is on the machine of its processes: there a lease is valid as long as its process exists, so the first
process continues when it thaws. A JSONL loom has one writer: there the second process cannot even open it.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

from cantrip_actors import LoomError, Runtime
from conformance.crash.compare import Story, compare_histories
from conformance.crash.history import FORK, PATIENCE, UNSENT, History, HistoryResult, Kill, alone
from conformance.crash.ledger import Line, lines
from conformance.crash.life import Life, live
from conformance.crash.places import remove, url_of
from conformance.crash.programs import CANTRIPS

__all__ = ["freeze"]

LEASE = 1.5
"""Seconds that a claim lasts in these tests."""
SURELY = LEASE / 2
"""Seconds for which a claim is certainly valid: it is renewed after each third of its life."""


def freeze(store: str, point: int, expected: Story, server: str | None = None) -> HistoryResult:
    """Freeze a process at a point, have another one take over, thaw it, and compare."""
    began = time.perf_counter()
    result = HistoryResult(History(store, "process", (Kill(point),), "frozen"))
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    url = url_of(store, "process", folder, server)
    first = Life(0, url, folder / "ledger", UNSENT, dies_at=point, freezes=True)
    second = Life(1, url, folder / "ledger", UNSENT, recover="resume")
    frozen = _start_life(first, folder)
    try:
        if _await_freeze(frozen.pid):
            result.wrong += _problems_while_frozen(second, folder, store, result)
            os.kill(frozen.pid, signal.SIGCONT)
        frozen.join(PATIENCE)
        result.wrong += _problems_of(frozen, folder)
        ledger = lines(folder / "ledger")
        result.refused += sum(line.what == "refused" for line in ledger)
        wrong, result.unknown = compare_histories(
            url, [line for line in ledger if _counts(line)], (), expected, troubled=True
        )
        result.wrong += wrong
    finally:
        frozen.kill()
        remove(url, folder)
    result.seconds = time.perf_counter() - began
    return result


def _problems_while_frozen(second: Life, folder: Path, store: str, result: HistoryResult) -> list[str]:
    """Return the problems while the first process is frozen."""
    if store == "jsonl":
        try:
            anyio.run(_open_runtime, second.url)
        except LoomError:
            result.refused += 1
            return []
        return ["two processes have opened one JSONL loom for writing"]
    if store == "sqlite":
        time.sleep(LEASE)
    since = time.perf_counter()
    early = _start_life(replace(second, number=2, roots=UNSENT[:1], recover="list"), folder)
    early.join(PATIENCE)
    wrong = _problems_of(early, folder)
    took = time.perf_counter() - since
    is_held = store == "sqlite" or took < SURELY
    if is_held and any(line.life == 2 and line.what == "paid" for line in lines(folder / "ledger")):
        wrong.append("an entity was run although another process held its lease")
    if store == "sqlite":
        return wrong
    time.sleep(max(0.0, LEASE - took))
    late = _start_life(second, folder)
    late.join(PATIENCE)
    return wrong + _problems_of(late, folder)


async def _open_runtime(url: str) -> None:
    async with Runtime.open(url, cantrips=CANTRIPS):
        pass


def _counts(line: Line) -> bool:
    """Return whether a line is compared. Payments are not: a thawed process loses the answers that it paid for."""
    return line.what not in {"paid", "ended"}


def _start_life(life: Life, folder: Path) -> Any:
    process = FORK.Process(target=alone, args=(_run_with_short_leases, life, folder / "log"))
    process.start()
    return process


def _run_with_short_leases(life: Life) -> None:
    """Run a life with short leases."""
    loom: Any = import_module("cantrip_actors.runtime.loom.loom_writer")  # no user should set this; see `borders`
    loom.LEASE = LEASE
    live(life)


def _await_freeze(pid: int) -> bool:
    """Wait until a process is frozen; return False if it ended first."""
    changed = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return changed is not None and changed.si_code == os.CLD_STOPPED


def _problems_of(process: Any, folder: Path) -> list[str]:
    if process.exitcode == 0:
        return []
    process.kill()
    output = (folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:]
    return [f"a life {'hangs' if process.exitcode is None else f'ended with {process.exitcode}'}: {output}"]
