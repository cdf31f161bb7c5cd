"""`python -m bench loom`: the cost of the stores, compared with SQLite itself, and of opening a large loom.

Two measurements. *Appends*: CPU per turn for each store, of one entity (two appends of two records per turn, as a
runtime does) and of 200 at once (two appends of 400). Every round measures all stores in turn, so that other load of
the machine affects all alike; the figures are medians. *Large*: a loom of 1,000,000 turns is made once in SQLite, and
one of a fifth of them in JSONL (200 MB, from where on SQLite suits better), in threads of 1,000 turns; then the time to
open it, in a process of its own and with its memory, to walk one thread, and to find one entity by name. The lower
bound is SQLite alone: inserting rows of the same bytes in transactions of the same size, and reading them.
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import orjson
import uuid_utils

from bench.processes import alone
from cantrip_actors import Observation, ToolCall, Usage
from cantrip_actors.looms import (
    Committed,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Loom,
    Record,
    Store,
    Utterance,
    encode,
    open_store,
    verify_loom,
)

__all__ = ["main"]

AT = "2026-11-21T22:00:00.123Z"
STORES = ("memory", "jsonl", "sqlite")
LIMITS = {1: 100.0, 200: 30.0}
"""CPU microseconds by which a turn in SQLite may exceed one in memory, by the number of entities at once."""
OPEN_LIMITS, WALK_LIMIT = {"sqlite": 2.0, "jsonl": 6.0}, 0.05
THREAD = 1000


class Turn(NamedTuple):
    """A turn with one gate call, as the two appends that a runtime makes of it."""

    asked: list[Record]
    done: list[Record]


def new_id() -> str:
    """Return a new id, as the runtime makes them."""
    return str(uuid_utils.uuid7())


def make_beginning(entity: str) -> list[Record]:
    """Return the first records of an entity."""
    call, circle = {"system_prompt": "You are terse."}, {"gates": ["done", "echo"], "wards": [{"max_turns": 1001}]}
    return [
        Header(entity_id=entity, cantrip_id="c0ffee", at=AT, call=call, circle=circle, crystal="scripted"),
        IntentGiven(entity, "go", AT),
    ]


def turn_of(entity: str, parent: str | None, number: int) -> Turn:
    """Return turn `number` of an entity."""
    turn, call = new_id(), f"call_{number}_1"
    utterance = Utterance(
        entity_id=entity,
        turn_id=turn,
        content=None,
        tool_calls=(ToolCall(call, "echo", {"text": f"hello {number}"}),),
        usage=Usage(10, 5),
        duration_ms=12.5,
    )
    seen = Observation("echo", None, f"hello {number}", tool_call_id=call)
    done: list[Record] = [
        GateFinished.of(entity, turn, seen, 0.5),
        Committed(turn_id=turn, entity_id=entity, parent_id=parent, sequence=number, at=AT, duration_ms=13.5),
    ]
    return Turn([utterance, GateStarted(entity, turn, call, "echo")], done)


def appends(entities: int, turns: int) -> tuple[list[Record], list[list[Record]]]:
    """Return the beginnings of entities, and the batches of their turns."""
    ids = [new_id() for _ in range(entities)]
    tips: dict[str, str | None] = dict.fromkeys(ids)
    batches: list[list[Record]] = []
    for number in range(1, turns + 1):
        made_turns = [turn_of(entity, tips[entity], number) for entity in ids]
        tips |= {entity: turn.done[1].turn_id for entity, turn in zip(ids, made_turns, strict=True)}  # type: ignore[union-attr]
        batches.append([record for turn in made_turns for record in turn.asked])
        batches.append([record for turn in made_turns for record in turn.done])
    return [record for entity in ids for record in make_beginning(entity)], batches


@contextmanager
def fresh(kind: str, postgres: str | None) -> Iterator[Store]:
    """Return an empty store of that kind."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        url = {
            "memory": "memory:",
            "jsonl": f"jsonl:{folder}/loom.jsonl",
            "sqlite": f"sqlite:{folder}/loom.db",
            "postgres": f"{postgres}{'&' if '?' in str(postgres) else '?'}schema=bench_{new_id().replace('-', '')}",
        }[kind]
        with open_store(url) as store:
            yield store


def cost(kind: str, entities: int, turns: int, postgres: str | None) -> float:
    """Return the CPU microseconds of a turn (for Postgres: wall clock, most of it the server's)."""
    clock = time.perf_counter if kind == "postgres" else time.process_time
    begun, batches = appends(entities, turns)
    with fresh(kind, postgres) as store:
        store.append(begun)
        began = clock()
        for batch in batches:
            store.append(batch)
        return (clock() - began) / (entities * turns) * 1e6


def floor(entities: int, turns: int) -> float:
    """Return the CPU microseconds of a turn in one table of SQLite alone, with the same bytes and transactions."""
    _, batches = appends(entities, turns)
    rows = [[(encode(record).decode(),) for record in batch] for batch in batches]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, plain(f"{folder}/floor.db") as connection:
        connection.execute("create table records (seq integer primary key, body text not null)")
        began = time.process_time()
        for batch in rows:
            connection.execute("begin immediate")
            connection.executemany("insert into records (body) values (?)", batch)
            connection.execute("commit")
        return (time.process_time() - began) / (entities * turns) * 1e6


