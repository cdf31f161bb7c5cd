"""The linter of the page's scripts, which `make lint` runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.serving import ROOT

OXLINT = shutil.which("oxlint", path=str(Path(sys.executable).parent))

pytestmark = [
    pytest.mark.rule("W-50"),
    pytest.mark.real_time,
    pytest.mark.skipif(OXLINT is None, reason="oxlint is not installed beside this Python: run `make setup`"),
]


def lint(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [str(OXLINT), "--deny-warnings", "--config", str(ROOT / ".oxlintrc.json"), *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_linter_finds_nothing_in_the_scripts_of_the_pages() -> None:
    found = lint(ROOT / "cantrip_actors", ROOT / "tests")
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("script", "rule"),
    [
        ("export const f = () => { const all = [more]; const more = 1; return all; };", "no-use-before-define"),
        ("export const f = () => picture;", "no-undef"),
        ("const left = 1; export const f = () => 2;", "no-unused-vars"),
    ],
)
def test_the_linter_reports_names_that_break_a_script(tmp_path: Path, script: str, rule: str) -> None:
    path = tmp_path / "script.js"
    path.write_text(script)
    found = lint(path)
    assert found.returncode == 1
    assert rule in found.stdout
