"""`python -m bench redact` measures the documented figures, and its exit code is 1 if a limit does not hold."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.rule("X-33")
def test_redaction_is_measured_against_another_commit():
    command = [sys.executable, "-m", "bench", "redact", "--rounds", "1", "--beside", str(ROOT), "--json"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    told = orjson.loads(ran.stdout)
    assert all(told[what]["us_per_kB"] > 1 and told[what]["x_beside"] > 0 for what in ("prose", "code", "json"))
    assert ran.returncode == (1 if told["over"] else 0)
