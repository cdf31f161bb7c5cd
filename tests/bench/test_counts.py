"""`python -m bench counts` counts bytecodes and calls here and at another commit."""

from pathlib import Path

import pytest

from bench.__main__ import main

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.rule("C-71")
def test_bytecodes_and_calls_are_counted_here_and_at_another_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["counts", "send", "--beside", str(ROOT), "--top", "5"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    totals = {(row[0], row[1]): [int(figure) for figure in row[2:]] for row in rows if row[0] in ("turn", "send")}
    assert totals.keys() == {("send", "here"), ("send", "beside")}
    assert all(bytecodes > distinct > calls > 100 for bytecodes, distinct, calls, _ in totals.values())
    here, beside = totals["send", "here"], totals["send", "beside"]
    assert abs(here[0] - beside[0]) < 0.05 * beside[0]
    assert sum(row[-1].endswith("._run_once") for row in rows) == 2
