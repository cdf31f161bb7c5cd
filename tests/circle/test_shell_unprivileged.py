"""Shells of a host that is not root: the tests of shells again, in such a process.

What is different there: a shell runs as the same user as its host. Under Landlock nothing but rules keeps the two
apart, so everything that one process may do to another of its user, or to that user's files, is tried on the host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("shells are confined on Linux only", allow_module_level=True)

from cantrip_actors.circle.medium import Finished, ProgramLimits, medium
from cantrip_actors.circle.shell import confine as shell_confine
from cantrip_actors.terms.errors import InvalidCantrip
from tests.circle.shell_jails import JAILS, confined_by, public_folder
from tests.exhaustive import part

NOBODY = 65534
HERE = Path(__file__).parents[2]
TRIAL = "import pytest, pyseccomp, yaml, cantrip_actors.circle.shell.medium, tests.circle.test_shell_contract"
CONTRACT = "live_on or limit_undoes and computing or outlives or failure or leaves_nothing or a_jail or fails_its_check"
SUBSETS = {
    "contract": ["tests/circle/test_shell_contract.py", "-k", CONTRACT],
    "files": ["tests/circle/test_shell_files.py", "-k", "landlock and (restores or kept)"],
    "escapes": [
        "tests/circle/test_shell_escapes.py",
        "-k",
        "test_no_program_escapes and landlock and (files or processes) and not expert",
    ],
}


def as_nobody(python: str, *arguments: str, where: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(HERE), *(part for part in sys.path if part.endswith("site-packages"))]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": where,
    }
    return subprocess.run(
        [python, *arguments],
        cwd=HERE,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    )


@cache
def python_of_nobody() -> str:
    """Return a Python of this version, with these packages, that an unprivileged user can run."""
    if os.getuid() != 0:
        pytest.skip("this host is not root, so the tests of shells say it themselves")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    why = ""
    for found in dict.fromkeys((sys.executable, f"/usr/bin/{version}", shutil.which(version))):
        try:
            done = as_nobody(found or "", "-c", TRIAL)
        except OSError as problem:
            why = str(problem)
            continue
        if done.returncode == 0:
            return str(found)
        why = done.stderr.strip().rpartition("\n")[2]
    pytest.skip(f"nobody but root can run these tests here: {why}")


@pytest.mark.rule("CIRCLE-6")
@pytest.mark.parametrize("subset", part(list(SUBSETS), 3))
def test_shells_are_confined_when_the_host_is_not_root(subset: str) -> None:
    python = python_of_nobody()
    with public_folder() as folder:
        os.chown(folder, NOBODY, NOBODY)
        options = ["-q", "-n0", "-p", "no:cacheprovider", f"--basetemp={folder / 'pytest'}", "--tb=short"]
        done = as_nobody(python, "-m", "pytest", *options, *SUBSETS[subset], where=str(folder))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """User namespaces are, as bubblewrap tells of it."""
    why = "bwrap: No permissions to create new namespace, likely because the kernel does not allow it."
    with public_folder() as folder:
        fake = folder / "bwrap"
        fake.write_text(f"#!/bin/sh\necho '{why}' >&2\nexit 1\n")
        fake.chmod(0o755)
        monkeypatch.setattr(shell_confine, "_look", shell_confine._look.__wrapped__)
        monkeypatch.setattr(shell_confine.shutil, "which", lambda _: str(fake))
        yield


@pytest.mark.unvaried
@pytest.mark.rule("CIRCLE-6")
@pytest.mark.usefixtures("forbidden")
def test_landlock_is_used_where_user_namespaces_are_forbidden() -> None:
    confined_by("landlock")
    shell = medium("shell")
    assert shell.engine.endswith("in landlock")
    box = shell.open([], ProgramLimits())
    assert box.begin("echo hi") == Finished(None, "hi\n")
    box.close()


@pytest.mark.unvaried
@pytest.mark.rule("CIRCLE-6")
@pytest.mark.usefixtures("forbidden")
def test_the_medium_is_refused_without_landlock_and_user_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_confine.shell_landlock, "read_version", lambda: -1)
    with pytest.raises(InvalidCantrip, match=r"bubblewrap: .*No permissions.*landlock: .*version 0 of Landlock, 6 is"):
        medium("shell")


@pytest.mark.unvaried
@pytest.mark.rule("CALL-3")
@pytest.mark.parametrize("jail", JAILS)
def test_the_capability_text_says_when_modes_cannot_be_changed(
    jail: shell_confine.JailName, monkeypatch: pytest.MonkeyPatch
) -> None:
    confined_by(jail)  # it is tried out as the user that this is
    monkeypatch.setattr(shell_confine.os, "getuid", lambda: 1000)
    assert ("cannot be changed here" in confined_by(jail).capability([], ProgramLimits())) == (jail == "landlock")
