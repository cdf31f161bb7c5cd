"""`python -m bench sends` measures the documented figures, and its exit code is 1 if a limit does not hold."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.rule("C-06", "C-71")
def test_sends_and_loads_are_measured_in_each_store_and_at_another_commit():
    options = ["--few", "20", "--many", "60", "--rounds", "1", "--beside", str(ROOT), "--json"]
    command = [sys.executable, "-m", "bench", "sends", *options]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    told = orjson.loads(ran.stdout)
    assert {"idle_us", "x_beside"} == set(told["memory"]) == set(told["jsonl"])
    assert told["sqlite"].keys() > {"load_few_us", "load_many_us", "x_load", "stall_s"}
    assert all(told[store]["idle_us"] > 10 for store in ("memory", "jsonl", "sqlite"))
    assert ran.returncode == (1 if told["over"] else 0)
