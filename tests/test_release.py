"""What may be released, and what `make dist` builds of it."""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tools import release

pytestmark = [pytest.mark.rule("L-20"), pytest.mark.real_time]

ROOT = Path(__file__).parent.parent
ACTORS, SUPERVISORS = Path("pyproject.toml"), Path("packaging/supervisors/pyproject.toml")

URLS = '[project.urls]\nSource = "https://example.org"'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """This repository's statements about its version, as they are on the day of a release."""
    (tmp_path / "packaging" / "supervisors").mkdir(parents=True)
    for name in (ACTORS, SUPERVISORS, "CHANGELOG.md", "SECURITY.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        text = text.replace("0.1.0.dev0", "0.1.0").replace("(not released yet)", "(2026-12-01)")
        text = text.replace("[project.optional-dependencies]", f"{URLS}\n\n[project.optional-dependencies]")
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def find_problems(tree: Path, tag: str = "v0.1.0", *, is_clean: bool = True) -> list[str]:
    return [*release.find_problems(tree, [tag], is_clean=is_clean)]


def test_a_tree_whose_versions_changelog_and_tag_agree_may_be_released(tree: Path) -> None:
    assert find_problems(tree) == []


@pytest.mark.parametrize(
    ("file", "text", "instead", "problem"),
    [
        (ACTORS, 'version = "0.1.0"', 'version = "0.1.0.dev3"', "pyproject.toml: 0.1.0.dev3 is no version to release"),
        (ACTORS, "cantrip-supervisors==0.1.0", "cantrip-supervisors==0.0.9", "expected the dependency"),
        (SUPERVISORS, 'version = "0.1.0"', 'version = "0.1.1"', "packaging/supervisors/pyproject.toml: version 0.1.1"),
        (SUPERVISORS, "Python :: 3.14", "Python :: 3.15", "differ in requires-python or classifiers"),
        (ACTORS, URLS, "", "pyproject.toml: [project.urls] is missing"),
        (SUPERVISORS, URLS, "", "packaging/supervisors/pyproject.toml: [project.urls] is missing"),
        ("CHANGELOG.md", "## 0.1.0", "## 0.0.9", "CHANGELOG.md: its newest heading is not of 0.1.0"),
        ("CHANGELOG.md", "(2026-12-01)", "(not released yet)", "'not released yet' where the date"),
        ("SECURITY.md", "| 0.1 | yes |", "| 0.1 | no |", "SECURITY.md: 0.1 is not among"),
    ],
)
def test_a_statement_that_disagrees_is_named(
    tree: Path, file: str | Path, text: str, instead: str, problem: str
) -> None:
    before = (tree / file).read_text(encoding="utf-8")
    assert text in before
    (tree / file).write_text(before.replace(text, instead, 1), encoding="utf-8")
    assert problem in "\n".join(find_problems(tree))


def test_a_commit_with_another_tag_or_with_changes_is_not_released(tree: Path) -> None:
    assert find_problems(tree, "v0.0.9") == ["this commit has no tag v0.1.0, but v0.0.9"]
    assert find_problems(tree, is_clean=False) == ["there are changes that are not committed"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two projects of one module each, where the two distributions are."""
    for name, folder in (("one", tmp_path), ("two", tmp_path / "packaging" / "supervisors")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").touch()
        (folder / "README.md").write_text("# A project\n", encoding="utf-8")
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
            f'[project]\nname = "{name}"\nversion = "1.0"\nreadme = "README.md"\nrequires-python = ">=3.11"\n'
        )
    return tmp_path


def test_dist_has_a_wheel_and_a_source_archive_of_each_distribution_and_nothing_earlier(small: Path) -> None:
    target = small / "dist"
    target.mkdir()
    (target / "one-0.9-py3-none-any.whl").touch()
    files = release.build(small, target)
    wanted = ["one-1.0-py3-none-any.whl", "one-1.0.tar.gz", "two-1.0-py3-none-any.whl", "two-1.0.tar.gz"]
    assert [file.name for file in files] == wanted


def test_metadata_that_the_index_would_refuse_fails_the_build(small: Path) -> None:
    (small / "README.md").write_text("", encoding="utf-8")  # a warning, which is a failure here
    with pytest.raises(subprocess.CalledProcessError, match="twine"):
        release.build(small, small / "dist")


def test_the_classifiers_name_the_pythons_that_are_tested() -> None:
    project = tomllib.loads((ROOT / ACTORS).read_text(encoding="utf-8"))["project"]
    minors = [text.rpartition(":: ")[2] for text in project["classifiers"] if ":: Python :: 3." in text]
    assert minors == ["3.11", "3.12", "3.13", "3.14"]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert f"python: {minors}".replace("'", '"') in workflow


def test_a_python_that_cannot_be_had_is_named_and_is_no_failure(tmp_path: Path) -> None:
    nothing = tmp_path / "python3.99"
    nothing.write_text("#!/bin/sh\nexit 1\n")
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\nexit 1\n")
    nothing.chmod(0o755)
    uv.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYENV_ROOT": str(tmp_path)}
    command = [ROOT / "tools" / "pythons.sh", "3.99"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (
        0,
        "notice: not run: Python 3.99 is not installed, and uv cannot fetch it\n",
    )
