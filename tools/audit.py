"""Check the locked dependencies: known vulnerabilities, and pins that keep back newer versions.

The advisories come from OSV (https://osv.dev), which has those of the Python Packaging Authority and of GitHub. Only
names and versions of requirements.lock are sent. Where the database cannot be reached, the check says that it did not
run.

``make audit`` runs it; ``--database URL`` asks a mirror, and ``--no-pins`` asks no package index. It fails for an
advisory that `ACCEPTED` does not have, and for a bound of pyproject.toml without a reason in `HELD`.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

ROOT = Path(__file__).parent.parent
DATABASE = "https://api.osv.dev"
PATIENCE = httpx.Timeout(30, connect=5)

ACCEPTED: dict[str, str] = {}
"""By the id of an advisory: why it does not concern this project."""

HELD = {
    "atif": "trajectories of the export claim version 1.8 of the format",
    "cantrip-supervisors": "the other distribution of this repository, released together",
    "hypercorn": "private parts of its connections are replaced, for clients that are slow",
    "mcp": "a new major version changes the interfaces of servers and clients",
    "pydantic-monty": "a snapshot belongs to one version, and 1.5 renames what we call",
    "pydantic-monty-client": "as pydantic-monty",
    "pydantic-monty-runtime": "as pydantic-monty",
    "pymdown-extensions": "13 needs Python 3.11.5, and the lock names one version for all",
    "pyseccomp": "the filter of system calls was tried with this version",
    "quickjs-rs": "its WebAssembly is driven directly, and a snapshot belongs to one version",
    "tree-sitter-bash": "the names of the grammar's nodes are used",
    "tree-sitter-javascript": "the names of the grammar's nodes are used",
    "wasmtime": "its calls were tried with these versions",
}
"""By the name of a package: why pyproject.toml bounds its version from above."""


class Advisory(NamedTuple):
    """A known vulnerability of a locked version."""

    package: str
    version: str
    id: str
    summary: str
    aliases: tuple[str, ...]

    @property
    def reason(self) -> str | None:
        """Why it is accepted; None if it is not."""
        return next((ACCEPTED[name] for name in (self.id, *self.aliases) if name in ACCEPTED), None)


def list_locked() -> list[tuple[str, str]]:
    """Return the names and versions of requirements.lock."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE)


def list_bounded() -> list[str]:
    """Return the names of the packages whose versions pyproject.toml bounds from above."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted += [requirement for extra in project["project"]["optional-dependencies"].values() for requirement in extra]
    bounded = (re.match(r"([\w.-]+)[^;]*(==|<)", requirement) for requirement in wanted)
    return sorted({match[1] for match in bounded if match})


def find_advisories(client: httpx.Client, packages: list[tuple[str, str]]) -> list[Advisory]:
    """Return the advisories about these versions. Raises httpx.HTTPError, ValueError."""
    found: list[Advisory] = []
    queries = [{"package": {"ecosystem": "PyPI", "name": name}, "version": version} for name, version in packages]
    while queries:
        answer = client.post("/v1/querybatch", json={"queries": queries})
        results = answer.raise_for_status().json()["results"]
        if len(results) != len(queries):
            raise ValueError(f"expected {len(queries)} results, got {len(results)}")
        more = []
        for query, result in zip(queries, results, strict=True):
            found += [_read_advisory(client, query, vulnerability["id"]) for vulnerability in result.get("vulns", ())]
            if result.get("next_page_token"):
                more.append({**query, "page_token": result["next_page_token"]})
        queries = more
    return found


def _read_advisory(client: httpx.Client, query: dict[str, Any], advisory_id: str) -> Advisory:
    details = client.get(f"/v1/vulns/{advisory_id}").raise_for_status().json()
    summary = details.get("summary") or str(details.get("details", "")).partition("\n")[0]
    return Advisory(
        query["package"]["name"], query["version"], advisory_id, summary[:200], tuple(details.get("aliases", ()))
    )


def check_advisories(database: str) -> bool:
    """Print what is known of the locked versions; return False if something has to be done."""
    packages = list_locked()
    try:
        with httpx.Client(base_url=database, timeout=PATIENCE) as client:
            advisories = find_advisories(client, packages)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError) as error:
        print(f"NOT CHECKED: the advisory database {database} cannot be read: {str(error) or type(error).__name__}")
        print("run `make audit` where it can be reached, or give a mirror: python -m tools.audit --database URL")
        return True
    for advisory in advisories:
        names = ", ".join((advisory.id, *advisory.aliases))
        print(f"{advisory.package} {advisory.version}: {names}: {advisory.summary}")
        if advisory.reason is not None:
            print(f"    accepted: {advisory.reason}")
    refused = [advisory for advisory in advisories if advisory.reason is None]
    print(f"advisories: {len(packages)} packages checked, {len(advisories)} advisories, {len(refused)} to act on")
    return not refused


def describe_pins() -> Iterator[str]:
    """Yield a line for each bound: whether there is a newer version, and why it is not taken."""
    locked = dict(list_locked())
    for name in list_bounded():
        if name not in locked:
            continue
        command = [sys.executable, "-m", "pip", "index", "versions", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        newest = re.match(rf"{re.escape(name)} \(([^)]+)\)", done.stdout)
        if newest is None:
            yield f"{name} {locked[name]}: NOT CHECKED: the package index cannot be read"
        elif newest[1] != locked[name]:
            yield f"{name} {locked[name]}, the newest is {newest[1]}: {HELD[name]}"
        else:
            yield f"{name} {locked[name]}: the newest"


def main(arguments: list[str] | None = None) -> int:
    """Check, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.audit", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--database", default=DATABASE, metavar="URL", help="the advisory database (default: %(default)s)"
    )
    parser.add_argument("--no-pins", action="store_true", help="do not ask the package index for newer versions")
    options = parser.parse_args(arguments)
    unexplained = [name for name in list_bounded() if name not in HELD]
    for name in unexplained:
        print(f"{name}: pyproject.toml bounds it from above: say why in HELD of tools/audit.py")
    if not options.no_pins:
        for line in describe_pins():
            print(line)
    return 0 if check_advisories(options.database) and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main())
