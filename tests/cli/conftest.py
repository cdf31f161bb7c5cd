"""The command line as tests use it: in this process where only its words matter, as a process where signals do."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from cantrip_actors.cli.main import main

RECIPE = """\
crystal:
  scripted:
    - tool_calls: [{gate: echo, args: {text: hello}}]
    - tool_calls: [{gate: done, args: {answer: five}}]
  usage: {prompt_tokens: 10, completion_tokens: 2}
circle:
  gates: [done, echo]
  wards: [{max_turns: 10}]
"""


class Said(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CANTRIP_LOOM", raising=False)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def cantrip(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command in this process."""

    def run(*arguments: str) -> Said:
        with pytest.raises(SystemExit) as left:
            main([str(one) for one in arguments])
        structlog.reset_defaults()
        said = capsys.readouterr()
        return Said(int(left.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def process(place: Path) -> Callable[..., Said]:
    """Run a command as a process of its own, with its output in pipes."""

    def run(*arguments: str, **environment: str) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "cantrip_actors.cli.main", *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return run
