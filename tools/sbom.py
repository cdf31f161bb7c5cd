"""Write the bill of materials: every dependency that runs, tests or builds the project, in CycloneDX's format.

It lists the content of requirements.lock: names, exact versions, hashes, and the licence of each (`licences.py`); and
the libraries whose files are in this repository.
Requirements of an extra that the lock leaves out are listed without a version. The output depends on these files, and
on what the installed packages state of their licences.

``make sbom`` writes ``dist/sbom.cdx.json``; ``python -m tools.sbom FILE`` another file.
"""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tools.licences import VENDORED, Vendored, find_licence

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
    """Write the bill of materials; raises CalledProcessError if it is not a valid one.

    Raises SystemExit for a dependency without a known licence.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "-", "--pyproject", "pyproject.toml"]
    command += ["--mc-type", "library", "--output-reproducible", "--of", "JSON", "-o", f"{file.absolute()}"]
    subprocess.run(command, cwd=ROOT, input=requirements(), text=True, check=True)
    made = json.loads(file.read_bytes())
    for component in made["components"]:
        component["licenses"] = [{"expression": _find_licence(component["name"])}]
        component.pop("description", None)  # a copy of its lines of the lock
    made["components"].extend(map(_build_vendored, VENDORED))
    made["dependencies"] = _build_graph(made)
    file.write_text(json.dumps(made, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    _validate(file)


def _build_vendored(library: Vendored) -> dict[str, Any]:
    digest = hashlib.sha256((ROOT / library.file).read_bytes()).hexdigest()
    source = {"type": "distribution", "url": library.source, "hashes": [{"alg": "SHA-256", "content": digest}]}
    return {
        "type": "library",
        "bom-ref": f"vendored {library.name}",
        "name": library.name,
        "version": library.version,
        "purl": f"pkg:npm/{library.name}@{library.version}",
        "licenses": [{"expression": library.licence}],
        "externalReferences": [source],
    }


def _build_graph(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return which component depends on which: the lock says by whom each package is wanted."""
    root = made["metadata"]["component"]
    refs = {component["name"]: component["bom-ref"] for component in (*made["components"], root)}
    wanted: dict[str, set[str]] = {ref: set() for ref in refs.values()}
    locked = set()
    for name, comment in re.findall(r"^([\w.-]+)==(?:.*\n)+?    # via(.*(?:\n    #.*)*)", requirements(), re.MULTILINE):
        locked.add(name)
        for parent in re.findall(r"(?:^|#) +([\w.-]+)", comment):
            wanted[refs[parent]].add(refs[name])
    wanted[root["bom-ref"]] |= {ref for name, ref in refs.items() if name not in locked and ref != root["bom-ref"]}
    return [{"ref": ref, "dependsOn": sorted(below)} for ref, below in sorted(wanted.items())]


def _find_licence(name: str) -> str:
    licence = find_licence(name)
    if licence is None:
        sys.exit(f"{name}: its files state no licence that SPDX knows: read them, and add it to tools/licences.py")
    return licence


def _validate(file: Path) -> None:
    made = json.loads(file.read_bytes())
    version = SchemaVersion.from_version(made["specVersion"])
    error = JsonStrictValidator(version).validate_str(file.read_text(encoding="utf-8"))
    if error is not None:
        sys.exit(f"{file}: not a valid bill of materials: {error}")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
