"""`python -m bench turns`: the cost of a turn of the runtime, compared with the floor of this architecture and limits.

Every figure is the median of several rounds; in a round everything is measured once, each in a process of its own, so
that other load of the machine affects all of them alike. CPU time counts, not wall clock: the crystal answers at once,
so the rest is the runtime's. The limits were set on a machine where the floor took 58 microseconds for one entity and
21 for 200; on another machine the ratio to the floor says more than the microseconds.

`--beside TREE` measures a checkout of another commit in the same rounds: a change may make no shape more expensive than
1.03 times the cost before it.
"""

from __future__ import annotations

import argparse
import cProfile
import platform
import pstats
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import orjson

from bench.turns_where import measure_phases
from bench.turns_worker import Job, run_job

__all__ = ["main"]

ROOT = Path(__file__).parent.parent
SHAPES = ("20", "100", "1000", "10000", "20x200")
STORES = ("memory", "jsonl", "sqlite")

CPU_LIMITS = {
    ("memory", False): 180.0,
    ("jsonl", False): 220.0,
    ("sqlite", False): 300.0,
    ("memory", True): 100.0,
    ("jsonl", True): 130.0,
    ("sqlite", True): 160.0,
}
"""CPU microseconds a turn: by store, and for one entity or many at once."""
FLOOR_GOALS = {("memory", False): 1.8, ("sqlite", False): 2.2, ("memory", True): 1.6, ("sqlite", True): 1.8}
"""The ratios to the floor that the project aims at. A figure over its goal is printed, and is no failure."""
JSONL_GOAL = 1.15
"""The same for a turn with JSONL, compared with one in memory."""
REFERENCE_FLOOR = {False: 58.0, True: 21.0}
"""The cost of the floor (memory; one entity, many) on the machine on which the limits were set."""
FLAT_LIMIT = 1.2
OVERHEAD_LIMIT = 1024.0
BESIDE_LIMIT = 1.03
"""The highest ratio of the cost of a turn to that at another commit."""


class Line(NamedTuple):
    """One shape on one store: how many turns and entities, and the medians."""

    turns: int
    entities: int
    store: str
    figures: Mapping[str, float]
    floor_us: float | None
    beside_us: float | None
    """The cost of a turn at the other commit."""

    @property
    def times_floor(self) -> float | None:
        """The cost of a turn, compared with the floor's in the same run."""
        return self.figures["cpu_us"] / self.floor_us if self.floor_us else None

    @property
    def floor_goal(self) -> float | None:
        """The ratio to the floor that the project aims at; None for a store without one."""
        return FLOOR_GOALS.get((self.store, self.entities > 1))

    @property
    def limit_us(self) -> float:
        """The limit for the cost of a turn."""
        return CPU_LIMITS[self.store, self.entities > 1]


