"""The supply chain: hashes of the lock are checked, the bill of materials is complete, the wheel is reproducible."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import sbom

pytestmark = [pytest.mark.rule("X-40"), pytest.mark.real_time]

ROOT = Path(__file__).parent.parent
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SMALL = "iniconfig"
"""A locked package of a few kilobytes, without dependencies."""


def test_the_security_policy_says_how_to_report_and_supports_this_version() -> None:
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert {"## Report a vulnerability", "## Supported versions"} <= set(policy.splitlines())
    major, minor, *_ = PROJECT["project"]["version"].split(".")
    assert f"| {major}.{minor} | yes |" in policy
    for link in re.findall(r"\]\(([^)#]+)\)", policy):
        assert (ROOT / link).exists(), link


def install(lock: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "small.lock").write_text(lock)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--timeout", "15", "--retries", "1", "--target", f"{folder}/made", "-r", f"{folder}/small.lock"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_file_with_another_hash_than_the_locked_one_is_not_installed(tmp_path: Path) -> None:
    (locked,) = re.findall(rf"^{SMALL}==.*?(?=^    #)", LOCK, re.MULTILINE | re.DOTALL)
    done = install(locked, tmp_path)
    if done.returncode and re.search("No matching distribution|Retrying|ConnectionError", done.stderr):
        pytest.skip("the package registry cannot be reached")
    assert not done.returncode, done.stderr
    assert (tmp_path / "made" / SMALL).is_dir()

    shutil.rmtree(tmp_path / "made")
    forged = re.sub(r"sha256:\w+", f"sha256:{hashlib.sha256(b'another file').hexdigest()}", locked)
    refused = install(forged, tmp_path)
    assert refused.returncode
    assert "HASH" in refused.stderr.upper()
    assert not (tmp_path / "made").exists()


def test_make_setup_installs_nothing_without_a_hash() -> None:
    script = (ROOT / "tools" / "venv.sh").read_text(encoding="utf-8")
    installs = re.findall(r"^install (.*)$", script, re.MULTILINE)
    assert installs == [
        "--no-deps --require-hashes -r requirements.lock",
        "--no-deps --no-build-isolation --editable .",
    ]


def test_the_bill_of_materials_lists_every_dependency(tmp_path: Path) -> None:
    sbom.write(tmp_path / "sbom.json")
    made = json.loads((tmp_path / "sbom.json").read_bytes())
    assert made["bomFormat"] == "CycloneDX"
    assert made["metadata"]["component"]["name"] == "cantrip-actors"
    listed = {one["name"]: one for one in made["components"]}

    for name, version, hashes in re.findall(r"^([\w.-]+)==([\w.]+)(.*?)(?=^    #)", LOCK, re.MULTILINE | re.DOTALL):
        assert listed[name]["version"] == version
        (source,) = listed[name]["externalReferences"]
        assert {one["content"] for one in source["hashes"]} == set(re.findall(r"sha256:(\w+)", hashes))
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]
    wanted += [one for extra in PROJECT["project"]["optional-dependencies"].values() for one in extra]
    assert {re.match(r"[\w-]+", one)[0] for one in wanted} <= listed.keys()  # type: ignore[index]
    assert str(ROOT) not in (tmp_path / "sbom.json").read_text()


def test_two_builds_of_the_wheel_are_the_same_to_the_byte(tmp_path: Path) -> None:
    """In different folders, with other times and modes of the files, and another umask."""
    wheels = []
    for at, umask in enumerate((0o022, 0o077)):
        copy = tmp_path / f"copy{at}"
        copy.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (*copy.rglob("*.py"),)[at::2]:
            os.utime(path, (10**9 * (at + 1), 10**9 * (at + 1)))
            path.chmod(0o664 if at else 0o600)
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
        subprocess.run(command, cwd=copy, check=True, capture_output=True, umask=umask)
        (wheel,) = (copy / "dist").glob("*.whl")
        wheels.append(wheel.read_bytes())
    assert wheels[0] == wheels[1]


@pytest.mark.parametrize("engine", ["pydantic-monty", "quickjs-rs", "pyseccomp"])
def test_an_engine_that_confines_programs_is_pinned_to_one_version(engine: str) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (pinned,) = {one.partition(";")[0] for extra in extras.values() for one in extra if one.startswith(f"{engine}==")}
    assert re.search(rf"^{re.escape(pinned)} ", LOCK, re.MULTILINE)
