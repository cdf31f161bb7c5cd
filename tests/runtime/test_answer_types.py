"""Typed answers as pyright sees them. mypy checks the same program in `make lint-types`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "typed_answers.py"
PYRIGHT = ROOT / ".kits" / "node_modules" / ".bin" / "pyright"

WRONG = """

def misuse(runtime: Any) -> None:
    with Runtime.blocking("memory:") as blocking:
        assert_type(blocking.cast(Cantrip(answers(1), answer=Invoice), "go").result, City)
        blocking.cast(Cantrip(answers(1), answer=Invoice), "go").result.no_such_field
"""


@pytest.mark.rule("Y-11")
@pytest.mark.real_time
@pytest.mark.skipif(not PYRIGHT.exists(), reason="NOT JUDGED BY PYRIGHT: it is not in .kits (`make kits`)")
def test_pyright_knows_the_type_of_each_kind_of_answer_and_finds_a_wrong_use(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.read_text(encoding="utf-8") + WRONG)
    command = [PYRIGHT, "--pythonpath", sys.executable, program]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    last = program.read_text().count("\n")
    lines = [int(line) for line in re.findall(r"program\.py:(\d+):\d+ - error", checked.stdout)]
    assert lines == [last - 1, last], checked.stdout
