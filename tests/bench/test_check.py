"""`python -m bench check` compares ratios with a stored baseline, and differences are notices."""

from pathlib import Path

import orjson
import pytest

from bench import check


def test_a_ratio_beyond_the_tolerance_is_a_notice() -> None:
    lines = list(check.compare({"memory": 2.0, "jsonl": 3.0, "sqlite": 4.0}, {"memory": 1.9, "jsonl": 2.0}))
    assert lines == [
        "memory: 2.0, baseline 1.9 (x 1.05)",
        "notice: jsonl: 3.0, baseline 2.0 (x 1.50)",
        "notice: sqlite: 4.0, and the baseline has none",
    ]
    assert next(check.compare({"memory": 1.0}, {"memory": 2.0})).startswith("notice")


def test_a_difference_does_not_fail_and_an_update_stores_the_ratios(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "measure_ratios", lambda _: {"memory": 3.0})
    baseline = tmp_path / "baseline.json"
    baseline.write_bytes(b'{"python": "3.11.2", "ratios": {"memory": 2.0}}')
    assert check.main(["--baseline", str(baseline)]) == 0
    assert "notice: memory: 3.0, baseline 2.0 (x 1.50)" in capsys.readouterr().out
    assert check.main(["--baseline", str(baseline), "--update"]) == 0
    assert "notice" not in capsys.readouterr().out
    assert orjson.loads(baseline.read_bytes())["ratios"] == {"memory": 3.0}


def test_the_stored_baseline_has_each_store() -> None:
    assert orjson.loads(check.BASELINE.read_bytes())["ratios"].keys() == set(check.STORES)
