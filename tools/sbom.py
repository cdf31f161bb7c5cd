"""Write the bill of materials: every dependency that runs, tests or builds the project, in CycloneDX's format.

It lists the content of requirements.lock: names, exact versions, hashes. Requirements of an extra that the lock leaves
out are listed without a version. The output depends on these two files alone.

``make sbom`` writes ``dist/sbom.cdx.json``; ``python -m tools.sbom FILE`` another file.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def requirements() -> str:
    """Return requirements.lock, followed by the requirements of pyproject.toml that are not locked."""
    locked = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    names = set(re.findall(r"^[\w.-]+", locked, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted += [requirement for extra in project["project"]["optional-dependencies"].values() for requirement in extra]
    loose = [requirement for requirement in wanted if re.match(r"[\w.-]+", requirement)[0] not in names]  # type: ignore[index]  # always begins so
    return "\n".join([locked, *loose])


def write(file: Path) -> None:
    """Write the bill of materials; raises CalledProcessError if it is not a valid one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "-", "--pyproject", "pyproject.toml"]
    command += ["--mc-type", "library", "--output-reproducible", "--of", "JSON", "-o", f"{file.absolute()}"]
    subprocess.run(command, cwd=ROOT, input=requirements(), text=True, check=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
