"""`python -m bench redact`: CPU microseconds to redact a kilobyte of clean prose, source code and JSON records.

`--beside TREE` measures a checkout of another commit in the same run, alternately, and prints the ratio.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

import orjson

from cantrip_actors.redact.redactor import Redactor

ROOT = Path(__file__).resolve().parent.parent
PIECE = 2000
LIMITS = {"prose": 1.05, "code": 1.05, "json": 1.3}
"""The highest ratio to the other commit's cost."""
PROSE = "An ordinary sentence says what somebody thinks of it, and nobody knows why. It has 12 words, or more of them. "


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if a text costs more than at the other commit, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench redact", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, metavar="TREE", help="a checkout of another commit to compare with")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    trees = [ROOT] if options.beside is None else [ROOT, options.beside.resolve()]
    least: dict[Path, dict[str, float]] = {}
    for _ in range(options.rounds):
        for tree in trees:
            # the other commit may lack this file, so this one runs and imports the modules of that tree
            command = [sys.executable, str(Path(__file__).resolve()), "measure"]
            ran = subprocess.run(command, cwd=tree, env={"PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, check=True)
            measured = orjson.loads(ran.stdout)
            least[tree] = {what: min(us, least.get(tree, measured)[what]) for what, us in measured.items()}
    figures = {what: {"us_per_kB": us} for what, us in least[ROOT].items()}
    for what, figure in figures.items() if len(trees) > 1 else ():
        figure["x_beside"] = least[ROOT][what] / least[trees[1]][what]
    over = [what for what, figure in figures.items() if figure.get("x_beside", 0) > LIMITS[what]]
    if options.json:
        print(orjson.dumps({**figures, "over": over}, option=orjson.OPT_INDENT_2).decode())
    else:
        for what, figure in figures.items():
            print(f"{what:<8}" + "  ".join(f"{name} {value:,.2f}" for name, value in figure.items()))
        print(f"over the limit: {', '.join(over)}" if over else "every limit holds")
    return 1 if over else 0


def texts() -> dict[str, str]:
    """Return the texts to redact."""
    library = Path(sysconfig.get_path("stdlib"))
    names = ("argparse.py", "asyncio/base_events.py", "http/client.py", "logging/__init__.py", "typing.py")
    code = "".join((library / name).read_text(encoding="utf-8") for name in names)
    record = {
        "kind": "gate_finished",
        "entity": "01a2002a8ab471ba",
        "turn": "9d5e8e88887f",
        "result": PROSE,
        "ms": 12.5,
    }
    records = [{**record, "at": f"2026-11-21T22:{n % 60:02}:00.123Z", "chain": f"{n:024x}"} for n in range(500)]
    return {"prose": PROSE * 2000, "code": code, "json": orjson.dumps(records).decode()}


def measure() -> dict[str, float]:
    """Return the CPU microseconds for a kilobyte of each text."""
    redactor = Redactor({"search": "a-secret-that-is-nowhere"})
    figures: dict[str, float] = {}
    for what, text in texts().items():
        pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
        for piece in pieces[:5]:
            redactor.text(piece)
        began = time.process_time()
        for piece in pieces:
            redactor.text(piece)
        figures[what] = (time.process_time() - began) * 1e9 / len(text)
    return figures


if __name__ == "__main__":
    print(orjson.dumps(measure()).decode())
