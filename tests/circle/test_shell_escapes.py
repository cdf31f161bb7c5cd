"""No shell program escapes from its jail or keeps the host busy: escapes/shell.yaml.

Each attempt runs in bubblewrap and under Landlock, where the machine has them. Whatever it does, the secrets of the
host are in nothing that comes out of it, the host's files, processes and limits are as they were, and the shell that
the entity has afterwards has its variables.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from anyio import to_thread

if sys.platform != "linux":
    pytest.skip("shells are confined on Linux only", allow_module_level=True)

from cantrip_actors.circle.medium import Answer, Finished, ProgramLimits, Stepped, Suspended
from cantrip_actors.circle.shell.confine import JailName
from cantrip_actors.circle.shell.medium import ShellSandbox
from cantrip_actors.terms.gate_function import gate
from conformance.cases import FastLoader
from tests.circle.heart import LATE, Hearts
from tests.circle.shell_jails import JAILS, confined_by
from tests.circle.unhurried import unhurried
from tests.exhaustive import FULL, part
from tests.slowness import measure_slowness

SECRET = "canary-8c40d"
LIMITS = ProgramLimits(seconds=0.2, output=2_000, gate_calls=10)
AMPLE = ProgramLimits(seconds=1.0, output=20_000, gate_calls=10)
"""Seconds that an event loop may be kept waiting by a step in a thread."""

DATA = yaml.load((Path(__file__).parent / "escapes" / "shell.yaml").read_text(encoding="utf-8"), FastLoader)


def attempts(part: str) -> list[Any]:
    return [
        pytest.param(code, id=f"{group} {number}")
        for group, codes in DATA[part].items()
        for number, code in enumerate(codes, 1)
    ]


ESCAPES, EXHAUSTION = attempts("escapes"), attempts("exhaustion")


def in_jails(tried: list[Any]) -> list[Any]:
    """Each attempt in every jail; or a part of them in one, the next attempt in the next."""
    return [
        pytest.param(*one.values, jail, id=f"{one.id}-{jail}")
        for number, one in enumerate(part(tried, 6))
        for jail in (JAILS if FULL else JAILS[number % len(JAILS) :][:1])
    ]


@gate
async def peek(path: str = "", other: int = 0) -> str:
    """Look."""
    return SECRET


def opened(jail: JailName, limits: ProgramLimits) -> ShellSandbox:
    sandbox = confined_by(jail).open([peek.definition], limits)
    assert unhurried(sandbox, "kept='as it was'; cd .") == Finished(None)
    return sandbox


def run(sandbox: ShellSandbox, code: str) -> list[Stepped]:
    """Return the steps of a program with answered gates; the last is how it ends."""
    steps = [sandbox.begin(code)]
    while isinstance(step := steps[-1], Suspended):
        assert step.gate == "peek"
        assert set(step.args) <= {"path", "other", "__class__"}
        steps.append(sandbox.answer(step, Answer("ok")))
    return steps


def attempt(sandbox: ShellSandbox, code: str) -> tuple[Stepped, str]:
    """Return how a program ends, and everything that is visible of it."""
    steps = run(sandbox, code)
    return steps[-1], "\n".join(map(repr, steps))


class Host:
    """What a program must not see or touch."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "canary"
        self.file.write_text(SECRET, encoding="utf-8")
        self.file.chmod(0o666)  # it is not the host's own rights that protect it
        for path in (self.file.parent, *self.file.parent.parents[:3]):
            if path.stat().st_uid == os.getuid() and path != Path("/tmp"):
                path.chmod(path.stat().st_mode | 0o055)
        environment = {"PATH": os.defpath, "CANTRIP_CANARY": SECRET}
        self.other = subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.before = self.now()

    def filled(self, code: str) -> str:
        for name, value in (
            ("<file>", self.file),
            ("<folder>", self.file.parent),
            ("<pid>", os.getpid()),
            ("<other>", self.other.pid),
            ("<port>", self.listener.getsockname()[1]),
        ):
            code = code.replace(name, str(value))
        return code

    def now(self) -> Any:
        files = {path.name: path.read_bytes() for path in self.file.parent.iterdir()}
        status = self.file.stat()
        alive = self.other.poll() is None and Path(f"/proc/{self.other.pid}/stat").read_text().split()[2] in "SRD"
        nice = os.getpriority(os.PRIO_PROCESS, self.other.pid)
        marks = [Path(path).exists() for path in ("/pwned", "/etc/pwned", "/usr/bin/pwned", "/lib/pwned")]
        return (
            files,
            status.st_mode,
            status.st_mtime,
            status.st_uid,
            status.st_nlink,
            alive,
            nice,
            marks,
            os.environ.copy(),
        )

    def close(self) -> None:
        self.other.kill()
        self.other.wait()
        self.listener.close()


