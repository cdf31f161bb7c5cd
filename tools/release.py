"""Build the distributions, and check that a release may be made of them. Nothing here publishes anything.

``make dist`` builds both distributions as wheels and source archives into ``dist``, holds their metadata against the
package index's rules (``twine check --strict``), and writes the bill of materials beside them. ``make release`` first
checks that versions, changelog, security policy and tag agree, names everything that does not, and then does the same.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools import sbom

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PROJECTS = (".", "packaging/supervisors")
FINAL = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def find_problems(root: Path, tags: list[str], *, is_clean: bool) -> Iterator[str]:
    """Yield what keeps this tree from being released. `tags` are those of its commit."""
    project, supervisors = (_read_project(root / folder) for folder in PROJECTS)
    version = project["version"]
    if not FINAL.fullmatch(version):
        yield f"pyproject.toml: {version} is no version to release; expected one such as 0.1.0 or 0.1.0rc1"
    if supervisors["version"] != version:
        yield f"packaging/supervisors/pyproject.toml: version {supervisors['version']}, but pyproject.toml: {version}"
    if f"{supervisors['name']}=={version}" not in project["dependencies"]:
        yield f"pyproject.toml: expected the dependency {supervisors['name']}=={version}"
    if (supervisors["requires-python"], supervisors["classifiers"]) != (
        project["requires-python"],
        project["classifiers"],
    ):
        yield "the two pyproject.toml differ in requires-python or classifiers"
    for folder, statements in zip(PROJECTS, (project, supervisors), strict=True):
        if not statements.get("urls"):
            file = (Path(folder) / "pyproject.toml").as_posix()
            yield f"{file}: [project.urls] is missing: say where the source, the changelog and the issues are"
    release = re.match(r"\d+\.\d+\.\d+", version)
    heading = re.search(r"^## (\S+) \((.*)\)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None or release is None or heading[1] != release[0]:
        yield f"CHANGELOG.md: its newest heading is not of {version}"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        yield f"CHANGELOG.md: {version} has {heading[2]!r} where the date of the release belongs, such as 2026-12-01"
    series = ".".join(version.split(".")[:2])
    if f"| {series} | yes |" not in (root / "SECURITY.md").read_text(encoding="utf-8"):
        yield f"SECURITY.md: {series} is not among the supported versions"
    if f"v{version}" not in tags:
        yield f"this commit has no tag v{version}, but {', '.join(tags) or 'none'}"
    if not is_clean:
        yield "there are changes that are not committed"


def _read_project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def build(root: Path, target: Path) -> list[Path]:
    """Build both distributions as wheels and source archives, in place of earlier ones in `target`; return the files.

    Raises CalledProcessError if one cannot be built, or the package index would refuse its metadata.
    """
    for pattern in ("*.whl", "*.tar.gz"):
        for earlier in target.glob(pattern):
            earlier.unlink()
    for project in PROJECTS:
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-t",
            "wheel",
            "-t",
            "sdist",
            "-d",
            target,
        ]
        subprocess.run(command, cwd=root / project, check=True, stdout=subprocess.DEVNULL)
    files = sorted([*target.glob("*.whl"), *target.glob("*.tar.gz")])
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    return files


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main(argv: list[str]) -> int:
    """Build, after the checks unless ``--no-checks``; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--no-checks", action="store_true", help="build only, whatever the version is")
    if not parser.parse_args(argv).no_checks:
        tags = _git("tag", "--points-at", "HEAD").split()
        problems = [*find_problems(ROOT, tags, is_clean=not _git("status", "--porcelain"))]
        if problems:
            print("not to be released yet:", *problems, sep="\n  ", file=sys.stderr)
            return 1
    files = build(ROOT, DIST)
    sbom.write(DIST / "sbom.cdx.json")
    print(*(file.relative_to(ROOT) for file in files), "dist/sbom.cdx.json", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
