"""Check the names of classes and variables, so that a search and a traceback name one thing.

- A top-level class of the product (`cantrip_actors`, `supervisors`) has a name of its own; so have type aliases and
  new types. `SHARED` lists public names that two distributions have, with the reason; `PENDING` those that still need
  another name. A name in either list that is not used twice any more is an error.
- A variable is named after its content: `for record in records`, not `for one in found`. `VAGUE` has the words that say
  nothing. At most one binding in a hundred of a package may have such a name; `CEILINGS` has the packages above that,
  with a number of bindings that only falls. Parameters, fields, functions and the targets of loops count as bindings.

``python -m tools.names`` checks both, as part of ``make lint``.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tools.layers import ROOT

PRODUCT = ("cantrip_actors", "supervisors")
TOPS = (*PRODUCT, "bench", "conformance", "examples", "tools")

SHARED: Mapping[str, str] = {
    "Crash": "`cantrip_actors.testing` crashes a process, `supervisors` reports the crash of an actor",
    "Event": "an event of a dispatch, and one of a supervision tree",
    "NameTaken": "an entity has the name, or an actor has it",
    "Node": "a member of a cluster, and a node of a supervision tree",
}
"""Public names that two packages have, and why."""

PENDING = (
    "Account Checkpoint Connection Conversation Decided Decision Entry Episode Failed Fetch Folded Limits Message"
    " Outcome Overlap Place Plan Query Record Refusal Remember Rule Said Sandbox Shutdown Snapshot State Status Step"
    " Tree Turn _Known"
)
"""Names that two classes still have."""

VAGUE = frozenset({"one", "found", "given", "made", "known", "told", "said", "asked", "kept", "taken", "held", "put"})
LIMIT = 0.01
"""The share of bindings with a vague name that a package may have."""

CEILINGS: Mapping[str, int] = {
    "cantrip_actors.loom": 127,
    "cantrip_actors.runtime": 142,
}
"""Packages above the limit: how many bindings with a vague name each may have."""

_WORD = re.compile("_?[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_VARIABLES_OF_TYPES = frozenset({"TypeVar", "TypeVarTuple", "ParamSpec"})


class Named(NamedTuple):
    """A top-level class or alias, and where it is defined."""

    name: str
    place: str


def list_classes(tree: ast.Module, file: str) -> Iterator[Named]:
    """Yield the classes, type aliases and new types at the top level of a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield Named(node.name, f"{file}:{node.lineno}")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not _is_type_variable(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and _WORD.fullmatch(target.id):
                    yield Named(target.id, f"{file}:{node.lineno}")


def _is_type_variable(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _VARIABLES_OF_TYPES


def list_bindings(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module binds, except those of imports, classes, `self` and `cls`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                yield node.id
        elif isinstance(node, ast.arg):
            if node.arg not in {"self", "cls"}:
                yield node.arg
        elif isinstance(node, _NAMED) and node.name is not None:
            yield node.name


def is_vague(name: str) -> bool:
    """Return whether a name says nothing about the content."""
    return name.strip("_") in VAGUE


def class_faults(classes: Iterable[Named], shared: Mapping[str, str], pending: frozenset[str]) -> Iterator[str]:
    """Yield the names that several classes have, and the unnecessary rows of both lists."""
    places: dict[str, list[str]] = defaultdict(list)
    for named in classes:
        places[named.name].append(named.place)
    repeated = {name for name, uses in places.items() if len(uses) > 1}
    for name in sorted(repeated - pending - shared.keys()):
        yield f"{', '.join(places[name])}: {name} is the name of several classes: name each after what it is"
    for name in sorted((pending | shared.keys()) - repeated):
        yield f"tools/names.py: only one class is called {name} now: remove its row"


def package_of(file: Path) -> str:
    """Return the package of a file: one of `cantrip_actors`, or a top one."""
    is_inner = file.parts[0] == "cantrip_actors" and len(file.parts) > 2
    return f"cantrip_actors.{file.parts[1]}" if is_inner else file.parts[0]


def binding_faults(bindings: Mapping[str, Counter[str]], ceilings: Mapping[str, int]) -> Iterator[str]:
    """Yield the packages with too many vague names. `bindings` has the names of each package, with their numbers."""
    for package in sorted(bindings):
        vague = {name: count for name, count in bindings[package].items() if is_vague(name)}
        count, limit = sum(vague.values()), int(LIMIT * bindings[package].total())
        if count > ceilings.get(package, limit):
            words = ", ".join(f"{name} ({vague[name]})" for name in sorted(vague, key=lambda name: -vague[name]))
            yield f"{package}: {count} bindings with a vague name, {ceilings.get(package, limit)} are allowed: {words}"
        if package in ceilings and count <= limit:
            yield f"tools/names.py: {package} is within the limit of all packages: remove its row"
    for package in sorted(ceilings.keys() - bindings.keys()):
        yield f"tools/names.py: there is no package {package}: remove its row"


def main() -> int:
    """Check the tree; the exit code says whether it is clean."""
    classes: list[Named] = []
    bindings: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py")):
        file = path.relative_to(ROOT)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bindings[package_of(file)].update(list_bindings(tree))
        if file.parts[0] in PRODUCT:
            classes.extend(list_classes(tree, str(file)))
    problems = [*class_faults(classes, SHARED, frozenset(PENDING.split())), *binding_faults(bindings, CEILINGS)]
    if problems:
        print(*problems, sep="\n")
        return 1
    total = sum(names.total() for names in bindings.values())
    vague = sum(count for names in bindings.values() for name, count in names.items() if is_vague(name))
    pending = len(PENDING.split())
    print(f"names: {len(classes)} classes, {pending} names still used twice; {vague / total:.1%} vague bindings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
