"""`python -m bench counts` counts bytecodes and calls here and at another commit."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.rule("C-71")
def test_bytecodes_and_calls_are_counted_here_and_at_another_commit() -> None:
    command = [sys.executable, "-m", "bench", "counts", "turn", "send", "--beside", str(ROOT), "--top", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    rows = [line.split() for line in ran.stdout.splitlines()[1:]]
    totals = {(row[0], row[1]): [int(figure) for figure in row[2:]] for row in rows if row[0] in ("turn", "send")}
    assert totals.keys() == {(what, where) for what in ("turn", "send") for where in ("here", "beside")}
    assert all(bytecodes > distinct > calls > 100 for bytecodes, distinct, calls, _ in totals.values())
    here, beside = totals["turn", "here"], totals["turn", "beside"]
    assert abs(here[0] - beside[0]) < 0.05 * beside[0]
    assert sum(row[-1].endswith("._run_once") for row in rows) == 4
