"""`python -m bench timers`: the cost of timers in each store, and of 100,000 waiting ones in an idle runtime.

Microseconds of CPU (for Postgres: wall clock) for one operation, among few and among many timers that are not due:

- *look*: find out that nothing is due, and when the next timer is.
- *fire*: find the one due timer, replace it, and post its mail.

A look among many that takes more than a millisecond is an error. *idle* is the CPU of a runtime that is open on the
loom and has nothing to do, in milliseconds a second.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import anyio
import orjson

from bench.loom import AT, fresh, make_beginning, new_id
from cantrip_actors import Runtime
from cantrip_actors.looms import IntentGiven, Mail, Store, Timer, open_store

__all__ = ["main"]

STORES = ("memory", "jsonl", "sqlite")
LIMIT = 1000.0
"""Microseconds that a look may take."""
FAR = 4e9
"""A time in the far future."""


class Timers:
    """An entity of a fresh store, with this many timers that are not due."""

    def __init__(self, store: Store, waiting: int) -> None:
        self.store, self.entity = store, new_id()
        store.append(make_beginning(self.entity))
        self._due = 0.0
        for at in range(0, waiting, 1000):
            timers = [(0, self._make_timer(FAR + at + n)) for n in range(min(1000, waiting - at))]
            store.append([IntentGiven(self.entity, "wait", AT)], timers=timers)

    def _make_timer(self, due: float) -> Timer:
        key = new_id()
        mail = Mail(entity_id=self.entity, key=key, kind="timer", body={"intent": "do this, please"}, at=AT)
        return Timer(id=key, due=due, entity_id=self.entity, mail=mail)

    def look(self) -> None:
        """Find that nothing is due, and the next timer."""
        assert FAR <= self.store.next_due(0.0).due < math.inf

    def fire(self) -> None:
        """Set a timer that is due, find it, and post its mail."""
        self.store.replace_timer(None, self._make_timer(0.5))
        (timer,) = self.store.timers_due(1.0)
        assert timer.mail is not None
        self.store.replace_timer(timer, None, [timer.mail])


def cost(work: Callable[[], None], times: int, rounds: int, clock: Callable[[], float]) -> float:
    """Return the microseconds of one operation, the least of all rounds."""
    spent = []
    for _ in range(rounds):
        began = clock()
        for _ in range(times):
            work()
        spent.append((clock() - began) / times * 1e6)
    return min(spent)


def measure(kind: str, few: int, many: int, rounds: int, postgres: str | None) -> dict[str, list[float]]:
    """Return the cost of each operation among few and among many timers."""
    clock = time.perf_counter if kind == "postgres" else time.process_time
    figures: dict[str, list[float]] = {}
    for waiting in (few, many):
        with fresh(kind, postgres) as store:
            store.max_waiting = 100 * rounds
            timers = Timers(store, waiting)
            for what in ("look", "fire"):
                figures.setdefault(what, []).append(cost(getattr(timers, what), 50, rounds, clock))
    return figures


async def idle(url: str, seconds: float) -> float:
    """Return the milliseconds of CPU that an open runtime takes in a second."""
    async with Runtime.open(url):
        await anyio.sleep(1.0)
        began = time.process_time()
        await anyio.sleep(seconds)
        return (time.process_time() - began) / seconds * 1e3


def idles(kind: str, waiting: int, seconds: float) -> float:
    """Return the CPU of a runtime in a loom with this many timers."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        url = f"{kind}:{folder}/loom.{'db' if kind == 'sqlite' else 'jsonl'}"
        with open_store(url) as store:
            Timers(store, waiting)
        return anyio.run(idle, url, seconds)


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if the limit does not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench timers", description=__doc__)
    parser.add_argument("--few", type=int, default=1)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10, help="of 50 operations each")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long a runtime idles")
    parser.add_argument("--postgres", metavar="URL", help="measure that server, too (wall clock)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    report: dict[str, dict[str, list[float]]] = {}
    for kind in (*STORES, "postgres") if options.postgres else STORES:
        report[kind] = measure(kind, options.few, options.many, options.rounds, options.postgres)
        if kind in ("jsonl", "sqlite"):
            report[kind]["idle"] = [idles(kind, waiting, options.seconds) for waiting in (options.few, options.many)]
    over = [kind for kind, figures in report.items() if figures["look"][1] > LIMIT]
    if options.json:
        print(orjson.dumps({**report, "over": over}, option=orjson.OPT_INDENT_2).decode())
    else:
        print(f"{'us, timers:':<18}{options.few:>10,}{options.many:>10,}")
        for kind, figures in report.items():
            for what, (few, many) in figures.items():
                print(f"{kind:<10}{what:<8}{few:>10.1f}{many:>10.1f}{'  ms a second' if what == 'idle' else ''}")
        print(f"a look takes more than {LIMIT:g} us: {', '.join(over)}" if over else "every limit holds")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