@contextmanager
def plain(path: str) -> Iterator[sqlite3.Connection]:
    """Yield a connection with SQLite set up like the store's."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = wal", "synchronous = normal", "wal_autocheckpoint = 0"):
        connection.execute(f"pragma {pragma}")
    yield connection
    connection.close()


# --------------------------------------------------------------------------------------------------------------- large


def make_large(url: str, turns: int) -> float:
    """Make a loom of this many turns in threads of `THREAD`; return the seconds."""
    began = time.perf_counter()
    with open_store(f"{url}?durability=none") as store:
        for _ in range(turns // THREAD):
            entity, parent = new_id(), None
            records = make_beginning(entity)
            for number in range(1, THREAD + 1):
                turn = turn_of(entity, parent, number)
                records += [*turn.asked, *turn.done]
                parent = turn.asked[0].turn_id  # type: ignore[union-attr]
            store.append(records)
    return time.perf_counter() - began


def large(path: Path) -> dict[str, float]:
    """Return the seconds to use an existing loom's middle threads, and the MB by which opening it grew this process."""
    before, began = _read_peak(), time.perf_counter()
    store = open_store(path)
    opened, grown = time.perf_counter() - began, _read_peak() - before
    ids = [header.entity_id for header in store.headers()]
    loom = Loom(store, _refuse_append)
    walks, floors, wakes = [], [], []
    for entity in ids[len(ids) // 3 : len(ids) // 3 + 20]:
        tip = loom.turns(entity)[-1].id
        began = time.perf_counter()
        assert len(loom.thread(tip)) == THREAD
        walks.append(time.perf_counter() - began)
        began = time.perf_counter()
        store.unfinished(idle=False), store.named("nobody"), store.owner(tip)
        wakes.append(time.perf_counter() - began)
        if path.suffix != ".db":
            continue
        with plain(str(path)) as connection:
            began = time.perf_counter()
            query = "select body from records where entity = (select no from entities where id = ?) order by seq"
            connection.execute(query, (entity,)).fetchall()
            floors.append(time.perf_counter() - began)
    store.close()
    report = {"open_s": opened, "open_mb": grown, "walk_s": median(walks), "ask_s": median(wakes)}
    if floors:
        report["walk_floor_s"] = median(floors)
    return report | {"bytes": float(path.stat().st_size)}


def _read_peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


async def _refuse_append(records: Sequence[Record]) -> None:
    raise AssertionError(f"{len(records)} records where nothing is to be written")


# ---------------------------------------------------------------------------------------------------------- the command


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if a limit does not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench loom", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=1_000_000, help="of the large loom; 0 leaves it out")
    parser.add_argument("--keep", type=Path, help="a folder where the large looms are made, or are already")
    parser.add_argument("--postgres", metavar="URL", help="measure that server, too (wall clock)")
    parser.add_argument("--verify", action="store_true", help="verify the large loom as well (takes a minute)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    report: dict[str, dict[str, float]] = {}
    over = []
    for entities, turns in ((1, 4000), (200, 40)):
        report[f"{entities} at once"] = figures = _measure_appends(entities, turns, options.rounds, options.postgres)
        more = figures["sqlite"] - figures["memory"]
        figures["sqlite more than memory"] = more
        if more > LIMITS[entities]:
            over.append(
                f"{entities} at once: SQLite costs {more:.0f} us a turn more than memory, not {LIMITS[entities]}"
            )
    if options.turns:
        for kind, turns in (("sqlite", options.turns), ("jsonl", options.turns // 5)):
            report[f"{turns} turns, {kind}"] = figures = _measure_large(kind, turns, options)
            if figures["open_s"] > OPEN_LIMITS[kind]:
                over.append(f"a large {kind} loom opens in {figures['open_s']:.2f} s, not {OPEN_LIMITS[kind]}")
            if figures["walk_s"] > WALK_LIMIT:
                over.append(f"{kind}: a thread of {THREAD} turns is walked in {figures['walk_s'] * 1e3:.0f} ms, not 50")
    if options.json:
        print(orjson.dumps({**report, "over": over}, option=orjson.OPT_INDENT_2).decode())
    else:
        for what, figures in report.items():
            print(what)
            for name, figure in figures.items():
                print(f"  {name:<26}{figure:>16,.4f}" if name.endswith("_s") else f"  {name:<26}{figure:>16,.1f}")
        print(f"over: {'; '.join(over)}" if over else "every limit holds")
    return 1 if over else 0


def _measure_appends(entities: int, turns: int, rounds: int, postgres: str | None) -> dict[str, float]:
    kinds = (*STORES, "postgres") if postgres else STORES
    figures: dict[str, list[float]] = {kind: [] for kind in (*kinds, "SQLite alone")}
    for _ in range(rounds):
        for kind in kinds:
            fewer = 10 if kind == "postgres" else 1
            figures[kind].append(cost(kind, entities, max(2, turns // fewer), postgres))
        figures["SQLite alone"].append(floor(entities, turns))
    return {kind: median(figures) for kind, figures in figures.items()}


def _measure_large(kind: str, turns: int, options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, alone() as process:
        path = (options.keep or Path(folder)) / f"large.{'db' if kind == 'sqlite' else kind}"
        report: dict[str, float] = {}
        if not path.exists():
            report["make_s"] = make_large(f"{kind}:{path}", turns)
        report |= process.apply(large, (path,))
        if options.verify:
            began = time.perf_counter()
            with open_store(path, read_only=True) as store:
                assert verify_loom(store).ok
            report["verify_s"] = time.perf_counter() - began
        return report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
