"""`python -m bench turns` measures turns, bytes and ratios, and its exit code is 1 if a limit does not hold."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from bench.__main__ import main
from bench.turns import FLAT_LIMIT, Line, Report, _list_shapes, as_json, as_text
from bench.turns_where import OTHER, PHASES, find_phase, measure_phases
from bench.turns_worker import EARLY, LATE, LONG, Job, answer, payload, run_job

ROOT = Path(__file__).parent.parent.parent


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *args], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def report(cpu_us: float = 100.0, ratio: float = 1.0, overhead: float = 500.0, beside: float | None = None) -> Report:
    figures = {"cpu_us": cpu_us, "peak_mb": 50.0, "per_turn_b": 900.0, "written_b": 600.0, "overhead_b": overhead}
    flat = {"jsonl": {"early_us": 100.0, "late_us": 100.0 * ratio, "ratio": ratio}}
    lines = [Line(1000, 1, "jsonl", figures, 25.0, beside), Line(20, 200, "jsonl", figures, None, None)]
    return Report(lines, flat, 3, "asyncio")


@pytest.mark.parametrize("store", ["memory", "jsonl"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_measurement_of_the_runtime_has_all_figures(store, backend):
    told = run_job(Job("runtime", store, 20, 2, backend))
    assert 10 < told["cpu_us"] < 100_000
    assert told["peak_mb"] > 10
    if store == "jsonl":
        assert told["written_b"] - told["overhead_b"] == pytest.approx(payload(20) / 20)
        assert 0 < told["overhead_b"] < 2000


@pytest.mark.parametrize("store", ["memory", "jsonl", "sqlite"])
def test_the_floor_is_below_the_runtime(store):
    floor = run_job(Job("floor", store, 20, 20))["cpu_us"]
    assert 0 < floor < run_job(Job("runtime", store, 20, 20))["cpu_us"]


def test_the_windows_lie_around_turn_100_and_turn_10000():
    assert sum(EARLY) / 2 == pytest.approx(100, abs=1)
    assert sum(LATE) / 2 == pytest.approx(10_000, abs=1)
    assert LATE[1] <= LONG


def test_the_payload_consists_of_utterances_and_observations():
    assert answer(0, 2)["tool_calls"][0]["gate"] == "echo"
    assert answer(1, 2)["tool_calls"][0]["gate"] == "done"
    assert payload(2) == len('{"text":"hello 0"}') + len('"hello 0"') + len('{"answer":"ok"}') + len('"ok"')


def test_the_report_names_measurements_over_their_limit():
    assert report().over == []
    assert report(cpu_us=125).over == []
    assert report(cpu_us=135).over == ["200 x 20 turns jsonl: CPU us a turn"]
    assert report(ratio=FLAT_LIMIT + 0.01).over == ["jsonl: turn 10,000 to turn 100"]
    assert len(report(overhead=1025).over) == 2
    assert "every limit holds" in as_text(report())
    assert "OVER" in as_text(report(cpu_us=1000))


@pytest.mark.rule("C-71")
def test_a_turn_that_costs_more_than_at_another_commit_is_over_its_limit():
    assert report(cpu_us=103, beside=100).over == []
    assert report(cpu_us=104, beside=100).over == ["1,000 turns jsonl: CPU beside the other commit's"]


@pytest.mark.rule("C-71")
def test_another_commit_is_measured_in_the_same_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rounds", "1", "--shapes", "20", "--stores", "memory", "--no-flat", "--backend", "trio"]  # no floor
    assert main(["turns", "--json", *options, "--beside", str(ROOT)]) == 0
    assert 0.2 < orjson.loads(capsys.readouterr().out)["shapes"][0]["times_beside"] < 5


def test_the_report_is_rendered_as_json():
    told = orjson.loads(as_json(report(ratio=2.0)))
    assert [check["ok"] for check in told["checks"] if "10,000" in check["what"]] == [False]
    assert told["shapes"][0]["times_floor"] == 4.0
    assert told["shapes"][1]["times_floor"] is None


def test_the_command_prints_json_and_with_check_its_exit_code_follows():
    ran = bench("turns", "--json", "--rounds", "1", "--shapes", "5x4", "--stores", "jsonl", "--no-flat", "--check")
    told = orjson.loads(ran.stdout)
    assert [(one["turns"], one["entities"]) for one in told["shapes"]] == [(5, 4)]
    assert _list_shapes("20,5x20") == [(20, 1), (5, 20)]
    assert ran.returncode == (0 if all(check["ok"] for check in told["checks"]) else 1)


def test_the_profile_names_the_most_expensive_functions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["turns", "--profile", "--shapes", "20", "--top", "5"]) == 0
    assert "tottime" in capsys.readouterr().out


@pytest.mark.parametrize("args", [["--shapes", "many"], ["--shapes", "0"], ["--rounds", "0"], ["--stores", "paper"]])
def test_arguments_that_cannot_be_measured_are_rejected(args):
    with pytest.raises(SystemExit) as rejected:
        main(["turns", *args])
    assert rejected.value.code == 2


def test_an_unknown_subcommand_lists_the_known_ones():
    asked = bench("trurns")
    assert asked.returncode == 2
    assert "turns" in asked.stderr


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_phases_of_a_turn_add_up_to_its_cost(store: str) -> None:
    phases = measure_phases(Job("runtime", store, 20, 20))
    assert phases.samples.keys() <= {*PHASES.values(), OTHER}
    rendered = phases.render().splitlines()
    assert rendered[0].startswith(f"20 x 20 turns, {store}: ")
    assert sum(float(row.split()[0]) for row in rendered[1:]) == pytest.approx(phases.cpu_us, rel=0.02)


def test_the_phase_of_a_module_is_that_of_its_nearest_package() -> None:
    assert find_phase("cantrip_actors.runtime.loom.loom_writer") == "the loom's writer"
    assert find_phase("cantrip_actors.runtime.face.work") == "the rest of the runtime"
    assert find_phase("pydantic.main") is None


def test_a_figure_over_its_goal_is_printed_and_is_no_failure() -> None:
    figures = {"cpu_us": 60.0, "peak_mb": 50.0, "per_turn_b": 900.0}
    lines = [Line(1000, 1, store, figures, 30.0, None) for store in ("memory", "sqlite")]
    slow = Report(lines, {}, 1, "asyncio")
    assert [line.times_floor for line in lines] == [2.0, 2.0]
    assert [line.floor_goal for line in lines] == [1.8, 2.2]
    assert slow.over == []
    assert "2.00   1.8" in as_text(slow)
