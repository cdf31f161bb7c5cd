"""Killed by SIGKILL at every border, resumed by the next process from its files alone."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.exhaustive import FULL, REST
from tests.forked import Forked

EVERY = 1 if FULL else 5
FIRST = 3 if REST else 1
CAMPAIGN = """
import sys
from pathlib import Path
from tests.dispatch.killed import main
main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
"""
ROOT = Path(__file__).parents[2]
PROGRESS = ["pressed a", "did it", "ran the tests of 1: 12 passed", "ran the tests of 2: 12 passed"]


@pytest.mark.rule("F-09", "F-10", "F-23", "F-24", "F-26", "F-27")
def test_a_dispatch_killed_at_any_write_finishes_with_the_same_progress_and_one_recovery_per_kill(
    tmp_path: Path,
) -> None:
    pipe = subprocess.PIPE
    with Forked(CAMPAIGN, tmp_path, EVERY, FIRST, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as campaign:
        printed, errors = campaign.communicate(timeout=240)
    lives = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert campaign.returncode == 0, errors[-4000:]
    assert len(lives) > 50 // EVERY
    assert [life["killed"] for life in lives] == [True] * (len(lives) - 1) + [False]
    for life in lives:
        assert (life["next"], life["status"]) == (0, "completed"), life
        assert life["recoveries"] == life["attempt"] - 1 <= 1, life
        assert life["progress"] == PROGRESS, life
        assert sorted(life["pressed"]) == sorted(set(life["pressed"])), life
