"""The command line for tests: in this process, or as a process of its own for signals."""

import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from fcntl import ioctl
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from cantrip_actors.cli.main import main
from tests.forked import COMMAND, Forked

NOT_OURS = {"NO_COLOR", "COLUMNS", "LINES"}
"""What whoever runs the tests has said of a terminal that is not this one."""

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
        pipe = subprocess.PIPE
        with Forked(
            COMMAND, *arguments, env={**os.environ, **environment}, stdout=pipe, stderr=pipe, text=True
        ) as started:
            out, err = started.communicate(timeout=60)
        return Said(started.returncode, out, err)

    return run


class Seen(NamedTuple):
    code: int
    screen: str

    @property
    def text(self) -> str:
        """Without what moves the cursor and paints."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.screen)


@pytest.fixture
def terminal(place):
    """Run a command in a terminal of its own; `when` it has printed something, `do` something to it.

    `typing` are pairs: a text that the command prints after the previous one, and the text that is typed then.
    """

    def run(
        *arguments: str,
        when: str | None = None,
        do=None,
        typing: Sequence[tuple[str, str]] = (),
        height: int = 40,
        width: int = 100,
        **environment: str,
    ) -> Seen:
        ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        waiting, read = list(typing), 0
        process = Forked(
            COMMAND,
            *arguments,
            env={**{k: v for k, v in os.environ.items() if k not in NOT_OURS}, "TERM": "xterm", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        said, ends = b"", time.monotonic() + 60
        try:
            while time.monotonic() < ends:
                if not select.select([ours], [], [], 0.05)[0]:
                    continue
                try:
                    piece = os.read(ours, 65536)
                except OSError:
                    break
                if not piece:
                    break
                said += piece
                if when is not None and when in said.decode(errors="replace"):
                    when = None
                    do(process, ours)
                while waiting and (at := said.find(waiting[0][0].encode(), read)) >= 0:
                    read = at + len(waiting[0][0].encode())
                    os.write(ours, waiting.pop(0)[1].encode())
            code = process.wait(10)
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        return Seen(code, said.decode(errors="replace").replace("\r\n", "\n"))

    return run
