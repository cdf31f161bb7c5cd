"""The library writes nothing to standard output, which belongs to the program, unless it is asked to (V-16)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog

from cantrip_actors import Cantrip, CantripError, Circle, Companion, Folding, Runtime, gate, scripted
from cantrip_actors.wards import max_turns
from supervisors import Actor, ActorSystem, ChildSpec, Supervisor
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("V-16")

ROOT = Path(__file__).parent.parent

ASKED = {
    "cantrip_actors/acp/stdio.py": "standard output is the connection to the editor",
    "cantrip_actors/circle/gates/grep.py": "a process of its own, whose output is its answer",
    "cantrip_actors/loom/reading/search.py": "a process of its own, whose output is its answer",
}
"""The files that may write to standard output, and why; the command line (`cli/`) does as well."""


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """Have structlog as a program has it that never configured it."""
    before, was_configured = structlog.get_config(), structlog.is_configured()
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if was_configured:
        structlog.configure(**before)


class Faulty(Actor):
    """An actor that crashes again and again."""

    async def init(self) -> None:
        self.ref.send("go")

    async def handle_info(self, message: Any) -> None:
        raise ValueError("a bug")


async def test_actors_that_crash_write_nothing_to_standard_output(unconfigured: None, capfd: Any) -> None:
    async with ActorSystem() as system:
        await system.start(ChildSpec("top", lambda: Supervisor([ChildSpec("faulty", Faulty)]), restart="temporary"))
        await anyio.sleep(5)
    assert capfd.readouterr().out == ""


async def test_a_runtime_in_trouble_writes_nothing_to_standard_output(unconfigured: None, capfd: Any) -> None:
    class Diary(Companion):
        async def begins(self, here: Any) -> None:
            raise ConnectionError("away")

    @gate
    async def fail() -> str:
        """Fail."""
        raise RuntimeError("no")

    cantrips = [
        Cantrip(
            scripted([say("fail"), say("fail"), say("fail"), done(1)]), circle=Circle(["done", fail], [max_turns(9)])
        ),
        Cantrip(scripted([say("no_such_gate"), done(1)]), circle=Circle(["done"], [max_turns(9)])),
        Cantrip(scripted([done(1)]), circle=Circle(["done"], [max_turns(9)], companion=Diary())),
        Cantrip(scripted([]), circle=Circle(["done"], [max_turns(9)])),
        Cantrip(
            scripted([{"code": "print('within')"}, {"code": "done(1)"}]),
            circle=Circle(["done"], [max_turns(9)], medium="python"),
        ),
        Cantrip(
            scripted([say("fail")] * 6 + [done(1)]),
            circle=Circle(["done", fail], [max_turns(9)]),
            folding=Folding(trigger_after_turns=2, summary=scripted([])),
        ),
    ]
    async with Runtime.open() as runtime:
        for number, cantrip in enumerate(cantrips):
            try:
                entity = await runtime.invoke(cantrip, "go", name=f"e{number}")
                await entity.episode()
            except CantripError:
                continue
    assert capfd.readouterr().out == ""


FAILING = """
import asyncio, sys
from cantrip_actors import Cantrip, Runtime, gate, scripted

@gate
async def fail() -> str:
    'Fail.'
    raise RuntimeError("no")

async def main():
    async with Runtime.open("memory:") as runtime:
        failing = [{"tool_calls": [{"gate": "fail", "args": {}}]}, "Done."]
        await runtime.cast(Cantrip(scripted(failing), gates=[fail], max_turns=3), "go")

asyncio.run(main())
"""


@pytest.mark.parametrize("before", ["", "import structlog"])
def test_the_traceback_of_a_gate_is_readable_in_a_program_that_configures_no_log(before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", before + FAILING], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    first, *trace = done.stderr.splitlines()
    assert "a gate raised an exception" in first
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "RuntimeError: no"


def find_writers(file: Path) -> Iterator[int]:
    """Yield the lines that print without a file, or name standard output."""
    text = file.read_text(encoding="utf-8")
    if "print" not in text and "stdout" not in text:  # as most files: parsing all of them takes seconds
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            if not any(keyword.arg == "file" for keyword in node.keywords):
                yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr == "stdout" and ast.unparse(node) == "sys.stdout":
            yield node.lineno


def test_no_module_of_the_library_names_standard_output() -> None:
    found = {}
    for package in ("cantrip_actors", "supervisors"):
        for file in sorted((ROOT / package).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if not name.startswith("cantrip_actors/cli/") and name not in ASKED and (lines := list(find_writers(file))):
                found[name] = lines
    assert found == {}
