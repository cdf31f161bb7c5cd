"""Ctrl-C at any moment ends a program once, in time and as usual, and its loom has all that was acknowledged."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import anyio
import pytest

from tests.exhaustive import FULL
from tests.forked import Forked
from tests.runtime.interrupted import check_loom

pytestmark = [pytest.mark.rule("Z-12"), pytest.mark.real_time]

MOMENTS = 100 if FULL else 4
"""How often each program is interrupted: with EXHAUSTIVE=1, a thousand times on each backend."""

GRACE = 20.0
"""Seconds that a program may take: five for a thread that does not end, the rest for a busy machine."""

SHAPES = [
    "entered children",
    "entered gate",
    "entered idle",
    "entered post",
    "entered python",
    "entered shell",
    "owned turn",
    "blocking turn",
    "blocking idle",
    "left turn",
]

PROGRAM = "from tests.runtime.interrupted import main; main()"


def draw_moment(rng: random.Random, number: int) -> str:
    """Return a moment: of the opening, or of the work and the closing; by lines, or by time, also where it waits."""
    if number % 2:
        return f"line {rng.randint(1, rng.choice([5000, 25_000]))}"
    return f"{rng.uniform(0, rng.choice([0.04, 0.25])):.4f}"


def interrupt(shape: str, backend: str, url: str, moment: str) -> tuple[int, list[str], str]:
    """Run a program, and interrupt it at a moment; return its exit code, its lines and its errors."""
    arguments = (shape, backend, url, moment)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Forked(PROGRAM, *arguments, finalizes=True, stdin=subprocess.DEVNULL, **pipes) as program:
        assert program.stdout is not None
        begun = program.stdout.readline()
        if not moment.startswith("line"):
            time.sleep(float(moment))
            if program.poll() is None:
                os.kill(program.pid, signal.SIGINT)
        try:
            out, err = program.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            program.kill()
            raise
    return program.returncode, (begun + out).decode().splitlines(), err.decode()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("shape", SHAPES)
def test_ctrl_c_ends_a_program_as_usual_and_loses_nothing(tmp_path: Path, shape: str, backend: str) -> None:
    rng = random.Random(f"{shape} {backend}")
    for number in range(MOMENTS):
        store = "sqlite" if number % 4 < 2 else "jsonl"
        moment, url = draw_moment(rng, number), f"{store}:{tmp_path / f'loom-{number}'}"
        code, lines, errors = interrupt(shape, backend, url, moment)
        what = f"{shape} {backend} {store} {moment}: {code} {lines} {errors}"
        if "started" in lines:  # else Python was making its event loop, and ends as it likes
            assert code == -signal.SIGINT or (not code and "ended" in lines), what
        if "started" in lines and "ended" not in lines:
            assert errors.rstrip().endswith("KeyboardInterrupt"), what
            assert not any(sign in errors for sign in ("never", "ignored", "error    ", "warning ")), what
        if Path(url.partition(":")[2]).exists():
            acknowledged = [line.split() for line in lines if line.startswith(("posted", "answered", "cast"))]
            anyio.run(check_loom, shape, url, acknowledged, backend=backend)
