"""`python -m bench actors`: the cost of messages, calls, starts, restarts and stops of actors, compared with peers.

Each figure is the median of `--rounds` rounds; a round runs every subject once, each in a process of its own, so that
other load of the machine affects all alike: read ratios. Subjects that are not installed are named and left out.

    call       one actor asks, another answers: gen_server:call
    ping       two actors that send to each other: a round trip
    cast       casts a second, to one actor, until it has handled the last
    idle       100,000 actors under one supervisor: up, down (microseconds each), and resident bytes each
    restart    a child ends, a new one is up, ask the supervisor which children it has: microseconds, without
               reports on either side. The child is killed, or crashes by itself. Dynamic supervisors, and forty of
               them one after the other, so that the cost of a window of two thousand restarts is not included
    reported   the same with reports, into a pipe: each side's own defaults (both write 500 a second and drop the
               rest; Erlang writes three for a crash: of gen_server, of proc_lib and of the supervisor), and, `all`,
               one per restart on both sides (the supervisor's), all of them written
    stop       10,000 children of a static supervisor, last first, each gone before the next is asked: microseconds
    cell       a supervisor with two actors, started and stopped under a dynamic one: CPU microseconds
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel

from bench.actors_load import CALLS, CASTS, CELLS, IDLE, IN_A_ROW, RESTARTS, STOPPED, Figures
from bench.processes import resident
from supervisors import Actor, ActorRef, ActorSystem, Caller, ChildSpec, DynamicSupervisor, Supervisor
from supervisors.events import BURST, Reports

# --- supervisors
# ------------------------------------------------------------------------------------------------------


class _Echo(Actor):
    async def handle_call(self, message: Any, caller: Caller) -> Any:  # noqa: ARG002
        return message

    async def handle_cast(self, message: Any) -> None:
        pass


class _Ping(Actor):
    """Sends each message back to its partner, `message` times."""

    partner: ActorRef

    def itself(self) -> _Ping:
        """Return this object as a `start`, because its partner needs a reference to it."""
        return self

    async def init(self) -> None:
        self.done = anyio.Event()

    async def handle_cast(self, message: Any) -> None:
        if message:
            self.partner.cast(message - 1)
        else:
            self.done.set()


async def _call(system: ActorSystem) -> Figures:
    ref = await system.start(ChildSpec("echo", _Echo))
    began = time.perf_counter()
    for n in range(CALLS):
        await ref.call(n)
    return {"call /s": CALLS / (time.perf_counter() - began)}


async def _measure_ping(system: ActorSystem) -> Figures:
    actors = [_Ping(), _Ping()]
    refs = [await system.start(ChildSpec(at, actors[at].itself)) for at in (0, 1)]
    actors[0].partner, actors[1].partner = refs[1], refs[0]
    began = time.perf_counter()
    refs[0].cast(2 * CALLS)
    await actors[0].done.wait()
    return {"ping /s": CALLS / (time.perf_counter() - began)}


async def _cast(system: ActorSystem) -> Figures:
    ref = await system.start(ChildSpec("echo", _Echo))
    began = time.perf_counter()
    for n in range(CASTS):
        ref.cast(n)
    await ref.call(None)
    return {"cast /s": CASTS / (time.perf_counter() - began)}


async def _measure_idle(system: ActorSystem) -> Figures:
    supervisor = await system.start(
        ChildSpec("d", lambda: DynamicSupervisor(ChildSpec("idle", Actor, restart="temporary")))
    )
    gc.collect()
    gc.freeze()
    memory, began = resident(), time.perf_counter()
    for _ in range(IDLE):
        await supervisor.start_child()
    for _ in range(3):  # the last actors reach their mailbox
        await anyio.lowlevel.checkpoint()
    up = time.perf_counter() - began
    figures = {"idle up us": up / IDLE * 1e6, "idle bytes": (resident() - memory) / IDLE}
    began = time.perf_counter()
    await system.root.terminate_child("d")
    return figures | {"idle down us": (time.perf_counter() - began) / IDLE * 1e6}


class _Up(Actor):
    """Reports that it is up, as a restarted gen_server's init does, and crashes on command."""

    def __init__(self, promises: list[Caller]) -> None:
        self._promises = promises

    async def init(self) -> None:
        self._promises[0].reply(None)

    async def handle_cast(self, message: Any) -> None:
        raise ValueError(message)


async def _restart(system: ActorSystem) -> Figures:
    return {
        "restart us (kill)": await _measure_restarts(system, crash=False),
        "restart us (crash)": await _measure_restarts(system, crash=True),
    }


async def _run_reported(_: ActorSystem) -> Figures:
    figures: Figures = {}
    for way, burst in (("", BURST), (", all", None)):
        for crash in (False, True):
            reports = Reports(burst=burst)  # structlog's default: to standard output
            async with ActorSystem("reporting", max_restarts=10**9, reports=reports) as system:
                figure = f"reported us ({'crash' if crash else 'kill'}{way})"
                figures[figure] = await _measure_restarts(system, crash=crash)
    return figures


