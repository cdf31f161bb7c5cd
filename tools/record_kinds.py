"""Only the fold and the projections look at kinds of records.

The meaning of a record is decided in one place: `machine/evolve.py` applies it to a state, `machine/project/` answers
questions about it, `stream/reading.py` shows it to users. Code elsewhere that asks a record for its class
(`isinstance`, `match`/`case`, `type(record) is …`) decides it a second time.
``python -m tools.record_kinds`` checks it, as part of ``make lint``.
"""

import ast
import sys
from collections.abc import Iterator
from typing import NamedTuple, get_args

from cantrip_actors.records import records
from tools.layers import ROOT

MODULE = "cantrip_actors.records.records"
KINDS = frozenset(cls.__name__ for cls in get_args(records.Record))
ALLOWED = (
    "cantrip_actors/machine/evolve.py",
    "cantrip_actors/machine/project/",
    "cantrip_actors/records/",
    "cantrip_actors/stream/reading.py",
)
"""The modules that decide what a kind of record means, or define it."""


class Look(NamedTuple):
    """A place that looks at kinds of records."""

    file: str
    function: str
    line: int


def looks(source: str, file: str) -> Iterator[Look]:
    """Yield every place of a module that looks at kinds of records, with its function (empty at the top level)."""
    tree = ast.parse(source, file)
    yield from _walk(tree, file, (), frozenset(_names(tree)))


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield the names by which a module knows the classes of records."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name
                if node.module == MODULE and alias.name in KINDS:
                    yield name
                elif f"{node.module}.{alias.name}" == MODULE:
                    yield from (f"{name}.{kind}" for kind in KINDS)


def _walk(node: ast.AST, file: str, scope: tuple[str, ...], names: frozenset[str]) -> Iterator[Look]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = (*scope, node.name)
    if any(ast.unparse(cls) in names for cls in _classes(node)):
        at = node.pattern if isinstance(node, ast.match_case) else node
        yield Look(file, ".".join(scope), getattr(at, "lineno", 0))
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, file, scope, names)


def _classes(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the classes that an expression may compare a value's class with."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
        yield from (part for part in ast.walk(node.args[1]) if isinstance(part, ast.Name | ast.Attribute))
    elif isinstance(node, ast.match_case):
        yield from (part.cls for part in ast.walk(node.pattern) if isinstance(part, ast.MatchClass))
    elif isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        yield from (part for side in sides for part in ast.walk(side) if isinstance(part, ast.Name | ast.Attribute))


def faults(source: str, file: str) -> Iterator[str]:
    """Yield the places of a module that may not look at kinds of records, and do."""
    if not file.startswith(ALLOWED):
        for look in looks(source, file):
            where = look.function or "the top level"
            yield f"{file}:{look.line}: {where} looks at kinds of records: ask machine/project"


def main() -> int:
    """Check the tree; the exit code says whether it is clean."""
    problems = [
        problem
        for path in sorted((ROOT / "cantrip_actors").rglob("*.py"))
        for problem in faults(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]
    print(*problems or ["record kinds: only evolve and the projections look at them"], sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
