"""Check that the files of one package do not import each other in a circle.

Two files that import each other are one file in two halves: a type or a constant is in the wrong one. Imports inside
functions and those for types only count too. `KNOWN` lists the files that may import each other in a circle, each group
with the reason; an unnecessary row is an error. ``python -m tools.circles`` checks it, as part of ``make lint``.
"""

import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tools.layers import ROOT, imports

TOPS = ("supervisors", "cantrip_actors", "bench", "conformance", "examples", "tools")

KNOWN: Mapping[str, tuple[str, str]] = {
    "cantrip_actors.runtime": (
        "face.runtime face.blocking face.entity face.work",
        "`Runtime.blocking` opens what is made of the methods of `Runtime`; an entity has works, and a work its entity",
    ),
    "supervisors": (
        "actor children errors events incarnation mailbox reasons ref spec supervisor system waiting",
        "an incarnation, its reference and its mailbox know each other, each in a file of its own",
    ),
}
"""By package: the files that may import each other in a circle, and why."""

Graph = Mapping[str, set[str]]


def package_of(module: str, sources: Mapping[str, tuple[str, bool]]) -> str:
    """Return the package whose files may not import each other in a circle: one of `cantrip_actors`, or a top one."""
    inner = ".".join(module.split(".")[:2])
    return inner if module.startswith("cantrip_actors.") and sources[inner][1] else module.split(".", maxsplit=1)[0]


def graph(sources: Mapping[str, tuple[str, bool]]) -> dict[str, set[str]]:
    """Return each module's imports from its own package. `sources` has text and whether it is a package."""
    edges: dict[str, set[str]] = {}
    for module, (source, is_package) in sources.items():
        edges[module] = set()
        for imported in imports(source, module, package=is_package):
            parts = imported.target.split(".")
            named = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
            target = next((name for name in named if name in sources), module)
            if target != module and package_of(target, sources) == package_of(module, sources):
                edges[module].add(target)
    return edges


def faults(edges: Graph, packages: Mapping[str, str], allowed_circles: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yield a circle of each package that `allowed_circles` does not name, and the unnecessary rows.

    `packages` has the package of each module.
    """
    for package in sorted({*packages.values(), *allowed_circles}):
        names, why = allowed_circles.get(package, ("", ""))
        allowed = {f"{package}.{name}" for name in names.split() if why.strip()}
        files = {module: targets for module, targets in edges.items() if packages[module] == package}
        circle = _circle({module: _others(module, targets, allowed) for module, targets in files.items()})
        if circle:
            yield f"{package}: a circle of imports: {' -> '.join(circle)} (move what both need to a file below them)"
        if package in allowed_circles and not _circle(
            {module: files.get(module, set()) & allowed for module in allowed}
        ):
            yield f"tools/circles.py: the files named for {package} have no circle any more; remove its row"


def _others(module: str, targets: set[str], allowed: set[str]) -> set[str]:
    return targets - allowed if module in allowed else targets


def _circle(edges: Graph) -> list[str]:
    """Return the modules of a circle, the first one also last; an empty list if there is no circle."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def main() -> int:
    """Check the tree; the exit code says whether it is clean."""
    sources: dict[str, tuple[str, bool]] = {}
    for path in sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py")):
        is_package = path.name == "__init__.py"
        relative = Path(path.relative_to(ROOT))
        module = ".".join((relative.parent if is_package else relative.with_suffix("")).parts)
        sources[module] = (path.read_text(encoding="utf-8"), is_package)
    packages = {module: package_of(module, sources) for module in sources}
    problems = list(faults(graph(sources), packages, KNOWN))
    if problems:
        print(*problems, sep="\n")
    else:
        print(f"circles: none in {len(set(packages.values()))} packages, but for {len(KNOWN)} known ones")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