@pytest.fixture
def host(tmp_path, monkeypatch):
    made = Host(tmp_path)
    monkeypatch.setenv("CANTRIP_CANARY", SECRET)
    made.before = made.now()
    yield made
    made.close()


@pytest.mark.unvaried
def test_the_list_of_escapes_is_long():
    assert len(ESCAPES) >= 240
    assert len(EXHAUSTION) >= 130


@pytest.mark.rule("CIRCLE-6")
@pytest.mark.parametrize(("code", "jail"), in_jails(ESCAPES))
def test_no_program_escapes(code, jail, host):
    sandbox = opened(jail, AMPLE if "STOP" not in code and "set -n" not in code else LIMITS)
    _, seen = attempt(sandbox, host.filled(code))
    assert SECRET not in seen
    assert "connected" not in seen
    after = host.now()
    assert {**after[-1], "PYTEST_CURRENT_TEST": ""} == {**host.before[-1], "PYTEST_CURRENT_TEST": ""}
    assert after[:-1] == host.before[:-1]
    assert (
        "as it was" in unhurried(sandbox, 'echo "$kept"').output
        or "readonly" in code
        or "() {" in code
        or "set -x" in code
    )
    sandbox.close()
    assert left_behind("sleep", "30") == []


def left_behind(*command: str) -> list[str]:
    """Return the processes that still run; those of other test workers end, too."""
    found = running(*command)
    ends = time.monotonic() + 5
    while found and time.monotonic() < ends:
        time.sleep(0.1)
        found = running(*command)
    return found


def running(*command: str) -> list[str]:
    """Processes left behind, by the beginning of their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0] == command[0] and len(words) > 1 and len(words[1]) == 3 and words[1].startswith(command[1]):
            found.append(" ".join(words))
    return found


@pytest.mark.rule("CIRCLE-6")
@pytest.mark.parametrize(("code", "jail"), in_jails(EXHAUSTION))
def test_every_program_ends_and_leaves_the_shell_usable(code, jail):
    """Within its limit and a second of a machine that is idle; the best of three counts."""
    late = []
    while not late or (min(late) > 1.0 and len(late) < 3):
        sandbox = opened(jail, LIMITS)
        started = time.monotonic()
        step, _ = attempt(sandbox, code)
        late.append((time.monotonic() - started - LIMITS.seconds) / measure_slowness())
        assert len(step.output) < LIMITS.output + 200
        assert "as it was" in unhurried(sandbox, 'echo "$kept"').output
        sandbox.close()
        assert not sandbox._files.folder.exists()
    assert min(late) < 1.0


async def late_by(hearts: Hearts, code: str, jail: JailName) -> float:
    """How late a heart beat while the program ran in a thread."""
    sandbox = await to_thread.run_sync(opened, jail, ProgramLimits(seconds=0.1, gate_calls=10))
    late = await hearts.late_by(partial(to_thread.run_sync, run, sandbox, code))
    await to_thread.run_sync(sandbox.close)
    return late


@pytest.mark.real_time
@pytest.mark.rule("CIRCLE-6")
@pytest.mark.parametrize("jail", JAILS)
async def test_no_program_delays_the_loop(jail, anyio_backend_name):
    """An attempt is guilty if it does so each of sixteen times."""
    guilty = {}
    with Hearts() as hearts:
        for one in part(EXHAUSTION[:: 4 if anyio_backend_name == "asyncio" else 13], 4):
            code = one.values[0]
            tries = [await late_by(hearts, code, jail)]
            while tries[-1] > LATE and len(tries) < 16:
                await anyio.sleep(0.2 * len(tries))  # until other processes leave this one a core
                tries.append(await late_by(hearts, code, jail))
            if tries[-1] > LATE:
                guilty[one.id] = tries
    assert guilty == {}
