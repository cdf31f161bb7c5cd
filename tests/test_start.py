"""What a program imports before it does anything: the public names, and one cast in memory.

A module costs about a millisecond and 50 KB at the start of every process, whether it is used or not.
"""

from __future__ import annotations

import compileall
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

NAMES = """
import cantrip_actors

for name in cantrip_actors.__all__:
    getattr(cantrip_actors, name)
"""

CAST = """
import anyio

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.wards import max_turns


async def main():
    calls = [{"tool_calls": [{"gate": "done", "args": {"answer": 1}}]}]
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(scripted(calls), circle=Circle(["done"], [max_turns(3)])), "go")
    assert episode.result == 1


anyio.run(main)
"""

READ = """
from cantrip_actors import EntityEvent, Loom, LoomError, Turn, open_loom
"""

FEATURES = {
    *("structlog", "rich", "yaml", "httpx", "jsonschema", "typer", "genai_prices", "sqlite3", "trio"),
    *("cantrip_actors.circle.gates.files", "cantrip_actors.crystal.provider", "cantrip_actors.loom.sqlite.sqlite"),
    *("cantrip_actors.loom.tables.tables", "cantrip_actors.loom.integrity.verify", "cantrip_actors.terms.own_gates"),
}
"""Libraries and modules that one feature needs, and not each program."""


def list_imports(program: str) -> set[str]:
    report = "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program + report], capture_output=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("program", "further", "most_own", "most"),
    [
        pytest.param(NAMES, {"pydantic", "email"}, 310, 540, id="the public names"),
        pytest.param(CAST, {"cantrip_actors.runtime.face.blocking"}, 320, 660, id="a cast in memory"),
    ],
)
def test_a_program_imports_only_modules_that_it_uses(program: str, further: set[str], most_own: int, most: int) -> None:
    modules = list_imports(program)
    own = {name for name in modules if name.partition(".")[0] in ("cantrip_actors", "supervisors")}
    assert not modules & (FEATURES | further)
    assert len(own) <= most_own
    assert len(modules) <= most


def test_a_program_that_reads_looms_imports_neither_the_runtime_nor_the_circle() -> None:
    parts = ("cantrip_actors.runtime.entity", "cantrip_actors.circle", "supervisors")
    assert [name for name in list_imports(READ) if name.startswith(parts)] == []


def test_a_circle_finds_standard_gates_and_mediums_by_name_whatever_is_imported_before() -> None:
    list_imports(
        "from cantrip_actors.terms.circle import Circle\nfrom cantrip_actors.terms.ward import max_turns\n"
        "Circle(gates=['done', 'echo'], wards=[max_turns(1)], medium='python')"
    )


def test_a_package_without_source_files_has_its_public_names(tmp_path: Path) -> None:
    for name in ("cantrip_actors", "supervisors"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(tmp_path, quiet=1, legacy=True)
    for file in tmp_path.rglob("*.py"):
        file.unlink()
    subprocess.run([sys.executable, "-c", NAMES], env={"PYTHONPATH": str(tmp_path)}, check=True, timeout=60)
