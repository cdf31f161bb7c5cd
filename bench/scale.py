"""`python -m bench scale`: what a loom of many long-lived entities costs, compared with one of few.

A loom is filled through its store: each entity has the records of one that answered its first intent with a gate call,
a name of its own, and a timer that is not due. Then a process of its own opens the loom, and measures

- *open*: entering the runtime,
- *page*, *later page*: `runtime.entities(limit=20)`, the newest ones, and pages further on,
- *send*: loading an entity by name, sending an intent, and its episode of two turns,
- *timers*: the same by 50 timers that are due at once, for each of them,
- *forget*: removing an entity, which rewrites the file of an SQLite loom, so that the content is not in it any more,
- *forget, at once*: the same for each of 50 entities that are removed at once, which share the rewriting.

None of these may grow with the number of entities, but for the last two. `--awake N` loads N entities in one process
and keeps them loaded. `--plot FILE` draws the costs against the number as SVG.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import anyio
import orjson

from bench.entities import KEEPER, policy, remember
from bench.loom import new_id
from bench.processes import alone, resident
from cantrip_actors import Cantrip, Circle, Entity, Invocation, Runtime, scripted
from cantrip_actors.looms import Mail, Record, Timer, decode, encode, open_store
from cantrip_actors.wards import max_turns

__all__ = ["draw", "main"]

SIZES = (1_000, 10_000, 100_000)
MILLION = 1_000_000
BATCH = 500
"""Entities of one append."""
LIMIT = 3.0
"""The highest ratio of a cost with the most entities to that with the fewest."""
FLOOR = 2.0
"""Milliseconds below which a cost is not compared."""
DUE, SENDS, PAGES, FORGOTTEN, AT_ONCE = 50, 100, 20, 3, 50
LEAD = 2.0
"""Seconds for making the timers, besides a twentieth for each."""
FAR = 4e9
"""A time in the far future."""
AT = "2026-01-01T00:00:00.000Z"
MEASURES = ("open", "page", "later page", "send", "timers", "forget", "forget, at once")


async def _make_template() -> list[Record]:
    async with Runtime.open("memory:", cantrips=[KEEPER]) as runtime:
        entity = await runtime.invoke(KEEPER, "note 1", name="entity-template")
        await entity.episode()
        return list(runtime.loom._store.records(entity.id))  # noqa: SLF001  # lines to copy


def copy_template(template: Sequence[Record], number: int) -> tuple[str, list[Record]]:
    """Return the id and the records of entity `number`: those of the template, with ids and a name of its own."""
    header = template[0]
    turns = dict.fromkeys(turn for record in template if (turn := getattr(record, "turn_id", None)) is not None)
    names = {header.entity_id: new_id(), "entity-template": f"entity-{number}"} | {turn: new_id() for turn in turns}
    records = []
    for record in template:
        line = encode(record)
        for old, new in names.items():
            line = line.replace(old.encode(), new.encode())
        records.append(decode(line))
    return names[header.entity_id], records


def fill(url: str, count: int) -> float:
    """Fill a loom with so many entities, and return the seconds that it took."""
    template = anyio.run(_make_template)
    began = time.perf_counter()
    with open_store(url) as store:
        for first in range(0, count, BATCH):
            records: list[Record] = []
            timers: list[tuple[int, Timer]] = []
            for number in range(first, min(first + BATCH, count)):
                entity, copied = copy_template(template, number)
                mail = Mail(entity_id=entity, key=f"timer {number}", kind="timer", body={"intent": "wait"}, at=AT)
                timers.append((len(records), Timer(id=new_id(), due=FAR + number, entity_id=entity, mail=mail)))
                records += copied
            store.append(records, timers=timers)
    return time.perf_counter() - began


class Answers:
    """A cantrip that works as `KEEPER` does, and an event that is set after some more answers of its entities."""

    def __init__(self) -> None:
        self._left = 0
        self._last = anyio.Event()
        crystal = scripted(self._answer, record=False, name="keeper")
        self.cantrip = Cantrip(crystal, circle=Circle(["done", remember], [max_turns(4)]))

    def await_more(self, count: int) -> anyio.Event:
        """Return an event that is set when that many more answers have been given."""
        self._left, self._last = count, anyio.Event()
        return self._last

    def _answer(self, context: Invocation) -> dict[str, object]:
        if context[-1].role != "user":
            self._left -= 1
            if self._left == 0:
                self._last.set()
        return policy(context)


def measure(url: str, count: int) -> dict[str, float]:
    """Return the milliseconds of each measure of a filled loom, and the MB that opening it took."""
    return anyio.run(_measure, url, count)


async def _measure(url: str, count: int) -> dict[str, float]:
    chance, figures, answers = random.Random(count), dict[str, float](), Answers()
    gc.collect()
    memory, began = resident(), time.perf_counter()
    async with Runtime.open(url, cantrips=[answers.cantrip], passivate_after=0.0) as runtime:
        figures["open"] = (time.perf_counter() - began) * 1e3
        figures["open_mb"] = (resident() - memory) / 1e6
        names = [f"entity-{number}" for number in chance.sample(range(count), SENDS + DUE + FORGOTTEN + AT_ONCE)]
        figures["page"], figures["later page"] = await _list_pages(runtime)
        figures["send"] = await _send_each(runtime, names[:SENDS])
        figures["timers"] = await _wake(runtime, names[SENDS : SENDS + DUE], answers)
        forgotten = await _stop_each(runtime, names[SENDS + DUE :])
        costs = []
        for entity in forgotten[:FORGOTTEN]:
            began = time.perf_counter()
            await runtime.forget(entity)
            costs.append(time.perf_counter() - began)
        figures["forget"] = median(costs) * 1e3
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for entity in forgotten[FORGOTTEN:]:
                tasks.start_soon(runtime.forget, entity)
        figures["forget, at once"] = (time.perf_counter() - began) / AT_ONCE * 1e3
    return figures


async def _stop_each(runtime: Runtime, names: Sequence[str]) -> list[Entity]:
    entities = []
    for name in names:
        entity = runtime.entity(name)
        assert entity is not None
        await entity.stop()
        entities.append(entity)
    return entities


async def _list_pages(runtime: Runtime) -> tuple[float, float]:
    first, later = [], []
    before = None
    for _ in range(PAGES):
        began = time.perf_counter()
        page = await runtime.entities(limit=20)
        first.append(time.perf_counter() - began)
        began = time.perf_counter()
        page = await runtime.entities(limit=20, before=before or page.next)
        later.append(time.perf_counter() - began)
        before = page.next
    return median(first) * 1e3, median(later) * 1e3


async def _send_each(runtime: Runtime, names: Sequence[str]) -> float:
    costs = []
    for name in names:
        began = time.perf_counter()
        entity = runtime.entity(name)
        assert entity is not None
        assert (await entity.send("and more")).result == "kept"
        costs.append(time.perf_counter() - began)
    return median(costs) * 1e3


async def _wake(runtime: Runtime, names: Sequence[str], answers: Answers) -> float:
    """Have a timer of each entity come due at once; return the milliseconds for each until all have answered."""
    due = datetime.now(UTC) + timedelta(seconds=LEAD + len(names) / 20)
    for name in names:
        await runtime.schedule(name, "wake up", at=due)
    last = answers.await_more(len(names))
    await anyio.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
    began = time.perf_counter()
    await last.wait()
    return (time.perf_counter() - began) / len(names) * 1e3


def keep_awake(url: str, count: int) -> dict[str, float]:
    """Return the memory and the CPU of loading so many entities and of keeping them loaded."""
    return anyio.run(_keep_awake, url, count)


async def _keep_awake(url: str, count: int) -> dict[str, float]:
    async with Runtime.open(url, cantrips=[KEEPER], passivate_after=math.inf) as runtime:
        gc.collect()
        memory, cpu = resident(), time.process_time()

        async def load(numbers: Iterator[int]) -> None:
            for number in numbers:
                entity = runtime.entity(f"entity-{number}")
                if entity is not None:  # `measure` has removed some
                    await entity.send("and more")

        numbers = iter(range(count))
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(load, numbers)
        spent = time.process_time() - cpu
        gc.collect()
        held, cpu = resident() - memory, time.process_time()
        await anyio.sleep(10)
        idle = (time.process_time() - cpu) / 10
    return {"kB_each": held / count / 1e3, "ms_each": spent / count * 1e3, "idle_ms_a_second": idle * 1e3}


def find_growth(rows: dict[int, dict[str, float]]) -> list[str]:
    """Return the measures that cost more with the most entities than `LIMIT` times the cost with the fewest."""
    fewest, most = rows[min(rows)], rows[max(rows)]
    return [
        f"{name}: {fewest[name]:.1f} ms with {min(rows):,} entities, {most[name]:.1f} ms with {max(rows):,}"
        for name in MEASURES
        if not name.startswith("forget") and most[name] > FLOOR and most[name] > LIMIT * fewest[name]
    ]


def draw(rows: dict[int, dict[str, float]]) -> str:
    """Return an SVG with the milliseconds of each measure against the number of entities, both on logarithmic axes."""
    width, height, left, top = 640, 360, 60, 20
    colours = ("#1f6feb", "#2da44e", "#8250df", "#bf3989", "#bc4c00", "#57606a", "#953800")
    sizes = sorted(rows)
    decades = math.log10(sizes[-1] / sizes[0]) or 1.0

    def place(count: int, ms: float) -> str:
        x = left + math.log10(count / sizes[0]) / decades * (width - left - 140)
        y = top + (3 - math.log10(min(max(ms, 0.1), 1000.0))) / 4 * (height - top - 40)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">']
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for ms in (0.1, 1, 10, 100, 1000):
        y = place(sizes[0], ms).split(",")[1]
        parts.append(f'<path d="M{left} {y}H{width - 140}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y}" font-size="12" text-anchor="end">{ms:g} ms</text>')
    for count in sizes:
        x = place(count, 1).split(",")[0]
        parts.append(f'<text x="{x}" y="{height - 16}" font-size="12" text-anchor="middle">{count:,}</text>')
    for at, (name, colour) in enumerate(zip(MEASURES, colours, strict=True)):
        points = " ".join(place(count, rows[count][name]) for count in sizes)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{width - 130}" y="{top + 20 * (at + 1)}" font-size="13" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if a cost grows with the number of entities, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench scale", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--million", action="store_true", help="also a million entities, a quarter of an hour")
    parser.add_argument("--postgres", metavar="URL", help="in that server, and not in SQLite")
    parser.add_argument("--awake", type=int, metavar="N", help="also load N entities in one process")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the costs as SVG")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    sizes = sorted({*options.sizes, *([MILLION] if options.million else [])})
    rows: dict[int, dict[str, float]] = {}
    awake: dict[str, float] = {}
    url = ""
    with alone() as process, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for count in sizes:
            url = _make_url(options.postgres, folder, count)
            filled = process.apply(fill, (url, count))
            rows[count] = {"fill_s": filled, **process.apply(measure, (url, count))}
            if not options.json:
                print(f"{count:>9,}  " + "  ".join(f"{name} {figure:,.1f}" for name, figure in rows[count].items()))
        if options.awake:
            awake = process.apply(keep_awake, (url, min(options.awake, sizes[-1])))
    growth = find_growth(rows)
    if options.json:
        print(orjson.dumps({"rows": rows, "awake": awake, "grows": growth}, option=orjson.OPT_NON_STR_KEYS).decode())
    else:
        print(*(f"awake: {name} {figure:.2f}" for name, figure in awake.items()), sep="\n")
        print(*growth or ["no cost grows with the number of entities"], sep="\n")
    if options.plot:
        options.plot.write_text(draw(rows), encoding="utf-8")
    return 1 if growth else 0


def _make_url(postgres: str | None, folder: str, count: int) -> str:
    if postgres is None:
        return f"sqlite:{folder}/loom-{count}.db"
    return f"{postgres}{'&' if '?' in postgres else '?'}schema=bench_{new_id().replace('-', '')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
