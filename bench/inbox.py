"""`python -m bench inbox`: the cost of mail in each store, which must not grow from 100 to 100,000 waiting mails.

CPU microseconds (for Postgres: wall clock) for one mail of one entity, in a transaction of its own:

- *post*: a mail becomes durable and waits.
- *take*: the first waiting mail is looked up, and a record takes it.
- *append*: the same record without mail, for comparison.

Two looms of each kind alternate, one with few and one with many mails waiting, so that other load of the machine
affects both alike; the figures are the least of all rounds. If a figure for many is more than 1.5 times that for few,
it is an error.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import orjson

from bench.loom import AT, fresh, make_beginning, new_id
from cantrip_actors.looms import IntentGiven, Mail, Store

__all__ = ["main"]

STORES = ("memory", "jsonl", "sqlite")
LIMIT = 1.5
"""The highest ratio of the cost of a mail among many to that among few."""
SMALLEST = 20.0
"""Microseconds below which costs are not compared, because the clock is not precise enough."""


def mail(entity: str) -> Mail:
    """Return a mail of the usual size."""
    return Mail(entity_id=entity, key=new_id(), kind="intent", body={"intent": "do this, please"}, sender="me", at=AT)


class Box:
    """An entity of a fresh store, with this many waiting mails."""

    def __init__(self, store: Store, waiting: int) -> None:
        self.store, self.entity = store, new_id()
        store.max_waiting = 10 * waiting
        store.append(make_beginning(self.entity))
        for at in range(0, waiting, 1000):
            store.post([mail(self.entity) for _ in range(min(1000, waiting - at))])

    def post(self) -> None:
        """Post one mail."""
        self.store.post([mail(self.entity)])

    def take(self) -> None:
        """Take the first mail."""
        ((no, first),) = self.store.pending(self.entity, 1)
        self.store.append([IntentGiven(self.entity, "do this, please", AT, key=first.key)], taken=[(0, no)])

    def append(self) -> None:
        """Append the record alone."""
        self.store.append([IntentGiven(self.entity, "do this, please", AT)])


def cost(work: Callable[[], None], times: int, clock: Callable[[], float]) -> float:
    """Return the microseconds of one operation."""
    began = clock()
    for _ in range(times):
        work()
    return (clock() - began) / times * 1e6


def measure(kind: str, few: int, many: int, rounds: int, postgres: str | None) -> dict[str, dict[str, float]]:
    """Return the cost of each mail operation, with few mails and with many."""
    clock = time.perf_counter if kind == "postgres" else time.process_time
    measured: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        boxes = {str(waiting): Box(stack.enter_context(fresh(kind, postgres)), waiting) for waiting in (few, many)}
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        for _ in range(rounds):
            for what in ("post", "take", "append"):
                for waiting, box in boxes.items():
                    spent = cost(getattr(box, what), 50, clock)
                    figures = measured.setdefault(what, {})
                    figures[waiting] = min(spent, figures.get(waiting, spent))
    return measured


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if the limit does not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench inbox", description=__doc__)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=30, help="of 50 mails each")
    parser.add_argument("--postgres", metavar="URL", help="measure that server, too (wall clock)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    report: dict[str, dict[str, dict[str, float]]] = {}
    over = []
    for kind in (*STORES, "postgres") if options.postgres else STORES:
        report[kind] = measure(kind, options.few, options.many, options.rounds, options.postgres)
        for what, figures in report[kind].items():
            few, many = figures.values()
            if many > max(few, SMALLEST) * LIMIT:
                over.append(
                    f"{kind}: {what} costs {many:.0f} us among {options.many}, and {few:.0f} among {options.few}"
                )
    if options.json:
        print(orjson.dumps({**report, "over": over}, option=orjson.OPT_INDENT_2).decode())
    else:
        print(f"{'us, waiting:':<18}{options.few:>10,}{options.many:>10,}")
        for kind, done in report.items():
            for what, figures in done.items():
                few, many = figures.values()
                print(f"{kind:<10}{what:<8}{few:>10.1f}{many:>10.1f}")
        print(f"over: {'; '.join(over)}" if over else "every limit holds")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
