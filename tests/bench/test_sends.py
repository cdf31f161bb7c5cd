"""`python -m bench sends` measures the documented figures, and its exit code is 1 if a limit does not hold."""

from pathlib import Path

import anyio
import orjson
import pytest

from bench import sends

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.rule("C-06", "C-71")
def test_sends_and_loads_are_measured_in_each_store_and_at_another_commit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sends, "STORES", {"sqlite": sends.STORES["sqlite"]})
    options = ["--few", "20", "--many", "60", "--rounds", "1", "--beside", str(ROOT), "--json"]
    code = sends.main(options)
    told = orjson.loads(capsys.readouterr().out)
    assert told["sqlite"].keys() == {"idle_us", "x_beside", "load_few_us", "load_many_us", "x_load", "stall_s"}
    assert told["sqlite"]["idle_us"] > 10
    assert code == (1 if told["over"] else 0)


def test_each_store_has_its_figures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sends, "SENDS", 20)
    monkeypatch.setattr(sends, "_measure_idle", lambda store, *_: {"idle_us": anyio.run(sends._send_idle, store)})
    monkeypatch.setattr(sends, "_loads", lambda *_: {"x_load": 3.0})
    assert sends.main(["--json"]) == 1
    told = orjson.loads(capsys.readouterr().out)
    assert told.pop("over") == ["sqlite: x_load is 3.000, not 2"]
    assert all(figures["idle_us"] > 10 for figures in told.values())
    assert [(store, len(figures)) for store, figures in told.items()] == [("memory", 1), ("jsonl", 1), ("sqlite", 2)]
