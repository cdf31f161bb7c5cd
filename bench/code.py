"""`python -m bench code`: the cost of programs: a turn with one gate call in each language, and a restored sandbox.

Every figure is CPU time of a whole tree of processes, workers and shells included: a subject runs in a process of its
own, once with many turns and once with few, and the difference in time is divided by the difference in turns. Rounds
alternate between subjects, so that other load of the machine affects all of them alike; the median counts.

smolagents' CodeAgent is measured for comparison, with a scripted model and a tool as a gate. Its interpreter runs in
its own process and stores nothing. It is not a dependency of this project: `--peers FOLDER` makes a virtual environment
there, once, and installs it; the report names each missing peer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import orjson

__all__ = ["main", "per_turn"]

ROOT = Path(__file__).parent.parent
FEW, MANY = 20, 220
"""Turns of the two runs whose difference is measured."""
AGAIN = 61
"""Programs that the restored sandbox ran before."""

TURNS = ("python", "javascript", "shell")
PEER = "smolagents"
PEER_VERSION = "smolagents==1.26.0"
LIMIT = 3.0
"""Milliseconds of CPU that a Python turn with one gate call may take."""


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if `--check` is given and a limit does not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench code", description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="a folder for the virtual environment of the peers")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a limit does not hold")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    peer = None if args.peers is None else _find_peer(args.peers)
    missing = "not asked for: give --peers FOLDER" if args.peers is None else "it cannot be installed here"
    samples: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for language in TURNS:
            for store in ("memory", "sqlite"):
                samples.setdefault(f"turn {language} {store}", []).append(_measure_difference("turn", language, store))
            for how in ("snapshot", "replay"):
                if (language, how) != ("shell", "snapshot"):  # a process has no snapshot
                    samples.setdefault(f"restore {language} {how}", []).append(_measure_alone("restore", language, how))
        if peer is not None:
            samples.setdefault(f"turn {PEER}", []).append(_measure_difference("turn", PEER, "memory", python=peer))
    figures = {name: median(values) for name, values in samples.items()}
    if args.json:
        sys.stdout.buffer.write(orjson.dumps({"ms": figures, "missing": {} if peer else {PEER: missing}}) + b"\n")
    else:
        sys.stdout.write(_render_table(figures, None if peer else missing))
    return 1 if args.check and max(figures[f"turn python {store}"] for store in ("memory", "sqlite")) > LIMIT else 0


def _render_table(figures: dict[str, float], missing: str | None) -> str:
    lines = [f"{'CPU of a turn with one gate call':<48}{'ms':>8}"]
    for name, ms in figures.items():
        what, rest = name.split(" ", 1)
        if what == "turn":
            verdict = "" if not rest.startswith("python") else f"  limit {LIMIT:g}  {'ok' if ms <= LIMIT else 'OVER'}"
            lines.append(f"  {rest:<46}{ms:>8.2f}{verdict}")
    if missing is not None:
        lines.append(f"  {PEER:<46}{'-':>8}  {missing}")
    lines.append(f"\n{f'a fork after {AGAIN} programs, wall clock':<48}{'ms':>8}")
    for name, ms in figures.items():
        what, rest = name.split(" ", 1)
        if what == "restore":
            lines.append(f"  {rest:<46}{ms:>8.2f}")
    return "\n".join([*lines, ""])


def per_turn(few: float, many: float) -> float:
    """Return the milliseconds of a turn, from the CPU seconds of few turns and of many."""
    return (many - few) / (MANY - FEW) * 1e3


def _measure_difference(*job: str, python: Path | None = None) -> float:
    few, many = (_run(*job, str(turns), python=python)[0] for turns in (FEW, MANY))
    return per_turn(few, many)


def _measure_alone(*job: str) -> float:
    return float(_run(*job)[1])


def _run(*job: str, python: Path | None = None) -> tuple[float, str]:
    """Return the CPU seconds of a job and of its child processes, and its output."""
    worker = ROOT / "bench" / ("code_worker.py" if python is None else "code_peer.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(  # our own script
        [python or sys.executable, worker, *job], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{worker.name} {' '.join(job)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, output


def _find_peer(folder: Path) -> Path | None:
    """Return the interpreter of an environment with the peer, made if needed; None if it cannot be installed."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    began = time.monotonic()
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEER_VERSION]
    done = subprocess.run(install, check=False, capture_output=True, text=True)
    if done.returncode:
        took = time.monotonic() - began
        sys.stderr.write(f"{PEER_VERSION}: {done.stderr.strip().splitlines()[-1:]} ({took:.0f} s)\n")
        return None
    return python
