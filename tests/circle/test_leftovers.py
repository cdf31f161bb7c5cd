"""Sandboxed processes and their folders end with their host, whenever it is killed, and the next process sweeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("processes are found as Linux shows them", allow_module_level=True)

from cantrip_actors.circle import leftovers
from cantrip_actors.circle.shell.confine import JailName
from tests.circle.shell_jails import JAILS, confined_by, public_folder
from tests.exhaustive import EXHAUSTIVE
from tests.forked import Forked

pytestmark = pytest.mark.rule("C-69")

MOMENTS = 60 if EXHAUSTIVE else 3
LONGEST = 0.6
"""Seconds from a host's start of its sandbox to the last of the kills."""

HOST = """
import os, sys, tempfile
tempfile.tempdir = os.environ["TMPDIR"]  # else Python writes a file of its own there, to see whether it can
from cantrip_actors.circle import scratch
from cantrip_actors.circle.medium import ProgramLimits, medium
if not {watched}:
    scratch.leftovers.watch = lambda folder: None
{imports}
print("starts", flush=True)
{use}
"""
PYTHON = (
    "from cantrip_actors.circle.medium import medium",
    "medium('python').open([], ProgramLimits()).begin('while 1: pass')",
)
HANGING = (
    PYTHON[0],
    "medium('python').open([], ProgramLimits()).begin('t = (1,)\\nfor i in range(50): t = (t, t)\\n{t: 1}')",
)
SHELL = (
    "from cantrip_actors.circle.medium import medium",
    (
        "box = medium('shell', {jail!r}).open([], ProgramLimits())\n"
        "box.begin('timeout 90 sleep 91 & (trap \"\" TERM; sleep 92) & sleep 93 & : >started; sleep 94')"
    ),
)

HARNESS = """
import ctypes, json, os, signal, sys, time
from cantrip_actors.circle import scratch
from cantrip_actors.circle.python import medium as python_medium
from cantrip_actors.circle.shell import medium as shell_medium
code, delays, patience = json.loads(sys.argv[1])
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: whatever outlives its parent becomes our child
left = []
for delay in delays:
    starts, tells = os.pipe()
    host = os.fork()
    if not host:
        os.dup2(tells, 1)
        os.close(starts)
        os.close(tells)
        exec(code, {})
        os._exit(0)
    os.close(tells)
    assert os.read(starts, 6)
    time.sleep(delay)
    os.kill(host, signal.SIGKILL)
    os.waitpid(host, 0)
    os.close(starts)
    ends = time.monotonic() + patience
    try:
        while time.monotonic() < ends:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for child in children.read().split():
                with open(f"/proc/{child}/cmdline") as command:
                    left.append([delay, command.read().split(chr(0))])
    except ChildProcessError:
        pass
print(json.dumps(left))
"""


def left_after_kills(code: str, delays: list[float], where: Path, patience: float = 6.0) -> list[object]:
    """Run a host once for each delay, kill it then, and return the processes that outlive it by `patience` seconds."""
    environment = {**os.environ, "TMPDIR": str(where), "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe, arguments = subprocess.PIPE, json.dumps([code, delays, patience])
    with Forked(HARNESS, arguments, env=environment, stdout=pipe, stderr=pipe, text=True) as harness:
        printed, errors = harness.communicate(timeout=(patience + 5) * len(delays) + 30)
    assert harness.returncode == 0, errors[-500:]
    left: list[object] = json.loads(printed)
    return left


def host(uses: tuple[str, str], jail: JailName | None = None, *, watched: bool = True) -> str:
    return HOST.format(imports=uses[0], use=uses[1].replace("{jail!r}", repr(jail)), watched=watched)


@pytest.fixture
def where() -> Iterator[Path]:
    with public_folder() as path:
        yield path


@pytest.mark.parametrize("jail", JAILS)
def test_no_process_of_a_shell_outlives_a_killed_host(jail: JailName, where: Path) -> None:
    confined_by(jail)
    delays = [LONGEST * moment / MOMENTS for moment in range(MOMENTS)]
    assert left_after_kills(host(SHELL, jail), delays, where) == []
    assert list(where.iterdir()) == []


def test_no_python_worker_outlives_a_killed_host(where: Path) -> None:
    delays = [LONGEST * moment / MOMENTS for moment in range(MOMENTS)]
    assert left_after_kills(host(PYTHON), delays, where, patience=8.0) == []
    assert list(where.iterdir()) == []


@pytest.mark.rule("X-01")
def test_no_process_of_a_python_value_that_never_finishes_outlives_a_killed_host(where: Path) -> None:
    assert left_after_kills(host(HANGING), [0.3, 1.5], where, patience=8.0) == []
    assert list(where.iterdir()) == []


def test_the_next_process_ends_shells_that_a_host_and_its_watcher_left(where: Path) -> None:
    confined_by("landlock")
    environment = {**os.environ, "TMPDIR": str(where), "PYTHONPATH": os.pathsep.join(sys.path)}
    code = host(SHELL, "landlock", watched=False)
    with Forked(code, env=environment, stdout=subprocess.PIPE) as killed:
        while not (started := list(where.glob("*/*/files/home/started"))):
            time.sleep(0.01)
        session = int((started[0].parents[2] / leftovers.SESSION).read_text().split()[0])
        for pid in members(session):  # what ends the others with the host, where it is root
            if b"kill -s KILL" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        killed.kill()
    assert members(session), "the shell's children outlive the shell where nothing sweeps"
    sweeper = HOST.format(imports="", use="scratch.make_folder('x')", watched=True)
    assert Forked(sweeper, env=environment).wait(30) == 0
    assert members(session) == []
    assert list(where.iterdir()) == []


def members(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("change", ["start", "system"])
def test_a_sweep_ends_no_process_that_reuses_a_session_number(change: str, where: Path) -> None:
    """The process is confined as ours are, but its number was another's when the folder was written."""
    confined = (
        "import ctypes, struct, time\n"
        "libc = ctypes.CDLL(None)\n"
        "allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n"
        "head = ctypes.create_string_buffer(struct.pack('HxxxxxxP', 1, ctypes.addressof(allow)))\n"
        "assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, head) == 0\n"
        "print('confined', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", confined], start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "confined\n"
        folder = where / "shell-x"
        folder.mkdir()
        leftovers.record_session(folder, process.pid)
        file = folder / leftovers.SESSION
        session, start, system = file.read_text().split()
        told = f"{session} {int(start) - 1} {system}" if change == "start" else f"{session} {start} other/1"
        recorded = file.read_text()
        file.write_text(told)
        leftovers.sweep(where)
        assert process.poll() is None
        folder.mkdir(parents=True)
        file.write_text(recorded)
        leftovers.sweep(where)
        assert process.wait(5) == -signal.SIGKILL
    where.mkdir()
