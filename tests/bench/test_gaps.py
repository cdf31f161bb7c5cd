"""`python -m bench gaps` measures each row, and its exit code is 1 if a gap is above the limit."""

import orjson
import pytest

from bench.__main__ import main


@pytest.mark.real_time
def test_gaps_are_measured_while_the_loom_is_locked_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--megabytes", "1", "--entities", "100", "--hold", "0.5", "--limit", "0.001", "--json"]
    code = main(["gaps", "locked", "entities", *options])
    figures = orjson.loads(capsys.readouterr().out)
    assert figures.pop("over") == list(figures) == ["locked", "entities"]
    assert figures["locked"]["took_s"] == 0.5
    assert figures["locked"]["gap_ms"] > 0
    assert figures["entities"]["took_s"] > 0
    assert code == 1
