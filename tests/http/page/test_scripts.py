"""The linter of the page's scripts, which `make lint` runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.serving import ROOT

WEB = ROOT / "cantrip_actors" / "page" / "web"
TSC = ROOT / ".kits" / "node_modules" / ".bin" / "tsc"
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


@pytest.mark.rule("L-22")
def test_each_script_of_the_pages_is_checked_for_types_and_has_lines_of_120_characters() -> None:
    for path in WEB.glob("*.js"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0] == "// @ts-check", f"{path.name}: expected // @ts-check as its first line"
        long = [number for number, line in enumerate(lines, 1) if len(line) > 120]
        assert not long, f"{path.name}: lines {long} have more than 120 characters"


@pytest.mark.rule("L-22")
@pytest.mark.skipif(not TSC.exists(), reason="NOT JUDGED BY TYPESCRIPT: it is not in .kits (`make kits`)")
def test_typescript_finds_no_wrong_type_in_the_scripts_of_the_pages_and_one_in_a_wrong_script(tmp_path: Path) -> None:
    for path in (WEB, ROOT / "tools" / "tsconfig.json"):
        copy = tmp_path / path.relative_to(ROOT)
        shutil.copytree(path, copy) if path.is_dir() else (copy.parent.mkdir(), shutil.copy(path, copy))
    wrong = tmp_path / "cantrip_actors" / "page" / "web" / "wrong.js"
    wrong.write_text('// @ts-check\nimport { Tree } from "./tree.js";\nexport const rows = (new Tree()).row;\n')
    checked = subprocess.run([TSC, "-p", tmp_path / "tools"], capture_output=True, text=True, check=False)
    assert [line for line in checked.stdout.splitlines() if "wrong.js" not in line] == []
    assert "Property 'row' does not exist on type 'Tree'" in checked.stdout
