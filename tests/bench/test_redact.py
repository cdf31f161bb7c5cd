"""`python -m bench redact` measures the documented figures, and its exit code is 1 if a limit does not hold."""

from pathlib import Path

import orjson
import pytest

from bench.__main__ import main

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.rule("X-33")
def test_redaction_is_measured_against_another_commit(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["redact", "--rounds", "1", "--beside", str(ROOT), "--json"])
    told = orjson.loads(capsys.readouterr().out)
    assert all(told[what]["us_per_kB"] > 1 and told[what]["x_beside"] > 0 for what in ("prose", "code", "json"))
    assert code == (1 if told["over"] else 0)
