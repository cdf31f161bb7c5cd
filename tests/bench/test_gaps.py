"""`python -m bench gaps` measures each row, and its exit code is 1 if a gap is above the limit."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.real_time
def test_gaps_are_measured_while_the_loom_is_locked_and_listed() -> None:
    options = ["--megabytes", "1", "--entities", "100", "--hold", "0.5", "--limit", "0.001", "--json"]
    command = [sys.executable, "-m", "bench", "gaps", "locked", "entities", *options]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    figures = orjson.loads(ran.stdout)
    assert figures.pop("over") == list(figures) == ["locked", "entities"]
    assert figures["locked"]["took_s"] == 0.5
    assert figures["locked"]["gap_ms"] > 0
    assert figures["entities"]["took_s"] > 0
    assert ran.returncode == 1