async def _measure_restarts(system: ActorSystem, *, crash: bool) -> float:
    promise, took = system.loop.make_caller, 0.0
    for _ in range(RESTARTS // IN_A_ROW):
        promises = [promise()]
        supervisor = await system.start(ChildSpec("d", lambda: DynamicSupervisor(max_restarts=10**9)))
        ref = await supervisor.start_child(ChildSpec("a", lambda promises=promises: _Up(promises)))
        began = time.perf_counter()
        for _ in range(IN_A_ROW):
            promises[0] = up = promise()
            if crash:
                ref.cast("boom")
            else:
                ref.kill()
            await up.wait()
            await supervisor.which_children()
        took += time.perf_counter() - began
        await system.root.terminate_child("d")
        await system.root.delete_child("d")
    return took / RESTARTS * 1e6


async def _stop(system: ActorSystem) -> Figures:
    figures: Figures = {}
    for n in (STOPPED // 10, STOPPED):
        specs = [ChildSpec(at, Actor) for at in range(n)]
        await system.start(ChildSpec(f"s{n}", lambda specs=specs: Supervisor(specs)))
        began = time.perf_counter()
        await system.root.terminate_child(f"s{n}")
        figures[f"stop us ({n:,})"] = (time.perf_counter() - began) / n * 1e6
    return figures


async def _measure_cell(system: ActorSystem) -> Figures:
    supervisor = await system.start(ChildSpec("d", DynamicSupervisor))

    def cell() -> Supervisor:
        return Supervisor([ChildSpec("a", _Echo), ChildSpec("b", _Echo)], strategy="rest_for_one")

    began = time.process_time()
    for _ in range(CELLS):
        ref = await supervisor.start_child(ChildSpec("cell", cell, restart="temporary"))
        await supervisor.terminate_child(ref)
    return {"cell us": (time.process_time() - began) / CELLS * 1e6}


MEASURES: dict[str, Callable[[ActorSystem], Awaitable[Figures]]] = {
    "call": _call,
    "ping": _measure_ping,
    "cast": _cast,
    "idle": _measure_idle,
    "restart": _restart,
    "reported": _run_reported,
    "stop": _stop,
    "cell": _measure_cell,
}


async def _measure_ours(measure: str) -> Figures:
    async with ActorSystem(reports=None, max_restarts=10**9) as system:
        return await MEASURES[measure](system)


# --- all of them
# ------------------------------------------------------------------------------------------------------

SUBJECTS = ("supervisors asyncio", "supervisors trio", "raw asyncio", "raw trio", "pykka", "xoscar", "erlang")


def measure(subject: str, what: str) -> Figures:
    """Measure one figure of one subject, in this process. Empty if the subject lacks it."""
    if subject.startswith("supervisors "):
        return anyio.run(_measure_ours, what, backend=subject.split()[1])
    from bench import actors_peers

    return actors_peers.measure(subject, what)


def main(argv: list[str]) -> int:
    """`python -m bench actors`."""
    parser = argparse.ArgumentParser("bench actors", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(MEASURES), action="append", help="one measure; may be repeated")
    parser.add_argument("--subjects", nargs="*", choices=SUBJECTS, default=SUBJECTS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("SUBJECT", "MEASURE"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(measure(*options.one)))
        return 0
    results: dict[str, dict[str, list[float]]] = {}
    missing: dict[str, str] = {}
    for _ in range(options.rounds):
        for what in options.only or MEASURES:
            for subject in options.subjects:
                if subject not in missing:
                    _take(subject, what, results, missing)
    table = {
        figure: {subject: statistics.median(values) for subject, values in row.items()}
        for figure, row in results.items()
    }
    if options.json:
        print(json.dumps({"figures": table, "missing": missing}))
    else:
        _print(table, [subject for subject in options.subjects if subject not in missing])
        for subject, why in missing.items():
            print(f"{subject}: left out, {why}")
    return 0


def _take(subject: str, what: str, results: dict[str, dict[str, list[float]]], missing: dict[str, str]) -> None:
    command = [sys.executable, "-m", "bench", "actors", "--one", subject, what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        missing[subject] = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        return
    for figure, value in json.loads(done.stdout.strip().splitlines()[-1]).items():
        results.setdefault(figure, {}).setdefault(subject, []).append(value)


#: What a figure of `supervisors` on asyncio is held against, and how much of that it should be.
BOUNDS = (
    ("call /s", "raw asyncio", "at least 0.6"),
    ("call /s", "pykka", "at least 4"),
    ("call /s", "xoscar", "at least 8"),
    ("reported us (crash)", "erlang", "at most 1"),
    ("reported us (kill)", "erlang", "at most 1"),
    ("reported us (crash, all)", "erlang", "at most 1"),
    ("reported us (kill, all)", "erlang", "at most 1"),
    ("restart us (crash)", "erlang", "at most 1; asyncio's floor is above that"),
    ("restart us (crash)", "raw asyncio", "the floor: a task that ends, and a new one"),
)


def _print(table: dict[str, dict[str, float]], subjects: list[str]) -> None:
    width = max(len(figure) for figure in table)
    print(" " * width, *(f"{subject:>20}" for subject in subjects))
    for figure, row in table.items():
        cells = (f"{row[subject]:,.0f}" if subject in row else "-" for subject in subjects)
        print(f"{figure:<{width}}", *(f"{cell:>20}" for cell in cells))
    for figure, peer, bound in BOUNDS:
        row = table.get(figure, {})
        if "supervisors asyncio" in row and peer in row:
            ratio = row["supervisors asyncio"] / row[peer]
            print(f"{figure}: {ratio:.2f} times {peer} ({bound})")
