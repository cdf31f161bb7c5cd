"""The supply chain: hashes of the lock are checked, the bill of materials is complete, the wheel is reproducible."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.wheels import build
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
    assert all("--require-hashes" in line for line in re.findall(r"by_pip (--.*)", script))
    installs = re.findall(r"^install (.*)$", script, re.MULTILINE)
    assert installs == [
        "--no-deps --require-hashes -r requirements.lock",
        "--no-deps --no-build-isolation --editable packaging/supervisors --editable .",
    ]


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bill of materials. Holding it against its schema takes five seconds."""
    file = tmp_path_factory.mktemp("bill") / "sbom.json"
    sbom.write(file)
    return file.read_text(encoding="utf-8")


def test_the_bill_of_materials_lists_every_dependency(bill: str) -> None:
    made = json.loads(bill)
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
    assert str(ROOT) not in bill


@pytest.mark.rule("Z-23")
def test_each_component_has_a_licence_and_all_but_two_have_hashes(bill: str) -> None:
    made = json.loads(bill)
    for component in made["components"]:
        (licence,) = component["licenses"]
        names = re.split(r" (?:AND|OR|WITH) |[() ]+", licence["expression"])
        assert all(re.fullmatch(r"[A-Za-z0-9.+-]+", name) for name in names if name), component["name"]
    licences = {component["name"]: component["licenses"][0]["expression"] for component in made["components"]}
    assert (licences["anyio"], licences["httpx"], licences["msgspec"]) == ("MIT", "BSD-3-Clause", "BSD-3-Clause")
    sources = {component["name"]: component.get("externalReferences", [{}])[0] for component in made["components"]}
    # this repository's other distribution, and the extra that the lock leaves out
    assert {name for name, source in sources.items() if not source.get("hashes")} == {
        "cantrip-supervisors",
        "xllamacpp",
    }
    root = made["metadata"]["component"]["bom-ref"]
    below = {entry["ref"]: entry.get("dependsOn", []) for entry in made["dependencies"]}
    refs = {component["name"]: component["bom-ref"] for component in made["components"]}
    assert {refs["anyio"], refs["xllamacpp"]} <= set(below[root])
    assert refs["idna"] in below[refs["anyio"]]
    reached, waiting = set[str](), [root]
    while waiting:
        ref = waiting.pop()
        waiting += [one for one in below[ref] if one not in reached]
        reached |= set(below[ref])
    assert reached == set(refs.values())


SUPERVISORS = ROOT / "packaging" / "supervisors"


@pytest.mark.parametrize("project", [ROOT, SUPERVISORS], ids=["cantrip-actors", "cantrip-supervisors"])
def test_two_builds_of_a_wheel_are_the_same_to_the_byte(tmp_path: Path, project: Path) -> None:
    """In different folders, with other times and modes of the files, and another umask."""
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    wheels = []
    for at, umask in enumerate((0o022, 0o077)):
        copy = tmp_path / f"copy{at}"
        copy.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(project / name, copy)
        for package in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
            shutil.copytree(project / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (*copy.rglob("*.py"),)[at::2]:
            os.utime(path, (10**9 * (at + 1), 10**9 * (at + 1)))
            path.chmod(0o664 if at else 0o600)
        wheels.append(build(copy, umask=umask).read_bytes())
    assert wheels[0] == wheels[1]


@pytest.mark.rule("K-08")
def test_the_two_wheels_share_no_file_and_the_smaller_one_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    copy = tmp_path / "project"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "supervisors", "cantrip_actors", "examples", "packaging"):
        path = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__", "dist")
        shutil.copytree(path, copy / name, symlinks=True, ignore=ignored) if path.is_dir() else shutil.copy(path, copy)
    actors, alone = build(copy), build(copy / "packaging" / "supervisors")
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(build(copy / "packaging" / "supervisors", "sdist"), unpacked)
    (source,) = unpacked.iterdir()
    assert build(source).read_bytes() == alone.read_bytes()

    files = [set(zipfile.ZipFile(wheel).namelist()) for wheel in (actors, alone)]
    assert not files[0] & files[1]
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "supervisors").rglob("*.py")} <= files[1]
    assert "supervisors/py.typed" in files[1]
    (metadata,) = (name for name in files[1] if name.endswith("METADATA"))
    text = zipfile.ZipFile(alone).read(metadata).decode()
    assert re.findall(r"^Requires-Dist: ([\w.-]+)(?!.*extra)", text, re.MULTILINE)[:1] == ["anyio"]
    version = re.search(r"^Version: (.*)$", text, re.MULTILINE)
    assert version is not None
    assert f"cantrip-supervisors=={version[1]}" in PROJECT["project"]["dependencies"]
    assert version[1] == PROJECT["project"]["version"]
    assert (SUPERVISORS / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.rule("K-08")
def test_supervisors_works_without_structlog_and_reports_to_logging(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_STRUCTLOG)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    first, *_ = done.stderr.splitlines()
    assert first.startswith("ERROR:supervisors:child terminated  child='a' path='root/a'")
    assert "ZeroDivisionError: division by zero" in done.stderr


WITHOUT_STRUCTLOG = """
import sys

sys.modules["structlog"] = None  # as if it were not installed

import anyio
import logging

from supervisors import Actor, ActorSystem, ChildSpec


class Fails(Actor):
    async def handle_cast(self, message):
        1 / message


async def main():
    async with ActorSystem() as system:
        ref = await system.start(ChildSpec("a", Fails))
        ref.cast(0)
        await anyio.sleep(0.1)
        assert ref.alive


logging.basicConfig()
anyio.run(main)
assert not {"trio", "cantrip_actors"} & set(sys.modules)
"""


@pytest.mark.parametrize("engine", ["pydantic-monty", "quickjs-rs", "pyseccomp"])
def test_an_engine_that_confines_programs_is_pinned_to_one_version(engine: str) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (pinned,) = {one.partition(";")[0] for extra in extras.values() for one in extra if one.startswith(f"{engine}==")}
    assert re.search(rf"^{re.escape(pinned)} ", LOCK, re.MULTILINE)
