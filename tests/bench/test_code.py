"""`python -m bench code` measures the documented figures, and names missing peers."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from bench import code
from bench.code import FEW, MANY, per_turn

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.real_time  # programs compute in threads and worker processes


def test_a_turn_is_the_difference_divided_by_the_turns_that_make_it() -> None:
    assert per_turn(1.0, 1.0 + (MANY - FEW) / 1e3) == pytest.approx(1.0)


@pytest.mark.parametrize("job", [("turn", "python", "sqlite", "2"), ("restore", "python", "snapshot")])
def test_a_job_does_its_work_in_a_process_of_its_own(job: tuple[str, ...]) -> None:
    seconds, said = code._run(*job)
    assert seconds > 0
    assert (float(said) > 0) if job[0] == "restore" else said == ""


def test_the_report_has_every_measurement_and_names_missing_peers(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(code, "_run", lambda *job, python=None: (float(job[-1]) / 1e3 if job[0] == "turn" else 0, "2"))
    assert code.main(["--rounds", "1", "--json"]) == 0
    told = orjson.loads(capfdbinary.readouterr().out)
    turns = [f"turn {language} {store}" for language in code.TURNS for store in ("memory", "sqlite")]
    assert {*turns, "restore shell replay", "restore python snapshot"} < set(told["ms"])
    assert "restore shell snapshot" not in told["ms"]
    assert told["ms"]["turn python memory"] == pytest.approx(1.0)
    assert "--peers" in told["missing"]["smolagents"]
    assert code.main(["--rounds", "1"]) == 0
    assert b"smolagents" in capfdbinary.readouterr().out


def test_an_exceeded_limit_sets_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_run", lambda *job, python=None: (float(job[-1]) / 100 if job[0] == "turn" else 0, "2"))
    assert code.main(["--rounds", "1", "--json"]) == 0
    assert code.main(["--rounds", "1", "--check"]) == 1


def test_code_is_a_subcommand_of_bench() -> None:
    told = subprocess.run([sys.executable, "-m", "bench", "--help"], cwd=ROOT, capture_output=True, check=False).stdout
    assert b"python -m bench code" in told
