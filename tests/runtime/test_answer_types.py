"""Typed answers as pyright sees them. mypy checks the same program in `make lint-types`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "typed_answers.py"
PYRIGHT = ROOT / ".kits" / "node_modules" / ".bin" / "pyright"

WRONG = """
        assert_type(entity.send("again").result, Data)
        runtime.cast(Cantrip(NAME, answer=Model), "go").result.no_such_field
"""


@pytest.mark.rule("Y-11")
@pytest.mark.real_time
@pytest.mark.skipif(not PYRIGHT.exists(), reason="NOT JUDGED BY PYRIGHT: it is not in .kits (`make kits`)")
def test_pyright_knows_the_type_of_each_kind_of_answer_and_finds_a_wrong_use(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.read_text(encoding="utf-8") + WRONG.removeprefix("\n"))
    command = [PYRIGHT, "--pythonpath", sys.executable, program]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    last = program.read_text().count("\n")
    lines = [int(line) for line in re.findall(r"program\.py:(\d+):\d+ - error", checked.stdout)]
    assert lines == [last - 1, last], checked.stdout
