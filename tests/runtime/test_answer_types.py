"""Typed answers, and the names that packages export, as pyright sees them. `make lint-types` checks them with mypy."""

import re
import subprocess
import sys
from importlib import import_module
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
    last = program.read_text().count("\n")
    assert list_wrong_lines(program) == [last - 1, last]


@pytest.mark.real_time
@pytest.mark.skipif(not PYRIGHT.exists(), reason="NOT JUDGED BY PYRIGHT: it is not in .kits (`make kits`)")
def test_pyright_knows_each_exported_name_and_finds_one_that_a_package_lacks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    packages = ("cantrip_actors", "cantrip_actors.loom", "cantrip_actors.testing")
    program.write_text(
        "".join(f"from {package} import {', '.join(import_module(package).__all__)}\n" for package in packages)
    )
    assert list_wrong_lines(program) == []
    program.write_text("".join(f"from {package} import no_such_name\n" for package in packages))
    assert list_wrong_lines(program) == [1, 2, 3]


def list_wrong_lines(program: Path) -> list[int]:
    command = [PYRIGHT, "--pythonpath", sys.executable, program]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=program.parent)
    return [int(line) for line in re.findall(r"program\.py:(\d+):\d+ - error", checked.stdout)]
