"""Folders of sandboxes do not outlive their process: it removes them, or its watcher, or the next process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("these folders are looked for as Linux has them", allow_module_level=True)

from cantrip_actors.circle import scratch
from tests.circle.shell_jails import public_folder
from tests.forked import Forked

HEAD = """
import os, signal, sys, tempfile
tempfile.tempdir = os.environ["TMPDIR"]  # the server of forked processes has looked for another one
from cantrip_actors.circle.medium import ProgramLimits, medium
from cantrip_actors.circle import scratch
"""
USES = {
    "nothing but a folder": "scratch.make_folder('x').joinpath('file').touch()",
    "python": "medium('python').open([], ProgramLimits()).begin('1')",
    "shell": (
        "box = medium('shell').open([], ProgramLimits())\n"
        "box.begin('echo 1 > file; mkdir -p d/e; chmod 000 d; ln -s / root; exec -a left-by-a-test sleep 1000')"
    ),
}


def ran(code: str, where: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(where), "PYTHONPATH": os.pathsep.join(sys.path)}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Forked(HEAD + code, env=environment, **streams) as process:
        printed, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, printed, errors)


@pytest.fixture
def where() -> Iterator[Path]:
    with public_folder() as path:
        yield path


@pytest.mark.rule("CIRCLE-9")
@pytest.mark.parametrize("use", USES)
def test_a_normal_exit_leaves_no_folder(use: str, where: Path) -> None:
    done = ran(USES[use].replace("exec -a", ": -a"), where)
    assert done.returncode == 0, done.stderr
    assert list(where.iterdir()) == []


@pytest.mark.rule("C-69")
@pytest.mark.parametrize("use", USES)
def test_the_next_process_removes_the_folder_of_a_killed_one(use: str, where: Path) -> None:
    killing = "os.kill(os.getpid(), signal.SIGKILL)"
    unwatched = "scratch.leftovers.watch = lambda folder: None\n"  # as if the watcher were killed, too
    code = f"{unwatched}{USES[use]}\n{killing}"
    if use == "shell":  # in the middle of a program
        code = f"{unwatched}import threading; threading.Timer(1.5, lambda: {killing}).start()\n{USES[use]}"
    done = ran(code, where)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(list(where.iterdir())) == 1
    assert ran("scratch.make_folder('y')", where).returncode == 0
    assert list(where.iterdir()) == []


def test_the_folder_of_a_living_process_is_kept(where: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(where), "PYTHONPATH": os.pathsep.join(sys.path)}
    code = HEAD + "print(scratch.make_folder('x'), flush=True); sys.stdin.read()"
    with Forked(code, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as lives:
        assert lives.stdout is not None
        theirs = Path(lives.stdout.readline().strip())
        (where / "cantrip-sandboxes-of-somebody").mkdir()
        (where / f"{scratch.PREFIX}12345678").symlink_to(theirs.parent)
        assert ran("scratch.make_folder('y')", where).returncode == 0
        assert theirs.is_dir()
        assert (where / "cantrip-sandboxes-of-somebody").is_dir()
        lives.communicate("")
    assert not theirs.exists()


def test_a_forked_process_has_a_folder_of_its_own_and_removes_no_others(where: Path) -> None:
    code = """
mine = scratch.make_folder("x")
child = os.fork()
if not child:
    theirs = scratch.make_folder("x")
    assert theirs.parent != mine.parent
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert mine.is_dir()
assert len(os.listdir(mine.parent.parent)) == 1
"""
    done = ran(code, where)
    assert done.returncode == 0, done.stderr
    assert list(where.iterdir()) == []


def test_a_removed_folder_is_created_again(where: Path) -> None:
    code = """
import shutil
shutil.rmtree(scratch.make_folder("x").parent)
assert scratch.make_folder("x").is_dir()
"""
    done = ran(code, where)
    assert done.returncode == 0, done.stderr
    assert list(where.iterdir()) == []


@pytest.mark.parametrize("failing", ["fcntl.flock", "os.open"])
def test_a_folder_that_cannot_be_locked_is_an_error_and_leaves_nothing(failing: str, where: Path) -> None:
    code = f"""
import errno, fcntl
made = iter(range(3))
make = tempfile.mkdtemp
tempfile.mkdtemp = lambda **options: (next(made), make(**options))[1]
def fail(*args):
    raise OSError(errno.ENOLCK, "no locks")
{failing} = fail
try:
    scratch.make_folder("x")
except OSError as problem:
    print(problem)
"""
    done = ran(code, where)
    assert "no locks" in done.stdout, done.stderr
    assert list(where.iterdir()) == []