class Report(NamedTuple):
    """All measurements."""

    lines: Sequence[Line]
    flat: Mapping[str, Mapping[str, float]]
    """By store: the cost of turns around 100 and around 10,000, and their ratio."""
    rounds: int
    backend: str

    def checks(self) -> list[tuple[str, float, float]]:
        """Yield each check: its name, its figure and its limit."""
        checks = [
            (f"{_name_shape(line)} {line.store}: CPU us a turn", line.figures["cpu_us"], line.limit_us)
            for line in self.lines
        ]
        checks += [
            (f"{store}: turn 10,000 to turn 100", flat["ratio"], FLAT_LIMIT) for store, flat in self.flat.items()
        ]
        checks += [
            (f"{_name_shape(line)} {line.store}: bytes of overhead a turn", line.figures["overhead_b"], OVERHEAD_LIMIT)
            for line in self.lines
            if "overhead_b" in line.figures
        ]
        checks += [
            (
                f"{_name_shape(line)} {line.store}: CPU beside the other commit's",
                line.figures["cpu_us"] / line.beside_us,
                BESIDE_LIMIT,
            )
            for line in self.lines
            if line.beside_us
        ]
        return checks

    @property
    def over(self) -> list[str]:
        """Return the figures that are over their limits."""
        return [what for what, figure, limit in self.checks() if figure > limit]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code is 0, or with `--check` 1 where a limit does not hold."""
    options = _parse_options(argv)
    if options.profile:
        _write_profile(options)
        return 0
    if options.where:
        print(*_list_phases(options), sep="\n\n")
        return 0
    report = measure(
        options.shapes,
        options.stores,
        options.rounds,
        options.backend,
        flat=not options.no_flat,
        beside=options.beside,
    )
    print(as_json(report) if options.json else as_text(report))
    return 1 if options.check and report.over else 0


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench turns", description="The cost of a turn.")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a limit does not hold")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio", help="default: %(default)s")
    parser.add_argument(
        "--shapes", type=_list_shapes, default=[_parse(shape) for shape in SHAPES], metavar="TURNS[xENTITIES],…",
        help=f"default: {','.join(SHAPES)}",
    )  # fmt: skip
    parser.add_argument("--stores", type=lambda text: text.split(","), default=list(STORES), metavar="STORE,…")
    parser.add_argument(
        "--no-flat", action="store_true", help="leave out the long run that compares early turns with late"
    )
    parser.add_argument("--beside", type=Path, metavar="TREE", help="a checkout of another commit to compare with")
    parser.add_argument("--profile", action="store_true", help="run the first shape on the first store under cProfile")
    parser.add_argument("--where", action="store_true", help="print the phases in which the time of a turn goes")
    parser.add_argument("--top", type=int, default=40, help="functions that --profile prints; default: %(default)s")
    options = parser.parse_args(argv)
    if options.rounds < 1 or not set(options.stores) <= set(STORES):
        parser.error(f"expected at least one round, and stores out of {', '.join(STORES)}")
    return options


def _list_shapes(text: str) -> list[tuple[int, int]]:
    return [_parse(shape) for shape in text.split(",")]


def _parse(text: str) -> tuple[int, int]:
    turns, _, entities = text.partition("x")
    try:
        shape = int(turns), int(entities or 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected TURNS or TURNSxENTITIES, as in 20x200") from None
    if min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected at least one turn and one entity")
    return shape


# ------------------------------------------------------------------------------------------------------------ measuring


def measure(
    shapes: Sequence[tuple[int, int]],
    stores: Sequence[str],
    rounds: int,
    backend: str,
    *,
    flat: bool = True,
    beside: Path | None = None,
) -> Report:
    """Run everything `rounds` times, interleaved, and take the medians."""
    jobs = [Job("runtime", store, *shape, backend) for shape in shapes for store in stores]
    runs = [(job, tree) for job in jobs for tree in (ROOT, beside) if tree is not None]
    if backend == "asyncio":
        runs += [(replace(job, what="floor"), ROOT) for job in jobs]
    if flat:
        runs += [(Job("flat", store, 1, 1, backend), ROOT) for store in stores]
    seen: dict[tuple[Job, Path], list[dict[str, float]]] = {run: [] for run in runs}
    for number in range(1, rounds + 1):
        for n, run in enumerate(runs, 1):
            print(f"\rround {number} of {rounds}, {n} of {len(runs)} ", end="", file=sys.stderr, flush=True)
            seen[run].append(_run_in_process(*run))
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    medians = {run: {name: median(sample[name] for sample in some) for name in some[0]} for run, some in seen.items()}
    costs = {run: figures["cpu_us"] for run, figures in medians.items() if "cpu_us" in figures}
    lines = [
        Line(
            job.turns,
            job.entities,
            job.store,
            medians[job, ROOT],
            costs.get((replace(job, what="floor"), ROOT)),
            None if beside is None else costs[job, beside],
        )
        for job in jobs
    ]
    return Report(
        lines, {job.store: figures for (job, _), figures in medians.items() if job.what == "flat"}, rounds, backend
    )


def _run_in_process(job: Job, tree: Path) -> dict[str, float]:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.turns_worker", orjson.dumps(asdict(job)).decode()],
        cwd=tree,  # import the modules of this folder
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: dict[str, float] = orjson.loads(ran.stdout)["figures"]
    return figures


def _list_phases(options: argparse.Namespace) -> Iterator[str]:
    """Yield the phases of each shape on each store, measured in this process."""
    is_default = options.shapes == [_parse(shape) for shape in SHAPES]
    shapes: Sequence[tuple[int, int]] = [(2000, 1), (20, 200)] if is_default else options.shapes
    for turns, entities in shapes:
        for store in options.stores:
            yield measure_phases(Job("runtime", store, turns, entities, options.backend)).render()


def _write_profile(options: argparse.Namespace) -> None:
    """Profile one shape in this process, and print where the time goes; the profiler inflates all times."""
    (turns, entities), store = options.shapes[0], options.stores[0]
    if options.shapes == [_parse(shape) for shape in SHAPES]:
        turns, entities = 2000, 1
    job = Job("runtime", store, turns, entities, options.backend)
    run_job(job)  # imports and schemas are not part of a turn's cost
    profile = cProfile.Profile()
    profile.enable()
    run_job(job)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(options.top)


# ------------------------------------------------------------------------------------------------------------ reporting


def _name_shape(line: Line) -> str:
    return f"{line.turns:,} turns" if line.entities == 1 else f"{line.entities} x {line.turns} turns"


def _judge(figure: float, limit: float) -> str:
    return "ok" if figure <= limit else "OVER"


def as_text(report: Report) -> str:
    """Return the figures as a table, with each limit and whether it holds."""
    where = f"{report.backend}, Python {platform.python_version()}, {platform.machine()}"
    rows = [f"CPU microseconds a turn; medians of {report.rounds} rounds ({where})", ""]
    rows.append(
        f"{'entities':<18}{'store':<8}{'us/turn':>9}{'limit':>7}{'':>6}{'floor':>8}{'x floor':>9}{'goal':>6}"
        f"{'x beside':>10}{'peak MB':>9}{'B/turn held':>13}{'B/turn written':>16}{'overhead':>10}"
    )
    for line in report.lines:
        figures = line.figures
        floor = f"{line.floor_us:>8.1f}{line.times_floor:>9.2f}" if line.floor_us else f"{'-':>8}{'-':>9}"
        floor += f"{line.floor_goal or '-':>6}"
        beside = f"{figures['cpu_us'] / line.beside_us:>10.2f}" if line.beside_us else f"{'-':>10}"
        written = (
            f"{figures['written_b']:>16.0f}{figures['overhead_b']:>10.0f}"
            if "written_b" in figures
            else f"{'-':>16}{'-':>10}"
        )
        rows.append(
            f"{_name_shape(line):<18}{line.store:<8}{figures['cpu_us']:>9.1f}{line.limit_us:>7.0f}"
            f"{_judge(figures['cpu_us'], line.limit_us):>6}{floor}{beside}{figures['peak_mb']:>9.1f}"
            f"{figures['per_turn_b']:>13.0f}{written}"
        )
    rows += ["", _describe_floor()]
    for store, flat in report.flat.items():
        rows.append(
            f"{store}: turn 100 costs {flat['early_us']:.1f} us, turn 10,000 {flat['late_us']:.1f} us: "
            f"x {flat['ratio']:.2f} (limit {FLAT_LIMIT}) {_judge(flat['ratio'], FLAT_LIMIT)}"
        )
    rows += _compare_stores(report)
    most = max((line.figures["overhead_b"] for line in report.lines if "overhead_b" in line.figures), default=None)
    if most is not None:
        rows.append(f"log overhead: {most:.0f} B a turn (limit {OVERHEAD_LIMIT:.0f}) {_judge(most, OVERHEAD_LIMIT)}")
    rows.append(f"over: {'; '.join(report.over)}" if report.over else "every limit holds")
    return "\n".join(rows)


def _compare_stores(report: Report) -> Iterator[str]:
    """Yield how a turn with JSONL compares with one in memory."""
    costs = {(_name_shape(line), line.store): line.figures["cpu_us"] for line in report.lines}
    for (shape, store), cost in costs.items():
        if store == "jsonl" and (shape, "memory") in costs:
            ratio = cost / costs[shape, "memory"]
            yield f"{shape}: jsonl costs x {ratio:.2f} of memory (goal {JSONL_GOAL})"


def _describe_floor() -> str:
    floors = {many: CPU_LIMITS["memory", many] / floor for many, floor in REFERENCE_FLOOR.items()}
    return (
        f"the limits were set where the floor (memory) took {REFERENCE_FLOOR[False]:.0f} us for one entity and "
        f"{REFERENCE_FLOOR[True]:.0f} for 200: they are x {floors[False]:.1f} and x {floors[True]:.1f} floors"
    )


def as_json(report: Report) -> str:
    """Return the figures for programs."""
    report_json: dict[str, Any] = {
        "backend": report.backend,
        "python": platform.python_version(),
        "rounds": report.rounds,
        "shapes": [
            {
                "turns": line.turns,
                "entities": line.entities,
                "store": line.store,
                **line.figures,
                "limit_us": line.limit_us,
                "floor_us": line.floor_us,
                "times_floor": line.times_floor,
                "floor_goal": line.floor_goal,
                "times_beside": line.figures["cpu_us"] / line.beside_us if line.beside_us else None,
            }
            for line in report.lines
        ],
        "flat": report.flat,
        "checks": [
            {"what": what, "figure": figure, "limit": limit, "ok": figure <= limit}
            for what, figure, limit in report.checks()
        ],
    }
    return orjson.dumps(report_json, option=orjson.OPT_INDENT_2).decode()
