"""`python -m bench check`: the cost of turns as ratios to the floor, compared with a stored baseline.

The floor (`bench/turns_floor.py`) runs in the same rounds, so the ratios depend little on the machine. Each store has a
floor of its own. The command prints a notice for each ratio that differs from the baseline by more than the tolerance,
and its exit code is 0 all the same: a busy machine may be the reason.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from bench.turns import measure

__all__ = ["BASELINE", "compare", "main"]

BASELINE = Path(__file__).with_name("baseline.json")
TOLERANCE = 1.25
"""The factor by which a ratio may differ from the baseline's, in either direction."""
SHAPE = (200, 1)
STORES = ("memory", "jsonl", "sqlite")


def main(argv: Sequence[str]) -> int:
    """Measure, print each ratio beside the baseline's, and return 0."""
    parser = argparse.ArgumentParser(prog="python -m bench check", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--update", action="store_true", help="store the ratios as the new baseline")
    options = parser.parse_args(argv)
    ratios = measure_ratios(options.rounds)
    if options.update:
        stored = {"python": platform.python_version(), "ratios": ratios}
        options.baseline.write_bytes(orjson.dumps(stored, option=orjson.OPT_INDENT_2) + b"\n")
    baseline = orjson.loads(options.baseline.read_bytes())
    print(f"x floor here on Python {platform.python_version()}, in the baseline on {baseline['python']}")
    print(*compare(ratios, baseline["ratios"]), sep="\n")
    return 0


def measure_ratios(rounds: int) -> dict[str, float]:
    """Return the cost of a turn in each store, divided by that of the floor in the same rounds."""
    report = measure([SHAPE], STORES, rounds, "asyncio", flat=False)
    return {line.store: round(line.figures["cpu_us"] / line.floor_us, 2) for line in report.lines if line.floor_us}


def compare(ratios: Mapping[str, float], baseline: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each ratio; one that differs from the baseline by more than the tolerance is a notice."""
    for store, ratio in ratios.items():
        if store not in baseline:
            yield f"notice: {store}: {ratio:.1f}, and the baseline has none"
            continue
        change = ratio / baseline[store]
        is_within = 1 / TOLERANCE <= change <= TOLERANCE
        yield f"{'' if is_within else 'notice: '}{store}: {ratio:.1f}, baseline {baseline[store]:.1f} (x {change:.2f})"
